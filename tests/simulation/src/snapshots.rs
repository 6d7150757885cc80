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

use crate::checks::{CONVERGE_1, violation};
use crate::events::{Event, Mail};
use crate::machine::{Asker, Machine, MachineIdx};
use crate::network::Delivery;
use crate::report::Failure;
use crate::simulation::Simulation;
use crate::world::World;

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

    pub(crate) fn send(world: &mut World, from: MachineIdx, snapshot: OutboundSnapshot) {
        let OutboundSnapshot { node, mut packet, job, .. } = snapshot;
        world.totals.add("snapshots encoded for members", u64::from(job.encoded.get().is_none()));
        let (head, data) = job.run_shared();
        packet.snapshot = Some(head.clone());
        let (member_id, index) = (packet.to, head.index);
        let sender = world.machines[from].runtime.as_ref().map_or(0, |h| h.number);
        let to = world.idx_of(node);
        let limit = to.and_then(|to| world.machines[to].max_snapshot_bytes);
        if limit.is_some_and(|limit| head.bytes > limit) {
            let why = format!("{} bytes exceed the limit", head.bytes);
            Self::refused(world, from, sender, member_id);
            return Self::ended(world, from, sender, (member_id, index), SnapshotOutcome::Refused(why), REFUSAL_DELAY);
        }
        let delivery = to.map(|to| (to, world.net.send(world.time.now(), from, to, &mut world.rng)));
        let Some((to, Delivery { first: Some(at), .. })) = delivery else {
            let lost = SnapshotOutcome::Lost("the link is down".to_owned());
            return Self::ended(world, from, sender, (member_id, index), lost, Duration::from_millis(1500));
        };
        let takes = Duration::from_micros(head.bytes.saturating_mul(1_000_000) / world.snapshots.rate.max(1));
        let takes = takes + world.rng.millis(1, 60);
        let mut moved = PROGRESS_INTERVAL;
        while moved < takes {
            let input = Box::new(Input::SnapshotProgress { to: member_id, index });
            world.time.after(moved, Event::Local { idx: from, runtime: sender, input });
            moved += PROGRESS_INTERVAL;
        }
        world.totals.add("snapshot transfer ms", u64::try_from(takes.as_millis()).unwrap_or(0));
        let mail = Mail { from, to, packets: vec![packet], snapshot: Some((head, data.to_vec())), sender };
        world.time.at(at + takes, Event::Mail(Box::new(mail)));
    }

    pub(crate) fn ended(
        world: &mut World,
        idx: MachineIdx,
        runtime: u32,
        (to, index): (RaftId, u64),
        outcome: SnapshotOutcome,
        after: Duration,
    ) {
        let input = Box::new(Input::SnapshotSent { to, index, outcome });
        world.time.after(after, Event::Local { idx, runtime, input });
    }

    /// SNAP-2.
    fn refused(world: &mut World, from: MachineIdx, sender: u32, member_id: RaftId) {
        world.totals.count("snapshots refused");
        let now = world.now();
        let all = world.snapshots.refused.entry((sender, member_id)).or_default();
        all.push_back(now);
        all.retain(|at| now.since(*at) <= REFUSAL_WINDOW);
        if all.len() > MAX_REFUSALS {
            let (n, secs) = (all.len(), REFUSAL_WINDOW.as_secs());
            let detail =
                format!("n{} sent member {member_id} {n} snapshots within {secs} s despite refusals", from + 1);
            world.require(Err(violation(SNAP_2, detail)));
        }
    }
}

// ---- the run --------------------------------------------------------------------------------------------------

/// A follower must catch up by a snapshot while clients write. `Err`: an invariant is violated.
pub fn simulate(sim: &mut Simulation) -> Result<(), Failure> {
    sim.world.settings.raft.snapshot_entries = 40 + sim.world.settings.raft.snapshot_entries / 4;
    sim.world.found();
    sim.clients.start(&mut sim.world, WRITERS);
    for _ in 1..MANAGERS {
        sim.world.join_machine(Role::Manager);
    }
    run_while(sim, "no leader of three voters", READY_DEADLINE, |u| {
        let voters = u.world.checks.newest().map_or(0, |t| t.members.values().filter(|m| m.voter).count());
        u.world.leading().is_none() || voters < MANAGERS
    })?;
    fill(sim);
    sim.run_to(sim.world.now() + Duration::from_secs(1))?;
    let Some(leader) = sim.world.leading() else { return Ok(()) };
    let followers: Vec<MachineIdx> = (0..MANAGERS).filter(|p| *p != leader).collect();
    let Some(behind) = sim.world.rng.pick(&followers) else { return Ok(()) };
    let tables = sim.world.machines[leader].runtime.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
    let bytes = muster_store::snapshot::encode(&tables).len() as u64;
    let takes = sim.world.rng.millis(300, 2500);
    sim.world.snapshots.rate = bytes * 1000 / u64::try_from(takes.as_millis()).unwrap_or(1);
    sim.world.log(format!("a snapshot of {bytes} bytes takes {} ms", takes.as_millis()));
    Machine::crash(&mut sim.world, behind, false);
    let away = sim.world.rng.millis(2000, 4000);
    sim.run_to(sim.world.now() + away)?;
    come_back(sim, behind, bytes, takes)?;
    catch_up(sim, behind, takes)?;
    Ok(())
}

