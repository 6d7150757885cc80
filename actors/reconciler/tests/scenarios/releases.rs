//! Releases of applications: declared while nodes run, ranges of releases, chains of steps, and the timings of definitions.

use std::sync::Arc;
use std::time::Duration;

use muster_elector::clock::TokioTime;
use muster_reconciler::{Declared, ReconcilerSpec, Releases, Setup};
use tokio::time::Instant;

use crate::cluster::World;
use crate::fleet::{Commands, Node, chain, digested, node_id, objects, schema};
use crate::judge::{Judge, release, triple};
use crate::nodes::is_done;

fn runner(judge: &Judge, name: &str) -> Option<String> {
    judge.runner(name).map(|(who, _)| who)
}

/// Two applications on one node: the release of one of them changes, and nothing else does.
#[tokio::test(start_paused = true)]
async fn a_declared_release_changes_without_a_restart() {
    let world = World::begin().await;
    let (commands, releases) = (Commands::default(), Releases::default());
    let setup = Setup {
        clock: Arc::new(TokioTime),
        node: Some(node_id("n1")),
        objects: true,
        commands: Some(commands.on("n1")),
        releases: releases.clone(),
        ..Setup::new(world.link("n1"), "n1", release("0.1.0"))
    };
    let node = Node::with(&world, setup).await;
    let mail = ReconcilerSpec::objects("queues", release("7.0.0"), "mail", vec![]).floor(triple("7.0.0"));
    world.with(|judge| {
        judge.define(digested(schema("1.0.0", "1.0.0").once()));
        judge.define(digested(schema("2.0.0", "1.0.0").once()));
        judge.define(digested(mail));
    });
    world.stays("nothing is declared", 30, |judge| judge.gate("schema").is_none()).await;
    releases.declare("mail", release("7.0.0"));
    releases.declare("db", release("1.0.0"));
    world
        .until("both are applied", |judge| is_done(judge, "schema", "1.0.0") && is_done(judge, "queues", "7.0.0"))
        .await;
    let mail_term = world.with(|judge| judge.runner("queues").unwrap());
    releases.declare("db", release("2.0.0"));
    world.until("the new release is applied", |judge| is_done(judge, "schema", "2.0.0")).await;
    assert_eq!(world.with(|judge| judge.runner("queues").unwrap()), mail_term, "the same term as before");
    releases.withdraw("db");
    world.until("nothing of the scope runs here", |judge| runner(judge, "schema").is_none()).await;
    world.end([node]).await;
}

/// A request that waits for news holds a place at its manager.
#[tokio::test(start_paused = true)]
async fn watch_of_a_withdrawn_release_ends_at_once() {
    let (world, releases) = (World::begin().await, Releases::default());
    let setup = Setup {
        clock: Arc::new(TokioTime),
        releases: releases.clone(),
        ..Setup::new(world.link("n1"), "n1", release("0.1.0"))
    };
    let node = Node::with(&world, setup).await;
    releases.declare("mail", release("7.0.0"));
    world.until("both are watched", |_| world.watched_releases() == ["0.1.0", "7.0.0"].map(triple)).await;
    releases.withdraw("mail");
    let asked = Instant::now();
    world.until("one is watched", |_| world.watched_releases() == ["0.1.0"].map(triple)).await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    world.end([node]).await;
}

/// Otherwise a node without the application, but with a high release of its own, would be preferred to the nodes that have it.
#[tokio::test(start_paused = true)]
async fn a_node_declares_that_it_has_nothing_of_a_scope() {
    let world = World::begin().await;
    let (commands, releases) = (Commands::default(), Releases::default());
    releases.declare("db", None);
    let without = Setup {
        clock: Arc::new(TokioTime),
        node: Some(node_id("n1")),
        commands: Some(commands.on("n1")),
        releases: releases.clone(),
        ..Setup::new(world.link("n1"), "n1", release("9.0.0"))
    };
    let without = Node::with(&world, without).await;
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once().or_later())));
    world.stays("no node has it", 30, |judge| runner(judge, "schema").is_none()).await;
    let incomplete = Declared { incomplete: true, ..Declared::default() };
    releases.declare_all(incomplete);
    world.stays("what is declared is not known", 30, |judge| runner(judge, "schema").is_none()).await;
    let with = Node::start(&world, "n2", "1.0.1", &commands).await;
    world.until("the node that has it runs it", |judge| is_done(judge, "schema", "1.0.0")).await;
    world.end([without, with]).await;
}

