//! Joining, joining again, and re-keying.
use std::time::Duration;

use crate::world::*;
use muster_cert_authority::Config;
use muster_cert_authority::core::*;
use muster_messages::protocol::{ProposeError, UserRights};
use muster_messages::wire::JoinReply;
use muster_messages::*;

#[test]
fn token_role_becomes_the_node_role() {
    let mut world = World::new();
    for (n, secret, role) in [(5, WORKER, Role::Worker), (6, MANAGER, Role::Manager)] {
        let answer = world.join(joiner(n, secret));
        let record = world.node(n);
        assert_eq!((record.role, record.desired_role), (role, role));
        assert_eq!(grant(&answer), (role, Some(record.granted)));
        assert_eq!(record.certificate.as_ref().unwrap().serial, certificate(&answer).serial);
        assert_eq!((record.addr.as_str(), record.liveness), ("10.0.0.9:4400", Liveness::Unknown));
        let Answer::Joined(JoinReply::Joined { managers, node, .. }) = answer.unwrap() else { unreachable!() };
        assert_eq!((managers[0].as_str(), node), ("n1.example:4400", id(n)));
    }
}

#[test]
fn event_log_names_the_token_of_a_join() {
    let mut world = World::new();
    world.join(joiner(5, WORKER)).unwrap();
    assert!(world.log.events.iter().any(|e| e.node == Some(id(5)) && e.reason == "joined with token w"));
    assert!(!world.log.events.iter().any(|e| format!("{e:?}").contains(WORKER)));
}

#[test]
fn unknown_or_revoked_token_creates_no_node() {
    let mut world = World::new();
    for secret in ["", "x", "wwwwwwwwwwwwwwwwwwwwwwwwx"] {
        assert_eq!(code(&world.join(joiner(5, secret))), ErrorCode::BadToken);
    }
    world.change(Change::DeleteToken("w".to_owned()));
    assert_eq!(code(&world.join(joiner(5, WORKER))), ErrorCode::BadToken);
    assert!(!world.log.nodes.contains_key(&id(5)));
    assert!(world.signed.is_empty());
}

#[test]
fn token_ends_with_its_time_or_its_uses() {
    let mut world = World::new();
    world.change(Change::PutToken(Token { expires_at: Some(NOW.plus(HOUR)), ..token("t", Role::Worker, "time") }));
    world.change(Change::PutToken(Token { uses_left: Some(2), ..token("u", Role::Worker, "uses") }));
    assert!(world.join(joiner(5, "time")).is_ok());
    assert!(world.join(joiner(6, "uses")).is_ok());
    assert!(world.join(joiner(7, "uses")).is_ok());
    world.wall = NOW.plus(HOUR);
    assert_eq!(code(&world.join(joiner(8, "time"))), ErrorCode::TokenExpired);
    assert_eq!(code(&world.join(joiner(9, "uses"))), ErrorCode::TokenUsedUp);
    assert_eq!(world.log.nodes.len(), 4);
}

#[test]
fn last_use_of_a_token_admits_one_of_two() {
    let mut world = World::new();
    world.change(Change::PutToken(Token { uses_left: Some(1), ..token("u", Role::Worker, "uses") }));
    world.hold = true;
    let a = world.ask(CertificateRequest::Join(Box::new(joiner(5, "uses"))));
    let b = world.ask(CertificateRequest::Join(Box::new(joiner(6, "uses"))));
    world.settle();
    assert!(world.answer(a).unwrap().is_ok());
    assert_eq!(code(world.answer(b).unwrap()), ErrorCode::TokenUsedUp);
    assert!(!world.log.nodes.contains_key(&id(6)));
}

#[test]
fn a_repeated_join_is_the_same_node_and_one_use() {
    let mut world = World::new();
    world.change(Change::PutToken(Token {
        uses_left: Some(1),
        expires_at: Some(NOW.plus(HOUR)),
        ..token("u", Role::Worker, "uses")
    }));
    let cert_request = joiner(5, "uses");
    let first = world.join(cert_request.clone());
    world.wall = NOW.plus(HOUR * 2); // used up and expired by now, but the joiner is already admitted
    let second = world.join(cert_request);
    assert_eq!(certificate(&first).subject, certificate(&second).subject);
    assert_ne!(certificate(&first).serial, certificate(&second).serial);
    assert_eq!(world.node(5).certificate.as_ref().unwrap().serial, certificate(&second).serial);
    assert_eq!(world.log.nodes.len(), 2);
}

