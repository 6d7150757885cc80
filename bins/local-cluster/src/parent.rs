//! Makes a process die with its parent, however the parent ends.
//!
//! `dev up` in the foreground and the test harnesses set [`DIE_WITH_PARENT`] for the daemons they start: kill -9 of the
//! parent then leaves no process behind. The kernel ties this to the *thread* that started the child, so these parents start
//! their children from a thread that lives as long as the children should.

use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// The environment variable with the parent's pid.
pub const DIE_WITH_PARENT: &str = "MUSTER_DIE_WITH_PARENT";

/// Applies [`DIE_WITH_PARENT`] to this process. Programs that may be started with it call this first.
pub fn die_with_parent() {
    let Some(wanted) = std::env::var(DIE_WITH_PARENT).ok().and_then(|v| v.parse::<i32>().ok()) else {
        return;
    };
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have died before the request took effect: then this process has another parent.
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
