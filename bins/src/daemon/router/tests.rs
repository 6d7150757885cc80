use std::collections::BTreeSet;

use muster_api::{ApiLimits, ApiPorts, LeaderPorts, NodeFacts, RETRY_PAUSE};
use muster_gateway::Dialer;
use muster_kernel::{Recipient, Tree, Undeliverable};
use muster_messages::protocol::Reply;
use muster_messages::wire::{ActorsAsk, ActorsCall, Request, SeatReply};
use muster_messages::{CrashHow, FEATURE_LEVEL, NodeRecord, Principal, RaftId, RequestId, RoleView, WallTime};
use muster_raft_member::ObjectFeed;
use muster_tests::{PATIENCE, Probe, Universe, eventually};
use tokio::sync::watch;

use super::*;

/// A call to another manager, as the mesh would carry it.
struct Sent {
    to: NodeId,
    reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

struct World {
    universe: Universe,
    router: Router,
    replica: watch::Sender<Arc<Replica>>,
    mesh: Probe<Sent>,
    roles: Probe<RoleManagerMsg>,
    incoming: mpsc::Sender<IncomingCall>,
}

const ROUTER: &str = "node/router";
const OWN: u128 = 1;
/// Another manager.
const OTHER: u128 = 9;

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}
fn seat_call() -> PeerCall {
    let request =
        wire::SeatRequest { advertise: String::new(), held: None, data_lost: None, feature_level: FEATURE_LEVEL };
    PeerCall::Seat { node: node(7), request }
}
fn no_such_actor<P: Send + 'static>() -> Recipient<P> {
    Recipient::new(|_| Err(Undeliverable::Down))
}
fn code(answer: Result<Vec<u8>, ErrorBody>) -> ErrorCode {
    let error = answer.unwrap_err();
    assert!(error.retry_after_ms.is_some(), "it says when to ask again: {error}");
    error.code
}

