//! The elector of a Kubernetes lease: a record that any client may overwrite, protected only by versions and waiting.
//!
//! Owns        the phase, the one request in flight, and the record as it was last observed.
//! Inputs      the result of its one request.
//! Outputs     read, create, overwrite.
//! Invariants  OBSERVE-1  another's lease is taken only after it has not changed for the duration that its holder wrote, by the
//!                        local clock, from when it was observed: no other clock is compared with the local one.
//!             OBSERVE-2  it has one request in progress at a time, and what it overwrites is what it has read.
//!             OBSERVE-3  a record that cannot be read is never taken.
//! This is client-go's algorithm, step by step, with three differences: a leader that sees another's name steps down at once,
//! not at its renew deadline; the lease is renewed until the guarded work has returned, and released only then; leadership
//! counts from before a write was sent.
//!
//! An attempt is client-go's `tryAcquireOrRenew` with its requests as values. Numbered comments mark its steps, in reading order:
//! `attempt` (1: renew without reading, or read), `on_answer` (2: create what is missing), `on_read` (3: observe, 4: overwrite or
//! not), `on_written` (5: lead, or count the renewal). A renewal that fails is followed by a read, any other failure by `retry_later`.
//!
//! | phase | attempt is due | lease read: another's | read: ours or free | written | write failed |
//! |---|---|---|---|---|---|
//! | campaigning | each retry period | observe, retry | write | **lead** | retry |
//! | leading | each retry period | **end: overtaken** | write; freed after another held it: **end** | renewed | retry, until the renew deadline ends it |
//! | releasing (the work has returned) | at once | released | ours: write it empty; free: released | released | retry, until the lease would expire |
//! | stopped | never | | | | |

use std::time::Duration;

use muster_messages::{MicroTime, Moment, Rng};

use super::record::{LockError, Record, Versioned};
use super::tenure::Tenure;
use super::{Effect, ElectorView, Ending, Signal, Tally, Timing, report_leader};
use crate::ElectorConfig;
use crate::config::JITTER;

/// A request to the lock, which stores the object that it saw last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub number: u64,
    pub what: What,
    /// The time limit for the answer.
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Get,
    Create(Record),
    /// Overwrite what was read or written last, unless it has changed.
    Update(Record),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    pub result: Result<Versioned, LockError>,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read,
    /// A renewal of the last observation, without reading first.
    RenewWithoutRead,
    Write,
    ReadToRelease,
    Release,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Campaigning {
        try_at: Option<Moment>,
        no_attempt_before: Option<Moment>,
    },
    Leading(Box<Tenure>),
    /// The work has returned.
    Releasing {
        yielded: bool,
        give_up_at: Moment,
        failures: u32,
    },
    Stopped,
}

#[derive(Clone, Debug, PartialEq)]
struct Observation {
    record: Record,
    /// When this version was first seen.
    at: Moment,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesElector {
    timing: Timing,
    me: String,
    /// A coordinator chooses the holder: never create, never take.
    coordinated: bool,
    release_on_cancel: bool,
    campaign_again: bool,
    rng: Rng,
    asked: u64,
    in_progress: Option<(u64, Moment, Step)>,
    /// When the next attempt begins, while leading or releasing.
    retry_at: Moment,
    phase: Phase,
    seen: Option<Observation>,
    leader: Option<String>,
    challenged_by: Option<String>,
    blocked: Option<String>,
    cancelled: bool,
    tally: Tally,
}

type Out = Vec<Effect<Ask>>;

impl KubernetesElector {
    /// An elector that has not started yet. `quiet_until`: until when an earlier incarnation's work may be draining.
    pub fn new(config: &ElectorConfig, seed: u64, quiet_until: Option<Moment>) -> Self {
        Self {
            timing: Timing::of(config),
            me: config.identity.clone(),
            coordinated: config.coordinated,
            release_on_cancel: config.release_on_cancel,
            campaign_again: config.campaign_again,
            rng: Rng::seeded(seed),
            asked: 0,
            in_progress: None,
            retry_at: Moment(0),
            phase: Phase::Campaigning { try_at: Some(quiet_until.unwrap_or_default()), no_attempt_before: None },
            seen: None,
            leader: None,
            challenged_by: None,
            blocked: None,
            cancelled: false,
            tally: Tally::default(),
        }
    }

