//! From the scene and the signs of life to what is to be done now.

use std::collections::BTreeSet;

use muster_messages::{Lease, Moment, WallTime};

use super::Contest;
use super::candidate::Candidate;
use super::rules::{self, Conflict, Poll, Verdict};
use super::signs::Standing;

/// What the lease's next write is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Intent {
    /// It has no holder: this one.
    Elect { name: String, strategy: String },
    /// It has one: whom it is to make room for, if for anybody.
    Prefer { name: Option<String>, strategy: Option<String> },
    /// Another coordinator's strategy.
    Label { strategy: String },
}

/// Where a contest stands, in words for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Stance {
    #[default]
    Looking,
    /// The best one holds the lease.
    Settled,
    /// The holder is asked to make room.
    Yielding,
    /// Candidates may still be starting.
    Settling,
    /// Signs of life are awaited.
    Asking { of: Vec<String> },
    /// The lease is being written.
    Writing,
    /// Nobody has given a sign of life.
    NobodyAnswers,
    /// Candidates have no version that the strategy could judge.
    NobodyElectable,
    /// The strategy is another coordinator's.
    NotOurs { strategy: String },
    /// The newest candidates want different strategies.
    Contradiction,
}

/// What a look brings.
#[derive(Clone, Debug, Default)]
pub(super) struct Decision {
    pub ping: Vec<String>,
    pub clean_up: Vec<String>,
    pub intent: Option<Intent>,
    pub skew: bool,
    pub conflict: Option<Conflict>,
    pub stance: Stance,
    /// Looked at again at these times; those that have passed do not count.
    pub wake: Vec<Moment>,
}

impl Contest {
    fn lease(&self) -> Option<&Lease> {
        self.scene.lease.as_ref().and_then(|object| object.lease())
    }
    fn standing(&self, now: Moment, name: &str) -> Standing {
        self.memory.signs.standing(now, name, self.memory.departed.as_ref(), &self.config)
    }

    pub(super) fn decide(&self, now: Moment, wall: WallTime) -> Decision {
        let mut decision = Decision::default();
        let all: Vec<Candidate> = self.scene.candidates.values().filter_map(|o| Candidate::of(o, wall)).collect();
        self.bury(now, &mut decision);
        self.times(now, wall, &all, &mut decision);

        let holder = self.memory.holder.as_deref();
        let incumbent = holder.or(self.memory.departed.as_ref().map(|d| d.name.as_str()));
        let usable = self.usable(now, &all, holder);
        let holds = |c: &&Candidate| Some(c.name.as_str()) == holder;
        // Whom nobody would doubt: heard of within minutes. If by them the strategy is not ours, nobody needs to be asked
        // for more than that.
        let known = |c: &&Candidate| holds(c) || self.memory.signs.alive_within(now, &c.name, self.config.stale);
        let heard: Vec<&Candidate> = usable.iter().copied().filter(known).collect();
        let overall = Poll::of(&heard, incumbent);
        let ours = matches!(overall.verdict(), Ok(Verdict::Elect { .. } | Verdict::Nobody));
        // Whoever is to be elected has given a sign just now. One that is preferred already has, when it was.
        let preferred = self.lease().and_then(|l| l.spec.preferred_holder.as_deref()).filter(|_| holder.is_some());
        let fresh = |c: &&Candidate| {
            holds(c) || preferred == Some(c.name.as_str()) || self.standing(now, &c.name) == Standing::Fresh
        };
        let voters: Vec<&Candidate> = if ours { usable.iter().copied().filter(fresh).collect() } else { heard };
        let poll = if ours { Poll::of(&voters, incumbent) } else { overall };
        let verdict = poll.verdict();

        let votes: BTreeSet<&str> = voters.iter().map(|c| c.name.as_str()).collect();
        let mut awaited = Vec::new();
        for candidate in usable.iter().filter(|c| !votes.contains(c.name.as_str())) {
            if !poll.hinges_on(candidate) {
                continue; // dead or alive, it changes nothing
            }
            match self.standing(now, &candidate.name) {
                Standing::Asked { until } => decision.wake.push(until),
                _ => decision.ping.push(candidate.name.clone()),
            }
            awaited.push(candidate.name.clone());
        }

        decision.conflict = verdict.as_ref().err().cloned();
        if !awaited.is_empty() {
            decision.stance = Stance::Asking { of: awaited };
            return decision;
        }
        if let Some(until) = self.settling(now) {
            decision.wake.push(until);
            decision.stance = Stance::Settling;
            return decision;
        }
        decision.skew = self.skew(&verdict, &usable);
        (decision.intent, decision.stance) = match holder {
            Some(holder) => self.while_held(holder, verdict, &usable),
            None => self.while_vacant(verdict, all.is_empty(), voters.is_empty()),
        };
        if decision.intent.is_some() {
            decision.stance = Stance::Writing;
        }
        decision
    }

