//! What the raft member's answers mean for the clock over all leases.

use muster_kernel::AskError;
use muster_messages::protocol::{Applied, ProposeError, ReadError};
use muster_messages::{ErrorBody, ErrorCode};

use crate::core::keeper::Outcome;

/// A failed read only means that this leader was not confirmed.
pub(crate) fn unconfirmed(why: ReadError) -> ErrorBody {
    let error = ErrorBody::from(why);
    // Late or impossible is the same to a holder: another manager may be the leader by now, and it asks there.
    let code = if error.code == ErrorCode::TimedOut { ErrorCode::NoQuorum } else { error.code };
    ErrorBody { code, message: format!("this leader was not confirmed ({}); retry", error.message), ..error }
}

/// Unknown unless it is certain that the log will never contain it.
pub(crate) fn outcome(asked: Result<Result<Applied, ProposeError>, AskError>) -> Outcome {
    match asked {
        Ok(Ok(_)) => Outcome::Applied,
        Ok(Err(ProposeError::Refused(why))) => {
            tracing::debug!(%why, "lease expiry refused");
            Outcome::Refused
        }
        Ok(Err(
            ProposeError::NotLeader { .. }
            | ProposeError::Busy
            | ProposeError::MembershipBusy
            | ProposeError::TooLarge { .. }
            | ProposeError::StateFull { .. },
        ))
        | Err(AskError::Full | AskError::Down) => Outcome::NotTaken,
        Ok(Err(ProposeError::UnknownOutcome | ProposeError::NoQuorum { .. } | ProposeError::TimedOut))
        | Err(AskError::Closed | AskError::TimedOut) => Outcome::Unknown,
    }
}
