//! The worst combined attack with one certificate: every kind of request and partial request, at every
//! manager, at full speed. The test checks what an operator experiences meanwhile.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_client::{CallError, Connection};
use muster_gateway::{BoxStream, Framed};
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::wire::{
    AGENT_PROTOCOL, AgentAsk, AgentFrame, AgentHello, ApiCall, JoinFrame, JoinReply, JoinRequest, LeaseRef,
    LeaseRequest, ReconcilerRequest, Request,
};
use muster_messages::{
    FencingToken, NodeId, Participant, ParticipantKey, ParticipantPhase, RequestId, Revision, Role, Secret, SessionId,
    WallTime,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::caller::{ANSWER_TIMEOUT, Caller};
use crate::pause::scenario_pause;

/// Limits per address count the attackers apart from the nodes that join meanwhile.
const ATTACKERS_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// How long a partial request is held open.
const HOLD_TIME: Duration = Duration::from_secs(8);
/// Pause after a refused connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// Leases, config maps and request ids in use: what is stored is bounded, the load on it is not.
const NAMES: u64 = 32;
const IDS: u64 = 4096;
/// Bytes of a config map, nearly the maximum.
const CONFIG_MAP_BYTES: usize = 250_000;

/// One kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SiegeKind {
    /// A lease is repeatedly acquired and released: two entries and an event each time.
    Leases,
    /// The same, under request ids that other callers may use, and one id for several requests.
    TakenIds,
    /// Operator-only requests.
    Forbidden,
    /// Long polls, hundreds on each connection, whose answers are not read.
    UnreadPolls,
    /// Unread watches of the Kubernetes subset.
    UnreadWatches,
    /// Partial frames, headers and bodies that are never completed.
    HalfSent,
    /// Config maps of the largest size.
    LargeBodies,
    /// Agent sessions, each with 64 new labels and another release.
    Hellos,
    /// Requests for a certificate.
    Certificates,
    /// Members of a scope that start to serve and leave.
    Members,
    /// Requests to join, with a wrong token.
    Joins,
}

impl SiegeKind {
    pub const USER_ATTACKS: [SiegeKind; 8] = [
        SiegeKind::Leases,
        SiegeKind::TakenIds,
        SiegeKind::Forbidden,
        SiegeKind::UnreadPolls,
        SiegeKind::UnreadWatches,
        SiegeKind::HalfSent,
        SiegeKind::LargeBodies,
        SiegeKind::Hellos,
    ];
    pub const WORKER_ATTACKS: [SiegeKind; 11] = [
        SiegeKind::Leases,
        SiegeKind::TakenIds,
        SiegeKind::Forbidden,
        SiegeKind::UnreadPolls,
        SiegeKind::UnreadWatches,
        SiegeKind::HalfSent,
        SiegeKind::LargeBodies,
        SiegeKind::Hellos,
        SiegeKind::Certificates,
        SiegeKind::Members,
        SiegeKind::Joins,
    ];

    /// Number of tasks at each manager.
    fn tasks(self) -> u64 {
        match self {
            SiegeKind::Leases | SiegeKind::TakenIds | SiegeKind::Members => 4,
            SiegeKind::HalfSent => 64,
            SiegeKind::UnreadWatches => 8,
            SiegeKind::UnreadPolls
            | SiegeKind::Forbidden
            | SiegeKind::LargeBodies
            | SiegeKind::Hellos
            | SiegeKind::Certificates
            | SiegeKind::Joins => 2,
        }
    }
}

/// The attacker's credentials and knowledge.
#[derive(Clone)]
pub struct Attacker {
    pub credentials: NodeCredentials,
    /// A bearer token beside the certificate.
    pub bearer: Option<String>,
    pub namespace: String,
    /// The leader's term: request ids that role managers once used start with it.
    pub term: u64,
    pub managers: Vec<std::net::SocketAddr>,
}

