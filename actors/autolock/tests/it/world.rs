//! One manager: the log, its replica, a keyring that may fail, and the actor's core between them.

use std::collections::VecDeque;
use std::time::Duration;

use muster_autolock::core::{Autolock, Effect, Goal, Input, State};
use muster_autolock::{FollowFault, Followed};
use muster_messages::*;

pub fn me() -> NodeId {
    NodeId::from_entropy(1)
}

/// A founded cluster at feature level 3 whose only manager is this node.
pub fn founded() -> Tables {
    let cluster = ClusterRecord {
        id: ClusterId::from_entropy(7),
        name: Name::sanitized("c"),
        incarnation: Incarnation(1),
        feature_level: IDENTITY_LEVEL,
        root_cert_pem: "root".to_owned(),
        root_key_pem: Secret::new("key"),
        founded_at: WallTime(0),
        revision: Revision(0),
    };
    let founder = NodeRecord::new(me(), Name::sanitized("n1"), Role::Manager, WallTime(0));
    let mut tables = Tables::default();
    let found = Change::Found { cluster: Box::new(cluster), founder: Box::new(founder), tokens: vec![] };
    apply(&mut tables, found).unwrap();
    tables
}

/// One entry of the log; the invariants of the store hold after it.
pub fn apply(tables: &mut Tables, change: Change) -> Result<(), CommandRefusal> {
    let before = tables.clone();
    let at = tables.revision.next();
    let command = Command::idempotent(WallTime(0), Principal::Operator, "a test").change(change);
    let result = muster_store::apply(tables, at, &command);
    muster_store::invariants::check(tables).unwrap();
    muster_store::invariants::check_step(&before, tables).unwrap();
    result
}

pub fn autolock(change: AutolockChange) -> Change {
    Change::Autolock(Box::new(change))
}

/// What is on disk: the version and the key.
pub type OnDisk = (Revision, Option<Secret>);

pub struct World {
    /// The log, applied.
    pub log: Tables,
    /// What the actor sees: it may be behind.
    pub shown: Tables,
    pub core: Autolock,
    pub now: Moment,
    pub disk: OnDisk,
    /// Writes of the keyring so far, and attempts.
    pub writes: usize,
    pub attempts: usize,
    pub disk_full: bool,
    /// Attempts to seal the files that fail before one succeeds.
    pub failures_left: u32,
    pub no_leader: bool,
    /// Effects that were not carried out yet.
    pub pending: VecDeque<Effect>,
    pub wake: Option<Moment>,
    pub failures: Vec<FollowFault>,
    /// What the log says of writes.
    pub took: Vec<(Revision, bool)>,
}

impl World {
    pub fn new() -> Self {
        let log = founded();
        let mut world = Self {
            shown: log.clone(),
            log,
            core: Autolock::new(AutoUnlock::None),
            now: Moment(0),
            disk: (Revision(0), None),
            writes: 0,
            attempts: 0,
            disk_full: false,
            failures_left: 0,
            no_leader: false,
            pending: VecDeque::new(),
            wake: None,
            failures: Vec::new(),
            took: Vec::new(),
        };
        world.show();
        world
    }

    pub fn change(&mut self, change: AutolockChange) -> Revision {
        let _refused = apply(&mut self.log, autolock(change));
        self.log.autolock.version
    }

    pub fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.core.step(self.now, input, &mut effects);
        self.pending.extend(effects);
        let of = |wanted: fn(&Effect) -> bool| self.pending.iter().filter(|effect| wanted(effect)).count();
        assert!(of(|effect| matches!(effect, Effect::Follow { .. })) <= 1, "one write at a time");
        assert!(of(|effect| matches!(effect, Effect::Report(_))) <= 1, "one report at a time");
    }

    /// The replica has applied the log.
    pub fn show(&mut self) {
        self.shown = self.log.clone();
        self.publish();
    }

    pub fn publish(&mut self) {
        self.input(Input::Replica(Goal::of(&self.shown, me())));
    }

    /// The process ends: what was in progress is lost, a write either happened or did not.
    pub fn restart(&mut self, writes: bool) {
        for effect in std::mem::take(&mut self.pending) {
            if let (Effect::Follow { version, key }, true) = (effect, writes) {
                let _lost = self.follow(version, key);
            }
        }
        self.core = Autolock::new(AutoUnlock::None);
        self.wake = None;
        self.publish();
    }

    /// As a keyring does.
    pub fn follow(&mut self, version: Revision, key: Option<Secret>) -> Result<Followed, FollowFault> {
        self.attempts += 1;
        let (at, held) = &self.disk;
        if version < *at {
            return Ok(Followed::Later(*at));
        }
        if version == *at {
            return if *held == key { Ok(Followed::Already) } else { Err(FollowFault::OtherKey(version)) };
        }
        if self.disk_full {
            return Err(FollowFault::Failed("no space left".to_owned()));
        }
        self.writes += 1;
        self.disk = (version, key);
        Ok(Followed::Written)
    }

    /// SEAL-11. What is on record is on disk.
    pub fn report(&mut self, seal: Seal) -> Result<(), ErrorBody> {
        assert!(self.disk.0 >= seal.version, "version {} is reported, {} is on disk", seal.version, self.disk.0);
        if self.no_leader {
            return Err(ErrorBody::new(ErrorCode::Unreachable, "no leader"));
        }
        apply(&mut self.log, autolock(AutolockChange::Sealed { node: me(), seal })).map_err(ErrorBody::from)
    }

    /// Carries out one effect; `false`: there was none.
    pub fn act(&mut self) -> bool {
        match self.pending.pop_front() {
            None => return false,
            Some(Effect::Follow { version, key }) => {
                let result = self.follow(version, key);
                self.input(Input::Followed(version, result));
            }
            Some(Effect::SealFiles(version)) => {
                let sealed = self.failures_left == 0;
                self.failures_left = self.failures_left.saturating_sub(1);
                self.input(Input::FilesSealed(version, sealed));
            }
            Some(Effect::Report(seal)) => {
                let result = self.report(seal);
                self.input(Input::Reported(result));
            }
            Some(Effect::Took { version, sealed }) => self.took.push((version, sealed)),
            Some(Effect::Failed { why, .. }) => self.failures.push(why),
            Some(Effect::WakeAt(at)) => self.wake = Some(self.wake.map_or(at, |wake| wake.min(at))),
        }
        true
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        if self.wake.is_some_and(|wake| wake <= self.now) {
            self.wake = None;
            self.input(Input::Woke);
        }
    }

    /// Carries out everything until nothing is left to do.
    pub fn run(&mut self) {
        for _ in 0..200 {
            while self.act() {}
            if self.core.state() == State::Current && self.shown.revision == self.log.revision {
                return;
            }
            self.show();
            if self.pending.is_empty() && self.wake.is_none() {
                return;
            }
            self.pass(Duration::from_secs(1));
        }
    }
}
