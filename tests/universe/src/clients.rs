//! Who uses the cluster: writers, readers, an operator. Each may lose its question or its answer and asks again under
//! the same request id.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError, ReadError};
use muster_messages::{
    Change, Command, CommandRefusal, ErrorBody, ErrorCode, Guard, Liveness, NodeId, Principal, Replica, RequestId,
    Role, request_digest,
};
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles, Wish, Wished};

use crate::checks::{READ_1, WRITE_1, broken};
use crate::machine::{Asker, Place, RoleAsker};
use crate::model::{Floor, Key};
use crate::world::{Event, Universe};

/// A role change or removal that the operator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpNumber(pub u32);

/// One try of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Try {
    pub writer: usize,
    pub write: u32,
    pub attempt: u32,
}

/// How a try ended for its writer.
#[derive(Clone, Debug)]
pub enum Written {
    Ended(Result<Applied, ProposeError>),
    /// Nobody listened there: certainly nothing happened.
    Refused,
    /// No answer came.
    Silence,
}

/// A key, the number to write there, and the request.
pub type Write = (Key, u64, RequestId);

/// Writes one number after the other.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    keys: Vec<Key>,
    write: u32,
    attempt: u32,
    /// The latest try has not been answered.
    awaiting: bool,
    current: Option<Write>,
    /// An earlier try may have been applied.
    maybe: bool,
    hint: Option<NodeId>,
}

/// A wish and what became of it.
#[derive(Clone, Debug)]
pub struct Op {
    pub node: NodeId,
    pub wish: Wish,
    pub request: RequestId,
    pub attempt: u32,
    /// `Ok(true)`: it changed something.
    pub answer: Option<Result<bool, ErrorBody>>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    pub writers: Vec<Writer>,
    pub ops: BTreeMap<OpNumber, Op>,
    /// Nothing new is asked for; what is open is finished.
    pub resting: bool,
    pub reading: bool,
    next_op: u32,
}

const KEYS_EACH: usize = 3;
const WRITE_DEADLINE: Duration = Duration::from_secs(3);
/// Of a thousand writes so many are repeated long after their end.
const REPEATED: u32 = 150;
const OP_PATIENCE: Duration = Duration::from_secs(4);

