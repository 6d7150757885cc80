//! The managers as participants of Muster's own scope, and the end of a manager half that the cluster has outgrown.
//!
//! Owns   this manager's membership of the scope `muster`, at the level that its build speaks, and its candidacy for raising
//!        the cluster's level: both are children, and what everybody uses.
//! Hears  its copy; where its membership stands; that its raft member was outgrown.
//! Says   the definition of its level, until the cluster has it; that the manager half is to stop, and why.
//!
//! Raft does not wait for the admission, which needs the quorum that this manager may be part of. What keeps an old build from
//! harm is that it applies nothing behind the raise (LEVEL-2); the gate keeps the level where everybody who takes part reads it.
//! Its lease lost, a manager is not waited for any more, and takes part anew as soon as it can.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_agent::ManagerWanted;
use muster_elector::BootTime;
use muster_kernel::{Address, Cx, Fault, Shell, Spec};
use muster_messages::protocol::{AgentMsg, Named, NodeCredentials};
use muster_messages::wire::{ManagerReport, ReconcilerRequest};
use muster_messages::{
    Definition, DefinitionKey, ErrorBody, Incarnation, LEVEL_RECONCILER, MANAGERS_SCOPE, NodeId, Release, Replica,
    level_release,
};
use muster_raft_member::Outgrown;
use muster_reconciler::{
    ApplyCtx, Cluster, Handler, HandlerError, LeaseTiming, Member, MemberSetup, MemberView, ReconcilerSpec,
    Reconcilers, Setup, Standing, member_spec, reconcilers_spec,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{error, info};

use super::node::Shared;

/// For the leader to answer a question that it answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between attempts at what is refused, or finds no leader: nobody waits for it.
const AGAIN: Duration = Duration::from_secs(2);
/// A new leader has not heard of it: that long it may take until it has.
const NAMED_AGAIN: Duration = Duration::from_secs(15);
/// How long a manager that stops may take to give its candidacy back. Else the others wait for that lease.
const FAREWELL: Duration = Duration::from_secs(1);

/// Whether the manager half runs. A level.
#[derive(Clone, Debug)]
pub struct Runs {
    pub wanted: ManagerWanted,
    /// The cluster speaks more than this build: final for this process.
    pub outgrown: bool,
    /// Of the certificate. A manager half does not outlive it: its Raft data are of another history.
    pub incarnation: Incarnation,
}

/// The certificate says manager, and this build speaks what the cluster speaks.
pub fn runs(
    mut wanted: watch::Receiver<ManagerWanted>,
    mut outgrown: watch::Receiver<Option<String>>,
    mut credentials: watch::Receiver<Arc<NodeCredentials>>,
) -> watch::Receiver<Runs> {
    type Sources<'a> = (
        &'a watch::Receiver<ManagerWanted>,
        &'a watch::Receiver<Option<String>>,
        &'a watch::Receiver<Arc<NodeCredentials>>,
    );
    let now = |(wanted, outgrown, credentials): Sources<'_>| Runs {
        wanted: wanted.borrow().clone(),
        outgrown: outgrown.borrow().is_some(),
        incarnation: credentials.borrow().identity.incarnation,
    };
    let (tell, level) = watch::channel(now((&wanted, &outgrown, &credentials)));
    tokio::spawn(async move {
        loop {
            tell.send_replace(now((&wanted, &outgrown, &credentials)));
            let changed = tokio::select! {
                changed = wanted.changed() => changed,
                changed = outgrown.changed() => changed,
                changed = credentials.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    });
    level
}

/// Ends the manager half of this process for good; the agent half goes on. Said once.
pub fn outgrow(shared: &Shared, sentence: &str) {
    let first = shared.outgrown.send_if_modified(|said| {
        let first = said.is_none();
        said.get_or_insert_with(|| sentence.to_owned());
        first
    });
    if first {
        error!("{sentence}; until then this node is no manager: its manager half stops, its agent half goes on");
        tokio::spawn(stay_named(shared.clone()));
    }
}

/// What ends the manager half for good, for this reason, in the hands of those who may find one.
pub type Outgrow = Arc<dyn Fn(&str) + Send + Sync>;

/// See [`outgrow`].
pub fn outgrows(shared: &Shared) -> Outgrow {
    let shared = shared.clone();
    Arc::new(move |why| outgrow(&shared, why))
}

/// Reports the feature level of this build for as long as the process runs, so that the leader shows operators why this node is
/// not a manager.
async fn stay_named(shared: Shared) {
    let report = ManagerReport { feature_level: shared.config.settings.debug.feature_level, failure: None };
    loop {
        let report = report.clone();
        let reported = shared.agent.ask(PATIENCE, |reply| AgentMsg::ReportManager { report, reply }).await;
        tokio::time::sleep(if matches!(reported, Ok(Ok(()))) { NAMED_AGAIN } else { AGAIN }).await;
    }
}

/// What an operator is told, whoever has found out.
pub fn sentence(what: impl std::fmt::Display, speaks: u32) -> String {
    format!(
        "{what}, and this build of musterd speaks feature level {speaks} at most; install the build that the other managers run"
    )
}

/// Before the process stops: another may raise the level at once. This manager's own lease runs out by itself, so that a build
/// that is started again within its time, and is the last of its level, finds the level where it was.
pub async fn hand_over(shared: &Shared) {
    let led = shared.manager.borrow().as_ref().is_some_and(|manager| manager.replica.borrow().raft.leader.is_some());
    let stands = shared.raising.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(stands) = stands.filter(|_| led) else { return };
    let _in_time = tokio::time::timeout(FAREWELL, stands.hand_over()).await;
}

/// What a build of this level brings. Of one level there is one, whoever brings it: it is never changed.
fn definition(level: u32) -> Definition {
    ReconcilerSpec::handler(LEVEL_RECONCILER, level_release(level).into(), MANAGERS_SCOPE)
        .floor(level_release(level))
        .once()
        // The entry that raises the level is judged by the gate and by the term when it is applied.
        .settle(Duration::ZERO)
        .definition()
}

/// Raises the cluster's level to what the definition says.
struct Raise(Arc<dyn Cluster>);

impl Handler for Raise {
    fn apply(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>> {
        let cluster = Arc::clone(&self.0);
        async move {
            let level = u32::try_from(ctx.target.triple.major)
                .map_err(|_| HandlerError::Permanent(format!("{} is no feature level", ctx.target)))?;
            let request = ReconcilerRequest::RaiseLevel { level, term: ctx.fence };
            let raised = cluster.reconcile(request, PATIENCE).await;
            raised
                .map(|_| info!(level, "the cluster's feature level is raised"))
                // Nobody's failure: whoever has a seat has not said yet what it speaks, or there is no leader.
                .map_err(|e| HandlerError::Later(e.message))
        }
        .boxed()
    }
}

/// What the actor hears. All of it is its own.
pub enum Msg {
    /// Its copy knows this node: it is a manager among others.
    Known,
    Bring,
    Brought(Result<(), ErrorBody>),
    Member,
    Announce,
}

impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::Known => "known",
            Msg::Bring => "bring",
            Msg::Brought(_) => "brought",
            Msg::Member => "member",
            Msg::Announce => "announce",
        }
    }
}

