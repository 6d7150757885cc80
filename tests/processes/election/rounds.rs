//! Twenty candidates and one lease, while whatever can happen to processes happens to them and to the cluster.

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
use super::played::{Manners, Part, words};
use super::records::{Record, Records, Thaw, one_at_a_time};
use super::server::{Listener, tenures};
use crate::harness::{WallClock, WallClocks, World, eventually, eventually_so};

const CANDIDATES: usize = 20;
const ROUNDS: u32 = 200;
const LEASE: &str = "prize";
/// Short, so that the rounds are; long enough that a holder on a busy machine mostly keeps it.
const TIMES: [&str; 6] = ["--lease-duration", "600ms", "--renew-deadline", "400ms", "--retry-period", "100ms"];

/// What may happen in a round. To the holder:
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    MusterKilled,
    GuardianKilled,
    BothKilled,
    CommandKilled,
    Told,
    MusterFrozen,
    AllFrozen,
    // To those that wait:
    OthersKilled,
    OtherFrozen,
    // To the cluster:
    LeaderMoved,
    LeaderKilled,
    LeaderFrozen,
    // To everybody's wall clock:
    ClocksJump,
}

use Fault::*;

const TO_THE_HOLDER: [Fault; 7] =
    [MusterKilled, GuardianKilled, BothKilled, CommandKilled, Told, MusterFrozen, AllFrozen];
const TO_OTHERS: [Fault; 2] = [OthersKilled, OtherFrozen];
const TO_THE_CLUSTER: [Fault; 3] = [LeaderMoved, LeaderKilled, LeaderFrozen];

/// What must be put right when a round is over.
enum Debt {
    Thaw(ProcessId),
    ThawAll(Frozen, u64),
    Restart(String),
    ThawNode(String),
}

struct Contest {
    /// Before the world, which takes its folder along.
    candidates: Vec<Candidate>,
    _leftovers: Leftovers,
    world: World,
    clocks: WallClocks,
    node_clocks: Vec<WallClock>,
    records: Records,
    started: u32,
    dice: StdRng,
    thaws: Vec<Thaw>,
    counts: BTreeMap<Fault, u32>,
}

impl Contest {
    fn begin(dice: StdRng) -> Self {
        let mut world = World::new();
        // The timing that is shipped: a leader that is frozen is to be missed within the time of a lease.
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
        let (candidates, thaws, counts) = (vec![], vec![], BTreeMap::new());
        let _leftovers = Leftovers(world.folder().to_owned());
        let mut contest =
            Self { world, clocks, node_clocks, records, candidates, _leftovers, started: 0, dice, thaws, counts };
        contest.fill_up();
        contest
    }

    /// Replaces those that have ended.
    fn fill_up(&mut self) {
        self.candidates.retain_mut(|candidate| candidate.ended().is_none());
        while self.candidates.len() < CANDIDATES {
            self.started += 1;
            let number = self.started;
            let id = format!("c{number}");
            let socket = self.world.socket(&format!("n{}", number % 3 + 1));
            // Every fourth one finds its managers by itself, over TLS; certificates are judged by a right clock.
            let far = number.is_multiple_of(4);
            let asks = match far {
                true => ["--identity", "stander.json"],
                false => ["--socket", socket.to_str().expect("the path is text")],
            };
            let clock = (!far).then(|| self.clocks.of(&id));
            let command = words(&Part::Record { folder: self.records.0.clone(), manners: manners(number) });
            let folder = self.world.folder();
            let entry = Entry { folder, id: &id, asks, lease: LEASE, flags: &TIMES, command, clock };
            self.candidates.push(Candidate::start(entry));
        }
    }

    /// The one whose command runs, and which of the candidates it is.
    #[track_caller]
    fn holder(&mut self) -> (Record, usize, Family) {
        eventually("somebody's command runs", || {
            self.fill_up();
            let record = self.records.newest()?;
            let index = self.candidates.iter().position(|candidate| candidate.id == record.holder)?;
            let family = self.candidates[index].family(Some(record.guardian), Some(record.command))?;
            Some((record, index, family))
        })
    }

