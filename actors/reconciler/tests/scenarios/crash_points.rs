//! Each actor of a reconciler crashes at every point: before and after each message, and before and after each effect.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_kernel::Fuse;
use muster_messages::{GateState, ReconcilerChange, word};
use muster_testkit::at_every_point;
use tokio::time::{Instant, sleep};

use crate::cluster::World;
use crate::fleet::{Commands, Node, TEN_HOURS, announce, digested, objects, schema};
use crate::judge::{Judge, release, triple};
use crate::nodes::{is_done, phase, serves};

const ACTORS: [&str; 4] = ["participants", "candidates", "elect", "run"];
/// Long enough for a crash in the middle.
const SHORT_RUN: Duration = Duration::from_millis(300);

/// Runs a scenario once for each crash point of each of these actors of `of`.
async fn run_at_crash_points(of: &str, actors: &[&str], scenario: impl AsyncFn(&str, Fuse)) {
    for actor in actors {
        let path = format!("node/reconcilers/{of}/{actor}");
        let points = at_every_point(async |fuse| scenario(&path, fuse).await).await;
        println!("{path}: {points} crash points");
        assert!(points > 3, "{path}: there were {points} crash points");
    }
}

/// Whether a crash of this actor may end the term: where the handle of the election is lost.
fn may_give_up_its_term(path: &str) -> bool {
    path.ends_with("candidates") || path.ends_with("elect")
}

impl World {
    /// A node with one actor that is about to crash.
    async fn doomed(&mut self, name: &str, runs: &str, commands: &Commands, path: &str, fuse: &Fuse) -> Node {
        let node = Node::start(self, name, runs, commands).await;
        self.harness.crash_at_in(node.tree(), path, fuse).await;
        node
    }
    /// No runner and no candidate is left.
    async fn until_all_leases_are_released(&self, name: &str) {
        let free = |judge: &mut Judge| judge.runner(name).is_none() && judge.tables.reconcilers.participants.is_empty();
        self.until("every lease is released", free).await;
    }
}

impl Commands {
    fn begun(&self) -> Vec<(String, u64, u32)> {
        self.with(|ledger| ledger.begun.clone())
    }
    /// This many were begun, plus one for a term that ended early. Attempts are counted within each term.
    fn were_begun(&self, path: &str, times: usize) {
        let begun = self.begun();
        let most = times + usize::from(may_give_up_its_term(path));
        assert!((times..=most).contains(&begun.len()), "{begun:?}, expected {times}");
        let one_after_the_other = |pair: &[(String, u64, u32)]| pair[0].1 < pair[1].1 || pair[0].2 < pair[1].2;
        assert!(begun.windows(2).all(one_after_the_other), "{begun:?}: an attempt was forgotten");
    }
}

/// A command runs and a set of objects is applied.
async fn both_are_done(path: &str, fuse: Fuse) {
    let (mut world, commands) = (World::begin().await, Commands::taking(SHORT_RUN));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("foo", "1"), ("bar", "2")]))));
    let node = world.doomed("n1", "1.0.0", &commands, path, &fuse).await;
    for name in ["schema", "things"] {
        world.until("the reconciler is done", |judge| is_done(judge, name, "1.0.0")).await;
    }
    if !may_give_up_its_term(path) {
        let done = |judge: &Judge, name: &str| judge.runs(name).iter().map(|run| word(&run.outcome)).eq(["done"]);
        world.until("each is on record once", |judge| ["schema", "things"].iter().all(|name| done(judge, name))).await;
    }
    let terms = |judge: &Judge| ["schema", "things"].map(|name| judge.runner(name).map(|(_, term)| term.0));
    let first = world.with(|judge| terms(judge));
    world
        .stays("done once, by one term each", 3, |judge| {
            let begun = commands.begun();
            let terms_begun: BTreeSet<u64> = begun.iter().map(|(_, term, _)| *term).collect();
            let once = terms_begun.len() == begun.len() && begun.len() <= 1 + usize::from(may_give_up_its_term(path));
            once && begun.last().map(|(_, term, _)| *term) == first[0]
                && terms(judge) == first
                && judge.objects("things").keys().eq(["bar", "foo"])
        })
        .await;
    world.end([node]).await;
}

#[tokio::test(start_paused = true)]
async fn action_begins_once_and_is_recorded_wherever_actors_crash() {
    run_at_crash_points("schema", &ACTORS, both_are_done).await;
    run_at_crash_points("things", &["run"], both_are_done).await;
}

