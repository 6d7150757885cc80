//! A world in which a supervisor's effects happen at once, and time jumps to the next timer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_messages::{ActorState, ExitKind, Moment};

use super::super::{Child, Core, Effect, Input, Phase, Policy, Timer};
use crate::{Backoff, Group, Restart, Strategy};

pub const POLICY: Policy = Policy {
    restart: Restart::Permanent,
    backoff: Backoff::SLOW,
    start_deadline: Duration::from_secs(10),
    stop_deadline: Duration::from_secs(5),
    contained: false,
};

pub fn policy(restart: Restart) -> Policy {
    Policy { restart, ..POLICY }
}

/// How the incarnations of a child behave.
#[derive(Clone, Copy, Default)]
pub struct Behavior {
    /// How many of its next starts fail.
    pub failing_starts: u32,
    /// It never reports that it is healthy.
    pub slow: bool,
    pub ignores_stop: bool,
    pub ignores_kill: bool,
    /// It panics while it stops.
    pub stops_badly: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RunState {
    Wanted,
    Asked,
    Abandoned,
}

pub struct World {
    pub core: Core,
    pub now: Moment,
    pub behaviors: BTreeMap<String, Behavior>,
    /// `start a`, `stop a`, `kill a`, `stuck a`, `gone a`, `ready`, in the order in which they happened.
    pub log: Vec<String>,
    /// Unasked exits: when, whose, and whether it was a failure.
    pub exits: Vec<(Moment, String, bool)>,
    pub delays: Vec<(String, Duration)>,
    pub states: BTreeMap<String, Vec<ActorState>>,
    pub waits: BTreeMap<String, Vec<String>>,
    pub stale: usize,
    pub escalated: bool,
    strategy: Strategy,
    running: BTreeMap<u64, (String, RunState)>,
    timers: BTreeMap<String, (Moment, u64, Timer)>,
    events: VecDeque<Input>,
}

impl World {
    pub fn new(group: impl Into<Group>) -> Self {
        let group = group.into();
        Self {
            core: Core::new(group, 7),
            now: Moment(3_600_000_000),
            behaviors: BTreeMap::new(),
            log: Vec::new(),
            exits: Vec::new(),
            delays: Vec::new(),
            states: BTreeMap::new(),
            waits: BTreeMap::new(),
            stale: 0,
            escalated: false,
            strategy: group.strategy,
            running: BTreeMap::new(),
            timers: BTreeMap::new(),
            events: VecDeque::new(),
        }
    }
    /// With permanent children of these names, all healthy, and an empty log.
    pub fn of(group: impl Into<Group>, names: &[&str]) -> Self {
        let mut world = Self::new(group);
        for name in names {
            world.start(name, POLICY, &[]);
        }
        world.log.clear();
        world
    }

    pub fn start(&mut self, name: &str, policy: Policy, requires: &[&str]) {
        let requires = requires.iter().map(|r| (*r).to_owned()).collect();
        self.handle(Input::Start { name: name.to_owned(), policy, requires });
    }
    pub fn stop(&mut self, name: &str) {
        self.handle(Input::Stop { name: name.to_owned() });
    }
    pub fn restart(&mut self, name: &str) {
        self.handle(Input::Restart { name: name.to_owned() });
    }
    /// The child's present incarnation reports that it is healthy.
    pub fn report_healthy(&mut self, name: &str) {
        let run = self.core.run_of(name).expect("the child exists");
        self.handle(Input::Healthy { name: name.to_owned(), run });
    }
    /// The child's incarnation ends by itself, if it has one.
    pub fn crash(&mut self, name: &str, kind: ExitKind) {
        let Some(run) = self.core.run_of(name).filter(|run| self.running.contains_key(run)) else { return };
        self.handle(Input::Exited { name: name.to_owned(), run, kind, text: "x".into() });
    }
    pub fn handle(&mut self, input: Input) {
        self.events.push_back(input);
        while let Some(input) = self.events.pop_front() {
            self.step(input);
        }
    }

    fn step(&mut self, input: Input) {
        if let Input::Exited { name, run, kind, .. } = &input {
            self.running.retain(|of, (owner, _)| of != run || owner != name);
            let child = self.core.children.get(name).filter(|child| child.run == *run);
            if child.is_some_and(|child| matches!(child.phase, Phase::Starting | Phase::Running { .. })) {
                self.exits.push((self.now, name.clone(), *kind != ExitKind::Normal));
            }
        }
        let mut effects = Vec::new();
        self.core.step(self.now, input, &mut effects);
        for effect in effects {
            self.apply(effect);
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::Launch { name, run, .. } => self.launch(name, run),
            Effect::Stop { name, run } => {
                self.log.push(format!("stop {name}"));
                let order = self.core.children[&name].order;
                let later = |child: &Child| child.order > order && child.is_leaving();
                let out_of_order = self.strategy != Strategy::OneForOne && self.core.children.values().any(later);
                assert!(!out_of_order, "SUP-5: {name} is asked to stop before those started after it have ended");
                self.ask(&name, run, |behavior| !behavior.ignores_stop);
            }
            Effect::Kill { name, run } => {
                self.log.push(format!("kill {name}"));
                self.ask(&name, run, |behavior| !behavior.ignores_kill);
            }
            Effect::Abandon { name, run } => {
                self.log.push(format!("stuck {name}"));
                self.running.insert(run, (name, RunState::Abandoned));
            }
            Effect::SetTimer { name, run, timer, after } => {
                if timer == Timer::Backoff {
                    self.delays.push((name.clone(), after));
                }
                self.timers.insert(name, (self.now + after, run, timer));
            }
            Effect::State { name, state } => {
                if state == ActorState::Healthy {
                    self.timers.remove(&name);
                }
                self.states.entry(name).or_default().push(state);
            }
            Effect::Waits { name, on } => drop(self.waits.insert(name, on)),
            Effect::Exit { .. } => {}
            Effect::Removed { name } => {
                self.log.push(format!("gone {name}"));
                self.timers.remove(&name);
            }
            Effect::Stale { .. } => self.stale += 1,
            Effect::Ready => self.log.push("ready".into()),
            Effect::Escalate { .. } => self.escalated = true,
        }
    }

