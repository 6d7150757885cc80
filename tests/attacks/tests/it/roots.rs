//! A thief has the root key: the disk of a manager was copied. What the key opens once the root is replaced.

use std::time::Duration;

use muster_attacks::caller::{ANSWER_TIMEOUT, Caller};
use muster_attacks::cluster::{Cluster, until};
use muster_kernel::Clock;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::Request;
use muster_messages::{AuthorityState, ClusterRecord, RefusalReason, RootId, RootsView, UserKind};
use muster_pki::{CsrKey, Issuer, UserProfile, make_csr, new_key};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::certificates::{REFUSED, cluster, forged, greeting_of, stolen_root, survey_of_stolen};

async fn roots(cluster: &Cluster) -> RootsView {
    let shown = cluster.ask("n1", Request::RootList).await.expect("shown");
    serde_json::from_value(shown).expect("a typed document")
}

/// Waits until a root is in this state, and every manager has applied that.
async fn in_state(cluster: &Cluster, root: RootId, wanted: AuthorityState) {
    until("the root is in that state", async || {
        let found = roots(cluster).await.items.into_iter().find(|item| item.id == root);
        Ok(found.is_some_and(|item| item.state == wanted).then_some(()))
    })
    .await
    .expect("it is");
}

/// Waits until every node has a certificate of the root that signs, which is another one than `old`.
async fn all_renewed(cluster: &Cluster, old: RootId) {
    until("all nodes renew", async || {
        let roots = roots(cluster).await;
        Ok((roots.active != Some(old) && roots.renewed.missing.is_empty()).then_some(()))
    })
    .await
    .expect("they do");
}

/// A certificate of a person, signed by the thief.
fn forged_person(root: &ClusterRecord, name: &str, kind: UserKind) -> NodeCredentials {
    let key_pem = new_key();
    let csr = CsrKey::parse(&make_csr(&key_pem).expect("a key")).expect("a request");
    let profile = UserProfile {
        cluster: root.id,
        name: name.parse().expect("a name"),
        kind,
        incarnation: root.incarnation,
        lifetime: Duration::from_secs(3600),
        now: Clock.wall(),
    };
    let issuer = Issuer::from_pem(&root.root_cert_pem, &root.root_key_pem).expect("the root's key");
    let cert_pem = issuer.sign_user(&profile, &csr).expect("signed").cert_pem;
    let identity = muster_pki::identity_of_pem(&cert_pem).expect("well-formed");
    NodeCredentials { cert_pem, key_pem, root_pem: root.root_cert_pem.clone(), identity }
}

/// Every service of these managers refuses them at once: no replica has to catch up.
async fn open_nothing(cluster: &Cluster, managers: &[&str], credentials: &NodeCredentials) {
    for name in managers {
        for service in [Service::Mesh, Service::Agent, Service::Api] {
            let reason = greeting_of(cluster, name, service, credentials).await;
            // A person, and a worker on the mesh, are refused for what they are.
            let refused = [REFUSED[0], REFUSED[1], RefusalReason::Forbidden];
            assert!(reason.is_some_and(|reason| refused.contains(&reason)), "{name}, {service:?}: {reason:?}");
        }
        let status = nodes_over_http(cluster, name, credentials).await;
        assert!(!is_success(status), "{name}, HTTP: {status:?}");
    }
}

