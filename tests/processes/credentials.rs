//! What a certificate opens, and that it opens nothing once it is superseded or revoked, even before it expires.

use std::sync::Arc;

use muster_gateway::Dialer;
use muster_messages::RefusalReason;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_pki::IdentityStore;
use tokio::sync::watch;

use crate::harness::{World, eventually, eventually_so};

/// The current content of a node's data directory, as a copy would contain it.
fn stolen(world: &mut World, name: &str) -> NodeCredentials {
    let store = IdentityStore::open(&world.node(name).folder).expect("the directory is a node's");
    store.load_credentials().expect("readable").expect("the node has an identity")
}

/// Connects to a node's port until it is greeted; returns the reason of the refusal, or `None` if admitted. A connection that loses
/// its right before its greeting is disconnected without one.
fn connect_as(world: &mut World, credentials: &NodeCredentials, at: &str, service: Service) -> Option<RefusalReason> {
    let dialer = Dialer::new(watch::Sender::new(Arc::new(credentials.clone())).subscribe());
    let address = world.node(at).listen.to_string();
    eventually(&format!("{at} answers with a greeting"), || {
        match world.wait_for(dialer.dial(&address, service, None)) {
            Ok(_) => Some(None),
            Err(error) => error.reason().map(Some),
        }
    })
}

#[test]
#[ignore = "full tier"]
fn worker_certificate_opens_session_but_not_mesh() {
    let mut world = World::with(1, 1);
    let worker = stolen(&mut world, "n2");
    assert_eq!(connect_as(&mut world, &worker, "n1", Service::Agent), None);
    assert_eq!(connect_as(&mut world, &worker, "n1", Service::Api), None);
    assert!(connect_as(&mut world, &worker, "n1", Service::Mesh).is_some());
    assert_eq!(connect_as(&mut world, &worker, "n2", Service::Mesh), Some(RefusalReason::NotAManager));
}

#[test]
#[ignore = "full tier"]
fn demoted_manager_certificate_opens_no_mesh() {
    let mut world = World::with(3, 1);
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
    let old = stolen(&mut world, "n4");
    // A follower admits it once it has applied the grant.
    eventually_so("n1 admits it while it is a manager", || connect_as(&mut world, &old, "n1", Service::Mesh).is_none());
    world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
    for name in ["n1", "n2", "n3"] {
        eventually_so("every manager refuses it", || {
            connect_as(&mut world, &old, name, Service::Mesh) == Some(RefusalReason::Demoted)
        });
    }
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
}

#[test]
#[ignore = "full tier"]
fn removed_node_certificate_is_rejected_everywhere() {
    let mut world = World::with(3, 1);
    let old = stolen(&mut world, "n4");
    world.muster(&["node", "rm", "n4", "--force"]).ended(0);
    for name in ["n1", "n2", "n3"] {
        for service in [Service::Agent, Service::Api, Service::Mesh] {
            eventually_so("every manager refuses it on every service", || {
                connect_as(&mut world, &old, name, service) == Some(RefusalReason::Blocked)
            });
        }
    }
}
