//! A cluster continues as one manager.

use muster_messages::*;
use muster_store::recovery::{CannotRecover, Recovery, UNKNOWN_HOLDER, next_incarnation, recover};
use muster_store::{invariants, snapshot};

use crate::world::*;

/// Three managers, members 1 to 3, a fourth being promoted, a worker.
fn three_managers() -> World {
    let manager = Role::Manager;
    let mut world = World::founded().with([(2, manager), (3, manager), (4, Role::Worker), (5, Role::Worker)]);
    for (n, member_id) in [(2, 2), (3, 3)] {
        world.learner(n, member_id).unwrap();
        world.promote(n, member_id).unwrap();
    }
    world.must(command([Change::SetDesiredRole { node: id(4), role: manager }]));
    world
}

fn on(node: u8, tables: &Tables) -> Recovery {
    on_at(node, tables, WallTime(T0.0 + HOUR))
}
fn on_at(node: u8, tables: &Tables, at: WallTime) -> Recovery {
    Recovery {
        node: id(node),
        admit_as: None,
        addr: "10.9.9.9:4400".to_owned(),
        incarnation: next_incarnation(tables.cluster.as_ref().unwrap(), at),
        at,
        reason: "a test".to_owned(),
    }
}

#[test]
fn recovery_keeps_one_manager_and_demotes_the_others() {
    let World { tables: before } = three_managers();
    let mut tables = before.clone();
    let done = recover(&mut tables, &on(3, &before)).unwrap();
    invariants::check(&tables).unwrap();
    invariants::check_step(&before, &tables).unwrap();
    let names: Vec<&str> = done.lost.iter().map(|lost| lost.name.as_str()).collect();
    assert_eq!((names, done.workers), (vec!["n1", "n2", "n4"], 1));
    for n in [1, 2, 4, 5] {
        let record = &tables.nodes[&id(n)];
        assert_eq!((record.role, record.desired_role), (Role::Worker, Role::Worker), "n{n}");
        assert_eq!(tables.membership_of(id(n)), Membership::None, "n{n}");
    }
    let survivor = &tables.nodes[&id(3)];
    assert_eq!((survivor.role, survivor.addr.as_str()), (Role::Manager, "10.9.9.9:4400"));
    let members: Vec<_> = tables.members.values().map(|m| (m.node, m.voter)).collect();
    assert_eq!(members, [(id(3), true)]);
    assert!(
        [1, 2, 3].iter().all(|member_id| tables.removed_raft_ids.contains(&RaftId(*member_id))),
        "also the survivor's own"
    );
    let cluster = tables.cluster.as_ref().unwrap();
    assert_eq!((cluster.incarnation, cluster.id), (done.incarnation, before.cluster.as_ref().unwrap().id));
    assert!(tables.events.iter().any(|e| e.kind == EventKind::Cluster && e.revision == tables.revision));
    assert_eq!(snapshot::decode(&snapshot::encode(&tables)).unwrap(), tables);
}

/// A lost manager may have handed out tokens and member ids unknown to this replica.
#[test]
fn recovery_skips_revisions_and_raft_ids_of_lost_managers() {
    let World { tables: mut behind } = three_managers();
    let mut ahead = World { tables: behind.clone() };
    for n in 0..500_u32 {
        let label = [("n".to_owned(), n.to_string())].into();
        ahead.must(command([Change::UpdateLabels { node: id(5), add: label, remove: vec![] }]));
    }
    let recovery = on(1, &behind);
    let done = recover(&mut behind, &recovery).unwrap();
    assert!(behind.revision > ahead.tables.revision);
    assert!(done.raft_id > ahead.tables.next_raft_id && behind.next_raft_id > done.raft_id);
}

