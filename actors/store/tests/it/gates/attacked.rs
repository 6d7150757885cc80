//! Attacks and mistakes: look-alike names, late steps, replaced definitions, moved floors.

use std::collections::BTreeMap;

use muster_messages::*;

use super::{Gated, NAME, definition, release, triple};
use crate::world::World;

#[test]
fn look_alike_lease_does_not_affect_a_member() {
    let mut world = Gated::new();
    let member = world.serve("host-1", 0xabc, "1.0.0");
    let own = member.lease();
    // The same number, written differently; another member with the same text; a lease with any name.
    for name in [own.name.replacen("host-1.", "host-1.0", 1), format!("{}.x", own.name), "db.host-1".to_owned()] {
        let key = ObjectKey::lease(MEMBERS_NAMESPACE, name);
        world.acquire(&key, "host-1", 7);
        world.expires(key);
        assert_eq!(world.phase(&member), Some(ParticipantPhase::Serving));
    }
    world.expires(own);
    assert_eq!(world.phase(&member), None);
}

#[test]
fn ambiguous_member_names_and_aliases_are_refused() {
    let mut world = Gated::new();
    for (scope, member) in [("db.eu", "m"), ("", "m"), ("db", ""), ("db", "M"), ("db", "a..b"), ("candidates.a.b", "m")]
    {
        let key = ParticipantKey { scope: scope.to_owned(), member: member.to_owned(), incarnation: SessionId(5) };
        let token = Some(world.acquire(&key.lease(), "m", 5));
        let participant = Participant {
            key,
            node: None,
            release: release("1.0.0"),
            needs: BTreeMap::new(),
            phase: ParticipantPhase::Announced,
            token,
            since: WallTime(0),
            revision: Revision(0),
        };
        world.refused(ReconcilerChange::Announce(Box::new(participant)));
    }
    let member = world.serve("host.a", 9, "1.0.0");
    let alias = ParticipantKey { scope: "db.host".to_owned(), member: "a".to_owned(), incarnation: SessionId(9) };
    assert_eq!(alias.lease(), member.lease());
    world.must(ReconcilerChange::Leave(alias));
    assert!(world.0.tables.objects.contains_key(&member.lease()), "its lease is found by its record");
}

#[test]
fn member_events_evict_no_other_events() {
    let mut world = Gated(World::founded_at(IDENTITY_LEVEL));
    let before = world.0.tables.events.clone();
    for start in 1..=100 {
        let member = world.serve("host-1", start, "1.0.0");
        world.must(ReconcilerChange::Leave(member));
    }
    assert_eq!(world.0.tables.events, before);
    assert!(world.0.tables.frequent_events.len() >= 200, "they have their own history");
}

#[test]
fn draining_participant_is_waited_for_on_an_open_path() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    let old = world.serve("old", 2, "1.0.0");
    world.define("2.0.0", "2.0.0");
    world.must(ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple("2.0.0") });
    assert_eq!(world.phase(&old), Some(ParticipantPhase::Draining));
    assert_eq!(world.way("2.0.0"), Ok(GatePath::Open));
    let work = world.step("2.0.0", term, GateStep::Work);
    assert!(matches!(world.refused(work.clone()), CommandRefusal::BlockedByMembers { .. }), "it still serves");
    world.must(ReconcilerChange::Leave(old));
    world.must(work);
}

#[test]
fn forced_floor_stays_without_a_new_run() {
    let mut world = Gated::new();
    world.applied("1.0.0", "1.0.0");
    world.must(ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple("1.5.0") });
    assert_eq!(world.way("1.0.0"), Ok(GatePath::Reached));
    assert_eq!(world.gate(), (GateState::Done, "1.0.0".to_owned(), "1.5.0".to_owned()));
}

