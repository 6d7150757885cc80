//! The blocklist of a manager: its incarnations and effects, what its gateway makes of a cut, and what is checked of blocks.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_blocklist::core::{Blocklist, Cut, Effect, Input, Memory};
use muster_messages::protocol::{Applied, ProposeError, Service};
use muster_messages::{
    Blocked, Change, Command, Guard, Moment, NodeId, Principal, Replica, Revision, Tables, WallTime,
};
use muster_store::invariants::BLOCK_2;

use crate::breaks::Break;
use crate::checks::{CONVERGE_1, Verdict, broken};
use crate::machine::{Asker, Place};
use crate::report::Failure;
use crate::world::{Event, Universe};

pub const OUT_1: &str = "OUT-1";

/// How often blocks that are over are looked for. More often than in the product, as everything in a universe's minute.
const TICK: Duration = Duration::from_secs(4);
const SWEEP_DEADLINE: Duration = Duration::from_secs(10);
/// So long after a manager has applied a block, nothing of the blocked node is left there: a look, a crash of the blocklist, a few
/// cuts that the gateway did not take.
const GONE_AFTER: Duration = Duration::from_secs(1);
/// What happened in a machine while it was frozen happens to it by then.
const RECOVERED: Duration = Duration::from_secs(6);
/// A mesh that was cut off is dialled again.
const REDIAL: (u64, u64) = (200, 1500);

/// What a manager half has of blocks.
pub struct Blocks {
    incarnation: u32,
    /// `None`: it has crashed.
    core: Option<Blocklist>,
    /// What the next incarnation is handed.
    slot: Memory,
    look_due: bool,
    /// The copy that it has been shown, or is about to be.
    shown: Option<(Revision, bool)>,
    /// Since when this copy knows of which block.
    known: BTreeMap<NodeId, Moment>,
    copy: Tables,
}

impl Blocks {
    pub fn new() -> Self {
        let slot = Memory::default();
        let core = Some(Blocklist::resume(slot.clone()));
        Self {
            incarnation: 0,
            core,
            slot,
            look_due: false,
            shown: None,
            known: BTreeMap::new(),
            copy: Tables::default(),
        }
    }

    /// What this copy says from now on.
    fn note(&mut self, now: Moment, tables: &Tables) {
        if self.copy.blocklist.ptr_eq(&tables.blocklist) {
            return;
        }
        self.known.retain(|node, _| tables.blocklist.contains_key(node));
        for node in tables.blocklist.keys() {
            self.known.entry(*node).or_insert(now);
        }
        self.copy = tables.clone();
    }
}

impl Universe {
    // ---- the core -------------------------------------------------------------------------------------------------

    /// The copy has changed.
    pub(crate) fn blocks_look_soon(&mut self, place: Place) {
        let now = self.now();
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let replica = half.core.replica();
        let newest = (replica.tables.revision, replica.raft.leading);
        half.blocks.note(now, half.core.tables());
        // A copy that differs in nothing that it looks at shows it nothing.
        if half.blocks.look_due || half.blocks.shown == Some(newest) {
            return;
        }
        (half.blocks.look_due, half.blocks.shown) = (true, Some(newest));
        let (half, soon) = (half.number, self.dice.micros(0, 1500));
        self.time.after(soon, Event::BlocksLook { place, half });
    }

    pub(crate) fn blocks_look(&mut self, place: Place, half: u32) {
        let Some(h) = self.machines[place].half_mut(half) else { return };
        h.blocks.look_due = false;
        let replica = std::sync::Arc::clone(h.core.replica());
        self.blocks_step(place, Input::Looked(&replica));
    }

    pub(crate) fn blocks_tick(&mut self, place: Place, half: u32) {
        if self.machines[place].half(half).is_none() {
            return;
        }
        self.time.after(TICK, Event::BlocksTick { place, half });
        if self.faults.active && self.dice.chance(150) {
            return self.crash_blocks(place, half);
        }
        self.blocks_step(place, Input::Ticked);
    }

    /// Told again what the gateway did not take, unless another incarnation has begun with telling all of it.
    pub(crate) fn blocks_retry(&mut self, place: Place, half: u32, incarnation: u32) {
        if self.machines[place].half(half).is_some_and(|h| h.blocks.incarnation == incarnation) {
            self.blocks_step(place, Input::Retry);
        }
    }

    fn crash_blocks(&mut self, place: Place, half: u32) {
        self.totals.count("fault: blocklist crashed");
        let back = self.dice.millis(1, 400);
        if let Some(h) = self.machines[place].half_mut(half) {
            // As the shell has kept it after the last step.
            h.blocks.slot = h.blocks.core.take().map(|core| core.memory()).unwrap_or_default();
            self.time.after(back, Event::BlocksBack { place, half });
        }
    }

