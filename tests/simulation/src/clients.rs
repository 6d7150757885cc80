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
use muster_role_manager::core::{self as roles, DesiredChange, PendingChange};

use crate::checks::{READ_1, WRITE_1, violation};
use crate::machine::{Asker, MachineIdx, RoleAsker};
use crate::model::{Floor, Key};
use crate::simulation::{Event, Simulation};

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
    pub change: DesiredChange,
    pub request: RequestId,
    pub attempt: u32,
    /// `Ok(true)`: it changed the state.
    pub answer: Option<Result<bool, ErrorBody>>,
}

/// All clients.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    pub writers: Vec<Writer>,
    pub ops: BTreeMap<OpNumber, Op>,
    /// No new requests; open ones are finished.
    pub resting: bool,
    pub reading: bool,
    next_op: u32,
}

const KEYS_EACH: usize = 3;
const WRITE_DEADLINE: Duration = Duration::from_secs(3);
/// Writes, per thousand, that are repeated long after they ended.
const LATE_RETRIES_PER_1000: u32 = 150;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);

impl Clients {
    pub fn op(&self, op: OpNumber) -> Option<(NodeId, DesiredChange, RequestId)> {
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
}

impl Simulation {
    pub(crate) fn start_clients(&mut self, writers: usize) {
        self.model.keys(writers * KEYS_EACH);
        let keys = |w: usize| (0..KEYS_EACH).map(|k| Key(w * KEYS_EACH + k)).collect();
        self.clients.writers = (0..writers).map(|w| Writer { keys: keys(w), ..Writer::default() }).collect();
        self.clients.reading = true;
        for writer in 0..writers {
            self.time.after(Duration::from_millis(writer as u64), Event::Writer(writer));
        }
        self.time.after(Duration::from_millis(3), Event::Reader);
    }

    /// A random machine with a manager runtime; it need not lead.
    pub(crate) fn any_manager(&mut self) -> Option<MachineIdx> {
        let managers: Vec<MachineIdx> =
            (0..self.machines.len()).filter(|p| self.machines[*p].runtime.is_some()).collect();
        self.rng.pick(&managers)
    }

    // ---- writers --------------------------------------------------------------------------------------------------

    pub(crate) fn writer(&mut self, number: usize) {
        if self.clients.writers[number].current.is_none() {
            if self.clients.resting || self.checks.newest().is_none() {
                let later = Duration::from_millis(100);
                return self.time.after(later, Event::Writer(number));
            }
            let keys = self.clients.writers[number].keys.clone();
            let key = self.rng.pick(&keys).expect("a writer has keys");
            let (value, request) = (self.model.attempt(key), self.request());
            self.reuse_new_id(request);
            let writer = &mut self.clients.writers[number];
            writer.current = Some((key, value, request));
            writer.write += 1;
            writer.maybe = false;
        }
        let hinted = self.clients.writers[number].hint.and_then(|node| self.idx_of(node));
        let guess = self.rng.chance(300);
        let idx = match hinted.filter(|_| !guess) {
            Some(idx) => Some(idx),
            None => self.any_manager(),
        };
        let writer = &mut self.clients.writers[number];
        writer.attempt += 1;
        writer.awaiting = true;
        let attempt = WriteAttempt { writer: number, write: writer.write, attempt: writer.attempt };
        let timeout = WRITE_DEADLINE + Duration::from_millis(500);
        self.time.after(timeout, Event::WriteAnswered { attempt, result: WriteOutcome::Silence });
        if let Some(idx) = idx.filter(|_| !self.rng.chance(self.net.conditions.loss)) {
            let delay = self.net.conditions.slow + self.rng.micros(80, 1500);
            self.time.after(delay, Event::WriteArrives { idx, attempt });
        }
    }

    pub(crate) fn write_arrives(&mut self, idx: MachineIdx, attempt: WriteAttempt) {
        let writer = &self.clients.writers[attempt.writer];
        let current = writer.current.filter(|_| writer.write == attempt.write);
        let Some((key, value, request)) = current else { return };
        let Some(ledger) = self.model.ledger else { return };
        if !self.machines[idx].up || self.machines[idx].runtime.is_none() {
            return self.answer_write(attempt, WriteOutcome::Refused);
        }
        self.trace
            .print_if_verbose(self.time.now(), || format!("{attempt:?} of k{}={value} arrives at n{}", key.0, idx + 1));
        let command = self.write_command(idx, ledger, (key, value, request));
        self.propose(idx, Asker::Writer(attempt), command, WRITE_DEADLINE);
    }

