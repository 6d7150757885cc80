//! The actor itself under a real supervisor, with a stand-in for the raft member.
use std::sync::{Arc, Mutex};

use crate::world::{MANAGER, WORKER, World, id};
use muster_cert_authority::{CertAuthorityShell, Config, Msg};
use muster_kernel::{Address, AskError, Fuse, Spec};
use muster_messages::protocol::{Applied, CertAuthorityMsg, ProposeError, RaftMemberMsg, Reply, UserRights};
use muster_messages::wire::{JoinReply, JoinRequest, Rekey, SignReply};
use muster_messages::*;
use muster_pki::*;
use muster_tests::{PATIENCE, Probe, Universe, answered, at_every_point, insisting};
use tokio::sync::watch;

const PATH: &str = "node/cert-authority";
const OBSERVED: &str = "10.0.0.9:50000";

struct Running {
    universe: Universe,
    address: Address<Msg>,
    /// What is proposed while `frozen` waits here.
    _raft: Probe<RaftMemberMsg>,
    frozen: Arc<Mutex<bool>>,
    replica: watch::Receiver<Arc<Replica>>,
}

async fn start() -> Running {
    let mut tables = World::new().log;
    let (publish, replica) = watch::channel(copy(&tables));
    let (universe, frozen) = (Universe::start().await, Arc::new(Mutex::new(false)));
    let (raft, is_frozen) = (universe.probe("raft-member"), Arc::clone(&frozen));
    // Applies what is proposed, and publishes the copy only after the answer: the order that is hardest for the actor.
    raft.on(move |msg| match msg {
        RaftMemberMsg::Propose { command, reply, .. } if !*is_frozen.lock().unwrap() => {
            let revision = tables.revision.next();
            let result = muster_store::apply(&mut tables, revision, &command);
            let taken = answered(reply, result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
            publish.send_replace(copy(&tables));
            taken
        }
        other => Some(other),
    });
    let (address, to_raft, copies) = (Address::<Msg>::new(64), raft.recipient(), replica.clone());
    universe.start_actor(Spec::actor("cert-authority", address.clone(), move || {
        Ok(CertAuthorityShell::new(Config::default(), to_raft.clone(), copies.clone()))
    }));
    universe.healthy(PATH, 1).await;
    Running { universe, address, _raft: raft, frozen, replica }
}

impl Running {
    async fn until(&self, holds: impl Fn(&ActorNode) -> bool) {
        self.universe.until(PATH, "as the test has it", holds).await;
    }
    async fn join(&self, request: JoinRequest) -> Result<Result<JoinReply, ErrorBody>, AskError> {
        let request = Box::new(request);
        let make = |reply| CertAuthorityMsg::Join { observed_addr: OBSERVED.into(), request, reply }.into();
        self.address.ask(PATIENCE, make).await
    }
    async fn sign(&self, identity: CertIdentity, csr_pem: String) -> Result<SignReply, ErrorBody> {
        let identity = Box::new(identity);
        let observed_addr = OBSERVED.to_owned();
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
    let mut again = request(5, MANAGER, &last);
    again.request_id = RequestId(6);
    let proof = prove_rekey(&next, &CsrKey::parse(&again.csr_pem).unwrap()).unwrap();
    again.rekey = Some(Rekey { old_cert_pem: renewed.cert_pem, signature: proof });
    let (cert, root) = joined(ca.join(again.clone()).await.unwrap());
    let rekeyed = credentials(last, cert, root).unwrap();
    assert_eq!(rekeyed.identity.subject, creds.identity.subject);

    again.rekey = again.rekey.map(|r| Rekey { signature: vec![1], ..r });
    assert_eq!(ca.join(again.clone()).await.unwrap().unwrap_err().code, ErrorCode::Unauthenticated);
    again.node = id(7);
    assert_eq!(ca.join(again).await.unwrap().unwrap_err().code, ErrorCode::Unauthenticated);
    ca.universe.finish().await;
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
        JoinRequest { labels: [("zone".to_owned(), "\u{1b}[2J".to_owned())].into(), ..good() },
        JoinRequest { release: "0.1.0\n".into(), ..good() },
        JoinRequest { labels: (0..1000).map(|n| (n.to_string(), String::new())).collect(), ..good() },
    ] {
        assert_eq!(ca.join(bad).await.unwrap().unwrap_err().code, ErrorCode::Invalid);
    }
    assert_eq!(ca.replica.borrow().tables.revision, before);
    ca.universe.finish().await;
}

#[tokio::test]
async fn a_crash_closes_the_ports_and_the_retry_is_the_same_join() {
    let mut ca = start().await;
    let key = new_key();
    *ca.frozen.lock().unwrap() = true;
    let wish = request(5, WORKER, &key);
    let (address, first) = (ca.address.clone(), Box::new(wish.clone()));
    let first = tokio::spawn(async move {
        let make = |reply| CertAuthorityMsg::Join { observed_addr: OBSERVED.into(), request: first, reply }.into();
        address.ask(PATIENCE, make).await
    });
    ca.until(|node| node.view["pending"][0]["phase"] == "admitting").await;
    ca.universe.crash(PATH, CrashHow::Panic);
    let first = first.await.unwrap();
    assert_eq!(first.unwrap_err(), AskError::Closed);
    *ca.frozen.lock().unwrap() = false;
    ca.universe.healthy(PATH, 2).await;
    joined(ca.join(wish.clone()).await.unwrap());
    joined(ca.join(wish).await.unwrap());
    assert_eq!(ca.replica.borrow().tables.nodes.len(), 2);
    ca.until(|node| node.view["issued"] == 2 && node.view["pending"] == serde_json::json!([])).await;
    let text = serde_json::to_string(&ca.universe.tree().snapshot().await).unwrap();
    assert!(!text.contains(WORKER) && !text.contains("PRIVATE"));
    ca.universe.finish().await;
}

/// A leader around an authority that crashes at the fuse's point, or when the raft member has heard of, done, or answered something.
struct Leader {
    universe: Universe,
    address: Address<Msg>,
    raft: Probe<RaftMemberMsg>,
    tables: Tables,
    publish: watch::Sender<Arc<Replica>>,
    fuse: Fuse,
}

impl Leader {
    async fn new(fuse: Fuse) -> Self {
        let tables = World::new().log;
        let (publish, replica) = watch::channel(copy(&tables));
        let mut universe = Universe::start().await;
        let raft = universe.probe("raft-member");
        let (address, to_raft) = (Address::<Msg>::new(64), raft.recipient());
        universe.start_actor(Spec::actor("cert-authority", address.clone(), move || {
            Ok(CertAuthorityShell::new(Config::default(), to_raft.clone(), replica.clone()))
        }));
        universe.healthy(PATH, 1).await;
        universe.crash_at(PATH, &fuse);
        Self { universe, address, raft, tables, publish, fuse }
    }
    /// Applies what is proposed, until everybody has what they asked for.
    async fn until(&mut self, all_have: impl Fn() -> bool) {
        while !all_have() {
            let asked = tokio::time::timeout(std::time::Duration::from_millis(5), self.raft.next("a proposal")).await;
            let Ok(RaftMemberMsg::Propose { command, reply, .. }) = asked else { continue };
            self.universe.point(PATH, &self.fuse);
            let revision = self.tables.revision.next();
            let result = muster_store::apply(&mut self.tables, revision, &command);
            self.universe.point(PATH, &self.fuse);
            let _gone = reply.send(result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
            self.publish.send_replace(copy(&self.tables));
            self.universe.point(PATH, &self.fuse);
        }
    }
    fn joins_logged(&self) -> usize {
        self.tables.events.iter().filter(|event| event.kind == EventKind::Node).count()
    }
}

fn copy(tables: &Tables) -> Arc<Replica> {
    Arc::new(Replica { tables: tables.clone(), raft: RaftStatus::default() })
}

/// Asks under one id until there is an answer that says what has happened.
async fn insists<T: Send + 'static>(
    address: &Address<Msg>,
    make: impl Fn(Reply<Result<T, ErrorBody>>) -> CertAuthorityMsg,
) -> T {
    loop {
        match insisting(address, |reply| make(reply).into()).await {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error.code, ErrorCode::UnknownOutcome, "{error}"),
        }
    }
}

