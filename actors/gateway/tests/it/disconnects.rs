//! Live connections end when their principal loses the right, and only those.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use muster_gateway::{Connection, Dialed, Framed, GatewayConfig, Msg};
use muster_messages::protocol::{GatewayMsg, NodeCredentials, Service};
use muster_messages::{CrashHow, RefusalReason, Replica, Role, UserKind};

/// Both ends of a connection in use.
struct Live {
    client: Dialed,
    server: Connection,
}

impl Live {
    async fn open(gate: &mut Gate, who: &Arc<NodeCredentials>, service: Service) -> Self {
        let client = gate.dial(who, service).await.unwrap();
        let server = gate.received(service).await;
        let mut live = Self { client, server };
        live.works().await;
        live
    }
    async fn works(&mut self) {
        self.client.stream.send(&7u32).await.unwrap();
        let mut served = Framed::new(&mut self.server.stream);
        assert_eq!(served.recv::<u32>().await.unwrap(), Some(7));
    }
    /// A service that ignores the switch is disconnected as well, and the client notices.
    async fn ends(mut self, reason: RefusalReason) {
        let mut served = Framed::new(&mut self.server.stream);
        let at_service = tokio::time::timeout(WAIT_LIMIT, served.recv::<u32>()).await.expect("disconnected in time");
        assert!(matches!(at_service, Ok(None)), "{at_service:?}");
        assert!(served.send(&7u32).await.is_err());
        assert_eq!(self.server.kill.disconnect_reason(), Some(reason));
        drop(self.server);
        let at_client = tokio::time::timeout(WAIT_LIMIT, self.client.stream.recv::<u32>())
            .await
            .expect("the client notices in time");
        assert!(!matches!(at_client, Ok(Some(_))), "{at_client:?}");
    }
}

/// Node 2 is a manager, node 3 a worker.
fn three_nodes() -> Replica {
    let replica = with_node(replica_at(10), 1, Role::Manager, 1);
    with_node(with_node(replica, 2, Role::Manager, 5), 3, Role::Worker, 6)
}

#[tokio::test]
async fn disconnect_ends_named_services_of_one_principal() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), three_nodes()).await;
    let (manager, worker) = (world.node(2, Role::Manager, 5), world.node(3, Role::Worker, 6));
    let mesh = Live::open(&mut gate, &manager, Service::Mesh).await;
    let mut agent = Live::open(&mut gate, &manager, Service::Agent).await;
    let mut other = Live::open(&mut gate, &worker, Service::Agent).await;
    let cut = |services| GatewayMsg::Cut {
        principal: manager.identity.principal(),
        services,
        reason: RefusalReason::Demoted,
    };
    gate.gateway.tell(cut(vec![Service::Mesh]).into()).unwrap();
    mesh.ends(RefusalReason::Demoted).await;
    agent.works().await;
    gate.gateway.tell(cut(Vec::new()).into()).unwrap();
    agent.ends(RefusalReason::Demoted).await;
    other.works().await;
    eventually("both are counted", || gate.port.metrics().cut[&RefusalReason::Demoted] == 2).await;
    eventually("both are closed", || gate.port.metrics().identified == 1).await;
    gate.finish().await;
}

#[tokio::test]
async fn applied_block_ends_live_connections() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), three_nodes()).await;
    let worker = world.node(3, Role::Worker, 6);
    let agent = Live::open(&mut gate, &worker, Service::Agent).await;
    let api = Live::open(&mut gate, &worker, Service::Api).await;
    let mut removed = with_block(three_nodes(), 3);
    removed.tables.nodes.remove(&id(3));
    removed.tables.revision = removed.tables.revision.next();
    gate.publish(removed);
    agent.ends(RefusalReason::Blocked).await;
    api.ends(RefusalReason::Blocked).await;
    let again = gate.dial(&worker, Service::Agent).await.unwrap_err();
    assert_eq!(again.reason(), Some(RefusalReason::Blocked));
    gate.finish().await;
}