fn run_while(
    sim: &mut Simulation,
    what: &str,
    limit: Moment,
    condition: impl Fn(&Simulation) -> bool,
) -> Result<(), Failure> {
    while condition(sim) {
        if sim.world.now() >= limit {
            return Err(sim.world.failure(&violation(CONVERGE_1, what.to_owned())));
        }
        sim.run_to(sim.world.now() + Duration::from_millis(50))?;
    }
    Ok(())
}

/// Adds config maps to enlarge the state.
fn fill(sim: &mut Simulation) {
    let Some(idx) = sim.world.leading() else { return };
    for n in 0..4 + sim.world.rng.below(8) {
        let uid = Uid(sim.world.rng.next_u128());
        let text: String = (0..1024).map(|_| char::from(b'a' + sim.world.rng.below(26) as u8)).collect();
        let data = [("text".to_owned(), text)].into();
        let body = ObjectBody::ConfigMap(ConfigMap { data, ..ConfigMap::default() });
        let object =
            Object { namespace: "default".to_owned(), name: format!("bulk-{n}"), meta: ObjectMeta::fresh(uid), body };
        let command = Command::idempotent(sim.world.wall(idx), Principal::Operator, "bulk");
        let command = command.change(Change::CreateObject(Box::new(object)));
        sim.world.propose(idx, Asker::Internal, command, Duration::from_secs(3));
    }
}

/// Restarts the follower, with at most one further fault during its transfer.
fn come_back(sim: &mut Simulation, behind: MachineIdx, bytes: u64, takes: Duration) -> Result<(), Failure> {
    let midway = takes / 4 + sim.world.rng.millis(50, 1500);
    match sim.world.rng.below(6) {
        0 | 1 => {
            sim.world.totals.count("fault: snapshots refused for a while");
            sim.world.machines[behind].max_snapshot_bytes = Some(bytes / 2);
            Machine::start(&mut sim.world, behind);
            let mended = sim.world.rng.millis(3000, 9000);
            sim.run_to(sim.world.now() + mended)?;
            sim.world.machines[behind].max_snapshot_bytes = None;
            sim.world.last_fault_at = sim.world.now();
        }
        2 => {
            Machine::start(&mut sim.world, behind);
            sim.run_to(sim.world.now() + midway)?;
            Machine::crash(&mut sim.world, behind, true);
            let back = sim.world.rng.millis(100, 1500);
            sim.run_to(sim.world.now() + back)?;
            Machine::start(&mut sim.world, behind);
        }
        3 => {
            Machine::start(&mut sim.world, behind);
            sim.run_to(sim.world.now() + midway)?;
            if let Some(leader) = sim.world.leading() {
                sim.world.totals.count("fault: leader killed while it sent a snapshot");
                Machine::crash(&mut sim.world, leader, false);
                let back = sim.world.rng.millis(100, 2500);
                sim.run_to(sim.world.now() + back)?;
                Machine::start(&mut sim.world, leader);
            }
        }
        _ => Machine::start(&mut sim.world, behind),
    }
    Ok(())
}

/// SNAP-1, seen from outside. Clients keep writing.
fn catch_up(sim: &mut Simulation, behind: MachineIdx, takes: Duration) -> Result<(), Failure> {
    // An election, the longest pause after refusals, three snapshots: one may be in transfer to a process that has ended.
    let limit = sim.world.now() + Duration::from_secs(14) + takes * 3;
    let mut recent_revisions: VecDeque<(Moment, Revision)> = VecDeque::new();
    loop {
        let now = sim.world.now();
        if let Some(newest) = sim.world.checks.newest().map(|tables| tables.revision) {
            recent_revisions.push_back((now, newest));
        }
        while recent_revisions.len() > 1 && recent_revisions.get(1).is_some_and(|(at, _)| now.since(*at) >= MAX_LAG) {
            recent_revisions.pop_front();
        }
        let wanted =
            recent_revisions.front().filter(|(at, _)| now.since(*at) >= MAX_LAG).map(|(_, revision)| *revision);
        let has = sim.world.machines[behind].runtime.as_ref().map_or(Revision(0), |h| h.core.tables().revision);
        if wanted.is_some_and(|wanted| has >= wanted) {
            sim.world.totals.count("followers caught up during writes");
            return Ok(());
        }
        if now >= limit {
            let detail = format!("n{} is at {has}; others were at {wanted:?} {MAX_LAG:?} ago", behind + 1);
            return Err(sim.world.failure(&violation(SNAP_1, detail)));
        }
        sim.run_to(now + Duration::from_millis(50))?;
    }
}
