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
//!
//! The phases are those of [`super::kubernetes_lease`]; `phases.rs` has what each keeps, and what it makes of the lease as it is seen.
//! Numbered comments mark the steps of a term, in reading order: `acquire_if_due` (1), `on_acquire_answer` (2: is it ours),
//! `on_acquired` (3: lead), `renew_if_due` (4), `on_renewal_answer` (5), `work_ended` (6: release or not), `release_if_due` (7),
//! `on_release_answer` (8), `on_released` (9: campaign again, or stop). Beside them, while the machine campaigns or leads, the lease
//! is watched: `watch_if_due` (10), `on_watch_answer` (11: what the phase makes of it).
//!
//! | phase | its request, when due | accepted | refused, or failed | watch: held by another | watch: ours | watch: free | the work returns |
//! |---|---|---|---|---|---|---|---|
//! | campaigning | acquire | **lead**; cancelled or too late: release | held: wait for the watch; final: stop; else retry | wait | chosen by a coordinator: acquire | acquire; with a coordinator: after its time to choose | |
//! | leading, or draining | renew each retry period | renewed | lost or final: **end**; else retry, until the renew deadline ends it | **end: overtaken** | report a challenger | **end: overtaken** | release, or not: see below |
//! | releasing | release at once | campaign again, or stop | not ours, or final: as accepted; else retry | | | | |
//! | stopped | never | | | | | | |
//!
//! When the work returns, the ending of the term decides (6). A lease that was seen beyond our token is not released.
//!
//! | ending | release? | then |
//! |---|---|---|
//! | refused | no | stop |
//! | overtaken | if it campaigns again | campaign again, or stop |
//! | done (the work returned by itself), or cancelled | with `release_on_cancel` | stop |
//! | lapsed, or yielded | yes; if it was cancelled since, with `release_on_cancel` | campaign again, or stop |

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{ErrorBody, ErrorCode, FencingToken, LeaseView, Moment, Revision, Rng};

use super::phases::{Campaigning, Leading, Phase, Releasing};
use super::tenure::Tenure;
use super::{Effect, ElectorView, Ending, Signal, Tally, Timing, report_leader};
use crate::ElectorConfig;

pub use super::requests::{Answer, Ask, RenewalOutcome, Seen, Trouble};

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

#[derive(Clone, Debug, Default, PartialEq)]
struct Watch {
    asked: Option<u64>,
    next_at: Option<Moment>,
    failures: u32,
    /// The newest revision of the lease seen.
    seen: Revision,
    /// It was last seen without a holder.
    seen_free: bool,
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
    namesake_token: Option<FencingToken>,
    tally: Tally,
}

type Out = Vec<Effect<Ask>>;

