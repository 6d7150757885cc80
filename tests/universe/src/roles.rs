//! The role manager of a leader: its incarnations, its effects, and what is checked of them.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::{ErrorBody, RaftId, SeatChange, SeatChangeKind};
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles, Effect, Now, RoleManager, StepId, StepOutcome, Wish};

use crate::checks::{QUORUM_1, WISH_1, broken};
use crate::machine::{Asker, Place, RoleAsker, Roles};
use crate::model::Promise;
use crate::network::LONGEST;
use crate::world::{Answered, Event, Universe};

impl Universe {
    pub(crate) fn roles(&mut self, place: Place) -> Option<&mut Roles> {
        self.machines[place].half.as_mut()?.leader.as_mut()?.roles.as_mut()
    }

    /// An incarnation starts from the checkpoint of the one before it.
    pub(crate) fn roles_back(&mut self, place: Place, half: u32) {
        let (config, me) = (self.settings.roles.clone(), self.machines[place].id);
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let Some(h) = self.machines[place].half_mut(half) else { return };
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
        self.roles_step(place, roles::Input::Seen(replica));
    }

    pub(crate) fn crash_roles(&mut self, place: Place) {
        let name = self.machines[place].name.clone();
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let number = half.number;
        let Some(leader) = half.leader.as_mut() else { return };
        if let Some(roles) = leader.roles.take() {
            // As the shell has kept it after the last step.
            leader.slot = Some(roles.core.checkpoint());
            self.say(format!("the role manager of {name} crashes"));
            let back = self.dice.millis(1, 400);
            self.time.after(back, Event::RolesBack { place, half: number });
        }
    }

    pub(crate) fn roles_woke(&mut self, place: Place, incarnation: u32) {
        if self.roles(place).is_some_and(|r| r.incarnation == incarnation) {
            self.roles_step(place, roles::Input::Woke);
        }
    }

    pub(crate) fn roles_step(&mut self, place: Place, input: roles::Input) {
        let now = Now { at: self.clock(place), wall: self.wall(place) };
        let Some(leader) = self.machines[place].half.as_mut().and_then(|h| h.leader.as_mut()) else { return };
        let Some(roles) = leader.roles.as_mut() else { return };
        let mut effects = Vec::new();
        roles.core.step(now, input, &mut effects);
        let incarnation = roles.incarnation;
        // It crashes after its checkpoint was kept, with none, some or all of its effects performed.
        let doomed = roles.doomed && !effects.is_empty();
        let performed = if doomed { self.dice.below(effects.len() + 1) } else { effects.len() };
        for effect in effects.into_iter().take(performed) {
            self.perform_role(place, incarnation, effect);
        }
        if doomed {
            self.crash_roles(place);
        }
    }