    /// Handles a signal.
    pub fn step(&mut self, now: Moment, wall: MicroTime, signal: Signal, out: &mut Out) {
        self.check(now, out);
        match signal {
            Signal::Started | Signal::Woke => {}
            Signal::RetryNow => self.retry_now(now),
            Signal::WorkEnded => self.work_ended(now, out),
            Signal::Challenge { by, yields } => {
                if let (Phase::Leading(tenure), true) = (&mut self.phase, yields) {
                    tenure.end(Ending::Yielded { to: by }, out);
                }
            }
            Signal::Cancelled => {
                self.cancelled = true;
                if let Phase::Leading(tenure) = &mut self.phase {
                    tenure.end(Ending::Cancelled, out);
                }
            }
        }
        self.advance(now, wall, out);
    }

    /// Handles an answer.
    pub fn answer(&mut self, now: Moment, wall: MicroTime, answer: Answer, out: &mut Out) {
        self.check(now, out);
        if let Some((_, sent, step)) = self.in_progress.take_if(|(number, ..)| *number == answer.number) {
            self.on_answer(now, wall, sent, step, answer.result, out);
        }
        self.advance(now, wall, out);
    }

    pub fn view(&self) -> ElectorView {
        let (phase, tenure) = match &self.phase {
            Phase::Campaigning { .. } => ("campaigning", None),
            Phase::Leading(tenure) if tenure.ending.is_none() => ("leading", Some(tenure)),
            Phase::Leading(tenure) => ("draining", Some(tenure)),
            Phase::Releasing { .. } => ("releasing", None),
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
            read_after_failed_renewal: self.tally.read_after_failed_renewal,
        }
    }

    fn check(&mut self, now: Moment, out: &mut Out) {
        if let Phase::Leading(tenure) = &mut self.phase {
            tenure.check(now, out);
        }
    }

    fn retry_now(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Campaigning { try_at, .. } => *try_at = Some(now),
            Phase::Leading(_) => self.retry_at = now,
            Phase::Releasing { .. } | Phase::Stopped => {}
        }
    }

    /// Begins what is due, and sets the next wake-up.
    fn advance(&mut self, now: Moment, wall: MicroTime, out: &mut Out) {
        if self.in_progress.is_none() {
            match &self.phase {
                Phase::Campaigning { .. } if self.cancelled => self.stop(out),
                Phase::Campaigning { try_at: Some(at), .. } if *at <= now => self.attempt(now, wall, out),
                Phase::Leading(tenure) if self.retry_at <= now && tenure.renews() => self.attempt(now, wall, out),
                Phase::Releasing { give_up_at, .. } if *give_up_at <= now => self.on_released(now, out),
                Phase::Releasing { .. } if self.retry_at <= now => self.ask(now, Step::ReadToRelease, What::Get, out),
                _ => {}
            }
        }
        let idle = self.in_progress.is_none();
        let next = match &self.phase {
            Phase::Campaigning { try_at, .. } => try_at.filter(|_| idle),
            Phase::Leading(tenure) => {
                let renew_at = (idle && tenure.renews()).then_some(self.retry_at);
                [renew_at, tenure.next_check()].into_iter().flatten().min()
            }
            Phase::Releasing { give_up_at, .. } => idle.then_some(self.retry_at.min(*give_up_at)),
            Phase::Stopped => None,
        };
        out.extend(next.map(Effect::WakeAt));
    }

    fn ask(&mut self, now: Moment, step: Step, what: What, out: &mut Out) {
        self.asked += 1;
        let number = self.asked;
        self.in_progress = Some((number, now, step));
        let timeout = (self.timing.renew / 2).max(Duration::from_secs(1));
        out.push(Effect::Ask(Ask { number, what, timeout }));
    }

    /// One attempt to acquire or renew the lease.
    fn attempt(&mut self, now: Moment, wall: MicroTime, out: &mut Out) {
        if let Phase::Campaigning { try_at, .. } = &mut self.phase {
            *try_at = None;
        }
        // 1. Fast path: our own lease, seen last and still valid, is renewed without reading it.
        let own_live_lease = self.seen.as_ref().filter(|seen| seen.record.holder == self.me && seen.is_live(now));
        match own_live_lease {
            Some(seen) if !self.coordinated => {
                let what = What::Update(self.renewal_of(&seen.record, wall));
                self.ask(now, Step::RenewWithoutRead, what, out);
            }
            _ => self.ask(now, Step::Read, What::Get, out),
        }
    }

