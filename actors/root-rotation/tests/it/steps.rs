//! From one root to the next: published, signing, retired; and everything that an operator may do on the way.

use std::time::Duration;

use muster_messages::protocol::{ProposeError, RootsChange};
use muster_messages::*;
use muster_pki::{Bundle, identity_of_pem};
use muster_root_rotation::Config;

use crate::world::*;
use AuthorityState::{Active, Prepared, Retired, Retiring, Revoked};

#[test]
fn rotation_ends_with_every_node_on_the_new_root() {
    let mut world = World::new(3, 2);
    let old = world.active();
    let new = world.rotate();
    assert_eq!((world.state(old), world.state(new)), (Some(Active), Some(Prepared)), "published first");
    assert!(world.asked.is_empty());
    world.run();
    assert_eq!((world.state(old), world.state(new)), (Some(Retired), Some(Active)));
    assert_eq!((world.active(), world.behind()), (new, vec![]));
    assert_eq!(world.log.authorities.roots[&old].key_pem, None, "ROOT-4");
}

/// What the leader published is what a node that trusts the old root accepts, and what leads one that was away to the new one.
#[test]
fn vouchers_and_cross_certificates_of_a_rotation_hold() {
    let mut world = World::new(3, 0);
    let (cluster, old_pem) = {
        let cluster = world.log.cluster.as_ref().unwrap();
        (cluster.id, cluster.root_cert_pem.clone())
    };
    let old = Bundle::from_pem(&old_pem).unwrap();
    let new = world.rotate();
    let both = old.accept(cluster, &world.log.authorities.offer()).unwrap();
    assert_eq!(both.ids().count(), 2);
    world.run();
    let last = old.accept(cluster, &world.log.authorities.offer()).unwrap();
    assert_eq!(last.ids().collect::<Vec<_>>(), [new], "over the retired root, which is not trusted");
    let crosses = world.log.authorities.crosses();
    assert_eq!(crosses.len(), 1);
    assert!(identity_of_pem(&crosses[0].cert_pem).is_err(), "it is not a node's");
    let third = world.rotate();
    world.run();
    assert_eq!(world.active(), third);
    assert_eq!(
        world.log.authorities.crosses().iter().map(|cross| cross.by).collect::<Vec<_>>(),
        [new, Bundle::from_pem(&old_pem).unwrap().ids().next().unwrap()]
    );
    assert_eq!(old.accept(cluster, &world.log.authorities.offer()).unwrap().ids().collect::<Vec<_>>(), [third]);
}

/// A way back adds a certificate by the root that was left again. It hides none of those that lead to earlier ones.
#[test]
fn way_back_keeps_the_path_to_earlier_roots() {
    let mut world = World::with(Config { retire_after: HOUR, ..Config::default() }, 3, 0);
    let first = world.active();
    let second = world.rotate();
    world.run();
    world.operator(RootsChange::Retire { root: first, force: true }).unwrap();
    let third = world.rotate();
    world.run();
    world.operator(RootsChange::Activate(second)).unwrap();
    let by: Vec<RootId> = world.log.authorities.crosses().iter().map(|cross| cross.by).collect();
    assert_eq!(by, [third, first]);
}

/// A node that knows only the newer root, because it joined with that, may trust the earlier one, and follows a way back.
#[test]
fn newer_root_vouches_for_earlier_ones_unless_compromised() {
    for compromised in [false, true] {
        let mut world = World::new(3, 0);
        world.deaf.insert(id(2));
        let cluster = world.log.cluster.clone().unwrap();
        let step = RootsChange::Rotate { automatic: true, compromised };
        let new = world.operator(step).unwrap().root.unwrap();
        let new = Bundle::from_pem(&world.log.authorities.roots[&new].cert_pem).unwrap();
        let accepted = new.accept(cluster.id, &world.log.authorities.offer());
        assert_eq!(accepted.is_ok(), !compromised);
        world.operator(RootsChange::Abort).unwrap();
        let all = &world.log.authorities.roots;
        assert!(all.values().all(|root| root.vouchers.is_empty()), "an abandoned root leaves none behind");
    }
}

