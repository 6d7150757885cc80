//! Admission over real sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use muster_gateway::{DialError, Dialer, Framed, GatewayConfig};
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{Greeting, JoinFrame, Refusal};
use muster_messages::{RefusalReason, Replica, Role, UserKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const NATIVE_SERVICES: [Service; 3] = [Service::Mesh, Service::Agent, Service::Api];

fn quick() -> GatewayConfig {
    GatewayConfig { catch_up: Duration::from_millis(50), ..GatewayConfig::default() }
}

fn reason<T: std::fmt::Debug>(dialed: Result<T, DialError>) -> Option<RefusalReason> {
    match dialed {
        Ok(_) => None,
        Err(error) => Some(error.reason().unwrap_or_else(|| panic!("not a refusal: {error:?}"))),
    }
}

#[tokio::test]
async fn each_identity_reaches_its_services() {
    use RefusalReason as R;
    let world = World::new(1);
    let (manager, worker) = (world.node(2, Role::Manager, 5), world.node(3, Role::Worker, 6));
    let (demoted, removed, blocked) =
        (world.node(4, Role::Manager, 5), world.node(5, Role::Worker, 5), world.node(6, Role::Worker, 5));
    let (user, revoked) = (world.user("ann", UserKind::User), world.user("bob", UserKind::User));
    let (admin, reader) = (world.user("root", UserKind::Operator), world.user("eye", UserKind::ReadOnly));
    let mut replica = replica_at(10);
    replica = with_node(with_node(replica, 2, Role::Manager, 5), 3, Role::Worker, 6);
    replica = with_block(with_node(replica, 4, Role::Worker, 9), 6);
    replica = with_user(with_user(with_user(replica, &user), &admin), &reader);
    let mut gate = Gate::manager(&world, quick(), replica).await;

    // The refusals by the mesh, the agent session, the API.
    type Row<'a> = (&'a str, &'a Arc<NodeCredentials>, [Option<R>; 3]);
    let expected: [Row<'_>; 9] = [
        ("manager", &manager, [None, None, None]),
        ("worker", &worker, [Some(R::Forbidden), None, None]),
        ("demoted", &demoted, [Some(R::Demoted), None, None]),
        ("removed", &removed, [Some(R::Forbidden), Some(R::Removed), Some(R::Removed)]),
        ("blocked", &blocked, [Some(R::Blocked), Some(R::Blocked), Some(R::Blocked)]),
        ("user", &user, [Some(R::Forbidden), Some(R::Forbidden), None]),
        ("operator", &admin, [Some(R::Forbidden), Some(R::Forbidden), None]),
        ("read-only operator", &reader, [Some(R::Forbidden), Some(R::Forbidden), None]),
        ("revoked", &revoked, [Some(R::Forbidden), Some(R::Forbidden), Some(R::Unauthenticated)]),
    ];
    for (who, credentials, wanted) in expected {
        for (service, wanted) in NATIVE_SERVICES.into_iter().zip(wanted) {
            let dialed = gate.dial(credentials, service).await;
            if let Ok(dialed) = &dialed {
                assert_eq!((dialed.node, dialed.identity.node()), (id(1), Some((id(1), Role::Manager))));
                let connection = gate.received(service).await;
                assert_eq!(connection.identity, Some(world.issued(credentials)));
            }
            assert_eq!(reason(dialed), wanted, "{who} at {service:?}");
        }
    }
    let silent_client = Dialer::anonymous(&world.root.cert_pem);
    for service in NATIVE_SERVICES {
        assert_eq!(reason(silent_client.dial(&gate.addr, service, None).await), Some(R::Unauthenticated));
    }
    let metrics = gate.port.metrics();
    assert_eq!((metrics.refused[&RefusalReason::Blocked], metrics.refused[&RefusalReason::Demoted]), (3, 1));
    gate.finish().await;
}

/// SPIFFE-3: also of services that ask for no certificate.
#[tokio::test]
async fn workload_is_forbidden_on_every_protocol() {
    let world = World::new(1);
    let workload = world.workload("shop/web");
    let mut gate = Gate::manager(&world, quick(), with_node(replica_at(10), 2, Role::Manager, 5)).await;
    for service in [Service::Mesh, Service::Agent, Service::Join, Service::Api] {
        assert_eq!(reason(gate.dial(&workload, service).await), Some(RefusalReason::Forbidden), "{service:?}");
    }
    // HTTP answers with a status: the service gets the refusal.
    let _open = gate.dial(&workload, Service::Http).await.unwrap();
    let refused = gate.received(Service::Http).await;
    assert_eq!(refused.refused.map(|r| r.reason), Some(RefusalReason::Forbidden));
    assert_eq!(gate.port.metrics().refused[&RefusalReason::Forbidden], 5);
    gate.finish().await;
}

#[tokio::test]
async fn frame_before_the_greeting_is_read_after_it() {
    let world = World::new(1);
    let (manager, blocked) = (world.node(2, Role::Manager, 5), world.node(6, Role::Manager, 5));
    let replica = with_block(with_node(replica_at(10), 2, Role::Manager, 5), 6);
    let mut gate = Gate::manager(&world, quick(), replica).await;
    let first = "x".repeat(20_000);
    let dial = |who| {
        let (dialer, addr, first) = (dialer(who), gate.addr.clone(), first.clone());
        async move { dialer.dial_with(&addr, Service::Mesh, None, Some(&first)).await }
    };
    assert_eq!(reason(dial(&blocked).await), Some(RefusalReason::Blocked));
    let _open = dial(&manager).await.unwrap();
    let connection = gate.received(Service::Mesh).await;
    assert_eq!(Framed::new(connection.stream).recv::<String>().await.unwrap(), Some(first));
    gate.finish().await;
}

/// A reset may overtake the refusal. The gateway therefore keeps reading until the dialer has read it and closes.
#[tokio::test]
async fn refused_dialers_later_writes_are_not_reset() {
    let world = World::new(1);
    let blocked = world.node(6, Role::Manager, 5);
    let gate = Gate::manager(&world, quick(), with_block(replica_at(10), 6)).await;
    let config = muster_pki::client_config(&world.root.cert_pem, Some(&blocked), Service::Mesh.alpn()).unwrap();
    let tcp = TcpStream::connect(&gate.addr).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from(muster_pki::MANAGER_NAME).unwrap();
    let mut client = Framed::new(tokio_rustls::TlsConnector::from(config).connect(name, tcp).await.unwrap());
    client.send(&"before".to_owned()).await.unwrap();
    eventually("it is refused", || gate.port.metrics().refused.contains_key(&RefusalReason::Blocked)).await;
    for _ in 0..3 {
        client.send(&"x".repeat(5_000)).await.expect("the gateway still reads");
    }
    let greeting = client.recv::<Greeting>().await.unwrap();
    assert!(matches!(&greeting, Some(Greeting::Refused(no)) if no.reason == RefusalReason::Blocked), "{greeting:?}");
    let mut open = client.into_inner();
    open.shutdown().await.expect("the gateway still reads");
    eventually("the gateway closes its side", || gate.port.metrics().identified == 0).await;
    let error = open.get_ref().0.take_error().unwrap();
    assert!(error.is_none(), "reset: {error:?}");
    gate.finish().await;
}

#[tokio::test]
async fn http_service_gets_refusals_and_first_bytes() {
    let world = World::new(1);
    let (worker, blocked) = (world.node(3, Role::Worker, 6), world.node(6, Role::Worker, 5));
    let replica = with_block(with_node(replica_at(10), 3, Role::Worker, 6), 6);
    let mut gate = Gate::manager(&world, quick(), replica).await;

    let _open = gate.dial(&worker, Service::Http).await.unwrap();
    let known = gate.received(Service::Http).await;
    assert_eq!((known.identity, known.refused), (Some(world.issued(&worker)), None));

    let _open = gate.dial(&blocked, Service::Http).await.unwrap();
    let refused = gate.received(Service::Http).await;
    assert_eq!(refused.refused.map(|r| r.reason), Some(RefusalReason::Blocked));
    assert_eq!(refused.identity, Some(world.issued(&blocked)));
    // Neither a disconnect by principal nor a newer replica may precede the answer.
    gate.port.cut(&blocked.identity.principal(), &[], RefusalReason::Blocked);
    assert_eq!(refused.kill.disconnect_reason(), None);

    let dialed = Dialer::anonymous(&world.root.cert_pem).dial(&gate.addr, Service::Http, None).await.unwrap();
    let mut open = dialed.stream.into_inner();
    open.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    open.flush().await.unwrap();
    let mut silent_client = gate.received(Service::Http).await;
    assert_eq!((&silent_client.identity, silent_client.alpn.as_deref()), (&None, Some(&b"http/1.1"[..])));
    let mut request = vec![0; 18];
    silent_client.stream.read_exact(&mut request).await.unwrap();
    assert_eq!(request, b"GET / HTTP/1.1\r\n\r\n");
    gate.finish().await;
}

#[tokio::test]
async fn worker_names_the_managers_in_refusals() {
    let world = World::new(1);
    let mut gate = Gate::worker(&world).await;
    gate.managers.set(vec!["10.0.0.9:4400".to_owned()]);
    gate.managers.set(Vec::new());
    let other = world.node(3, Role::Worker, 6);
    for service in [Service::Mesh, Service::Agent, Service::Join] {
        let error = gate.dial(&other, service).await.unwrap_err();
        let refusal = error.refusal().expect("a refusal");
        assert_eq!(refusal.reason, RefusalReason::NotAManager);
        assert_eq!(refusal.managers, ["10.0.0.9:4400"]);
    }
    // It forwards requests of unaware clients. Muster's own programs refuse: its answers are not a manager's.
    let error = gate.dial(&other, Service::Api).await.unwrap_err();
    assert!(matches!(error, DialError::WrongPeer { .. }), "{error:?}");
    assert_eq!(gate.received(Service::Api).await.identity, Some(world.issued(&other)));
    gate.finish().await;
}

#[tokio::test]
async fn lagging_manager_waits_for_its_replica() {
    let world = World::new(1);
    let patient = GatewayConfig { catch_up: WAIT_LIMIT, ..GatewayConfig::default() };
    let gate = Gate::manager(&world, patient, replica_at(9)).await;
    let promoted = world.node(2, Role::Manager, 10);
    let dialing = tokio::spawn({
        let (addr, dialer) = (gate.addr.clone(), dialer(&promoted));
        async move { dialer.dial(&addr, Service::Mesh, Some(id(1))).await.map(|d| d.node) }
    });
    eventually("the decision waits", || gate.port.metrics().caught_up == 1).await;
    gate.publish(with_node(replica_at(10), 2, Role::Manager, 10));
    assert_eq!(dialing.await.unwrap().unwrap(), id(1));
    assert_eq!(gate.port.metrics().on_certificate, 0);
    gate.finish().await;
}

/// Without a leader no missing entry can arrive. With one it waits, then redirects the clients.
#[tokio::test]
async fn stale_leaderless_replica_accepts_mesh_and_agent() {
    let world = World::new(1);
    let led = with_node(replica_at(9), 1, Role::Manager, 1);
    let mut leaderless = led.clone();
    leaderless.raft.leader = None;
    let gate = Gate::manager(&world, quick(), leaderless).await;
    let promoted = world.node(2, Role::Manager, 10);
    assert_eq!(reason(gate.dial(&promoted, Service::Mesh).await), None);
    assert_eq!(reason(gate.dial(&promoted, Service::Agent).await), None);
    eventually("both are counted", || gate.port.metrics().on_certificate == 2).await;
    gate.publish(led);
    for service in [Service::Mesh, Service::Agent, Service::Api] {
        let error = gate.dial(&promoted, service).await.unwrap_err();
        let refusal = error.refusal().expect("a refusal");
        assert_eq!(refusal.reason, RefusalReason::NotKnownHereYet, "{service:?}");
        assert_eq!(refusal.managers, ["10.0.0.1:4400"], "known from the replica");
        assert!(refusal.retry_after_ms.is_some());
    }
    assert_eq!(gate.port.metrics().on_certificate, 2);
    gate.finish().await;
}

#[tokio::test]
async fn empty_replica_accepts_dial_back_without_waiting() {
    let world = World::new(1);
    let patient = GatewayConfig { catch_up: WAIT_LIMIT * 100, ..GatewayConfig::default() };
    let gate = Gate::manager(&world, patient, Replica::default()).await;
    let before = Instant::now();
    assert_eq!(reason(gate.dial(&world.node(2, Role::Manager, 500), Service::Mesh).await), None);
    assert!(before.elapsed() < WAIT_LIMIT);
    assert_eq!(gate.port.metrics().caught_up, 0);
    gate.finish().await;
}

#[tokio::test]
async fn full_or_starting_service_is_reported() {
    let world = World::new(1);
    let replica = with_node(replica_at(10), 3, Role::Worker, 6);
    let mut gate = Gate::manager(&world, quick(), replica).await;
    gate.serve(Service::Agent, 1);
    let worker = world.node(3, Role::Worker, 6);
    let _first = gate.dial(&worker, Service::Agent).await.unwrap();
    let full = reason(gate.dial(&worker, Service::Agent).await);
    assert_eq!(full, Some(RefusalReason::TooManyRequests));
    gate.inboxes.remove(&Service::Agent);
    let gone = reason(gate.dial(&worker, Service::Agent).await);
    assert_eq!(gone, Some(RefusalReason::NotKnownHereYet));
    gate.finish().await;
}

#[tokio::test]
async fn excess_connections_get_retry_after_and_others_pass() {
    let world = World::new(1);
    let (worker, manager) = (world.node(3, Role::Worker, 6), world.node(2, Role::Manager, 5));
    let others = [4, 5, 6].map(|n| world.node(n, Role::Worker, 5));
    let mut replica = with_node(with_node(replica_at(10), 3, Role::Worker, 6), 2, Role::Manager, 5);
    for n in [4, 5, 6] {
        replica = with_node(replica, n, Role::Worker, 5);
    }
    let few = GatewayConfig { max_per_principal: 2, max_identified: 3, ..quick() };
    let mut gate = Gate::manager(&world, few, replica).await;
    let mut held = Vec::new();
    for service in [Service::Agent, Service::Api, Service::Api] {
        held.push((gate.dial(&worker, service).await.unwrap(), gate.received(service).await));
    }
    let rejection = |refusal: Option<&Refusal>| refusal.map(|r| (r.reason, r.retry_after_ms));
    let later = Some((RefusalReason::TooManyRequests, Some(200)));
    assert_eq!(rejection(gate.dial(&worker, Service::Api).await.unwrap_err().refusal()), later);
    let _open = gate.dial(&worker, Service::Http).await.unwrap();
    let to_answer = gate.received(Service::Http).await;
    assert_eq!(rejection(to_answer.refused.as_ref()), later, "for the HTTP service to answer");

    for other in &others[..2] {
        held.push((gate.dial(other, Service::Agent).await.unwrap(), gate.received(Service::Agent).await));
    }
    let last = &others[2];
    assert_eq!(rejection(gate.dial(last, Service::Agent).await.unwrap_err().refusal()), later, "there are three");
    assert_eq!(gate.port.metrics().refused[&RefusalReason::TooManyRequests], 3);
    // CONN-5: the mesh has its own permits.
    held.push((gate.dial(&manager, Service::Mesh).await.unwrap(), gate.received(Service::Mesh).await));
    held.remove(0);
    eventually("an ended connection frees its permit", || gate.port.metrics().identified == 5).await;
    gate.dial(last, Service::Agent).await.unwrap();
    gate.finish().await;
}

#[tokio::test]
async fn renewed_credentials_are_served_to_the_next_connection() {
    let world = World::new(1);
    let gate = Gate::manager(&world, quick(), with_node(replica_at(10), 3, Role::Worker, 6)).await;
    let worker = world.node(3, Role::Worker, 6);
    let before = gate.dial(&worker, Service::Agent).await.unwrap();
    let renewed = world.node(1, Role::Manager, 1);
    gate.credentials.send_replace(renewed.clone());
    let after = gate.dial(&worker, Service::Agent).await.unwrap();
    assert_ne!(before.identity.serial, after.identity.serial);
    assert_eq!(after.identity.serial, renewed.identity.serial);
    gate.finish().await;
}

#[tokio::test]
async fn a_dialer_presents_renewed_credentials_on_its_next_dial() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, quick(), with_node(replica_at(10), 3, Role::Worker, 6)).await;
    let current = tokio::sync::watch::Sender::new(world.node(3, Role::Worker, 6));
    let dialer = Dialer::new(current.subscribe());
    for _ in 0..2 {
        let _open = dialer.dial(&gate.addr, Service::Agent, None).await.unwrap();
        let presented = gate.received(Service::Agent).await.identity.expect("a node");
        assert_eq!(presented.serial, current.borrow().identity.serial);
        current.send_replace(world.node(3, Role::Worker, 6));
    }
    gate.finish().await;
}

