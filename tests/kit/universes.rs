//! How a universe ends.

use muster_kernel::{Address, Fault, Spec};
use muster_messages::CrashHow;
use muster_tests::{PATIENCE, Universe, at_every_point};

use crate::actors::{Msg, Rogue, rogue};
use crate::failure;

async fn with_rogue() -> (Universe, Address<Msg>) {
    let universe = Universe::start().await;
    let (spec, address) = rogue("rogue");
    universe.start_actor(spec);
    universe.healthy("node/rogue", 1).await;
    (universe, address)
}

/// The universe ends badly for this reason alone.
fn ends_badly(story: impl AsyncFnOnce(&mut Universe, Address<Msg>)) -> String {
    let text = failure(async {
        let (mut universe, address) = with_rogue().await;
        story(&mut universe, address).await;
        universe.finish().await;
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("the universe ended badly:", 2), "{text}");
    lines[1].trim_start().to_owned()
}

#[tokio::test(start_paused = true)]
async fn tasks_and_timers_of_actors_are_no_leak() {
    let (universe, rogue) = with_rogue().await;
    rogue.tell(Msg::Work).unwrap();
    assert_eq!(rogue.ask(PATIENCE, Msg::Who).await, Ok(1));
    universe.finish().await;
}

#[tokio::test]
async fn the_same_holds_in_real_time() {
    let (universe, rogue) = with_rogue().await;
    rogue.tell(Msg::Work).unwrap();
    assert_eq!(rogue.ask(PATIENCE, Msg::Who).await, Ok(1));
    universe.finish().await;
}

/// The universe in the failed run has no failure of its own to add.
#[test]
fn a_failure_says_at_which_crash_point_it_was() {
    let text = failure(async {
        let mut runs = 0;
        let points = at_every_point(async |_fuse| {
            let universe = Universe::start().await;
            runs += 1;
            assert!(runs < 3, "{} answers are missing", runs);
            universe.finish().await;
        });
        points.await;
    });
    assert_eq!(text, "at crash point 2: 3 answers are missing");
}

#[test]
fn a_task_that_nobody_ended_is_a_leak() {
    let why = ends_badly(async |_, rogue| {
        rogue.tell(Msg::Leak).unwrap();
        rogue.ask(PATIENCE, Msg::Who).await.unwrap();
    });
    assert_eq!(why, "tasks outlived it (1): actors that nobody stopped, or tasks that nobody ended");
}

#[test]
fn a_fault_that_nobody_expected_fails_although_the_actor_is_back() {
    let why = ends_badly(async |universe, rogue| {
        rogue.tell(Msg::Fault("the disk is gone")).unwrap();
        universe.healthy("node/rogue", 2).await;
    });
    assert_eq!(why, "a fault that nobody expected: node/rogue: the disk is gone");
    let why = ends_badly(async |universe, _| universe.expects_fault("the disk"));
    assert_eq!(why, "a fault that was expected did not come: the disk");
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_is_expected_or_asked_for_is_no_failure() {
    let (mut universe, rogue) = with_rogue().await;
    universe.expects_fault("the disk");
    universe.allows_fault("the network");
    rogue.tell(Msg::Fault("the disk is gone")).unwrap();
    universe.healthy("node/rogue", 2).await;
    universe.crash("node/rogue", CrashHow::Error);
    universe.healthy("node/rogue", 3).await;
    universe.finish().await;
}

#[test]
fn another_process_that_nobody_stopped_is_a_leak() {
    let why = ends_badly(async |universe, _| {
        let other = universe.another("other").await;
        other.start_actor(rogue("rogue").0);
        other.healthy("other/rogue", 1).await;
        std::mem::forget(other);
    });
    assert!(why.contains("tasks outlived it"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn another_process_is_crashed_and_stopped_by_itself() {
    let (mut universe, _rogue) = with_rogue().await;
    let other = universe.another("other").await;
    other.start_actor(rogue("rogue").0);
    other.healthy("other/rogue", 1).await;
    let tree = other.tree().clone();
    universe.crash_in(&tree, "other/rogue", CrashHow::Panic);
    other.healthy("other/rogue", 2).await;
    universe.healthy("node/rogue", 1).await;
    other.stop().await;
    assert!(tree.list().is_empty());
    universe.finish().await;
}

#[test]
fn an_error_that_nobody_expected_fails_the_test() {
    let why = ends_badly(async |_, rogue| rogue.tell(Msg::Error("the seat is gone")).unwrap());
    assert_eq!(why, "an ERROR that nobody expected: kit::actors: the seat is gone seat=7");
}

#[test]
fn a_panic_that_nobody_expected_fails_the_test_even_where_its_actor_came_back() {
    let why = ends_badly(async |universe, rogue| {
        rogue.tell(Msg::Panic("no such seat")).unwrap();
        universe.healthy("node/rogue", 2).await;
    });
    assert!(why.starts_with("a panic that nobody expected: no such seat (tests/kit/actors.rs:"), "{why}");
}

#[test]
fn a_panic_in_a_factory_counts_although_another_thread_made_it() {
    let why = ends_badly(async |universe, _| {
        let make = || -> Result<Rogue, Fault> { panic!("no such file") };
        universe.start_actor(Spec::actor("late", Address::new(1), make).contained());
        let failed = |actor: &muster_messages::ActorNode| !actor.last_exits.is_empty();
        universe.until("node/late", "failed", failed).await;
        universe.children().stop_and_wait("late").await;
    });
    assert!(why.starts_with("a panic that nobody expected: no such file"), "{why}");
}

#[test]
fn an_error_in_a_factory_and_one_on_a_thread_of_an_actors_own_count() {
    let why = ends_badly(async |universe, _| {
        let make = || -> Result<Rogue, Fault> {
            tracing::error!("no such directory");
            Ok(Rogue)
        };
        universe.start_actor(Spec::actor("late", Address::new(1), make));
        universe.healthy("node/late", 1).await;
    });
    assert_eq!(why, "an ERROR that nobody expected: kit::universes: no such directory");
    let why = ends_badly(async |_, _| {
        let runtime = tokio::runtime::Handle::current();
        let disk = move || {
            let _entered = runtime.enter();
            tracing::error!("no such sector");
        };
        std::thread::spawn(disk).join().unwrap();
    });
    assert_eq!(why, "an ERROR that nobody expected: kit::universes: no such sector");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_thread_of_a_runtime_is_heard() {
    let (mut universe, rogue) = with_rogue().await;
    universe.expects_error("the seat is gone");
    universe.expects_panic("no such seat");
    rogue.tell(Msg::Error("the seat is gone")).unwrap();
    rogue.tell(Msg::Panic("no such seat")).unwrap();
    universe.healthy("node/rogue", 2).await;
    universe.finish().await;
}

#[test]
fn what_happens_on_a_runtime_of_an_actors_own_counts_once_it_is_included() {
    let told = |included: bool| {
        let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let handle = own.handle().clone();
        let work = async || {
            let (mut universe, _rogue) = with_rogue().await;
            if included {
                universe.includes(&handle);
            }
            let broken = handle.spawn(async {
                tracing::error!("the port is gone");
                panic!("no such port");
            });
            assert!(broken.await.is_err());
            handle.spawn(std::future::pending::<()>());
            universe.finish().await;
        };
        let test = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test.block_on(work())))
    };
    assert!(told(false).is_ok());
    let why = told(true).unwrap_err().downcast::<String>().unwrap();
    for what in ["a panic that nobody expected: no such port", "the port is gone", "tasks outlived it (1)"] {
        assert!(why.contains(what), "{why}");
    }
}

#[test]
fn what_was_expected_must_come() {
    let why = ends_badly(async |universe, _| universe.expects_panic("no such seat"));
    assert_eq!(why, "a panic that was expected did not come: no such seat");
    let why = ends_badly(async |universe, _| universe.expects_error("the seat is gone"));
    assert_eq!(why, "an ERROR that was expected did not come: the seat is gone");
}

#[test]
fn expecting_one_error_excuses_no_other() {
    let why = ends_badly(async |universe, rogue| {
        universe.expects_error("the seat is gone");
        rogue.tell(Msg::Error("the seat is gone")).unwrap();
        rogue.tell(Msg::Error("the disk is gone")).unwrap();
    });
    assert!(why.contains("the disk is gone"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn what_was_expected_is_no_failure() {
    let (mut universe, rogue) = with_rogue().await;
    universe.expects_panic("no such seat");
    universe.expects_error("a task panicked");
    universe.expects_error("seat=7");
    rogue.tell(Msg::Apart("no such seat")).unwrap();
    rogue.tell(Msg::Error("gone")).unwrap();
    // Time passes only when nobody has work left: the task has panicked before its actor's end could call it off.
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    rogue.tell(Msg::Panic("no such seat")).unwrap();
    universe.healthy("node/rogue", 2).await;
    universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_on_request_is_expected() {
    let (mut universe, _rogue) = with_rogue().await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        universe.crash("node/rogue", how);
        universe.healthy("node/rogue", incarnation).await;
    }
    universe.children().stop("rogue");
    universe.gone("node/rogue").await;
    universe.finish().await;
}

#[test]
fn a_universe_that_nobody_finished_is_a_failure() {
    let text = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { drop(Universe::start().await) });
    });
    let text = text.unwrap_err().downcast::<&str>().unwrap();
    assert!(text.contains("nobody has judged it"), "{text}");
}

#[test]
fn what_never_happens_is_told_with_the_tree() {
    let text = failure(async {
        let (universe, _rogue) = with_rogue().await;
        universe.healthy("node/rogue", 2).await;
    });
    assert!(text.starts_with("never at node/rogue: incarnation 2, healthy; last seen: "), "{text}");
    assert!(text.contains("\"node/rogue\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn one_universe_follows_another() {
    for _ in 0..2 {
        let (mut universe, rogue) = with_rogue().await;
        universe.expects_error("gone");
        rogue.tell(Msg::Error("gone")).unwrap();
        universe.finish().await;
    }
}
