//! Twenty candidates and one lease, while faults hit their processes and the cluster.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_elector::{BootTime, Timekeeper};
use muster_local_cluster::ProcessId;
use muster_messages::Role;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::process::Signal;

use super::candidate::{Candidate, Entry, Family, Frozen, Leftovers};
use super::played::{ChildProgram, TermHandling, words};
use super::records::{Record, Records, Thaw, one_at_a_time};
use super::server::{Listener, tenures};
use crate::harness::{WallClock, WallClocks, World, eventually, eventually_so, exclusive_use};

const CANDIDATES: usize = 20;
const ROUNDS: u32 = 150;
const LEASE: &str = "prize";
/// Short, for short rounds. Half of the lease is left for the command's end: a keeper that the kernel lets wait for longer than that cannot
/// keep the promise.
const LEASE_DURATION: Duration = Duration::from_secs(1);
/// On a machine on which no candidate keeps its lease until its command runs, all of them end and are started again, which keeps the
/// machine busy: after this time new candidates use a lease of twice the duration.
const NO_COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
const LONGEST_LEASE: Duration = Duration::from_secs(16);

/// Faults of a round. To the holder:
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    MusterKilled,
    GuardianKilled,
    BothKilled,
    CommandKilled,
    MusterTerminated,
    MusterFrozen,
    AllFrozen,
    // To waiting candidates:
    OthersKilled,
    OtherFrozen,
    // To the cluster:
    LeaderMoved,
    LeaderKilled,
    LeaderFrozen,
    // To all wall clocks:
    ClocksJump,
}

use Fault::*;

const HOLDER_FAULTS: [Fault; 7] =
    [MusterKilled, GuardianKilled, BothKilled, CommandKilled, MusterTerminated, MusterFrozen, AllFrozen];
const WAITER_FAULTS: [Fault; 2] = [OthersKilled, OtherFrozen];
const CLUSTER_FAULTS: [Fault; 3] = [LeaderMoved, LeaderKilled, LeaderFrozen];

/// What a round must repair at its end.
enum Cleanup {
    Thaw(ProcessId),
    ThawAll(Frozen, u64),
    Restart(String),
    ThawNode(String),
}

struct ElectionRounds {
    /// Declared before the world, which deletes the folder.
    candidates: Vec<Candidate>,
    _leftovers: Leftovers,
    world: World,
    clocks: WallClocks,
    node_clocks: Vec<WallClock>,
    records: Records,
    started: u32,
    /// Of new candidates.
    lease_duration: Duration,
    rng: StdRng,
    thaws: Vec<Thaw>,
    counts: BTreeMap<Fault, u32>,
}

impl ElectionRounds {
    fn begin(rng: StdRng) -> Self {
        let mut world = World::new();
        // Shipped timing: a frozen leader must be noticed within a lease.
        world.settings.clear();
        let clocks = WallClocks::new(world.folder());
        let mut node_clocks = vec![];
        for name in ["n1", "n2", "n3"] {
            let clock = clocks.of(name);
            world.node(name).environment.extend(clock.environment());
            node_clocks.push(clock);
        }
        world.node("n1").start(&["--init"]).ready();
        let (seed, token) = (world.node("n1").listen.to_string(), world.token(Role::Manager));
        for name in ["n2", "n3"] {
            world.node(name).start(&["--join", &seed, "--token", &token]).ready();
        }
        world.all_settled();
        world.muster(&["user", "create", "stander", "--namespace", "default", "--out", "stander.json"]).ended(0);
        let records = Records::new(world.folder());
        let (candidates, thaws, counts, lease_duration) = (vec![], vec![], BTreeMap::new(), LEASE_DURATION);
        let _leftovers = Leftovers(world.folder().to_owned());
        let mut election_rounds = Self {
            world,
            clocks,
            node_clocks,
            records,
            candidates,
            _leftovers,
            started: 0,
            lease_duration,
            rng,
            thaws,
            counts,
        };
        election_rounds.fill_up();
        election_rounds
    }

    /// Replaces candidates that ended, each in its place.
    fn fill_up(&mut self) {
        for place in 0..CANDIDATES {
            match self.candidates.get_mut(place).map(Candidate::ended) {
                Some(None) => {}
                Some(Some(_)) => self.candidates[place] = self.new_candidate(),
                None => {
                    let new = self.new_candidate();
                    self.candidates.push(new);
                }
            }
        }
    }

    fn fill_up_or_lengthen_leases(&mut self, waits_since: &mut Instant) {
        if waits_since.elapsed() > NO_COMMAND_TIMEOUT {
            self.lease_duration = (self.lease_duration * 2).min(LONGEST_LEASE);
            *waits_since = Instant::now();
            println!("no candidate keeps its lease: new ones use {:?}", self.lease_duration);
        }
        self.fill_up();
    }