/// The answer may have been lost. Otherwise the node would be a member that can never start.
#[test]
fn admitted_join_is_repeated_after_its_token_is_revoked() {
    let mut world = World::new();
    let cert_request = joiner(5, WORKER);
    let first = world.join(cert_request.clone());
    world.change(Change::DeleteToken("w".to_owned()));
    let second = world.join(cert_request.clone());
    assert_eq!(certificate(&first).subject, certificate(&second).subject);
    assert_eq!(world.log.nodes.len(), 2);
    let thief = VerifiedJoin { key: key(), ..cert_request };
    assert_eq!(code(&world.join(thief)), ErrorCode::BadToken);
    assert_eq!(code(&world.join(joiner(6, WORKER))), ErrorCode::BadToken);
}

#[test]
fn join_with_unknown_outcome_is_safe_to_repeat() {
    for applied in [false, true] {
        let mut world = World::new();
        world.change(Change::PutToken(Token { uses_left: Some(1), ..token("u", Role::Worker, "uses") }));
        world.hold = true;
        let cert_request = joiner(5, "uses");
        let ask = world.ask(CertificateRequest::Join(Box::new(cert_request.clone())));
        if applied {
            let (_, command) = world.proposals.front().cloned().unwrap();
            let at = world.log.revision.next();
            muster_store::apply(&mut world.log, at, &command).unwrap();
        }
        world.fail(ProposeError::UnknownOutcome);
        assert_eq!(code(world.answer(ask).unwrap()), ErrorCode::UnknownOutcome);
        world.show();
        world.hold = false;
        assert!(world.join(cert_request).is_ok(), "applied: {applied}");
        assert_eq!(world.log.nodes.len(), 2);
    }
}

#[test]
fn duplicate_concurrent_joins_create_one_node() {
    let mut world = World::new();
    world.hold = true;
    let cert_request = joiner(5, WORKER);
    let a = world.ask(CertificateRequest::Join(Box::new(cert_request.clone())));
    let b = world.ask(CertificateRequest::Join(Box::new(cert_request)));
    world.settle();
    assert!(world.answer(a).unwrap().is_ok() && world.answer(b).unwrap().is_ok());
    assert_eq!(world.log.nodes.len(), 2);
}

#[test]
fn node_id_and_request_id_do_not_suffice_to_join_as_it() {
    let mut world = World::new();
    let cert_request = joiner(5, MANAGER);
    world.join(cert_request.clone()).unwrap();
    let thief = VerifiedJoin { key: key(), secret: Secret::new(WORKER), ..cert_request };
    assert_eq!(code(&world.join(thief)), ErrorCode::Conflict);
    assert_eq!(world.signed.len(), 1);
}

#[test]
fn a_taken_name_gets_a_number() {
    let mut world = World::new();
    world.hold = true;
    let named = |n| VerifiedJoin { name: "n1".parse().unwrap(), ..joiner(n, WORKER) };
    let asks: Vec<AskId> = (5..8).map(|n| world.ask(CertificateRequest::Join(Box::new(named(n))))).collect();
    world.settle();
    for (ask, (n, name)) in asks.into_iter().zip([(5, "n1-2"), (6, "n1-3"), (7, "n1-4")]) {
        assert!(world.answer(ask).unwrap().is_ok());
        assert_eq!(world.node(n).name.as_str(), name);
    }
}

#[test]
fn name_taken_meanwhile_is_chosen_anew() {
    let mut world = World::new();
    world.hold = true;
    let ask = world.ask(CertificateRequest::Join(Box::new(joiner(5, WORKER))));
    world.change(Change::CreateNode(Box::new(node_record(id(77), "n5", Role::Worker))));
    world.settle();
    assert!(world.answer(ask).unwrap().is_ok());
    assert_eq!(world.node(5).name.as_str(), "n5-2");
}

