//! Guards, outcomes, atomicity.

use muster_messages::*;
use muster_store::{MAX_OUTCOMES, apply, apply_empty};

use crate::world::*;

fn worker_wants_manager() -> Command {
    command([Change::SetDesiredRole { node: id(2), role: Role::Manager }])
}

#[test]
fn a_retry_gets_the_first_outcome_and_changes_nothing() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let request = worker_wants_manager().with_request(RequestId(9));
    world.must(request.clone());
    let back = command([Change::SetDesiredRole { node: id(2), role: Role::Worker }]);
    world.must(back);
    let before = world.tables.clone();
    assert_eq!(world.apply(request), Ok(()));
    let revision = before.revision.next();
    assert_eq!(world.tables, Tables { revision, ..before });
    assert_eq!(world.record(2).desired_role, Role::Worker);
}

#[test]
fn refusal_is_repeated_even_if_the_guard_holds_now() {
    let mut world = World::founded();
    let request = (worker_wants_manager().with_request(RequestId(9))).guard(Guard::NodeExists(id(2)));
    let first = world.refused(request.clone());
    let mut world = world.with([(2, Role::Worker)]);
    assert_eq!(world.apply(request), Err(first));
    assert_eq!(world.record(2).desired_role, Role::Worker);
}

#[test]
fn request_zero_is_never_remembered() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    world.must(worker_wants_manager());
    assert!(world.tables.outcomes.is_empty());
}

#[test]
fn only_the_recent_requests_are_remembered() {
    let mut tables = Tables::default();
    let count = MAX_OUTCOMES as u64 + 10;
    for n in 1..=count {
        let nothing = command([]).with_request(RequestId(n.into()));
        apply(&mut tables, Revision(n), &nothing).unwrap();
    }
    assert_eq!(tables.outcomes.len(), MAX_OUTCOMES);
    assert_eq!(tables.outcome_order.len(), MAX_OUTCOMES);
    assert!(!tables.outcomes.contains_key(&RequestId(10)));
    assert!(tables.outcomes.contains_key(&RequestId(11)));
    apply_empty(&mut tables, Revision(count + 1));
    assert_eq!(tables.revision, Revision(count + 1));
}

#[test]
fn command_is_applied_completely_or_not_at_all() {
    let mut world = World::founded();
    let refusal = world.refused(command([
        Change::CreateNode(Box::new(node(2, Role::Worker))),
        Change::PutToken(token("t", Role::Worker)),
        Change::AskRotate(id(9)),
    ]));
    let what = "node".to_owned();
    let id = id(9).to_string();
    assert_eq!(refusal, CommandRefusal::NotFound { what, id });
}

#[test]
fn a_command_founds_a_cluster_only_once() {
    let world = World::founded();
    assert_eq!(world.tables.next_raft_id, RaftId(2));
    assert_eq!(world.tables.membership_of(id(1)), Membership::Voter);
    assert_eq!(world.record(1).granted, Revision(1));
    let again = command([Change::Found {
        cluster: Box::new(cluster()),
        founder: Box::new(node(2, Role::Manager)),
        tokens: vec![],
    }]);
    assert_eq!(world.clone().refused(again), CommandRefusal::AlreadyFounded);
    let guarded = command([]).guard(Guard::NotFounded);
    assert_eq!(world.clone().refused(guarded), CommandRefusal::AlreadyFounded);
}

/// Each guard with a command that it lets through and one that it refuses.
#[test]
fn guards_hold_or_give_a_reason() {
    let mut world = World::founded().with([(2, Role::Worker), (3, Role::Manager)]);
    let mut spent = token("spent", Role::Worker);
    spent.uses_left = Some(0);
    let mut old = token("old", Role::Worker);
    old.expires_at = Some(T0);
    world.must(command([
        Change::PutToken(token("good", Role::Worker)),
        Change::PutToken(spent),
        Change::PutToken(old),
        Change::PutUser(user("ann", "a1")),
        block(9, WallTime(T0.0 + HOUR)),
        Change::SetRemoving { node: id(3), removal: Removal { by: Principal::Operator, forced: false, at: T0 } },
    ]));
    let (n2, gone, good) = (id(2), id(8), "good".to_owned());
    let created = world.record(2).revision;
    let (manager, worker) = (Role::Manager, Role::Worker);
    let desired = |role| Guard::DesiredRole { node: n2, role };
    let role = |role| Guard::Role { node: n2, role };
    let granted = |granted| Guard::Granted { node: n2, granted };
    let generation = |n| Guard::Generation { node: n2, generation: Generation(n) };
    let revision = |revision| Guard::NodeRevision { node: n2, revision };
    let removing = |n, removing| Guard::Removing { node: id(n), removing };
    let free = |n: &str, except| Guard::NameFree { name: name(n), except };
    let others = |at_least| Guard::OtherManagers { besides: n2, at_least };
    let serial = |who: &str, serial: &str| Guard::UserSerial { name: name(who), serial: serial.to_owned() };
    let expired = |n, at| Guard::BlockExpired { node: id(n), at };
    let usable = |t: &str| Guard::TokenUsable(t.to_owned());
    let (early, late) = (T0, WallTime(T0.0 + HOUR));
    let pairs = [
        (Guard::NodeExists(n2), Guard::NodeExists(gone)),
        (Guard::NodeAbsent(gone), Guard::NodeAbsent(n2)),
        (free("n7", None), free("n2", None)),
        (free("n2", Some(n2)), free("n2", Some(id(1)))),
        (desired(worker), desired(manager)),
        (role(worker), role(manager)),
        (granted(created), granted(created.next())),
        (generation(1), generation(2)),
        (revision(created), revision(created.next())),
        (removing(2, false), removing(2, true)),
        (removing(3, true), removing(3, false)),
        (Guard::NotMember(n2), Guard::NotMember(id(1))),
        (Guard::NotBlocked(n2), Guard::NotBlocked(id(9))),
        (others(1), others(2)),
        (usable("good"), usable("spent")),
        (usable("good"), usable("old")),
        (usable("good"), usable("none")),
        (Guard::TokenExists(good), Guard::TokenExists("none".to_owned())),
        (Guard::UserAbsent(name("bob")), Guard::UserAbsent(name("ann"))),
        (Guard::UserExists(name("ann")), Guard::UserExists(name("bob"))),
        (serial("ann", "a1"), serial("ann", "a2")),
        (serial("ann", "a1"), serial("bob", "a1")),
        (expired(9, late), expired(9, early)),
        (expired(8, early), expired(9, early)),
    ];
    for (holding, failing) in pairs {
        assert_eq!(world.apply(command([]).guard(holding.clone())), Ok(()), "{holding:?}");
        let guarded = command([Change::DeleteNode(n2)]).guard(failing.clone());
        assert!(!world.refused(guarded).to_string().is_empty(), "{failing:?}");
    }
}

#[test]
fn guards_on_a_deleted_node_return_not_found() {
    let mut world = World::founded();
    let gone = command([]).guard(Guard::Generation { node: id(8), generation: Generation(1) });
    assert_eq!(world.refused(gone).to_string(), format!("no such node: {}", id(8)));
}