#[test]
fn only_a_forced_floor_outlives_the_step() {
    let mut world = Gated::new();
    let mut term = world.applied("2.0.0", "2.0.0");
    world.define("1.0.0", "1.0.0");
    world.steps("1.0.0", term, GateStep::Restrict);
    assert_eq!(world.gate().2, "2.0.0", "it is compatible with both ends");
    world.steps("1.0.0", term, GateStep::Complete);
    assert_eq!(world.gate().2, "1.0.0", "that floor came from the step, not from an operator");

    world.define("3.0.0", "2.5.0");
    world.steps("3.0.0", term, GateStep::Restrict);
    world.must(ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple("2.7.0") });
    // Another runner takes over, and the gate leads on to a newer release.
    world.expires(runner_lease(NAME));
    term = world.runs("n2", 9);
    world.define("3.1.0", "2.6.0");
    world.steps("3.1.0", term, GateStep::Work);
    world.steps("3.1.0", term, GateStep::Complete);
    assert_eq!(world.gate(), (GateState::Done, "3.1.0".to_owned(), "2.7.0".to_owned()));
}

/// Step by step, also with the gate deleted first: [`check_step`](super::check_step) checks the epochs each time.
#[test]
fn epochs_continue_when_a_name_is_reused() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.must(ReconcilerChange::ForceFloor { reconciler: NAME.to_owned(), floor: triple("1.5.0") });
    world.must(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    world.must(ReconcilerChange::Forget { reconciler: NAME.to_owned() });
    assert_eq!(world.all().epoch_of(NAME), 2);
    world.define("1.0.0", "1.0.0");
    world.steps("1.0.0", term, GateStep::Complete);
    assert_eq!(world.all().gates[NAME].now.epoch, 3);
}

#[test]
fn newest_and_gate_releases_are_kept() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    world.define("1.1.0", "1.0.0");
    world.steps("1.1.0", term, GateStep::Work);
    for n in 0..80 {
        world.define(&format!("2.{n}.0"), "1.0.0");
    }
    world.define("0.1.0", "0.1.0");
    let kept: Vec<_> = world.all().definitions_of(NAME).map(|d| d.release.to_string()).collect();
    assert_eq!(kept.len(), 64);
    for of in ["0.1.0", "1.0.0", "1.1.0", "2.79.0"] {
        assert!(kept.iter().any(|kept| kept == of), "{of} of {kept:?}");
    }
}

#[test]
fn without_its_gate_no_participant_is_admitted() {
    let mut world = Gated::new();
    let term = world.applied("2.0.0", "2.0.0");
    world.must(ReconcilerChange::DeleteGate { reconciler: NAME.to_owned() });
    let old = world.announce("old", 2, "1.0.0", &[]);
    let CommandRefusal::NotAdmitted(why) = world.refused(ReconcilerChange::Admit(old)) else { panic!("not admitted") };
    assert_eq!(why.reason(), AdmissionReason::NoGate);
    // A step sent before the gate was deleted does not restore it.
    let late = ReconcilerChange::Step {
        reconciler: NAME.to_owned(),
        release: triple("2.0.0"),
        digest: world.digest("2.0.0"),
        term,
        epoch: 0,
        step: GateStep::Complete,
    };
    assert!(matches!(world.refused(late), CommandRefusal::Stale { .. }));
    world.steps("2.0.0", term, GateStep::Complete);
}

#[test]
fn upgrade_in_progress_does_not_allow_a_denied_downgrade() {
    let mut world = Gated::new();
    let term = world.applied("2.0.0", "2.0.0");
    world.define("3.0.0", "3.0.0");
    world.steps("3.0.0", term, GateStep::Restrict);
    let older = Definition { downgrade: false, digest: "again".to_owned(), ..definition("2.0.0", "2.0.0") };
    world.must(ReconcilerChange::Define { definition: Box::new(older), replace: true });
    assert!(matches!(world.way("2.0.0"), Err(Hold::DowngradeDenied { .. })));
}

/// The way down, begun and not completed: objects of the old release are still there.
#[test]
fn downgrade_in_progress_allows_no_denied_downgrade() {
    let mut world = Gated::new();
    let term = world.applied("3.0.0", "1.0.0");
    for (of, step) in [("1.0.0", GateStep::Restrict), ("1.1.0", GateStep::Work), ("1.2.0", GateStep::Work)] {
        world.define(of, "1.0.0");
        world.steps(of, term, step);
    }
    let between = Definition { downgrade: false, ..definition("2.0.0", "1.0.0") };
    world.must(ReconcilerChange::Define { definition: Box::new(between), replace: false });
    let Err(Hold::DowngradeDenied { reconciled, .. }) = world.way("2.0.0") else { panic!("it would downgrade") };
    assert_eq!(reconciled, release("3.0.0"));
    world.steps("1.2.0", term, GateStep::Complete);
    assert!(world.way("2.0.0").is_ok(), "it is now an upgrade");
}