/// A removed machine with a valid token may rejoin, but as another node: the old id stays blocked.
#[test]
fn removed_node_with_a_token_joins_only_as_a_new_node() {
    let mut world = World::new();
    let cert_request = joiner(5, WORKER);
    world.join(cert_request.clone()).unwrap();
    world.remove(5);
    assert_eq!(code(&world.join(cert_request.clone())), ErrorCode::Blocked);
    assert_eq!(code(&world.join(VerifiedJoin { rekey: proof(5, "00"), ..cert_request.clone() })), ErrorCode::Blocked);
    assert_eq!(code(&world.join(VerifiedJoin { request: RequestId(99), ..cert_request })), ErrorCode::Blocked);
    assert!(world.join(joiner(6, WORKER)).is_ok());
    assert_eq!(world.log.nodes.len(), 2);
}

#[test]
fn a_join_overtaken_by_a_block_is_refused() {
    let mut world = World::new();
    (world.hold, world.blind) = (true, true);
    let ask = world.ask(CertificateRequest::Join(Box::new(joiner(5, WORKER))));
    let block = Blocked { node: id(5), by: Principal::Operator, blocked_at: NOW, expires_at: NOW.plus(HOUR) };
    world.change(Change::Block(block));
    world.settle();
    assert_eq!(code(world.answer(ask).unwrap()), ErrorCode::Blocked);
}

#[test]
fn rekeyed_node_keeps_its_id_and_granted_role() {
    let mut world = World::new();
    world.add(5, Role::Manager);
    world.change(Change::PutToken(Token { uses_left: Some(1), ..token("u", Role::Manager, "uses") }));
    let before = world.node(5).clone();
    let cert_request = VerifiedJoin { rekey: proof(5, "first of n5"), ..joiner(5, "uses") };
    let answer = world.join(cert_request.clone());
    assert_eq!(grant(&answer), (Role::Manager, Some(before.granted)));
    assert_eq!(world.node(5).name, before.name);
    assert_eq!(world.log.tokens["u"].uses_left, Some(0));
    assert!(world.join(cert_request).is_ok(), "a repeated request counts no second use");
    let another = VerifiedJoin { rekey: proof(5, "first of n5"), ..joiner(5, "uses") };
    assert_eq!(code(&world.join(another)), ErrorCode::TokenUsedUp);
}

/// What an old disk of a manager is worth to its finder.
#[test]
fn an_old_key_with_a_token_of_another_role_gets_nothing() {
    let mut world = World::new();
    world.add(5, Role::Manager);
    let before = world.log.clone();
    let cert_request = VerifiedJoin { rekey: proof(5, "first of n5"), ..joiner(5, WORKER) };
    assert_eq!(code(&world.join(cert_request)), ErrorCode::BadToken);
    assert_eq!(world.log, before, "nothing was recorded");
    let cert_request = VerifiedJoin { rekey: proof(5, "first of n5"), ..joiner(5, MANAGER) };
    assert!(world.join(cert_request).is_ok());
}

#[test]
fn superseded_keys_are_not_rekeyed_with_any_token() {
    let mut world = World::new();
    world.add(5, Role::Manager);
    world.issue(5, "second");
    world.issue(5, "third");
    let with = |serial| VerifiedJoin { rekey: proof(5, serial), ..joiner(5, MANAGER) };
    let before = world.log.clone();
    assert_eq!(code(&world.join(with("first of n5"))), ErrorCode::Unauthenticated);
    assert!(world.log == before && world.signed.is_empty(), "no use of the token, no signature");
    assert!(world.join(with("second")).is_ok(), "the newest may have been lost in transit");
}

/// Newer certificates are issued while the use of the token is being recorded.
#[test]
fn key_superseded_during_rekeying_gets_no_certificate() {
    let mut world = World::new();
    world.add(5, Role::Manager);
    world.hold = true;
    let ask = world
        .ask(CertificateRequest::Join(Box::new(VerifiedJoin { rekey: proof(5, "first of n5"), ..joiner(5, MANAGER) })));
    assert!(world.answer(ask).is_none() && !world.proposals.is_empty());
    world.issue(5, "second");
    world.issue(5, "third");
    world.hold = false;
    world.settle();
    assert_eq!(code(world.answer(ask).unwrap()), ErrorCode::Unauthenticated);
    assert_eq!(world.newest(5).map(|newest| newest.serial.as_str()), Some("third"));
}

