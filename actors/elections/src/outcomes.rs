//! What the raft member's answers mean for the clock over all leases.

use muster_kernel::AskError;
use muster_messages::protocol::{Applied, ProposeError, ReadError};
use muster_messages::{ErrorBody, ErrorCode};

use crate::core::keeper::Outcome;

/// A failed read only means that this leader was not confirmed.
pub(crate) fn unconfirmed(why: ReadError) -> ErrorBody {
    // Late is the same as impossible to a holder: another manager may be the leader by now, and it asks there.
    let is_late = matches!(why, ReadError::TimedOut);
    let error = ErrorBody::from(why);
    let code = if is_late { ErrorCode::NoQuorum } else { error.code };
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
            | ProposeError::TooFewReachable { .. }
            | ProposeError::TooLarge { .. }
            | ProposeError::StateFull { .. },
        ))
        | Err(AskError::Full | AskError::Down) => Outcome::NotTaken,
        Ok(Err(ProposeError::UnknownOutcome | ProposeError::NoQuorum { .. } | ProposeError::TimedOut))
        | Err(AskError::Closed | AskError::TimedOut) => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The holder asks another manager for each of these but the last, which passes by itself.
    #[test]
    fn unconfirmed_leader_is_left_whatever_the_reason() {
        for (why, code) in [
            (ReadError::TimedOut, ErrorCode::NoQuorum),
            (ReadError::NoLeader, ErrorCode::NoQuorum),
            (ReadError::NoQuorum { missing: Vec::new() }, ErrorCode::NoQuorum),
            (ReadError::Busy, ErrorCode::TooManyRequests),
        ] {
            let error = unconfirmed(why);
            assert_eq!(error.code, code, "{error}");
            assert!(
                error.message.starts_with("this leader was not confirmed (") && error.retry_after_ms.is_some(),
                "{error}"
            );
        }
    }
}
