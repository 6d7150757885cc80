//! The dispatcher as an actor, alone: the test acts as every host of sessions, and the raft member is a
//! probe.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Address;
use muster_messages::protocol::{Applied, DispatcherMsg, ProposeError, RaftMemberMsg, Reply};
use muster_messages::wire::{SessionDigest, SessionFact};
use muster_messages::*;
use muster_sessions::{DispatcherConfig, DispatcherMailbox, DispatcherPorts, dispatcher_address, dispatcher_spec};
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT};
use tokio::sync::watch;

const PATH: &str = "node/dispatcher";

fn id(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

struct Stage {
    harness: ActorHarness,
    raft: Probe<RaftMemberMsg>,
    dispatcher: Address<DispatcherMailbox>,
    tables: Tables,
    publish: watch::Sender<Arc<Replica>>,
    doubts: watch::Receiver<Arc<NodeDoubts>>,
}

impl Stage {
    /// One node, with this as its recorded liveness.
    async fn set(liveness: Liveness) -> Self {
        let harness = ActorHarness::start().await;
        let raft = harness.probe("raft-member");
        let mut tables = Tables { revision: Revision(10), ..Tables::default() };
        let record =
            NodeRecord { liveness, ..NodeRecord::new(id(1), Name::sanitized("n1"), Role::Worker, WallTime(0)) };
        tables.nodes.insert(id(1), Arc::new(record));
        let (publish, replica) = watch::channel(Arc::default());
        let (doubts, seen) = watch::channel(Arc::default());
        let config = DispatcherConfig::default();
        let dispatcher = dispatcher_address(&config);
        let ports = DispatcherPorts { config, replica, raft: raft.recipient(), doubts: Arc::new(doubts) };
        let stage = Self { harness, raft, dispatcher, tables, publish, doubts: seen };
        stage.show();
        stage.harness.start_actor(dispatcher_spec(stage.dispatcher.clone(), ports));
        stage.harness.healthy(PATH, 1).await;
        stage
    }
    fn show(&self) {
        let raft = RaftStatus::default();
        self.publish.send_replace(Arc::new(Replica { tables: self.tables.clone(), raft }));
    }
    async fn digest(&self, sequence: u64, full: bool, liveness: Liveness) -> Result<(), ErrorCode> {
        let fact = SessionFact {
            node: id(1),
            liveness,
            since: WallTime(1),
            addr: "192.0.2.7:4400".to_owned(),
            name: Name::sanitized("n1"),
            release: "0.1.0".to_owned(),
            labels: Default::default(),
            serial: "aa".to_owned(),
            instance: 1,
            remote: "192.0.2.7:55555".to_owned(),
            turns: Vec::new(),
        };
        let digest = SessionDigest { sequence, full, sessions: vec![fact] };
        let make = |reply| DispatcherMsg::Digest { host: id(100), digest, reply }.into();
        self.dispatcher.ask(WAIT_LIMIT, make).await.unwrap().map_err(|refusal| refusal.code)
    }
    async fn proposal(&mut self) -> (Command, Reply<Result<Applied, ProposeError>>) {
        let pick = |msg| match msg {
            RaftMemberMsg::Propose { command, reply, .. } => Some((*command, reply)),
            _ => None,
        };
        self.raft.expect("a proposal", pick).await
    }
}

#[tokio::test(start_paused = true)]
async fn hosts_repeated_report_is_written_once() {
    let mut stage = Stage::set(Liveness::Down).await;
    assert_eq!(stage.digest(1, false, Liveness::Ready).await, Err(ErrorCode::Conflict), "no such changes are expected");
    assert_eq!(stage.digest(2, true, Liveness::Ready).await, Ok(()));
    let (lost, reply) = stage.proposal().await;
    assert!(lost.changes.contains(&Change::SetLiveness { node: id(1), liveness: Liveness::Ready }));
    // The raft member crashed with it: it is proposed again.
    drop(reply);
    let (command, reply) = stage.proposal().await;
    assert_eq!(command.changes, lost.changes);
    let revision = stage.tables.revision.next();
    muster_store::apply(&mut stage.tables, revision, &command).unwrap();
    reply.send(Ok(Applied { revision })).unwrap();
    stage.show();

    assert_eq!(stage.digest(2, true, Liveness::Ready).await, Ok(()), "repeated");
    assert_eq!(stage.digest(1, false, Liveness::Down).await, Ok(()), "late");
    stage.raft.expect_none(Duration::from_secs(5)).await;
    assert_eq!(stage.digest(3, false, Liveness::Down).await, Ok(()));
    let (command, _reply) = stage.proposal().await;
    assert!(command.changes.contains(&Change::SetLiveness { node: id(1), liveness: Liveness::Down }));
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_a_node_is_in_doubt_until_a_full_digest() {
    let mut stage = Stage::set(Liveness::Ready).await;
    for incarnation in 1..=2 {
        stage.doubts.wait_for(|doubts| doubts.unconfirmed.contains(&id(1))).await.unwrap();
        assert_eq!(stage.digest(7, false, Liveness::Ready).await, Err(ErrorCode::Conflict));
        assert_eq!(stage.digest(8, true, Liveness::Ready).await, Ok(()));
        stage.doubts.wait_for(|doubts| doubts.unconfirmed.is_empty()).await.unwrap();
        if incarnation == 1 {
            stage.harness.crash(PATH, CrashHow::Panic);
            stage.harness.healthy(PATH, 2).await;
        }
    }
    stage.harness.finish().await;
}
