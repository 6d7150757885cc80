//! The steps of the benchmark, one after the other. Each leaves all agents in session.

use std::path::Path;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_local_cluster::answers;
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, Role};
use serde_json::{Value, json};

use super::agents::{Fleet, Joined, Joining};
use super::cluster::{Daemon, Managers, Usage};
use super::report;
use crate::cli::args::BenchFleet;
use crate::cli::bench::stats::Times;
use crate::cli::dev::cluster::LocalCluster;
use crate::cli::duration::{format_duration, millis};
use crate::cli::output::Out;

/// The managers and their agents.
struct Bench<'a> {
    managers: Managers<'a>,
    fleet: Fleet,
    args: &'a BenchFleet,
    out: Out,
}

pub async fn measured(cluster: &mut LocalCluster, folder: &Path, args: &BenchFleet, out: Out) -> Outcome<Value> {
    let managers = Managers::up(cluster, args.limit).await?;
    out.say("three managers and a worker are ready");
    let (fleet, join) = join(&managers, folder, args, out).await?;
    let mut bench = Bench { managers, fleet, args, out };
    let began = bench.managers.revision().await?;
    let idle = bench.idle().await?;
    let view = bench.view().await?;
    let leader = bench.managers.leader().await?;
    let follower = bench.managers.other_than(&leader);
    let kill_manager = bench.kill(&follower, false).await?;
    let leader = bench.managers.leader().await?;
    let kill_leader = bench.kill(&leader, true).await?;
    let mut rolling = Vec::new();
    for manager in bench.managers.managers.clone() {
        rolling.push(bench.roll(&manager).await?);
    }
    let roles = bench.roles().await?;
    let used = bench.usages()?;
    let managers_after: Vec<Value> =
        used.iter().map(|(name, used)| json!({"node": name, "rss_mb": report::mb(used.memory)})).collect();
    let shown_down = bench.managers.shown_down(began).await?;
    Ok(json!({
        "agents": args.agents, "reconcilers": args.reconcilers, "join": join, "idle": idle, "view": view,
        "kill_manager": kill_manager, "kill_leader": kill_leader, "rolling_restart": rolling, "roles": roles,
        "managers_after": managers_after, "shown_down": shown_down,
    }))
}

async fn join(managers: &Managers<'_>, folder: &Path, args: &BenchFleet, out: Out) -> Outcome<(Fleet, Value)> {
    let ttl_ms = Some(millis(args.limit + Duration::from_secs(60)));
    let request = Request::TokenCreate { role: Role::Worker, ttl_ms, uses: None };
    let token = answers::token(&managers.cluster.ask(request).await?)?;
    let plan = Joining {
        agents: args.agents,
        at_once: args.joining.unwrap_or(args.agents),
        folder: folder.to_owned(),
        seeds: managers.managers.iter().map(|manager| manager.addr.clone()).collect(),
        token,
        reconcilers: args.reconcilers,
    };
    let (begun, before) = (Instant::now(), Usage::own()?);
    let busy = managers.usages()?;
    let (fleet, joined) = Fleet::join(&plan, args.limit).await?;
    out.say(format!("{} agents have joined after {}", fleet.len(), format_duration(joined.took)));
    let Joined { times, delayed, took } = joined;
    fleet.all_in_session("after joining", None, args.limit).await?;
    let in_session = begun.elapsed();
    managers.nodes_are_ready(fleet.len() + managers.managers.len() + 1).await?;
    let ready = begun.elapsed();
    let (own, used) = (Usage::own()?, managers.usages()?);
    out.say(format!("all are in session after {}", format_duration(in_session)));
    let _first_sessions = fleet.sessions.take_gaps();
    let delays =
        delayed.iter().map(|(stage, (agents, first))| json!({"stage": stage, "agents": agents, "first": first}));
    let cpu = busy.iter().zip(&used).map(|((name, before), (_, after))| {
        json!({"node": name, "cpu_s": report::rounded((after.cpu - before.cpu).as_secs_f64())})
    });
    let summary = times.summary();
    let document = json!({
        "seconds": report::seconds(took), "in_session_seconds": report::seconds(in_session),
        "ready_seconds": report::seconds(ready),
        "p50_ms": summary.p50_ms, "p99_ms": summary.p99_ms, "max_ms": summary.max_ms,
        "delayed": delays.collect::<Vec<_>>(), "managers": cpu.collect::<Vec<_>>(),
        "agents_cpu_s": report::rounded((own.cpu - before.cpu).as_secs_f64()),
        "memory_per_agent_kb": report::kb(own.memory.saturating_sub(before.memory) / u64::from(args.agents)),
    });
    Ok((fleet, document))
}

