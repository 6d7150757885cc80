//! Whose a term is.

use super::*;

fn acquires(holder: &str, session: u128) -> Command {
    let (key, holder, session) = (runner_lease(NAME), holder.to_owned(), SessionId(session));
    command([Change::AcquireLease { key, holder, session, duration_ms: 15_000, uid: Uid(1) }])
}

fn said_by(n: u8, command: Command) -> Command {
    Command { by: Principal::Node(crate::world::id(n)), ..command }
}

/// `member` stands as a candidate, on a node or on none.
fn stands(world: &mut Gated, member: &str, node: Option<u8>, session: u128) -> Command {
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

/// What a runner began may be at work until its lease ends, though whoever comes next has its name: a node that was started
/// again, for one.
#[test]
fn a_runner_that_was_started_again_waits_for_the_end_of_its_own_term() {
    let mut world = Gated::new();
    let first = world.runs("r", 1);
    let CommandRefusal::LeaseHeld { .. } = world.0.refused(acquires("r", 2)) else { panic!("its term goes on") };
    assert_eq!(world.runs("r", 1), first, "the one that has it may say so again");
    world.expires(runner_lease(NAME));
    assert!(world.runs("r", 2) > first);
}

#[test]
fn a_candidates_name_means_one_node() {
    let mut world = Gated::new();
    let (first, second, again) =
        (stands(&mut world, "r", Some(1), 5), stands(&mut world, "r", Some(2), 6), stands(&mut world, "r", Some(1), 7));
    world.0.must(first);
    assert!(matches!(world.0.refused(second), CommandRefusal::Stale { .. }), "its runner's term would be anybody's");
    world.0.must(again);
}

#[test]
fn of_programs_that_name_no_node_a_candidates_name_means_one_start() {
    let mut world = Gated::new();
    let (first, second) = (stands(&mut world, "r", None, 5), stands(&mut world, "r", None, 6));
    world.0.must(first);
    assert!(matches!(world.0.refused(second), CommandRefusal::Stale { .. }), "it may be anywhere");
}

/// Judged by the log and not by anybody's copy: a term is known to all as soon as it begins.
#[test]
fn a_node_acts_by_the_terms_of_those_who_stand_on_it_and_takes_no_other_lease() {
    let mut world = Gated::new();
    world.define("1.0.0", "1.0.0");
    for (member, node, session) in [("one", 1, 5), ("two", 2, 6)] {
        let announced = stands(&mut world, member, Some(node), session);
        world.0.must(announced);
    }
    assert!(matches!(world.0.refused(said_by(2, acquires("one", 5))), CommandRefusal::Stale { .. }));
    world.0.must(said_by(1, acquires("one", 5)));
    let term = world.0.tables.objects[&runner_lease(NAME)].lease().unwrap().holding.token;
    let (step, write) = (world.step("1.0.0", term, GateStep::Complete), world.apply("1.0.0", term, "t", true));
    for what in [step, write] {
        assert!(matches!(world.0.refused(said_by(2, change(what.clone()))), CommandRefusal::Stale { .. }), "{what:?}");
        world.0.must(said_by(1, change(what)));
    }
}
