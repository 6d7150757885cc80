//! Users of the cluster: writers, readers, an operator. Each may lose its request or its answer, and retries under the same
//! request id.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError, ReadError};
use muster_messages::{
    Change, Command, CommandRefusal, ErrorBody, ErrorCode, Guard, Liveness, NodeId, Principal, Replica, RequestId,
    Role, request_digest,
};
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles, RequestedChange, RoleRequest};

use crate::adversaries::Adversaries;
use crate::checks::{READ_1, WRITE_1, violation};
use crate::events::Event;
use crate::machine::{Asker, MachineIdx, RoleAsker, Roles};
use crate::model::{Floor, Key};
use crate::world::World;

/// A role change or removal requested by the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpNumber(pub u32);

/// One attempt of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAttempt {
    pub writer: usize,
    pub write: u32,
    pub attempt: u32,
}

/// The result of an attempt, for its writer.
#[derive(Clone, Debug)]
pub enum WriteOutcome {
    Ended(Result<Applied, ProposeError>),
    /// No manager listened: nothing was done.
    Refused,
    /// No answer arrived.
    Silence,
}

/// A key, the number to write, and the request id.
pub type Write = (Key, u64, RequestId);

/// Writes one number after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    keys: Vec<Key>,
    write: u32,
    attempt: u32,
    /// The latest attempt is unanswered.
    awaiting: bool,
    current: Option<Write>,
    /// An earlier attempt may have been applied.
    maybe: bool,
    hint: Option<NodeId>,
}

/// A request and its result.
#[derive(Clone, Debug)]
pub struct Op {
    pub node: NodeId,
    pub change: RequestedChange,
    pub request: RequestId,
    pub attempt: u32,
    /// `Ok(true)`: it changed the state.
    pub answer: Option<Result<bool, ErrorBody>>,
}

/// One attempt of one request.
#[derive(Clone, Copy, Debug)]
pub struct ChangeAttempt {
    pub op: OpNumber,
    pub attempt: u32,
    pub node: NodeId,
    pub change: RequestedChange,
    pub request: RequestId,
}

/// All clients.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    pub writers: Vec<Writer>,
    pub ops: BTreeMap<OpNumber, Op>,
    pub reading: bool,
    next_op: u32,
}

const KEYS_EACH: usize = 3;
const WRITE_DEADLINE: Duration = Duration::from_secs(3);
/// Writes, per thousand, that are repeated long after they ended.
const LATE_RETRIES_PER_1000: u32 = 150;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

impl Clients {
    pub fn op(&self, op: OpNumber) -> Option<(NodeId, RequestedChange, RequestId)> {
        self.ops.get(&op).map(|o| (o.node, o.change, o.request))
    }
    pub fn open_ops(&self) -> impl Iterator<Item = (&OpNumber, &Op)> {
        self.ops.iter().filter(|(_, o)| o.answer.is_none())
    }
    pub fn accepted(&self) -> usize {
        self.ops.values().filter(|o| matches!(o.answer, Some(Ok(true)))).count()
    }
    pub fn writes_open(&self) -> bool {
        self.writers.iter().any(|w| w.current.is_some())
    }

    pub(crate) fn start(&mut self, world: &mut World, writers: usize) {
        world.model.keys(writers * KEYS_EACH);
        let keys = |w: usize| (0..KEYS_EACH).map(|k| Key(w * KEYS_EACH + k)).collect();
        self.writers = (0..writers).map(|w| Writer { keys: keys(w), ..Writer::default() }).collect();
        self.reading = true;
        for writer in 0..writers {
            world.time.after(Duration::from_millis(writer as u64), Event::Writer(writer));
        }
        world.time.after(Duration::from_millis(3), Event::Reader);
    }

    // ---- writers --------------------------------------------------------------------------------------------------

