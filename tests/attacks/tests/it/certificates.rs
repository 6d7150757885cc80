//! Invalid certificates: forged with a stolen root key, superseded, revoked, expired.

use std::path::Path;
use std::time::Duration;

use muster_attacks::caller::{Caller, HandshakeError};
use muster_attacks::cluster::{Cluster, until};
use muster_kernel::Clock;
use muster_local_cluster::answers;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{
    AGENT_PROTOCOL, AgentAsk, AgentFrame, AgentHello, HostFrame, JoinFrame, JoinReply, JoinRequest, Rekey, Request,
};
use muster_messages::{ClusterRecord, ErrorCode, NodeId, RefusalReason, RequestId, Revision, Role, WallTime};
use muster_pki::{CsrKey, Issuer, JoinToken, NodeProfile, make_csr, new_key, prove_rekey};
use muster_raft_member::recovery::{CannotSurvey, Survey};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) async fn cluster(managers: usize, workers: usize) -> Cluster {
    Cluster::up(Path::new(env!("CARGO_BIN_EXE_muster-attack")), managers, workers).await.expect("a cluster")
}

fn node_of(credentials: &NodeCredentials) -> NodeId {
    credentials.identity.node().expect("a node's").0
}

/// What a thief reads on a manager's disk whose keyring opens without an unlock key.
pub(crate) fn survey_of_stolen(folder: &Path) -> Result<Survey, CannotSurvey> {
    let store = muster_pki::IdentityStore::open(folder).expect("an identity");
    muster_raft_member::recovery::survey(&folder.join("raft"), store.keys())
}

/// The content of a stopped manager's disk: the root key is in its log.
pub(crate) fn stolen_root(cluster: &Cluster, name: &str) -> ClusterRecord {
    let read = survey_of_stolen(&cluster.node(name).folder);
    (*read.expect("whole").tables.cluster.expect("a cluster")).clone()
}

/// A certificate like that of `of`, signed by the thief for another key, at least an hour old.
pub(crate) fn forged(root: &ClusterRecord, of: &NodeCredentials, ago: Duration) -> NodeCredentials {
    forged_for(root, of, of.identity.granted, ago)
}

/// The same, with a chosen grant.
fn forged_for(root: &ClusterRecord, of: &NodeCredentials, granted: Option<Revision>, ago: Duration) -> NodeCredentials {
    let key_pem = new_key();
    let csr = CsrKey::parse(&make_csr(&key_pem).expect("a key")).expect("a request");
    let (node, role) = of.identity.node().expect("a node's");
    let profile = NodeProfile {
        cluster: root.id,
        node,
        role,
        granted,
        incarnation: root.incarnation,
        ips: Vec::new(),
        lifetime: HOUR,
        now: WallTime(Clock.wall().0 - i64::try_from(ago.as_millis()).expect("hours")),
    };
    let issuer = Issuer::from_pem(&root.root_cert_pem, &root.root_key_pem).expect("the root's key");
    let cert_pem = issuer.sign_node(&profile, &csr).expect("signed").cert_pem;
    let identity = muster_pki::identity_of_pem(&cert_pem).expect("well-formed");
    NodeCredentials { cert_pem, key_pem, root_pem: root.root_cert_pem.clone(), identity }
}

/// A manager's reason to refuse these credentials. `None`: welcome.
pub(crate) async fn greeting_of(
    cluster: &Cluster,
    to: &str,
    service: Service,
    credentials: &NodeCredentials,
) -> Option<RefusalReason> {
    let caller = Caller::with(cluster.node(to).listen, service.alpn(), credentials).expect("they fit TLS");
    match caller.greeted().await {
        Ok(_) => None,
        Err(greeted) => Some(greeted.reason().unwrap_or_else(|| panic!("no greeting: {greeted:?}"))),
    }
}

pub(crate) const REFUSED: [RefusalReason; 2] = [RefusalReason::Unauthenticated, RefusalReason::NotKnownHereYet];

/// Every service of every running manager refuses them, the leader permanently.
async fn open_nothing(cluster: &Cluster, managers: &[&str], credentials: &NodeCredentials) {
    for name in managers {
        for service in [Service::Mesh, Service::Agent, Service::Api] {
            if service == Service::Mesh && credentials.identity.node().is_some_and(|(_, role)| role == Role::Worker) {
                continue;
            }
            let reason = greeting_of(cluster, name, service, credentials).await;
            assert!(reason.is_some_and(|reason| REFUSED.contains(&reason)), "{name}, {service:?}: {reason:?}");
        }
    }
    let (leader, _) = cluster.leader(managers[0]).await.expect("a leader");
    assert_eq!(greeting_of(cluster, &leader, Service::Agent, credentials).await, Some(RefusalReason::Unauthenticated));
}