    fn perform_role(&mut self, place: Place, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Propose { step, command } => {
                let deadline = self.settings.roles.propose_deadline;
                self.say(format!("n{} writes {step}: {} {:?}", place + 1, command.reason, command.changes));
                self.propose(place, Asker::RoleStep { incarnation, step }, *command, deadline);
            }
            Effect::ProposeSeat { step, change } => {
                self.say(format!("n{} changes the membership {step}: {:?}", place + 1, change.kind));
                self.judge_seat_change(place, &change);
                if let Some(ask) = self.park(place, Asker::RoleStep { incarnation, step }) {
                    self.hear(place, Input::ProposeSeat { ask, change: Box::new(change) });
                }
            }
            Effect::Probe { step, addr, node } => {
                let ok = self.place_of(node).is_some_and(|to| {
                    let other = &self.machines[to];
                    other.runs() && other.half.is_some() && other.addr == addr && self.net.both_open(place, to)
                });
                let delay = if ok { self.dice.micros(500, 5000) } else { self.dice.millis(1, 900) };
                self.time.after(delay, Event::Probed { place, incarnation, step, ok });
            }
            Effect::TransferLeadership { step, to } => {
                let name = self.name(to);
                self.say(format!("n{} offers leadership to {name}", place + 1));
                if let Some(ask) = self.park(place, Asker::Transfer { incarnation, step }) {
                    self.hear(place, Input::TransferLeadership { ask, to: Some(to) });
                }
            }
            Effect::CheckReachable { step, members, needed, within } => {
                let (now, deadline) = (self.now(), self.clock(place) + within);
                if let Some(roles) = self.roles(place) {
                    roles.checks.insert(step, now);
                }
                if let Some(ask) = self.park(place, Asker::Reachability { incarnation, step }) {
                    self.hear(place, Input::CheckReachable { ask, members, needed, deadline });
                }
            }
            Effect::Answer(ask, answer) => self.answer_roles(place, ask, answer),
            Effect::WakeAt(at) => {
                let at = self.moment(place, at);
                self.time.at(at, Event::RolesWoke { place, incarnation });
            }
        }
    }

    fn answer_roles(&mut self, place: Place, ask: roles::AskId, answer: roles::Answer) {
        let Some(asker) = self.roles(place).and_then(|r| r.asks.remove(&ask)) else {
            let detail = format!("the role manager answers {ask:?} twice: {answer:?}");
            return self.hold_to(Err(broken(WISH_1, detail)));
        };
        match (asker, answer) {
            (RoleAsker::Operator { op, attempt }, roles::Answer::Role(result)) => {
                self.wish_ended(place, op, attempt, result);
            }
            (RoleAsker::Operator { op, attempt }, roles::Answer::Removed(result)) => {
                self.wish_ended(place, op, attempt, result.map(|()| true));
            }
            (RoleAsker::Seat(caller), roles::Answer::Seat(result)) => {
                self.reply(place, caller, Answered::Seat(result));
            }
            (_, answer) => self.hold_to(Err(broken(WISH_1, format!("an answer of another kind: {answer:?}")))),
        }
    }

    pub(crate) fn role_step_ended(
        &mut self,
        place: Place,
        incarnation: u32,
        step: StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if self.roles(place).is_none_or(|r| r.incarnation != incarnation) {
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
        self.look_first(place);
        self.roles_step(place, roles::Input::Committed { step, outcome });
    }

    /// The shell looks before it handles a message, but the level may be a moment behind.
    fn look_first(&mut self, place: Place) {
        if self.dice.chance(500)
            && let Some(replica) = self.machines[place].half.as_ref().map(|h| h.core.replica().clone())
        {
            self.roles_step(place, roles::Input::Seen(replica));
        }
    }

    pub(crate) fn reachability_checked(
        &mut self,
        place: Place,
        incarnation: u32,
        step: StepId,
        reachable: Option<BTreeSet<RaftId>>,
    ) {
        if let Some(roles) = self.roles(place).filter(|r| r.incarnation == incarnation) {
            roles.checked_since = roles.checks.remove(&step).or(roles.checked_since);
            self.roles_step(place, roles::Input::ReachabilityChecked { step, reachable });
        }
    }

    pub(crate) fn transfer_ended(&mut self, place: Place, incarnation: u32, step: StepId, taken: bool) {
        self.totals.add("leadership transfers", u64::from(taken));
        self.totals.add("leadership transfers that failed", u64::from(!taken));
        if self.roles(place).is_some_and(|r| r.incarnation == incarnation) {
            self.roles_step(place, roles::Input::Transferred { step, taken });
        }
    }

    pub(crate) fn probed(&mut self, place: Place, incarnation: u32, step: StepId, ok: bool) {
        if self.roles(place).is_some_and(|r| r.incarnation == incarnation) {
            let unreachable = || ErrorBody::new(muster_messages::ErrorCode::Unreachable, "connection refused");
            let result = if ok { Ok(()) } else { Err(unreachable()) };
            self.roles_step(place, roles::Input::Probed { step, result });
        }
    }

    /// QUORUM-1: when a leader proposes to add or remove a voter, a majority of the current voters sent it a message within an
    /// election timeout (plus the longest message delay), and a majority of the resulting voters sent it one after its last
    /// reachability check began.
    fn judge_seat_change(&mut self, place: Place, change: &SeatChange) {
        let checked_since = self.roles(place).and_then(|roles| roles.checked_since);
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let ago = self.settings.roles.election_timeout + LONGEST;
        if self.faults.froze(place).is_some_and(|at| self.now().since(at) <= ago) {
            return; // what it heard when it woke may be as old as its sleep
        }
        let mut voters: Vec<_> = half.core.tables().members.values().filter(|m| m.voter).map(|m| m.raft_id).collect();
        let heard = |voters: &[_], ago| {
            voters.iter().filter(|v| self.recently_heard(place, **v, ago)).count() * 2 > voters.len()
        };
        let before = heard(&voters, ago);
        match &change.kind {
            SeatChangeKind::PromoteLearner { raft_id, .. } => voters.push(*raft_id),
            SeatChangeKind::Remove { raft_id } if voters.contains(raft_id) => voters.retain(|v| v != raft_id),
            _ => return,
        }
        if !(before && heard(&voters, self.now().since(checked_since.unwrap_or(self.now())))) {
            let detail = format!(
                "n{} proposes {:?} and would leave {voters:?} without a majority in reach",
                place + 1,
                change.kind
            );
            self.hold_to(Err(broken(QUORUM_1, detail)));
        }
    }

    pub(crate) fn membership_changed(&mut self, change: SeatChangeKind) {
        self.totals.count("membership changes");
        match &change {
            SeatChangeKind::AddLearner { .. } => self.totals.count("seats given"),
            SeatChangeKind::Remove { .. } => self.totals.count("seats taken back"),
            SeatChangeKind::SetAddress { .. } => self.totals.count("addresses changed"),
            SeatChangeKind::PromoteLearner { .. } => {}
        }
        self.say(format!("applied: {change:?}"));
    }

    /// WISH-1, and what a reader may count on from now on.
    pub(crate) fn wish_ended(
        &mut self,
        place: Place,
        op: crate::clients::OpNumber,
        attempt: u32,
        result: Result<bool, ErrorBody>,
    ) {
        if let (Ok(_), Some((node, wish, request))) = (&result, self.clients.op(op)) {
            let tables = self.machines[place].half.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
            let record = tables.nodes.get(&node);
            let remembered =
                tables.outcome_of(&muster_messages::Principal::Operator, request).is_some_and(|o| o.refused.is_none());
            let (written, promise) = match wish {
                Wish::Role(role) => (record.is_some_and(|r| r.desired_role == role), Promise::Desired(role)),
                Wish::Remove { .. } => (record.is_none(), Promise::Gone),
            };
            let removed = matches!(wish, Wish::Remove { .. });
            if !written && (removed || !remembered) {
                let detail = format!("{wish:?} of {} was accepted and is not in the leader's state", self.name(node));
                self.hold_to(Err(broken(WISH_1, detail)));
            }
            self.model.accepted(node, op, promise);
        }
        let delay = self.dice.micros(80, 2000);
        if !self.dice.chance(self.net.weather.loss) {
            self.time.after(delay, Event::WishAnswered { op, attempt, result });
        }
    }
}
