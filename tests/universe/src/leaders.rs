//! What runs while a member leads: role manager, certificate authority, and a dispatcher reduced to liveness.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::wire::JoinReply;
use muster_messages::{
    Change, ClusterId, ClusterRecord, Command, ErrorBody, Generation, Guard, Incarnation, Liveness, Name, NodeRecord,
    Principal, Revision, Role, SeatChange, SeatChangeKind, Secret, Token, WaitReason, WallTime,
};
use muster_pki::Signed;
use muster_raft_member::core::Input;
use muster_role_manager::core::{self as roles, Effect, Now, RoleManager, StepId, StepOutcome, Wish};

use crate::checks::{QUORUM_1, WISH_1, broken};
use crate::machine::{Asker, Authority, Caller, Leader, Place, RoleAsker, Roles};
use crate::model::Promise;
use crate::network::LONGEST;
use crate::world::{Answered, Event, Universe};

const DISPATCH: Duration = Duration::from_millis(500);
/// A node that nobody heard for this long is down. Shorter than the real thing, as everything in a universe's minute.
const SILENCE: Duration = Duration::from_secs(4);
const TOKENS: [Role; 2] = [Role::Worker, Role::Manager];

/// The secret of the token for a role.
pub(crate) fn token_secret(role: Role) -> Secret {
    Secret::new(format!("secret-of-{role}"))
}

impl Universe {
    /// The member's level has changed: the leader's actors come and go with it, and look at it soon.
    pub(crate) fn published(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let replica = half.core.replica().clone();
        let wanted = replica.raft.leading.then_some(replica.raft.term);
        if half.leader.as_ref().map(|l| l.term) != wanted {
            half.leader =
                wanted.map(|term| Leader { term, slot: None, roles: None, authority: None, heard: BTreeMap::new() });
            let number = half.number;
            if wanted.is_some() {
                self.start_leader(place, number);
            }
        }
        if let Some(half) = self.machines[place].half.as_mut().filter(|h| h.leader.is_some() && !h.look_due) {
            half.look_due = true;
            let (half, soon) = (half.number, self.dice.micros(0, 1500));
            self.time.after(soon, Event::Look { place, half });
        }
        self.keep_seat(place, replica.raft.raft_id);
    }

    fn start_leader(&mut self, place: Place, half: u32) {
        let tables = self.machines[place].half.as_ref().map(|h| h.core.tables().clone()).unwrap_or_default();
        if tables.cluster.is_none() {
            let command = self.founding(place);
            self.propose(place, Asker::House, command, Duration::from_secs(5));
        }
        self.roles_back(place, half);
        self.authority_back(place, half);
        self.time.after(DISPATCH, Event::Dispatch { place, half });
    }

    fn founding(&self, place: Place) -> Command {
        let now = self.wall(place);
        let cluster = ClusterRecord {
            id: ClusterId::from_entropy(crate::members::CLUSTER),
            name: Name::sanitized("universe"),
            incarnation: Incarnation(1),
            feature_level: 1,
            root_cert_pem: "root".to_owned(),
            root_key_pem: Secret::new("key"),
            founded_at: now,
            revision: Revision(0),
        };
        let token = |role: Role| Token {
            id: format!("default-{role}"),
            role,
            secret: token_secret(role),
            default: true,
            created_at: now,
            expires_at: None,
            uses_left: None,
            revision: Revision(0),
        };
        let founder = Box::new(self.record(place, now));
        let found = Change::Found { cluster: Box::new(cluster), founder, tokens: TOKENS.map(token).to_vec() };
        Command::idempotent(now, Principal::Operator, "founded").guard(Guard::NotFounded).change(found)
    }