type DoneRefused = (u64, u64);
type Counts = Arc<Mutex<BTreeMap<SiegeKind, DoneRefused>>>;

/// Runs until dropped or ended, on threads of its own.
pub struct Siege {
    over: Arc<AtomicBool>,
    counts: Counts,
    /// `Some` until the end.
    runtime: Option<Runtime>,
}

/// The priority that gets only processor time which no other thread wants (nice 19, setpriority(2)).
const LOWEST_PRIORITY: i32 = 19;

/// Where the attackers' processor time comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// They compete with the managers for it.
    Shared,
    /// They get what the managers leave, which comes near to machines of their own: an attack costs the managers what they do
    /// for it, not what attacking takes. On a machine without idle time they hardly attack.
    Own,
}

fn runtime(machine: Machine) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .thread_name("siege")
        .on_thread_start(move || {
            if machine == Machine::Own {
                // On Linux, "this process" is the calling thread.
                let lowered = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
                lowered.expect("every thread may lower its priority");
            }
        })
        .build()
        .expect("a runtime for the attackers")
}

/// Keeps what the caller has opened.
async fn held() {
    scenario_pause("held open, incomplete or unread", HOLD_TIME).await;
}

impl Siege {
    pub fn begin(attacker: &Attacker, harms: &[SiegeKind], machine: Machine) -> Self {
        let (over, counts) = (Arc::new(AtomicBool::new(false)), Counts::default());
        let runtime = runtime(machine);
        let number = Arc::new(AtomicU64::new(1));
        for (kind, to) in harms.iter().flat_map(|kind| attacker.managers.iter().map(move |to| (*kind, *to))) {
            for task in 0..kind.tasks() {
                let (over, number, counts) = (Arc::clone(&over), Arc::clone(&number), Arc::clone(&counts));
                let one = SiegeTask { attacker: attacker.clone(), kind, to, task, number, counts };
                runtime.spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let (done, refused) = one.once(&over).await;
                        one.count((done, refused));
                        if done == 0 {
                            scenario_pause("it was refused", REFUSED_PAUSE).await;
                        }
                    }
                });
            }
        }
        Self { over, counts, runtime: Some(runtime) }
    }

    /// Counts of done and refused operations per kind so far.
    pub fn counts(&self) -> BTreeMap<SiegeKind, DoneRefused> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it.
    pub fn end(self) -> BTreeMap<SiegeKind, DoneRefused> {
        self.counts()
    }
}

impl Drop for Siege {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // each task ends where it waits next
        }
    }
}

/// One task of the attack.
struct SiegeTask {
    attacker: Attacker,
    kind: SiegeKind,
    to: std::net::SocketAddr,
    task: u64,
    /// Numbers that are used once.
    number: Arc<AtomicU64>,
    counts: Counts,
}

impl SiegeTask {
    /// One connection's attack; returns what was done and refused.
    async fn once(&self, over: &AtomicBool) -> DoneRefused {
        let kind = async {
            match self.kind {
                SiegeKind::Leases => self.leases(over, false).await,
                SiegeKind::TakenIds => self.leases(over, true).await,
                SiegeKind::Forbidden => self.forbidden(over).await,
                SiegeKind::UnreadPolls => self.unread_polls().await,
                SiegeKind::UnreadWatches => self.unread_watch().await,
                SiegeKind::HalfSent => self.half_sent().await,
                SiegeKind::LargeBodies => self.large_body().await,
                SiegeKind::Hellos => self.hello().await,
                SiegeKind::Certificates => self.certificates(over).await,
                SiegeKind::Members => self.members(over).await,
                SiegeKind::Joins => self.join().await,
            }
        };
        kind.await.unwrap_or((0, 1))
    }

    fn count(&self, (done, refused): DoneRefused) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let so_far = counts.entry(self.kind).or_default();
        *so_far = (so_far.0 + done, so_far.1 + refused);
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    fn caller(&self, alpn: &[&[u8]]) -> Option<Caller> {
        Some(Caller::with(self.to, alpn, &self.attacker.credentials).ok()?.from(ATTACKERS_ADDRESS))
    }

