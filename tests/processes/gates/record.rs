//! A cluster's record of a gate, its members and its runner. Each change is an event with the previous
//! state: all events together show every state at every revision, and reveal a missing one.

use std::collections::BTreeMap;

use muster_messages::wire::Request;
use muster_messages::{EventKind, RUNNERS_NAMESPACE, Release, Triple, Word};
use serde::Deserialize;
use serde_json::Value;

use crate::harness::{Follower, WAIT_MS, World};

#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    pub revision: u64,
    pub kind: Word<EventKind>,
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Follows the events, from any of these nodes that answers.
pub fn follow(world: &World, nodes: &[&str]) -> Follower {
    let sockets = nodes.iter().map(|name| world.socket(name)).collect();
    Follower::start(sockets, |since| Request::Events { since, wait_ms: WAIT_MS })
}

/// The events in a follower's answers.
pub fn events(answers: &[Value]) -> Vec<Event> {
    let all = answers.iter().flat_map(|answer| answer["items"].as_array().cloned().unwrap_or_default());
    all.map(|event| Event::deserialize(event).expect("an event")).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub reconciled: Triple,
    pub floor: Triple,
    /// While work is in progress.
    pub target: Option<Triple>,
    pub epoch: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub release: Triple,
    pub phase: String,
}

impl Member {
    pub fn serves(&self) -> bool {
        self.phase == "serving"
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runner {
    pub member: String,
    pub term: u64,
    pub expired: bool,
}

/// The whole state between two revisions.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub revision: u64,
    pub gate: Option<Gate>,
    /// Serving and draining members, one entry per start. A waiting member causes no event.
    pub members: Vec<Member>,
    pub runner: Option<Runner>,
}

/// The lease in force at a revision.
pub fn state_at(states: &[State], revision: u64) -> State {
    let after = states.partition_point(|state| state.revision <= revision);
    after.checked_sub(1).map_or_else(State::default, |last| states[last].clone())
}

/// The first revision of each term of a reconciler's runner.
pub fn terms(events: &[Event], reconciler: &str) -> BTreeMap<u64, u64> {
    let mut terms = BTreeMap::new();
    for event in events.iter().filter(|event| event.kind == EventKind::Lease) {
        if let Some(runner) = event.after.as_deref().and_then(|text| runner_of(text, reconciler)) {
            terms.entry(runner.term).or_insert(event.revision);
        }
    }
    terms
}

/// What is checked, and what the test knows about it.
pub struct CheckContext<'a> {
    pub reconciler: &'a str,
    pub scope: &'a str,
    /// The floor of each release's definition, where it never changes.
    pub floors: BTreeMap<Triple, Triple>,
    /// What a member of a release needs applied.
    pub needs: fn(Triple) -> Triple,
    /// The term under which each epoch was written, where the gate's own history was read.
    pub written_under: BTreeMap<u64, u64>,
}