#[test]
fn expired_key_can_be_rekeyed_within_the_configured_time() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    for (days, expect) in [(29, Ok(())), (31, Err(ErrorCode::Unauthenticated))] {
        let mut world = World::new();
        world.add(5, Role::Manager);
        world.wall = NOW.plus(HOUR + DAY * days);
        let answer = world.join(VerifiedJoin { rekey: proof(5, "first of n5"), ..joiner(5, MANAGER) });
        assert_eq!(answer.map(|_| ()).map_err(|e| e.code), expect, "{days} days after its end");
    }
}

#[test]
fn a_rekeying_node_must_still_exist() {
    let mut world = World::new();
    let cert_request = VerifiedJoin { rekey: proof(5, "00"), ..joiner(5, MANAGER) };
    assert_eq!(code(&world.join(cert_request)), ErrorCode::Removed);
    assert!(!world.log.nodes.contains_key(&id(5)));
}

#[test]
fn joiner_without_quorum_learns_the_missing_managers() {
    let mut world = World::new();
    world.hold = true;
    let ask = world.ask(CertificateRequest::Join(Box::new(joiner(5, WORKER))));
    world.fail(ProposeError::NoQuorum { missing: vec![id(9)] });
    let refusal = world.answer(ask).unwrap().as_ref().unwrap_err();
    assert_eq!(refusal.code, ErrorCode::NoQuorum);
    assert!(refusal.details.contains(id(9).as_str()));
}

#[test]
fn user_has_one_valid_certificate() {
    let mut world = World::new();
    let cert_request = ada(1);
    let first = certificate(&world.user(cert_request.clone()));
    assert_eq!(first.principal(), Principal::Admin("ada".parse().unwrap()));
    assert_eq!(code(&world.user(ada(2))), ErrorCode::Conflict);
    // Its own request, repeated because the answer was lost: the lost certificate is replaced.
    let second = certificate(&world.user(cert_request));
    assert_ne!(first.serial, second.serial);
    assert_eq!(world.log.users[&"ada".parse::<Name>().unwrap()].serial, second.serial);
    world.wall = second.not_after;
    assert!(world.user(ada(3)).is_ok(), "an expired user can be made again");
}

#[test]
fn revoked_user_is_not_restored_by_a_repeated_request() {
    let mut world = World::new();
    let cert_request = ada(1);
    world.user(cert_request.clone()).unwrap();
    world.change(Change::DeleteUser("ada".parse().unwrap()));
    assert_eq!(code(&world.user(cert_request)), ErrorCode::Conflict);
    assert!(world.user(ada(2)).is_ok());
}

#[test]
fn two_operators_who_create_one_user_get_one() {
    let mut world = World::new();
    world.hold = true;
    let (a, b) = (world.ask(CertificateRequest::User(ada(1))), world.ask(CertificateRequest::User(ada(2))));
    world.settle();
    assert!(world.answer(a).unwrap().is_ok());
    assert_eq!(code(world.answer(b).unwrap()), ErrorCode::Conflict);
}

fn rights(kind: UserKind, namespaces: &[&str]) -> UserRights {
    UserRights::New { kind, namespaces: namespaces.iter().map(|&n| n.to_owned()).collect() }
}

fn renewal(request: u128) -> UserRequest {
    UserRequest { rights: UserRights::Kept, ..ada(request) }
}

fn record(world: &World) -> User {
    world.log.users[&"ada".parse::<Name>().unwrap()].clone()
}

