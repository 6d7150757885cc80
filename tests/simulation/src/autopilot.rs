//! A leader's autopilot: incarnations, effects, and checks on them.

use std::sync::Arc;
use std::time::Duration;

use muster_autopilot::core::{self as autopilot, Core, Effect, Input, Now};
use muster_messages::{AutopilotAction, AutopilotStep, Change, Command, ErrorBody, Guard, NodeId, Principal, Role};
use muster_raft_member::core::Input as MemberInput;
use muster_role_manager::core::{self as roles, RequestedChange, RoleRequest};

use crate::events::Event;
use crate::machine::{Asker, Autopilot, MachineIdx, RoleAsker, Roles};
use crate::policies::Policies;
use crate::world::World;

/// As in the shell.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(5);

impl Autopilot {
    pub(crate) fn at(world: &mut World, idx: MachineIdx) -> Option<&mut Autopilot> {
        world.machines[idx].runtime.as_mut()?.leader.as_mut()?.autopilot.as_mut()
    }

    /// Only in runs about it.
    pub(crate) fn restart(world: &mut World, idx: MachineIdx, runtime: u32) {
        if !world.policies.active {
            return;
        }
        world.incarnations += 1;
        let (incarnation, config) = (world.incarnations, world.settings.autopilot.clone());
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        let Some(leader) = h.leader.as_mut().filter(|l| l.autopilot.is_none()) else { return };
        let core = Core::new(config, leader.since);
        leader.autopilot = Some(Autopilot { incarnation, core, doomed: false, wakes: None });
        Self::observe(world, idx);
    }

    pub(crate) fn crash(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        if runtime.leader.as_mut().is_some_and(|l| l.autopilot.take().is_some()) {
            world.totals.count("fault: autopilot crashed");
            world.log(format!("the autopilot of n{} crashes", idx + 1));
            let back = world.rng.millis(1, 400);
            world.time.after(back, Event::AutopilotBack { idx, runtime: number });
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, incarnation: u32) {
        let now = world.clock(idx);
        // A wake-up that was put off does not count.
        let due = |a: &Autopilot| a.incarnation == incarnation && a.wakes.is_some_and(|at| at <= now);
        if let Some(autopilot) = Self::at(world, idx).filter(|a| due(a)) {
            autopilot.wakes = None;
            Self::step(world, idx, Input::Woke);
        }
    }

    /// As the shell: it is passed a replica that has changed in what it decides by, and the newest one with every other message.
    pub(crate) fn observe(world: &mut World, idx: MachineIdx) {
        let now = world.clock(idx);
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let replica = Arc::clone(runtime.core.cluster_replica());
        let Some(leader) = runtime.leader.as_mut() else { return };
        let doubts = leader.dispatch.as_ref().map(|dispatch| dispatch.core.doubts());
        let doubtful = doubts.as_ref().is_some_and(|doubts| *doubts != *leader.doubts);
        leader.doubts = doubts.map_or_else(|| Arc::clone(&leader.doubts), Arc::new);
        let Some(autopilot) = leader.autopilot.as_mut() else { return };
        if autopilot.core.observe(now, &replica) || doubtful {
            Self::refresh(world, idx);
        }
    }

    fn refresh(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let Some(leader) = runtime.leader.as_ref() else { return };
        let (replica, doubts) = (Arc::clone(runtime.core.cluster_replica()), Arc::clone(&leader.doubts));
        Self::handle(world, idx, Input::State { replica, doubts });
    }

    /// An answer, or a wake-up.
    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: Input) {
        Self::refresh(world, idx);
        if !matches!(input, Input::Woke) {
            Self::handle(world, idx, input);
        }
    }

    pub(crate) fn answered(world: &mut World, idx: MachineIdx, incarnation: u32, input: Input) {
        if Self::at(world, idx).is_some_and(|a| a.incarnation == incarnation) {
            Self::step(world, idx, input);
        }
    }

    fn handle(world: &mut World, idx: MachineIdx, input: Input) {
        let now = world.clock(idx);
        let Some(autopilot) = Self::at(world, idx) else { return };
        let mut effects = Vec::new();
        autopilot.core.step(now, input, &mut effects);
        let incarnation = autopilot.incarnation;
        let asks = effects.iter().any(|effect| !matches!(effect, Effect::WakeAt(_) | Effect::Decided(_)));
        let doomed = autopilot.doomed && asks;
        let applied = if doomed { world.rng.below(effects.len() + 1) } else { effects.len() };
        for effect in effects.into_iter().take(applied) {
            Self::apply_effect(world, idx, incarnation, effect);
        }
        if doomed {
            Self::crash(world, idx);
        }
    }

