//! The actor around the core: proposals, the local replica, signatures.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Alarm, Cx, Fault, Parked, Recipient, Shell};
use muster_messages::protocol::{Named, ProposeError, RaftMemberMsg, Reply, RootRotationMsg, RootsChanged};
use muster_messages::{Command, ErrorBody, NodeId, RaftId, Replica, Revision, RootId, Tables, millis};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::Config;
use crate::core::{Answer, Effect, Input, OperatorStep, RootRotation, StepId, UpstreamEnd, is_same};
use crate::signer;

/// Bound of a proposal: within the deadline of the request that it serves.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(5);
/// Within which voters answer if they are there: many round trips.
const CHECK_DEADLINE: Duration = Duration::from_secs(1);
/// The member answers by its deadline; this is a little longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

/// Asks an authority above the cluster.
pub trait Upstream: Send + Sync {
    /// Passes it a signing request, and returns its answer, in bounded time. Dropped: the question is withdrawn.
    fn ask(&self, csr_pem: String) -> Pin<Box<dyn Future<Output = UpstreamEnd> + Send>>;
}

/// Inputs of the actor.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(RootRotationMsg),
    /// A proposal ended.
    Proposed(StepId, Result<Revision, ProposeError>),
    /// These voters answered. `None`: they were not asked.
    ReachabilityChecked(StepId, Option<BTreeSet<RaftId>>),
    /// The authority above has answered, or has not.
    Above(RootId, UpstreamEnd),
    /// The replica has changed in what a rotation depends on.
    Changed,
    Wake,
}

impl From<RootRotationMsg> for Msg {
    fn from(msg: RootRotationMsg) -> Self {
        Msg::Protocol(msg)
    }
}

enum Port {
    Trusted(Reply<Result<(), ErrorBody>>),
    Changed(Reply<Result<RootsChanged, ErrorBody>>),
}

/// The root rotation's shell.
pub struct RootRotationShell {
    core: RootRotation,
    config: Config,
    raft: Recipient<RaftMemberMsg>,
    replica: watch::Receiver<Arc<Replica>>,
    upstream: Option<Arc<dyn Upstream>>,
    /// Why the authority above has not certified a root, for `muster actors inspect`.
    not_certified: Option<(RootId, String)>,
    asks: Parked<Port>,
    alarm: Alarm,
}

/// Compared as far as a rotation depends on it.
struct Watched(Tables);

impl PartialEq for Watched {
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.0, &other.0)
    }
}

impl RootRotationShell {
    /// A shell without pending requests: they do not survive a crash; their callers see a closed port and ask again. `upstream`: the
    /// authority that is asked for issuing certificates.
    pub fn new(
        me: NodeId,
        config: Config,
        upstream: Option<Arc<dyn Upstream>>,
        raft: Recipient<RaftMemberMsg>,
        replica: watch::Receiver<Arc<Replica>>,
    ) -> Self {
        let config = Config { upstream: upstream.is_some(), ..config };
        let (core, not_certified) = (RootRotation::new(me, config.clone()), None);
        Self { core, config, raft, replica, upstream, not_certified, asks: Parked::default(), alarm: Alarm::default() }
    }

