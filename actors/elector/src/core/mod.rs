//! The decisions of an elector. Two state machines with one interface: [`muster_lease`] asks a Muster cluster, which decides who
//! holds a lease and until when; [`kubernetes_lease`] reads and writes a record that any client may write, and trusts only its own
//! clock.
//!
//! Both receive `now` from a clock that counts while the machine is suspended, and check it before anything else: a process
//! that was frozen past its time must not act on earlier news.

pub mod kubernetes_lease;
pub mod muster_lease;
mod phases;
pub mod record;
mod requests;
mod tenure;

use std::convert::Infallible;
use std::time::Duration;

use muster_messages::{ErrorBody, FencingToken, Moment};
use serde::Serialize;

use crate::ElectorConfig;

pub use self::record::{LockError, Record, Versioned};
pub use self::tenure::Hold;

/// The durations of a machine.
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

    /// How long before the lease ends the work must be gone: covers different clock rates (far below one percent) and a kill on
    /// a busy machine.
    pub fn margin(&self) -> Duration {
        self.lease / 20
    }

    /// The pause after a failure: from a tenth of the period up to all of it.
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
    /// The lease is another's, or has no holder.
    Overtaken {
        /// Its holder, if there is one.
        by: Option<String>,
    },
    /// The work yielded to the holder that a coordinator prefers.
    Yielded {
        /// The preferred holder.
        to: String,
    },
    /// The cluster refuses us permanently.
    Refused {
        /// The cluster's reason.
        why: String,
    },
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
            Ending::Overtaken { by: None } => f.write_str("the lease is no longer held"),
            Ending::Yielded { to } => write!(f, "{to} is preferred"),
            Ending::Refused { why } => f.write_str(why),
        }
    }
}

/// Effects. `A` is the machine's request to its port.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect<A> {
    /// Send a request; each one gets an answer, even if only a failure.
    Ask(A),
    /// We lead: start the guarded work. Report `WorkEnded` when it has returned.
    Begin { token: Option<FencingToken>, hold: Hold },
    /// A renewal was confirmed.
    Extend(Hold),
    /// We no longer lead: cancel the work.
    End(Ending),
    /// The work should have ended by now: the lease can be another's at any moment.
    Overdue,
    /// The known leader changed: another, or none.
    Leader(Option<String>),
    /// A coordinator prefers another. Report `Challenge`.
    Challenged { by: String },
    /// The term is over: the work has returned. Releasing the lease remains.
    Over(Ending),
    /// Send `Woke` at that time. Replaces the previous one.
    WakeAt(Moment),
    /// The machine has ended.
    Stopped(Result<(), ErrorBody>),
}

impl<A> Effect<A> {
    /// Passes a request to `ask`, and every other effect to `effects`.
    pub(crate) fn sort(self, effects: &mut Vec<Effect<Infallible>>, mut ask: impl FnMut(A)) {
        effects.push(match self {
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

/// Inputs of all machines, besides answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signal {
    Started,
    Woke,
    /// The lease may have changed: read it now.
    RetryNow,
    /// The guarded work has returned.
    WorkEnded,
    /// Whether the work yields to the preferred holder.
    Challenge {
        by: String,
        yields: bool,
    },
    /// Release the lease and stop.
    Cancelled,
}

/// A machine's own state, for the live tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ElectorView {
    /// `campaigning`, `leading`, `draining`, `releasing`, `stopped`.
    pub phase: &'static str,
    /// The leader, as far as known.
    pub leader: Option<String>,
    /// The token of the current term.
    pub token: Option<FencingToken>,
    /// When the last confirmed renewal was sent, by the elector's clock: it means nothing elsewhere.
    #[serde(skip)]
    pub renewed: Option<Moment>,
    /// Why there is no progress, if an operator must act.
    pub blocked: Option<String>,
    /// Terms of leadership so far.
    pub terms: u64,
    /// Renewals that were confirmed.
    pub renewals: u64,
    /// Attempts to renew that were not confirmed.
    pub failures: u64,
    /// Kubernetes only: renewals that first had to read the lease. Under client-go's name in the live tree.
    #[serde(rename = "slow_path")]
    pub read_after_failed_renewal: u64,
}

/// Counters of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
struct Tally {
    terms: u64,
    renewals: u64,
    failures: u64,
    read_after_failed_renewal: u64,
}

/// Reports each change of the leader once, including the first observation. Initially none is known.
fn report_leader<A>(known: &mut Option<String>, leader: Option<&str>, out: &mut Vec<Effect<A>>) {
    let leader = leader.filter(|name| !name.is_empty());
    if known.as_deref() != leader {
        *known = leader.map(str::to_owned);
        out.push(Effect::Leader(known.clone()));
    }
}
