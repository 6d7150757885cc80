//! Clients of registers: each reads and writes what the others do at the same time, retries under the same
//! request id without an answer, and gives up after some attempts. Their observations form a history, which must be
//! linearizable: LINEAR-1, checked at the end.
//!
//! A register is a label of the ledger's node. Unlike the ledger's keys it has many writers, so the order of two
//! values is unknown, and a client that saw a value must not see an earlier one again, acknowledged or not.

use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError, ReadError};
use muster_messages::{Change, Command, CommandRefusal, Guard, NodeId, Principal, Replica, RequestId, request_digest};
use muster_raft_member::core::Input;
use muster_testkit::history::{End, History, MAX_CLIENTS, StartedOp, Value};

use crate::bugs::Bug;
use crate::checks::{WRITE_1, violation};
use crate::events::Event;
use crate::machine::{Asker, MachineIdx};
use crate::world::World;

pub const LINEAR_1: &str = "LINEAR-1";

const DEADLINE: Duration = Duration::from_secs(2);
/// Timeout of an attempt; its answer may still be in flight.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(2300);

/// One attempt of one operation.
#[derive(Clone, Debug)]
pub struct PendingRequest {
    client: usize,
    op: u32,
    attempt: u32,
    request: RequestId,
    key: String,
    /// `None` for a read.
    writes: Option<Value>,
}

/// The result of an attempt, for its client.
#[derive(Clone, Copy, Debug)]
pub enum Reply {
    Wrote,
    ReadValue(Value),
    /// Nothing happened, and nothing will.
    NotTaken {
        leader: Option<NodeId>,
    },
    /// It may have happened, or may still happen.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct Client {
    op: u32,
    begun: Option<StartedOp>,
    request: u128,
    attempt: u32,
    /// The latest attempt is unanswered.
    awaiting: bool,
    /// It gives up after this many attempts.
    tries: u32,
    /// An attempt may have been applied.
    maybe: bool,
    hint: Option<NodeId>,
    /// A retired key to remove.
    removes: Option<String>,
}

/// All registers.
#[derive(Default)]
pub struct Registers {
    history: Option<History>,
    clients: Vec<Client>,
}

impl Registers {
    /// Some operation is open.
    pub fn open(&self) -> bool {
        self.clients.iter().any(|c| c.begun.is_some())
    }

    pub(crate) fn start(&mut self, world: &mut World, clients: usize) {
        assert!(clients <= MAX_CLIENTS, "more clients would exceed the checker's limit of open operations");
        self.history = Some(History::new("r"));
        self.clients = vec![Client::default(); clients];
        for client in 0..clients {
            let soon = world.rng.millis(1, 300);
            world.time.after(soon, Event::Register(client));
        }
    }

    /// LINEAR-1: for each key some register gave all answers and holds the current value.
    pub(crate) fn check(&mut self, world: &mut World) {
        let (Some(history), Some(tables)) = (&self.history, world.checks.newest()) else { return };
        let Some(record) = world.model.ledger.and_then(|node| tables.nodes.get(&node)) else { return };
        history.read_all(|key| record.labels.get(key).and_then(|text| text.parse().ok()));
        let checked_ops = history.check();
        match checked_ops {
            Ok(ops) => world.totals.add("register operations checked", ops),
            Err(why) => world.require(Err(violation(LINEAR_1, why))),
        }
    }

    // ---- clients --------------------------------------------------------------------------------------------------

