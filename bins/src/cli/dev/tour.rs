//! `muster dev tour`: creates a cluster, changes roles, injects faults, and shows each step with its time.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_local_cluster::{Lifetime, WAIT_LIMIT, free_address, temporary_folder, until};
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{ActorNode, CrashHow, ErrorCode, Membership, Role};
use serde_json::{Value, json};

use super::cluster::LocalCluster;
use super::handover::{Handover, contend};
use super::state::State;
use super::steps::{
    change_role, kill_leader, leader, leader_actor, lose_manager, manager_except, nodes, restart_manager,
    return_as_candidate, rotate_root,
};
use crate::cli::duration::{format_duration, millis};
use crate::cli::output::{Out, print};
use crate::cli::signals::Interrupts;
use crate::stderr::say;

const ROLE_MANAGER: &str = "node/manager/leader/role-manager";

pub async fn run(out: Out) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    let folder = temporary_folder("tour")?;
    let state = State::plan(3, 2, free_address)?;
    let cluster = LocalCluster::prepare(folder.path(), state, Lifetime::Tied)?;
    let mut tour = Tour { folder: folder.path().to_owned(), cluster, out, steps: Vec::new() };
    let report = tokio::select! {
        report = tour.run_steps() => report,
        word = interrupts.next() => Err(Failure::internal(format!("{word}; everything was cleaned up"))),
    };
    // Logs explain a failed step; an interruption is not a failure.
    if tour.steps.last().is_some_and(|step| step["ok"] == false) {
        tour.show_logs();
    }
    // In this order: a running daemon would write into the folder that is being removed.
    tour.cluster.kill_all().await;
    let removed = folder.close().map_err(|e| Failure::io("cannot remove the temporary folder", &e));
    let outcome = report.and(removed);
    if out.is_json() {
        print(&json!({"steps": tour.steps, "ok": outcome.is_ok()}).to_string());
    }
    outcome?;
    out.say("all steps succeeded; nothing is left behind");
    Ok(0)
}

struct Tour {
    folder: PathBuf,
    cluster: LocalCluster,
    out: Out,
    steps: Vec<Value>,
}

impl Tour {
    /// Runs one step and prints it. `work` returns the text after the title, and the time of the part that counts.
    async fn step(&mut self, title: &str, work: impl AsyncFnOnce(&mut LocalCluster) -> Outcome<StepReport>) -> Outcome {
        let begun = Instant::now();
        let outcome = work(&mut self.cluster).await;
        let (took, text, ok) = match &outcome {
            Ok(report) => (report.took.unwrap_or_else(|| begun.elapsed()), report.text.as_str(), true),
            Err(failure) => (begun.elapsed(), failure.message.as_str(), false),
        };
        self.steps.push(json!({"step": title, "detail": text, "ms": millis(took), "ok": ok}));
        let mark = if ok { "ok  " } else { "FAIL" };
        let number = self.steps.len();
        self.out.say(format!("{number:>2}  {mark} {:>9}  {title}: {text}", format_duration(took)));
        outcome.map(drop).map_err(|mut failure| {
            failure.message = format!("step {number} ({title}) failed: {}", failure.message);
            failure
        })
    }

    fn show_logs(&self) {
        if self.out.is_json() || self.out.quiet {
            return;
        }
        for node in &self.cluster.state().nodes {
            let log = self.cluster.log_tail(&node.name, 12);
            say(format_args!("--- end of the log of {}:\n{log}", node.name));
        }
    }

    async fn run_steps(&mut self) -> Outcome {
        self.step("create a cluster", async |cluster| {
            cluster.up(&mut |_, _| ()).await?;
            StepReport::text("3 managers and 2 workers are up")
        })
        .await?;
        for title in ["promote a worker", "demote it", "promote it again"] {
            let role = if title == "demote it" { Role::Worker } else { Role::Manager };
            self.step(title, async |cluster| {
                let took = change_role(cluster, "n4", role).await?;
                let facts = settled_facts(cluster, "n4").await?;
                StepReport::timed(took, format!("n4 is a {role} ({facts})"))
            })
            .await?;
        }
        self.step("demote the leader", demote_leader).await?;
        let mut killed = String::new();
        self.step("kill -9 the leader", async |cluster| {
            let (name, took) = kill_leader(cluster).await?;
            let report = format!("writes work without {name}, {} leads", leader(cluster).await?);
            killed = name;
            StepReport::timed(took, report)
        })
        .await?;
        self.step("restart it", async |cluster| {
            restart_manager(cluster, &killed).await?;
            StepReport::text(format!("{killed} follows and is reachable"))
        })
        .await?;
        self.step("replace the root", async |cluster| {
            let took = rotate_root(cluster).await?;
            StepReport::timed(took, "every node has a certificate of another root; the former one is still trusted")
        })
        .await?;
        let mut lost = String::new();
        self.step("declare three managers, and kill -9 one of them", async |cluster| {
            let (name, successor, took) = lose_manager(cluster).await?;
            lost = name;
            StepReport::timed(took, format!("{lost} was demoted, {successor} votes in its place"))
        })
        .await?;
        self.step("restart the replaced manager", async |cluster| {
            return_as_candidate(cluster, &lost).await?;
            StepReport::text(format!("{lost} is a worker and a candidate"))
        })
        .await?;
        self.step("remove a worker by force", remove_worker).await?;
        self.step("restart the removed worker", refuse_removed).await?;
        let folder = self.folder.clone();
        self.step("kill -9 the holder of a lease", async |cluster| {
            let Handover { from, to, took } = contend(cluster, &folder).await?;
            let text = format!(
                "{} held it with token {}; {} after it was killed and its command ended, {} holds it with token {}",
                from.holder,
                from.token,
                format_duration(took),
                to.holder,
                to.token
            );
            StepReport::timed(took, text)
        })
        .await?;
        self.step("crash the role manager with work pending", crash_role_manager).await
    }
}

