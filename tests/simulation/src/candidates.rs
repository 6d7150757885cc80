//! Candidates for leases, as native clients: each acquires, renews, releases, dies, freezes and returns. Also the leader's
//! lease clock, the real core of the elections.
//!
//! A candidate believes that it holds a lease until the lease's time, counted from before its request, has passed by its own
//! clock. That clock has its own offset and rate. No two beliefs may overlap
//! (HOLD-1), whatever fails among managers, packets and candidates.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_elections::KeeperConfig;
use muster_elections::core::keeper::{AskId, Effect, Input as KeeperInput, Keeper, OpenExpiry, Outcome, ReadId};
use muster_messages::protocol::{ProposeError, ReadError, Renewal};
use muster_messages::{
    Change, Command, ErrorBody, FencingToken, Guard, Moment, Name, ObjectKey, Principal, Replica, RequestId, SessionId,
    Term, Uid,
};
use muster_raft_member::core::Input;

use crate::bugs::Bug;
use crate::checks::violation;
use crate::fleet;
use crate::machine::{Asker, MachineIdx, on_a_clock};
use crate::simulation::{Event, Simulation};

pub const HOLD_1: &str = "HOLD-1";

/// Lifetime of a lease: short, as every interval of a simulated minute.
const LEASE_DURATION: Duration = Duration::from_secs(2);
/// Interval of renewals, and of attempts to acquire.
const RENEW_INTERVAL: Duration = Duration::from_millis(500);
/// Clock rates differ, so a candidate trusts its lease for this much less, as `muster-elector` does.
const CLOCK_MARGIN: Duration = Duration::from_millis(2000 / 20);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// One request of one process of a candidate, and when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRequest {
    pub candidate: usize,
    life: u32,
    session: SessionId,
    sent: Moment,
    operation: LeaseOperation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseOperation {
    Acquire(RequestId),
    Renew(FencingToken),
    Release(RequestId, FencingToken),
}

/// A candidate's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
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
    /// The manager that it is connected to.
    at: Option<MachineIdx>,
    held: Option<HeldLease>,
}

/// A lease that a candidate believes to hold.
#[derive(Clone, Copy, Debug)]
struct HeldLease {
    token: FencingToken,
    until: Moment,
}

/// All candidates, and the tokens granted to them.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    all: Vec<Candidate>,
    /// The greatest token granted per lease, and its holder.
    granted: BTreeMap<usize, (FencingToken, usize, SessionId)>,
}

/// The requester of a renewal.
pub enum Renewer {
    Candidate(PendingRequest),
    Fleet(Box<fleet::PendingRequest>),
}

/// A leader's lease clock, one incarnation of it.
pub struct Clock {
    pub incarnation: u32,
    keeper: Keeper,
    /// State for the next incarnation.
    slot: BTreeMap<ObjectKey, OpenExpiry>,
    pub asks: BTreeMap<AskId, Renewer>,
    /// Its next wake-up.
    wakes: Option<Moment>,
}

pub fn lease_key(lease: usize) -> ObjectKey {
    ObjectKey::lease("default", format!("lease-{lease}"))
}

impl Simulation {
    /// Starts candidates, assigned to the leases in turn. None sends a request before `first_ask`.
    pub fn start_candidates(&mut self, candidates: usize, leases: usize, first_ask: Duration) {
        for number in 0..candidates {
            let session = SessionId(self.rng.next_u128());
            let (lease, rate) = (number % leases, self.rate());
            self.candidates.all.push(Candidate { lease, rate, life: 0, session, frozen: None, at: None, held: None });
            let soon = first_ask + self.rng.millis(1, 400);
            self.time.after(soon, Event::Candidate { candidate: number, life: 0 });
        }
    }

