//! Snapshots on their way: they take time by their bytes, a receiver may refuse them, and those who write go on meanwhile. The run
//! in which that is the whole story: a follower is away for so long that entries do not bring it up any more.
//!
//! Judged: it catches up within a bounded time after the last thing that went wrong, although nobody stops writing (SNAP-1); who
//! refuses a snapshot is not sent one after the other (SNAP-2).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::{
    Change, Command, ConfigMap, Moment, Object, ObjectBody, ObjectMeta, Principal, RaftId, Revision, Role, Uid,
};
use muster_raft_member::core::{Input, OutboundSnapshot};

use crate::breaks::Break;
use crate::checks::{CONVERGE_1, broken};
use crate::machine::{Asker, Place};
use crate::network::Fate;
use crate::report::{Failure, Report};
use crate::world::{Event, Mail, Universe};

pub const SNAP_1: &str = "SNAP-1";
pub const SNAP_2: &str = "SNAP-2";

/// How often a sender hears that more of a snapshot has arrived.
const PROGRESS: Duration = Duration::from_millis(250);
/// A receiver says so soon that it will not take one.
const REFUSED: Duration = Duration::from_millis(2);
/// Refusals of one member by one sender, and within what time: six with the pauses that double.
const REFUSALS: usize = 8;
const COUNTED_FOR: Duration = Duration::from_secs(10);

const WRITERS: usize = 6;
const MANAGERS: usize = 3;
/// By then there are so many voters, and the state is as large as it will be.
const READY: Moment = Moment(20_000_000);
/// A follower that lags no more than this has caught up.
const LAG: Duration = Duration::from_millis(600);

/// What was seen of snapshots, and how they travel.
#[derive(Clone, Debug)]
pub struct Snapshots {
    /// Bytes in a second.
    pub rate: u64,
    refused: BTreeMap<(u32, RaftId), VecDeque<Moment>>,
}

impl Snapshots {
    pub fn at(rate: u64) -> Self {
        Self { rate, refused: BTreeMap::new() }
    }
}

/// One seed in which a follower must be brought up by a snapshot, while clients write. `Err`: an invariant is broken.
pub fn run_snapshots(seed: u64, broken: Option<Break>, aloud: bool) -> Result<Report, Failure> {
    let mut universe = Universe::with_break(seed, broken);
    universe.trace.aloud = aloud;
    let outcome = universe.fall_behind();
    Break::engage(None, &mut universe.settings);
    outcome
}

impl Universe {
    pub(crate) fn send_snapshot(&mut self, from: Place, snapshot: OutboundSnapshot) {
        let OutboundSnapshot { node, mut packet, job, .. } = snapshot;
        self.totals.add("snapshots encoded for members", u64::from(job.encoded.get().is_none()));
        let (head, data) = job.run_shared();
        packet.snapshot = Some(head.clone());
        let (seat, index) = (packet.to, head.index);
        let sender = self.machines[from].half.as_ref().map_or(0, |h| h.number);
        let to = self.place_of(node);
        let limit = to.and_then(|to| self.machines[to].takes_at_most);
        if limit.is_some_and(|limit| head.bytes > limit) {
            let why = format!("{} bytes are too many", head.bytes);
            self.refused(from, sender, seat);
            return self.snapshot_ended(from, sender, (seat, index), SnapshotOutcome::Refused(why), REFUSED);
        }
        let fate = to.map(|to| (to, self.net.send(self.time.now(), from, to, &mut self.dice)));
        let Some((to, Fate { first: Some(at), .. })) = fate else {
            let lost = SnapshotOutcome::Lost("the link was cut".to_owned());
            return self.snapshot_ended(from, sender, (seat, index), lost, Duration::from_millis(1500));
        };
        let takes = Duration::from_micros(head.bytes.saturating_mul(1_000_000) / self.snapshots.rate.max(1));
        let takes = takes + self.dice.millis(1, 60);
        let mut moved = PROGRESS;
        while moved < takes {
            let input = Box::new(Input::SnapshotProgress { to: seat, index });
            self.time.after(moved, Event::Local { place: from, half: sender, input });
            moved += PROGRESS;
        }
        self.totals.add("ms that snapshots took", u64::try_from(takes.as_millis()).unwrap_or(0));
        let mail = Mail { from, to, packets: vec![packet], snapshot: Some((head, data.to_vec())), sender };
        self.time.at(at + takes, Event::Mail(Box::new(mail)));
    }

    pub(crate) fn snapshot_ended(
        &mut self,
        place: Place,
        half: u32,
        (to, index): (RaftId, u64),
        outcome: SnapshotOutcome,
        after: Duration,
    ) {
        let input = Box::new(Input::SnapshotSent { to, index, outcome });
        self.time.after(after, Event::Local { place, half, input });
    }

    /// SNAP-2.
    fn refused(&mut self, from: Place, sender: u32, seat: RaftId) {
        self.totals.count("snapshots refused");
        let now = self.now();
        let all = self.snapshots.refused.entry((sender, seat)).or_default();
        all.push_back(now);
        all.retain(|at| now.since(*at) <= COUNTED_FOR);
        if all.len() > REFUSALS {
            let (n, secs) = (all.len(), COUNTED_FOR.as_secs());
            let detail = format!("n{} sent seat {seat} {n} snapshots within {secs} s, which it refused", from + 1);
            self.hold_to(Err(broken(SNAP_2, detail)));
        }
    }

