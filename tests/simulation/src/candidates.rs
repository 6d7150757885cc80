//! Candidates for leases, as native clients: each acquires, renews, releases, dies, freezes and returns.
//!
//! A candidate believes that it holds a lease until the lease's time, counted from before its request, has passed by its own
//! clock. That clock has its own offset and rate. No two beliefs may overlap
//! (HOLD-1), whatever fails among managers, packets and candidates.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_elections::core::keeper::{AskId, Input as KeeperInput};
use muster_messages::protocol::ProposeError;
use muster_messages::{
    Change, Command, FencingToken, Guard, Moment, Name, ObjectKey, Principal, RequestId, SessionId, Uid,
};

use crate::bugs::Bug;
use crate::checks::violation;
use crate::events::Event;
use crate::lease_clock::{Clock, Renewer};
use crate::machine::{Asker, MachineIdx, on_a_clock};
use crate::world::World;

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
    lease: usize,
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

pub fn lease_key(lease: usize) -> ObjectKey {
    ObjectKey::lease("default", format!("lease-{lease}"))
}

impl Candidates {
    /// Starts candidates, assigned to the leases in turn. None sends a request before `first_ask`.
    pub fn start(&mut self, world: &mut World, candidates: usize, leases: usize, first_ask: Duration) {
        for number in 0..candidates {
            let session = SessionId(world.rng.next_u128());
            let (lease, rate) = (number % leases, world.rate());
            self.all.push(Candidate { lease, rate, life: 0, session, frozen: None, at: None, held: None });
            let soon = first_ask + world.rng.millis(1, 400);
            world.time.after(soon, Event::Candidate { candidate: number, life: 0 });
        }
    }

    /// The candidate that believes to hold a lease now.
    pub fn holder_of(&self, world: &World, lease: usize) -> Option<(usize, FencingToken)> {
        let now = world.now();
        let holds = |(number, c): (usize, &Candidate)| {
            let held_lease = c.held.filter(|held_lease| c.lease == lease && held_lease.until > now)?;
            Some((number, held_lease.token))
        };
        self.all.iter().enumerate().find_map(holds)
    }

    // ---- candidates -----------------------------------------------------------------------------------------------

