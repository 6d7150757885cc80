//! Answers of one manager, before a raft member that is a closure.

use muster_kernel::{Recipient, Undeliverable};
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::{ConfigMap, Name, Object, ObjectBody, ObjectMeta, Outcome, Revision, Uid, User, UserKind};
use tokio::sync::watch;

use super::*;
use crate::service::Asked as OnItsWay;
use crate::work::Work;

pub(super) const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l";
pub(super) const MAPS: &str = "/api/v1/namespaces/ns/configmaps";

/// A manager runtime whose raft member answers reads with `confirmed`, or not at all.
pub(super) struct ManagerRuntime {
    pub ports: Arc<ManagerPorts>,
    pub published: watch::Sender<Arc<Replica>>,
    pub in_force: watch::Sender<Option<Arc<ManagerPorts>>>,
}

impl ManagerRuntime {
    pub fn with(tables: Tables, confirmed: Option<Tables>) -> Self {
        let (published, replica) = watch::channel(replica(tables));
        let raft = Recipient::new(move |msg| match (msg, confirmed.clone()) {
            (RaftMemberMsg::Read { reply, .. }, Some(tables)) => {
                let _gone = reply.send(Ok(super::tests::replica(tables)));
                Ok(())
            }
            _ => Err(Undeliverable::Down),
        });
        let ports = crate::tests::runtime(replica, raft);
        let in_force = watch::Sender::new(Some(Arc::clone(&ports)));
        Self { ports, published, in_force }
    }
    pub fn service(&self) -> Service {
        crate::tests::service(self.in_force.subscribe())
    }
}

pub(super) fn replica(tables: Tables) -> Arc<Replica> {
    Arc::new(Replica { tables, ..Replica::default() })
}

pub(super) fn ask(method: &'static str, target: &str) -> Ask {
    muster_kubernetes::route(Head { method, target, ..Head::default() }).unwrap_or_else(|e| panic!("{}", e.message))
}

/// A replica with config maps of this size, and a user of their namespace.
pub(super) fn tables_with_maps(maps: usize, bytes: usize) -> Tables {
    let mut tables = Tables { revision: Revision(10), ..Tables::default() };
    for n in 0..maps {
        let data = [("k".to_owned(), "x".repeat(bytes))].into();
        let body = ObjectBody::ConfigMap(ConfigMap { data, ..ConfigMap::default() });
        let meta = ObjectMeta::fresh(Uid(n as u128));
        let object = Object { namespace: "ns".to_owned(), name: format!("m{n:03}"), meta, body };
        tables.objects.insert(object.key(), Arc::new(object));
    }
    let (name, namespaces) = ("ann".parse::<Name>().unwrap(), vec!["ns".to_owned()]);
    let times = (WallTime(0), WallTime(0));
    let user = User {
        name: name.clone(),
        kind: UserKind::User,
        namespaces,
        serial: String::new(),
        created_at: times.0,
        not_after: times.1,
        revision: Revision(1),
    };
    tables.users.insert(name, user);
    tables
}

pub(super) fn ann() -> Requester {
    Requester { peer: Principal::User("ann".parse().unwrap()), token: None }
}

async fn read_by_ann(service: &Service, runtime: &ManagerRuntime, target: &str) -> Result<Response, Status> {
    let (requester, deadline) = (ann(), Instant::now() + Duration::from_secs(60));
    read(service, &runtime.ports, &requester, &requester.peer, ask("GET", target), deadline).await
}

/// KUBE-1.
#[tokio::test]
async fn unconfirmed_replica_denies_nothing() {
    let stale = Tables { cluster: Some(Arc::new(crate::tests::cluster())), ..tables_with_maps(1, 10) };
    for confirmed in [None, Some(stale.clone())] {
        let runtime = ManagerRuntime::with(stale.clone(), confirmed.clone());
        let service = runtime.service();
        for query in ["?resourceVersion=0", "?resourceVersion=7"] {
            let found = read_by_ann(&service, &runtime, &format!("{MAPS}/m000{query}")).await;
            assert_eq!(found.unwrap().status(), 200, "any replica shows what exists");
            let missing = read_by_ann(&service, &runtime, &format!("{LEASE}{query}")).await.unwrap_err();
            let expected = if confirmed.is_some() { 404 } else { 503 };
            assert_eq!(missing.reason.code(), expected, "{query}: {}", missing.message);
        }
    }
}

#[tokio::test]
async fn unread_kubernetes_lists_are_bounded() {
    let tables = tables_with_maps(20, 10_000);
    let runtime = ManagerRuntime::with(tables.clone(), Some(tables));
    let service = runtime.service();
    let mut unread = Vec::new();
    let refused = loop {
        match read_by_ann(&service, &runtime, MAPS).await {
            Ok(response) => unread.push(response),
            Err(status) => break status,
        }
        assert!(unread.len() <= 100, "unread answers are not bounded");
    };
    assert_eq!(refused.reason, Reason::TooManyRequests);
    // Short answers still pass, and reading frees room.
    let short = read_by_ann(&service, &runtime, &format!("{MAPS}/m000")).await;
    assert!(short.is_ok());
    let body = unread.pop().unwrap().into_body().collect().await.unwrap().to_bytes();
    assert!(body.len() > 200_000);
    assert!(read_by_ann(&service, &runtime, MAPS).await.is_ok());
}

