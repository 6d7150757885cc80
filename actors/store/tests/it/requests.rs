//! Outcomes by caller: whose request an id identifies, and how a late retry ends.

use muster_messages::*;
use muster_store::{MAX_CALLERS, MAX_EVENTS, MAX_OUTCOMES, invariants, snapshot};

use crate::world::*;

fn world() -> World {
    World::founded_at(IDENTITY_LEVEL).with([(2, Role::Worker)])
}

fn who(text: &str) -> Principal {
    Principal::User(name(text))
}

/// The `n`-th id that was made at `T0`.
fn request(n: u64) -> RequestId {
    RequestId::fresh(T0, u128::from(n + 1) << 48)
}

/// A request to label node 2.
fn labelled(by: &Principal, id: RequestId, label: &str) -> Command {
    let add = [("owner".to_owned(), label.to_owned())].into();
    let change = Change::UpdateLabels { node: super::world::id(2), add, remove: vec![] };
    let digest = request_digest(&[label.as_bytes()]);
    Command { by: by.clone(), ..command([change]) }.with_request(id).guard(Guard::Request { digest })
}

fn label(world: &World) -> &str {
    &world.record(2).labels["owner"]
}

/// An unimportant command with its own id.
fn chatter(by: &Principal, id: RequestId) -> Command {
    Command { by: by.clone(), ..command([]) }.with_request(id).guard(Guard::Request { digest: 1 })
}

fn flood(world: &mut World, by: &Principal, ids: std::ops::Range<u64>) {
    ids.for_each(|n| world.apply(chatter(by, request(n))).unwrap());
    invariants::check(&world.tables).unwrap();
}

#[test]
fn one_id_of_two_callers_is_two_requests() {
    let mut world = world();
    world.must(labelled(&who("ann"), request(1), "ann"));
    world.must(labelled(&who("bob"), request(1), "bob"));
    assert_eq!(label(&world), "bob", "it was applied, not answered with another caller's outcome");
    world.must(labelled(&who("ann"), request(1), "ann"));
    assert_eq!(label(&world), "bob", "a retry is answered, not applied");
}

#[test]
fn one_id_for_two_requests_is_refused() {
    let mut world = world();
    world.must(labelled(&who("ann"), request(1), "one"));
    let refused = world.refused(labelled(&who("ann"), request(1), "two"));
    assert_eq!(refused, CommandRefusal::RequestReused(Box::new(request(1))));
    assert_eq!(ErrorBody::from(refused).code, ErrorCode::Conflict);
    world.must(labelled(&who("ann"), request(1), "one"));
}

#[test]
fn ids_of_musters_actors_cannot_be_taken() {
    let mut world = world();
    flood(&mut world, &who("ann"), 0..100);
    let own = |n| command([Change::AskRotate(id(2))]).with_request(request(n));
    let before = world.record(2).revision;
    // The founder has no certificate record to rotate; a refusal also proves that the command was evaluated.
    let first = world.apply(own(5));
    assert_eq!(world.apply(own(5)), first, "its retry gets its own outcome");
    assert!(world.tables.requests.get(&Principal::Cluster, request(5)).is_some(), "{before}");
}

#[test]
fn late_retry_is_refused_not_applied_again() {
    let mut world = world();
    let ann = who("ann");
    world.must(labelled(&ann, request(0), "one"));
    world.must(labelled(&ann, request(1), "two"));
    flood(&mut world, &ann, 2..MAX_OUTCOMES as u64 + 10);
    let refused = world.refused(labelled(&ann, request(0), "one"));
    assert_eq!(refused, CommandRefusal::OutcomeForgotten(Box::new(request(0))));
    let error = ErrorBody::from(refused);
    assert!(error.code == ErrorCode::UnknownOutcome && error.is_final(), "{error:?}");
    assert_eq!(label(&world), "two");
}

#[test]
fn flood_evicts_only_outcomes_of_its_caller() {
    let mut world = world();
    let (ann, eve) = (who("ann"), who("eve"));
    world.must(labelled(&ann, request(0), "ann"));
    world.must(command([]).with_request(RequestId(7)));
    flood(&mut world, &eve, 0..MAX_OUTCOMES as u64 + 2_000);
    world.must(labelled(&eve, request(3 * MAX_OUTCOMES as u64), "eve"));
    world.must(labelled(&ann, request(0), "ann"));
    assert_eq!(label(&world), "eve", "a retry after a flood by another is answered with its first outcome");
    let old = world.apply(labelled(&ann, request(1), "older than the flood"));
    assert_eq!(old, Ok(()), "an id that a caller has never used is new, whatever was forgotten of others");
    assert!(world.tables.requests.get(&Principal::Cluster, RequestId(7)).is_some());
}

