//! A cluster that has had two roots: real certificates over real sockets.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use muster_gateway::{Dialer, GatewayConfig, LocalReplica};
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::{
    Authority, AuthorityOrigin, AuthorityState, ClusterRecord, Incarnation, IssuedCertificate, NodeCertificates,
    RefusalReason, Replica, Revision, Role, RootId, UserKind, UserPin, WallTime,
};

const NATIVE: [Service; 3] = [Service::Mesh, Service::Agent, Service::Api];

fn root_id(world: &World) -> RootId {
    muster_pki::root_id_of_pem(&world.root.cert_pem).unwrap()
}

/// Manager 2's certificate of the old root is on record; the new root signs.
fn rotated(old: &World, new: &World, state: AuthorityState, recorded: &NodeCredentials) -> Replica {
    let mut replica = with_node(with_node(replica_at(10), 2, Role::Manager, 5), 1, Role::Manager, 1);
    let tables = &mut replica.tables;
    for (world, state, origin) in
        [(old, state, AuthorityOrigin::Founded), (new, AuthorityState::Active, AuthorityOrigin::Made)]
    {
        let authority = Authority { revision: Revision(1), ..Authority::new(&world.root.cert_pem, origin, state) };
        tables.authorities.roots.insert(root_id(world), Arc::new(authority));
    }
    tables.cluster = Some(Arc::new(cluster_of(new)));
    let issued = IssuedCertificate {
        serial: recorded.identity.serial.clone(),
        role: Role::Manager,
        granted: Some(Revision(5)),
        not_after: recorded.identity.not_after,
        pin: recorded.identity.pin,
        issuer: Some(root_id(old)),
    };
    let row = NodeCertificates { current: Some(issued), ..NodeCertificates::default() };
    tables.certificates.insert(id(2), Arc::new(row));
    replica
}

fn cluster_of(world: &World) -> ClusterRecord {
    ClusterRecord {
        id: world.cluster,
        name: "default".parse().unwrap(),
        incarnation: Incarnation(1),
        feature_level: 3,
        root_cert_pem: world.root.cert_pem.clone(),
        root_key_pem: world.root.key_pem.clone(),
        founded_at: WallTime(0),
        revision: Revision(1),
    }
}

async fn refusals(gate: &mut Gate, who: &Arc<NodeCredentials>) -> [Option<RefusalReason>; 3] {
    refusals_but(gate, who, 0).await
}

/// While so many other connections stay open.
async fn refusals_but(gate: &mut Gate, who: &Arc<NodeCredentials>, open: usize) -> [Option<RefusalReason>; 3] {
    let mut all = [None; 3];
    for (refusal, service) in all.iter_mut().zip(NATIVE) {
        match gate.dial(who, service).await {
            Ok(_open) => drop(gate.received(service).await),
            Err(error) => {
                *refusal = Some(error.reason().unwrap_or_else(|| panic!("not a refusal: {error:?}")));
            }
        }
    }
    eventually("no permit is taken", || gate.port.metrics().identified == open).await;
    all
}

/// The gateway's own certificate and bundle are of the new root only: it does not trust the old one, but knows it.
async fn gate_of(new: &World, replica: Replica) -> Gate {
    let quick = GatewayConfig { catch_up: Duration::from_millis(50), ..GatewayConfig::default() };
    Gate::manager(new, quick, replica).await
}

/// With its own bundle a client of the old root would not trust this gateway.
fn trusting(new: &World, credentials: &Arc<NodeCredentials>) -> Arc<NodeCredentials> {
    Arc::new(NodeCredentials { root_pem: new.root.cert_pem.clone(), ..(**credentials).clone() })
}

#[tokio::test]
async fn a_node_that_was_away_is_admitted_and_a_stolen_key_is_not() {
    const NO: Option<RefusalReason> = Some(RefusalReason::Unauthenticated);
    let (old, new) = (World::new(1), World::new(1));
    let away = trusting(&new, &old.node(2, Role::Manager, 5));
    // Signed with the old root's key: for the same node, with a future grant, for a user.
    let forged = trusting(&new, &old.node(2, Role::Manager, 5));
    let future = trusting(&new, &old.node(2, Role::Manager, 1 << 40));
    let user = trusting(&new, &old.user("ann", UserKind::User));
    let mut retired = rotated(&old, &new, AuthorityState::Retired, &away);
    retired = with_user(retired, &user);
    let recorded_user =
        UserPin { serial: user.identity.serial.clone(), pin: user.identity.pin.unwrap(), issuer: root_id(&old) };
    let mut gate = gate_of(&new, retired.clone()).await;
    for leader in ["another", "none", "this one"] {
        let mut replica = retired.clone();
        match leader {
            "none" => replica.raft.leader = None,
            "this one" => replica.raft.leading = true,
            _ => {}
        }
        replica.tables.user_pins.clear();
        gate.publish(replica.clone());
        assert_eq!(refusals(&mut gate, &away).await, [None; 3], "{leader}");
        assert_eq!(refusals(&mut gate, &forged).await, [NO; 3], "{leader}");
        assert_eq!(refusals(&mut gate, &future).await, [NO; 3], "{leader}");
        assert_eq!(refusals(&mut gate, &user).await[2], NO, "{leader}: its certificate is not on record");
        replica.tables.user_pins.insert("ann".parse().unwrap(), recorded_user.clone());
        gate.publish(replica);
        assert_eq!(refusals(&mut gate, &user).await[2], None, "{leader}");
    }
    gate.publish(rotated(&old, &new, AuthorityState::Revoked, &away));
    assert_eq!(refusals(&mut gate, &away).await, [NO, None, NO]);
    assert_eq!(refusals(&mut gate, &forged).await, [NO; 3]);
    gate.finish().await;
}

