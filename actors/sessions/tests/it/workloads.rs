//! Workloads on their way from the replicated state to a node, over crashes of the agent.

use std::sync::Arc;

use muster_messages::*;
use muster_testkit::eventually;

use crate::stage::{M1, M2, Stage};

fn set(replica: &mut Replica, names: &[&str]) {
    let entry = |name: &&str| WorkloadEntry::new(name.parse().unwrap(), [WorkloadSelector::UnixUid(1)]);
    let entries = names.iter().map(entry).map(|entry| (entry.name.clone(), Arc::new(entry)));
    let workloads = &mut replica.tables.workloads;
    (workloads.entries, workloads.changed) = (entries.collect(), replica.tables.revision);
}

/// A host's answers to heartbeats name newer states although nothing of them concerns the node: only they show that the list still holds.
#[tokio::test(start_paused = true)]
async fn heartbeat_answers_show_that_a_list_holds() {
    let stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let (host, agent) = (stage.host(M1).await, stage.agent(&[M1, M2]).await);
    let view = agent.ports.workloads();
    let names = || view.borrow().entries.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>();
    cluster.apply(|replica| set(replica, &["a/b"]));
    eventually("the workload is known", || names() == ["a/b"]).await;
    let before = Arc::clone(&cluster.state.borrow());
    cluster.apply(|replica| set(replica, &[]));
    eventually("its removal is known", || names().is_empty()).await;

    // A host of another history, in which the workload was not removed.
    host.process.stop().await;
    cluster.state.send_replace(before);
    let other = stage.host(M2).await;
    agent.has_session().await;
    for _unrelated in 0..3 {
        cluster.apply(|_| ());
    }
    eventually("the list holds as of a newer state", || names() == ["a/b"]).await;
    stage.end([agent.process, other.process]).await;
}

/// AGENT-14: how new the published list is outlives the agent, as the list does.
#[tokio::test(start_paused = true)]
async fn restarted_agent_accepts_no_older_workloads() {
    let mut stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let (host, agent) = (stage.host(M1).await, stage.agent(&[M1, M2]).await);
    let view = agent.ports.workloads();
    let names = || view.borrow().entries.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>();
    cluster.apply(|replica| set(replica, &["a/removed"]));
    eventually("the workload is known", || names() == ["a/removed"]).await;
    let lagging = Arc::clone(&cluster.state.borrow());
    cluster.apply(|replica| set(replica, &[]));
    eventually("its removal is known", || names().is_empty()).await;
    let (published, newest) = (view.borrow().generation, Arc::clone(&cluster.state.borrow()));

    host.process.stop().await;
    cluster.state.send_replace(lagging);
    let behind = stage.host(M2).await;
    stage.harness.crash_in(agent.process.tree(), "node/agent", CrashHow::Panic);
    let restarted = || agent.process.tree().flat().iter().any(|a| a.path == "node/agent" && a.incarnation == 2);
    eventually("the agent starts again", restarted).await;
    agent.has_session().await;
    cluster.state.send_replace(newest);
    cluster.apply(|replica| set(replica, &["a/new"]));
    eventually("the host has caught up", || names() == ["a/new"]).await;
    assert_eq!(view.borrow().generation, published + 1, "no other list was published in between");
    stage.end([agent.process, behind.process]).await;
}
