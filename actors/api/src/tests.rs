//! For tests: a manager runtime whose raft member is a closure, and the API before it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::http::{Request as HttpRequest, StatusCode};
use futures_util::future::BoxFuture;
use muster_gateway::Dialer;
use muster_kernel::{Recipient, Tree, Undeliverable};
use muster_messages::protocol::{Applied, ProposeError, RaftMemberMsg, SessionsMsg};
use muster_messages::wire::{ApiCall, ReconcilerRequest, Request, RunLogAsk, RunLogPart};
use muster_messages::*;
use muster_raft_member::ObjectFeed;
use serde_json::Value;
use tokio::sync::watch;
use tower_service::Service as _;

use crate::http::{Peer, routes};
use crate::service::Service;
use crate::{ApiLimits, ApiPorts, LeaderPorts, ManagerPorts, NodeFacts, RunLogSource};

/// The description of `/v1`.
pub fn description() -> Value {
    serde_json::from_str(crate::http::described_document()).unwrap()
}

pub fn unreachable_actor<P: Send + 'static>() -> Recipient<P> {
    Recipient::new(|_| Err(Undeliverable::Down))
}

/// The manager runtime of node 1, of whose actors only this raft member exists.
pub fn runtime(replica: watch::Receiver<Arc<Replica>>, raft: Recipient<RaftMemberMsg>) -> Arc<ManagerPorts> {
    let leader = LeaderPorts {
        roles: unreachable_actor(),
        authority: unreachable_actor(),
        rotation: unreachable_actor(),
        autopilot: unreachable_actor(),
        dispatcher: unreachable_actor(),
        elections: unreachable_actor(),
        view: watch::channel(Arc::new(RoleView::default())).1,
        doubts: watch::channel(Arc::default()).1,
    };
    Arc::new(ManagerPorts {
        node: NodeId::from_entropy(1),
        cluster_replica: replica.clone(),
        replica,
        feed: ObjectFeed::default(),
        raft,
        call: Arc::new(|_, _, _| Box::pin(async { Err(ErrorBody::new(ErrorCode::Unreachable, "no session")) })),
        sessions: unreachable_actor(),
        peers: Arc::new(BTreeSet::new),
        leader,
    })
}

/// The API of node 1 with this manager runtime.
pub fn service(manager: watch::Receiver<Option<Arc<ManagerPorts>>>) -> Service {
    let facts = || NodeFacts {
        id: NodeId::from_entropy(1),
        name: "n1".parse().unwrap(),
        role: Role::Manager,
        managers: Vec::new(),
        cluster: String::new(),
        root_pem: String::new(),
        trouble: None,
    };
    Service::new(ApiPorts {
        facts: Arc::new(facts),
        manager,
        tree: Tree::new(),
        dialer: Dialer::anonymous(""),
        open_admission: Arc::new(|| Ok(true)),
        crash_allowed: false,
        audit: muster_audit::AuditLog::default(),
        limits: ApiLimits::default(),
        metrics: Arc::new(|accept| {
            Box::pin(async move {
                Ok(crate::RenderedMetrics {
                    media_type: "text/plain; version=0.0.4",
                    text: format!("# for {accept}\n"),
                })
            })
        }),
        explain_workloads: None,
        certificate_lifetime: None,
        run_logs: Some(Arc::new(FewWords)),
        locked: None,
    })
}

/// A log of runs of which each has written `said`.
struct FewWords;

impl RunLogSource for FewWords {
    fn page(self: Arc<Self>, ask: RunLogAsk) -> BoxFuture<'static, Result<RunLogPart, ErrorBody>> {
        let text = "said".chars().skip(usize::try_from(ask.offset).unwrap()).collect();
        let part = RunLogPart { kept: true, offset: ask.offset, text, next_offset: 4, ..RunLogPart::default() };
        Box::pin(async move { Ok(part) })
    }
}

/// A proposed command, except what its moment decides.
pub type Proposal = (RequestId, Principal, Vec<Change>);
/// The outcome of a proposal; `None`: no answer.
pub type Outcome = Option<Result<(), CommandRefusal>>;

/// The request id of every native request to a [`World`].
pub const REQUEST: RequestId = RequestId(5);

/// A leader that records what is proposed to it.
pub struct World {
    pub service: Service,
    pub published: Arc<watch::Sender<Arc<Replica>>>,
    proposed: Arc<Mutex<Vec<Proposal>>>,
    in_force: watch::Sender<Option<Arc<ManagerPorts>>>,
}

