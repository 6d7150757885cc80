//! A manager's blocklist: incarnations and effects, the gateway's handling of disconnects, and the checks on blocks.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_blocklist::core::{Blocklist, Cut, Effect, Input, Memory};
use muster_messages::protocol::{Applied, ProposeError, Service};
use muster_messages::{
    Blocked, Change, Command, Guard, Moment, NodeId, Principal, Replica, Revision, Tables, WallTime,
};
use muster_store::invariants::BLOCK_2;

use crate::bugs::Bug;
use crate::checks::{CONVERGE_1, CheckResult, violation};
use crate::machine::{Asker, MachineIdx};
use crate::report::Failure;
use crate::simulation::{Event, Simulation};

pub const BLOCKED_1: &str = "BLOCKED-1";

/// Interval of the search for expired blocks: shorter than in the product, as every interval of a simulated minute.
const SWEEP_INTERVAL: Duration = Duration::from_secs(4);
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
}

impl Simulation {
    // ---- the core -------------------------------------------------------------------------------------------------

    /// The replica changed.
    pub(crate) fn schedule_observe_in_blocks(&mut self, idx: MachineIdx) {
        let now = self.now();
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let replica = runtime.core.replica();
        let newest = (replica.tables.revision, replica.raft.leading);
        runtime.blocks.observe(now, runtime.core.tables());
        // A replica without a relevant change is not observed.
        if runtime.blocks.observe_due || runtime.blocks.shown == Some(newest) {
            return;
        }
        (runtime.blocks.observe_due, runtime.blocks.shown) = (true, Some(newest));
        let (runtime, soon) = (runtime.number, self.rng.micros(0, 1500));
        self.time.after(soon, Event::ObserveInBlocks { idx, runtime });
    }

    pub(crate) fn observe_in_blocks(&mut self, idx: MachineIdx, runtime: u32) {
        let Some(h) = self.machines[idx].runtime_mut(runtime) else { return };
        h.blocks.observe_due = false;
        let replica = std::sync::Arc::clone(h.core.replica());
        self.blocks_step(idx, Input::NewReplica(&replica));
    }

    pub(crate) fn blocks_tick(&mut self, idx: MachineIdx, runtime: u32) {
        if self.machines[idx].runtime(runtime).is_none() {
            return;
        }
        self.time.after(SWEEP_INTERVAL, Event::BlocksTick { idx, runtime });
        if self.faults.active && self.rng.chance(150) {
            return self.crash_blocks(idx, runtime);
        }
        self.blocks_step(idx, Input::Ticked);
    }

    /// Repeats what the gateway rejected, unless a newer incarnation already repeats everything.
    pub(crate) fn blocks_retry(&mut self, idx: MachineIdx, runtime: u32, incarnation: u32) {
        if self.machines[idx].runtime(runtime).is_some_and(|h| h.blocks.incarnation == incarnation) {
            self.blocks_step(idx, Input::Retry);
        }
    }

    fn crash_blocks(&mut self, idx: MachineIdx, runtime: u32) {
        self.totals.count("fault: blocklist crashed");
        let back = self.rng.millis(1, 400);
        if let Some(h) = self.machines[idx].runtime_mut(runtime) {
            // The state that the shell kept after the last step.
            h.blocks.slot = h.blocks.core.take().map(|core| core.memory()).unwrap_or_default();
            self.time.after(back, Event::BlocksBack { idx, runtime });
        }
    }

    pub(crate) fn blocks_back(&mut self, idx: MachineIdx, runtime: u32) {
        let Some(h) = self.machines[idx].runtime_mut(runtime).filter(|h| h.blocks.core.is_none()) else { return };
        h.blocks.incarnation += 1;
        h.blocks.core = Some(Blocklist::resume(h.blocks.slot.clone()));
        self.observe_in_blocks(idx, runtime);
    }