/// The same backup again on a better machine, the wrong manager first and then another, a backup from before a recovery: the
/// recoveries start from replicas that know nothing of each other.
#[test]
fn later_recovery_hands_out_larger_numbers() {
    let original = three_managers();
    let (mut revision, mut member_id) = (original.tables.revision, RaftId(0));
    let mut recovered = original.clone();
    for (n, from_original) in (0..).zip([true, true, false, true, false, false, true]) {
        let mut world = if from_original { original.clone() } else { recovered };
        // A second later each time; no cluster writes a million entries in a second.
        let recovery = on_at(1 + n % 3, &world.tables, WallTime(T0.0 + HOUR + 1000 * i64::from(n)));
        let done = recover(&mut world.tables, &recovery).unwrap();
        assert!(done.revision > revision && done.raft_id > member_id, "recovery {n}: {done:?}");
        for writes in 0..300_u32 {
            let label = [("n".to_owned(), writes.to_string())].into();
            world.must(command([Change::UpdateLabels { node: id(5), add: label, remove: vec![] }]));
        }
        (revision, member_id) = (world.tables.revision, world.tables.next_raft_id);
        invariants::check(&world.tables).unwrap();
        recovered = world;
    }
    let double = f64::from(u32::MAX) * f64::from(1 << 21); // 2⁵³
    assert!((revision.0 as f64) < double, "within JavaScript's exact integers: {revision}");
}

/// In the replica, one lease is held and another is free. Others may have acquired either since, and rely on it for its duration.
#[test]
fn recovered_leases_are_withheld_for_their_duration() {
    let mut world = three_managers();
    world.must(acquire("held", "a", 1));
    world.must(acquire("free", "b", 2));
    let key = |name: &str| ObjectKey::lease("default", name);
    let lease = |world: &World, name: &str| world.tables.objects[&key(name)].lease().unwrap().clone();
    let token = lease(&world, "free").holding.token;
    world.must(command([Change::ReleaseLease { key: key("free"), session: SessionId(2), token }]));
    let given_out = world.tables.revision;
    let recovery = on(1, &world.tables);
    let done = recover(&mut world.tables, &recovery).unwrap();
    invariants::check(&world.tables).unwrap();
    assert_eq!(done.leases, 2);
    for name in ["held", "free"] {
        let now = lease(&world, name);
        assert_eq!(
            (now.spec.held_by(), now.is_live(), now.holding.session),
            (Some(UNKNOWN_HOLDER), true, None),
            "{name}"
        );
        assert!(now.holding.token.0 > given_out.0, "{name}: renewals under the old token are lost");
        for (holder, session) in [("a", 1), ("a", 7), ("b", 2), ("c", 3)] {
            let refused = world.refused(acquire(name, holder, session));
            assert!(matches!(refused, CommandRefusal::LeaseHeld { .. }), "{name} for {holder}: {refused:?}");
        }
        // The leader's clock, which starts anew, runs out.
        world.must(command([Change::ExpireLease(key(name))]));
        world.must(acquire(name, "a", 1));
        assert!(lease(&world, name).holding.token > now.holding.token, "{name}");
    }
    let lease_events = world.tables.events.iter().filter(|e| e.kind == EventKind::Lease && e.revision == done.revision);
    assert_eq!(lease_events.count(), 1, "one event for all of them");
}

/// Another holder may have acquired it after the replica was made, and rely on it for its duration.
#[test]
fn unknown_lease_is_free_after_its_duration() {
    let mut world = three_managers();
    world.must(command([Change::SetFeatureLevel(IDENTITY_LEVEL)]));
    let recovery = on(1, &world.tables);
    recover(&mut world.tables, &recovery).unwrap();
    let at = |ms: i64, command: Command| Command { at: WallTime(recovery.at.0 + ms), ..command };
    let lease = |name: &str, holder: Option<&str>| Object {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        meta: ObjectMeta::fresh(Uid(1)),
        body: ObjectBody::Lease(Lease {
            spec: LeaseSpec { holder: holder.map(str::to_owned), duration_ms: Some(15_000), ..LeaseSpec::default() },
            ..Lease::default()
        }),
    };
    let create = |name: &str, holder| command([Change::CreateObject(Box::new(lease(name, holder)))]);
    let update = |name: &str, holder| {
        command([Change::UpdateObject { object: Box::new(lease(name, holder)), write: ClientWrite::default() }])
    };
    world.must(at(1, create("empty", None)));
    let attempts = [
        ("a session", acquire("native", "a", 1)),
        ("a session, of an empty lease", acquire("empty", "a", 1)),
        ("a Kubernetes client creates it", create("created", Some("a"))),
        ("a Kubernetes client fills an empty one", update("empty", Some("a"))),
    ];
    for (who, attempt) in &attempts {
        let refused = world.refused(at(14_999, attempt.clone()));
        assert!(
            matches!(&refused, CommandRefusal::LeaseHeld { holder, .. } if holder == UNKNOWN_HOLDER),
            "{who}: {refused:?}"
        );
    }
    world.must(at(15_000, attempts[0].1.clone()));
    world.must(at(15_000, attempts[2].1.clone()));
    world.must(at(15_000, attempts[3].1.clone()));
}

