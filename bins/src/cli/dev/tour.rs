//! `muster dev tour`: founds a cluster, changes it, hurts it, and shows what happens, each step with its time.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome};
use muster_local_cluster::{Lifetime, WAIT_LIMIT, free_address, temporary_folder, until};
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use muster_messages::{CrashHow, ErrorCode, Membership, Role};
use serde_json::{Value, json};

use super::cluster::LocalCluster;
use super::contest::{Handover, contend};
use super::state::State;
use super::story::{become_role, bring_back, kill_leader, leader, leaders_actor, manager_besides, nodes};
use crate::cli::duration::{millis, spoken};
use crate::cli::output::{Out, print};
use crate::cli::signals::Interrupts;
use crate::cli::waiting::wait_until_settled;
use crate::stderr::say;

const ROLE_MANAGER: &str = "node/manager/leader/role-manager";

pub async fn run(out: Out) -> Outcome<u8> {
    let mut interrupts = Interrupts::listen()?;
    let folder = temporary_folder("tour")?;
    let state = State::plan(3, 2, free_address)?;
    let cluster = LocalCluster::prepare(folder.path(), state, Lifetime::Tied)?;
    let mut tour = Tour { folder: folder.path().to_owned(), cluster, out, steps: Vec::new() };
    let told = tokio::select! {
        told = tour.tell() => told,
        word = interrupts.next() => Err(Failure::internal(format!("{word}; everything was cleaned up"))),
    };
    // An interruption is nobody's failure: only a step that did not hold needs explaining.
    if tour.steps.last().is_some_and(|step| step["ok"] == false) {
        tour.show_logs();
    }
    // In this order: a daemon that still runs would write into the folder that is being removed.
    tour.cluster.kill_all().await;
    let removed = folder.close().map_err(|e| Failure::io("cannot remove the temporary folder", &e));
    let outcome = told.and(removed);
    if out.is_json() {
        print(&json!({"steps": tour.steps, "ok": outcome.is_ok()}).to_string());
    }
    outcome?;
    out.say("every step held; nothing is left behind");
    Ok(0)
}

struct Tour {
    folder: PathBuf,
    cluster: LocalCluster,
    out: Out,
    steps: Vec<Value>,
}

impl Tour {
    /// Does one step and prints it. `work` returns what to say beyond the title, and how long the part took that counts.
    async fn step(&mut self, title: &str, work: impl AsyncFnOnce(&mut LocalCluster) -> Outcome<Told>) -> Outcome {
        let begun = Instant::now();
        let outcome = work(&mut self.cluster).await;
        let (took, text, ok) = match &outcome {
            Ok(told) => (told.took.unwrap_or_else(|| begun.elapsed()), told.text.as_str(), true),
            Err(failure) => (begun.elapsed(), failure.message.as_str(), false),
        };
        self.steps.push(json!({"step": title, "detail": text, "ms": millis(took), "ok": ok}));
        let mark = if ok { "ok  " } else { "FAIL" };
        let number = self.steps.len();
        self.out.say(format!("{number:>2}  {mark} {:>9}  {title}: {text}", spoken(took)));
        outcome.map(drop).map_err(|mut failure| {
            failure.message = format!("step {number} ({title}) did not hold: {}", failure.message);
            failure
        })
    }

    fn show_logs(&self) {
        if self.out.is_json() || self.out.quiet {
            return;
        }
        for node in &self.cluster.state().nodes {
            let log = self.cluster.log_tail(&node.name, 12);
            say(format_args!("--- the log of {} ends with\n{log}", node.name));
        }
    }

    async fn tell(&mut self) -> Outcome {
        self.step("found a cluster", async |cluster| {
            cluster.up(&mut |_, _| ()).await?;
            Told::text("3 managers and 2 workers are up")
        })
        .await?;
        for title in ["promote a worker", "demote it", "promote it again"] {
            let role = if title == "demote it" { Role::Worker } else { Role::Manager };
            self.step(title, async |cluster| {
                let took = become_role(cluster, "n4", role).await?;
                let facts = settled_facts(cluster, "n4").await?;
                Told::timed(took, format!("n4 is a {role} ({facts})"))
            })
            .await?;
        }
        self.step("demote the leader", demote_leader).await?;
        let mut killed = String::new();
        self.step("kill -9 the leader", async |cluster| {
            let (name, took) = kill_leader(cluster).await?;
            let told = format!("writes work without {name}, {} leads", leader(cluster).await?);
            killed = name;
            Told::timed(took, told)
        })
        .await?;
        self.step("start it again", async |cluster| {
            bring_back(cluster, &killed).await?;
            Told::text(format!("{killed} follows and is heard"))
        })
        .await?;
        self.step("remove a worker by force", remove_worker).await?;
        self.step("let the removed worker try again", refuse_removed).await?;
        let folder = self.folder.clone();
        self.step("kill -9 the holder of a lease", async |cluster| {
            let Handover { from, to, took } = contend(cluster, &folder).await?;
            let text = format!(
                "of two candidates {} held it under token {}; {} after it was killed, its command gone, {} holds it under {}",
                from.holder,
                from.token,
                spoken(took),
                to.holder,
                to.token
            );
            Told::timed(took, text)
        })
        .await?;
        self.step("crash the role manager with work pending", crash_role_manager).await
    }
}

