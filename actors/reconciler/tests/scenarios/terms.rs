//! What ends a term, or begins another one, besides better candidates: a definition that cannot be read, another duration.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::clock::TokioTime;
use muster_messages::{CrashHow, runner_lease};
use muster_reconciler::{ApplyCtx, Handler, HandlerError, ReconcilerSpec, Setup};
use tokio::time::Instant;

use crate::cluster::World;
use crate::fleet::{Commands, Node, digested, node_id, objects};
use crate::judge::{Judge, release};
use crate::nodes::{is_done, participants, phase};

fn runner(judge: &Judge) -> Option<String> {
    judge.runner("things").map(|(who, _)| who)
}
/// Whether the runner's lease is held, with this duration.
fn is_held_for(judge: &Judge, secs: u64) -> bool {
    let lease = judge.tables.objects.get(&runner_lease("things")).and_then(|object| object.lease());
    lease.is_some_and(|lease| lease.is_live() && lease.spec.duration() == Some(Duration::from_secs(secs)))
}

/// Its daemon is of an older build than the one that applied the definition.
#[tokio::test(start_paused = true)]
async fn runner_that_cannot_read_its_definition_leaves_it_to_others() {
    let world = World::begin().await;
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("a", "1")]))));
    let first = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    world.until("applied", |judge| is_done(judge, "things", "1.0.0")).await;
    let second = Node::start(&world, "n2", "1.0.0", &Commands::default()).await;
    world.stays("the first node runs it", 10, |judge| runner(judge).as_deref() == Some("n1")).await;
    world.outdate("n1", true);
    let since = Instant::now();
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("a", "2")]))));
    world.until("the other node runs it", |judge| runner(judge).as_deref() == Some("n2")).await;
    assert!(since.elapsed() < Duration::from_secs(3), "in order, not by the end of a lease: {:?}", since.elapsed());
    world.until("n1 is not a candidate", |judge| participants(judge) == 1).await;
    world
        .stays("n1 does not come back", 60, |judge| participants(judge) == 1 && runner(judge).as_deref() == Some("n2"))
        .await;
    world.outdate("n1", false);
    world.until("n1 is a candidate again", |judge| participants(judge) == 2).await;
    world.end([first, second]).await;
}

/// The duration that its election was begun with outlives the candidate's crash.
#[tokio::test(start_paused = true)]
async fn lease_that_changes_after_a_crash_of_candidates_takes_effect() {
    let mut world = World::begin().await;
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("a", "1")]))));
    let node = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    world.until("applied", |judge| is_done(judge, "things", "1.0.0")).await;
    let term = world.with(|judge| judge.runner("things").unwrap());
    world.harness.crash_in(node.tree(), "node/reconcilers/things/candidates", CrashHow::Panic);
    world
        .stays("the term continues", 5, |judge| {
            judge.runner("things").as_ref() == Some(&term) && is_held_for(judge, 15)
        })
        .await;
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("a", "1")]).lease(Duration::from_secs(3)))));
    let since = Instant::now();
    world.until("the new lease is held", |judge| is_held_for(judge, 3)).await;
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    world.end([node]).await;
}

/// Each run takes 29 seconds of the scenario's paused clock.
struct Busy;

impl Handler for Busy {
    fn apply(&self, _: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>> {
        tokio::time::sleep(Duration::from_secs(29)).map(Ok).boxed()
    }
}

/// At the end of the action, although the runner gets no other view then.
#[tokio::test(start_paused = true)]
async fn lease_that_changes_during_an_action_takes_effect() {
    let world = World::begin().await;
    let upkeep = |of: &str| {
        let spec = ReconcilerSpec::handler("things", release(of), "db");
        spec.every(Duration::from_secs(1)).settle(Duration::ZERO)
    };
    world.with(|judge| judge.define(digested(upkeep("1.0.0"))));
    let setup = Setup {
        clock: Arc::new(TokioTime),
        node: Some(node_id("n1")),
        handlers: [("things".to_owned(), Arc::new(Busy) as Arc<dyn Handler>)].into(),
        ..Setup::new(world.link("n1"), "n1", release("1.0.0"))
    };
    let node = Node::with(&world, setup).await;
    world.until("applied", |judge| is_done(judge, "things", "1.0.0")).await;
    for expected in ["idle", "running"] {
        world.until("it runs again", |judge| phase(judge, "things").0 == expected).await;
    }
    let (term, since) = (world.with(|judge| judge.runner("things").unwrap()), Instant::now());
    // The newest definition's timing counts for the runners of every release.
    world.with(|judge| judge.define(digested(upkeep("2.0.0").lease(Duration::from_secs(3)))));
    world
        .stays("it is not interrupted", 25, |judge| {
            judge.runner("things").as_ref() == Some(&term) && is_held_for(judge, 15)
        })
        .await;
    world.until("the new lease is held", |judge| is_held_for(judge, 3)).await;
    assert!(since.elapsed() < Duration::from_secs(31), "{:?}", since.elapsed());
    world.end([node]).await;
}