    /// Waits until another has followed.
    #[track_caller]
    fn followed(&self, token: u64) {
        eventually_so("another candidate's command runs", || {
            self.records.newest().is_some_and(|record| record.token > token)
        });
    }

    fn round(&mut self) -> Vec<Fault> {
        self.fill_up();
        let (record, index, family) = self.holder();
        let mut faults = vec![match self.dice.random_range(0..10) {
            0..6 => *TO_THE_HOLDER.choose(&mut self.dice).expect("there are some"),
            6 => *TO_OTHERS.choose(&mut self.dice).expect("there are some"),
            7..9 => *TO_THE_CLUSTER.choose(&mut self.dice).expect("there are some"),
            _ => ClocksJump,
        }];
        // Often two things at once, of different sorts.
        if self.dice.random_bool(0.4) {
            let sorts = [&TO_THE_HOLDER[..], &TO_OTHERS, &TO_THE_CLUSTER, &[ClocksJump]];
            let others: Vec<_> = sorts.into_iter().filter(|sort| !sort.contains(&faults[0])).collect();
            let sort = others.choose(&mut self.dice).expect("there are other sorts");
            faults.push(*sort.choose(&mut self.dice).expect("none is empty"));
        }
        let mut debts = vec![];
        for fault in &faults {
            *self.counts.entry(*fault).or_default() += 1;
            debts.extend(self.happens(*fault, index, family, record.token));
        }
        if faults.iter().any(|fault| TO_THE_HOLDER.contains(fault)) {
            self.followed(record.token);
        }
        for debt in debts {
            self.settle(debt);
        }
        faults
    }

    fn happens(&mut self, fault: Fault, holder: usize, family: Family, token: u64) -> Vec<Debt> {
        match fault {
            MusterKilled => family.muster.signal(Signal::KILL),
            GuardianKilled => family.guardian.signal(Signal::KILL),
            BothKilled => {
                family.muster.signal(Signal::KILL);
                family.guardian.signal(Signal::KILL);
            }
            CommandKilled => family.command.signal(Signal::KILL),
            Told => self.tell(holder, family),
            MusterFrozen => {
                family.muster.signal(Signal::STOP);
                return vec![Debt::Thaw(family.muster)];
            }
            AllFrozen => return vec![Debt::ThawAll(family.freeze(), token)],
            OthersKilled => {
                for _ in 0..self.dice.random_range(1..5) {
                    let other = self.another(holder);
                    other.signal(Signal::KILL);
                }
            }
            OtherFrozen => {
                let other = self.another(holder);
                other.signal(Signal::STOP);
                // Until the lease has passed to somebody else, so that it wakes with an old view.
                self.tell(holder, family);
                self.followed(token);
                return vec![Debt::Thaw(other)];
            }
            LeaderMoved => {
                let leader = self.world.leader_seen_by("n1");
                // Refused while there is nobody to hand over to, or no leader at this very moment.
                eventually_so("leadership is handed over", || {
                    self.world.muster_at(&leader, &["raft", "transfer-leader"]).code == 0
                });
            }
            LeaderKilled => {
                let leader = self.world.leader_seen_by("n1");
                self.world.node(&leader).kill();
                return vec![Debt::Restart(leader)];
            }
            LeaderFrozen => {
                let leader = self.world.leader_seen_by("n1");
                self.world.node(&leader).signal(Signal::STOP);
                return vec![Debt::ThawNode(leader)];
            }
            ClocksJump => {
                for clock in self.candidates.iter().filter_map(|candidate| candidate.clock.as_ref()) {
                    clock.set(self.dice.random_range(-10 * YEAR..10 * YEAR));
                }
                // Managers' certificates are good from an hour before they were issued.
                for clock in &self.node_clocks {
                    clock.set(self.dice.random_range(-1500..1500));
                }
            }
        }
        vec![]
    }