    fn new_candidate(&mut self) -> Candidate {
        self.started += 1;
        let number = self.started;
        let id = format!("c{number}");
        let socket = self.world.socket(&format!("n{}", number % 3 + 1));
        // Every fourth candidate finds its managers by itself, over TLS; a right clock checks certificates.
        let far = number.is_multiple_of(4);
        let asks = match far {
            true => ["--identity", "stander.json"],
            false => ["--socket", socket.to_str().expect("the path is text")],
        };
        let clock = (!far).then(|| self.clocks.of(&id));
        let command =
            words(&ChildProgram::Record { folder: self.records.0.clone(), term_handling: term_handling(number) });
        let folder = self.world.folder();
        let [duration, deadline, period] =
            [1, 2, 10].map(|part| format!("{}ms", (self.lease_duration / part).as_millis()));
        let flags = ["--lease-duration", &duration, "--renew-deadline", &deadline, "--retry-period", &period];
        Candidate::start(Entry { folder, id: &id, asks, lease: LEASE, flags: &flags, command, clock })
    }

    /// The candidate whose command runs, and its index.
    #[track_caller]
    fn holder(&mut self) -> (Record, usize, Family) {
        let mut waits_since = Instant::now();
        eventually("a command runs", || {
            self.fill_up_or_lengthen_leases(&mut waits_since);
            let record = self.records.newest()?;
            let index = self.candidates.iter().position(|candidate| candidate.id == record.holder)?;
            let family = self.candidates[index].family(Some(record.guardian), Some(record.command))?;
            Some((record, index, family))
        })
    }

    /// Waits until another candidate has followed. On a busy machine many hold the lease, lose it before their command has begun, and
    /// end: the last ones must not be waited for.
    #[track_caller]
    fn followed(&mut self, token: u64) {
        let mut waits_since = Instant::now();
        eventually_so("another candidate's command runs", || {
            self.fill_up_or_lengthen_leases(&mut waits_since);
            self.records.newest().is_some_and(|record| record.token > token)
        });
    }

    fn round(&mut self) -> Vec<Fault> {
        self.fill_up();
        let (record, index, family) = self.holder();
        let mut faults = vec![match self.rng.random_range(0..10) {
            0..6 => *HOLDER_FAULTS.choose(&mut self.rng).expect("there are some"),
            6 => *WAITER_FAULTS.choose(&mut self.rng).expect("there are some"),
            7..9 => *CLUSTER_FAULTS.choose(&mut self.rng).expect("there are some"),
            _ => ClocksJump,
        }];
        // Often two faults of different kinds at once.
        if self.rng.random_bool(0.4) {
            let sorts = [&HOLDER_FAULTS[..], &WAITER_FAULTS, &CLUSTER_FAULTS, &[ClocksJump]];
            let others: Vec<_> = sorts.into_iter().filter(|sort| !sort.contains(&faults[0])).collect();
            let sort = others.choose(&mut self.rng).expect("there are other sorts");
            faults.push(*sort.choose(&mut self.rng).expect("none is empty"));
        }
        let mut cleanups = vec![];
        for fault in &faults {
            *self.counts.entry(*fault).or_default() += 1;
            cleanups.extend(self.happens(*fault, index, family, record.token));
        }
        if faults.iter().any(|fault| HOLDER_FAULTS.contains(fault)) {
            self.followed(record.token);
        }
        for cleanup in cleanups {
            self.settle(cleanup);
        }
        faults
    }

    fn happens(&mut self, fault: Fault, holder: usize, family: Family, token: u64) -> Vec<Cleanup> {
        match fault {
            MusterKilled => family.muster.signal(Signal::KILL),
            GuardianKilled => family.guardian.signal(Signal::KILL),
            BothKilled => {
                family.muster.signal(Signal::KILL);
                family.guardian.signal(Signal::KILL);
            }
            CommandKilled => family.command.signal(Signal::KILL),
            MusterTerminated => self.terminate(holder, family),
            MusterFrozen => {
                family.muster.signal(Signal::STOP);
                return vec![Cleanup::Thaw(family.muster)];
            }
            AllFrozen => return vec![Cleanup::ThawAll(family.freeze(), token)],
            OthersKilled => {
                for _ in 0..self.rng.random_range(1..5) {
                    let other = self.another(holder);
                    other.signal(Signal::KILL);
                }
            }
            OtherFrozen => {
                let other = self.another(holder);
                other.signal(Signal::STOP);
                // Until the lease has passed on, so that it wakes with an old view.
                self.terminate(holder, family);
                self.followed(token);
                return vec![Cleanup::Thaw(other)];
            }
            LeaderMoved => {
                let leader = self.world.leader_seen_by("n1");
                // Refused without a transfer target, or without a leader at this moment.
                eventually_so("leadership is transferred", || {
                    self.world.muster_at(&leader, &["raft", "transfer-leader"]).code == 0
                });
            }
            LeaderKilled => {
                let leader = self.world.leader_seen_by("n1");
                self.world.node(&leader).kill();
                return vec![Cleanup::Restart(leader)];
            }
            LeaderFrozen => {
                let leader = self.world.leader_seen_by("n1");
                self.world.node(&leader).freeze();
                return vec![Cleanup::ThawNode(leader)];
            }
            ClocksJump => {
                for clock in self.candidates.iter().filter_map(|candidate| candidate.clock.as_ref()) {
                    clock.set(self.rng.random_range(-10 * YEAR..10 * YEAR));
                }
                // Managers' certificates are valid from an hour before their issue.
                for clock in &self.node_clocks {
                    clock.set(self.rng.random_range(-1500..1500));
                }
            }
        }
        vec![]
    }