/// The status of an answer to a request for all nodes. `None`: the connection ends without one.
async fn nodes_over_http(cluster: &Cluster, to: &str, credentials: &NodeCredentials) -> Option<u16> {
    let caller = Caller::with(cluster.node(to).listen, &[b"http/1.1"], credentials).expect("they fit TLS");
    let mut stream = caller.tls().await.ok()?;
    let mut answer = Vec::new();
    let talk = async {
        let asked = stream.write_all(b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        if asked.is_ok() {
            let _closed = stream.read_to_end(&mut answer).await;
        }
    };
    tokio::time::timeout(ANSWER_TIMEOUT, talk).await.expect("an answer, or the end of the connection");
    String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
}

fn is_success(status: Option<u16>) -> bool {
    status.is_some_and(|status| (200..300).contains(&status))
}

/// The exercise of docs/recovery.md: a manager's disk is copied, the manager removed, the root replaced as compromised.
#[tokio::test]
#[ignore = "full tier"]
async fn stolen_root_key_opens_nothing_once_the_root_is_revoked() {
    let mut cluster = cluster(3, 1).await;
    let real = cluster.user("ops", UserKind::Operator).await.expect("an operator");
    let (victim, worker) = (
        cluster.node("n2").credentials().expect("an identity"),
        cluster.node("n4").credentials().expect("an identity"),
    );
    let old = roots(&cluster).await.active.expect("a root signs");
    cluster.node_mut("n3").kill().await;
    let stolen = stolen_root(&cluster, "n3");
    until("the stolen manager is removed", async || {
        let removed = cluster.ask("n1", Request::NodeRemove { node: "n3".into(), force: true }).await;
        Ok(removed.is_ok().then_some(()))
    })
    .await
    .expect("by force");
    // Removal alone does not help: the key still signs what TLS accepts.
    let before = forged(&stolen, &victim, Duration::ZERO);
    open_nothing(&cluster, &["n1", "n2"], &before).await;
    assert_eq!(greeting_of(&cluster, "n1", Service::Api, &real).await, None);
    let status = nodes_over_http(&cluster, "n1", &real).await;
    assert!(is_success(status), "what opens nothing below is a request that is answered: {status:?}");

    cluster.ask("n1", Request::RootRotate { prepare: false, compromised: true }).await.expect("begun");
    all_renewed(&cluster, old).await;
    in_state(&cluster, old, AuthorityState::Revoked).await;
    for forged in [
        before,
        forged(&stolen, &victim, Duration::ZERO),
        forged(&stolen, &worker, Duration::ZERO),
        forged_person(&stolen, "ops", UserKind::Operator),
        forged_person(&stolen, "nobody", UserKind::Operator),
    ] {
        open_nothing(&cluster, &["n1", "n2"], &forged).await;
    }
    // A person's genuine certificate of that root ends, too: it cannot be told from a forged one without its record's pin, and
    // the operator asked for certainty.
    let refused = greeting_of(&cluster, "n1", Service::Api, &real).await;
    assert_eq!(refused, Some(RefusalReason::Unauthenticated));
    // The nodes work on.
    cluster.settled().await.expect("settled");
}

/// Without a leader a manager accepts the others on their certificates (ADMIT-3), but not on those of a retired root.
#[tokio::test]
async fn forged_certificate_of_retired_root_opens_no_leaderless_port() {
    let mut cluster = cluster(3, 0).await;
    let old = roots(&cluster).await.active.expect("a root signs");
    let victim = cluster.node("n2").credentials().expect("an identity");
    cluster.ask("n1", Request::RootRotate { prepare: false, compromised: false }).await.expect("begun");
    all_renewed(&cluster, old).await;
    cluster.node_mut("n3").kill().await;
    let mut stolen = stolen_root(&cluster, "n3");
    // The former root's key: what a copy of the disk from before the rotation holds.
    let key = survey_of_stolen(&cluster.node("n3").folder).expect("whole");
    let root = key.tables.authorities.roots.get(&old).expect("it is retiring, and has its key");
    stolen.root_cert_pem = root.cert_pem.clone();
    stolen.root_key_pem = root.key_pem.clone().expect("retiring");
    cluster.ask("n1", Request::RootRetire { root: old, force: false }).await.expect("every manager has renewed");
    in_state(&cluster, old, AuthorityState::Retired).await;
    until("n2 has applied it", async || {
        let forged = forged(&stolen, &victim, Duration::ZERO);
        Ok((greeting_of(&cluster, "n2", Service::Agent, &forged).await == Some(RefusalReason::Unauthenticated))
            .then_some(()))
    })
    .await
    .expect("it does");
    cluster.node_mut("n1").kill().await;
    until("n2 answers by its own replica", async || {
        let shown = cluster.ask("n2", Request::RaftStatus { fresh: false }).await?;
        Ok(shown["stale"].as_bool().filter(|stale| *stale))
    })
    .await
    .expect("there is no leader");
    let forged = forged(&stolen, &victim, Duration::ZERO);
    for service in [Service::Mesh, Service::Agent, Service::Api] {
        let reason = greeting_of(&cluster, "n2", service, &forged).await;
        assert_eq!(reason, Some(RefusalReason::Unauthenticated), "{service:?}");
    }
}
