use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_kernel::{Recipient, Undeliverable};
use muster_messages::protocol::{RaftMemberMsg, ReadError};
use muster_messages::wire::{ApiCall, Request};
use muster_messages::*;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::ManagerPorts;
use crate::service::Service;
use crate::tests::{World, leading, runtime, service, tables, unreachable_actor};

fn id() -> NodeId {
    NodeId::from_entropy(7)
}

fn with_node(desired_role: Role) -> Tables {
    let mut tables = tables();
    let node = NodeRecord { desired_role, ..NodeRecord::new(id(), "n7".parse().unwrap(), Role::Worker, WallTime(0)) };
    tables.nodes.insert(node.id, Arc::new(node));
    tables
}

fn watch(seen: u64) -> Request {
    Request::NodeWatch { node: "n7".to_owned(), seen, wait_ms: 250 }
}

#[tokio::test(start_paused = true)]
async fn watch_of_a_node_ends_with_its_change_or_its_time() {
    let world = World::with(with_node(Role::Worker), |_, _| Some(Ok(())));
    let began = Instant::now();
    let (_, first, _) = world.native(&Principal::Operator, watch(0)).await;
    assert_eq!((began.elapsed(), &first["node"]["desired_role"]), (Duration::ZERO, &"worker".into()));
    let seen = first["seen"].as_u64().unwrap();

    // Nothing of the node changes, although the state does.
    let elsewhere = async {
        sleep(Duration::from_millis(10)).await;
        let mut tables = with_node(Role::Worker);
        tables.revision = Revision(1_000);
        world.published.send_replace(leading(tables));
    };
    let ((_, same, _), ()) = tokio::join!(world.native(&Principal::Operator, watch(seen)), elsewhere);
    assert_eq!((began.elapsed(), &same), (Duration::from_millis(250), &first));

    let change = async {
        sleep(Duration::from_millis(10)).await;
        world.published.send_replace(leading(with_node(Role::Manager)));
    };
    let ((_, changed, _), ()) = tokio::join!(world.native(&Principal::Operator, watch(seen)), change);
    assert_eq!((began.elapsed(), &changed["node"]["desired_role"]), (Duration::from_millis(260), &"manager".into()));

    // A change between two requests is not missed.
    let (_, again, _) = world.native(&Principal::Operator, watch(seen)).await;
    assert_eq!((began.elapsed(), again), (Duration::from_millis(260), changed));
}

#[tokio::test(start_paused = true)]
async fn watch_of_an_unknown_node_is_refused_in_time() {
    let world = World::with(tables(), |_, _| Some(Ok(())));
    let (status, answer, _) = world.native(&Principal::Operator, watch(0)).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &"not_found".into()), "{answer}");
}

/// A manager that had led, and whose reads are confirmed only while there is a quorum.
fn manager(quorum: &Arc<AtomicBool>) -> (Service, watch::Sender<Option<Arc<ManagerPorts>>>) {
    let (replica, quorum) = (leading(tables()), Arc::clone(quorum));
    let published = watch::Sender::new(Arc::clone(&replica)).subscribe();
    let raft = Recipient::new(move |msg| {
        let RaftMemberMsg::Read { deadline_ms, reply } = msg else { return Err(Undeliverable::Down) };
        if quorum.load(Ordering::Relaxed) {
            drop(reply.send(Ok(Arc::clone(&replica))));
        } else {
            tokio::spawn(async move {
                sleep(Duration::from_millis(deadline_ms)).await;
                drop(reply.send(Err(ReadError::TimedOut)));
            });
        }
        Ok(())
    });
    let in_force = watch::Sender::new(Some(runtime(published, raft)));
    (service(in_force.subscribe()), in_force)
}

/// How long the answer takes, and whether it is stale.
async fn asked(service: &Service, fresh: bool) -> (u64, Option<bool>) {
    let (began, request) = (Instant::now(), Request::NodeList { fresh });
    let call = ApiCall { id: 0, request_id: RequestId(0), timeout_ms: 5_000, request };
    let answer = service.answer(Principal::Operator, call).await;
    let took = u64::try_from(began.elapsed().as_millis()).unwrap();
    (took, answer.ok().map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap()["stale"] == true))
}

