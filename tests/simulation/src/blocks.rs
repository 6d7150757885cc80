//! A manager's blocklist: incarnations and effects, the gateway's handling of disconnects, and the checks on blocks.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_blocklist::core::{Blocklist, Cut, Effect, Input, Memory};
use muster_messages::protocol::{Applied, ProposeError, Service};
use muster_messages::{Moment, NodeId, Principal, Revision, Tables, WallTime};
use muster_store::invariants::BLOCK_2;

use crate::bugs::Bug;
use crate::checks::{CheckResult, violation};
use crate::connections::AgentConnections;
use crate::events::Event;
use crate::machine::{Asker, MachineIdx, ManagerRuntime};
use crate::world::World;

pub const BLOCKED_1: &str = "BLOCKED-1";

/// Interval of the search for expired blocks: shorter than in the product, as every interval of a simulated minute.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(4);
const SWEEP_DEADLINE: Duration = Duration::from_secs(10);
/// Time after which a manager that applied a block has no connection of the blocked node: an observation, a blocklist crash, a few
/// disconnects that the gateway rejected.
const DISCONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// Time after a thaw by which delayed events have taken effect.
const SETTLED_AFTER_THAW: Duration = Duration::from_secs(6);
/// Delay before a disconnected mesh session is dialled again, in milliseconds.
const REDIAL_MILLIS: (u64, u64) = (200, 1500);

/// A manager runtime's blocklist.
pub struct Blocks {
    incarnation: u32,
    /// `None`: crashed.
    core: Option<Blocklist>,
    /// State for the next incarnation.
    slot: Memory,
    observe_due: bool,
    /// The replica that was observed, or whose observation is scheduled.
    shown: Option<(Revision, bool)>,
    /// When this replica first contained each block.
    known: BTreeMap<NodeId, Moment>,
    local: Tables,
}

impl Blocks {
    pub fn new() -> Self {
        let slot = Memory::default();
        let core = Some(Blocklist::resume(slot.clone()));
        Self {
            incarnation: 0,
            core,
            slot,
            observe_due: false,
            shown: None,
            known: BTreeMap::new(),
            local: Tables::default(),
        }
    }

    /// Records the blocks of a new replica.
    fn observe(&mut self, now: Moment, tables: &Tables) {
        if self.local.blocklist.ptr_eq(&tables.blocklist) {
            return;
        }
        self.known.retain(|node, _| tables.blocklist.contains_key(node));
        for node in tables.blocklist.keys() {
            self.known.entry(*node).or_insert(now);
        }
        self.local = tables.clone();
    }

    // ---- the core -------------------------------------------------------------------------------------------------

    /// The replica changed.
    pub(crate) fn schedule_observe(world: &mut World, idx: MachineIdx) {
        let now = world.now();
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let replica = runtime.core.cluster_replica();
        let newest = (replica.tables.revision, replica.raft.leading);
        runtime.blocks.observe(now, runtime.core.tables());
        // A replica without a relevant change is not observed.
        if runtime.blocks.observe_due || runtime.blocks.shown == Some(newest) {
            return;
        }
        (runtime.blocks.observe_due, runtime.blocks.shown) = (true, Some(newest));
        let (runtime, soon) = (runtime.number, world.rng.micros(0, 1500));
        world.time.after(soon, Event::ObserveInBlocks { idx, runtime });
    }

    pub(crate) fn observe_replica(world: &mut World, idx: MachineIdx, runtime: u32) {
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        h.blocks.observe_due = false;
        let replica = std::sync::Arc::clone(h.core.cluster_replica());
        Self::step(world, idx, Input::NewReplica(&replica));
    }

    pub(crate) fn tick(world: &mut World, idx: MachineIdx, runtime: u32) {
        if world.machines[idx].runtime(runtime).is_none() {
            return;
        }
        world.time.after(SWEEP_INTERVAL, Event::BlocksTick { idx, runtime });
        if world.faults_active && world.rng.chance(150) {
            return Self::crash(world, idx, runtime);
        }
        Self::step(world, idx, Input::Ticked);
    }