#[tokio::test(start_paused = true)]
async fn later_releases_apply_what_an_earlier_one_defined() {
    let world = World::begin().await;
    let commands = Commands::default();
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once().or_later())));
    let old = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    let patched = Node::start(&world, "n2", "1.0.1", &commands).await;
    world.until("the later release runs it", |judge| runner(judge, "schema").as_deref() == Some("n2")).await;
    world.stays("it is not run again", 60, |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(commands.with(|ledger| ledger.begun.len()), 1);
    old.stop().await;
    // The next release has a definition of its own, which is for that release alone.
    world.with(|judge| judge.define(digested(schema("1.1.0", "1.0.0").once())));
    let next = Node::start(&world, "n1", "1.1.0", &commands).await;
    world.until("1.1.0 is applied", |judge| is_done(judge, "schema", "1.1.0")).await;
    assert_eq!(commands.with(|ledger| ledger.begun.len()), 2);
    world.end([patched, next]).await;
}

/// Three migrations over three releases, on a node that was off for two of them.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_off_runs_only_the_missing_steps() {
    let world = World::begin().await;
    let commands = Commands::default();
    world.with(|judge| judge.define(digested(chain("1.0.0", &["a"]))));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("1.0.0 is applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    node.stop().await;
    world.with(|judge| {
        judge.define(digested(chain("1.1.0", &["a", "b"])));
        judge.define(digested(chain("1.2.0", &["a", "b", "c"])));
    });
    // The first attempt at one of them fails.
    commands.with(|ledger| ledger.fail_first = 1);
    let node = Node::start(&world, "n1", "1.2.0", &commands).await;
    world.until("1.2.0 is applied", |judge| is_done(judge, "schema", "1.2.0")).await;
    assert_eq!(commands.with(|ledger| ledger.steps.clone()), ["a", "b", "b", "c"]);
    world.with(|judge| {
        let record = &judge.tables.records.chains["schema"];
        let by: Vec<_> = record.steps.iter().map(|step| format!("{} {}", step.name, step.release)).collect();
        assert_eq!(by, ["a 1.0.0", "b 1.2.0", "c 1.2.0"]);
    });
    world.end([node]).await;
}

/// A runner that dies between two steps leaves a record of the first; its successor begins with the second.
#[tokio::test(start_paused = true)]
async fn a_chain_goes_on_after_the_last_recorded_step() {
    let world = World::begin().await;
    let commands = Commands::default();
    commands.with(|ledger| ledger.takes = Duration::from_secs(20));
    world.with(|judge| judge.define(digested(chain("1.0.0", &["a", "b"]).lease(Duration::from_secs(3)))));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("the second step has begun", |_| commands.with(|ledger| ledger.steps.len() == 2)).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    world.stays("the first node runs it", 5, |judge| runner(judge, "schema").as_deref() == Some("n1")).await;
    first.die().await;
    world.until("another node has applied it", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(commands.with(|ledger| ledger.steps.clone()), ["a", "b", "b"], "the first step ran once");
    world.end([second]).await;
}

/// A takeover in three seconds, and a hold of five minutes.
#[tokio::test(start_paused = true)]
async fn a_definition_sets_its_lease_and_its_hold() {
    let world = World::begin().await;
    let commands = Commands::default();
    let timed = |of: &str| objects(of, &[("a", of)]).lease(Duration::from_secs(3)).hold(Duration::from_secs(300));
    world.with(|judge| judge.define(digested(timed("1.0.0"))));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("applied", |judge| is_done(judge, "things", "1.0.0")).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    world.stays("the first node runs it", 20, |judge| runner(judge, "things").as_deref() == Some("n1")).await;
    first.die().await;
    let died = Instant::now();
    world.until("the second node runs it", |judge| runner(judge, "things").as_deref() == Some("n2")).await;
    assert!(died.elapsed() < Duration::from_secs(5), "{:?}", died.elapsed());

    world.with(|judge| judge.define(digested(timed("2.0.0"))));
    let newer = Node::start(&world, "n3", "2.0.0", &commands).await;
    world.until("2.0.0 is applied", |judge| is_done(judge, "things", "2.0.0")).await;
    newer.stop().await;
    let left = Instant::now();
    world.until("the older release runs it", |judge| is_done(judge, "things", "1.0.0")).await;
    let held = left.elapsed();
    assert!(held > Duration::from_secs(295) && held < Duration::from_secs(320), "{held:?}");
    world.end([second]).await;
}
