//! All reconcilers of a process: a contained group for each one that its release defines.
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

use std::collections::{BTreeMap, BTreeSet};
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
        Ok(ReconcilersShell { setup, retire, retired, groups: BTreeMap::new(), watched: BTreeMap::new() })
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

struct Group {
    wiring: Wiring,
    stopping: bool,
}

/// The watch of one release's definitions.
struct Watched {
    unwanted: CancellationToken,
    definitions: Option<Definitions>,
    trouble: Option<String>,
}

/// See the module.
pub struct ReconcilersShell {
    setup: Setup,
    retire: CancellationToken,
    retired: Arc<watch::Sender<bool>>,
    groups: BTreeMap<String, Group>,
    watched: BTreeMap<Triple, Watched>,
}

impl ReconcilersShell {
    /// Watches the definitions of every release that is declared now, and of no other.
    fn watch(&mut self, cx: &Cx<Msg>) {
        let declared = self.setup.releases.declared();
        let releases: BTreeSet<Triple> =
            declared.scopes.values().flatten().chain([&self.setup.release]).map(|release| release.triple).collect();
        self.watched.retain(|release, watched| {
            let wanted = releases.contains(release);
            if !wanted {
                watched.unwanted.cancel();
            }
            wanted
        });
        for release in releases {
            if self.watched.contains_key(&release) {
                continue;
            }
            let unwanted = CancellationToken::new();
            self.watched.insert(release, Watched { unwanted: unwanted.clone(), definitions: None, trouble: None });
            let (cluster, me) = (Arc::clone(&self.setup.cluster), cx.me().clone());
            let watch = cluster_requests::watch(cluster, Names(release), move |answer| {
                let delivered = me.tell(Msg::Definitions(release, answer)).is_ok();
                async move { delivered }
            });
            // A request waits long for news, and holds a place at its manager meanwhile.
            cx.spawn(unwanted.run_until_cancelled_owned(watch).map(drop));
        }
    }

    /// The reconcilers to run, each as the release that is declared for its scope.
    fn wanted(&self) -> BTreeMap<String, Release> {
        let mut wanted = BTreeMap::new();
        for (release, definitions) in self.watched.iter().filter_map(|(r, w)| Some((r, w.definitions.as_ref()?))) {
            for name in definitions.items.keys().filter(|name| self.setup.may_run(name)) {
                // A manager of an older build names no scope: as for such a build, the process has one release.
                let scope = definitions.scopes.get(name);
                let ours =
                    scope.map_or_else(|| Some(self.setup.release.clone()), |scope| self.setup.release_for(scope));
                if let Some(ours) = ours.filter(|ours| ours.triple == *release) {
                    wanted.insert(name.clone(), ours);
                }
            }
        }
        wanted
    }

    /// Starts and stops groups until they match the names. The only place that does.
    fn settle(&mut self, cx: &Cx<Msg>) {
        let (retiring, wanted) = (self.retire.is_cancelled(), self.wanted());
        for (name, release) in wanted.iter().filter(|_| !retiring) {
            if !self.groups.contains_key(name) {
                info!(reconciler = %name, %release, "starting reconciler: its definition exists for this release");
                let wiring = Wiring::new(name, Setup { release: release.clone(), ..self.setup.clone() });
                cx.children().start(group(wiring.clone()));
                self.groups.insert(name.clone(), Group { wiring, stopping: false });
            }
        }
        for (name, group) in &mut self.groups {
            let unwanted = retiring || wanted.get(name) != Some(&group.wiring.setup.release);
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
        let changes = self.setup.releases.changes();
        self.watch(cx);
        cx.on_change(changes, || Msg::Declared);
        cx.report(self.retire.clone().cancelled_owned().map(|()| Msg::Retire));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Definitions(release, answer) => {
                let Some(watched) = self.watched.get_mut(&release) else { return Ok(()) };
                match answer {
                    Ok(definitions) => (watched.definitions, watched.trouble) = (Some(definitions), None),
                    Err(body) => watched.trouble = Some(body.message),
                }
            }
            Msg::Declared => self.watch(cx),
            Msg::Stopped(name) => drop(self.groups.remove(&name)),
            Msg::Retire => {}
        }
        self.settle(cx);
        Ok(())
    }

    fn view(&self) -> Value {
        let names: Vec<&String> = self.groups.keys().collect();
        let trouble = self.watched.values().find_map(|watched| watched.trouble.as_ref());
        let declared = &*self.setup.releases.declared();
        let lost = self.setup.commands.as_ref().map_or(0, |commands| commands.lost_log_bytes());
        json!({"release": self.setup.release, "declared": declared.scopes, "running": names, "trouble": trouble, "lost_log_bytes": lost})
    }
}
