//! Each state of the core.

use std::time::Duration;

use muster_autolock::FollowFault;
use muster_autolock::core::{Effect, Input, State};
use muster_messages::{AutolockChange, Revision, Secret};

use crate::world::*;

pub fn enable(key: &str) -> AutolockChange {
    AutolockChange::Enable { key: Secret::new(key) }
}

pub fn rotate(key: &str) -> AutolockChange {
    AutolockChange::Rotate { key: Secret::new(key) }
}

fn on_record(world: &World) -> Option<Revision> {
    world.log.autolock.seals.get(&me()).map(|report| report.seal.version)
}

#[test]
fn without_autolock_nothing_is_written_or_reported() {
    let mut world = World::new();
    world.run();
    assert_eq!((world.core.state(), world.writes, on_record(&world)), (State::NeverOn, 0, None));
}

#[test]
fn each_version_is_written_once_and_then_reported() {
    let mut world = World::new();
    for (writes, change) in [enable("a"), rotate("b"), AutolockChange::Disable, enable("c")].into_iter().enumerate() {
        let version = world.change(change);
        assert_ne!(on_record(&world), Some(version));
        world.run();
        assert_eq!((world.core.state(), on_record(&world)), (State::Current, Some(version)));
        assert_eq!((world.writes, &world.disk.1), (writes + 1, &world.log.autolock.key));
        let sealed = world.log.autolock.seals[&me()].seal.sealed;
        assert_eq!(sealed, world.log.autolock.is_on());
    }
    world.restart(true);
    world.run();
    assert_eq!((world.core.state(), world.writes), (State::Current, 4), "a restart compares and writes nothing");
}

fn is_whole(world: &World) -> Option<bool> {
    world.log.autolock.seals.get(&me()).map(|report| report.seal.files_sealed)
}

/// On a full disk, or a mount point, files stay under a key that lay in clear: the report says so, until that has changed.
#[test]
fn files_that_are_not_sealed_yet_are_reported_as_such() {
    let mut world = World::new();
    world.failures_left = 20;
    world.change(enable("a"));
    for _ in 0..10 {
        while world.act() {}
        world.show();
        world.pass(Duration::from_secs(1));
    }
    assert_eq!((is_whole(&world), world.core.state()), (Some(false), State::Current));
    world.failures_left = 0;
    for _ in 0..3 {
        while world.act() {}
        world.show();
        world.pass(Duration::from_secs(60));
    }
    assert_eq!((is_whole(&world), world.core.state()), (Some(true), State::Current));
    assert_eq!(world.wake, None, "it tries no longer");
}

