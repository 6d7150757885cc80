//! The elector of a Kubernetes lease: a record that anybody may overwrite, kept apart by versions and by patience alone.
//!
//! Hears  what became of its one request.   Says  read, create, overwrite.
//! Keeps  OBSERVE-1  another's lease is taken only after it has not changed for as long as its holder wrote it would last,
//!                   by our clock, from when we saw it: nobody's clock is compared with ours.
//!        OBSERVE-2  it asks one thing at a time, and what it overwrites is what it has read.
//!        OBSERVE-3  a record that cannot be read is nobody's to take.
//! This is client-go's algorithm, step by step, with three differences: a leader that sees another's name steps down at
//! once, not at its renew deadline; the lease is renewed until the guarded work has returned, and released only then;
//! leadership counts from before a write was sent.

use std::time::Duration;

use muster_messages::{Dice, MicroTime, Moment};

use super::record::{LockError, Record, Versioned};
use super::tenure::Tenure;
use super::{Effect, ElectorView, Ending, Signal, Tally, Timing, notice};
use crate::ElectorConfig;
use crate::config::JITTER;

/// What is asked of the lock, which remembers the object it saw last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub number: u64,
    pub what: What,
    /// After this there is no answer.
    pub patience: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Get,
    Create(Record),
    /// Overwrite what was read or written last, if it is still there.
    Update(Record),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    pub result: Result<Versioned, LockError>,
}

/// What a request was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    /// A renewal of what was seen last, without looking first.
    RenewUnseen,
    Write,
    LookToRelease,
    Release,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Standing {
        try_at: Option<Moment>,
        defers_until: Option<Moment>,
    },
    Holding(Box<Tenure>),
    /// The work is gone.
    Leaving {
        yielded: bool,
        give_up_at: Moment,
        failures: u32,
    },
    Stopped,
}

#[derive(Clone, Debug, PartialEq)]
struct Sight {
    record: Record,
    /// When it was first seen like this.
    at: Moment,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedElector {
    timing: Timing,
    me: String,
    /// A coordinator chooses the holder: never create, never take.
    coordinated: bool,
    release_on_cancel: bool,
    stand_again: bool,
    dice: Dice,
    asked: u64,
    doing: Option<(u64, Moment, Step)>,
    /// When the next attempt begins, while leading or leaving.
    again_at: Moment,
    phase: Phase,
    seen: Option<Sight>,
    leader: Option<String>,
    challenged_by: Option<String>,
    blocked: Option<String>,
    cancelled: bool,
    tally: Tally,
}

type Out = Vec<Effect<Ask>>;

impl ObservedElector {
    /// An elector that has not started yet. `quiet_until`: work of an incarnation before it may still be running down.
    pub fn new(config: &ElectorConfig, seed: u64, quiet_until: Option<Moment>) -> Self {
        Self {
            timing: Timing::of(config),
            me: config.identity.clone(),
            coordinated: config.coordinated,
            release_on_cancel: config.release_on_cancel,
            stand_again: config.stand_again,
            dice: Dice::seeded(seed),
            asked: 0,
            doing: None,
            again_at: Moment(0),
            phase: Phase::Standing { try_at: Some(quiet_until.unwrap_or_default()), defers_until: None },
            seen: None,
            leader: None,
            challenged_by: None,
            blocked: None,
            cancelled: false,
            tally: Tally::default(),
        }
    }

    /// Takes what is not an answer.
    pub fn step(&mut self, now: Moment, wall: MicroTime, signal: Signal, out: &mut Out) {
        self.check(now, out);
        match signal {
            Signal::Started | Signal::Woke => {}
            Signal::Nudged => self.nudged(now),
            Signal::Drained => self.drained(now, out),
            Signal::Challenge { by, yields } => {
                if let (Phase::Holding(tenure), true) = (&mut self.phase, yields) {
                    tenure.end(Ending::Yielded { to: by }, out);
                }
            }
            Signal::Cancelled => {
                self.cancelled = true;
                if let Phase::Holding(tenure) = &mut self.phase {
                    tenure.end(Ending::Cancelled, out);
                }
            }
        }
        self.advance(now, wall, out);
    }

