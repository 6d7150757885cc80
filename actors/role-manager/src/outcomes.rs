//! What the raft member's answer to a proposal means for a step.

use muster_kernel::AskError;
use muster_messages::protocol::{Applied, ProposeError};

use crate::core::StepOutcome;

pub(crate) fn outcome(asked: Result<Result<Applied, ProposeError>, AskError>) -> StepOutcome {
    match asked {
        Ok(Ok(applied)) => StepOutcome::Applied(applied.revision),
        Ok(Err(error)) => outcome_of(error),
        Err(AskError::Full) => StepOutcome::Crowded,
        Err(AskError::Down) => StepOutcome::NotLeader,
        Err(AskError::Closed | AskError::TimedOut) => StepOutcome::Unknown,
    }
}

fn outcome_of(error: ProposeError) -> StepOutcome {
    match error {
        ProposeError::Refused(refusal) => StepOutcome::Refused(refusal),
        ProposeError::NotLeader { .. } => StepOutcome::NotLeader,
        ProposeError::Busy => StepOutcome::Crowded,
        ProposeError::MembershipBusy => StepOutcome::MembershipBusy,
        ProposeError::TooFewReachable { voters, reachable } => StepOutcome::TooFewReachable { voters, reachable },
        ProposeError::NoQuorum { missing } => StepOutcome::NoQuorum { missing },
        ProposeError::TimedOut => StepOutcome::TimedOut,
        ProposeError::TooLarge { .. } | ProposeError::StateFull { .. } | ProposeError::UnknownOutcome => {
            StepOutcome::Unknown
        }
    }
}