    /// The candidate that believes to hold a lease now.
    pub fn holder_of(&self, lease: usize) -> Option<(usize, FencingToken)> {
        let now = self.now();
        let holds = |(number, c): (usize, &Candidate)| {
            let held_lease = c.held.filter(|held_lease| c.lease == lease && held_lease.until > now)?;
            Some((number, held_lease.token))
        };
        self.candidates.all.iter().enumerate().find_map(holds)
    }

    // ---- candidates -----------------------------------------------------------------------------------------------

    /// One step of a candidate.
    pub(crate) fn candidate(&mut self, number: usize, life: u32) {
        let now = self.now();
        let faults_active = self.faults.active;
        let dies = faults_active && self.rng.chance(12);
        let freezes = faults_active && self.rng.chance(15);
        let releases = self.rng.chance(25);
        let another = SessionId(self.rng.next_u128());
        let fresh = self.request();
        let candidate = &mut self.candidates.all[number];
        if candidate.life != life {
            return;
        }
        if self.clients.resting {
            return self.time.after(RENEW_INTERVAL, Event::Candidate { candidate: number, life });
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
            let thaws = now + self.rng.millis(100, 4500);
            self.candidates.all[number].frozen = Some(thaws);
            return self.time.at(thaws, Event::Candidate { candidate: number, life });
        }
        let session = candidate.session;
        // It reads its own clock before it acts under the lease.
        candidate.held = candidate.held.filter(|held_lease| held_lease.until > now);
        let operation = match candidate.held {
            Some(held_lease) if releases => {
                candidate.held = None;
                // A late release must not affect a later acquisition.
                candidate.session = another;
                LeaseOperation::Release(fresh, held_lease.token)
            }
            Some(held_lease) => LeaseOperation::Renew(held_lease.token),
            None => LeaseOperation::Acquire(fresh),
        };
        self.candidate_asks(PendingRequest { candidate: number, life, session, sent: now, operation });
        let pause = RENEW_INTERVAL.mul_f64(0.7) + self.rng.micros(0, 300_000);
        self.time.after(pause, Event::Candidate { candidate: number, life });
    }

    /// Another process replaces it under the same name.
    fn candidate_dies(&mut self, number: usize) {
        self.totals.count("fault: candidate killed");
        let session = SessionId(self.rng.next_u128());
        let back = self.rng.millis(10, 3000);
        let candidate = &mut self.candidates.all[number];
        candidate.life += 1;
        candidate.session = session;
        candidate.held = None;
        let life = candidate.life;
        self.time.after(back, Event::Candidate { candidate: number, life });
    }

    fn candidate_asks(&mut self, pending: PendingRequest) {
        // Without a bad answer it keeps its manager, for example a deposed leader that does not know it. Otherwise it mostly finds
        // the leader.
        let stays = !self.rng.chance(150);
        let idx = match self.candidates.all[pending.candidate].at.filter(|_| stays) {
            Some(idx) => Some(idx),
            None if self.rng.chance(250) => self.any_manager(),
            None => self.leading(),
        };
        self.candidates.all[pending.candidate].at = idx;
        if let Some(idx) = idx.filter(|_| !self.rng.chance(self.net.conditions.loss)) {
            let delay = self.net.conditions.slow + self.rng.micros(80, 1500);
            self.time.after(delay, Event::CandidateAsks { idx, pending });
        }
    }