/// What a step has to say.
struct Told {
    took: Option<Duration>,
    text: String,
}
impl Told {
    fn text(text: impl Into<String>) -> Outcome<Self> {
        Ok(Self { took: None, text: text.into() })
    }
    fn timed(took: Duration, text: impl Into<String>) -> Outcome<Self> {
        Ok(Self { took: Some(took), text: text.into() })
    }
}

/// The four facts of a node, which must agree.
async fn settled_facts(cluster: &LocalCluster, name: &str) -> Outcome<String> {
    let all = nodes(cluster).await?;
    let gone = || Failure::internal(format!("{name} is not in the list of nodes"));
    let node = all.iter().find(|n| n.name.as_str() == name).ok_or_else(gone)?;
    let seat = match node.membership {
        Membership::None => "no seat",
        Membership::Learner => "learner",
        Membership::Voter => "voter",
    };
    let certificate = node.certificate.role.map_or("none".to_owned(), |role| role.to_string());
    Ok(format!("wanted {}, granted {}, certificate {certificate}, {seat}", node.desired_role, node.role))
}

async fn demote_leader(cluster: &mut LocalCluster) -> Outcome<Told> {
    let old = leader(cluster).await?;
    let took = become_role(cluster, &old, Role::Worker).await?;
    Told::timed(took, format!("{old} is a worker, {} leads", leader(cluster).await?))
}

/// n5 has been a worker all along. Its process goes on running: it must be cut, not merely forgotten.
async fn remove_worker(cluster: &mut LocalCluster) -> Outcome<Told> {
    let begun = Instant::now();
    cluster.ask(Request::NodeRemove { node: "n5".to_owned(), force: true }).await?;
    let took = begun.elapsed();
    if nodes(cluster).await?.iter().any(|node| node.name.as_str() == "n5") {
        return Err(Failure::internal("n5 is still in the list of nodes"));
    }
    // Its agent, not its API: only what the agent was told is remembered over a restart.
    let trouble = until("n5 hears that it was removed", async || {
        let ask = ActorsAsk::Inspect { path: "node/agent".to_owned() };
        let agent: Value = cluster.client("n5").ask(Request::Actors { node: ActorsOf::Here, ask }).await?;
        Ok(agent["view"]["trouble"]["reason"].as_str().map(str::to_owned))
    })
    .await?;
    Told::timed(took, format!("n5 is gone and blocked; its own process says: {trouble}"))
}

async fn refuse_removed(cluster: &mut LocalCluster) -> Outcome<Told> {
    cluster.stop_one("n5").await?;
    match cluster.restart_to_end("n5").await? {
        Some(6) => Told::text("n5 is refused with its old certificate and ends with exit status 6"),
        other => Err(Failure::internal(format!("n5 ended with {other:?} instead of exit status 6"))),
    }
}

/// A worker is frozen and promoted: that work cannot end before it is thawed. Then the role manager is crashed.
async fn crash_role_manager(cluster: &mut LocalCluster) -> Outcome<Told> {
    let all = nodes(cluster).await?;
    let worker = all.iter().find(|n| n.role == Role::Worker).ok_or_else(|| Failure::internal("there is no worker"))?;
    let (name, id) = (worker.name.to_string(), worker.id.to_string());
    cluster.freeze(&name)?;
    let outcome = crash_while_pending(cluster, &name, &id).await;
    cluster.thaw()?;
    let Reborn { before, after, took } = outcome?;
    let begun = Instant::now();
    let mut client = cluster.client(&manager_besides(cluster, &name).await?);
    wait_until_settled(&mut client, &name, Role::Manager, begun + WAIT_LIMIT, |_| {}).await?;
    let finished = spoken(begun.elapsed());
    Told::timed(
        took,
        format!(
            "incarnation {before} was crashed, {after} knows what is pending and finished it {finished} after {name} thawed"
        ),
    )
}

/// An actor that was crashed and is there again.
struct Reborn {
    before: u64,
    after: u64,
    took: Duration,
}

/// Returns once the new incarnation knows of the pending work.
async fn crash_while_pending(cluster: &LocalCluster, name: &str, id: &str) -> Outcome<Reborn> {
    cluster.ask(Request::SetRole { node: name.to_owned(), role: Role::Manager }).await?;
    let pends = |actor: &Value| {
        let queue = actor["view"]["pending_reconciliation"].as_array();
        queue.is_some_and(|queue| queue.iter().any(|item| item["node"] == id))
    };
    let before = until("the promotion is pending", async || {
        let actor = leaders_actor(cluster, ROLE_MANAGER).await?;
        Ok(pends(&actor).then(|| actor["incarnation"].as_u64().unwrap_or(0)))
    })
    .await?;
    let begun = Instant::now();
    let crash = ActorsAsk::Crash { path: ROLE_MANAGER.to_owned(), how: CrashHow::Panic };
    cluster.ask(Request::Actors { node: ActorsOf::Leader, ask: crash }).await?;
    let after = until("a new incarnation with the pending work", async || {
        // While the supervisor backs off there may be no such actor to ask.
        let actor = match leaders_actor(cluster, ROLE_MANAGER).await {
            Err(failure) if failure.is(ErrorCode::NotFound) => return Ok(None),
            other => other?,
        };
        let incarnation = actor["incarnation"].as_u64().unwrap_or(0);
        Ok((incarnation > before && pends(&actor)).then_some(incarnation))
    })
    .await?;
    Ok(Reborn { before, after, took: begun.elapsed() })
}
