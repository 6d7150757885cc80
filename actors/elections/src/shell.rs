//! The elections as an actor of the leader.
//!
//! Owns        reply ports, timers, the slot with the expiries in progress, a child per contended lease.
//! Inputs      [`ElectionsMsg`]; the newest replica, as a watched value.  Outputs  reads, guarded expiries; scenes to its children.
//! The expiries that may still be applied are written to the slot before any effect that depends on them. A crash loses reply
//! ports and deadlines: the caller sees a closed port and renews again, and every lease starts over in full.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Address, Alarm, Clock, Cx, Fault, Parked, Recipient, Shell, Slot, Spec};
use muster_messages::protocol::{ElectionsMsg, Named, RaftMemberMsg, Renewal, Reply};
use muster_messages::{
    Command, CoordinationCounts, ElectionsView, ErrorBody, ExpiringLeaseView, ObjectKey, Replica, RequestId, Term,
    millis,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use crate::config::ElectionsConfig;
use crate::contended::ContendedElections;
use crate::core::keeper::{Effect, Input, Keeper, OpenExpiry, Outcome, ReadId};
use crate::core::rate::Rate;
use crate::outcomes::{outcome, unconfirmed};

/// Minimum pause between two reads of the replica: a busy log must not keep the elections busy.
const OBSERVE_PAUSE: Duration = Duration::from_millis(1);

/// The part of a caller's deadline in which the raft member can refuse by itself.
const DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// How many leases the view lists: those whose holders have the least time left.
const MAX_LISTED_LEASES: usize = 5;

/// What the tree passes to the elections of one leadership. Clones share what outlives a crash: they must come from one
/// original, also when a leader's subtree is restarted within its term.
#[derive(Clone)]
pub struct ElectionsPorts {
    pub(crate) config: ElectionsConfig,
    pub(crate) term: Term,
    replica: watch::Receiver<Arc<Replica>>,
    pub(crate) raft: Recipient<RaftMemberMsg>,
    open: Slot<BTreeMap<ObjectKey, OpenExpiry>>,
    pub(crate) counts: Arc<Mutex<CoordinationCounts>>,
}

impl ElectionsPorts {
    /// Called once per leadership.
    pub fn new(
        config: ElectionsConfig,
        term: Term,
        replica: watch::Receiver<Arc<Replica>>,
        raft: Recipient<RaftMemberMsg>,
    ) -> Self {
        Self { config, term, replica, raft, open: Slot::new(), counts: Arc::default() }
    }
}

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    #[strum(transparent)]
    Protocol(ElectionsMsg),
    /// The replica has changed.
    ReplicaChanged,
    Read(ReadId, Result<Arc<Replica>, ErrorBody>),
    Proposed(RequestId, Outcome),
    /// The periodic beat of the clock.
    Tick,
    Woke,
}

impl From<ElectionsMsg> for Msg {
    fn from(msg: ElectionsMsg) -> Self {
        Msg::Protocol(msg)
    }
}

/// An address for elections that do not exist yet.
pub fn elections_address(config: &ElectionsConfig) -> Address<Msg> {
    Address::new(config.mailbox)
}

/// Makes the elections of one leadership. Contained: the leader's other actors work without them, and no holder loses its
/// lease.
pub fn elections_spec(address: Address<Msg>, ports: ElectionsPorts) -> Spec {
    Spec::actor("elections", address, move || Ok(ElectionsShell::new(ports.clone()))).contained().with_children()
}

/// See the module.
pub struct ElectionsShell {
    keeper: Keeper,
    contended: ContendedElections,
    ports: ElectionsPorts,
    asks: Parked<Reply<Result<Vec<Renewal>, ErrorBody>>>,
    observed: Arc<Notify>,
    alarm: Alarm,
    rate: Rate,
}