/// A copied disk holds the key of every root that has one, also if the rotation that said so is replaced.
#[test]
fn new_root_never_vouches_for_a_compromised_one() {
    let mut world = World::with(muster_root_rotation::Config::default(), 3, 0);
    world.rotate();
    world.run(); // the first root is retiring, and has its key
    world.deaf.insert(id(2));
    for compromised in [true, false] {
        let new = world.operator(RootsChange::Rotate { automatic: true, compromised }).unwrap().root.unwrap();
        let all = &world.log.authorities.roots;
        assert!(all.values().all(|root| root.vouchers.iter().all(|voucher| voucher.by != new)), "{compromised}");
    }
}

/// A copy of a manager's state holds the join tokens beside the key, no matter who lets the next root sign.
#[test]
fn compromised_rotation_replaces_the_default_tokens() {
    for (compromised, automatic) in [(true, true), (true, false), (false, true)] {
        let mut world = World::new(3, 0);
        for role in [Role::Manager, Role::Worker] {
            world.change(Change::PutToken(Token {
                id: format!("{role}"),
                role,
                secret: Secret::new("hush"),
                default: true,
                created_at: NOW,
                expires_at: None,
                uses_left: None,
                revision: Revision(0),
            }));
        }
        let before = world.log.tokens.clone();
        let new = world.operator(RootsChange::Rotate { automatic, compromised }).unwrap().root.unwrap();
        assert_eq!(world.log.tokens, before, "not before it signs: a joiner needs a token of a root that does");
        world.run();
        if !automatic {
            world.operator(RootsChange::Activate(new)).unwrap();
        }
        assert_eq!((world.active(), world.log.tokens == before), (new, !compromised));
        for role in [Role::Manager, Role::Worker] {
            let token = world.log.default_token(role).unwrap();
            assert_eq!((token.created_at == NOW, token.secret.expose() == "hush"), (!compromised, !compromised));
        }
        assert_eq!(world.log.tokens.len(), 2);
    }
}

/// Before the first rotation, the table of roots is empty, and `ca ls` shows the founding root.
#[test]
fn steps_that_name_the_only_root_are_answered_for_it() {
    let mut world = World::new(1, 0);
    let only = world.active();
    let signs = world.operator(RootsChange::Activate(only)).unwrap();
    assert_eq!((signs.root, signs.changed), (Some(only), false));
    // A manager that leads no longer may lack the first rotation.
    world.hold = true;
    let ask = world.request(RootsChange::Activate(only), 5);
    world.fail(ProposeError::UnknownOutcome);
    assert_eq!(world.changed(ask).unwrap_err().code, ErrorCode::UnknownOutcome);
    world.hold = false;
    for step in [RootsChange::Retire { root: only, force: true }, RootsChange::Revoke(only)] {
        let refused = world.operator(step).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Conflict);
        assert!(refused.message.contains("is active: let another one sign first"), "{refused}");
    }
    assert_eq!(world.operator(RootsChange::Revoke(RootId([9; 8]))).unwrap_err().code, ErrorCode::NotFound);
}

/// ROOT-2: no time overrides a manager.
#[test]
fn manager_that_does_not_acknowledge_holds_the_activation() {
    let mut world = World::new(3, 2);
    world.deaf.insert(id(2));
    let new = world.rotate();
    world.run();
    world.pass(HOUR);
    world.run();
    assert_eq!(world.state(new), Some(Prepared));
    // It is down: others must not wait for it.
    world.ready(2, Liveness::Down);
    world.run();
    assert_eq!(world.state(new), Some(Active));
}