    fn launch(&mut self, name: String, run: u64) {
        let wanted: Vec<&String> = self
            .running
            .values()
            .filter(|(_, run_state)| *run_state != RunState::Abandoned)
            .map(|(name, _)| name)
            .collect();
        assert!(!wanted.contains(&&name), "SUP-1: {name} is launched beside its own earlier incarnation");
        let going: Vec<&String> =
            self.running.values().filter(|(_, l)| *l == RunState::Asked).map(|(n, _)| n).collect();
        if self.strategy != Strategy::OneForOne {
            assert!(going.is_empty(), "SUP-5: {name} is launched before {going:?} have ended");
        }
        let abandoned = self
            .running
            .values()
            .filter(|(owner, run_state)| *owner == name && *run_state == RunState::Abandoned)
            .count();
        assert!(abandoned < 2, "SUP-7: {name} is launched beside {abandoned} abandoned runs");
        let me = &self.core.children[&name];
        for (other, child) in &self.core.children {
            let earlier = child.order < me.order;
            let restarts_with_me = match self.strategy {
                Strategy::OneForOne => false,
                Strategy::OneForAll => true,
                Strategy::RestForOne => earlier,
            };
            let delayed = restarts_with_me && child.phase == Phase::BackingOff && !child.policy.contained;
            assert!(!delayed, "SUP-5: {name} is launched before the delay of {other} is over");
            let awaited = earlier && me.requires.contains(other) && !child.is_ready();
            assert!(!awaited, "{name} is launched before {other}, which it requires, is healthy");
        }
        self.log.push(format!("start {name}"));
        self.running.insert(run, (name.clone(), RunState::Wanted));
        let behavior = self.behaviors.entry(name.clone()).or_default();
        if behavior.failing_starts > 0 {
            behavior.failing_starts -= 1;
            self.events.push_back(Input::Exited { name, run, kind: ExitKind::Start, text: "no".into() });
        } else if !behavior.slow {
            self.events.push_back(Input::Healthy { name, run });
        }
    }

    fn ask(&mut self, name: &str, run: u64, obeys: impl Fn(&Behavior) -> bool) {
        self.running.insert(run, (name.to_owned(), RunState::Asked));
        let behavior = self.behaviors.get(name).copied().unwrap_or_default();
        if obeys(&behavior) {
            let kind = if behavior.stops_badly { ExitKind::Panic } else { ExitKind::Normal };
            self.events.push_back(Input::Exited { name: name.to_owned(), run, kind, text: "asked".into() });
        }
    }

    /// All abandoned runs end.
    pub fn the_stuck_end(&mut self) {
        let stuck = |(run, (name, run_state)): (&u64, &(String, RunState))| {
            (*run_state == RunState::Abandoned).then(|| (*run, name.clone()))
        };
        let all: Vec<(u64, String)> = self.running.iter().filter_map(stuck).collect();
        for (run, name) in all {
            self.handle(Input::Exited { name, run, kind: ExitKind::Killed, text: "late".into() });
        }
    }

    pub fn is_abandoned(&self, run: u64) -> bool {
        self.running.get(&run).is_some_and(|(_, run_state)| *run_state == RunState::Abandoned)
    }

    /// Jumps to the next timer; false: none is set.
    pub fn jump(&mut self) -> bool {
        let next = self.timers.iter().min_by_key(|(name, (at, ..))| (*at, (*name).clone()));
        let Some((name, (at, run, timer))) = next.map(|(name, set)| (name.clone(), *set)) else { return false };
        self.timers.remove(&name);
        self.now = self.now.max(at);
        self.handle(Input::Timer { name, run, timer });
        true
    }
    /// Until no timer is set: no child starts, stops or backs off.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.jump() {
                return;
            }
        }
        panic!("it never settles: {:?}", self.log);
    }
    /// Advances time and fires its timers.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.timers.values().any(|(at, ..)| *at <= until) {
            self.jump();
        }
        self.now = until;
    }

    /// The running children that are not abandoned.
    pub fn alive(&self) -> BTreeSet<String> {
        let here = |(name, run_state): &(String, RunState)| (*run_state != RunState::Abandoned).then(|| name.clone());
        self.running.values().filter_map(here).collect()
    }
    /// The children that are neither healthy nor done.
    pub fn unsettled(&self) -> Vec<(String, Phase)> {
        let all = self.core.children.iter();
        all.filter(|(_, c)| !c.is_ready()).map(|(name, c)| (name.clone(), c.phase)).collect()
    }
    pub fn knows(&self, name: &str) -> bool {
        self.core.children.contains_key(name)
    }
    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}
