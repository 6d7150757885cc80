//! What ends a term, or begins another one, besides better candidates: a definition that cannot be read, another duration.

use std::time::Duration;

use muster_messages::{CrashHow, runner_lease};
use tokio::time::{Instant, sleep};

use crate::cluster::World;
use crate::fleet::{Commands, Node, digested, objects};
use crate::judge::Judge;
use crate::nodes::is_done;

fn runner(judge: &Judge) -> Option<String> {
    judge.runner("things").map(|(who, _)| who)
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
    let candidates = |judge: &mut Judge| judge.tables.reconcilers.participants.len();
    world.until("it is no candidate", |judge| candidates(judge) == 1).await;
    world.stays("it keeps out", 60, |judge| candidates(judge) == 1 && runner(judge).as_deref() == Some("n2")).await;
    world.outdate("n1", false);
    world.until("it is one again", |judge| candidates(judge) == 2).await;
    world.end([first, second]).await;
}

/// The duration that its election was begun with outlives the candidate's crash.
#[tokio::test(start_paused = true)]
async fn lease_that_changes_after_a_crash_of_candidates_takes_effect() {
    let mut world = World::begin().await;
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("a", "1")]))));
    let node = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    world.until("applied", |judge| is_done(judge, "things", "1.0.0")).await;
    let lasts = |judge: &mut Judge, secs: u64| {
        let lease = judge.tables.objects.get(&runner_lease("things")).and_then(|object| object.lease());
        lease.is_some_and(|lease| lease.is_live() && lease.spec.duration() == Some(Duration::from_secs(secs)))
    };
    let term = world.with(|judge| judge.runner("things").unwrap());
    world.harness.crash_in(node.tree(), "node/reconcilers/things/candidates", CrashHow::Panic);
    sleep(Duration::from_secs(5)).await;
    assert!(world.with(|judge| judge.runner("things").unwrap() == term && lasts(judge, 15)), "it goes on");
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("a", "1")]).lease(Duration::from_secs(3)))));
    let since = Instant::now();
    world.until("the new lease is held", |judge| lasts(judge, 3)).await;
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    world.end([node]).await;
}
