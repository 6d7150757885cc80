//! What a certificate opens, and that it opens nothing once it is superseded or revoked, even before it expires.

use std::sync::Arc;

use muster_gateway::{DialError, Dialer};
use muster_messages::RefusalReason;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_pki::IdentityStore;
use tokio::sync::watch;

use crate::harness::{World, eventually_so};

/// The current content of a node's data directory, as a copy would contain it.
fn stolen(world: &mut World, name: &str) -> NodeCredentials {
    let store = IdentityStore::open(&world.node(name).folder).expect("the directory is a node's");
    store.load_credentials().expect("readable").expect("the node has an identity")
}

/// Connects to a node's port; returns the reason of the refusal, or `None` if admitted.
fn try_connect_as(
    world: &mut World,
    credentials: &NodeCredentials,
    at: &str,
    service: Service,
) -> Result<Option<RefusalReason>, DialError> {
    let dialer = Dialer::new(watch::Sender::new(Arc::new(credentials.clone())).subscribe());
    let address = world.node(at).listen.to_string();
    match world.wait_for(dialer.dial(&address, service, None)) {
        Ok(_) => Ok(None),
        Err(error) => error.reason().map(Some).ok_or(error),
    }
}

/// The same. Fails unless there is a greeting.
#[track_caller]
fn connect_as(world: &mut World, credentials: &NodeCredentials, at: &str, service: Service) -> Option<RefusalReason> {
    let tried = try_connect_as(world, credentials, at, service);
    tried.unwrap_or_else(|error| panic!("{at} did not answer with a greeting: {error}"))
}

/// Waits until a manager refuses these credentials for this reason. The leader does at once. A follower's replica has what ended
/// their right a moment later: until then it admits them, or does not know yet who they are. It disconnects without a greeting a
/// connection that loses its right before: at most one, because the right is lost once.
#[track_caller]
fn is_refused(world: &mut World, credentials: &NodeCredentials, at: &str, service: Service, reason: RefusalReason) {
    if world.leader_seen_by(at) == at {
        assert_eq!(connect_as(world, credentials, at, service), Some(reason), "{at} leads");
        return;
    }
    let mut broken = 0;
    eventually_so(&format!("{at} refuses it as {reason:?}"), || {
        match try_connect_as(world, credentials, at, service) {
            Ok(Some(refused)) if refused == reason => true,
            Ok(None | Some(RefusalReason::NotKnownHereYet)) => false,
            Err(DialError::Greeting { .. }) if broken == 0 => {
                broken += 1;
                false
            }
            other => panic!("{at}, {service:?}: {other:?}"),
        }
    });
}

#[test]
#[ignore = "full tier"]
fn worker_certificate_opens_session_but_not_mesh() {
    let mut world = World::with(1, 1);
    let worker = stolen(&mut world, "n2");
    assert_eq!(connect_as(&mut world, &worker, "n1", Service::Agent), None);
    assert_eq!(connect_as(&mut world, &worker, "n1", Service::Api), None);
    assert_eq!(connect_as(&mut world, &worker, "n1", Service::Mesh), Some(RefusalReason::Forbidden));
    assert_eq!(connect_as(&mut world, &worker, "n2", Service::Mesh), Some(RefusalReason::NotAManager));
}

#[test]
#[ignore = "full tier"]
fn demoted_manager_certificate_opens_no_mesh() {
    let mut world = World::with(3, 1);
    world.muster(&["node", "promote", "n4", "--wait=300s"]).ended(0);
    let old = stolen(&mut world, "n4");
    // A follower admits it once it has applied the grant.
    eventually_so("n1 admits it while it is a manager", || {
        let refused = connect_as(&mut world, &old, "n1", Service::Mesh);
        assert!([None, Some(RefusalReason::NotKnownHereYet)].contains(&refused), "{refused:?}");
        refused.is_none()
    });
    world.muster(&["node", "demote", "n4", "--wait=300s"]).ended(0);
    for name in ["n1", "n2", "n3"] {
        is_refused(&mut world, &old, name, Service::Mesh, RefusalReason::Demoted);
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
        is_refused(&mut world, &old, name, Service::Agent, RefusalReason::Blocked);
        // Its replica has the removal now.
        for service in [Service::Api, Service::Mesh] {
            assert_eq!(
                connect_as(&mut world, &old, name, service),
                Some(RefusalReason::Blocked),
                "{name}, {service:?}"
            );
        }
    }
}