#[test]
fn worker_that_does_not_acknowledge_is_awaited_for_a_minute() {
    let mut world = World::new(1, 2);
    world.deaf.insert(id(101));
    let new = world.rotate();
    for _ in 0..590 {
        world.nodes_act();
        world.pass(Duration::from_millis(100));
    }
    assert_eq!(world.state(new), Some(Prepared));
    world.pass(Duration::from_secs(2));
    assert_eq!(world.state(new), Some(Active));
    world.run();
    assert_eq!(world.behind(), []);
}

#[test]
fn node_that_is_down_holds_nothing_and_renews_when_it_returns() {
    let mut world = World::new(3, 3);
    world.ready(102, Liveness::Down);
    let old = world.active();
    world.rotate();
    world.run();
    assert_eq!((world.state(old), world.behind()), (Some(Retired), vec![id(102)]));
    world.ready(102, Liveness::Ready);
    world.run();
    assert_eq!(world.behind(), []);
}

/// ROOT-3.
#[test]
fn manager_that_is_down_keeps_the_old_root_until_it_has_renewed() {
    let mut world = World::new(3, 1);
    world.ready(3, Liveness::Down);
    let old = world.active();
    let new = world.rotate();
    world.run();
    world.pass(HOUR * 48);
    world.run();
    assert_eq!((world.state(old), world.behind()), (Some(Retiring), vec![id(3)]));
    let refused = world.operator(RootsChange::Retire { root: old, force: false }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::RootInUse);
    world.ready(3, Liveness::Ready);
    world.run();
    assert_eq!((world.state(old), world.active()), (Some(Retired), new));
}

#[test]
fn operator_may_retire_a_root_that_a_manager_still_uses() {
    let mut world = World::new(3, 0);
    world.ready(3, Liveness::Down);
    let old = world.active();
    world.rotate();
    world.run();
    let done = world.operator(RootsChange::Retire { root: old, force: true }).unwrap();
    assert!(done.changed && world.state(old) == Some(Retired));
    let again = world.operator(RootsChange::Retire { root: old, force: true }).unwrap();
    assert!(!again.changed, "{again:?}");
}

#[test]
fn old_root_stays_for_the_time_of_a_way_back() {
    let mut world = World::with(muster_root_rotation::Config::default(), 3, 2);
    let old = world.active();
    let new = world.rotate();
    world.run();
    assert_eq!((world.state(old), world.behind()), (Some(Retiring), vec![]));
    let back = world.operator(RootsChange::Activate(old)).unwrap();
    assert!(back.changed);
    world.run();
    assert_eq!((world.active(), world.state(new), world.behind()), (old, Some(Retiring), vec![]));
    world.pass(HOUR);
    world.run();
    assert_eq!(world.state(new), Some(Retired));
}

#[test]
fn aborted_root_leaves_nothing_behind() {
    let mut world = World::new(3, 2);
    let old = world.active();
    let prepared = world.operator(RootsChange::Rotate { automatic: false, compromised: false }).unwrap().root.unwrap();
    world.run();
    world.pass(HOUR);
    world.run();
    assert_eq!(world.state(prepared), Some(Prepared), "an operator activates it");
    let done = world.operator(RootsChange::Abort).unwrap();
    assert_eq!((done.root, done.changed), (Some(prepared), true));
    assert_eq!(world.operator(RootsChange::Abort).map(|done| (done.root, done.changed)).unwrap(), (None, false));
    world.run();
    assert_eq!((world.active(), world.state(prepared), world.behind()), (old, None, vec![]));
    assert!(world.log.authorities.roots[&old].crosses.is_empty(), "nothing was signed for it");
    assert!(world.log.nodes.keys().all(|node| world.log.authorities.is_trusted_by(*node)), "nodes drop it again");
}

