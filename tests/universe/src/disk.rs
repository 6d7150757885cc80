//! The disk of a machine: the cores' own simulated disk, behind a device that takes its time, may hang, and may die.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::RaftId;
use muster_messages::wire::DataLoss;
use muster_raft_member::core::{Durable, Recovered, SnapshotJob};
use muster_raft_member::disk::{LogDisk as _, SimDisk};

use crate::dice::Dice;

/// How a device behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    #[default]
    Good,
    Slow,
    Hung,
}

/// What is to be told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing on it needs a sync: reaching the operating system was enough.
    Written(u64),
    /// A sync up to this write ends after this long.
    Syncing(u64, Duration),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    sim: SimDisk,
    pub pace: Pace,
    /// The last write handed over, and the last one reported.
    written: u64,
    told: u64,
    synced: u64,
    wants_sync: bool,
    busy: bool,
    /// The file beside the log: the seat that this machine holds.
    pub held: Option<RaftId>,
    /// What a start finds missing or damaged.
    pub lost: Option<DataLoss>,
    /// The disk as it was before a sync that failed unnoticed: whatever came later is behind a hole.
    without: Option<SimDisk>,
}

impl Disk {
    pub fn put(&mut self, writes: Vec<Durable>) {
        for write in writes {
            self.written = write.number;
            self.wants_sync |= write.sync;
            self.sim.put(write);
        }
    }
    /// Starts whatever is to be done next.
    pub fn begin(&mut self, dice: &mut Dice) -> Option<Progress> {
        if self.busy || self.written == self.told || self.pace == Pace::Hung {
            return None;
        }
        if !self.wants_sync {
            self.told = self.written;
            return Some(Progress::Written(self.written));
        }
        self.busy = true;
        self.wants_sync = false;
        let takes = match self.pace {
            Pace::Good => dice.micros(60, 1200),
            _ => dice.millis(20, 400),
        };
        Some(Progress::Syncing(self.written, takes))
    }
    /// A sync has ended.
    pub fn synced(&mut self, number: u64) {
        self.busy = false;
        self.told = self.told.max(number);
        self.synced = self.synced.max(number);
        self.sim.sync(number);
    }
    /// A sync has failed: everything is written anew, to other files.
    pub fn renew(&mut self, job: &SnapshotJob, mut write: Durable) {
        let (head, data) = job.run();
        let number = write.number;
        write.install = Some((head, Arc::new(data)));
        self.sim.wipe();
        self.sim.put(write);
        self.sim.sync(number);
        (self.written, self.told, self.synced) = (number, number, number);
        (self.wants_sync, self.busy) = (false, false);
    }
    /// A sync has failed, and what the system still has is taken for what the disk has.
    pub fn trust(&mut self, number: u64) {
        let without = self.without.take().unwrap_or_else(|| {
            let mut sim = self.sim.clone();
            sim.crash(0);
            sim
        });
        self.synced(number);
        self.without = Some(without);
    }
    pub fn take_snapshot(&mut self, job: &SnapshotJob) -> muster_messages::wire::SnapshotHead {
        self.sim.take_snapshot(job)
    }
    /// The process dies: what it had written survives, synced or not.
    pub fn killed(&mut self) {
        self.sim.crash(usize::MAX);
        self.rest();
    }
    /// The power goes: of what was not synced a random beginning survives. True: something was lost.
    pub fn power_lost(&mut self, dice: &mut Dice) -> bool {
        if let Some(without) = self.without.take() {
            self.sim = without;
        }
        let survive = dice.below(4);
        let loose = self.written - self.synced;
        self.sim.crash(survive);
        self.rest();
        loose > survive as u64
    }
    fn rest(&mut self) {
        (self.written, self.told, self.synced) = (0, 0, 0);
        (self.wants_sync, self.busy) = (false, false);
    }
    /// Another device is put in: what was on it is gone.
    pub fn replace(&mut self, damaged: bool) {
        self.sim.wipe();
        self.without = None;
        self.rest();
        let file = if damaged { "log" } else { "raft" }.to_owned();
        self.lost = self.held.map(|_| DataLoss { damaged, file });
    }
    /// The seat is gone for good, and its data with it.
    pub fn wipe(&mut self) {
        self.sim.wipe();
        self.without = None;
        self.rest();
        self.held = None;
        self.lost = None;
    }
    /// Everything on it is replaced by this, whole.
    pub fn write_anew(&mut self, write: Durable) {
        self.rest();
        self.without = None;
        let number = write.number;
        self.sim.put(write);
        self.sim.sync(number);
        self.lost = None;
    }
    pub fn recover(&mut self) -> Recovered {
        self.sim.recover().expect("a simulated disk is never damaged, only lost")
    }
}
