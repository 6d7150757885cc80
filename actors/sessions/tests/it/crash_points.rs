//! The agent, the host and the session between them crash at each of their crash points.

use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_agent::TroubleReason;
use muster_kernel::{Address, Fuse};
use muster_messages::protocol::{AgentMsg, Reply, SessionsMsg};
use muster_messages::wire::{ActorsAsk, MembershipReply, MembershipRequest};
use muster_messages::*;
use muster_testkit::{WAIT_LIMIT, at_every_point, eventually, insisting};
use tokio::time::{Instant, sleep};

use crate::refusal;
use crate::stage::{AgentProcess, HostProcess, M1, Stage, node, session_path};

/// The actor that crashes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Agent,
    Host,
    Session,
}

impl Stage {
    /// A host and the node's agent, one of which is about to crash.
    async fn both(&mut self, target: Target, fuse: &Fuse) -> (HostProcess, AgentProcess) {
        let host = self.host(M1).await;
        if target == Target::Host {
            self.harness.crash_at_in(host.process.tree(), "manager/sessions", fuse).await;
        }
        let agent = self.agent(&[M1]).await;
        if target == Target::Agent {
            self.harness.crash_at_in(agent.process.tree(), "node/agent", fuse).await;
        }
        if target == Target::Session {
            agent.has_session().await; // as it is opened it crashes when it is opened again
            self.harness.crash_at_in(host.process.tree(), &session_path(), fuse).await;
        }
        (host, agent)
    }
}

/// Asks until the request is granted.
async fn granted<M: Send + 'static, T: Send + 'static>(
    address: &Address<M>,
    mut make: impl FnMut(Reply<Result<T, ErrorBody>>) -> M,
) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        match insisting(address, &mut make).await {
            Ok(granted) => return granted,
            Err(why) => assert!(Instant::now() < deadline, "never granted: {why:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// A node is promoted, sends and receives requests, and stops.
async fn one_is_promoted_and_stops(target: Target, fuse: Fuse) {
    let mut stage = Stage::set().await;
    let cluster = std::sync::Arc::clone(&stage.cluster);
    let (host, agent) = stage.both(target, &fuse).await;
    eventually("the leader receives its report", || cluster.reported_liveness(node(1)) == Some(Liveness::Ready)).await;
    cluster.grant(node(1), Role::Manager);
    let (wanted, credentials) = (agent.ports.wanted(), agent.ports.credentials());
    eventually("its manager runtime is wanted", || wanted.borrow().wanted).await;
    let serial = credentials.borrow().identity.serial.clone();
    let known = || cluster.fact(node(1)).is_some_and(|fact| fact.serial == serial);
    eventually("its session has the new certificate", known).await;
    assert_eq!(agent.memory.store().load_credentials().unwrap().unwrap().identity.serial, serial, "written first");

    let request = MembershipRequest {
        advertise: "0.0.0.0:4400".to_owned(),
        held: None,
        data_lost: None,
        feature_level: FEATURE_LEVEL,
    };
    let seat =
        granted(&agent.agent, |reply| AgentMsg::RequestMembership { request: request.clone(), reply }.into()).await;
    assert_eq!(seat, MembershipReply::IsMember { raft_id: RaftId(7) });
    let told = granted(&host.sessions, |reply| {
        SessionsMsg::AskNode { node: node(1), ask: ActorsAsk::Tree, deadline_ms: 500, reply }.into()
    });
    assert_eq!(told.await, "Tree");

    sleep(Duration::from_secs(3)).await;
    assert_eq!(*cluster.ever_down.lock().unwrap(), [], "it never appeared as down");
    agent.process.stop().await;
    // A host that then crashes forgets its nodes: no host reports on the node any more, and the dispatcher decides.
    let down = || match cluster.reported_liveness(node(1)) {
        None => target == Target::Host,
        heard => heard == Some(Liveness::Down),
    };
    eventually("it is down", down).await;
    stage.end([host.process]).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "full tier"]
async fn crash_anywhere_node_is_promoted_and_down_only_after_stop() {
    for target in [Target::Agent, Target::Host, Target::Session] {
        let points = at_every_point(async |fuse| one_is_promoted_and_stops(target, fuse).await).await;
        println!("{target:?}: {points} crash points");
        assert!(points > 20, "{target:?}: there were {points} crash points");
    }
}

/// A node is removed, and informed by its host.
async fn one_is_removed(target: Target, fuse: Fuse) {
    let mut stage = Stage::set().await;
    let (host, agent) = stage.both(target, &fuse).await;
    agent.has_session().await;
    stage.cluster.apply(|replica| {
        replica.tables.nodes.remove(&node(1));
    });
    let trouble = agent.ports.trouble();
    let removed = || trouble.borrow().as_ref().is_some_and(|t| t.reason == TroubleReason::Removed);
    eventually("it learns of the removal", removed).await;
    eventually("it keeps the removal on disk", || agent.memory.load().unwrap().ended.is_some()).await;
    let gone = || !host.process.tree().list().contains(&session_path());
    eventually("its session has ended", gone).await;
    sleep(Duration::from_secs(3)).await;
    assert!(removed() && gone() && agent.ports.session().borrow().is_none(), "and does not come back");
    stage.end([agent.process, host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn crash_anywhere_removed_node_keeps_its_removal() {
    for target in [Target::Agent, Target::Host, Target::Session] {
        let points = at_every_point(async |fuse| one_is_removed(target, fuse).await).await;
        println!("{target:?}: {points} crash points");
        assert!(points > 3, "{target:?}: there were {points} crash points");
    }
}

/// The managers know that a node is no longer a manager, while the leader cannot sign its new certificate.
async fn one_is_demoted(fuse: Fuse) {
    let mut stage = Stage::set().await;
    stage.cluster.grant(node(1), Role::Manager);
    let (host, agent) = stage.both(Target::Agent, &fuse).await;
    agent.has_session().await;
    let serial = agent.ports.credentials().borrow().identity.serial.clone();
    stage.cluster.signs_nothing.store(true, Ordering::SeqCst);
    stage.cluster.grant(node(1), Role::Worker);
    let mut wanted = agent.ports.wanted();
    assert!(wanted.borrow_and_update().wanted, "its certificate says manager");
    // Each manager that it dials says so, again and again.
    while wanted.borrow_and_update().wanted {
        let refusal = refusal(RefusalReason::Demoted);
        let _restarting = agent.agent.tell(AgentMsg::RefusedByPeer { refusal, serial: Some(serial.clone()) }.into());
        sleep(Duration::from_millis(100)).await;
    }
    let again = tokio::spawn(async move { wanted.wait_for(|half| half.wanted).await.is_ok() });
    sleep(Duration::from_secs(3)).await;
    assert!(!again.is_finished(), "no manager runtime starts with that certificate");
    stage.cluster.signs_nothing.store(false, Ordering::SeqCst);
    let credentials = agent.ports.credentials();
    let worker = || credentials.borrow().identity.node().is_some_and(|(_, role)| role == Role::Worker);
    eventually("it has another certificate", worker).await;
    assert!(!again.is_finished());
    again.abort();
    stage.end([agent.process, host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn crashed_demoted_agent_does_not_restart_manager_runtime() {
    let points = at_every_point(one_is_demoted).await;
    println!("{points} crash points");
    assert!(points > 30, "there were {points} crash points");
}