/// Over HTTP/2 a client has many streams, and reads none of them.
#[tokio::test]
async fn unread_config_maps_are_bounded_if_they_are_long() {
    let tables = tables_with_maps(2, 100_000);
    let runtime = ManagerRuntime::with(tables.clone(), Some(tables));
    let service = runtime.service();
    let mut unread = Vec::new();
    let refused = loop {
        match read_by_ann(&service, &runtime, &format!("{MAPS}/m000")).await {
            Ok(response) => unread.push(response),
            Err(status) => break status,
        }
        assert!(unread.len() <= 100, "unread answers are not bounded");
    };
    assert_eq!(refused.reason, Reason::TooManyRequests);
    drop(unread.pop());
    assert!(read_by_ann(&service, &runtime, &format!("{MAPS}/m001")).await.is_ok());
}

/// Ann's write of a lease, on the leader, as the request with this id.
async fn written(
    runtime: &ManagerRuntime,
    service: &Service,
    id: u128,
    body: Vec<u8>,
) -> Result<KubeAnswer, ErrorBody> {
    let (content_type, accept, user_agent) = (None, None, None);
    let (method, target) = ("PUT".to_owned(), LEASE.to_owned());
    let call = KubeCall { method, target, content_type, accept, user_agent, body };
    let asked = OnItsWay {
        caller: ann().peer,
        request_id: RequestId(id),
        deadline: Instant::now() + Duration::from_secs(60),
        request: Asked::Kube(call.clone()),
        applied: Default::default(),
    };
    let work = Work { service, manager: &runtime.ports, asked: &asked };
    let answer = ObjectWrite { work, call: &call }.lead().await?;
    Ok(serde_json::from_str(&answer).unwrap())
}

/// The first attempt of request 5 met another client's write, the second was applied.
fn tables_with_applied_write() -> Tables {
    let mut tables = tables_with_maps(0, 0);
    let outcome = Outcome { request: RequestId(6), revision: Revision(9), refused: None };
    tables.outcomes.insert(outcome.request, outcome);
    tables
}

#[tokio::test]
async fn write_applied_under_an_earlier_leader_ends_with_final_error() {
    let runtime = ManagerRuntime::with(tables_with_applied_write(), None);
    let answer = written(&runtime, &runtime.service(), 5, b"{}".to_vec()).await.expect("a final answer");
    assert_eq!((answer.status, answer.retry_after_s), (503, Some(1)));
}

/// API-6.
#[tokio::test]
async fn write_over_the_quota_is_refused_unread() {
    const MIB: usize = 1 << 20;
    let malformed = || vec![b'{'; 4 * MIB];
    let over_quota = |tables: Tables, confirmed: Tables| {
        let runtime = ManagerRuntime::with(tables, Some(confirmed));
        let service = runtime.service();
        while service.log_quota.take(Clock.now(), &ann().peer, 8 * MIB).is_ok() {}
        (runtime, service)
    };
    let (runtime, service) = over_quota(tables_with_maps(0, 0), tables_with_maps(0, 0));
    let refused = written(&runtime, &service, 5, malformed()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooManyRequests);
    let (runtime, service) = over_quota(tables_with_maps(0, 0), tables_with_applied_write());
    let made = written(&runtime, &service, 5, malformed()).await.expect("a final answer");
    assert_eq!(made.status, 503, "an earlier attempt is in the log: it is not said that nothing was made");
    let mut revoked = tables_with_maps(0, 0);
    revoked.users.clear();
    let (runtime, service) = over_quota(revoked.clone(), revoked);
    let denied = written(&runtime, &service, 5, malformed()).await.expect("an answer");
    assert_eq!(denied.status, 403, "a right that is missing is named first");
}

#[test]
fn unknown_path_with_token_is_answered_as_kubernetes_status() {
    for path in ["/", "/metrics", "/apis/apps/v1", "/api", "/openapi/v3"] {
        assert!(serves(path, true), "{path}");
    }
    for (path, with_token) in [("/v1/status", true), ("/v1", true), ("/livez", true), ("/metrics", false), ("/", false)]
    {
        assert!(!serves(path, with_token), "{path}");
    }
}

fn peer(service: &Service, caller: Principal) -> Peer {
    Peer::of(service.clone(), caller, None)
}