/// The replica of a leader.
pub fn leading(tables: Tables) -> Arc<Replica> {
    Arc::new(Replica { tables, raft: RaftStatus { leading: true, ..RaftStatus::default() } })
}

impl World {
    /// Answers every proposal as applied, and changes nothing.
    pub fn new() -> Self {
        Self::with(tables(), |_, _| Some(Ok(())))
    }
    /// A leader with these tables, on which it applies proposals with this closure.
    pub fn with(tables: Tables, apply: impl FnMut(&mut Tables, &Command) -> Outcome + Send + 'static) -> Self {
        let published = Arc::new(watch::Sender::new(leading(tables)));
        let (proposed, apply) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(apply));
        let raft = {
            let (published, proposed) = (Arc::clone(&published), Arc::clone(&proposed));
            Recipient::new(move |msg| {
                let now = published.borrow().clone();
                match msg {
                    RaftMemberMsg::Read { reply, .. } => drop(reply.send(Ok(now))),
                    RaftMemberMsg::Propose { command, reply, .. } => {
                        let mut tables = now.tables.clone();
                        let outcome = (apply.lock().unwrap())(&mut tables, &command);
                        let revision = tables.revision;
                        published.send_replace(leading(tables));
                        proposed.lock().unwrap().push((command.request, command.by, command.changes));
                        match outcome {
                            Some(Ok(())) => drop(reply.send(Ok(Applied { revision }))),
                            Some(Err(refusal)) => drop(reply.send(Err(ProposeError::Refused(refusal)))),
                            None => drop(reply),
                        }
                    }
                    _ => return Err(Undeliverable::Down),
                }
                Ok(())
            })
        };
        let in_force = watch::Sender::new(Some(runtime(published.subscribe(), raft)));
        Self { service: service(in_force.subscribe()), published, proposed, in_force }
    }

    /// A leader that applies what is proposed.
    pub fn applying(tables: Tables) -> Self {
        Self::with(tables, |tables, command| {
            let at = tables.revision.next();
            Some(muster_store::apply(tables, at, command))
        })
    }

    /// The same, with a replica of the cluster of its own.
    pub fn showing(self, cluster_replica: watch::Receiver<Arc<Replica>>) -> Self {
        self.in_force.send_modify(|ports| {
            let own = ports.take().and_then(Arc::into_inner).expect("no request holds them");
            *ports = Some(Arc::new(ManagerPorts { cluster_replica, ..own }));
        });
        self
    }

    /// The same, with these sessions.
    pub fn hosting(self, sessions: Recipient<SessionsMsg>) -> Self {
        self.in_force.send_modify(|ports| {
            let own = ports.take().and_then(Arc::into_inner).expect("no request holds them");
            *ports = Some(Arc::new(ManagerPorts { sessions, ..own }));
        });
        self
    }

    /// The status and the answer over HTTP; null unless the answer is JSON.
    pub async fn http(&self, caller: &Principal, method: &str, target: &str, body: &str) -> (u16, Value) {
        let peer = Peer::of(self.service.clone(), caller.clone(), None);
        let request = HttpRequest::builder().method(method).uri(target).extension(peer);
        let response = routes().call(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let text = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&text).unwrap_or_default())
    }

    /// The proposals since the last call.
    pub fn proposed(&self) -> Vec<Proposal> {
        std::mem::take(&mut *self.proposed.lock().unwrap())
    }

    /// The answer to a `muster-api/1` request, with its HTTP status, and what was proposed for it.
    pub async fn native(&self, caller: &Principal, request: Request) -> (StatusCode, Value, Vec<Proposal>) {
        let call = ApiCall { id: 0, request_id: REQUEST, timeout_ms: 5_000, request };
        let (status, answer) = match self.service.answer(caller.clone(), call).await {
            Ok(text) => (200, serde_json::from_str(&text).unwrap()),
            Err(error) => (error.code.http_status(), error.to_json()),
        };
        (StatusCode::from_u16(status).unwrap(), answer, self.proposed())
    }
    /// The same for reconcilers.
    pub async fn reconciler(
        &self,
        caller: &Principal,
        request: ReconcilerRequest,
    ) -> (StatusCode, Value, Vec<Proposal>) {
        self.native(caller, Request::Reconciler(request)).await
    }
}

pub fn node(n: u128) -> Principal {
    Principal::Node(NodeId::from_entropy(n))
}
pub fn triple(text: &str) -> Triple {
    text.parse().unwrap()
}

/// Of the reconciler `schema`.
pub fn definition(objects: Vec<DesiredObject>) -> Definition {
    let release: Release = triple("2.0.0").into();
    let definition = Definition::new("schema", release, "db", triple("2.0.0"), Action::Objects(objects));
    muster_gates::sealed(definition).unwrap()
}