#[test]
fn prepared_root_is_activated_by_hand() {
    let mut world = World::new(3, 2);
    let prepared = world.operator(RootsChange::Rotate { automatic: false, compromised: false }).unwrap().root.unwrap();
    let early = world.operator(RootsChange::Activate(prepared)).unwrap_err();
    assert_eq!((early.code, early.retry_after_ms.is_some()), (ErrorCode::Conflict, true), "ROOT-2: {early}");
    world.run();
    let done = world.operator(RootsChange::Activate(prepared)).unwrap();
    assert_eq!((done.root, done.changed), (Some(prepared), true));
    world.run();
    assert_eq!((world.active(), world.behind()), (prepared, vec![]));
}

#[test]
fn compromised_root_is_revoked_without_waiting_for_the_absent() {
    let mut world = World::with(muster_root_rotation::Config::default(), 3, 2);
    world.ready(3, Liveness::Down);
    let old = world.active();
    world.operator(RootsChange::Rotate { automatic: true, compromised: true }).unwrap();
    world.run();
    assert_eq!((world.state(old), world.behind()), (Some(Revoked), vec![id(3)]));
    // Not while the voters that it shuts out are needed.
    let mut world = World::new(3, 0);
    world.ready(3, Liveness::Down);
    world.ready(2, Liveness::Down);
    let old = world.active();
    world.operator(RootsChange::Rotate { automatic: true, compromised: true }).unwrap();
    world.run();
    assert_eq!(world.state(old), Some(Retiring));
    assert_eq!(world.operator(RootsChange::Revoke(old)).unwrap_err().code, ErrorCode::RootInUse);
}

/// ADMIT-9: what was recorded below feature level 3 opens nothing once a compromised root no longer signs. All managers would be
/// shut out at once.
#[test]
fn nodes_without_a_digest_renew_before_a_compromised_root_ends() {
    let mut world = World::new(3, 2);
    world.without_digests = true;
    for node in world.log.nodes.keys().copied().collect::<Vec<_>>() {
        world.renew(node);
    }
    world.without_digests = false;
    world.silent.insert(id(2));
    let old = world.active();
    let new = world.operator(RootsChange::Rotate { automatic: true, compromised: true }).unwrap().root.unwrap();
    world.run();
    world.pass(Duration::from_secs(61));
    world.run();
    assert_eq!((world.state(new), world.active()), (Some(Prepared), old), "a manager has no digest on record");
    let refused = world.operator(RootsChange::Activate(new));
    assert!(refused.is_ok(), "two of three have one: {refused:?}");
    world.silent.clear();
    world.run();
    assert_eq!((world.active(), world.state(old), world.behind()), (new, Some(Revoked), vec![]));

    let mut world = World::new(1, 0);
    world.without_digests = true;
    world.renew(id(1));
    world.silent.insert(id(1));
    let new = world.operator(RootsChange::Rotate { automatic: true, compromised: true }).unwrap().root.unwrap();
    world.run();
    assert_eq!(world.operator(RootsChange::Activate(new)).unwrap_err().code, ErrorCode::RootInUse);
}

/// A machine that failed a moment ago is still recorded as up: without its answer, the revocation would shut out the majority.
#[test]
fn voters_answer_before_a_root_is_revoked() {
    let mut world = World::new(4, 0);
    world.silent.insert(id(4));
    world.mute.insert(RaftId(3));
    let old = world.active();
    let new = world.operator(RootsChange::Rotate { automatic: true, compromised: true }).unwrap().root.unwrap();
    world.run();
    world.pass(Duration::from_secs(61));
    world.run();
    assert_eq!((world.active(), world.state(old)), (new, Some(Retiring)));
    assert_eq!(world.checks.last(), Some(&([1, 2, 3].map(RaftId).into(), 3)), "of four");
    let refused = world.operator(RootsChange::Revoke(old)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::RootInUse, "{}", refused.message);
    world.mute.clear();
    world.pass(Duration::from_secs(61));
    world.run();
    assert_eq!(world.state(old), Some(Revoked));
    assert_eq!(world.log.authorities.roots[&old].key_pem, None);
}