    // ---- the run --------------------------------------------------------------------------------------------------

    fn fall_behind(&mut self) -> Result<Report, Failure> {
        self.settings.raft.snapshot_entries = 40 + self.settings.raft.snapshot_entries / 4;
        self.found();
        self.start_clients(WRITERS);
        for _ in 1..MANAGERS {
            self.join_machine(Role::Manager);
        }
        self.run_while("nobody leads three voters", READY, |u| {
            let voters = u.checks.newest().map_or(0, |t| t.members.values().filter(|m| m.voter).count());
            u.leading().is_none() || voters < MANAGERS
        })?;
        self.fill();
        self.run_to(self.now() + Duration::from_secs(1))?;
        let Some(leader) = self.leading() else { return self.is_over() };
        let followers: Vec<Place> = (0..MANAGERS).filter(|p| *p != leader).collect();
        let Some(behind) = self.dice.pick(&followers) else { return self.is_over() };
        let tables = self.machines[leader].half.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
        let bytes = muster_store::snapshot::encode(&tables).len() as u64;
        let takes = self.dice.millis(300, 2500);
        self.snapshots.rate = bytes * 1000 / u64::try_from(takes.as_millis()).unwrap_or(1);
        self.say(format!("a snapshot of {bytes} bytes takes {} ms", takes.as_millis()));
        self.crash(behind, false);
        let away = self.dice.millis(2000, 4000);
        self.run_to(self.now() + away)?;
        self.come_back(behind, bytes, takes)?;
        self.catch_up(behind, takes)?;
        self.is_over()
    }

    fn is_over(&self) -> Result<Report, Failure> {
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }

    fn run_while(&mut self, what: &str, limit: Moment, goes_on: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        while goes_on(self) {
            if self.now() >= limit {
                return Err(self.failure(&broken(CONVERGE_1, what.to_owned())));
            }
            self.run_to(self.now() + Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Config maps that nobody asks for.
    fn fill(&mut self) {
        let Some(place) = self.leading() else { return };
        for n in 0..4 + self.dice.below(8) {
            let uid = Uid(self.dice.wide());
            let text: String = (0..1024).map(|_| char::from(b'a' + self.dice.below(26) as u8)).collect();
            let data = [("text".to_owned(), text)].into();
            let body = ObjectBody::ConfigMap(ConfigMap { data, ..ConfigMap::default() });
            let object = Object {
                namespace: "default".to_owned(),
                name: format!("bulk-{n}"),
                meta: ObjectMeta::fresh(uid),
                body,
            };
            let command = Command::idempotent(self.wall(place), Principal::Operator, "bulk");
            let command = command.change(Change::CreateObject(Box::new(object)));
            self.propose(place, Asker::House, command, Duration::from_secs(3));
        }
    }

    /// It starts again, and something else goes wrong, once, while it is sent what it misses.
    fn come_back(&mut self, behind: Place, bytes: u64, takes: Duration) -> Result<(), Failure> {
        let midway = takes / 4 + self.dice.millis(50, 1500);
        match self.dice.below(6) {
            0 | 1 => {
                self.totals.count("fault: snapshots refused for a while");
                self.machines[behind].takes_at_most = Some(bytes / 2);
                self.start(behind);
                let mended = self.dice.millis(3000, 9000);
                self.run_to(self.now() + mended)?;
                self.machines[behind].takes_at_most = None;
                self.disturbed = self.now();
            }
            2 => {
                self.start(behind);
                self.run_to(self.now() + midway)?;
                self.crash(behind, true);
                let back = self.dice.millis(100, 1500);
                self.run_to(self.now() + back)?;
                self.start(behind);
            }
            3 => {
                self.start(behind);
                self.run_to(self.now() + midway)?;
                if let Some(leader) = self.leading() {
                    self.totals.count("fault: leader killed while it sent a snapshot");
                    self.crash(leader, false);
                    let back = self.dice.millis(100, 2500);
                    self.run_to(self.now() + back)?;
                    self.start(leader);
                }
            }
            _ => self.start(behind),
        }
        Ok(())
    }

    /// SNAP-1, as an observer sees it. Nobody stops writing.
    fn catch_up(&mut self, behind: Place, takes: Duration) -> Result<(), Failure> {
        // An election, the longest pause after refusals, three snapshots: one may be on its way to a process that is gone.
        let limit = self.now() + Duration::from_secs(14) + takes * 3;
        let mut lately: VecDeque<(Moment, Revision)> = VecDeque::new();
        loop {
            let now = self.now();
            if let Some(newest) = self.checks.newest().map(|tables| tables.revision) {
                lately.push_back((now, newest));
            }
            while lately.len() > 1 && lately.get(1).is_some_and(|(at, _)| now.since(*at) >= LAG) {
                lately.pop_front();
            }
            let wanted = lately.front().filter(|(at, _)| now.since(*at) >= LAG).map(|(_, revision)| *revision);
            let has = self.machines[behind].half.as_ref().map_or(Revision(0), |h| h.core.tables().revision);
            if wanted.is_some_and(|wanted| has >= wanted) {
                self.totals.count("followers brought up while clients wrote");
                return Ok(());
            }
            if now >= limit {
                let detail = format!("n{} is at {has} and others were at {wanted:?} {LAG:?} ago", behind + 1);
                return Err(self.failure(&broken(SNAP_1, detail)));
            }
            self.run_to(now + Duration::from_millis(50))?;
        }
    }
}
