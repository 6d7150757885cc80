use muster_messages::wire::{ActorsOf, KubeCall, ListOf, Page, RunKey, RunLogAsk};
use muster_messages::{
    Action, CrashHow, Definition, FencingToken, GateStep, GuardScope, ManagedKey, ManagerPreference, Participant,
    ParticipantKey, ParticipantPhase, Progress, Release, Revision, Secret, SessionId, Triple, User, UserKind, WallTime,
    Word, WorkloadEntry,
};

use super::*;

#[test]
fn node_reads_but_changes_nothing() {
    let node = Principal::Node(NodeId::from_entropy(1));
    assert!(authorize(&node, &Request::NodeList { fresh: false }, Vec::new).is_ok());
    let refused = authorize(&node, &Request::TokenShow { role: Role::Manager }, || vec!["m:1".to_owned()]).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Forbidden);
    assert!(refused.message.contains("m:1"));
    for request in [
        Request::SetRole { node: "x".into(), role: Role::Manager },
        Request::NodeRemove { node: "x".into(), force: true },
        Request::TokenRotate { role: Role::Worker },
    ] {
        assert!(authorize(&node, &request, Vec::new).is_err());
        assert!(authorize(&Principal::Operator, &request, Vec::new).is_ok());
    }
}

#[test]
fn a_node_writes_in_its_own_namespace_and_in_those_granted() {
    use muster_messages::{MEMBERS_NAMESPACE, NodeRecord};
    let (worker, manager) = (NodeId::from_entropy(1), NodeId::from_entropy(2));
    let mut tables = Tables::default();
    for (id, role) in [(worker, Role::Worker), (manager, Role::Manager)] {
        let record = NodeRecord::new(id, Name::sanitized("n"), role, WallTime(0));
        tables.nodes.insert(id, std::sync::Arc::new(record));
    }
    let granted = vec!["default".to_owned()];
    let may = |caller: &Principal, namespace: &str| may_write(&tables, &granted, caller, namespace).is_ok();
    let node = Principal::Node(worker);
    for (namespace, allowed) in [
        ("default", true),
        (own_namespace(worker).as_str(), true),
        (MEMBERS_NAMESPACE, true),
        ("team-a", false),
        ("kube-system", false),
        (own_namespace(manager).as_str(), false),
    ] {
        assert_eq!(may(&node, namespace), allowed, "{namespace}");
        assert!(may(&Principal::Node(manager), namespace) && may(&Principal::Operator, namespace));
    }
    assert!(!may(&Principal::Node(NodeId::from_entropy(3)), "team-a"), "unknown to this replica");
    assert!(may_write(&tables, &["*".to_owned()], &node, "team-a").is_ok());
    let refused = may_write(&tables, &granted, &node, "team-a").unwrap_err();
    assert!(refused.code == ErrorCode::Forbidden && refused.message.contains("node_namespaces"), "{refused}");
}

#[test]
fn caller_without_identity_is_refused() {
    let refused = authorize(&Principal::Anonymous, &Request::Contact, Vec::new).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unauthenticated);
}

const ALL_CALLERS: &[&str] = &["operator", "admin", "reader", "node", "user", "token"];
const READERS: &[&str] = &["operator", "admin", "reader", "node"];
const READING_OPERATORS: &[&str] = &["operator", "admin", "reader"];
const OPERATORS: &[&str] = &["operator", "admin"];
/// For requests in namespaces that are checked elsewhere.
const WRITERS: &[&str] = &["operator", "admin", "node", "user", "token"];
const PARTICIPANTS: &[&str] = &["operator", "admin", "node"];

/// Samples of all variants of an enum: a new variant does not compile without its row.
macro_rules! every {
    ($name:ident: $type:ident -> $row:ty { $($variant:ident => $rows:expr;)* }) => {
        fn $name() -> Vec<$row> {
            let _no_variant_is_missing = |value: &$type| match value { $($type::$variant { .. } => (),)* };
            [$($rows),*].into_iter().flatten().collect()
        }
    };
}

type Row = (Request, &'static [&'static str]);

fn one(request: Request, who: &'static [&'static str]) -> Vec<Row> {
    vec![(request, who)]
}

fn lease(request: LeaseRequest, who: &'static [&'static str]) -> Vec<Row> {
    one(Request::Lease(request), who)
}