/// What the actor is wired to.
#[derive(Clone)]
pub struct LevelPorts {
    pub me: NodeId,
    /// What this build speaks at most.
    pub level: u32,
    pub cluster: Arc<dyn Cluster>,
    pub copies: watch::Receiver<Arc<Replica>>,
    /// The raft member was sent what it cannot read.
    pub outgrown: watch::Receiver<Option<Outgrown>>,
    /// This manager's candidacy for raising the level, while it stands.
    pub raising: Arc<Mutex<Option<Reconcilers>>>,
    pub outgrow: Outgrow,
}

/// See the module.
pub struct FeatureLevel {
    ports: LevelPorts,
    member: Option<watch::Receiver<MemberView>>,
    said: String,
}

/// How to make one.
pub fn spec(ports: LevelPorts) -> Spec {
    let make = move || Ok(FeatureLevel { ports: ports.clone(), member: None, said: String::new() });
    Spec::actor("feature-level", Address::new(64), make).contained().with_children()
}

impl FeatureLevel {
    fn release(&self) -> Release {
        level_release(self.ports.level).into()
    }

    /// Stands for raising the level. The library decides when, and does nothing beside a newer one.
    fn stand(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
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
        // It leaves with its lease, and not before.
        let (spec, view, _leave) = member_spec("member", setup);
        cx.children().start(spec);
        let (mut news, me) = (view.clone(), cx.me().clone());
        cx.spawn(async move { while news.changed().await.is_ok() && me.tell(Msg::Member).is_ok() {} });
        self.member = Some(view);
    }