    /// Every decision uses the newest replica.
    fn refresh(&mut self, cx: &Cx<Msg>) {
        let newest: Tables = {
            let replica = self.replica.borrow_and_update();
            if replica.tables.revision <= self.core.tables().revision {
                return;
            }
            replica.tables.clone()
        };
        self.step(cx, Input::Replica(Box::new(newest)));
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut effects = Vec::new();
            self.core.step(cx.now(), cx.wall(), input, &mut effects);
            for effect in effects {
                inputs.extend(self.apply(cx, effect));
            }
        }
    }

    fn apply(&mut self, cx: &Cx<Msg>, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Sign { step, what } => {
                let change = signer::sign(self.core.tables(), &self.config, what, cx.wall());
                return Some(Input::Signed(step, change));
            }
            Effect::Propose { step, command } => self.propose(cx, step, command),
            Effect::CheckReachable { step, members, needed } => {
                let raft = self.raft.clone();
                cx.report(async move {
                    let deadline_ms = millis(CHECK_DEADLINE);
                    let make = |reply| RaftMemberMsg::CheckReachable { members, needed, deadline_ms, reply };
                    let answering = raft.ask(CHECK_DEADLINE + Duration::from_secs(1), make).await;
                    Msg::ReachabilityChecked(step, answering.ok().and_then(Result::ok))
                });
            }
            Effect::Answer(ask, answer) => {
                if let Some(port) = self.asks.take(ask) {
                    port.answer(answer);
                }
            }
            Effect::CatchUp(until) => {
                cx.when(self.replica.clone(), move |replica| replica.tables.revision >= until, Msg::Changed)
            }
            Effect::AskAbove { root, csr_pem } => {
                if let Some(upstream) = self.upstream.clone() {
                    info!(%root, "asking the authority above for an issuing certificate");
                    cx.report(async move { Msg::Above(root, upstream.ask(csr_pem).await) });
                }
            }
            Effect::NotCertified { root, why, later } => {
                match later {
                    true => info!(%root, why, "the authority above answers later; it is asked again"),
                    false => warn!(%root, why, "the authority above has not certified a root; it is asked again"),
                }
                self.not_certified = Some((root, why));
            }
            Effect::StepFailed(why) => warn!(why, "a step of the root rotation failed; it is tried again"),
            Effect::WakeAt(at) => self.alarm.set(cx, Some(at), Msg::Wake),
        }
        None
    }

    fn propose(&self, cx: &Cx<Msg>, step: StepId, command: Command) {
        let raft = self.raft.clone();
        cx.report(async move {
            let (deadline_ms, command) = (millis(PROPOSAL_DEADLINE), Box::new(command));
            let asked = raft.ask(ANSWER_TIMEOUT, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply });
            let result = match asked.await {
                Ok(result) => result.map(|applied| applied.revision),
                Err(lost) => Err(lost.into()),
            };
            Msg::Proposed(step, result)
        });
    }
}

impl Port {
    /// A caller that is gone asks again.
    fn answer(self, answer: Result<Answer, ErrorBody>) {
        let _gone = match (self, answer) {
            (Self::Trusted(port), Ok(Answer::Trusted)) => port.send(Ok(())).is_ok(),
            (Self::Changed(port), Ok(Answer::Changed(changed))) => {
                if changed.changed {
                    info!(root = changed.root.map(|root| root.to_string()), "roots changed by an operator");
                }
                port.send(Ok(changed)).is_ok()
            }
            (Self::Trusted(port), Err(refusal)) => port.send(Err(refusal)).is_ok(),
            (Self::Changed(port), Err(refusal)) => port.send(Err(refusal)).is_ok(),
            (_, Ok(_)) => unreachable!("the core answers in the kind of the request"),
        };
    }
}

impl Shell for RootRotationShell {
    type Msg = Msg;
    const KIND: &'static str = "RootRotation";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        cx.on_change_of(self.replica.clone(), |replica| Watched(replica.tables.clone()), || Msg::Changed);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        self.refresh(cx);
        match msg {
            Msg::Protocol(RootRotationMsg::TrustRoots { node, generation, reply }) => {
                let ask = self.asks.park(Port::Trusted(reply));
                self.step(cx, Input::Trusted(ask, node, generation));
            }
            Msg::Protocol(RootRotationMsg::ChangeRoots { change, by, request, reply }) => {
                let ask = self.asks.park(Port::Changed(reply));
                self.step(cx, Input::Asked(ask, OperatorStep { change, by, request }));
            }
            Msg::Above(root, end) => self.step(cx, Input::Above(root, end)),
            Msg::Proposed(step, result) => self.step(cx, Input::Proposed(step, result)),
            Msg::ReachabilityChecked(step, answering) => self.step(cx, Input::ReachabilityChecked(step, answering)),
            Msg::Changed => {} // `refresh` has passed the replica to the core
            Msg::Wake => {
                self.alarm.fired();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let (steps, waiting) = self.core.in_progress();
        let authorities = &self.core.tables().authorities;
        let roots: Vec<Value> =
            authorities.roots.iter().map(|(id, root)| json!({"id": id, "state": root.state})).collect();
        let requested = authorities.requested.as_ref().map(|requested| requested.root);
        let not_certified = self.not_certified.as_ref().filter(|(root, _)| Some(*root) == requested);
        json!({
            "roots": roots,
            "generation": authorities.generation,
            "trusted_by": authorities.trusted_by.values().filter(|known| **known == authorities.generation).count(),
            "requested": requested,
            "not_certified": not_certified.map(|(root, why)| json!({"root": root, "reason": why})),
            "steps_in_progress": steps,
            "acknowledgements_waiting": waiting,
        })
    }
}
