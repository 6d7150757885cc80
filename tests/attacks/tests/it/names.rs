//! A node's claims about itself: names that imitate others, and unbounded labels. S5 and S6 of the security review.

use std::collections::BTreeMap;
use std::path::Path;

use muster_attacks::caller::Caller;
use muster_attacks::cluster::{Cluster, until};
use muster_attacks::daemon::Daemon;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{AGENT_PROTOCOL, AgentFrame, AgentHello, HostFrame, Request};
use muster_messages::{NodeView, Role};

const PROGRAM: &str = env!("CARGO_BIN_EXE_muster-attack");

async fn cluster(managers: usize, workers: usize) -> Cluster {
    Cluster::up(Path::new(PROGRAM), managers, workers).await.expect("a cluster")
}

/// Reports this in its own session; returns the host's first answer.
async fn hello(cluster: &Cluster, thief: &NodeCredentials, name: &str, labels: BTreeMap<String, String>) -> HostFrame {
    let hello = AgentHello {
        protocol: AGENT_PROTOCOL,
        instance: rand::random(),
        name: name.parse().expect("a name"),
        advertise: "127.0.0.1:4400".to_owned(),
        release: "0.1.0".to_owned(),
        labels,
    };
    let caller = Caller::with(cluster.node("n1").listen, Service::Agent.alpn(), thief).expect("good credentials");
    let answer = until("an answer to the hello", async || {
        let Ok(mut frames) = caller.greeted().await else { return Ok(None) };
        if frames.send(&AgentFrame::Hello(hello.clone())).await.is_err() {
            return Ok(None);
        }
        Ok(frames.recv::<HostFrame>().await.ok().flatten())
    });
    answer.await.expect("a host answers")
}

async fn by_id(cluster: &Cluster, id: &str) -> NodeView {
    let nodes = cluster.nodes_seen_by("n1").await.expect("a list");
    nodes.into_iter().find(|node| node.id.to_string() == id).expect("it is a node")
}

/// The operator types the first digits of an honest node's id, which the thief has taken as its name.
#[tokio::test]
async fn node_named_like_another_id_is_not_promoted_instead() {
    let mut cluster = cluster(1, 2).await;
    let honest = cluster.seen("n1", "n2").await.expect("an answer").expect("a node").id.to_string();
    let thief = cluster.node("n3").credentials().expect("an identity");
    let thief_id = thief.identity.node().expect("a node's").0.to_string();
    cluster.node_mut("n3").kill().await;
    let digits = honest[..8].to_owned();
    let _either = hello(&cluster, &thief, &digits, BTreeMap::new()).await;
    // The same name from the first moment on.
    let token = cluster.token(Role::Worker).await.expect("a token");
    let seed = cluster.node("n1").listen.to_string();
    let mut other = Daemon::new(Path::new(PROGRAM), cluster.folder(), &digits).expect("a port");
    other.start_and_wait(&["--join", &seed, "--token", &token]).await.expect("it joins");
    let other = other.credentials().expect("an identity").identity.node().expect("a node's").0.to_string();

    let request = Request::SetRole { node: digits.clone(), role: Role::Manager };
    let promoted = cluster.ask("n1", request).await;
    println!("{digits}: {promoted:?}");
    for (id, named) in [(&thief_id, true), (&other, false)] {
        let node = by_id(&cluster, id).await;
        assert_eq!((node.role, node.desired_role), (Role::Worker, Role::Worker), "{digits}: {node:?}");
        assert!(!named || node.name.as_str() == "n3", "its name is unchanged: {node:?}");
    }
}

/// 40 hellos with 64 labels each once made the list of nodes larger than a frame.
#[tokio::test]
async fn repeated_hellos_keep_labels_bounded() {
    let mut cluster = cluster(1, 1).await;
    let thief = cluster.node("n2").credentials().expect("an identity");
    let id = thief.identity.node().expect("a node's").0.to_string();
    cluster.node_mut("n2").kill().await;
    let keep = Request::NodeUpdate {
        node: "n2".to_owned(),
        add: [("rack".to_owned(), "r7".to_owned())].into(),
        remove: Vec::new(),
        generation: None,
    };
    cluster.ask("n1", keep).await.expect("an operator's label");
    let mut views = 0;
    for round in 0..40 {
        let mut labels: BTreeMap<_, _> = (0..63).map(|n| (format!("r{round}-{n}"), "x".repeat(60))).collect();
        labels.insert("rack".to_owned(), "mine".to_owned());
        views += usize::from(matches!(hello(&cluster, &thief, "n2", labels).await, HostFrame::View(_)));
    }
    assert_eq!(views, 40, "each hello was accepted");
    let node = by_id(&cluster, &id).await;
    assert!(node.labels.len() <= 64, "{} labels", node.labels.len());
    assert_eq!(
        node.labels.get("rack").map(String::as_str),
        Some("r7"),
        "the operator's label stays: {:?}",
        node.labels
    );
    let beyond = (0..100).map(|n| (format!("k{n}"), "x".to_owned())).collect();
    let refused = hello(&cluster, &thief, "n2", beyond).await;
    assert!(matches!(refused, HostFrame::Ended(_)), "{refused:?}");
}