async fn joins(address: &Address<Msg>, wish: &JoinRequest) -> (String, String) {
    let make =
        |reply| CertAuthorityMsg::Join { observed_addr: OBSERVED.into(), request: Box::new(wish.clone()), reply };
    joined(Ok(insists(address, make).await))
}

/// Two join at once, each until it is answered, and then once more; then both renew.
async fn two_join_and_renew(fuse: Fuse) {
    let mut leader = Leader::new(fuse).await;
    let before = leader.joins_logged();
    let node = |n: u128, token: &'static str| {
        let address = leader.address.clone();
        tokio::spawn(async move {
            let key = new_key();
            let wish = request(n, token, &key);
            joins(&address, &wish).await;
            let (cert, root) = joins(&address, &wish).await;
            let creds = credentials(key, cert, root).expect("it is for the key that was shown");
            assert_eq!(creds.identity.node().map(|(node, _)| node), Some(id(n)));
            insists(&address, |reply| {
                let (identity, observed_addr) = (Box::new(creds.identity.clone()), OBSERVED.to_owned());
                CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem: make_csr(&new_key()).unwrap(), reply }
            })
            .await;
        })
    };
    let (one, two) = (node(5, MANAGER), node(6, WORKER));
    leader.until(|| one.is_finished() && two.is_finished()).await;
    one.await.unwrap();
    two.await.unwrap();
    assert_eq!(leader.tables.nodes.len(), 3, "each has joined once");
    assert_eq!(leader.joins_logged(), before + 2);
    leader.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_it_crashes_whoever_asks_again_has_joined_once() {
    let points = at_every_point(two_join_and_renew).await;
    assert!(points > 20, "there were {points} crash points");
}