    /// Takes an answer.
    pub fn answer(&mut self, now: Moment, wall: MicroTime, answer: Answer, out: &mut Out) {
        self.check(now, out);
        if let Some((_, sent, step)) = self.doing.take_if(|(number, ..)| *number == answer.number) {
            self.answered(now, wall, sent, step, answer.result, out);
        }
        self.advance(now, wall, out);
    }

    /// Its state.
    pub fn view(&self) -> ElectorView {
        let (phase, tenure) = match &self.phase {
            Phase::Standing { .. } => ("standing", None),
            Phase::Holding(tenure) if tenure.ending.is_none() => ("leading", Some(tenure)),
            Phase::Holding(tenure) => ("draining", Some(tenure)),
            Phase::Leaving { .. } => ("releasing", None),
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
            slow_path: self.tally.slow_path,
        }
    }

    fn check(&mut self, now: Moment, out: &mut Out) {
        if let Phase::Holding(tenure) = &mut self.phase {
            tenure.check(now, out);
        }
    }

    fn nudged(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Standing { try_at, .. } => *try_at = Some(now),
            Phase::Holding(_) => self.again_at = now,
            Phase::Leaving { .. } | Phase::Stopped => {}
        }
    }

    /// Begins what is due, and says when to come back.
    fn advance(&mut self, now: Moment, wall: MicroTime, out: &mut Out) {
        if self.doing.is_none() {
            match &self.phase {
                Phase::Standing { .. } if self.cancelled => self.stop(out),
                Phase::Standing { try_at: Some(at), .. } if *at <= now => self.attempt(now, wall, out),
                Phase::Holding(tenure) if self.again_at <= now && tenure.renews() => self.attempt(now, wall, out),
                Phase::Leaving { give_up_at, .. } if *give_up_at <= now => self.left(now, out),
                Phase::Leaving { .. } if self.again_at <= now => self.ask(now, Step::LookToRelease, What::Get, out),
                _ => {}
            }
        }
        let idle = self.doing.is_none();
        let next = match &self.phase {
            Phase::Standing { try_at, .. } => try_at.filter(|_| idle),
            Phase::Holding(tenure) => {
                let renew_at = (idle && tenure.renews()).then_some(self.again_at);
                [renew_at, tenure.next_check()].into_iter().flatten().min()
            }
            Phase::Leaving { give_up_at, .. } => idle.then_some(self.again_at.min(*give_up_at)),
            Phase::Stopped => None,
        };
        out.extend(next.map(Effect::WakeAt));
    }

    fn ask(&mut self, now: Moment, step: Step, what: What, out: &mut Out) {
        self.asked += 1;
        let number = self.asked;
        self.doing = Some((number, now, step));
        let patience = (self.timing.renew / 2).max(Duration::from_secs(1));
        out.push(Effect::Ask(Ask { number, what, patience }));
    }

    /// One try to get or to keep the lease.
    fn attempt(&mut self, now: Moment, wall: MicroTime, out: &mut Out) {
        if let Phase::Standing { try_at, .. } = &mut self.phase {
            *try_at = None;
        }
        let unseen = self.seen.as_ref().filter(|seen| seen.record.holder == self.me && seen.is_live(now));
        match unseen {
            Some(seen) if !self.coordinated => {
                let what = What::Update(self.renewal_of(&seen.record, wall));
                self.ask(now, Step::RenewUnseen, what, out);
            }
            _ => self.ask(now, Step::Look, What::Get, out),
        }
    }