    /// One step of a candidate.
    pub(crate) fn step(&mut self, world: &mut World, number: usize, life: u32) {
        let now = world.now();
        let faults_active = world.faults_active;
        let dies = faults_active && world.rng.chance(12);
        let freezes = faults_active && world.rng.chance(15);
        let releases = world.rng.chance(25);
        let another = SessionId(world.rng.next_u128());
        let fresh = world.request();
        let candidate = &mut self.all[number];
        if candidate.life != life {
            return;
        }
        if world.resting {
            return world.time.after(RENEW_INTERVAL, Event::Candidate { candidate: number, life });
        }
        if let Some(thaws) = candidate.frozen.filter(|thaws| *thaws > now) {
            return world.time.at(thaws, Event::Candidate { candidate: number, life });
        }
        candidate.frozen = None;
        if dies {
            return self.die(world, number);
        }
        if freezes {
            world.totals.count("fault: candidate frozen");
            let thaws = now + world.rng.millis(100, 4500);
            self.all[number].frozen = Some(thaws);
            return world.time.at(thaws, Event::Candidate { candidate: number, life });
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
        let lease = candidate.lease;
        self.ask(world, PendingRequest { candidate: number, lease, life, session, sent: now, operation });
        let pause = RENEW_INTERVAL.mul_f64(0.7) + world.rng.micros(0, 300_000);
        world.time.after(pause, Event::Candidate { candidate: number, life });
    }

    /// Another process replaces it under the same name.
    fn die(&mut self, world: &mut World, number: usize) {
        world.totals.count("fault: candidate killed");
        let session = SessionId(world.rng.next_u128());
        let back = world.rng.millis(10, 3000);
        let candidate = &mut self.all[number];
        candidate.life += 1;
        candidate.session = session;
        candidate.held = None;
        let life = candidate.life;
        world.time.after(back, Event::Candidate { candidate: number, life });
    }

    fn ask(&mut self, world: &mut World, pending: PendingRequest) {
        // Without a bad answer it keeps its manager, for example a deposed leader that does not know it. Otherwise it mostly finds
        // the leader.
        let stays = !world.rng.chance(150);
        let idx = match self.all[pending.candidate].at.filter(|_| stays) {
            Some(idx) => Some(idx),
            None if world.rng.chance(250) => world.any_manager(),
            None => world.leading(),
        };
        self.all[pending.candidate].at = idx;
        if let Some(idx) = idx.filter(|_| !world.rng.chance(world.net.conditions.loss)) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::CandidateAsks { idx, pending });
        }
    }

    pub(crate) fn reply(&mut self, world: &mut World, pending: PendingRequest, reply: Reply) {
        let now = world.now();
        let number = pending.candidate;
        let margin = if world.settings.bug == Some(Bug::NoClockMargin) { Duration::ZERO } else { CLOCK_MARGIN };
        let good_for = u64::try_from((LEASE_DURATION - margin).as_micros()).unwrap_or(0);
        let until = Moment(pending.sent.0 + on_a_clock(self.all[number].rate, good_for));
        let candidate = &mut self.all[number];
        if candidate.life != pending.life {
            return;
        }
        if let Some(thaws) = candidate.frozen.filter(|thaws| *thaws > now) {
            return world.time.at(thaws, Event::CandidateReply { pending, reply });
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
                world.totals.count("leases acquired");
                world.log(format!("lease acquired candidate={number} lease={lease} token={token}"));
                self.granted(world, (number, pending.session), lease, token);
            }
            (Reply::Renewed, LeaseOperation::Renew(token)) => {
                if let Some(held_lease) =
                    candidate.held.as_mut().filter(|held_lease| held_lease.token == token && held_lease.until > now)
                {
                    held_lease.until = held_lease.until.max(until);
                    world.totals.count("leases renewed");
                    self.check_single_holder(world, number, lease);
                }
            }
            (Reply::Lost, LeaseOperation::Renew(token))
                if candidate.held.is_some_and(|held_lease| held_lease.token == token) =>
            {
                candidate.held = None;
                world.totals.count("leases lost");
                world.log(format!("lease lost candidate={number} lease={lease}"));
            }
            _ => {}
        }
    }

    /// FENCE-1, as lease holders see it. The answer to a repeated request may arrive late.
    fn granted(&mut self, world: &mut World, (number, session): (usize, SessionId), lease: usize, token: FencingToken) {
        let is = (token, number, session);
        let greatest = self.granted.entry(lease).or_insert(is);
        let before = *greatest;
        if token > before.0 {
            *greatest = is;
        } else if is != before {
            let (was, other, _) = before;
            let detail = format!("candidate {number} holds lease {lease} under {token}, after {other} did under {was}");
            world.require(Err(violation(muster_store::invariants::FENCE_1, detail)));
        }
        self.check_single_holder(world, number, lease);
    }

    /// HOLD-1.
    fn check_single_holder(&mut self, world: &mut World, number: usize, lease: usize) {
        let now = world.now();
        let others = self.all.iter().enumerate().filter(|(other, _)| *other != number);
        let holds = |c: &Candidate| c.lease == lease && c.held.is_some_and(|held_lease| held_lease.until > now);
        if let Some((other, _)) = others.clone().find(|(_, c)| holds(c)) {
            let detail = format!("candidates {number} and {other} both hold lease {lease}");
            world.require(Err(violation(HOLD_1, detail)));
        }
    }

    // ---- managers -------------------------------------------------------------------------------------------------

    pub(crate) fn arrive(world: &mut World, idx: MachineIdx, pending: PendingRequest) {
        if !world.machines[idx].up || world.machines[idx].runtime.is_none() {
            return;
        }
        let (key, session) = (lease_key(pending.lease), pending.session);
        let by = Principal::User(Name::sanitized("candidate"));
        let wall = world.wall(idx);
        let digested = world.digested(idx);
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
                world.propose(idx, Asker::Candidate(pending), command, REQUEST_TIMEOUT);
            }
            LeaseOperation::Release(request, token) => {
                world.totals.count("leases released");
                let command = command(request).change(Change::ReleaseLease { key, session, token });
                world.propose(idx, Asker::Candidate(pending), command, REQUEST_TIMEOUT);
            }
            LeaseOperation::Renew(token) if world.settings.bug == Some(Bug::RenewUnconfirmed) => {
                let replica = world.machines[idx].runtime.as_ref().map(|h| h.core.replica().clone());
                let lease = replica.as_ref().and_then(|r| r.tables.objects.get(&key)?.lease().cloned());
                let leads = replica.is_some_and(|r| r.raft.leading);
                let holds = lease.is_some_and(|l| l.is_live() && l.holding.token == token);
                Self::reply_to(world, pending, if leads && holds { Reply::Renewed } else { Reply::Failed });
                // The lease clock processes the renewal too; only its answer is not awaited.
                let ask = AskId(world.number());
                Clock::step(
                    world,
                    idx,
                    KeeperInput::Renew { ask, session, held: vec![(key, token)], within: REQUEST_TIMEOUT },
                );
            }
            LeaseOperation::Renew(token) => {
                let ask = AskId(world.number());
                let Some(clock) = Clock::at(world, idx) else { return };
                clock.asks.insert(ask, Renewer::Candidate(pending));
                Clock::step(
                    world,
                    idx,
                    KeeperInput::Renew { ask, session, held: vec![(key, token)], within: REQUEST_TIMEOUT },
                );
            }
        }
    }

    /// The Raft member finished a candidate's proposal.
    pub(crate) fn ended<T>(
        world: &mut World,
        idx: MachineIdx,
        pending: PendingRequest,
        result: Result<T, ProposeError>,
    ) {
        let lease = world.machines[idx].runtime.as_ref().and_then(|runtime| {
            runtime.core.tables().objects.get(&lease_key(pending.lease)).and_then(|object| object.lease().cloned())
        });
        let own = lease.filter(|lease| lease.is_live() && lease.holding.session == Some(pending.session));
        let reply = match (result, own) {
            (Ok(_), Some(lease)) => Reply::Granted(lease.holding.token),
            _ => Reply::Failed,
        };
        Self::reply_to(world, pending, reply);
    }

    pub(crate) fn reply_to(world: &mut World, pending: PendingRequest, reply: Reply) {
        if !world.rng.chance(world.net.conditions.loss) {
            let delay = world.net.conditions.slow + world.rng.micros(80, 1500);
            world.time.after(delay, Event::CandidateReply { pending, reply });
        }
    }
}
