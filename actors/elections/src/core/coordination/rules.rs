//! Which candidate is best, and by which rule. Pure functions of the candidates.
//!
//! Invariants  ELECT-3  of the same candidates the same one is best, regardless of their order: ties go to the candidate that
//!                      leads, then to the older, then to the smaller name.

use std::cmp::Ordering;

use super::candidate::{Candidate, Version};

/// Kubernetes' own: no candidate runs ahead of the oldest one present.
pub const OLDEST_EMULATION_VERSION: &str = "OldestEmulationVersion";
/// The newest binary leads.
pub const NEWEST_RELEASE: &str = "muster.dev/NewestRelease";
/// The highest priority leads; among equals as [`OLDEST_EMULATION_VERSION`].
pub const PRIORITY: &str = "muster.dev/Priority";

/// The decision for a set of candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollResult {
    Elect {
        name: String,
        strategy: String,
    },
    /// Another coordinator's strategy: that coordinator elects.
    Foreign {
        strategy: String,
    },
    /// No candidate, or none that the strategy can evaluate.
    NoCandidate,
}

/// The newest candidates do not agree on a strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub strategies: [String; 2],
}

/// The strategy of the newest binary.
pub fn strategy<'a>(candidates: &[&'a Candidate]) -> Result<Option<&'a str>, Conflict> {
    let newest = newest(candidates);
    let mut theirs = candidates.iter().filter(|c| c.binary.unwrap_or_default() == newest).map(|c| c.strategy.as_str());
    let Some(first) = theirs.next() else { return Ok(None) };
    match theirs.find(|other| *other != first) {
        None => Ok(Some(first)),
        Some(other) => {
            let mut strategies = [first.to_owned(), other.to_owned()];
            strategies.sort();
            Err(Conflict { strategies })
        }
    }
}

/// `Less` means that `a` is preferred to `b`, by version or priority alone.
pub fn compare(strategy: &str, a: &Candidate, b: &Candidate) -> Ordering {
    let (emulation, binary) =
        (|c: &Candidate| c.emulation.unwrap_or_default(), |c: &Candidate| c.binary.unwrap_or_default());
    let oldest = || emulation(a).cmp(&emulation(b)).then(binary(a).cmp(&binary(b)));
    match strategy {
        NEWEST_RELEASE => binary(b).cmp(&binary(a)).then(emulation(b).cmp(&emulation(a))),
        PRIORITY => b.priority.cmp(&a.priority).then_with(oldest),
        _ => oldest(),
    }
}

/// Whether the strategy can evaluate the candidate.
pub fn electable(strategy: &str, candidate: &Candidate) -> bool {
    match strategy {
        NEWEST_RELEASE => candidate.binary.is_some(),
        PRIORITY => true,
        _ => candidate.binary.is_some() && candidate.emulation.is_some(),
    }
}

/// The evaluation of a set of candidates, where `incumbent` leads or led last.
#[derive(Clone, Debug)]
pub struct Poll<'a> {
    incumbent: Option<&'a str>,
    newest: Version,
    strategy: Result<Option<&'a str>, Conflict>,
    winner: Option<&'a Candidate>,
}

impl<'a> Poll<'a> {
    pub fn of(candidates: &[&'a Candidate], incumbent: Option<&'a str>) -> Self {
        let strategy = strategy(candidates);
        let mut poll = Self { incumbent, newest: newest(candidates), strategy, winner: None };
        if let Ok(Some(strategy)) = poll.strategy
            && is_ours(strategy)
        {
            let able = candidates.iter().copied().filter(|c| electable(strategy, c));
            poll.winner = able.min_by(|a, b| poll.order(strategy, a, b));
        }
        poll
    }

    fn order(&self, strategy: &str, a: &Candidate, b: &Candidate) -> Ordering {
        let follows = |c: &Candidate| Some(c.name.as_str()) != self.incumbent;
        let tie = || follows(a).cmp(&follows(b)).then(a.created.cmp(&b.created)).then_with(|| a.name.cmp(&b.name));
        compare(strategy, a, b).then_with(tie)
    }

    pub fn poll_result(&self) -> Result<PollResult, Conflict> {
        let Some(strategy) = self.strategy.clone()? else { return Ok(PollResult::NoCandidate) };
        let strategy = strategy.to_owned();
        Ok(match self.winner {
            Some(winner) => PollResult::Elect { name: winner.name.clone(), strategy },
            None if is_ours(&strategy) => PollResult::NoCandidate,
            None => PollResult::Foreign { strategy },
        })
    }

    /// Whether this further candidate would change the decision.
    pub fn hinges_on(&self, candidate: &Candidate) -> bool {
        let version = candidate.binary.unwrap_or_default();
        match &self.strategy {
            Ok(None) => true,
            Ok(Some(strategy)) if version >= self.newest && candidate.strategy != *strategy => true,
            Ok(Some(strategy)) if is_ours(strategy) && electable(strategy, candidate) => {
                self.winner.is_none_or(|winner| self.order(strategy, candidate, winner) == Ordering::Less)
            }
            Ok(Some(_)) => false,
            Err(_) => version > self.newest,
        }
    }
}

fn is_ours(strategy: &str) -> bool {
    [OLDEST_EMULATION_VERSION, NEWEST_RELEASE, PRIORITY].contains(&strategy)
}

/// The newest binary among them. An unreadable version counts as zero.
pub fn newest(candidates: &[&Candidate]) -> Version {
    candidates.iter().map(|c| c.binary.unwrap_or_default()).max().unwrap_or_default()
}