impl ElectionsShell {
    fn new(ports: ElectionsPorts) -> Self {
        let (now, open) = (Clock.now(), ports.open.get().unwrap_or_default());
        Self {
            keeper: Keeper::new(ports.config.keeper.clone(), ports.term, now, rand::random(), open),
            contended: ContendedElections::new(ports.clone()),
            ports,
            asks: Parked::default(),
            observed: Arc::default(),
            alarm: Alarm::default(),
            rate: Rate::new(now),
        }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        let mut effects = Vec::new();
        self.keeper.step(cx.now(), cx.wall(), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Answer { ask, answer } => {
                    if let Some(reply) = self.asks.take(ask) {
                        // The caller may have given up.
                        let _gone = reply.send(answer);
                    }
                }
                Effect::Read(read) => self.read(cx, read),
                Effect::Propose(command) => self.propose(cx, command),
                Effect::Keep(open) => self.ports.open.set(open),
            }
        }
        self.alarm.set(cx, self.keeper.wake_at(), Msg::Woke);
    }

    fn handle_protocol(&mut self, cx: &Cx<Msg>, msg: ElectionsMsg) {
        match msg {
            ElectionsMsg::Renew { session, held, deadline_ms, reply } => {
                let ask = self.asks.park(reply);
                let within = Duration::from_millis(deadline_ms);
                self.step(cx, Input::Renew { ask, session, held, within });
            }
            ElectionsMsg::Remaining { leases, reply } => {
                let _gone = reply.send(self.keeper.remaining(cx.now(), leases));
            }
        }
    }

    /// Observes the newest replica, unless it has been seen.
    fn observe_changed(&mut self, cx: &Cx<Msg>) {
        if self.ports.replica.has_changed().unwrap_or(false) {
            self.observe(cx);
        }
    }

    fn observe(&mut self, cx: &Cx<Msg>) {
        let replica = Arc::clone(&self.ports.replica.borrow_and_update());
        self.contended.observe(|| cx.children().clone(), &replica.tables);
        self.step(cx, Input::Replica(replica));
    }

    fn read(&self, cx: &Cx<Msg>, read: ReadId) {
        let (raft, limit) = (self.ports.raft.clone(), self.ports.config.keeper.read_deadline);
        cx.report(async move {
            let deadline_ms = millis(limit);
            let asked = raft.ask(limit + DEADLINE_MARGIN, |reply| RaftMemberMsg::Read { deadline_ms, reply }).await;
            let result = match asked {
                Ok(read) => read.map_err(unconfirmed),
                Err(why) => Err(why.into()),
            };
            Msg::Read(read, result)
        });
    }

    fn propose(&self, cx: &Cx<Msg>, command: Box<Command>) {
        let (raft, limit) = (self.ports.raft.clone(), self.ports.config.keeper.propose_deadline);
        cx.report(async move {
            let (request, deadline_ms) = (command.request, millis(limit));
            let asked =
                raft.ask(limit + DEADLINE_MARGIN, |reply| RaftMemberMsg::Propose { command, deadline_ms, reply }).await;
            Msg::Proposed(request, outcome(asked))
        });
    }

    fn watch_replica(&self, cx: &Cx<Msg>) {
        cx.on_change_taken(self.ports.replica.clone(), &self.observed, OBSERVE_PAUSE, || Msg::ReplicaChanged);
    }
}

impl Shell for ElectionsShell {
    type Msg = Msg;
    const KIND: &'static str = "Elections";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        self.observe(cx);
        self.watch_replica(cx);
        cx.after(self.ports.config.keeper.tick, Msg::Tick);
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Protocol(msg) => self.handle_protocol(cx, msg),
            Msg::ReplicaChanged => {
                self.observe_changed(cx);
                self.observed.notify_one();
            }
            Msg::Read(read, result) => self.step(cx, Input::Read { read, result }),
            Msg::Proposed(request, outcome) => self.step(cx, Input::Proposed { request, outcome }),
            Msg::Tick => {
                self.step(cx, Input::Tick);
                self.rate.measure(cx.now(), self.keeper.tally());
                cx.after(self.ports.config.keeper.tick, Msg::Tick);
            }
            Msg::Woke => {
                self.alarm.fired();
                self.step(cx, Input::Tick);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let soonest = self.keeper.soonest(Clock.now(), MAX_LISTED_LEASES).into_iter();
        let (contests, contests_unattended) = self.contended.count();
        let view = ElectionsView {
            term: self.ports.term,
            revision: self.keeper.revision(),
            leases: self.keeper.timed(),
            soonest: soonest
                .map(|(ObjectKey { namespace, name, .. }, left)| {
                    let expires_in_ms = millis(left);
                    ExpiringLeaseView { namespace, name, expires_in_ms }
                })
                .collect(),
            waiting: self.keeper.waiting(),
            expiring: self.keeper.open_expiries().len(),
            renewed_per_second: self.rate.renewed,
            reads_per_second: self.rate.reads,
            contests,
            contests_unattended,
            coordinated: self.contended.counts(),
            counters: self.keeper.tally(),
        };
        json!(view)
    }
}