    /// Those that may count: not silent, and not sitting out while there are others.
    fn usable<'a>(&self, now: Moment, all: &'a [Candidate], holder: Option<&str>) -> Vec<&'a Candidate> {
        let holds = |c: &Candidate| Some(c.name.as_str()) == holder;
        let speaks = |c: &&Candidate| holds(c) || self.standing(now, &c.name) != Standing::Silent;
        let sits_out =
            |c: &&Candidate| !holds(c) && self.memory.sitting_out.get(&c.name).is_some_and(|until| now < *until);
        let (out, usable): (Vec<_>, Vec<_>) = all.iter().filter(speaks).partition(sits_out);
        if usable.is_empty() { out } else { usable }
    }

    /// Until when candidates may still be starting: those that came while nobody held the lease, or all, where nobody ever
    /// has. Whoever was there when a holder left is elected at once.
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
        verdict: Result<Verdict, Conflict>,
        nobody: bool,
        nobody_fresh: bool,
    ) -> (Option<Intent>, Stance) {
        match verdict {
            Ok(Verdict::Elect { name, strategy }) => (Some(Intent::Elect { name, strategy }), Stance::Writing),
            Ok(Verdict::Foreign { strategy }) => self.foreign(strategy),
            Ok(Verdict::Nobody) if nobody => (self.prefer(None, None), Stance::Looking),
            Ok(Verdict::Nobody) if nobody_fresh => (None, Stance::NobodyAnswers),
            Ok(Verdict::Nobody) => (None, Stance::NobodyElectable),
            Err(_) => (None, Stance::Contradiction),
        }
    }

    fn while_held(
        &self,
        holder: &str,
        verdict: Result<Verdict, Conflict>,
        usable: &[&Candidate],
    ) -> (Option<Intent>, Stance) {
        match verdict {
            Ok(Verdict::Elect { name, strategy }) if name == holder => {
                (self.prefer(None, Some(strategy)), Stance::Settled)
            }
            Ok(Verdict::Elect { name, strategy }) => (self.prefer(Some(name), Some(strategy)), Stance::Yielding),
            Ok(Verdict::Foreign { strategy }) => self.foreign(strategy),
            Ok(Verdict::Nobody) => {
                // Whoever it was to make room for is not there any more.
                let preferred = self.lease().and_then(|l| l.spec.preferred_holder.as_deref());
                let gone = preferred.is_some_and(|name| !usable.iter().any(|c| c.name == name));
                (self.prefer(None, None).filter(|_| gone), Stance::Settled)
            }
            Err(_) => (None, Stance::Contradiction),
        }
    }

    fn foreign(&self, strategy: String) -> (Option<Intent>, Stance) {
        let stance = Stance::NotOurs { strategy: strategy.clone() };
        let same = self.lease().is_some_and(|l| l.spec.strategy.as_ref() == Some(&strategy));
        ((!same).then_some(Intent::Label { strategy }), stance)
    }

    /// A write of preference and strategy, if it would change anything.
    fn prefer(&self, name: Option<String>, strategy: Option<String>) -> Option<Intent> {
        let spec = &self.lease()?.spec;
        let same = spec.preferred_holder == name && (strategy.is_none() || spec.strategy == strategy);
        (!same).then_some(Intent::Prefer { name, strategy })
    }

    /// The winner is older than another that is there.
    fn skew(&self, verdict: &Result<Verdict, Conflict>, usable: &[&Candidate]) -> bool {
        let Ok(Verdict::Elect { name, .. }) = verdict else { return false };
        let winner = usable.iter().find(|c| c.name == *name).and_then(|c| c.binary);
        winner.is_some_and(|binary| binary < rules::newest(usable))
    }

    /// Candidates without a sign of life for so long that they are deleted.
    fn bury(&self, now: Moment, decision: &mut Decision) {
        for (name, sign) in self.memory.signs.iter() {
            let end = sign.last() + self.config.candidate_lifetime;
            if end <= now {
                decision.clean_up.push(name.clone());
            } else {
                decision.wake.push(end);
            }
        }
    }

    /// When time alone changes what the candidates are worth.
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
