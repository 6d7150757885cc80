//! The unlock key: its versions, and how long former ones are kept.

use muster_messages::*;

use crate::world::*;

pub fn enable(key: &str) -> Change {
    change(AutolockChange::Enable { key: Secret::new(key) })
}

pub fn rotate(key: &str) -> Change {
    change(AutolockChange::Rotate { key: Secret::new(key) })
}

pub fn disable() -> Change {
    change(AutolockChange::Disable)
}

/// The keyring of node `n` is sealed under this version.
pub fn sealed(n: u8, version: Revision) -> Change {
    let seal = Seal { version, sealed: true, files_sealed: true, unlock: AutoUnlock::None };
    change(AutolockChange::Sealed { node: id(n), seal })
}

fn change(change: AutolockChange) -> Change {
    Change::Autolock(Box::new(change))
}

fn must(world: &mut World, change: Change) -> Revision {
    world.must(command([change]));
    world.tables.autolock.version
}

/// Three managers.
fn world() -> World {
    World::founded_at(IDENTITY_LEVEL).with([(2, Role::Manager), (3, Role::Manager), (4, Role::Worker)])
}

fn key(world: &World) -> Option<&str> {
    world.tables.autolock.key.as_ref().map(Secret::expose)
}

/// The former keys on record.
fn former(world: &World) -> Vec<&str> {
    world.tables.autolock.previous.iter().map(|former| former.key.expose()).collect()
}

fn liveness(world: &mut World, n: u8, liveness: Liveness) {
    must(world, Change::SetLiveness { node: id(n), liveness });
}

fn demote(world: &mut World, n: u8) {
    must(world, Change::GrantRole { node: id(n), role: Role::Worker });
}

/// Records a certificate for its granted role.
fn certify(world: &mut World, n: u8) {
    let (role, granted) = (world.record(n).role, world.record(n).granted);
    let certificate = certificate(role, Some(granted), T0.0 + i64::try_from(world.next().0).unwrap());
    must(world, Change::RecordCertificate { node: id(n), certificate });
}

/// Node 1 continues alone.
fn recovered(world: &mut World) {
    use muster_store::recovery::{Recovery, next_incarnation, recover};
    let at = WallTime(T0.0 + HOUR);
    let incarnation = next_incarnation(world.tables.cluster.as_ref().unwrap(), at);
    let (addr, reason) = ("10.0.0.1:4400".to_owned(), "a test".to_owned());
    let recovery = Recovery { node: id(1), admit_as: None, addr, incarnation, at, reason };
    recover(&mut world.tables, &recovery).unwrap();
    muster_store::invariants::check(&world.tables).unwrap();
}

#[test]
fn unlock_key_changes_only_when_it_is_rotated() {
    let mut world = world();
    assert_eq!(world.refused(command([rotate("a")])), CommandRefusal::Autolock(AutolockRefusal::NotEnabled));
    must(&mut world, disable());
    assert_eq!(world.tables.autolock, Autolock::default(), "off already");

    let first = must(&mut world, enable("a"));
    assert_eq!((key(&world), first), (Some("a"), world.tables.revision));
    assert_eq!(must(&mut world, enable("b")), first, "on already");
    assert_eq!(key(&world), Some("a"));

    let second = must(&mut world, rotate("b"));
    assert!(second > first);
    assert_eq!((key(&world), former(&world)), (Some("b"), vec!["a"]));
    let third = must(&mut world, disable());
    assert!(third > second, "off is a version, too: a keyring follows it, whatever an older replica says");
    assert_eq!((key(&world), former(&world)), (None, vec!["a", "b"]));
    let events = format!("{:?}", world.tables.events);
    assert!(events.contains(&format!("autolock on, key of version {second}")) && !events.contains("\"b\""), "{events}");
}

#[test]
fn one_command_sets_one_key() {
    let mut world = world();
    let twice = world.refused(command([enable("a"), rotate("b")]));
    assert!(matches!(twice, CommandRefusal::Stale { .. }), "{twice:?}");
}

