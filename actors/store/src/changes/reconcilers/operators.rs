//! Operators' actions on a reconciler and its gate.

use muster_messages::{Controls, Gate, GateEntry, ParticipantPhase, Triple};

use super::*;

/// How the reason of an entry begins that was repaired.
pub(crate) const REPAIRED: &str = "repaired from epoch";

pub(super) fn control(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    reconciler: &str,
    set: impl FnOnce(&mut Controls),
) -> Result<(), CommandRefusal> {
    known(tables, reconciler)?;
    let all = &mut tables.reconcilers;
    let old = all.controls.get(reconciler).cloned().unwrap_or_default();
    let mut new = old.clone();
    set(&mut new);
    if new != old {
        let text = |c: &Controls| {
            let (paused, finalized) = (c.paused, c.finalized.as_deref().map_or("nothing", short));
            format!("{reconciler}: paused {paused}, finalized {finalized}, retries {}", c.retries)
        };
        let (was, is) = (text(&old), text(&new));
        all.controls.insert(reconciler.to_owned(), new);
        all.changed = stamp.at;
        stamp.log(tables, EventKind::Gate, None, Some(was), Some(is));
    }
    Ok(())
}

pub(super) fn gate(tables: &Tables, reconciler: &str) -> Result<Arc<Gate>, CommandRefusal> {
    tables.reconcilers.gates.get(reconciler).cloned().ok_or_else(|| not_found("gate", reconciler))
}

pub(super) fn repair(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    reconciler: &str,
    epoch: u64,
) -> Result<(), CommandRefusal> {
    let deleted = || tables.runs.deleted_gates.get(reconciler).cloned();
    let gate = gate(tables, reconciler).or_else(|refusal| deleted().ok_or(refusal))?;
    let entry = gate.history.iter().chain([&gate.now]).find(|entry| entry.epoch == epoch);
    let entry = entry.ok_or_else(|| not_found("epoch", epoch))?.clone();
    // RELEASE-3 also applies to operators, as long as the gate's target is readable.
    let keeps_out = !gate.is_readable() || gate.now.target.is_none() || entry.floor >= gate.now.floor;
    expected(keeps_out, || {
        let (floor, now) = (entry.floor, gate.now.floor);
        format!(
            "epoch {epoch} of {reconciler} admits release {floor}, but a change that requires {now} is in progress; apply \
             a definition that completes or reverses it first"
        )
    })?;
    let why = format!("{REPAIRED} {epoch}");
    let entry = GateEntry { term: gate.now.term, at: stamp.wall, revision: stamp.at, why, ..entry };
    write_gate(tables, stamp, reconciler, &gate.scope, entry);
    exclude(tables, stamp, reconciler);
    Ok(())
}

pub(super) fn force_floor(
    tables: &mut Tables,
    stamp: &Stamp<'_>,
    reconciler: &str,
    floor: Triple,
) -> Result<(), CommandRefusal> {
    let gate = gate(tables, reconciler)?;
    if !gate.is_readable() {
        let reconciler = reconciler.to_owned();
        return Err(CommandRefusal::Held(muster_messages::Hold::GateUnreadable { reconciler }));
    }
    let floor = floor.max(gate.least_floor());
    let why = "floor set by hand".to_owned();
    let entry = GateEntry { floor, at: stamp.wall, revision: stamp.at, why, ..gate.now.clone() };
    write_gate(tables, stamp, reconciler, &gate.scope, entry);
    exclude(tables, stamp, reconciler);
    Ok(())
}

/// RELEASE-1 after an operator moved a gate: participants that it no longer admits must stop. Other gates of the scope are
/// not checked: they were not moved.
fn exclude(tables: &mut Tables, stamp: &Stamp<'_>, reconciler: &str) {
    let all = &tables.reconcilers;
    let Some(gate) = all.gates.get(reconciler) else { return };
    let out = all.participants_of(&gate.scope).filter(|p| p.phase == ParticipantPhase::Serving && !gate.admits(p));
    let out: Vec<_> = out.map(|p| (**p).clone()).collect();
    for mut participant in out {
        participant.phase = ParticipantPhase::Draining;
        (participant.since, participant.revision) = (stamp.wall, stamp.at);
        put_participant(tables, stamp, participant);
    }
}

pub(super) fn delete_gate(tables: &mut Tables, stamp: &Stamp<'_>, reconciler: &str) -> Result<(), CommandRefusal> {
    let gate = gate(tables, reconciler)?;
    let all = &mut tables.reconcilers;
    all.gates.remove(reconciler);
    let mut controls = all.controls.get(reconciler).cloned().unwrap_or_default();
    controls.last_epoch = gate.now.epoch;
    all.controls.insert(reconciler.to_owned(), controls);
    all.changed = stamp.at;
    stamp.log(tables, EventKind::Gate, None, Some(text(reconciler, &gate.now)), None);
    runs::keep_deleted(tables, gate);
    Ok(())
}
