//! Snapshot transfers: their time depends on their size, a receiver may refuse them, and clients keep writing. Also the run
//! about them: a follower is away for too long to catch up by entries.
//!
//! Checked: it catches up within a bounded time after the last fault, while clients write (SNAP-1); a
//! member that refuses a snapshot is not flooded with more (SNAP-2).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_messages::protocol::SnapshotOutcome;
use muster_messages::{
    Change, Command, ConfigMap, Moment, Object, ObjectBody, ObjectMeta, Principal, RaftId, Revision, Role, Uid,
};
use muster_raft_member::core::{Input, OutboundSnapshot};

use crate::bugs::Bug;
use crate::checks::{CONVERGE_1, violation};
use crate::machine::{Asker, MachineIdx};
use crate::network::Delivery;
use crate::report::{Failure, Report};
use crate::simulation::{Event, Mail, Simulation};

pub const SNAP_1: &str = "SNAP-1";
pub const SNAP_2: &str = "SNAP-2";

/// Interval of a sender's progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Delay of a receiver's refusal.
const REFUSAL_DELAY: Duration = Duration::from_millis(2);
/// Maximum refusals of one member by one sender within the window: six with doubling pauses.
const MAX_REFUSALS: usize = 8;
const REFUSAL_WINDOW: Duration = Duration::from_secs(10);

const WRITERS: usize = 6;
const MANAGERS: usize = 3;
/// Deadline for all voters to exist, with the state at its full size.
const READY_DEADLINE: Moment = Moment(20_000_000);
/// A follower with no more lag than this has caught up.
const MAX_LAG: Duration = Duration::from_millis(600);

/// Observed refusals, and the transfer rate.
#[derive(Clone, Debug)]
pub struct Snapshots {
    /// Bytes per second.
    pub rate: u64,
    refused: BTreeMap<(u32, RaftId), VecDeque<Moment>>,
}

impl Snapshots {
    pub fn at(rate: u64) -> Self {
        Self { rate, refused: BTreeMap::new() }
    }
}

/// Runs one seed in which a follower must catch up by a snapshot while clients write. `Err`: an invariant is violated.
pub fn run_snapshots(seed: u64, bug: Option<Bug>, verbose: bool) -> Result<Report, Failure> {
    let mut simulation = Simulation::with_bug(seed, bug);
    simulation.trace.verbose = verbose;
    let outcome = simulation.simulate_snapshots();
    Bug::enable(None, &mut simulation.settings);
    outcome
}

impl Simulation {
    pub(crate) fn send_snapshot(&mut self, from: MachineIdx, snapshot: OutboundSnapshot) {
        let OutboundSnapshot { node, mut packet, job, .. } = snapshot;
        self.totals.add("snapshots encoded for members", u64::from(job.encoded.get().is_none()));
        let (head, data) = job.run_shared();
        packet.snapshot = Some(head.clone());
        let (member_id, index) = (packet.to, head.index);
        let sender = self.machines[from].runtime.as_ref().map_or(0, |h| h.number);
        let to = self.idx_of(node);
        let limit = to.and_then(|to| self.machines[to].max_snapshot_bytes);
        if limit.is_some_and(|limit| head.bytes > limit) {
            let why = format!("{} bytes exceed the limit", head.bytes);
            self.refused(from, sender, member_id);
            return self.snapshot_ended(from, sender, (member_id, index), SnapshotOutcome::Refused(why), REFUSAL_DELAY);
        }
        let delivery = to.map(|to| (to, self.net.send(self.time.now(), from, to, &mut self.rng)));
        let Some((to, Delivery { first: Some(at), .. })) = delivery else {
            let lost = SnapshotOutcome::Lost("the link is down".to_owned());
            return self.snapshot_ended(from, sender, (member_id, index), lost, Duration::from_millis(1500));
        };
        let takes = Duration::from_micros(head.bytes.saturating_mul(1_000_000) / self.snapshots.rate.max(1));
        let takes = takes + self.rng.millis(1, 60);
        let mut moved = PROGRESS_INTERVAL;
        while moved < takes {
            let input = Box::new(Input::SnapshotProgress { to: member_id, index });
            self.time.after(moved, Event::Local { idx: from, runtime: sender, input });
            moved += PROGRESS_INTERVAL;
        }
        self.totals.add("snapshot transfer ms", u64::try_from(takes.as_millis()).unwrap_or(0));
        let mail = Mail { from, to, packets: vec![packet], snapshot: Some((head, data.to_vec())), sender };
        self.time.at(at + takes, Event::Mail(Box::new(mail)));
    }

    pub(crate) fn snapshot_ended(
        &mut self,
        idx: MachineIdx,
        runtime: u32,
        (to, index): (RaftId, u64),
        outcome: SnapshotOutcome,
        after: Duration,
    ) {
        let input = Box::new(Input::SnapshotSent { to, index, outcome });
        self.time.after(after, Event::Local { idx, runtime, input });
    }

    /// SNAP-2.
    fn refused(&mut self, from: MachineIdx, sender: u32, member_id: RaftId) {
        self.totals.count("snapshots refused");
        let now = self.now();
        let all = self.snapshots.refused.entry((sender, member_id)).or_default();
        all.push_back(now);
        all.retain(|at| now.since(*at) <= REFUSAL_WINDOW);
        if all.len() > MAX_REFUSALS {
            let (n, secs) = (all.len(), REFUSAL_WINDOW.as_secs());
            let detail =
                format!("n{} sent member {member_id} {n} snapshots within {secs} s despite refusals", from + 1);
            self.require(Err(violation(SNAP_2, detail)));
        }
    }

    // ---- the run --------------------------------------------------------------------------------------------------

