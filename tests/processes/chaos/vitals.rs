//! A process's resources: files, memory, threads.

use muster_local_cluster::ProcessId;
use std::collections::BTreeMap;

/// Allowed difference in open files of an idle process: which node dialled which varies.
const MAX_EXTRA_FILES: usize = 24;
/// Allowed difference in memory: the state, its history and the buffers of a debug build vary.
const MAX_EXTRA_KIB: u64 = 24 << 10;

/// One measurement of a process.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    pub files: usize,
    pub kib: u64,
}

/// Measurements of every idle process, one per check.
#[derive(Default)]
pub struct Vitals(BTreeMap<(i32, u64), Vec<Snapshot>>);

pub fn snapshot(process: ProcessId) -> Snapshot {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
    let field =
        |name: &str| status.lines().find(|line| line.starts_with(name))?.split_whitespace().nth(1)?.parse().ok();
    let files = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).map_or(0, Iterator::count);
    Snapshot { files, kib: field("VmRSS").unwrap_or(0) }
}

impl Vitals {
    /// Whether this process has about as many open files as at its first measurement.
    pub fn files_as_before(&self, process: ProcessId) -> bool {
        let first = self.0.get(&(process.pid, process.started)).and_then(|snapshots| snapshots.first());
        first.is_none_or(|first| snapshot(process).files <= first.files + MAX_EXTRA_FILES)
    }

    /// Records its current resources.
    pub fn note(&mut self, process: ProcessId) -> Snapshot {
        let now = snapshot(process);
        self.0.entry((process.pid, process.started)).or_default().push(now);
        now
    }

    /// Fails if a long-lived process's memory still grows. Caches and histories fill up first, so its
    /// last quarter is compared with the one in the middle.
    #[track_caller]
    pub fn assert_no_growth(&self) {
        for ((pid, _), snapshots) in &self.0 {
            let quarter = snapshots.len() / 4;
            if quarter < 2 {
                continue;
            }
            let mean = |snapshots: &[Snapshot]| {
                snapshots.iter().map(|snapshot| snapshot.kib).sum::<u64>() / snapshots.len() as u64
            };
            let (middle, last) =
                (mean(&snapshots[quarter..2 * quarter]), mean(&snapshots[snapshots.len() - quarter..]));
            println!("process {pid}: {middle} KiB in the second quarter of its life, {last} KiB in the last");
            assert!(last <= middle + middle / 5 + MAX_EXTRA_KIB, "process {pid} grows: {snapshots:?}");
        }
    }
}
