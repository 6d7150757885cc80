//! Candidates for leases, as native clients: each acquires, renews, gives up, dies, freezes and comes back; and the
//! leader's clock over the leases, the real core of the elections.
//!
//! A candidate believes that it holds a lease until its own clock says that the lease's time, counted from before it
//! asked, is over. Its clock shows another time than everybody's, and runs a little faster or slower. Between two beliefs there must be no
//! overlap (HOLD-1), whatever happens to managers, packets and candidates.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_elections::KeeperConfig;
use muster_elections::core::keeper::{AskId, Effect, Input as Heard, Keeper, OpenExpiry, Outcome, ReadId};
use muster_messages::protocol::{ProposeError, ReadError, Renewal};
use muster_messages::{
    Change, Command, ErrorBody, FencingToken, Guard, Moment, Name, ObjectKey, Principal, Replica, RequestId, SessionId,
    Term, Uid,
};
use muster_raft_member::core::Input;

use crate::breaks::Break;
use crate::checks::broken;
use crate::fleet;
use crate::machine::{Asker, Place, on_a_clock};
use crate::world::{Event, Universe};

pub const HOLD_1: &str = "HOLD-1";

/// How long a lease lives. Short, as everything in a universe's minute.
const LEASE: Duration = Duration::from_secs(2);
/// How often a holder renews, and how often whoever holds nothing tries.
const RENEW: Duration = Duration::from_millis(500);
/// A candidate's clock and the leader's run at different rates: it counts on so much less, as `muster-elector` does.
const MARGIN: Duration = Duration::from_millis(2000 / 20);
const ASK_DEADLINE: Duration = Duration::from_secs(1);

/// One question of one life of a candidate, and when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub candidate: usize,
    life: u32,
    session: SessionId,
    sent: Moment,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Acquire(RequestId),
    Renew(FencingToken),
    Release(RequestId, FencingToken),
}

/// What a candidate is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Granted(FencingToken),
    Renewed,
    Lost,
    Failed,
}

/// See the module.
#[derive(Clone, Debug)]
struct Candidate {
    lease: usize,
    /// How much faster its clock runs, in millionths.
    rate: i64,
    life: u32,
    session: SessionId,
    frozen: Option<Moment>,
    /// The manager it is connected to.
    at: Option<Place>,
    held: Option<Belief>,
}

/// What a candidate believes.
#[derive(Clone, Copy, Debug)]
struct Belief {
    token: FencingToken,
    until: Moment,
}

/// All of them, and what they have been granted.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    all: Vec<Candidate>,
    /// The greatest token that anybody was granted, by lease, and to whom.
    granted: BTreeMap<usize, (FencingToken, usize, SessionId)>,
}

/// Who has asked for a lease to be renewed.
pub enum Renewer {
    Candidate(Asked),
    Fleet(Box<fleet::Asked>),
}

/// The clock of a leader, in one of its incarnations.
pub struct Clock {
    pub incarnation: u32,
    keeper: Keeper,
    /// What the next incarnation is handed.
    slot: BTreeMap<ObjectKey, OpenExpiry>,
    pub asks: BTreeMap<AskId, Renewer>,
    /// When it is woken next.
    wakes: Option<Moment>,
}

pub fn lease_key(lease: usize) -> ObjectKey {
    ObjectKey::lease("default", format!("lease-{lease}"))
}

impl Universe {
    /// So many candidates, all for as many leases in turn. None asks before `first_ask` has passed.
    pub fn start_candidates(&mut self, candidates: usize, leases: usize, first_ask: Duration) {
        for number in 0..candidates {
            let session = SessionId(self.dice.wide());
            let (lease, rate) = (number % leases, self.rate());
            self.candidates.all.push(Candidate { lease, rate, life: 0, session, frozen: None, at: None, held: None });
            let soon = first_ask + self.dice.millis(1, 400);
            self.time.after(soon, Event::Candidate { candidate: number, life: 0 });
        }
    }