impl Clients {
    pub fn op(&self, op: OpNumber) -> Option<(NodeId, Wish, RequestId)> {
        self.ops.get(&op).map(|o| (o.node, o.wish, o.request))
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

impl Universe {
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

    /// Some machine with a manager half; it need not lead.
    pub(crate) fn some_manager(&mut self) -> Option<Place> {
        let managers: Vec<Place> = (0..self.machines.len()).filter(|p| self.machines[*p].half.is_some()).collect();
        self.dice.pick(&managers)
    }

    // ---- writers --------------------------------------------------------------------------------------------------

    pub(crate) fn writer(&mut self, number: usize) {
        if self.clients.writers[number].current.is_none() {
            if self.clients.resting || self.checks.newest().is_none() {
                let later = Duration::from_millis(100);
                return self.time.after(later, Event::Writer(number));
            }
            let keys = self.clients.writers[number].keys.clone();
            let key = self.dice.pick(&keys).expect("a writer has keys");
            let (value, request) = (self.model.attempt(key), self.request());
            self.steal(request);
            let writer = &mut self.clients.writers[number];
            writer.current = Some((key, value, request));
            writer.write += 1;
            writer.maybe = false;
        }
        let hinted = self.clients.writers[number].hint.and_then(|node| self.place_of(node));
        let guess = self.dice.chance(300);
        let place = match hinted.filter(|_| !guess) {
            Some(place) => Some(place),
            None => self.some_manager(),
        };
        let writer = &mut self.clients.writers[number];
        writer.attempt += 1;
        writer.awaiting = true;
        let attempt = Try { writer: number, write: writer.write, attempt: writer.attempt };
        let patience = WRITE_DEADLINE + Duration::from_millis(500);
        self.time.after(patience, Event::WriteAnswered { attempt, result: Written::Silence });
        if let Some(place) = place.filter(|_| !self.dice.chance(self.net.weather.loss)) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            self.time.after(delay, Event::WriteArrives { place, attempt });
        }
    }

    pub(crate) fn write_arrives(&mut self, place: Place, attempt: Try) {
        let writer = &self.clients.writers[attempt.writer];
        let current = writer.current.filter(|_| writer.write == attempt.write);
        let Some((key, value, request)) = current else { return };
        let Some(ledger) = self.model.ledger else { return };
        if !self.machines[place].up || self.machines[place].half.is_none() {
            return self.answer_write(attempt, Written::Refused);
        }
        self.trace.whisper(self.time.now(), || format!("{attempt:?} of k{}={value} arrives at n{}", key.0, place + 1));
        let command = self.write_command(place, ledger, (key, value, request));
        self.propose(place, Asker::Writer(attempt), command, WRITE_DEADLINE);
    }

    fn write_command(&self, place: Place, ledger: NodeId, (key, value, request): Write) -> Command {
        let add = [(key.label(), value.to_string())].into();
        let command = Command::idempotent(self.wall(place), Principal::Operator, "write").with_request(request);
        let digest = request_digest(&[key.label().as_bytes(), &value.to_be_bytes()]);
        let command = if self.digested(place) { command.guard(Guard::Request { digest }) } else { command };
        command.change(Change::UpdateLabels { node: ledger, add, remove: Vec::new() })
    }

    /// From this level on a client's request carries what it asks for.
    pub(crate) fn digested(&self, place: Place) -> bool {
        self.machines[place].half.as_ref().is_some_and(|half| half.core.tables().remembers_callers())
    }

    /// A client that was parted from everybody, or a proxy that kept it: the request of a write that was acknowledged comes once
    /// more, when others have been written since.
    fn repeat_much_later(&mut self, writer: usize, write: Option<Write>) {
        let Some(write) = write.filter(|_| self.dice.chance(REPEATED)) else { return };
        let (later, recoveries) = (self.dice.millis(200, 20_000), self.recoveries.done());
        self.time.after(later, Event::LateWrite { writer, write, recoveries });
    }

    /// A recovery may have undone it: then it would not be repeated, but new.
    pub(crate) fn write_comes_late(&mut self, writer: usize, write: Write, recoveries: u32) {
        let place = self.leading().filter(|p| self.machines[*p].runs());
        let (Some(place), Some(ledger)) = (place, self.model.ledger) else { return };
        if recoveries != self.recoveries.done() || self.clients.resting {
            return;
        }
        self.say(format!("writer {writer} asks for k{}={} again", write.0.0, write.1));
        let command = self.write_command(place, ledger, write);
        self.propose(place, Asker::Late, command, WRITE_DEADLINE);
    }

    /// Whether it was applied again is seen in what it wrote (WRITE-1).
    pub(crate) fn late_write_ended(&mut self, result: Result<Applied, ProposeError>) {
        match result {
            Ok(_) => self.totals.count("late retries that got the first outcome"),
            Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_))) => {
                self.totals.count("late retries whose outcome was forgotten");
            }
            Err(ProposeError::Refused(why)) => {
                self.hold_to(Err(broken(WRITE_1, format!("a write was repeated, and refused: {why}"))));
            }
            Err(_) => {}
        }
    }

    /// Acknowledged means: the member said so, whether or not the answer arrives.
    pub(crate) fn write_ended(&mut self, _place: Place, attempt: Try, result: Result<Applied, ProposeError>) {
        let writer = &self.clients.writers[attempt.writer];
        if let (Ok(_), Some((key, value, _))) = (&result, writer.current.filter(|_| writer.write == attempt.write)) {
            self.model.acknowledged(key, value);
        }
        self.answer_write(attempt, Written::Ended(result));
    }

    fn answer_write(&mut self, attempt: Try, result: Written) {
        self.trace.whisper(self.time.now(), || format!("{attempt:?} is answered {result:?}"));
        if !self.dice.chance(self.net.weather.loss) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            self.time.after(delay, Event::WriteAnswered { attempt, result });
        }
    }

    pub(crate) fn write_answered(&mut self, attempt: Try, result: Written) {
        let writer = &mut self.clients.writers[attempt.writer];
        let Some((key, value, _)) = writer.current.filter(|_| writer.write == attempt.write) else { return };
        let latest = writer.attempt == attempt.attempt && writer.awaiting;
        if !latest && !matches!(result, Written::Ended(Ok(_))) {
            // Another try is on its way, or about to be.
            writer.maybe |= !matches!(result, Written::Refused);
            return;
        }
        let under_way = writer.awaiting;
        writer.awaiting = false;
        let pause = match result {
            Written::Ended(Ok(_)) => {
                self.totals.count("writes acknowledged");
                let done = writer.current.take();
                self.repeat_much_later(attempt.writer, done);
                self.dice.millis(5, 120)
            }
            Written::Refused => {
                writer.hint = None;
                self.dice.millis(5, 60)
            }
            Written::Ended(Err(ProposeError::NotLeader { leader })) => {
                writer.hint = leader;
                // PROPOSE-2: nothing of it will ever show. Sometimes the writer counts on that.
                if !writer.maybe && self.dice.chance(150) {
                    writer.current = None;
                    self.model.never(key, value);
                }
                self.dice.millis(1, 40)
            }
            // It may have been applied, and will not be again.
            Written::Ended(Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_)))) => {
                self.totals.count("writes whose outcome was forgotten");
                writer.current = None;
                self.dice.millis(5, 120)
            }
            Written::Ended(Err(ProposeError::Refused(why))) => {
                let detail = format!("nothing speaks against writing k{}, and it was refused: {why}", key.0);
                return self.hold_to(Err(broken(WRITE_1, detail)));
            }
            Written::Ended(Err(ProposeError::Busy)) => self.dice.millis(1, 40),
            Written::Ended(Err(_)) | Written::Silence => {
                self.totals.count("writes with unknown outcome");
                (writer.maybe, writer.hint) = (true, None);
                self.dice.millis(10, 200)
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
        let next = self.dice.millis(20, 160);
        self.time.after(next, Event::Reader);
        let place = self.some_manager().filter(|p| self.machines[*p].runs());
        let Some(place) = place.filter(|_| self.model.ledger.is_some()) else { return };
        let (floor, deadline) = (Box::new(self.model.floor()), self.clock(place) + Duration::from_secs(2));
        if let Some(ask) = self.park(place, Asker::Reader(floor)) {
            self.hear(place, Input::Read { ask, deadline });
        }
    }

    pub(crate) fn read_ended(
        &mut self,
        place: Place,
        floor: &Floor,
        result: Result<std::sync::Arc<Replica>, ReadError>,
    ) {
        match result {
            Ok(replica) => {
                self.totals.count("reads answered");
                if let Err(why) = self.model.judge(floor, &replica.tables) {
                    self.hold_to(Err(broken(READ_1, format!("a read on n{}: {why}", place + 1))));
                }
            }
            Err(_) => self.totals.count("reads given up"),
        }
    }

    // ---- the operator ---------------------------------------------------------------------------------------------

    /// Asks for a role or a removal; the answer is found under the number.
    pub fn wish(&mut self, node: NodeId, wish: Wish) -> OpNumber {
        let op = self.note_wish(node, wish);
        self.send_wish(op);
        op
    }

    pub(crate) fn note_wish(&mut self, node: NodeId, wish: Wish) -> OpNumber {
        self.clients.next_op += 1;
        let op = OpNumber(self.clients.next_op);
        let request = self.request();
        let alone = self.clients.open_ops().all(|(_, o)| o.node != node);
        self.model.wished(node, op, alone);
        self.clients.ops.insert(op, Op { node, wish, request, attempt: 0, answer: None });
        let name = self.name(node);
        self.say(format!("{op:?}: {wish:?} of {name}"));
        op
    }

    fn send_wish(&mut self, number: OpNumber) {
        let place = match self.leading().filter(|_| !self.dice.chance(100)) {
            Some(place) => Some(place),
            None => self.some_manager(),
        };
        let Some(op) = self.clients.ops.get_mut(&number) else { return };
        op.attempt += 1;
        let attempt = op.attempt;
        self.lose_patience(number, attempt);
        if let Some(place) = place.filter(|_| !self.dice.chance(self.net.weather.loss)) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            self.time.after(delay, Event::WishArrives { place, op: number, attempt });
        }
    }

    pub(crate) fn lose_patience(&mut self, op: OpNumber, attempt: u32) {
        let silence = ErrorBody::new(ErrorCode::TimedOut, "no answer came");
        self.time.after(OP_PATIENCE, Event::WishAnswered { op, attempt, result: Err(silence) });
    }

    pub(crate) fn wish_arrives(&mut self, place: Place, number: OpNumber, attempt: u32) {
        let Some((node, wish, request)) = self.clients.op(number) else { return };
        let ask = roles::AskId(self.number());
        match self.roles(place) {
            Some(roles) => {
                roles.asks.insert(ask, RoleAsker::Operator { op: number, attempt });
                let wished = Wished { ask, node, wish, by: Principal::Operator, request };
                self.roles_step(place, roles::Input::Wished(wished));
            }
            None => {
                let result = Err(ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead"));
                let delay = self.dice.micros(80, 1500);
                self.time.after(delay, Event::WishAnswered { op: number, attempt, result });
            }
        }
    }

    pub(crate) fn wish_answered(&mut self, number: OpNumber, attempt: u32, result: Result<bool, ErrorBody>) {
        use ErrorCode as C;
        let Some(op) = self.clients.ops.get_mut(&number).filter(|o| o.answer.is_none()) else { return };
        if result.is_err() && attempt != op.attempt {
            return; // a later try is on its way
        }
        let again = |e: &ErrorBody| {
            !e.is_final()
                && matches!(e.code, C::Unreachable | C::UnknownOutcome | C::TimedOut | C::NoQuorum | C::TooManyRequests)
        };
        if result.as_ref().is_err_and(again) {
            let pause = self.dice.millis(20, 250);
            return self.time.after(pause, Event::WishAgain(number));
        }
        match &result {
            Ok(true) if matches!(op.wish, Wish::Remove { .. }) => self.totals.count("removals done"),
            Ok(true) => self.totals.count("role changes accepted"),
            Ok(false) => self.totals.count("role changes that changed nothing"),
            Err(_) => self.totals.count("wishes refused"),
        }
        op.answer = Some(result.clone());
        self.say(format!("{number:?} is answered {result:?}"));
    }

    pub(crate) fn wish_again(&mut self, number: OpNumber) {
        if self.clients.ops.get(&number).is_some_and(|o| o.answer.is_none()) {
            self.send_wish(number);
        }
    }

    /// Something that an operator might do, at random.
    pub(crate) fn operator(&mut self) {
        let next = self.dice.millis(400, 3000);
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
        match self.dice.below(12) {
            0..=3 if !many => drop(self.dice.pick(&workers).map(|n| self.wish(n, Wish::Role(Role::Manager)))),
            4..=7 if !few || self.dice.chance(200) => {
                let _asked = self.dice.pick(&managers).map(|n| self.wish(n, Wish::Role(Role::Worker)));
            }
            8 => self.flip(&managers, &workers),
            9 if tables.nodes.len() > 5 => {
                let node = self.dice.pick(&workers).filter(|n| Some(*n) != ledger);
                let _asked = node.map(|n| self.wish(n, Wish::Remove { force: true }));
            }
            10 if tables.nodes.len() > 5 => {
                let _asked = self.dice.pick(&down).map(|n| self.wish(n, Wish::Remove { force: true }));
            }
            _ if self.machines.iter().filter(|m| m.agent.ended.is_none()).count() < 7 => {
                let role = if self.dice.chance(500) { Role::Manager } else { Role::Worker };
                self.join_machine(role);
            }
            _ => {}
        }
    }

    /// There and back: the last wish wins at any interleaving.
    fn flip(&mut self, managers: &[NodeId], workers: &[NodeId]) {
        let demote = managers.len() > 2 && self.dice.chance(600);
        let (from, first, second) =
            if demote { (managers, Role::Worker, Role::Manager) } else { (workers, Role::Manager, Role::Worker) };
        let Some(node) = self.dice.pick(from) else { return };
        self.totals.count("flips");
        let _first = self.wish(node, Wish::Role(first));
        let later = self.dice.micros(0, 120_000);
        self.time.after(later, Event::Wish(node, second));
    }
}
