//! The umask of commands: a daemon closes its own to others, and what it runs gets the one that the daemon was started with.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::Mode;

/// The umask that a keeper gives its command, in octal.
const UMASK: &str = "MUSTER_COMMAND_UMASK";

static STARTED_WITH: OnceLock<Mode> = OnceLock::new();

/// The umask that this process was started with, before it closed its own.
pub fn remember_umask(mode: Mode) {
    let _first = STARTED_WITH.set(mode);
}

/// Passes it on to a keeper.
pub(super) fn tell(command: &mut Command) {
    if let Some(mode) = STARTED_WITH.get() {
        command.env(UMASK, format!("{:o}", mode.bits()));
    }
}

/// Takes it, in a process that is about to become a keeper.
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
    fn what_is_told_is_what_is_taken() {
        assert_eq!(parse(OsStr::new("22")), Some(Mode::from_raw_mode(0o022)));
        assert_eq!(parse(OsStr::new("7777")), Some(Mode::from_raw_mode(0o777)));
        assert_eq!(parse(OsStr::new("rwx")), None);
    }
}
