//! The decisions, as plain values: what to write, what to report, and when to try again.
//!
//! Owns        the goal, as the replica has it; what is known to be on disk; the write, the sealing of files and the report in progress.
//! Inputs      newer replicas; how a write, the sealing of files and a report ended; the clock ([`Input`]).
//! Outputs     the write, sealing and report to begin; what was taken or failed, for the log; when to wake it ([`Effect`]).
//! Invariants  one write and one report are in progress at most, and a version is reported only once it is known to be on disk: see
//!             SEAL-11 of the crate.

use std::time::Duration;

use muster_messages::{AutoUnlock, ErrorBody, Moment, NodeId, RetryPause, Revision, Seal, Secret, Tables};
use serde::Serialize;

use crate::keyring::{FollowFault, Followed};

/// The pauses after a failed write or report: a disk that is full stays so for a while, and a leader is found within seconds.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What the replica says of the unlock key and of this manager's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Goal {
    /// 0: autolock was never on.
    pub version: Revision,
    /// `None`: off.
    pub key: Option<Secret>,
    pub on_record: Option<Seal>,
}

impl Goal {
    pub fn of(tables: &Tables, me: NodeId) -> Self {
        let autolock = &tables.autolock;
        let on_record = autolock.seals.get(&me).map(|report| report.seal);
        Self { version: autolock.version, key: autolock.key.clone(), on_record }
    }
}

/// Inputs of the core.
#[derive(Clone, Debug)]
pub enum Input {
    /// The newest replica. One with an older version changes nothing.
    Replica(Goal),
    /// The attempt with this version ended.
    Followed(Revision, Result<Followed, FollowFault>),
    /// Whether this manager's files are sealed under the newest keys of the keyring, which was of this version. Of an earlier one: no effect.
    FilesSealed(Revision, bool),
    /// The report was answered.
    Reported(Result<(), ErrorBody>),
    Woke,
}

/// Effects of the core. One write and one report are in progress at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bring the keyring there and report as `Followed`.
    Follow {
        version: Revision,
        key: Option<Secret>,
    },
    /// Seal this manager's files, as far as that is not done, and report as `FilesSealed` whether all are. The Raft member seals its data within
    /// moments of the keyring, unless its disk is full or its folder is a mount point.
    SealFiles(Revision),
    /// Report to the leader, and its answer as `Reported`.
    Report(Seal),
    /// For the log.
    Took {
        version: Revision,
        sealed: bool,
    },
    Failed {
        version: Revision,
        why: FollowFault,
    },
    WakeAt(Moment),
}

/// Whether the keyring is at the replicated version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Autolock was never on.
    NeverOn,
    Writing,
    /// The last attempt failed; another follows.
    Retrying,
    /// This version cannot be taken: an operator has to act.
    Fault,
    /// On disk, and not on record yet.
    Reporting,
    Current,
    /// The keyring is of a later version than this replica.
    ReplicaBehind,
}

/// Keeps the keyring at the replicated version.
#[derive(Clone, Debug)]
pub struct Autolock {
    unlock: AutoUnlock,
    goal: Goal,
    /// The version that is known to be on disk. `None`: nothing was written or compared since this actor began.
    on_disk: Option<Revision>,
    /// A write is in progress: whether it seals.
    writing: Option<bool>,
    /// Whether the files are sealed under the newest keys. `None`: not known, since the keyring was last written.
    files_sealed: Option<bool>,
    /// Files are being sealed, for this version of the keyring.
    sealing: Option<Revision>,
    files: RetryPause,
    /// This report is in progress. The goal may be another one when it ends.
    reporting: Option<Seal>,
    /// Why the keyring is not at the goal's version.
    fault: Option<(Revision, FollowFault)>,
    write: RetryPause,
    report: RetryPause,
    wake: Option<Moment>,
}

impl Autolock {
    /// `unlock`: how this manager gets its key when it starts.
    pub fn new(unlock: AutoUnlock) -> Self {
        Self {
            unlock,
            goal: Goal::default(),
            on_disk: None,
            writing: None,
            files_sealed: None,
            sealing: None,
            files: RetryPause::default(),
            reporting: None,
            fault: None,
            write: RetryPause::default(),
            report: RetryPause::default(),
            wake: None,
        }
    }