impl World {
    /// The router of node 1, which follows this node, or leads.
    async fn new(leader: Option<u128>) -> Self {
        let universe = Universe::start().await;
        let (replica, mesh, roles) = (
            watch::Sender::new(Arc::new(Replica::default())),
            Probe::showing("mesh", |sent: &Sent| sent.to.to_string()),
            universe.probe("roles"),
        );
        let ports = Arc::new(ManagerPorts {
            node: node(OWN),
            replica: replica.subscribe(),
            feed: ObjectFeed::default(),
            raft: no_such_actor(),
            mesh: no_such_actor(),
            sessions: no_such_actor(),
            peers: Arc::new(BTreeSet::new),
            leader: LeaderPorts {
                roles: roles.recipient(),
                authority: no_such_actor(),
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
            limits: ApiLimits::default(),
        });
        let to_mesh = mesh.recipient();
        let peers: PeerCalls = Arc::new(move |to, patience, _call| {
            let to_mesh = to_mesh.clone();
            Box::pin(async move { to_mesh.ask(patience, |reply| Sent { to, reply }).await.map_err(ErrorBody::from)? })
        });
        let router = Router::new(api, ports, peers);
        let (incoming, calls) = mpsc::channel(2 * IN_PROGRESS);
        universe.start_actor(router.spec(calls));
        universe.healthy(ROUTER, 1).await;
        let world = Self { universe, router, replica, mesh, roles, incoming };
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
        let record = NodeRecord::new(node(n), format!("n{n}").parse().unwrap(), role, WallTime(0));
        self.replica.send_modify(|replica| {
            Arc::make_mut(replica).tables.nodes.insert(node(n), Arc::new(record));
        });
    }
    /// Asks the leader, wherever it is.
    fn asks(&self) -> tokio::task::JoinHandle<Result<Vec<u8>, ErrorBody>> {
        tokio::spawn(LeaderCalls::call(&self.router, seat_call()))
    }
    /// Another manager asks this one.
    async fn asked(&self) -> tokio::sync::oneshot::Receiver<Result<Vec<u8>, ErrorBody>> {
        self.asked_by(OTHER, seat_call()).await
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
    /// The role manager answers the next question with this seat.
    async fn seats(&mut self, seat: u64) -> NodeId {
        let msg = self.roles.next("a request for a seat").await;
        let RoleManagerMsg::RequestSeat { node, reply, .. } = msg else { panic!("{}", msg.name()) };
        reply.send(Ok(SeatReply::Seated { raft_id: RaftId(seat) })).unwrap();
        node
    }
    async fn in_progress(&self, n: usize) {
        let holds = |actor: &muster_messages::ActorNode| actor.view["in_progress"].as_u64() == Some(n as u64);
        self.universe.until(ROUTER, &format!("{n} in progress"), holds).await;
    }
}

fn seat_in(answer: Result<Vec<u8>, ErrorBody>) -> SeatReply {
    wire::decode(&answer.unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn whoever_leads_answers_the_leader_itself_or_another() {
    let mut world = World::new(Some(OWN)).await;
    let asked = world.asks();
    assert_eq!(world.seats(3).await, node(7));
    assert_eq!(seat_in(asked.await.unwrap()), SeatReply::Seated { raft_id: RaftId(3) });
    world.led_by(Some(2));
    let asked = world.asks();
    let sent = world.mesh.next("a call to n2").await;
    assert_eq!(sent.to, node(2));
    sent.reply.send(Ok(b"as n2 says".to_vec())).unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), b"as n2 says");
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_outlives_an_election_and_is_asked_again_of_the_next_leader() {
    let mut world = World::new(Some(2)).await;
    let asked = world.asks();
    // A frozen leader says nothing; its connection takes seconds to be given up.
    let unanswered = world.mesh.next("a call to n2").await;
    world.led_by(None);
    tokio::time::sleep(LIMIT / 2).await;
    world.led_by(Some(3));
    let sent = world.mesh.next("a call to n3").await;
    assert_eq!(sent.to, node(3));
    sent.reply.send(Ok(Vec::new())).unwrap();
    assert_eq!(asked.await.unwrap().unwrap(), b"");
    drop(unanswered);
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_leader_is_told_so_after_ten_seconds_and_when_to_ask_again() {
    let world = World::new(None).await;
    let began = Instant::now();
    assert_eq!(code(world.asks().await.unwrap()), ErrorCode::Unreachable);
    assert!((LIMIT - RETRY_PAUSE..LIMIT + RETRY_PAUSE).contains(&began.elapsed()), "{:?}", began.elapsed());
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_leader_is_the_answer() {
    let mut world = World::new(Some(2)).await;
    let asked = world.asks();
    let refusal = ErrorBody::new(ErrorCode::Forbidden, "not for you");
    world.mesh.next("a call").await.reply.send(Err(refusal)).unwrap();
    assert_eq!(asked.await.unwrap().unwrap_err().code, ErrorCode::Forbidden);
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_and_whose_actor_is_restarting_says_ask_again() {
    let mut world = World::new(Some(2)).await;
    assert_eq!(code(world.asked().await.await.unwrap()), ErrorCode::Unreachable);
    world.led_by(Some(OWN));
    world.roles.refuse(Undeliverable::Down);
    assert_eq!(code(world.asked().await.await.unwrap()), ErrorCode::Unreachable);
    world.roles.accept();
    let answer = world.asked().await;
    world.seats(4).await;
    assert_eq!(seat_in(answer.await.unwrap()), SeatReply::Seated { raft_id: RaftId(4) });
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn more_calls_than_it_has_places_for_are_refused_and_places_come_back() {
    let mut world = World::new(Some(OWN)).await;
    let mut held = Vec::new();
    for _ in 0..IN_PROGRESS {
        held.push(world.asked().await);
    }
    world.in_progress(IN_PROGRESS).await;
    assert_eq!(code(world.asked().await.await.unwrap()), ErrorCode::TooManyRequests);
    for _ in 0..IN_PROGRESS {
        world.seats(5).await;
    }
    for answer in held {
        assert_eq!(seat_in(answer.await.unwrap()), SeatReply::Seated { raft_id: RaftId(5) });
    }
    world.in_progress(0).await;
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_router_that_crashed_leaves_nobody_waiting_and_takes_the_next_call() {
    let mut world = World::new(Some(OWN)).await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let waiting = world.asked().await;
        let unanswered = world.roles.next("what it was at").await;
        world.universe.crash(ROUTER, how);
        // The other manager hears at once that nobody will answer.
        assert!(tokio::time::timeout(PATIENCE, waiting).await.expect("it is not kept waiting").is_err());
        world.universe.healthy(ROUTER, incarnation).await;
        drop(unanswered);
        let next = world.asked().await;
        world.seats(incarnation).await;
        assert_eq!(seat_in(next.await.unwrap()), SeatReply::Seated { raft_id: RaftId(incarnation) });
    }
    eventually("nobody is left over", || world.mesh.waiting() == 0).await;
    world.universe.finish().await;
}

/// The mesh lets in who has a manager's certificate, also one that a copy does not know.
#[tokio::test(start_paused = true)]
async fn nothing_is_done_for_whom_the_own_copy_does_not_know_as_a_manager() {
    let world = World::new(Some(OWN)).await;
    world.knows(5, Role::Worker);
    let forged =
        |request| PeerCall::Api { caller: Principal::Operator, request_id: RequestId(1), timeout_ms: 1000, request };
    for stranger in [4, 5] {
        for call in [seat_call(), forged(Request::TokenShow { role: Role::Manager })] {
            let error = world.asked_by(stranger, call).await.await.unwrap().unwrap_err();
            assert_eq!(error.code, ErrorCode::Forbidden, "{error}");
        }
    }
    assert_eq!(world.roles.waiting(), 0);
    // A follower's copy may be too old to know, so it is not final; what followers answer is looked at no less.
    world.led_by(Some(2));
    let look = PeerCall::Actors(ActorsCall { node: node(OWN), ask: ActorsAsk::Tree });
    assert_eq!(code(world.asked_by(4, look).await.await.unwrap()), ErrorCode::NotKnownHereYet);
    world.universe.finish().await;
}
