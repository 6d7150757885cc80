use super::world::*;
use crate::core::Notice;

fn small() -> World {
    let mut w = World::seeded(61);
    w.config.snapshot_entries = 50;
    w.config.keep_entries = 10;
    w.grow(3);
    w
}

fn write_many(w: &mut World, count: usize) {
    for i in 0..count / 10 {
        let asks: Vec<_> = (0..10).map(|j| w.propose(1, label("a", &format!("{i}-{j}")))).collect();
        for ask in asks {
            w.applied(ask);
        }
    }
}

#[test]
fn the_log_is_cut_and_a_restart_begins_from_the_snapshot() {
    let mut w = small();
    write_many(&mut w, 200);
    w.run(ms(200));
    for n in 1..=3 {
        let (first, last, snapshot) = w.core(n).log_span();
        assert!(snapshot > 100 && last - first < 120, "{first} {last} {snapshot}");
    }
    let at = w.core(1).tables().revision;
    (1..=3).for_each(|n| w.crash(n, 0));
    (1..=3).for_each(|n| w.restart(n));
    w.until("it leads again", |w| w.leading().is_some());
    assert!(w.core(w.leading().unwrap()).tables().revision >= at);
}

#[test]
fn a_snapshot_that_finds_no_room_is_not_tried_with_every_entry() {
    let mut w = small();
    w.run(ms(300));
    w.no_room = true;
    w.snapshots_tried = 0;
    write_many(&mut w, 300);
    assert!(w.snapshots_tried <= 3, "once on each member, not {}", w.snapshots_tried);
    w.no_room = false;
    w.run(ms(10_000));
    write_many(&mut w, 10);
    w.run(ms(200));
    for n in 1..=3 {
        let (_, last, snapshot) = w.core(n).log_span();
        assert!(last - snapshot < 60, "{snapshot} {last}");
    }
}

#[test]
fn a_follower_that_missed_too_much_catches_up_by_snapshot() {
    let mut w = small();
    w.run(ms(300));
    w.crash(3, 0);
    write_many(&mut w, 200);
    w.restart(3);
    let at = w.core(1).tables().revision;
    w.until("it catches up", |w| w.core(3).tables().revision >= at);
    assert!(w.nodes[&3].notices.iter().any(|(_, n)| matches!(n, Notice::Installed { .. })));
    w.crash(3, 0);
    w.restart(3);
    w.run(ms(500));
    assert!(w.core(3).tables().revision >= at, "what was installed was durable");
}

#[test]
fn a_follower_that_missed_little_needs_no_snapshot() {
    let mut w = World::cluster(62, 3);
    w.run(ms(300));
    w.crash(3, 0);
    write_many(&mut w, 50);
    w.restart(3);
    let before = w.nodes[&3].notices.len();
    let at = w.core(1).tables().revision;
    w.until("it catches up", |w| w.core(3).tables().revision >= at);
    assert!(!w.nodes[&3].notices[before..].iter().any(|(_, n)| matches!(n, Notice::Installed { .. })));
}

#[test]
fn a_crash_while_a_snapshot_settles_loses_nothing() {
    for survive in 0..3 {
        let mut w = small();
        w.run(ms(300));
        w.crash(3, 0);
        write_many(&mut w, 200);
        w.restart(3);
        w.nodes.get_mut(&3).unwrap().disk_takes = Some(ms(2000));
        w.until("a snapshot is on its way", |w| {
            w.nodes[&1].notices.iter().any(|(_, n)| matches!(n, Notice::Sending { to, .. } if to.0 == 3))
        });
        w.run(ms(700));
        w.crash(3, survive);
        w.restart(3);
        let at = w.core(1).tables().revision;
        w.until("it catches up", |w| w.core(3).tables().revision >= at);
    }
}

#[test]
fn a_lost_snapshot_is_sent_again() {
    let mut w = small();
    w.run(ms(300));
    w.crash(3, 0);
    write_many(&mut w, 200);
    w.loss_percent = 40;
    w.restart(3);
    let at = w.core(1).tables().revision;
    w.until("it catches up", |w| w.core(3).tables().revision >= at);
}