#[test]
fn long_refusals_count_for_several_outcomes() {
    let mut world = world();
    let ann = who("ann");
    let guard = |n: u64| Guard::TokenExists(format!("{n}{}", "ü".repeat(400)));
    for n in 0..MAX_OUTCOMES as u64 * 3 / 4 {
        world.apply(chatter(&ann, request(n)).guard(guard(n))).unwrap_err();
    }
    invariants::check(&world.tables).unwrap();
    let kept = world.tables.requests.callers[&ann].outcomes.len();
    assert!(kept <= MAX_OUTCOMES / 2, "{kept} of them are kept");
}

#[test]
fn ids_of_the_future_are_refused() {
    let mut world = world();
    let at = |days: i64| RequestId::fresh(WallTime(T0.0 + days * 24 * HOUR), 1 << 48);
    world.must(chatter(&who("ann"), at(1)));
    let refused = world.refused(chatter(&who("ann"), at(2)));
    assert_eq!(refused, CommandRefusal::RequestAhead { id: Box::new(at(2)), now: T0 });
    assert!(refused.to_string().contains("a UUID of version 7"), "{refused}");
}

#[test]
fn excess_callers_are_forgotten_oldest_first() {
    let mut world = world();
    let caller = |n: u64| Principal::Node(NodeId::from_entropy(u128::from(n)));
    let all = MAX_CALLERS as u64 + 10;
    (0..all).for_each(|n| world.apply(chatter(&caller(n), request(n))).unwrap());
    invariants::check(&world.tables).unwrap();
    let late = world.refused(chatter(&caller(0), request(0)));
    assert_eq!(late, CommandRefusal::OutcomeForgotten(Box::new(request(0))));
    world.must(chatter(&caller(0), request(all)));
    world.must(chatter(&caller(all - 1), request(all - 1)));
}

#[test]
fn outcomes_of_level_2_stay_until_evicted() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let old = |n| labelled(&Principal::Operator, request(n), "old").with_request(request(n));
    for n in 0..3 {
        world.must(Command { guards: vec![], ..old(n) });
    }
    world.must(command([Change::SetFeatureLevel(IDENTITY_LEVEL)]));
    world.must(labelled(&Principal::Operator, request(10), "new"));
    world.must(old(2));
    assert_eq!(label(&world), "new", "a retry over the rise of the level is answered");
    assert_eq!(snapshot::decode(&snapshot::encode(&world.tables)), Ok(world.tables.clone()));
    flood(&mut world, &Principal::Operator, 11..20);
    assert!(world.tables.outcomes.is_empty() && world.tables.outcome_order.is_empty());
    assert_eq!(world.refused(old(2)), CommandRefusal::OutcomeForgotten(Box::new(request(2))));
}

#[test]
fn a_retry_by_a_leader_that_knows_the_new_level_is_not_applied() {
    let mut world = world();
    let asked = labelled(&who("ann"), request(1), "old leader");
    world.must(Command { guards: vec![], ..asked.clone() });
    world.must(labelled(&who("ann"), request(2), "newer"));
    assert_eq!(world.refused(asked), CommandRefusal::OutcomeForgotten(Box::new(request(1))));
    assert_eq!(label(&world), "newer");
}

#[test]
fn lease_events_evict_no_others() {
    let mut world = world();
    world.must(command([Change::SetDesiredRole { node: id(2), role: Role::Manager }]));
    let roles = |world: &World| world.tables.events.iter().filter(|e| e.kind == EventKind::Role).count();
    let before = roles(&world);
    assert!(before > 0);
    for n in 0..MAX_EVENTS as u128 {
        world.apply(acquire("l", "h", n)).unwrap();
        let report = Change::Report {
            node: id(2),
            name: name("n2"),
            addr: "a:1".to_owned(),
            release: format!("1.0.{n}"),
            labels: [].into(),
        };
        world.apply(command([report])).unwrap();
    }
    invariants::check(&world.tables).unwrap();
    assert_eq!(roles(&world), before);
    assert_eq!(world.tables.frequent_events.len(), MAX_EVENTS);
    let all: Vec<Revision> = world.tables.events_after(Revision(0)).map(|event| event.revision).collect();
    assert!(all.is_sorted_by(|a, b| a >= b) && all.len() == MAX_EVENTS + world.tables.events.len());
}

