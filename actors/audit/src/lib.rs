//! The audit log: one JSON line in a file for each request that changes something, reads a secret, or is refused.
//!
//! - [`core`]: what a line says, and what happens while the file cannot be written. Pure.
//! - [`AuditLog`]: what the API and the router write through. Cheap to clone; off unless it is configured.
//! - [`audit_spec`]: the actor `node/audit`; [`LogFile`] is the file that it writes.

pub mod core;
mod file;
mod log;
mod shell;

pub use self::core::{AuditState, Entry, Object, Origin, Outcome, Via};
pub use self::file::{FileConfig, LogFile, Sink};
pub use self::log::{AuditLog, AuditSetup, Class, Draft, Pending};
pub use self::shell::{AuditPorts, Msg, audit_address, audit_spec};
