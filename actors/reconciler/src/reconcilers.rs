//! All reconcilers of a process: a contained group for each one that its release defines.
//!
//! Inputs      the definitions, as a watched value; the request to retire.  Outputs  none: it starts and stops groups.
//! ```text
//! reconcilers
//! └─ NAME
//!    ├─ participants        watches the cluster's view of NAME
//!    ├─ run                 the run of the term that is held, if any
//!    ├─ candidates          decides whether to campaign
//!    │  └─ record           the candidate's record
//!    │     └─ lease         and the lease behind it
//!    └─ elect               the election, while it campaigns
//! ```
//! A failure in one NAME disturbs no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_elector::ConfigRefusal;
use muster_kernel::{Address, Backoff, Cx, Fault, Intensity, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::{Definitions, ReconcilerRequest};
use muster_messages::{ErrorBody, Revision, Triple};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::candidates::candidates_spec;
use crate::cluster_requests::{self, WatchedValue};
use crate::participants::participants_spec;
use crate::runner::runner_spec;
use crate::wiring::{Setup, Wiring};

const MAILBOX: usize = 64;
/// Time limit for a reconciler to end in order: a command has 5 s between TERM and KILL.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(7);

/// The watch of the reconcilers that a release defines.
struct Names(Triple);

impl WatchedValue for Names {
    type View = Definitions;
    fn request(&self, seen: Revision, wait_ms: u64) -> ReconcilerRequest {
        ReconcilerRequest::Definitions { release: self.0, seen, wait_ms }
    }
    fn revision(view: &Definitions) -> Revision {
        view.revision
    }
}

/// Handle to all reconcilers of a process. Cheap to clone.
#[derive(Clone)]
pub struct Reconcilers {
    retire: CancellationToken,
    retired: watch::Receiver<bool>,
}

impl Reconcilers {
    /// Ends every run in order and releases every lease, so that others can continue at once; waits for that briefly. Nothing
    /// starts afterwards.
    pub async fn hand_over(&self) {
        self.retire.cancel();
        let mut retired = self.retired.clone();
        let limit = RETIRE_TIMEOUT + Duration::from_secs(1);
        let _in_time = tokio::time::timeout(limit, retired.wait_for(|retired| *retired)).await.is_ok();
    }
}

/// Makes the reconcilers of a process.
pub fn reconcilers_spec(setup: Setup) -> Result<(Spec, Reconcilers), ConfigRefusal> {
    setup.validate()?;
    let (tell, retired) = watch::channel(false);
    let (tell, retire) = (Arc::new(tell), CancellationToken::new());
    let reconcilers = Reconcilers { retire: retire.clone(), retired };
    let make = move || {
        let (setup, retire, retired) = (setup.clone(), retire.clone(), Arc::clone(&tell));
        Ok(ReconcilersShell { setup, retire, retired, groups: BTreeMap::new(), wanted: BTreeSet::new(), trouble: None })
    };
    let spec = Spec::actor("reconcilers", Address::new(MAILBOX), make).with_children();
    Ok((spec.contained(), reconcilers))
}

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Definitions(Result<Definitions, ErrorBody>),
    Stopped(String),
    Retire,
}

struct Group {
    wiring: Wiring,
    stopping: bool,
}

/// See the module.
pub struct ReconcilersShell {
    setup: Setup,
    retire: CancellationToken,
    retired: Arc<watch::Sender<bool>>,
    groups: BTreeMap<String, Group>,
    wanted: BTreeSet<String>,
    trouble: Option<String>,
}

impl ReconcilersShell {
    /// Starts and stops groups until they match the names. The only place that does.
    fn settle(&mut self, cx: &Cx<Msg>) {
        let retiring = self.retire.is_cancelled();
        for name in self.wanted.iter().filter(|_| !retiring) {
            if !self.groups.contains_key(name) {
                info!(reconciler = %name, "starting reconciler: its definition exists for this release");
                let wiring = Wiring::new(name, self.setup.clone());
                cx.children().start(group(wiring.clone()));
                self.groups.insert(name.clone(), Group { wiring, stopping: false });
            }
        }
        for (name, group) in &mut self.groups {
            let unwanted = retiring || !self.wanted.contains(name);
            if unwanted && !std::mem::replace(&mut group.stopping, true) {
                let (children, name) = (cx.children().clone(), name.clone());
                let mut retired = group.wiring.retired.subscribe();
                group.wiring.retire.cancel();
                cx.report(async move {
                    let _in_time =
                        tokio::time::timeout(RETIRE_TIMEOUT, retired.wait_for(|retired| *retired)).await.is_ok();
                    children.stop_and_wait(&name).await;
                    Msg::Stopped(name)
                });
            }
        }
        if retiring && self.groups.is_empty() {
            self.retired.send_replace(true);
        }
    }
}

/// The actors of one reconciler.
fn group(wiring: Wiring) -> Spec {
    let path = wiring.name.clone();
    let fill = move |children: &muster_kernel::Children| {
        let Wiring { name, setup, publish, .. } = wiring.clone();
        // The elector of an earlier group ended with that group.
        wiring.memory.forget_elector();
        children.start(participants_spec(setup.cluster, name, setup.release.triple, publish));
        children.start(runner_spec(wiring.clone()));
        children.start(candidates_spec(wiring.clone(), children.clone()));
        Ok(())
    };
    Spec::group(path, Intensity::default(), fill).backoff(Backoff::SLOW).contained().counted_as("*")
}

impl Shell for ReconcilersShell {
    type Msg = Msg;
    const KIND: &'static str = "Reconcilers";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let (cluster, me) = (Arc::clone(&self.setup.cluster), cx.me().clone());
        let names = Names(self.setup.release.triple);
        cx.spawn(cluster_requests::watch(cluster, names, move |answer| {
            let delivered = me.tell(Msg::Definitions(answer)).is_ok();
            async move { delivered }
        }));
        cx.report(self.retire.clone().cancelled_owned().map(|()| Msg::Retire));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Definitions(Ok(definitions)) => {
                self.trouble = None;
                self.wanted = definitions.items.into_keys().filter(|name| self.setup.may_run(name)).collect();
            }
            Msg::Definitions(Err(body)) => self.trouble = Some(body.message),
            Msg::Stopped(name) => drop(self.groups.remove(&name)),
            Msg::Retire => {}
        }
        self.settle(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        let names: Vec<&String> = self.groups.keys().collect();
        json!({"release": self.setup.release, "running": names, "trouble": self.trouble})
    }
}