    /// TERM, which `muster` passes on; KILL for a command that ignores it.
    fn terminate(&self, holder: usize, family: Family) {
        family.muster.signal(Signal::TERM);
        let number = self.candidates[holder].id[1..].parse().expect("candidates are numbered");
        if term_handling(number) == TermHandling::IgnoresTerm {
            family.command.signal(Signal::KILL);
        }
    }

    fn another(&mut self, than: usize) -> ProcessId {
        let others: Vec<_> = (0..self.candidates.len()).filter(|index| *index != than).collect();
        self.candidates[*others.choose(&mut self.rng).expect("there are twenty")].muster()
    }

    fn settle(&mut self, cleanup: Cleanup) {
        match cleanup {
            Cleanup::Thaw(process) => process.signal(Signal::CONT),
            Cleanup::ThawAll(frozen, token) => {
                let command = frozen.family.command;
                self.thaws.push(Thaw { token, at: BootTime.now() });
                frozen.thaw();
                eventually_so("the thawed command is killed", || !command.is_alive());
            }
            Cleanup::Restart(name) => {
                self.another_leads(&name);
                self.world.node(&name).start(&[]).ready();
            }
            Cleanup::ThawNode(name) => {
                self.another_leads(&name);
                self.world.node(&name).signal(Signal::CONT);
            }
        }
    }

    #[track_caller]
    fn another_leads(&self, than: &str) {
        let by = ["n1", "n2", "n3"].into_iter().find(|name| *name != than).expect("there are three");
        eventually_so("another manager leads", || {
            self.world.ask(by, muster_messages::wire::Request::Status { fresh: true }).is_ok()
        });
    }
}

/// Every third command ignores TERM.
fn term_handling(number: u32) -> TermHandling {
    if number.is_multiple_of(3) { TermHandling::IgnoresTerm } else { TermHandling::Exits }
}

const YEAR: i64 = 365 * 86_400;

fn setting(key: &str, usual: impl FnOnce() -> u64) -> u64 {
    std::env::var(key).ok().map_or_else(usual, |text| text.parse().expect("a number"))
}

#[test]
#[ignore = "full tier"]
fn twenty_candidates_never_run_two_commands_at_once() {
    // Twenty candidates, three managers and their faults keep a machine busy.
    let _permit = exclusive_use();
    let seed = setting(super::SEED, rand::random);
    let rounds = setting("MUSTER_ROUNDS", || ROUNDS.into());
    println!("{}={seed} repeats the faults of this run; the timing of processes differs", super::SEED);
    let mut election_rounds = ElectionRounds::begin(StdRng::seed_from_u64(seed));
    let sockets = ["n1", "n2", "n3"].map(|name| election_rounds.world.socket(name));
    let listener = Listener::start(sockets.to_vec(), &format!("default/{LEASE}"));
    let begun = Instant::now();
    for number in 1..=rounds {
        let before = Instant::now();
        let faults = election_rounds.round();
        if before.elapsed() > Duration::from_secs(5) {
            println!("round {number} took {:?}: {faults:?}", before.elapsed());
        }
    }
    check(&mut election_rounds, &listener);
    println!(
        "{rounds} rounds in {:?}, {} candidates: {:?}",
        begun.elapsed(),
        election_rounds.started,
        election_rounds.counts
    );
}

/// Final checks: the commands' records, the server's log, and both compared.
fn check(election_rounds: &mut ElectionRounds, listener: &Listener) {
    election_rounds.holder(); // a command runs after the last fault
    let records = election_rounds.records.read();
    let newest = records.last().expect("a command ran").token;
    let late = one_at_a_time(&records, &election_rounds.thaws).unwrap_or_else(|why| panic!("{why}"));
    let tenures = eventually("the server's log is complete", || {
        let tenures = tenures(&listener.received()).unwrap_or_else(|why| panic!("{why}"));
        tenures.contains_key(&newest).then_some(tenures)
    });
    for record in &records {
        let (holder, _) = tenures.get(&record.token).unwrap_or_else(|| panic!("the server's log lacks {record:?}"));
        assert_eq!(holder, &record.holder, "token {}", record.token);
        // No command ran under an older token once the server was known to have granted a newer one.
        let thawed = election_rounds.thaws.iter().any(|thaw| thaw.token == record.token);
        let next = tenures.range(record.token + 1..).next();
        if let (Some((token, (_, received))), false) = (next, thawed) {
            assert!(record.last() < *received, "{} ran under {} beside {token}", record.holder, record.token);
        }
    }
    println!(
        "{} terms of leading, {} commands that ran; of {} thawed commands the slowest continued for {late:?}",
        tenures.len(),
        records.len(),
        election_rounds.thaws.len()
    );
}