    /// One step of a client: its next operation, or the next attempt of the open one.
    pub(crate) fn step(&mut self, world: &mut World, number: usize) {
        let idle = self.clients[number].begun.is_none();
        if idle && (world.resting || world.checks.newest().is_none()) {
            return world.time.after(Duration::from_millis(100), Event::Register(number));
        }
        if idle {
            self.begin(world, number);
        }
        let guess = world.rng.chance(250);
        let hinted = self.clients[number].hint.and_then(|node| world.idx_of(node));
        let idx = match hinted.filter(|_| !guess) {
            Some(idx) => Some(idx),
            None => world.any_manager(),
        };
        let client = &mut self.clients[number];
        client.attempt += 1;
        client.awaiting = true;
        let Some(begun) = client.begun.as_ref() else { return };
        let pending = PendingRequest {
            client: number,
            op: client.op,
            attempt: client.attempt,
            // Every attempt of an operation has the same id, so that it takes effect only once.
            request: RequestId(client.request),
            key: begun.key.clone(),
            writes: begun.writes,
        };
        world
            .time
            .after(ATTEMPT_TIMEOUT, Event::RegisterReply { pending: Box::new(pending.clone()), reply: Reply::Unknown });
        if let Some(idx) = idx.filter(|_| !world.rng.chance(world.net.conditions.loss)) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            if world.settings.bug == Some(Bug::RetryWithNewId) {
                let again = PendingRequest { request: RequestId(pending.request.0.wrapping_add(1)), ..pending.clone() };
                let later = delay + world.rng.millis(100, 900);
                world.time.after(later, Event::RegisterAsks { idx, pending: Box::new(again) });
            }
            world.time.after(delay, Event::RegisterAsks { idx, pending: Box::new(pending) });
        }
    }

    fn begin(&mut self, world: &mut World, number: usize) {
        let (idx, writes) = (world.rng.below(usize::MAX), world.rng.chance(500));
        let request = world.request().0;
        let tries = 1 + world.rng.below(4) as u32;
        let Some(history) = &self.history else { return };
        let client = &mut self.clients[number];
        let begun = match client.removes.take() {
            Some(old) => history.begin_removal(&old),
            None if writes => history.begin_write(idx),
            None => history.begin_read(idx),
        };
        *client = Client {
            op: client.op + 1,
            begun: Some(begun),
            request,
            attempt: 0,
            awaiting: false,
            tries,
            maybe: false,
            hint: client.hint,
            removes: None,
        };
    }

    pub(crate) fn reply(&mut self, world: &mut World, pending: &PendingRequest, reply: Reply) {
        let client = &mut self.clients[pending.client];
        if client.op != pending.op || client.begun.is_none() {
            return;
        }
        let done = matches!(reply, Reply::Wrote | Reply::ReadValue(_));
        let latest = client.attempt == pending.attempt && client.awaiting;
        if !done && !latest {
            return; // another attempt is in flight or scheduled
        }
        let under_way = std::mem::take(&mut client.awaiting);
        let end = match reply {
            Reply::Wrote => Some(End::Wrote),
            Reply::ReadValue(value) => Some(End::ReadValue(value)),
            Reply::NotTaken { leader } => {
                client.hint = leader;
                None
            }
            Reply::Unknown => {
                (client.maybe, client.hint) = (true, None);
                None
            }
        };
        let gives_up = client.attempt >= client.tries;
        let otherwise = if client.maybe { End::Unknown } else { End::Nothing };
        if let Some(end) = end.or(gives_up.then_some(otherwise)) {
            self.end(world, pending.client, end);
        }
        if under_way {
            let pause = if done { world.rng.millis(10, 250) } else { world.rng.millis(1, 60) };
            world.time.after(pause, Event::Register(pending.client));
        }
    }

    fn end(&mut self, world: &mut World, number: usize, end: End) {
        let client = &mut self.clients[number];
        let (Some(begun), Some(history)) = (client.begun.take(), &self.history) else { return };
        client.removes = history.end(&begun, end);
        world.totals.count(match (end, begun.writes) {
            (End::Wrote, _) => "registers written",
            (End::ReadValue(_), _) => "registers read",
            (_, Some(_)) => "registers: writes with unknown outcome, or none",
            (_, None) => "registers: reads given up",
        });
        world.totals.add("register keys retired", u64::from(self.clients[number].removes.is_some()));
    }

    // ---- managers -------------------------------------------------------------------------------------------------

    pub(crate) fn arrive(world: &mut World, idx: MachineIdx, pending: Box<PendingRequest>) {
        let Some(ledger) = world.model.ledger else { return };
        let listens = world.machines[idx].up && world.machines[idx].runtime.is_some();
        if !listens {
            return Self::reply_to(world, pending, Reply::NotTaken { leader: None });
        }
        let Some(value) = pending.writes else { return Self::read(world, idx, pending) };
        let key = pending.key.clone();
        let (add, remove) = match value {
            Some(number) => ([(key, number.to_string())].into(), Vec::new()),
            None => (Default::default(), vec![key]),
        };
        let command =
            Command::idempotent(world.wall(idx), Principal::Operator, "register").with_request(pending.request);
        let digest = request_digest(&[pending.key.as_bytes(), format!("{:?}", pending.writes).as_bytes()]);
        let command = if world.digested(idx) { command.guard(Guard::Request { digest }) } else { command };
        let command = command.change(Change::UpdateLabels { node: ledger, add, remove });
        world.propose(idx, Asker::Register(pending), command, DEADLINE);
    }

    fn read(world: &mut World, idx: MachineIdx, pending: Box<PendingRequest>) {
        if world.settings.bug == Some(Bug::ReadLocalReplica) {
            let reply = world.machines[idx].runtime.as_ref().map(|h| Self::seen(world, h.core.replica(), &pending));
            return Self::reply_to(world, pending, reply.unwrap_or(Reply::Unknown));
        }
        let deadline = world.clock(idx) + DEADLINE;
        if let Some(ask) = world.await_answer(idx, Asker::Register(pending)) {
            world.deliver(idx, Input::Read { ask, deadline });
        }
    }

    fn seen(world: &World, replica: &Replica, pending: &PendingRequest) -> Reply {
        let record = world.model.ledger.and_then(|node| replica.tables.nodes.get(&node));
        Reply::ReadValue(record.and_then(|r| r.labels.get(&pending.key)).and_then(|text| text.parse().ok()))
    }

    /// The Raft member finished a client's proposal.
    pub(crate) fn ended(world: &mut World, pending: Box<PendingRequest>, result: Result<Applied, ProposeError>) {
        let reply = match result {
            Ok(_) => Reply::Wrote,
            Err(ProposeError::NotLeader { leader }) => Reply::NotTaken { leader },
            Err(ProposeError::Busy) => Reply::NotTaken { leader: None },
            Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_))) => Reply::Unknown,
            Err(ProposeError::Refused(why)) => {
                let detail = format!("a valid write of {} was refused: {why}", pending.key);
                return world.require(Err(violation(WRITE_1, detail)));
            }
            Err(_) => Reply::Unknown,
        };
        Self::reply_to(world, pending, reply);
    }

    pub(crate) fn read_ended(
        world: &mut World,
        pending: Box<PendingRequest>,
        result: Result<std::sync::Arc<Replica>, ReadError>,
    ) {
        let reply = result.map_or(Reply::Unknown, |replica| Self::seen(world, &replica, &pending));
        Self::reply_to(world, pending, reply);
    }

    fn reply_to(world: &mut World, pending: Box<PendingRequest>, reply: Reply) {
        if !world.rng.chance(world.net.conditions.loss) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::RegisterReply { pending, reply });
        }
    }
}
