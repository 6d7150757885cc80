//! Children that restart together, and children that wait for each other.

use std::time::Duration;

use muster_messages::{ActorState, ExitKind};

use super::world::{Behavior, POLICY, World, policy};
use crate::{Group, Intensity, Restart, Strategy};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn one_for_all_restarts_all_in_order_after_one_delay() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b", "c"]);
    w.crash("b", ExitKind::Panic);
    assert_eq!(w.take_log(), ["stop c", "stop a"], "no child is launched before the delay is over");
    w.settle();
    assert_eq!(w.take_log(), ["start a", "start b", "start c"]);
    assert_eq!(w.delays.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn rest_for_one_keeps_earlier_siblings() {
    let mut w = World::of(Strategy::RestForOne, &["a", "b", "c", "d"]);
    w.crash("b", ExitKind::Error);
    w.settle();
    assert_eq!(w.take_log(), ["stop d", "stop c", "start b", "start c", "start d"]);
    w.crash("d", ExitKind::Error);
    w.settle();
    assert_eq!(w.take_log(), ["start d"]);
}

#[test]
fn sibling_stops_only_after_those_started_later_have_ended() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b", "c"]);
    w.behaviors.insert("c".into(), Behavior { ignores_stop: true, ..Behavior::default() });
    w.crash("a", ExitKind::Panic);
    assert_eq!(w.take_log(), ["stop c"]);
    w.pass(secs(6));
    assert_eq!(w.take_log(), ["kill c", "stop b", "start a", "start b", "start c"]);
}

#[test]
fn stop_caused_by_a_sibling_is_no_failure_even_with_a_panic() {
    let limit = Group { strategy: Strategy::OneForAll, intensity: Intensity { max: 1, window: secs(60) } };
    let mut w = World::of(limit, &["a", "b", "c"]);
    for name in ["a", "b"] {
        w.behaviors.insert(name.into(), Behavior { stops_badly: true, ..Behavior::default() });
    }
    w.crash("c", ExitKind::Panic);
    w.settle();
    assert!(!w.escalated && w.alive().len() == 3);
    // Their own next delays have not grown either.
    w.pass(secs(61));
    w.crash("a", ExitKind::Panic);
    assert!(w.delays.last().is_some_and(|(name, d)| name == "a" && *d <= Duration::from_millis(750)), "{:?}", w.delays);
}

#[test]
fn second_failure_during_a_restart_adds_no_delay_or_count() {
    let limit = Group { strategy: Strategy::OneForAll, intensity: Intensity { max: 1, window: secs(60) } };
    let mut w = World::of(limit, &["a", "b", "c"]);
    w.behaviors.insert("c".into(), Behavior { ignores_stop: true, ..Behavior::default() });
    w.crash("b", ExitKind::Panic);
    // `a` is due, but `c` has not ended yet.
    w.crash("a", ExitKind::Panic);
    w.settle();
    assert!(!w.escalated);
    assert_eq!(w.delays.len(), 1);
    assert_eq!(w.take_log(), ["stop c", "kill c", "start a", "start b", "start c"]);
}

#[test]
fn earlier_siblings_failure_during_backoff_gives_one_delay() {
    let mut w = World::of(Strategy::RestForOne, &["a", "b", "c"]);
    for _ in 0..6 {
        w.crash("b", ExitKind::Panic);
        w.settle();
    }
    w.crash("b", ExitKind::Panic);
    w.take_log();
    let began = w.now;
    w.crash("a", ExitKind::Panic);
    w.jump();
    let (name, delay) = w.delays.last().unwrap().clone();
    assert_eq!(name, "a");
    assert!(w.now.since(began) <= delay && delay < secs(1), "the long delay of `b` is cancelled: {delay:?}");
    assert_eq!(w.take_log(), ["start a", "start b", "start c"]);
    w.settle();
    assert_eq!((w.take_log(), w.alive().len()), (vec![], 3), "and it does not start later");
}

#[test]
fn a_done_sibling_of_a_dead_one_restarts_with_its_group() {
    for (strategy, again) in [(Strategy::OneForOne, false), (Strategy::OneForAll, true), (Strategy::RestForOne, true)] {
        let mut w = World::of(strategy, &["dead"]);
        w.start("done", policy(Restart::Transient), &[]);
        w.crash("done", ExitKind::Normal);
        assert_eq!(w.states["done"].last(), Some(&ActorState::Done));
        w.crash("dead", ExitKind::Panic);
        w.settle();
        assert_eq!(w.alive().contains("done"), again, "{strategy:?}");
    }
}

#[test]
fn done_or_temporary_child_restarts_no_sibling() {
    let mut w = World::of(Strategy::OneForAll, &["a"]);
    w.start("transient", policy(Restart::Transient), &[]);
    w.start("temporary", policy(Restart::Temporary), &[]);
    w.take_log();
    w.crash("transient", ExitKind::Normal);
    w.crash("temporary", ExitKind::Panic);
    w.settle();
    assert_eq!(w.take_log(), ["gone temporary"]);
}