    async fn greeted(&self, service: Service) -> Option<Framed<BoxStream>> {
        self.caller(service.alpn())?.greeted().await.ok()
    }

    fn fresh() -> RequestId {
        RequestId::fresh(muster_kernel::Clock.wall(), rand::random())
    }

    async fn leases(&self, over: &AtomicBool, takes_ids: bool) -> Option<DoneRefused> {
        let mut api = Connection::over(self.greeted(Service::Api).await?);
        let (mut done, mut refused) = (0, 0);
        for _ in 0..20 {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let number = self.next();
            let id = || match takes_ids {
                true => RequestId(u128::from(self.attacker.term) << 64 | u128::from(number % IDS)),
                false => Self::fresh(),
            };
            let name = format!("{}-{}-{}", self.task, takes_ids, number % NAMES);
            let lease = LeaseRef { namespace: self.attacker.namespace.clone(), name };
            let (holder, session) = (format!("eve-{number}"), SessionId(u128::from(number)));
            let acquire = LeaseRequest::Acquire { lease: lease.clone(), holder, session, duration_ms: 15_000 };
            let held = match api.call(Request::Lease(acquire), id(), ANSWER_TIMEOUT).await {
                Ok(text) => serde_json::from_str::<Value>(&text).ok(),
                Err(CallError::Refused(_)) => None,
                Err(_) => return Some((done, refused + 1)),
            };
            let token =
                held.and_then(|held| serde_json::from_value::<FencingToken>(held["fencing_token"].clone()).ok());
            let Some(token) = token else {
                refused += 1;
                continue;
            };
            done += 1;
            let release = LeaseRequest::Release { lease, session, token };
            let _either = api.call(Request::Lease(release), id(), ANSWER_TIMEOUT).await;
        }
        Some((done, refused))
    }

    async fn forbidden(&self, over: &AtomicBool) -> Option<DoneRefused> {
        let mut api = Connection::over(self.greeted(Service::Api).await?);
        let mut refused = 0;
        for _ in 0..20 {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let add = (0..64).map(|n| (format!("junk-{n}"), "x".repeat(200))).collect();
            let request = match refused % 4 {
                0 => Request::NodeUpdate { node: "n1".into(), add, remove: Vec::new(), generation: None },
                1 => Request::SetRole { node: "n1".into(), role: Role::Worker },
                2 => Request::NodeRemove { node: "n1".into(), force: true },
                _ => Request::TokenRotate { role: Role::Manager },
            };
            match api.call(request, Self::fresh(), ANSWER_TIMEOUT).await {
                Err(CallError::Refused(_)) => refused += 1,
                Ok(answer) => panic!("{} was permitted: {answer}", self.attacker.credentials.identity.principal()),
                Err(_) => break,
            }
        }
        // Refusal is expected here.
        Some((refused, 0))
    }

    async fn unread_polls(&self) -> Option<DoneRefused> {
        let mut frames = self.greeted(Service::Api).await?;
        let mut sent = 0;
        let sending = async {
            for id in 0..100 {
                let lease =
                    LeaseRef { namespace: self.attacker.namespace.clone(), name: format!("0-false-{}", id % NAMES) };
                let watch = LeaseRequest::Watch { lease, seen: Revision(0), wait_ms: 10_000 };
                let request = match id % 3 {
                    0 => Request::Events { since: Revision(u64::MAX - 1), wait_ms: 10_000 },
                    1 => Request::Events { since: Revision(0), wait_ms: 0 },
                    _ => Request::Lease(watch),
                };
                let call = ApiCall { id, request_id: Self::fresh(), timeout_ms: 10_000, request };
                frames.send(&call).await.ok()?;
                sent += 1;
            }
            Some(())
        };
        let _either = timeout(HOLD_TIME, sending).await;
        held().await;
        Some((sent, 0))
    }

