//! The kernel with real actors: restarts, addresses, children, stopping, introspection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_kernel::{
    Address, Alarm, AskError, Cx, Fault, Intensity, Shell, Slot, Spec, Supervisor, Tree, Undeliverable,
};
use muster_messages::{ActorState, CrashHow, ExitKind, Moment, Named, Reply};

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum Msg {
    Add(u64),
    Get(Reply<u64>),
    SpawnPanic,
    StartChild(&'static str),
    Block,
}

struct Counter {
    total: u64,
    slot: Slot<u64>,
    log: Arc<std::sync::Mutex<Vec<String>>>,
    name: &'static str,
}
impl Shell for Counter {
    type Msg = Msg;
    const KIND: &'static str = "Counter";
    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Add(n) => {
                self.total += n;
                self.slot.set(self.total);
            }
            Msg::Get(reply) => drop(reply.send(self.total)),
            Msg::SpawnPanic => cx.spawn(async { panic!("in a task") }),
            Msg::StartChild(name) => cx.children().start(counter(name, &Address::new(8), &Slot::new(), &self.log)),
            Msg::Block => std::future::pending().await,
        }
        Ok(())
    }
    fn view(&self) -> serde_json::Value {
        serde_json::json!({"total": self.total})
    }
    async fn stopping(&mut self, _cx: &Cx<Msg>) {
        self.log.lock().expect("no thread panics while it holds the log").push(format!("{} stopped", self.name));
    }
}

type Log = Arc<std::sync::Mutex<Vec<String>>>;

fn counter(name: &'static str, address: &Address<Msg>, slot: &Slot<u64>, log: &Log) -> Spec {
    let (slot, log) = (slot.clone(), Arc::clone(log));
    Spec::actor(name, address.clone(), move || {
        Ok(Counter { total: slot.get().unwrap_or(0), slot: slot.clone(), log: Arc::clone(&log), name })
    })
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..12_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("condition never held: {what}");
}

async fn get(address: &Address<Msg>) -> Result<u64, AskError> {
    address.ask(Duration::from_secs(60), Msg::Get).await
}

#[tokio::test]
async fn crashed_actor_restarts_with_its_slot_and_address() {
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let (address, slot, log) = (Address::new(8), Slot::new(), Log::default());
    assert_eq!(address.tell(Msg::Add(1)), Err(Undeliverable::Down));
    root.children().start(counter("a", &address, &slot, &log));
    eventually("started", async || get(&address).await.is_ok()).await;
    for (how, kind) in
        [(CrashHow::Panic, ExitKind::Panic), (CrashHow::Error, ExitKind::Error), (CrashHow::Kill, ExitKind::Killed)]
    {
        let before = get(&address).await.unwrap();
        address.tell(Msg::Add(5)).unwrap();
        tree.crash("node/a", how).unwrap();
        eventually("restarted", async || {
            let node = tree.inspect("node/a").await.unwrap();
            node.last_exits.last().is_some_and(|e| e.kind == kind) && node.state == ActorState::Healthy
        })
        .await;
        eventually("answers", async || get(&address).await == Ok(before + 5)).await;
    }
    let node = tree.inspect("node/a").await.unwrap();
    assert_eq!((node.incarnation, node.restarts), (4, 3));
    assert_eq!(node.view["total"], 15);
    root.shut_down().await;
    assert_eq!(tree.list(), ["node"]);
}

#[tokio::test]
async fn a_tree_ends_with_the_handle_of_its_root() {
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let (address, slot, log) = (Address::new(8), Slot::new(), Log::default());
    root.children().start(counter("a", &address, &slot, &log));
    eventually("started", async || get(&address).await.is_ok()).await;
    drop(root);
    eventually("gone", async || tree.list().is_empty() && address.tell(Msg::Add(1)) == Err(Undeliverable::Down)).await;
}

#[tokio::test]
async fn a_panic_in_a_task_is_a_fault_of_its_actor() {
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let (address, slot, log) = (Address::new(8), Slot::new(), Log::default());
    root.children().start(counter("a", &address, &slot, &log));
    eventually("started", async || get(&address).await.is_ok()).await;
    address.tell(Msg::SpawnPanic).unwrap();
    eventually("restarted", async || tree.inspect("node/a").await.unwrap().incarnation == 2).await;
    assert!(tree.inspect("node/a").await.unwrap().last_exits[0].text.contains("in a task"));
    root.shut_down().await;
}

#[tokio::test]
async fn children_stop_before_parents_in_reverse_start_order() {
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let (first, second, log) = (Address::new(8), Address::new(8), Log::default());
    root.children().start(counter("first", &first, &Slot::new(), &log));
    root.children().start(counter("second", &second, &Slot::new(), &log));
    eventually("started", async || get(&first).await.is_ok() && get(&second).await.is_ok()).await;
    second.tell(Msg::StartChild("child")).unwrap();
    eventually("child", async || tree.inspect("node/second/child").await.is_ok_and(|n| n.state == ActorState::Healthy))
        .await;
    root.shut_down().await;
    assert_eq!(*log.lock().unwrap(), ["child stopped", "second stopped", "first stopped"]);
}

