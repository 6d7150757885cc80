//! Real agents and real session hosts, joined by in-memory pipes instead of TLS.

#![expect(clippy::unwrap_used, reason = "a test ends at the failure of anything it relies on")]

mod crash_points;
mod dispatcher;
mod stage;
mod workloads;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_agent::TroubleReason;
use muster_messages::protocol::{AgentMsg, Applied, RaftMemberMsg, SessionsMsg};
use muster_messages::wire::{ActorsAsk, MembershipReply, MembershipRequest};
use muster_messages::*;
use muster_sessions::{DispatcherConfig, DispatcherPorts, dispatcher_address, dispatcher_spec};
use muster_testkit::{WAIT_LIMIT, answered, eventually};
use tokio::time::Instant;

use crate::stage::{M1, M2, Stage, node, session_path};

#[tokio::test(start_paused = true)]
async fn promoted_worker_gets_certificate_session_and_runtime() {
    let stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let host = stage.host(M1).await;
    let agent = stage.agent(&[M1]).await;
    agent.has_session().await;
    eventually("the leader receives its report", || cluster.reported_liveness(node(1)) == Some(Liveness::Ready)).await;
    assert_eq!(cluster.fact(node(1)).unwrap().addr, "192.0.2.7:4400");
    let wanted = agent.ports.wanted();
    assert!(!wanted.borrow().wanted);
    for role in [Role::Manager, Role::Worker, Role::Manager] {
        cluster.grant(node(1), role);
        eventually("the manager runtime follows", || wanted.borrow().wanted == (role == Role::Manager)).await;
        let serial = agent.ports.credentials().borrow().identity.serial.clone();
        let heard = || cluster.fact(node(1)).is_some_and(|fact| fact.serial == serial);
        eventually("the session is reopened with the new certificate", heard).await;
        let on_disk = agent.memory.store().load_credentials().unwrap().unwrap();
        assert_eq!(on_disk.identity.serial, serial);
    }
    assert!(cluster.ever_down.lock().unwrap().is_empty());
    agent.process.stop().await;
    eventually("a stopped agent is down at once", || cluster.reported_liveness(node(1)) == Some(Liveness::Down)).await;
    stage.end([host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn removed_node_records_its_removal_and_stops_dialling() {
    let mut stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let host = stage.host(M1).await;
    let agent = stage.agent(&[M1]).await;
    agent.has_session().await;
    let started = Instant::now();
    cluster.apply(|replica| {
        replica.tables.nodes.remove(&node(1));
    });
    let trouble = agent.ports.trouble();
    let removed = || trouble.borrow().as_ref().is_some_and(|t| t.reason == TroubleReason::Removed);
    eventually("the agent learns of the removal", removed).await;
    assert!(started.elapsed() < Duration::from_secs(1));
    eventually("it keeps the removal on disk", || agent.memory.load().unwrap().ended.is_some()).await;
    let gone = || !host.process.tree().list().iter().any(|p| p.contains("session-"));
    eventually("its session has ended", gone).await;
    // A crash of the agent does not make it forget.
    stage.harness.crash_in(agent.process.tree(), "node/agent", CrashHow::Panic);
    eventually("it is back", || {
        agent
            .agent
            .tell(AgentMsg::RefusedByPeer { refusal: refusal(RefusalReason::NotKnownHereYet), serial: None }.into())
            .is_ok()
    })
    .await;
    assert!(removed());
    assert!(agent.ports.session().borrow().is_none());
    stage.end([agent.process, host.process]).await;
}

fn refusal(reason: RefusalReason) -> wire::Refusal {
    wire::Refusal { reason, message: String::new(), managers: vec![], retry_after_ms: None }
}

#[tokio::test(start_paused = true)]
async fn membership_and_actor_requests_pass_through_a_session() {
    let mut stage = Stage::set().await;
    let host = stage.host(M1).await;
    let agent = stage.agent(&[M1]).await;
    agent.has_session().await;
    let request = MembershipRequest {
        advertise: "0.0.0.0:4400".to_owned(),
        held: None,
        data_lost: None,
        feature_level: FEATURE_LEVEL,
    };
    let make = |reply| AgentMsg::RequestMembership { request, reply }.into();
    let seat = agent.agent.ask(Duration::from_secs(5), make).await.unwrap();
    assert_eq!(seat, Ok(MembershipReply::IsMember { raft_id: RaftId(7) }));
    let ask = async |id| {
        let make = |reply| SessionsMsg::AskNode { node: id, ask: ActorsAsk::Tree, deadline_ms: 5000, reply }.into();
        host.sessions.ask(Duration::from_secs(6), make).await.unwrap()
    };
    assert_eq!(ask(node(1)).await, Ok("Tree".to_owned()));
    assert_eq!(ask(node(2)).await.map_err(|e| e.code), Err(ErrorCode::NotFound));
    // AGENT-9: also while the agent hangs.
    stage.harness.crash_in(agent.process.tree(), "node/agent", CrashHow::Hang);
    let hangs =
        || agent.process.tree().flat().iter().any(|actor| actor.path == "node/agent" && actor.handling.is_some());
    eventually("it hangs", hangs).await;
    for _ in 0..20 {
        assert_eq!(ask(node(1)).await, Ok("Tree".to_owned()));
    }
    assert!(hangs());
    stage.end([agent.process, host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn agent_crash_through_its_own_session_is_answered() {
    let mut stage = Stage::set().await;
    let (host, agent) = (stage.host(M1).await, stage.agent(&[M1]).await);
    for incarnation in 2..7 {
        agent.has_session().await;
        eventually("the host has it, too", || stage.cluster.reported_liveness(node(1)) == Some(Liveness::Ready)).await;
        stage.harness.expects_panic("crashed on request");
        let crash = ActorsAsk::Crash { path: "node/agent".to_owned(), how: CrashHow::Panic };
        let make = |reply| SessionsMsg::AskNode { node: node(1), ask: crash.clone(), deadline_ms: 5000, reply }.into();
        assert_eq!(host.sessions.ask(Duration::from_secs(6), make).await.unwrap(), Ok(format!("{crash:?}")));
        let again =
            || agent.process.tree().flat().iter().any(|a| a.path == "node/agent" && a.incarnation == incarnation);
        eventually("it starts again", again).await;
    }
    stage.end([agent.process, host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn session_host_and_agent_crashes_never_mark_node_down() {
    let mut stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let host = stage.host(M1).await;
    let agent = stage.agent(&[M1]).await;
    let session = session_path();
    for path in [session.as_str(), "manager/sessions", session.as_str()] {
        for how in [CrashHow::Panic, CrashHow::Kill] {
            agent.has_session().await;
            eventually("the actor to crash exists", || host.process.tree().list().iter().any(|p| p == path)).await;
            let mut lost = agent.ports.session();
            lost.mark_unchanged();
            stage.harness.crash_in(host.process.tree(), path, how);
            tokio::time::timeout(Duration::from_secs(10), lost.changed()).await.unwrap().unwrap();
        }
    }
    agent.has_session().await;
    let mut lost = agent.ports.session();
    lost.mark_unchanged();
    stage.harness.crash_in(agent.process.tree(), "node/agent", CrashHow::Kill);
    tokio::time::timeout(Duration::from_secs(10), lost.changed()).await.unwrap().unwrap();
    agent.has_session().await;
    assert!(cluster.ever_down.lock().unwrap().is_empty());
    stage.end([agent.process, host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn leaderless_host_loses_its_agents_to_one_with_a_leader() {
    let stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let first = stage.host(M1).await;
    let agent = stage.agent(&[M1]).await;
    agent.has_session().await;
    // A view names the second manager, which then starts; then the first one dies.
    cluster.apply(|replica| {
        for (seat, addr) in [(1, M1), (2, M2)] {
            let member = Member {
                node: node(100 + u128::from(seat)),
                raft_id: RaftId(seat),
                addr: addr.to_owned(),
                voter: true,
            };
            replica.tables.members.insert(RaftId(seat), member);
        }
    });
    eventually("both managers are remembered", || agent.memory.load().unwrap().managers == [M1, M2]).await;
    cluster.apply(|replica| {
        replica.raft.leader = None;
        replica.raft.leader_node = None;
    });
    let session = agent.ports.session();
    eventually("it is sent away", || session.borrow().is_none()).await;
    let second = stage.host(M2).await;
    cluster.hosts.lock().unwrap().remove(M1);
    cluster.apply(|replica| {
        replica.raft.term = Term(2);
        replica.raft.leader = Some(RaftId(2));
        replica.raft.leader_node = Some(node(102));
    });
    eventually("it has moved", || session.borrow().as_ref().is_some_and(|s| s.addr == M2)).await;
    assert!(cluster.ever_down.lock().unwrap().is_empty());
    stage.end([agent.process, first.process, second.process]).await;
}

#[tokio::test(start_paused = true)]
async fn the_dispatcher_writes_what_hosts_report_and_only_that() {
    let mut stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let (state, raft) = (Arc::clone(&cluster), stage.harness.probe::<RaftMemberMsg>("raft-member"));
    raft.on(move |msg| {
        let RaftMemberMsg::Propose { command, reply, .. } = msg else { return Some(msg) };
        for change in command.changes {
            match change {
                Change::SetLiveness { node, liveness } => state.edit(node, |r, _| r.liveness = liveness),
                Change::Report { node, addr, release, .. } => state.edit(node, |r, _| {
                    r.addr = addr;
                    r.release = release;
                }),
                other => panic!("the dispatcher writes no {other:?}"),
            }
        }
        answered(reply, Ok(Applied { revision: state.state.borrow().tables.revision }))
    });
    let ports = DispatcherPorts {
        config: DispatcherConfig::default(),
        replica: cluster.state.subscribe(),
        raft: raft.recipient(),
        doubts: Arc::default(),
    };
    let doubts = ports.doubts.subscribe();
    let address = dispatcher_address(&ports.config);
    stage.harness.start_actor(dispatcher_spec(address.clone(), ports));
    *cluster.dispatcher.lock().unwrap() = Some(address);
    let host = stage.host(M1).await;
    let agent = stage.agent(&[M1]).await;
    eventually("ready", || cluster.record(node(1)).liveness == Liveness::Ready).await;
    eventually("reported", || cluster.record(node(1)).addr == "192.0.2.7:4400").await;
    let before = raft.heard().len();
    // The leader's dispatcher crashes: the record is trusted until the next full digest confirms it.
    stage.harness.crash("node/dispatcher", CrashHow::Panic);
    eventually("confirmed again", || {
        doubts.borrow().unconfirmed.is_empty() && cluster.reported_liveness(node(1)).is_some()
    })
    .await;
    assert_eq!(raft.heard().len(), before);
    agent.process.stop().await;
    eventually("down", || cluster.record(node(1)).liveness == Liveness::Down).await;
    stage.end([host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn node_removed_while_away_learns_it_on_first_connection() {
    let stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    let host = stage.host(M1).await;
    let removed = || {
        cluster.apply(|replica| {
            replica.tables.nodes.remove(&node(1));
        });
    };
    let agent = stage.agent_after(&[M1], removed).await;
    let trouble = agent.ports.trouble();
    eventually("told", || trouble.borrow().as_ref().is_some_and(|t| t.reason == TroubleReason::Removed)).await;
    stage.end([agent.process, host.process]).await;
}

#[tokio::test(start_paused = true)]
async fn node_stopped_after_removal_notice_has_it_on_disk() {
    let stage = Stage::set().await;
    let host = stage.host(M1).await;
    let agent = stage.agent(&[M1]).await;
    agent.has_session().await;
    // A disk that is slow with another write.
    let (taken, is_taken) = std::sync::mpsc::channel();
    let (release_write, is_released) = std::sync::mpsc::channel::<()>();
    let memory = agent.memory.clone();
    let disk = std::thread::spawn(move || {
        memory.update(|_| {
            taken.send(()).unwrap();
            is_released.recv().unwrap();
        })
    });
    is_taken.recv().unwrap();
    stage.cluster.apply(|replica| {
        replica.tables.nodes.remove(&node(1));
    });
    // Not by polling: the clock of a test stands still while a write waits for the disk.
    let mut trouble = agent.ports.trouble();
    trouble.wait_for(|t| t.as_ref().is_some_and(|t| t.reason == TroubleReason::Removed)).await.unwrap();
    // The write ends only when the agent has begun to stop.
    let tree = agent.process.tree().clone();
    let stops = || {
        let agent = tree.flat().into_iter().find(|actor| actor.path == "node/agent");
        agent.and_then(|agent| agent.handling).is_some_and(|handling| handling.message == "stopping")
    };
    let mut stopping = pin!(agent.process.stop());
    let deadline = std::time::Instant::now() + WAIT_LIMIT;
    while !stops() {
        assert!(stopping.as_mut().now_or_never().is_none(), "it waits for the disk");
        assert!(std::time::Instant::now() < deadline, "it never began to stop");
        tokio::task::yield_now().await;
    }
    release_write.send(()).unwrap();
    stopping.await;
    assert!(agent.memory.store().load_node().unwrap().ended.is_some());
    disk.join().unwrap().unwrap();
    stage.end([host.process]).await;
}
