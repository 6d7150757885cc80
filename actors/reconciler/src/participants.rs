//! The cluster's view of one reconciler, on which its candidate and runner act: watched, and published as a watched value.
//!
//! A view that this build cannot read is one of a later build's definition. The last one is then published without a definition,
//! so that this candidate ends its term and leaves it to others: the definition that it knows is not the one in force.

use std::sync::Arc;

use muster_kernel::{Address, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::{ReconcilerRequest, RunnerView};
use muster_messages::{ErrorBody, ErrorCode, Revision, Triple};
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;

use crate::cluster_requests::{self, WatchedValue};
use crate::ports::Cluster;

const MAILBOX: usize = 16;

/// The newest view. `None`: none yet, or the reconciler does not exist.
pub type Views = watch::Receiver<Option<Arc<RunnerView>>>;

/// The watch of the view.
struct View {
    name: String,
    release: Triple,
}

/// What the cluster answers.
enum Answer {
    Readable(Box<RunnerView>),
    /// Its revision is enough to wait for the next one.
    Unreadable {
        revision: Revision,
        why: String,
    },
}

impl<'de> Deserialize<'de> for Answer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        RunnerView::deserialize(&value).map(|view| Self::Readable(Box::new(view))).or_else(|error| {
            let revision = value.get("revision").map(Revision::deserialize);
            let revision = revision.and_then(Result::ok).ok_or_else(|| D::Error::custom(&error))?;
            Ok(Self::Unreadable { revision, why: format!("this build cannot read the definition: {error}") })
        })
    }
}

impl WatchedValue for View {
    type View = Answer;
    fn request(&self, seen: Revision, wait_ms: u64) -> ReconcilerRequest {
        ReconcilerRequest::View { name: self.name.clone(), release: self.release, seen, wait_ms }
    }
    fn revision(answer: &Answer) -> Revision {
        match answer {
            Answer::Readable(view) => view.revision,
            Answer::Unreadable { revision, .. } => *revision,
        }
    }
}

/// An actor that publishes views.
pub fn participants_spec(
    cluster: Arc<dyn Cluster>,
    name: String,
    release: Triple,
    publish: Arc<watch::Sender<Option<Arc<RunnerView>>>>,
) -> Spec {
    Spec::actor("participants", Address::new(MAILBOX), move || {
        let (cluster, name, publish) = (Arc::clone(&cluster), name.clone(), Arc::clone(&publish));
        Ok(Participants { cluster, name, release, publish, trouble: None })
    })
}

/// An answer. A lost one is requested again.
pub struct Msg(Result<Answer, ErrorBody>);

impl Named for Msg {
    fn name(&self) -> &'static str {
        "answer"
    }
}

/// See the module.
pub struct Participants {
    cluster: Arc<dyn Cluster>,
    name: String,
    release: Triple,
    publish: Arc<watch::Sender<Option<Arc<RunnerView>>>>,
    trouble: Option<String>,
}

impl Shell for Participants {
    type Msg = Msg;
    const KIND: &'static str = "Participants";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let watched_value = View { name: self.name.clone(), release: self.release };
        let (cluster, me) = (Arc::clone(&self.cluster), cx.me().clone());
        cx.spawn(cluster_requests::watch(cluster, watched_value, move |answer| {
            let delivered = me.tell(Msg(answer)).is_ok();
            async move { delivered }
        }));
        Ok(())
    }

    async fn handle(&mut self, _cx: &Cx<Msg>, Msg(answer): Msg) -> Result<(), Fault> {
        match answer {
            Ok(Answer::Readable(view)) => {
                self.trouble = None;
                self.publish.send_if_modified(|known| {
                    let newer = known.as_ref().is_none_or(|known| known.revision <= view.revision);
                    let changed = newer && known.as_deref() != Some(&*view);
                    if changed {
                        *known = Some(Arc::from(view));
                    }
                    changed
                });
            }
            Ok(Answer::Unreadable { revision, why }) => {
                self.publish.send_if_modified(|known| {
                    let stale = known.as_ref().filter(|known| known.revision <= revision && known.definition.is_some());
                    let without =
                        stale.map(|known| Arc::new(RunnerView { definition: None, ..RunnerView::clone(known) }));
                    let changed = without.is_some();
                    if changed {
                        warn!(reconciler = %self.name, %why, "gives up the reconciler: upgrade this node");
                        *known = without;
                    }
                    changed
                });
                self.trouble = Some(why);
            }
            Err(body) => {
                if body.code == ErrorCode::NotFound {
                    self.publish.send_replace(None);
                }
                self.trouble = Some(body.message);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let view = self.publish.borrow().clone();
        json!({
            "trouble": self.trouble, "revision": view.as_ref().map(|v| v.revision), "gate": view.as_ref().map(|v| &v.gate),
            "candidates": view.as_ref().map(|v| v.candidates.len()), "blockers": view.as_ref().map(|v| v.blockers_in_all),
        })
    }
}