#[test]
fn temporary_sibling_stops_permanently_with_its_group() {
    let mut w = World::of(Strategy::OneForAll, &["a"]);
    w.start("once", policy(Restart::Temporary), &[]);
    w.take_log();
    w.crash("a", ExitKind::Panic);
    w.settle();
    assert_eq!(w.take_log(), ["stop once", "gone once", "start a"]);
}

#[test]
fn contained_child_restarts_with_its_group_but_causes_none() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b"]);
    w.start("apart", policy(Restart::Permanent), &[]);
    w.start("apart", super::super::Policy { contained: true, ..POLICY }, &[]);
    w.settle();
    w.take_log();
    for _ in 0..20 {
        w.crash("apart", ExitKind::Panic);
        w.settle();
    }
    assert_eq!(w.take_log(), ["start apart"; 20]);
    // Its own delay blocks no sibling, and the others' restart cancels it.
    w.crash("apart", ExitKind::Panic);
    w.crash("b", ExitKind::Panic);
    w.pass(secs(1));
    assert_eq!(w.take_log(), ["stop a", "start a", "start b", "start apart"]);
}

#[test]
fn backoff_of_a_later_sibling_delays_no_earlier_one() {
    let mut w = World::new(Strategy::RestForOne);
    w.start("apart", super::super::Policy { contained: true, ..POLICY }, &[]);
    w.start("b", POLICY, &[]);
    for _ in 0..8 {
        w.crash("b", ExitKind::Panic);
        w.settle();
    }
    w.take_log();
    w.crash("b", ExitKind::Panic);
    w.crash("apart", ExitKind::Panic);
    w.pass(secs(1));
    assert_eq!(w.take_log(), ["start apart"]);
}

#[test]
fn slow_start_ended_by_a_siblings_failure_is_no_failure() {
    let limit = Group { strategy: Strategy::OneForAll, intensity: Intensity { max: 1, window: secs(60) } };
    let mut w = World::of(limit, &["a"]);
    w.behaviors.insert("late".into(), Behavior { slow: true, ignores_stop: true, ..Behavior::default() });
    w.start("late", POLICY, &[]);
    w.pass(secs(11));
    assert_eq!(w.take_log(), ["start late", "stop late"]);
    w.crash("a", ExitKind::Panic);
    w.behaviors.clear();
    w.settle();
    assert_eq!(w.take_log(), ["kill late", "start a", "start late"]);
    assert_eq!((w.delays.len(), w.escalated), (1, false));
}

#[test]
fn requested_restart_includes_the_same_siblings_undelayed() {
    let mut w = World::of(Strategy::RestForOne, &["a", "b", "c"]);
    w.restart("b");
    assert_eq!(w.take_log(), ["stop c", "stop b", "start b", "start c"]);
    w.start("b", POLICY, &[]);
    assert_eq!(w.take_log(), ["stop c", "stop b", "start b", "start c"], "so does a replacement");
    assert!(w.delays.is_empty());
}

#[test]
fn child_removed_while_its_group_waits_blocks_no_sibling() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b"]);
    w.crash("b", ExitKind::Panic);
    w.stop("b");
    assert_eq!(w.take_log(), ["stop a", "gone b", "start a"]);
}

#[test]
fn child_added_during_a_group_restart_starts_with_the_group() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b"]);
    w.crash("a", ExitKind::Panic);
    w.start("new", POLICY, &[]);
    assert_eq!(w.waits["new"], ["a"], "and reports which sibling it waits for");
    w.settle();
    assert_eq!(w.take_log(), ["stop b", "start a", "start b", "start new"]);
}

#[test]
fn stuck_sibling_is_abandoned_and_the_group_continues() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b"]);
    w.behaviors.insert("b".into(), Behavior { ignores_stop: true, ignores_kill: true, ..Behavior::default() });
    w.crash("a", ExitKind::Panic);
    w.settle();
    assert_eq!(w.take_log(), ["stop b", "kill b", "stuck b", "start a", "start b"]);
    let stale = w.stale;
    w.the_stuck_end();
    assert_eq!((w.stale, w.alive().len(), w.take_log()), (stale + 1, 2, vec![]));
}

#[test]
fn failures_of_any_child_beyond_the_intensity_escalate() {
    for strategy in [Strategy::OneForOne, Strategy::OneForAll, Strategy::RestForOne] {
        let mut w = World::of(Group { strategy, intensity: Intensity { max: 3, window: secs(60) } }, &["a", "b"]);
        for (n, name) in ["a", "b", "a", "b"].iter().enumerate() {
            w.crash(name, ExitKind::Panic);
            assert_eq!(w.escalated, n == 3, "{strategy:?}");
            w.settle();
        }
        w.take_log();
        w.start("c", POLICY, &[]);
        assert!(w.take_log().is_empty(), "a supervisor that ends starts nothing more");
    }
}