/// A new release waits for the last incompatible member, keeps such members out, and runs.
async fn a_gate_is_restricted(path: &str, fuse: Fuse) {
    let (mut world, commands) = (World::begin().await, Commands::default());
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let old = Node::start(&world, "n0", "1.0.0", &commands).await;
    world.until("1.0.0 is applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    old.stop().await;
    let last = serves(&world, "m1", "1.0.0").await;

    let cluster = world.network();
    commands.with(|ledger| {
        ledger.takes = SHORT_RUN;
        ledger.before = Some(Box::new(move || {
            cluster.with(|judge| {
                let now = &judge.gate("schema").unwrap().now;
                assert_eq!(
                    (now.state, now.floor),
                    (GateState::Working, triple("2.0.0")),
                    "run before the gate was restricted"
                );
                assert!(judge.serving("db").is_empty(), "run while a member serves");
            });
        }));
    });
    world.with(|judge| judge.define(digested(schema("2.0.0", "2.0.0").once())));
    let node = world.doomed("n1", "2.0.0", &commands, path, &fuse).await;
    world.until("it waits", |judge| phase(judge, "schema") == ("waiting".into(), "blockers".into())).await;
    last.drain().await;
    let shut = |judge: &mut Judge| judge.gate("schema").unwrap().now.state == GateState::Working;
    world.until("the gate is restricted", shut).await;
    let late = announce(&world, "m2", "1.0.0", None).await;
    world.until("2.0.0 is applied", |judge| is_done(judge, "schema", "2.0.0")).await;
    let begun = commands.begun().len() - 1;
    assert!(begun == 1 || may_give_up_its_term(path) && begun == 2, "{:?}", commands.begun());
    assert_eq!(commands.with(|ledger| ledger.env["MUSTER_FROM_RELEASE"].clone()), "1.0.0");
    world
        .stays("applied once, and the late member is kept out", 3, |judge| {
            let history = &judge.gate("schema").unwrap().history;
            let on_its_way = |entry| matches!(entry, GateState::Working);
            let way = history.iter().skip_while(|entry| !on_its_way(entry.state));
            let (mut way, from) = (way.peekable(), release("1.0.0"));
            way.peek().is_some()
                && way.all(|entry| on_its_way(entry.state) && entry.reconciled == from)
                && judge.serving("db").is_empty()
        })
        .await;
    drop(late);
    world.end([node]).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "full tier"]
async fn gate_is_restricted_before_runs_wherever_actors_crash() {
    run_at_crash_points("schema", &ACTORS, a_gate_is_restricted).await;
}

/// An attempt takes too long and is ended; the next one is ended because another definition replaces it.
async fn runs_are_called_off(path: &str, fuse: Fuse) {
    let (mut world, commands) = (World::begin().await, Commands::taking(TEN_HOURS));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once().run_timeout(Duration::from_secs(2)))));
    let node = world.doomed("n1", "1.0.0", &commands, path, &fuse).await;
    world.until("it has taken too long", |_| commands.with(|ledger| ledger.ended_early == 1)).await;
    world.until("it is begun again", |_| commands.with(|ledger| ledger.at_work.len() == 1)).await;
    commands.were_begun(path, 2);
    let before = commands.begun().len();
    commands.take(SHORT_RUN);
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    world.until("the other one is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    world.stays("once", 3, |judge| is_done(judge, "schema", "1.0.0")).await;
    let since = commands.begun().len() - before;
    assert!(since == 1 || may_give_up_its_term(path) && since == 2, "{:?}", commands.begun());
    let (ended_early, all) = commands.with(|ledger| (ledger.ended_early, ledger.begun.len()));
    assert_eq!(ended_early, all - 1, "all but the last were ended");
    world.end([node]).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "full tier"]
async fn cancelled_run_ends_before_the_next_wherever_actors_crash() {
    run_at_crash_points("schema", &ACTORS, runs_are_called_off).await;
}

/// A command fails twice.
async fn the_third_attempt_succeeds(path: &str, fuse: Fuse) {
    let (mut world, commands) = (World::begin().await, Commands::taking(SHORT_RUN));
    commands.with(|ledger| ledger.fail_first = 2);
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let node = world.doomed("n1", "1.0.0", &commands, path, &fuse).await;
    world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    world.stays("once", 3, |judge| is_done(judge, "schema", "1.0.0")).await;
    commands.were_begun(path, 3);
    world.end([node]).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "full tier"]