#[tokio::test]
async fn live_connections_follow_the_state_of_their_root() {
    let (old, new) = (World::new(1), World::new(1));
    let away = trusting(&new, &old.node(2, Role::Manager, 5));
    let forged = trusting(&new, &old.node(2, Role::Manager, 5));
    let mut retiring = rotated(&old, &new, AuthorityState::Retiring, &away);
    retiring.raft.leader = None;
    let mut gate = gate_of(&new, retiring.clone()).await;
    let mut served = Vec::new();
    for (who, service) in
        [(&away, Service::Mesh), (&away, Service::Agent), (&forged, Service::Mesh), (&forged, Service::Agent)]
    {
        let open = gate.dial(who, service).await.unwrap();
        served.push((open, gate.received(service).await));
    }
    let ended = |served: &[(_, muster_gateway::Connection)]| -> Vec<bool> {
        served.iter().map(|(_, connection)| connection.kill.disconnect_reason().is_some()).collect()
    };
    let issuer = served[0].1.identity.as_ref().and_then(|identity| identity.issuer);
    assert_eq!(issuer, Some(root_id(&old)));
    for (state, expected) in
        [(AuthorityState::Retired, [false, false, true, true]), (AuthorityState::Revoked, [true, false, true, true])]
    {
        let mut replica = rotated(&old, &new, state, &away);
        replica.raft.leader = None;
        replica.tables.revision = Revision(10 + state as u64);
        gate.publish(replica);
        eventually("the connections end", || ended(&served) == expected).await;
    }
    drop(served);
    gate.finish().await;
}

#[tokio::test]
async fn without_a_rotation_no_issuer_is_looked_for() {
    let (world, other) = (World::new(1), World::new(1));
    let mut replica = with_node(replica_at(10), 2, Role::Manager, 5);
    replica.tables.cluster = Some(Arc::new(ClusterRecord { feature_level: 2, ..cluster_of(&world) }));
    let mut gate = gate_of(&world, replica).await;
    let _open = gate.dial(&world.node(2, Role::Manager, 5), Service::Mesh).await.unwrap();
    assert_eq!(gate.received(Service::Mesh).await.identity.unwrap().issuer, None);
    let foreign = gate.dial(&trusting(&world, &other.node(2, Role::Manager, 5)), Service::Mesh).await.unwrap_err();
    assert_eq!(foreign.reason(), None, "the handshake fails: {foreign:?}");
    gate.finish().await;
}

/// A manager accepts connections before it knows the roots on record: those of a good root stay when it does.
#[tokio::test]
async fn connection_from_before_the_record_keeps_its_issuer() {
    let (old, new) = (World::new(1), World::new(1));
    let manager = new.node(2, Role::Manager, 5);
    let mut gate = gate_of(&new, replica_at(0)).await;
    let _open = gate.dial(&manager, Service::Mesh).await.unwrap();
    let served = gate.received(Service::Mesh).await;
    assert_eq!(served.identity.as_ref().unwrap().issuer, Some(root_id(&new)));
    let mut replica = rotated(&old, &new, AuthorityState::Revoked, &manager);
    let row = replica.tables.certificates.get_mut(&id(2)).map(Arc::make_mut).unwrap();
    row.current.as_mut().unwrap().issuer = Some(root_id(&new));
    gate.publish(replica);
    // Of a connection that began later and ends, it shows that the replica was judged.
    let forged = trusting(&new, &old.node(2, Role::Manager, 5));
    assert_eq!(refusals_but(&mut gate, &forged, 1).await, [Some(RefusalReason::Unauthenticated); 3]);
    assert_eq!(served.kill.disconnect_reason(), None);
    drop(served);
    gate.finish().await;
}

/// The mesh judges the managers that it dials, too.
#[tokio::test]
async fn a_dialer_with_a_replica_finds_the_issuer_of_the_server() {
    let (old, new) = (World::new(1), World::new(1));
    let away = old.node(2, Role::Manager, 5);
    let replica = rotated(&old, &new, AuthorityState::Retiring, &away);
    let gate = gate_of(&new, replica.clone()).await;
    let holder = LocalReplica::new();
    let current = tokio::sync::watch::Sender::new(trusting(&new, &away));
    let dialer = Dialer::new(current.subscribe()).with_replica(holder.clone());
    let issuer = async || dialer.dial(&gate.addr, Service::Mesh, Some(id(1))).await.unwrap().identity.issuer;
    assert_eq!(issuer().await, Some(root_id(&new)), "by its own bundle");
    let replica = tokio::sync::watch::Sender::new(Arc::new(replica));
    let _attached = holder.attach(replica.subscribe());
    assert_eq!(issuer().await, Some(root_id(&new)));
    gate.finish().await;
}
