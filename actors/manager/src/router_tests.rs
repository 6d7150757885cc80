use std::collections::BTreeSet;

use muster_api::{ApiLimits, ApiPorts, LeaderPorts, NodeFacts, RETRY_PAUSE};
use muster_gateway::Dialer;
use muster_kernel::{Recipient, Tree, Undeliverable};
use muster_messages::protocol::{Applied, CertAuthorityMsg, RaftMemberMsg, Reply, RoleManagerMsg};
use muster_messages::wire::{self, ActorsAsk, ActorsCall, MembershipReply, Request};
use muster_messages::{
    AutoUnlock, AutolockChange, CertIdentity, CertificatePin, Change, ClusterId, CrashHow, ErrorCode, FEATURE_LEVEL,
    Guard, Incarnation, NodeId, NodeRecord, Principal, RaftId, Replica, RequestId, Revision, Role, RoleView, Seal,
    Subject, WallTime,
};
use muster_raft_member::ObjectFeed;
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT, eventually};
use tokio::sync::watch;

use super::core::tests::granted_at;
use super::shell::MAX_CALLS_IN_PROGRESS;
use super::*;

/// A call to another manager, as the mesh would carry it.
struct Sent {
    to: NodeId,
    reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

struct World {
    harness: ActorHarness,
    router: Router,
    replica: watch::Sender<Arc<Replica>>,
    mesh: Probe<Sent>,
    roles: Probe<RoleManagerMsg>,
    raft: Probe<RaftMemberMsg>,
    authority: Probe<CertAuthorityMsg>,
    incoming: mpsc::Sender<IncomingCall>,
}

const ROUTER: &str = "node/router";
const OWN: u128 = 1;
/// Another manager.
const OTHER: u128 = 9;

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}
fn membership_call() -> PeerCall {
    let request =
        wire::MembershipRequest { advertise: String::new(), held: None, data_lost: None, feature_level: FEATURE_LEVEL };
    PeerCall::Membership { node: node(7), request }
}
fn no_such_actor<P: Send + 'static>() -> Recipient<P> {
    Recipient::new(|_| Err(Undeliverable::Down))
}
fn code(answer: Result<Vec<u8>, ErrorBody>) -> ErrorCode {
    let error = answer.unwrap_err();
    assert!(error.retry_after_ms.is_some(), "it names a time to retry: {error}");
    error.code
}

