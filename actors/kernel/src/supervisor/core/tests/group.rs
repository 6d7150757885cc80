//! Children that restart together, and children that wait for each other.

use std::time::Duration;

use muster_messages::{ActorState, ExitKind};

use super::world::{Manner, POLICY, World, policy};
use crate::{Group, Intensity, Restart, Strategy};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn one_for_all_stops_the_siblings_in_reverse_order_and_starts_all_after_one_delay() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b", "c"]);
    w.crash("b", ExitKind::Panic);
    assert_eq!(w.take_log(), ["stop c", "stop a"], "nobody is launched before the delay is over");
    w.settle();
    assert_eq!(w.take_log(), ["start a", "start b", "start c"]);
    assert_eq!(w.delays.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn rest_for_one_leaves_those_alone_that_were_started_before() {
    let mut w = World::of(Strategy::RestForOne, &["a", "b", "c", "d"]);
    w.crash("b", ExitKind::Error);
    w.settle();
    assert_eq!(w.take_log(), ["stop d", "stop c", "start b", "start c", "start d"]);
    w.crash("d", ExitKind::Error);
    w.settle();
    assert_eq!(w.take_log(), ["start d"]);
}

#[test]
fn a_sibling_goes_only_when_those_started_after_it_have_gone() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b", "c"]);
    w.manners.insert("c".into(), Manner { ignores_stop: true, ..Manner::default() });
    w.crash("a", ExitKind::Panic);
    assert_eq!(w.take_log(), ["stop c"]);
    w.pass(secs(6));
    assert_eq!(w.take_log(), ["kill c", "stop b", "start a", "start b", "start c"]);
}

#[test]
fn going_because_of_a_sibling_is_no_failure_even_if_it_goes_badly() {
    let limit = Group { strategy: Strategy::OneForAll, intensity: Intensity { max: 1, window: secs(60) } };
    let mut w = World::of(limit, &["a", "b", "c"]);
    for name in ["a", "b"] {
        w.manners.insert(name.into(), Manner { stops_badly: true, ..Manner::default() });
    }
    w.crash("c", ExitKind::Panic);
    w.settle();
    assert!(!w.escalated && w.alive().len() == 3);
    // Neither has their own next delay grown.
    w.pass(secs(61));
    w.crash("a", ExitKind::Panic);
    assert!(w.delays.last().is_some_and(|(name, d)| name == "a" && *d <= Duration::from_millis(750)), "{:?}", w.delays);
}

#[test]
fn a_second_failure_in_the_midst_of_a_restart_adds_neither_a_delay_nor_a_count() {
    let limit = Group { strategy: Strategy::OneForAll, intensity: Intensity { max: 1, window: secs(60) } };
    let mut w = World::of(limit, &["a", "b", "c"]);
    w.manners.insert("c".into(), Manner { ignores_stop: true, ..Manner::default() });
    w.crash("b", ExitKind::Panic);
    // `a` is due, but `c` has not gone yet.
    w.crash("a", ExitKind::Panic);
    w.settle();
    assert!(!w.escalated);
    assert_eq!(w.delays.len(), 1);
    assert_eq!(w.take_log(), ["stop c", "kill c", "start a", "start b", "start c"]);
}

