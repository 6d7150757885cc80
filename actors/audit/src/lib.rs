//! The audit log: one JSON line in a file for each request that changes something, reads a secret, or is refused.
//!
//! - [`core`]: the content of a line, and what happens while the file cannot be written. Pure.
//! - [`AuditLog`]: the handle of the API and the router. Cheap to clone; off unless configured.
//! - [`audit_spec`]: the actor `node/audit`; [`LogFile`] is its file.

pub mod core;
mod file;
mod log;
mod msg;
mod ports;
mod shell;
mod spec;

pub use self::core::{AuditState, Entry, Object, Origin, Outcome, Via};
pub use self::file::{FileConfig, LogFile, Sink};
pub use self::log::{AuditLog, AuditSetup, Class, Draft, Pending};
pub use self::msg::Msg;
pub use self::ports::AuditPorts;
pub use self::spec::{audit_address, audit_spec};
