//! The elector of a Muster cluster. The cluster says who holds the lease and until when; this machine keeps asking.
//!
//! Hears  answers to what it asked, the lease as watchers see it, the work's end.   Says  acquire, renew, release, watch.
//! Keeps  ELECTOR-2  it leads only between an acquisition and the earliest of: its renew deadline, a refused renewal, a watch
//!                 that shows the lease under another token, or under none.
//!        ELECTOR-3  it gives a lease up only when the guarded work has returned, and renews it until then.
//!        ELECTOR-4  it asks for the lease anew only when it is known what became of its last token: so two times of leading
//!                 never share one.
//!        ELECTOR-5  a lease lost to somebody of our own name is waited for like anybody's: two processes with one name do
//!                 not take it from each other in turns.
//! Why renewals overlap: one that a frozen manager swallowed must not keep the next from being sent elsewhere. Each
//! counts from when it was sent, so the order of their answers does not matter.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{Dice, ErrorBody, ErrorCode, FencingToken, LeaseView, Moment, Revision};

use super::tenure::Tenure;
use super::{Effect, ElectorView, Ending, Signal, Tally, Timing, notice};
use crate::ElectorConfig;

pub use super::questions::{Answer, Ask, Seen, Trouble, Verdict};

/// Renewals without an answer at one time: more would only queue up behind the same obstacle.
const MOST_UNANSWERED: usize = 4;

/// How long a watch waits for a change; then it is asked again. As long as the lease lasts, within these bounds: a manager
/// that has frozen with a watch delays the next holder by no more than that.
const WATCH: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(20);

/// How long a coordinator may take to choose: until the candidates have come (4.5 s) and one that was asked has not answered (3 s).
const COORDINATION: Duration = Duration::from_secs(8);

/// A token whose lease may still be held when an incarnation starts, because the one before crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    pub token: FencingToken,
    /// Until then its work may still be running down.
    pub until: Moment,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Standing(Standing),
    /// Leading, or draining.
    Holding(Box<Holding>),
    /// The work is gone.
    Leaving(Leaving),
    Stopped,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Standing {
    /// It has not led yet. Then a lease in its own name is that of a process before it, and may be taken over.
    fresh: bool,
    /// The acquisition in progress, and when it was sent.
    asked: Option<(u64, Moment)>,
    try_at: Option<Moment>,
    failures: u32,
    /// After it made room for somebody: not before then, unless somebody has held the lease meanwhile.
    defers_until: Option<Moment>,
}

