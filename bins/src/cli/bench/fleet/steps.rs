//! The steps of the benchmark, one after the other. Each leaves all agents in session.

use std::path::Path;
use std::time::{Duration, Instant};

use muster_client::Outcome;
use muster_local_cluster::answers;
use muster_messages::Role;
use muster_messages::wire::Request;
use serde_json::{Value, json};

use super::agents::{Fleet, Joined, Joining};
use super::cluster::{Daemon, Managers, Usage};
use super::report;
use crate::cli::args::BenchFleet;
use crate::cli::bench::stats::{Times, per_second, rounded, seconds};
use crate::cli::dev::cluster::LocalCluster;
use crate::cli::duration::{format_duration, millis};
use crate::cli::output::Out;

/// The managers and their agents.
struct Bench<'a> {
    managers: Managers<'a>,
    fleet: &'a Fleet,
    args: &'a BenchFleet,
    out: Out,
}

/// All steps, with a fleet that has no agents yet. They keep their files in this folder.
pub async fn measured(
    cluster: &mut LocalCluster,
    fleet: &mut Fleet,
    folder: &Path,
    args: &BenchFleet,
    out: Out,
) -> Outcome<Value> {
    let managers = Managers::up(cluster, args.limit).await?;
    out.say("three managers and a worker are ready");
    let join = join(&managers, fleet, folder, args, out).await?;
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

async fn join(
    managers: &Managers<'_>,
    fleet: &mut Fleet,
    folder: &Path,
    args: &BenchFleet,
    out: Out,
) -> Outcome<Value> {
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
    let Joined { times, took } = fleet.join(&plan, args.limit).await?;
    out.say(format!("{} agents have joined after {}", fleet.len(), format_duration(took)));
    fleet.all_in_session("after joining", None, args.limit).await?;
    let in_session = begun.elapsed();
    managers.nodes_are_ready(fleet.len() + managers.managers.len() + 1).await?;
    let ready = begun.elapsed();
    let (own, used) = (Usage::own()?, managers.usages()?);
    out.say(format!("all are in session after {}", format_duration(in_session)));
    let _first_sessions = fleet.sessions.take_gaps();
    let delayed = fleet.delays.by_stage().into_iter();
    let delays = delayed.map(|(stage, by)| json!({"stage": stage, "agents": by.agents, "first": by.first}));
    let cpu = busy
        .iter()
        .zip(&used)
        .map(|((name, before), (_, after))| json!({"node": name, "cpu_s": seconds(after.cpu - before.cpu)}));
    let summary = times.summary();
    Ok(json!({
        "seconds": seconds(took), "in_session_seconds": seconds(in_session), "ready_seconds": seconds(ready),
        "p50_ms": summary.p50_ms, "p99_ms": summary.p99_ms, "max_ms": summary.max_ms,
        "delayed": delays.collect::<Vec<_>>(), "managers": cpu.collect::<Vec<_>>(),
        "agents_cpu_s": seconds(own.cpu - before.cpu),
        "memory_per_agent_kb": report::kb(own.memory.saturating_sub(before.memory) / u64::from(args.agents)),
    }))
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
        let took = begun.elapsed();
        let (after, own_after) = (self.usages()?, Usage::own()?);
        let traffic = self.fleet.traffic.amount().since(traffic);
        let cores = |before: Usage, after: Usage| per_second((after.cpu - before.cpu).as_secs_f64(), took);
        let managers = before.iter().zip(&after).zip(&self.managers.managers);
        let managers = managers.map(|(((name, before), (_, after)), daemon)| {
            json!({
                "node": name, "leader": daemon.node == leader.node, "sessions": self.fleet.sessions.at(daemon.node),
                "cores": cores(*before, *after), "rss_mb": report::mb(after.memory),
            })
        });
        let each = |amount: u64| per_second(amount as f64 / f64::from(self.args.agents), took);
        let document = json!({
            "seconds": seconds(took), "managers": managers.collect::<Vec<_>>(),
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
            let (settled, (first, last)) = tokio::try_join!(self.managers.change_role(role), learns)?;
            let bytes = self.fleet.traffic.amount().since(traffic).bytes;
            changes.push(json!({
                "change": change, "settled_ms": millis(settled), "first_ms": millis(first - begun),
                "all_ms": millis(last - begun), "first_to_all_ms": millis(last - first),
                "bytes_per_agent": rounded(bytes as f64 / self.fleet.len() as f64),
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
        self.managers.send_kill(manager)?;
        let returned = returned(self.fleet, &what, manager, begun, self.args.limit);
        let (writes_back, all) = tokio::try_join!(self.managers.writes_through(&via), returned)?;
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
        let returned = returned(self.fleet, &what, manager, begun, self.args.limit);
        let ((), all) = tokio::try_join!(self.managers.stop(manager), returned)?;
        self.managers.restart(manager).await?;
        let took = begun.elapsed();
        self.out.say(format!("{what}: its {sessions} agents had a session again after {}", format_duration(all)));
        let mut document = self.gaps(manager, sessions, all);
        document["restarted_ms"] = millis(took).into();
        document["shown_down"] = self.managers.shown_down(since).await?.into();
        Ok(document)
    }

    fn gaps(&self, manager: &Daemon, sessions: usize, all: Duration) -> Value {
        let gaps = self.fleet.sessions.take_gaps();
        let (count, summary) = (gaps.len(), gaps.summary());
        json!({
            "node": manager.name, "sessions": sessions, "all_ms": millis(all), "gaps": count,
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
        let each = |value: f64| rounded(value / f64::from(self.args.changes.max(1)));
        self.out.say(format!("{count} role changes took {}", format_duration(took)));
        Ok(json!({
            "changes": count, "seconds": seconds(took), "p50_ms": summary.p50_ms, "p99_ms": summary.p99_ms,
            "max_ms": summary.max_ms, "managers_cpu_ms_per_change": each(cpu.as_secs_f64() * 1000.0),
            "bytes_per_agent_per_change": each(bytes as f64 / f64::from(self.args.agents)),
        }))
    }
}

/// The time after which all agents have a session again, and none has one with this manager.
async fn returned(fleet: &Fleet, what: &str, manager: &Daemon, begun: Instant, limit: Duration) -> Outcome<Duration> {
    fleet.all_in_session(what, Some(manager.node), limit).await?;
    Ok(begun.elapsed())
}