/// The result of a re-key with an old key and a token.
async fn rekey(cluster: &Cluster, to: &str, old: &NodeCredentials, token: &str) -> Result<(), ErrorCode> {
    let csr_pem = make_csr(&new_key()).expect("a key");
    let signature = prove_rekey(&old.key_pem, &CsrKey::parse(&csr_pem).expect("a request")).expect("a key that signs");
    let request = JoinRequest {
        request_id: RequestId(rand::random()),
        node: node_of(old),
        token_secret: JoinToken::parse(token).expect("a token").secret,
        csr_pem,
        name: "thief".parse().expect("a name"),
        advertise: "127.0.0.1:4400".to_owned(),
        release: "0.1.0".to_owned(),
        labels: Default::default(),
        rekey: Some(Rekey { old_cert_pem: old.cert_pem.clone(), signature }),
    };
    let caller = Caller::unauthenticated(cluster.node(to).listen, Service::Join.alpn());
    let mut frames = caller.greeted().await.expect("joiners are welcome");
    frames.send(&JoinFrame::Join(request)).await.expect("sent");
    match frames.recv::<JoinReply>().await.expect("an answer").expect("an answer") {
        JoinReply::Joined { .. } => Ok(()),
        JoinReply::Refused(error) => Err(error.code),
        other => panic!("{other:?}"),
    }
}

/// Requests a new certificate and waits until the node has it.
async fn renewed(cluster: &Cluster, name: &str, request: Request) -> NodeCredentials {
    let before = cluster.node(name).credentials().expect("an identity").identity.serial;
    cluster.ask("n1", request).await.expect("asked");
    until("a new certificate", async || {
        let now = cluster.node(name).credentials()?;
        Ok((now.identity.serial != before).then_some(now))
    })
    .await
    .expect("the node renews")
}

#[tokio::test]
async fn forged_certificate_of_absent_manager_is_rejected() {
    let mut cluster = cluster(3, 0).await;
    let (leader, _) = cluster.leader("n1").await.expect("a leader");
    let away = cluster.names().into_iter().find(|name| *name != leader).expect("another manager");
    let real = cluster.node(&away).credentials().expect("an identity");
    cluster.node_mut(&away).kill().await;
    let root = stolen_root(&cluster, &away);
    let stay: Vec<String> = cluster.names().into_iter().filter(|name| *name != away).collect();
    let stay: Vec<&str> = stay.iter().map(String::as_str).collect();
    let fresh = forged(&root, &real, Duration::ZERO);
    open_nothing(&cluster, &stay, &fresh).await;
    assert_eq!(greeting_of(&cluster, &leader, Service::Agent, &real).await, None, "the real certificate is accepted");
    // A future grant, or none: the cluster knows better.
    for granted in [Some(Revision(1 << 62)), None] {
        let ahead = forged_for(&root, &real, granted, Duration::ZERO);
        for name in &stay {
            for service in [Service::Mesh, Service::Agent, Service::Api] {
                let reason = greeting_of(&cluster, name, service, &ahead).await;
                assert!(
                    reason.is_some_and(|reason| REFUSED.contains(&reason)),
                    "{name} {service:?} {granted:?}: {reason:?}"
                );
            }
        }
    }
    // An expired certificate is admitted nowhere, and justifies no new one, whatever token comes with it.
    let expired = forged(&root, &real, 2 * HOUR);
    for service in [Service::Mesh, Service::Agent, Service::Api] {
        let caller = Caller::with(cluster.node(&leader).listen, service.alpn(), &expired).expect("it fits TLS");
        assert!(matches!(caller.greeted().await, Err(HandshakeError::Broken(_))), "{service:?}");
    }
    for role in [Role::Worker, Role::Manager] {
        let token = answers::token(&cluster.ask(&leader, Request::TokenShow { role }).await.expect("shown"));
        let token = token.expect("a token");
        for old in [&fresh, &expired] {
            assert!(rekey(&cluster, &leader, old, &token).await.is_err(), "a {role}'s token with a forged certificate");
        }
    }
}

/// A worker was promoted, and its former worker key may be stolen: after a revocation it must not lead to a manager's
/// certificate. (Until then it is the certificate before the newest, which is valid: the answer with the newest may have been lost.)
#[tokio::test]
async fn worker_certificate_gets_no_manager_certificate() {
    let cluster = cluster(1, 1).await;
    let old = cluster.node("n2").credentials().expect("an identity");
    renewed(&cluster, "n2", Request::SetRole { node: "n2".into(), role: Role::Manager }).await;
    cluster.settled().await.expect("it is a manager");
    renewed(&cluster, "n2", Request::CertRevoke { node: "n2".into() }).await;
    until("the worker's certificate is refused", async || {
        let refused = greeting_of(&cluster, "n1", Service::Api, &old).await;
        Ok((refused == Some(RefusalReason::Unauthenticated)).then_some(()))
    })
    .await
    .expect("it is");
    let csr_pem = make_csr(&new_key()).expect("a key");
    let caller = Caller::with(cluster.node("n1").listen, Service::Agent.alpn(), &old).expect("it fits TLS");
    let mut tried = 0;
    let signed = until("an answer", async || {
        tried += 1;
        let Ok(mut frames) = caller.greeted().await else { return Ok((tried > 3).then_some(None)) };
        let hello = AgentHello {
            protocol: AGENT_PROTOCOL,
            instance: rand::random(),
            name: "n2".parse().expect("a name"),
            advertise: "127.0.0.1:4400".to_owned(),
            release: "0.1.0".to_owned(),
            labels: Default::default(),
        };
        let ask = AgentFrame::Ask { id: 1, ask: AgentAsk::Sign { csr_pem: csr_pem.clone() } };
        for frame in [AgentFrame::Hello(hello), ask] {
            if frames.send(&frame).await.is_err() {
                return Ok(None);
            }
        }
        while let Ok(Some(frame)) = frames.recv::<HostFrame>().await {
            match frame {
                HostFrame::Answer { result, .. } => return Ok(Some(result.ok())),
                HostFrame::Ended(refusal) => {
                    println!("{refusal}");
                    return Ok(Some(None));
                }
                _ => {}
            }
        }
        Ok(None)
    });
    let signed = signed.await.expect("a host answers");
    assert!(signed.is_none(), "{signed:?}");
}

