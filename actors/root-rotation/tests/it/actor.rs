//! The actor itself under a real supervisor, with a stand-in for the Raft member: a whole rotation, crashed at each step.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Address, Fuse, Spec};
use muster_messages::protocol::{Applied, ProposeError, RaftMemberMsg, RootRotationMsg, RootsChange};
use muster_messages::*;
use muster_root_rotation::{Config, Msg, RootRotationShell};
use muster_testkit::{ActorHarness, Probe, at_every_point, insisting_until_known};
use tokio::sync::watch;

use crate::world::{World, id};

const PATH: &str = "node/root-rotation";

/// A leader around a rotation that crashes at the fuse's point, or before, during or after a proposal of the Raft member.
struct Leader {
    harness: ActorHarness,
    address: Address<Msg>,
    raft: Probe<RaftMemberMsg>,
    tables: Tables,
    publish: watch::Sender<Arc<Replica>>,
    fuse: Fuse,
}

fn replica_of(tables: &Tables) -> Arc<Replica> {
    Arc::new(Replica { tables: tables.clone(), raft: RaftStatus::default() })
}

impl Leader {
    async fn new(fuse: Fuse) -> Self {
        let tables = World::new(1, 2).log;
        let (publish, replica) = watch::channel(replica_of(&tables));
        let mut harness = ActorHarness::start().await;
        let raft = harness.probe("raft-member");
        let (address, to_raft) = (Address::<Msg>::new(64), raft.recipient());
        let config = Config { retire_after: Duration::ZERO, ..Config::default() };
        harness.start_actor(Spec::actor("root-rotation", address.clone(), move || {
            Ok(RootRotationShell::new(id(1), config.clone(), None, to_raft.clone(), replica.clone()))
        }));
        harness.healthy(PATH, 1).await;
        harness.crash_at(PATH, &fuse);
        Self { harness, address, raft, tables, publish, fuse }
    }

    /// Applies proposals until the task has ended. The replica follows the answer: the hardest order for the actor.
    async fn until(&mut self, ended: impl Fn() -> bool) {
        while !ended() {
            let asked = tokio::time::timeout(Duration::from_millis(5), self.raft.next("a proposal")).await;
            let Ok(RaftMemberMsg::Propose { command, reply, .. }) = asked else { continue };
            self.harness.point(PATH, &self.fuse);
            let revision = self.tables.revision.next();
            let result = muster_store::apply(&mut self.tables, revision, &command);
            self.harness.point(PATH, &self.fuse);
            let _gone = reply.send(result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
            self.renew_those_that_were_asked();
            self.publish.send_replace(replica_of(&self.tables));
            self.harness.point(PATH, &self.fuse);
        }
    }

    fn renew_those_that_were_asked(&mut self) {
        let asked = |node: &&Arc<NodeRecord>| {
            node.certificate.as_ref().is_some_and(|certificate| certificate.state == CertificateState::Rotate)
        };
        let asked: Vec<NodeId> = self.tables.nodes.values().filter(asked).map(|node| node.id).collect();
        for node in asked {
            let record = self.tables.nodes[&node].clone();
            let newest = self.tables.certificates[&node].current.clone().unwrap();
            let issuer = self.tables.authorities.active().map(|(id, _)| id);
            let certificate = Box::new(IssuedCertificate {
                serial: format!("{}+", newest.serial),
                granted: Some(record.granted),
                issuer,
                ..newest.clone()
            });
            let change = Change::IssueCertificate { node, certificate, held: None, replaces: Some(newest.serial) };
            let command = Command::idempotent(WallTime(0), Principal::Node(node), "renewed").change(change);
            let revision = self.tables.revision.next();
            muster_store::apply(&mut self.tables, revision, &command).unwrap();
        }
    }
}

/// An operator rotates and the nodes acknowledge, each until it is answered.
async fn roots_are_rotated(fuse: Fuse) {
    let mut leader = Leader::new(fuse).await;
    let (address, mut replica) = (leader.address.clone(), leader.publish.subscribe());
    let rotation = tokio::spawn(async move {
        let rotate = || RootsChange::Rotate { automatic: true, compromised: false };
        let by = || Principal::Operator;
        let make = |reply| RootRotationMsg::ChangeRoots { change: rotate(), by: by(), request: RequestId(9), reply };
        let first = insisting_until_known(&address, make).await;
        assert_eq!(insisting_until_known(&address, make).await.root, first.root, "the same request is the same root");
        let generation =
            replica.wait_for(|r| r.tables.revision >= first.revision).await.unwrap().tables.authorities.generation;
        for node in [id(101), id(1), id(102)] {
            insisting_until_known(&address, |reply| RootRotationMsg::TrustRoots { node, generation, reply }).await;
        }
        let retired = |r: &Arc<Replica>| r.tables.authorities.in_state(AuthorityState::Retired).is_some();
        replica.wait_for(|r| retired(r)).await.unwrap();
        first.root
    });
    leader.until(|| rotation.is_finished()).await;
    let root = rotation.await.unwrap();
    assert_eq!(leader.tables.authorities.active().map(|(id, _)| id), root);
    assert_eq!(leader.tables.authorities.roots.len(), 2, "one root was made");
    leader.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn rotation_ends_wherever_the_actor_crashes() {
    let points = at_every_point(roots_are_rotated).await;
    assert!(points > 30, "there were {points} crash points");
}