    fn simulate_snapshots(&mut self) -> Result<Report, Failure> {
        self.settings.raft.snapshot_entries = 40 + self.settings.raft.snapshot_entries / 4;
        self.found();
        self.start_clients(WRITERS);
        for _ in 1..MANAGERS {
            self.join_machine(Role::Manager);
        }
        self.run_while("no leader of three voters", READY_DEADLINE, |u| {
            let voters = u.checks.newest().map_or(0, |t| t.members.values().filter(|m| m.voter).count());
            u.leading().is_none() || voters < MANAGERS
        })?;
        self.fill();
        self.run_to(self.now() + Duration::from_secs(1))?;
        let Some(leader) = self.leading() else { return self.is_over() };
        let followers: Vec<MachineIdx> = (0..MANAGERS).filter(|p| *p != leader).collect();
        let Some(behind) = self.rng.pick(&followers) else { return self.is_over() };
        let tables = self.machines[leader].runtime.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
        let bytes = muster_store::snapshot::encode(&tables).len() as u64;
        let takes = self.rng.millis(300, 2500);
        self.snapshots.rate = bytes * 1000 / u64::try_from(takes.as_millis()).unwrap_or(1);
        self.log(format!("a snapshot of {bytes} bytes takes {} ms", takes.as_millis()));
        self.crash(behind, false);
        let away = self.rng.millis(2000, 4000);
        self.run_to(self.now() + away)?;
        self.come_back(behind, bytes, takes)?;
        self.catch_up(behind, takes)?;
        self.is_over()
    }

    fn is_over(&self) -> Result<Report, Failure> {
        let simulated_secs = self.now().0 as f64 / 1e6;
        Ok(Report { seed: self.seed, hash: self.trace.hash(), simulated_secs, totals: self.totals.clone() })
    }

    fn run_while(&mut self, what: &str, limit: Moment, condition: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        while condition(self) {
            if self.now() >= limit {
                return Err(self.failure(&violation(CONVERGE_1, what.to_owned())));
            }
            self.run_to(self.now() + Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Adds config maps to enlarge the state.
    fn fill(&mut self) {
        let Some(idx) = self.leading() else { return };
        for n in 0..4 + self.rng.below(8) {
            let uid = Uid(self.rng.next_u128());
            let text: String = (0..1024).map(|_| char::from(b'a' + self.rng.below(26) as u8)).collect();
            let data = [("text".to_owned(), text)].into();
            let body = ObjectBody::ConfigMap(ConfigMap { data, ..ConfigMap::default() });
            let object = Object {
                namespace: "default".to_owned(),
                name: format!("bulk-{n}"),
                meta: ObjectMeta::fresh(uid),
                body,
            };
            let command = Command::idempotent(self.wall(idx), Principal::Operator, "bulk");
            let command = command.change(Change::CreateObject(Box::new(object)));
            self.propose(idx, Asker::Internal, command, Duration::from_secs(3));
        }
    }

    /// Restarts the follower, with at most one further fault during its transfer.
    fn come_back(&mut self, behind: MachineIdx, bytes: u64, takes: Duration) -> Result<(), Failure> {
        let midway = takes / 4 + self.rng.millis(50, 1500);
        match self.rng.below(6) {
            0 | 1 => {
                self.totals.count("fault: snapshots refused for a while");
                self.machines[behind].max_snapshot_bytes = Some(bytes / 2);
                self.start(behind);
                let mended = self.rng.millis(3000, 9000);
                self.run_to(self.now() + mended)?;
                self.machines[behind].max_snapshot_bytes = None;
                self.last_fault_at = self.now();
            }
            2 => {
                self.start(behind);
                self.run_to(self.now() + midway)?;
                self.crash(behind, true);
                let back = self.rng.millis(100, 1500);
                self.run_to(self.now() + back)?;
                self.start(behind);
            }
            3 => {
                self.start(behind);
                self.run_to(self.now() + midway)?;
                if let Some(leader) = self.leading() {
                    self.totals.count("fault: leader killed while it sent a snapshot");
                    self.crash(leader, false);
                    let back = self.rng.millis(100, 2500);
                    self.run_to(self.now() + back)?;
                    self.start(leader);
                }
            }
            _ => self.start(behind),
        }
        Ok(())
    }

    /// SNAP-1, seen from outside. Clients keep writing.
    fn catch_up(&mut self, behind: MachineIdx, takes: Duration) -> Result<(), Failure> {
        // An election, the longest pause after refusals, three snapshots: one may be in transfer to a process that has ended.
        let limit = self.now() + Duration::from_secs(14) + takes * 3;
        let mut recent_revisions: VecDeque<(Moment, Revision)> = VecDeque::new();
        loop {
            let now = self.now();
            if let Some(newest) = self.checks.newest().map(|tables| tables.revision) {
                recent_revisions.push_back((now, newest));
            }
            while recent_revisions.len() > 1 && recent_revisions.get(1).is_some_and(|(at, _)| now.since(*at) >= MAX_LAG)
            {
                recent_revisions.pop_front();
            }
            let wanted =
                recent_revisions.front().filter(|(at, _)| now.since(*at) >= MAX_LAG).map(|(_, revision)| *revision);
            let has = self.machines[behind].runtime.as_ref().map_or(Revision(0), |h| h.core.tables().revision);
            if wanted.is_some_and(|wanted| has >= wanted) {
                self.totals.count("followers caught up during writes");
                return Ok(());
            }
            if now >= limit {
                let detail = format!("n{} is at {has}; others were at {wanted:?} {MAX_LAG:?} ago", behind + 1);
                return Err(self.failure(&violation(SNAP_1, detail)));
            }
            self.run_to(now + Duration::from_millis(50))?;
        }
    }
}
