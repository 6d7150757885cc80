//! A drain from slog, which the `raft` crate logs through, to tracing: warnings and above. The core reports
//! lower events as notices.

use slog::{Drain, Level, Logger, Never, OwnedKVList, Record};

struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        match record.level() {
            Level::Critical | Level::Error => tracing::error!(at = record.module(), "{}", record.msg()),
            Level::Warning => tracing::warn!(at = record.module(), "{}", record.msg()),
            _ => {}
        }
        Ok(())
    }
    fn is_enabled(&self, level: Level) -> bool {
        level.is_at_least(Level::Warning)
    }
}

/// The logger for a core.
pub fn logger() -> Logger {
    Logger::root(ToTracing, slog::o!())
}
