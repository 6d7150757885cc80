//! An incarnation that was given up, and a misbehaving neighbour, have no effect. In real time, because threads are
//! blocked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use muster_kernel::{Address, Children, Cx, Fault, Intensity, Shell, Slot, Spec, Strategy, Undeliverable};
use muster_messages::{ActorState, CrashHow, ExitKind, Named};

use crate::parts::{Msg, StopBehavior, Yard, eventually};

const SOON: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stuck_child_is_shown_and_its_successor_runs() {
    let yard = Yard::new(Strategy::OneForAll).await;
    let [a, below, sibling] = ["a", "below", "sibling"].map(|name| yard.part(name));
    yard.root.children().start(a.spec().stop_deadline(SOON));
    yard.root.children().start(sibling.spec());
    let child = below.spec();
    a.tell(|| Msg::Child(child.clone())).await;
    yard.lives("node/a/below", 1).await;
    let task = a.runs_a_task().await;
    let (_, old) = a.who().await.expect("it answers");
    let release = a.blocks(&yard, "node/a", |_| ()).await;

    // A sibling fails: the group restarts without delay.
    yard.crash("node/sibling", CrashHow::Panic);
    yard.lives("node/a", 2).await;
    yard.lives("node/sibling", 2).await;
    let stuck = yard.find("node/a@1").expect("it is shown at its own path");
    assert_eq!((stuck.state, stuck.incarnation), (ActorState::Stuck, 1));
    assert_eq!(stuck.handling.map(|h| h.message).as_deref(), Some("block"));
    assert_eq!(yard.find("node/a").unwrap().last_exits[0].kind, ExitKind::Stuck);
    assert_eq!(a.who().await.map(|(incarnation, _)| incarnation), Some(2));

    // Nothing harmful remains: its children and tasks end, and its messages are dropped and counted.
    eventually("its child has ended", || yard.find("node/a/below").is_none()).await;
    eventually("its task has ended", || task.has_changed().is_err()).await;
    let before = yard.tree.stale("node/a").expect("the actor exists");
    assert_eq!(old.tell(Msg::Ready), Err(Undeliverable::Down));
    assert_eq!(yard.tree.stale("node/a"), Some(before + 1));
    drop(release);
    eventually("the stuck incarnation ends", || yard.find("node/a@1").is_none()).await;
    assert_eq!((yard.find("node/a").unwrap().incarnation, yard.state("node/a")), (2, Some(ActorState::Healthy)));
    yard.root.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn released_stuck_incarnation_has_no_effect() {
    let yard = Yard::new(Intensity::default()).await;
    let (a, other, slot) = (yard.part("a"), yard.part("other"), Slot::new());
    yard.root.children().start(a.spec().stop_deadline(SOON));
    yard.root.children().start(other.spec());
    yard.lives("node/a", 1).await;
    yard.lives("node/other", 1).await;
    let (outcome, results) = mpsc::channel();
    let (to, memory) = (other.address.clone(), slot.clone());
    let release = a
        .blocks(&yard, "node/a", move |cx| {
            memory.set("the stuck one");
            let _heard = outcome.send([cx.me().tell(Msg::Echo), to.tell(Msg::Echo)]);
        })
        .await;
    yard.tree.restart("node/a").expect("the actor is running");
    yard.lives("node/a", 2).await;
    let (at_once, memory) = (mpsc::channel().1, slot.clone());
    a.address.tell(Msg::Block(at_once, Box::new(move |_| memory.set("its successor")))).expect("the actor is running");
    eventually("its successor has written its slot", || slot.get() == Some("its successor")).await;
    drop(release);
    eventually("the stuck incarnation ends", || yard.find("node/a@1").is_none()).await;
    assert_eq!(results.recv(), Ok([Err(Undeliverable::Down); 2]), "neither its own address nor another's delivers it");
    assert_eq!((a.address.stale(), other.address.stale()), (1, 1), "and it is counted");
    assert_eq!(slot.get(), Some("its successor"));
    yard.root.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn task_of_an_ended_incarnation_has_no_effect() {
    let yard = Yard::new(Intensity::default()).await;
    let (a, other, slot) = (yard.part("a"), yard.part("other"), Slot::new());
    yard.root.children().start(a.spec());
    yard.root.children().start(other.spec());
    yard.lives("node/a", 1).await;
    yard.lives("node/other", 1).await;
    let ((at_it, begun), (release, held), (outcome, results)) =
        (mpsc::channel(), mpsc::channel::<()>(), mpsc::channel());
    let (to, memory) = (other.address.clone(), slot.clone());
    let begins = move |cx: &Cx<Msg>| {
        cx.spawn(async move {
            let _begun = at_it.send(());
            let _dropped = held.recv();
            memory.set("a task of one that has ended");
            let _heard = outcome.send(to.tell(Msg::Echo));
        });
    };
    a.address.tell(Msg::Block(mpsc::channel().1, Box::new(begins))).expect("the actor is running");
    eventually("it blocks its thread", || begun.try_recv().is_ok()).await;
    yard.crash("node/a", CrashHow::Panic);
    yard.lives("node/a", 2).await;
    slot.set("its successor");
    drop(release);
    assert_eq!(results.recv(), Ok(Err(Undeliverable::Down)));
    assert_eq!((other.address.stale(), slot.get()), (1, Some("its successor")));
    yard.root.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn blocked_descendants_of_an_ended_group_have_no_effect() {
    for end in [None, Some(CrashHow::Error), Some(CrashHow::Panic), Some(CrashHow::Kill)] {
        let yard = Yard::new(Intensity::default()).await;
        let a = yard.part("a");
        let spec = a.spec();
        let group = Spec::group("g", Intensity::default(), move |children: &Children| {
            children.start(spec.clone());
            Ok(())
        });
        yard.root.children().start(group.stop_deadline(SOON));
        yard.lives("node/g/a", 1).await;
        let (_, old) = a.who().await.expect("it answers");
        let (task, release) = (a.runs_a_task().await, a.blocks(&yard, "node/g/a", |_| ()).await);
        if let Some(how) = end {
            yard.crash("node/g", how);
            yard.lives("node/g", 2).await;
            yard.lives("node/g/a", 1).await;
        } else {
            yard.root.children().stop_and_wait("g").await;
            assert_eq!(a.address.tell(Msg::Echo), Err(Undeliverable::Down));
        }
        assert_eq!(old.tell(Msg::Echo), Err(Undeliverable::Down));
        eventually("its task has ended while the actor is blocked", || task.has_changed().is_err()).await;
        drop(release);
        yard.root.shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn blocked_children_of_a_failed_actor_have_no_effect() {
    let yard = Yard::new(Intensity::default()).await;
    let (a, below) = (yard.part("a"), yard.part("below"));
    yard.root.children().start(a.spec());
    let child = below.spec();
    a.tell(|| Msg::Child(child.clone())).await;
    yard.lives("node/a/below", 1).await;
    let task = below.runs_a_task().await;
    let release = below.blocks(&yard, "node/a/below", |_| ()).await;
    yard.crash("node/a", CrashHow::Error);
    yard.lives("node/a", 2).await;
    assert_eq!(below.address.tell(Msg::Echo), Err(Undeliverable::Down));
    eventually("its task has ended while the actor is blocked", || task.has_changed().is_err()).await;
    drop(release);
    yard.root.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stuck_incarnation_starts_no_children_beside_its_successor() {
    let yard = Yard::new(Intensity::default()).await;
    let [a, below, intruder] = ["a", "below", "below"].map(|name| yard.part(name));
    yard.root.children().start(a.spec().stop_deadline(SOON));
    yard.lives("node/a", 1).await;
    let (second, held) = mpsc::channel::<()>();
    let (child, (started, has_started)) = (intruder.spec(), mpsc::channel());
    let release = a
        .blocks(&yard, "node/a", move |cx| {
            cx.children().start(child);
            // A worker thread keeps the task it spawned last to itself: with this one, another thread can run the group.
            tokio::spawn(async {});
            let _heard = started.send(());
            let _dropped = held.recv();
        })
        .await;
    yard.tree.restart("node/a").expect("the actor is running");
    yard.lives("node/a", 2).await;
    let child = below.spec();
    a.tell(|| Msg::Child(child.clone())).await;
    yard.lives("node/a/below", 1).await;
    drop(release);
    has_started.recv().expect("it reports its start");
    for _ in 0..100 {
        assert!(below.who().await.is_some());
        assert_eq!(intruder.address.tell(Msg::Echo), Err(Undeliverable::Down));
    }
    drop(second);
    eventually("the stuck incarnation ends", || yard.find("node/a@1").is_none()).await;
    assert_eq!(yard.tree.list(), ["node", "node/a", "node/a/below"]);
    assert!(below.who().await.is_some());
    assert_eq!(intruder.dropped.load(Ordering::SeqCst), 0, "it was never made");
    yard.root.shut_down().await;
}

#[tokio::test]
async fn late_factory_of_a_removed_child_starts_no_actor() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    let (release, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let making = Arc::new(AtomicBool::new(false));
    let at_it = Arc::clone(&making);
    let spec = a.made(move || {
        at_it.store(true, Ordering::SeqCst);
        let _released = held.lock().expect("no thread panics while it holds the lock").recv();
        Ok(())
    });
    yard.root.children().start(spec.stop_deadline(SOON));
    eventually("the factory is running", || making.load(Ordering::SeqCst)).await;
    yard.root.children().stop_and_wait("a").await;
    assert_eq!(yard.tree.list(), ["node", "node/a@1"]);
    drop(release);
    eventually("the late incarnation has ended", || yard.find("node/a@1").is_none()).await;
    assert_eq!((yard.log.take(), a.dropped.load(Ordering::SeqCst)), (vec![], 1));
    yard.root.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn late_factory_takes_nothing_from_its_successor() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    let (release, held) = mpsc::channel::<()>();
    let first = std::sync::Mutex::new(Some(held));
    let spec = a.made(move || {
        let held = first.lock().expect("no thread panics while it holds the lock").take();
        let _released = held.map(|held| held.recv());
        Ok(())
    });
    yard.root.children().start(spec.start_deadline(SOON * 10).stop_deadline(SOON));
    yard.until("node/a", ActorState::Healthy).await;
    let second = yard.find("node/a").expect("the actor is running").incarnation;
    assert_eq!(yard.state("node/a@1"), Some(ActorState::Stuck));
    drop(release);
    eventually("the late incarnation has ended", || yard.find("node/a@1").is_none()).await;
    assert_eq!(a.who().await.map(|(incarnation, _)| incarnation), Some(second));
    // Operations on the actor reach the running incarnation.
    yard.crash("node/a", CrashHow::Panic);
    eventually("it runs again", || {
        yard.find("node/a").is_some_and(|n| n.state == ActorState::Healthy && n.incarnation > second)
    })
    .await;
    assert!(a.who().await.is_some_and(|(incarnation, _)| incarnation > second));
    yard.root.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn child_in_its_factory_at_shutdown_does_not_start() {
    let yard = Yard::new(Intensity::default()).await;
    let (a, b) = (yard.part("a"), yard.part("b"));
    let (release, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let making = Arc::new(AtomicBool::new(false));
    let at_it = Arc::clone(&making);
    yard.root.children().start(a.spec());
    yard.root.children().start(b.made(move || {
        at_it.store(true, Ordering::SeqCst);
        let _released = held.lock().expect("no thread panics while it holds the lock").recv();
        Ok(())
    }));
    yard.lives("node/a", 1).await;
    eventually("the factory is running", || making.load(Ordering::SeqCst)).await;
    let (tree, log) = (yard.tree.clone(), yard.log.clone());
    let shutdown = tokio::spawn(async move { yard.root.shut_down().await });
    eventually("its siblings have ended", || log.len() == 2).await;
    drop(release);
    shutdown.await.expect("shutdown only stops actors");
    assert_eq!((log.take(), tree.list()), (vec!["a up".into(), "a down".into()], vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn child_in_its_factory_when_the_group_fails_does_not_start() {
    let yard = Yard::new(Intensity { max: 0, ..Intensity::default() }).await;
    let [a, b, c] = ["a", "b", "c"].map(|name| yard.part(name));
    let (release, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    yard.root.children().start(a.spec());
    yard.root.children().start(b.made(move || {
        let _released = held.lock().expect("no thread panics while it holds the lock").recv();
        Ok(())
    }));
    c.stop_behavior.send_replace(StopBehavior::Late);
    yard.root.children().start(c.spec());
    yard.lives("node/a", 1).await;
    yard.lives("node/c", 1).await;
    yard.crash("node/a", CrashHow::Panic);
    yard.until("node/c", ActorState::Stopping).await;
    drop(release);
    eventually("it was made in vain", || b.dropped.load(Ordering::SeqCst) == 1).await;
    assert!(!yard.log.has("c down"), "while the others are still stopping");
    c.stop_behavior.send_replace(StopBehavior::AtOnce);
    yard.root.ended().await;
    assert!(yard.log.has("c down") && !yard.log.has("b up"));
}

#[tokio::test]
async fn address_ignores_same_incarnation_of_an_earlier_group() {
    let yard = Yard::new(Intensity::default()).await;
    let a = yard.part("a");
    let spec = a.spec();
    yard.root.children().start(Spec::group("g", Intensity::default(), move |children: &Children| {
        children.start(spec.clone());
        Ok(())
    }));
    yard.lives("node/g/a", 1).await;
    let (_, before) = a.who().await.expect("it answers");
    yard.tree.restart("node/g").expect("the actor is running");
    yard.lives("node/g", 2).await;
    yard.lives("node/g/a", 1).await;
    let (incarnation, now) = a.who().await.expect("it answers");
    assert_eq!(incarnation, 1, "counting restarts, and another incarnation runs");
    assert_eq!((before.tell(Msg::Ready), now.tell(Msg::Ready)), (Err(Undeliverable::Down), Ok(())));
    assert_eq!(a.address.stale(), 1);
    yard.root.shut_down().await;
}

#[tokio::test]
async fn a_path_belongs_to_one_actor() {
    let yard = Yard::new(Intensity::default()).await;
    let (mine, inner) = (yard.part("b"), yard.part("b").spec());
    yard.root.children().start(Spec::group("a", Intensity::default(), move |children: &Children| {
        children.start(inner.clone());
        Ok(())
    }));
    for name in ["a/b", "a@1", "", "/", "a b", "ä", "x\n", &"x".repeat(300)] {
        yard.root.children().start(yard.part(name).spec());
    }
    yard.root.children().start(mine.spec());
    yard.lives("node/b", 1).await;
    yard.lives("node/a/b", 1).await;
    assert_eq!(yard.tree.list(), ["node", "node/a", "node/a/b", "node/b"]);
    yard.root.shut_down().await;
}

/// Does what no actor should.
struct Nuisance {
    how: How,
    enough: Arc<AtomicBool>,
    made: u64,
}
#[derive(Clone, Copy)]
enum How {
    /// Reports that it is done before it is ready, and ready from then on.
    DoneBeforeReady,
    /// Never yields its thread.
    Spins,
    /// Starts children endlessly, all but the first under a name that is taken.
    StartsWithoutEnd,
    /// Panics in tasks endlessly.
    PanicsInTasks,
}
struct Go;
impl Named for Go {
    fn name(&self) -> &'static str {
        "go"
    }
}
impl Shell for Nuisance {
    type Msg = Go;
    const KIND: &'static str = "Nuisance";
    async fn started(&mut self, cx: &Cx<Go>) -> Result<(), Fault> {
        let _full = cx.me().tell(Go);
        Ok(())
    }
    async fn handle(&mut self, cx: &Cx<Go>, _: Go) -> Result<(), Fault> {
        let enough = || self.enough.load(Ordering::Relaxed);
        match self.how {
            How::DoneBeforeReady => {
                cx.done();
                (0..1000).for_each(|_| cx.ready());
            }
            How::Spins => {
                while !enough() {
                    std::hint::spin_loop();
                }
            }
            How::StartsWithoutEnd => {
                self.made += 1;
                cx.children().start(nuisance("own", How::DoneBeforeReady, &self.enough));
                cx.children().start(nuisance("own", How::PanicsInTasks, &self.enough).requires("own"));
            }
            How::PanicsInTasks => cx.spawn(async { panic!("again") }),
        }
        if !enough() {
            cx.after(Duration::from_millis(1), Go);
        }
        Ok(())
    }
}
fn nuisance(name: &'static str, how: How, enough: &Arc<AtomicBool>) -> Spec {
    let enough = Arc::clone(enough);
    Spec::actor(name, Address::new(4), move || Ok(Nuisance { how, enough: Arc::clone(&enough), made: 0 })).contained()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn misbehaving_sibling_does_not_prevent_five_group_restarts() {
    let yard = Yard::new(Intensity::default()).await;
    let enough = Arc::new(AtomicBool::new(false));
    let bad = [
        nuisance("eager", How::DoneBeforeReady, &enough).reports_ready(),
        nuisance("spins", How::Spins, &enough).stop_deadline(SOON),
        nuisance("starts", How::StartsWithoutEnd, &enough),
        nuisance("panics", How::PanicsInTasks, &enough),
        nuisance("circle", How::PanicsInTasks, &enough).requires("circle").requires("nobody"),
    ];
    yard.root.children().start(Spec::group("bad", Strategy::OneForAll, move |children: &Children| {
        bad.iter().for_each(|spec| children.start(spec.clone()));
        Ok(())
    }));
    let (one, two) = (yard.part("one"), yard.part("two"));
    let specs = [one.spec(), two.spec()];
    yard.root.children().start(Spec::group("good", Strategy::OneForAll, move |children: &Children| {
        specs.iter().for_each(|spec| children.start(spec.clone()));
        Ok(())
    }));
    for n in 1..=5 {
        yard.lives("node/good/one", n).await;
        yard.lives("node/good/two", n).await;
        yard.crash("node/good/two", CrashHow::Panic);
    }
    yard.lives("node/good/one", 6).await;
    assert_eq!(yard.find("node/good").unwrap().incarnation, 1);
    enough.store(true, Ordering::Relaxed);
    yard.root.shut_down().await;
    assert_eq!(yard.tree.list(), ["node"]);
}

#[tokio::test]
async fn slot_keeps_the_newest_value_with_several_holders() {
    let (slot, other) = (Slot::new(), Slot::new());
    assert_eq!(slot.get(), None::<u64>);
    let last = [7, 3, 5, 1];
    let write = |last: u64| {
        let slot = slot.clone();
        std::thread::spawn(move || (last..last + 100).rev().for_each(|n| slot.set(n)))
    };
    last.map(write).into_iter().for_each(|writer| writer.join().expect("the writer does not panic"));
    assert!(slot.get().is_some_and(|value| last.contains(&value)), "{:?} is none of the final values", slot.get());
    for value in last {
        write(value).join().expect("the writer does not panic");
        assert_eq!((slot.get(), slot.clone().get(), other.get()), (Some(value), Some(value), None::<u64>));
    }
}
