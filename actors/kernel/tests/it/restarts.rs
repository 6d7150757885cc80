//! Who restarts with whom, when, and after what delay: with real actors, in virtual time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Backoff, Children, Fault, Group, Intensity, Restart, Spec, Strategy};
use muster_messages::{ActorState, CrashHow, ExitKind};
use tokio::time::Instant;

use crate::parts::{Farewell, Hand, Msg, Yard, eventually};

fn fill(specs: Vec<Spec>) -> impl Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static {
    move |children| {
        specs.iter().for_each(|spec| children.start(spec.clone()));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_sibling_restarts_its_whole_group_however_deep_it_is() {
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

    // Five levels down, by a panic: the twin goes with it, and nobody above or beside them.
    yard.crash(&deep_path, CrashHow::Panic);
    yard.lives(&deep_path, 2).await;
    yard.lives(&twin_path, 2).await;
    assert_eq!(yard.find("node/all/one").unwrap().incarnation, 1);
    assert_eq!(yard.find(&twin_path).unwrap().last_exits[0].kind, ExitKind::Normal, "it was asked to go");

    // At the top: everything below starts anew.
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
async fn after_five_quick_deaths_the_next_start_waits_a_second_and_after_a_stable_run_less() {
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
async fn a_group_that_fails_while_its_child_backs_off_gives_one_delay_not_two() {
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
    // The hour that it would have waited passes without another start.
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert_eq!(yard.log.take(), ["child up", "child up"]);
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn done_counts_only_once_the_actor_has_ended() {
    let yard = Yard::new(Intensity::default()).await;
    let (task, heir) = (yard.part("task"), yard.part("heir"));
    task.farewell.send_replace(Farewell::Late);
    let spec = task.spec().restart(Restart::Transient).stop_deadline(Duration::from_secs(3600)).says_ready();
    yard.root.children().start(spec.start_deadline(Duration::from_secs(3600)));
    yard.root.children().start(heir.spec().requires("task"));
    task.tell(|| Msg::Done).await;
    eventually("it is on its way out", || yard.find("node/task").is_some_and(|n| n.handling.is_some())).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (yard.state("node/task"), yard.state("node/heir")),
        (Some(ActorState::Starting), Some(ActorState::Starting))
    );
    task.farewell.send_replace(Farewell::AtOnce);
    yard.until("node/task", ActorState::Done).await;
    yard.lives("node/heir", 1).await;

    // Whoever fails on the way out is not done.
    let bad = yard.part("bad");
    bad.farewell.send_replace(Farewell::Panics);
    yard.root.children().start(bad.spec().restart(Restart::Transient));
    bad.tell(|| Msg::Done).await;
    yard.lives("node/bad", 2).await;
    assert!(yard.find("node/bad").unwrap().last_exits[0].text.contains("while it stops"));
    bad.farewell.send_replace(Farewell::AtOnce);
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_was_done_works_again_when_its_group_restarts() {
    let yard = Yard::new(Intensity::default()).await;
    let (done, other) = (yard.part("done"), yard.part("other"));
    let specs = vec![done.spec().restart(Restart::Transient), other.spec()];
    yard.root.children().start(Spec::group("g", Strategy::OneForAll, fill(specs)));
    done.tell(|| Msg::Done).await;
    yard.until("node/g/done", ActorState::Done).await;
    assert_eq!(yard.state("node/g/other"), Some(ActorState::Healthy), "being done takes nobody along");
    yard.crash("node/g/other", CrashHow::Panic);
    yard.lives("node/g/done", 2).await;
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn the_tree_follows_root_one_two_through_healthy_crash_removal_and_done() {
    let yard = Yard::new(Intensity::default()).await;
    let two = yard.part("two");
    let fill_one = fill(vec![two.spec().says_ready().restart(Restart::Transient)]);
    yard.root.children().start(Spec::group("one", Intensity::default(), fill_one).says_ready());
    let both = |state| (yard.state("node/one"), yard.state("node/one/two")) == (Some(state), Some(state));
    eventually("both are starting", || both(ActorState::Starting)).await;
    two.tell(|| Msg::Ready).await;
    eventually("both are healthy", || both(ActorState::Healthy)).await;

    yard.crash("node/one/two", CrashHow::Panic);
    yard.until("node/one/two", ActorState::BackingOff).await;
    yard.until("node/one/two", ActorState::Starting).await;
    assert_eq!(yard.state("node/one"), Some(ActorState::Healthy), "it has been, and its child is its own affair");
    two.tell(|| Msg::Ready).await;
    yard.lives("node/one/two", 2).await;

    yard.crash("node/one", CrashHow::Error);
    yard.until("node/one", ActorState::BackingOff).await;
    eventually("what was below is gone", || yard.find("node/one/two").is_none()).await;
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
async fn a_child_that_says_it_is_ready_keeps_those_waiting_that_require_it() {
    let yard = Yard::new(Intensity::default()).await;
    let [disk, reader, other] = ["disk", "reader", "other"].map(|name| yard.part(name));
    yard.root.children().start(disk.spec().says_ready());
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
async fn a_child_that_is_not_ready_in_time_has_failed_and_is_stopped_before_the_next_one_starts() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    yard.root.children().start(a.spec().says_ready().start_deadline(Duration::from_secs(7)));
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
    assert_eq!(yard.log.take()[..2], ["good up", "good down"], "children go in order before it gives up");
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn a_root_that_gives_up_stops_its_children_first() {
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
async fn a_child_that_was_asked_to_go_before_is_given_its_time_at_shutdown_too() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    a.farewell.send_replace(Farewell::Late);
    yard.root.children().start(a.spec());
    yard.lives("node/a", 1).await;
    yard.root.children().stop("a");
    yard.until("node/a", ActorState::Stopping).await;
    let farewell = Arc::clone(&a.farewell);
    let later = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        farewell.send_replace(Farewell::AtOnce);
    });
    yard.root.shut_down().await;
    later.await.expect("it only waits");
    assert_eq!(yard.log.take(), ["a up", "a down"]);
}

/// Until it holds. No time passes while a factory is at work, so nobody waits for any.
async fn turns(until: impl Fn() -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !until() {
        assert!(std::time::Instant::now() < end, "it never holds");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_launch_was_not_reported_yet_is_stopped_in_its_turn_too() {
    for (late, other) in [("a", "b"), ("b", "a")] {
        let yard = Yard::new(Intensity::default()).await;
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let specs = ["a", "b"].map(|name| {
            let held = Arc::clone(&held);
            yard.part(name).made(move || {
                if name == late {
                    let _released = held.lock().expect("nobody panics here").recv();
                }
                Ok(())
            })
        });
        let group = Spec::group("g", Intensity::default(), fill(specs.into()));
        yard.root.children().start(group.stop_deadline(Duration::from_secs(60)));
        turns(|| yard.state(&format!("node/g/{other}")) == Some(ActorState::Healthy)).await;
        // The group is busy for 30 s with what it hears before the launch.
        yard.crash("node/g", CrashHow::Hang);
        drop(release);
        turns(|| yard.log.len() == 2).await;
        yard.root.children().stop_and_wait("g").await;
        assert_eq!(yard.log.take(), [&format!("{other} up"), &format!("{late} up"), "b down", "a down"]);
        assert_eq!(yard.tree.list(), ["node"]);
        yard.root.shut_down().await;
    }
}

#[tokio::test(start_paused = true)]
async fn however_many_children_fail_before_their_launch_was_reported_each_is_started_again() {
    let yard = Yard::new(Intensity::default()).await;
    let (release, held) = std::sync::mpsc::channel::<()>();
    let (held, making) = (Arc::new(Mutex::new(held)), Arc::new(AtomicU64::new(0)));
    let hands: Vec<Hand> = (0..100).map(|n| yard.part(&format!("part-{n}"))).collect();
    let spec = |hand: &Hand| {
        hand.bad_starts.store(1, Ordering::SeqCst);
        let (held, making) = (Arc::clone(&held), Arc::clone(&making));
        hand.made(move || {
            making.fetch_add(1, Ordering::SeqCst);
            let _released = held.lock().expect("nobody panics here").recv();
            Ok(())
        })
    };
    let limit = Intensity { max: hands.len(), ..Intensity::default() };
    yard.root.children().start(Spec::group("g", limit, fill(hands.iter().map(spec).collect())));
    turns(|| making.load(Ordering::SeqCst) == 100).await;
    yard.crash("node/g", CrashHow::Hang);
    drop(release);
    turns(|| hands.iter().all(|hand| hand.dropped.load(Ordering::SeqCst) == 1)).await;
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
async fn tasks_of_a_child_that_has_stopped_do_not_wait_for_its_siblings() {
    let yard = Yard::new(Intensity::default()).await;
    let (a, b) = (yard.part("a"), yard.part("b"));
    a.farewell.send_replace(Farewell::Late);
    yard.root.children().start(a.spec());
    yard.lives("node/a", 1).await;
    yard.root.children().start(b.spec());
    yard.lives("node/b", 1).await;
    let task = b.runs_a_task().await;
    let stops = async {
        eventually("its task has ended", || task.has_changed().is_err()).await;
        assert_eq!((yard.log.has("b down"), yard.state("node/a")), (true, Some(ActorState::Stopping)));
        a.farewell.send_replace(Farewell::AtOnce);
    };
    tokio::join!(yard.root.shut_down(), stops);
    assert_eq!(yard.log.take(), ["a up", "b up", "b down", "a down"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_panics_when_it_is_dropped_has_failed_itself_and_nobody_else() {
    let yard = Yard::new(Intensity::default()).await;
    let (bad, sibling) = (yard.part("bad"), yard.part("sibling"));
    yard.root.children().start(sibling.spec());
    yard.root.children().start(bad.spec().contained());
    yard.lives("node/bad", 1).await;
    bad.farewell.send_replace(Farewell::PanicsInDrop);
    yard.tree.restart("node/bad").expect("it runs");
    yard.lives("node/bad", 2).await;
    assert!(yard.find("node/bad").unwrap().last_exits[0].text.contains("while it is dropped"));
    // One that is killed is dropped by others.
    yard.crash("node/bad", CrashHow::Kill);
    yard.lives("node/bad", 3).await;
    bad.farewell.send_replace(Farewell::AtOnce);
    assert_eq!(yard.find("node/bad").unwrap().last_exits[1].kind, ExitKind::Killed);
    assert_eq!((yard.find("node/sibling").unwrap().incarnation, yard.log.has("sibling down")), (1, false));
    yard.root.shut_down().await;
}

#[tokio::test(start_paused = true)]
async fn ten_starts_that_fail_are_borne_and_eleven_end_the_supervisor_which_forgets_them() {
    let yard = Yard::new(Intensity::default()).await;
    let [outside, bad, twin, apart] = ["outside", "bad", "twin", "apart"].map(|name| yard.part(name));
    yard.root.children().start(outside.spec());
    let children = vec![bad.spec(), twin.spec(), apart.spec().contained()];
    yard.root.children().start(Spec::group("g", Intensity::default(), fill(children)));
    yard.lives("node/g/apart", 1).await;

    // Ended in order, which is no failure, and failed ten times: all it may.
    yard.crash("node/g/bad", CrashHow::Start { times: 10 });
    yard.lives("node/g/bad", 12).await;
    let exits = yard.find("node/g/bad").unwrap().last_exits;
    assert!(exits.iter().all(|exit| exit.kind == ExitKind::Start && exit.text == "failed to start on request"));
    // However often a contained one does, and it is contained all the while.
    yard.crash("node/g/apart", CrashHow::Start { times: 12 });
    yard.lives("node/g/apart", 14).await;
    yard.lives("node/g", 1).await;
    yard.lives("node/g/twin", 1).await;

    // Once the window is over: one more, and the group is another one, which starts everybody at once.
    tokio::time::sleep(Intensity::default().window * 2).await;
    yard.crash("node/g/bad", CrashHow::Start { times: 100 });
    yard.lives("node/g", 2).await;
    for path in ["node/g/bad", "node/g/twin", "node/g/apart"] {
        yard.lives(path, 1).await;
    }
    assert!(
        yard.find("node/g").unwrap().last_exits[0].text.contains("bad failed too often (more than 10 exits in 60 s)")
    );

    // A group can fail to start as well, and its own supervisor bears it.
    yard.crash("node/g", CrashHow::Start { times: 3 });
    yard.lives("node/g", 6).await;
    yard.lives("node/g/twin", 1).await;
    yard.lives("node/outside", 1).await;
    yard.root.shut_down().await;
}
