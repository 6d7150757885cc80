//! From the scene and the signs of life to the next action.

use std::collections::BTreeSet;
use std::fmt;

use muster_messages::{Lease, Moment, WallTime};

use super::ContendedElection;
use super::candidate::Candidate;
use super::rules::{self, Conflict, Poll, PollResult};
use super::signs::CandidateState;

/// The purpose of the lease's next write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// The lease has no holder: elect this one.
    Elect { name: String, strategy: String },
    /// The lease has a holder: the candidate that it should yield to, if any.
    Prefer { name: Option<String>, strategy: Option<String> },
    /// Another coordinator's strategy.
    Label { strategy: String },
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elect { name, strategy } => write!(f, "{name} was to become the holder, by {strategy}"),
            Self::Prefer { name: Some(name), .. } => write!(f, "{name} was to become the preferred holder"),
            Self::Prefer { name: None, .. } => f.write_str("the preferred holder was to be cleared"),
            Self::Label { strategy } => write!(f, "the strategy {strategy} was to be noted"),
        }
    }
}

/// The state of an election, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ElectionState {
    #[default]
    Observing,
    /// The best candidate holds the lease.
    Settled,
    /// The holder is asked to yield.
    Yielding,
    /// Candidates may still be starting.
    Settling,
    /// Waiting for signs of life.
    Asking { of: Vec<String> },
    /// The lease is being written.
    Writing,
    /// No candidate has given a sign of life.
    NoAnswer,
    /// No candidate has a version that the strategy can evaluate.
    NoneElectable,
    /// The strategy belongs to another coordinator.
    NotOurs { strategy: String },
    /// The newest candidates want different strategies.
    Contradiction,
}

/// The result of an evaluation.
#[derive(Clone, Debug, Default)]
pub(super) struct Decision {
    pub ping: Vec<String>,
    pub clean_up: Vec<String>,
    pub intent: Option<Intent>,
    pub skew: bool,
    pub conflict: Option<Conflict>,
    pub election_state: ElectionState,
    /// Times of the next evaluation; past ones are ignored.
    pub wake: Vec<Moment>,
}

impl ContendedElection {
    fn lease(&self) -> Option<&Lease> {
        self.scene.lease.as_ref().and_then(|object| object.lease())
    }
    fn candidate_state(&self, now: Moment, name: &str) -> CandidateState {
        self.memory.signs.candidate_state(now, name, self.memory.departed.as_ref(), &self.config)
    }

    pub(super) fn decide(&self, now: Moment, wall: WallTime) -> Decision {
        let mut decision = Decision::default();
        let all: Vec<Candidate> = self.scene.candidates.values().filter_map(|o| Candidate::of(o, wall)).collect();
        self.delete_silent(now, &mut decision);
        self.times(now, wall, &all, &mut decision);

        let holder = self.memory.holder.as_deref();
        let incumbent = holder.or(self.memory.departed.as_ref().map(|d| d.name.as_str()));
        let usable = self.usable(now, &all, holder);
        let holds = |c: &&Candidate| Some(c.name.as_str()) == holder;
        // Candidates with a sign of life within minutes. If they want a strategy that is not ours, no ping is needed.
        let known = |c: &&Candidate| holds(c) || self.memory.signs.alive_within(now, &c.name, self.config.stale);
        let present: Vec<&Candidate> = usable.iter().copied().filter(known).collect();
        let overall = Poll::of(&present, incumbent);
        let ours = matches!(overall.poll_result(), Ok(PollResult::Elect { .. } | PollResult::NoCandidate));
        // A candidate needs a recent sign of life to be elected. A preferred one had it when it was preferred.
        let preferred = self.lease().and_then(|l| l.spec.preferred_holder.as_deref()).filter(|_| holder.is_some());
        let fresh = |c: &&Candidate| {
            holds(c)
                || preferred == Some(c.name.as_str())
                || self.candidate_state(now, &c.name) == CandidateState::Fresh
        };
        let voters: Vec<&Candidate> = if ours { usable.iter().copied().filter(fresh).collect() } else { present };
        let poll = if ours { Poll::of(&voters, incumbent) } else { overall };
        let poll_result = poll.poll_result();

        let votes: BTreeSet<&str> = voters.iter().map(|c| c.name.as_str()).collect();
        let mut awaited = Vec::new();
        for candidate in usable.iter().filter(|c| !votes.contains(c.name.as_str())) {
            if !poll.hinges_on(candidate) {
                continue; // it changes nothing, dead or alive
            }
            match self.candidate_state(now, &candidate.name) {
                CandidateState::Asked { until } => decision.wake.push(until),
                _ => decision.ping.push(candidate.name.clone()),
            }
            awaited.push(candidate.name.clone());
        }

        decision.conflict = poll_result.as_ref().err().cloned();
        if !awaited.is_empty() {
            decision.election_state = ElectionState::Asking { of: awaited };
            return decision;
        }
        if let Some(until) = self.settling(now) {
            decision.wake.push(until);
            decision.election_state = ElectionState::Settling;
            return decision;
        }
        decision.skew = self.skew(&poll_result, &usable);
        (decision.intent, decision.election_state) = match holder {
            Some(holder) => self.while_held(holder, poll_result, &usable),
            None => self.while_vacant(poll_result, all.is_empty(), voters.is_empty()),
        };
        if decision.intent.is_some() {
            decision.election_state = ElectionState::Writing;
        }
        decision
    }

