//! Which actors restart together, when, and after what delay: with real actors, in virtual time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Backoff, Children, Fault, Group, Intensity, Restart, Spec, Strategy};
use muster_messages::{ActorState, CrashHow, ExitKind};
use tokio::time::Instant;

use crate::parts::{Hand, Msg, StopBehavior, Yard, eventually};

fn fill(specs: Vec<Spec>) -> impl Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static {
    move |children| {
        specs.iter().for_each(|spec| children.start(spec.clone()));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn dead_sibling_restarts_its_whole_group_at_any_depth() {
    let yard = Yard::new(Intensity::default()).await;
    let [outside, one, deep, twin] = ["outside", "one", "deep", "twin"].map(|name| yard.part(name));
    // node/all/{one, l1/l2/l3/l4/l5/{deep, twin}}
    let mut nested = Spec::group("l5", Strategy::OneForAll, fill(vec![deep.spec(), twin.spec()]));
    for level in ["l4", "l3", "l2", "l1"] {
        nested = Spec::group(level, Intensity::default(), fill(vec![nested]));
    }
    yard.root.children().start(outside.spec());
    yard.root.children().start(Spec::group("all", Strategy::OneForAll, fill(vec![one.spec(), nested])));
    let bottom = "node/all/l1/l2/l3/l4/l5";
    let (deep_path, twin_path) = (format!("{bottom}/deep"), format!("{bottom}/twin"));
    yard.lives(&twin_path, 1).await;
    yard.lives("node/all/one", 1).await;

    // Five levels down, by a panic: the twin restarts too, and no actor above or beside them.
    yard.crash(&deep_path, CrashHow::Panic);
    yard.lives(&deep_path, 2).await;
    yard.lives(&twin_path, 2).await;
    assert_eq!(yard.find("node/all/one").unwrap().incarnation, 1);
    assert_eq!(yard.find(&twin_path).unwrap().last_exits[0].kind, ExitKind::Normal, "it was asked to stop");

    // At the top: everything below is started anew.
    yard.log.take();
    yard.crash("node/all/one", CrashHow::Error);
    yard.lives("node/all/one", 2).await;
    yard.lives("node/all/l1", 2).await;
    yard.lives(&twin_path, 1).await;
    assert_eq!(yard.log.take()[..2], ["twin down", "deep down"]);
    assert_eq!(yard.find("node/outside").unwrap().incarnation, 1);
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn start_delay_grows_with_failures_and_resets_when_stable() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    yard.root.children().start(a.spec().backoff(Backoff::SLOW));
    let die = async |incarnation| {
        yard.lives("node/a", incarnation).await;
        yard.crash("node/a", CrashHow::Panic);
        let died = Instant::now();
        yard.lives("node/a", incarnation + 1).await;
        died.elapsed()
    };
    for incarnation in 1..=5 {
        die(incarnation).await;
    }
    let sixth = die(6).await;
    assert!(sixth >= Duration::from_secs(1), "{sixth:?}");
    tokio::time::sleep(Backoff::SLOW.stable_after).await;
    let seventh = die(7).await;
    assert!((Duration::from_millis(100)..Duration::from_secs(1)).contains(&seventh), "{seventh:?}");
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn group_failure_during_a_childs_backoff_gives_one_delay() {
    let yard = Yard::new(Intensity::default()).await;
    let child = yard.part("child");
    let hour = Backoff { first: Duration::from_secs(3600), cap: Duration::from_secs(3600), ..Backoff::SLOW };
    let group = Spec::group("g", Intensity::default(), fill(vec![child.spec().backoff(hour)]));
    yard.root.children().start(group.backoff(Backoff::SLOW));
    yard.lives("node/g/child", 1).await;
    yard.crash("node/g/child", CrashHow::Panic);
    yard.until("node/g/child", ActorState::BackingOff).await;
    let failed = Instant::now();
    yard.crash("node/g", CrashHow::Error);
    yard.lives("node/g", 2).await;
    yard.lives("node/g/child", 1).await;
    assert!(failed.elapsed() < Duration::from_secs(1), "{:?}", failed.elapsed());
    // The hour of its delay passes without another start.
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert_eq!(yard.log.take(), ["child up", "child up"]);
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn done_counts_only_once_the_actor_has_ended() {
    let yard = Yard::new(Intensity::default()).await;
    let (task, successor) = (yard.part("task"), yard.part("successor"));
    task.stop_behavior.send_replace(StopBehavior::Late);
    let spec = task.spec().restart(Restart::Transient).stop_deadline(Duration::from_secs(3600)).reports_ready();
    yard.root.children().start(spec.start_deadline(Duration::from_secs(3600)));
    yard.root.children().start(successor.spec().requires("task"));
    task.tell(|| Msg::Done).await;
    eventually("it is stopping", || yard.find("node/task").is_some_and(|n| n.handling.is_some())).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (yard.state("node/task"), yard.state("node/successor")),
        (Some(ActorState::Starting), Some(ActorState::Starting))
    );
    task.stop_behavior.send_replace(StopBehavior::AtOnce);
    yard.until("node/task", ActorState::Done).await;
    yard.lives("node/successor", 1).await;

    // An actor that fails while stopping is not done.
    let bad = yard.part("bad");
    bad.stop_behavior.send_replace(StopBehavior::Panics);
    yard.root.children().start(bad.spec().restart(Restart::Transient));
    bad.tell(|| Msg::Done).await;
    yard.lives("node/bad", 2).await;
    assert!(yard.find("node/bad").unwrap().last_exits[0].text.contains("while it stops"));
    bad.stop_behavior.send_replace(StopBehavior::AtOnce);
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn done_actor_runs_again_when_its_group_restarts() {
    let yard = Yard::new(Intensity::default()).await;
    let (done, other) = (yard.part("done"), yard.part("other"));
    let specs = vec![done.spec().restart(Restart::Transient), other.spec()];
    yard.root.children().start(Spec::group("g", Strategy::OneForAll, fill(specs)));
    done.tell(|| Msg::Done).await;
    yard.until("node/g/done", ActorState::Done).await;
    assert_eq!(yard.state("node/g/other"), Some(ActorState::Healthy), "being done affects no sibling");
    yard.crash("node/g/other", CrashHow::Panic);
    yard.lives("node/g/done", 2).await;
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn tree_follows_nested_actors_through_their_states() {
    let yard = Yard::new(Intensity::default()).await;
    let two = yard.part("two");
    let fill_one = fill(vec![two.spec().reports_ready().restart(Restart::Transient)]);
    yard.root.children().start(Spec::group("one", Intensity::default(), fill_one).reports_ready());
    let both = |state| (yard.state("node/one"), yard.state("node/one/two")) == (Some(state), Some(state));
    eventually("both are starting", || both(ActorState::Starting)).await;
    two.tell(|| Msg::Ready).await;
    eventually("both are healthy", || both(ActorState::Healthy)).await;

    yard.crash("node/one/two", CrashHow::Panic);
    yard.until("node/one/two", ActorState::BackingOff).await;
    yard.until("node/one/two", ActorState::Starting).await;
    assert_eq!(yard.state("node/one"), Some(ActorState::Healthy), "it was healthy, and its child is its own concern");
    two.tell(|| Msg::Ready).await;
    yard.lives("node/one/two", 2).await;

    yard.crash("node/one", CrashHow::Error);
    yard.until("node/one", ActorState::BackingOff).await;
    eventually("its children have ended", || yard.find("node/one/two").is_none()).await;
    yard.until("node/one/two", ActorState::Starting).await;
    two.tell(|| Msg::Ready).await;
    yard.lives("node/one/two", 1).await;
    yard.lives("node/one", 2).await;

    two.tell(|| Msg::Done).await;
    yard.until("node/one/two", ActorState::Done).await;
    yard.root.children().stop_and_wait("one").await;
    assert_eq!(yard.tree.list(), ["node"]);
    assert_eq!(yard.state("node"), Some(ActorState::Healthy));
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn child_that_reports_ready_delays_those_that_require_it() {
    let yard = Yard::new(Intensity::default()).await;
    let [disk, reader, other] = ["disk", "reader", "other"].map(|name| yard.part(name));
    yard.root.children().start(disk.spec().reports_ready());
    yard.root.children().start(reader.spec().requires("disk"));
    yard.root.children().start(other.spec());
    yard.lives("node/other", 1).await;
    assert_eq!(yard.state("node/disk"), Some(ActorState::Starting));
    let waiting = yard.find("node/reader").unwrap();
    assert_eq!((waiting.incarnation, waiting.view["waits_for"][0].as_str()), (0, Some("disk")));
    disk.tell(|| Msg::Ready).await;
    yard.lives("node/reader", 1).await;
    assert_eq!(yard.log.take().pop().as_deref(), Some("reader up"));
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn child_not_ready_in_time_stops_before_its_next_start() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    yard.root.children().start(a.spec().reports_ready().start_deadline(Duration::from_secs(7)));
    let began = Instant::now();
    eventually("started twice", || yard.log.len() >= 3).await;
    assert!(began.elapsed() >= Duration::from_secs(7));
    assert_eq!(yard.log.take(), ["a up", "a down", "a up"]);
    let exit = yard.find("node/a").unwrap().last_exits[0].clone();
    assert_eq!((exit.kind, exit.text.as_str()), (ExitKind::Start, "did not start in time"));
    a.tell(|| Msg::Ready).await;
    yard.lives("node/a", 2).await;
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn spawn_errors_are_failures_and_end_a_group_like_any_other() {
    let yard = Yard::new(Intensity::default()).await;
    let (tries, bad, good) = (Arc::new(AtomicU64::new(0)), yard.part("bad"), yard.part("good"));
    let count = Arc::clone(&tries);
    let failing = bad.made(move || match count.fetch_add(1, Ordering::SeqCst) {
        11.. => Ok(()),
        _ => Err(Fault::new("no disk")),
    });
    yard.root.children().start(Spec::group("g", Intensity::default(), fill(vec![good.spec(), failing])));
    yard.lives("node/g/bad", 1).await;
    let group = yard.find("node/g").unwrap();
    assert_eq!((group.incarnation, tries.load(Ordering::SeqCst)), (2, 12));
    assert!(group.last_exits[0].text.contains("no disk"), "{group:?}");
    assert_eq!(yard.log.take()[..2], ["good up", "good down"], "children stop in order before it gives up");
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn failing_root_stops_its_children_first() {
    let limit = Group { strategy: Strategy::RestForOne, intensity: Intensity { max: 0, ..Intensity::default() } };
    let yard = Yard::new(limit).await;
    let hands: Vec<Hand> = ["a", "b", "c"].into_iter().map(|name| yard.part(name)).collect();
    for hand in &hands {
        yard.root.children().start(hand.spec());
        yard.lives(&format!("node/{}", hand.name), 1).await;
    }
    yard.log.take();
    yard.crash("node/b", CrashHow::Kill);
    yard.root.ended().await;
    assert_eq!(yard.log.take(), ["c down", "a down"]);
    assert_eq!((yard.tree.list(), yard.state("node")), (vec!["node".to_owned()], Some(ActorState::Dead)));
}

#[tokio::test(start_paused = true)]
async fn stopping_child_keeps_its_deadline_at_shutdown() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    a.stop_behavior.send_replace(StopBehavior::Late);
    yard.root.children().start(a.spec());
    yard.lives("node/a", 1).await;
    yard.root.children().stop("a");
    yard.until("node/a", ActorState::Stopping).await;
    let stop_behavior = Arc::clone(&a.stop_behavior);
    let later = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        stop_behavior.send_replace(StopBehavior::AtOnce);
    });
    yard.root.shut_down().await;
    later.await.expect("the task only waits");
    assert_eq!(yard.log.take(), ["a up", "a down"]);
}

/// Yields until it holds. Paused time does not advance while a factory works, so no time passes.
async fn yield_until(until: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !until() {
        assert!(std::time::Instant::now() < end, "condition never held");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn child_with_unreported_launch_is_stopped_in_order() {
    for (late, other) in [("a", "b"), ("b", "a")] {
        let yard = Yard::new(Intensity::default()).await;
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let specs = ["a", "b"].map(|name| {
            let held = Arc::clone(&held);
            yard.part(name).made(move || {
                if name == late {
                    let _released = held.lock().expect("no thread panics while it holds the lock").recv();
                }
                Ok(())
            })
        });
        let group = Spec::group("g", Intensity::default(), fill(specs.into()));
        yard.root.children().start(group.stop_deadline(Duration::from_secs(60)));
        yield_until(|| yard.state(&format!("node/g/{other}")) == Some(ActorState::Healthy)).await;
        // The group is busy for 30 s with an earlier message.
        yard.crash("node/g", CrashHow::Hang);
        drop(release);
        yield_until(|| yard.log.len() == 2).await;
        yard.root.children().stop_and_wait("g").await;
        assert_eq!(yard.log.take(), [&format!("{other} up"), &format!("{late} up"), "b down", "a down"]);
        assert_eq!(yard.tree.list(), ["node"]);
        yard.root.shut_down().await;
    }
}

#[tokio::test(start_paused = true)]
async fn children_failing_before_launch_report_all_restart() {
    let yard = Yard::new(Intensity::default()).await;
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (held, making) = (Arc::new(Mutex::new(held)), Arc::new(AtomicU64::new(0)));
    let hands: Vec<Hand> = (0..100).map(|n| yard.part(&format!("part-{n}"))).collect();
    let spec = |hand: &Hand| {
        hand.bad_starts.store(1, Ordering::SeqCst);
        let (held, making) = (Arc::clone(&held), Arc::clone(&making));
        hand.made(move || {
            making.fetch_add(1, Ordering::SeqCst);
            let _released = held.lock().expect("no thread panics while it holds the lock").recv();
            Ok(())
        })
    };
    let limit = Intensity { max: hands.len(), ..Intensity::default() };
    yard.root.children().start(Spec::group("g", limit, fill(hands.iter().map(spec).collect())));
    yield_until(|| making.load(Ordering::SeqCst) == 100).await;
    yard.crash("node/g", CrashHow::Hang);
    drop(release);
    yield_until(|| hands.iter().all(|hand| hand.dropped.load(Ordering::SeqCst) == 1)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    for hand in &hands {
        let path = format!("node/g/{}", hand.name);
        yard.lives(&path, 2).await;
        let exits = yard.find(&path).unwrap().last_exits;
        assert_eq!(exits.iter().map(|exit| exit.text.as_str()).collect::<Vec<_>>(), ["a bad start"]);
    }
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_stopped_child_end_before_its_siblings_stop() {
    let yard = Yard::new(Intensity::default()).await;
    let (a, b) = (yard.part("a"), yard.part("b"));
    a.stop_behavior.send_replace(StopBehavior::Late);
    yard.root.children().start(a.spec());
    yard.lives("node/a", 1).await;
    yard.root.children().start(b.spec());
    yard.lives("node/b", 1).await;
    let task = b.runs_a_task().await;
    let stops = async {
        eventually("its task has ended", || task.has_changed().is_err()).await;
        assert_eq!((yard.log.has("b down"), yard.state("node/a")), (true, Some(ActorState::Stopping)));
        a.stop_behavior.send_replace(StopBehavior::AtOnce);
    };
    tokio::join!(yard.root.shut_down(), stops);
    assert_eq!(yard.log.take(), ["a up", "b up", "b down", "a down"]);
}

#[tokio::test(start_paused = true)]
async fn panic_in_drop_fails_only_the_child_itself() {
    let yard = Yard::new(Intensity::default()).await;
    let (bad, sibling) = (yard.part("bad"), yard.part("sibling"));
    yard.root.children().start(sibling.spec());
    yard.root.children().start(bad.spec().contained());
    yard.lives("node/bad", 1).await;
    bad.stop_behavior.send_replace(StopBehavior::PanicsInDrop);
    yard.tree.restart("node/bad").expect("the actor is running");
    yard.lives("node/bad", 2).await;
    assert!(yard.find("node/bad").unwrap().last_exits[0].text.contains("while it is dropped"));
    // A killed actor is dropped elsewhere.
    yard.crash("node/bad", CrashHow::Kill);
    yard.lives("node/bad", 3).await;
    bad.stop_behavior.send_replace(StopBehavior::AtOnce);
    assert_eq!(yard.find("node/bad").unwrap().last_exits[1].kind, ExitKind::Killed);
    assert_eq!((yard.find("node/sibling").unwrap().incarnation, yard.log.has("sibling down")), (1, false));
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn eleven_failed_starts_end_the_supervisor_and_ten_do_not() {
    let yard = Yard::new(Intensity::default()).await;
    let [outside, bad, twin, apart] = ["outside", "bad", "twin", "apart"].map(|name| yard.part(name));
    yard.root.children().start(outside.spec());
    let children = vec![bad.spec(), twin.spec(), apart.spec().contained()];
    yard.root.children().start(Spec::group("g", Intensity::default(), fill(children)));
    yard.lives("node/g/apart", 1).await;

    // Ended in order, which is no failure, and failed ten times: the most it may.
    yard.crash("node/g/bad", CrashHow::Start { times: 10 });
    yard.lives("node/g/bad", 12).await;
    let exits = yard.find("node/g/bad").unwrap().last_exits;
    assert!(exits.iter().all(|exit| exit.kind == ExitKind::Start && exit.text == "failed to start on request"));
    // A contained child may fail any number of times, and stays contained.
    yard.crash("node/g/apart", CrashHow::Start { times: 12 });
    yard.lives("node/g/apart", 14).await;
    yard.lives("node/g", 1).await;
    yard.lives("node/g/twin", 1).await;

    // Once the window is over: one more failure makes the group a new incarnation, which starts all
    // children at once.
    tokio::time::sleep(Intensity::default().window * 2).await;
    yard.crash("node/g/bad", CrashHow::Start { times: 100 });
    yard.lives("node/g", 2).await;
    for path in ["node/g/bad", "node/g/twin", "node/g/apart"] {
        yard.lives(path, 1).await;
    }
    assert!(
        yard.find("node/g").unwrap().last_exits[0].text.contains("bad failed too often (more than 10 exits in 60 s)")
    );

    // A group can also fail to start, and its own supervisor handles it.
    yard.crash("node/g", CrashHow::Start { times: 3 });
    yard.lives("node/g", 6).await;
    yard.lives("node/g/twin", 1).await;
    yard.lives("node/outside", 1).await;
    yard.root.shut_down().await;
}
