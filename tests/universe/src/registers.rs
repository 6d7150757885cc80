//! Clients of registers: each writes and reads what the others write and read at the same time, asks again under the same
//! request id when it hears nothing, and gives up after some tries. What they saw is a history. Nothing else is promised of
//! registers than that there can have been such ones: LINEAR-1, judged at the end.
//!
//! A register is a label of the ledger's node. Unlike the ledger's keys it has many writers, so that of two values no one
//! knows which is the later one, and whoever has seen a value must not see an earlier one again, acknowledged or not.

use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError, ReadError};
use muster_messages::{Change, Command, CommandRefusal, Guard, NodeId, Principal, Replica, RequestId, request_digest};
use muster_raft_member::core::Input;
use muster_tests::history::{Begun, End, History, MOST_CLIENTS, Value};

use crate::breaks::Break;
use crate::checks::{WRITE_1, broken};
use crate::machine::{Asker, Place};
use crate::world::{Event, Universe};

pub const LINEAR_1: &str = "LINEAR-1";

const DEADLINE: Duration = Duration::from_secs(2);
/// When a client counts a try as lost: an answer may still be on its way by then.
const PATIENCE: Duration = Duration::from_millis(2300);

/// One try of one operation.
#[derive(Clone, Debug)]
pub struct Asked {
    client: usize,
    op: u32,
    attempt: u32,
    request: RequestId,
    key: String,
    /// Nothing is written by a read.
    writes: Option<Value>,
}

/// How a try ended for its client.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    Wrote,
    Saw(Value),
    /// Certainly nothing happened, and will not.
    NotTaken {
        leader: Option<NodeId>,
    },
    /// It may have happened, or may still.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct Client {
    op: u32,
    begun: Option<Begun>,
    request: u128,
    attempt: u32,
    /// The latest try has not been answered.
    awaiting: bool,
    /// After so many it gives up.
    tries: u32,
    /// A try may have been applied.
    maybe: bool,
    hint: Option<NodeId>,
    /// A key that is used no more.
    removes: Option<String>,
}

/// All of them.
#[derive(Default)]
pub struct Registers {
    history: Option<History>,
    clients: Vec<Client>,
}

impl Registers {
    /// Some operation has not ended.
    pub fn open(&self) -> bool {
        self.clients.iter().any(|c| c.begun.is_some())
    }
}

impl Universe {
    pub(crate) fn start_registers(&mut self, clients: usize) {
        assert!(clients <= MOST_CLIENTS, "more would have more open than can be checked");
        self.registers.history = Some(History::new("r"));
        self.registers.clients = vec![Client::default(); clients];
        for client in 0..clients {
            let soon = self.dice.millis(1, 300);
            self.time.after(soon, Event::Register(client));
        }
    }

    /// LINEAR-1: there can be a register for each key that gave the answers that were heard, and that holds what is there now.
    pub(crate) fn judge_registers(&mut self) {
        let (Some(history), Some(tables)) = (&self.registers.history, self.checks.newest()) else { return };
        let Some(record) = self.model.ledger.and_then(|node| tables.nodes.get(&node)) else { return };
        history.read_all(|key| record.labels.get(key).and_then(|text| text.parse().ok()));
        let judged = history.judge();
        match judged {
            Ok(ops) => self.totals.add("operations on registers judged", ops),
            Err(why) => self.hold_to(Err(broken(LINEAR_1, why))),
        }
    }

    // ---- clients --------------------------------------------------------------------------------------------------