#[tokio::test]
async fn full_mailbox_refuses_and_a_busy_actor_shows_its_message() {
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let (address, log) = (Address::new(3), Log::default());
    root.children().start(counter("a", &address, &Slot::new(), &log).stop_deadline(Duration::from_millis(50)));
    eventually("started", async || get(&address).await.is_ok()).await;
    address.tell(Msg::Block).unwrap();
    eventually("blocked", async || {
        tree.inspect("node/a").await.unwrap().handling.is_some_and(|h| h.message == "block")
    })
    .await;
    while address.tell(Msg::Add(1)).is_ok() {}
    assert_eq!(address.tell(Msg::Add(1)), Err(Undeliverable::Full));
    assert_eq!(address.depth(), 3);
    // A requested restart: the handler ignores the stop and is killed at its await.
    tree.restart("node/a").unwrap();
    eventually("restarted", async || get(&address).await == Ok(0)).await;
    assert_eq!(address.depth(), 0);
    root.shut_down().await;
}

#[tokio::test]
async fn a_group_that_fails_too_often_is_restarted_by_its_parent() {
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let fills = Arc::new(AtomicU64::new(0));
    let (address, log) = (Address::new(64), Log::default());
    let (a, l, f) = (address.clone(), Arc::clone(&log), Arc::clone(&fills));
    let limit = Intensity { max: 2, window: Duration::from_secs(60) };
    root.children().start(Spec::group("g", limit, move |children| {
        f.fetch_add(1, Ordering::SeqCst);
        children.start(counter("a", &a, &Slot::new(), &l));
        Ok(())
    }));
    for n in 1..=3u64 {
        eventually("up", async || get(&address).await.is_ok()).await;
        let before = tree.inspect("node/g/a").await.unwrap().incarnation;
        tree.crash("node/g/a", CrashHow::Panic).unwrap();
        eventually("down", async || {
            fills.load(Ordering::SeqCst) == 2 || tree.inspect("node/g/a").await.is_ok_and(|x| x.incarnation > before)
        })
        .await;
        assert_eq!(fills.load(Ordering::SeqCst), if n == 3 { 2 } else { 1 });
    }
    eventually("up again", async || get(&address).await.is_ok()).await;
    let group = tree.inspect("node/g").await.unwrap();
    assert_eq!((group.kind.as_str(), group.incarnation), ("Supervisor", 2));
    root.shut_down().await;
    root.ended().await;
}

#[tokio::test]
async fn a_factory_that_fails_or_panics_is_a_failed_start() {
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let (address, log) = (Address::new(8), Log::default());
    let (t, l) = (Arc::clone(&tries), Arc::clone(&log));
    root.children().start(Spec::actor("a", address.clone(), move || match t.fetch_add(1, Ordering::SeqCst) {
        0 => Err(Fault::new("no disk")),
        1 => panic!("bad disk"),
        _ => Ok(Counter { total: 0, slot: Slot::new(), log: Arc::clone(&l), name: "a" }),
    }));
    eventually("third time", async || get(&address).await.is_ok()).await;
    let exits = tree.inspect("node/a").await.unwrap().last_exits;
    assert_eq!(exits.iter().map(|e| e.kind).collect::<Vec<_>>(), [ExitKind::Start, ExitKind::Start]);
    assert!(exits[0].text.contains("no disk") && exits[1].text.contains("bad disk"));
    root.shut_down().await;
}

/// Sets one far wake-up, and near ones in between.
struct Sleeper {
    alarm: Alarm,
    far: Moment,
    near: Option<Moment>,
    rung: u64,
}
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum SleeperMsg {
    Soon(Duration),
    Rung(Reply<u64>),
    Woke,
}
impl Shell for Sleeper {
    type Msg = SleeperMsg;
    const KIND: &'static str = "Sleeper";
    async fn handle(&mut self, cx: &Cx<SleeperMsg>, msg: SleeperMsg) -> Result<(), Fault> {
        match msg {
            SleeperMsg::Soon(delay) => self.near = Some(cx.now() + delay),
            SleeperMsg::Rung(reply) => drop(reply.send(self.rung)),
            SleeperMsg::Woke => {
                self.alarm.fired();
                self.rung += 1;
                self.near.take_if(|at| *at <= cx.now());
            }
        }
        let next = [self.near, Some(self.far)].into_iter().flatten().filter(|at| *at > cx.now()).min();
        self.alarm.set(cx, next, SleeperMsg::Woke);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn alarm_reset_a_thousand_times_is_one_timer_firing_once() {
    let root = Supervisor::root("node", Tree::new(), Intensity::default()).await.unwrap();
    let (address, far) = (Address::new(8), muster_kernel::Clock.now() + Duration::from_secs(60));
    let make = move || Ok(Sleeper { alarm: Alarm::default(), far, near: None, rung: 0 });
    root.children().start(Spec::actor("sleeper", address.clone(), make));
    let rung = async || address.ask(Duration::from_secs(5), SleeperMsg::Rung).await;
    eventually("started", async || rung().await.is_ok()).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for round in 1..=1000 {
        address.tell(SleeperMsg::Soon(Duration::from_millis(10))).unwrap();
        eventually("the near alarm fires", async || rung().await == Ok(round)).await;
        assert!(tasks() <= before + 1, "{} timers after {round} rounds", tasks() - before);
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(rung().await, Ok(1001), "the far alarm fired once");
    root.shut_down().await;
}
