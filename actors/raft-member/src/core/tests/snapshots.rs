use muster_messages::protocol::ProposeError;
use muster_messages::{Change, Role};

use super::world::*;
use crate::core::{Input, Notice};
use crate::disk::{LogDisk as _, SimDisk};

fn small() -> World {
    let mut w = World::seeded(61);
    w.config.snapshot_entries = 50;
    w.config.keep_entries = 10;
    w.config.keep_time = ms(0);
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
fn log_is_compacted_and_restart_uses_the_snapshot() {
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
fn snapshot_without_disk_space_is_retried_with_a_pause() {
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
fn follower_behind_the_log_catches_up_by_snapshot() {
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
    assert!(w.core(3).tables().revision >= at, "the installed snapshot was durable");
}

#[test]
fn follower_within_the_log_needs_no_snapshot() {
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
fn crash_during_snapshot_write_loses_nothing() {
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

/// Writes to the leader continuously, without waiting for the answers, until this holds.
fn write_until(w: &mut World, mut holds: impl FnMut(&World) -> bool) {
    let end = w.now + ms(60_000);
    let mut i = 0;
    while !holds(w) {
        assert!(w.now < end, "never\n{}", w.describe());
        w.propose(1, label("a", &format!("{i}")));
        w.run(ms(5));
        i += 1;
    }
}

/// SNAP-1. A transfer takes as long as some thousand entries, of which the leader otherwise keeps ten.
#[test]
fn slow_snapshot_under_load_brings_a_follower_up() {
    let mut w = small();
    w.run(ms(300));
    w.crash(3, 0);
    write_many(&mut w, 200);
    w.snapshots_take = ms(4000);
    w.snapshots_sent.clear();
    w.restart(3);
    write_until(&mut w, |w| w.core(3).tables().revision.0 + 10 >= w.core(1).tables().revision.0);
    assert_eq!(w.snapshots_sent.len(), 1, "{:?}", w.snapshots_sent);
    write_until(&mut w, |w| {
        let (first, last, _) = w.core(1).log_span();
        last - first < 100
    });
    let follows = |w: &World| w.core(3).tables().revision.0 + 10 >= w.core(1).tables().revision.0;
    assert!(follows(&w), "the log is short again, and the follower still follows");
}

/// A follower that is further behind is up to date sooner with the snapshot.
#[test]
fn tail_of_the_log_is_bounded_by_the_size_of_the_state() {
    let mut w = World::seeded(65);
    (w.config.snapshot_entries, w.config.keep_time) = (500, ms(30_000));
    w.grow(3);
    let text = "x".repeat(2000);
    for i in 0..350 {
        let asks: Vec<_> = (0..10).map(|j| w.propose(1, label("a", &format!("{i}-{j}{text}")))).collect();
        for ask in asks {
            w.applied(ask);
        }
    }
    w.run(ms(200));
    for n in 1..=3 {
        let (first, _, snapshot) = w.core(n).log_span();
        // 4 MiB of entries of some 2,300 bytes, of the 8 MB that were written in the last half minute.
        let kept = (snapshot + 1).saturating_sub(first);
        assert!((1_700..2_000).contains(&kept), "{kept} entries before the snapshot at {snapshot}");
    }
}

/// SNAP-1 has a bound: a receiver that never finishes does not fill the memory.
#[test]
fn the_log_kept_for_a_snapshot_is_bounded() {
    let mut w = World::seeded(64);
    (w.config.snapshot_entries, w.config.keep_entries, w.config.keep_time) = (50, 10, ms(0));
    w.config.transfer_bytes = 50_000;
    w.grow(3);
    w.run(ms(300));
    w.crash(3, 0);
    write_many(&mut w, 200);
    w.snapshots_take = ms(25_000);
    w.restart(3);
    let text = "x".repeat(2000);
    for i in 0..300 {
        let ask = w.propose(1, label("a", &format!("{i}{text}")));
        w.applied(ask);
    }
    w.run(ms(200));
    assert_eq!(w.snapshots_sent.iter().filter(|(to, _)| *to == 3).count(), 2, "one when it joined, one in progress");
    let (first, last, _) = w.core(1).log_span();
    assert!((20..150).contains(&(last - first)), "{first} to {last}");
}

/// SNAP-2, and F4: the leader receives the refusal, waits between attempts, encodes once, and reports which member does not
/// follow.
#[test]
fn refused_snapshot_is_reported_and_retried_with_a_pause() {
    let mut w = small();
    w.run(ms(300));
    w.crash(3, 0);
    write_many(&mut w, 200);
    w.refuses_snapshots = Some(3);
    w.snapshots_sent.clear();
    w.encoded.clear();
    w.restart(3);
    w.run(ms(30_000));
    assert!((3..=9).contains(&w.snapshots_sent.len()), "{} attempts in 30 s", w.snapshots_sent.len());
    assert_eq!(w.encoded.len(), 1, "one encoding serves all attempts");
    let member_id = w.member_id(3).unwrap();
    let progress = |w: &World| {
        let status = w.core(1).status(w.now);
        status.progress.into_iter().find(|p| p.raft_id == member_id).unwrap()
    };
    let problem = progress(&w).problem.expect("the problem is reported");
    assert!(problem.message.contains("it is too large"), "{}", problem.message);
    assert!(!progress(&w).answers_within(ms(100_000)), "it responds, but cannot follow");
    let reported = w.nodes[&1].notices.iter().filter(|(_, n)| matches!(n, Notice::SnapshotNotTaken { .. })).count();
    assert_eq!(reported, 1, "one notice");
    w.refuses_snapshots = None;
    let at = w.core(1).tables().revision;
    w.until("it catches up", |w| w.core(3).tables().revision >= at);
    w.until("the problem is gone", |w| progress(w).problem.is_none());
}

/// SNAP-3. A transfer that takes longer than the limit, but makes progress, is not lost.
#[test]
fn progressing_snapshot_transfer_is_not_given_up() {
    let mut w = small();
    w.config.snapshot_limit = ms(1000);
    w.run(ms(300));
    w.crash(3, 0);
    write_many(&mut w, 200);
    (1..=2).for_each(|n| w.crash(n, 0));
    (1..=2).for_each(|n| w.restart(n)); // with the new limit
    w.until("a leader", |w| w.leading().is_some());
    w.snapshots_take = ms(5000);
    w.snapshots_sent.clear();
    w.restart(3);
    let at = w.core(w.leading().unwrap()).tables().revision;
    w.until("it catches up", |w| w.core(3).tables().revision >= at);
    assert_eq!(w.snapshots_sent.len(), 1, "{:?}", w.snapshots_sent);
}

/// SIZE-1, SIZE-2.
#[test]
fn full_state_accepts_commands_that_shrink_it() {
    let mut w = World::seeded(63);
    w.config.max_snapshot_bytes = 64 << 10;
    w.grow(1);
    let big = "x".repeat(1000);
    let mut refused = None;
    for i in 0..200 {
        let ask = w.propose(1, label(&format!("key-{i}"), &big));
        if let Err(error) = w.outcome(ask) {
            refused = Some((i, error));
            break;
        }
    }
    let (i, error) = refused.expect("there is no room for 200 KB");
    assert!((30..60).contains(&i), "{i} KB");
    assert!(matches!(error, ProposeError::StateFull { limit: 49_152, .. }), "{error}");
    let role = |role| command().change(Change::SetDesiredRole { node: node_id(1), role });
    let ask = w.propose(1, role(Role::Manager));
    w.applied(ask);
    let gone = (0..20).map(|i| format!("key-{i}")).collect();
    let ask = w
        .propose(1, command().change(Change::UpdateLabels { node: node_id(1), add: Default::default(), remove: gone }));
    w.applied(ask);
    // The estimate errs upwards until the state is measured.
    w.until("there is room again", |w| w.core(1).log_span().2 > 20);
    w.run(ms(100));
    let ask = w.propose(1, label("another", &big));
    w.applied(ask);
}

/// F9. The disk cannot be trusted any more, and the member continues with a new one that gets everything at once.
#[test]
fn everything_handed_to_the_disk_can_be_rewritten() {
    let mut w = World::cluster(65, 3);
    write_many(&mut w, 50);
    w.nodes.get_mut(&2).unwrap().disk_takes = None;
    for i in 0..30 {
        w.propose(1, label("b", &format!("{i}")));
    }
    w.run(ms(100));
    let node = w.nodes.get_mut(&2).unwrap();
    let core = node.core.as_mut().unwrap();
    let (_, last, _) = core.log_span();
    let (job, mut write) = core.everything().expect("nothing is being installed");
    let (head, data) = job.run_shared();
    write.install = Some((head, data));
    let number = write.number;
    node.disk = SimDisk::default();
    node.disk.write(&[write]).unwrap();
    let found = node.disk.recover().unwrap();
    assert_eq!(found.truncated.index + found.entries.len() as u64, last);
    node.disk_takes = Some(ms(1));
    w.tell(2, Input::Persisted { number });
    let at = w.core(1).tables().revision;
    w.until("it continues", |w| w.core(2).tables().revision >= at);
    let ask = w.propose(1, label("c", "d"));
    let at = w.applied(ask);
    w.until("it continues", |w| w.core(2).tables().revision >= at);
    w.run(ms(100));
    w.crash(2, 0);
    w.restart(2);
    w.until("it has everything", |w| w.core(2).tables().revision >= at);
}