/// A node has lost its certificate's time and re-keys; a person gets a certificate. Both ask once more.
async fn one_re_keys_and_a_person_is_certified(fuse: Fuse) {
    let mut leader = Leader::new(fuse).await;
    let before = leader.joins_logged();
    let address = leader.address.clone();
    let node = tokio::spawn(async move {
        let (old, new) = (new_key(), new_key());
        let (cert, root) = joins(&address, &request(5, WORKER, &old)).await;
        let old_cert_pem = credentials(old.clone(), cert, root).unwrap().cert_pem;
        let mut wish = JoinRequest { request_id: RequestId(6), ..request(5, WORKER, &new) };
        let signature = prove_rekey(&old, &CsrKey::parse(&wish.csr_pem).unwrap()).unwrap();
        wish.rekey = Some(Rekey { old_cert_pem, signature });
        joins(&address, &wish).await;
        let (cert, root) = joins(&address, &wish).await;
        credentials(new, cert, root).expect("it is for the key that was shown last").identity
    });
    let address = leader.address.clone();
    let person = tokio::spawn(async move {
        let csr_pem = make_csr(&new_key()).unwrap();
        let make = |reply| CertAuthorityMsg::SignUser {
            name: "ann".parse().unwrap(),
            rights: UserRights::New { kind: UserKind::User, namespaces: vec!["shop".to_owned()] },
            lifetime_ms: None,
            csr_pem: csr_pem.clone(),
            by: Principal::Operator,
            request: RequestId(7),
            reply,
        };
        let first = insists(&address, make).await;
        (first, insists(&address, make).await)
    });
    leader.until(|| node.is_finished() && person.is_finished()).await;
    let identity = node.await.unwrap();
    assert_eq!(identity.subject, Subject::Node { node: id(5), role: Role::Worker });
    assert_eq!(leader.joins_logged(), before + 1, "who re-keys is the node that it was");
    let (_, last) = person.await.unwrap();
    let users: Vec<_> = leader.tables.users.values().map(|user| user.serial.clone()).collect();
    assert_eq!(users, [last.serial], "the certificate that is answered is the one that counts");
    leader.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_it_crashes_what_it_answered_last_is_the_certificate_that_counts() {
    let points = at_every_point(one_re_keys_and_a_person_is_certified).await;
    assert!(points > 20, "there were {points} crash points");
}
