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
mod raise;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_elector::BootTime;
use muster_kernel::{Address, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{ErrorBody, LEVEL_RECONCILER, MANAGERS_SCOPE, NodeId, Release, Replica, level_release};
use muster_raft_member::Incompatible;
use muster_reconciler::{
    Cluster, Handler, LeaseTiming, Member, MemberSetup, MemberView, Reconcilers, Setup, member_spec, reconcilers_spec,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::info;

use self::core::{Change, Participation, ends_runtime, has_definition, is_known};
pub use self::raise::definition;
use self::raise::{LEADER_ANSWER_TIMEOUT, Raise};
use crate::ReportIncompatible;

/// Pause after a refusal or without a leader: nothing waits for these attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The sentence for operators, whichever actor detected the incompatibility.
pub fn sentence(what: impl std::fmt::Display, supported: u32) -> String {
    format!(
        "{what}, and this build of musterd supports feature level {supported} at most; install the build that the other managers run"
    )
}

/// Inputs of the actor. It sends all of them to itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    /// The local replica knows this node: it is one of the managers.
    Known,
    Register,
    Registered(Result<(), ErrorBody>),
    Member,
    Announce,
}

/// Ports of the actor.
#[derive(Clone)]
pub struct LevelPorts {
    pub me: NodeId,
    /// The highest level that this build supports.
    pub level: u32,
    pub cluster: Arc<dyn Cluster>,
    pub replicas: watch::Receiver<Arc<Replica>>,
    /// The Raft member was sent something it cannot read.
    pub incompatible: watch::Receiver<Option<Incompatible>>,
    /// This manager's candidacy for raising the level, while it is a candidate.
    pub raising: Arc<Mutex<Option<Reconcilers>>>,
    pub report_incompatible: ReportIncompatible,
}

/// See the module.
pub struct FeatureLevel {
    ports: LevelPorts,
    member: Option<watch::Receiver<MemberView>>,
    participation: Participation,
}

/// The actor's spec.
pub fn spec(ports: LevelPorts) -> Spec {
    let make =
        move || Ok(FeatureLevel { ports: ports.clone(), member: None, participation: Participation::new(ports.level) });
    Spec::actor("feature-level", Address::new(64), make).contained().with_children()
}

impl FeatureLevel {
    fn release(&self) -> Release {
        level_release(self.ports.level).into()
    }

    /// Campaigns for raising the level. The library decides when, and does nothing beside a newer candidate.
    fn campaign(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let raise: Arc<dyn Handler> = Arc::new(Raise(Arc::clone(&self.ports.cluster)));
        let me = self.ports.me;
        let (spec, reconcilers) = reconcilers_spec(Setup {
            node: Some(me),
            handlers: BTreeMap::from([(LEVEL_RECONCILER.to_owned(), raise)]),
            ..Setup::new(Arc::clone(&self.ports.cluster), me.to_string(), self.release())
        })?;
        cx.children().start(spec);
        *self.ports.raising.lock().unwrap_or_else(PoisonError::into_inner) = Some(reconcilers);
        Ok(())
    }

    fn announce(&mut self, cx: &Cx<Msg>) {
        let me = self.ports.me;
        let member = Member::new(MANAGERS_SCOPE, me.to_string().as_str(), self.release()).on(me).safe_without_lease();
        let (cluster, lease) = (Arc::clone(&self.ports.cluster), LeaseTiming::default());
        let setup = MemberSetup { cluster, clock: Arc::new(BootTime), lease, member };
        // The member leaves when its lease ends, not before.
        let (spec, view, _leave) = member_spec("member", setup);
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