    fn on_answer(
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
        let releases = matches!(step, Step::ReadToRelease | Step::Release);
        if result.is_err() && !releases && self.is_over() {
            return; // an attempt from before the work returned
        }
        match step {
            // 2. The lease was read, or is created if there is none.
            Step::Read => match result {
                Ok(found) => self.on_read(now, wall, found, out),
                Err(LockError::NotFound) if !self.coordinated => {
                    let record =
                        Record { transitions: 0, acquired: Some(wall), ..self.renewal_of(&Record::default(), wall) };
                    self.ask(now, Step::Write, What::Create(record), out);
                }
                Err(_) => self.retry_later(now),
            },
            Step::RenewWithoutRead => match result {
                Ok(written) => self.on_written(now, sent, written, out),
                Err(_) => {
                    self.tally.read_after_failed_renewal += 1;
                    self.ask(now, Step::Read, What::Get, out);
                }
            },
            Step::Write => match result {
                Ok(written) => self.on_written(now, sent, written, out),
                Err(_) => self.retry_later(now),
            },
            Step::ReadToRelease => match result {
                Ok(found) if found.record.holder == self.me => {
                    let record = Record {
                        holder: String::new(),
                        lease_duration: Duration::from_secs(1),
                        acquired: Some(wall),
                        renewed: Some(wall),
                        ..found.record
                    };
                    self.ask(now, Step::Release, What::Update(record), out);
                }
                Ok(_) | Err(LockError::NotFound) => self.on_released(now, out),
                Err(_) => self.retry_later(now),
            },
            Step::Release => match result {
                Ok(written) => {
                    self.seen = Some(Observation { record: written.record, at: now });
                    report_leader(&mut self.leader, None, out);
                    self.on_released(now, out);
                }
                Err(_) => self.retry_later(now),
            },
        }
    }

    fn on_read(&mut self, now: Moment, wall: MicroTime, found: Versioned, out: &mut Out) {
        // 3. The record is observed: who holds it, and since when it has not changed by the local clock.
        let record = found.record;
        let transitions = self.seen.as_ref().map(|seen| seen.record.transitions);
        if self.seen.as_ref().is_none_or(|seen| seen.record != record) {
            self.seen = Some(Observation { record: record.clone(), at: now });
        }
        let live = self.seen.as_ref().is_some_and(|seen| seen.is_live(now));
        let (ours, vacant) = (record.holder == self.me, record.holder.is_empty());
        if ours || vacant || live {
            report_leader(&mut self.leader, Some(&record.holder), out);
        }
        match &mut self.phase {
            Phase::Leading(tenure) if !ours && !vacant => {
                tenure.end(Ending::Overtaken { by: Some(record.holder) }, out);
                return;
            }
            // The lease has no holder now, but had one since our last write, which may have done work of its own.
            Phase::Leading(tenure) if vacant && transitions != Some(record.transitions) => {
                tenure.end(Ending::Overtaken { by: None }, out);
                return;
            }
            Phase::Campaigning { no_attempt_before, .. } if !vacant => *no_attempt_before = None,
            Phase::Campaigning { no_attempt_before: Some(_), .. } => return self.retry_later(now),
            Phase::Releasing { .. } | Phase::Stopped => return,
            _ => {}
        }
        // 4. It is overwritten if it is ours, vacant or expired; a coordinator's choice overrides that.
        let challenger = record.preferred_holder.clone().filter(|name| *name != self.me);
        let may_write = match self.coordinated {
            true => ours && live && challenger.is_none(),
            false => ours || vacant || !live,
        };
        if ours && live {
            self.note_challenger(challenger, out);
        }
        if !may_write || self.cancelled && matches!(self.phase, Phase::Campaigning { .. }) {
            return self.retry_later(now);
        }
        let mut next = self.renewal_of(&record, wall);
        if !ours {
            next.transitions = record.transitions.saturating_add(1);
            next.acquired = Some(wall);
        }
        self.ask(now, Step::Write, What::Update(next), out);
    }

