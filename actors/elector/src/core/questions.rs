//! What the native elector asks of the cluster, and what comes back.

use std::time::Duration;

use muster_messages::{ErrorBody, ErrorCode, FencingToken, LeaseView, Revision};

/// What is asked of the cluster. `number` comes back with the answer; `patience` is how long an answer is of use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Acquire { number: u64, patience: Duration },
    Renew { number: u64, token: FencingToken, patience: Duration },
    Release { number: u64, token: FencingToken, patience: Duration },
    Watch { number: u64, seen: Revision, wait: Duration },
}

/// An answer, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Acquired { number: u64, result: Result<LeaseView, Trouble> },
    Renewed { number: u64, result: Result<Verdict, Trouble> },
    Released { number: u64, result: Result<(), Trouble> },
    Watched { number: u64, result: Result<Seen, Trouble> },
}

/// What became of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Renewed,
    /// Final.
    Lost,
}

/// The lease as a watch shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub revision: Revision,
    pub lease: Option<LeaseView>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// The cluster said no, or could not be asked.
    Error(ErrorBody),
    /// It said something that nobody here understands.
    Unreadable(String),
}

impl Trouble {
    /// The same question will not fare better.
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
