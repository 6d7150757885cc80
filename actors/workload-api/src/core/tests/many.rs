//! As many streams as a large machine has programs.

use super::*;

const STREAMS: u64 = 1000;

/// Three users share them: each may have 400.
fn uid_of(id: u64) -> u32 {
    7 + u32::try_from(id % 3).unwrap()
}

#[test]
fn a_thousand_streams_follow_each_change_within_a_second() {
    let entries: Vec<WorkloadEntry> =
        (7..10).map(|uid| entry(&format!("a/{uid}"), &[&format!("unix:uid:{uid}")])).collect();
    let mut world = World::with(&entries);
    for id in 0..STREAMS {
        // Each user asks 34 times a second.
        world.now = world.now + SECOND / 100;
        world.ask(id, uid_of(id));
    }
    world.pass_as(SECOND, uid_of);
    for id in 0..STREAMS {
        assert_eq!(world.received(id), [format!("a/{}", uid_of(id))], "stream {id}");
    }
    assert_eq!((world.core.streams(), world.signatures), (1000, 3), "one certificate for each workload");

    let both = Roots { der: vec![1, 2], keys: BTreeSet::from([vec![1], vec![2]]), ..Roots::default() };
    let view = world.core.view().unwrap().clone();
    world.step(Input::View(View { roots: Arc::new(both), ..view.clone() }));
    world.pass_as(SECOND, uid_of);
    for id in 0..STREAMS {
        assert_eq!(world.verifiable(id), [true], "stream {id} has the next root");
    }

    let left = Arc::new(entries[1..].to_vec());
    let view = world.core.view().unwrap().clone();
    world.step(Input::View(View { entries: left, ..view }));
    world.pass_as(SECOND, uid_of);
    for id in 0..STREAMS {
        let denied = world.received(id).iter().any(|what| what == "denied");
        assert_eq!(denied, uid_of(id) == 7, "stream {id}");
    }
    assert_eq!(world.core.streams(), 666);
}