async fn failures_and_attempts_are_kept_wherever_actors_crash() {
    run_at_crash_points("schema", &["candidates", "run"], the_third_attempt_succeeds).await;
}

/// A runner that fails resigns for an equal that does not.
async fn one_resigns(path: &str, fuse: Fuse) {
    let (mut world, commands) = (World::begin().await, Commands::taking(Duration::from_secs(4)));
    // The failure of the third attempt, after a lost resignation, is no longer new.
    world.harness.allows_error("schema: attempt failed: the command exited with 1");
    commands.with(|ledger| ledger.exits.insert("n1".into(), 1));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once().resign_after(2))));
    let first = world.doomed("n1", "1.0.0", &commands, path, &fuse).await;
    world.until("it runs", |_| !commands.begun().is_empty()).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    sleep(Duration::from_secs(3)).await; // the equal is known of
    commands.take(SHORT_RUN);
    world.until("the other node has applied it", |judge| is_done(judge, "schema", "1.0.0")).await;
    let runs = |judge: &Judge| judge.runner("schema").map(|(who, _)| who);
    world.stays("the other node keeps the term", 3, |judge| runs(judge).as_deref() == Some("n2")).await;
    let begun = commands.begun();
    let (failed, done): (Vec<_>, Vec<_>) = begun.iter().partition(|(node, ..)| node == "n1");
    // A lost resignation is repeated after the next failure.
    assert!((1..=3).contains(&failed.len()) && done.len() == 1, "{begun:?}");
    assert!(failed.len() >= 2 || may_give_up_its_term(path), "{begun:?}");
    world.end([first, second]).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "full tier"]
async fn failing_runner_resigns_wherever_actors_crash() {
    run_at_crash_points("schema", &["candidates", "elect", "run"], one_resigns).await;
}

/// A reconciler is deleted while its command runs, and defined again.
async fn one_is_deleted(path: &str, fuse: Fuse) {
    let (mut world, commands) = (World::begin().await, Commands::taking(TEN_HOURS));
    let definition = digested(schema("1.0.0", "1.0.0").once());
    world.with(|judge| judge.define(definition.clone()));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it runs", |_| commands.begun().len() == 1).await;
    world.harness.crash_at_in(node.tree(), path, &fuse).await;
    world.with(|judge| judge.change(ReconcilerChange::Forget { reconciler: "schema".into() }).unwrap());
    world.until_all_leases_are_released("schema").await;
    let there = || node.tree().list().iter().any(|p| p.starts_with("node/reconcilers/schema"));
    world.until("its actors have stopped", |_| !there()).await;
    assert_eq!(commands.with(|ledger| (ledger.begun.len(), ledger.ended_early, ledger.at_work.len())), (1, 1, 0));
    commands.take(SHORT_RUN);
    world.with(|judge| judge.define(definition));
    world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(commands.begun().len(), 2);
    world.end([node]).await;
}

#[tokio::test(start_paused = true)]
async fn deleted_reconciler_can_be_redefined_wherever_actors_crash() {
    run_at_crash_points("schema", &ACTORS, one_is_deleted).await;
}

/// A daemon stops while its command runs; another one is present.
async fn one_stops(path: &str, fuse: Fuse) {
    let (mut world, commands) = (World::begin().await, Commands::taking(TEN_HOURS));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it runs", |_| commands.begun().len() == 1).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    sleep(Duration::from_secs(3)).await; // the second node campaigns too
    commands.take(SHORT_RUN);
    world.harness.crash_at_in(first.tree(), path, &fuse).await;
    let asked = Instant::now();
    first.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    // That the command ends before the other's begins is checked when that begins.
    world.until("the other node has applied it", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}: a lease runs out after 15 s", asked.elapsed());
    let nodes: Vec<String> = commands.begun().into_iter().map(|(node, ..)| node).collect();
    assert_eq!(nodes, ["n1", "n2"]);
    assert_eq!(commands.with(|ledger| ledger.ended_early), 1);
    world.end([second]).await;
}

#[tokio::test(start_paused = true)]
async fn stopped_daemon_hands_over_wherever_actors_crash() {
    run_at_crash_points("schema", &ACTORS, one_stops).await;
}
