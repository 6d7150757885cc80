//! A leader's role manager: incarnations, effects, and checks on them.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::{ErrorBody, MembershipChange, MembershipChangeKind, RaftId};
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles, DesiredChange, Effect, Now, RoleManager, StepId, StepOutcome};

use crate::checks::{INTENT_1, QUORUM_1, violation};
use crate::machine::{Asker, MachineIdx, RoleAsker, Roles};
use crate::model::Promise;
use crate::network::MAX_DELAY;
use crate::simulation::{Answered, Event, Simulation};

impl Simulation {
    pub(crate) fn roles(&mut self, idx: MachineIdx) -> Option<&mut Roles> {
        self.machines[idx].runtime.as_mut()?.leader.as_mut()?.roles.as_mut()
    }

    /// An incarnation starts from its predecessor's checkpoint.
    pub(crate) fn roles_back(&mut self, idx: MachineIdx, runtime: u32) {
        let (config, me) = (self.settings.roles.clone(), self.machines[idx].id);
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let Some(h) = self.machines[idx].runtime_mut(runtime) else { return };
        let replica = h.core.replica().clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.roles.is_none()) else { return };
        let before = leader.slot.clone();
        if before.is_some() {
            self.totals.count("role manager restarted from its checkpoint");
        }
        let core = RoleManager::new(me, config, before);
        leader.roles = Some(Roles {
            incarnation,
            core,
            asks: BTreeMap::new(),
            doomed: false,
            checks: BTreeMap::new(),
            checked_since: None,
        });
        self.roles_step(idx, roles::Input::Seen(replica));
    }

    pub(crate) fn crash_roles(&mut self, idx: MachineIdx) {
        let name = self.machines[idx].name.clone();
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        let Some(leader) = runtime.leader.as_mut() else { return };
        if let Some(roles) = leader.roles.take() {
            // The state that the shell kept after the last step.
            leader.slot = Some(roles.core.checkpoint());
            self.log(format!("the role manager of {name} crashes"));
            let back = self.rng.millis(1, 400);
            self.time.after(back, Event::RolesBack { idx, runtime: number });
        }
    }

    pub(crate) fn roles_woke(&mut self, idx: MachineIdx, incarnation: u32) {
        if self.roles(idx).is_some_and(|r| r.incarnation == incarnation) {
            self.roles_step(idx, roles::Input::Woke);
        }
    }

    pub(crate) fn roles_step(&mut self, idx: MachineIdx, input: roles::Input) {
        let now = Now { at: self.clock(idx), wall: self.wall(idx) };
        let Some(leader) = self.machines[idx].runtime.as_mut().and_then(|h| h.leader.as_mut()) else { return };
        let Some(roles) = leader.roles.as_mut() else { return };
        let mut effects = Vec::new();
        roles.core.step(now, input, &mut effects);
        let incarnation = roles.incarnation;
        // A crash comes after the checkpoint was kept, with none, some or all effects applied.
        let doomed = roles.doomed && !effects.is_empty();
        let applied_effects = if doomed { self.rng.below(effects.len() + 1) } else { effects.len() };
        for effect in effects.into_iter().take(applied_effects) {
            self.apply_role_effect(idx, incarnation, effect);
        }
        if doomed {
            self.crash_roles(idx);
        }
    }

    fn apply_role_effect(&mut self, idx: MachineIdx, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Propose { step, command } => {
                let deadline = self.settings.roles.propose_deadline;
                self.log(format!("n{} proposes {step}: {} {:?}", idx + 1, command.reason, command.changes));
                self.propose(idx, Asker::RoleStep { incarnation, step }, *command, deadline);
            }
            Effect::ProposeMembership { step, change } => {
                self.log(format!("n{} proposes membership change {step}: {:?}", idx + 1, change.kind));
                self.check_membership_change(idx, &change);
                if let Some(ask) = self.await_answer(idx, Asker::RoleStep { incarnation, step }) {
                    self.deliver(idx, Input::ProposeMembership { ask, change: Box::new(change) });
                }
            }
            Effect::Probe { step, addr, node } => {
                let ok = self.idx_of(node).is_some_and(|to| {
                    let other = &self.machines[to];
                    other.runs() && other.runtime.is_some() && other.addr == addr && self.net.both_open(idx, to)
                });
                let delay = if ok { self.rng.micros(500, 5000) } else { self.rng.millis(1, 900) };
                self.time.after(delay, Event::Probed { idx, incarnation, step, ok });
            }
            Effect::TransferLeadership { step, to } => {
                let name = self.name(to);
                self.log(format!("n{} transfers leadership to {name}", idx + 1));
                if let Some(ask) = self.await_answer(idx, Asker::Transfer { incarnation, step }) {
                    self.deliver(idx, Input::TransferLeadership { ask, to: Some(to) });
                }
            }
            Effect::CheckReachable { step, members, needed, within } => {
                let (now, deadline) = (self.now(), self.clock(idx) + within);
                if let Some(roles) = self.roles(idx) {
                    roles.checks.insert(step, now);
                }
                if let Some(ask) = self.await_answer(idx, Asker::Reachability { incarnation, step }) {
                    self.deliver(idx, Input::CheckReachable { ask, members, needed, deadline });
                }
            }
            Effect::Answer(ask, answer) => self.answer_roles(idx, ask, answer),
            Effect::WakeAt(at) => {
                let at = self.moment(idx, at);
                self.time.at(at, Event::RolesWoke { idx, incarnation });
            }
        }
    }

    fn answer_roles(&mut self, idx: MachineIdx, ask: roles::AskId, answer: roles::Answer) {
        let Some(asker) = self.roles(idx).and_then(|r| r.asks.remove(&ask)) else {
            let detail = format!("the role manager answers {ask:?} twice: {answer:?}");
            return self.require(Err(violation(INTENT_1, detail)));
        };
        match (asker, answer) {
            (RoleAsker::Operator { op, attempt }, roles::Answer::Role(result)) => {
                self.change_ended(idx, op, attempt, result);
            }
            (RoleAsker::Operator { op, attempt }, roles::Answer::Removed(result)) => {
                self.change_ended(idx, op, attempt, result.map(|()| true));
            }
            (RoleAsker::Membership(caller), roles::Answer::Membership(result)) => {
                self.reply(idx, caller, Answered::Membership(result));
            }
            (_, answer) => self.require(Err(violation(INTENT_1, format!("an answer of the wrong kind: {answer:?}")))),
        }
    }

    pub(crate) fn role_step_ended(
        &mut self,
        idx: MachineIdx,
        incarnation: u32,
        step: StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if self.roles(idx).is_none_or(|r| r.incarnation != incarnation) {
            return;
        }
        let outcome = match result {
            Ok(applied) => StepOutcome::Applied(applied.revision),
            Err(ProposeError::Refused(refusal)) => StepOutcome::Refused(refusal),
            Err(ProposeError::NotLeader { .. }) => StepOutcome::NotLeader,
            Err(ProposeError::Busy) => StepOutcome::Crowded,
            Err(ProposeError::MembershipBusy) => StepOutcome::MembershipBusy,
            Err(ProposeError::NoQuorum { missing }) => StepOutcome::NoQuorum { missing },
            Err(ProposeError::TimedOut) => StepOutcome::TimedOut,
            Err(ProposeError::UnknownOutcome | ProposeError::TooLarge { .. } | ProposeError::StateFull { .. }) => {
                StepOutcome::Unknown
            }
        };
        self.observe_first(idx);
        self.roles_step(idx, roles::Input::Committed { step, outcome });
    }

    /// The shell observes before it handles a message, but the replica may lag slightly.
    fn observe_first(&mut self, idx: MachineIdx) {
        if self.rng.chance(500)
            && let Some(replica) = self.machines[idx].runtime.as_ref().map(|h| h.core.replica().clone())
        {
            self.roles_step(idx, roles::Input::Seen(replica));
        }
    }

    pub(crate) fn reachability_checked(
        &mut self,
        idx: MachineIdx,
        incarnation: u32,
        step: StepId,
        reachable: Option<BTreeSet<RaftId>>,
    ) {
        if let Some(roles) = self.roles(idx).filter(|r| r.incarnation == incarnation) {
            roles.checked_since = roles.checks.remove(&step).or(roles.checked_since);
            self.roles_step(idx, roles::Input::ReachabilityChecked { step, reachable });
        }
    }

    pub(crate) fn transfer_ended(&mut self, idx: MachineIdx, incarnation: u32, step: StepId, taken: bool) {
        self.totals.add("leadership transfers", u64::from(taken));
        self.totals.add("failed leadership transfers", u64::from(!taken));
        if self.roles(idx).is_some_and(|r| r.incarnation == incarnation) {
            self.roles_step(idx, roles::Input::Transferred { step, taken });
        }
    }

    pub(crate) fn probed(&mut self, idx: MachineIdx, incarnation: u32, step: StepId, ok: bool) {
        if self.roles(idx).is_some_and(|r| r.incarnation == incarnation) {
            let unreachable = || ErrorBody::new(muster_messages::ErrorCode::Unreachable, "connection refused");
            let result = if ok { Ok(()) } else { Err(unreachable()) };
            self.roles_step(idx, roles::Input::Probed { step, result });
        }
    }

    /// QUORUM-1: when a leader proposes to add or remove a voter, a majority of the current voters sent it a message within an
    /// election timeout (plus the longest message delay), and a majority of the resulting voters sent it one after its last
    /// reachability check began.
    fn check_membership_change(&mut self, idx: MachineIdx, change: &MembershipChange) {
        let checked_since = self.roles(idx).and_then(|roles| roles.checked_since);
        let Some(runtime) = self.machines[idx].runtime.as_ref() else { return };
        let ago = self.settings.roles.election_timeout + MAX_DELAY;
        if self.faults.froze(idx).is_some_and(|at| self.now().since(at) <= ago) {
            return; // messages read at the thaw may be as old as the freeze
        }
        let mut voters: Vec<_> =
            runtime.core.tables().members.values().filter(|m| m.voter).map(|m| m.raft_id).collect();
        let majority = |voters: &[_], ago| {
            voters.iter().filter(|v| self.recently_reachable(idx, **v, ago)).count() * 2 > voters.len()
        };
        let before = majority(&voters, ago);
        match &change.kind {
            MembershipChangeKind::PromoteLearner { raft_id, .. } => voters.push(*raft_id),
            MembershipChangeKind::Remove { raft_id } if voters.contains(raft_id) => voters.retain(|v| v != raft_id),
            _ => return,
        }
        if !(before && majority(&voters, self.now().since(checked_since.unwrap_or(self.now())))) {
            let detail = format!(
                "n{} proposes {:?} and would leave {voters:?} without a reachable majority",
                idx + 1,
                change.kind
            );
            self.require(Err(violation(QUORUM_1, detail)));
        }
    }

    pub(crate) fn membership_changed(&mut self, change: MembershipChangeKind) {
        self.totals.count("membership changes");
        match &change {
            MembershipChangeKind::AddLearner { .. } => self.totals.count("members added"),
            MembershipChangeKind::Remove { .. } => self.totals.count("members removed"),
            MembershipChangeKind::SetAddress { .. } => self.totals.count("addresses changed"),
            MembershipChangeKind::PromoteLearner { .. } => {}
        }
        self.log(format!("applied: {change:?}"));
    }

    /// INTENT-1, and what later reads must show.
    pub(crate) fn change_ended(
        &mut self,
        idx: MachineIdx,
        op: crate::clients::OpNumber,
        attempt: u32,
        result: Result<bool, ErrorBody>,
    ) {
        if let (Ok(_), Some((node, change, request))) = (&result, self.clients.op(op)) {
            let tables = self.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
            let record = tables.nodes.get(&node);
            let remembered =
                tables.outcome_of(&muster_messages::Principal::Operator, request).is_some_and(|o| o.refused.is_none());
            let (written, promise) = match change {
                DesiredChange::Role(role) => (record.is_some_and(|r| r.desired_role == role), Promise::Desired(role)),
                DesiredChange::Remove { .. } => (record.is_none(), Promise::Gone),
            };
            let removed = matches!(change, DesiredChange::Remove { .. });
            if !written && (removed || !remembered) {
                let detail = format!("{change:?} of {} was accepted and is not in the leader's state", self.name(node));
                self.require(Err(violation(INTENT_1, detail)));
            }
            self.model.accepted(node, op, promise);
        }
        let delay = self.rng.micros(80, 2000);
        if !self.rng.chance(self.net.conditions.loss) {
            self.time.after(delay, Event::ChangeAnswered { op, attempt, result });
        }
    }
}