impl MusterElector {
    /// An elector that has not started yet. `outstanding`: what an earlier incarnation may hold.
    pub fn new(config: &ElectorConfig, seed: u64, outstanding: Option<OutstandingToken>) -> Self {
        let phase = match outstanding {
            // The watch reports who is chosen.
            None if config.coordinated => Phase::Campaigning(Campaigning::default()),
            None => Phase::Campaigning(Campaigning {
                may_take_over_own_name: true,
                try_at: Some(Moment(0)),
                ..Campaigning::default()
            }),
            Some(OutstandingToken { token, until }) => Phase::Releasing(Releasing {
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
            namesake_token: None,
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
                if let (Phase::Leading(leading), true) = (&mut self.phase, yields) {
                    leading.tenure.end(Ending::Yielded { to: by }, out);
                }
            }
            Signal::Cancelled => {
                self.cancelled = true;
                if let Phase::Leading(leading) = &mut self.phase {
                    leading.tenure.end(Ending::Cancelled, out);
                }
            }
        }
        self.advance(now, out);
    }

    /// Handles an answer.
    pub fn answer(&mut self, now: Moment, answer: Answer, out: &mut Out) {
        self.check(now, out);
        match answer {
            Answer::Acquired { number, result } => self.on_acquire_answer(now, number, result, out),
            Answer::Renewed { number, result } => self.on_renewal_answer(now, number, result, out),
            Answer::Released { number, result } => self.on_release_answer(now, number, result, out),
            Answer::Watched { number, result } => self.on_watch_answer(now, number, result, out),
        }
        self.advance(now, out);
    }

    pub fn view(&self) -> ElectorView {
        let (phase, tenure) = match &self.phase {
            Phase::Campaigning(_) => ("campaigning", None),
            Phase::Leading(leading) if leading.tenure.ending.is_none() => ("leading", Some(&leading.tenure)),
            Phase::Leading(leading) => ("draining", Some(&leading.tenure)),
            Phase::Releasing(_) => ("releasing", None),
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
        if let Phase::Leading(leading) = &mut self.phase {
            leading.tenure.check(now, out);
        }
    }

    /// Sends the requests that are due, and sets the next wake-up. The only place that sends requests.
    fn advance(&mut self, now: Moment, out: &mut Out) {
        let number = self.next_number();
        match self.phase {
            Phase::Campaigning(_) => self.acquire_if_due(now, number, out),
            Phase::Leading(_) => self.renew_if_due(now, number, out),
            Phase::Releasing(_) => self.release_if_due(now, number, out),
            Phase::Stopped => {}
        }
        self.watch_if_due(now, out);
        let next = [self.next_of_phase(), self.watch.next_at.filter(|_| self.watches())];
        if let Some(at) = next.into_iter().flatten().min() {
            out.push(Effect::WakeAt(at));
        }
    }

    fn next_number(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    fn next_of_phase(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Campaigning(campaigning) => campaigning.try_at,
            Phase::Leading(leading) => {
                let renew_at = leading.may_renew().then_some(leading.renew_at);
                [renew_at, leading.tenure.next_check()].into_iter().flatten().min()
            }
            Phase::Releasing(releasing) => releasing.try_at,
            Phase::Stopped => None,
        }
    }

    /// Whether it requests the lease again after this term.
    fn campaigns_again(&self) -> bool {
        self.campaign_again && !self.cancelled
    }

    fn stop(&mut self, result: Result<(), ErrorBody>, out: &mut Out) {
        self.phase = Phase::Stopped;
        out.push(Effect::Stopped(result));
    }

    // ---- campaigning ----------------------------------------------------------------------------------------------

    fn acquire_if_due(&mut self, now: Moment, number: u64, out: &mut Out) {
        let Phase::Campaigning(campaigning) = &mut self.phase else { return };
        // 1. The lease is requested. After a cancellation, too, an open request may be granted: the lease must then be released.
        if campaigning.asked.is_some() {
            return;
        }
        if self.cancelled {
            return self.stop(Ok(()), out);
        }
        if is_due(campaigning.try_at, now) {
            campaigning.asked = Some((number, now));
            campaigning.try_at = None;
            out.push(Effect::Ask(Ask::Acquire { number, timeout: self.timing.renew / 2 }));
        }
    }

    fn on_acquire_answer(&mut self, now: Moment, number: u64, result: Result<LeaseView, Trouble>, out: &mut Out) {
        let Phase::Campaigning(campaigning) = &mut self.phase else { return };
        let Some((_, sent)) = campaigning.asked.take_if(|(asked, _)| *asked == number) else { return };
        // 2. The cluster has decided: it is ours, or held, or the decision is still to come.
        match result {
            Ok(lease) if lease.holder.as_deref() == Some(&self.me) && !lease.expired && lease.fencing_token.0 > 0 => {
                self.blocked = None;
                self.on_acquired(now, sent, lease.fencing_token, out);
            }
            Ok(lease) => {
                campaigning.retry_later(now, &self.timing, &mut self.rng);
                self.blocked = Some(format!("the answer to an acquisition names {:?} as the holder", lease.holder));
            }
            // The watch shows when the lease is free again; it may have done so already.
            Err(trouble) if trouble.is_held() => {
                self.blocked = None;
                if self.watch.seen_free {
                    campaigning.retry_later(now, &self.timing, &mut self.rng);
                }
            }
            Err(trouble) if trouble.is_final() => self.stop(Err(trouble.body()), out),
            Err(trouble) => {
                campaigning.retry_later(now, &self.timing, &mut self.rng);
                self.blocked = Some(trouble.text());
            }
        }
    }

    fn on_acquired(&mut self, now: Moment, sent: Moment, token: FencingToken, out: &mut Out) {
        self.watch.seen = self.watch.seen.max(Revision(token.0));
        // 3. It leads, and counts from before the request was sent. Too late to lead under it, the lease is ours all the same.
        if self.cancelled || now >= sent + self.timing.renew {
            return self.begin_release(now, token, false);
        }
        self.tally.terms += 1;
        report_leader(&mut self.leader, Some(&self.me), out);
        let tenure = Tenure::begin(&self.timing, sent, Some(token), out);
        let renew_at = sent + self.timing.retry;
        self.phase = Phase::Leading(Box::new(Leading {
            tenure,
            asked: BTreeMap::new(),
            renew_at,
            failures: 0,
            challenged_by: None,
            lease_moved_on: false,
        }));
    }

    // ---- leading, and draining ------------------------------------------------------------------------------------

    fn renew_if_due(&mut self, now: Moment, number: u64, out: &mut Out) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        // 4. The lease is renewed, also while the work drains (ELECTOR-3).
        if let Some(token) = leading.tenure.token.filter(|_| leading.renew_at <= now && leading.may_renew()) {
            leading.asked.insert(number, now);
            leading.renew_at = now + self.timing.retry;
            out.push(Effect::Ask(Ask::Renew { number, token, timeout: self.timing.renew }));
        }
    }

    fn on_renewal_answer(&mut self, now: Moment, number: u64, result: Result<RenewalOutcome, Trouble>, out: &mut Out) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        let Some(sent) = leading.asked.remove(&number) else { return };
        // 5. A confirmed renewal counts from before it was sent. A failed one is repeated until the renew deadline.
        match result {
            Ok(RenewalOutcome::Renewed) => {
                self.tally.renewals += 1;
                self.blocked = None;
                leading.failures = 0;
                leading.tenure.confirm(&self.timing, sent, out);
            }
            Ok(RenewalOutcome::Lost) => leading.tenure.end(Ending::Overtaken { by: None }, out),
            Err(trouble) => {
                self.tally.failures += 1;
                if trouble.is_final() {
                    leading.tenure.end(Ending::Refused { why: trouble.text() }, out);
                    return;
                }
                self.blocked = Some(trouble.text());
                leading.renew_at = leading.renew_at.min(now + self.timing.pause(leading.failures));
                leading.failures += 1;
            }
        }
    }