    fn on_written(&mut self, now: Moment, sent: Moment, written: Versioned, out: &mut Out) {
        // 5. It was written: leadership and renewals count from before the write was sent, not from its answer.
        let (token, of_cluster) = (written.fencing_token(), written.token);
        self.seen = Some(Observation { record: written.record, at: now });
        self.retry_at = sent + self.timing.retry;
        match &mut self.phase {
            Phase::Campaigning { .. } if self.cancelled => self.begin_release(now, false),
            // Too late to lead under it; the next write is a renewal.
            Phase::Campaigning { try_at, .. } if now >= sent + self.timing.renew => *try_at = Some(now),
            Phase::Campaigning { .. } => {
                self.tally.terms += 1;
                report_leader(&mut self.leader, Some(&self.me), out);
                self.phase = Phase::Leading(Box::new(Tenure::begin(&self.timing, sent, token, out)));
            }
            // The cluster began another tenure of ours: the lease was free or another's in between, and a resource that checks
            // tokens may have seen a later one than the work has.
            Phase::Leading(tenure) if of_cluster.is_some() && of_cluster != tenure.token => {
                tenure.end(Ending::Overtaken { by: None }, out);
            }
            Phase::Leading(tenure) => {
                self.tally.renewals += 1;
                tenure.confirm(&self.timing, sent, out);
            }
            Phase::Releasing { .. } | Phase::Stopped => {}
        }
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

    /// A coordinator prefers this holder to us, or none. Reported once to a leader.
    fn note_challenger(&mut self, by: Option<String>, out: &mut Out) {
        if self.challenged_by == by {
            return;
        }
        self.challenged_by = by;
        if let (Phase::Leading(_), Some(by)) = (&self.phase, self.challenged_by.clone()) {
            out.push(Effect::Challenged { by });
        }
    }

    /// Whether the work has returned: attempts from before that are not followed up.
    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Releasing { .. } | Phase::Stopped)
    }

    fn retry_later(&mut self, now: Moment) {
        let poll = now + self.rng.stretched(self.timing.retry, JITTER);
        self.tally.failures += u64::from(matches!(self.phase, Phase::Leading(_)));
        match &mut self.phase {
            Phase::Campaigning { try_at, no_attempt_before } => {
                // It waits no longer than it deferred.
                no_attempt_before.take_if(|until| *until <= poll);
                *try_at = Some(poll);
            }
            Phase::Leading(_) => self.retry_at = now + self.timing.retry,
            Phase::Releasing { failures, .. } => {
                self.retry_at = now + self.timing.pause(*failures);
                *failures += 1;
            }
            Phase::Stopped => {}
        }
    }

    fn work_ended(&mut self, now: Moment, out: &mut Out) {
        let Phase::Leading(tenure) = &self.phase else { return };
        let ending = tenure.ending.clone().unwrap_or(Ending::Done);
        self.cancelled |= ending == Ending::Done;
        let releases = ending.may_hold() && (self.release_on_cancel || !self.cancelled);
        self.begin_release(now, matches!(ending, Ending::Yielded { .. }));
        out.push(Effect::Over(ending));
        if !releases {
            self.on_released(now, out);
        }
    }

    fn begin_release(&mut self, now: Moment, yielded: bool) {
        self.retry_at = now;
        self.phase = Phase::Releasing { yielded, give_up_at: now + self.timing.renew, failures: 0 };
    }

    fn on_released(&mut self, now: Moment, out: &mut Out) {
        let Phase::Releasing { yielded, .. } = self.phase else { return };
        if self.cancelled || !self.campaign_again {
            return self.stop(out);
        }
        let try_at = Some(now + self.rng.stretched(self.timing.retry, JITTER));
        let no_attempt_before = yielded.then_some(now + self.timing.lease);
        self.phase = Phase::Campaigning { try_at, no_attempt_before };
        self.challenged_by = None;
    }

    fn stop(&mut self, out: &mut Out) {
        self.phase = Phase::Stopped;
        out.push(Effect::Stopped(Ok(())));
    }
}

impl Observation {
    fn is_live(&self, now: Moment) -> bool {
        self.at + self.record.lease_duration > now
    }
}

#[cfg(test)]
#[path = "kubernetes_lease_tests.rs"]
mod tests;