    /// The candidates that count: not silent, and not sitting out while there are others.
    fn usable<'a>(&self, now: Moment, all: &'a [Candidate], holder: Option<&str>) -> Vec<&'a Candidate> {
        let holds = |c: &Candidate| Some(c.name.as_str()) == holder;
        let not_silent = |c: &&Candidate| holds(c) || self.candidate_state(now, &c.name) != CandidateState::Silent;
        let sits_out =
            |c: &&Candidate| !holds(c) && self.memory.sitting_out.get(&c.name).is_some_and(|until| now < *until);
        let (out, usable): (Vec<_>, Vec<_>) = all.iter().filter(not_silent).partition(sits_out);
        if usable.is_empty() { out } else { usable }
    }

    /// Until when candidates may still be starting: those that arrived while the lease had no holder, or all if it never had
    /// one. A candidate present when a holder left is elected at once.
    fn settling(&self, now: Moment) -> Option<Moment> {
        let vacant = self.memory.vacant_since?;
        let never_held = !self.memory.held_before && self.lease().is_none_or(|l| l.holding.token.0 == 0);
        let arrived = self.memory.signs.iter().filter(|(name, sign)| {
            let object = self.scene.candidates.get(*name);
            let new = object.is_some_and(|o| o.meta.created > self.scene.since);
            sign.first_seen >= vacant && (new || never_held)
        });
        let (first, last) = arrived.fold((None, None), |(first, last): (Option<Moment>, Option<Moment>), (_, sign)| {
            let at = sign.first_seen;
            (Some(first.map_or(at, |f| f.min(at))), Some(last.map_or(at, |l| l.max(at))))
        });
        let until = (last? + self.config.settle).min(first? + self.config.settle * 3);
        (now < until).then_some(until)
    }

    fn while_vacant(
        &self,
        poll_result: Result<PollResult, Conflict>,
        no_candidates: bool,
        none_fresh: bool,
    ) -> (Option<Intent>, ElectionState) {
        match poll_result {
            Ok(PollResult::Elect { name, strategy }) => {
                (Some(Intent::Elect { name, strategy }), ElectionState::Writing)
            }
            Ok(PollResult::Foreign { strategy }) => self.foreign(strategy),
            Ok(PollResult::NoCandidate) if no_candidates => (self.prefer(None, None), ElectionState::Observing),
            Ok(PollResult::NoCandidate) if none_fresh => (None, ElectionState::NoAnswer),
            Ok(PollResult::NoCandidate) => (None, ElectionState::NoneElectable),
            Err(_) => (None, ElectionState::Contradiction),
        }
    }

    fn while_held(
        &self,
        holder: &str,
        poll_result: Result<PollResult, Conflict>,
        usable: &[&Candidate],
    ) -> (Option<Intent>, ElectionState) {
        match poll_result {
            Ok(PollResult::Elect { name, strategy }) if name == holder => {
                (self.prefer(None, Some(strategy)), ElectionState::Settled)
            }
            Ok(PollResult::Elect { name, strategy }) => {
                (self.prefer(Some(name), Some(strategy)), ElectionState::Yielding)
            }
            Ok(PollResult::Foreign { strategy }) => self.foreign(strategy),
            Ok(PollResult::NoCandidate) => {
                // The preferred candidate is no longer present.
                let preferred = self.lease().and_then(|l| l.spec.preferred_holder.as_deref());
                let gone = preferred.is_some_and(|name| !usable.iter().any(|c| c.name == name));
                (self.prefer(None, None).filter(|_| gone), ElectionState::Settled)
            }
            Err(_) => (None, ElectionState::Contradiction),
        }
    }

    fn foreign(&self, strategy: String) -> (Option<Intent>, ElectionState) {
        let election_state = ElectionState::NotOurs { strategy: strategy.clone() };
        let same = self.lease().is_some_and(|l| l.spec.strategy.as_ref() == Some(&strategy));
        ((!same).then_some(Intent::Label { strategy }), election_state)
    }

    /// A write of preference and strategy, if it would change anything.
    fn prefer(&self, name: Option<String>, strategy: Option<String>) -> Option<Intent> {
        let spec = &self.lease()?.spec;
        let same = spec.preferred_holder == name && (strategy.is_none() || spec.strategy == strategy);
        (!same).then_some(Intent::Prefer { name, strategy })
    }

    /// Whether the winner is older than another candidate that is present.
    fn skew(&self, poll_result: &Result<PollResult, Conflict>, usable: &[&Candidate]) -> bool {
        let Ok(PollResult::Elect { name, .. }) = poll_result else { return false };
        let winner = usable.iter().find(|c| c.name == *name).and_then(|c| c.binary);
        winner.is_some_and(|binary| binary < rules::newest(usable))
    }

    /// Deletes candidates that have been silent for too long.
    fn delete_silent(&self, now: Moment, decision: &mut Decision) {
        for (name, sign) in self.memory.signs.iter() {
            let end = sign.last() + self.config.candidate_lifetime;
            if end <= now {
                decision.clean_up.push(name.clone());
            } else {
                decision.wake.push(end);
            }
        }
    }

    /// Times at which a candidate's value changes without an event.
    fn times(&self, now: Moment, wall: WallTime, all: &[Candidate], decision: &mut Decision) {
        decision.wake.extend(self.memory.sitting_out.values());
        let stale = |name: &String| self.memory.signs.get(name)?.alive_at.map(|at| at + self.config.stale);
        decision.wake.extend(all.iter().filter_map(|c| stale(&c.name)));
        let ends = all.iter().filter_map(|c| c.priority_until);
        decision.wake.extend(ends.map(|at| {
            let left = u64::try_from(at.0.saturating_sub(wall.0)).unwrap_or(0);
            now + std::time::Duration::from_millis(left.max(1))
        }));
    }
}