    pub(crate) fn candidate_reply(&mut self, pending: PendingRequest, reply: Reply) {
        let now = self.now();
        let number = pending.candidate;
        let margin = if self.settings.bug == Some(Bug::NoClockMargin) { Duration::ZERO } else { CLOCK_MARGIN };
        let good_for = u64::try_from((LEASE_DURATION - margin).as_micros()).unwrap_or(0);
        let until = Moment(pending.sent.0 + on_a_clock(self.candidates.all[number].rate, good_for));
        let candidate = &mut self.candidates.all[number];
        if candidate.life != pending.life {
            return;
        }
        if let Some(thaws) = candidate.frozen.filter(|thaws| *thaws > now) {
            return self.time.at(thaws, Event::CandidateReply { pending, reply });
        }
        let lease = candidate.lease;
        if reply == Reply::Failed {
            candidate.at = None;
        }
        match (reply, pending.operation) {
            (Reply::Granted(token), LeaseOperation::Acquire(_))
                if until > now && candidate.session == pending.session =>
            {
                candidate.held = Some(HeldLease { token, until });
                self.totals.count("leases acquired");
                self.log(format!("lease acquired candidate={number} lease={lease} token={token}"));
                self.granted((number, pending.session), lease, token);
            }
            (Reply::Renewed, LeaseOperation::Renew(token)) => {
                if let Some(held_lease) =
                    candidate.held.as_mut().filter(|held_lease| held_lease.token == token && held_lease.until > now)
                {
                    held_lease.until = held_lease.until.max(until);
                    self.totals.count("leases renewed");
                    self.check_single_holder(number, lease);
                }
            }
            (Reply::Lost, LeaseOperation::Renew(token))
                if candidate.held.is_some_and(|held_lease| held_lease.token == token) =>
            {
                candidate.held = None;
                self.totals.count("leases lost");
                self.log(format!("lease lost candidate={number} lease={lease}"));
            }
            _ => {}
        }
    }

    /// FENCE-1, as lease holders see it. The answer to a repeated request may arrive late.
    fn granted(&mut self, (number, session): (usize, SessionId), lease: usize, token: FencingToken) {
        let is = (token, number, session);
        let greatest = self.candidates.granted.entry(lease).or_insert(is);
        let before = *greatest;
        if token > before.0 {
            *greatest = is;
        } else if is != before {
            let (was, other, _) = before;
            let detail = format!("candidate {number} holds lease {lease} under {token}, after {other} did under {was}");
            self.require(Err(violation(muster_store::invariants::FENCE_1, detail)));
        }
        self.check_single_holder(number, lease);
    }

    /// HOLD-1.
    fn check_single_holder(&mut self, number: usize, lease: usize) {
        let now = self.now();
        let others = self.candidates.all.iter().enumerate().filter(|(other, _)| *other != number);
        let holds = |c: &Candidate| c.lease == lease && c.held.is_some_and(|held_lease| held_lease.until > now);
        if let Some((other, _)) = others.clone().find(|(_, c)| holds(c)) {
            let detail = format!("candidates {number} and {other} both hold lease {lease}");
            self.require(Err(violation(HOLD_1, detail)));
        }
    }

    // ---- managers -------------------------------------------------------------------------------------------------

    pub(crate) fn candidate_arrives(&mut self, idx: MachineIdx, pending: PendingRequest) {
        if !self.machines[idx].up || self.machines[idx].runtime.is_none() {
            return;
        }
        let candidate = &self.candidates.all[pending.candidate];
        let (key, session) = (lease_key(candidate.lease), pending.session);
        let by = Principal::User(Name::sanitized("candidate"));
        let wall = self.wall(idx);
        let digested = self.digested(idx);
        let command = |request: RequestId| {
            let command = Command::idempotent(wall, by, "candidate").with_request(request);
            if digested { command.guard(Guard::Request { digest: pending.candidate as u64 + 1 }) } else { command }
        };
        match pending.operation {
            LeaseOperation::Acquire(request) => {
                let holder = format!("candidate-{}", pending.candidate);
                let duration_ms = u64::try_from(LEASE_DURATION.as_millis()).expect("a lease is short");
                let change = Change::AcquireLease { key, holder, session, duration_ms, uid: Uid(request.0) };
                let command = command(request).change(change);
                self.propose(idx, Asker::Candidate(pending), command, REQUEST_TIMEOUT);
            }
            LeaseOperation::Release(request, token) => {
                self.totals.count("leases released");
                let command = command(request).change(Change::ReleaseLease { key, session, token });
                self.propose(idx, Asker::Candidate(pending), command, REQUEST_TIMEOUT);
            }
            LeaseOperation::Renew(token) if self.settings.bug == Some(Bug::RenewUnconfirmed) => {
                let replica = self.machines[idx].runtime.as_ref().map(|h| h.core.replica().clone());
                let lease = replica.as_ref().and_then(|r| r.tables.objects.get(&key)?.lease().cloned());
                let leads = replica.is_some_and(|r| r.raft.leading);
                let holds = lease.is_some_and(|l| l.is_live() && l.holding.token == token);
                self.reply_to_candidate(pending, if leads && holds { Reply::Renewed } else { Reply::Failed });
                // The lease clock processes the renewal too; only its answer is not awaited.
                let ask = AskId(self.number());
                self.clock_step(
                    idx,
                    KeeperInput::Renew { ask, session, held: vec![(key, token)], within: REQUEST_TIMEOUT },
                );
            }
            LeaseOperation::Renew(token) => {
                let ask = AskId(self.number());
                let Some(clock) = self.lease_clock(idx) else { return };
                clock.asks.insert(ask, Renewer::Candidate(pending));
                self.clock_step(
                    idx,
                    KeeperInput::Renew { ask, session, held: vec![(key, token)], within: REQUEST_TIMEOUT },
                );
            }
        }
    }

