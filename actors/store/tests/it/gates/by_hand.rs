//! Operators' actions on gates, and whom they affect.

use super::*;

fn forces(floor: &str) -> ReconcilerChange {
    ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple(floor) }
}

/// Two reconcilers of one scope: the gate of the other is deleted, and no serving participant is stopped for
/// that.
#[test]
fn forced_floor_affects_only_its_own_gate() {
    let mut world = Gated::new();
    world.applied("1.0.0", "1.0.0");
    let (other, mut theirs) = ("other".to_owned(), definition("1.0.0", "1.0.0"));
    theirs.reconciler.clone_from(&other);
    let digest = theirs.digest.clone();
    world.must(ReconcilerChange::Define { definition: Box::new(theirs), replace: false });
    let term = world.acquire(&runner_lease(&other), "n1", 3);
    let (reconciler, release, step) = (other.clone(), triple("1.0.0"), GateStep::Complete);
    world.must(ReconcilerChange::Step { reconciler, release, digest, term, epoch: 0, step });
    let serves = world.serve("m", 1, "1.0.0");
    world.must(ReconcilerChange::DeleteGate { reconciler: other });
    world.must(forces("1.0.0"));
    assert_eq!(world.phase(&serves), Some(ParticipantPhase::Serving));
    world.must(forces("1.1.0"));
    assert_eq!(world.phase(&serves), Some(ParticipantPhase::Draining));
}

#[test]
fn repair_drains_participants_that_need_more() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("2.0.0", "1.0.0");
    world.steps("2.0.0", term, GateStep::Work);
    world.steps("2.0.0", term, GateStep::Complete);
    let needs = world.announce("needs", 1, "2.0.0", &[(NAME, "2.0.0")]);
    world.must(ReconcilerChange::Admit(needs.clone()));
    let content = world.serve("content", 2, "2.0.0");
    world.must(ReconcilerChange::Repair { reconciler: NAME.to_owned(), epoch: 1 });
    assert_eq!(world.phase(&needs), Some(ParticipantPhase::Draining));
    assert_eq!(world.phase(&content), Some(ParticipantPhase::Serving));
}

/// On the way down the old end still exists: it keeps out the same participants as before.
#[test]
fn forced_floor_during_downgrade_keeps_the_old_exclusion() {
    let mut world = Gated::new();
    let term = world.applied("2.0.0", "2.0.0");
    world.define("1.0.0", "1.0.0");
    world.steps("1.0.0", term, GateStep::Restrict);
    world.must(forces("1.0.0"));
    assert_eq!(world.gate().2, "2.0.0");
    world.steps("1.0.0", term, GateStep::Complete);
    world.must(forces("1.0.0"));
    assert_eq!(world.gate().2, "1.0.0");
}

#[test]
fn repair_during_upgrade_does_not_admit_older_members() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("3.0.0", "3.0.0");
    world.steps("3.0.0", term, GateStep::Restrict);
    let refusal = world.refused(ReconcilerChange::Repair { reconciler: NAME.to_owned(), epoch: 1 });
    assert!(refusal.to_string().contains("a change that requires 3.0.0 is in progress"), "{refusal}");
    assert_eq!(world.gate().2, "3.0.0");
}

/// The highest floor and the newest release of a change survive many steps.
#[test]
fn retargeted_gate_remembers_its_highest_release() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("3.0.0", "3.0.0");
    world.steps("3.0.0", term, GateStep::Restrict);
    for n in 0..40 {
        let of = format!("1.{n}.1");
        world.define(&of, "1.0.0");
        world.steps(&of, term, GateStep::Work);
    }
    let gate = &world.all().gates[NAME];
    assert_eq!((gate.history.len(), gate.highest().triple), (GATE_HISTORY, triple("3.0.0")));
    world.steps("1.39.1", term, GateStep::Complete);
    assert_eq!(
        world.gate(),
        (GateState::Done, "1.39.1".to_owned(), "1.0.0".to_owned()),
        "nobody has set another floor"
    );
}
