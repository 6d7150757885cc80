//! `muster bench leases`: the cost of holding many leases, on a temporary cluster of three managers and two workers.
//!
//! The holders are electors of native sessions, watches included, spread over all managers: two thirds of the renewals
//! reach the leader through another manager. They start evenly spread over the renewal period, so that few are sent together.

use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome, parse};
use muster_local_cluster::ProcessId;
use muster_messages::Role;
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use serde_json::{Value, json};

use super::access::own_identity;
use super::holders::{Holders, Record, wait_until_held};
use super::stats::{Times, per_second, seconds};
use super::temporary::on_temporary_cluster;
use crate::cli::args::{BenchCaller, BenchLeases};
use crate::cli::dev::cluster::LocalCluster;
use crate::cli::dev::steps::{kill_leader, leader};
use crate::cli::duration::millis;
use crate::cli::output::{Out, Table};

pub async fn run(args: &BenchLeases, out: Out) -> Outcome<u8> {
    let document = on_temporary_cluster(3, 2, "", async |cluster, interrupts| {
        interrupts.during(measured(cluster, args, out)).await
    })
    .await?;
    out.document(&document.to_string(), String::new, || table(&document));
    Ok(0)
}

async fn measured(cluster: &mut LocalCluster, args: &BenchLeases, out: Out) -> Outcome<Value> {
    cluster.up(&mut |_, _| ()).await?;
    let record = Record::default();
    let begun = Instant::now();
    let mut holders = start_electing(cluster, args, &record).await?;
    wait_until_held(&record, args.leases).await?;
    holders.iter_mut().for_each(Holders::record_tokens);
    let held_after = begun.elapsed();
    out.say(format!("{} leases are held after {:.1} s", args.leases, held_after.as_secs_f64()));
    let (before, failures) = (Usage::of(cluster).await?, failures(&holders));
    record.open();
    let begun = Instant::now();
    let kill = args.kill_leader.filter(|after| *after < args.lasting);
    let mut killed = Value::Null;
    if let Some(after) = kill {
        tokio::time::sleep(after).await;
        let (name, took) = kill_leader(cluster).await?;
        out.say(format!("the leader {name} was killed; writes were back after {} ms", took.as_millis()));
        killed = json!({"node": name, "writes_back_ms": millis(took)});
    }
    tokio::time::sleep(args.lasting.saturating_sub(begun.elapsed())).await;
    let (renewals, took) = (record.close(), begun.elapsed());
    let usage = Usage::of(cluster).await?.since(&before, took);
    let failed = self::failures(&holders) - failures;
    let lost = record.lost();
    let kept = futures_util::future::try_join_all(holders.iter().map(Holders::kept)).await?.into_iter().sum::<u32>();
    let mut document = document(renewals, took, &usage);
    for (key, value) in [
        ("leases", json!(args.leases)),
        ("sessions", json!(args.sessions)),
        ("every_ms", json!(millis(args.every))),
        ("lease_duration_ms", json!(millis(args.lease_duration))),
        ("acquired_after_ms", json!(millis(held_after))),
        ("failures", json!(failed)),
        ("lost", json!(lost.max(u64::from(args.leases - kept)))),
        ("why_lost", json!(record.why())),
        ("killed_leader", killed),
    ] {
        document[key] = value;
    }
    Ok(document)
}

/// Starts every session with its share of the leases, which are not held yet.
async fn start_electing(cluster: &LocalCluster, args: &BenchLeases, record: &Record) -> Outcome<Vec<Holders>> {
    let mut control = cluster.client(&leader(cluster).await?);
    let identity = own_identity(&mut control, BenchCaller::Operator).await?;
    let dialer = identity.dialer()?;
    let mut holders = Vec::new();
    for session in 0..args.sessions {
        let mut managers = identity.managers.clone();
        let first = session as usize % managers.len().max(1);
        managers.rotate_left(first);
        let made = Holders::new(dialer.clone(), managers, record.clone()).await?;
        holders.push((made.session(), made));
    }
    let begun = tokio::time::Instant::now();
    for number in 0..args.leases {
        tokio::time::sleep_until(begun + args.every * number / args.leases).await;
        let (session, made) = &mut holders[(number % args.sessions) as usize];
        made.start_electing(session, Holders::config(number, args.lease_duration, args.every))?;
    }
    Ok(holders.into_iter().map(|(_, made)| made).collect())
}

fn failures(holders: &[Holders]) -> u64 {
    holders.iter().map(Holders::failures).sum()
}

