//! The managers as participants of Muster's own scope, and the end of the manager runtime of an incompatible build.
//!
//! Owns        this manager's membership of the scope `muster`, at the level that its build supports, and its candidacy for raising
//!             the cluster's level: both are children and use the public library.
//! Inputs      its local replica; the state of its membership; incompatibility found by its Raft member.
//! Outputs     the definition of its level, until the cluster has it; the end of the manager runtime, with the reason.
//!
//! Raft does not wait for the admission, which needs the quorum that this manager may be part of. An old build is safe because it
//! applies nothing after the raise (LEVEL-2); the gate keeps the level at one that every participant supports.
//! A manager that loses its lease is no longer waited for, and takes part again as soon as it can.

mod core;
mod ports;
mod raise;
mod spec;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use muster_kernel::{Cx, Fault, Shell};
use muster_messages::wire::ReconcilerRequest;
use muster_reconciler::MemberView;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::info;

pub use self::core::sentence;
use self::core::{Change, Participation, ends_runtime, has_definition, is_known};
pub use self::ports::{LevelPorts, Msg};
use self::raise::LEADER_ANSWER_TIMEOUT;
pub use self::raise::definition;
pub use self::spec::spec;
use self::spec::{candidacy_spec, membership_spec};

/// Pause after a refusal or without a leader: nothing waits for these attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// See the module.
pub struct FeatureLevel {
    ports: LevelPorts,
    member: Option<watch::Receiver<MemberView>>,
    participation: Participation,
}

impl FeatureLevel {
    fn new(ports: LevelPorts) -> Self {
        let participation = Participation::new(ports.level);
        Self { ports, member: None, participation }
    }

    fn campaign(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let (spec, reconcilers) = candidacy_spec(&self.ports)?;
        cx.children().start(spec);
        *self.ports.raising.lock().unwrap_or_else(PoisonError::into_inner) = Some(reconcilers);
        Ok(())
    }

    fn announce(&mut self, cx: &Cx<Msg>) {
        let (spec, view) = membership_spec(&self.ports);
        cx.children().start(spec);
        cx.on_change(view.clone(), || Msg::Member);
        self.member = Some(view);
    }

    fn register_definition(&self, cx: &Cx<Msg>) {
        let definition = definition(self.ports.level);
        if has_definition(&self.ports.replicas.borrow().tables, &definition) {
            return;
        }
        let cluster = Arc::clone(&self.ports.cluster);
        cx.report(async move {
            let request = ReconcilerRequest::Apply { definitions: vec![definition], replace: false };
            Msg::Registered(cluster.reconcile(request, LEADER_ANSWER_TIMEOUT).await.map(drop))
        });
    }

    fn observe_member(&mut self, cx: &Cx<Msg>) {
        let Some(view) = &mut self.member else { return };
        let Change { line, announces_again } = self.participation.observe(&view.borrow_and_update().admission_state);
        if let Some(line) = line {
            info!("{line}");
        }
        if announces_again {
            cx.after(RETRY_PAUSE, Msg::Announce);
        }
    }
}

impl Shell for FeatureLevel {
    type Msg = Msg;
    const KIND: &'static str = "FeatureLevel";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let LevelPorts { report_incompatible, mut incompatible, level, .. } = self.ports.clone();
        cx.spawn(async move {
            let reported = incompatible.wait_for(|what| ends_runtime(*what)).await.ok().and_then(|what| *what);
            if let Some(what) = reported {
                report_incompatible(&sentence(what, level));
            }
        });
        let (mut replicas, me, id) = (self.ports.replicas.clone(), cx.me().clone(), self.ports.me);
        cx.spawn(async move {
            if replicas.wait_for(|local_replica| is_known(&local_replica.tables, id)).await.is_ok() {
                let _stopping = me.tell(Msg::Known);
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Known => {
                self.campaign(cx)?;
                self.announce(cx);
                self.register_definition(cx);
            }
            Msg::Register => self.register_definition(cx),
            Msg::Registered(Ok(())) => {}
            Msg::Registered(Err(why)) => {
                tracing::debug!(%why, "cannot register the definition of this feature level yet");
                cx.after(RETRY_PAUSE, Msg::Register);
            }
            Msg::Member => self.observe_member(cx),
            Msg::Announce => self.announce(cx),
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let admission_state = self.member.as_ref().map(|view| view.borrow().admission_state.clone());
        let cluster = self.ports.replicas.borrow().tables.cluster.as_ref().map(|cluster| cluster.feature_level);
        json!({"supports": self.ports.level, "cluster": cluster, "admission": admission_state})
    }
}

#[cfg(test)]
#[path = "feature_level_tests.rs"]
mod tests;