#[test]
fn an_earlier_sibling_that_fails_while_a_child_backs_off_gives_one_delay_not_two() {
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
    assert!(w.now.since(began) <= delay && delay < secs(1), "the long delay of `b` is called off: {delay:?}");
    assert_eq!(w.take_log(), ["start a", "start b", "start c"]);
    w.settle();
    assert_eq!((w.take_log(), w.alive().len()), (vec![], 3), "and does not come later");
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
fn a_child_that_is_done_or_temporary_takes_nobody_along() {
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
fn a_temporary_sibling_goes_for_good_with_its_group() {
    let mut w = World::of(Strategy::OneForAll, &["a"]);
    w.start("once", policy(Restart::Temporary), &[]);
    w.take_log();
    w.crash("a", ExitKind::Panic);
    w.settle();
    assert_eq!(w.take_log(), ["stop once", "gone once", "start a"]);
}

#[test]
fn a_contained_child_goes_along_and_takes_nobody_with_it() {
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
    // Its own delay holds nobody up, and is called off by the others' restart.
    w.crash("apart", ExitKind::Panic);
    w.crash("b", ExitKind::Panic);
    w.pass(secs(1));
    assert_eq!(w.take_log(), ["stop a", "start a", "start b", "start apart"]);
}

#[test]
fn a_later_sibling_that_backs_off_holds_up_nobody_who_was_started_before() {
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
fn a_child_that_is_late_when_a_sibling_fails_goes_along_and_has_not_failed_itself() {
    let limit = Group { strategy: Strategy::OneForAll, intensity: Intensity { max: 1, window: secs(60) } };
    let mut w = World::of(limit, &["a"]);
    w.manners.insert("late".into(), Manner { slow: true, ignores_stop: true, ..Manner::default() });
    w.start("late", POLICY, &[]);
    w.pass(secs(11));
    assert_eq!(w.take_log(), ["start late", "stop late"]);
    w.crash("a", ExitKind::Panic);
    w.manners.clear();
    w.settle();
    assert_eq!(w.take_log(), ["kill late", "start a", "start late"]);
    assert_eq!((w.delays.len(), w.escalated), (1, false));
}

#[test]
fn a_restart_that_is_asked_for_takes_the_same_siblings_along_without_delay() {
    let mut w = World::of(Strategy::RestForOne, &["a", "b", "c"]);
    w.restart("b");
    assert_eq!(w.take_log(), ["stop c", "stop b", "start b", "start c"]);
    w.start("b", POLICY, &[]);
    assert_eq!(w.take_log(), ["stop c", "stop b", "start b", "start c"], "so does a replacement");
    assert!(w.delays.is_empty());
}

#[test]
fn a_child_that_is_removed_while_its_group_waits_for_it_holds_nobody_up() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b"]);
    w.crash("b", ExitKind::Panic);
    w.stop("b");
    assert_eq!(w.take_log(), ["stop a", "gone b", "start a"]);
}

#[test]
fn a_child_that_is_started_while_its_group_restarts_starts_with_it() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b"]);
    w.crash("a", ExitKind::Panic);
    w.start("new", POLICY, &[]);
    assert_eq!(w.waits["new"], ["a"], "and says for whom it waits");
    w.settle();
    assert_eq!(w.take_log(), ["stop b", "start a", "start b", "start new"]);
}

#[test]
fn a_stuck_sibling_is_left_behind_and_the_group_goes_on() {
    let mut w = World::of(Strategy::OneForAll, &["a", "b"]);
    w.manners.insert("b".into(), Manner { ignores_stop: true, ignores_kill: true, ..Manner::default() });
    w.crash("a", ExitKind::Panic);
    w.settle();
    assert_eq!(w.take_log(), ["stop b", "kill b", "stuck b", "start a", "start b"]);
    let stale = w.stale;
    w.the_stuck_end();
    assert_eq!((w.stale, w.alive().len(), w.take_log()), (stale + 1, 2, vec![]));
}

#[test]
fn more_failures_than_the_intensity_allows_escalate_whoever_they_are_of() {
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
    w.manners.insert("disk".into(), Manner { slow: true, ..Manner::default() });
    w.start("disk", POLICY, &[]);
    w.start("reader", POLICY, &["disk"]);
    w.start("other", POLICY, &[]);
    assert_eq!(w.take_log(), ["start disk", "start other"]);
    assert_eq!(w.waits["reader"], ["disk"]);
    w.says_healthy("disk");
    assert_eq!(w.take_log(), ["start reader"]);
    // Later it is not concerned; only its own next start is.
    w.crash("disk", ExitKind::Panic);
    assert!(w.alive().contains("reader"));
    w.crash("reader", ExitKind::Panic);
    w.pass(secs(5));
    assert!(!w.alive().contains("reader"), "`disk` never became healthy again");
}

#[test]
fn what_was_not_started_before_is_not_waited_for() {
    let mut w = World::new(Strategy::OneForAll);
    for name in ["a", "b"] {
        w.manners.insert(name.into(), Manner { slow: true, ..Manner::default() });
    }
    w.start("a", POLICY, &["a", "b", "nobody"]);
    w.start("b", POLICY, &["a"]);
    assert_eq!(w.take_log(), ["start a"], "`b` waits for `a`, and `a` for nobody: there is no cycle");
    w.says_healthy("a");
    assert_eq!(w.take_log(), ["start b"]);
    // Whoever waits for a child that is taken away waits no longer.
    w.crash("a", ExitKind::Panic);
    w.stop("a");
    assert_eq!(w.take_log(), ["stop b", "gone a", "start b"]);
}

#[test]
fn a_child_that_never_becomes_healthy_is_a_failed_start() {
    let mut w = World::new(Strategy::OneForOne);
    w.manners.insert("a".into(), Manner { slow: true, ..Manner::default() });
    w.start("a", POLICY, &[]);
    for _ in 0..200 {
        w.jump();
    }
    assert!(!w.escalated, "with its delays it fails less often than the intensity allows");
    let states = &w.states["a"];
    assert!(states.contains(&ActorState::BackingOff) && !states.contains(&ActorState::Healthy));
}

#[test]
fn a_child_whose_every_start_is_stuck_holds_two_threads_and_not_one_more() {
    for contained in [false, true] {
        let mut w = World::new(Strategy::OneForOne);
        w.manners
            .insert("a".into(), Manner { slow: true, ignores_stop: true, ignores_kill: true, ..Manner::default() });
        w.start("a", super::super::Policy { contained, ..POLICY }, &[]);
        w.settle();
        assert_eq!(w.take_log(), ["start a", "stop a", "kill a", "stuck a"].repeat(2), "contained: {contained}");
        assert_eq!(w.states["a"].last(), Some(&ActorState::Stuck));
        assert_eq!(w.waits["a"], ["a@1", "a@2"]);
        // It is the same thread to hold, whoever starts it.
        w.stop("a");
        w.start("a", POLICY, &[]);
        assert_eq!(w.take_log(), ["gone a"]);
        w.manners.clear();
        w.the_stuck_end();
        w.settle();
        assert_eq!((w.take_log(), w.alive().len()), (vec!["start a".to_owned()], 1));
    }
}

#[test]
fn a_child_that_is_started_again_while_one_of_its_name_is_left_behind_is_told_apart_from_it() {
    let mut w = World::of(Strategy::OneForOne, &["a"]);
    w.manners.insert("a".into(), Manner { ignores_stop: true, ignores_kill: true, ..Manner::default() });
    for _ in 0..2 {
        w.stop("a");
        w.settle();
        w.start("a", POLICY, &[]);
    }
    assert_eq!(w.waits["a"], ["a@1", "a@2"]);
}

#[test]
fn a_group_is_ready_once_all_that_it_was_filled_with_are_healthy_or_done() {
    let mut w = World::new(Strategy::OneForOne);
    w.manners.insert("slow".into(), Manner { slow: true, ..Manner::default() });
    w.start("a", policy(Restart::Transient), &[]);
    w.start("slow", POLICY, &[]);
    w.hear(super::super::Input::Filled);
    w.crash("a", ExitKind::Normal);
    assert!(!w.log.contains(&"ready".into()));
    w.says_healthy("slow");
    w.crash("slow", ExitKind::Panic);
    w.pass(secs(1));
    w.says_healthy("slow");
    assert_eq!(w.log.iter().filter(|line| *line == "ready").count(), 1, "it is said once");
}
