//! A leader's role manager: incarnations, effects, and checks on them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::{ErrorBody, MembershipChangeKind, Moment, RaftId};
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles, Effect, Now, RequestedChange, RoleManager, StepId, StepOutcome};

use crate::checks::{INTENT_1, QUORUM_1, violation};
use crate::clients::ChangeAttempt;
use crate::events::{Answered, Event};
use crate::machine::{Asker, Autopilot, MachineIdx, RoleAsker, Roles};
use crate::model::Promise;
use crate::network::MAX_DELAY;
use crate::policies::Policies;
use crate::world::World;

impl Roles {
    pub(crate) fn at(world: &mut World, idx: MachineIdx) -> Option<&mut Roles> {
        world.machines[idx].runtime.as_mut()?.leader.as_mut()?.roles.as_mut()
    }

    /// An incarnation starts from its predecessor's checkpoint.
    pub(crate) fn restart(world: &mut World, idx: MachineIdx, runtime: u32) {
        let (config, me) = (world.settings.roles.clone(), world.machines[idx].id);
        world.incarnations += 1;
        let incarnation = world.incarnations;
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        let replica = h.core.cluster_replica().clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.roles.is_none()) else { return };
        let before = leader.slot.clone();
        if before.is_some() {
            world.totals.count("role manager restarted from its checkpoint");
        }
        let core = RoleManager::new(me, config, before);
        leader.roles = Some(Roles { incarnation, core, asks: BTreeMap::new(), doomed: false });
        Self::step(world, idx, roles::Input::Seen(replica));
    }

    pub(crate) fn crash(world: &mut World, idx: MachineIdx) {
        let name = world.machines[idx].name.clone();
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        let Some(leader) = runtime.leader.as_mut() else { return };
        if let Some(roles) = leader.roles.take() {
            // The state that the shell kept after the last step.
            leader.slot = Some(roles.core.checkpoint());
            for asker in roles.asks.into_values() {
                if let RoleAsker::Autopilot { incarnation } = asker {
                    Autopilot::lost(world, idx, incarnation);
                }
            }
            world.log(format!("the role manager of {name} crashes"));
            let back = world.rng.millis(1, 400);
            world.time.after(back, Event::RolesBack { idx, runtime: number });
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, incarnation: u32) {
        if Self::at(world, idx).is_some_and(|r| r.incarnation == incarnation) {
            Self::step(world, idx, roles::Input::Woke);
        }
    }

    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: roles::Input) {
        let now = Now { at: world.clock(idx), wall: world.wall(idx) };
        let Some(leader) = world.machines[idx].runtime.as_mut().and_then(|h| h.leader.as_mut()) else { return };
        let Some(roles) = leader.roles.as_mut() else { return };
        let mut effects = Vec::new();
        roles.core.step(now, input, &mut effects);
        let incarnation = roles.incarnation;
        // A crash comes after the checkpoint was kept, with none, some or all effects applied.
        let doomed = roles.doomed && !effects.is_empty();
        let applied_effects = if doomed { world.rng.below(effects.len() + 1) } else { effects.len() };
        for effect in effects.into_iter().take(applied_effects) {
            Self::apply_effect(world, idx, incarnation, effect);
        }
        if doomed {
            Self::crash(world, idx);
        }
    }

    fn apply_effect(world: &mut World, idx: MachineIdx, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Propose { step, command } => {
                let deadline = world.settings.roles.propose_deadline;
                world.log(format!("n{} proposes {step}: {} {:?}", idx + 1, command.reason, command.changes));
                world.propose(idx, Asker::RoleStep { incarnation, step }, *command, deadline);
            }
            Effect::ProposeMembership { step, change, confirm_within } => {
                world.log(format!("n{} proposes membership change {step}: {:?}", idx + 1, change.kind));
                let confirm_by = confirm_within.map(|within| world.clock(idx) + within);
                if let Some(ask) = world.await_answer(idx, Asker::RoleStep { incarnation, step }) {
                    world.deliver(idx, Input::ProposeMembership { ask, change: Box::new(change), confirm_by });
                }
            }
            Effect::Probe { step, addr, node } => {
                let ok = world.idx_of(node).is_some_and(|to| {
                    let other = &world.machines[to];
                    other.runs() && other.runtime.is_some() && other.addr == addr && world.net.both_open(idx, to)
                });
                let delay = if ok { world.rng.micros(500, 5000) } else { world.rng.millis(1, 900) };
                world.time.after(delay, Event::Probed { idx, incarnation, step, ok });
            }
            Effect::TransferLeadership { step, to } => {
                let name = world.name(to);
                world.log(format!("n{} transfers leadership to {name}", idx + 1));
                if let Some(ask) = world.await_answer(idx, Asker::Transfer { incarnation, step }) {
                    world.deliver(idx, Input::TransferLeadership { ask, to: Some(to) });
                }
            }
            Effect::CheckReachable { step, members, needed, within } => {
                let deadline = world.clock(idx) + within;
                if let Some(ask) = world.await_answer(idx, Asker::Reachability { incarnation, step }) {
                    world.deliver(idx, Input::CheckReachable { ask, members, needed, deadline });
                }
            }
            Effect::Answer(ask, answer) => Self::answer(world, idx, ask, answer),
            Effect::WakeAt(at) => {
                let at = world.moment(idx, at);
                world.time.at(at, Event::RolesWoke { idx, incarnation });
            }
        }
    }

    fn answer(world: &mut World, idx: MachineIdx, ask: roles::AskId, answer: roles::Answer) {
        let Some(asker) = Self::at(world, idx).and_then(|r| r.asks.remove(&ask)) else {
            let detail = format!("the role manager answers {ask:?} twice: {answer:?}");
            return world.require(Err(violation(INTENT_1, detail)));
        };
        match (asker, answer) {
            (RoleAsker::Operator(attempt), roles::Answer::Role(result)) => {
                Self::change_ended(world, idx, attempt, result);
            }
            (RoleAsker::Operator(attempt), roles::Answer::Removed(result)) => {
                Self::change_ended(world, idx, attempt, result.map(|()| true));
            }
            (RoleAsker::Membership(caller), roles::Answer::Membership(result)) => {
                world.reply(idx, caller, Answered::Membership(result));
            }
            (RoleAsker::Autopilot { incarnation }, roles::Answer::Role(result)) => {
                let input = muster_autopilot::core::Input::Requested(result.map(|_| ()));
                Autopilot::answer(world, idx, incarnation, input);
            }
            (_, answer) => world.require(Err(violation(INTENT_1, format!("an answer of the wrong kind: {answer:?}")))),
        }
    }

    pub(crate) fn step_ended(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        step: StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if Self::at(world, idx).is_none_or(|r| r.incarnation != incarnation) {
            return;
        }
        let outcome = match result {
            Ok(applied) => StepOutcome::Applied(applied.revision),
            Err(ProposeError::Refused(refusal)) => StepOutcome::Refused(refusal),
            Err(ProposeError::NotLeader { .. }) => StepOutcome::NotLeader,
            Err(ProposeError::Busy) => StepOutcome::Crowded,
            Err(ProposeError::MembershipBusy) => StepOutcome::MembershipBusy,
            Err(ProposeError::TooFewReachable { voters, reachable }) => {
                StepOutcome::TooFewReachable { voters, reachable }
            }
            Err(ProposeError::NoQuorum { missing }) => StepOutcome::NoQuorum { missing },
            Err(ProposeError::TimedOut) => StepOutcome::TimedOut,
            Err(ProposeError::UnknownOutcome | ProposeError::TooLarge { .. } | ProposeError::StateFull { .. }) => {
                StepOutcome::Unknown
            }
        };
        Self::observe_first(world, idx);
        Self::step(world, idx, roles::Input::Committed { step, outcome });
    }

    /// The shell observes before it handles a message, but the replica may lag slightly.
    fn observe_first(world: &mut World, idx: MachineIdx) {
        if world.rng.chance(500)
            && let Some(replica) = world.machines[idx].runtime.as_ref().map(|h| h.core.cluster_replica().clone())
        {
            Self::step(world, idx, roles::Input::Seen(replica));
        }
    }

    pub(crate) fn reachability_checked(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        step: StepId,
        reachable: Option<BTreeSet<RaftId>>,
    ) {
        if Self::at(world, idx).is_some_and(|r| r.incarnation == incarnation) {
            Self::step(world, idx, roles::Input::ReachabilityChecked { step, reachable });
        }
    }

    pub(crate) fn transfer_ended(world: &mut World, idx: MachineIdx, incarnation: u32, step: StepId, taken: bool) {
        world.totals.add("leadership transfers", u64::from(taken));
        world.totals.add("failed leadership transfers", u64::from(!taken));
        if Self::at(world, idx).is_some_and(|r| r.incarnation == incarnation) {
            Self::step(world, idx, roles::Input::Transferred { step, taken });
        }
    }

    pub(crate) fn probed(world: &mut World, idx: MachineIdx, incarnation: u32, step: StepId, ok: bool) {
        if Self::at(world, idx).is_some_and(|r| r.incarnation == incarnation) {
            let unreachable = || ErrorBody::new(muster_messages::ErrorCode::Unreachable, "connection refused");
            let result = if ok { Ok(()) } else { Err(unreachable()) };
            Self::step(world, idx, roles::Input::Probed { step, result });
        }
    }

    /// QUORUM-1: when a change that adds or removes a voter enters a leader's log, a majority of the current voters sent it a message
    /// within an election timeout (plus the longest message delay) before the Raft member took the change on, and a majority of the
    /// resulting voters sent it one since.
    pub(crate) fn check_membership_change(
        world: &mut World,
        idx: MachineIdx,
        change: &MembershipChangeKind,
        since: Moment,
    ) {
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        // A clock that drifts is converted with a rounding error.
        let took = world.now().since(world.moment(idx, since)) + Duration::from_millis(1);
        let ago = world.settings.roles.election_timeout + MAX_DELAY + took;
        if world.machines[idx].thawed_at.is_some_and(|at| world.now().since(at) <= ago) {
            return; // messages read at the thaw may be as old as the freeze
        }
        let mut voters: Vec<_> =
            runtime.core.tables().members.values().filter(|m| m.voter).map(|m| m.raft_id).collect();
        let majority = |voters: &[_], ago| {
            voters.iter().filter(|v| world.recently_reachable(idx, **v, ago)).count() * 2 > voters.len()
        };
        let before = majority(&voters, ago);
        match change {
            MembershipChangeKind::PromoteLearner { raft_id, .. } => voters.push(*raft_id),
            MembershipChangeKind::Remove { raft_id } if voters.contains(raft_id) => voters.retain(|v| v != raft_id),
            _ => return,
        }
        if !(before && majority(&voters, took)) {
            let detail =
                format!("n{} proposes {change:?} and would leave {voters:?} without a reachable majority", idx + 1);
            world.require(Err(violation(QUORUM_1, detail)));
        }
    }

    pub(crate) fn membership_changed(world: &mut World, change: MembershipChangeKind) {
        world.totals.count("membership changes");
        match &change {
            MembershipChangeKind::AddLearner { .. } => world.totals.count("members added"),
            MembershipChangeKind::Remove { .. } => world.totals.count("members removed"),
            MembershipChangeKind::SetAddress { .. } => world.totals.count("addresses changed"),
            MembershipChangeKind::PromoteLearner { .. } => {}
        }
        world.log(format!("applied: {change:?}"));
    }

    /// INTENT-1, and what later reads must show.
    pub(crate) fn change_ended(
        world: &mut World,
        idx: MachineIdx,
        attempt: ChangeAttempt,
        result: Result<bool, ErrorBody>,
    ) {
        let ChangeAttempt { op, attempt, node, change, request } = attempt;
        if result.is_ok() {
            let tables = world.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
            let record = tables.nodes.get(&node);
            let remembered =
                tables.outcome_of(&muster_messages::Principal::Operator, request).is_some_and(|o| o.refused.is_none());
            let (written, promise) = match change {
                RequestedChange::Role(role) => (record.is_some_and(|r| r.desired_role == role), Promise::Desired(role)),
                RequestedChange::Remove { .. } => (record.is_none(), Promise::Gone),
            };
            let removed = matches!(change, RequestedChange::Remove { .. });
            if !written && (removed || !remembered) {
                let detail =
                    format!("{change:?} of {} was accepted and is not in the leader's state", world.name(node));
                world.require(Err(violation(INTENT_1, detail)));
            }
            if let (Ok(true), RequestedChange::Role(role)) = (&result, change) {
                Policies::person_requested(world, idx, node, role);
            }
            world.model.accepted(node, op, promise);
        }
        let delay = world.rng.micros(80, 2000);
        if !world.rng.chance(world.net.conditions.loss) {
            world.time.after(delay, Event::ChangeAnswered { op, attempt, result });
        }
    }
}