#[test]
fn recovery_is_refused_with_a_clock_behind_the_replica() {
    let mut world = three_managers();
    let founded = on_at(1, &world.tables, WallTime(T0.0 - 1));
    assert_eq!(
        recover(&mut world.tables, &founded),
        Err(CannotRecover::ClockBehind { clock: WallTime(T0.0 - 1), began: T0 })
    );
    let recovery = on(1, &world.tables);
    recover(&mut world.tables, &recovery).unwrap();
    let again = on_at(1, &world.tables, WallTime(T0.0 + HOUR - 1));
    let refused = recover(&mut world.tables, &again).unwrap_err().to_string();
    assert!(refused.contains("set the clock right"), "{refused}");
}

/// Two operators, two replicas: the resulting clusters must not mistake each other for the same.
#[test]
fn later_recovery_has_the_higher_incarnation() {
    let World { tables } = three_managers();
    let cluster = tables.cluster.as_ref().unwrap();
    let at = |millis| next_incarnation(cluster, WallTime(millis));
    assert!(at(T0.0 + 1) > at(T0.0));
    assert!(at(-5) > cluster.incarnation && at(0) > cluster.incarnation, "also with an unset clock");
    let mut recovered = tables.clone();
    recover(&mut recovered, &on(1, &tables)).unwrap();
    let later = recovered.cluster.as_ref().unwrap();
    assert!(next_incarnation(later, WallTime(0)) > later.incarnation, "a clock that was set back");
}

#[test]
fn survivor_being_removed_stays() {
    let mut world = three_managers();
    let removal = Removal { by: Principal::Operator, forced: false, at: T0 };
    world.must(command([Change::SetDesiredRole { node: id(2), role: Role::Worker }]));
    world.must(command([Change::SetRemoving { node: id(2), removal }]));
    let recovery = on(2, &world.tables);
    recover(&mut world.tables, &recovery).unwrap();
    let record = &world.tables.nodes[&id(2)];
    assert_eq!((record.desired_role, record.removing.clone()), (Role::Manager, None));
    invariants::check(&world.tables).unwrap();
}

#[test]
fn a_new_machine_is_admitted_under_a_name_that_is_free() {
    let mut world = three_managers();
    let restored = Recovery { admit_as: Some(name("n1")), ..on(9, &world.tables) };
    let done = recover(&mut world.tables, &restored).unwrap();
    assert_eq!(done.name.as_str(), "n1-2");
    assert_eq!(world.tables.nodes[&id(9)].granted, world.tables.revision, "a certificate can be signed for it");
    assert_eq!(done.lost.len(), 4, "the machine with that name is lost like the others");
    invariants::check(&world.tables).unwrap();
}

#[test]
fn refused_recovery_changes_nothing() {
    let mut world = three_managers();
    world.must(command([block(9, T0)]));
    let tables = &world.tables;
    let found = tables.cluster.as_ref().unwrap().incarnation;
    let again = Recovery { incarnation: found, ..on(1, tables) };
    for (from, recovery, why) in [
        (Tables::default(), on(1, tables), CannotRecover::Empty),
        (tables.clone(), on(8, tables), CannotRecover::Unknown(id(8))),
        (tables.clone(), on(9, tables), CannotRecover::Blocked(id(9))),
        (tables.clone(), again, CannotRecover::Incarnation { found, wanted: found }),
    ] {
        let mut after = from.clone();
        assert_eq!(recover(&mut after, &recovery), Err(why));
        assert_eq!(after, from);
    }
}