    fn answered(
        &mut self,
        now: Moment,
        wall: MicroTime,
        sent: Moment,
        step: Step,
        result: Result<Versioned, LockError>,
        out: &mut Out,
    ) {
        self.blocked = match &result {
            Ok(_) | Err(LockError::NotFound | LockError::Conflict) => None,
            Err(error) => Some(error.to_string()),
        };
        match (step, result) {
            (Step::Look, Ok(found)) => self.found(now, wall, found, out),
            (Step::Look, Err(LockError::NotFound)) if !self.coordinated && !self.leaves() => {
                let record =
                    Record { transitions: 0, acquired: Some(wall), ..self.renewal_of(&Record::default(), wall) };
                self.ask(now, Step::Write, What::Create(record), out);
            }
            (Step::RenewUnseen, Err(_)) if !self.leaves() => {
                self.tally.slow_path += 1;
                self.ask(now, Step::Look, What::Get, out);
            }
            (Step::RenewUnseen | Step::Write, Ok(written)) => self.wrote(now, sent, written, out),
            (Step::Look | Step::RenewUnseen | Step::Write, Err(_)) if self.leaves() => {}
            (Step::Look | Step::RenewUnseen | Step::Write, Err(_)) => self.failed(now),
            (Step::LookToRelease, Ok(found)) if found.record.holder == self.me => {
                let record = Record {
                    holder: String::new(),
                    lease_duration: Duration::from_secs(1),
                    acquired: Some(wall),
                    renewed: Some(wall),
                    ..found.record
                };
                self.ask(now, Step::Release, What::Update(record), out);
            }
            (Step::LookToRelease, Ok(_) | Err(LockError::NotFound)) => self.left(now, out),
            (Step::Release, Ok(written)) => {
                self.seen = Some(Sight { record: written.record, at: now });
                notice(&mut self.leader, None, out);
                self.left(now, out);
            }
            (Step::LookToRelease | Step::Release, Err(_)) => self.failed(now),
        }
    }