/// Resources used so far by the daemons and by this process.
struct Usage {
    daemons: Vec<Daemon>,
    load: Duration,
}

struct Daemon {
    process: ProcessId,
    cpu: Duration,
    syncs: u64,
}

/// Usage of the daemons that ran during the whole measurement, in cores and syncs per second.
struct Rates {
    cores: f64,
    load_cores: f64,
    syncs_per_s: f64,
}

impl Usage {
    async fn of(cluster: &LocalCluster) -> Outcome<Self> {
        let mut daemons = Vec::new();
        for node in &cluster.state().nodes {
            let Some(process) = node.running() else { continue };
            let syncs = if node.role == Role::Manager { syncs(cluster, &node.name).await? } else { 0 };
            let cpu = process.cpu_time().unwrap_or_default();
            daemons.push(Daemon { process, cpu, syncs });
        }
        let load = ProcessId::of(std::process::id()).and_then(ProcessId::cpu_time).unwrap_or_default();
        Ok(Self { daemons, load })
    }

    fn since(&self, before: &Self, took: Duration) -> Rates {
        let (mut cpu, mut syncs) = (Duration::ZERO, 0);
        for now in &self.daemons {
            if let Some(then) = before.daemons.iter().find(|then| then.process == now.process) {
                cpu += now.cpu.saturating_sub(then.cpu);
                syncs += now.syncs.saturating_sub(then.syncs);
            }
        }
        let load = self.load.saturating_sub(before.load);
        Rates {
            cores: per_second(cpu.as_secs_f64(), took),
            load_cores: per_second(load.as_secs_f64(), took),
            syncs_per_s: per_second(syncs as f64, took),
        }
    }
}

/// The number of disk syncs of a manager's log.
async fn syncs(cluster: &LocalCluster, name: &str) -> Outcome<u64> {
    let ask = ActorsAsk::Inspect { path: "node/manager/raft-member".to_owned() };
    let text = cluster.client(name).call(Request::Actors { node: ActorsOf::Here, ask }).await?;
    let seen: Value = parse(&text)?;
    let syncs = seen.pointer("/view/disk/syncs").and_then(Value::as_u64);
    syncs.ok_or_else(|| Failure::internal(format!("{name} does not report its disk syncs")))
}

fn document(renewals: Times, took: Duration, usage: &Rates) -> Value {
    let (count, summary) = (renewals.len(), renewals.summary());
    json!({
        "seconds": seconds(took), "renewals": count, "per_s": per_second(count as f64, took).round(),
        "p50_ms": summary.p50_ms, "p99_ms": summary.p99_ms, "max_ms": summary.max_ms,
        "cores": usage.cores, "load_cores": usage.load_cores, "syncs_per_s": usage.syncs_per_s,
    })
}

fn table(document: &Value) -> String {
    let number = |key: &str, digits: usize| format!("{:.digits$}", document[key].as_f64().unwrap_or(0.0));
    let mut table = Table::new(&["METRIC", "MEASURED", "LIMIT"]);
    table.row(["renewals per second".to_owned(), number("per_s", 0), String::new()]);
    table.row(["renewal, median".to_owned(), number("p50_ms", 1) + " ms", String::new()]);
    table.row(["renewal, 99th percentile".to_owned(), number("p99_ms", 1) + " ms", "under 100 ms".to_owned()]);
    table.row(["renewal, maximum".to_owned(), number("max_ms", 1) + " ms", String::new()]);
    table.row(["unconfirmed renewals".to_owned(), number("failures", 0), String::new()]);
    table.row(["cores, all daemons".to_owned(), number("cores", 2), "under 1 core".to_owned()]);
    table.row(["cores, the holders".to_owned(), number("load_cores", 2), String::new()]);
    table.row(["disk syncs per second, all managers".to_owned(), number("syncs_per_s", 1), "under 200".to_owned()]);
    table.row(["leases lost".to_owned(), number("lost", 0), "0".to_owned()]);
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_daemons_that_ran_throughout_count() {
        let at = |pid, cpu_s, syncs| Daemon {
            process: ProcessId { pid, started: 1 },
            cpu: Duration::from_secs(cpu_s),
            syncs,
        };
        let before = Usage { daemons: vec![at(1, 1, 10), at(2, 5, 500)], load: Duration::ZERO };
        let after = Usage { daemons: vec![at(1, 3, 30), at(3, 9, 900)], load: Duration::from_secs(1) };
        let rates = after.since(&before, Duration::from_secs(4));
        assert_eq!((rates.cores, rates.load_cores, rates.syncs_per_s), (0.5, 0.25, 5.0));
    }
}
