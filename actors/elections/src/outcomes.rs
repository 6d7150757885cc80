//! What the raft member's answers mean for the clock over all leases.

use std::time::Duration;

use muster_kernel::AskError;
use muster_messages::protocol::{Applied, ProposeError, ReadError};
use muster_messages::{ErrorBody, ErrorCode};
use serde_json::json;

use crate::core::keeper::Outcome;

/// A failed read only means that this leader was not confirmed.
pub(crate) fn unconfirmed(why: ReadError) -> ErrorBody {
    let soon = Duration::from_millis(200);
    let text = format!("this leader was not confirmed ({why}); retry");
    match why {
        ReadError::Busy => ErrorBody::new(ErrorCode::TooManyRequests, text),
        ReadError::NoQuorum { missing } => {
            ErrorBody::new(ErrorCode::NoQuorum, text).with_details(&json!({ "missing": missing }))
        }
        ReadError::NoLeader | ReadError::TimedOut => ErrorBody::new(ErrorCode::NoQuorum, text),
    }
    .retry_after(soon)
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
