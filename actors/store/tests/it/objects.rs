//! Leases: their holders, their tokens, and who may acquire them.

use muster_messages::*;
use muster_store::{LogPosition, apply};

use crate::world::*;

fn key() -> ObjectKey {
    ObjectKey::lease("default", "l")
}

fn lease(world: &World) -> Lease {
    world.tables.objects.get(&key()).and_then(|object| object.lease()).expect("there is a lease").clone()
}

fn object(world: &World) -> Object {
    Object::clone(&world.tables.objects[&key()])
}

fn token(world: &World) -> u64 {
    lease(world).holding.token.0
}

/// A lease as a Kubernetes client creates it.
fn created(holder: Option<&str>) -> World {
    let spec = LeaseSpec { holder: holder.map(str::to_owned), duration_ms: Some(15_000), ..LeaseSpec::default() };
    let object = Object {
        namespace: "default".to_owned(),
        name: "l".to_owned(),
        meta: ObjectMeta::fresh(Uid(9)),
        body: ObjectBody::Lease(Lease { spec, ..Lease::default() }),
    };
    let mut world = World::founded();
    world.must(command([Change::CreateObject(Box::new(object))]));
    world
}

fn edited(world: &World, edit: impl FnOnce(&mut LeaseSpec)) -> Object {
    let mut object = object(world);
    let ObjectBody::Lease(lease) = &mut object.body else { panic!("a lease") };
    edit(&mut lease.spec);
    object
}

fn write(world: &World, write: ClientWrite, edit: impl FnOnce(&mut LeaseSpec)) -> Command {
    command([Change::UpdateObject { object: Box::new(edited(world, edit)), write }])
}

fn cas(world: &World, edit: impl FnOnce(&mut LeaseSpec)) -> Command {
    let revision = object(world).meta.revision;
    write(world, ClientWrite::default(), edit).guard(Guard::ObjectRevision { key: key(), revision })
}

fn blind(world: &World, manager: &str, edit: impl FnOnce(&mut LeaseSpec)) -> Command {
    write(world, ClientWrite { blind: true, manager: Some(manager.to_owned()) }, edit)
}

fn holds(name: &str) -> impl FnOnce(&mut LeaseSpec) {
    let name = name.to_owned();
    move |spec| spec.holder = Some(name)
}

fn is_held(refusal: &CommandRefusal) -> bool {
    matches!(refusal, CommandRefusal::LeaseHeld { .. })
}

#[test]
fn token_changes_exactly_with_the_holder() {
    let mut world = created(Some("a"));
    let first = token(&world);
    assert_eq!(first, world.tables.revision.0);
    world.must(cas(&world, |spec| spec.renewed = Some(MicroTime(5))));
    assert_eq!(token(&world), first, "a renewal");
    world.must(cas(&world, holds("")));
    assert_eq!(token(&world), first, "a release");
    world.must(cas(&world, holds("a")));
    let second = token(&world);
    assert!(second > first, "the same name after a release");
    world.must(cas(&world, |spec| spec.holder = None));
    world.must(cas(&world, holds("b")));
    assert!(token(&world) > second, "an absent holder equals an empty one");
    let third = token(&world);
    world.must(cas(&world, holds("c")));
    assert!(token(&world) > third, "taken over");
}

#[test]
fn tokens_grow_across_deletion_of_the_lease() {
    let mut world = World::founded();
    world.must(acquire("l", "a", 1));
    let first = token(&world);
    world.must(command([Change::DeleteObject { key: key(), force: true }]));
    world.must(acquire("l", "a", 1));
    assert!(token(&world) > first);
}

#[test]
fn a_client_cannot_write_a_token() {
    let mut world = created(Some("a"));
    let mut forged = edited(&world, |spec| spec.renewed = Some(MicroTime(1)));
    let ObjectBody::Lease(lease) = &mut forged.body else { panic!("a lease") };
    lease.holding = Holding { token: FencingToken(1_000_000), session: Some(SessionId(1)), expired: true };
    let before = token(&world);
    world.must(command([Change::UpdateObject { object: Box::new(forged), write: ClientWrite::default() }]));
    let holding = self::lease(&world).holding;
    assert_eq!(holding, Holding { token: FencingToken(before), session: None, expired: false });
}

#[test]
fn two_processes_with_one_name_do_not_share_a_token() {
    let mut world = World::founded();
    world.must(acquire("l", "a", 1));
    let first = token(&world);
    world.must(acquire("l", "a", 1));
    assert_eq!(token(&world), first, "the same process acquires again");
    world.must(acquire("l", "a", 2));
    assert!(token(&world) > first);
    assert_eq!(lease(&world).spec.transitions, Some(0), "the holder's name is the same");
    let late = Change::ReleaseLease { key: key(), session: SessionId(1), token: FencingToken(first) };
    world.refused(command([late]));
    assert_eq!(lease(&world).spec.held_by(), Some("a"));
}

