//! The cluster, the faults injected into it, and the pending cleanups.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_client::Client;
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Rng, Role};
use rustix::process::Signal;

use super::faults::{Fault, ShuffledFaults};
use super::vitals::Vitals;
use crate::harness::{WallClock, WallClocks, World, between_checks};
use crate::history::{Clients, History};

/// The node whose process runs throughout, so that leaks can be measured. Every other fault hits it as well.
pub const WITNESS: &str = "n1";
/// Maximum number of nodes, so that a machine with two processors keeps up.
pub const MAX_NODES: usize = 5;
const CLIENTS: usize = 4;

/// One node.
pub struct Machine {
    /// Its start flags; a joined node ignores the join flags.
    pub flags: Vec<String>,
    pub clock: WallClock,
    pub hang: PathBuf,
    /// It has served since it joined.
    pub served: bool,
    /// A fault is active on it.
    pub under_fault: bool,
    /// Its disk was full in this storm: what it logs about that is no failure.
    pub disk_was_full: bool,
    /// Frozen in this storm.
    pub was_frozen: bool,
    /// It exited by itself, with this status.
    pub ended: Option<Option<i32>>,
    /// How much of its log has been checked.
    pub judged: usize,
}

/// A cleanup that ends a fault after a while.
#[derive(Clone, Debug)]
pub enum Cleanup {
    Start(String),
    Thaw(String),
    RestoreNetwork,
    EndHang(String),
    EmptyDisk(String),
}

pub struct Cluster {
    pub world: World,
    pub rng: Rng,
    pub machines: BTreeMap<String, Machine>,
    pub cleanups: Vec<(Instant, Cleanup)>,
    pub history: History,
    pub clients: Option<Clients>,
    pub vitals: Vitals,
    pub storms: usize,
    pub counts: BTreeMap<String, usize>,
    pub operations: u64,
    clocks: WallClocks,
    shuffled_faults: ShuffledFaults,
    tokens: [String; 2],
    made: usize,
    begun: Instant,
}

impl Cluster {
    /// Three managers and two workers, settled.
    pub fn begin(rng: Rng) -> Self {
        let mut world = World::new();
        world.network = Some(crate::harness::Network::new());
        // Shipped timing: changes of leader are part of the test.
        world.settings = "[supervision]\nbackoff_first = \"100ms\"\nbackoff_cap = \"2s\"\n".to_owned();
        let clocks = WallClocks::new(world.folder());
        let mut cluster = Self {
            world,
            rng,
            machines: BTreeMap::new(),
            cleanups: Vec::new(),
            history: History::new("before"),
            clients: None,
            vitals: Vitals::default(),
            storms: 0,
            counts: BTreeMap::new(),
            operations: 0,
            clocks,
            shuffled_faults: ShuffledFaults::default(),
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

    /// Start flags of a node that joins through any manager.
    pub fn joins(&mut self, role: Role) -> Vec<String> {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let seeds: Vec<String> = names.iter().map(|name| self.world.node(name).address().to_string()).collect();
        let token = &self.tokens[usize::from(role == Role::Manager)];
        ["--join", &seeds.join(","), "--token", token].map(str::to_owned).to_vec()
    }

    /// Starts another node; returns its name.
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
            under_fault: false,
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
        self.machines.get_mut(name).expect("the node exists")
    }

    /// Logs an action with its time.
    pub fn log(&self, what: &str) {
        println!("{:8.3}  {what}", self.begun.elapsed().as_secs_f64());
    }

    /// Sends a request that may be refused to a manager without active faults whose socket acts as operator. Returns the manager
    /// and the result.
    pub fn ask_a_manager(&mut self, request: &Request) -> Option<String> {
        let mut able: Vec<String> =
            self.machines.iter().filter(|(_, m)| !m.under_fault).map(|(name, _)| name.clone()).collect();
        while !able.is_empty() {
            let by = able.swap_remove(self.rng.index(able.len()));
            let mut client = Client::to_socket(self.world.socket(&by), Duration::from_secs(1));
            return Some(match self.world.wait_for(client.call(request.clone())) {
                Ok(_) => format!("{by}: done"),
                Err(failure) if failure.is(ErrorCode::Forbidden) => continue, // a worker
                Err(failure) => format!("{by}: {}: {}", failure.code, failure.message),
            });
        }
        None
    }

    /// Injects faults for a while, at random intervals.
    pub fn storm(&mut self, lasts: Duration) {
        self.storms += 1;
        self.log(&format!("storm {}", self.storms));
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
                let fault = self.shuffled_faults.draw(&mut self.rng);
                self.inject_and_log(fault);
                next = Instant::now() + Duration::from_millis(100) + self.rng.up_to(Duration::from_millis(1200));
            }
            between_checks();
        }
    }

    fn inject_and_log(&mut self, fault: Fault) {
        if let Some(what) = fault.inject(self) {
            *self.counts.entry(format!("{fault:?}")).or_default() += 1;
            self.log(&what);
        }
    }

    /// Schedules a cleanup within this time.
    pub fn schedule(&mut self, longest: Duration, cleanup: Cleanup) -> Duration {
        let lasts = Duration::from_millis(100) + self.rng.up_to(longest);
        self.cleanups.push((Instant::now() + lasts, cleanup));
        lasts
    }

    /// Runs the cleanups that are due.
    pub fn settle(&mut self, is_due: impl Fn(Instant) -> bool) {
        let (due, later) = std::mem::take(&mut self.cleanups).into_iter().partition(|(at, _)| is_due(*at));
        self.cleanups = later;
        let due: Vec<(Instant, Cleanup)> = due;
        for (_, cleanup) in due {
            self.undo(&cleanup);
        }
    }

    fn undo(&mut self, cleanup: &Cleanup) {
        let name = match cleanup {
            Cleanup::RestoreNetwork => {
                self.world.network().restore();
                return self.log("the network is restored");
            }
            Cleanup::Start(name) | Cleanup::Thaw(name) | Cleanup::EndHang(name) | Cleanup::EmptyDisk(name) => {
                name.clone()
            }
        };
        match cleanup {
            Cleanup::Start(_) => self.start(&name),
            Cleanup::EndHang(_) => std::fs::remove_file(&self.machines[&name].hang).expect("it was there"),
            // It exited by itself, which is checked after the storm.
            _ if !self.world.node(&name).is_running() => {}
            Cleanup::Thaw(_) => drop(self.world.node(&name).signal(Signal::CONT)),
            _ => self.world.node(&name).disk_is_full(false),
        }
        self.machine(&name).under_fault = false;
        self.log(&format!("{cleanup:?}"));
    }

    /// Notes nodes that exited by themselves: only a removed node may.
    pub fn notice_ends(&mut self) {
        let start_pending = |cleanups: &[(Instant, Cleanup)], name: &str| {
            cleanups.iter().any(|(_, cleanup)| matches!(cleanup, Cleanup::Start(who) if who == name))
        };
        let ended = |cluster: &mut Self, name: &String| {
            cluster.machines[name].ended.is_none()
                && !start_pending(&cluster.cleanups, name)
                && !cluster.world.node(name).is_running()
        };
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            if ended(self, &name) {
                let code = self.world.node(&name).exit();
                self.machine(&name).ended = Some(code);
                self.log(&format!("{name} exited by itself: {code:?}"));
            }
        }
    }
}
