//! The steps of `dev tour` and `bench roles`: each function returns when its change has taken effect.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_client::{Failure, Outcome, RotationGoal, parse};
use muster_local_cluster::{WAIT_LIMIT, answers, until};
use muster_messages::wire::{ActorsAsk, ActorsOf, AutopilotRequest, AutopilotSettings, Request};
use muster_messages::{
    ActorNode, AutopilotCandidateView, AutopilotView, ManagerPreference, Membership, NodeId, NodeView, Role,
    RootChangeView,
};

use super::cluster::LocalCluster;

/// The nodes, read with a quorum.
pub async fn nodes(cluster: &LocalCluster) -> Outcome<Vec<NodeView>> {
    answers::nodes(cluster.ask(Request::NodeList { fresh: true }).await?)
}

/// The leader's name.
pub async fn leader(cluster: &LocalCluster) -> Outcome<String> {
    until("a leader", async || Ok(answers::leader(&nodes(cluster).await?))).await
}

/// A running manager other than `except`, to send requests to: its own role stays the same.
pub async fn manager_except(cluster: &LocalCluster, except: &str) -> Outcome<String> {
    let all = nodes(cluster).await?;
    let runs = |name: &str| cluster.state().nodes.iter().any(|n| n.name == name && n.running().is_some());
    let mut fit =
        all.iter().filter(|n| n.membership == Membership::Voter && n.name.as_str() != except && runs(n.name.as_str()));
    fit.next()
        .map(|n| n.name.to_string())
        .ok_or_else(|| Failure::internal(format!("no manager other than {except} is running")))
}

/// Requests a role and returns when it has settled.
pub async fn change_role(cluster: &LocalCluster, node: &str, role: Role) -> Outcome<Duration> {
    let mut client = cluster.client(&manager_except(cluster, node).await?);
    let begun = Instant::now();
    client.set_role(node, role).await?;
    client.wait_until_settled(node, role, begun + WAIT_LIMIT, |_| {}).await?;
    Ok(begun.elapsed())
}

/// Replaces the root that signs; returns the time until every node that is ready had a certificate of the next one.
pub async fn rotate_root(cluster: &LocalCluster) -> Outcome<Duration> {
    let mut client = cluster.client(&leader(cluster).await?);
    let begun = Instant::now();
    let request = Request::RootRotate { prepare: false, compromised: false };
    let begin: RootChangeView = parse(&client.call(request).await?)?;
    let root = begin.root.ok_or_else(|| Failure::internal("the answer to a rotation names no root"))?;
    client.wait_for_rotation(root, RotationGoal::Renewed, begun + WAIT_LIMIT, |_| {}).await?;
    Ok(begun.elapsed())
}

/// Writes through one node: a label of that node itself.
pub async fn write(cluster: &LocalCluster, via: &str, value: &str) -> Outcome {
    let add = BTreeMap::from([("written".to_owned(), value.to_owned())]);
    let request = Request::NodeUpdate { node: via.to_owned(), add, remove: Vec::new(), generation: None };
    cluster.client(via).call_within(request, Duration::from_secs(5)).await.map(drop)
}

/// Kills the leader with kill -9; returns its name and the time until a write through another manager succeeded.
pub async fn kill_leader(cluster: &mut LocalCluster) -> Outcome<(String, Duration)> {
    let killed = leader(cluster).await?;
    let via = manager_except(cluster, &killed).await?;
    let begun = Instant::now();
    cluster.signal(&killed, rustix::process::Signal::KILL)?;
    until("a write without the killed leader", async || Ok(write(cluster, &via, &killed).await.ok())).await?;
    let took = begun.elapsed();
    cluster.kill(&killed).await?;
    Ok((killed, took))
}

/// Restarts a killed manager and returns when it follows and is reachable.
pub async fn restart_manager(cluster: &mut LocalCluster, name: &str) -> Outcome {
    cluster.restart(name).await?;
    until(&format!("{name} back among the managers"), async || {
        let all = nodes(cluster).await?;
        let node = all.iter().find(|node| node.name.as_str() == name);
        let follows = node.is_some_and(|n| {
            n.state == muster_messages::Liveness::Ready && n.manager.as_ref().is_some_and(|m| m.reachable && !m.leader)
        });
        Ok(follows.then_some(()))
    })
    .await
}

/// How long a manager must be down here before it is replaced. Only a cluster for experiments accepts less than a minute.
const REPLACE_AFTER_MS: u64 = 2_000;
const STABILIZE_MS: u64 = 1_000;

/// Declares three managers and kills one. Returns its name, the successor's name, and the time until the successor votes.
pub async fn lose_manager(cluster: &mut LocalCluster) -> Outcome<(String, String, Duration)> {
    // A later step removes n5 as a worker.
    let (node, preference) = ("n5".to_owned(), ManagerPreference::Never);
    cluster.ask(Request::Autopilot(AutopilotRequest::Prefer { node, preference })).await?;
    let settings = AutopilotSettings {
        managers: Some(3),
        replace_after_ms: Some(REPLACE_AFTER_MS),
        stabilize_ms: Some(STABILIZE_MS),
        ..AutopilotSettings::default()
    };
    cluster.ask(Request::Autopilot(AutopilotRequest::Set { settings, generation: None })).await?;
    let leads = leader(cluster).await?;
    let before = autopilot(cluster).await?;
    // n4 was promoted by hand a moment ago; an older manager is taken.
    let victim = before.managers.iter().find(|manager| ![leads.as_str(), "n4"].contains(&manager.name.as_str()));
    let victim = victim
        .ok_or_else(|| Failure::internal(format!("no manager other than {leads} and n4 is running")))?
        .name
        .to_string();
    let begun = Instant::now();
    cluster.kill(&victim).await?;
    let successor = until("another node in its place", async || {
        let view = autopilot(cluster).await?;
        let settled = view.answering == 3 && view.voters == 3 && view.next.action.is_none();
        let known = |node: NodeId| before.managers.iter().any(|manager| manager.node == node);
        let new = view.managers.iter().find(|manager| !known(manager.node));
        Ok(new.filter(|_| settled).map(|manager| manager.name.to_string()))
    })
    .await?;
    Ok((victim, successor, begun.elapsed()))
}

/// Restarts a manager that was replaced, and withdraws the declaration once it is a candidate.
pub async fn return_as_candidate(cluster: &mut LocalCluster, name: &str) -> Outcome {
    cluster.restart(name).await?;
    until(&format!("{name} back as a candidate"), async || {
        let view = autopilot(cluster).await?;
        let ranked = |candidate: &AutopilotCandidateView| candidate.name.as_str() == name && candidate.rank.is_some();
        Ok(view.candidates.iter().any(ranked).then_some(()))
    })
    .await?;
    cluster.ask(Request::Autopilot(AutopilotRequest::Withdraw { generation: None })).await.map(drop)
}

async fn autopilot(cluster: &LocalCluster) -> Outcome<AutopilotView> {
    let state = cluster.ask(Request::Autopilot(AutopilotRequest::State)).await?;
    serde_json::from_value(state).map_err(|e| Failure::internal(format!("unreadable answer: {e}")))
}

/// Inspects one actor of the leader.
pub async fn leader_actor(cluster: &LocalCluster, path: &str) -> Outcome<ActorNode> {
    let ask = ActorsAsk::Inspect { path: path.to_owned() };
    let actor = cluster.ask(Request::Actors { node: ActorsOf::Leader, ask }).await?;
    serde_json::from_value(actor).map_err(Failure::internal)
}
