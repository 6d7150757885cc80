//! The umask of commands: a daemon sets its own umask to exclude others; its commands get the one that the daemon started with.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::Mode;

/// The umask that a keeper gives its command, in octal.
const UMASK: &str = "MUSTER_COMMAND_UMASK";

static STARTED_WITH: OnceLock<Mode> = OnceLock::new();

/// Records the umask that this process started with, before it changed its own.
pub fn remember_umask(mode: Mode) {
    let _first = STARTED_WITH.set(mode);
}

/// Passes the recorded umask on to a keeper.
pub(super) fn tell(command: &mut Command) {
    if let Some(mode) = STARTED_WITH.get() {
        command.env(UMASK, format!("{:o}", mode.bits()));
    }
}

/// Applies the umask, in a process that is about to become a keeper.
pub(super) fn take(keeper: &mut Command) {
    if let Some(mode) = std::env::var_os(UMASK).as_deref().and_then(parse) {
        rustix::process::umask(mode);
    }
    keeper.env_remove(UMASK);
}

fn parse(text: &OsStr) -> Option<Mode> {
    let bits = u32::from_str_radix(text.to_str()?, 8).ok()?;
    Some(Mode::from_raw_mode(bits & 0o777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn umask_round_trips_through_the_environment() {
        assert_eq!(parse(OsStr::new("22")), Some(Mode::from_raw_mode(0o022)));
        assert_eq!(parse(OsStr::new("7777")), Some(Mode::from_raw_mode(0o777)));
        assert_eq!(parse(OsStr::new("rwx")), None);
    }
}