impl CheckContext<'_> {
    /// Every state, or the first violation.
    pub fn states(&self, events: &[Event]) -> Result<Vec<State>, String> {
        let (mut now, mut states) = (State::default(), Vec::new());
        for entry in events.chunk_by(|a, b| a.revision == b.revision) {
            let was = now.clone();
            let [Event { revision, .. }, ..] = entry else { continue };
            if *revision <= was.revision {
                return Err(format!("revision {revision} follows {}", was.revision));
            }
            now.revision = *revision;
            entry.iter().try_for_each(|event| self.take(&mut now, event))?;
            let broken = |promise: String| format!("{promise}\nbefore {was:#?}\nafter {now:#?}");
            self.serving(&was, &now).and_then(|()| self.gate(&was, &now)).map_err(broken)?;
            states.push(now.clone());
        }
        Ok(states)
    }

    /// Applies one event; its previous state must match.
    fn take(&self, now: &mut State, event: &Event) -> Result<(), String> {
        let Event { kind, before, after, .. } = event;
        let (before, after) = (before.as_deref(), after.as_deref());
        let missing = || format!("an event is missing between {now:?} and {event:?}");
        if *kind == EventKind::Lease {
            let runner = |text| runner_of(text, self.reconciler);
            let (was, is) = (before.and_then(runner), after.and_then(runner));
            if was.is_some() || is.is_some() {
                if was != now.runner {
                    return Err(missing());
                }
                now.runner = is;
            }
        } else if *kind == EventKind::Gate {
            let gate = |text| gate_of(text, self.reconciler);
            let (was, is) = (before.and_then(gate), after.and_then(gate));
            if was.is_some() || is.is_some() {
                if was != now.gate {
                    return Err(missing());
                }
                now.gate = is;
                return Ok(());
            }
            let member = |text| member_of(text, self.scope);
            if let Some(was) = before.and_then(member) {
                let Some(at) = now.members.iter().position(|there| *there == was) else {
                    return Err(format!("{event:?} is about an unknown member: {:?}", now.members));
                };
                now.members.swap_remove(at);
            }
            now.members.extend(after.and_then(member));
        }
        Ok(())
    }

    /// I1, I2.
    fn serving(&self, was: &State, now: &State) -> Result<(), String> {
        let floor = now.gate.as_ref().map_or_else(Triple::default, |gate| gate.floor);
        if let Some(below) = now.members.iter().find(|member| member.serves() && member.release < floor) {
            return Err(format!("I1: {below:?} serves below {floor}"));
        }
        let count = |state: &State, member: &Member| state.members.iter().filter(|there| *there == member).count();
        let admitted = |member: &&Member| member.serves() && count(now, member) > count(was, member);
        for member in now.members.iter().filter(admitted) {
            let needs = (self.needs)(member.release);
            let reconciled = now.gate.as_ref().map_or_else(Triple::default, |gate| gate.reconciled);
            if reconciled < needs {
                return Err(format!("I2: {member:?} was admitted and needs {needs}"));
            }
        }
        Ok(())
    }

    /// I3, I4, I7.
    fn gate(&self, was: &State, now: &State) -> Result<(), String> {
        let gate = match (&was.gate, &now.gate) {
            (was, is) if was == is => return Ok(()),
            (_, Some(gate)) => gate,
            (_, None) => return Err("the gate was deleted".to_owned()),
        };
        let Some(old) = &was.gate else {
            return if gate.target.is_none() { Ok(()) } else { Err("I7: a gate before the first success".to_owned()) };
        };
        if gate.epoch <= old.epoch {
            return Err("I4: the epoch does not grow".to_owned());
        }
        let by = now.runner.as_ref().map(|runner| runner.term);
        let allowed_term = self.written_under.get(&gate.epoch).copied();
        if by.is_none() || allowed_term.is_some_and(|term| Some(term) != by) {
            return Err(format!("I4: written under {allowed_term:?}, and {by:?} was in force"));
        }
        let floor_of = |release: &Triple| self.floors.get(release).copied();
        match gate.target {
            Some(target) => {
                let floor = floor_of(&target).map_or(gate.floor.max(old.floor), |floor| floor.max(old.floor));
                if (gate.reconciled, gate.floor) != (old.reconciled.min(target), floor) {
                    return Err(format!("I3: not the lower release and the higher floor, {floor}"));
                }
                match now.members.iter().find(|member| member.release < gate.floor) {
                    Some(blocker) => Err(format!("restricted despite blocker {blocker:?}")),
                    None => Ok(()),
                }
            }
            None => {
                let led_to = old.target == Some(gate.reconciled);
                let right = floor_of(&gate.reconciled).is_none_or(|floor| floor == gate.floor);
                if led_to && right { Ok(()) } else { Err("the completed release is not the target".to_owned()) }
            }
        }
    }
}

fn triple(text: &str) -> Option<Triple> {
    text.parse::<Release>().ok().map(|release| release.triple)
}

/// `NAME: STATE, RELEASE, floor FLOOR[, on the way to RELEASE], epoch N`.
fn gate_of(text: &str, reconciler: &str) -> Option<Gate> {
    let (state, rest) = text.strip_prefix(reconciler)?.strip_prefix(": ")?.split_once(", ")?;
    if state != "done" && state != "working" {
        return None;
    }
    let (rest, epoch) = rest.rsplit_once(", epoch ")?;
    let (rest, target) = match rest.split_once(", on the way to ") {
        Some((rest, target)) => (rest, Some(triple(target)?)),
        None => (rest, None),
    };
    let (reconciled, floor) = rest.split_once(", floor ")?;
    let gate = Gate { reconciled: triple(reconciled)?, floor: triple(floor)?, target, epoch: epoch.parse().ok()? };
    assert_eq!(state == "working", target.is_some(), "{text}");
    Some(gate)
}

/// `MEMBER of SCOPE RELEASE, PHASE`; the state before its admission does not count.
fn member_of(text: &str, scope: &str) -> Option<Member> {
    let (rest, phase) = text.rsplit_once(", ")?;
    let (who, release) = rest.rsplit_once(' ')?;
    let name = who.strip_suffix(scope)?.strip_suffix(" of ")?.to_owned();
    let release = triple(release)?;
    (phase != "announced").then(|| Member { name, release, phase: phase.to_owned() })
}

