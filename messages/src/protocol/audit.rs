//! Messages to the audit log.

use super::{Named, Reply};

/// Why a line was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditFault(pub String);

/// Messages of the audit log (`node/audit`).
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum AuditMsg {
    /// Appends one line, without its line break. `Ok`: handed to the file system. `Err`: the file cannot be written,
    /// and the line is written once it can be; or too many lines wait, and it is dropped and counted. Lost: not
    /// written. Repeated: written twice. Late: written in the order of arrival, with the time that the line names.
    Record { line: String, reply: Option<Reply<Result<(), AuditFault>>> },
    /// The same for a refusal of a caller without identity, without an answer. Only a bounded number a second is
    /// written; the others are counted. Lost: not written, and counted by the sender. Repeated or late: as `Record`.
    RecordUnauthenticated { line: String },
    /// Whether lines can be written now: answered after the file was opened, or at once while it is known to fail.
    /// Changes nothing. Lost or late: the caller treats the log as unavailable. Repeated: checked again.
    Check { reply: Reply<Result<(), AuditFault>> },
    /// Closes the file and opens the one that its path names now. Lost, repeated or late: the next line opens the file
    /// again anyway if its path names another one.
    Reopen,
}
