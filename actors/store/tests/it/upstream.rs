//! A root that an authority above the cluster certifies: requested, answered, aborted.

use muster_messages::*;

use crate::authorities::{abort, activate, certify, must, prepare, prepare_after, refusal, request, root, world};
use crate::world::*;

fn requested(world: &World) -> Option<RootId> {
    world.tables.authorities.requested.as_ref().map(|requested| requested.root)
}

/// What the last entry was about.
fn about(world: &World) -> Option<RootId> {
    muster_store::root_changed_at(&world.tables, world.tables.revision)
}

#[test]
fn a_request_is_kept_and_publishes_nothing() {
    let mut world = world();
    must(&mut world, request(8, false));
    assert_eq!((requested(&world), about(&world)), (Some(root(8)), Some(root(8))));
    let all = &world.tables.authorities;
    assert!(all.roots.is_empty() && all.offer().is_empty(), "there was no rotation");
    assert_eq!(world.tables.bundle_pem(), "root");
    // One at most: each who asks gets the same.
    must(&mut world, request(9, false));
    assert_eq!((requested(&world), about(&world)), (Some(root(8)), None));
    must(&mut world, abort());
    assert_eq!((requested(&world), about(&world)), (None, Some(root(8))));
    must(&mut world, request(9, false));
    assert_eq!(requested(&world), Some(root(9)));
}

#[test]
fn a_certified_key_is_published_as_any_new_root() {
    let mut world = world();
    must(&mut world, request(8, false));
    must(&mut world, certify(7, 8));
    assert_eq!((requested(&world), about(&world)), (None, Some(root(8))));
    let certified = world.tables.authorities.roots[&root(8)].clone();
    assert_eq!((certified.state, certified.origin), (AuthorityState::Prepared, AuthorityOrigin::Upstream));
    assert_eq!(certified.key_pem, Some(Secret::new("key 8")), "the key that was asked for");
    assert_eq!(certified.upstream, ["above 8"]);
    assert_eq!(world.tables.authorities.generation, world.tables.revision);
    assert_eq!(world.tables.authorities.roots[&root(7)].vouchers[0].by, root(8));
    must(&mut world, certify(7, 8));
    assert_eq!(about(&world), None, "the same answer again");
    must(&mut world, activate(8));
    assert_eq!(world.tables.cluster.as_ref().unwrap().root_cert_pem, "root 8");
    assert_eq!(
        world.tables.authorities.chain(),
        ["cross 8", "root 8", "above 8"],
        "for clients that trust what is above"
    );
    assert_eq!(refusal(&mut world, certify(8, 8)), AuthorityRefusal::SameKey(root(8)));
}

/// An answer that is passed in twice: the newest request says whether the root signs by itself.
#[test]
fn a_repeated_answer_changes_only_who_activates() {
    let certified = |automatic_now: bool, cert: &str| {
        let Change::Authority(mut change) = certify(7, 8) else { unreachable!() };
        let AuthorityChange::Certify { automatic, cert_pem, .. } = &mut *change else { unreachable!() };
        *automatic = automatic_now;
        cert.clone_into(cert_pem);
        Change::Authority(change)
    };
    let mut world = world();
    must(&mut world, request(8, false));
    must(&mut world, certified(true, "root 8"));
    let before = world.tables.authorities.clone();
    for automatic in [false, true] {
        must(&mut world, certified(automatic, "root 8"));
        let known = &world.tables.authorities.roots[&root(8)];
        assert_eq!((known.automatic, known.revision), (automatic, world.tables.revision));
        assert_eq!(about(&world), Some(root(8)));
    }
    // The leader's own proposal was on its way when the operator's was applied.
    world.must(Command { by: Principal::Cluster, ..command([certified(false, "root 8")]) });
    assert!(world.tables.authorities.roots[&root(8)].automatic && about(&world).is_none());
    assert_eq!(world.tables.authorities.generation, before.generation, "it is published once");
    assert_eq!(refusal(&mut world, certified(false, "another 8")), AuthorityRefusal::SameKey(root(8)));
    must(&mut world, activate(8));
    assert_eq!(refusal(&mut world, certified(false, "root 8")), AuthorityRefusal::SameKey(root(8)));
}

/// UP-2.
#[test]
fn only_the_requested_key_is_certified() {
    let mut world = world();
    assert_eq!(refusal(&mut world, certify(7, 8)), AuthorityRefusal::NotRequested(root(8)));
    must(&mut world, request(8, false));
    assert_eq!(refusal(&mut world, certify(7, 9)), AuthorityRefusal::NotRequested(root(9)));
    assert_eq!(refusal(&mut world, prepare(7, 8)), AuthorityRefusal::SameKey(root(8)), "as a root of its own");
    must(&mut world, abort());
    assert_eq!(refusal(&mut world, certify(7, 8)), AuthorityRefusal::NotRequested(root(8)), "aborted meanwhile");
    must(&mut world, prepare(7, 8));
    assert_eq!(refusal(&mut world, request(8, false)), AuthorityRefusal::SameKey(root(8)));
}

/// A rotation does not need the request, and an abort ends both.
#[test]
fn a_request_outlasts_other_rotations() {
    let mut world = world();
    must(&mut world, request(8, false));
    must(&mut world, prepare(7, 9));
    assert_eq!(requested(&world), Some(root(8)));
    must(&mut world, certify(7, 8));
    assert!(!world.tables.authorities.roots.contains_key(&root(9)), "the newer one replaces it");
    must(&mut world, request(9, false));
    must(&mut world, abort());
    assert_eq!((requested(&world), about(&world)), (None, Some(root(8))), "the answer names the published one");
    assert_eq!(world.tables.authorities.in_state(AuthorityState::Prepared), None);
}

/// A copied disk holds the requested key, too.
#[test]
fn a_compromised_rotation_ends_earlier_requests() {
    let mut rotated = world();
    must(&mut rotated, request(8, false));
    must(&mut rotated, prepare_after(7, true, 9));
    assert_eq!(requested(&rotated), None);

    let mut asked = world();
    must(&mut asked, request(8, false));
    must(&mut asked, request(9, true));
    assert_eq!(requested(&asked), Some(root(9)), "a request made afterwards replaces it");
    must(&mut asked, request(10, true));
    must(&mut asked, request(10, false));
    assert_eq!(requested(&asked), Some(root(9)));
    must(&mut asked, certify(7, 9));
    let roots = &asked.tables.authorities.roots;
    assert!(roots[&root(7)].compromised && !roots[&root(9)].compromised, "the answer rotates as the request said");
    assert!(roots[&root(7)].vouchers.is_empty(), "and vouches for no compromised root");
}

#[test]
fn a_request_needs_feature_level_three() {
    let mut world = World::founded_at(IDENTITY_LEVEL - 1);
    assert!(matches!(world.refused(command([request(8, false)])), CommandRefusal::FeatureLevel { .. }));
}