#[tokio::test]
async fn demotion_ends_only_the_mesh_session() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), three_nodes()).await;
    let manager = world.node(2, Role::Manager, 5);
    let mesh = Live::open(&mut gate, &manager, Service::Mesh).await;
    let mut agent = Live::open(&mut gate, &manager, Service::Agent).await;
    let mut demoted = with_node(three_nodes(), 2, Role::Worker, 11);
    demoted.tables.revision = demoted.tables.revision.next();
    gate.publish(demoted);
    mesh.ends(RefusalReason::Demoted).await;
    agent.works().await;
    gate.finish().await;
}

#[tokio::test]
async fn manager_on_certificate_ends_when_replica_catches_up() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), Replica::default()).await;
    let demoted_since = world.node(2, Role::Manager, 5);
    let mesh = Live::open(&mut gate, &demoted_since, Service::Mesh).await;
    gate.publish(with_node(replica_at(4), 2, Role::Worker, 2)); // still too old
    gate.publish(with_node(replica_at(20), 2, Role::Worker, 15));
    mesh.ends(RefusalReason::Demoted).await;
    gate.finish().await;
}

#[tokio::test]
async fn revoked_user_is_disconnected() {
    let world = World::new(1);
    let user = world.user("ann", UserKind::User);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), with_user(replica_at(10), &user)).await;
    let api = Live::open(&mut gate, &user, Service::Api).await;
    gate.publish(replica_at(11));
    api.ends(RefusalReason::Unauthenticated).await;
    gate.finish().await;
}

#[tokio::test]
async fn log_replay_ends_no_connection() {
    let world = World::new(1);
    let user = world.user("ann", UserKind::User);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), with_user(replica_at(10), &user)).await;
    let mut api = Live::open(&mut gate, &user, Service::Api).await;
    for revision in 0..10 {
        gate.publish(replica_at(revision));
        gate.gateway.tell(Msg::ReplicaChanged).unwrap();
        eventually("the replica was handled", || gate.gateway.depth() == 0).await;
        api.works().await;
    }
    gate.finish().await;
}

#[tokio::test]
async fn a_connection_ends_with_its_certificate() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), three_nodes()).await;
    // If the machine is too busy to use one while it is valid, the next one is valid for longer.
    let mut left = Duration::from_secs(3);
    let agent = loop {
        let brief = world.node_until(3, Role::Worker, 6, left);
        if let Ok(client) = gate.dial(&brief, Service::Agent).await {
            break Live { client, server: gate.received(Service::Agent).await };
        }
        left *= 2;
        assert!(left < WAIT_LIMIT, "a valid certificate is refused");
    };
    agent.ends(RefusalReason::Unauthenticated).await;
    eventually("the expiry is counted", || gate.port.metrics().expired > 0).await;
    gate.finish().await;
}

#[tokio::test]
async fn restarted_gateway_keeps_listener_and_can_disconnect() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, GatewayConfig::default(), three_nodes()).await;
    let worker = world.node(3, Role::Worker, 6);
    let principal = worker.identity.principal();
    let cut = |services, reason| GatewayMsg::Cut { principal: principal.clone(), services, reason };
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let mut before = Live::open(&mut gate, &worker, Service::Agent).await;
        gate.harness.crash(PATH, how);
        gate.harness.healthy(PATH, incarnation).await;
        gate.gateway.tell(cut(vec![Service::Mesh], RefusalReason::Demoted).into()).unwrap();
        before.works().await;
        let mut after = Live::open(&mut gate, &worker, Service::Api).await;
        after.works().await;
        gate.gateway.tell(cut(Vec::new(), RefusalReason::Removed).into()).unwrap();
        before.ends(RefusalReason::Removed).await;
        after.ends(RefusalReason::Removed).await;
    }
    gate.finish().await;
}