    fn http(&self) -> Option<Caller> {
        match self.attacker.bearer {
            Some(_) => Some(Caller::unauthenticated(self.to, &[b"http/1.1"]).from(ATTACKERS_ADDRESS)),
            None => self.caller(&[b"http/1.1"]),
        }
    }

    fn head(&self, line: &str) -> String {
        let bearer = self.attacker.bearer.as_deref();
        let bearer = bearer.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        format!("{line} HTTP/1.1\r\nhost: x\r\n{bearer}content-type: application/json\r\n")
    }

    async fn unread_watch(&self) -> Option<DoneRefused> {
        let mut stream = self.http()?.tls().await.ok()?;
        let namespace = &self.attacker.namespace;
        let watch = format!("GET /apis/coordination.k8s.io/v1/namespaces/{namespace}/leases?watch=1");
        stream.write_all(format!("{}\r\n", self.head(&watch)).as_bytes()).await.ok()?;
        held().await;
        Some((1, 0))
    }

    async fn half_sent(&self) -> Option<DoneRefused> {
        match self.task % 3 {
            0 => {
                let caller = self.caller(Service::Api.alpn())?;
                let mut stream = caller.tls().await.ok()?;
                stream.write_all(&60_000_u32.to_be_bytes()).await.ok()?;
                stream.write_all(&[1; 59_000]).await.ok()?;
                held().await;
            }
            1 => {
                let mut stream = self.http()?.tls().await.ok()?;
                stream.write_all(self.head("GET /v1/nodes").as_bytes()).await.ok()?;
                held().await;
            }
            _ => {
                let mut stream = self.http()?.tls().await.ok()?;
                let path = format!("POST /api/v1/namespaces/{}/configmaps", self.attacker.namespace);
                let head = format!("{}content-length: 60000\r\n\r\n", self.head(&path));
                stream.write_all(head.as_bytes()).await.ok()?;
                stream.write_all(&[b' '; 59_000]).await.ok()?;
                held().await;
            }
        }
        Some((1, 0))
    }

