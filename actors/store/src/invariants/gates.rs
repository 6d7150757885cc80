//! Invariants of gates and participants.

use muster_messages::{Gate, GateState, ParticipantPhase, RUNS_LEVEL, Reconcilers, Tables};

use super::{CheckResult, RELEASE_1, RELEASE_2, RELEASE_3, RELEASE_4, RELEASE_7, RELEASE_9, REVISION_1, holds};

pub(super) fn check(tables: &Tables) -> CheckResult {
    let all = &tables.reconcilers;
    for gate in all.gates.values() {
        let (name, now) = (&gate.reconciler, &gate.now);
        let working = now.state == GateState::Working;
        holds(working == now.target.is_some(), RELEASE_3, || format!("{name} is {:?} to {:?}", now.state, now.target))?;
        if let Some(target) = &now.target {
            let between = now.floor >= target.floor && now.reconciled.triple <= target.release.triple;
            holds(between, RELEASE_3, || format!("{name}: {} and {} to {target:?}", now.reconciled, now.floor))?;
        }
        for participant in all.participants_of(&gate.scope) {
            let serves = participant.phase == ParticipantPhase::Serving;
            holds(!serves || participant.release.triple >= now.floor, RELEASE_1, || {
                format!("{} serves {} under {name}, floor {}", participant.key, participant.release, now.floor)
            })?;
        }
    }
    for (key, participant) in &all.participants {
        holds(*key == participant.key, REVISION_1, || format!("{key} is recorded as {}", participant.key))?;
        let Some(token) = participant.token else { continue };
        let lease = tables.objects.get(&key.lease()).and_then(|object| object.lease());
        let held = lease
            .is_some_and(|l| l.is_live() && l.holding.token == token && l.holding.session == Some(key.incarnation));
        holds(held, RELEASE_7, || format!("{key} outlives its lease"))?;
    }
    if tables.feature_level() >= RUNS_LEVEL {
        let defeated = crate::changes::defeated_finalizations(all);
        holds(defeated.is_empty(), RELEASE_9, || format!("finalizations stand against serving members: {defeated:?}"))?;
    }
    Ok(())
}

/// Over one entry, or several.
pub(super) fn check_step(before: &Tables, after: &Tables) -> CheckResult {
    let single = after.revision == before.revision.next();
    let (was, is) = (&before.reconcilers, &after.reconcilers);
    for (name, gate) in &is.gates {
        let Some(old) = was.gates.get(name) else { continue };
        let grows = gate.now.epoch > old.now.epoch || gate.now == old.now;
        holds(grows, RELEASE_4, || format!("{name}: epoch {} after {}", gate.now.epoch, old.now.epoch))?;
        holds(gate.now.term >= old.now.term, RELEASE_4, || {
            format!("{name}: term {} after {}", gate.now.term, old.now.term)
        })?;
        if single && gate.now.epoch != old.now.epoch && gate.now.term != old.now.term {
            by_a_runner(name, old, gate)?;
        }
    }
    for name in was.gates.keys().chain(was.controls.keys()) {
        let (old, new) = (was.epoch_of(name), is.epoch_of(name));
        holds(new >= old, RELEASE_4, || format!("{name}: epoch {new} after {old}: it was forgotten"))?;
    }
    if single { admissions(was, is) } else { Ok(()) }
}

fn by_a_runner(name: &str, old: &Gate, new: &Gate) -> CheckResult {
    let Some(target) = &new.now.target else { return Ok(()) };
    let (reconciled, floor) = old.restricted_to(target);
    let between = new.now.floor == floor && new.now.reconciled.triple == reconciled.triple;
    holds(between, RELEASE_3, || format!("{name}: {} and {} for {target:?}", new.now.reconciled, new.now.floor))
}

fn admissions(was: &Reconcilers, is: &Reconcilers) -> CheckResult {
    for (key, participant) in &is.participants {
        let serves = participant.phase == ParticipantPhase::Serving;
        let served = was.participants.get(key).is_some_and(|p| p.phase == ParticipantPhase::Serving);
        if serves && !served {
            let may = is.admission(participant);
            holds(may.is_ok(), RELEASE_2, || {
                format!("{key} serves, and {}", may.as_ref().err().map_or(String::new(), ToString::to_string))
            })?;
        }
    }
    Ok(())
}
