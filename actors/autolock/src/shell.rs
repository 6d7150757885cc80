//! The actor around the core: the keyring, the leader, the local replica, the timer.

use std::sync::Arc;

use muster_kernel::{Alarm, Cx, Fault, Shell};
use muster_messages::protocol::{LeaderCalls, Named};
use muster_messages::wire::PeerCall;
use muster_messages::{ErrorBody, NodeId, Replica, Revision};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::core::{Autolock, Effect, Goal, Input};
use crate::keyring::{FollowFault, Followed, KeyringPort};

/// Inputs; the actor sends all of them to itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    /// The replica has changed in what concerns this manager's keyring.
    Changed,
    /// The keyring was brought to a version, or not.
    Followed(Revision, Result<Followed, FollowFault>),
    /// Whether this manager's files are sealed under the newest keys of the keyring, which was of this version.
    FilesSealed(Revision, bool),
    /// The leader has answered a report.
    Reported(Result<(), ErrorBody>),
    Wake,
}

/// What the actor is wired to.
#[derive(Clone)]
pub struct Ports {
    pub me: NodeId,
    pub keyring: Arc<dyn KeyringPort>,
    pub leader: Arc<dyn LeaderCalls>,
    pub replica: watch::Receiver<Arc<Replica>>,
}

/// The actor's shell.
pub struct AutolockShell {
    core: Autolock,
    ports: Ports,
    alarm: Alarm,
}

impl AutolockShell {
    /// A new incarnation compares the keyring with the replica.
    pub fn new(ports: Ports) -> Self {
        Self { core: Autolock::new(ports.keyring.unlocks_by()), ports, alarm: Alarm::default() }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.core.step(cx.now(), input, &mut effects);
        for effect in effects {
            self.apply(cx, effect);
        }
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) {
        match effect {
            Effect::Follow { version, key } => {
                let keyring = Arc::clone(&self.ports.keyring);
                cx.report(async move {
                    let write = tokio::task::spawn_blocking(move || keyring.follow(version, key.as_ref()));
                    let result = write.await.unwrap_or_else(|ended| Err(FollowFault::Failed(ended.to_string())));
                    Msg::Followed(version, result)
                });
            }
            Effect::SealFiles(version) => {
                let keyring = Arc::clone(&self.ports.keyring);
                cx.report(async move {
                    let sealed = tokio::task::spawn_blocking(move || keyring.seal_files());
                    Msg::FilesSealed(version, sealed.await.unwrap_or(false))
                });
            }
            Effect::Report(seal) => {
                let answer = self.ports.leader.call(PeerCall::ReportSeal(seal));
                cx.report(async move { Msg::Reported(answer.await.map(drop)) });
            }
            Effect::Took { version, sealed } => info!(%version, sealed, "keyring written for another unlock key"),
            Effect::Failed { version, why: why @ FollowFault::Failed(_) } => {
                warn!(%version, %why, "the keyring cannot take the unlock key; retrying")
            }
            Effect::Failed { version, why } => error!(%version, %why, "the keyring cannot take the unlock key"),
            Effect::WakeAt(at) => self.alarm.set(cx, Some(at), Msg::Wake),
        }
    }
}

impl Shell for AutolockShell {
    type Msg = Msg;
    const KIND: &'static str = "Autolock";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        // Without the keys: they are read where they are used.
        let concerns = |replica: &Arc<Replica>| {
            let autolock = &replica.tables.autolock;
            (autolock.version, autolock.seals.clone())
        };
        cx.on_change_of(self.ports.replica.clone(), concerns, || Msg::Changed);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        let input = match msg {
            Msg::Changed => {
                let goal = Goal::of(&self.ports.replica.borrow().tables, self.ports.me);
                Input::Replica(goal)
            }
            Msg::Followed(version, result) => Input::Followed(version, result),
            Msg::FilesSealed(version, files_sealed) => Input::FilesSealed(version, files_sealed),
            Msg::Reported(result) => Input::Reported(result),
            Msg::Wake => {
                self.alarm.fired();
                Input::Woke
            }
        };
        self.step(cx, input);
        Ok(())
    }

    fn view(&self) -> Value {
        let (replicated, on_disk) = self.core.versions();
        json!({
            "state": self.core.state(),
            "version": replicated,
            "keyring": on_disk,
            "unlocks_by": self.ports.keyring.unlocks_by(),
            "fault": self.core.fault().map(ToString::to_string),
        })
    }
}
