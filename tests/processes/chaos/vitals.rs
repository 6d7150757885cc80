//! What a process holds: files, memory, threads.

use muster_local_cluster::ProcessId;
use std::collections::BTreeMap;

/// A process that is at rest has this many files more than at another time, or fewer: who dialled whom differs.
const FILES_MORE: usize = 24;
/// The state, its history and the buffers of a debug build may differ by this much.
const KIB_MORE: u64 = 24 << 10;

/// One look at a process.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub files: usize,
    pub kib: u64,
}

/// Every process at rest, from calm to calm.
#[derive(Default)]
pub struct Vitals(BTreeMap<(i32, u64), Vec<Look>>);

pub fn look(process: ProcessId) -> Look {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
    let field =
        |name: &str| status.lines().find(|line| line.starts_with(name))?.split_whitespace().nth(1)?.parse().ok();
    let files = std::fs::read_dir(format!("/proc/{}/fd", process.pid)).map_or(0, Iterator::count);
    Look { files, kib: field("VmRSS").unwrap_or(0) }
}

impl Vitals {
    /// Whether this process holds about as many files as when it was first at rest.
    pub fn files_as_before(&self, process: ProcessId) -> bool {
        let first = self.0.get(&(process.pid, process.started)).and_then(|looks| looks.first());
        first.is_none_or(|first| look(process).files <= first.files + FILES_MORE)
    }

    /// Writes down what it holds now.
    pub fn note(&mut self, process: ProcessId) -> Look {
        let now = look(process);
        self.0.entry((process.pid, process.started)).or_default().push(now);
        now
    }

    /// Fails if the memory of a process that lived long enough still grows: caches and histories fill up, and then stay as they are. So its
    /// last quarter is held against the one in the middle.
    #[track_caller]
    pub fn assert_no_growth(&self) {
        for ((pid, _), looks) in &self.0 {
            let quarter = looks.len() / 4;
            if quarter < 2 {
                continue;
            }
            let mean = |looks: &[Look]| looks.iter().map(|look| look.kib).sum::<u64>() / looks.len() as u64;
            let (middle, last) = (mean(&looks[quarter..2 * quarter]), mean(&looks[looks.len() - quarter..]));
            println!("process {pid}: {middle} KiB in the second quarter of its life, {last} KiB in the last");
            assert!(last <= middle + middle / 5 + KIB_MORE, "process {pid} grows: {looks:?}");
        }
    }
}