    fn work_ended(&mut self, now: Moment, out: &mut Out) {
        let Phase::Leading(leading) = &self.phase else { return };
        let token = leading.tenure.token.expect("a native lease is held under a token");
        let lease_moved_on = leading.lease_moved_on;
        let ending = leading.tenure.ending.clone().unwrap_or(Ending::Done);
        self.cancelled |= ending == Ending::Done;
        out.push(Effect::Over(ending.clone()));
        // 6. The term is over. Whether the lease is released depends on why.
        let release = match &ending {
            Ending::Refused { why } => return self.stop(Err(ErrorBody::forbidden(why)), out),
            // A lease that ran out is lost, but would be granted again under the same token (ELECTOR-4).
            Ending::Overtaken { .. } => self.campaigns_again(),
            Ending::Done | Ending::Cancelled | Ending::Lapsed | Ending::Yielded { .. } => {
                self.release_on_cancel || !self.cancelled
            }
        };
        let yielded = matches!(ending, Ending::Yielded { .. });
        if release && !lease_moved_on {
            self.begin_release(now, token, yielded);
        } else {
            self.on_released(now, yielded, out);
        }
    }

    // ---- releasing ------------------------------------------------------------------------------------------------

    fn begin_release(&mut self, now: Moment, token: FencingToken, yielded: bool) {
        let give_up_at = now + self.timing.renew;
        self.phase =
            Phase::Releasing(Releasing { token, yielded, asked: None, try_at: Some(now), failures: 0, give_up_at });
    }

    fn release_if_due(&mut self, now: Moment, number: u64, out: &mut Out) {
        let campaigns_again = self.campaigns_again();
        let Phase::Releasing(releasing) = &mut self.phase else { return };
        if releasing.asked.is_some() {
            return;
        }
        // 7. The lease is released. An elector that campaigns again must know the outcome (ELECTOR-4). Any other need not wait for a
        //    lease that runs out by itself, such as a crashed incarnation's.
        let due = is_due(releasing.try_at, now);
        let may_run_out = now >= releasing.give_up_at || releasing.failures == 0 && !due;
        if may_run_out && !campaigns_again {
            self.stop(Ok(()), out);
        } else if due {
            releasing.asked = Some(number);
            releasing.try_at = None;
            let (token, timeout) = (releasing.token, self.timing.renew / 2);
            out.push(Effect::Ask(Ask::Release { number, token, timeout }));
        }
    }

    fn on_release_answer(&mut self, now: Moment, number: u64, result: Result<(), Trouble>, out: &mut Out) {
        let Phase::Releasing(releasing) = &mut self.phase else { return };
        if releasing.asked.take_if(|asked| *asked == number).is_none() {
            return;
        }
        // 8. It is repeated until the outcome is known, or cannot become known.
        let known = match &result {
            Ok(()) => true,
            // Not ours any more, or deleted.
            Err(Trouble::Error(body)) => matches!(body.code, ErrorCode::Conflict | ErrorCode::NotFound),
            Err(Trouble::Unreadable(_)) => false,
        };
        let hopeless = result.as_ref().is_err_and(Trouble::is_final);
        if known || hopeless {
            if result.is_ok() {
                self.watch.seen_free = false; // the last observation is older than this
                report_leader(&mut self.leader, None, out);
            }
            let yielded = releasing.yielded;
            self.on_released(now, yielded, out);
            return;
        }
        releasing.try_at = Some(now + self.timing.pause(releasing.failures));
        releasing.failures += 1;
        self.blocked = result.err().map(|trouble| trouble.text());
    }