#[test]
fn autolock_waits_for_feature_level_three() {
    let mut world = World::founded_at(2);
    let early = world.refused(command([enable("a")]));
    assert_eq!(early, CommandRefusal::FeatureLevel { needs: 3, level: 2 });
}

#[test]
fn former_key_is_kept_until_each_manager_has_left_it() {
    let mut world = world();
    let first = must(&mut world, enable("a"));
    for n in [1, 2] {
        must(&mut world, sealed(n, first));
    }
    let second = must(&mut world, rotate("b"));
    for n in [1, 2] {
        must(&mut world, sealed(n, second));
    }
    assert_eq!(former(&world), ["a"], "manager 3 has reported nothing");
    must(&mut world, sealed(3, first));
    assert_eq!(former(&world), ["a"]);
    let third = must(&mut world, rotate("c"));
    for n in [1, 2, 3] {
        assert_eq!(former(&world), ["a", "b"], "manager 3 may have stopped under either");
        must(&mut world, sealed(n, third));
    }
    assert!(former(&world).is_empty());
    assert_eq!(world.tables.autolock.key_of(third).map(|(key, _)| key.expose()), Some("c"));
    assert_eq!(world.tables.autolock.key_of(first), None);
}

#[test]
fn older_and_unknown_reports_change_nothing() {
    let mut world = world();
    let first = must(&mut world, enable("a"));
    let second = must(&mut world, rotate("b"));
    must(&mut world, sealed(2, second));
    let known = world.tables.autolock.clone();
    must(&mut world, sealed(2, first));
    assert_eq!(world.tables.autolock, known, "an older report");
    for (report, why) in [
        (sealed(2, second.next()), "a version of the future"),
        (sealed(2, Revision(0)), "no version"),
        (sealed(4, second), "a worker"),
    ] {
        assert!(matches!(world.refused(command([report])), CommandRefusal::Stale { .. }), "{why}");
    }
    assert!(matches!(world.refused(command([sealed(9, second)])), CommandRefusal::NotFound { .. }));
}

/// Its disk is sealed: it needs its key once, to learn that it is a worker.
#[test]
fn demoted_manager_that_is_down_keeps_its_key_on_record() {
    for (recorded, returns) in [(Liveness::Down, true), (Liveness::Down, false), (Liveness::Ready, true)] {
        let mut world = world();
        let first = must(&mut world, enable("a"));
        liveness(&mut world, 2, Liveness::Ready);
        for n in [1, 2, 3] {
            must(&mut world, sealed(n, first));
        }
        // `Ready`: it was killed, and the session monitor has not noticed yet.
        liveness(&mut world, 2, recorded);
        demote(&mut world, 2);
        let second = must(&mut world, rotate("b"));
        for n in [1, 3] {
            must(&mut world, sealed(n, second));
        }
        for again in [Liveness::Down, Liveness::Ready] {
            liveness(&mut world, 2, again);
            assert_eq!(former(&world), ["a"], "it has no worker's certificate yet");
        }
        if returns {
            certify(&mut world, 2);
        } else {
            must(&mut world, Change::SetDesiredRole { node: id(2), role: Role::Worker });
            must(&mut world, Change::DeleteNode(id(2)));
        }
        assert!(former(&world).is_empty() && !world.tables.autolock.seals.contains_key(&id(2)), "{returns}");
    }
}

#[test]
fn demoted_manager_that_is_up_needs_no_key() {
    let mut world = world();
    let first = must(&mut world, enable("a"));
    must(&mut world, sealed(2, first));
    demote(&mut world, 2);
    certify(&mut world, 2);
    assert!(world.tables.autolock.seals.is_empty());
}

/// It may be sealed under any key since it became a manager.
#[test]
fn demoted_manager_without_a_report_keeps_the_keys_on_record() {
    let mut world = world();
    certify(&mut world, 2);
    let first = must(&mut world, enable("a"));
    for n in [1, 3] {
        must(&mut world, sealed(n, first));
    }
    liveness(&mut world, 2, Liveness::Down);
    demote(&mut world, 2);
    let second = must(&mut world, rotate("b"));
    for n in [1, 3] {
        must(&mut world, sealed(n, second));
    }
    assert_eq!(former(&world), ["a"]);
    certify(&mut world, 2);
    assert!(former(&world).is_empty());
}

