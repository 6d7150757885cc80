//! The cluster, what has been done to it, and what must still be undone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_client::Client;
use muster_messages::wire::Request;
use muster_messages::{Dice, ErrorCode, Role};
use rustix::process::Signal;

use super::faults::{Deck, Fault};
use super::vitals::Vitals;
use crate::harness::{WallClock, WallClocks, World, between_looks};
use crate::history::{Clients, History};

/// The node whose process lives through it all, so that there is one to look for leaks in. Everything else happens to it as well.
pub const WITNESS: &str = "n1";
/// As many nodes there are at most, so that a machine with two processors can follow.
pub const MOST_NODES: usize = 5;
const CLIENTS: usize = 4;

/// One node.
pub struct Machine {
    /// With which it is started, each time: whoever has joined already does not look at them.
    pub flags: Vec<String>,
    pub clock: WallClock,
    pub hang: PathBuf,
    /// It has served since it joined.
    pub served: bool,
    /// Something is still being done to it.
    pub hurt: bool,
    /// Its disk was full in this storm: what it says of that is no fault of its own.
    pub disk_was_full: bool,
    /// In this storm.
    pub was_frozen: bool,
    /// It ended by itself, with this status.
    pub ended: Option<Option<i32>>,
    /// How much of its log has been judged.
    pub judged: usize,
}

/// What is undone after a while.
#[derive(Clone, Debug)]
pub enum Debt {
    Start(String),
    Thaw(String),
    HealNetwork,
    EndHang(String),
    EmptyDisk(String),
}

pub struct Cluster {
    pub world: World,
    pub dice: Dice,
    pub machines: BTreeMap<String, Machine>,
    pub debts: Vec<(Instant, Debt)>,
    pub history: History,
    pub clients: Option<Clients>,
    pub vitals: Vitals,
    pub storms: usize,
    pub counts: BTreeMap<String, usize>,
    pub operations: u64,
    clocks: WallClocks,
    deck: Deck,
    tokens: [String; 2],
    made: usize,
    begun: Instant,
}

impl Cluster {
    /// Three managers and two workers, at rest.
    pub fn begin(dice: Dice) -> Self {
        let mut world = World::new();
        world.network = Some(crate::harness::Network::new());
        // The timing that is shipped: leaders that change are part of it.
        world.settings = "[supervision]\nbackoff_first = \"100ms\"\nbackoff_cap = \"2s\"\n".to_owned();
        let clocks = WallClocks::new(world.folder());
        let mut cluster = Self {
            world,
            dice,
            machines: BTreeMap::new(),
            debts: Vec::new(),
            history: History::new("before"),
            clients: None,
            vitals: Vitals::default(),
            storms: 0,
            counts: BTreeMap::new(),
            operations: 0,
            clocks,
            deck: Deck::default(),
            tokens: [String::new(), String::new()],
            made: 0,
            begun: Instant::now(),
        };
        cluster.make(vec!["--init".to_owned()]);
        cluster.world.node(WITNESS).ready();
        cluster.machine(WITNESS).served = true;
        cluster.tokens = [Role::Worker, Role::Manager].map(|role| cluster.world.token(role));
        for role in [Role::Manager, Role::Manager, Role::Worker, Role::Worker] {
            let joins = cluster.joins(role);
            cluster.make(joins);
        }
        cluster.calm();
        cluster
    }

    /// What a node is started with that joins by way of anybody.
    pub fn joins(&mut self, role: Role) -> Vec<String> {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let seeds: Vec<String> = names.iter().map(|name| self.world.node(name).address().to_string()).collect();
        let token = &self.tokens[usize::from(role == Role::Manager)];
        ["--join", &seeds.join(","), "--token", token].map(str::to_owned).to_vec()
    }

    /// Starts another node; its name.
    pub fn make(&mut self, flags: Vec<String>) -> String {
        self.made += 1;
        let name = format!("n{}", self.made);
        let (clock, hang) = (self.clocks.of(&name), self.world.folder().join(format!("{name}.hangs")));
        let node = self.world.node(&name).disk_hangs_while(&hang).disk_may_fill();
        node.environment.extend(clock.environment());
        let machine = Machine {
            flags,
            clock,
            hang,
            served: false,
            hurt: false,
            disk_was_full: false,
            was_frozen: false,
            ended: None,
            judged: 0,
        };
        self.machines.insert(name.clone(), machine);
        self.start(&name);
        name
    }

    pub fn start(&mut self, name: &str) {
        let flags: Vec<&str> = self.machines[name].flags.iter().map(String::as_str).collect();
        self.world.node(name).start(&flags);
    }

