//! `muster bench roles`: the times of joins, role changes and leader loss, on a temporary cluster.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_client::Outcome;
use muster_messages::Role;
use muster_messages::wire::Request;
use serde_json::{Value, json};

use super::stats::Times;
use super::temporary::on_temporary_cluster;
use crate::cli::dev::cluster::LocalCluster;
use crate::cli::dev::steps::{change_role, kill_leader, leader, restart_manager};
use crate::cli::output::{Out, Table};

/// The steps of a round, in order, with their budgets in milliseconds (design: two cores, loopback, fsync on).
const STEPS: [(&str, Option<u64>); 7] = [
    ("join", Some(50)),
    ("promote", Some(150)),
    ("demote", Some(50)),
    ("promote again", Some(150)),
    ("demote the leader", Some(300)),
    ("kill the leader", Some(500)),
    ("remove", None),
];

pub async fn run(rounds: u32, out: Out) -> Outcome<u8> {
    let times = on_temporary_cluster(3, 0, "", async |cluster, interrupts| {
        interrupts.during(all_rounds(cluster, rounds, out)).await
    })
    .await?;
    let steps: Vec<Value> = STEPS.iter().map(|(what, budget)| summed(what, *budget, &times)).collect();
    out.document(&json!({"rounds": rounds, "steps": steps}).to_string(), String::new, || table(&steps));
    Ok(0)
}

type StepTimes = BTreeMap<&'static str, Times>;

async fn all_rounds(cluster: &mut LocalCluster, rounds: u32, out: Out) -> Outcome<StepTimes> {
    let mut times = StepTimes::new();
    cluster.up(&mut |_, _| ()).await?;
    for round in 1..=rounds {
        one_round(cluster, &mut times).await.map_err(|mut failure| {
            failure.message = format!("round {round}: {}", failure.message);
            failure
        })?;
        out.say(format!("round {round} of {rounds} done"));
    }
    Ok(times)
}

/// Three managers before and after: the new node stays, the demoted leader is removed.
async fn one_round(cluster: &mut LocalCluster, times: &mut StepTimes) -> Outcome {
    let mut note = |what, took: Duration| times.entry(what).or_default().add(took);
    let begun = Instant::now();
    let newcomer = cluster.add(Role::Worker).await?;
    note("join", begun.elapsed());
    note("promote", change_role(cluster, &newcomer, Role::Manager).await?);
    note("demote", change_role(cluster, &newcomer, Role::Worker).await?);
    note("promote again", change_role(cluster, &newcomer, Role::Manager).await?);
    let old = leader(cluster).await?;
    note("demote the leader", change_role(cluster, &old, Role::Worker).await?);
    let (killed, took) = kill_leader(cluster).await?;
    note("kill the leader", took);
    restart_manager(cluster, &killed).await?;
    let begun = Instant::now();
    cluster.ask(Request::NodeRemove { node: old.clone(), force: true }).await?;
    note("remove", begun.elapsed());
    cluster.kill(&old).await
}

fn summed(what: &str, budget: Option<u64>, times: &StepTimes) -> Value {
    let times = times.get(what).cloned().unwrap_or_default();
    let (count, summary) = (times.len(), times.summary());
    let mut document = json!({"step": what, "count": count, "budget_ms": budget});
    for (key, value) in
        [("p50_ms", summary.p50_ms), ("p99_ms", summary.p99_ms), ("min_ms", summary.min_ms), ("max_ms", summary.max_ms)]
    {
        document[key] = value.into();
    }
    document
}

fn table(steps: &[Value]) -> String {
    let mut table = Table::new(&["STEP", "MEDIAN MS", "MIN MS", "MAX MS", "BUDGET MS"]);
    for step in steps {
        let number = |key: &str| step[key].as_f64().map_or("-".to_owned(), |n| format!("{n:.0}"));
        table.row([
            step["step"].as_str().unwrap_or("").to_owned(),
            number("p50_ms"),
            number("min_ms"),
            number("max_ms"),
            number("budget_ms"),
        ]);
    }
    table.render()
}