    pub(crate) fn blocks_back(&mut self, place: Place, half: u32) {
        let Some(h) = self.machines[place].half_mut(half).filter(|h| h.blocks.core.is_none()) else { return };
        h.blocks.incarnation += 1;
        h.blocks.core = Some(Blocklist::resume(h.blocks.slot.clone()));
        self.blocks_look(place, half);
    }

    fn blocks_step(&mut self, place: Place, input: Input<'_>) {
        let now = self.clock(place);
        let mut wall = self.wall(place);
        if self.settings.broken == Some(Break::SweepEarly) {
            wall = wall.plus(Duration::from_secs(10 * 365 * 24 * 3600));
        }
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let (number, incarnation) = (half.number, half.blocks.incarnation);
        let Some(core) = half.blocks.core.as_mut() else { return };
        let mut effects = Vec::new();
        core.step(now, wall, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Cut(cut) => {
                    // A gateway may be full, or about to start again.
                    let taken = !(self.faults.active && self.dice.chance(200));
                    let told = if taken { Input::Told(cut.principal.clone()) } else { Input::NotTold };
                    if taken {
                        self.cut(place, number, &cut);
                    }
                    self.blocks_step(place, told);
                }
                Effect::RetryAt(at) => {
                    let at = self.moment(place, at);
                    self.time.at(at, Event::BlocksRetry { place, half: number, incarnation });
                }
                Effect::Sweep(command) => {
                    self.totals.count("sweeps of the blocklist");
                    self.propose(place, Asker::Sweep { incarnation }, *command, SWEEP_DEADLINE);
                }
            }
        }
    }

    pub(crate) fn sweep_ended(&mut self, place: Place, incarnation: u32, result: Result<Applied, ProposeError>) {
        if self.machines[place].half.as_ref().is_some_and(|h| h.blocks.incarnation == incarnation) {
            self.blocks_step(place, Input::Swept(result.ok().map(|applied| applied.revision)));
        }
    }

    /// Only where that is broken on purpose.
    pub(crate) fn lets_stay(&self, copy: &Replica, node: NodeId) -> bool {
        self.settings.broken == Some(Break::LetTheBlockedStay) && copy.tables.blocklist.contains_key(&node)
    }

    // ---- the gateway ----------------------------------------------------------------------------------------------

    fn cut(&mut self, place: Place, half: u32, cut: &Cut) {
        let Principal::Node(node) = cut.principal else { return };
        if self.settings.broken == Some(Break::LetTheBlockedStay) {
            return;
        }
        let all = cut.services.is_empty();
        if all || cut.services.contains(&Service::Agent) {
            let ended = self.cut_lines(place, half, node);
            self.totals.add("sessions cut", ended);
        }
        let Some(peer) = self.place_of(node).filter(|peer| *peer != place) else { return };
        let Some(other) = self.machines[peer].half.as_ref().map(|h| h.number) else { return };
        if all || cut.services.contains(&Service::Mesh) {
            self.session(place, peer, false, Duration::from_millis(1));
            let later = self.dice.millis(REDIAL.0, REDIAL.1);
            self.time.after(later, Event::Redial { a: (place, half), b: (peer, other) });
        }
    }

    /// Who was cut off and is a manager (again) is in session as soon as both ends let it.
    pub(crate) fn redial(&mut self, a: (Place, u32), b: (Place, u32)) {
        let lives = |(place, half): (Place, u32)| self.machines[place].half(half).is_some();
        if !lives(a) || !lives(b) {
            return;
        }
        if self.net.both_open(a.0, b.0) && self.consents(a.0, b.0) && self.consents(b.0, a.0) {
            return self.session(a.0, b.0, true, Duration::from_millis(8));
        }
        let later = self.dice.millis(REDIAL.0, REDIAL.1);
        self.time.after(later, Event::Redial { a, b });
    }

    // ---- what is checked ------------------------------------------------------------------------------------------

    /// For how long this manager has known that a node is blocked, if it has had the time to act on it.
    fn long_known(&self, place: Place, node: NodeId) -> Option<Duration> {
        let since = *self.machines[place].half.as_ref()?.blocks.known.get(&node)?;
        let known = self.now().since(since);
        let awake = self.faults.froze(place).is_none_or(|at| self.now().since(at) > RECOVERED);
        (known > GONE_AFTER && awake && self.machines[place].runs()).then_some(known)
    }

    /// OUT-1: a blocked node has no session with a manager that has known of the block for a while.
    pub(crate) fn judge_the_blocked(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let (half, nodes) = (half.number, half.blocks.known.keys().copied().collect::<Vec<_>>());
        for node in nodes {
            let Some(known) = self.long_known(place, node) else { continue };
            if self.lines.at_host((place, half), node) {
                let (name, known) = (self.name(node), known.as_millis());
                let detail = format!("{name} has a session with n{}, which knew for {known} ms", place + 1);
                self.hold_to(Err(broken(OUT_1, detail)));
            }
        }
    }

    /// OUT-1: nor is anything of its mesh listened to.
    pub(crate) fn judge_heard(&mut self, place: Place, node: NodeId) {
        if let Some(known) = self.long_known(place, node) {
            let (name, known) = (self.name(node), known.as_millis());
            let detail = format!("n{} listens to {name}, of whose block it knew for {known} ms", place + 1);
            self.hold_to(Err(broken(OUT_1, detail)));
        }
    }

    /// OUT-1: nor does it get a certificate there. BLOCK-2 counts from the newest one that anybody got.
    pub(crate) fn judge_signed(&mut self, place: Place, node: NodeId, not_after: WallTime) {
        self.checks.signed(node, not_after);
        if let Some(known) = self.long_known(place, node) {
            let (name, known) = (self.name(node), known.as_millis());
            let detail = format!("n{} signs for {name}, of whose block it knew for {known} ms", place + 1);
            self.hold_to(Err(broken(OUT_1, detail)));
        }
    }

    // ---- what else is asked of the blocklist ----------------------------------------------------------------------

    /// A block of an id that never had a certificate, one that ends before the one that is there, or a sweep by somebody whose
    /// clock is wrong.
    pub(crate) fn block_somebody(&mut self, place: Place, tables: &Tables) {
        let now = self.wall(place);
        let stranger = NodeId::from_entropy(self.dice.wide());
        let blocked: Vec<NodeId> = tables.blocklist.keys().copied().collect();
        let known = self.dice.pick(&blocked);
        let command = Command::idempotent(now, Principal::Operator, "outdated");
        let command = match (self.dice.below(3), known) {
            (0, Some(node)) => command.guard(Guard::BlockExpired { node, at: now }).change(Change::Unblock(node)),
            (what, known) => {
                let node = known.filter(|_| what == 1).unwrap_or(stranger);
                let expires_at = now.plus(self.dice.millis(100, 9000));
                let block = Blocked { node, by: Principal::Operator, blocked_at: now, expires_at };
                command.change(Change::Block(block))
            }
        };
        self.totals.count("fault: outdated block");
        self.say(format!("outdated: {:?}", command.changes));
        self.propose(place, Asker::House, command, Duration::from_secs(2));
    }

    /// The calendars of all machines show a season later, a day at a time: certificates are renewed meanwhile, and blocks end.
    pub(crate) fn seasons_pass(&mut self) -> Result<(), Failure> {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        // A certificate that was issued today, and the margin of its block.
        let season = self.settings.authority.node_lifetime + DAY * 3;
        self.say("a season passes");
        self.model.swept = true;
        for _ in 0..season.as_secs().div_ceil(DAY.as_secs()) {
            self.calendar = self.calendar.saturating_add(DAY);
            self.run_to(self.now() + Duration::from_millis(60))?;
        }
        self.run_to(self.now() + TICK + Duration::from_secs(1))?;
        let now = self.today();
        let over = |t: &Tables| t.blocklist.values().find(|b| b.expires_at.plus(DAY) < now).map(|b| b.node);
        if let Some(node) = self.checks.newest().and_then(over) {
            let detail = format!("the block of {node} is over, and nobody has swept it");
            return Err(self.failure(&broken(CONVERGE_1, detail)));
        }
        Ok(())
    }
}

/// BLOCK-2, as seen from outside: an entry is there as long as any certificate that was ever handed out to that node.
pub fn outlives(before: &Tables, after: &Tables, signed: &BTreeMap<NodeId, WallTime>, today: WallTime) -> Verdict {
    /// Clocks differ by as much.
    const SKEW: Duration = Duration::from_secs(4);
    if before.blocklist.ptr_eq(&after.blocklist) {
        return Ok(());
    }
    for node in before.blocklist.keys().filter(|node| !after.blocklist.contains_key(node)) {
        if let Some(until) = signed.get(node).filter(|until| today.plus(SKEW) < **until) {
            return Err(broken(
                BLOCK_2,
                format!("{node} is not blocked any more, and has a certificate until {until}"),
            ));
        }
    }
    Ok(())
}