pub fn users() -> ManagedKey {
    ManagedKey { kind: "table".into(), namespace: "default".into(), name: "users".into() }
}

pub fn participant(scope: &str, member: &str, incarnation: u128, on: Option<u128>) -> Participant {
    Participant {
        key: ParticipantKey { scope: scope.into(), member: member.into(), incarnation: SessionId(incarnation) },
        node: on.map(NodeId::from_entropy),
        release: triple("2.0.0").into(),
        needs: BTreeMap::new(),
        phase: ParticipantPhase::Serving,
        token: Some(FencingToken(2)),
        since: WallTime(0),
        revision: Revision(9),
    }
}

/// The term of [`candidate`] as the runner of `schema`.
pub const TERM: FencingToken = FencingToken(7);
/// A candidate for `schema`, on node 1.
pub fn candidate() -> Participant {
    participant(&candidates_scope("schema"), "r", 30, Some(1))
}

/// A run of `schema` that failed on a node.
pub fn run(number: u64, on: u128) -> RunRecord {
    RunRecord {
        reconciler: "schema".into(),
        number,
        term: TERM,
        of_term: number,
        attempt: 1,
        node: NodeId::from_entropy(on),
        release: triple("2.0.0").into(),
        step: None,
        began: WallTime(0),
        ran_for_ms: Some(20),
        exit: Some(RunExit { status: Some(3), signal: None, text: "the command exited with 3".into() }),
        outcome: RunOutcome::Failed,
        head: "first".into(),
        tail: "last".into(),
        revision: Revision(0),
    }
}

pub fn cluster() -> ClusterRecord {
    ClusterRecord {
        id: ClusterId::from_entropy(1),
        name: "c".parse().unwrap(),
        incarnation: Incarnation(1),
        feature_level: FEATURE_LEVEL,
        root_cert_pem: String::new(),
        root_key_pem: Secret::new(String::new()),
        founded_at: WallTime(0),
        revision: Revision(1),
    }
}

/// A reconciler with a finished gate, and a runner; a serving member; an object written by hand; a manager, node 1, and
/// a worker, node 2.
pub fn tables() -> Tables {
    tables_of(definition(vec![]))
}
pub fn tables_of(definition: Definition) -> Tables {
    let mut tables = Tables { revision: Revision(10), cluster: Some(Arc::new(cluster())), ..Tables::default() };
    for (n, role) in [(1, Role::Manager), (2, Role::Worker)] {
        let name = Name::sanitized(&format!("n{n}"));
        let record = NodeRecord::new(NodeId::from_entropy(n), name, role, WallTime(0));
        tables.nodes.insert(record.id, Arc::new(record));
    }
    let lease = runner_lease("schema");
    let spec = LeaseSpec { holder: Some(candidate().key.member), ..LeaseSpec::default() };
    let body = ObjectBody::Lease(Lease { spec, holding: Holding { token: TERM, ..Holding::default() } });
    let object =
        Object { namespace: lease.namespace.clone(), name: lease.name.clone(), meta: ObjectMeta::fresh(Uid(1)), body };
    tables.objects.insert(lease, Arc::new(object));
    let all = &mut tables.reconcilers;
    let now = GateEntry {
        epoch: 1,
        state: GateState::Done,
        reconciled: definition.release.clone(),
        digest: definition.digest.clone(),
        floor: definition.floor,
        target: None,
        term: FencingToken(1),
        at: WallTime(0),
        revision: Revision(9),
        why: String::new(),
    };
    let gate = Gate { reconciler: "schema".into(), scope: "db".into(), format: 1, now, history: vec![] };
    all.gates.insert("schema".into(), Arc::new(gate));
    for there in [participant("db", "m1", 7, None), candidate()] {
        all.participants.insert(there.key.clone(), Arc::new(there));
    }
    let object = ManagedObject {
        key: users(),
        labels: BTreeMap::new(),
        body: r#"{"columns":["id"]}"#.into(),
        owner: None,
        term: FencingToken(0),
        created: Revision(9),
        revision: Revision(9),
    };
    all.objects.insert(object.key.clone(), Arc::new(object));
    all.definitions.insert(definition.key(), Arc::new(definition));
    all.changed = Revision(9);
    let runs = [run(1, 1), run(2, 2)].map(Arc::new).into_iter().collect();
    tables.records.runs.insert("schema".into(), Arc::new(RunRecords { last: 2, runs }));
    tables
}
