//! One contest's actor: proposals, timers, counters. Decisions are [`crate::core::coordination`]'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_kernel::{Address, Alarm, Clock, Cx, Fault, Recipient, Shell, Slot, Spec};
use muster_messages::protocol::{Named, RaftMemberMsg};
use muster_messages::{Command, ObjectKey, Term, millis};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::config::CoordinationConfig;
use crate::core::board::Scene;
use crate::core::coordination::signs::Standing;
use crate::core::coordination::{Contest, Effect, Input, Memory, Note, Outcome, Stance, StepId};

/// What the actor hears.
pub enum Msg {
    /// A newer scene lies in the slot.
    Look,
    Ended(StepId, Outcome),
    Woke,
}

impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Msg::Look => "look",
            Msg::Ended(..) => "ended",
            Msg::Woke => "woke",
        }
    }
}

/// Counters of all contests of one leadership.
#[derive(Debug, Default)]
pub struct Counters {
    pub leader_changes: AtomicU64,
    pub leader_preemptions: AtomicU64,
    pub failures: AtomicU64,
    pub skew_preventions: AtomicU64,
    pub candidates_cleaned_up: AtomicU64,
}

/// What every incarnation of one contest shares.
#[derive(Clone)]
pub(crate) struct ElectionPorts {
    pub config: CoordinationConfig,
    pub term: Term,
    pub raft: Recipient<RaftMemberMsg>,
    /// The newest scene: a level, so that neither a start nor a crash in between loses it.
    pub scene: Slot<Arc<Scene>>,
    pub memory: Slot<Memory>,
    pub counters: Arc<Counters>,
}

/// The name of a lease's contest among its siblings: a digest, because a lease's name may hold what a path may not.
pub(crate) fn election_name(lease: &ObjectKey) -> String {
    let digest = Sha256::digest(format!("{}/{}", lease.namespace, lease.name));
    let half: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("election-{half}")
}

/// Contained: a contest that cannot be held must not take the clock of all leases along.
pub(crate) fn election_spec(lease: &ObjectKey, address: Address<Msg>, ports: ElectionPorts) -> Spec {
    let make = move || {
        let scene = ports.scene.get().ok_or_else(|| Fault::new("no scene was laid down for this contest"))?;
        Ok(ElectionShell::new(ports.clone(), scene))
    };
    Spec::actor(election_name(lease), address, make).contained().counted_as("election-*")
}

/// See the module.
pub struct ElectionShell {
    core: Contest,
    ports: ElectionPorts,
    alarm: Alarm,
}

impl ElectionShell {
    fn new(ports: ElectionPorts, scene: Arc<Scene>) -> Self {
        let core = Contest::new(ports.config.clone(), ports.term, rand::random(), scene, ports.memory.get());
        Self { core, ports, alarm: Alarm::default() }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.core.step(cx.now(), cx.wall(), input, &mut effects);
        self.ports.memory.set(self.core.memory().clone());
        for effect in effects {
            match effect {
                Effect::Propose { step, command } => self.propose(cx, step, command),
                Effect::Note(note) => self.note(&note),
            }
        }
        self.alarm.set(cx, self.core.wake_at(), Msg::Woke);
    }

    fn look(&mut self, cx: &Cx<Msg>) {
        if let Some(scene) = self.ports.scene.get() {
            self.step(cx, Input::Scene(scene));
        }
    }

    fn propose(&self, cx: &Cx<Msg>, step: StepId, command: Box<Command>) {
        let (me, raft, limit) = (cx.me().clone(), self.ports.raft.clone(), self.ports.config.propose_deadline);
        cx.spawn(async move {
            let deadline_ms = millis(limit);
            let patience = limit + Duration::from_millis(500);
            let asked = raft.ask(patience, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply }).await;
            let outcome = match asked {
                Ok(Ok(applied)) => Outcome::Applied(applied.revision),
                Ok(Err(why)) => {
                    tracing::debug!(%why, "an election's command came to nothing");
                    Outcome::Failed
                }
                Err(why) => {
                    tracing::debug!(%why, "an election's command came to nothing");
                    Outcome::Failed
                }
            };
            let _ended = me.tell(Msg::Ended(step, outcome));
        });
    }

    fn note(&self, note: &Note) {
        let (counters, lease) = (&self.ports.counters, &self.core.scene().key);
        let counter = match note {
            Note::Elected { name } => {
                tracing::info!(%lease, holder = %name, "elected");
                &counters.leader_changes
            }
            Note::Preferred { name } => {
                tracing::info!(%lease, preferred = %name, "the holder is asked to make room");
                &counters.leader_preemptions
            }
            Note::SkewPrevented { .. } => &counters.skew_preventions,
            Note::Failed { why } => {
                tracing::debug!(%lease, %why, "an election failed");
                &counters.failures
            }
            Note::CleanedUp { name } => {
                tracing::info!(%lease, candidate = %name, "a candidate without a sign of life was deleted");
                &counters.candidates_cleaned_up
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shell for ElectionShell {
    type Msg = Msg;
    const KIND: &'static str = "Election";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.look(cx);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Look => self.look(cx),
            Msg::Ended(step, outcome) => self.step(cx, Input::Ended { step, outcome }),
            Msg::Woke => {
                self.alarm.rang();
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
            .map(|(candidate, standing, last)| {
                let version = |v: Option<crate::core::coordination::candidate::Version>| v.map(|v| v.to_string());
                let ago = last.map(|at| millis(now.since(at)));
                let state = match standing {
                    Standing::Fresh => "fresh",
                    Standing::Asked { .. } => "asked",
                    Standing::Silent => "silent",
                    Standing::Quiet => "quiet",
                };
                json!({"name": candidate.name, "binary_version": version(candidate.binary),
                    "emulation_version": version(candidate.emulation), "priority": candidate.priority, "state": state,
                    "heard_ms_ago": ago})
            })
            .collect();
        let (stance, more) = words(self.core.stance());
        json!({
            "namespace": scene.key.namespace,
            "lease": scene.key.name,
            "revision": scene.revision,
            "holder": spec.and_then(|s| s.held_by()),
            "expired": scene.lease.as_ref().and_then(|o| o.lease()).is_some_and(|l| l.holding.expired),
            "strategy": spec.and_then(|s| s.strategy.as_ref()),
            "preferred_holder": spec.and_then(|s| s.preferred_holder.as_ref()),
            "state": stance,
            "about": more,
            "candidates": candidates,
            "candidates_beyond": scene.beyond,
        })
    }
}

fn words(stance: &Stance) -> (&'static str, Value) {
    match stance {
        Stance::Looking => ("looking", Value::Null),
        Stance::Settled => ("settled", Value::Null),
        Stance::Yielding => ("yielding", Value::Null),
        Stance::Settling => ("settling", Value::Null),
        Stance::Asking { of } => ("asking", json!(of)),
        Stance::Writing => ("writing", Value::Null),
        Stance::NobodyAnswers => ("nobody_answers", Value::Null),
        Stance::NobodyElectable => ("nobody_electable", Value::Null),
        Stance::NotOurs { strategy } => ("not_ours", json!(strategy)),
        Stance::Contradiction => ("contradiction", Value::Null),
    }
}