    fn record(&self, place: Place, now: WallTime) -> NodeRecord {
        let machine = &self.machines[place];
        NodeRecord {
            id: machine.id,
            name: machine.name.clone(),
            addr: machine.addr.clone(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
            desired_role: Role::Manager,
            role: Role::Manager,
            granted: Revision(0),
            removing: None,
            certificate: None,
            last_not_after: now,
            liveness: Liveness::Unknown,
            liveness_since: now,
            created_at: now,
            generation: Generation(1),
            revision: Revision(0),
        }
    }

    pub(crate) fn propose(&mut self, place: Place, asker: Asker, command: Command, within: Duration) {
        let deadline = self.clock(place) + within;
        if let Some(ask) = self.park(place, asker) {
            self.hear(place, Input::Propose { ask, command: Box::new(command), deadline });
        }
    }

    /// The leader's actors see the newest level.
    pub(crate) fn look(&mut self, place: Place, half: u32) {
        let Some(h) = self.machines[place].half_mut(half) else { return };
        h.look_due = false;
        let replica = h.core.replica().clone();
        if h.leader.is_some() {
            self.roles_step(place, roles::Input::Seen(replica.clone()));
            self.authority_step(place, authority::Input::Copy(replica.tables.clone()));
        }
    }

    // ---- role manager ---------------------------------------------------------------------------------------------

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
        leader.roles = Some(Roles { incarnation, core, asks: BTreeMap::new(), doomed: false });
        self.roles_step(place, roles::Input::Seen(replica));
    }