#[test]
fn live_session_lease_cannot_be_taken() {
    let mut world = World::founded();
    world.must(acquire("l", "a", 1));
    assert!(is_held(&world.refused(acquire("l", "b", 2))));
    for word in ["b", ""] {
        assert!(is_held(&world.refused(cas(&world, holds(word)))), "{word:?}");
    }
    let deletion = |force| command([Change::DeleteObject { key: key(), force }]);
    assert!(is_held(&world.refused(deletion(false))));

    let held = token(&world);
    let expiry = command([Change::ExpireLease(key())]);
    world.must(expiry.guard(Guard::LeaseToken { key: key(), token: FencingToken(held) }));
    assert!(lease(&world).holding.expired);
    assert_eq!(lease(&world).spec.held_by(), Some("a"), "an expired lease shows its last holder");
    world.must(acquire("l", "b", 2));
    assert!(token(&world) > held);
    assert_eq!(lease(&world).spec.transitions, Some(1));
    world.must(deletion(true));
}

#[test]
fn an_expiry_that_was_decided_before_a_renewal_changes_nothing() {
    let mut world = created(Some("a"));
    let (seen, held) = (object(&world).meta.revision, FencingToken(token(&world)));
    world.must(cas(&world, |spec| spec.renewed = Some(MicroTime(5))));
    let expiry = command([Change::ExpireLease(key())])
        .guard(Guard::LeaseToken { key: key(), token: held })
        .guard(Guard::ObjectRevision { key: key(), revision: seen });
    world.refused(expiry);
    assert!(lease(&world).is_live());
}

#[test]
fn decisions_of_a_deposed_leader_are_refused() {
    let mut world = created(Some("a"));
    let expiry = command([Change::ExpireLease(key())]).guard(Guard::InTerm(Term(3)));
    let position = |world: &World, term| LogPosition { revision: world.next(), term: Term(term) };
    let at = position(&world, 4);
    assert!(apply(&mut world.tables, at, &expiry).is_err());
    let at = position(&world, 3);
    assert!(apply(&mut world.tables, at, &expiry).is_ok());
    assert!(lease(&world).holding.expired);
}

#[test]
fn expiry_is_invisible_to_clients_and_ends_with_renewal() {
    let mut world = created(Some("a"));
    let revision = object(&world).meta.revision;
    world.must(command([Change::ExpireLease(key())]));
    assert_eq!(object(&world).meta.revision, revision);
    let held = token(&world);
    world.must(cas(&world, |spec| spec.preferred_holder = Some("b".to_owned())));
    assert!(lease(&world).holding.expired, "another client's annotation is not a renewal");
    world.must(cas(&world, |spec| spec.renewed = Some(MicroTime(5))));
    assert!(lease(&world).is_live());
    assert_eq!(token(&world), held, "there was no other holder in between");
}

/// A holder relies on the duration with which it acquired the lease.
#[test]
fn duration_of_live_session_lease_cannot_change() {
    let mut world = World::founded();
    world.must(acquire("l", "a", 1));
    for duration in [Some(1_000), None] {
        world.must(cas(&world, |spec| (spec.duration_ms, spec.transitions) = (duration, Some(7))));
        assert_eq!((lease(&world).spec.duration_ms, lease(&world).spec.transitions), (Some(15_000), Some(7)));
    }
    world.must(command([Change::ExpireLease(key())]));
    world.must(cas(&world, |spec| spec.duration_ms = Some(1_000)));
    assert_eq!(lease(&world).spec.duration_ms, Some(1_000));
}

/// 65,536 refusals and 10,000 events are kept, each with a name in it.
#[test]
fn long_holder_names_are_truncated_in_texts() {
    let mut world = created(Some(&"x".repeat(60_000)));
    let refusal = world.refused(blind(&world, "b", holds("b")));
    assert!(refusal.to_string().len() < 600, "{}", refusal.to_string().len());
    let event = world.tables.events.back().and_then(|event| event.after.clone()).unwrap();
    assert!(event.len() < 600, "{}", event.len());
}

#[test]
fn client_renewal_of_expired_session_lease_takes_it_over() {
    let mut world = World::founded();
    world.must(acquire("l", "a", 1));
    let old = token(&world);
    world.must(command([Change::ExpireLease(key())]));
    world.must(cas(&world, |spec| spec.renewed = Some(MicroTime(5))));
    assert_eq!(lease(&world).holding.session, None);
    assert!(token(&world) > old, "two processes hold it under one name, but not under one token");
    world.must(cas(&world, holds("")));
}