/// Five voters: the second is down for the others, but answers Raft before the fifth.
#[test]
fn voters_that_do_not_count_are_not_asked() {
    let mut world = World::new(5, 0);
    world.silent.insert(id(4));
    world.ready(2, Liveness::Down);
    let old = world.active();
    world.operator(RootsChange::Rotate { automatic: true, compromised: true }).unwrap();
    world.run();
    world.pass(Duration::from_secs(61));
    world.run();
    assert_eq!(world.checks.last(), Some(&([1, 3, 5].map(RaftId).into(), 3)), "of five");
    assert_eq!(world.state(old), Some(Revoked));
}

#[test]
fn last_of_three_rotations_wins() {
    let mut world = World::new(3, 2);
    let first = world.active();
    world.rotate();
    world.nodes_act();
    world.rotate();
    let third = world.rotate();
    world.run();
    assert_eq!((world.active(), world.behind()), (third, vec![]));
    assert_eq!(world.state(first), Some(Retired));
    assert!(world.log.authorities.roots.len() <= 3);
}

/// Five operators ask ten times each before anything is applied. `World::apply` checks that one root signs at each revision.
#[test]
fn fifty_rotations_at_once_end_with_the_last_root() {
    let mut world = World::new(3, 2);
    world.hold = true;
    let change = RootsChange::Rotate { automatic: true, compromised: false };
    let asked: Vec<_> = (0..50).map(|number| world.request(change.clone(), 5_000 + number)).collect();
    world.hold = false;
    world.settle();
    world.run();
    let last = asked.iter().rev().find_map(|ask| world.changed(*ask).ok()?.root);
    assert_eq!((Some(world.active()), world.behind()), (last, vec![]));
    let roots = world.log.authorities.roots.values().filter(|root| root.state == Active).count();
    assert!(roots == 1 && world.log.authorities.roots.len() <= 2, "those that never signed are gone");
}

/// The table is full of roots that only lead to others: the oldest makes room.
#[test]
fn rotations_go_on_when_the_table_of_roots_is_full() {
    let mut world = World::new(1, 1);
    let first = world.active();
    for _ in 0..MAX_ROOTS * 2 {
        let new = world.rotate();
        world.run();
        assert_eq!((world.active(), world.behind()), (new, vec![]));
        assert!(world.log.authorities.roots.len() <= MAX_ROOTS);
    }
    assert_eq!(world.state(first), None);
}

#[test]
fn table_full_of_roots_in_use_refuses_another_rotation() {
    let mut world = World::new(1, MAX_ROOTS as u128);
    for n in 101..100 + MAX_ROOTS as u128 {
        // It keeps a certificate of this root.
        world.ready(n, Liveness::Down);
        world.rotate();
        world.run();
    }
    let refused = world.operator(RootsChange::Rotate { automatic: true, compromised: false }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooManyRoots);
}

#[test]
fn retired_root_is_forgotten_after_its_last_certificate() {
    let mut world = World::new(1, 1);
    let old = world.active();
    world.rotate();
    world.run();
    world.pass(HOUR * 24 * 365);
    world.run();
    assert_eq!(world.state(old), Some(Retired), "tokens and clients of its time are led by it");
    for _ in 0..24 * 2 {
        world.pass(HOUR);
        world.nodes_act();
    }
    assert_eq!(world.state(old), None);
}

/// Certificates of workloads are not on record: a root is retired once the last of them has ended.
#[test]
fn root_waits_for_the_certificates_of_workloads() {
    let mut world = World::new(3, 0);
    let old = world.active();
    let entry = WorkloadEntry {
        ttl: HOUR * 5,
        ..WorkloadEntry::new("shop/web".parse().unwrap(), [WorkloadSelector::UnixUid(1)])
    };
    world.change(Change::Workload(Box::new(WorkloadChange::Set(entry))));
    world.rotate();
    world.run();
    assert_eq!(world.state(old), Some(Retiring));
    let refused = world.operator(RootsChange::Retire { root: old, force: false }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::RootInUse, "{refused}");
    let revision = world.log.revision;
    for _ in 0..4 {
        world.pass(HOUR);
        world.run();
    }
    assert_eq!((world.state(old), world.log.revision), (Some(Retiring), revision), "nothing is proposed in vain");
    for _ in 0..3 {
        world.pass(HOUR);
        world.run();
    }
    assert_eq!(world.state(old), Some(Retired));
}