    /// The lease is released, or known not to be ours, or left to run out.
    fn on_released(&mut self, now: Moment, yielded: bool, out: &mut Out) {
        // 9. It campaigns again, or stops.
        if !self.campaigns_again() {
            return self.stop(Ok(()), out);
        }
        let no_attempt_before = yielded.then_some(now + self.timing.lease);
        // It is only known that we do not hold the lease: the watch shows the rest.
        self.phase = Phase::Campaigning(Campaigning { no_attempt_before, ..Campaigning::default() });
        self.watch = Watch { seen: Revision(0), next_at: Some(now), ..Watch::default() };
    }

    // ---- the watch ------------------------------------------------------------------------------------------------

    fn watches(&self) -> bool {
        match &self.phase {
            // The first acquisition goes first: the first watch then only waits for a change.
            Phase::Campaigning(_) => !self.cancelled,
            Phase::Leading(leading) => leading.tenure.renews(),
            Phase::Releasing(_) | Phase::Stopped => false,
        }
    }

    fn watch_if_due(&mut self, now: Moment, out: &mut Out) {
        let due = self.watch.next_at.is_none_or(|at| at <= now);
        if !self.watches() || self.watch.asked.is_some() || !due {
            return;
        }
        // 10. The lease is watched: the answer comes once it has changed, or after the wait.
        let number = self.next_number();
        self.watch.asked = Some(number);
        self.watch.next_at = None;
        let wait = self.timing.lease.clamp(*WATCH_WAIT.start(), *WATCH_WAIT.end());
        out.push(Effect::Ask(Ask::Watch { number, seen: self.watch.seen, wait }));
    }

    fn on_watch_answer(&mut self, now: Moment, number: u64, result: Result<Seen, Trouble>, out: &mut Out) {
        if self.watch.asked.take_if(|asked| *asked == number).is_none() {
            return;
        }
        let seen = match result {
            Ok(seen) => seen,
            Err(trouble) => {
                if matches!(trouble, Trouble::Unreadable(_)) {
                    self.blocked = Some(trouble.text());
                }
                self.watch.next_at = Some(now + self.timing.pause(self.watch.failures));
                self.watch.failures += 1;
                return;
            }
        };
        self.watch.failures = 0;
        self.watch.next_at = Some(now);
        if seen.revision < self.watch.seen {
            return; // a manager that lags behind
        }
        // 11. The lease as it is seen. A leader ends unless it still holds it under its token. A candidate waits while another holds
        //     it, and requests it when it is free, or when a coordinator has chosen this one.
        self.watch.seen = seen.revision;
        let live = seen.lease.as_ref().filter(|lease| lease.holder.is_some() && !lease.expired);
        let in_our_name = live.filter(|lease| lease.holder.as_deref() == Some(&self.me));
        self.watch.seen_free = live.is_none();
        match &mut self.phase {
            Phase::Leading(leading) => {
                leading.observe(&self.me, seen.lease.as_ref(), out);
                let token = in_our_name.map(|lease| lease.fencing_token);
                self.namesake_token = token.filter(|token| Some(*token) > leading.tenure.token).or(self.namesake_token);
            }
            Phase::Campaigning(campaigning) if live.is_some() => {
                // A holder of our name is this elector, unless another process of that name took the lease from us.
                let is_ours = in_our_name.is_some_and(|lease| Some(lease.fencing_token) != self.namesake_token);
                campaigning.observe_held(now, self.coordinated && is_ours);
            }
            Phase::Campaigning(campaigning) => {
                let free_at = if self.coordinated { now + self.timing.lease.max(COORDINATION_TIME) } else { now };
                campaigning.observe_free(free_at);
            }
            Phase::Releasing(_) | Phase::Stopped => {}
        }
        let holder = live.and_then(|lease| lease.holder.as_deref());
        let leads = matches!(&self.phase, Phase::Leading(leading) if leading.tenure.ending.is_none());
        if !leads {
            report_leader(&mut self.leader, holder, out);
        }
    }
}

fn is_due(at: Option<Moment>, now: Moment) -> bool {
    at.is_some_and(|at| at <= now)
}

#[cfg(test)]
#[path = "muster_lease_tests.rs"]
mod tests;
