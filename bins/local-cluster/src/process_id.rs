//! A process by pid and start time: can be signalled and waited for, by its parent or by another process.

use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::process::STOP_TIMEOUT;
use crate::wait::pause;

/// A process, distinguished from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: i32,
    /// Clock ticks since boot.
    pub started: u64,
}

impl ProcessId {
    /// The process that currently has this pid.
    pub fn of(pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self { pid, started: started(pid)? })
    }
    /// A child that was not waited for yet: its pid is not reused, even if it has ended.
    pub(crate) fn of_child(child: &Child) -> Self {
        let pid = Pid::from_child(child).as_raw_nonzero().get();
        Self { pid, started: stat(pid).as_deref().and_then(start_time).unwrap_or(0) }
    }
    /// Whether this process is still running.
    pub fn is_alive(self) -> bool {
        started(self.pid) == Some(self.started)
    }
    /// The processor time used by all of its threads; `None` once it has ended.
    pub fn cpu_time(self) -> Option<Duration> {
        let stat = self.is_alive().then(|| stat(self.pid))??;
        let ticks = |field: usize| stat.split_whitespace().nth(field)?.parse::<u64>().ok();
        Some(Duration::from_millis((ticks(UTIME)? + ticks(UTIME + 1)?) * 1000 / TICKS_PER_S))
    }
    /// The bytes of memory that it uses, the mapped program included; `None` once it has ended.
    pub fn memory(self) -> Option<u64> {
        let status = self.is_alive().then(|| std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok())??;
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"))?;
        Some(kilobytes.trim().parse::<u64>().ok()? * 1024)
    }
    /// Whether all its threads are stopped. After SIGSTOP was sent they run for a while on a busy machine.
    pub fn is_stopped(self) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.pid)) else { return false };
        let mut stats = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        let stopped = |stat: String| after_name(&stat).is_some_and(|rest| rest.trim_start().starts_with('T'));
        self.is_alive() && stats.all(stopped)
    }
    /// Sends a signal, unless the process has ended.
    pub fn signal(self, signal: Signal) {
        if let (true, Some(pid)) = (self.is_alive(), Pid::from_raw(self.pid)) {
            let _ = kill_process(pid, signal); // it may end between the check and the signal
        }
    }
}

/// The field of the time in user mode, in the result of [`stat`]; the next one is the time in the kernel.
const UTIME: usize = 11;
/// The field of the number of threads, the first one included.
const THREADS: usize = 17;
/// The unit of both. The kernel shows hundredths of a second, whatever its internal unit.
const TICKS_PER_S: u64 = 100;

/// `/proc/PID/stat` from its third field on (proc(5)).
fn stat(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    after_name(&stat).map(str::to_owned)
}

/// The name before the third field is in parentheses and may contain any character.
fn after_name(stat: &str) -> Option<&str> {
    stat.get(stat.rfind(')')? + 1..)
}

/// The start time of a running process, field 22.
fn started(pid: i32) -> Option<u64> {
    stat(pid).filter(|stat| !has_ended(stat)).as_deref().and_then(start_time)
}

/// A zombie counts as ended, once it is the only thread: while others of a killed process are still ending, it holds its files and
/// locks.
fn has_ended(stat: &str) -> bool {
    let threads = stat.split_whitespace().nth(THREADS).and_then(|field| field.parse::<u64>().ok());
    stat.trim_start().starts_with(['Z', 'X']) && threads.is_none_or(|threads| threads <= 1)
}

fn start_time(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(19)?.parse().ok()
}

/// Ends processes that are not children of this one: TERM, then KILL. Returns the number that needed KILL.
pub async fn stop_all(processes: &[ProcessId]) -> usize {
    for process in processes {
        process.signal(Signal::TERM);
    }
    let gone = async {
        while processes.iter().any(|p| p.is_alive()) {
            pause().await;
        }
    };
    if tokio::time::timeout(STOP_TIMEOUT, gone).await.is_ok() {
        return 0;
    }
    let unresponsive: Vec<_> = processes.iter().filter(|p| p.is_alive()).collect();
    for process in &unresponsive {
        process.signal(Signal::KILL);
    }
    unresponsive.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::eventually;

    /// Lines of proc(5) as the kernel writes them while and after a process with eight threads is killed.
    #[test]
    fn zombie_whose_threads_are_still_ending_has_not_ended() {
        let stat = |state, threads| format!(" {state} 1 7 7 0 -1 4228 0 0 0 0 12 3 0 0 20 0 {threads} 0 4711 0 0");
        for (state, threads, expected) in
            [("S", 8, false), ("R", 1, false), ("Z", 8, false), ("Z", 1, true), ("X", 0, true)]
        {
            assert_eq!(has_ended(&stat(state, threads)), expected, "{state} {threads}");
        }
        assert_eq!(start_time(&stat("S", 8)), Some(4711));
        let (until, other) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || other.recv());
        let own = super::stat(i32::try_from(std::process::id()).unwrap()).unwrap();
        drop(until);
        let _ended = other.join().unwrap();
        let threads = own.split_whitespace().nth(THREADS).and_then(|field| field.parse::<usize>().ok());
        assert!(threads.is_some_and(|threads| threads > 1), "{own}");
    }

    #[test]
    fn process_is_identified_by_pid_and_start_time() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessId { started: me.started + 1, ..me }.is_alive(), "another process with the same pid");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = ProcessId::of(child.id());
        child.wait().unwrap();
        assert!(!id.is_some_and(ProcessId::is_alive));
        assert_eq!(id.and_then(ProcessId::cpu_time), None);
        assert_eq!(id.and_then(ProcessId::memory), None);
        assert!(me.memory().is_some_and(|bytes| bytes > 100_000), "{:?}", me.memory());
    }

    #[test]
    fn ended_child_is_identified_until_it_is_reaped() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        eventually("it has ended", || ProcessId::of(child.id()).is_none().then_some(()));
        let id = ProcessId::of_child(&child);
        assert!(id.started > 0 && !id.is_alive());
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_reused_pid_is_not_signalled() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let id = ProcessId::of_child(&child);
        let earlier = ProcessId { started: id.started - 1, ..id };
        earlier.signal(Signal::KILL);
        assert_eq!(stop_all(&[earlier]).await, 0, "no process to wait for");
        assert!(id.is_alive());
        id.signal(Signal::KILL);
        child.wait().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_ignores_term_is_counted_and_killed() {
        let mut child = std::process::Command::new("sh").args(["-c", "trap '' TERM; exec sleep 600"]).spawn().unwrap();
        let id = ProcessId::of_child(&child);
        eventually("it ignores TERM", || ignores_term(id.pid).then_some(()));
        assert_eq!(stop_all(&[id]).await, 1);
        child.wait().unwrap();
    }

    fn ignores_term(pid: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ignored =
            status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
        ignored.is_some_and(|set| set & (1 << (Signal::TERM.as_raw() - 1)) != 0)
    }

    #[test]
    fn processor_time_of_a_process_grows_with_its_work() {
        let me = ProcessId::of(std::process::id()).unwrap();
        let before = me.cpu_time().unwrap();
        while me.cpu_time().unwrap() < before + Duration::from_millis(30) {}
    }
}