    /// Who believes to hold a lease now.
    pub fn holder_of(&self, lease: usize) -> Option<(usize, FencingToken)> {
        let now = self.now();
        let holds = |(number, c): (usize, &Candidate)| {
            let belief = c.held.filter(|belief| c.lease == lease && belief.until > now)?;
            Some((number, belief.token))
        };
        self.candidates.all.iter().enumerate().find_map(holds)
    }

    // ---- candidates -----------------------------------------------------------------------------------------------

    /// A candidate's turn.
    pub(crate) fn candidate(&mut self, number: usize, life: u32) {
        let now = self.now();
        let hurt = self.faults.active;
        let dies = hurt && self.dice.chance(12);
        let freezes = hurt && self.dice.chance(15);
        let releases = self.dice.chance(25);
        let another = SessionId(self.dice.wide());
        let fresh = self.request();
        let candidate = &mut self.candidates.all[number];
        if candidate.life != life {
            return;
        }
        if self.clients.resting {
            return self.time.after(RENEW, Event::Candidate { candidate: number, life });
        }
        if let Some(thaws) = candidate.frozen.filter(|thaws| *thaws > now) {
            return self.time.at(thaws, Event::Candidate { candidate: number, life });
        }
        candidate.frozen = None;
        if dies {
            return self.candidate_dies(number);
        }
        if freezes {
            self.totals.count("fault: candidate frozen");
            let thaws = now + self.dice.millis(100, 4500);
            self.candidates.all[number].frozen = Some(thaws);
            return self.time.at(thaws, Event::Candidate { candidate: number, life });
        }
        let session = candidate.session;
        // Its own clock is looked at before anything is done in the lease's name.
        candidate.held = candidate.held.filter(|belief| belief.until > now);
        let what = match candidate.held {
            Some(belief) if releases => {
                candidate.held = None;
                // A release that comes late must not meet what is acquired after it.
                candidate.session = another;
                What::Release(fresh, belief.token)
            }
            Some(belief) => What::Renew(belief.token),
            None => What::Acquire(fresh),
        };
        self.candidate_asks(Asked { candidate: number, life, session, sent: now, what });
        let pause = RENEW.mul_f64(0.7) + self.dice.micros(0, 300_000);
        self.time.after(pause, Event::Candidate { candidate: number, life });
    }

    /// Another process takes its place, under the same name.
    fn candidate_dies(&mut self, number: usize) {
        self.totals.count("fault: candidate killed");
        let session = SessionId(self.dice.wide());
        let back = self.dice.millis(10, 3000);
        let candidate = &mut self.candidates.all[number];
        candidate.life += 1;
        candidate.session = session;
        candidate.held = None;
        let life = candidate.life;
        self.time.after(back, Event::Candidate { candidate: number, life });
    }