impl Bench<'_> {
    fn usages(&self) -> Outcome<Vec<(String, Usage)>> {
        self.managers.usages()
    }

    /// What agents cost that only keep their sessions.
    async fn idle(&self) -> Outcome<Value> {
        let leader = self.managers.leader().await?;
        let (before, own, traffic) = (self.usages()?, Usage::own()?, self.fleet.traffic.amount());
        let begun = Instant::now();
        tokio::time::sleep(self.args.idle).await;
        let took = begun.elapsed().as_secs_f64().max(1e-9);
        let (after, own_after) = (self.usages()?, Usage::own()?);
        let traffic = self.fleet.traffic.amount().since(traffic);
        let cores = |before: Usage, after: Usage| report::rounded((after.cpu - before.cpu).as_secs_f64() / took);
        let managers = before.iter().zip(&after).zip(&self.managers.managers);
        let managers = managers.map(|(((name, before), (_, after)), daemon)| {
            json!({
                "node": name, "leader": daemon.node == leader.node, "sessions": self.fleet.sessions.at(daemon.node),
                "cores": cores(*before, *after), "rss_mb": report::mb(after.memory),
            })
        });
        let each = |amount: u64| report::rounded(amount as f64 / took / f64::from(self.args.agents));
        let document = json!({
            "seconds": report::rounded(took), "managers": managers.collect::<Vec<_>>(),
            "bytes_per_agent_per_s": each(traffic.bytes), "messages_per_agent_per_s": each(traffic.frames),
            "agents_cores": cores(own, own_after), "agents_rss_mb": report::mb(own_after.memory),
        });
        self.out.say(format!("measured idle agents for {}", format_duration(self.args.idle)));
        Ok(document)
    }

    /// A list of managers that changes, until every agent has it.
    async fn view(&self) -> Outcome<Value> {
        let mut changes = Vec::new();
        for (change, role) in [("promotion", Role::Manager), ("demotion", Role::Worker)] {
            let learns = self.fleet.learns(&self.managers.worker.addr, role == Role::Manager, self.args.limit);
            let (begun, traffic) = (Instant::now(), self.fleet.traffic.amount());
            let (settled, mut learned) = tokio::join!(self.managers.change_role(role), learns);
            let settled = settled?;
            learned.sort_unstable();
            let all = self.fleet.len();
            let (Some(first), Some(last)) = (learned.first(), learned.get(all - 1)) else {
                let (known, limit) = (learned.len(), self.args.limit);
                let text = format!("{change}: only {known} of {all} agents know the managers after {limit:?}");
                return Err(Failure::new(ErrorCode::TimedOut, text));
            };
            let bytes = self.fleet.traffic.amount().since(traffic).bytes;
            changes.push(json!({
                "change": change, "settled_ms": millis(settled), "first_ms": millis(*first - begun),
                "all_ms": millis(*last - begun), "first_to_all_ms": millis(*last - *first),
                "bytes_per_agent": report::rounded(bytes as f64 / all as f64),
            }));
        }
        self.out.say("each agent knows the changed managers");
        Ok(changes.into())
    }

    /// Kills a manager; its agents go to the others. It is started again afterwards.
    async fn kill(&mut self, manager: &Daemon, leads: bool) -> Outcome<Value> {
        let what = format!("{} {} was killed", if leads { "the leader" } else { "the manager" }, manager.name);
        let (since, sessions) = (self.managers.revision().await?, self.fleet.sessions.at(manager.node));
        let _before = self.fleet.sessions.take_gaps();
        let via = self.managers.other_than(manager);
        let begun = Instant::now();
        self.managers.strike(manager)?;
        let (written, returned) =
            tokio::join!(self.managers.writes_through(&via), self.returned(&what, manager, begun));
        let (writes_back, all) = (written?, returned?);
        self.managers.restart(manager).await?;
        self.out.say(format!("{what}: its {sessions} agents had a session again after {}", format_duration(all)));
        let mut document = self.gaps(manager, sessions, all);
        document["writes_back_ms"] = millis(writes_back).into();
        document["shown_down"] = self.managers.shown_down(since).await?.into();
        Ok(document)
    }

    /// Stops a manager in order, and starts it again.
    async fn roll(&mut self, manager: &Daemon) -> Outcome<Value> {
        let what = format!("{} was stopped", manager.name);
        let (since, sessions) = (self.managers.revision().await?, self.fleet.sessions.at(manager.node));
        let _before = self.fleet.sessions.take_gaps();
        let begun = Instant::now();
        let Self { managers, fleet, args, .. } = self;
        let returned = async || -> Outcome<Duration> {
            fleet.all_in_session(&what, Some(manager.node), args.limit).await?;
            Ok(begun.elapsed())
        };
        let (stopped, all) = tokio::join!(managers.stop(manager), returned());
        stopped?;
        let all = all?;
        self.managers.restart(manager).await?;
        let took = begun.elapsed();
        self.out.say(format!("{what}: its {sessions} agents had a session again after {}", format_duration(all)));
        let mut document = self.gaps(manager, sessions, all);
        document["restarted_ms"] = millis(took).into();
        document["shown_down"] = self.managers.shown_down(since).await?.into();
        Ok(document)
    }

    async fn returned(&self, what: &str, manager: &Daemon, begun: Instant) -> Outcome<Duration> {
        self.fleet.all_in_session(what, Some(manager.node), self.args.limit).await?;
        Ok(begun.elapsed())
    }

    fn gaps(&self, manager: &Daemon, sessions: usize, all: Duration) -> Value {
        let gaps = self.fleet.sessions.take_gaps();
        let (lost, summary) = (gaps.len(), gaps.summary());
        json!({
            "node": manager.name, "sessions": sessions, "all_ms": millis(all), "lost": lost,
            "gap_p50_ms": summary.p50_ms, "gap_p99_ms": summary.p99_ms, "gap_max_ms": summary.max_ms,
        })
    }

    /// Role changes of one node in a row, beside the fleet.
    async fn roles(&self) -> Outcome<Value> {
        let (mut times, before) = (Times::default(), self.usages()?);
        let (begun, traffic) = (Instant::now(), self.fleet.traffic.amount());
        for number in 0..self.args.changes {
            let role = if number % 2 == 0 { Role::Manager } else { Role::Worker };
            let changed = self.managers.change_role(role).await.map_err(|mut failure| {
                failure.message = format!("role change {} of {}: {}", number + 1, self.args.changes, failure.message);
                failure
            })?;
            times.add(changed);
        }
        let (took, after) = (begun.elapsed(), self.usages()?);
        let bytes = self.fleet.traffic.amount().since(traffic).bytes;
        let (count, summary) = (times.len(), times.summary());
        let cpu: Duration = before.iter().zip(&after).map(|((_, before), (_, after))| after.cpu - before.cpu).sum();
        let each = |value: f64| report::rounded(value / f64::from(self.args.changes.max(1)));
        self.out.say(format!("{count} role changes took {}", format_duration(took)));
        Ok(json!({
            "changes": count, "seconds": report::seconds(took), "p50_ms": summary.p50_ms, "p99_ms": summary.p99_ms,
            "max_ms": summary.max_ms, "managers_cpu_ms_per_change": each(cpu.as_secs_f64() * 1000.0),
            "bytes_per_agent_per_change": each(bytes as f64 / f64::from(self.args.agents)),
        }))
    }
}
