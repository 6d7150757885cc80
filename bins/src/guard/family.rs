//! A command and all processes that it started: killed and waited for as one.
//!
//! The process that accounts for all of them is their *subreaper*: when the root of a process tree ends, the remaining processes
//! become the subreaper's children, not the system's. That also finds a process that left the group (a daemon, say).

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait};

use super::guardian::Exit;

/// From now on this process inherits its descendants' orphans.
pub fn adopt() -> rustix::io::Result<()> {
    set_child_subreaper(Some(getpid()))
}

/// Sends a signal to a process group. A group that is gone needs none.
pub fn signal(group: Pid, signal: Signal) {
    let _gone = kill_process_group(group, signal);
}

/// Kills a group and all children of this process: once the group is dead, they are its orphans. A process started meanwhile is
/// killed the next time.
pub fn kill(group: Option<Pid>) {
    if let Some(group) = group {
        signal(group, Signal::KILL);
    }
    for child in children() {
        let _gone = kill_process(child, Signal::KILL);
    }
}

fn children() -> Vec<Pid> {
    // Each thread has its own; adopted children belong to the first thread.
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let parse = |list: String| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect();
    lists.flat_map(|list| -> Vec<Pid> { parse(list) }).collect()
}

/// Children that have ended, and whether any is left.
pub struct Reaped {
    pub ended: Vec<(Pid, Exit)>,
    pub left: bool,
}

/// Collects ended children. Does not wait.
pub fn reap() -> Reaped {
    let mut ended = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                let byte = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
                let code = status.exit_status().map(|code| Exit::Code(byte(code)));
                let exit = code.or_else(|| status.terminating_signal().map(|number| Exit::Signal(byte(number))));
                ended.extend(exit.map(|exit| (pid, exit)));
            }
            Ok(None) => return Reaped { ended, left: true },
            Err(Errno::INTR) => {}
            Err(_) => return Reaped { ended, left: false },
        }
    }
}