#[tokio::test(start_paused = true)]
async fn quorum_that_is_gone_is_waited_for_once() {
    let quorum = Arc::new(AtomicBool::new(false));
    let (manager, _in_force) = manager(&quorum);
    assert_eq!(asked(&manager, false).await, (1_500, Some(true)));
    for _ in 0..3 {
        assert_eq!(asked(&manager, false).await, (200, Some(true)));
    }
    assert_eq!(asked(&manager, true).await, (5_000, None), "one that is to be fresh waits as long as it may");
    // Once forgotten, it is waited for again, in case that a leader only answers late.
    assert_eq!(asked(&manager, false).await, (1_500, Some(true)));
    assert_eq!(asked(&manager, false).await, (200, Some(true)));
    quorum.store(true, Ordering::Relaxed);
    assert_eq!(asked(&manager, false).await, (0, Some(false)));
    quorum.store(false, Ordering::Relaxed);
    assert_eq!(asked(&manager, false).await, (1_500, Some(true)), "the next loss may be an election");
}

/// The replica of a follower on which a node is settled in this role, by a certificate of this serial.
fn settled_on_follower(role: Role, serial: &str) -> Arc<Replica> {
    let mut tables = with_node(role);
    let mut node = NodeRecord::clone(&tables.nodes[&id()]);
    let (granted, not_after, state) = (Some(node.granted), WallTime(1), CertificateState::Issued);
    node.certificate = Some(CertificateRecord { role, serial: serial.to_owned(), granted, not_after, state });
    node.role = role;
    tables.nodes.insert(node.id, Arc::new(node));
    if role == Role::Manager {
        let member = Member { node: id(), raft_id: RaftId(4), addr: String::new(), voter: true };
        tables.members.insert(member.raft_id, member);
    }
    assert!(tables.is_settled(id()));
    on_follower(tables)
}

fn on_follower(tables: Tables) -> Arc<Replica> {
    Arc::new(Replica {
        tables,
        raft: RaftStatus { leader_node: Some(NodeId::from_entropy(2)), ..RaftStatus::default() },
    })
}

#[tokio::test(start_paused = true)]
async fn follower_sees_the_end_of_a_role_change_itself() {
    let published = watch::Sender::new(settled_on_follower(Role::Worker, "a"));
    let answering = Arc::new(AtomicBool::new(true));
    let leader = Arc::clone(&answering);
    let call: crate::PeerCalls = Arc::new(move |_, _, _| {
        let answering = leader.load(Ordering::Relaxed);
        Box::pin(async move { if answering { Ok(b"{}".to_vec()) } else { std::future::pending().await } })
    });
    let follower = runtime(published.subscribe(), unreachable_actor());
    let follower = ManagerPorts { call, ..Arc::into_inner(follower).unwrap() };
    let in_force = watch::Sender::new(Some(Arc::new(follower)));
    let service = service(in_force.subscribe());
    let answer = async |seen| {
        let call = ApiCall { id: 0, request_id: RequestId(0), timeout_ms: 60_000, request: watch(seen) };
        let text = service.answer(Principal::Operator, call).await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    // Settled as a worker: that may be the state before the request, so the leader is asked.
    let first = answer(0).await;
    assert_eq!(first["node"], serde_json::json!({}), "the leader's");
    answering.store(false, Ordering::Relaxed);

    let began = Instant::now();
    let changes = async {
        for (ms, replica) in
            [(10, on_follower(with_node(Role::Manager))), (20, settled_on_follower(Role::Manager, "b"))]
        {
            sleep(Duration::from_millis(ms)).await;
            published.send_replace(replica);
        }
    };
    let (ended, ()) = tokio::join!(answer(first["seen"].as_u64().unwrap()), changes);
    assert_eq!(began.elapsed(), Duration::from_millis(30), "the leader has not answered");
    let shown = (&ended["node"]["membership"], &ended["node"]["stale"]);
    assert_eq!(shown, (&"voter".into(), &true.into()), "{ended}");

    // A caller that has seen it already, and still asks, needs the leader's answer.
    answering.store(true, Ordering::Relaxed);
    let again = answer(ended["seen"].as_u64().unwrap()).await;
    assert_eq!((&again["node"], began.elapsed()), (&serde_json::json!({}), Duration::from_millis(280)));
}
