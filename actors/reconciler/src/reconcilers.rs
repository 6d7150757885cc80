//! All reconcilers of a process: a contained group for each one that its release defines. [`crate::core::groups`] decides.
//!
//! Inputs      the definitions of each release that it can run, and these releases, as watched values; the request to retire.  Outputs  none: it starts and stops groups.
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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_elector::ConfigRefusal;
use muster_kernel::{Address, Backoff, Cx, Fault, Intensity, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::{Definitions, ReconcilerRequest};
use muster_messages::{ErrorBody, Release, Revision, Triple};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::candidates::candidates_spec;
use crate::cluster_requests::{self, WatchedValue};
use crate::core::groups::{Effect, Facts, Groups, Input};
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
        let core = Groups::new(setup.abilities());
        Ok(ReconcilersShell { core, setup, retire, retired, wirings: BTreeMap::new(), watches: BTreeMap::new() })
    };
    let spec = Spec::actor("reconcilers", Address::new(MAILBOX), make).with_children();
    Ok((spec.contained(), reconcilers))
}

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Definitions(Triple, Result<Definitions, ErrorBody>),
    /// Another release is declared.
    Declared,
    Stopped(String),
    Retire,
}

/// See the module.
pub struct ReconcilersShell {
    core: Groups,
    setup: Setup,
    retire: CancellationToken,
    retired: Arc<watch::Sender<bool>>,
    /// Of each group.
    wirings: BTreeMap<String, Wiring>,
    /// Cancelled: the definitions of this release are not watched any more.
    watches: BTreeMap<Triple, CancellationToken>,
}

impl ReconcilersShell {
    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let declared = self.setup.releases.declared();
        let (facts, mut effects) = (Facts { declared: &declared, retiring: self.retire.is_cancelled() }, Vec::new());
        self.core.step(facts, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Watch(release) => self.watch(cx, release),
                Effect::Unwatch(release) => {
                    if let Some(watch) = self.watches.remove(&release) {
                        watch.cancel();
                    }
                }
                Effect::Start { name, release } => self.start(cx, name, release),
                Effect::Stop(name) => self.stop(cx, name),
                Effect::Retired => {
                    self.retired.send_replace(true);
                }
            }
        }
    }

    fn watch(&mut self, cx: &Cx<Msg>, release: Triple) {
        let unwatched = CancellationToken::new();
        self.watches.insert(release, unwatched.clone());
        let (cluster, me) = (Arc::clone(&self.setup.cluster), cx.me().clone());
        let watch = cluster_requests::watch(cluster, Names(release), move |answer| {
            let delivered = me.tell(Msg::Definitions(release, answer)).is_ok();
            async move { delivered }
        });
        // A request waits long for news, and holds a place at its manager meanwhile.
        cx.spawn(unwatched.run_until_cancelled_owned(watch).map(drop));
    }

    fn start(&mut self, cx: &Cx<Msg>, name: String, release: Release) {
        info!(reconciler = %name, %release, "starting reconciler: its definition exists for this release");
        let wiring = Wiring::new(&name, Setup { release, ..self.setup.clone() });
        cx.children().start(group(wiring.clone()));
        self.wirings.insert(name, wiring);
    }

    fn stop(&self, cx: &Cx<Msg>, name: String) {
        let Some(wiring) = self.wirings.get(&name) else { return };
        let (children, mut retired) = (cx.children().clone(), wiring.retired.subscribe());
        wiring.retire.cancel();
        cx.report(async move {
            let _in_time = tokio::time::timeout(RETIRE_TIMEOUT, retired.wait_for(|retired| *retired)).await.is_ok();
            children.stop_and_wait(&name).await;
            Msg::Stopped(name)
        });
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
        let changes = self.setup.releases.changes();
        self.step(cx, Input::Declared);
        cx.on_change(changes, || Msg::Declared);
        cx.report(self.retire.clone().cancelled_owned().map(|()| Msg::Retire));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let input = match msg {
            Msg::Definitions(release, answer) => Input::Definitions(release, answer.map_err(|body| body.message)),
            Msg::Declared => Input::Declared,
            Msg::Stopped(name) => {
                self.wirings.remove(&name);
                Input::Stopped(name)
            }
            Msg::Retire => Input::Retire,
        };
        self.step(cx, input);
        Ok(())
    }

    fn view(&self) -> Value {
        let (names, trouble) = (self.core.running().collect::<Vec<&String>>(), self.core.trouble());
        let declared = &*self.setup.releases.declared();
        let lost = self.setup.commands.as_ref().map_or(0, |commands| commands.lost_log_bytes());
        json!({"release": self.setup.release, "declared": declared.scopes, "running": names, "trouble": trouble, "lost_log_bytes": lost})
    }
}