    /// The Raft member finished a candidate's proposal.
    pub(crate) fn candidate_ended<T>(
        &mut self,
        idx: MachineIdx,
        pending: PendingRequest,
        result: Result<T, ProposeError>,
    ) {
        let candidate = &self.candidates.all[pending.candidate];
        let lease = self.machines[idx].runtime.as_ref().and_then(|runtime| {
            runtime.core.tables().objects.get(&lease_key(candidate.lease)).and_then(|object| object.lease().cloned())
        });
        let own = lease.filter(|lease| lease.is_live() && lease.holding.session == Some(pending.session));
        let reply = match (result, own) {
            (Ok(_), Some(lease)) => Reply::Granted(lease.holding.token),
            _ => Reply::Failed,
        };
        self.reply_to_candidate(pending, reply);
    }

    fn reply_to_candidate(&mut self, pending: PendingRequest, reply: Reply) {
        if !self.rng.chance(self.net.conditions.loss) {
            let delay = self.net.conditions.slow + self.rng.micros(80, 1500);
            self.time.after(delay, Event::CandidateReply { pending, reply });
        }
    }

    // ---- the leader's clock ---------------------------------------------------------------------------------------

    pub(crate) fn lease_clock(&mut self, idx: MachineIdx) -> Option<&mut Clock> {
        self.machines[idx].runtime.as_mut()?.leader.as_mut()?.clock.as_mut()
    }

    /// An incarnation starts with the open expiries of its predecessor.
    pub(crate) fn clock_back(&mut self, idx: MachineIdx, term: Term, open: BTreeMap<ObjectKey, OpenExpiry>) {
        self.incarnations += 1;
        let (incarnation, now, entropy) = (self.incarnations, self.clock(idx), self.rng.next_u128());
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let replica = runtime.core.replica().clone();
        let Some(leader) = runtime.leader.as_mut() else { return };
        let keeper = Keeper::new(KeeperConfig::default(), term, now, entropy, open.clone());
        leader.clock = Some(Clock { incarnation, keeper, slot: open, asks: BTreeMap::new(), wakes: None });
        self.clock_step(idx, KeeperInput::Replica(replica));
        self.time.after(KeeperConfig::default().tick, Event::Beat { idx, incarnation });
    }

    pub(crate) fn beat(&mut self, idx: MachineIdx, incarnation: u32) {
        if self.lease_clock(idx).is_none_or(|clock| clock.incarnation != incarnation) {
            return;
        }
        if self.faults.active && self.rng.chance(3) {
            self.totals.count("fault: elections crashed");
            let leader = self.machines[idx].runtime.as_mut().and_then(|runtime| runtime.leader.as_mut());
            let Some(leader) = leader else { return };
            let open = leader.clock.take().map(|clock| clock.slot).unwrap_or_default();
            let term = leader.term;
            return self.clock_back(idx, term, open);
        }
        self.time.after(KeeperConfig::default().tick, Event::Beat { idx, incarnation });
        self.clock_step(idx, KeeperInput::Tick);
    }