/// The result of a step.
struct StepReport {
    took: Option<Duration>,
    text: String,
}
impl StepReport {
    fn text(text: impl Into<String>) -> Outcome<Self> {
        Ok(Self { took: None, text: text.into() })
    }
    fn timed(took: Duration, text: impl Into<String>) -> Outcome<Self> {
        Ok(Self { took: Some(took), text: text.into() })
    }
}

/// The four facts of a node, which agree once settled.
async fn settled_facts(cluster: &LocalCluster, name: &str) -> Outcome<String> {
    let all = nodes(cluster).await?;
    let gone = || Failure::internal(format!("{name} is not in the list of nodes"));
    let node = all.iter().find(|n| n.name.as_str() == name).ok_or_else(gone)?;
    let membership = match node.membership {
        Membership::None => "not a Raft member",
        Membership::Learner => "learner",
        Membership::Voter => "voter",
    };
    let certificate = node.certificate.role.map_or("none".to_owned(), |role| role.to_string());
    Ok(format!("desired role {}, role {}, certificate {certificate}, {membership}", node.desired_role, node.role))
}

async fn demote_leader(cluster: &mut LocalCluster) -> Outcome<StepReport> {
    let old = leader(cluster).await?;
    let took = change_role(cluster, &old, Role::Worker).await?;
    StepReport::timed(took, format!("{old} is a worker, {} leads", leader(cluster).await?))
}

/// n5 has always been a worker. Its process keeps running: it must be disconnected, not merely deleted.
async fn remove_worker(cluster: &mut LocalCluster) -> Outcome<StepReport> {
    let begun = Instant::now();
    cluster.ask(Request::NodeRemove { node: "n5".to_owned(), force: true }).await?;
    let took = begun.elapsed();
    if nodes(cluster).await?.iter().any(|node| node.name.as_str() == "n5") {
        return Err(Failure::internal("n5 is still in the list of nodes"));
    }
    // Its agent, not its API: only the agent remembers the removal across a restart.
    let trouble = until("n5 learns that it was removed", async || {
        let ask = ActorsAsk::Inspect { path: "node/agent".to_owned() };
        let agent: ActorNode = cluster.client("n5").ask(Request::Actors { node: ActorsOf::Here, ask }).await?;
        Ok(agent.view["trouble"]["reason"].as_str().map(str::to_owned))
    })
    .await?;
    StepReport::timed(took, format!("n5 is removed and blocked; its own process reports: {trouble}"))
}

async fn refuse_removed(cluster: &mut LocalCluster) -> Outcome<StepReport> {
    cluster.stop_node("n5").await?;
    match cluster.restart_until_exit("n5").await? {
        Some(6) => StepReport::text("n5 is refused with its old certificate and exits with status 6"),
        Some(code) => Err(Failure::internal(format!("n5 ended with exit status {code} instead of 6"))),
        None => Err(Failure::internal("n5 ended by a signal instead of with exit status 6")),
    }
}

/// Freezes and promotes a worker, which cannot finish before it is thawed; then crashes the role manager.
async fn crash_role_manager(cluster: &mut LocalCluster) -> Outcome<StepReport> {
    let all = nodes(cluster).await?;
    let worker = all.iter().find(|n| n.role == Role::Worker).ok_or_else(|| Failure::internal("there is no worker"))?;
    let (name, id) = (worker.name.to_string(), worker.id.to_string());
    cluster.freeze(&name)?;
    let outcome = crash_while_pending(cluster, &name, &id).await;
    cluster.thaw()?;
    let CrashRecovery { before, after, took } = outcome?;
    let begun = Instant::now();
    let mut client = cluster.client(&manager_except(cluster, &name).await?);
    client.wait_until_settled(&name, Role::Manager, begun + WAIT_LIMIT, |_| {}).await?;
    let finished = format_duration(begun.elapsed());
    StepReport::timed(
        took,
        format!(
            "incarnation {before} crashed; {after} kept the pending work and finished it {finished} after {name} resumed"
        ),
    )
}

/// An actor before and after a crash.
struct CrashRecovery {
    before: u64,
    after: u64,
    took: Duration,
}

/// Returns once the new incarnation shows the pending work.
async fn crash_while_pending(cluster: &LocalCluster, name: &str, id: &str) -> Outcome<CrashRecovery> {
    cluster.ask(Request::SetRole { node: name.to_owned(), role: Role::Manager }).await?;
    let is_pending = |actor: &ActorNode| {
        let queue = actor.view["pending_reconciliation"].as_array();
        queue.is_some_and(|queue| queue.iter().any(|item| item["node"] == id))
    };
    let before = until("the promotion is pending", async || {
        let actor = leader_actor(cluster, ROLE_MANAGER).await?;
        Ok(is_pending(&actor).then_some(actor.incarnation))
    })
    .await?;
    let begun = Instant::now();
    let crash = ActorsAsk::Crash { path: ROLE_MANAGER.to_owned(), how: CrashHow::Panic };
    cluster.ask(Request::Actors { node: ActorsOf::Leader, ask: crash }).await?;
    let after = until("a new incarnation with the pending work", async || {
        // While the supervisor backs off, the actor may not exist.
        let actor = match leader_actor(cluster, ROLE_MANAGER).await {
            Err(failure) if failure.is(ErrorCode::NotFound) => return Ok(None),
            other => other?,
        };
        Ok((actor.incarnation > before && is_pending(&actor)).then_some(actor.incarnation))
    })
    .await?;
    Ok(CrashRecovery { before, after, took: begun.elapsed() })
}
