//! The history of runs, however its records travel.

use std::time::Duration;

use muster_messages::{RunView, word};
use tokio::time::Instant;

use crate::cluster::{Travel, World};
use crate::fleet::{Commands, Node, digested, schema};
use crate::judge::Judge;
use crate::nodes::{is_done, participants};

fn outcomes(judge: &Judge) -> Vec<(u64, String)> {
    judge.runs("schema").into_iter().map(|run| (run.number, word(run.outcome))).collect()
}
fn named(outcomes: &[&str]) -> Vec<(u64, String)> {
    (1..).zip(outcomes.iter().map(|word| (*word).to_owned())).collect()
}

/// One run fails, and the next one succeeds. The records of both are written once.
#[tokio::test(start_paused = true)]
async fn each_run_has_one_record_however_its_records_travel() {
    use Travel as T;
    let (soon, later) = (Duration::from_millis(200), Duration::from_secs(8));
    for travel in [
        vec![],
        vec![T::Lost, T::Lost],
        vec![T::AnswerLost; 3],
        vec![T::Late(soon), T::Late(soon)],
        vec![T::Again(soon); 4],
        vec![T::Again(later); 4],
        vec![T::Late(later), T::AnswerLost, T::Again(later), T::Lost],
    ] {
        let (world, commands) = (World::begin().await, Commands::default());
        commands.with(|ledger| (ledger.fail_first, ledger.takes) = (1, Duration::from_millis(500)));
        world.records_travel(travel.clone());
        world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
        let node = Node::start(&world, "n1", "1.0.0", &commands).await;
        world.until("it is applied", |judge| is_done(judge, "schema", "1.0.0")).await;
        world.until("both are on record", |judge| outcomes(judge) == named(&["failed", "done"])).await;
        // Whatever still travels arrives.
        let recorded = world.with(|judge| judge.runs("schema"));
        world.stays("no record is changed", 30, |judge| judge.runs("schema") == recorded).await;
        let [first, second] = recorded.as_slice() else { panic!("{travel:?}: {recorded:?}") };
        let RunView { attempt, of_term, ran_for_ms, exit, message, head, tail, .. } = first;
        assert_eq!((*attempt, *of_term, exit.status, exit.signal), (1, 1, Some(1), None));
        assert_eq!(
            (message.as_str(), head.as_str(), tail.as_str()),
            ("the command exited with 1", "said", "said something")
        );
        assert!(ran_for_ms.is_some_and(|ms| (500..600).contains(&ms)), "{ran_for_ms:?}");
        assert_eq!((second.attempt, second.of_term, second.exit.status), (2, 2, Some(0)));
        // The clock on the wall does not follow virtual time: both can begin in the same millisecond.
        assert!(second.term == first.term && second.node == first.node && second.began >= first.began);
        world.end([node]).await;
    }
}

/// The end of a run is recorded while its term is still held, even if that takes a moment.
#[tokio::test(start_paused = true)]
async fn run_that_ends_with_its_node_is_recorded_in_its_term() {
    let (world, commands) = (World::begin().await, Commands::default());
    commands.with(|ledger| ledger.takes = Duration::from_secs(3600));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it runs", |judge| outcomes(judge) == named(&["running"])).await;
    world.records_travel([Travel::Late(Duration::from_millis(500))]);
    node.stop().await;
    let runs = world.with(|judge| judge.runs("schema"));
    assert_eq!(world.with(|judge| outcomes(judge)), named(&["term-ended"]));
    assert_eq!((runs[0].exit.signal, runs[0].tail.as_str()), (Some(15), "said something"));
    world.end([]).await;
}

/// Nothing writes the end of a run whose node is gone: once the term is over it is shown as unknown.
#[tokio::test(start_paused = true)]
async fn run_of_a_dead_node_ends_unknown() {
    let (world, commands) = (World::begin().await, Commands::default());
    commands.with(|ledger| ledger.takes = Duration::from_secs(60));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it runs", |judge| outcomes(judge) == named(&["running"])).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    world.until("both are candidates", |judge| participants(judge) == 2).await;
    first.die().await;
    world.until("another node runs it", |judge| outcomes(judge) == named(&["unknown", "running"])).await;
    world.until("it is applied", |judge| outcomes(judge) == named(&["unknown", "done"])).await;
    world.end([second]).await;
}

/// A cluster that takes no record holds up neither the run nor the node that stops.
#[tokio::test(start_paused = true)]
async fn lost_records_hold_up_no_run_and_no_stop() {
    let (world, commands) = (World::begin().await, Commands::default());
    world.records_travel(vec![Travel::Lost; 1_000]);
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it is applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    let asked = Instant::now();
    node.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    world.with(|judge| assert_eq!((judge.runner("schema"), outcomes(judge)), (None, vec![])));
    world.end([]).await;
}