    pub(crate) fn clock_woke(&mut self, idx: MachineIdx, incarnation: u32) {
        if let Some(clock) = self.lease_clock(idx).filter(|clock| clock.incarnation == incarnation) {
            clock.wakes = None;
            self.clock_step(idx, KeeperInput::Tick);
        }
    }

    pub(crate) fn clock_step(&mut self, idx: MachineIdx, input: KeeperInput) {
        let (now, wall) = (self.clock(idx), self.wall(idx));
        let Some(clock) = self.lease_clock(idx) else { return };
        let mut effects = Vec::new();
        clock.keeper.step(now, wall, input, &mut effects);
        let incarnation = clock.incarnation;
        let wakes = clock.keeper.wake_at().filter(|at| clock.wakes.is_none_or(|scheduled| *at < scheduled));
        if let Some(at) = wakes {
            clock.wakes = Some(at);
            let at = self.moment(idx, at).max(self.now());
            self.time.at(at, Event::ClockWoke { idx, incarnation });
        }
        for effect in effects {
            self.clock_effect(idx, incarnation, effect);
        }
    }

    fn clock_effect(&mut self, idx: MachineIdx, incarnation: u32, effect: Effect) {
        match effect {
            Effect::Keep(open) => {
                if let Some(clock) = self.lease_clock(idx) {
                    clock.slot = open;
                }
            }
            Effect::Answer { ask, answer } => {
                let pending = match self.lease_clock(idx).and_then(|clock| clock.asks.remove(&ask)) {
                    Some(Renewer::Candidate(pending)) => pending,
                    Some(Renewer::Fleet(pending)) => return self.fleet_renewed(*pending, answer.as_deref().ok()),
                    None => return,
                };
                let reply = match answer.as_deref() {
                    Ok([Renewal::Renewed { .. }]) => Reply::Renewed,
                    Ok([Renewal::Lost { .. }]) => Reply::Lost,
                    _ => Reply::Failed,
                };
                self.reply_to_candidate(pending, reply);
            }
            Effect::Read(read) => {
                let deadline = self.clock(idx) + KeeperConfig::default().read_deadline;
                if let Some(ask) = self.await_answer(idx, Asker::ClockRead { incarnation, read }) {
                    self.deliver(idx, Input::Read { ask, deadline });
                }
            }
            Effect::Propose(command) => {
                self.totals.count("expiries proposed");
                let request = command.request;
                let within = KeeperConfig::default().propose_deadline;
                self.propose(idx, Asker::Expiry { incarnation, request }, *command, within);
            }
        }
    }

    pub(crate) fn clock_read_ended(
        &mut self,
        idx: MachineIdx,
        incarnation: u32,
        read: ReadId,
        result: Result<std::sync::Arc<Replica>, ReadError>,
    ) {
        if self.lease_clock(idx).is_some_and(|clock| clock.incarnation == incarnation) {
            let unread = |why: ReadError| ErrorBody::new(muster_messages::ErrorCode::NoQuorum, why.to_string());
            self.clock_step(idx, KeeperInput::Read { read, result: result.map_err(unread) });
        }
    }

    pub(crate) fn expiry_ended<T>(
        &mut self,
        idx: MachineIdx,
        incarnation: u32,
        request: RequestId,
        result: Result<T, ProposeError>,
    ) {
        if self.lease_clock(idx).is_none_or(|clock| clock.incarnation != incarnation) {
            return;
        }
        // PROPOSE-2: which refusals prove that the entry is not in the log.
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
        self.clock_step(idx, KeeperInput::Proposed { request, outcome });
    }
}
