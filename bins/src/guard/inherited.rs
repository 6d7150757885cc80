//! What commands of a daemon inherit: what the daemon was started with, not what it set for itself, nor what the service manager meant for
//! it alone.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::open_files::{open_files_limit, raise_open_files};
use crate::stderr::say;

/// For a keeper: the umask of its command, in octal, and the soft limit of its open files.
const INHERITED: &str = "MUSTER_COMMAND_INHERITS";

/// What systemd gives a service: see systemd.exec(5), `sd_notify(3)`, `sd_listen_fds(3)`. With `NOTIFY_SOCKET` a command could report the
/// daemon's state, and a command that understands it would.
const OF_THE_SERVICE: [&str; 17] = [
    "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LOGS_DIRECTORY",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "SYSTEMD_EXEC_PID",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// What a daemon was started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inherited {
    umask: Mode,
    /// `None`: no limit.
    open_files: Option<u64>,
}

static STARTED_WITH: OnceLock<Inherited> = OnceLock::new();

/// Excludes others from the files of this process, which libraries create too (Raft's log above all), and raises its limit of open files.
/// Commands get the original values back.
pub fn become_daemon() {
    let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
    let _first = STARTED_WITH.set(Inherited { umask, open_files: open_files_limit() });
    if let Err(error) = raise_open_files() {
        say(format_args!("musterd: cannot raise the limit of open files: {error}"));
    }
}

/// Passes it on to a keeper.
pub(super) fn pass_on(command: &mut Command) {
    for (key, _) in std::env::vars_os() {
        let is_of_the_service = OF_THE_SERVICE.iter().any(|name| key == *name);
        if is_of_the_service || key.to_string_lossy().starts_with("MUSTER_") {
            command.env_remove(key);
        }
    }
    if let Some(inherited) = STARTED_WITH.get() {
        command.env(INHERITED, inherited.to_text());
    }
}

/// Applies it, in a process that is about to become a keeper.
pub(super) fn apply(keeper: &mut Command) {
    if let Some(inherited) = std::env::var_os(INHERITED).as_deref().and_then(Inherited::parse) {
        rustix::process::umask(inherited.umask);
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // Lowering a limit cannot fail.
        let _lowered = setrlimit(Resource::Nofile, Rlimit { current: inherited.open_files, maximum });
    }
    keeper.env_remove(INHERITED);
    spare_no_command();
}

/// A daemon may be protected from the kernel's out-of-memory killer; a command that uses up the memory is not.
fn spare_no_command() {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let is_spared = std::fs::read_to_string(SCORE).is_ok_and(|score| score.starts_with('-'));
    if is_spared && let Err(error) = std::fs::write(SCORE, "0") {
        say(format_args!("muster: cannot reset {SCORE} of a command: {error}"));
    }
}

impl Inherited {
    fn to_text(self) -> String {
        let open_files = self.open_files.map_or_else(String::new, |limit| limit.to_string());
        format!("{:o} {open_files}", self.umask.bits())
    }

    fn parse(text: &OsStr) -> Option<Self> {
        let (umask, open_files) = text.to_str()?.split_once(' ')?;
        let umask = Mode::from_raw_mode(u32::from_str_radix(umask, 8).ok()? & 0o777);
        let open_files = if open_files.is_empty() { None } else { Some(open_files.parse().ok()?) };
        Some(Self { umask, open_files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_values_round_trip_through_the_environment() {
        for (umask, open_files) in [(0o022, Some(1024)), (0o777, None)] {
            let inherited = Inherited { umask: Mode::from_raw_mode(umask), open_files };
            assert_eq!(Inherited::parse(OsStr::new(&inherited.to_text())), Some(inherited));
        }
        for text in ["", "22", "rwx 1", "22 many"] {
            assert_eq!(Inherited::parse(OsStr::new(text)), None, "{text}");
        }
    }
}