fn autopilot() -> Vec<Row> {
    use AutopilotRequest as A;
    let reads =
        [A::State, A::Preview { settings: Default::default(), generation: None }].map(|request| (request, READERS));
    let changes = [
        A::Set { settings: Default::default(), generation: None },
        A::Withdraw { generation: None },
        A::Pause { why: text() },
        A::Resume,
        A::Prefer { node: text(), preference: ManagerPreference::Never },
        A::Drain { node: text(), for_ms: None, replace: false },
        A::Undrain { node: text() },
    ];
    let changes = changes.map(|request| (request, OPERATORS));
    reads.into_iter().chain(changes).map(|(request, who)| (Request::Autopilot(request), who)).collect()
}

fn reconciler(request: ReconcilerRequest, who: &'static [&'static str]) -> Vec<Row> {
    one(Request::Reconciler(request), who)
}

fn text() -> String {
    "x".to_owned()
}

every!(callers: Principal -> (&'static str, Principal) {
    Operator => vec![("operator", Principal::Operator)];
    Admin => vec![("admin", Principal::Admin("ann".parse().unwrap()))];
    Reader => vec![("reader", Principal::Reader("eye".parse().unwrap()))];
    Node => vec![("node", Principal::Node(NodeId::from_entropy(1)))];
    User => vec![("user", Principal::User("bob".parse().unwrap()))];
    Bearer => vec![("token", Principal::Bearer { user: "bob".parse().unwrap(), token: text() })];
    Anonymous => vec![("anonymous", Principal::Anonymous)];
    Cluster => vec![("cluster", Principal::Cluster)];
    Workload => vec![("workload", Principal::Workload("shop/web".parse().unwrap()))];
});

every!(requests: Request -> Row {
    Status => one(Request::Status { fresh: false }, ALL_CALLERS);
    Contact => one(Request::Contact, ALL_CALLERS);
    NodeList => one(Request::NodeList { fresh: false }, READERS);
    NodeInspect => one(Request::NodeInspect { node: text(), fresh: true }, READERS);
    NodeWatch => one(Request::NodeWatch { node: text(), seen: 0, wait_ms: 0 }, READERS);
    NodeMayStop => one(Request::NodeMayStop { node: text() }, READERS);
    BlocklistList => one(Request::BlocklistList { fresh: false }, READERS);
    RaftStatus => one(Request::RaftStatus { fresh: false }, READERS);
    CertList => one(Request::CertList, READERS);
    CaShow => one(Request::CaShow, READERS);
    RootList => one(Request::RootList, READERS);
    RootRotate => one(Request::RootRotate { prepare: true, compromised: false }, OPERATORS);
    RootActivate => one(Request::RootActivate { root: root() }, OPERATORS);
    RootAbort => one(Request::RootAbort, OPERATORS);
    RootRequest => one(Request::RootRequest { compromised: false }, OPERATORS);
    RootIssued => one(Request::RootIssued { prepare: false, answer: text() }, OPERATORS);
    RootRetire => one(Request::RootRetire { root: root(), force: true }, OPERATORS);
    RootRevoke => one(Request::RootRevoke { root: root() }, OPERATORS);
    AutolockStatus => one(Request::AutolockStatus, READERS);
    AutolockOn => one(Request::AutolockOn, OPERATORS);
    AutolockOff => one(Request::AutolockOff, OPERATORS);
    AutolockRotate => one(Request::AutolockRotate, OPERATORS);
    AutolockKey => one(Request::AutolockKey { version: None }, OPERATORS);
    Unlock => one(Request::Unlock { key: Secret::new("x"), version: None }, ALL_CALLERS);
    UserList => one(Request::UserList, READERS);
    WorkloadList => one(Request::WorkloadList, READERS);
    WorkloadShow => one(Request::WorkloadShow { name: "shop/web".parse().unwrap() }, READERS);
    // Only of the answering node: checked elsewhere.
    WorkloadExplain => one(Request::WorkloadExplain { pid: 7 }, READERS);
    WorkloadSet => one(Request::WorkloadSet {
        entry: Box::new(WorkloadEntry::new("shop/web".parse().unwrap(), [])), root: false,
    }, OPERATORS);
    WorkloadRemove => one(Request::WorkloadRemove { name: "shop/web".parse().unwrap() }, OPERATORS);
    Events => one(Request::Events { since: Revision(0), wait_ms: 0 }, READERS);
    TokenList => one(Request::TokenList, READING_OPERATORS);
    TokenShow => one(Request::TokenShow { role: Role::Worker }, OPERATORS);
    Page => [
        (ListOf::Nodes, READERS),
        (ListOf::Blocklist, READERS),
        (ListOf::Certificates, READERS),
        (ListOf::Users, READERS),
        (ListOf::Workloads, READERS),
        (ListOf::Tokens, READING_OPERATORS),
    ].map(|(of, who)| (Request::Page { of, page: Page::default(), fresh: false }, who)).to_vec();
    Actors => questions();
    Lease => leases();
    Reconciler => reconcilers();
    Autopilot => autopilot();
    Kube => one(Request::Kube(KubeCall {
        method: "PUT".to_owned(), target: text(), content_type: None, accept: None, user_agent: None, body: vec![],
    }), WRITERS);
    SetRole => one(Request::SetRole { node: text(), role: Role::Manager }, OPERATORS);
    NodeRemove => one(Request::NodeRemove { node: text(), force: true }, OPERATORS);
    NodeUpdate => one(
        Request::NodeUpdate { node: text(), add: Default::default(), remove: vec![], generation: None }, OPERATORS);
    NodeRename => one(Request::NodeRename { node: text(), name: "n".parse().unwrap() }, OPERATORS);
    TokenCreate => one(Request::TokenCreate { role: Role::Worker, ttl_ms: None, uses: None }, OPERATORS);
    TokenRevoke => one(Request::TokenRevoke { id: text() }, OPERATORS);
    TokenRotate => one(Request::TokenRotate { role: Role::Worker }, OPERATORS);
    CertRotate => one(Request::CertRotate { node: text() }, OPERATORS);
    CertRevoke => one(Request::CertRevoke { node: text() }, OPERATORS);
    UserCreate => one(Request::UserCreate {
        name: "eve".parse().unwrap(), kind: UserKind::User, namespaces: vec![], ttl_ms: None, csr_pem: text(),
    }, OPERATORS);
    UserRenew => one(Request::UserRenew { name: "eye".parse().unwrap(), ttl_ms: None, csr_pem: text() }, OPERATORS);
    UserRevoke => one(Request::UserRevoke { name: "ann".parse().unwrap() }, OPERATORS);
    AccessTokenCreate => one(
        Request::AccessTokenCreate { user: "eye".parse().unwrap(), namespace: text(), ttl_ms: None }, OPERATORS);
    TransferLeader => one(Request::TransferLeader { to: None }, OPERATORS);
    OpenAdmission => one(Request::OpenAdmission, OPERATORS);
});

