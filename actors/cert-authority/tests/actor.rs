//! The actor itself under a real supervisor, with a stand-in for the raft member.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its case has failed")]

mod world;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_cert_authority::{CertAuthorityShell, Config, Msg};
use muster_kernel::{Address, AskError, Intensity, Recipient, Spec, Supervisor, Tree, Undeliverable};
use muster_messages::protocol::{Applied, CertAuthorityMsg, ProposeError, RaftMemberMsg};
use muster_messages::wire::{JoinReply, JoinRequest, Rekey, SignReply};
use muster_messages::*;
use muster_pki::*;
use tokio::sync::watch;
use world::{MANAGER, WORKER, World, id};

const PATIENCE: Duration = Duration::from_secs(20);

/// Applies what is proposed, and publishes the copy only after the answer: the order that is hardest for the actor.
fn raft(tables: Tables) -> (Recipient<RaftMemberMsg>, watch::Receiver<Arc<Replica>>, Arc<Mutex<bool>>) {
    let (publish, replica) = watch::channel(Arc::new(Replica { tables: tables.clone(), raft: RaftStatus::default() }));
    let (tables, frozen) = (Mutex::new(tables), Arc::new(Mutex::new(false)));
    let held = Mutex::new(Vec::new());
    let is_frozen = Arc::clone(&frozen);
    let recipient = Recipient::new(move |msg| {
        let RaftMemberMsg::Propose { command, reply, .. } = msg else { return Err(Undeliverable::Down) };
        if *is_frozen.lock().unwrap() {
            held.lock().unwrap().push(reply);
            return Ok(());
        }
        let mut tables = tables.lock().unwrap();
        let revision = tables.revision.next();
        let result = muster_store::apply(&mut tables, revision, &command);
        let _gone = reply.send(result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
        publish.send_replace(Arc::new(Replica { tables: tables.clone(), raft: RaftStatus::default() }));
        Ok(())
    });
    (recipient, replica, frozen)
}

struct Running {
    root: Supervisor,
    tree: Tree,
    address: Address<Msg>,
    frozen: Arc<Mutex<bool>>,
    replica: watch::Receiver<Arc<Replica>>,
}

async fn start() -> Running {
    let (recipient, replica, frozen) = raft(World::new().log);
    let tree = Tree::new();
    let root = Supervisor::root("node", tree.clone(), Intensity::default()).await.unwrap();
    let address: Address<Msg> = Address::new(64);
    let copies = replica.clone();
    root.children().start(Spec::actor("cert-authority", address.clone(), move || {
        Ok(CertAuthorityShell::new(Config::default(), recipient.clone(), copies.clone()))
    }));
    let running = Running { root, tree, address, frozen, replica };
    running.healthy(1).await;
    running
}

impl Running {
    async fn healthy(&self, incarnation: u64) {
        self.until(|node| node.state == ActorState::Healthy && node.incarnation >= incarnation).await;
    }
    async fn until(&self, holds: impl Fn(&ActorNode) -> bool) {
        let reached = async {
            loop {
                match self.tree.inspect("node/cert-authority").await {
                    Ok(node) if holds(&node) => return,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("the actor gets there");
    }
    async fn join(&self, request: JoinRequest) -> Result<Result<JoinReply, ErrorBody>, AskError> {
        let request = Box::new(request);
        let make = |reply| CertAuthorityMsg::Join { observed_addr: "10.0.0.9:50000".into(), request, reply }.into();
        self.address.ask(PATIENCE, make).await
    }
    async fn sign(&self, identity: CertIdentity, csr_pem: String) -> Result<SignReply, ErrorBody> {
        let identity = Box::new(identity);
        let observed_addr = "10.0.0.9:50000".to_owned();
        let make = |reply| CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply }.into();
        self.address.ask(PATIENCE, make).await.unwrap()
    }
}

fn request(n: u128, secret: &str, key: &Secret) -> JoinRequest {
    JoinRequest {
        request_id: RequestId(n),
        node: id(n),
        token_secret: Secret::new(secret),
        csr_pem: make_csr(key).unwrap(),
        name: "host".parse().unwrap(),
        advertise: "0.0.0.0:4400".to_owned(),
        release: "0.1.0".to_owned(),
        labels: Default::default(),
        rekey: None,
    }
}

fn joined(answer: Result<JoinReply, ErrorBody>) -> (String, String) {
    match answer.unwrap() {
        JoinReply::Joined { cert_pem, root_pem, .. } => (cert_pem, root_pem),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_node_joins_renews_and_rekeys() {
    let ca = start().await;
    let key = new_key();
    let (cert, root) = joined(ca.join(request(5, MANAGER, &key)).await.unwrap());
    let creds = credentials(key.clone(), cert, root).unwrap();
    assert_eq!(creds.identity.node(), Some((id(5), Role::Manager)));
    assert_eq!(ca.replica.borrow().tables.nodes[&id(5)].addr, "10.0.0.9:4400");

    let next = new_key();
    let signed = ca.sign(creds.identity.clone(), make_csr(&next).unwrap()).await.unwrap();
    let renewed = credentials(next.clone(), signed.cert_pem, signed.root_pem).unwrap();
    assert_eq!(renewed.identity.subject, creds.identity.subject);

    let last = new_key();
    let mut again = request(5, WORKER, &last);
    again.request_id = RequestId(6);
    let proof = prove_rekey(&next, &CsrKey::parse(&again.csr_pem).unwrap()).unwrap();
    again.rekey = Some(Rekey { old_cert_pem: renewed.cert_pem, signature: proof });
    let (cert, root) = joined(ca.join(again.clone()).await.unwrap());
    let rekeyed = credentials(last, cert, root).unwrap();
    assert_eq!(rekeyed.identity.subject, creds.identity.subject, "the role is the cluster's, not the token's");

    again.rekey = again.rekey.map(|r| Rekey { signature: vec![1], ..r });
    assert_eq!(ca.join(again.clone()).await.unwrap().unwrap_err().code, ErrorCode::Unauthenticated);
    again.node = id(7);
    assert_eq!(ca.join(again).await.unwrap().unwrap_err().code, ErrorCode::Unauthenticated);
    ca.root.shut_down().await;
}

#[tokio::test]
async fn malformed_requests_are_refused_and_change_nothing() {
    let ca = start().await;
    let before = ca.replica.borrow().tables.revision;
    let good = || request(5, WORKER, &new_key());
    for bad in [
        JoinRequest { csr_pem: String::new(), ..good() },
        JoinRequest {
            csr_pem: "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n".into(),
            ..good()
        },
        JoinRequest { advertise: "nowhere".into(), ..good() },
        JoinRequest { release: "x".repeat(1000), ..good() },
        JoinRequest { labels: (0..1000).map(|n| (n.to_string(), String::new())).collect(), ..good() },
    ] {
        assert_eq!(ca.join(bad).await.unwrap().unwrap_err().code, ErrorCode::Invalid);
    }
    assert_eq!(ca.replica.borrow().tables.revision, before);
    ca.root.shut_down().await;
}

#[tokio::test]
async fn a_crash_closes_the_ports_and_the_retry_is_the_same_join() {
    let ca = start().await;
    let key = new_key();
    *ca.frozen.lock().unwrap() = true;
    let wish = request(5, WORKER, &key);
    let first = ca.join(wish.clone());
    let crash = async {
        ca.until(|node| node.view["pending"][0]["phase"] == "admitting").await;
        ca.tree.crash("node/cert-authority", CrashHow::Panic).unwrap();
    };
    let (first, ()) = tokio::join!(first, crash);
    assert_eq!(first.unwrap_err(), AskError::Closed);
    *ca.frozen.lock().unwrap() = false;
    ca.healthy(2).await;
    joined(ca.join(wish.clone()).await.unwrap());
    joined(ca.join(wish).await.unwrap());
    assert_eq!(ca.replica.borrow().tables.nodes.len(), 2);
    ca.until(|node| node.view["issued"] == 2 && node.view["pending"] == serde_json::json!([])).await;
    let text = serde_json::to_string(&ca.tree.snapshot().await).unwrap();
    assert!(!text.contains(WORKER) && !text.contains("PRIVATE"));
    ca.root.shut_down().await;
}
