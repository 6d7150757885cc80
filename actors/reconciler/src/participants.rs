//! The cluster's view of one reconciler, on which its candidate and runner act: watched, and published as a watched value.
//! [`crate::core::views`] decides which view replaces which.

use std::sync::Arc;

use muster_kernel::{Address, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::{ReconcilerRequest, RunnerView};
use muster_messages::{ErrorBody, Revision, Triple};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;

use crate::cluster_requests::{self, WatchedValue};
use crate::core::views::{Answer, Replacement, replacement};
use crate::ports::Cluster;

const MAILBOX: usize = 16;

/// The newest view. `None`: none yet, or the reconciler does not exist.
pub type Views = watch::Receiver<Option<Arc<RunnerView>>>;

/// The watch of the view.
struct View {
    name: String,
    release: Triple,
}

impl WatchedValue for View {
    type View = Answer;
    fn request(&self, seen: Revision, wait_ms: u64) -> ReconcilerRequest {
        ReconcilerRequest::View { name: self.name.clone(), release: self.release, seen, wait_ms }
    }
    fn revision(answer: &Answer) -> Revision {
        answer.revision()
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
        let published = self.publish.borrow().clone();
        let (replacement, trouble) = replacement(published.as_deref(), answer);
        let replace = |view| drop(self.publish.send_replace(view));
        match replacement {
            Replacement::Keep => {}
            Replacement::View(view) => replace(Some(Arc::from(view))),
            Replacement::GivenUp(view) => {
                let why = trouble.as_deref().unwrap_or_default();
                warn!(reconciler = %self.name, %why, "gives up the reconciler: upgrade this node");
                replace(Some(Arc::from(view)));
            }
            Replacement::Missing => replace(None),
        }
        self.trouble = trouble;
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