fn log() -> RunLogAsk {
    let run = RunKey { reconciler: text(), term: FencingToken(1), of_term: 1 };
    RunLogAsk { run, offset: 0, wait_ms: 0 }
}

fn questions() -> Vec<Row> {
    every!(asks: ActorsAsk -> (ActorsAsk, &'static [&'static str]) {
        Tree => vec![(ActorsAsk::Tree, READERS)];
        Inspect => vec![(ActorsAsk::Inspect { path: text() }, READERS)];
        Restart => vec![(ActorsAsk::Restart { path: text() }, OPERATORS)];
        Crash => vec![(ActorsAsk::Crash { path: text(), how: CrashHow::Panic }, OPERATORS)];
        RunLog => vec![(ActorsAsk::RunLog(log()), READERS)];
    });
    asks().into_iter().map(|(ask, who)| (Request::Actors { node: ActorsOf::Here, ask }, who)).collect()
}

every!(leases: LeaseRequest -> Row {
    List => lease(LeaseRequest::List { namespace: None }, ALL_CALLERS);
    Get => lease(LeaseRequest::Get { lease: l() }, ALL_CALLERS);
    Watch => lease(LeaseRequest::Watch { lease: l(), seen: Revision(0), wait_ms: 0 }, ALL_CALLERS);
    Guards => lease(LeaseRequest::Guards, ALL_CALLERS);
    Create => lease(LeaseRequest::Create { lease: l(), holder: None, duration_ms: None }, WRITERS);
    Update => lease(LeaseRequest::Update { lease: l(), revision: Revision(1), holder: None, duration_ms: None }, WRITERS);
    Delete => lease(LeaseRequest::Delete { lease: l() }, WRITERS);
    DeleteHeld => lease(LeaseRequest::DeleteHeld { lease: l() }, WRITERS);
    Acquire => lease(
        LeaseRequest::Acquire { lease: l(), holder: text(), session: SessionId(1), duration_ms: 1_000 }, WRITERS);
    Renew => lease(LeaseRequest::Renew { session: SessionId(1), held: vec![] }, WRITERS);
    Release => lease(LeaseRequest::Release { lease: l(), session: SessionId(1), token: FencingToken(1) }, WRITERS);
    SetGuard => lease(
        LeaseRequest::SetGuard { scope: GuardScope { namespace: text(), lease: None }, mode: None }, OPERATORS);
});