/// `NAMESPACE/NAME held by HOLDER, token N[, expired]`.
fn runner_of(text: &str, reconciler: &str) -> Option<Runner> {
    let rest = text.strip_prefix(&format!("{RUNNERS_NAMESPACE}/{reconciler} held by "))?;
    let (rest, expired) = rest.strip_suffix(", expired").map_or((rest, false), |rest| (rest, true));
    let (member, term) = rest.rsplit_once(", token ")?;
    Some(Runner { member: member.to_owned(), term: term.parse().ok()?, expired })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines `KIND BEFORE -> AFTER`, one revision each.
    fn judged(lines: &[&str]) -> Result<Vec<State>, String> {
        let words = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let event = |(number, line): (usize, &&str)| {
            let (kind, change) = line.split_once(' ').expect("a kind");
            let (before, after) = change.split_once("->").expect("a change");
            let (before, after) = (words(before), words(after));
            Event { revision: number as u64 + 1, kind: kind.into(), before, after }
        };
        let events: Vec<Event> = lines.iter().enumerate().map(event).collect();
        let one_and_two = [(1, 1), (2, 2)].map(|(r, f)| (Triple::new(r, 0, 0), Triple::new(f, 0, 0)));
        let context = CheckContext {
            reconciler: "schema",
            scope: "db",
            floors: one_and_two.into(),
            needs: |release| release,
            written_under: [(2, 7)].into(),
        };
        context.states(&events)
    }

    const RUNS: &str = "lease -> muster-reconcilers/schema held by a, token 7";
    const FIRST: &str = "gate -> schema: done, 1.0.0, floor 1.0.0, epoch 1";
    const RESTRICTED: &str = "gate schema: done, 1.0.0, floor 1.0.0, epoch 1 \
        -> schema: working, 1.0.0, floor 2.0.0, on the way to 2.0.0, epoch 2";

    #[track_caller]
    fn breaks(promise: &str, lines: &[&str]) {
        let why = judged(lines).expect_err("an invariant is violated");
        assert!(why.starts_with(promise), "{why}");
    }

    #[test]
    fn correct_upgrade_record_passes() {
        let done = "gate schema: working, 1.0.0, floor 2.0.0, on the way to 2.0.0, epoch 2 \
            -> schema: done, 2.0.0, floor 2.0.0, epoch 3";
        let serves = "gate m of db 2.0.0, announced -> m of db 2.0.0, serving";
        let states = judged(&[RUNS, FIRST, RESTRICTED, done, serves]);
        let last = states.expect("all is well").pop().expect("states exist");
        assert_eq!(last.gate.map(|gate| (gate.reconciled, gate.epoch)), Some((Triple::new(2, 0, 0), 3)));
        assert_eq!((last.members.len(), last.runner.map(|runner| runner.term)), (1, Some(7)));
    }

    #[test]
    fn each_broken_gate_invariant_is_detected() {
        let serves = "gate m of db 1.0.0, announced -> m of db 1.0.0, serving";
        breaks("I1", &[RUNS, FIRST, serves, RESTRICTED]);
        breaks("I2", &[RUNS, serves]);
        breaks("I3", &[RUNS, FIRST, &RESTRICTED.replace("floor 2.0.0", "floor 1.0.0")]);
        breaks("I4", &[RUNS, FIRST, &RESTRICTED.replace("epoch 2", "epoch 1")]);
        breaks("I4", &[&RUNS.replace("token 7", "token 8"), FIRST, RESTRICTED]);
        breaks("I4", &[FIRST, RESTRICTED]);
        breaks("I7", &[RUNS, "gate -> schema: working, 1.0.0, floor 2.0.0, on the way to 2.0.0, epoch 2"]);
        let drains = "gate m of db 1.0.0, serving -> m of db 1.0.0, draining";
        breaks("restricted despite blocker", &[RUNS, FIRST, serves, drains, RESTRICTED]);
    }

    #[test]
    fn missing_gate_event_is_detected() {
        breaks("an event is missing", &[RUNS, RESTRICTED]);
        breaks("an event is missing", &[RUNS, "lease -> muster-reconcilers/schema held by b, token 9"]);
        assert!(judged(&["gate m of db 1.0.0, serving ->"]).is_err());
    }
}