#[test]
fn a_later_sibling_waits_until_what_it_requires_is_healthy() {
    let mut w = World::new(Strategy::OneForOne);
    w.behaviors.insert("disk".into(), Behavior { slow: true, ..Behavior::default() });
    w.start("disk", POLICY, &[]);
    w.start("reader", POLICY, &["disk"]);
    w.start("other", POLICY, &[]);
    assert_eq!(w.take_log(), ["start disk", "start other"]);
    assert_eq!(w.waits["reader"], ["disk"]);
    w.report_healthy("disk");
    assert_eq!(w.take_log(), ["start reader"]);
    // Later changes do not affect it; only its own next start is checked.
    w.crash("disk", ExitKind::Panic);
    assert!(w.alive().contains("reader"));
    w.crash("reader", ExitKind::Panic);
    w.pass(secs(5));
    assert!(!w.alive().contains("reader"), "`disk` has not become healthy again");
}

#[test]
fn siblings_started_later_are_not_waited_for() {
    let mut w = World::new(Strategy::OneForAll);
    for name in ["a", "b"] {
        w.behaviors.insert(name.into(), Behavior { slow: true, ..Behavior::default() });
    }
    w.start("a", POLICY, &["a", "b", "nobody"]);
    w.start("b", POLICY, &["a"]);
    assert_eq!(w.take_log(), ["start a"], "`b` waits for `a`, and `a` for no sibling: there is no cycle");
    w.report_healthy("a");
    assert_eq!(w.take_log(), ["start b"]);
    // A child stops waiting for a sibling that is removed.
    w.crash("a", ExitKind::Panic);
    w.stop("a");
    assert_eq!(w.take_log(), ["stop b", "gone a", "start b"]);
}

#[test]
fn a_child_that_never_becomes_healthy_is_a_failed_start() {
    let mut w = World::new(Strategy::OneForOne);
    w.behaviors.insert("a".into(), Behavior { slow: true, ..Behavior::default() });
    w.start("a", POLICY, &[]);
    for _ in 0..200 {
        w.jump();
    }
    assert!(!w.escalated, "its delays keep its failures within the intensity");
    let states = &w.states["a"];
    assert!(states.contains(&ActorState::BackingOff) && !states.contains(&ActorState::Healthy));
}

#[test]
fn child_stuck_at_every_start_holds_at_most_two_threads() {
    for contained in [false, true] {
        let mut w = World::new(Strategy::OneForOne);
        w.behaviors
            .insert("a".into(), Behavior { slow: true, ignores_stop: true, ignores_kill: true, ..Behavior::default() });
        w.start("a", super::super::Policy { contained, ..POLICY }, &[]);
        w.settle();
        assert_eq!(w.take_log(), ["start a", "stop a", "kill a", "stuck a"].repeat(2), "contained: {contained}");
        assert_eq!(w.states["a"].last(), Some(&ActorState::Stuck));
        assert_eq!(w.waits["a"], ["a@1", "a@2"]);
        // The thread stays blocked across starts.
        w.stop("a");
        w.start("a", POLICY, &[]);
        assert_eq!(w.take_log(), ["gone a"]);
        w.behaviors.clear();
        w.the_stuck_end();
        w.settle();
        assert_eq!((w.take_log(), w.alive().len()), (vec!["start a".to_owned()], 1));
    }
}

#[test]
fn restarted_child_differs_from_its_abandoned_namesake() {
    let mut w = World::of(Strategy::OneForOne, &["a"]);
    w.behaviors.insert("a".into(), Behavior { ignores_stop: true, ignores_kill: true, ..Behavior::default() });
    for _ in 0..2 {
        w.stop("a");
        w.settle();
        w.start("a", POLICY, &[]);
    }
    assert_eq!(w.waits["a"], ["a@1", "a@2"]);
}

#[test]
fn group_is_ready_once_all_its_children_are_healthy_or_done() {
    let mut w = World::new(Strategy::OneForOne);
    w.behaviors.insert("slow".into(), Behavior { slow: true, ..Behavior::default() });
    w.start("a", policy(Restart::Transient), &[]);
    w.start("slow", POLICY, &[]);
    w.handle(super::super::Input::Filled);
    w.crash("a", ExitKind::Normal);
    assert!(!w.log.contains(&"ready".into()));
    w.report_healthy("slow");
    w.crash("slow", ExitKind::Panic);
    w.pass(secs(1));
    w.report_healthy("slow");
    assert_eq!(w.log.iter().filter(|line| *line == "ready").count(), 1, "reported once");
}
