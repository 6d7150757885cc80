//! A machine's disk: the cores' own simulated disk behind a device with latency that may hang or fail.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::RaftId;
use muster_messages::wire::DataLoss;
use muster_raft_member::core::{Durable, Recovered, SnapshotJob};
use muster_raft_member::disk::{LogDisk as _, SimDisk};

use crate::rng::Rng;

/// A device's behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskSpeed {
    #[default]
    Good,
    Slow,
    Hung,
}

/// A disk report, made once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No sync needed: the write reached the operating system.
    Written(u64),
    /// A sync up to this write ends after this time.
    Syncing(u64, Duration),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    sim: SimDisk,
    pub speed: DiskSpeed,
    /// The last write handed over, and the last one reported.
    written: u64,
    reported: u64,
    synced: u64,
    wants_sync: bool,
    busy: bool,
    /// The file beside the log: this machine's member id.
    pub held: Option<RaftId>,
    /// What a start finds missing or damaged.
    pub lost: Option<DataLoss>,
    /// The disk before a sync that failed unnoticed: everything later is behind a hole.
    before_failed_sync: Option<SimDisk>,
}

impl Disk {
    pub fn put(&mut self, writes: Vec<Durable>) {
        for write in writes {
            self.written = write.number;
            self.wants_sync |= write.sync;
            self.sim.put(write);
        }
    }
    /// Starts the next operation.
    pub fn begin(&mut self, rng: &mut Rng) -> Option<Progress> {
        if self.busy || self.written == self.reported || self.speed == DiskSpeed::Hung {
            return None;
        }
        if !self.wants_sync {
            self.reported = self.written;
            return Some(Progress::Written(self.written));
        }
        self.busy = true;
        self.wants_sync = false;
        let takes = match self.speed {
            DiskSpeed::Good => rng.micros(60, 1200),
            _ => rng.millis(20, 400),
        };
        Some(Progress::Syncing(self.written, takes))
    }
    /// A sync ended.
    pub fn synced(&mut self, number: u64) {
        self.busy = false;
        self.reported = self.reported.max(number);
        self.synced = self.synced.max(number);
        self.sim.sync(number);
    }
    /// A sync failed: everything is rewritten to new files.
    pub fn renew(&mut self, job: &SnapshotJob, mut write: Durable) {
        let (head, data) = job.run();
        let number = write.number;
        write.install = Some((head, Arc::new(data)));
        self.sim.wipe();
        self.sim.put(write);
        self.sim.sync(number);
        (self.written, self.reported, self.synced) = (number, number, number);
        (self.wants_sync, self.busy) = (false, false);
    }
    /// A sync failed, and the page cache is taken for the disk (injected bug).
    pub fn trust(&mut self, number: u64) {
        let before_failed_sync = self.before_failed_sync.take().unwrap_or_else(|| {
            let mut sim = self.sim.clone();
            sim.crash(0);
            sim
        });
        self.synced(number);
        self.before_failed_sync = Some(before_failed_sync);
    }
    pub fn take_snapshot(&mut self, job: &SnapshotJob) -> muster_messages::wire::SnapshotHead {
        self.sim.take_snapshot(job)
    }
    /// The process dies: its writes survive, synced or not.
    pub fn killed(&mut self) {
        self.sim.crash(usize::MAX);
        self.reset();
    }
    /// Power loss: of the unsynced writes a random prefix survives. True: something was lost.
    pub fn power_lost(&mut self, rng: &mut Rng) -> bool {
        if let Some(before_failed_sync) = self.before_failed_sync.take() {
            self.sim = before_failed_sync;
        }
        let surviving = rng.below(4);
        let unsynced = self.written - self.synced;
        self.sim.crash(surviving);
        self.reset();
        unsynced > surviving as u64
    }
    fn reset(&mut self) {
        (self.written, self.reported, self.synced) = (0, 0, 0);
        (self.wants_sync, self.busy) = (false, false);
    }
    /// Replaces the device; its content is gone.
    pub fn replace(&mut self, damaged: bool) {
        self.sim.wipe();
        self.before_failed_sync = None;
        self.reset();
        let file = if damaged { "log" } else { "raft" }.to_owned();
        self.lost = self.held.map(|_| DataLoss { damaged, file });
    }
    /// Removes the member id and its data.
    pub fn wipe(&mut self) {
        self.sim.wipe();
        self.before_failed_sync = None;
        self.reset();
        self.held = None;
        self.lost = None;
    }
    /// Replaces the whole content.
    pub fn rewrite(&mut self, write: Durable) {
        self.reset();
        self.before_failed_sync = None;
        let number = write.number;
        self.sim.put(write);
        self.sim.sync(number);
        self.lost = None;
    }
    pub fn recover(&mut self) -> Recovered {
        self.sim.recover().expect("a simulated disk is never damaged, only lost")
    }
}
