//! What a supervisor decides. Pure: time, randomness and outcomes are inputs.
//!
//! Owns        each child's policy, run and phase; the runs that were abandoned; the recent failures; the restart under way.
//! Inputs      children to start, stop and restart; their readiness and exits; elapsed timers ([`Input`]).
//! Outputs     launches, stops and kills; timers; the states and exits to show; readiness and escalation of the group ([`Effect`]).
//! Invariants  SUP-1  at most one incarnation of a child is wanted at any time; reports of older runs change nothing and are
//!                    counted.
//!             SUP-2  a child that was asked to stop, by request or because of a sibling, is not restarted for its exit, and that
//!                    exit is no failure.
//!             SUP-3  more than `intensity.max` unasked exits within `intensity.window` escalate; those of a contained child do not
//!                    count.
//!             SUP-4  a child that was asked to stop for good stops; only a later start brings it back.
//!             SUP-5  of children that restart together none is launched before all that must stop have ended, last started first,
//!                    and the delay of the failed one is the only one.
//!             SUP-6  every wait is bounded: each blocking child has a deadline, and a child requires only siblings started before
//!                    it, so there is no cycle. The exception is SUP-7.
//!             SUP-7  at most two abandoned runs of a child continue at a time: each holds a thread. The next run is launched once
//!                    one of them has ended, and the child is stuck until then.
//!
//! An exit only changes the phase of each child concerned; `advance` alone turns phases into stops and launches. So a second
//! failure, a request or a late report during a restart needs no special case.

mod abandoned;
mod child;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_messages::{ActorState, ExitKind, Moment, Rng};

use self::abandoned::AbandonedRuns;
pub use self::child::Policy;
use self::child::{Child, Phase, Stage, Then};
use crate::spec::{Backoff, Group, KILL_DEADLINE, Restart, Strategy};

/// The timers of a child. One runs at a time; the run number makes older ones stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    Start,
    Backoff,
    Stop,
    Kill,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Start a child, or replace the one of that name.
    Start {
        name: String,
        policy: Policy,
        /// Earlier siblings that must be healthy first. Others are ignored.
        requires: Vec<String>,
    },
    /// An incarnation is ready for work.
    Healthy {
        name: String,
        run: u64,
    },
    Exited {
        name: String,
        run: u64,
        kind: ExitKind,
        text: String,
    },
    Stop {
        name: String,
    },
    Restart {
        name: String,
    },
    Timer {
        name: String,
        run: u64,
        timer: Timer,
    },
    /// All first children have been started: the group is ready once each of them is.
    Filled,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Launch {
        name: String,
        run: u64,
        incarnation: u64,
    },
    /// Ask the running incarnation to stop.
    Stop {
        name: String,
        run: u64,
    },
    Kill {
        name: String,
        run: u64,
    },
    /// It ignored stop and kill: close its fence and continue without it.
    Abandon {
        name: String,
        run: u64,
    },
    SetTimer {
        name: String,
        run: u64,
        timer: Timer,
        after: Duration,
    },
    State {
        name: String,
        state: ActorState,
    },
    /// Why a child is not launched yet: siblings that must first be healthy, end or finish their delay, or `NAME@INCARNATION`
    /// of its own abandoned runs.
    Waits {
        name: String,
        on: Vec<String>,
    },
    Exit {
        name: String,
        kind: ExitKind,
        text: String,
    },
    /// The child has ended and will not be restarted.
    Removed {
        name: String,
    },
    /// A report of an older run was dropped.
    Stale {
        name: String,
    },
    /// Every child of a filled group is healthy. Sent once.
    Ready,
    Escalate {
        text: String,
    },
}

/// What to do with an incarnation that has just started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Keep,
    Stop,
    /// It is no longer expected.
    Kill,
}

#[derive(Clone, Debug)]
pub struct Core {
    group: Group,
    children: BTreeMap<String, Child>,
    /// Children in `Waiting`, in start order.
    waiting: BTreeSet<(u64, String)>,
    /// Children that must stop and have not been asked yet, in start order; one that has already ended is skipped.
    due: BTreeSet<(u64, String)>,
    abandoned: AbandonedRuns,
    /// Moments of unasked exits within the window.
    exits: VecDeque<Moment>,
    started: u64,
    runs: u64,
    rng: Rng,
    filled: bool,
    ready: bool,
    escalated: bool,
}

impl Core {
    /// A supervisor without children. The seed jitters the backoff.
    pub fn new(group: impl Into<Group>, seed: u64) -> Self {
        Self {
            group: group.into(),
            children: BTreeMap::new(),
            waiting: BTreeSet::new(),
            due: BTreeSet::new(),
            abandoned: AbandonedRuns::default(),
            exits: VecDeque::new(),
            started: 0,
            runs: 0,
            rng: Rng::seeded(seed),
            filled: false,
            ready: false,
            escalated: false,
        }
    }

