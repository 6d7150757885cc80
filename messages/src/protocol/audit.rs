//! What the audit log takes.

use super::{Named, Reply};

/// Why a line is not in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditFault(pub String);

/// Messages of the audit log (`node/audit`).
pub enum AuditMsg {
    /// Appends one line, without its line break. Answered once the line was handed to the file system, or cannot be. Lost, because
    /// the actor crashed with it in the mailbox: the reply port closes and the line is not written. Repeated: written twice.
    Record { line: String, reply: Option<Reply<Result<(), AuditFault>>> },
    /// The same for a refusal of a caller without identity. Only a bounded number a second is written; the others are counted.
    RecordUnauthenticated { line: String },
    /// Whether lines can be written at this moment: answered after a look at the file. Lost: ask again.
    Check { reply: Reply<Result<(), AuditFault>> },
    /// Closes the file and opens what its path names now. Lost or repeated: the file is opened again with the next line anyway if
    /// its path names another one.
    Reopen,
}

impl Named for AuditMsg {
    fn name(&self) -> &'static str {
        match self {
            Self::Record { .. } => "record",
            Self::RecordUnauthenticated { .. } => "record_unauthenticated",
            Self::Check { .. } => "check",
            Self::Reopen => "reopen",
        }
    }
}