#[test]
fn managers_demoted_by_a_recovery_need_no_key_as_workers() {
    let mut world = world();
    let first = must(&mut world, enable("a"));
    for n in [1, 2, 3] {
        liveness(&mut world, n, Liveness::Ready);
        must(&mut world, sealed(n, first));
    }
    recovered(&mut world);
    let second = must(&mut world, rotate("b"));
    must(&mut world, sealed(1, second));
    assert_eq!(former(&world), ["a", "a"], "managers 2 and 3 may be under either version");
    for n in [2, 3] {
        certify(&mut world, n);
    }
    assert!(former(&world).is_empty());
    assert_eq!(world.tables.autolock.seals.keys().copied().collect::<Vec<_>>(), [id(1)]);
}

/// BOUND-1.
#[test]
fn recovery_leaves_room_to_switch_autolock_off() {
    let mut world = world();
    must(&mut world, enable("0"));
    while world.apply(command([rotate("next")])).is_ok() {}
    recovered(&mut world);
    must(&mut world, disable());
    assert_eq!(former(&world).len(), MAX_FORMER_KEYS);
}

#[test]
fn former_keys_are_bounded_and_autolock_can_end() {
    let mut world = world();
    must(&mut world, enable("0"));
    let mut count = 0;
    let refusal = loop {
        count += 1;
        let changes = if count % 3 == 0 { vec![disable(), enable("again")] } else { vec![rotate("next")] };
        let refused = changes.into_iter().find_map(|change| world.apply(command([change])).err());
        muster_store::invariants::check(&world.tables).unwrap();
        if let Some(refused) = refused {
            break refused;
        }
        assert!(count < 100, "nothing bounds them");
    };
    let full = AutolockRefusal::TooManyKeys { node: id(1) };
    assert_eq!(refusal, CommandRefusal::Autolock(full));
    must(&mut world, disable());
    assert!(former(&world).len() <= MAX_FORMER_KEYS);
    for n in [1, 2, 3] {
        let version = world.tables.autolock.version;
        must(&mut world, sealed(n, version));
    }
    assert!(former(&world).is_empty());
    must(&mut world, enable("z"));
}

#[test]
fn recovery_gives_the_key_a_newer_version() {
    use muster_store::recovery::{Recovery, next_incarnation, recover};
    let mut world = world();
    let first = must(&mut world, enable("a"));
    must(&mut world, sealed(1, first));
    let before = world.tables.clone();
    // It was rotated after this backup was made: keyrings are of a version that the backup does not know.
    let later = must(&mut world, rotate("b"));
    let mut restored = before.clone();
    let at = WallTime(T0.0 + HOUR);
    let incarnation = next_incarnation(before.cluster.as_ref().unwrap(), at);
    let (addr, reason) = ("10.0.0.1:4400".to_owned(), "a test".to_owned());
    let recovery = Recovery { node: id(1), admit_as: None, addr, incarnation, at, reason };
    recover(&mut restored, &recovery).unwrap();
    muster_store::invariants::check(&restored).unwrap();
    muster_store::invariants::check_step(&before, &restored).unwrap();
    let autolock = &restored.autolock;
    assert!(autolock.version > later && autolock.version == restored.revision);
    assert_eq!(autolock.key.as_ref().map(Secret::expose), Some("a"));
    assert_eq!(autolock.key_of(first).map(|(key, _)| key.expose()), Some("a"), "other managers may need it");

    let mut never_on = World::founded_at(IDENTITY_LEVEL).tables;
    let cluster = never_on.cluster.clone().unwrap();
    recover(&mut never_on, &Recovery { incarnation: next_incarnation(&cluster, at), ..recovery }).unwrap();
    assert_eq!(never_on.autolock, Autolock::default());
}
