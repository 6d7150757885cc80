//! The actor of one contended election: proposals, timers, counters. [`crate::core::coordination`] decides.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_kernel::{Address, Alarm, Clock, Cx, Fault, Recipient, Shell, Slot, Spec};
use muster_messages::protocol::{Named, RaftMemberMsg};
use muster_messages::{Command, CoordinationCounts, ObjectKey, Term, millis};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::config::CoordinationConfig;
use crate::core::board::Scene;
use crate::core::coordination::signs::CandidateState;
use crate::core::coordination::{
    ContendedElection, Effect, ElectionEvent, ElectionState, Input, Memory, Outcome, StepId,
};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    /// A newer scene is in the slot.
    SceneChanged,
    Ended(StepId, Outcome),
    Woke,
}

/// What every incarnation of one contended election shares.
#[derive(Clone)]
pub(crate) struct ElectionPorts {
    pub config: CoordinationConfig,
    pub term: Term,
    pub raft: Recipient<RaftMemberMsg>,
    /// The newest scene: a watched value, so that neither a start nor a crash in between loses it.
    pub scene: Slot<Arc<Scene>>,
    pub memory: Slot<Memory>,
    /// Of all contended elections of one leadership.
    pub counts: Arc<Mutex<CoordinationCounts>>,
}

/// A lease's election among its siblings: a digest, because a lease's name may contain what a path may not.
pub(crate) fn election_name(lease: &ObjectKey) -> String {
    let digest = Sha256::digest(format!("{}/{}", lease.namespace, lease.name));
    let prefix: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("election-{prefix}")
}

/// Contained: an election that fails must not stop the clock of all leases.
pub(crate) fn election_spec(lease: &ObjectKey, address: Address<Msg>, ports: ElectionPorts) -> Spec {
    let make = move || {
        let scene = ports.scene.get().ok_or_else(|| Fault::new("the election has no initial scene"))?;
        Ok(ElectionShell::new(ports.clone(), scene))
    };
    Spec::actor(election_name(lease), address, make).contained().counted_as("election-*")
}

/// See the module.
pub struct ElectionShell {
    core: ContendedElection,
    ports: ElectionPorts,
    alarm: Alarm,
}

impl ElectionShell {
    fn new(ports: ElectionPorts, scene: Arc<Scene>) -> Self {
        let core = ContendedElection::new(ports.config.clone(), ports.term, rand::random(), scene, ports.memory.get());
        Self { core, ports, alarm: Alarm::default() }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.core.step(cx.now(), cx.wall(), input, &mut effects);
        self.ports.memory.set(self.core.memory().clone());
        for effect in effects {
            match effect {
                Effect::Propose { step, command } => self.propose(cx, step, command),
                Effect::ElectionEvent(event) => self.event(&event),
            }
        }
        self.alarm.set(cx, self.core.wake_at(), Msg::Woke);
    }

    fn observe(&mut self, cx: &Cx<Msg>) {
        if let Some(scene) = self.ports.scene.get() {
            self.step(cx, Input::Scene(scene));
        }
    }

    fn propose(&self, cx: &Cx<Msg>, step: StepId, command: Box<Command>) {
        let (raft, limit) = (self.ports.raft.clone(), self.ports.config.propose_deadline);
        cx.report(async move {
            let deadline_ms = millis(limit);
            let ask_timeout = limit + Duration::from_millis(500);
            let asked = raft.ask(ask_timeout, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply }).await;
            let outcome = match asked {
                Ok(Ok(applied)) => Outcome::Applied(applied.revision),
                Ok(Err(why)) => {
                    tracing::debug!(%why, "election command failed");
                    Outcome::Failed
                }
                Err(why) => {
                    tracing::debug!(%why, "election command failed");
                    Outcome::Failed
                }
            };
            Msg::Ended(step, outcome)
        });
    }

    fn event(&self, event: &ElectionEvent) {
        let lease = &self.core.scene().key;
        let counter: fn(&mut CoordinationCounts) -> &mut u64 = match event {
            ElectionEvent::Elected { name } => {
                tracing::info!(%lease, holder = %name, "candidate elected");
                |counts| &mut counts.leader_changes_total
            }
            ElectionEvent::Preferred { name } => {
                tracing::info!(%lease, preferred = %name, "holder asked to yield to the preferred candidate");
                |counts| &mut counts.leader_preemptions_total
            }
            ElectionEvent::SkewPrevented { .. } => |counts| &mut counts.skew_preventions_total,
            ElectionEvent::Failed { why } => {
                tracing::debug!(%lease, %why, "election failed");
                |counts| &mut counts.failures_total
            }
            ElectionEvent::CleanedUp { name } => {
                tracing::info!(%lease, candidate = %name, "silent candidate deleted");
                |counts| &mut counts.candidates_cleaned_up_total
            }
        };
        *counter(&mut self.ports.counts.lock().unwrap_or_else(PoisonError::into_inner)) += 1;
    }
}

impl Shell for ElectionShell {
    type Msg = Msg;
    const KIND: &'static str = "Election";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.observe(cx);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::SceneChanged => self.observe(cx),
            Msg::Ended(step, outcome) => self.step(cx, Input::Ended { step, outcome }),
            Msg::Woke => {
                self.alarm.fired();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let (now, scene) = (Clock.now(), self.core.scene());
        let spec = scene.lease.as_ref().and_then(|object| object.lease()).map(|lease| &lease.spec);
        let candidates: Vec<Value> = self
            .core
            .candidates(now, Clock.wall())
            .into_iter()
            .map(|(candidate, candidate_state, last)| {
                let version = |v: Option<crate::core::coordination::candidate::Version>| v.map(|v| v.to_string());
                let ago = last.map(|at| millis(now.since(at)));
                let state = match candidate_state {
                    CandidateState::Fresh => "fresh",
                    CandidateState::Asked { .. } => "asked",
                    CandidateState::Silent => "silent",
                    CandidateState::Quiet => "quiet",
                };
                json!({"name": candidate.name, "binary_version": version(candidate.binary),
                    "emulation_version": version(candidate.emulation), "priority": candidate.priority, "state": state,
                    "heard_ms_ago": ago})
            })
            .collect();
        let (election_state, more) = describe(self.core.election_state());
        json!({
            "namespace": scene.key.namespace,
            "lease": scene.key.name,
            "revision": scene.revision,
            "holder": spec.and_then(|s| s.held_by()),
            "expired": scene.lease.as_ref().and_then(|o| o.lease()).is_some_and(|l| l.holding.expired),
            "strategy": spec.and_then(|s| s.strategy.as_ref()),
            "preferred_holder": spec.and_then(|s| s.preferred_holder.as_ref()),
            "state": election_state,
            "about": more,
            "candidates": candidates,
            "candidates_beyond": scene.beyond,
        })
    }
}

fn describe(election_state: &ElectionState) -> (&'static str, Value) {
    match election_state {
        ElectionState::Observing => ("looking", Value::Null),
        ElectionState::Settled => ("settled", Value::Null),
        ElectionState::Yielding => ("yielding", Value::Null),
        ElectionState::Settling => ("settling", Value::Null),
        ElectionState::Asking { of } => ("asking", json!(of)),
        ElectionState::Writing => ("writing", Value::Null),
        ElectionState::NoAnswer => ("nobody_answers", Value::Null),
        ElectionState::NoneElectable => ("nobody_electable", Value::Null),
        ElectionState::NotOurs { strategy } => ("not_ours", json!(strategy)),
        ElectionState::Contradiction => ("contradiction", Value::Null),
    }
}
