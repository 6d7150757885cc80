//! Chains of steps: what stops them, what replaces them, and what their steps leave on record.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{ChainStep, CommandAction, ReconcilerChange};
use muster_reconciler::ReconcilerSpec;

use crate::cluster::World;
use crate::fleet::{Commands, Node, digested};
use crate::judge::{Judge, release, triple};
use crate::nodes::{is_done, phase};

const TEN_HOURS: Duration = Duration::from_secs(36_000);

fn chain(of: &str, steps: &[&str]) -> ReconcilerSpec {
    let step = |name: &&str| ChainStep {
        name: (*name).to_owned(),
        command: CommandAction { argv: vec!["migrate".to_owned(), (*name).to_owned()], env: BTreeMap::new() },
        digest: String::new(),
    };
    ReconcilerSpec::chain("schema", release(of), "db", steps.iter().map(step).collect()).floor(triple("1.0.0"))
}
fn begun(commands: &Commands) -> Vec<String> {
    commands.with(|ledger| ledger.steps.clone())
}
fn on_record(judge: &Judge) -> Vec<String> {
    let chain = judge.tables.records.chains.get("schema");
    chain.map_or_else(Vec::new, |chain| chain.steps.iter().map(|step| step.name.clone()).collect())
}
fn taking(takes: Duration) -> Commands {
    let commands = Commands::default();
    commands.with(|ledger| ledger.takes = takes);
    commands
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_a_chain_before_its_next_step() {
    let (world, commands) = (World::begin().await, taking(Duration::from_secs(5)));
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
    let (world, commands) = (World::begin().await, taking(TEN_HOURS));
    world.with(|judge| judge.define(digested(chain("1.0.0", &["a", "b"]))));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("the first step runs", |_| begun(&commands) == ["a"]).await;
    commands.with(|ledger| ledger.ends_well = true);
    first.stop().await;
    assert_eq!(world.with(|judge| (judge.runner("schema"), on_record(judge))), (None, vec!["a".to_owned()]));
    commands.with(|ledger| ledger.takes = Duration::ZERO);
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), ["a", "b"]);
    world.end([second]).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_goes_on_while_others_are_appended_to_its_chain() {
    let (world, commands) = (World::begin().await, taking(Duration::from_secs(5)));
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

#[tokio::test(start_paused = true)]
async fn a_chain_deleted_and_applied_while_it_runs_begins_again() {
    let (world, commands) = (World::begin().await, taking(Duration::from_secs(5)));
    let definition = digested(chain("1.0.0", &["a", "b"]));
    world.with(|judge| judge.define(definition.clone()));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("the second step runs", |_| begun(&commands) == ["a", "b"]).await;
    world.with(|judge| {
        judge.change(ReconcilerChange::Forget { reconciler: "schema".into() }).unwrap();
        judge.define(definition);
    });
    world.until("it is done", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), ["a", "b", "a", "b"]);
    assert_eq!(world.with(|judge| on_record(judge)), ["a", "b"]);
    world.end([node]).await;
}
