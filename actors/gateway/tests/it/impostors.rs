//! What a dialer tells a server, and accepts from it. DIAL-2: a holder of a worker's certificate, although signed by the
//! cluster's root, is not a manager.

use std::sync::Arc;

use muster_gateway::{BoxStream, DialError, Dialer, Framed};
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{Greeting, Refusal};
use muster_messages::{RefusalReason, Role, UserKind};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::support::*;

/// The dialer's first frame.
const FIRST: [u8; 3] = [1, 2, 3];

/// Accepts one connection with these credentials, serves it, and returns what it received.
async fn server<F: Future<Output = Option<Vec<u8>>> + Send>(
    who: &NodeCredentials,
    service: Service,
    serve: impl FnOnce(Framed<BoxStream>) -> F + Send + 'static,
) -> (String, JoinHandle<Option<Vec<u8>>>) {
    let config = muster_pki::server_config(who, service.alpn()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let served = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let tls: BoxStream = Box::pin(TlsAcceptor::from(config).accept(tcp).await.unwrap());
        serve(Framed::new(tls)).await
    });
    (addr, served)
}

/// Serves one connection with these credentials and this greeting, and returns what it received.
async fn impostor(
    who: &NodeCredentials,
    service: Service,
    greeting: Greeting,
) -> (String, JoinHandle<Option<Vec<u8>>>) {
    let serve = move |mut stream: Framed<BoxStream>| async move {
        if service != Service::Http {
            stream.send(&greeting).await.unwrap();
        }
        stream.recv::<Vec<u8>>().await.unwrap_or_default()
    };
    server(who, service, serve).await
}

fn no(reason: RefusalReason) -> Greeting {
    let managers = vec!["10.0.0.9:4400".to_owned()];
    Greeting::Refused(Refusal { reason, message: "says the impostor".to_owned(), managers, retry_after_ms: None })
}

/// All kinds of clients of a manager: a node, a user, a joiner, a caller with a bearer token.
fn callers(world: &World) -> Vec<Dialer> {
    let known: [Arc<NodeCredentials>; 2] = [world.node(3, Role::Worker, 6), world.user("ann", UserKind::Operator)];
    known.iter().map(dialer).chain([Dialer::anonymous(&world.root.cert_pem)]).collect()
}

#[tokio::test]
async fn clients_reject_welcome_of_a_worker() {
    let world = World::new(1);
    let worker = world.node(2, Role::Worker, 5);
    for service in Service::ALL {
        for caller in callers(&world) {
            let (addr, served) = impostor(&worker, service, Greeting::Welcome { node: id(2) }).await;
            let error = caller.dial_with(&addr, service, None, Some(&FIRST.to_vec())).await.unwrap_err();
            assert!(matches!(&error, DialError::WrongPeer { why, .. } if why.contains("a worker")), "{error:?}");
            assert_eq!(served.await.unwrap(), None, "{service:?}: a worker gets no frame");
        }
    }
}

#[tokio::test]
async fn only_redirects_of_a_worker_are_accepted() {
    let world = World::new(1);
    let worker = world.node(2, Role::Worker, 5);
    let dialer = dialer(&world.node(3, Role::Manager, 6));
    for reason in
        [RefusalReason::Removed, RefusalReason::Blocked, RefusalReason::Demoted, RefusalReason::OldIncarnation]
    {
        let (addr, _served) = impostor(&worker, Service::Agent, no(reason)).await;
        let error = dialer.dial(&addr, Service::Agent, None).await.unwrap_err();
        assert!(matches!(error, DialError::WrongPeer { .. }), "{reason:?}: {error:?}");
        assert_eq!(error.refusal(), None);
    }
    let (addr, _served) = impostor(&worker, Service::Agent, no(RefusalReason::NotAManager)).await;
    let error = dialer.dial(&addr, Service::Agent, None).await.unwrap_err();
    assert_eq!(error.refusal().map(|refusal| refusal.managers.clone()), Some(vec!["10.0.0.9:4400".to_owned()]));

    // A manager's refusal is accepted.
    let (addr, _served) = impostor(&world.node(2, Role::Manager, 5), Service::Agent, no(RefusalReason::Removed)).await;
    let error = dialer.dial(&addr, Service::Agent, None).await.unwrap_err();
    assert_eq!(error.reason(), Some(RefusalReason::Removed));
}

/// It takes a round trip to wait for the greeting.
#[tokio::test]
async fn first_frame_leaves_before_the_managers_greeting() {
    let world = World::new(1);
    let manager = world.node(2, Role::Manager, 5);
    let greets_last = |mut stream: Framed<BoxStream>| async move {
        let first = stream.recv::<Vec<u8>>().await.unwrap();
        stream.send(&Greeting::Welcome { node: id(2) }).await.unwrap();
        first
    };
    let (addr, served) = server(&manager, Service::Mesh, greets_last).await;
    let dialer = dialer(&world.node(3, Role::Manager, 6));
    let dialed = dialer.dial_with(&addr, Service::Mesh, Some(id(2)), Some(&FIRST.to_vec())).await;
    assert_eq!(dialed.expect("the manager has got the frame, and greets").node, id(2));
    assert_eq!(served.await.unwrap(), Some(FIRST.to_vec()));
}

/// What a locked daemon's port does, whether it has read the first bytes or not.
#[tokio::test]
async fn connection_that_is_closed_at_once_hints_at_a_lock() {
    let world = World::new(1);
    for reads in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let locked = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            if reads {
                tokio::io::AsyncReadExt::read(&mut tcp, &mut [0; 4096]).await.unwrap();
            }
        });
        let failed = dialer(&world.node(3, Role::Worker, 6)).dial(&addr, Service::Agent, None).await.unwrap_err();
        locked.await.unwrap();
        assert!(matches!(failed, DialError::Tls { .. }), "{failed:?}");
        let text = failed.full_text();
        assert!(text.contains("is that manager locked"), "{text}");
    }
}