#[test]
fn a_write_that_changes_nothing_leaves_the_revision() {
    let mut world = created(Some("a"));
    let revision = object(&world).meta.revision;
    world.must(cas(&world, |_| {}));
    assert_eq!(object(&world).meta.revision, revision);
}

#[test]
fn without_a_guard_a_blind_write_takes_a_live_lease() {
    let mut world = created(Some("a"));
    let scope = GuardScope { namespace: "default".to_owned(), lease: None };
    world.must(command([Change::SetGuard { scope, mode: Some(GuardMode::Off) }]));
    world.must(blind(&world, "b", holds("b")));
    assert_eq!(lease(&world).spec.held_by(), Some("b"));
}

#[test]
fn default_guard_refuses_only_blind_writes() {
    let mut world = created(Some("a"));
    assert!(is_held(&world.refused(blind(&world, "b", holds("b")))));
    assert!(is_held(&world.refused(blind(&world, "b", |spec| spec.renewed = Some(MicroTime(7))))), "a's renewal by b");
    let more = |spec: &mut LeaseSpec| (spec.renewed, spec.duration_ms) = (Some(MicroTime(7)), Some(20_000));
    assert!(is_held(&world.refused(blind(&world, "b", more))), "a's renewal by b, with something else");
    world.must(blind(&world, "a", |spec| spec.renewed = Some(MicroTime(8))));
    world.must(blind(&world, "b", |spec| spec.duration_ms = Some(20_000)));
    world.must(blind(&world, "b", holds("")));
    world.must(blind(&world, "b", holds("b")));
    world.must(cas(&world, holds("c")));
}

#[test]
fn writer_of_the_holder_may_renew_under_its_own_name() {
    let mut world = created(Some("a"));
    let owns = |manager: &str| FieldManager {
        manager: manager.to_owned(),
        applied: true,
        api_version: "coordination.k8s.io/v1".to_owned(),
        at: T0,
        fields: ["spec.holderIdentity".to_owned()].into(),
    };
    let mut owned = object(&world);
    owned.meta.managers = vec![owns("manager-of-a")];
    world.must(command([Change::UpdateObject { object: Box::new(owned), write: ClientWrite::default() }]));
    world.must(blind(&world, "manager-of-a", |spec| spec.renewed = Some(MicroTime(7))));
    assert!(is_held(&world.refused(blind(&world, "manager-of-b", |spec| spec.renewed = Some(MicroTime(8))))));
}

#[test]
fn strictest_guard_protects_one_live_lease() {
    let mut world = created(Some("a"));
    let scope = GuardScope { namespace: "default".to_owned(), lease: Some("l".to_owned()) };
    world.must(command([Change::SetGuard { scope: scope.clone(), mode: Some(GuardMode::All) }]));
    assert!(is_held(&world.refused(cas(&world, holds("b")))));
    world.must(command([Change::ExpireLease(key())]));
    world.must(cas(&world, holds("b")));
    world.must(command([Change::SetGuard { scope, mode: None }]));
    world.must(cas(&world, holds("c")));
}

#[test]
fn events_record_lease_holders() {
    let mut world = World::founded();
    let holder_changes = |world: &World, seen: usize| {
        let events = world.tables.events.iter().skip(seen).filter(|e| e.kind == EventKind::Lease);
        events.map(|e| (e.before.clone(), e.after.clone())).collect::<Vec<_>>()
    };
    let seen = world.tables.events.len();
    world.must(acquire("l", "a", 1));
    world.must(acquire("l", "a", 1));
    world.must(command([Change::ReleaseLease {
        key: key(),
        session: SessionId(1),
        token: lease(&world).holding.token,
    }]));
    let held = Some(format!("default/l held by a, token {}", token(&world)));
    assert_eq!(holder_changes(&world, seen), [(None, held.clone()), (held, None)]);
}

#[test]
fn access_tokens_go_with_their_user() {
    let mut world = World::founded();
    let token =
        AccessToken { id: "t".to_owned(), user: name("ann"), digest: [7; 32], created_at: T0, expires_at: None };
    world.refused(command([Change::PutAccessToken(token.clone())]));
    world.must(command([Change::PutUser(user("ann", "a1")), Change::PutAccessToken(token)]));
    world.must(command([Change::DeleteUser(name("ann"))]));
    assert!(world.tables.access_tokens.is_empty());
}