async fn status_of(service: &Service, request: Request) -> (u16, serde_json::Value) {
    let answer = serve(&peer(service, ann().peer), request).await;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn impersonation_is_refused() {
    let runtime = ManagerRuntime::with(tables_with_maps(0, 0), Some(tables_with_maps(0, 0)));
    let service = runtime.service();
    for header in ["Impersonate-User", "impersonate-group", "Impersonate-Extra-x"] {
        let review = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").header(header, "bob");
        let (status, body) = status_of(&service, review.body(Body::from("{}")).unwrap()).await;
        assert_eq!((status, &body["reason"]), (403, &"Forbidden".into()), "{header}");
    }
}

#[tokio::test]
async fn events_are_for_those_who_may_touch_the_namespace() {
    let tables = Tables { cluster: Some(Arc::new(crate::tests::cluster())), ..tables_with_maps(0, 0) };
    let runtime = ManagerRuntime::with(tables.clone(), Some(tables));
    let service = runtime.service();
    for (namespace, posted, listed) in [("ns", 201, 200), ("other", 403, 403)] {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let post = Request::post(&path).body(Body::from(r#"{"metadata": {"name": "e"}}"#)).unwrap();
        assert_eq!(status_of(&service, post).await.0, posted, "{namespace}");
        let get = Request::get(&path).body(Body::empty()).unwrap();
        assert_eq!(status_of(&service, get).await.0, listed, "{namespace}");
    }
    assert_eq!(service.counters.events_dropped.load(Ordering::Relaxed), 1);
}

/// A cluster with a config map in `ns` and a read-only operator, who has this token.
fn tables_with_reader(token: &muster_pki::BearerToken) -> Tables {
    let cluster = muster_messages::ClusterRecord { feature_level: 3, ..crate::tests::cluster() };
    let mut tables = Tables { cluster: Some(Arc::new(cluster)), ..tables_with_maps(1, 10) };
    let name: Name = "eye".parse().unwrap();
    let kind = UserKind::ReadOnly;
    let user = User { name: name.clone(), kind, namespaces: vec![], ..tables.users.values().next().unwrap().clone() };
    tables.users.insert(name.clone(), user);
    let access = muster_messages::AccessToken {
        id: token.id.clone(),
        user: name,
        digest: token.digest(),
        created_at: WallTime(0),
        expires_at: None,
    };
    let rights = muster_messages::TokenRights { kind, namespaces: vec![] };
    tables.token_rights.insert(token.id.clone(), rights);
    tables.access_tokens.insert(token.id.clone(), access);
    tables
}

/// RIGHTS-2, over HTTP: by certificate as well as by token.
#[tokio::test]
async fn read_only_operator_reads_and_reviews_report_it() {
    let token = muster_pki::BearerToken::random();
    let tables = tables_with_reader(&token);
    let runtime = ManagerRuntime::with(tables.clone(), Some(tables));
    let service = runtime.service();
    let by_certificate = (Principal::Reader("eye".parse().unwrap()), None);
    let by_token = (Principal::Anonymous, Some(format!("Bearer {}", token.to_text())));
    for (caller, header) in [by_certificate, by_token] {
        let ask = async |method: &str, target: &str, body: serde_json::Value| {
            let mut request = Request::builder().method(method).uri(target);
            if let Some(header) = &header {
                request = request.header("authorization", header);
            }
            let answer =
                serve(&peer(&service, caller.clone()), request.body(Body::from(body.to_string())).unwrap()).await;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
        };
        let none = serde_json::Value::Null;
        for target in ["/api/v1/configmaps", MAPS, "/apis/coordination.k8s.io/v1/leases", "/api/v1/namespaces/x/events"]
        {
            assert_eq!(ask("GET", target, none.clone()).await.0, 200, "{target}");
        }
        let map = serde_json::json!({"metadata": {"name": "m000"}, "data": {}});
        for (method, target) in [
            ("POST", MAPS.to_owned()),
            ("PUT", format!("{MAPS}/m000")),
            ("DELETE", format!("{MAPS}/m000")),
            ("DELETE", MAPS.to_owned()),
            ("POST", "/api/v1/namespaces/ns/events".to_owned()),
        ] {
            let (status, answer) = ask(method, &target, map.clone()).await;
            assert_eq!((status, &answer["reason"]), (403, &"Forbidden".into()), "{method} {target}: {answer}");
        }
        for (verb, allowed) in [("get", true), ("list", true), ("watch", true), ("update", false), ("*", false)] {
            for namespace in ["ns", "other", ""] {
                let (group, resource) = ("coordination.k8s.io", "leases");
                let resource =
                    serde_json::json!({"verb": verb, "group": group, "resource": resource, "namespace": namespace});
                let review = serde_json::json!({"spec": {"resourceAttributes": resource}});
                let target = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
                let (_, answer) = ask("POST", target, review).await;
                assert_eq!(answer["status"]["allowed"], allowed, "{verb} in {namespace:?}: {answer}");
            }
        }
        let target = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
        let (_, rules) = ask("POST", target, serde_json::json!({"spec": {"namespace": "ns"}})).await;
        let rules = rules["status"]["resourceRules"].as_array().cloned().unwrap();
        let of_leases = rules.iter().find(|rule| rule["resources"].as_array().unwrap().contains(&"leases".into()));
        assert_eq!(of_leases.unwrap()["verbs"], serde_json::json!(["get", "list", "watch"]));
        let (_, me) = ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", serde_json::json!({})).await;
        assert_eq!(me["status"]["userInfo"]["username"], "eye");
    }
}