/// The answer was lost, or the leader changed before it was sent.
#[test]
fn repeated_request_makes_one_root() {
    let mut world = World::new(3, 0);
    let change = RootsChange::Rotate { automatic: false, compromised: false };
    let first = world.request(change.clone(), 77);
    let first = world.changed(first).unwrap();
    assert!(first.changed);
    world.restart();
    let again = world.request(change, 77);
    assert_eq!(world.changed(again).unwrap(), first);
    assert_eq!(world.log.authorities.roots.len(), 2);
}

/// Another root was published since.
#[test]
fn repeated_abort_names_the_root_that_it_deleted() {
    let mut world = World::new(3, 0);
    let rotate = RootsChange::Rotate { automatic: false, compromised: false };
    let made = world.operator(rotate.clone()).unwrap().root;
    let first = world.request(RootsChange::Abort, 77);
    let first = world.changed(first).unwrap();
    assert_eq!((first.root, first.changed), (made, true));
    let second = world.operator(rotate).unwrap().root;
    world.restart();
    let again = world.request(RootsChange::Abort, 77);
    assert_eq!(world.changed(again).unwrap(), first);
    assert_eq!(world.log.authorities.in_state(AuthorityState::Prepared).map(|(id, _)| id), second);
}

/// The root was changed since.
#[test]
fn repeated_step_without_effect_stays_without_effect() {
    let mut world = World::new(1, 0);
    let active = world.rotate();
    world.run();
    let first = world.request(RootsChange::Activate(active), 77);
    let first = world.changed(first).unwrap();
    assert_eq!((first.root, first.changed), (Some(active), false));
    world.rotate();
    world.run();
    let again = world.request(RootsChange::Activate(active), 77);
    assert_eq!(world.changed(again).unwrap(), first);
}

#[test]
fn request_id_of_one_step_is_refused_for_another() {
    let mut world = World::new(3, 0);
    let first = world.request(RootsChange::Rotate { automatic: false, compromised: false }, 77);
    assert!(world.changed(first).unwrap().changed);
    let other = world.request(RootsChange::Abort, 77);
    assert_eq!(world.changed(other).unwrap_err().code, ErrorCode::Conflict);
}

#[test]
fn unknown_outcome_is_reported_as_such() {
    let mut world = World::new(1, 0);
    world.hold = true;
    let ask = world.request(RootsChange::Rotate { automatic: true, compromised: false }, 5);
    world.fail(ProposeError::UnknownOutcome);
    assert_eq!(world.changed(ask).unwrap_err().code, ErrorCode::UnknownOutcome);
}

#[test]
fn cluster_of_an_earlier_feature_level_refuses_a_rotation() {
    let mut world = World::new(1, 0);
    let cluster = std::sync::Arc::make_mut(world.log.cluster.as_mut().unwrap());
    cluster.feature_level = IDENTITY_LEVEL - 1;
    let refused = world.operator(RootsChange::Rotate { automatic: true, compromised: false }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::GateClosed);
}

#[test]
fn step_for_an_unknown_root_is_refused() {
    let mut world = World::new(1, 0);
    world.rotate();
    for change in [
        RootsChange::Activate(RootId([1; 8])),
        RootsChange::Retire { root: RootId([1; 8]), force: true },
        RootsChange::Revoke(RootId([1; 8])),
    ] {
        assert_eq!(world.operator(change).unwrap_err().code, ErrorCode::NotFound);
    }
}
