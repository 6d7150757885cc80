//! Why a message did not reach its actor, or a question has no answer.

use std::time::Duration;

use super::{ErrorBody, ErrorCode};

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undeliverable {
    /// The actor is not running (starting, backing off, or gone).
    #[error("the actor is not running")]
    Down,
    /// The mailbox has no room: the actor receives more than it handles.
    #[error("the actor's mailbox is full")]
    Full,
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The actor is not running (starting, backing off, or gone).
    #[error("the actor is not running")]
    Down,
    /// The mailbox has no room.
    #[error("the actor's mailbox is full")]
    Full,
    /// The actor dropped the question: it crashed or stopped.
    #[error("the actor ended before it answered")]
    Closed,
    /// The deadline passed. The question may still be handled.
    #[error("no answer in time")]
    TimedOut,
}

impl From<Undeliverable> for AskError {
    fn from(why: Undeliverable) -> Self {
        match why {
            Undeliverable::Down => AskError::Down,
            Undeliverable::Full => AskError::Full,
        }
    }
}
impl From<AskError> for ErrorBody {
    fn from(why: AskError) -> Self {
        let retry = Duration::from_millis(200);
        match why {
            AskError::Full => {
                ErrorBody::new(ErrorCode::TooManyRequests, "too many requests are waiting; retry").retry_after(retry)
            }
            AskError::TimedOut => ErrorBody::new(ErrorCode::TimedOut, "no answer in time"),
            AskError::Down => {
                ErrorBody::new(ErrorCode::Unreachable, "the service is restarting; retry").retry_after(retry)
            }
            AskError::Closed => {
                ErrorBody::unknown_outcome("the service restarted during the request").retry_after(retry)
            }
        }
    }
}