    fn blocks_step(&mut self, idx: MachineIdx, input: Input<'_>) {
        let now = self.clock(idx);
        let mut wall = self.wall(idx);
        if self.settings.bug == Some(Bug::SweepEarly) {
            wall = wall.plus(Duration::from_secs(10 * 365 * 24 * 3600));
        }
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let (number, incarnation) = (runtime.number, runtime.blocks.incarnation);
        let Some(core) = runtime.blocks.core.as_mut() else { return };
        let mut effects = Vec::new();
        core.step(now, wall, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Cut(disconnect) => {
                    // A gateway may be full or restarting.
                    let taken = !(self.faults.active && self.rng.chance(200));
                    let outcome = if taken { Input::Told(disconnect.principal.clone()) } else { Input::NotTold };
                    if taken {
                        self.disconnect(idx, number, &disconnect);
                    }
                    self.blocks_step(idx, outcome);
                }
                Effect::RetryAt(at) => {
                    let at = self.moment(idx, at);
                    self.time.at(at, Event::BlocksRetry { idx, runtime: number, incarnation });
                }
                Effect::Sweep(command) => {
                    self.totals.count("blocklist sweeps");
                    self.propose(idx, Asker::Sweep { incarnation }, *command, SWEEP_DEADLINE);
                }
            }
        }
    }

    pub(crate) fn sweep_ended(&mut self, idx: MachineIdx, incarnation: u32, result: Result<Applied, ProposeError>) {
        if self.machines[idx].runtime.as_ref().is_some_and(|h| h.blocks.incarnation == incarnation) {
            self.blocks_step(idx, Input::Swept(result.ok().map(|applied| applied.revision)));
        }
    }

    /// Only with the injected bug.
    pub(crate) fn lets_stay(&self, local: &Replica, node: NodeId) -> bool {
        self.settings.bug == Some(Bug::AllowBlocked) && local.tables.blocklist.contains_key(&node)
    }

    // ---- the gateway ----------------------------------------------------------------------------------------------

    fn disconnect(&mut self, idx: MachineIdx, runtime: u32, disconnect: &Cut) {
        let Principal::Node(node) = disconnect.principal else { return };
        if self.settings.bug == Some(Bug::AllowBlocked) {
            return;
        }
        let all = disconnect.services.is_empty();
        if all || disconnect.services.contains(&Service::Agent) {
            let ended = self.close_connections(idx, runtime, node);
            self.totals.add("sessions disconnected", ended);
        }
        let Some(peer) = self.idx_of(node).filter(|peer| *peer != idx) else { return };
        let Some(other) = self.machines[peer].runtime.as_ref().map(|h| h.number) else { return };
        if all || disconnect.services.contains(&Service::Mesh) {
            self.session(idx, peer, false, Duration::from_millis(1));
            let later = self.rng.millis(REDIAL_MILLIS.0, REDIAL_MILLIS.1);
            self.time.after(later, Event::RetrySession { a: (idx, runtime), b: (peer, other) });
        }
    }

    /// A disconnected node that is a manager (again) gets a session as soon as both ends accept it.
    pub(crate) fn retry_session(&mut self, a: (MachineIdx, u32), b: (MachineIdx, u32)) {
        let lives = |(idx, runtime): (MachineIdx, u32)| self.machines[idx].runtime(runtime).is_some();
        if !lives(a) || !lives(b) {
            return;
        }
        if self.net.both_open(a.0, b.0) && self.accepts_peer(a.0, b.0) && self.accepts_peer(b.0, a.0) {
            return self.session(a.0, b.0, true, Duration::from_millis(8));
        }
        let later = self.rng.millis(REDIAL_MILLIS.0, REDIAL_MILLIS.1);
        self.time.after(later, Event::RetrySession { a, b });
    }

    // ---- checks ---------------------------------------------------------------------------------------------------

    /// How long this manager has known a node's block, once it had time to act on it.
    fn known_for(&self, idx: MachineIdx, node: NodeId) -> Option<Duration> {
        let since = *self.machines[idx].runtime.as_ref()?.blocks.known.get(&node)?;
        let known = self.now().since(since);
        let awake = self.faults.froze(idx).is_none_or(|at| self.now().since(at) > SETTLED_AFTER_THAW);
        (known > DISCONNECT_DEADLINE && awake && self.machines[idx].runs()).then_some(known)
    }

    /// BLOCKED-1: a blocked node has no session with a manager that has known the block for a while.
    pub(crate) fn check_blocked_sessions(&mut self, idx: MachineIdx) {
        let Some(runtime) = self.machines[idx].runtime.as_ref() else { return };
        let (runtime, nodes) = (runtime.number, runtime.blocks.known.keys().copied().collect::<Vec<_>>());
        for node in nodes {
            let Some(known) = self.known_for(idx, node) else { continue };
            if self.connections.at_host((idx, runtime), node) {
                let (name, known) = (self.name(node), known.as_millis());
                let detail =
                    format!("{name} has a session with n{}, which has known its block for {known} ms", idx + 1);
                self.require(Err(violation(BLOCKED_1, detail)));
            }
        }
    }

    /// BLOCKED-1: its mesh packets are not accepted.
    pub(crate) fn check_blocked_packets(&mut self, idx: MachineIdx, node: NodeId) {
        if let Some(known) = self.known_for(idx, node) {
            let (name, known) = (self.name(node), known.as_millis());
            let detail = format!("n{} accepts {name}, whose block it has known for {known} ms", idx + 1);
            self.require(Err(violation(BLOCKED_1, detail)));
        }
    }

    /// BLOCKED-1: it receives no certificate. BLOCK-2 counts from the newest certificate issued anywhere.
    pub(crate) fn check_signed(&mut self, idx: MachineIdx, node: NodeId, not_after: WallTime) {
        self.checks.signed(node, not_after);
        if let Some(known) = self.known_for(idx, node) {
            let (name, known) = (self.name(node), known.as_millis());
            let detail = format!("n{} signs for {name}, whose block it has known for {known} ms", idx + 1);
            self.require(Err(violation(BLOCKED_1, detail)));
        }
    }

    // ---- further commands -----------------------------------------------------------------------------------------

    /// A block of an id that never had a certificate, one that ends before the existing one, or a sweep by a proposer with a wrong
    /// clock.
    pub(crate) fn propose_outdated_block(&mut self, idx: MachineIdx, tables: &Tables) {
        let now = self.wall(idx);
        let unknown_node = NodeId::from_entropy(self.rng.next_u128());
        let blocked: Vec<NodeId> = tables.blocklist.keys().copied().collect();
        let known = self.rng.pick(&blocked);
        let command = Command::idempotent(now, Principal::Operator, "outdated");
        let command = match (self.rng.below(3), known) {
            (0, Some(node)) => command.guard(Guard::BlockExpired { node, at: now }).change(Change::Unblock(node)),
            (what, known) => {
                let node = known.filter(|_| what == 1).unwrap_or(unknown_node);
                let expires_at = now.plus(self.rng.millis(100, 9000));
                let block = Blocked { node, by: Principal::Operator, blocked_at: now, expires_at };
                command.change(Change::Block(block))
            }
        };
        self.totals.count("fault: outdated block");
        self.log(format!("outdated: {:?}", command.changes));
        self.propose(idx, Asker::Internal, command, Duration::from_secs(2));
    }

    /// Advances all calendars by more than a certificate lifetime, a day at a time: certificates are renewed and blocks expire.
    pub(crate) fn expire_certificates(&mut self) -> Result<(), Failure> {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        // A certificate issued today, plus the margin of its block.
        let lifetime = self.settings.authority.node_lifetime + DAY * 3;
        self.log("calendars advance by a certificate lifetime");
        self.model.swept = true;
        for _ in 0..lifetime.as_secs().div_ceil(DAY.as_secs()) {
            self.calendar = self.calendar.saturating_add(DAY);
            self.run_to(self.now() + Duration::from_millis(60))?;
        }
        self.run_to(self.now() + SWEEP_INTERVAL + Duration::from_secs(1))?;
        let now = self.today();
        let over = |t: &Tables| t.blocklist.values().find(|b| b.expires_at.plus(DAY) < now).map(|b| b.node);
        if let Some(node) = self.checks.newest().and_then(over) {
            let detail = format!("the block of {node} expired and was not deleted");
            return Err(self.failure(&violation(CONVERGE_1, detail)));
        }
        Ok(())
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
