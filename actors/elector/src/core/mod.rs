//! What an elector decides. Two machines with one outside face: [`native`] asks a Muster cluster, which says who holds a
//! lease and until when; [`observed`] reads and writes a record that anybody may write, and trusts its own clock alone.
//!
//! Both are handed `now` by a clock that also counts while the machine is suspended, and look at it before anything
//! else: a process that was frozen past its time must not act on news from before.

pub mod native;
pub mod observed;
mod questions;
pub mod record;
mod tenure;

use std::convert::Infallible;
use std::time::Duration;

use muster_messages::{ErrorBody, FencingToken, Moment};
use serde::Serialize;

use crate::ElectorConfig;

pub use self::record::{LockError, Record, Versioned};
pub use self::tenure::Hold;

/// The durations that a machine works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub lease: Duration,
    pub renew: Duration,
    pub retry: Duration,
}

impl Timing {
    pub(crate) fn of(config: &ElectorConfig) -> Self {
        Self { lease: config.lease_duration, renew: config.renew_deadline, retry: config.retry_period }
    }

    /// By how much the work must be gone before the lease is anybody else's: clocks that run differently (by far less
    /// than a hundredth), and the time that a kill takes on a busy machine.
    pub fn margin(&self) -> Duration {
        self.lease / 20
    }

    /// The shortest pause after a failure: a tenth of the period, growing to all of it.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        (self.retry / 10).saturating_mul(1 << failures.min(8)).min(self.retry)
    }
}

/// Why leadership ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The guarded work returned by itself.
    Done,
    /// The elector was asked to stop.
    Cancelled,
    /// No renewal was confirmed within the renew deadline.
    Lapsed,
    /// The lease is another's, or nobody's.
    Overtaken { by: Option<String> },
    /// The work made room for the holder that a coordinator prefers.
    Yielded { to: String },
    /// The cluster refuses us for good.
    Refused { why: String },
}

impl Ending {
    /// Whether the work was still wanted.
    pub fn is_loss(&self) -> bool {
        !matches!(self, Ending::Done | Ending::Cancelled)
    }
    /// Whether the lease may still be ours.
    fn may_hold(&self) -> bool {
        !matches!(self, Ending::Overtaken { .. } | Ending::Refused { .. })
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Done => f.write_str("the guarded work has ended"),
            Ending::Cancelled => f.write_str("the elector was stopped"),
            Ending::Lapsed => f.write_str("no renewal was confirmed in time"),
            Ending::Overtaken { by: Some(by) } => write!(f, "{by} holds the lease now"),
            Ending::Overtaken { by: None } => f.write_str("the lease is held no more"),
            Ending::Yielded { to } => write!(f, "{to} is preferred"),
            Ending::Refused { why } => f.write_str(why),
        }
    }
}

/// What to do. `A` is what the machine asks of its port.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect<A> {
    /// Ask; every question is answered, if only by that there is no answer.
    Ask(A),
    /// We lead: start the guarded work. Answer with `Drained` when it has returned.
    Begin { token: Option<FencingToken>, hold: Hold },
    /// A renewal was confirmed.
    Extend(Hold),
    /// We lead no more: tell the work to end.
    End(Ending),
    /// The work should have ended by now: the lease can be another's any moment.
    Overdue,
    /// Somebody else is known to lead, or nobody.
    Leader(Option<String>),
    /// A coordinator prefers another. Answer with `Challenge`.
    Challenged { by: String },
    /// The time of leading is over: the work has returned. What is left is to give the lease up.
    Over(Ending),
    /// Come back with `Woke` then. Replaces the one before.
    WakeAt(Moment),
    /// Nothing follows.
    Stopped(Result<(), ErrorBody>),
}

impl<A> Effect<A> {
    /// Hands a question to `ask`, and everything else to `told`.
    pub(crate) fn sort(self, told: &mut Vec<Effect<Infallible>>, mut ask: impl FnMut(A)) {
        told.push(match self {
            Effect::Ask(question) => return ask(question),
            Effect::Begin { token, hold } => Effect::Begin { token, hold },
            Effect::Extend(hold) => Effect::Extend(hold),
            Effect::End(ending) => Effect::End(ending),
            Effect::Overdue => Effect::Overdue,
            Effect::Leader(leader) => Effect::Leader(leader),
            Effect::Challenged { by } => Effect::Challenged { by },
            Effect::Over(ending) => Effect::Over(ending),
            Effect::WakeAt(at) => Effect::WakeAt(at),
            Effect::Stopped(result) => Effect::Stopped(result),
        });
    }
}

/// What all machines hear beside answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    Started,
    Woke,
    /// The lease may have changed: look now.
    Nudged,
    /// The guarded work has returned.
    Drained,
    /// Whether the work makes room for the preferred holder.
    Challenge {
        by: String,
        yields: bool,
    },
    /// Give up what is held and stop.
    Cancelled,
}

/// A machine's own state, for the live tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ElectorView {
    /// `standing`, `leading`, `draining`, `releasing`, `stopped`.
    pub phase: &'static str,
    pub leader: Option<String>,
    pub token: Option<FencingToken>,
    /// When the last confirmed renewal was sent.
    pub renewed: Option<Moment>,
    /// Why nothing moves, if somebody must look.
    pub blocked: Option<String>,
    pub terms: u64,
    pub renewals: u64,
    /// Attempts to renew that were not confirmed.
    pub failures: u64,
    /// Kubernetes only: renewals that first had to read the lease.
    pub slow_path: u64,
}

/// Counters of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
struct Tally {
    terms: u64,
    renewals: u64,
    failures: u64,
    slow_path: u64,
}

/// Tells of a leader once, the first sighting included. At first nobody is known.
fn notice<A>(known: &mut Option<String>, leader: Option<&str>, out: &mut Vec<Effect<A>>) {
    let leader = leader.filter(|name| !name.is_empty());
    if known.as_deref() != leader {
        *known = leader.map(str::to_owned);
        out.push(Effect::Leader(known.clone()));
    }
}