    fn bring(&self, cx: &Cx<Msg>) {
        let definition = definition(self.ports.level);
        let key = DefinitionKey { reconciler: definition.reconciler.clone(), release: definition.release.triple };
        if self.ports.copies.borrow().tables.reconcilers.definitions.contains_key(&key) {
            return;
        }
        let (cluster, me) = (Arc::clone(&self.ports.cluster), cx.me().clone());
        cx.spawn(async move {
            let request = ReconcilerRequest::Apply { definitions: vec![definition], replace: false };
            let brought = cluster.reconcile(request, PATIENCE).await.map(drop);
            let _stopping = me.tell(Msg::Brought(brought));
        });
    }

    /// One line per change.
    fn say(&mut self, text: String) {
        if self.said != text {
            info!("{text}");
            self.said = text;
        }
    }

    fn look(&mut self, cx: &Cx<Msg>) {
        let Some(standing) = self.member.as_mut().map(|view| view.borrow_and_update().standing.clone()) else { return };
        let level = self.ports.level;
        match standing {
            Standing::Serving => self.say(format!("takes part in the scope {MANAGERS_SCOPE} at feature level {level}")),
            Standing::Waiting { reason, message } => {
                self.say(format!("waits to take part in the scope {MANAGERS_SCOPE}: {reason}: {message}"));
            }
            Standing::Revoked { why } | Standing::Refused { why } => {
                self.say(format!("does not take part in the scope {MANAGERS_SCOPE} for now: {why}"));
                cx.after(AGAIN, Msg::Announce);
            }
            Standing::Announcing { .. } | Standing::Left => {}
        }
    }
}

impl Shell for FeatureLevel {
    type Msg = Msg;
    const KIND: &'static str = "FeatureLevel";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let LevelPorts { outgrow, mut outgrown, level, .. } = self.ports.clone();
        cx.spawn(async move {
            let said =
                outgrown.wait_for(|what| matches!(what, Some(Outgrown::Level(_)))).await.ok().and_then(|what| *what);
            if let Some(what) = said {
                outgrow(&sentence(what, level));
            }
        });
        let (mut copies, me, id) = (self.ports.copies.clone(), cx.me().clone(), self.ports.me);
        cx.spawn(async move {
            let known = copies.wait_for(|copy| copy.tables.cluster.is_some() && copy.tables.nodes.contains_key(&id));
            if known.await.is_ok() {
                let _stopping = me.tell(Msg::Known);
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Known => {
                self.stand(cx)?;
                self.announce(cx);
                self.bring(cx);
            }
            Msg::Bring => self.bring(cx),
            Msg::Brought(Ok(())) => {}
            Msg::Brought(Err(why)) => {
                tracing::debug!(%why, "cannot bring the definition of this feature level yet");
                cx.after(AGAIN, Msg::Bring);
            }
            Msg::Member => self.look(cx),
            Msg::Announce => self.announce(cx),
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let standing = self.member.as_ref().map(|view| view.borrow().standing.clone());
        let cluster = self.ports.copies.borrow().tables.cluster.as_ref().map(|cluster| cluster.feature_level);
        json!({"speaks": self.ports.level, "cluster": cluster, "standing": standing})
    }
}

#[cfg(test)]
mod tests;
