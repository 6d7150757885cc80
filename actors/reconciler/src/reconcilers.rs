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
//! A failure in one NAME disturbs no other. `spec` makes these groups, the actor and its handle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_kernel::{Cx, Fault, Shell};
use muster_messages::{Release, Triple};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use self::msg::{Msg, Names};
use self::spec::group;
pub use self::spec::{Reconcilers, reconcilers_spec};
use crate::cluster_requests;
use crate::core::groups::{Effect, Facts, Groups, Input};
use crate::wiring::{Setup, Wiring};

mod msg;
mod spec;

/// Time limit for a reconciler to end in order: a command has 5 s between TERM and KILL.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(7);

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
    /// `retire`: ends all of them in order; `retired` then turns true. Both are shared by the incarnations.
    fn new(setup: Setup, retire: CancellationToken, retired: Arc<watch::Sender<bool>>) -> Self {
        let core = Groups::new(setup.abilities());
        Self { core, setup, retire, retired, wirings: BTreeMap::new(), watches: BTreeMap::new() }
    }

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
