//! The actor under a real supervisor, with stand-ins for the Raft member and the role manager.

use std::sync::Arc;
use std::time::Duration;

use muster_autopilot::core::Now;
use muster_autopilot::{AutopilotShell, Config, Msg, Ports};
use muster_kernel::{Address, Clock, Fuse, Recipient, Spec};
use muster_messages::protocol::{
    Applied, AutopilotMsg, ProposeError, RaftMemberMsg, RoleManagerMsg, RoleRequestAccepted,
};
use muster_messages::*;
use muster_testkit::{ActorHarness, Probe, at_every_point};
use tokio::sync::watch;

use crate::world::{MINUTE, World, add_voter, id, replica_of};

const PATH: &str = "node/autopilot";
/// Of the entries that this test applies.
const TERM: Term = Term(0);

/// The Raft member's. As everything here, by the runtime's paused clock.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Several times what the limits on the rate and the retries after a crash take.
const SETTLED_WITHIN: Duration = Duration::from_secs(30 * 60);

struct Leader {
    harness: ActorHarness,
    raft: Probe<RaftMemberMsg>,
    roles: Probe<RoleManagerMsg>,
    tables: Tables,
    publish: watch::Sender<Arc<Replica>>,
    fuse: Fuse,
    address: Recipient<AutopilotMsg>,
}

/// Node 1 leads, and the others acknowledge everything.
fn published(tables: &Tables) -> Arc<Replica> {
    replica_of(tables, id(1), |_| Duration::ZERO)
}

impl Leader {
    async fn new(fuse: Fuse) -> Self {
        let mut world = World::new(1, 2);
        world.declare(|policy| policy.stabilize_ms = 5_000);
        let tables = world.tables;
        let (publish, replica) = watch::channel(published(&tables));
        let mut harness = ActorHarness::start().await;
        let (raft, roles) = (harness.probe("raft-member"), harness.probe("role-manager"));
        let address = Address::<Msg>::new(64);
        let asked = address.recipient();
        let ports = Ports {
            raft: raft.recipient(),
            roles: roles.recipient(),
            replica,
            doubts: watch::channel(Arc::default()).1,
        };
        let leads_since = Now { at: Clock.now(), wall: WallTime(1_800_000_000_000) };
        harness.start_actor(Spec::actor("autopilot", address, move || {
            Ok(AutopilotShell::new(Config::default(), TERM, leads_since, ports.clone()))
        }));
        harness.healthy(PATH, 1).await;
        harness.crash_at(PATH, &fuse);
        Self { harness, raft, roles, tables, publish, fuse, address: asked }
    }

    fn apply(&mut self, command: &Command) -> Result<Applied, ProposeError> {
        let revision = self.tables.revision.next();
        let result = muster_store::apply(&mut self.tables, revision, command);
        result.map(|()| Applied { revision }).map_err(ProposeError::Refused)
    }

    /// Answers both until the cluster has three managers and nothing is under way.
    async fn until_settled(&mut self) {
        let limit = Clock.now() + SETTLED_WITHIN;
        while self.tables.members.len() < 3 || self.tables.autopilot.outstanding().is_some() {
            assert!(Clock.now() < limit, "not settled: {:?}", self.tables.autopilot.changes);
            tokio::select! {
                // As a leader does: acknowledgements that are not published again grow old.
                () = tokio::time::sleep(PUBLISH_INTERVAL) => {}
                asked = self.raft.next("a proposal") => {
                    let RaftMemberMsg::Propose { command, reply, .. } = asked else { panic!("not a proposal") };
                    self.harness.point(PATH, &self.fuse);
                    let answer = self.apply(&command);
                    self.harness.point(PATH, &self.fuse);
                    // The replica follows the answer: the hardest order for the actor.
                    let _gone = reply.send(answer);
                    self.harness.point(PATH, &self.fuse);
                }
                asked = self.roles.next("a request") => {
                    let RoleManagerMsg::SetRole { node, role, by, reply, .. } = asked else { panic!("not a role") };
                    assert_eq!(role, Role::Manager);
                    let mut command = Command::idempotent(WallTime(0), by, "promote");
                    for change in [Change::SetDesiredRole { node, role }, Change::GrantRole { node, role }] {
                        command = command.change(change);
                    }
                    self.harness.point(PATH, &self.fuse);
                    let done = self.apply(&command);
                    if self.tables.member_of(node).is_none() {
                        add_voter(&mut self.tables, node);
                    }
                    self.harness.point(PATH, &self.fuse);
                    let _gone = reply.send(Ok(RoleRequestAccepted { changed: done.is_ok() }));
                    self.harness.point(PATH, &self.fuse);
                }
            }
            self.publish.send_replace(published(&self.tables));
        }
    }
}

async fn two_workers_are_promoted(fuse: Fuse) {
    let mut leader = Leader::new(fuse).await;
    leader.until_settled().await;
    let promoted: Vec<NodeId> = leader
        .tables
        .autopilot
        .changes
        .iter()
        .filter(|change| change.outcome == AutopilotOutcome::Settled)
        .map(|change| change.node)
        .collect();
    assert_eq!(promoted, [id(2), id(3)], "each once: {:?}", leader.tables.autopilot.changes);
    leader.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn each_worker_is_promoted_once_wherever_it_crashes() {
    let points = at_every_point(two_workers_are_promoted).await;
    assert!(points > 10, "there were {points} crash points");
}

#[tokio::test(start_paused = true)]
async fn operator_sees_the_next_step_before_it_is_taken() {
    let mut leader = Leader::new(Fuse::unlit()).await;
    let state = |reply| AutopilotMsg::State { policy: None, reply };
    let view = leader.address.ask(Duration::from_secs(1), state).await.expect("it answers").expect("it knows");
    let next = (view.next.action, view.next.reason.map(|reason| reason.to_string()));
    assert_eq!(next, (None, Some("settling".to_owned())));
    leader.until_settled().await;
    let view = leader.address.ask(Duration::from_secs(1), state).await.expect("it answers").expect("it knows");
    assert_eq!((view.voters, view.history.len()), (3, 2));
    // It has nothing to do, so it is not passed the next replica. What it shows is computed from that one all the same: by the last one
    // that it was passed, no other manager answers any more. Shorter than the time of a promotion, for which it may still be woken.
    tokio::time::advance(MINUTE).await;
    leader.publish.send_replace(published(&leader.tables));
    let shown = leader.harness.tree().inspect(PATH).await.expect("it is in the tree").view;
    assert_eq!((&shown["answering"], &shown["declared"]), (&3.into(), &3.into()), "{shown}");
    leader.harness.finish().await;
}
