//! Random interleavings of changes, crashes, full disks and missing leaders. `World` checks the invariants of the store at each
//! revision, and SEAL-11 at each report.

use std::time::Duration;

use muster_autolock::core::State;
use muster_messages::AutolockChange;
use proptest::prelude::*;

use crate::steps::{enable, rotate};
use crate::world::*;

#[derive(Clone, Debug)]
enum Event {
    Change(AutolockChange),
    /// The replica catches up.
    Show,
    /// One effect is carried out.
    Act,
    Crash {
        writes: bool,
    },
    DiskFull(bool),
    NoLeader(bool),
    /// So many attempts to seal the files fail.
    Rewrites(u32),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => "[a-c]".prop_map(|key| Event::Change(enable(&key))),
        2 => "[a-c]".prop_map(|key| Event::Change(rotate(&key))),
        1 => Just(Event::Change(AutolockChange::Disable)),
        5 => Just(Event::Show),
        8 => Just(Event::Act),
        2 => any::<bool>().prop_map(|writes| Event::Crash { writes }),
        1 => any::<bool>().prop_map(Event::DiskFull),
        1 => any::<bool>().prop_map(Event::NoLeader),
        2 => (0..4u32).prop_map(Event::Rewrites),
        3 => (1..90_000u64).prop_map(Event::Pass),
    ]
}

fn step(world: &mut World, event: Event) {
    match event {
        Event::Change(change) => drop(world.change(change)),
        Event::Show => world.show(),
        Event::Act => drop(world.act()),
        Event::Crash { writes } => world.restart(writes),
        Event::DiskFull(full) => world.disk_full = full,
        Event::NoLeader(none) => world.no_leader = none,
        Event::Rewrites(failures) => world.failures_left = failures,
        Event::Pass(ms) => world.pass(Duration::from_millis(ms)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn keyring_comes_to_rest_at_the_replicated_version(events in proptest::collection::vec(event(), 1..60)) {
        let mut world = World::new();
        let mut version = world.disk.0;
        for event in events {
            step(&mut world, event);
            prop_assert!(world.disk.0 >= version, "SEAL-6");
            version = world.disk.0;
            // What a node may need to start is on record (SEAL-9).
            let (on_disk, key) = &world.disk;
            let known = world.log.autolock.key_of(*on_disk).map(|(key, _)| key);
            prop_assert_eq!(known, key.as_ref());
        }
        (world.disk_full, world.no_leader) = (false, false);
        world.show();
        world.run();
        // The last attempts may be a minute apart.
        for _ in 0..300 {
            while world.act() {}
            world.show();
            world.pass(Duration::from_secs(1));
        }
        let autolock = world.log.autolock.clone();
        let state = world.core.state();
        if autolock.version.0 == 0 {
            prop_assert_eq!(state, State::NeverOn);
        } else {
            prop_assert_eq!(state, State::Current);
            prop_assert_eq!(&world.disk, &(autolock.version, autolock.key.clone()));
            prop_assert!(autolock.previous.is_empty());
            prop_assert!(!autolock.is_on() || autolock.seals[&me()].seal.files_sealed);
        }
    }
}
