//! The blocklist as an actor, with probes in place of gateway and Raft member.

use std::sync::Arc;
use std::time::Duration;

use muster_blocklist::core::SWEEP_INTERVAL;
use muster_blocklist::{BlocklistShell, Msg};
use muster_kernel::{Address, Slot, Spec, Undeliverable};
use muster_messages::protocol::{Applied, GatewayMsg, ProposeError, RaftMemberMsg, Reply};
use muster_messages::*;
use muster_testkit::{ActorHarness, Probe};
use tokio::sync::watch;

const PATH: &str = "node/manager/blocklist";
/// Several sweeps.
const LONG: Duration = Duration::from_secs(600);

type Proposal = (Command, Reply<Result<Applied, ProposeError>>);

/// One manager's blocklist between its probes.
struct World {
    harness: ActorHarness,
    replica: watch::Sender<Arc<Replica>>,
    tables: Tables,
    leading: bool,
    gateway: Probe<GatewayMsg>,
    raft: Probe<RaftMemberMsg>,
}

impl World {
    async fn start() -> Self {
        let harness = ActorHarness::at("node/manager").await;
        let (replica, replicas) = watch::channel(Arc::default());
        let gateway = harness.probe("gateway").timeout(LONG);
        let raft = harness.probe("raft-member").timeout(LONG);
        let (to_gateway, to_raft, slot) = (gateway.recipient(), raft.recipient(), Slot::new());
        let address: Address<Msg> = Address::new(8);
        harness.start_actor(Spec::actor("blocklist", address, move || {
            Ok(BlocklistShell::new(replicas.clone(), to_gateway.clone(), to_raft.clone(), slot.clone()))
        }));
        Self { harness, replica, tables: Tables::default(), leading: false, gateway, raft }
    }

    fn publish(&self) {
        let raft = RaftStatus { leading: self.leading, ..RaftStatus::default() };
        self.replica.send_replace(Arc::new(Replica { tables: self.tables.clone(), raft }));
    }

    fn apply(&mut self, change: Change) -> Revision {
        let at = self.tables.revision.next();
        let command = Command::idempotent(WallTime(0), Principal::Operator, "test").change(change);
        muster_store::apply(&mut self.tables, at, &command).expect("the test writes valid changes");
        self.publish();
        at
    }

    fn block(&mut self, n: u8, expires_at: WallTime) {
        let node = NodeId::from_entropy(n.into());
        self.apply(Change::Block(Blocked { node, by: Principal::Operator, blocked_at: WallTime(0), expires_at }));
    }

    async fn cut(&mut self) -> (Principal, RefusalReason) {
        let GatewayMsg::Cut { principal, reason, .. } = self.gateway.next("a cut").await;
        (principal, reason)
    }

    async fn proposal(&mut self) -> Proposal {
        let pick = |msg| match msg {
            RaftMemberMsg::Propose { command, reply, .. } => Some((*command, reply)),
            _ => None,
        };
        self.raft.expect("a proposal", pick).await
    }

    /// Waits until the live tree shows this.
    async fn until(&self, holds: impl Fn(&ActorNode) -> bool) {
        self.harness.until(PATH, "as the test has it", holds).await;
    }

    /// Waits until the actor's own view shows this.
    async fn view(&self, holds: impl Fn(&serde_json::Value) -> bool) {
        self.until(|actor| holds(&actor.view)).await;
    }
}

fn blocked(n: u8) -> (Principal, RefusalReason) {
    (Principal::Node(NodeId::from_entropy(n.into())), RefusalReason::Blocked)
}

const NEVER: WallTime = WallTime(i64::MAX);

#[tokio::test(start_paused = true)]
async fn blocked_node_is_disconnected_and_counted() {
    let mut world = World::start().await;
    world.block(9, NEVER);
    assert_eq!(world.cut().await, blocked(9));
    world.block(8, NEVER);
    assert_eq!(world.cut().await, blocked(8));
    world.view(|view| view["entries"] == 2 && view["disconnects"] == 2 && view["pending_disconnects"] == 0).await;
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn disconnect_survives_a_full_gateway_and_a_crash() {
    let mut world = World::start().await;
    world.gateway.refuse(Undeliverable::Full);
    let revoked = User {
        name: Name::sanitized("ann"),
        kind: UserKind::User,
        namespaces: vec![],
        serial: "1".to_owned(),
        created_at: WallTime(0),
        not_after: NEVER,
        revision: Revision(0),
    };
    let written = world.apply(Change::PutUser(revoked.clone()));
    world.view(|view| view["revision"] == written.0).await;
    world.apply(Change::DeleteUser(revoked.name.clone()));
    world.view(|view| view["pending_disconnects"] == 1).await;
    world.harness.crash(PATH, CrashHow::Panic);
    world.until(|actor| actor.incarnation == 2 && actor.view["pending_disconnects"] == 1).await;
    world.gateway.accept();
    assert_eq!(world.cut().await, (Principal::User(revoked.name), RefusalReason::Unauthenticated));
    world.view(|view| view["pending_disconnects"] == 0).await;
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn leader_deletes_expired_blocks_by_timer() {
    let mut world = World::start().await;
    world.leading = true;
    world.block(9, WallTime(1));
    world.block(8, NEVER);
    // The first proposal stays unanswered: the next tick proposes again.
    let (first, reply) = world.proposal().await;
    drop(reply);
    let before = tokio::time::Instant::now();
    let (again, reply) = world.proposal().await;
    assert!(before.elapsed() <= 2 * SWEEP_INTERVAL);
    assert_eq!((&first.guards.len(), &first.changes), (&again.guards.len(), &again.changes));
    let at = world.tables.revision.next();
    muster_store::apply(&mut world.tables, at, &again).expect("its guards hold");
    world.publish();
    reply.send(Ok(Applied { revision: at })).expect("it waits for the answer");
    world.view(|view| view["sweeps"] == 1 && view["entries"] == 1).await;
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn its_view_names_the_next_expiry() {
    let mut world = World::start().await;
    world.block(9, WallTime(1_700_000_000_000));
    world.view(|view| view["next_expiry"] == "2023-11-14T22:13:20.000Z").await;
    let actor = world.harness.tree().inspect(PATH).await.expect("it runs");
    assert_eq!(actor.kind, "Blocklist");
    world.harness.finish().await;
}