#[derive(Clone, Debug, PartialEq)]
struct Holding {
    tenure: Tenure,
    /// Renewals without an answer yet, and when each was sent.
    asked: BTreeMap<u64, Moment>,
    renew_at: Moment,
    failures: u32,
    challenged_by: Option<String>,
    /// The lease was seen to be past our token: released, deleted, or held under a later one.
    passed: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Leaving {
    token: FencingToken,
    /// It made room for somebody.
    yielded: bool,
    asked: Option<u64>,
    try_at: Option<Moment>,
    failures: u32,
    /// When somebody who does not stand again has waited long enough: the lease has run out by then.
    give_up_at: Moment,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Watch {
    asked: Option<u64>,
    again_at: Option<Moment>,
    failures: u32,
    /// How far the lease is known.
    seen: Revision,
    /// Whether nobody holds it, as far as is known.
    free: Option<bool>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeElector {
    timing: Timing,
    me: String,
    release_on_cancel: bool,
    stand_again: bool,
    coordinated: bool,
    dice: Dice,
    asked: u64,
    phase: Phase,
    watch: Watch,
    leader: Option<String>,
    blocked: Option<String>,
    cancelled: bool,
    /// Under which token somebody of our own name has taken the lease from us.
    namesake: Option<FencingToken>,
    tally: Tally,
}

type Out = Vec<Effect<Ask>>;

impl NativeElector {
    /// An elector that has not started yet. `owed` is what an incarnation before this one may have held.
    pub fn new(config: &ElectorConfig, seed: u64, owed: Option<Owed>) -> Self {
        let phase = match owed {
            // Whoever is chosen is told by the watch.
            None if config.coordinated => Phase::Standing(Standing::default()),
            None => Phase::Standing(Standing { fresh: true, try_at: Some(Moment(0)), ..Standing::default() }),
            Some(Owed { token, until }) => Phase::Leaving(Leaving {
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
            stand_again: config.stand_again,
            coordinated: config.coordinated,
            dice: Dice::seeded(seed),
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

    /// Takes what is not an answer.
    pub fn step(&mut self, now: Moment, signal: Signal, out: &mut Out) {
        self.check(now, out);
        match signal {
            Signal::Started | Signal::Woke | Signal::Nudged => {}
            Signal::Drained => self.drained(now, out),
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

    /// Takes an answer.
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

    /// Its state.
    pub fn view(&self) -> ElectorView {
        let (phase, tenure) = match &self.phase {
            Phase::Standing(_) => ("standing", None),
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
            slow_path: 0,
        }
    }

    fn check(&mut self, now: Moment, out: &mut Out) {
        if let Phase::Holding(holding) = &mut self.phase {
            holding.tenure.check(now, out);
        }
    }

    fn acquired(&mut self, now: Moment, number: u64, result: Result<LeaseView, Trouble>, out: &mut Out) {
        let Phase::Standing(standing) = &mut self.phase else { return };
        let Some((_, sent)) = standing.asked.take_if(|(asked, _)| *asked == number) else { return };
        match result {
            Ok(lease) if lease.holder.as_deref() == Some(&self.me) && !lease.expired && lease.fencing_token.0 > 0 => {
                self.blocked = None;
                self.won(now, sent, lease.fencing_token, out);
            }
            Ok(lease) => {
                standing.fail(now, &self.timing, &mut self.dice);
                self.blocked = Some(format!("the answer to an acquisition names {:?} as its holder", lease.holder));
            }
            // The watch says when it is free again; it may have said so already.
            Err(trouble) if trouble.is_held() => {
                self.blocked = None;
                if self.watch.free == Some(true) {
                    standing.fail(now, &self.timing, &mut self.dice);
                }
            }
            Err(trouble) if trouble.is_final() => self.stop(Err(trouble.body()), out),
            Err(trouble) => {
                standing.fail(now, &self.timing, &mut self.dice);
                self.blocked = Some(trouble.text());
            }
        }
    }

    fn won(&mut self, now: Moment, sent: Moment, token: FencingToken, out: &mut Out) {
        self.watch.seen = self.watch.seen.max(Revision(token.0));
        if self.cancelled || now >= sent + self.timing.renew {
            // Too late to lead by it, but it is ours.
            return self.leave(now, token, false);
        }
        self.tally.terms += 1;
        notice(&mut self.leader, Some(&self.me), out);
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

    fn renewed(&mut self, now: Moment, number: u64, result: Result<Verdict, Trouble>, out: &mut Out) {
        let Phase::Holding(holding) = &mut self.phase else { return };
        let Some(sent) = holding.asked.remove(&number) else { return };
        match result {
            Ok(Verdict::Renewed) => {
                self.tally.renewals += 1;
                self.blocked = None;
                holding.failures = 0;
                holding.tenure.confirm(&self.timing, sent, out);
            }
            Ok(Verdict::Lost) => holding.tenure.end(Ending::Overtaken { by: None }, out),
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

    fn drained(&mut self, now: Moment, out: &mut Out) {
        let Phase::Holding(holding) = &mut self.phase else { return };
        let Tenure { token, ending, .. } = holding.tenure.clone();
        let token = token.expect("a native lease is held under a token");
        let ending = ending.unwrap_or(Ending::Done);
        self.cancelled |= ending == Ending::Done;
        // A lease that ran out is lost, but would be given to us again under the same token (ELECTOR-4).
        let owes =
            ending.may_hold() || matches!(ending, Ending::Overtaken { .. }) && !self.cancelled && self.stand_again;
        let gives_up = owes && !holding.passed && (self.release_on_cancel || !self.cancelled);
        let yielded = matches!(ending, Ending::Yielded { .. });
        out.push(Effect::Over(ending.clone()));
        match ending {
            Ending::Refused { why } => self.stop(Err(ErrorBody::forbidden(why)), out),
            _ if gives_up => self.leave(now, token, yielded),
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
            // Not ours any more, or gone altogether.
            Err(Trouble::Error(body)) => matches!(body.code, ErrorCode::Conflict | ErrorCode::NotFound),
            Err(Trouble::Unreadable(_)) => false,
        };
        let hopeless = result.as_ref().is_err_and(Trouble::is_final);
        if known || hopeless {
            if result.is_ok() {
                self.watch.free = None; // what was seen is older than this
                notice(&mut self.leader, None, out);
            }
            let yielded = leaving.yielded;
            self.left(now, yielded, out);
            return;
        }
        leaving.try_at = Some(now + self.timing.pause(leaving.failures));
        leaving.failures += 1;
        self.blocked = result.err().map(|trouble| trouble.text());
    }

    /// The lease is given up, or known not to be ours.
    fn left(&mut self, now: Moment, yielded: bool, out: &mut Out) {
        if self.cancelled || !self.stand_again {
            return self.stop(Ok(()), out);
        }
        let defers_until = yielded.then_some(now + self.timing.lease);
        // Nothing is known of the lease but that we do not hold it: the watch says the rest.
        self.phase = Phase::Standing(Standing { defers_until, ..Standing::default() });
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
            return; // a member that lags behind
        }
        self.watch.seen = seen.revision;
        let live = seen.lease.as_ref().filter(|lease| lease.holder.is_some() && !lease.expired);
        self.watch.free = Some(live.is_none());
        match &mut self.phase {
            Phase::Holding(holding) => {
                holding.judge(&self.me, seen.lease.as_ref(), out);
                let after = live.filter(|lease| lease.holder.as_deref() == Some(&self.me));
                let after = after.map(|lease| lease.fencing_token);
                self.namesake = after.filter(|token| Some(*token) > holding.tenure.token).or(self.namesake);
            }
            Phase::Standing(standing) => match live {
                Some(lease) => {
                    standing.defers_until = None;
                    standing.failures = 0;
                    standing.try_at = standing.try_at.filter(|_| standing.fresh);
                    // Chosen, unless it is the other one of our name.
                    let chosen = self.coordinated && lease.holder.as_deref() == Some(&self.me);
                    if chosen && self.namesake != Some(lease.fencing_token) && standing.asked.is_none() {
                        standing.try_at = Some(now);
                    }
                }
                None if standing.asked.is_none() && standing.try_at.is_none() => {
                    let freely = if self.coordinated { now + self.timing.lease.max(COORDINATION) } else { now };
                    standing.try_at = Some(standing.defers_until.unwrap_or(freely));
                }
                None => {}
            },
            Phase::Leaving(_) | Phase::Stopped => {}
        }
        let holder = live.and_then(|lease| lease.holder.as_deref());
        let ours = matches!(&self.phase, Phase::Holding(holding) if holding.tenure.ending.is_none());
        if !ours {
            notice(&mut self.leader, holder, out);
        }
    }

    fn stop(&mut self, result: Result<(), ErrorBody>, out: &mut Out) {
        self.phase = Phase::Stopped;
        out.push(Effect::Stopped(result));
    }

    /// Asks for what is due, and says when to come back. The only place that asks.
    fn advance(&mut self, now: Moment, out: &mut Out) {
        self.ask_for_the_lease(now, out);
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

    fn ask_for_the_lease(&mut self, now: Moment, out: &mut Out) {
        let number = self.number();
        let patience = self.timing.renew / 2;
        let due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        match &mut self.phase {
            // What was asked may yet be granted: then it must be given back.
            Phase::Standing(standing) if self.cancelled && standing.asked.is_some() => {}
            Phase::Standing(_) if self.cancelled => self.stop(Ok(()), out),
            Phase::Standing(standing) if standing.asked.is_none() && due(standing.try_at) => {
                standing.asked = Some((number, now));
                standing.try_at = None;
                out.push(Effect::Ask(Ask::Acquire { number, patience }));
            }
            Phase::Holding(holding) => {
                let full = holding.asked.len() >= MOST_UNANSWERED;
                if let (Some(token), true, true, false) =
                    (holding.tenure.token, holding.renew_at <= now, holding.tenure.renews(), full)
                {
                    holding.asked.insert(number, now);
                    holding.renew_at = now + self.timing.retry;
                    out.push(Effect::Ask(Ask::Renew { number, token, patience: self.timing.renew }));
                }
            }
            Phase::Leaving(leaving) if leaving.asked.is_some() => {}
            // Whoever stands again must know (ELECTOR-4); anybody else need not wait for what runs out by itself, of an
            // incarnation that crashed above all.
            Phase::Leaving(leaving)
                if (self.cancelled || !self.stand_again)
                    && (now >= leaving.give_up_at || leaving.failures == 0 && !due(leaving.try_at)) =>
            {
                self.stop(Ok(()), out);
            }
            Phase::Leaving(leaving) if due(leaving.try_at) => {
                leaving.asked = Some(number);
                leaving.try_at = None;
                let token = leaving.token;
                out.push(Effect::Ask(Ask::Release { number, token, patience }));
            }
            _ => {}
        }
    }

    fn watches(&self) -> bool {
        match &self.phase {
            // The first acquisition comes first: what it says makes the watch's first answer worth waiting for.
            Phase::Standing(_) => !self.cancelled,
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
        let wait = self.timing.lease.clamp(*WATCH.start(), *WATCH.end());
        out.push(Effect::Ask(Ask::Watch { number, seen: self.watch.seen, wait }));
    }

    fn next_of_phase(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Standing(standing) => standing.try_at,
            Phase::Holding(holding) => {
                let renews = holding.tenure.renews() && holding.asked.len() < MOST_UNANSWERED;
                let renew_at = renews.then_some(holding.renew_at);
                [renew_at, holding.tenure.next_check()].into_iter().flatten().min()
            }
            Phase::Leaving(leaving) => leaving.try_at,
            Phase::Stopped => None,
        }
    }
}

impl Standing {
    fn fail(&mut self, now: Moment, timing: &Timing, dice: &mut Dice) {
        self.try_at = Some(now + dice.stretched(timing.pause(self.failures), 1.0));
        self.failures += 1;
    }
}

impl Holding {
    /// What a watch shows, judged by its token: an older one is news from before our time.
    fn judge(&mut self, me: &str, lease: Option<&LeaseView>, out: &mut Out) {
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
#[path = "native_tests.rs"]
mod tests;