#[tokio::test]
async fn dialer_names_the_failed_stage() {
    let (world, other) = (World::new(1), World::new(2));
    let gate = Gate::manager(&world, quick(), with_node(replica_at(10), 3, Role::Worker, 6)).await;
    let worker = world.node(3, Role::Worker, 6);

    let wrong = dialer(&worker).dial(&gate.addr, Service::Agent, Some(id(8))).await;
    assert!(matches!(wrong, Err(DialError::WrongPeer { .. })), "{wrong:?}");

    let foreign = gate.dial(&other.node(3, Role::Worker, 6), Service::Agent).await;
    assert!(matches!(foreign, Err(DialError::Tls { .. })), "{foreign:?}");

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refused = dialer(&worker).dial(&closed, Service::Agent, None).await.unwrap_err();
    assert!(refused.is_refused(), "{refused:?}");

    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let timeouts = muster_gateway::DialTimeouts { tls: Duration::from_millis(50), ..Default::default() };
    let mute_addr = mute.local_addr().unwrap().to_string();
    let late = dialer(&worker).with_timeouts(timeouts).dial(&mute_addr, Service::Agent, None).await.unwrap_err();
    assert!(matches!(late, DialError::Timeout { stage: muster_gateway::Stage::Tls, .. }), "{late:?}");

    let user = world.user("ann", UserKind::User);
    let unreadable = dialer(&user).dial("not an address", Service::Api, None).await;
    assert!(matches!(unreadable, Err(DialError::Resolve { .. })), "{unreadable:?}");
    gate.finish().await;
}

#[tokio::test]
async fn joiner_reaches_the_join_service_of_an_unverified_server() {
    let world = World::new(1);
    let mut gate = Gate::manager(&world, quick(), replica_at(10)).await;
    let mut unverified = Dialer::dial_unverified(&gate.addr, Default::default()).await.unwrap();
    unverified.stream.send(&JoinFrame::GetRoot).await.unwrap();
    let connection = gate.received(Service::Join).await;
    let mut served = muster_gateway::Framed::new(connection.stream);
    assert_eq!(served.recv::<JoinFrame>().await.unwrap(), Some(JoinFrame::GetRoot));
    gate.finish().await;
}
