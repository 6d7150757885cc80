//! How an actor harness ends.

use muster_kernel::{Address, CrashHow, Fault, Spec};
use muster_testkit::{ActorHarness, WAIT_LIMIT, at_every_point};

use crate::actors::{Msg, Rogue, rogue};
use crate::failure;

async fn with_rogue() -> (ActorHarness, Address<Msg>) {
    let harness = ActorHarness::start().await;
    let (spec, address) = rogue("rogue");
    harness.start_actor(spec);
    harness.healthy("node/rogue", 1).await;
    (harness, address)
}

/// The harness reports this error alone.
fn ends_badly(scenario: impl AsyncFnOnce(&mut ActorHarness, Address<Msg>)) -> String {
    let text = failure(async {
        let (mut harness, address) = with_rogue().await;
        scenario(&mut harness, address).await;
        harness.finish().await;
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("the actor harness found errors:", 2), "{text}");
    lines[1].trim_start().to_owned()
}

#[tokio::test(start_paused = true)]
async fn tasks_and_timers_of_actors_are_not_leaks() {
    let (harness, rogue) = with_rogue().await;
    rogue.tell(Msg::Work).unwrap();
    assert_eq!(rogue.ask(WAIT_LIMIT, Msg::Who).await, Ok(1));
    harness.finish().await;
}

#[tokio::test]
async fn harness_works_in_real_time() {
    let (harness, rogue) = with_rogue().await;
    rogue.tell(Msg::Work).unwrap();
    assert_eq!(rogue.ask(WAIT_LIMIT, Msg::Who).await, Ok(1));
    harness.finish().await;
}

/// The harness in the failed run adds no failure of its own.
#[test]
fn failure_names_the_crash_point() {
    let text = failure(async {
        let mut runs = 0;
        let points = at_every_point(async |_fuse| {
            let harness = ActorHarness::start().await;
            runs += 1;
            assert!(runs < 3, "{} answers are missing", runs);
            harness.finish().await;
        });
        points.await;
    });
    assert_eq!(text, "at crash point 2: 3 answers are missing");
}

#[test]
fn leftover_task_is_a_leak() {
    let why = ends_badly(async |_, rogue| {
        rogue.tell(Msg::Leak).unwrap();
        rogue.ask(WAIT_LIMIT, Msg::Who).await.unwrap();
    });
    assert_eq!(why, "tasks outlived the test (1): unstopped actors or unfinished tasks");
}

#[test]
fn unexpected_fault_fails_even_after_restart() {
    let why = ends_badly(async |harness, rogue| {
        rogue.tell(Msg::Fault("the disk is gone")).unwrap();
        harness.healthy("node/rogue", 2).await;
    });
    assert_eq!(why, "unexpected fault: node/rogue: the disk is gone");
    let why = ends_badly(async |harness, _| harness.expects_fault("the disk"));
    assert_eq!(why, "expected fault did not occur: the disk");
}

#[tokio::test(start_paused = true)]
async fn expected_or_requested_fault_passes() {
    let (mut harness, rogue) = with_rogue().await;
    harness.expects_fault("the disk");
    harness.allows_fault("the network");
    rogue.tell(Msg::Fault("the disk is gone")).unwrap();
    harness.healthy("node/rogue", 2).await;
    harness.crash("node/rogue", CrashHow::Error);
    harness.healthy("node/rogue", 3).await;
    harness.finish().await;
}

#[test]
fn unstopped_process_is_a_leak() {
    let why = ends_badly(async |harness, _| {
        let other = harness.another("other").await;
        other.start_actor(rogue("rogue").0);
        other.healthy("other/rogue", 1).await;
        std::mem::forget(other);
    });
    assert!(why.contains("tasks outlived the test"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn second_process_crashes_and_stops_independently() {
    let (mut harness, _rogue) = with_rogue().await;
    let other = harness.another("other").await;
    other.start_actor(rogue("rogue").0);
    other.healthy("other/rogue", 1).await;
    let tree = other.tree().clone();
    harness.crash_in(&tree, "other/rogue", CrashHow::Panic);
    other.healthy("other/rogue", 2).await;
    harness.healthy("node/rogue", 1).await;
    other.stop().await;
    assert!(tree.list().is_empty());
    harness.finish().await;
}

#[test]
fn unexpected_error_event_fails_the_test() {
    let why = ends_badly(async |_, rogue| rogue.tell(Msg::Error("the seat is gone")).unwrap());
    assert_eq!(why, "unexpected ERROR event: it::actors: the seat is gone seat=7");
}

#[test]
fn unexpected_panic_fails_even_after_restart() {
    let why = ends_badly(async |harness, rogue| {
        rogue.tell(Msg::Panic("no such seat")).unwrap();
        harness.healthy("node/rogue", 2).await;
    });
    assert!(why.starts_with("unexpected panic: no such seat (tests/kit/tests/it/actors.rs:"), "{why}");
}

#[test]
fn panic_in_factory_on_another_thread_fails_the_test() {
    let why = ends_badly(async |harness, _| {
        let make = || -> Result<Rogue, Fault> { panic!("no such file") };
        harness.start_actor(Spec::actor("late", Address::new(1), make).contained());
        let failed = |actor: &muster_kernel::ActorNode| !actor.last_exits.is_empty();
        harness.until("node/late", "failed", failed).await;
        harness.children().stop_and_wait("late").await;
    });
    assert!(why.starts_with("unexpected panic: no such file"), "{why}");
}

#[test]
fn errors_in_factories_and_actor_threads_fail_the_test() {
    let why = ends_badly(async |harness, _| {
        let make = || -> Result<Rogue, Fault> {
            tracing::error!("no such directory");
            Ok(Rogue)
        };
        harness.start_actor(Spec::actor("late", Address::new(1), make));
        harness.healthy("node/late", 1).await;
    });
    assert_eq!(why, "unexpected ERROR event: it::harnesses: no such directory");
    let why = ends_badly(async |_, _| {
        let runtime = tokio::runtime::Handle::current();
        let disk = move || {
            let _entered = runtime.enter();
            tracing::error!("no such sector");
        };
        std::thread::spawn(disk).join().unwrap();
    });
    assert_eq!(why, "unexpected ERROR event: it::harnesses: no such sector");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_runtime_thread_is_observed() {
    let (mut harness, rogue) = with_rogue().await;
    harness.expects_error("the seat is gone");
    harness.expects_panic("no such seat");
    rogue.tell(Msg::Error("the seat is gone")).unwrap();
    rogue.tell(Msg::Panic("no such seat")).unwrap();
    harness.healthy("node/rogue", 2).await;
    harness.finish().await;
}

#[test]
fn included_actor_runtime_is_observed() {
    let run = |included: bool| {
        let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let handle = own.handle().clone();
        let work = async || {
            let (mut harness, _rogue) = with_rogue().await;
            if included {
                harness.includes(&handle);
            }
            let task = handle.spawn(async {
                tracing::error!("the port is gone");
                panic!("no such port");
            });
            assert!(task.await.is_err());
            handle.spawn(std::future::pending::<()>());
            harness.finish().await;
        };
        let test = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test.block_on(work())))
    };
    assert!(run(false).is_ok());
    let why = run(true).unwrap_err().downcast::<String>().unwrap();
    for what in ["unexpected panic: no such port", "the port is gone", "tasks outlived the test (1)"] {
        assert!(why.contains(what), "{why}");
    }
}

#[test]
fn expected_event_must_occur() {
    let why = ends_badly(async |harness, _| harness.expects_panic("no such seat"));
    assert_eq!(why, "expected panic did not occur: no such seat");
    let why = ends_badly(async |harness, _| harness.expects_error("the seat is gone"));
    assert_eq!(why, "expected ERROR event did not occur: the seat is gone");
}

#[test]
fn expecting_one_error_allows_no_other() {
    let why = ends_badly(async |harness, rogue| {
        harness.expects_error("the seat is gone");
        rogue.tell(Msg::Error("the seat is gone")).unwrap();
        rogue.tell(Msg::Error("the disk is gone")).unwrap();
    });
    assert!(why.contains("the disk is gone"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn expected_panics_and_errors_pass() {
    let (mut harness, rogue) = with_rogue().await;
    harness.expects_panic("no such seat");
    harness.expects_error("a task panicked");
    harness.expects_error("seat=7");
    rogue.tell(Msg::Apart("no such seat")).unwrap();
    rogue.tell(Msg::Error("gone")).unwrap();
    // Time passes only when no task has work: the task has panicked before its actor's end could cancel it.
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    rogue.tell(Msg::Panic("no such seat")).unwrap();
    harness.healthy("node/rogue", 2).await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_on_request_is_expected() {
    let (mut harness, _rogue) = with_rogue().await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        harness.crash("node/rogue", how);
        harness.healthy("node/rogue", incarnation).await;
    }
    harness.children().stop("rogue");
    harness.gone("node/rogue").await;
    harness.finish().await;
}

#[test]
fn unfinished_harness_is_a_failure() {
    let text = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { drop(ActorHarness::start().await) });
    });
    let text = text.unwrap_err().downcast::<&str>().unwrap();
    assert!(text.contains("was dropped before it was finished"), "{text}");
}

#[test]
fn wait_failure_shows_the_tree() {
    let text = failure(async {
        let (harness, _rogue) = with_rogue().await;
        harness.healthy("node/rogue", 2).await;
    });
    assert!(text.starts_with("never at node/rogue: incarnation 2, healthy; last seen: "), "{text}");
    assert!(text.contains("\"node/rogue\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn harness_can_be_started_again() {
    for _ in 0..2 {
        let (mut harness, rogue) = with_rogue().await;
        harness.expects_error("gone");
        rogue.tell(Msg::Error("gone")).unwrap();
        harness.finish().await;
    }
}