    /// The run that is current for a child; reports of others are stale.
    #[cfg(test)]
    pub fn run_of(&self, name: &str) -> Option<u64> {
        self.children.get(name).map(|c| c.run)
    }

    /// What to do with an incarnation whose late launch has succeeded.
    pub fn fate(&self, name: &str, run: u64) -> Fate {
        match self.children.get(name).filter(|c| c.run == run).map(|c| c.phase) {
            Some(Phase::Starting | Phase::Running { .. } | Phase::Leaving { stage: Stage::Due, .. }) => Fate::Keep,
            Some(Phase::Leaving { stage: Stage::Asked, .. }) => Fate::Stop,
            _ => Fate::Kill,
        }
    }

    /// Handles one input. A supervisor that has escalated decides nothing more.
    pub fn step(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        if !self.escalated {
            self.decide(now, input, out);
        }
        if !self.escalated {
            self.advance(out);
        }
    }

    fn decide(&mut self, now: Moment, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Start { name, policy, requires } => self.start(now, name, policy, requires, out),
            Input::Healthy { name, run } => {
                if let Some(child) = self.current(&name, run, out)
                    && child.phase == Phase::Starting
                {
                    child.phase = Phase::Running { since: now };
                    out.push(Effect::State { name, state: ActorState::Healthy });
                }
            }
            Input::Exited { name, run, kind, text } => self.exited(now, &name, run, kind, text, out),
            Input::Stop { name } => self.stop(now, &name, out),
            // SUP-4: a restart does not undo a pending removal.
            Input::Restart { name } => {
                if self.children.get(&name).is_some_and(|c| !c.is_leaving()) {
                    self.renew(now, &name, out);
                }
            }
            Input::Timer { name, run, timer } => self.timer(now, &name, run, timer, out),
            Input::Filled => self.filled = true,
        }
    }

    /// The child, if `run` is its current one; otherwise the report is stale.
    fn current(&mut self, name: &str, run: u64, out: &mut Vec<Effect>) -> Option<&mut Child> {
        let child = self.children.get_mut(name).filter(|c| c.run == run);
        if child.is_none() {
            out.push(Effect::Stale { name: name.to_owned() });
        }
        child
    }

    fn start(&mut self, now: Moment, name: String, policy: Policy, requires: Vec<String>, out: &mut Vec<Effect>) {
        if let Some(child) = self.children.get_mut(&name) {
            (child.policy, child.requires) = (policy, requires);
            return self.renew(now, &name, out);
        }
        self.started += 1;
        self.waiting.insert((self.started, name.clone()));
        let child = Child { incarnation: self.abandoned.newest(&name), ..Child::new(self.started, policy, requires) };
        self.children.insert(name, child);
    }

    /// Requests another incarnation. Siblings that restart with a child also do so on request.
    fn renew(&mut self, now: Moment, name: &str, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(name) else { return };
        match child.phase {
            Phase::Waiting => {}
            Phase::BackingOff | Phase::Ended => self.wait(name, out),
            // Between starts and stops the last request wins.
            Phase::Leaving { stage, .. } => child.phase = Phase::Leaving { then: Then::Relaunch, stage },
            Phase::Starting | Phase::Running { .. } => {
                let alone = child.policy.contained;
                self.leave(now, name, Then::Relaunch);
                if !alone {
                    self.take_along(now, name, out);
                }
            }
        }
    }

    fn stop(&mut self, now: Moment, name: &str, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(name) else { return };
        match child.phase {
            Phase::Starting | Phase::Running { .. } => self.leave(now, name, Then::Remove),
            Phase::Leaving { stage, .. } => child.phase = Phase::Leaving { then: Then::Remove, stage },
            Phase::Waiting | Phase::BackingOff | Phase::Ended => self.remove(name, out),
        }
    }

    fn wait(&mut self, name: &str, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(name) else { return };
        child.phase = Phase::Waiting;
        self.waiting.insert((child.order, name.to_owned()));
        out.push(Effect::State { name: name.to_owned(), state: ActorState::Starting });
    }

    fn leave(&mut self, now: Moment, name: &str, then: Then) {
        let Some(child) = self.children.get_mut(name) else { return };
        child.settle(now);
        child.phase = Phase::Leaving { then, stage: Stage::Due };
        self.due.insert((child.order, name.to_owned()));
    }

    fn remove(&mut self, name: &str, out: &mut Vec<Effect>) {
        let Some(child) = self.children.remove(name) else { return };
        self.waiting.remove(&(child.order, name.to_owned()));
        out.push(Effect::Removed { name: name.to_owned() });
    }

    /// Stops the siblings that restart with a child. Those not running wait with it: their own delays are cancelled, and one
    /// that was done runs again.
    fn take_along(&mut self, now: Moment, name: &str, out: &mut Vec<Effect>) {
        let Some(order) = self.children.get(name).map(|c| c.order) else { return };
        let along = |c: &Child| match self.group.strategy {
            Strategy::OneForOne => false,
            Strategy::OneForAll => c.order != order,
            Strategy::RestForOne => c.order > order,
        };
        let siblings: Vec<String> =
            self.children.iter().filter(|(_, c)| along(c)).map(|(name, _)| name.clone()).collect();
        for sibling in siblings {
            let Some(child) = self.children.get_mut(&sibling) else { continue };
            let then = child.with_its_group();
            match child.phase {
                Phase::Starting | Phase::Running { .. } => self.leave(now, &sibling, then),
                Phase::Leaving { then: Then::BackOff, stage } => child.phase = Phase::Leaving { then, stage },
                Phase::BackingOff | Phase::Ended => self.wait(&sibling, out),
                Phase::Waiting | Phase::Leaving { .. } => {}
            }
        }
    }

    fn exited(&mut self, now: Moment, name: &str, run: u64, kind: ExitKind, text: String, out: &mut Vec<Effect>) {
        self.abandoned.ended(name, run);
        let Some(child) = self.current(name, run, out) else { return };
        match child.phase {
            Phase::Leaving { then, .. } => {
                let (kind, text) =
                    if then == Then::BackOff { (ExitKind::Start, START_TIMEOUT_TEXT.to_owned()) } else { (kind, text) };
                out.push(Effect::Exit { name: name.to_owned(), kind, text });
                self.gone(now, name, then, out);
            }
            Phase::Starting | Phase::Running { .. } => {
                out.push(Effect::Exit { name: name.to_owned(), kind, text: text.clone() });
                self.ended(now, name, kind, &text, out);
            }
            // It was given up earlier.
            Phase::Waiting | Phase::BackingOff | Phase::Ended => out.push(Effect::Stale { name: name.to_owned() }),
        }
    }

    /// A child that had to stop has ended or was abandoned.
    fn gone(&mut self, now: Moment, name: &str, then: Then, out: &mut Vec<Effect>) {
        match then {
            Then::Remove => self.remove(name, out),
            Then::Relaunch => self.wait(name, out),
            Then::BackOff => self.ended(now, name, ExitKind::Start, START_TIMEOUT_TEXT, out),
        }
    }

    fn ended(&mut self, now: Moment, name: &str, kind: ExitKind, text: &str, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(name) else { return };
        child.settle(now);
        if !child.comes_back(kind != ExitKind::Normal) {
            if child.policy.restart == Restart::Temporary {
                return self.remove(name, out);
            }
            child.phase = Phase::Ended;
            child.failures = 0;
            return out.push(Effect::State { name: name.to_owned(), state: ActorState::Done });
        }
        let (run, policy, failures) = (child.run, child.policy, child.failures);
        child.failures = failures.saturating_add(1);
        child.phase = Phase::BackingOff;
        if !policy.contained && self.too_often(now) {
            self.escalated = true;
            let (max, secs) = (self.group.intensity.max, self.group.intensity.window.as_secs());
            let text = format!("{name} failed too often (more than {max} exits in {secs} s), last: {text}");
            out.push(Effect::State { name: name.to_owned(), state: ActorState::Escalated });
            return out.push(Effect::Escalate { text });
        }
        out.push(Effect::State { name: name.to_owned(), state: ActorState::BackingOff });
        let after = self.delay(policy.backoff, failures);
        out.push(Effect::SetTimer { name: name.to_owned(), run, timer: Timer::Backoff, after });
        if !policy.contained {
            self.take_along(now, name, out);
        }
    }

    /// Counts an exit; returns whether it exceeds the intensity.
    fn too_often(&mut self, now: Moment) -> bool {
        self.exits.push_back(now);
        while self.exits.front().is_some_and(|at| now.since(*at) > self.group.intensity.window) {
            self.exits.pop_front();
        }
        self.exits.len() > self.group.intensity.max
    }

    /// `first` × 1.5ⁿ, at most `cap`, ± 50 %.
    fn delay(&mut self, backoff: Backoff, failures: u32) -> Duration {
        let factor = 1.5f64.powi(i32::try_from(failures.min(40)).unwrap_or(40));
        self.rng.around(backoff.first.mul_f64(factor).min(backoff.cap), 0.5)
    }

    fn timer(&mut self, now: Moment, name: &str, run: u64, timer: Timer, out: &mut Vec<Effect>) {
        let Some(child) = self.current(name, run, out) else { return };
        match (timer, child.phase) {
            (Timer::Start, Phase::Starting) => self.leave(now, name, Then::BackOff),
            (Timer::Backoff, Phase::BackingOff) => self.wait(name, out),
            (Timer::Stop, Phase::Leaving { then, stage: Stage::Asked }) => {
                child.phase = Phase::Leaving { then, stage: Stage::Killed };
                let after = child.policy.stop_deadline.min(KILL_DEADLINE);
                out.push(Effect::Kill { name: name.to_owned(), run });
                out.push(Effect::SetTimer { name: name.to_owned(), run, timer: Timer::Kill, after });
            }
            (Timer::Kill, Phase::Leaving { then, stage: Stage::Killed }) => {
                out.push(Effect::State { name: name.to_owned(), state: ActorState::Stuck });
                out.push(Effect::Abandon { name: name.to_owned(), run });
                let incarnation = child.incarnation;
                self.abandoned.add(name, run, incarnation);
                let text = "ignored stop and kill".to_owned();
                out.push(Effect::Exit { name: name.to_owned(), kind: ExitKind::Stuck, text });
                self.gone(now, name, then, out);
            }
            _ => {}
        }
    }

    /// The only place that stops and launches children.
    fn advance(&mut self, out: &mut Vec<Effect>) {
        for (order, name) in self.due.clone().into_iter().rev() {
            let later = |c: &Child| c.order > order && c.is_leaving();
            if self.group.strategy != Strategy::OneForOne && self.children.values().any(later) {
                break;
            }
            self.due.remove(&(order, name.clone()));
            self.ask(name, out);
        }
        for (order, name) in self.waiting.clone() {
            let abandoned = self.abandoned.blockers(&name);
            let state = if abandoned.is_empty() { ActorState::Starting } else { ActorState::Stuck };
            let on: Vec<String> = abandoned.into_iter().chain(self.blockers(&name)).collect();
            let Some(child) = self.children.get_mut(&name) else { continue };
            if on.is_empty() {
                self.waiting.remove(&(order, name.clone()));
                self.launch(name, out);
            } else if child.waits_for != on {
                child.waits_for.clone_from(&on);
                out.push(Effect::State { name: name.clone(), state });
                out.push(Effect::Waits { name, on });
            }
        }
        if self.filled && !self.ready && self.children.values().all(Child::is_ready) {
            self.ready = true;
            out.push(Effect::Ready);
        }
    }

    /// What a child waits for: the siblings it requires, and the restart it is part of.
    fn blockers(&self, name: &str) -> Vec<String> {
        let Some(child) = self.children.get(name) else { return Vec::new() };
        let required =
            |name: &&String| self.children.get(*name).is_some_and(|c| c.order < child.order && !c.is_ready());
        let mut on: BTreeSet<&String> = child.requires.iter().filter(required).collect();
        // Children that restart together wait until all have ended, and for the delay of the failed one.
        let blocks = |c: &Child| match (self.group.strategy, c.phase) {
            (_, Phase::Leaving { .. }) => true,
            (Strategy::OneForAll, Phase::BackingOff) => !c.policy.contained,
            (Strategy::RestForOne, Phase::BackingOff) => !c.policy.contained && c.order < child.order,
            _ => false,
        };
        if self.group.strategy != Strategy::OneForOne {
            on.extend(self.children.iter().filter(|(_, c)| blocks(c)).map(|(name, _)| name));
        }
        on.into_iter().cloned().collect()
    }

    fn ask(&mut self, name: String, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(&name) else { return };
        let Phase::Leaving { then, stage: Stage::Due } = child.phase else { return };
        child.phase = Phase::Leaving { then, stage: Stage::Asked };
        let (run, after) = (child.run, child.policy.stop_deadline);
        out.push(Effect::State { name: name.clone(), state: ActorState::Stopping });
        out.push(Effect::Stop { name: name.clone(), run });
        out.push(Effect::SetTimer { name, run, timer: Timer::Stop, after });
    }

    fn launch(&mut self, name: String, out: &mut Vec<Effect>) {
        let Some(child) = self.children.get_mut(&name) else { return };
        self.runs += 1;
        child.run = self.runs;
        child.incarnation += 1;
        child.phase = Phase::Starting;
        child.waits_for.clear();
        let (run, after) = (child.run, child.policy.start_deadline);
        out.push(Effect::Launch { name: name.clone(), run, incarnation: child.incarnation });
        out.push(Effect::SetTimer { name, run, timer: Timer::Start, after });
    }
}

/// The failure of a start that took too long.
const START_TIMEOUT_TEXT: &str = "did not start in time";
