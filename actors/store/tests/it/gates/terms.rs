//! Who owns a term.

use super::*;

fn acquires(holder: &str, session: u128) -> Command {
    let (key, holder, session) = (runner_lease(NAME), holder.to_owned(), SessionId(session));
    command([Change::AcquireLease { key, holder, session, duration_ms: 15_000, uid: Uid(1) }])
}

fn proposed_by(n: u8, command: Command) -> Command {
    Command { by: Principal::Node(crate::world::id(n)), ..command }
}

/// `member` becomes a candidate, on a node or on none.
fn announce_candidate(world: &mut Gated, member: &str, node: Option<u8>, session: u128) -> Command {
    let scope = candidates_scope(NAME);
    let key = ParticipantKey { scope, member: member.to_owned(), incarnation: SessionId(session) };
    let token = Some(world.acquire(&key.lease(), member, session));
    let participant = Participant {
        key,
        node: node.map(crate::world::id),
        release: release("1.0.0"),
        needs: BTreeMap::new(),
        phase: ParticipantPhase::Announced,
        token,
        since: WallTime(0),
        revision: Revision(0),
    };
    change(ReconcilerChange::Announce(Box::new(participant)))
}

/// A runner's work may continue until its lease ends, even if the next candidate has its name: a restarted node, for
/// example.
#[test]
fn restarted_runner_waits_for_the_end_of_its_term() {
    let mut world = Gated::new();
    let first = world.runs("r", 1);
    let CommandRefusal::LeaseHeld { .. } = world.0.refused(acquires("r", 2)) else { panic!("its term continues") };
    assert_eq!(world.runs("r", 1), first, "its holder may acquire it again");
    world.expires(runner_lease(NAME));
    assert!(world.runs("r", 2) > first);
}

#[test]
fn candidate_name_identifies_one_node() {
    let mut world = Gated::new();
    let (first, second, again) = (
        announce_candidate(&mut world, "r", Some(1), 5),
        announce_candidate(&mut world, "r", Some(2), 6),
        announce_candidate(&mut world, "r", Some(1), 7),
    );
    world.0.must(first);
    assert!(
        matches!(world.0.refused(second), CommandRefusal::Stale { .. }),
        "its runner's term could not be attributed"
    );
    world.0.must(again);
}

#[test]
fn candidate_name_without_node_identifies_one_start() {
    let mut world = Gated::new();
    let (first, second) = (announce_candidate(&mut world, "r", None, 5), announce_candidate(&mut world, "r", None, 6));
    world.0.must(first);
    assert!(matches!(world.0.refused(second), CommandRefusal::Stale { .. }), "it may run anywhere");
}

/// Decided by the log, not by a replica: a term is known to all as soon as it begins.
#[test]
fn node_acts_only_by_terms_of_its_own_candidates() {
    let mut world = Gated::new();
    world.define("1.0.0", "1.0.0");
    for (member, node, session) in [("one", 1, 5), ("two", 2, 6)] {
        let announced = announce_candidate(&mut world, member, Some(node), session);
        world.0.must(announced);
    }
    assert!(matches!(world.0.refused(proposed_by(2, acquires("one", 5))), CommandRefusal::Stale { .. }));
    world.0.must(proposed_by(1, acquires("one", 5)));
    let term = world.0.tables.objects[&runner_lease(NAME)].lease().unwrap().holding.token;
    let (step, write) = (world.step("1.0.0", term, GateStep::Complete), world.apply("1.0.0", term, "t", true));
    for what in [step, write] {
        assert!(
            matches!(world.0.refused(proposed_by(2, change(what.clone()))), CommandRefusal::Stale { .. }),
            "{what:?}"
        );
        world.0.must(proposed_by(1, change(what)));
    }
}