    pub(crate) fn writer(&mut self, world: &mut World, adversaries: &Adversaries, number: usize) {
        if self.writers[number].current.is_none() {
            if world.resting || world.checks.newest().is_none() {
                let later = Duration::from_millis(100);
                return world.time.after(later, Event::Writer(number));
            }
            let keys = self.writers[number].keys.clone();
            let key = world.rng.pick(&keys).expect("a writer has keys");
            let (value, request) = (world.model.attempt(key), world.request());
            adversaries.reuse_new_id(world, request);
            let writer = &mut self.writers[number];
            writer.current = Some((key, value, request));
            writer.write += 1;
            writer.maybe = false;
        }
        let hinted = self.writers[number].hint.and_then(|node| world.idx_of(node));
        let guess = world.rng.chance(300);
        let idx = match hinted.filter(|_| !guess) {
            Some(idx) => Some(idx),
            None => world.any_manager(),
        };
        let writer = &mut self.writers[number];
        writer.attempt += 1;
        writer.awaiting = true;
        let attempt = WriteAttempt { writer: number, write: writer.write, attempt: writer.attempt };
        let timeout = WRITE_DEADLINE + Duration::from_millis(500);
        world.time.after(timeout, Event::WriteAnswered { attempt, result: WriteOutcome::Silence });
        if let Some(idx) = idx.filter(|_| !world.rng.chance(world.net.conditions.loss)) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::WriteArrives { idx, attempt });
        }
    }

    pub(crate) fn write_arrives(&mut self, world: &mut World, idx: MachineIdx, attempt: WriteAttempt) {
        let writer = &self.writers[attempt.writer];
        let current = writer.current.filter(|_| writer.write == attempt.write);
        let Some((key, value, request)) = current else { return };
        let Some(ledger) = world.model.ledger else { return };
        if !world.machines[idx].up || world.machines[idx].runtime.is_none() {
            return Self::answer_write(world, attempt, WriteOutcome::Refused);
        }
        world.trace.print_if_verbose(world.time.now(), || {
            format!("{attempt:?} of k{}={value} arrives at n{}", key.0, idx + 1)
        });
        let command = Self::write_command(world, idx, ledger, (key, value, request));
        world.propose(idx, Asker::Writer(attempt, key, value), command, WRITE_DEADLINE);
    }

    fn write_command(world: &World, idx: MachineIdx, ledger: NodeId, (key, value, request): Write) -> Command {
        let add = [(key.label(), value.to_string())].into();
        let command = Command::idempotent(world.wall(idx), Principal::Operator, "write").with_request(request);
        let digest = request_digest(&[key.label().as_bytes(), &value.to_be_bytes()]);
        let command = if world.digested(idx) { command.guard(Guard::Request { digest }) } else { command };
        command.change(Change::UpdateLabels { node: ledger, add, remove: Vec::new() })
    }

    /// A partitioned client or a proxy repeats the request of an acknowledged write after other writes.
    fn schedule_late_retry(world: &mut World, writer: usize, write: Option<Write>) {
        let Some(write) = write.filter(|_| world.rng.chance(LATE_RETRIES_PER_1000)) else { return };
        let (later, recoveries) = (world.rng.millis(200, 20_000), world.recoveries_done);
        world.time.after(later, Event::LateWrite { writer, write, recoveries });
    }

    /// A recovery may have undone the write; then the request would be new, not repeated.
    pub(crate) fn late_write(world: &mut World, writer: usize, write: Write, recoveries: u32) {
        let idx = world.leading().filter(|p| world.machines[*p].runs());
        let (Some(idx), Some(ledger)) = (idx, world.model.ledger) else { return };
        // Below that feature level a retry is applied again once its outcome is forgotten.
        if recoveries != world.recoveries_done || world.resting || !world.digested(idx) {
            return;
        }
        world.log(format!("writer {writer} repeats k{}={}", write.0.0, write.1));
        let command = Self::write_command(world, idx, ledger, write);
        world.propose(idx, Asker::Late, command, WRITE_DEADLINE);
    }

    /// WRITE-1 shows whether it was applied again.
    pub(crate) fn late_write_ended(world: &mut World, result: Result<Applied, ProposeError>) {
        match result {
            Ok(_) => world.totals.count("late retries that got the first outcome"),
            Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_))) => {
                world.totals.count("late retries whose outcome was forgotten");
            }
            Err(ProposeError::Refused(why)) => {
                world.require(Err(violation(WRITE_1, format!("a repeated write was refused: {why}"))));
            }
            Err(_) => {}
        }
    }

    /// Acknowledged means that the member said so, even if the answer is lost.
    pub(crate) fn write_ended(
        world: &mut World,
        attempt: WriteAttempt,
        (key, value): (Key, u64),
        result: Result<Applied, ProposeError>,
    ) {
        if result.is_ok() {
            world.model.acknowledged(key, value);
        }
        Self::answer_write(world, attempt, WriteOutcome::Ended(result));
    }

    fn answer_write(world: &mut World, attempt: WriteAttempt, result: WriteOutcome) {
        world.trace.print_if_verbose(world.time.now(), || format!("{attempt:?} result={result:?}"));
        if !world.rng.chance(world.net.conditions.loss) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::WriteAnswered { attempt, result });
        }
    }

    pub(crate) fn write_answered(&mut self, world: &mut World, attempt: WriteAttempt, result: WriteOutcome) {
        let writer = &mut self.writers[attempt.writer];
        let Some((key, value, _)) = writer.current.filter(|_| writer.write == attempt.write) else { return };
        let latest = writer.attempt == attempt.attempt && writer.awaiting;
        if !latest && !matches!(result, WriteOutcome::Ended(Ok(_))) {
            // Another attempt is in flight or scheduled.
            writer.maybe |= !matches!(result, WriteOutcome::Refused);
            return;
        }
        let under_way = writer.awaiting;
        writer.awaiting = false;
        let pause = match result {
            WriteOutcome::Ended(Ok(_)) => {
                world.totals.count("writes acknowledged");
                let done = writer.current.take();
                Self::schedule_late_retry(world, attempt.writer, done);
                world.rng.millis(5, 120)
            }
            WriteOutcome::Refused => {
                writer.hint = None;
                world.rng.millis(5, 60)
            }
            WriteOutcome::Ended(Err(ProposeError::NotLeader { leader })) => {
                writer.hint = leader;
                // PROPOSE-2: the write will never take effect. The writer sometimes relies on that.
                if !writer.maybe && world.rng.chance(150) {
                    writer.current = None;
                    world.model.never(key, value);
                }
                world.rng.millis(1, 40)
            }
            // It may have been applied and will not be applied again.
            WriteOutcome::Ended(Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_)))) => {
                world.totals.count("writes whose outcome was forgotten");
                writer.current = None;
                world.rng.millis(5, 120)
            }
            WriteOutcome::Ended(Err(ProposeError::Refused(why))) => {
                let detail = format!("a valid write of k{} was refused: {why}", key.0);
                return world.require(Err(violation(WRITE_1, detail)));
            }
            WriteOutcome::Ended(Err(ProposeError::Busy)) => world.rng.millis(1, 40),
            WriteOutcome::Ended(Err(_)) | WriteOutcome::Silence => {
                world.totals.count("writes with unknown outcome");
                (writer.maybe, writer.hint) = (true, None);
                world.rng.millis(10, 200)
            }
        };
        if under_way {
            world.time.after(pause, Event::Writer(attempt.writer));
        }
    }

    // ---- readers --------------------------------------------------------------------------------------------------

    pub(crate) fn reader(&mut self, world: &mut World) {
        if !self.reading {
            return;
        }
        let next = world.rng.millis(20, 160);
        world.time.after(next, Event::Reader);
        let idx = world.any_manager().filter(|p| world.machines[*p].runs());
        let Some(idx) = idx.filter(|_| world.model.ledger.is_some()) else { return };
        let (floor, deadline) = (Box::new(world.model.floor()), world.clock(idx) + Duration::from_secs(2));
        if let Some(ask) = world.await_answer(idx, Asker::Reader(floor)) {
            world.deliver(idx, Input::Read { ask, deadline });
        }
    }

    pub(crate) fn read_ended(
        world: &mut World,
        idx: MachineIdx,
        floor: &Floor,
        result: Result<std::sync::Arc<Replica>, ReadError>,
    ) {
        match result {
            Ok(replica) => {
                world.totals.count("reads answered");
                if let Err(why) = world.model.check(floor, &replica.tables) {
                    world.require(Err(violation(READ_1, format!("a read on n{}: {why}", idx + 1))));
                }
            }
            Err(_) => world.totals.count("reads given up"),
        }
    }

    // ---- the operator ---------------------------------------------------------------------------------------------

    /// Requests a role or a removal; the returned number identifies its answer.
    pub fn change(&mut self, world: &mut World, node: NodeId, change: RequestedChange) -> OpNumber {
        let op = self.record_change(world, node, change);
        self.send_change(world, op);
        op
    }

    pub(crate) fn record_change(&mut self, world: &mut World, node: NodeId, change: RequestedChange) -> OpNumber {
        self.next_op += 1;
        let op = OpNumber(self.next_op);
        let request = world.request();
        let sole = self.open_ops().all(|(_, o)| o.node != node);
        world.model.requested(node, op, sole);
        self.ops.insert(op, Op { node, change, request, attempt: 0, answer: None });
        let name = world.name(node);
        world.log(format!("{op:?}: {change:?} of {name}"));
        op
    }

    fn send_change(&mut self, world: &mut World, number: OpNumber) {
        let idx = match world.leading().filter(|_| !world.rng.chance(100)) {
            Some(idx) => Some(idx),
            None => world.any_manager(),
        };
        let Some(op) = self.ops.get_mut(&number) else { return };
        op.attempt += 1;
        let attempt = op.attempt;
        Self::schedule_timeout(world, number, attempt);
        if let Some(idx) = idx.filter(|_| !world.rng.chance(world.net.conditions.loss)) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::ChangeArrives { idx, op: number, attempt });
        }
    }

    pub(crate) fn schedule_timeout(world: &mut World, op: OpNumber, attempt: u32) {
        let silence = ErrorBody::new(ErrorCode::TimedOut, "no answer came");
        world.time.after(REQUEST_TIMEOUT, Event::ChangeAnswered { op, attempt, result: Err(silence) });
    }

    pub(crate) fn change_arrives(&mut self, world: &mut World, idx: MachineIdx, number: OpNumber, attempt: u32) {
        let Some((node, change, request)) = self.op(number) else { return };
        let ask = roles::AskId(world.number());
        match Roles::at(world, idx) {
            Some(roles) => {
                roles
                    .asks
                    .insert(ask, RoleAsker::Operator(ChangeAttempt { op: number, attempt, node, change, request }));
                let requested = RoleRequest { ask, node, change, by: Principal::Operator, request };
                Roles::step(world, idx, roles::Input::RoleRequested(requested));
            }
            None => {
                let result = Err(ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead"));
                let delay = world.rng.micros(80, 1500);
                world.time.after(delay, Event::ChangeAnswered { op: number, attempt, result });
            }
        }
    }

    pub(crate) fn change_answered(
        &mut self,
        world: &mut World,
        number: OpNumber,
        attempt: u32,
        result: Result<bool, ErrorBody>,
    ) {
        use ErrorCode as C;
        let Some(op) = self.ops.get_mut(&number).filter(|o| o.answer.is_none()) else { return };
        if result.is_err() && attempt != op.attempt {
            return; // a later attempt is in flight
        }
        let again = |e: &ErrorBody| {
            !e.is_final()
                && matches!(e.code, C::Unreachable | C::UnknownOutcome | C::TimedOut | C::NoQuorum | C::TooManyRequests)
        };
        if result.as_ref().is_err_and(again) {
            let pause = world.rng.millis(20, 250);
            return world.time.after(pause, Event::RetryChange(number));
        }
        match &result {
            Ok(true) if matches!(op.change, RequestedChange::Remove { .. }) => world.totals.count("removals done"),
            Ok(true) => world.totals.count("role changes accepted"),
            Ok(false) => world.totals.count("role changes without effect"),
            Err(_) => world.totals.count("requests refused"),
        }
        op.answer = Some(result.clone());
        world.log(format!("{number:?} result={result:?}"));
    }

    pub(crate) fn retry_change(&mut self, world: &mut World, number: OpNumber) {
        if self.ops.get(&number).is_some_and(|o| o.answer.is_none()) {
            self.send_change(world, number);
        }
    }

    /// A random operator action.
    pub(crate) fn operator(&mut self, world: &mut World) {
        let next = world.rng.millis(400, 3000);
        world.time.after(next, Event::Operator);
        if world.resting || self.open_ops().count() >= 3 {
            return;
        }
        let Some(tables) = world.checks.newest().cloned() else { return };
        let all = || tables.nodes.values().filter(|n| n.removing.is_none());
        let workers: Vec<NodeId> = all().filter(|n| n.desired_role == Role::Worker).map(|n| n.id).collect();
        let managers: Vec<NodeId> = all().filter(|n| n.desired_role == Role::Manager).map(|n| n.id).collect();
        let ledger = world.model.ledger;
        let down: Vec<NodeId> =
            all().filter(|n| n.liveness == Liveness::Down && Some(n.id) != ledger).map(|n| n.id).collect();
        let (few, many) = (managers.len() <= 3, managers.len() >= 6);
        match world.rng.below(12) {
            0..=3 if !many => {
                let _asked =
                    world.rng.pick(&workers).map(|n| self.change(world, n, RequestedChange::Role(Role::Manager)));
            }
            4..=7 if !few || world.rng.chance(200) => {
                let _asked =
                    world.rng.pick(&managers).map(|n| self.change(world, n, RequestedChange::Role(Role::Worker)));
            }
            8 => self.flip(world, &managers, &workers),
            9 if tables.nodes.len() > 5 => {
                let node = world.rng.pick(&workers).filter(|n| Some(*n) != ledger);
                let _asked = node.map(|n| self.change(world, n, RequestedChange::Remove { force: true }));
            }
            10 if tables.nodes.len() > 5 => {
                let _asked =
                    world.rng.pick(&down).map(|n| self.change(world, n, RequestedChange::Remove { force: true }));
            }
            _ if world.machines.iter().filter(|m| m.agent.ended.is_none()).count() < 7 => {
                let role = if world.rng.chance(500) { Role::Manager } else { Role::Worker };
                world.join_machine(role);
            }
            _ => {}
        }
    }

    /// There and back: the last request wins at any interleaving.
    fn flip(&mut self, world: &mut World, managers: &[NodeId], workers: &[NodeId]) {
        let demote = managers.len() > 2 && world.rng.chance(600);
        let (from, first, second) =
            if demote { (managers, Role::Worker, Role::Manager) } else { (workers, Role::Manager, Role::Worker) };
        let Some(node) = world.rng.pick(from) else { return };
        world.totals.count("flips");
        let _first = self.change(world, node, RequestedChange::Role(first));
        let later = world.rng.micros(0, 120_000);
        world.time.after(later, Event::RequestedChange(node, second));
    }
}