    /// Whether the work is gone: what was asked before then is not followed up.
    fn leaves(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. } | Phase::Stopped)
    }

    fn found(&mut self, now: Moment, wall: MicroTime, found: Versioned, out: &mut Out) {
        let record = found.record;
        let transitions = self.seen.as_ref().map(|seen| seen.record.transitions);
        if self.seen.as_ref().is_none_or(|seen| seen.record != record) {
            self.seen = Some(Sight { record: record.clone(), at: now });
        }
        let live = self.seen.as_ref().is_some_and(|seen| seen.is_live(now));
        let (ours, vacant) = (record.holder == self.me, record.holder.is_empty());
        if ours || vacant || live {
            notice(&mut self.leader, Some(&record.holder), out);
        }
        match &mut self.phase {
            Phase::Holding(tenure) if !ours && !vacant => {
                tenure.end(Ending::Overtaken { by: Some(record.holder) }, out);
                return;
            }
            // Nobody has it now. Somebody had it since our last write, though, and has done work of their own.
            Phase::Holding(tenure) if vacant && transitions != Some(record.transitions) => {
                tenure.end(Ending::Overtaken { by: None }, out);
                return;
            }
            Phase::Standing { defers_until, .. } if !vacant => *defers_until = None,
            Phase::Standing { defers_until: Some(_), .. } => return self.failed(now),
            Phase::Leaving { .. } | Phase::Stopped => return,
            _ => {}
        }
        let chosen = ours && live && !self.preferred(&record, out);
        let may = if self.coordinated { chosen } else { ours || vacant || !live };
        if !may || self.cancelled && matches!(self.phase, Phase::Standing { .. }) {
            return self.failed(now);
        }
        let mut next = self.renewal_of(&record, wall);
        if !ours {
            next.transitions = record.transitions.saturating_add(1);
            next.acquired = Some(wall);
        }
        self.ask(now, Step::Write, What::Update(next), out);
    }

    /// Whether a coordinator wants another in our place.
    fn preferred(&mut self, record: &Record, out: &mut Out) -> bool {
        let by = record.preferred_holder.clone().filter(|name| *name != self.me);
        if self.challenged_by != by {
            self.challenged_by = by.clone();
            if let (Phase::Holding(_), Some(by)) = (&self.phase, by.clone()) {
                out.push(Effect::Challenged { by });
            }
        }
        by.is_some()
    }

    fn renewal_of(&self, record: &Record, wall: MicroTime) -> Record {
        Record {
            holder: self.me.clone(),
            lease_duration: self.timing.lease,
            renewed: Some(wall),
            acquired: record.acquired.or((!self.coordinated).then_some(wall)),
            ..record.clone()
        }
    }

    fn wrote(&mut self, now: Moment, sent: Moment, written: Versioned, out: &mut Out) {
        let (token, of_cluster) = (written.fencing_token(), written.token);
        self.seen = Some(Sight { record: written.record, at: now });
        self.again_at = sent + self.timing.retry;
        match &mut self.phase {
            Phase::Standing { .. } if self.cancelled => self.leave(now, false),
            // Too late to lead by it; the next write is a renewal.
            Phase::Standing { try_at, .. } if now >= sent + self.timing.renew => *try_at = Some(now),
            Phase::Standing { .. } => {
                self.tally.terms += 1;
                notice(&mut self.leader, Some(&self.me), out);
                self.phase = Phase::Holding(Box::new(Tenure::begin(&self.timing, sent, token, out)));
            }
            // The cluster has begun another tenure of ours: between the two the lease was nobody's or another's, and what
            // checks tokens has perhaps seen a later one than the work has.
            Phase::Holding(tenure) if of_cluster.is_some() && of_cluster != tenure.token => {
                tenure.end(Ending::Overtaken { by: None }, out);
            }
            Phase::Holding(tenure) => {
                self.tally.renewals += 1;
                tenure.confirm(&self.timing, sent, out);
            }
            Phase::Leaving { .. } | Phase::Stopped => {}
        }
    }

    fn failed(&mut self, now: Moment) {
        let poll = now + self.dice.stretched(self.timing.retry, JITTER);
        self.tally.failures += u64::from(matches!(self.phase, Phase::Holding(_)));
        match &mut self.phase {
            Phase::Standing { try_at, defers_until } => {
                // Nothing holds it back longer than it deferred.
                defers_until.take_if(|until| *until <= poll);
                *try_at = Some(poll);
            }
            Phase::Holding(_) => self.again_at = now + self.timing.retry,
            Phase::Leaving { failures, .. } => {
                self.again_at = now + self.timing.pause(*failures);
                *failures += 1;
            }
            Phase::Stopped => {}
        }
    }

    fn drained(&mut self, now: Moment, out: &mut Out) {
        let Phase::Holding(tenure) = &self.phase else { return };
        let ending = tenure.ending.clone().unwrap_or(Ending::Done);
        self.cancelled |= ending == Ending::Done;
        let gives_up = ending.may_hold() && (self.release_on_cancel || !self.cancelled);
        self.leave(now, matches!(ending, Ending::Yielded { .. }));
        out.push(Effect::Over(ending));
        if !gives_up {
            self.left(now, out);
        }
    }

    fn leave(&mut self, now: Moment, yielded: bool) {
        self.again_at = now;
        self.phase = Phase::Leaving { yielded, give_up_at: now + self.timing.renew, failures: 0 };
    }

    fn left(&mut self, now: Moment, out: &mut Out) {
        let Phase::Leaving { yielded, .. } = self.phase else { return };
        if self.cancelled || !self.stand_again {
            return self.stop(out);
        }
        let try_at = Some(now + self.dice.stretched(self.timing.retry, JITTER));
        let defers_until = yielded.then_some(now + self.timing.lease);
        self.phase = Phase::Standing { try_at, defers_until };
        self.challenged_by = None;
    }

    fn stop(&mut self, out: &mut Out) {
        self.phase = Phase::Stopped;
        out.push(Effect::Stopped(Ok(())));
    }
}

impl Sight {
    fn is_live(&self, now: Moment) -> bool {
        self.at + self.record.lease_duration > now
    }
}

#[cfg(test)]
#[path = "observed_tests.rs"]
mod tests;