/// The pause grows to a minute; another key of the keyring is followed at once.
#[test]
fn attempts_to_seal_files_become_rare_until_the_key_changes() {
    let mut world = World::new();
    world.failures_left = 1000;
    let attempts = |world: &World| 1000 - world.failures_left;
    world.change(enable("a"));
    let mut tried = Vec::new();
    for second in 0..200 {
        let before = attempts(&world);
        while world.act() {}
        world.show();
        if attempts(&world) > before {
            tried.push(second);
        }
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(tried, [1, 2, 4, 8, 16, 32, 64, 124, 184]);
    let before = attempts(&world);
    world.change(rotate("b"));
    for _ in 0..2 {
        while world.act() {}
        world.show();
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(attempts(&world), before + 1);
}

/// An attempt that began before the keyring had another key proves nothing about that key.
#[test]
fn late_answer_about_files_does_not_count() {
    let mut world = World::new();
    let first = world.change(enable("a"));
    world.run();
    world.failures_left = 1;
    let second = world.change(rotate("b"));
    world.show();
    let Some(Effect::Follow { version, key }) = world.pending.pop_front() else { panic!("it follows") };
    assert_eq!(version, second);
    let written = world.follow(version, key);
    world.input(Input::Followed(version, written));
    world.input(Input::FilesSealed(first, true));
    while world.act() {}
    assert_eq!(is_whole(&world), Some(false));
}

#[test]
fn several_rotations_at_once_are_one_write() {
    let mut world = World::new();
    world.change(enable("a"));
    world.change(rotate("b"));
    let last = world.change(rotate("c"));
    world.run();
    assert_eq!((world.writes, world.disk.0), (1, last));
    assert!(world.log.autolock.previous.is_empty(), "no manager needs them");
}

#[test]
fn full_disk_is_tried_again_and_shown() {
    let mut world = World::new();
    let version = world.change(enable("a"));
    world.disk_full = true;
    world.show();
    for _ in 0..100 {
        while world.act() {}
        world.pass(Duration::from_secs(1));
    }
    assert_eq!((world.core.state(), on_record(&world)), (State::Retrying, None));
    assert_eq!(world.core.fault(), Some(&FollowFault::Failed("no space left".to_owned())));
    assert_eq!(world.failures.len(), 1, "one line in the log for one reason");
    world.disk_full = false;
    world.run();
    assert_eq!((world.core.state(), on_record(&world), world.core.fault()), (State::Current, Some(version), None));
}

/// K17. The keyring went further than this replica knows: the process has restarted.
#[test]
fn older_replica_changes_nothing() {
    let mut world = World::new();
    world.change(enable("a"));
    let behind = world.log.clone();
    world.change(AutolockChange::Disable);
    world.run();
    let disk = world.disk.clone();
    world.shown = behind;
    world.restart(true);
    while world.act() {}
    assert_eq!((world.core.state(), &world.disk), (State::ReplicaBehind, &disk));
    world.run();
    assert_eq!((world.core.state(), world.writes), (State::Current, 1));
}

#[test]
fn equal_version_with_another_key_is_shown_as_a_fault() {
    let mut world = World::new();
    let version = world.change(enable("a"));
    world.disk = (version, Some(Secret::new("b")));
    world.run();
    assert_eq!((world.core.state(), on_record(&world)), (State::Fault, None));
    assert_eq!(world.core.fault(), Some(&FollowFault::OtherKey(version)));
    assert_eq!(world.disk, (version, Some(Secret::new("b"))), "nothing is rewritten");
    for _ in 0..100 {
        world.pass(Duration::from_secs(1));
        while world.act() {}
    }
    assert_eq!((world.failures.len(), world.attempts), (1, 1), "and it is not tried again");
    let next = world.change(rotate("c"));
    world.run();
    assert_eq!((world.core.state(), on_record(&world)), (State::Current, Some(next)), "a newer version ends it");
}

/// A replica that was behind catches up: the key of the version on disk is compared then, too.
#[test]
fn key_is_compared_when_the_replica_catches_up() {
    let mut world = World::new();
    world.change(enable("a"));
    world.run();
    let behind = world.shown.clone();
    let version = world.change(rotate("b"));
    world.disk = (version, Some(Secret::new("another")));
    world.shown = behind;
    world.restart(true);
    while world.act() {}
    assert_eq!(world.core.state(), State::ReplicaBehind);
    world.run();
    assert_eq!((world.core.state(), world.core.fault()), (State::Fault, Some(&FollowFault::OtherKey(version))));
}

/// The log names what was written, and not what is wanted meanwhile.
#[test]
fn write_that_is_overtaken_is_logged_as_it_was() {
    let mut world = World::new();
    let sealed = world.change(enable("a"));
    world.show();
    let clear = world.change(AutolockChange::Disable);
    world.show();
    world.run();
    assert_eq!(world.took, [(sealed, true), (clear, false)]);
}

/// The answer to a report of an earlier version does not delay that of a newer one.
#[test]
fn late_answer_does_not_delay_a_newer_report() {
    for no_leader in [false, true] {
        let mut world = World::new();
        world.change(enable("a"));
        world.show();
        assert!(world.act() && world.act() && world.act(), "written, logged, and the files sealed");
        let Some(Effect::Report(seal)) = world.pending.pop_front() else { panic!("a report follows") };
        world.no_leader = no_leader;
        let answer = world.report(seal);
        world.no_leader = false;
        let newer = world.change(rotate("b"));
        world.show();
        while world.act() {}
        world.input(Input::Reported(answer));
        while world.act() {}
        assert_eq!(on_record(&world), Some(newer), "at once");
    }
}

#[test]
fn report_is_repeated_until_it_is_on_record() {
    let mut world = World::new();
    let version = world.change(enable("a"));
    world.no_leader = true;
    world.show();
    for _ in 0..20 {
        while world.act() {}
        world.pass(Duration::from_secs(1));
    }
    assert_eq!((world.core.state(), on_record(&world)), (State::Reporting, None));
    world.no_leader = false;
    world.run();
    assert_eq!(on_record(&world), Some(version));
}