fn root() -> muster_messages::RootId {
    muster_messages::RootId([1; 8])
}

fn l() -> LeaseRef {
    LeaseRef { namespace: "default".to_owned(), name: "l".to_owned() }
}

fn release() -> Triple {
    "1.0.0".parse().unwrap()
}

fn definition(name: &str) -> Definition {
    Definition::new(name, Release::from(release()), "fleet", release(), Action::Handler)
}

fn member() -> ParticipantKey {
    ParticipantKey { scope: text(), member: text(), incarnation: SessionId(1) }
}

fn participant() -> Participant {
    Participant {
        key: member(),
        node: None,
        release: Release::from(release()),
        needs: Default::default(),
        phase: ParticipantPhase::Announced,
        token: None,
        since: WallTime(0),
        revision: Revision(0),
    }
}

fn progress() -> Progress {
    Progress {
        reconciler: text(),
        term: FencingToken(1),
        node: NodeId::from_entropy(1),
        release: Release::from(release()),
        phase: Word::Other(text()),
        reason: Word::Other(text()),
        message: text(),
        since: WallTime(0),
        attempt: 1,
        consecutive_failures: 0,
        last_error: None,
        next_retry_at: None,
        wave: None,
        output: String::new(),
    }
}

fn object() -> ManagedKey {
    ManagedKey { kind: text(), namespace: text(), name: text() }
}

every!(reconcilers: ReconcilerRequest -> Row {
    List => reconciler(ReconcilerRequest::List, READERS);
    Status => reconciler(ReconcilerRequest::Status { name: text(), seen: Revision(0), wait_ms: 0 }, READERS);
    Plan => reconciler(ReconcilerRequest::Plan { name: text(), release: None }, READERS);
    History => reconciler(ReconcilerRequest::History { name: text() }, READERS);
    Runs => reconciler(ReconcilerRequest::Runs { name: text() }, READERS);
    Log => reconciler(
        ReconcilerRequest::Log { name: text(), run: None, offset: 0, wait_ms: 0 }, READERS);
    MemberList => reconciler(ReconcilerRequest::MemberList { scope: None }, READERS);
    ObjectList => reconciler(ReconcilerRequest::ObjectList { kind: None, namespace: None }, READERS);
    ObjectChanges => reconciler(
        ReconcilerRequest::ObjectChanges { kind: None, namespace: None, seen: Revision(0), wait_ms: 0 }, READERS);
    ObjectGet => reconciler(ReconcilerRequest::ObjectGet { key: object() }, READERS);
    Admission => reconciler(ReconcilerRequest::Admission { key: member(), seen: Revision(0), wait_ms: 0 }, READERS);
    Definitions => reconciler(
        ReconcilerRequest::Definitions { release: release(), seen: Revision(0), wait_ms: 0 }, READERS);
    View => reconciler(
        ReconcilerRequest::View { name: text(), release: release(), seen: Revision(0), wait_ms: 0 }, READERS);
    Announce => reconciler(ReconcilerRequest::Announce { participant: participant() }, PARTICIPANTS);
    Admit => reconciler(ReconcilerRequest::Admit { key: member() }, PARTICIPANTS);
    Leave => reconciler(ReconcilerRequest::Leave { key: member() }, PARTICIPANTS);
    Step => reconciler(ReconcilerRequest::Step {
        name: text(), release: release(), digest: text(), term: FencingToken(1), epoch: 1, step: GateStep::Work,
    }, PARTICIPANTS);
    Wave => reconciler(ReconcilerRequest::Wave {
        name: text(), release: release(), digest: text(), term: FencingToken(1), wave: 0,
    }, PARTICIPANTS);
    Progress => reconciler(ReconcilerRequest::Progress { progress: progress() }, PARTICIPANTS);
    StepDone => reconciler(ReconcilerRequest::StepDone {
        name: text(), release: release(), digest: text(), defined: Revision(1), term: FencingToken(1), step: text(),
    }, PARTICIPANTS);
    RecordRun => reconciler(ReconcilerRequest::RecordRun { record: Box::new(crate::tests::run(1, 1)) }, PARTICIPANTS);
    RaiseLevel => reconciler(ReconcilerRequest::RaiseLevel { level: 9, term: FencingToken(1) }, PARTICIPANTS);
    Apply => [(LEVEL_RECONCILER, PARTICIPANTS), ("shop", OPERATORS)].map(|(name, who)| {
        let definitions = vec![definition(name)];
        (Request::Reconciler(ReconcilerRequest::Apply { definitions, replace: false }), who)
    }).to_vec();
    Pause => reconciler(ReconcilerRequest::Pause { name: text(), paused: true }, OPERATORS);
    Finalize => reconciler(ReconcilerRequest::Finalize { name: text(), release: None }, OPERATORS);
    Retry => reconciler(ReconcilerRequest::Retry { name: text(), release: None }, OPERATORS);
    Repair => reconciler(ReconcilerRequest::Repair { name: text(), epoch: 1 }, OPERATORS);
    ForceFloor => reconciler(
        ReconcilerRequest::ForceFloor { name: text(), floor: release(), dry_run: true }, OPERATORS);
    DeleteGate => reconciler(ReconcilerRequest::DeleteGate { name: text() }, OPERATORS);
    Delete => reconciler(ReconcilerRequest::Delete { name: text() }, OPERATORS);
    MemberForget => reconciler(ReconcilerRequest::MemberForget { scope: text(), member: text() }, OPERATORS);
    MemberAnnounce => reconciler(ReconcilerRequest::MemberAnnounce {
        scope: text(), member: text(), release: release(), needs: Default::default(), allow_undefined_scope: false,
    }, OPERATORS);
    MemberDrain => reconciler(ReconcilerRequest::MemberDrain { scope: text(), member: text() }, OPERATORS);
    ObjectPut => reconciler(
        ReconcilerRequest::ObjectPut { key: object(), labels: Default::default(), body: text() }, OPERATORS);
    ObjectDelete => reconciler(ReconcilerRequest::ObjectDelete { key: object() }, OPERATORS);
});