impl World {
    /// The router of node 1, with this leader.
    async fn new(leader: Option<u128>) -> Self {
        let harness = ActorHarness::start().await;
        let (replica, mesh, roles) = (
            watch::Sender::new(Arc::new(Replica::default())),
            Probe::showing("mesh", |sent: &Sent| sent.to.to_string()),
            harness.probe("roles"),
        );
        let (to_mesh, raft) = (mesh.recipient(), harness.probe("raft-member"));
        let authority = harness.probe("cert-authority");
        let ports = Arc::new(ManagerPorts {
            node: node(OWN),
            replica: replica.subscribe(),
            cluster_replica: replica.subscribe(),
            feed: ObjectFeed::default(),
            raft: raft.recipient(),
            call: Arc::new(move |to, timeout, _call| {
                let to_mesh = to_mesh.clone();
                Box::pin(
                    async move { to_mesh.ask(timeout, |reply| Sent { to, reply }).await.map_err(ErrorBody::from)? },
                )
            }),
            sessions: no_such_actor(),
            peers: Arc::new(BTreeSet::new),
            leader: LeaderPorts {
                roles: roles.recipient(),
                authority: authority.recipient(),
                rotation: no_such_actor(),
                autopilot: no_such_actor(),
                dispatcher: no_such_actor(),
                elections: no_such_actor(),
                view: watch::channel(Arc::new(RoleView::default())).1,
                doubts: watch::channel(Arc::default()).1,
            },
        });
        let api = Api::new(ApiPorts {
            facts: Arc::new(|| NodeFacts {
                id: node(OWN),
                name: "n1".parse().unwrap(),
                role: Role::Manager,
                managers: Vec::new(),
                cluster: String::new(),
                root_pem: String::new(),
                trouble: None,
            }),
            open_admission: Arc::new(|| Ok(true)),
            manager: watch::channel(Some(Arc::clone(&ports))).1,
            tree: Tree::new(),
            dialer: Dialer::anonymous(""),
            crash_allowed: false,
            audit: muster_audit::AuditLog::default(),
            explain_workloads: None,
            certificate_lifetime: None,
            run_logs: None,
            locked: None,
            limits: ApiLimits::default(),
            metrics: Arc::new(|_| Box::pin(async { Err(ErrorBody::forbidden("no metrics in tests")) })),
        });
        let router = Router::new(api, ports);
        let (incoming, calls) = mpsc::channel(2 * MAX_CALLS_IN_PROGRESS);
        harness.start_actor(router.spec(calls));
        harness.healthy(ROUTER, 1).await;
        let world = Self { harness, router, replica, mesh, roles, raft, authority, incoming };
        world.knows(OTHER, Role::Manager);
        world.led_by(leader);
        world
    }
    fn led_by(&self, leader: Option<u128>) {
        self.replica.send_modify(|replica| {
            let raft = &mut Arc::make_mut(replica).raft;
            raft.leading = leader == Some(OWN);
            raft.leader = leader.map(|n| RaftId(n as u64));
            raft.leader_node = leader.map(node);
        });
    }
    fn knows(&self, n: u128, role: Role) {
        let named = NodeRecord::new(node(n), format!("n{n}").parse().unwrap(), role, WallTime(0));
        let record = NodeRecord {
            role,
            desired_role: role,
            id: node(n),
            name: named.name,
            ..granted_at(5, Some((role, Some(5))))
        };
        self.replica.send_modify(|replica| {
            Arc::make_mut(replica).tables.nodes.insert(node(n), Arc::new(record));
        });
    }
    /// Asks the leader, wherever it is.
    fn asks(&self) -> tokio::task::JoinHandle<Result<Vec<u8>, ErrorBody>> {
        tokio::spawn(LeaderCalls::call(&self.router, membership_call()))
    }
    /// Another manager asks this one.
    async fn asked(&self) -> tokio::sync::oneshot::Receiver<Result<Vec<u8>, ErrorBody>> {
        self.asked_by(OTHER, membership_call()).await
    }
    async fn asked_by(
        &self,
        forwarder: u128,
        call: PeerCall,
    ) -> tokio::sync::oneshot::Receiver<Result<Vec<u8>, ErrorBody>> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let call = IncomingCall { forwarder: node(forwarder), call, reply: reply.into() };
        self.incoming.send(call).await.expect("the router's queue is there");
        answer
    }
    /// The role manager answers the next request with this member id.
    async fn answer_membership(&mut self, member_id: u64) -> NodeId {
        let msg = self.roles.next("a membership request").await;
        let RoleManagerMsg::RequestMembership { node, reply, .. } = msg else { panic!("{}", msg.name()) };
        reply.send(Ok(MembershipReply::IsMember { raft_id: RaftId(member_id) })).unwrap();
        node
    }
    async fn in_progress(&self, n: usize) {
        let holds = |actor: &muster_messages::ActorNode| actor.view["in_progress"].as_u64() == Some(n as u64);
        self.harness.until(ROUTER, &format!("{n} in progress"), holds).await;
    }
}