    fn apply_effect(world: &mut World, idx: MachineIdx, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Propose { at, step } => {
                world.log(format!("the autopilot of n{} proposes {step:?}", idx + 1));
                Policies::check_proposal(world, idx, &step);
                count(world, &step);
                let Some(term) = world.machines[idx].runtime.as_ref().map(|h| h.core.replica().raft.term) else {
                    return;
                };
                let command = Command::idempotent(at, Principal::Cluster, "autopilot")
                    .guard(Guard::InTerm(term))
                    .change(Change::Autopilot(Box::new(step)));
                world.propose(idx, Asker::Autopilot { incarnation }, command, PROPOSAL_DEADLINE);
            }
            Effect::SetRole { node, role } => {
                let name = world.name(node);
                world.log(format!("the autopilot of n{} requests that {name} be a {role}", idx + 1));
                Policies::check_request(world, idx, node, role);
                Self::request(world, idx, incarnation, node, role);
            }
            Effect::HandOver { to } => {
                world.totals.count("leadership offered by a drained node");
                if let Some(ask) = world.await_answer(idx, Asker::AutopilotTransfer { incarnation }) {
                    world.deliver(idx, MemberInput::TransferLeadership { ask, to: Some(to) });
                }
            }
            Effect::Decided(message) => world.log(format!("the autopilot of n{}: {message}", idx + 1)),
            Effect::WakeAt(at) => {
                if let Some(autopilot) = Self::at(world, idx) {
                    autopilot.wakes = at;
                }
                if let Some(at) = at {
                    let at = world.moment(idx, at);
                    world.time.at(at, Event::AutopilotWoke { idx, incarnation });
                }
            }
        }
    }

    fn request(world: &mut World, idx: MachineIdx, incarnation: u32, node: NodeId, role: Role) {
        let ask = roles::AskId(world.number());
        let Some(roles) = Roles::at(world, idx) else {
            return Self::lost(world, idx, incarnation);
        };
        roles.asks.insert(ask, RoleAsker::Autopilot { incarnation });
        let (change, by, request) = (RequestedChange::Role(role), Principal::Cluster, muster_messages::RequestId(0));
        Roles::step(world, idx, roles::Input::RoleRequested(RoleRequest { ask, node, change, by, request }));
    }

    /// The role manager crashed, or is not there: its port is closed.
    pub(crate) fn lost(world: &mut World, idx: MachineIdx, incarnation: u32) {
        Self::answer(world, idx, incarnation, Input::Requested(Err(ErrorBody::unknown_outcome("the port is closed"))));
    }

    pub(crate) fn answer(world: &mut World, idx: MachineIdx, incarnation: u32, input: Input) {
        let soon = world.rng.micros(10, 2000);
        world.time.after(soon, Event::AutopilotAnswered { idx, incarnation, input: Box::new(input) });
    }

    /// What it knows now.
    pub(crate) fn facts(world: &mut World, idx: MachineIdx) -> Option<autopilot::Facts> {
        let now = world.clock(idx);
        Self::at(world, idx).map(|autopilot| autopilot.core.facts(now))
    }

    /// Both clocks of a machine, for the beginning of a term.
    pub(crate) fn term_begins(world: &World, idx: MachineIdx) -> Now {
        Now { at: world.clock(idx), wall: world.wall(idx) }
    }
}

fn count(world: &mut World, step: &AutopilotStep) {
    use muster_messages::AutopilotOutcome as O;
    let what = match step {
        AutopilotStep::Begin { action: AutopilotAction::Promote, replaces: None, .. } => "promotions begun",
        AutopilotStep::Begin { action: AutopilotAction::Promote, .. } => "promotions begun in place of another manager",
        AutopilotStep::Begin { action: AutopilotAction::Demote, replaces: Some(_), .. } => "dead managers demoted",
        AutopilotStep::Begin { action: AutopilotAction::Demote, .. } => "surplus managers demoted",
        AutopilotStep::End { outcome: O::Settled, .. } => "changes of the autopilot settled",
        AutopilotStep::End { outcome: O::TakenBack, .. } => "promotions taken back",
        AutopilotStep::End { outcome: O::Refused, .. } => "changes of the autopilot refused",
        AutopilotStep::End { .. } => "changes of the autopilot dropped",
        AutopilotStep::Pause { .. } => "autopilot gave up",
        AutopilotStep::Undrain { .. } => "drains over",
        _ => return,
    };
    world.totals.count(what);
}