#[test]
fn a_renewed_user_keeps_its_rights_and_its_tokens() {
    for kind in [UserKind::User, UserKind::Operator, UserKind::ReadOnly] {
        let mut world = World::new();
        let namespaces: &[&str] = if kind == UserKind::User { &["shop"] } else { &[] };
        assert_eq!(code(&world.user(renewal(9))), ErrorCode::NotFound);
        let first = certificate(&world.user(UserRequest { rights: rights(kind, namespaces), ..ada(1) }));
        let token = AccessToken {
            id: "t".to_owned(),
            user: "ada".parse().unwrap(),
            digest: [7; 32],
            created_at: world.wall,
            expires_at: None,
        };
        world.change(Change::PutAccessToken(token));
        let (before, tokens) = (record(&world), world.log.token_rights.clone());
        world.wall = world.wall.plus(HOUR);
        let second = certificate(&world.user(renewal(2)));
        let after = record(&world);
        assert_eq!((&after.serial, after.not_after), (&second.serial, second.not_after));
        assert!(second.serial != first.serial && second.not_after > first.not_after && second.subject == first.subject);
        let User { serial, not_after, revision, .. } = after.clone();
        assert_eq!(after, User { serial, not_after, revision, ..before }, "nothing else has changed");
        assert_eq!((world.log.access_tokens.len(), &world.log.token_rights), (1, &tokens));
        assert_eq!(world.log.user_pins[&after.name].serial, second.serial);
        // Its own request, repeated because the answer was lost.
        let third = certificate(&world.user(renewal(2)));
        assert_eq!(record(&world).serial, third.serial);
    }
}

#[test]
fn an_expired_or_revoked_user_is_not_renewed() {
    let mut world = World::new();
    let cert_request = renewal(2);
    let first = certificate(&world.user(ada(1)));
    world.wall = first.not_after;
    let refused = world.user(cert_request.clone()).unwrap_err();
    assert!(refused.code == ErrorCode::Conflict && refused.message.contains("muster user create ada"), "{refused}");
    world.user(ada(3)).unwrap();
    world.user(cert_request.clone()).unwrap();
    world.change(Change::DeleteUser("ada".parse().unwrap()));
    assert_eq!(code(&world.user(cert_request)), ErrorCode::NotFound, "a repeated renewal creates no user");
}

#[test]
fn a_read_only_operator_has_no_namespaces_and_needs_level_3() {
    let reader =
        |request, namespaces: &[&str]| UserRequest { rights: rights(UserKind::ReadOnly, namespaces), ..ada(request) };
    let mut world = World::new();
    assert_eq!(code(&world.user(reader(1, &["shop"]))), ErrorCode::Invalid);
    let made = certificate(&world.user(reader(2, &[])));
    assert_eq!(made.principal(), Principal::Reader("ada".parse().unwrap()));
    assert_eq!(record(&world).kind, UserKind::ReadOnly);
    let mut older = World::at_level(IDENTITY_LEVEL - 1);
    let refused = older.user(reader(1, &[])).unwrap_err();
    assert!(refused.message.contains("level 3"), "{refused}");
}

#[test]
fn namespaces_and_lifetimes_of_users_are_checked() {
    let mut world = World::new();
    for (n, bad) in ["Bad Name", "-a", "a-", "a.b", ""].into_iter().enumerate() {
        let bad = UserRequest { rights: rights(UserKind::User, &[bad]), ..ada(10 + n as u128) };
        assert_eq!(code(&world.user(bad)), ErrorCode::Invalid);
    }
    let short = UserRequest { lifetime: Some(std::time::Duration::from_secs(1)), ..ada(2) };
    assert_eq!(code(&world.user(short)), ErrorCode::Invalid);
}

#[test]
fn unlimited_token_cannot_exceed_max_nodes() {
    let mut world = World::with(Config { max_nodes: 4, ..Config::default() });
    world.hold = true;
    let asks = [5, 6, 7, 8].map(|n| world.ask(CertificateRequest::Join(Box::new(joiner(n, WORKER)))));
    world.settle();
    let refused: Vec<&ErrorBody> =
        asks.iter().filter_map(|ask| world.answer(*ask).expect("an answer").as_ref().err()).collect();
    assert_eq!(refused.len(), 1, "nodes being admitted count");
    let full = refused[0];
    assert!(full.code == ErrorCode::Forbidden && full.message.contains("max_nodes"), "{full}");
    // A member gets its answer again; a removed node makes room.
    world.hold = false;
    world.change(Change::DeleteNode(id(5)));
    assert!(world.join(joiner(9, WORKER)).is_ok());
}