    /// Handles one input.
    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Replica(goal) => self.learn(goal),
            Input::Followed(version, result) => self.followed(version, result, now, out),
            Input::FilesSealed(version, files_sealed) => {
                if self.sealing.take_if(|sealing| *sealing == version).is_some() && Some(version) == self.on_disk {
                    self.files_sealed = Some(files_sealed);
                    if !files_sealed {
                        self.files.failed(now, PAUSES);
                    }
                }
            }
            Input::Reported(result) => self.reported(result, now),
            Input::Woke => self.wake = None,
        }
        self.advance(now, out);
    }

    pub fn state(&self) -> State {
        let Goal { version, on_record, .. } = &self.goal;
        match self.on_disk {
            _ if *version == Revision(0) => State::NeverOn,
            Some(on_disk) if on_disk > *version => State::ReplicaBehind,
            Some(on_disk) if on_disk == *version && *on_record == Some(self.seal()) => State::Current,
            Some(on_disk) if on_disk == *version => State::Reporting,
            _ if self.is_hopeless() => State::Fault,
            _ if self.fault.is_some() && self.writing.is_none() => State::Retrying,
            _ => State::Writing,
        }
    }
    /// The replicated version, and the one that is known to be on disk.
    pub fn versions(&self) -> (Revision, Option<Revision>) {
        (self.goal.version, self.on_disk)
    }
    /// Why the keyring is not at the replicated version.
    pub fn fault(&self) -> Option<&FollowFault> {
        self.fault.as_ref().filter(|(version, _)| *version == self.goal.version).map(|(_, why)| why)
    }

    fn learn(&mut self, goal: Goal) {
        if goal.version < self.goal.version {
            return;
        }
        if goal.version > self.goal.version {
            (self.write, self.report) = (RetryPause::default(), RetryPause::default());
            // Known from `Later` alone: the key of that version was not compared (SEAL-6).
            self.on_disk = self.on_disk.filter(|on_disk| *on_disk < goal.version);
        }
        self.goal = goal;
    }

    fn seal(&self) -> Seal {
        let Goal { version, key, .. } = &self.goal;
        let (sealed, files_sealed) = (key.is_some(), self.files_sealed == Some(true));
        Seal { version: *version, sealed, files_sealed, unlock: self.unlock }
    }

    /// Whether another attempt with the goal's version is of no use.
    fn is_hopeless(&self) -> bool {
        matches!(self.fault(), Some(FollowFault::OtherKey(_) | FollowFault::BadKey(_)))
    }

    fn followed(
        &mut self,
        version: Revision,
        result: Result<Followed, FollowFault>,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let sealed = self.writing.take().unwrap_or_default();
        match result {
            Ok(followed) => {
                let on_disk = if let Followed::Later(later) = followed { later } else { version };
                self.on_disk = self.on_disk.max(Some(on_disk));
                (self.fault, self.write) = (None, RetryPause::default());
                if followed == Followed::Written {
                    (self.files_sealed, self.files) = (None, RetryPause::default());
                    out.push(Effect::Took { version, sealed });
                }
            }
            Err(why) => {
                if version == self.goal.version {
                    self.write.failed(now, PAUSES);
                }
                if self.fault() != Some(&why) {
                    out.push(Effect::Failed { version, why: why.clone() });
                }
                self.fault = Some((version, why));
            }
        }
    }

    fn reported(&mut self, result: Result<(), ErrorBody>, now: Moment) {
        // Of an earlier version: that of the goal does not wait for it.
        if self.reporting.take() != Some(self.seal()) {
            return;
        }
        match result {
            // The replica shows it soon; until then it is not repeated at once.
            Ok(()) => self.report = RetryPause::until(now + PAUSES.0),
            Err(_) => self.report.failed(now, PAUSES),
        }
    }

    /// The only place that begins something.
    fn advance(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let Goal { version, key, .. } = &self.goal;
        if *version == Revision(0) || self.writing.is_some() || self.is_hopeless() {
            return;
        }
        let due = match self.on_disk {
            Some(on_disk) if on_disk > *version => return,
            Some(on_disk) if on_disk == *version => {
                let files = self.seal_files(now, out);
                let reports = self.report(now, out);
                let Some(due) = files.into_iter().chain(reports).min() else { return };
                due
            }
            _ => {
                if self.write.is_over(now) {
                    let (version, key) = (*version, key.clone());
                    self.writing = Some(key.is_some());
                    return out.push(Effect::Follow { version, key });
                }
                self.write.ends()
            }
        };
        if self.wake.is_none_or(|wake| due < wake) {
            self.wake = Some(due);
            out.push(Effect::WakeAt(due));
        }
    }

    /// Seals the files until all are, and returns when the next attempt is due.
    fn seal_files(&mut self, now: Moment, out: &mut Vec<Effect>) -> Option<Moment> {
        let needed = match self.files_sealed {
            None => true,
            Some(sealed) => !sealed && self.goal.key.is_some(),
        };
        if !needed || self.sealing == Some(self.goal.version) {
            return None;
        }
        if !self.files.is_over(now) {
            return Some(self.files.ends());
        }
        self.sealing = Some(self.goal.version);
        out.push(Effect::SealFiles(self.goal.version));
        None
    }

    /// Reports what is on disk unless it is on record, and returns when the next report is due.
    fn report(&mut self, now: Moment, out: &mut Vec<Effect>) -> Option<Moment> {
        let seal = self.seal();
        if self.reporting.is_some() || self.files_sealed.is_none() || self.goal.on_record == Some(seal) {
            return None;
        }
        if !self.report.is_over(now) {
            return Some(self.report.ends());
        }
        self.reporting = Some(seal);
        out.push(Effect::Report(seal));
        None
    }
}