fn reply_in(answer: Result<Vec<u8>, ErrorBody>) -> MembershipReply {
    wire::decode(&answer.unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn leader_call_is_answered_locally_or_forwarded() {
    let mut world = World::new(Some(OWN)).await;
    let asked = world.asks();
    assert_eq!(world.answer_membership(3).await, node(7));
    assert_eq!(reply_in(asked.await.unwrap()), MembershipReply::IsMember { raft_id: RaftId(3) });
    world.led_by(Some(2));
    let asked = world.asks();
    let sent = world.mesh.next("a call to n2").await;
    assert_eq!(sent.to, node(2));
    sent.reply.send(Ok(b"as n2 says".to_vec())).unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), b"as n2 says");
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn call_survives_an_election_and_reaches_the_next_leader() {
    let mut world = World::new(Some(2)).await;
    let asked = world.asks();
    // A frozen leader does not answer; its connection takes seconds to time out.
    let unanswered = world.mesh.next("a call to n2").await;
    world.led_by(None);
    tokio::time::sleep(PEER_CALL_TIMEOUT / 2).await;
    world.led_by(Some(3));
    let sent = world.mesh.next("a call to n3").await;
    assert_eq!(sent.to, node(3));
    sent.reply.send(Ok(Vec::new())).unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), b"");
    drop(unanswered);
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn call_without_leader_fails_after_ten_seconds_with_retry() {
    let world = World::new(None).await;
    let began = Instant::now();
    assert_eq!(code(world.asks().await.unwrap()), ErrorCode::Unreachable);
    assert!(
        (PEER_CALL_TIMEOUT - RETRY_PAUSE..PEER_CALL_TIMEOUT + RETRY_PAUSE).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_leader_is_the_answer() {
    let mut world = World::new(Some(2)).await;
    let asked = world.asks();
    let refusal = ErrorBody::new(ErrorCode::Forbidden, "not for you");
    world.mesh.next("a call").await.reply.send(Err(refusal)).unwrap();
    assert_eq!(asked.await.unwrap().unwrap_err().code, ErrorCode::Forbidden);
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn follower_and_restarting_actor_answer_with_retry() {
    let mut world = World::new(Some(2)).await;
    assert_eq!(code(world.asked().await.await.unwrap()), ErrorCode::Unreachable);
    world.led_by(Some(OWN));
    world.roles.refuse(Undeliverable::Down);
    assert_eq!(code(world.asked().await.await.unwrap()), ErrorCode::Unreachable);
    world.roles.accept();
    // It ends with the request, whose caller may repeat it: as if no leader had been found.
    let answer = world.asked().await;
    drop(world.roles.next("a membership request").await);
    assert_eq!(code(answer.await.unwrap()), ErrorCode::Unreachable);
    let answer = world.asked().await;
    world.answer_membership(4).await;
    assert_eq!(reply_in(answer.await.unwrap()), MembershipReply::IsMember { raft_id: RaftId(4) });
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_permits_are_refused() {
    let mut world = World::new(Some(OWN)).await;
    let mut held = Vec::new();
    for _ in 0..MAX_CALLS_IN_PROGRESS {
        held.push(world.asked().await);
    }
    world.in_progress(MAX_CALLS_IN_PROGRESS).await;
    assert_eq!(code(world.asked().await.await.unwrap()), ErrorCode::TooManyRequests);
    for _ in 0..MAX_CALLS_IN_PROGRESS {
        world.answer_membership(5).await;
    }
    for answer in held {
        assert_eq!(reply_in(answer.await.unwrap()), MembershipReply::IsMember { raft_id: RaftId(5) });
    }
    world.in_progress(0).await;
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crashed_router_leaves_no_caller_waiting() {
    let mut world = World::new(Some(OWN)).await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let waiting = world.asked().await;
        let unanswered = world.roles.next("the call in progress").await;
        world.harness.crash(ROUTER, how);
        // The other manager learns at once that no answer will come.
        assert!(tokio::time::timeout(WAIT_LIMIT, waiting).await.expect("the caller does not wait").is_err());
        world.harness.healthy(ROUTER, incarnation).await;
        drop(unanswered);
        let next = world.asked().await;
        world.answer_membership(incarnation).await;
        assert_eq!(reply_in(next.await.unwrap()), MembershipReply::IsMember { raft_id: RaftId(incarnation) });
    }
    eventually("no call is left over", || world.mesh.waiting() == 0).await;
    world.harness.finish().await;
}

/// A report names no node: it concerns its sender.
#[tokio::test(start_paused = true)]
async fn managers_report_only_their_own_keyring() {
    let mut world = World::new(Some(OWN)).await;
    let seal = Seal { version: Revision(7), sealed: true, files_sealed: true, unlock: AutoUnlock::None };
    let answer = world.asked_by(OTHER, PeerCall::ReportSeal(seal)).await;
    let RaftMemberMsg::Propose { command, reply, .. } = world.raft.next("a proposal").await else {
        panic!("another message")
    };
    let change = Change::Autolock(Box::new(AutolockChange::Sealed { node: node(OTHER), seal }));
    assert_eq!((&command.changes[..], &command.by), (&[change][..], &Principal::Cluster));
    assert_eq!(
        command.guards,
        [Guard::Granted { node: node(OTHER), granted: Revision(5) }],
        "it counts for this grant"
    );
    reply.send(Ok(Applied { revision: Revision(9) })).unwrap();
    assert_eq!(answer.await.unwrap().unwrap(), b"");
    // A worker's report does not get that far.
    world.knows(5, Role::Worker);
    let refused = world.asked_by(5, PeerCall::ReportSeal(seal)).await.await.unwrap().unwrap_err();
    assert_eq!((refused.code, world.raft.waiting()), (ErrorCode::Forbidden, 0));
    world.harness.finish().await;
}

/// Of a worker that asks for a certificate.
fn asking_worker() -> CertIdentity {
    CertIdentity {
        cluster: ClusterId::from_entropy(1),
        subject: Subject::Node { node: node(7), role: Role::Worker },
        serial: "aa".to_owned(),
        granted: None,
        incarnation: Incarnation(1),
        not_after: WallTime(9),
        pin: None,
        issuer: None,
    }
}

const PIN: CertificatePin = CertificatePin { fingerprint: [3; 32], key: [4; 32] };

/// Builds of feature level 2 send none; the authority decides whether that is enough.
#[tokio::test(start_paused = true)]
async fn node_request_reaches_the_authority_with_its_pin() {
    let mut world = World::new(Some(OWN)).await;
    let (observed_addr, csr_pem) = ("192.0.2.7:1".to_owned(), "CSR".to_owned());
    let (seen, csr) = (observed_addr.clone(), csr_pem.clone());
    let pinned = PeerCall::SignPinned { identity: asking_worker(), pin: PIN, observed_addr: seen, csr_pem: csr };
    let (seen, csr) = (observed_addr.clone(), csr_pem.clone());
    let plain = PeerCall::SignNode { identity: asking_worker(), observed_addr: seen, csr_pem: csr };
    for (call, pin) in [(pinned, Some(PIN)), (plain, None)] {
        let answer = world.asked_by(OTHER, call).await;
        let CertAuthorityMsg::SignNode { identity, observed_addr: addr, csr_pem: csr, reply } =
            world.authority.next("a request").await
        else {
            panic!("another message")
        };
        assert_eq!(*identity, CertIdentity { pin, ..asking_worker() });
        assert_eq!((&addr, &csr), (&observed_addr, &csr_pem));
        reply.send(Err(ErrorBody::forbidden("not this one"))).unwrap();
        assert_eq!(answer.await.unwrap().unwrap_err().code, ErrorCode::Forbidden);
    }
    world.harness.finish().await;
}

/// A pin does not travel with an identity: it has a field of its own.
#[tokio::test(start_paused = true)]
async fn workload_request_reaches_the_authority_with_its_pin() {
    let mut world = World::new(Some(OWN)).await;
    let (identity, pin) = (asking_worker(), Some(PIN));
    let request = wire::WorkloadRequest::certificate("shop/web".parse().unwrap(), vec![0x30, 7]);
    let call = PeerCall::SignWorkload { identity: identity.clone(), pin, request: request.clone() };
    let answer = world.asked_by(OTHER, call).await;
    let CertAuthorityMsg::SignWorkload { identity: asking, request: passed, reply } =
        world.authority.next("a request").await
    else {
        panic!("another message")
    };
    assert_eq!((*asking, passed), (CertIdentity { pin, ..identity }, request));
    let signed = wire::SignedWorkload { text: "PEM".to_owned(), not_after: WallTime(9) };
    reply.send(Ok(signed.clone())).unwrap();
    assert_eq!(wire::decode::<wire::SignedWorkload>(&answer.await.unwrap().unwrap()), Ok(signed));
    world.harness.finish().await;
}

/// The mesh admits any node with a manager's certificate, also one that a replica does not know.
#[tokio::test(start_paused = true)]
async fn calls_from_unknown_managers_are_refused() {
    let world = World::new(Some(OWN)).await;
    world.knows(5, Role::Worker);
    let forged =
        |request| PeerCall::Api { caller: Principal::Operator, request_id: RequestId(1), timeout_ms: 1000, request };
    for sender in [4, 5] {
        for call in [membership_call(), forged(Request::TokenShow { role: Role::Manager })] {
            let error = world.asked_by(sender, call).await.await.unwrap().unwrap_err();
            assert_eq!(error.code, ErrorCode::Forbidden, "{error}");
        }
    }
    assert_eq!(world.roles.waiting(), 0);
    // A follower's replica may be outdated, so its refusal is not final; calls that followers answer are checked the same way.
    world.led_by(Some(2));
    let look = PeerCall::Actors(ActorsCall { node: node(OWN), ask: ActorsAsk::Tree });
    assert_eq!(code(world.asked_by(4, look).await.await.unwrap()), ErrorCode::NotKnownHereYet);
    world.harness.finish().await;
}