/// Events caused by a node's repeated certificate requests, by an operator's tokens, by a runner's steps.
#[test]
fn certificate_events_evict_no_others() {
    let mut world = world();
    world.must(command([Change::SetDesiredRole { node: id(2), role: Role::Manager }]));
    world.must(command([Change::GrantRole { node: id(2), role: Role::Manager }]));
    world.learner(2, 2).unwrap();
    world.must(acquire("l", "h", 1));
    let kept = |world: &World| (world.tables.events.clone(), world.tables.frequent_events.clone());
    let before = kept(&world);
    let of = |kind| before.0.iter().filter(|event| event.kind == kind).count();
    assert!(of(EventKind::Role) > 0 && of(EventKind::Membership) > 0 && !before.1.is_empty());
    let granted = Some(world.record(2).granted);
    for n in 0..2 * MAX_EVENTS as u64 {
        let record = CertificateRecord { serial: format!("c{n}"), ..certificate(world.record(2).role, granted, 7) };
        world.must(command([Change::RecordCertificate { node: id(2), certificate: record }]));
    }
    for n in 0..10 {
        let token = token(&format!("t{n}"), Role::Worker);
        world.must(command([Change::PutToken(token), Change::PutUser(user(&format!("u{n}"), "a1"))]));
    }
    invariants::check(&world.tables).unwrap();
    assert_eq!(kept(&world), before);
    let routine = &world.tables.routine_events;
    assert_eq!(routine.len(), MAX_EVENTS);
    let kinds: Vec<EventKind> = routine.iter().rev().take(3).map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::User, EventKind::Token, EventKind::User]);
    let all: Vec<Revision> = world.tables.events_after(Revision(0)).map(|event| event.revision).collect();
    assert!(all.is_sorted_by(|a, b| a >= b) && all.len() == MAX_EVENTS + before.0.len() + before.1.len());
    assert_eq!(world.tables.last_event().map(|event| event.revision), Some(world.tables.revision));
}

#[test]
fn events_of_level_2_are_classified_when_the_level_rises() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    world.must(command([Change::PutUser(user("ann", "a1"))]));
    world.must(acquire("l", "h", 1));
    let all = |world: &World| world.tables.events_after(Revision(0)).map(|event| event.kind).collect::<Vec<_>>();
    let before = all(&world);
    world.must(command([Change::SetFeatureLevel(IDENTITY_LEVEL)]));
    assert_eq!(all(&world)[1..], before, "in one order, as before");
    let Tables { events, routine_events, frequent_events, .. } = &world.tables;
    let kinds = |of: &imbl::Vector<std::sync::Arc<Event>>| of.iter().map(|event| event.kind).collect::<Vec<_>>();
    assert_eq!((kinds(routine_events), kinds(frequent_events)), (vec![EventKind::User], vec![EventKind::Lease]));
    assert!(!kinds(events).contains(&EventKind::User) && kinds(events).contains(&EventKind::Node));
}

#[test]
fn texts_of_events_are_bounded() {
    let mut world = world();
    let change = Change::SetDesiredRole { node: id(2), role: Role::Manager };
    world.must(Command { reason: "r".repeat(100_000), ..command([change]) });
    assert!(world.tables.last_event().unwrap().reason.len() < 1_000);
}

/// S8. The rights of a token made before its user are unknown.
#[test]
fn tokens_of_an_earlier_user_lose_rights_at_level_raise() {
    let mut world = World::founded();
    let token = |id: &str, created_at| AccessToken {
        id: id.to_owned(),
        user: name("ann"),
        digest: [7; 32],
        created_at,
        expires_at: None,
    };
    // Only a token had the name; then an operator was created with it.
    world.must(command([Change::PutUser(User { serial: String::new(), ..user("ann", "") })]));
    world.must(command([Change::PutAccessToken(token("old", T0))]));
    let later = WallTime(T0.0 + HOUR);
    world.must(command([Change::PutUser(User { kind: UserKind::Operator, created_at: later, ..user("ann", "a2") })]));
    world.must(command([Change::PutAccessToken(token("new", later))]));
    world.must(command([Change::SetFeatureLevel(IDENTITY_LEVEL)]));
    let rights = |kind, namespaces: &[&str]| TokenRights {
        kind,
        namespaces: namespaces.iter().map(|&n| n.to_owned()).collect(),
    };
    assert_eq!(world.tables.token_rights["old"], rights(UserKind::User, &[]));
    assert_eq!(world.tables.token_rights["new"], rights(UserKind::Operator, &["default"]));
}

#[test]
fn access_tokens_keep_the_rights_of_their_making() {
    let mut world = world();
    let token =
        AccessToken { id: "t".to_owned(), user: name("ann"), digest: [7; 32], created_at: T0, expires_at: None };
    world.must(command([Change::PutUser(user("ann", "a1")), Change::PutAccessToken(token)]));
    world.must(command([Change::PutUser(User {
        kind: UserKind::Operator,
        namespaces: vec!["*".to_owned()],
        ..user("ann", "a2")
    })]));
    let rights = TokenRights { kind: UserKind::User, namespaces: vec!["default".to_owned()] };
    assert_eq!(world.tables.token_rights.get("t"), Some(&rights));
    world.must(command([Change::DeleteUser(name("ann"))]));
    assert!(world.tables.token_rights.is_empty());
}
