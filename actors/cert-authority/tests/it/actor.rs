//! The actor itself under a real supervisor, with a stand-in for the Raft member.
use std::sync::{Arc, Mutex};

use crate::world::{MANAGER, WORKER, World, id, key, presented};
use muster_cert_authority::{CertAuthorityShell, Config, Msg};
use muster_kernel::{Address, AskError, Fuse, Spec};
use muster_messages::protocol::{Applied, CertAuthorityMsg, ProposeError, RaftMemberMsg, ReadError, UserRights};
use muster_messages::wire::{JoinReply, JoinRequest, Rekey, SignReply, WorkloadRequest};
use muster_messages::*;
use muster_pki::*;
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT, answered, at_every_point, insisting_until_known};
use tokio::sync::watch;

const PATH: &str = "node/cert-authority";
const OBSERVED: &str = "10.0.0.9:50000";

struct Running {
    harness: ActorHarness,
    address: Address<Msg>,
    /// Proposals made while `frozen` wait here.
    _raft: Probe<RaftMemberMsg>,
    frozen: Arc<Mutex<bool>>,
    replica: watch::Receiver<Arc<Replica>>,
}

async fn start() -> Running {
    let mut tables = World::new().log;
    let (publish, replica) = watch::channel(replica_of(&tables));
    let (harness, frozen) = (ActorHarness::start().await, Arc::new(Mutex::new(false)));
    let (raft, is_frozen) = (harness.probe("raft-member"), Arc::clone(&frozen));
    // Applies proposals, and publishes the replica only after the answer: the hardest order for the actor.
    raft.on(move |msg| match msg {
        RaftMemberMsg::Propose { command, reply, .. } if !*is_frozen.lock().unwrap() => {
            let revision = tables.revision.next();
            let result = muster_store::apply(&mut tables, revision, &command);
            let taken = answered(reply, result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
            publish.send_replace(replica_of(&tables));
            taken
        }
        other => Some(other),
    });
    let (address, to_raft, replicas) = (Address::<Msg>::new(64), raft.recipient(), replica.clone());
    harness.start_actor(Spec::actor("cert-authority", address.clone(), move || {
        Ok(CertAuthorityShell::new(Config::default(), to_raft.clone(), replicas.clone()))
    }));
    harness.healthy(PATH, 1).await;
    Running { harness, address, _raft: raft, frozen, replica }
}

impl Running {
    async fn until(&self, holds: impl Fn(&ActorNode) -> bool) {
        self.harness.until(PATH, "as the test has it", holds).await;
    }
    async fn join(&self, request: JoinRequest) -> Result<Result<JoinReply, ErrorBody>, AskError> {
        let request = Box::new(request);
        let make = |reply| CertAuthorityMsg::Join { observed_addr: OBSERVED.into(), request, reply }.into();
        self.address.ask(WAIT_LIMIT, make).await
    }
    async fn sign(&self, identity: CertIdentity, csr_pem: String) -> Result<SignReply, ErrorBody> {
        let identity = Box::new(identity);
        let observed_addr = OBSERVED.to_owned();
        let make = |reply| CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply }.into();
        self.address.ask(WAIT_LIMIT, make).await.unwrap()
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
    let mut second = request(5, MANAGER, &last);
    second.request_id = RequestId(6);
    let proof = prove_rekey(&next, &CsrKey::parse(&second.csr_pem).unwrap()).unwrap();
    second.rekey = Some(Rekey { old_cert_pem: renewed.cert_pem, signature: proof });
    let (cert, root) = joined(ca.join(second.clone()).await.unwrap());
    let rekeyed = credentials(last, cert, root).unwrap();
    assert_eq!(rekeyed.identity.subject, creds.identity.subject);

    second.rekey = second.rekey.map(|r| Rekey { signature: vec![1], ..r });
    assert_eq!(ca.join(second.clone()).await.unwrap().unwrap_err().code, ErrorCode::Unauthenticated);
    second.node = id(7);
    assert_eq!(ca.join(second).await.unwrap().unwrap_err().code, ErrorCode::Unauthenticated);
    ca.harness.finish().await;
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
    ca.harness.finish().await;
}

#[tokio::test]
async fn crash_closes_the_ports_and_a_retry_is_the_same_join() {
    let mut ca = start().await;
    let key = new_key();
    *ca.frozen.lock().unwrap() = true;
    let cert_request = request(5, WORKER, &key);
    let (address, first) = (ca.address.clone(), Box::new(cert_request.clone()));
    let first = tokio::spawn(async move {
        let make = |reply| CertAuthorityMsg::Join { observed_addr: OBSERVED.into(), request: first, reply }.into();
        address.ask(WAIT_LIMIT, make).await
    });
    ca.until(|node| node.view["pending"][0]["phase"] == "admitting").await;
    ca.harness.crash(PATH, CrashHow::Panic);
    let first = first.await.unwrap();
    assert_eq!(first.unwrap_err(), AskError::Closed);
    *ca.frozen.lock().unwrap() = false;
    ca.harness.healthy(PATH, 2).await;
    joined(ca.join(cert_request.clone()).await.unwrap());
    joined(ca.join(cert_request).await.unwrap());
    assert_eq!(ca.replica.borrow().tables.nodes.len(), 2);
    ca.until(|node| node.view["issued"] == 2 && node.view["pending"] == serde_json::json!([])).await;
    let text = serde_json::to_string(&ca.harness.tree().snapshot().await).unwrap();
    assert!(!text.contains(WORKER) && !text.contains("PRIVATE"));
    ca.harness.finish().await;
}

/// A leader around an authority that crashes at the fuse's point, or before, during or after a proposal of the Raft member.
struct Leader {
    harness: ActorHarness,
    address: Address<Msg>,
    raft: Probe<RaftMemberMsg>,
    tables: Tables,
    publish: watch::Sender<Arc<Replica>>,
    fuse: Fuse,
}

impl Leader {
    async fn new(fuse: Fuse) -> Self {
        let tables = World::new().log;
        let (publish, replica) = watch::channel(replica_of(&tables));
        let mut harness = ActorHarness::start().await;
        let raft = harness.probe("raft-member");
        let (address, to_raft) = (Address::<Msg>::new(64), raft.recipient());
        harness.start_actor(Spec::actor("cert-authority", address.clone(), move || {
            Ok(CertAuthorityShell::new(Config::default(), to_raft.clone(), replica.clone()))
        }));
        harness.healthy(PATH, 1).await;
        harness.crash_at(PATH, &fuse);
        Self { harness, address, raft, tables, publish, fuse }
    }
    /// Applies proposals until every requester has its answer.
    async fn until(&mut self, all_answered: impl Fn() -> bool) {
        while !all_answered() {
            let asked = tokio::time::timeout(std::time::Duration::from_millis(5), self.raft.next("a proposal")).await;
            let Ok(RaftMemberMsg::Propose { command, reply, .. }) = asked else { continue };
            self.harness.point(PATH, &self.fuse);
            let revision = self.tables.revision.next();
            let result = muster_store::apply(&mut self.tables, revision, &command);
            self.harness.point(PATH, &self.fuse);
            let _gone = reply.send(result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
            self.publish.send_replace(replica_of(&self.tables));
            self.harness.point(PATH, &self.fuse);
        }
    }
    fn joins_logged(&self) -> usize {
        self.tables.events.iter().filter(|event| event.kind == EventKind::Node).count()
    }
}

fn replica_of(tables: &Tables) -> Arc<Replica> {
    Arc::new(Replica { tables: tables.clone(), raft: RaftStatus::default() })
}

async fn join_until_answered(address: &Address<Msg>, cert_request: &JoinRequest) -> (String, String) {
    let make = |reply| CertAuthorityMsg::Join {
        observed_addr: OBSERVED.into(),
        request: Box::new(cert_request.clone()),
        reply,
    };
    joined(Ok(insisting_until_known(address, make).await))
}

/// Two nodes join at once, each until it is answered, and then once more; then both renew.
async fn two_join_and_renew(fuse: Fuse) {
    let mut leader = Leader::new(fuse).await;
    let before = leader.joins_logged();
    let node = |n: u128, token: &'static str| {
        let address = leader.address.clone();
        tokio::spawn(async move {
            let key = new_key();
            let cert_request = request(n, token, &key);
            join_until_answered(&address, &cert_request).await;
            let (cert, root) = join_until_answered(&address, &cert_request).await;
            let creds = credentials(key, cert, root).expect("it is for the requested key");
            assert_eq!(creds.identity.node().map(|(node, _)| node), Some(id(n)));
            insisting_until_known(&address, |reply| {
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
    leader.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn at_every_crash_point_a_retried_join_joins_once() {
    let points = at_every_point(two_join_and_renew).await;
    assert!(points > 20, "there were {points} crash points");
}

/// A node whose certificate is lost re-keys; a person gets a certificate. Both ask once more.
async fn one_re_keys_and_a_person_is_certified(fuse: Fuse) {
    let mut leader = Leader::new(fuse).await;
    let before = leader.joins_logged();
    let address = leader.address.clone();
    let node = tokio::spawn(async move {
        let (old, new) = (new_key(), new_key());
        let (cert, root) = join_until_answered(&address, &request(5, WORKER, &old)).await;
        let old_cert_pem = credentials(old.clone(), cert, root).unwrap().cert_pem;
        let mut cert_request = JoinRequest { request_id: RequestId(6), ..request(5, WORKER, &new) };
        let signature = prove_rekey(&old, &CsrKey::parse(&cert_request.csr_pem).unwrap()).unwrap();
        cert_request.rekey = Some(Rekey { old_cert_pem, signature });
        join_until_answered(&address, &cert_request).await;
        let (cert, root) = join_until_answered(&address, &cert_request).await;
        credentials(new, cert, root).expect("it is for the newest key").identity
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
        let first = insisting_until_known(&address, make).await;
        (first, insisting_until_known(&address, make).await)
    });
    leader.until(|| node.is_finished() && person.is_finished()).await;
    let identity = node.await.unwrap();
    assert_eq!(identity.subject, Subject::Node { node: id(5), role: Role::Worker });
    assert_eq!(leader.joins_logged(), before + 1, "a re-keyed node keeps its identity");
    let (_, last) = person.await.unwrap();
    let users: Vec<_> = leader.tables.users.values().map(|user| user.serial.clone()).collect();
    assert_eq!(users, [last.serial], "the answered certificate is the valid one");
    leader.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn at_every_crash_point_the_last_answered_certificate_counts() {
    let points = at_every_point(one_re_keys_and_a_person_is_certified).await;
    assert!(points > 20, "there were {points} crash points");
}

/// SPIFFE-1. A manager that was cut off or suspended has the entries of its time, and nothing of a workload is proposed.
#[tokio::test]
async fn workload_is_answered_by_a_state_read_after_signing() {
    let mut world = World::new();
    world.add(2, Role::Worker);
    world.set_workload(WorkloadEntry::new("shop/web".parse().unwrap(), [WorkloadSelector::UnixUid(1000)]));
    let serial = world.newest(2).unwrap().serial.clone();
    let (_publish, replica) = watch::channel(replica_of(&world.log));
    let harness = ActorHarness::start().await;
    let mut raft: Probe<RaftMemberMsg> = harness.probe("raft-member");
    let (address, to_raft) = (Address::<Msg>::new(64), raft.recipient());
    harness.start_actor(Spec::actor("cert-authority", address.clone(), move || {
        Ok(CertAuthorityShell::new(Config::default(), to_raft.clone(), replica.clone()))
    }));
    harness.healthy(PATH, 1).await;
    let removal = Change::Workload(Box::new(WorkloadChange::Remove("shop/web".parse().unwrap())));
    let before = replica_of(&world.log);
    world.change(removal);
    let cases = [
        (Ok(before), Ok(())),
        (
            Err(ReadError::Busy),
            Err((ErrorCode::TooManyRequests, "the certificate is withheld: too many reads in flight; retry")),
        ),
        (
            Err(ReadError::TimedOut),
            Err((ErrorCode::TimedOut, "the certificate is withheld: the read was not confirmed in time; retry")),
        ),
        (Err(ReadError::NoLeader), Err((ErrorCode::NoQuorum, "the certificate is withheld: no leader known; retry"))),
        (
            Ok(replica_of(&world.log)),
            Err((ErrorCode::NotFound, "no such workload: shop/web; `muster workload ls` lists them")),
        ),
    ];
    for (read, expected) in cases {
        let (address, serial) = (address.clone(), serial.clone());
        let asked = tokio::spawn(async move {
            let not_after = muster_kernel::Clock.wall().plus(std::time::Duration::from_secs(3600));
            let identity = Box::new(CertIdentity { not_after, ..presented(2, Role::Worker, &serial) });
            let workload = "shop/web".parse().unwrap();
            let request = WorkloadRequest::certificate(workload, key().spki().to_vec());
            let make = |reply| CertAuthorityMsg::SignWorkload { identity, request, reply }.into();
            address.ask(WAIT_LIMIT, make).await.unwrap()
        });
        let RaftMemberMsg::Read { reply, .. } = raft.next("a read").await else { panic!("nothing is proposed") };
        harness.until(PATH, "visible", |node| node.view["pending"][0]["phase"] == "confirming").await;
        reply.send(read).unwrap();
        let answer = asked.await.unwrap();
        let answer = answer.map(|signed| assert!(signed.text.contains("BEGIN CERTIFICATE")));
        assert_eq!(answer.as_ref().map(drop).map_err(|e| (e.code, &*e.message)), expected);
    }
    harness.until(PATH, "counted once", |node| node.view["workloads"] == 1).await;
    harness.finish().await;
}
