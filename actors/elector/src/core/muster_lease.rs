//! The elector of a Muster cluster. The cluster decides who holds the lease and until when; this machine keeps asking.
//!
//! Owns        the phase, the requests in flight, and the lease as it was last seen.
//! Inputs      answers to its requests, the lease as watches show it, the end of the work.
//! Outputs     acquire, renew, release, watch.
//! Invariants  ELECTOR-2  it leads only between an acquisition and the earliest of: its renew deadline, a refused renewal, a
//!                        watch that shows the lease under another token, or under none.
//!             ELECTOR-3  it releases a lease only when the guarded work has returned, and renews it until then.
//!             ELECTOR-4  it requests the lease again only when the outcome of its last token is known, so two terms never
//!                        share one.
//!             ELECTOR-5  a lease lost to a holder of the same name is waited for like any other: two processes with one name
//!                        do not take it from each other in turns.
//! Why renewals overlap: one that a frozen manager swallowed must not keep the next from being sent elsewhere. Each counts from
//! when it was sent, so the order of their answers does not matter.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{ErrorBody, ErrorCode, FencingToken, LeaseView, Moment, Revision, Rng};

use super::tenure::Tenure;
use super::{Effect, ElectorView, Ending, Signal, Tally, Timing, report_leader};
use crate::ElectorConfig;

pub use super::requests::{Answer, Ask, RenewalOutcome, Seen, Trouble};

/// Maximum unanswered renewals: more would only queue behind the same obstacle.
const MAX_UNANSWERED_RENEWALS: usize = 4;

/// How long a watch waits before it is repeated: the lease duration, within these bounds. A manager that froze with a watch
/// delays the next holder by no more.
const WATCH_WAIT: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(20);

/// Time for a coordinator to choose: the candidates arrive (4.5 s), and one that was pinged does not answer (3 s).
const COORDINATION_TIME: Duration = Duration::from_secs(8);

/// A token whose lease may still be held when an incarnation starts after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutstandingToken {
    pub token: FencingToken,
    /// Until then its work may still be draining.
    pub until: Moment,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Campaigning(Campaigning),
    /// Leading, or draining.
    Holding(Box<Holding>),
    /// The work has returned.
    Leaving(Leaving),
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Campaigning {
    /// It has not led yet: a lease in its own name is an earlier process's, and may be taken over.
    fresh: bool,
    /// The acquisition in progress, and when it was sent.
    asked: Option<(u64, Moment)>,
    try_at: Option<Moment>,
    failures: u32,
    /// After it yielded: no attempt before this time, unless another has held the lease meanwhile.
    defers_until: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq)]