    /// Repeats what the gateway rejected, unless a newer incarnation already repeats everything.
    pub(crate) fn retry(world: &mut World, idx: MachineIdx, runtime: u32, incarnation: u32) {
        if world.machines[idx].runtime(runtime).is_some_and(|h| h.blocks.incarnation == incarnation) {
            Self::step(world, idx, Input::Retry);
        }
    }

    fn crash(world: &mut World, idx: MachineIdx, runtime: u32) {
        world.totals.count("fault: blocklist crashed");
        let back = world.rng.millis(1, 400);
        if let Some(h) = world.machines[idx].runtime_mut(runtime) {
            // The state that the shell kept after the last step.
            h.blocks.slot = h.blocks.core.take().map(|core| core.memory()).unwrap_or_default();
            world.time.after(back, Event::BlocksBack { idx, runtime });
        }
    }

    pub(crate) fn restart(world: &mut World, idx: MachineIdx, runtime: u32) {
        let Some(h) = world.machines[idx].runtime_mut(runtime).filter(|h| h.blocks.core.is_none()) else { return };
        h.blocks.incarnation += 1;
        h.blocks.core = Some(Blocklist::resume(h.blocks.slot.clone()));
        Self::observe_replica(world, idx, runtime);
    }

    fn step(world: &mut World, idx: MachineIdx, input: Input<'_>) {
        let now = world.clock(idx);
        let mut wall = world.wall(idx);
        if world.settings.bug == Some(Bug::SweepEarly) {
            wall = wall.plus(Duration::from_secs(10 * 365 * 24 * 3600));
        }
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let (number, incarnation) = (runtime.number, runtime.blocks.incarnation);
        let Some(core) = runtime.blocks.core.as_mut() else { return };
        let mut effects = Vec::new();
        core.step(now, wall, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Cut(disconnect) => {
                    // A gateway may be full or restarting.
                    let taken = !(world.faults_active && world.rng.chance(200));
                    let outcome = if taken { Input::Told(disconnect.principal.clone()) } else { Input::NotTold };
                    if taken {
                        Self::disconnect(world, idx, number, &disconnect);
                    }
                    Self::step(world, idx, outcome);
                }
                Effect::RetryAt(at) => {
                    let at = world.moment(idx, at);
                    world.time.at(at, Event::BlocksRetry { idx, runtime: number, incarnation });
                }
                Effect::Sweep(command) => {
                    world.totals.count("blocklist sweeps");
                    world.propose(idx, Asker::Sweep { incarnation }, *command, SWEEP_DEADLINE);
                }
            }
        }
    }

    pub(crate) fn sweep_ended(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        result: Result<Applied, ProposeError>,
    ) {
        if world.machines[idx].runtime.as_ref().is_some_and(|h| h.blocks.incarnation == incarnation) {
            Self::step(world, idx, Input::Swept(result.ok().map(|applied| applied.revision)));
        }
    }

    // ---- the gateway ----------------------------------------------------------------------------------------------

    fn disconnect(world: &mut World, idx: MachineIdx, runtime: u32, disconnect: &Cut) {
        let Principal::Node(node) = disconnect.principal else { return };
        if world.settings.bug == Some(Bug::AllowBlocked) {
            return;
        }
        let all = disconnect.services.is_empty();
        if all || disconnect.services.contains(&Service::Agent) {
            let ended = AgentConnections::close_of_node(world, idx, runtime, node);
            world.totals.add("sessions disconnected", ended);
        }
        let Some(peer) = world.idx_of(node).filter(|peer| *peer != idx) else { return };
        let Some(other) = world.machines[peer].runtime.as_ref().map(|h| h.number) else { return };
        if all || disconnect.services.contains(&Service::Mesh) {
            world.session(idx, peer, false, Duration::from_millis(1));
            let later = world.rng.millis(REDIAL_MILLIS.0, REDIAL_MILLIS.1);
            world.time.after(later, Event::RetrySession { a: (idx, runtime), b: (peer, other) });
        }
    }

    /// A disconnected node that is a manager (again) gets a session as soon as both ends accept it.
    pub(crate) fn retry_session(world: &mut World, a: (MachineIdx, u32), b: (MachineIdx, u32)) {
        let lives = |(idx, runtime): (MachineIdx, u32)| world.machines[idx].runtime(runtime).is_some();
        if !lives(a) || !lives(b) {
            return;
        }
        if world.net.both_open(a.0, b.0)
            && ManagerRuntime::accepts_peer(world, a.0, b.0)
            && ManagerRuntime::accepts_peer(world, b.0, a.0)
        {
            return world.session(a.0, b.0, true, Duration::from_millis(8));
        }
        let later = world.rng.millis(REDIAL_MILLIS.0, REDIAL_MILLIS.1);
        world.time.after(later, Event::RetrySession { a, b });
    }

    // ---- checks ---------------------------------------------------------------------------------------------------

    /// How long this manager has known a node's block, once it had time to act on it.
    fn known_for(world: &World, idx: MachineIdx, node: NodeId) -> Option<Duration> {
        let since = *world.machines[idx].runtime.as_ref()?.blocks.known.get(&node)?;
        let known = world.now().since(since);
        let awake = world.machines[idx].thawed_at.is_none_or(|at| world.now().since(at) > SETTLED_AFTER_THAW);
        (known > DISCONNECT_DEADLINE && awake && world.machines[idx].runs()).then_some(known)
    }

    /// BLOCKED-1: a blocked node has no session with a manager that has known the block for a while.
    pub(crate) fn check_sessions(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let (runtime, nodes) = (runtime.number, runtime.blocks.known.keys().copied().collect::<Vec<_>>());
        for node in nodes {
            let Some(known) = Self::known_for(world, idx, node) else { continue };
            if world.connections.at_host((idx, runtime), node) {
                let (name, known) = (world.name(node), known.as_millis());
                let detail =
                    format!("{name} has a session with n{}, which has known its block for {known} ms", idx + 1);
                world.require(Err(violation(BLOCKED_1, detail)));
            }
        }
    }

    /// BLOCKED-1: its mesh packets are not accepted.
    pub(crate) fn check_packets(world: &mut World, idx: MachineIdx, node: NodeId) {
        if let Some(known) = Self::known_for(world, idx, node) {
            let (name, known) = (world.name(node), known.as_millis());
            let detail = format!("n{} accepts {name}, whose block it has known for {known} ms", idx + 1);
            world.require(Err(violation(BLOCKED_1, detail)));
        }
    }

    /// BLOCKED-1: it receives no certificate. BLOCK-2 counts from the newest certificate issued anywhere.
    pub(crate) fn check_signed(world: &mut World, idx: MachineIdx, node: NodeId, not_after: WallTime) {
        world.checks.signed(node, not_after);
        if let Some(known) = Self::known_for(world, idx, node) {
            let (name, known) = (world.name(node), known.as_millis());
            let detail = format!("n{} signs for {name}, whose block it has known for {known} ms", idx + 1);
            world.require(Err(violation(BLOCKED_1, detail)));
        }
    }
}

/// BLOCK-2, seen from outside: a block lasts as long as any certificate ever issued to its node.
pub fn outlives(before: &Tables, after: &Tables, signed: &BTreeMap<NodeId, WallTime>, today: WallTime) -> CheckResult {
    /// Maximum clock difference.
    const SKEW: Duration = Duration::from_secs(4);
    if before.blocklist.ptr_eq(&after.blocklist) {
        return Ok(());
    }
    for node in before.blocklist.keys().filter(|node| !after.blocklist.contains_key(node)) {
        if let Some(until) = signed.get(node).filter(|until| today.plus(SKEW) < **until) {
            return Err(violation(BLOCK_2, format!("{node} is unblocked and has a certificate until {until}")));
        }
    }
    Ok(())
}