/// API-1, API-2, RIGHTS-2: every kind of request, by every kind of caller.
#[test]
fn every_request_is_limited_to_its_permitted_callers() {
    for (request, who) in requests() {
        for (name, caller) in callers() {
            let judged = authorize(&caller, &request, || vec!["m:1".to_owned()]);
            assert_eq!(judged.is_ok(), who.contains(&name), "{request:?} by {name}: {judged:?}");
            let Err(refused) = judged else { continue };
            if caller == Principal::Anonymous {
                assert_eq!(refused.code, ErrorCode::Unauthenticated);
            } else {
                assert_eq!(refused.code, ErrorCode::Forbidden);
                assert!(refused.message.contains("m:1") && refused.message.contains("--admin"), "{refused}");
            }
        }
        if who.contains(&"reader") {
            let kind = kind_of(&request);
            assert!(!matches!(kind, Kind::Write | Kind::ActorsAdmin), "{request:?} is a {kind:?}");
        }
    }
}

#[test]
fn read_only_operator_refusal_names_the_remedy() {
    let eye = Principal::Reader("eye".parse().unwrap());
    let refusal_text = |request| authorize(&eye, &request, Vec::new).unwrap_err().message;
    let secrets = refusal_text(Request::TokenShow { role: Role::Worker });
    assert!(secrets.starts_with("read-only operator eye may not read this: it contains secrets"), "{secrets}");
    let changes = refusal_text(Request::TokenRotate { role: Role::Worker });
    assert!(changes.starts_with("read-only operator eye may not do this: it is read-only"), "{changes}");
}

/// RIGHTS-2. By certificate or token, whatever namespaces its record has.
#[test]
fn a_read_only_operator_reads_every_namespace_and_writes_none() {
    let name: Name = "eye".parse().unwrap();
    let mut tables = Tables::default();
    let eye = Principal::Reader(name.clone());
    assert!(may_access(&tables, &eye, "default").is_err(), "revoked");
    let user = User {
        name: name.clone(),
        kind: UserKind::ReadOnly,
        namespaces: vec!["default".to_owned()],
        serial: "a1".to_owned(),
        created_at: WallTime(0),
        not_after: WallTime(0),
        revision: Revision(1),
    };
    tables.users.insert(name.clone(), user);
    for namespace in ["default", "team-a", "*", muster_messages::MEMBERS_NAMESPACE] {
        assert!(may_access(&tables, &eye, namespace).is_ok(), "{namespace}");
        let granted = ["*".to_owned()];
        for caller in [eye.clone(), Principal::User(name.clone())] {
            let refused = may_write(&tables, &granted, &caller, namespace).unwrap_err();
            assert!(refused.code == ErrorCode::Forbidden && refused.message.contains("--namespace"), "{refused}");
        }
    }
}