    fn write_command(&self, idx: MachineIdx, ledger: NodeId, (key, value, request): Write) -> Command {
        let add = [(key.label(), value.to_string())].into();
        let command = Command::idempotent(self.wall(idx), Principal::Operator, "write").with_request(request);
        let digest = request_digest(&[key.label().as_bytes(), &value.to_be_bytes()]);
        let command = if self.digested(idx) { command.guard(Guard::Request { digest }) } else { command };
        command.change(Change::UpdateLabels { node: ledger, add, remove: Vec::new() })
    }

    /// From this feature level on a client's request carries a digest of its content.
    pub(crate) fn digested(&self, idx: MachineIdx) -> bool {
        self.machines[idx].runtime.as_ref().is_some_and(|runtime| runtime.core.tables().remembers_callers())
    }

    /// A partitioned client or a proxy repeats the request of an acknowledged write after other writes.
    fn schedule_late_retry(&mut self, writer: usize, write: Option<Write>) {
        let Some(write) = write.filter(|_| self.rng.chance(LATE_RETRIES_PER_1000)) else { return };
        let (later, recoveries) = (self.rng.millis(200, 20_000), self.recoveries.done());
        self.time.after(later, Event::LateWrite { writer, write, recoveries });
    }

    /// A recovery may have undone the write; then the request would be new, not repeated.
    pub(crate) fn late_write(&mut self, writer: usize, write: Write, recoveries: u32) {
        let idx = self.leading().filter(|p| self.machines[*p].runs());
        let (Some(idx), Some(ledger)) = (idx, self.model.ledger) else { return };
        // Below that feature level a retry is applied again once its outcome is forgotten.
        if recoveries != self.recoveries.done() || self.clients.resting || !self.digested(idx) {
            return;
        }
        self.log(format!("writer {writer} repeats k{}={}", write.0.0, write.1));
        let command = self.write_command(idx, ledger, write);
        self.propose(idx, Asker::Late, command, WRITE_DEADLINE);
    }