    fn candidate_asks(&mut self, asked: Asked) {
        // It stays where it is while it hears nothing bad of it: with a leader that does not know that it leads no more,
        // for one. Otherwise it mostly finds the leader.
        let stays = !self.dice.chance(150);
        let place = match self.candidates.all[asked.candidate].at.filter(|_| stays) {
            Some(place) => Some(place),
            None if self.dice.chance(250) => self.some_manager(),
            None => self.leading(),
        };
        self.candidates.all[asked.candidate].at = place;
        if let Some(place) = place.filter(|_| !self.dice.chance(self.net.weather.loss)) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            self.time.after(delay, Event::CandidateAsks { place, asked });
        }
    }

    pub(crate) fn candidate_told(&mut self, asked: Asked, told: Told) {
        let now = self.now();
        let number = asked.candidate;
        let margin = if self.settings.broken == Some(Break::NoMargin) { Duration::ZERO } else { MARGIN };
        let good_for = u64::try_from((LEASE - margin).as_micros()).unwrap_or(0);
        let until = Moment(asked.sent.0 + on_a_clock(self.candidates.all[number].rate, good_for));
        let candidate = &mut self.candidates.all[number];
        if candidate.life != asked.life {
            return;
        }
        if let Some(thaws) = candidate.frozen.filter(|thaws| *thaws > now) {
            return self.time.at(thaws, Event::CandidateTold { asked, told });
        }
        let lease = candidate.lease;
        if told == Told::Failed {
            candidate.at = None;
        }
        match (told, asked.what) {
            (Told::Granted(token), What::Acquire(_)) if until > now && candidate.session == asked.session => {
                candidate.held = Some(Belief { token, until });
                self.totals.count("leases acquired");
                self.say(format!("candidate {number} holds lease {lease} under {token}"));
                self.granted((number, asked.session), lease, token);
            }
            (Told::Renewed, What::Renew(token)) => {
                if let Some(belief) =
                    candidate.held.as_mut().filter(|belief| belief.token == token && belief.until > now)
                {
                    belief.until = belief.until.max(until);
                    self.totals.count("leases renewed");
                    self.alone(number, lease);
                }
            }
            (Told::Lost, What::Renew(token)) if candidate.held.is_some_and(|belief| belief.token == token) => {
                candidate.held = None;
                self.totals.count("leases lost");
                self.say(format!("candidate {number} lost lease {lease}"));
            }
            _ => {}
        }
    }

    /// FENCE-1, as those who are granted leases see it. The answer to a repeated question may come late.
    fn granted(&mut self, (number, session): (usize, SessionId), lease: usize, token: FencingToken) {
        let is = (token, number, session);
        let greatest = self.candidates.granted.entry(lease).or_insert(is);
        let before = *greatest;
        if token > before.0 {
            *greatest = is;
        } else if is != before {
            let (was, other, _) = before;
            let detail = format!("candidate {number} holds lease {lease} under {token}, after {other} did under {was}");
            self.hold_to(Err(broken(muster_store::invariants::FENCE_1, detail)));
        }
        self.alone(number, lease);
    }

    /// HOLD-1.
    fn alone(&mut self, number: usize, lease: usize) {
        let now = self.now();
        let others = self.candidates.all.iter().enumerate().filter(|(other, _)| *other != number);
        let holds = |c: &Candidate| c.lease == lease && c.held.is_some_and(|belief| belief.until > now);
        if let Some((other, _)) = others.clone().find(|(_, c)| holds(c)) {
            let detail = format!("candidates {number} and {other} both hold lease {lease}");
            self.hold_to(Err(broken(HOLD_1, detail)));
        }
    }

    // ---- managers -------------------------------------------------------------------------------------------------

    pub(crate) fn candidate_arrives(&mut self, place: Place, asked: Asked) {
        if !self.machines[place].up || self.machines[place].half.is_none() {
            return;
        }
        let candidate = &self.candidates.all[asked.candidate];
        let (key, session) = (lease_key(candidate.lease), asked.session);
        let by = Principal::User(Name::sanitized("candidate"));
        let wall = self.wall(place);
        let digested = self.digested(place);
        let command = |request: RequestId| {
            let command = Command::idempotent(wall, by, "candidate").with_request(request);
            if digested { command.guard(Guard::Request { digest: asked.candidate as u64 + 1 }) } else { command }
        };
        match asked.what {
            What::Acquire(request) => {
                let holder = format!("candidate-{}", asked.candidate);
                let duration_ms = u64::try_from(LEASE.as_millis()).expect("a lease is short");
                let change = Change::AcquireLease { key, holder, session, duration_ms, uid: Uid(request.0) };
                let command = command(request).change(change);
                self.propose(place, Asker::Candidate(asked), command, ASK_DEADLINE);
            }
            What::Release(request, token) => {
                self.totals.count("leases given up");
                let command = command(request).change(Change::ReleaseLease { key, session, token });
                self.propose(place, Asker::Candidate(asked), command, ASK_DEADLINE);
            }
            What::Renew(token) if self.settings.broken == Some(Break::RenewUnconfirmed) => {
                let replica = self.machines[place].half.as_ref().map(|h| h.core.replica().clone());
                let lease = replica.as_ref().and_then(|r| r.tables.objects.get(&key)?.lease().cloned());
                let leads = replica.is_some_and(|r| r.raft.leading);
                let holds = lease.is_some_and(|l| l.is_live() && l.holding.token == token);
                self.tell_candidate(asked, if leads && holds { Told::Renewed } else { Told::Failed });
                // The clock hears of it as always; only its answer is not waited for.
                let ask = AskId(self.number());
                self.clock_step(place, Heard::Renew { ask, session, held: vec![(key, token)], within: ASK_DEADLINE });
            }
            What::Renew(token) => {
                let ask = AskId(self.number());
                let Some(clock) = self.lease_clock(place) else { return };
                clock.asks.insert(ask, Renewer::Candidate(asked));
                self.clock_step(place, Heard::Renew { ask, session, held: vec![(key, token)], within: ASK_DEADLINE });
            }
        }
    }

    /// The raft member has ended a proposal of a candidate.
    pub(crate) fn candidate_ended<T>(&mut self, place: Place, asked: Asked, result: Result<T, ProposeError>) {
        let candidate = &self.candidates.all[asked.candidate];
        let lease = self.machines[place].half.as_ref().and_then(|half| {
            half.core.tables().objects.get(&lease_key(candidate.lease)).and_then(|object| object.lease().cloned())
        });
        let own = lease.filter(|lease| lease.is_live() && lease.holding.session == Some(asked.session));
        let told = match (result, own) {
            (Ok(_), Some(lease)) => Told::Granted(lease.holding.token),
            _ => Told::Failed,
        };
        self.tell_candidate(asked, told);
    }

    fn tell_candidate(&mut self, asked: Asked, told: Told) {
        if !self.dice.chance(self.net.weather.loss) {
            let delay = self.net.weather.slow + self.dice.micros(80, 1500);
            self.time.after(delay, Event::CandidateTold { asked, told });
        }
    }

    // ---- the leader's clock ---------------------------------------------------------------------------------------

    pub(crate) fn lease_clock(&mut self, place: Place) -> Option<&mut Clock> {
        self.machines[place].half.as_mut()?.leader.as_mut()?.clock.as_mut()
    }

    /// An incarnation starts with what the one before it had under way.
    pub(crate) fn clock_back(&mut self, place: Place, term: Term, open: BTreeMap<ObjectKey, OpenExpiry>) {
        self.incarnations += 1;
        let (incarnation, now, entropy) = (self.incarnations, self.clock(place), self.dice.wide());
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let replica = half.core.replica().clone();
        let Some(leader) = half.leader.as_mut() else { return };
        let keeper = Keeper::new(KeeperConfig::default(), term, now, entropy, open.clone());
        leader.clock = Some(Clock { incarnation, keeper, slot: open, asks: BTreeMap::new(), wakes: None });
        self.clock_step(place, Heard::Copy(replica));
        self.time.after(KeeperConfig::default().tick, Event::Beat { place, incarnation });
    }

    pub(crate) fn beat(&mut self, place: Place, incarnation: u32) {
        if self.lease_clock(place).is_none_or(|clock| clock.incarnation != incarnation) {
            return;
        }
        if self.faults.active && self.dice.chance(3) {
            self.totals.count("fault: elections crashed");
            let leader = self.machines[place].half.as_mut().and_then(|half| half.leader.as_mut());
            let Some(leader) = leader else { return };
            let open = leader.clock.take().map(|clock| clock.slot).unwrap_or_default();
            let term = leader.term;
            return self.clock_back(place, term, open);
        }
        self.time.after(KeeperConfig::default().tick, Event::Beat { place, incarnation });
        self.clock_step(place, Heard::Tick);
    }

    pub(crate) fn clock_woke(&mut self, place: Place, incarnation: u32) {
        if let Some(clock) = self.lease_clock(place).filter(|clock| clock.incarnation == incarnation) {
            clock.wakes = None;
            self.clock_step(place, Heard::Tick);
        }
    }

    pub(crate) fn clock_step(&mut self, place: Place, heard: Heard) {
        let (now, wall) = (self.clock(place), self.wall(place));
        let Some(clock) = self.lease_clock(place) else { return };
        let mut effects = Vec::new();
        clock.keeper.step(now, wall, heard, &mut effects);
        let incarnation = clock.incarnation;
        let wakes = clock.keeper.wake_at().filter(|at| clock.wakes.is_none_or(|sooner| *at < sooner));
        if let Some(at) = wakes {
            clock.wakes = Some(at);
            let at = self.moment(place, at).max(self.now());
            self.time.at(at, Event::ClockWoke { place, incarnation });
        }
        for effect in effects {
            self.clock_effect(place, incarnation, effect);
        }
    }

    fn clock_effect(&mut self, place: Place, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Keep(open) => {
                if let Some(clock) = self.lease_clock(place) {
                    clock.slot = open;
                }
            }
            Effect::Answer { ask, answer } => {
                let asked = match self.lease_clock(place).and_then(|clock| clock.asks.remove(&ask)) {
                    Some(Renewer::Candidate(asked)) => asked,
                    Some(Renewer::Fleet(asked)) => return self.fleet_renewed(*asked, answer.as_deref().ok()),
                    None => return,
                };
                let told = match answer.as_deref() {
                    Ok([Renewal::Renewed { .. }]) => Told::Renewed,
                    Ok([Renewal::Lost { .. }]) => Told::Lost,
                    _ => Told::Failed,
                };
                self.tell_candidate(asked, told);
            }
            Effect::Read(read) => {
                let deadline = self.clock(place) + KeeperConfig::default().read_deadline;
                if let Some(ask) = self.park(place, Asker::ClockRead { incarnation, read }) {
                    self.hear(place, Input::Read { ask, deadline });
                }
            }
            Effect::Propose(command) => {
                self.totals.count("expiries proposed");
                let request = command.request;
                let within = KeeperConfig::default().propose_deadline;
                self.propose(place, Asker::Expiry { incarnation, request }, *command, within);
            }
        }
    }

    pub(crate) fn clock_read_ended(
        &mut self,
        place: Place,
        incarnation: u32,
        read: ReadId,
        result: Result<std::sync::Arc<Replica>, ReadError>,
    ) {
        if self.lease_clock(place).is_some_and(|clock| clock.incarnation == incarnation) {
            let unread = |why: ReadError| ErrorBody::new(muster_messages::ErrorCode::NoQuorum, why.to_string());
            self.clock_step(place, Heard::Read { read, result: result.map_err(unread) });
        }
    }

    pub(crate) fn expiry_ended<T>(
        &mut self,
        place: Place,
        incarnation: u32,
        request: RequestId,
        result: Result<T, ProposeError>,
    ) {
        if self.lease_clock(place).is_none_or(|clock| clock.incarnation != incarnation) {
            return;
        }
        // PROPOSE-2: which refusals mean that it is not in the log.
        let outcome = match result {
            Ok(_) => Outcome::Applied,
            Err(ProposeError::Refused(_)) => Outcome::Refused,
            Err(ProposeError::NotLeader { .. } | ProposeError::Busy | ProposeError::TooLarge { .. }) => {
                Outcome::NotTaken
            }
            Err(_) => Outcome::Unknown,
        };
        if outcome == Outcome::Applied {
            self.totals.count("leases expired");
        }
        self.clock_step(place, Heard::Proposed { request, outcome });
    }
}