#[tokio::test]
async fn old_manager_keys_get_no_certificate() {
    let mut cluster = cluster(3, 0).await;
    let first = cluster.node("n3").credentials().expect("an identity");
    let rotate = || Request::CertRotate { node: "n3".into() };
    let second = renewed(&cluster, "n3", rotate()).await;
    // A node may have two sessions. Its agent has that many for a moment, until the former one has ended.
    let greeting = until("its former session has ended", async || {
        let greeting = greeting_of(&cluster, "n1", Service::Agent, &first).await;
        Ok(Some(greeting).filter(|greeting| *greeting != Some(RefusalReason::TooManyRequests)))
    });
    assert_eq!(greeting.await, Ok(None), "the previous certificate is valid until the next");
    let third = renewed(&cluster, "n3", rotate()).await;
    assert_ne!(second.identity.serial, third.identity.serial);
    // The leader recorded the third before it handed it out, and admits the first no more. A follower knows that the first is
    // superseded once its replica has the third. Both may count too many sessions for a moment, as above.
    let (leader, _) = cluster.leader("n1").await.expect("a leader");
    for name in ["n1", "n2"] {
        let reason = if name == leader {
            let reason = until("its former session has ended", async || {
                let reason = greeting_of(&cluster, name, Service::Agent, &first).await;
                Ok(Some(reason).filter(|reason| *reason != Some(RefusalReason::TooManyRequests)))
            });
            reason.await.expect("it ends").expect("the leader admits it no more")
        } else {
            let caller = Caller::with(cluster.node(name).listen, Service::Agent.alpn(), &first).expect("it fits TLS");
            caller.refused_by_follower(&[RefusalReason::TooManyRequests]).await.expect("it is superseded")
        };
        assert!(REFUSED.contains(&reason), "{name}: {reason:?}");
    }
    open_nothing(&cluster, &["n1", "n2"], &first).await;

    let [worker, manager] = [Role::Worker, Role::Manager];
    let (worker, manager) =
        (cluster.token(worker).await.expect("a token"), cluster.token(manager).await.expect("a token"));
    cluster.node_mut("n3").kill().await;
    // Superseded: refused with any token. The newest: accepted with a manager's token alone.
    assert_eq!(rekey(&cluster, "n1", &first, &worker).await, Err(ErrorCode::BadToken));
    assert_eq!(rekey(&cluster, "n1", &first, &manager).await, Err(ErrorCode::Unauthenticated));
    assert_eq!(rekey(&cluster, "n1", &third, &worker).await, Err(ErrorCode::BadToken));
    assert_eq!(rekey(&cluster, "n1", &third, &manager).await, Ok(()), "an operator can recover this way");
}

/// The key is stolen, the machine is not: the thief is locked out once the node has connected with its new certificate.
#[tokio::test]
async fn revoked_certificate_is_rejected_and_node_stays() {
    let cluster = cluster(1, 1).await;
    let stolen = cluster.node("n2").credentials().expect("an identity");
    assert_eq!(greeting_of(&cluster, "n1", Service::Api, &stolen).await, None);
    let new = renewed(&cluster, "n2", Request::CertRevoke { node: "n2".into() }).await;
    until("the stolen certificate is refused", async || {
        let refused = greeting_of(&cluster, "n1", Service::Api, &stolen).await;
        Ok((refused == Some(RefusalReason::Unauthenticated)).then_some(()))
    })
    .await
    .expect("it is");
    open_nothing(&cluster, &["n1"], &stolen).await;
    cluster.settled().await.expect("the node is connected");
    let token = cluster.token(Role::Worker).await.expect("a token");
    assert_eq!(rekey(&cluster, "n1", &stolen, &token).await, Err(ErrorCode::Unauthenticated));
    let node = cluster.seen("n1", "n2").await.expect("an answer").expect("it is a node");
    assert_eq!(node.id, node_of(&new));
}
