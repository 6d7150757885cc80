//! Chains of steps: what stops them, what replaces them, and what their steps leave on record.

use std::time::Duration;

use muster_messages::{Definition, ReconcilerChange};

use crate::cluster::{Travel, World};
use crate::fleet::{Commands, Node, TEN_HOURS, chain, digested};
use crate::judge::Judge;
use crate::nodes::{is_done, phase};

fn begun(commands: &Commands) -> Vec<String> {
    commands.with(|ledger| ledger.steps.clone())
}
fn on_record(judge: &Judge) -> Vec<String> {
    let chain = judge.tables.records.chains.get("schema");
    chain.map_or_else(Vec::new, |chain| chain.steps.iter().map(|step| step.name.clone()).collect())
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_a_chain_before_its_next_step() {
    let (world, commands) = (World::begin().await, Commands::taking(Duration::from_secs(5)));
    world.with(|judge| judge.define(digested(chain("1.0.0", &["a", "b"]))));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("the first step runs", |_| begun(&commands) == ["a"]).await;
    let pause = |paused| ReconcilerChange::Pause { reconciler: "schema".into(), paused };
    world.with(|judge| judge.change(pause(true)).unwrap());
    world.until("it is on record", |judge| on_record(judge) == ["a"]).await;
    world.until("it is paused", |judge| phase(judge, "schema").0 == "paused").await;
    world.stays("nothing begins", 60, |_| begun(&commands) == ["a"]).await;
    world.with(|judge| judge.change(pause(false)).unwrap());
    world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), ["a", "b"]);
    world.end([node]).await;
}

/// A daemon that stops asks its command to end, and the command succeeds before it does.
#[tokio::test(start_paused = true)]
async fn a_step_that_succeeds_while_its_node_stops_is_not_repeated() {
    let (world, commands) = (World::begin().await, Commands::taking(TEN_HOURS));
    world.with(|judge| judge.define(digested(chain("1.0.0", &["a", "b"]))));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("the first step runs", |_| begun(&commands) == ["a"]).await;
    commands.with(|ledger| ledger.ends_well = true);
    first.stop().await;
    assert_eq!(world.with(|judge| (judge.runner("schema"), on_record(judge))), (None, vec!["a".to_owned()]));
    commands.take(Duration::ZERO);
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), ["a", "b"]);
    world.end([second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_goes_on_while_others_are_appended_to_its_chain() {
    let (world, commands) = (World::begin().await, Commands::taking(Duration::from_secs(5)));
    world.with(|judge| judge.define(digested(chain("1.0.0", &["a"]))));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("there is a gate", |judge| is_done(judge, "schema", "1.0.0")).await;
    node.stop().await;
    world.with(|judge| judge.define(digested(chain("1.1.0", &["a", "b"]))));
    let node = Node::start(&world, "n1", "1.1.0", &commands).await;
    world.until("the second step runs", |_| begun(&commands) == ["a", "b"]).await;
    world.with(|judge| judge.define(digested(chain("1.1.0", &["a", "b", "c"]))));
    world.until("the longer chain is done", |judge| is_done(judge, "schema", "1.1.0")).await;
    assert_eq!((begun(&commands), commands.with(|l| l.ended_early)), (["a", "b", "c"].map(str::to_owned).to_vec(), 0));
    assert_eq!(world.with(|judge| on_record(judge)), ["a", "b", "c"]);
    world.end([node]).await;
}

impl World {
    /// An operator deletes the chain and applies it again, so quickly that its runner sees both at once.
    fn deletes_and_applies(&self, definition: &Definition) {
        self.with(|judge| {
            judge.change(ReconcilerChange::Forget { reconciler: "schema".into() }).unwrap();
            judge.define(definition.clone());
        });
    }
}

/// Also while the first step runs: nothing is on record that could be missed.
#[tokio::test(start_paused = true)]
async fn a_chain_deleted_and_applied_while_it_runs_begins_again() {
    for before in [&["a"][..], &["a", "b"]] {
        let (world, commands) = (World::begin().await, Commands::taking(Duration::from_secs(5)));
        let definition = digested(chain("1.0.0", &["a", "b"]));
        world.with(|judge| judge.define(definition.clone()));
        let node = Node::start(&world, "n1", "1.0.0", &commands).await;
        world.until("the step runs", |_| begun(&commands) == before).await;
        world.deletes_and_applies(&definition);
        world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
        assert_eq!(begun(&commands), [before, &["a", "b"]].concat());
        assert_eq!(world.with(|judge| on_record(judge)), ["a", "b"]);
        world.end([node]).await;
    }
}

/// It would count for the first step of the chain that began anew, in the same term.
#[tokio::test(start_paused = true)]
async fn late_step_record_of_a_deleted_chain_is_refused() {
    let (world, commands) = (World::begin().await, Commands::taking(Duration::from_secs(5)));
    let definition = digested(chain("1.0.0", &["a", "b"]));
    world.with(|judge| judge.define(definition.clone()));
    world.step_records_travel([Travel::Again(Duration::from_secs(7))]);
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("the second step runs", |_| begun(&commands) == ["a", "b"]).await;
    let term = world.with(|judge| judge.runner("schema"));
    world.deletes_and_applies(&definition);
    world.until("the first step runs again", |_| begun(&commands) == ["a", "b", "a"]).await;
    world.stays("nothing is on record before it has ended", 4, |judge| on_record(judge).is_empty()).await;
    assert_eq!(world.with(|judge| judge.runner("schema")), term);
    world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), ["a", "b", "a", "b"]);
    world.end([node]).await;
}