    /// A client's turn: its next operation, or its next try of the one that is open.
    pub(crate) fn register(&mut self, number: usize) {
        let idle = self.registers.clients[number].begun.is_none();
        if idle && (self.clients.resting || self.checks.newest().is_none()) {
            return self.time.after(Duration::from_millis(100), Event::Register(number));
        }
        if idle {
            self.begin_register(number);
        }
        let guess = self.dice.chance(250);
        let hinted = self.registers.clients[number].hint.and_then(|node| self.place_of(node));
        let place = match hinted.filter(|_| !guess) {
            Some(place) => Some(place),
            None => self.some_manager(),
        };
        let client = &mut self.registers.clients[number];
        client.attempt += 1;
        client.awaiting = true;
        let Some(begun) = client.begun.as_ref() else { return };
        let asked = Asked {
            client: number,
            op: client.op,
            attempt: client.attempt,
            // Every try of an operation has the same id: that is why it has one moment only.
            request: RequestId(client.request),
            key: begun.key.clone(),
            writes: begun.writes,
        };
        self.time.after(PATIENCE, Event::RegisterTold { asked: Box::new(asked.clone()), told: Told::Unknown });
        if let Some(place) = place.filter(|_| !self.dice.chance(self.net.weather.loss)) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            if self.settings.broken == Some(Break::RetryUnderAnotherId) {
                let again = Asked { request: RequestId(asked.request.0.wrapping_add(1)), ..asked.clone() };
                let later = delay + self.dice.millis(100, 900);
                self.time.after(later, Event::RegisterAsks { place, asked: Box::new(again) });
            }
            self.time.after(delay, Event::RegisterAsks { place, asked: Box::new(asked) });
        }
    }

    fn begin_register(&mut self, number: usize) {
        let (place, writes) = (self.dice.below(usize::MAX), self.dice.chance(500));
        let request = self.request().0;
        let tries = 1 + self.dice.below(4) as u32;
        let Some(history) = &self.registers.history else { return };
        let client = &mut self.registers.clients[number];
        let begun = match client.removes.take() {
            Some(old) => history.begin_removal(&old),
            None if writes => history.begin_write(place),
            None => history.begin_read(place),
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

    pub(crate) fn register_told(&mut self, asked: &Asked, told: Told) {
        let client = &mut self.registers.clients[asked.client];
        if client.op != asked.op || client.begun.is_none() {
            return;
        }
        let done = matches!(told, Told::Wrote | Told::Saw(_));
        let latest = client.attempt == asked.attempt && client.awaiting;
        if !done && !latest {
            return; // another try is on its way, or about to be
        }
        let under_way = std::mem::take(&mut client.awaiting);
        let end = match told {
            Told::Wrote => Some(End::Wrote),
            Told::Saw(value) => Some(End::Saw(value)),
            Told::NotTaken { leader } => {
                client.hint = leader;
                None
            }
            Told::Unknown => {
                (client.maybe, client.hint) = (true, None);
                None
            }
        };
        let gives_up = client.attempt >= client.tries;
        let otherwise = if client.maybe { End::Unknown } else { End::Nothing };
        if let Some(end) = end.or(gives_up.then_some(otherwise)) {
            self.end_register(asked.client, end);
        }
        if under_way {
            let pause = if done { self.dice.millis(10, 250) } else { self.dice.millis(1, 60) };
            self.time.after(pause, Event::Register(asked.client));
        }
    }

    fn end_register(&mut self, number: usize, end: End) {
        let client = &mut self.registers.clients[number];
        let (Some(begun), Some(history)) = (client.begun.take(), &self.registers.history) else { return };
        client.removes = history.end(&begun, end);
        self.totals.count(match (end, begun.writes) {
            (End::Wrote, _) => "registers written",
            (End::Saw(_), _) => "registers read",
            (_, Some(_)) => "registers: writes with unknown outcome, or none",
            (_, None) => "registers: reads given up",
        });
        self.totals.add("registers given back", u64::from(self.registers.clients[number].removes.is_some()));
    }

    // ---- managers -------------------------------------------------------------------------------------------------

    pub(crate) fn register_arrives(&mut self, place: Place, asked: Box<Asked>) {
        let Some(ledger) = self.model.ledger else { return };
        let listens = self.machines[place].up && self.machines[place].half.is_some();
        if !listens {
            return self.tell_register(asked, Told::NotTaken { leader: None });
        }
        let Some(value) = asked.writes else { return self.read_register(place, asked) };
        let key = asked.key.clone();
        let (add, remove) = match value {
            Some(number) => ([(key, number.to_string())].into(), Vec::new()),
            None => (Default::default(), vec![key]),
        };
        let command =
            Command::idempotent(self.wall(place), Principal::Operator, "register").with_request(asked.request);
        let digest = request_digest(&[asked.key.as_bytes(), format!("{:?}", asked.writes).as_bytes()]);
        let command = if self.digested(place) { command.guard(Guard::Request { digest }) } else { command };
        let command = command.change(Change::UpdateLabels { node: ledger, add, remove });
        self.propose(place, Asker::Register(asked), command, DEADLINE);
    }

    fn read_register(&mut self, place: Place, asked: Box<Asked>) {
        if self.settings.broken == Some(Break::AnswerFromTheCopy) {
            let told = self.machines[place].half.as_ref().map(|h| self.seen(h.core.replica(), &asked));
            return self.tell_register(asked, told.unwrap_or(Told::Unknown));
        }
        let deadline = self.clock(place) + DEADLINE;
        if let Some(ask) = self.park(place, Asker::Register(asked)) {
            self.hear(place, Input::Read { ask, deadline });
        }
    }

    fn seen(&self, replica: &Replica, asked: &Asked) -> Told {
        let record = self.model.ledger.and_then(|node| replica.tables.nodes.get(&node));
        Told::Saw(record.and_then(|r| r.labels.get(&asked.key)).and_then(|text| text.parse().ok()))
    }

    /// The raft member has ended a proposal of a client.
    pub(crate) fn register_ended(&mut self, asked: Box<Asked>, result: Result<Applied, ProposeError>) {
        let told = match result {
            Ok(_) => Told::Wrote,
            Err(ProposeError::NotLeader { leader }) => Told::NotTaken { leader },
            Err(ProposeError::Busy) => Told::NotTaken { leader: None },
            Err(ProposeError::Refused(CommandRefusal::OutcomeForgotten(_))) => Told::Unknown,
            Err(ProposeError::Refused(why)) => {
                let detail = format!("nothing speaks against writing {}, and it was refused: {why}", asked.key);
                return self.hold_to(Err(broken(WRITE_1, detail)));
            }
            Err(_) => Told::Unknown,
        };
        self.tell_register(asked, told);
    }

    pub(crate) fn register_read(&mut self, asked: Box<Asked>, result: Result<std::sync::Arc<Replica>, ReadError>) {
        let told = result.map_or(Told::Unknown, |replica| self.seen(&replica, &asked));
        self.tell_register(asked, told);
    }

    fn tell_register(&mut self, asked: Box<Asked>, told: Told) {
        if !self.dice.chance(self.net.weather.loss) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            self.time.after(delay, Event::RegisterTold { asked, told });
        }
    }
}