    /// Replaces a config map: deletes and creates it.
    async fn large_body(&self) -> Option<DoneRefused> {
        let (namespace, name) = (&self.attacker.namespace, format!("large-{}", self.next() % 4));
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let data = "x".repeat(CONFIG_MAP_BYTES);
        let body = format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{name}\"}},\"data\":{{\"x\":\"{data}\"}}}}"
        );
        let mut status = None;
        for (line, body) in [(format!("DELETE {path}/{name}"), ""), (format!("POST {path}"), body.as_str())] {
            let mut stream = self.http()?.tls().await.ok()?;
            let head = format!("{}connection: close\r\ncontent-length: {}\r\n\r\n", self.head(&line), body.len());
            let mut answer = Vec::new();
            let talk = async {
                stream.write_all(head.as_bytes()).await.ok()?;
                stream.write_all(body.as_bytes()).await.ok()?;
                stream.read_to_end(&mut answer).await.ok()
            };
            timeout(ANSWER_TIMEOUT, talk).await.ok()?;
            status = answer.get(9..12).map(<[u8]>::to_vec);
        }
        Some(if status.as_deref() == Some(b"201") { (1, 0) } else { (0, 1) })
    }

    /// A session up to the hello.
    async fn connect_and_greet(&self) -> Option<Framed<BoxStream>> {
        let mut frames = self.greeted(Service::Agent).await?;
        let number = self.next();
        let hello = AgentHello {
            protocol: AGENT_PROTOCOL,
            instance: number,
            name: "n5".parse().expect("a name"),
            advertise: format!("127.0.0.1:{}", 1 + number % 60_000),
            release: format!("0.{number}.0"),
            labels: (0..64).map(|n| (format!("k{number}-{n}"), "x".repeat(60))).collect(),
        };
        frames.send(&AgentFrame::Hello(hello)).await.ok()?;
        Some(frames)
    }

    async fn hello(&self) -> Option<DoneRefused> {
        let mut frames = self.connect_and_greet().await?;
        let taken = timeout(ANSWER_TIMEOUT, frames.recv_bytes()).await.ok()?.ok()?;
        Some(if taken.is_some() { (1, 0) } else { (0, 1) })
    }

    async fn certificates(&self, over: &AtomicBool) -> Option<DoneRefused> {
        let mut frames = self.connect_and_greet().await?;
        let mut done = 0;
        for id in 0..50 {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let csr_pem = muster_pki::make_csr(&muster_pki::new_key()).ok()?;
            frames.send(&AgentFrame::Ask { id, ask: AgentAsk::Sign { csr_pem } }).await.ok()?;
            let Ok(Ok(Some(_))) = timeout(ANSWER_TIMEOUT, frames.recv_bytes()).await else { break };
            done += 1;
        }
        Some((done, 0))
    }

    /// It starts to serve, and leaves: an event each time.
    async fn members(&self, over: &AtomicBool) -> Option<DoneRefused> {
        let mut api = Connection::over(self.greeted(Service::Api).await?);
        let (mut done, mut refused) = (0, 0);
        // Few, so that a busy machine completes a batch: it is counted then.
        for _ in 0..10 {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let session = SessionId(rand::random());
            let key =
                ParticipantKey { scope: "junk".into(), member: format!("m{}", self.next()), incarnation: session };
            let (namespace, name) = (key.lease().namespace.to_string(), key.lease().name.to_string());
            let (lease, holder) = (LeaseRef { namespace, name }, key.member.clone());
            let acquire = LeaseRequest::Acquire { lease, holder, session, duration_ms: 15_000 };
            let held = api.call(Request::Lease(acquire), Self::fresh(), ANSWER_TIMEOUT).await;
            let held = held.ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
            let token =
                held.and_then(|held| serde_json::from_value::<FencingToken>(held["fencing_token"].clone()).ok());
            let participant = Participant {
                key: key.clone(),
                node: self.attacker.credentials.identity.node().map(|(node, _)| node),
                release: "1.0.0".parse().expect("a release"),
                needs: BTreeMap::new(),
                phase: ParticipantPhase::Announced,
                token,
                since: WallTime(0),
                revision: Revision(0),
            };
            let announce = ReconcilerRequest::Announce { participant };
            for ask in [announce, ReconcilerRequest::Admit { key: key.clone() }, ReconcilerRequest::Leave { key }] {
                match api.call(Request::Reconciler(ask), Self::fresh(), ANSWER_TIMEOUT).await {
                    Ok(_) => done += 1,
                    Err(CallError::Refused(_)) => refused += 1,
                    Err(_) => return Some((done, refused + 1)),
                }
            }
        }
        Some((done, refused))
    }

    async fn join(&self) -> Option<DoneRefused> {
        let joiner = Caller::unauthenticated(self.to, Service::Join.alpn()).from(ATTACKERS_ADDRESS);
        let mut frames = joiner.greeted().await.ok()?;
        let csr_pem = muster_pki::make_csr(&muster_pki::new_key()).ok()?;
        let request = JoinRequest {
            request_id: Self::fresh(),
            node: NodeId::from_entropy(rand::random()),
            token_secret: Secret::new("a".repeat(25)),
            csr_pem,
            name: "junk".parse().expect("a name"),
            advertise: "127.0.0.1:4400".to_owned(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
            rekey: None,
        };
        frames.send(&JoinFrame::Join(request)).await.ok()?;
        let reply = timeout(ANSWER_TIMEOUT, frames.recv::<JoinReply>()).await.ok()?.ok()??;
        assert!(!matches!(reply, JoinReply::Joined { .. }), "a wrong token was accepted");
        Some((1, 0))
    }
}