    /// WRITE-1 shows whether it was applied again.
    pub(crate) fn late_write_ended(&mut self, result: Result<Applied, ProposeError>) {
        match result {
            Ok(_) => self.totals.count("late retries that got the first outcome"),
            Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_))) => {
                self.totals.count("late retries whose outcome was forgotten");
            }
            Err(ProposeError::Refused(why)) => {
                self.require(Err(violation(WRITE_1, format!("a repeated write was refused: {why}"))));
            }
            Err(_) => {}
        }
    }

    /// Acknowledged means that the member said so, even if the answer is lost.
    pub(crate) fn write_ended(
        &mut self,
        _place: MachineIdx,
        attempt: WriteAttempt,
        result: Result<Applied, ProposeError>,
    ) {
        let writer = &self.clients.writers[attempt.writer];
        if let (Ok(_), Some((key, value, _))) = (&result, writer.current.filter(|_| writer.write == attempt.write)) {
            self.model.acknowledged(key, value);
        }
        self.answer_write(attempt, WriteOutcome::Ended(result));
    }

    fn answer_write(&mut self, attempt: WriteAttempt, result: WriteOutcome) {
        self.trace.print_if_verbose(self.time.now(), || format!("{attempt:?} result={result:?}"));
        if !self.rng.chance(self.net.conditions.loss) {
            let delay = self.net.conditions.slow + self.rng.micros(80, 1500);
            self.time.after(delay, Event::WriteAnswered { attempt, result });
        }
    }

    pub(crate) fn write_answered(&mut self, attempt: WriteAttempt, result: WriteOutcome) {
        let writer = &mut self.clients.writers[attempt.writer];
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
                self.totals.count("writes acknowledged");
                let done = writer.current.take();
                self.schedule_late_retry(attempt.writer, done);
                self.rng.millis(5, 120)
            }
            WriteOutcome::Refused => {
                writer.hint = None;
                self.rng.millis(5, 60)
            }
            WriteOutcome::Ended(Err(ProposeError::NotLeader { leader })) => {
                writer.hint = leader;
                // PROPOSE-2: the write will never take effect. The writer sometimes relies on that.
                if !writer.maybe && self.rng.chance(150) {
                    writer.current = None;
                    self.model.never(key, value);
                }
                self.rng.millis(1, 40)
            }
            // It may have been applied and will not be applied again.
            WriteOutcome::Ended(Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_)))) => {
                self.totals.count("writes whose outcome was forgotten");
                writer.current = None;
                self.rng.millis(5, 120)
            }
            WriteOutcome::Ended(Err(ProposeError::Refused(why))) => {
                let detail = format!("a valid write of k{} was refused: {why}", key.0);
                return self.require(Err(violation(WRITE_1, detail)));
            }
            WriteOutcome::Ended(Err(ProposeError::Busy)) => self.rng.millis(1, 40),
            WriteOutcome::Ended(Err(_)) | WriteOutcome::Silence => {
                self.totals.count("writes with unknown outcome");
                (writer.maybe, writer.hint) = (true, None);
                self.rng.millis(10, 200)
            }
        };
        if under_way {
            self.time.after(pause, Event::Writer(attempt.writer));
        }
    }

    // ---- readers --------------------------------------------------------------------------------------------------

    pub(crate) fn reader(&mut self) {
        if !self.clients.reading {
            return;
        }
        let next = self.rng.millis(20, 160);
        self.time.after(next, Event::Reader);
        let idx = self.any_manager().filter(|p| self.machines[*p].runs());
        let Some(idx) = idx.filter(|_| self.model.ledger.is_some()) else { return };
        let (floor, deadline) = (Box::new(self.model.floor()), self.clock(idx) + Duration::from_secs(2));
        if let Some(ask) = self.await_answer(idx, Asker::Reader(floor)) {
            self.deliver(idx, Input::Read { ask, deadline });
        }
    }

    pub(crate) fn read_ended(
        &mut self,
        idx: MachineIdx,
        floor: &Floor,
        result: Result<std::sync::Arc<Replica>, ReadError>,
    ) {
        match result {
            Ok(replica) => {
                self.totals.count("reads answered");
                if let Err(why) = self.model.check(floor, &replica.tables) {
                    self.require(Err(violation(READ_1, format!("a read on n{}: {why}", idx + 1))));
                }
            }
            Err(_) => self.totals.count("reads given up"),
        }
    }

    // ---- the operator ---------------------------------------------------------------------------------------------

    /// Requests a role or a removal; the returned number identifies its answer.
    pub fn change(&mut self, node: NodeId, change: DesiredChange) -> OpNumber {
        let op = self.record_change(node, change);
        self.send_change(op);
        op
    }

    pub(crate) fn record_change(&mut self, node: NodeId, change: DesiredChange) -> OpNumber {
        self.clients.next_op += 1;
        let op = OpNumber(self.clients.next_op);
        let request = self.request();
        let sole = self.clients.open_ops().all(|(_, o)| o.node != node);
        self.model.requested(node, op, sole);
        self.clients.ops.insert(op, Op { node, change, request, attempt: 0, answer: None });
        let name = self.name(node);
        self.log(format!("{op:?}: {change:?} of {name}"));
        op
    }

    fn send_change(&mut self, number: OpNumber) {
        let idx = match self.leading().filter(|_| !self.rng.chance(100)) {
            Some(idx) => Some(idx),
            None => self.any_manager(),
        };
        let Some(op) = self.clients.ops.get_mut(&number) else { return };
        op.attempt += 1;
        let attempt = op.attempt;
        self.schedule_timeout(number, attempt);
        if let Some(idx) = idx.filter(|_| !self.rng.chance(self.net.conditions.loss)) {
            let delay = self.net.conditions.slow + self.rng.micros(80, 1500);
            self.time.after(delay, Event::ChangeArrives { idx, op: number, attempt });
        }
    }

    pub(crate) fn schedule_timeout(&mut self, op: OpNumber, attempt: u32) {
        let silence = ErrorBody::new(ErrorCode::TimedOut, "no answer came");
        self.time.after(REQUEST_TIMEOUT, Event::ChangeAnswered { op, attempt, result: Err(silence) });
    }

    pub(crate) fn change_arrives(&mut self, idx: MachineIdx, number: OpNumber, attempt: u32) {
        let Some((node, change, request)) = self.clients.op(number) else { return };
        let ask = roles::AskId(self.number());
        match self.roles(idx) {
            Some(roles) => {
                roles.asks.insert(ask, RoleAsker::Operator { op: number, attempt });
                let requested = PendingChange { ask, node, change, by: Principal::Operator, request };
                self.roles_step(idx, roles::Input::PendingChange(requested));
            }
            None => {
                let result = Err(ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead"));
                let delay = self.rng.micros(80, 1500);
                self.time.after(delay, Event::ChangeAnswered { op: number, attempt, result });
            }
        }
    }

    pub(crate) fn change_answered(&mut self, number: OpNumber, attempt: u32, result: Result<bool, ErrorBody>) {
        use ErrorCode as C;
        let Some(op) = self.clients.ops.get_mut(&number).filter(|o| o.answer.is_none()) else { return };
        if result.is_err() && attempt != op.attempt {
            return; // a later attempt is in flight
        }
        let again = |e: &ErrorBody| {
            !e.is_final()
                && matches!(e.code, C::Unreachable | C::UnknownOutcome | C::TimedOut | C::NoQuorum | C::TooManyRequests)
        };
        if result.as_ref().is_err_and(again) {
            let pause = self.rng.millis(20, 250);
            return self.time.after(pause, Event::RetryChange(number));
        }
        match &result {
            Ok(true) if matches!(op.change, DesiredChange::Remove { .. }) => self.totals.count("removals done"),
            Ok(true) => self.totals.count("role changes accepted"),
            Ok(false) => self.totals.count("role changes without effect"),
            Err(_) => self.totals.count("requests refused"),
        }
        op.answer = Some(result.clone());
        self.log(format!("{number:?} result={result:?}"));
    }

    pub(crate) fn retry_change(&mut self, number: OpNumber) {
        if self.clients.ops.get(&number).is_some_and(|o| o.answer.is_none()) {
            self.send_change(number);
        }
    }

    /// A random operator action.
    pub(crate) fn operator(&mut self) {
        let next = self.rng.millis(400, 3000);
        self.time.after(next, Event::Operator);
        if self.clients.resting || self.clients.open_ops().count() >= 3 {
            return;
        }
        let Some(tables) = self.checks.newest().cloned() else { return };
        let all = || tables.nodes.values().filter(|n| n.removing.is_none());
        let workers: Vec<NodeId> = all().filter(|n| n.desired_role == Role::Worker).map(|n| n.id).collect();
        let managers: Vec<NodeId> = all().filter(|n| n.desired_role == Role::Manager).map(|n| n.id).collect();
        let ledger = self.model.ledger;
        let down: Vec<NodeId> =
            all().filter(|n| n.liveness == Liveness::Down && Some(n.id) != ledger).map(|n| n.id).collect();
        let (few, many) = (managers.len() <= 3, managers.len() >= 6);
        match self.rng.below(12) {
            0..=3 if !many => drop(self.rng.pick(&workers).map(|n| self.change(n, DesiredChange::Role(Role::Manager)))),
            4..=7 if !few || self.rng.chance(200) => {
                let _asked = self.rng.pick(&managers).map(|n| self.change(n, DesiredChange::Role(Role::Worker)));
            }
            8 => self.flip(&managers, &workers),
            9 if tables.nodes.len() > 5 => {
                let node = self.rng.pick(&workers).filter(|n| Some(*n) != ledger);
                let _asked = node.map(|n| self.change(n, DesiredChange::Remove { force: true }));
            }
            10 if tables.nodes.len() > 5 => {
                let _asked = self.rng.pick(&down).map(|n| self.change(n, DesiredChange::Remove { force: true }));
            }
            _ if self.machines.iter().filter(|m| m.agent.ended.is_none()).count() < 7 => {
                let role = if self.rng.chance(500) { Role::Manager } else { Role::Worker };
                self.join_machine(role);
            }
            _ => {}
        }
    }

    /// There and back: the last request wins at any interleaving.
    fn flip(&mut self, managers: &[NodeId], workers: &[NodeId]) {
        let demote = managers.len() > 2 && self.rng.chance(600);
        let (from, first, second) =
            if demote { (managers, Role::Worker, Role::Manager) } else { (workers, Role::Manager, Role::Worker) };
        let Some(node) = self.rng.pick(from) else { return };
        self.totals.count("flips");
        let _first = self.change(node, DesiredChange::Role(first));
        let later = self.rng.micros(0, 120_000);
        self.time.after(later, Event::DesiredChange(node, second));
    }
}