#[test]
fn retargeted_gate_remembers_where_it_began() {
    let mut world = Gated::new();
    let term = world.applied("3.0.0", "1.0.0");
    for n in 0..40 {
        let of = format!("1.{n}.0");
        world.define(&of, "1.0.0");
        world.steps(&of, term, if n == 0 { GateStep::Restrict } else { GateStep::Work });
    }
    let gate = &world.all().gates[NAME];
    assert_eq!((gate.history.len(), gate.highest().triple), (GATE_HISTORY, triple("3.0.0")));
}

#[test]
fn runner_of_replaced_definition_writes_nothing() {
    let mut world = Gated::new();
    world.define("1.0.0", "1.0.0");
    let term = world.runs("n1", 1);
    let (complete, write) = (world.step("1.0.0", term, GateStep::Complete), world.apply("1.0.0", term, "t", true));
    let other = Definition { digest: "other".to_owned(), ..definition("1.0.0", "1.0.0") };
    world.must(ReconcilerChange::Define { definition: Box::new(other), replace: true });
    for late in [complete, write] {
        assert!(matches!(world.refused(late), CommandRefusal::Stale { .. }), "the new one is not applied yet");
    }
}

#[test]
fn needs_of_members_in_other_scopes_are_respected() {
    let mut world = Gated::new();
    let term = world.applied("2.0.0", "1.0.0");
    let other = ParticipantKey { scope: "web".to_owned(), member: "w".to_owned(), incarnation: SessionId(4) };
    let token = Some(world.acquire(&other.lease(), "w", 4));
    world.must(ReconcilerChange::Announce(Box::new(Participant {
        key: other.clone(),
        node: None,
        release: release("1.0.0"),
        needs: [(NAME.to_owned(), triple("2.0.0"))].into(),
        phase: ParticipantPhase::Announced,
        token,
        since: WallTime(0),
        revision: Revision(0),
    })));
    world.must(ReconcilerChange::Admit(other.clone()));
    world.define("1.0.0", "1.0.0");
    let down = world.step("1.0.0", term, GateStep::Restrict);
    assert!(matches!(world.refused(down.clone()), CommandRefusal::BlockedByMembers { .. }));
    world.must(ReconcilerChange::Leave(other));
    world.must(down);
}

#[test]
fn finalization_is_valid_once() {
    let mut world = Gated::new();
    let term = world.applied("1.0.0", "1.0.0");
    let manual = |of: &str| Definition { finalize: Finalize::Manual, ..definition(of, of) };
    for of in ["1.0.0", "2.0.0"] {
        world.must(ReconcilerChange::Define { definition: Box::new(manual(of)), replace: true });
    }
    assert!(matches!(world.way("2.0.0"), Err(Hold::ReadyToFinalize { .. })));
    let digest = world.digest("2.0.0");
    world.must(ReconcilerChange::Finalize { reconciler: NAME.to_owned(), digest });
    world.steps("2.0.0", term, GateStep::Restrict);
    world.steps("2.0.0", term, GateStep::Complete);
    world.steps("1.0.0", term, GateStep::Restrict);
}

#[test]
fn successive_runners_keep_completed_steps_in_history() {
    let mut world = Gated::new();
    let mut term = world.applied("1.0.0", "1.0.0");
    world.define("1.1.0", "1.0.0");
    for session in 2..40 {
        world.steps("1.1.0", term, GateStep::Work);
        world.expires(runner_lease(NAME));
        term = world.runs("n1", session);
    }
    let gate = &world.all().gates[NAME];
    assert!(gate.history.iter().any(|entry| entry.state == GateState::Done), "{:?}", gate.history);
}