struct Holding {
    tenure: Tenure,
    /// Unanswered renewals, and when each was sent.
    asked: BTreeMap<u64, Moment>,
    renew_at: Moment,
    failures: u32,
    challenged_by: Option<String>,
    /// The lease was seen beyond our token: released, deleted, or held under a later one.
    passed: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Leaving {
    token: FencingToken,
    /// It yielded to another candidate.
    yielded: bool,
    asked: Option<u64>,
    try_at: Option<Moment>,
    failures: u32,
    /// When an elector that does not campaign again stops waiting: the lease has run out.
    give_up_at: Moment,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Watch {
    asked: Option<u64>,
    again_at: Option<Moment>,
    failures: u32,
    /// The newest revision of the lease seen.
    seen: Revision,
    /// Whether the lease has no holder, as far as known.
    free: Option<bool>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct MusterElector {
    timing: Timing,
    me: String,
    release_on_cancel: bool,
    campaign_again: bool,
    coordinated: bool,
    rng: Rng,
    asked: u64,
    phase: Phase,
    watch: Watch,
    leader: Option<String>,
    blocked: Option<String>,
    cancelled: bool,
    /// The token under which another process of our name took the lease from us.
    namesake: Option<FencingToken>,
    tally: Tally,
}

type Out = Vec<Effect<Ask>>;

impl MusterElector {
    /// An elector that has not started yet. `outstanding`: what an earlier incarnation may hold.
    pub fn new(config: &ElectorConfig, seed: u64, outstanding: Option<OutstandingToken>) -> Self {
        let phase = match outstanding {
            // The watch reports who is chosen.
            None if config.coordinated => Phase::Campaigning(Campaigning::default()),
            None => Phase::Campaigning(Campaigning { fresh: true, try_at: Some(Moment(0)), ..Campaigning::default() }),
            Some(OutstandingToken { token, until }) => Phase::Leaving(Leaving {
                token,
                yielded: false,
                asked: None,
                try_at: Some(until),
                failures: 0,
                give_up_at: until + config.renew_deadline,
            }),
        };
        Self {
            timing: Timing::of(config),
            me: config.identity.clone(),
            release_on_cancel: config.release_on_cancel,
            campaign_again: config.campaign_again,
            coordinated: config.coordinated,
            rng: Rng::seeded(seed),
            asked: 0,
            phase,
            watch: Watch::default(),
            leader: None,
            blocked: None,
            cancelled: false,
            namesake: None,
            tally: Tally::default(),
        }
    }

    /// Handles a signal.
    pub fn step(&mut self, now: Moment, signal: Signal, out: &mut Out) {
        self.check(now, out);
        match signal {
            Signal::Started | Signal::Woke | Signal::RetryNow => {}
            Signal::WorkEnded => self.work_ended(now, out),
            Signal::Challenge { by, yields } => {
                if let (Phase::Holding(holding), true) = (&mut self.phase, yields) {
                    holding.tenure.end(Ending::Yielded { to: by }, out);
                }
            }
            Signal::Cancelled => {
                self.cancelled = true;
                if let Phase::Holding(holding) = &mut self.phase {
                    holding.tenure.end(Ending::Cancelled, out);
                }
            }
        }
        self.advance(now, out);
    }

    /// Handles an answer.
    pub fn answer(&mut self, now: Moment, answer: Answer, out: &mut Out) {
        self.check(now, out);
        match answer {
            Answer::Acquired { number, result } => self.acquired(now, number, result, out),
            Answer::Renewed { number, result } => self.renewed(now, number, result, out),
            Answer::Released { number, result } => self.released(now, number, result, out),
            Answer::Watched { number, result } => self.watched(now, number, result, out),
        }
        self.advance(now, out);
    }

    pub fn view(&self) -> ElectorView {
        let (phase, tenure) = match &self.phase {
            Phase::Campaigning(_) => ("campaigning", None),
            Phase::Holding(h) => (if h.tenure.ending.is_none() { "leading" } else { "draining" }, Some(&h.tenure)),
            Phase::Leaving(_) => ("releasing", None),
            Phase::Stopped => ("stopped", None),
        };
        ElectorView {
            phase,
            leader: self.leader.clone(),
            token: tenure.and_then(|tenure| tenure.token),
            renewed: tenure.map(|tenure| tenure.confirmed),
            blocked: self.blocked.clone(),
            terms: self.tally.terms,
            renewals: self.tally.renewals,
            failures: self.tally.failures,
            read_after_failed_renewal: 0,
        }
    }

    fn check(&mut self, now: Moment, out: &mut Out) {
        if let Phase::Holding(holding) = &mut self.phase {
            holding.tenure.check(now, out);
        }
    }

    fn acquired(&mut self, now: Moment, number: u64, result: Result<LeaseView, Trouble>, out: &mut Out) {
        let Phase::Campaigning(campaigning) = &mut self.phase else { return };
        let Some((_, sent)) = campaigning.asked.take_if(|(asked, _)| *asked == number) else { return };
        match result {
            Ok(lease) if lease.holder.as_deref() == Some(&self.me) && !lease.expired && lease.fencing_token.0 > 0 => {
                self.blocked = None;
                self.won(now, sent, lease.fencing_token, out);
            }
            Ok(lease) => {
                campaigning.fail(now, &self.timing, &mut self.rng);
                self.blocked = Some(format!("the answer to an acquisition names {:?} as the holder", lease.holder));
            }
            // The watch shows when the lease is free again; it may have done so already.
            Err(trouble) if trouble.is_held() => {
                self.blocked = None;
                if self.watch.free == Some(true) {
                    campaigning.fail(now, &self.timing, &mut self.rng);
                }
            }
            Err(trouble) if trouble.is_final() => self.stop(Err(trouble.body()), out),
            Err(trouble) => {
                campaigning.fail(now, &self.timing, &mut self.rng);
                self.blocked = Some(trouble.text());
            }
        }
    }

    fn won(&mut self, now: Moment, sent: Moment, token: FencingToken, out: &mut Out) {
        self.watch.seen = self.watch.seen.max(Revision(token.0));
        if self.cancelled || now >= sent + self.timing.renew {
            // Too late to lead under it, but the lease is ours.
            return self.leave(now, token, false);
        }
        self.tally.terms += 1;
        report_leader(&mut self.leader, Some(&self.me), out);
        let tenure = Tenure::begin(&self.timing, sent, Some(token), out);
        let renew_at = sent + self.timing.retry;
        self.phase = Phase::Holding(Box::new(Holding {
            tenure,
            asked: BTreeMap::new(),
            renew_at,
            failures: 0,
            challenged_by: None,
            passed: false,
        }));
    }

    fn renewed(&mut self, now: Moment, number: u64, result: Result<RenewalOutcome, Trouble>, out: &mut Out) {
        let Phase::Holding(holding) = &mut self.phase else { return };
        let Some(sent) = holding.asked.remove(&number) else { return };
        match result {
            Ok(RenewalOutcome::Renewed) => {
                self.tally.renewals += 1;
                self.blocked = None;
                holding.failures = 0;
                holding.tenure.confirm(&self.timing, sent, out);
            }
            Ok(RenewalOutcome::Lost) => holding.tenure.end(Ending::Overtaken { by: None }, out),
            Err(trouble) => {
                self.tally.failures += 1;
                if trouble.is_final() {
                    holding.tenure.end(Ending::Refused { why: trouble.text() }, out);
                    return;
                }
                self.blocked = Some(trouble.text());
                holding.renew_at = holding.renew_at.min(now + self.timing.pause(holding.failures));
                holding.failures += 1;
            }
        }
    }

    fn work_ended(&mut self, now: Moment, out: &mut Out) {
        let Phase::Holding(holding) = &mut self.phase else { return };
        let Tenure { token, ending, .. } = holding.tenure.clone();
        let token = token.expect("a native lease is held under a token");
        let ending = ending.unwrap_or(Ending::Done);
        self.cancelled |= ending == Ending::Done;
        // A lease that ran out is lost, but would be granted again under the same token (ELECTOR-4).
        let release_due =
            ending.may_hold() || matches!(ending, Ending::Overtaken { .. }) && !self.cancelled && self.campaign_again;
        let releases = release_due && !holding.passed && (self.release_on_cancel || !self.cancelled);
        let yielded = matches!(ending, Ending::Yielded { .. });
        out.push(Effect::Over(ending.clone()));
        match ending {
            Ending::Refused { why } => self.stop(Err(ErrorBody::forbidden(why)), out),
            _ if releases => self.leave(now, token, yielded),
            _ => self.left(now, yielded, out),
        }
    }

    fn leave(&mut self, now: Moment, token: FencingToken, yielded: bool) {
        let give_up_at = now + self.timing.renew;
        self.phase =
            Phase::Leaving(Leaving { token, yielded, asked: None, try_at: Some(now), failures: 0, give_up_at });
    }

    fn released(&mut self, now: Moment, number: u64, result: Result<(), Trouble>, out: &mut Out) {
        let Phase::Leaving(leaving) = &mut self.phase else { return };
        if leaving.asked.take_if(|asked| *asked == number).is_none() {
            return;
        }
        let known = match &result {
            Ok(()) => true,
            // Not ours any more, or deleted.
            Err(Trouble::Error(body)) => matches!(body.code, ErrorCode::Conflict | ErrorCode::NotFound),
            Err(Trouble::Unreadable(_)) => false,
        };
        let hopeless = result.as_ref().is_err_and(Trouble::is_final);
        if known || hopeless {
            if result.is_ok() {
                self.watch.free = None; // the last observation is older than this
                report_leader(&mut self.leader, None, out);
            }
            let yielded = leaving.yielded;
            self.left(now, yielded, out);
            return;
        }
        leaving.try_at = Some(now + self.timing.pause(leaving.failures));
        leaving.failures += 1;
        self.blocked = result.err().map(|trouble| trouble.text());
    }

    /// The lease is released, or known not to be ours.
    fn left(&mut self, now: Moment, yielded: bool, out: &mut Out) {
        if self.cancelled || !self.campaign_again {
            return self.stop(Ok(()), out);
        }
        let defers_until = yielded.then_some(now + self.timing.lease);
        // It is only known that we do not hold the lease: the watch shows the rest.
        self.phase = Phase::Campaigning(Campaigning { defers_until, ..Campaigning::default() });
        self.watch = Watch { seen: Revision(0), again_at: Some(now), ..Watch::default() };
    }

    fn watched(&mut self, now: Moment, number: u64, result: Result<Seen, Trouble>, out: &mut Out) {
        if self.watch.asked.take_if(|asked| *asked == number).is_none() {
            return;
        }
        let seen = match result {
            Ok(seen) => seen,
            Err(trouble) => {
                if matches!(trouble, Trouble::Unreadable(_)) {
                    self.blocked = Some(trouble.text());
                }
                self.watch.again_at = Some(now + self.timing.pause(self.watch.failures));
                self.watch.failures += 1;
                return;
            }
        };
        self.watch.failures = 0;
        self.watch.again_at = Some(now);
        if seen.revision < self.watch.seen {
            return; // a manager that lags behind
        }
        self.watch.seen = seen.revision;
        let live = seen.lease.as_ref().filter(|lease| lease.holder.is_some() && !lease.expired);
        self.watch.free = Some(live.is_none());
        match &mut self.phase {
            Phase::Holding(holding) => {
                holding.evaluate(&self.me, seen.lease.as_ref(), out);
                let after = live.filter(|lease| lease.holder.as_deref() == Some(&self.me));
                let after = after.map(|lease| lease.fencing_token);
                self.namesake = after.filter(|token| Some(*token) > holding.tenure.token).or(self.namesake);
            }
            Phase::Campaigning(campaigning) => match live {
                Some(lease) => {
                    campaigning.defers_until = None;
                    campaigning.failures = 0;
                    campaigning.try_at = campaigning.try_at.filter(|_| campaigning.fresh);
                    // Chosen, unless it is another process of our name.
                    let chosen = self.coordinated && lease.holder.as_deref() == Some(&self.me);
                    if chosen && self.namesake != Some(lease.fencing_token) && campaigning.asked.is_none() {
                        campaigning.try_at = Some(now);
                    }
                }
                None if campaigning.asked.is_none() && campaigning.try_at.is_none() => {
                    let freely = if self.coordinated { now + self.timing.lease.max(COORDINATION_TIME) } else { now };
                    campaigning.try_at = Some(campaigning.defers_until.unwrap_or(freely));
                }
                None => {}
            },
            Phase::Leaving(_) | Phase::Stopped => {}
        }
        let holder = live.and_then(|lease| lease.holder.as_deref());
        let ours = matches!(&self.phase, Phase::Holding(holding) if holding.tenure.ending.is_none());
        if !ours {
            report_leader(&mut self.leader, holder, out);
        }
    }

    fn stop(&mut self, result: Result<(), ErrorBody>, out: &mut Out) {
        self.phase = Phase::Stopped;
        out.push(Effect::Stopped(result));
    }

    /// Sends the requests that are due, and sets the next wake-up. The only place that sends requests.
    fn advance(&mut self, now: Moment, out: &mut Out) {
        self.request_due(now, out);
        self.watch_the_lease(now, out);
        let next = [self.next_of_phase(), self.watch.again_at.filter(|_| self.watches())];
        if let Some(at) = next.into_iter().flatten().min() {
            out.push(Effect::WakeAt(at));
        }
    }

    fn number(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    fn request_due(&mut self, now: Moment, out: &mut Out) {
        let number = self.number();
        let timeout = self.timing.renew / 2;
        let due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        match &mut self.phase {
            // An open acquisition may still be granted: the lease must then be released.
            Phase::Campaigning(campaigning) if self.cancelled && campaigning.asked.is_some() => {}
            Phase::Campaigning(_) if self.cancelled => self.stop(Ok(()), out),
            Phase::Campaigning(campaigning) if campaigning.asked.is_none() && due(campaigning.try_at) => {
                campaigning.asked = Some((number, now));
                campaigning.try_at = None;
                out.push(Effect::Ask(Ask::Acquire { number, timeout }));
            }
            Phase::Holding(holding) => {
                let full = holding.asked.len() >= MAX_UNANSWERED_RENEWALS;
                if let (Some(token), true, true, false) =
                    (holding.tenure.token, holding.renew_at <= now, holding.tenure.renews(), full)
                {
                    holding.asked.insert(number, now);
                    holding.renew_at = now + self.timing.retry;
                    out.push(Effect::Ask(Ask::Renew { number, token, timeout: self.timing.renew }));
                }
            }
            Phase::Leaving(leaving) if leaving.asked.is_some() => {}
            // An elector that campaigns again must know the outcome (ELECTOR-4). Any other need not wait for a lease that runs
            // out by itself, such as a crashed incarnation's.
            Phase::Leaving(leaving)
                if (self.cancelled || !self.campaign_again)
                    && (now >= leaving.give_up_at || leaving.failures == 0 && !due(leaving.try_at)) =>
            {
                self.stop(Ok(()), out);
            }
            Phase::Leaving(leaving) if due(leaving.try_at) => {
                leaving.asked = Some(number);
                leaving.try_at = None;
                let token = leaving.token;
                out.push(Effect::Ask(Ask::Release { number, token, timeout }));
            }
            _ => {}
        }
    }

    fn watches(&self) -> bool {
        match &self.phase {
            // The first acquisition goes first: the first watch then only waits for a change.
            Phase::Campaigning(_) => !self.cancelled,
            Phase::Holding(holding) => holding.tenure.renews(),
            Phase::Leaving(_) | Phase::Stopped => false,
        }
    }

    fn watch_the_lease(&mut self, now: Moment, out: &mut Out) {
        let due = self.watch.again_at.is_none_or(|at| at <= now);
        if !self.watches() || self.watch.asked.is_some() || !due {
            return;
        }
        let number = self.number();
        self.watch.asked = Some(number);
        self.watch.again_at = None;
        let wait = self.timing.lease.clamp(*WATCH_WAIT.start(), *WATCH_WAIT.end());
        out.push(Effect::Ask(Ask::Watch { number, seen: self.watch.seen, wait }));
    }

    fn next_of_phase(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Campaigning(campaigning) => campaigning.try_at,
            Phase::Holding(holding) => {
                let renews = holding.tenure.renews() && holding.asked.len() < MAX_UNANSWERED_RENEWALS;
                let renew_at = renews.then_some(holding.renew_at);
                [renew_at, holding.tenure.next_check()].into_iter().flatten().min()
            }
            Phase::Leaving(leaving) => leaving.try_at,
            Phase::Stopped => None,
        }
    }
}

impl Campaigning {
    fn fail(&mut self, now: Moment, timing: &Timing, rng: &mut Rng) {
        self.try_at = Some(now + rng.stretched(timing.pause(self.failures), 1.0));
        self.failures += 1;
    }
}

impl Holding {
    /// Evaluates a watch's answer by its token: an older one is from before our term.
    fn evaluate(&mut self, me: &str, lease: Option<&LeaseView>, out: &mut Out) {
        let token = self.tenure.token.unwrap_or_default();
        let Some(lease) = lease else {
            self.passed = true;
            return self.tenure.end(Ending::Overtaken { by: None }, out);
        };
        if lease.fencing_token < token {
            return;
        }
        self.passed = lease.fencing_token > token || lease.holder.is_none();
        let ours = lease.fencing_token == token && lease.holder.as_deref() == Some(me) && !lease.expired;
        if !ours {
            let by = lease.holder.clone().filter(|_| !lease.expired);
            return self.tenure.end(Ending::Overtaken { by }, out);
        }
        let preferred = lease.preferred_holder.as_deref().filter(|name| *name != me);
        if self.challenged_by.as_deref() != preferred {
            self.challenged_by = preferred.map(str::to_owned);
            if let Some(by) = self.challenged_by.clone() {
                out.push(Effect::Challenged { by });
            }
        }
    }
}

#[cfg(test)]
#[path = "muster_lease_tests.rs"]
mod tests;