    pub(crate) fn crash_roles(&mut self, place: Place) {
        let name = self.machines[place].name.clone();
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let number = half.number;
        let Some(leader) = half.leader.as_mut() else { return };
        if leader.roles.take().is_some() {
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
        leader.slot = Some(roles.core.checkpoint());
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
                let half = self.machines[caller.place].half.as_ref().map_or(0, |h| h.number);
                self.reply(place, caller, Answered::Seat { half, result });
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
            Err(ProposeError::UnknownOutcome | ProposeError::TooLarge { .. }) => StepOutcome::Unknown,
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

    /// QUORUM-1: when a leader proposes that somebody become or cease to be a voter, a majority of the voters, of now
    /// and of afterwards, was heard within an election timeout (and the time that a message may take).
    fn judge_seat_change(&mut self, place: Place, change: &SeatChange) {
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let ago = self.settings.roles.election_timeout + LONGEST;
        if self.faults.froze(place).is_some_and(|at| self.now().since(at) <= ago) {
            return; // what it heard when it woke may be as old as its sleep
        }
        let mut voters: Vec<_> = half.core.tables().members.values().filter(|m| m.voter).map(|m| m.raft_id).collect();
        let heard =
            |voters: &[_]| voters.iter().filter(|v| self.recently_heard(place, **v, ago)).count() * 2 > voters.len();
        let before = heard(&voters);
        match &change.kind {
            SeatChangeKind::PromoteLearner { raft_id, .. } => voters.push(*raft_id),
            SeatChangeKind::Remove { raft_id } if voters.contains(raft_id) => voters.retain(|v| v != raft_id),
            _ => return,
        }
        if !(before && heard(&voters)) {
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
            let remembered = tables.outcomes.get(&request).is_some_and(|o| o.refused.is_none());
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

    // ---- certificate authority ------------------------------------------------------------------------------------

    pub(crate) fn authority(&mut self, place: Place) -> Option<&mut Authority> {
        self.machines[place].half.as_mut()?.leader.as_mut()?.authority.as_mut()
    }

    pub(crate) fn authority_back(&mut self, place: Place, half: u32) {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let config = self.settings.authority.clone();
        let Some(h) = self.machines[place].half_mut(half) else { return };
        let tables = h.core.replica().tables.clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.authority.is_none()) else { return };
        let core = authority::CertAuthority::new(config);
        leader.authority = Some(Authority { incarnation, core, asks: BTreeMap::new() });
        self.authority_step(place, authority::Input::Copy(tables));
    }

    pub(crate) fn crash_authority(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let number = half.number;
        if half.leader.as_mut().is_some_and(|l| l.authority.take().is_some()) {
            self.say(format!("the certificate authority of n{} crashes", place + 1));
            let back = self.dice.millis(1, 400);
            self.time.after(back, Event::AuthorityBack { place, half: number });
        }
    }

    pub(crate) fn authority_woke(&mut self, place: Place, incarnation: u32) {
        if self.authority(place).is_some_and(|a| a.incarnation == incarnation) {
            self.authority_step(place, authority::Input::Woke);
        }
    }

    pub(crate) fn authority_step(&mut self, place: Place, input: authority::Input) {
        let (now, wall) = (self.clock(place), self.wall(place));
        let Some(authority) = self.authority(place) else { return };
        let incarnation = authority.incarnation;
        let mut effects = Vec::new();
        authority.core.step(now, wall, input, &mut effects);
        for effect in effects {
            self.perform_authority(place, incarnation, effect);
        }
    }

    fn perform_authority(&mut self, place: Place, incarnation: u32, effect: authority::Effect) {
        match effect {
            authority::Effect::Sign { step, profile, .. } => {
                let authority::Profile::Node(profile) = profile else { return };
                let serial = format!("{:08x}", self.number());
                let not_after = profile.now.plus(profile.lifetime);
                let granted = profile.granted.unwrap_or_default();
                // What a node reads out of its certificate.
                let cert_pem = format!("{} {granted} {serial} {}", profile.role, not_after.0);
                let signed = Signed { cert_pem, serial, not_after };
                self.authority_step(place, authority::Input::Signed(step, Ok(signed)));
            }
            authority::Effect::Propose { step, command } => {
                self.propose(place, Asker::Authority { incarnation, step }, command, Duration::from_secs(5));
            }
            authority::Effect::CatchUp(_) => {} // every newer copy is handed in anyway
            authority::Effect::Answer(ask, answer) => {
                let Some(caller) = self.authority(place).and_then(|a| a.asks.remove(&ask)) else { return };
                let pem = answer.map(|a| match a {
                    authority::Answer::Signed(reply) => reply.cert_pem,
                    authority::Answer::Joined(JoinReply::Joined { cert_pem, .. }) => cert_pem,
                    _ => String::new(),
                });
                self.reply(place, caller, Answered::Certificate(pem));
            }
            authority::Effect::WakeAt(at) => {
                let at = self.moment(place, at);
                self.time.at(at, Event::AuthorityWoke { place, incarnation });
            }
        }
    }

    pub(crate) fn authority_step_ended(
        &mut self,
        place: Place,
        incarnation: u32,
        step: authority::StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if self.authority(place).is_some_and(|a| a.incarnation == incarnation) {
            self.authority_step(place, authority::Input::Proposed(step, result.map(|a| a.revision)));
        }
    }

    // ---- liveness -------------------------------------------------------------------------------------------------

    /// Who was heard, by the leader or by a manager that the leader hears.
    pub(crate) fn dispatch(&mut self, place: Place, half: u32) {
        let now = self.now();
        let waits = self
            .roles(place)
            .is_some_and(|r| r.core.queues().iter().any(|(_, p)| p.reason == WaitReason::QuorumAtRisk));
        self.totals.add("waits for quorum", u64::from(waits));
        let Some(h) = self.machines[place].half(half) else { return };
        if h.leader.is_none() {
            return;
        }
        let tables = h.core.tables().clone();
        let mut news = Vec::new();
        for record in tables.nodes.values() {
            let Some(to) = self.place_of(record.id) else { continue };
            let heard = self.machines[to].runs() && self.reaches(place, to);
            let heard_at = self.machines[place].half.as_mut().and_then(|h| h.leader.as_mut()).map(|l| {
                let at = l.heard.entry(record.id).or_insert(now);
                if heard {
                    *at = now;
                }
                *at
            });
            let is = match heard_at {
                Some(at) if now.since(at) >= SILENCE => Liveness::Down,
                _ if heard => Liveness::Ready,
                _ => continue,
            };
            if is != record.liveness {
                news.push(Change::SetLiveness { node: record.id, liveness: is });
            }
        }
        for change in news {
            let command = Command::idempotent(self.wall(place), Principal::Operator, "liveness").change(change);
            self.propose(place, Asker::House, command, Duration::from_secs(2));
        }
        self.time.after(DISPATCH, Event::Dispatch { place, half });
    }

    /// Directly, or through a manager between them.
    pub(crate) fn reaches(&self, from: Place, to: Place) -> bool {
        let between = |via: &Place| {
            let machine = &self.machines[*via];
            machine.runs() && machine.half.is_some() && self.net.both_open(from, *via) && self.net.both_open(*via, to)
        };
        from == to || self.net.both_open(from, to) || (0..self.machines.len()).any(|via| between(&via))
    }

    /// An answer on its way back.
    pub(crate) fn reply(&mut self, from: Place, to: Caller, answer: Answered) {
        let lost = !self.reaches(from, to.place) || self.dice.chance(self.net.weather.loss);
        if !lost {
            let delay = self.net.weather.slow + self.dice.micros(100, 1800);
            self.time.after(delay, Event::Answered { to, answer: Box::new(answer) });
        }
    }
}
