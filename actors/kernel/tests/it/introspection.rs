//! What is visible of an actor from outside while it works, waits, hangs and fails. In virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_kernel::{
    Address, Backoff, Beside, Cx, Fault, Group, Intensity, Shell, Spec, Supervisor, Tree, Undeliverable,
};
use muster_messages::{ActorNode, ActorState, CrashHow, ExitKind, Named, Reply};
use serde_json::json;

#[derive(Named)]
#[strum(serialize_all = "snake_case")]
enum Msg {
    Work(Duration),
    Fail(String),
    Child(Spec),
    Disk(Reply<Beside>),
    Me(Reply<Address<Msg>>),
}

#[derive(Default)]
struct Clerk {
    done: u64,
    /// How often its view was requested.
    views_requested: Arc<AtomicU64>,
}
impl Shell for Clerk {
    type Msg = Msg;
    const KIND: &'static str = "Clerk";
    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Work(time) => {
                tokio::time::sleep(time).await;
                self.done += 1;
            }
            Msg::Fail(text) => return Err(Fault::new(text)),
            Msg::Child(spec) => cx.children().start(spec),
            Msg::Disk(reply) => drop(reply.send(cx.beside("disk", "Disk"))),
            Msg::Me(reply) => drop(reply.send(cx.me().clone())),
        }
        Ok(())
    }
    fn view(&self) -> serde_json::Value {
        self.views_requested.fetch_add(1, Ordering::Relaxed);
        json!({"done": self.done})
    }
}

struct Office {
    tree: Tree,
    root: Supervisor,
    clerk: Address<Msg>,
    views_requested: Arc<AtomicU64>,
}

const CLERK: &str = "node/clerk";
const AGE: Duration = Duration::from_secs(3600);

fn clerk(name: &str, address: &Address<Msg>, views_requested: &Arc<AtomicU64>) -> Spec {
    let views_requested = Arc::clone(views_requested);
    Spec::actor(name, address.clone(), move || {
        Ok(Clerk { views_requested: Arc::clone(&views_requested), ..Clerk::default() })
    })
    .backoff(Backoff { first: Duration::from_millis(1), cap: Duration::from_millis(1), stable_after: AGE })
}