    pub fn machine(&mut self, name: &str) -> &mut Machine {
        self.machines.get_mut(name).expect("it is one of the nodes")
    }

    /// Writes down what is done, and when.
    pub fn say(&self, what: &str) {
        println!("{:8.3}  {what}", self.begun.elapsed().as_secs_f64());
    }

    /// Asks for something that may be refused: somebody to whom nothing is being done, and whose socket speaks for an operator. Who that was,
    /// and what became of it.
    pub fn ask_a_manager(&mut self, request: &Request) -> Option<String> {
        let mut able: Vec<String> =
            self.machines.iter().filter(|(_, m)| !m.hurt).map(|(name, _)| name.clone()).collect();
        while !able.is_empty() {
            let by = able.swap_remove(self.dice.index(able.len()));
            let mut client = Client::to_socket(self.world.socket(&by), Duration::from_secs(1));
            return Some(match self.world.wait_for(client.call(request.clone())) {
                Ok(_) => format!("{by}: done"),
                Err(failure) if failure.is(ErrorCode::Forbidden) => continue, // a worker
                Err(failure) => format!("{by}: {}: {}", failure.code, failure.message),
            });
        }
        None
    }

    /// Hurts it for a while, as often as comes to mind.
    pub fn storm(&mut self, lasts: Duration) {
        self.storms += 1;
        self.say(&format!("storm {}", self.storms));
        self.history = History::new(&format!("storm-{}", self.storms));
        let sockets: Vec<PathBuf> = self.machines.keys().map(|name| self.world.socket(name)).collect();
        let from = |first| sockets.iter().cycle().skip(first).take(sockets.len()).cloned().collect();
        let node = self.world.seen(WITNESS, WITNESS).expect("the witness is a node").id;
        self.clients = Some(Clients::start(&self.history, node, (0..CLIENTS).map(from).collect()));
        let (end, mut next) = (Instant::now() + lasts, Instant::now());
        while Instant::now() < end {
            self.settle(|due| due <= Instant::now());
            self.notice_ends();
            if Instant::now() >= next {
                let fault = self.deck.draw(&mut self.dice);
                self.hurt(fault);
                next = Instant::now() + Duration::from_millis(100) + self.dice.up_to(Duration::from_millis(1200));
            }
            between_looks();
        }
    }

    fn hurt(&mut self, fault: Fault) {
        if let Some(what) = fault.strike(self) {
            *self.counts.entry(format!("{fault:?}")).or_default() += 1;
            self.say(&what);
        }
    }

    /// Something to be undone within a while.
    pub fn owe(&mut self, longest: Duration, debt: Debt) -> Duration {
        let lasts = Duration::from_millis(100) + self.dice.up_to(longest);
        self.debts.push((Instant::now() + lasts, debt));
        lasts
    }

    /// Undoes what is due.
    pub fn settle(&mut self, is_due: impl Fn(Instant) -> bool) {
        let (due, later) = std::mem::take(&mut self.debts).into_iter().partition(|(at, _)| is_due(*at));
        self.debts = later;
        let due: Vec<(Instant, Debt)> = due;
        for (_, debt) in due {
            self.undo(&debt);
        }
    }

    fn undo(&mut self, debt: &Debt) {
        let name = match debt {
            Debt::HealNetwork => {
                self.world.network().heal();
                return self.say("the network is whole");
            }
            Debt::Start(name) | Debt::Thaw(name) | Debt::EndHang(name) | Debt::EmptyDisk(name) => name.clone(),
        };
        match debt {
            Debt::Start(_) => self.start(&name),
            Debt::EndHang(_) => std::fs::remove_file(&self.machines[&name].hang).expect("it was there"),
            // It has ended by itself, which is judged after the storm.
            _ if !self.world.node(&name).is_running() => {}
            Debt::Thaw(_) => drop(self.world.node(&name).signal(Signal::CONT)),
            _ => self.world.node(&name).disk_is_full(false),
        }
        self.machine(&name).hurt = false;
        self.say(&format!("{debt:?}"));
    }

    /// Whoever ends by itself: only a removed node may.
    pub fn notice_ends(&mut self) {
        let owed = |debts: &[(Instant, Debt)], name: &str| {
            debts.iter().any(|(_, debt)| matches!(debt, Debt::Start(who) if who == name))
        };
        let ended = |cluster: &mut Self, name: &String| {
            cluster.machines[name].ended.is_none()
                && !owed(&cluster.debts, name)
                && !cluster.world.node(name).is_running()
        };
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            if ended(self, &name) {
                let code = self.world.node(&name).exit();
                self.machine(&name).ended = Some(code);
                self.say(&format!("{name} has ended by itself: {code:?}"));
            }
        }
    }
}
