//! A process that dies with the one that started it, however that one ends.
//!
//! `dev up` in front and the test harnesses set [`DIE_WITH_PARENT`] for the daemons they start: kill -9 of the parent
//! then leaves nothing behind. The kernel ties this to the parent's *thread* that started the child, so those
//! parents start their children from a thread that lives as long as they want them.

use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Holds the pid of the parent to die with.
pub const DIE_WITH_PARENT: &str = "MUSTER_DIE_WITH_PARENT";

/// Does what [`DIE_WITH_PARENT`] asks of this process. Called first thing by programs that may be started so.
pub fn obey() {
    let Some(wanted) = std::env::var(DIE_WITH_PARENT).ok().and_then(|v| v.parse::<i32>().ok()) else {
        return;
    };
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died before the request took effect: then someone else is our parent by now.
    let orphan = getppid().map(|p| p.as_raw_nonzero().get()) != Some(wanted);
    if orphan || asked.is_err() {
        std::process::exit(1);
    }
}

/// Makes a process that will be started die with this one.
pub fn tie(command: &mut Command) {
    command.env(DIE_WITH_PARENT, std::process::id().to_string());
}

/// Makes a process that will be started outlive this one.
pub fn untie(command: &mut Command) {
    command.env_remove(DIE_WITH_PARENT);
}