impl Office {
    async fn open() -> Self {
        let (tree, views_requested) = (Tree::new(), Arc::default());
        let generous = Intensity { max: 1000, ..Intensity::default() };
        let root = Supervisor::root("node", tree.clone(), generous).await.expect("a root starts");
        let office = Self { tree, root, clerk: Address::new(4), views_requested };
        office.root.children().start(clerk("clerk", &office.clerk, &office.views_requested));
        office.until(CLERK, |node| node.state == ActorState::Healthy).await;
        office
    }
    /// Reads the last published state without asking the actor.
    fn row(&self, path: &str) -> Option<ActorNode> {
        self.tree.flat().into_iter().find(|node| node.path == path)
    }
    async fn until(&self, path: &str, holds: impl Fn(&ActorNode) -> bool) -> ActorNode {
        for _ in 0..100_000 {
            if let Some(node) = self.row(path).filter(&holds) {
                return node;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("condition never held: {:?}", self.row(path));
    }
    async fn inspect(&self, path: &str) -> ActorNode {
        self.tree.inspect(path).await.expect("the actor exists")
    }
    fn work(&self, ms: u64) -> Result<(), Undeliverable> {
        self.clerk.tell(Msg::Work(Duration::from_millis(ms)))
    }
}

#[tokio::test(start_paused = true)]
async fn busy_actor_shows_current_waiting_and_refused_messages() {
    let office = Office::open().await;
    office.work(0).expect("the mailbox has room");
    let idle = office.inspect(CLERK).await;
    assert_eq!((idle.kind.as_str(), idle.mailbox, idle.mailbox_limit, idle.handling), ("Clerk", 0, Some(4), None));
    assert_eq!(idle.view, json!({"done": 1}));
    assert!(idle.view_age_ms.is_some_and(|age| age < 10), "an idle actor shows its view as it is");

    office.work(5_000).expect("the mailbox has room");
    office.until(CLERK, |node| node.handling.is_some()).await;
    for _ in 0..3 {
        office.work(0).expect("the mailbox has room");
    }
    assert_eq!(office.work(0), Err(Undeliverable::Full));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = tokio::time::Instant::now();
    let busy = office.inspect(CLERK).await;
    assert!(began.elapsed() < Duration::from_millis(100), "the reader does not wait for the actor");
    let handling = busy.handling.expect("it is handling a message");
    assert_eq!(handling.message, "work");
    assert!((2_000..2_500).contains(&handling.for_ms), "{handling:?}");
    assert_eq!((busy.mailbox, busy.refused, busy.handled), (4, 1, idle.handled));
    assert_eq!(busy.view, json!({"done": 1}));
    assert!(busy.view_age_ms.is_some_and(|age| (2_000..2_500).contains(&age)), "{:?}", busy.view_age_ms);

    let after = office.until(CLERK, |node| node.mailbox == 0).await;
    // The five seconds count in the bucket up to ten; the rest, including the actor's start, took no
    // time.
    assert_eq!(after.handler_times.counts, [after.handled - 1, 0, 0, 0, 0, 1, 0]);
    assert!(after.handler_times.sum >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn stuck_actor_gets_one_view_request_for_many_readers() {
    let office = Office::open().await;
    office.work(60_000).expect("the mailbox has room");
    office.until(CLERK, |node| node.handling.is_some()).await;
    let before = office.views_requested.load(Ordering::Relaxed);
    for _ in 0..1_000 {
        assert!(office.inspect(CLERK).await.handling.is_some());
    }
    office.until(CLERK, |node| node.handling.is_none()).await;
    let fresh = office.inspect(CLERK).await;
    assert_eq!(fresh.view, json!({"done": 1}));
    // One view at the end of its message, for all readers, and one for the last read.
    assert!(office.views_requested.load(Ordering::Relaxed) <= before + 3, "requests that no reader waits for piled up");
}

#[tokio::test(start_paused = true)]
async fn last_exits_are_bounded_in_number_and_text() {
    let office = Office::open().await;
    for n in 1..=10 {
        let text = format!("{n}: {}", "ü".repeat(4_000));
        let fail = || office.clerk.tell(Msg::Fail(text.clone()));
        office.until(CLERK, |_| fail().is_ok()).await;
        office.until(CLERK, |node| node.restarts == n && node.state == ActorState::Healthy).await;
    }
    let row = office.inspect(CLERK).await;
    assert_eq!((row.incarnation, row.restarts), (11, 10));
    let texts: Vec<&str> = row.last_exits.iter().map(|exit| exit.text.split(':').next().unwrap_or("")).collect();
    assert_eq!(texts, ["3", "4", "5", "6", "7", "8", "9", "10"]);
    let fits = |text: &str| (1_000..=1_025).contains(&text.len());
    assert!(row.last_exits.iter().all(|exit| exit.kind == ExitKind::Error && fits(&exit.text)));
    assert!(row.last_exits.windows(2).all(|pair| pair[0].at <= pair[1].at) && row.last_exits[7].at <= row.since);
    office.tree.crash(CLERK, CrashHow::Panic).expect("the actor is running");
    let row = office.until(CLERK, |node| node.restarts == 11).await;
    let last = row.last_exits.last().expect("it has just ended");
    assert_eq!((last.kind, last.text.as_str()), (ExitKind::Panic, "panicked: crashed on request"));
}

#[tokio::test(start_paused = true)]
async fn late_messages_of_an_old_incarnation_are_counted() {
    let office = Office::open().await;
    let old = office.clerk.ask(AGE, Msg::Me).await.expect("it answers");
    office.tree.crash(CLERK, CrashHow::Error).expect("the actor is running");
    office.until(CLERK, |node| node.incarnation == 2 && node.state == ActorState::Healthy).await;
    for _ in 0..3 {
        assert_eq!(old.tell(Msg::Work(Duration::ZERO)), Err(Undeliverable::Down));
    }
    assert_eq!(office.inspect(CLERK).await.stale, 3);
    assert_eq!(office.tree.numbers()[CLERK].stale, 3);
}

#[tokio::test(start_paused = true)]
async fn hung_supervisor_shows_its_current_message() {
    let office = Office::open().await;
    office.root.children().start(Spec::group("group", Group::default(), |_| Ok(())));
    office.until("node/group", |node| node.state == ActorState::Healthy).await;
    office.tree.crash("node/group", CrashHow::Hang).expect("the actor is running");
    office.until("node/group", |node| node.handling.as_ref().is_some_and(|h| h.message == "crash")).await;
    let row = office.tree.snapshot().await.children.into_iter().find(|node| node.path == "node/group");
    assert!(row.is_some_and(|row| row.handling.is_some() && row.mailbox_limit.is_none()));
    let after = office.until("node/group", |node| node.handling.is_none()).await;
    assert!(after.handler_times.sum >= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn helper_thread_is_shown_below_its_actor_until_it_ends() {
    const DISK: &str = "node/clerk/disk";
    let office = Office::open().await;
    let disk = office.clerk.ask(AGE, Msg::Disk).await.expect("it answers");
    let write = disk.begin("write");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let clerk = office.inspect(CLERK).await;
    let shown = clerk.children[0].handling.clone().expect("it is handling a message");
    assert_eq!((clerk.children[0].path.as_str(), shown.message.as_str()), (DISK, "write"));
    assert!((5_000..5_100).contains(&shown.for_ms), "{shown:?}");
    // It outlives its actor: a hung thread stays visible.
    office.tree.crash(CLERK, CrashHow::Panic).expect("the actor is running");
    office.until(CLERK, |node| node.restarts == 1).await;
    drop(write);
    let row = office.row(DISK).expect("the thread is shown");
    assert_eq!((row.handling, row.handled), (None, 1));
    let refused = office.tree.crash(DISK, CrashHow::Kill).expect_err("there is nothing to crash");
    assert!(refused.message.contains("thread"), "{}", refused.message);
    drop(disk);
    assert_eq!(office.row(DISK), None);
}

/// A clerk with this many children, one in ten of them busy.
async fn crowd(office: &Office, many: usize) {
    for n in 0..many {
        let (name, address) = (format!("session-{n:04}"), Address::new(4));
        let spec = clerk(&name, &address, &Arc::default()).counted_as("session-*");
        let tell = || office.clerk.tell(Msg::Child(spec.clone())).is_ok();
        office.until(CLERK, |_| tell()).await;
    }
    let last = format!("{CLERK}/session-{:04}", many - 1);
    office.until(&last, |node| node.state == ActorState::Healthy).await;
}

#[tokio::test(start_paused = true)]
async fn of_many_siblings_the_most_notable_are_shown() {
    let office = Office::open().await;
    crowd(&office, 250).await;
    office.tree.crash("node/clerk/session-0207", CrashHow::Panic).expect("the actor is running");
    office.until("node/clerk/session-0207", |node| node.restarts == 1 && node.state == ActorState::Healthy).await;
    office.tree.crash("node/clerk/session-0123", CrashHow::Hang).expect("the actor is running");
    office.until("node/clerk/session-0123", |node| node.handling.is_some()).await;
    let clerk = office.inspect(CLERK).await;
    let shown: Vec<&str> = clerk.children.iter().filter_map(|child| child.path.rsplit('/').next()).collect();
    assert_eq!((shown.len(), shown[0], shown[97]), (100, "session-0000", "session-0097"));
    assert_eq!(shown[98..], ["session-0123", "session-0207"]);
    assert_eq!(clerk.more_children, [("Clerk".to_owned(), 150)].into());
    assert_eq!(office.inspect("node/clerk/session-0200").await.incarnation, 1, "each can be inspected by its path");
}

#[tokio::test(start_paused = true)]
async fn actors_with_one_label_share_one_monotonic_series() {
    const ALL: &str = "node/clerk/session-*";
    let office = Office::open().await;
    crowd(&office, 1_000).await;
    let numbers = office.tree.numbers();
    let paths: Vec<&str> = numbers.keys().map(String::as_str).collect();
    assert_eq!(paths, ["node", CLERK, ALL]);
    let before = numbers[ALL].handler_times.handled();
    assert_eq!((before, numbers[ALL].states[&ActorState::Healthy]), (1_000, 1_000));
    assert_eq!(numbers[ALL].mailbox_limit, 4_000, "of all together");

    // They all end with the incarnation of their parent. Their counts stay with it.
    office.tree.crash(CLERK, CrashHow::Panic).expect("the actor is running");
    office.until(CLERK, |node| node.restarts == 1 && node.state == ActorState::Healthy).await;
    let gone = |office: &Office| office.tree.numbers().get(ALL).is_none_or(|all| all.states.is_empty());
    office.until(CLERK, |_| gone(&office)).await;
    assert!(office.tree.numbers()[ALL].handler_times.handled() >= before);
    assert_eq!(office.tree.numbers()[ALL].mailbox_limit, 0);
    office.root.children().stop_and_wait("clerk").await;
    assert_eq!(office.tree.numbers().into_keys().collect::<Vec<_>>(), ["node"]);
}
