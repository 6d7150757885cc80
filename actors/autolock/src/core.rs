//! The decisions, as plain values: what to write, what to report, and when to try again.

use std::time::Duration;

use muster_messages::{AutoUnlock, ErrorBody, Moment, NodeId, Revision, Seal, Secret, Tables};
use serde::Serialize;

use crate::keyring::{FollowFault, Followed};

/// The pauses after a failed write or report: a disk that is full stays so for a while, and a leader is found within seconds.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The Raft member seals its data within moments of the keyring, unless its disk is full or its folder is a mount point.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Whether the Raft data is sealed under the newest key of the keyring, which was of this version. Of an earlier one: no effect.
    Looked(Revision, bool),
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
    /// Look at the Raft data and report as `Looked`.
    Look(Revision),
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
    /// This version cannot be taken: someone must look.
    Fault,
    /// On disk, and not on record yet.
    Reporting,
    Current,
    /// The keyring is of a later version than this replica.
    ReplicaBehind,
}

/// When the next attempt may be made.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    failures: u32,
    until: Moment,
}

impl Pause {
    fn fail(&mut self, now: Moment) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(6)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.until = now + pause;
    }
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
    /// Whether the Raft data is sealed under the newest key. `None`: not looked yet, since the keyring was last written.
    data_sealed: Option<bool>,
    /// A look at the data is in progress, for this version.
    looking: Option<Revision>,
    look_again: Moment,
    /// This report is in progress. The goal may be another one when it ends.
    reporting: Option<Seal>,
    /// Why the keyring is not at the goal's version.
    fault: Option<(Revision, FollowFault)>,
    write: Pause,
    report: Pause,
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
            data_sealed: None,
            looking: None,
            look_again: Moment::default(),
            reporting: None,
            fault: None,
            write: Pause::default(),
            report: Pause::default(),
            wake: None,
        }
    }

    /// Handles one input.
    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Replica(goal) => self.learn(goal),
            Input::Followed(version, result) => self.followed(version, result, now, out),
            Input::Looked(version, data_sealed) => {
                if self.looking.take_if(|looking| *looking == version).is_some() && Some(version) == self.on_disk {
                    (self.data_sealed, self.look_again) = (Some(data_sealed), now + LOOK_INTERVAL);
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
            (self.write, self.report) = (Pause::default(), Pause::default());
        }
        self.goal = goal;
    }

    fn seal(&self) -> Seal {
        let Goal { version, key, .. } = &self.goal;
        let (sealed, data_sealed) = (key.is_some(), self.data_sealed == Some(true));
        Seal { version: *version, sealed, data_sealed, unlock: self.unlock }
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
                (self.fault, self.write) = (None, Pause::default());
                if followed == Followed::Written {
                    self.data_sealed = None;
                    out.push(Effect::Took { version, sealed });
                }
            }
            Err(why) => {
                if version == self.goal.version {
                    self.write.fail(now);
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
            Ok(()) => (self.report.failures, self.report.until) = (0, now + FIRST_PAUSE),
            Err(_) => self.report.fail(now),
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
                let looks = self.look(now, out);
                let reports = self.report(now, out);
                let Some(due) = looks.into_iter().chain(reports).min() else { return };
                due
            }
            _ => {
                if now >= self.write.until {
                    let (version, key) = (*version, key.clone());
                    self.writing = Some(key.is_some());
                    return out.push(Effect::Follow { version, key });
                }
                self.write.until
            }
        };
        if self.wake.is_none_or(|wake| due < wake) {
            self.wake = Some(due);
            out.push(Effect::WakeAt(due));
        }
    }

    /// Looks at the Raft data until it is sealed, and returns when the next look is due.
    fn look(&mut self, now: Moment, out: &mut Vec<Effect>) -> Option<Moment> {
        if self.looking == Some(self.goal.version)
            || self.data_sealed == Some(true)
            || (self.data_sealed.is_some() && self.goal.key.is_none())
        {
            return None;
        }
        if self.data_sealed.is_some() && now < self.look_again {
            return Some(self.look_again);
        }
        self.looking = Some(self.goal.version);
        out.push(Effect::Look(self.goal.version));
        None
    }

    /// Reports what is on disk unless it is on record, and returns when the next report is due.
    fn report(&mut self, now: Moment, out: &mut Vec<Effect>) -> Option<Moment> {
        let seal = self.seal();
        if self.reporting.is_some() || self.data_sealed.is_none() || self.goal.on_record == Some(seal) {
            return None;
        }
        if now < self.report.until {
            return Some(self.report.until);
        }
        self.reporting = Some(seal);
        out.push(Effect::Report(seal));
        None
    }
}
