//! The decisions of the audit log, without files, clocks or tasks.

mod line;
mod queue;

pub use self::line::{Entry, Object, Origin, Outcome, Via, line, without_secrets};
pub use self::queue::{AskId, AuditState, Effect, Input, Job, MAX_WAITING, MAX_WAITING_BYTES, Queue};