    /// TERM, which `muster` passes on; and KILL for a command that does not care.
    fn tell(&self, holder: usize, family: Family) {
        family.muster.signal(Signal::TERM);
        let number = self.candidates[holder].id[1..].parse().expect("candidates are numbered");
        if manners(number) == Manners::Stubborn {
            family.command.signal(Signal::KILL);
        }
    }

    fn another(&mut self, than: usize) -> ProcessId {
        let others: Vec<_> = (0..self.candidates.len()).filter(|index| *index != than).collect();
        self.candidates[*others.choose(&mut self.dice).expect("there are twenty")].muster()
    }

    fn settle(&mut self, debt: Debt) {
        match debt {
            Debt::Thaw(process) => process.signal(Signal::CONT),
            Debt::ThawAll(frozen, token) => {
                let command = frozen.family.command;
                self.thaws.push(Thaw { token, at: BootTime.now() });
                frozen.thaw();
                eventually_so("what was thawed is killed", || !command.is_alive());
            }
            Debt::Restart(name) => {
                self.another_leads(&name);
                self.world.node(&name).start(&[]).ready();
            }
            Debt::ThawNode(name) => {
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

/// Every third one ignores that it is told to end.
fn manners(number: u32) -> Manners {
    if number.is_multiple_of(3) { Manners::Stubborn } else { Manners::Polite }
}

const YEAR: i64 = 365 * 86_400;

fn setting(key: &str, usual: impl FnOnce() -> u64) -> u64 {
    std::env::var(key).ok().map_or_else(usual, |text| text.parse().expect("a number"))
}

#[test]
#[ignore = "full tier"]
fn twenty_candidates_never_run_two_commands_at_once_whatever_is_killed_frozen_or_put_forward() {
    let seed = setting(super::SEED, rand::random);
    let rounds = setting("MUSTER_ROUNDS", || ROUNDS.into());
    println!("{}={seed} repeats the faults of this run; how the processes race is new each time", super::SEED);
    let mut contest = Contest::begin(StdRng::seed_from_u64(seed));
    let sockets = ["n1", "n2", "n3"].map(|name| contest.world.socket(name));
    let listener = Listener::start(sockets.to_vec(), &format!("default/{LEASE}"));
    let begun = Instant::now();
    for number in 1..=rounds {
        let before = Instant::now();
        let faults = contest.round();
        if before.elapsed() > Duration::from_secs(5) {
            println!("round {number} took {:?}: {faults:?}", before.elapsed());
        }
    }
    judge(&mut contest, &listener);
    println!("{rounds} rounds in {:?}, {} candidates: {:?}", begun.elapsed(), contest.started, contest.counts);
}

/// The end: everybody's own records, and the server's, and both beside each other.
fn judge(contest: &mut Contest, listener: &Listener) {
    contest.holder(); // the last fault has been overcome, too
    let records = contest.records.read();
    let newest = records.last().expect("somebody ran").token;
    let late = one_at_a_time(&records, &contest.thaws).unwrap_or_else(|why| panic!("{why}"));
    let tenures = eventually("the server's log is read to its end", || {
        let tenures = tenures(&listener.heard()).unwrap_or_else(|why| panic!("{why}"));
        tenures.contains_key(&newest).then_some(tenures)
    });
    for record in &records {
        let (holder, _) =
            tenures.get(&record.token).unwrap_or_else(|| panic!("the server knows nothing of {record:?}"));
        assert_eq!(holder, &record.holder, "token {}", record.token);
        // Nobody ran under an older token when the server was known to have given a newer one.
        let thawed = contest.thaws.iter().any(|thaw| thaw.token == record.token);
        let next = tenures.range(record.token + 1..).next();
        if let (Some((token, (_, heard))), false) = (next, thawed) {
            assert!(record.last() < *heard, "{} ran under {} beside {token}", record.holder, record.token);
        }
    }
    println!(
        "{} times of leading, {} commands that ran; of {} thawed ones the slowest went on for {late:?}",
        tenures.len(),
        records.len(),
        contest.thaws.len()
    );
}
