//! Members of different builds in one cluster.

use muster_messages::{Change, FEATURE_LEVEL};

use super::world::*;
use crate::core::Input;

/// Node 3 is of a build that supports level 1, the cluster's level.
fn with_an_old_third(seed: u64) -> World {
    let mut w = World::seeded(seed);
    w.config.snapshot_entries = 50;
    w.config.keep_entries = 10;
    w.grow(2);
    w.config.feature_level = 1;
    w.join(3);
    w.config.feature_level = FEATURE_LEVEL;
    w
}

fn raise(w: &mut World) -> muster_messages::Revision {
    let leader = w.leading().expect("a leader");
    let ask = w.propose(leader, command().change(Change::SetFeatureLevel(2)));
    let at = w.applied(ask);
    for i in 0..30 {
        let ask = w.propose(leader, label("after", &i.to_string()));
        w.applied(ask);
    }
    at
}

#[test]
fn nothing_is_applied_after_an_unsupported_level_raise() {
    let mut w = with_an_old_third(71);
    let at = raise(&mut w);
    w.until("node 3 is incompatible", |w| w.core(3).incompatible() == Some(2));
    w.run(ms(2_000));
    assert_eq!((w.core(3).tables().revision, w.label(3, "after")), (at, None));
    assert_eq!((w.core(1).incompatible(), w.label(2, "after").as_deref()), (None, Some("29")));
    let read = w.read(3);
    assert!(w.read_outcome(read).is_err(), "its reads are refused");

    // The same build again: it learns the same from its disk.
    w.crash(3, usize::MAX);
    w.config.feature_level = 1;
    w.restart(3);
    w.run(ms(2_000));
    assert!(w.core(3).tables().revision <= at);
    // A newer build continues from the same data.
    w.crash(3, usize::MAX);
    w.config.feature_level = FEATURE_LEVEL;
    w.restart(3);
    w.until("it catches up", |w| w.label(3, "after").as_deref() == Some("29"));
}

#[test]
fn incompatible_leader_steps_down_for_a_compatible_one() {
    let mut w = with_an_old_third(72);
    w.run(ms(500));
    let (transfer, to) = (w.ask(), Some(node_id(3)));
    w.tell(1, Input::TransferLeadership { ask: transfer, to });
    w.until("node 3 leads", |w| w.leading() == Some(3));
    let ask = w.propose(3, command().change(Change::SetFeatureLevel(2)));
    w.applied(ask);
    w.until("another one leads", |w| w.leading().is_some_and(|leader| leader != 3));
    let leader = w.leading().unwrap();
    let ask = w.propose(leader, label("after", "x"));
    w.applied(ask);
    assert_eq!(w.label(3, "after"), None);
}

#[test]
fn nothing_is_applied_after_a_snapshot_of_a_newer_level() {
    let mut w = with_an_old_third(73);
    w.isolate(3);
    raise(&mut w);
    for i in 0..200 {
        let ask = w.propose(w.leading().unwrap(), label("more", &i.to_string()));
        w.applied(ask);
    }
    w.clear_faults();
    w.until("node 3 is incompatible", |w| w.core(3).incompatible().is_some());
    let at = w.core(3).tables().revision;
    let ask = w.propose(w.leading().unwrap(), label("after", "x"));
    w.applied(ask);
    w.run(ms(1_000));
    assert_eq!(w.core(3).tables().revision, at);
}
