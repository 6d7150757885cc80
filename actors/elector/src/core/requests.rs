//! Requests of the native elector to the cluster, and their answers.

use std::time::Duration;

use muster_messages::{ErrorBody, ErrorCode, FencingToken, LeaseView, Revision};

/// A request to the cluster. `number` comes back with the answer; `timeout` is how long an answer is useful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Acquire { number: u64, timeout: Duration },
    Renew { number: u64, token: FencingToken, timeout: Duration },
    Release { number: u64, token: FencingToken, timeout: Duration },
    Watch { number: u64, seen: Revision, wait: Duration },
}

/// An answer, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Acquired { number: u64, result: Result<LeaseView, Trouble> },
    Renewed { number: u64, result: Result<RenewalOutcome, Trouble> },
    Released { number: u64, result: Result<(), Trouble> },
    Watched { number: u64, result: Result<Seen, Trouble> },
}

/// The result of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewalOutcome {
    Renewed,
    /// Final.
    Lost,
}

/// The lease in a watch's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub revision: Revision,
    pub lease: Option<LeaseView>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// The cluster refused, or could not be asked.
    Error(ErrorBody),
    /// The answer could not be decoded.
    Unreadable(String),
}

impl Trouble {
    /// A repetition of the same request would fail too.
    pub(super) fn is_final(&self) -> bool {
        use ErrorCode as C;
        match self {
            Trouble::Unreadable(_) => false,
            Trouble::Error(body) => matches!(
                body.code,
                C::Invalid | C::Unauthenticated | C::Forbidden | C::Blocked | C::Demoted | C::Removed | C::TooLarge
            ),
        }
    }
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Trouble::Error(body) if body.code == ErrorCode::Conflict)
    }
    pub(super) fn text(&self) -> String {
        match self {
            Trouble::Error(body) => body.message.clone(),
            Trouble::Unreadable(why) => format!("the lease cannot be read: {why}"),
        }
    }
    pub(super) fn body(self) -> ErrorBody {
        match self {
            Trouble::Error(body) => body,
            Trouble::Unreadable(why) => ErrorBody::new(ErrorCode::Internal, why),
        }
    }
}
