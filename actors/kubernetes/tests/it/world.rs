//! A server without a network: routes, plans, applies to tables, answers.

use muster_kubernetes::{
    Ask, Context, Head, Refused, Rules, Status, Takes, Watcher, access_answer, access_review, answer, document,
    event_dropped, no_events, plan, route, rules_answer, rules_review, self_review,
};
use muster_messages::wire::KubeAnswer;
use muster_messages::{
    Change, Command, CommandRefusal, GuardMode, GuardScope, Moment, Object, ObjectChange, ObjectKey, ObjectKind,
    Principal, Revision, Tables, Term, WallTime,
};
use muster_store::{History, LogPosition, apply_watched};
use serde_json::{Value, json};

/// 2026-11-21T00:00:00Z.
pub const T0: WallTime = WallTime(1_795_219_200_000);
pub const BASE: &str = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
pub const CANDIDATES: &str = "/apis/coordination.k8s.io/v1beta1/namespaces/ns/leasecandidates";
pub const MAPS: &str = "/api/v1/namespaces/ns/configmaps";

/// A request to send.
#[derive(Clone, Default)]
pub struct Request {
    pub method: &'static str,
    pub target: String,
    pub content_type: Option<&'static str>,
    pub accept: Option<&'static str>,
    pub user_agent: Option<&'static str>,
    pub body: Vec<u8>,
}

pub fn request(method: &'static str, target: impl Into<String>, body: Value) -> Request {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    Request { method, target: target.into(), body, ..Request::default() }
}

impl Request {
    pub fn typed(mut self, content_type: &'static str) -> Self {
        self.content_type = Some(content_type);
        self
    }
    pub fn accepting(mut self, accept: &'static str) -> Self {
        self.accept = Some(accept);
        self
    }
    pub fn by(mut self, user_agent: &'static str) -> Self {
        self.user_agent = Some(user_agent);
        self
    }
    pub fn ask(&self) -> Result<Ask, Status> {
        route(Head {
            method: self.method,
            target: &self.target,
            content_type: self.content_type,
            accept: self.accept,
            user_agent: self.user_agent,
        })
    }
}

/// The response.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub status: u16,
    pub json: Value,
    pub warnings: Vec<String>,
}

impl From<KubeAnswer> for Reply {
    fn from(answer: KubeAnswer) -> Self {
        let json = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
        Self { status: answer.status, json, warnings: answer.warnings }
    }
}

impl Reply {
    /// Expects this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.json);
        self
    }
    pub fn at(&self, pointer: &str) -> Value {
        self.json.pointer(pointer).cloned().unwrap_or_default()
    }
    pub fn revision(&self) -> u64 {
        self.at("/metadata/resourceVersion").as_str().and_then(|text| text.parse().ok()).expect("a resource version")
    }
    pub fn token(&self) -> u64 {
        let token = self.at("/metadata/annotations/muster.dev~1fencing-token");
        token.as_str().and_then(|text| text.parse().ok()).expect("a fencing token")
    }
    pub fn holder(&self) -> Value {
        self.at("/spec/holderIdentity")
    }
    pub fn reason(&self) -> Value {
        self.at("/reason")
    }
}

/// A step between a plan and its command.
type BetweenSteps = Box<dyn FnOnce(&mut Server)>;

#[derive(Default)]
pub struct Server {
    pub tables: Tables,
    pub history: History,
    pub now: i64,
    entropy: u128,
    between: Vec<BetweenSteps>,
}

impl Server {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wall(&self) -> WallTime {
        WallTime(T0.0 + self.now)
    }

    /// Runs this after the next write has been planned.
    pub fn between(&mut self, what: impl FnOnce(&mut Server) + 'static) {
        self.between.push(Box::new(what));
    }

    pub fn send(&mut self, request: &Request) -> Reply {
        self.now += 1000;
        Reply::from(self.answered(request).unwrap_or_else(KubeAnswer::from))
    }

    fn answered(&mut self, request: &Request) -> Result<KubeAnswer, Status> {
        let ask = request.ask()?;
        match ask.takes {
            Takes::Document => Ok(document(&ask, "0.1.0")),
            Takes::Identity => Ok(self_review("tester", &[])),
            Takes::Authorization => {
                let question = access_review(&ask, &request.body)?;
                Ok(access_answer(&question, question.verb == "get", ""))
            }
            Takes::Rules => rules_review(&ask, &request.body)
                .map(|namespace| rules_answer(if namespace == "ns" { Rules::All } else { Rules::None })),
            Takes::NoEvents => no_events(&ask),
            Takes::Event => event_dropped(&ask, &request.body),
            Takes::Read => answer(&ask, &self.tables, self.wall()),
            Takes::Watch => panic!("use `watch`"),
            Takes::Write => self.write(&ask, &request.body),
        }
    }

    fn write(&mut self, ask: &Ask, body: &[u8]) -> Result<KubeAnswer, Status> {
        for _ in 0..5 {
            self.entropy += 0x1234_5678_9abc_def0_1111;
            let context = Context { now: self.wall(), entropy: self.entropy };
            let plan = plan(ask, body, &self.tables, context)?;
            if plan.dry_run {
                return Ok(plan.done(ask, None, self.wall()));
            }
            for what in std::mem::take(&mut self.between) {
                what(self);
            }
            let mut command = Command::idempotent(self.wall(), Principal::Operator, ask.to_string());
            command.guards.clone_from(&plan.guards);
            command.changes.clone_from(&plan.changes);
            match self.apply(&command) {
                Ok(changes) => {
                    let stored = changes.first().and_then(|change| change.after.as_deref());
                    return Ok(plan.done(ask, stored, self.wall()));
                }
                Err(refusal) => match plan.refused(&refusal) {
                    Refused::Replan => {}
                    Refused::Final(status) => return Err(status),
                },
            }
        }
        panic!("five plans failed");
    }

    pub fn apply(&mut self, command: &Command) -> Result<Vec<ObjectChange>, CommandRefusal> {
        let revision = Revision(self.tables.revision.0 + 1);
        let mut changes = Vec::new();
        let applied = apply_watched(&mut self.tables, LogPosition { revision, term: Term(1) }, command, &mut changes);
        self.history.record(Moment(0), revision, changes.clone());
        applied.map(|()| changes)
    }

    /// A change made by a client other than a Kubernetes client.
    pub fn natively(&mut self, change: Change) {
        let command = Command::idempotent(self.wall(), Principal::Operator, "natively").change(change);
        self.apply(&command).expect("the change is allowed");
    }

    pub fn guard(&mut self, mode: GuardMode) {
        let scope = GuardScope { namespace: "ns".to_owned(), lease: None };
        self.natively(Change::SetGuard { scope, mode: Some(mode) });
    }

    pub fn object(&self, kind: ObjectKind, name: &str) -> Option<&Object> {
        let key = ObjectKey { kind, namespace: "ns".to_owned(), name: name.to_owned() };
        self.tables.objects.get(&key).map(AsRef::as_ref)
    }

    pub fn lease(&self, name: &str) -> &Object {
        self.object(ObjectKind::Lease, name).expect("the lease exists")
    }

    pub fn post(&mut self, target: &str, body: Value) -> Reply {
        self.send(&request("POST", target, body))
    }
    pub fn get(&mut self, target: impl Into<String>) -> Reply {
        self.send(&request("GET", target, Value::Null))
    }
    pub fn put(&mut self, target: &str, body: Value) -> Reply {
        self.send(&request("PUT", target, body))
    }
    pub fn delete(&mut self, target: &str, body: Value) -> Reply {
        self.send(&request("DELETE", target, body))
    }
    pub fn merge(&mut self, target: &str, body: Value) -> Reply {
        self.send(&request("PATCH", target, body).typed("application/merge-patch+json"))
    }
    pub fn strategic(&mut self, target: &str, body: Value) -> Reply {
        self.send(&request("PATCH", target, body).typed("application/strategic-merge-patch+json"))
    }
    pub fn apply_patch(&mut self, target: &str, body: Value) -> Reply {
        self.send(&request("PATCH", target, body).typed("application/apply-patch+yaml"))
    }

    /// Creates a held lease, and returns its path.
    pub fn held(&mut self, name: &str, holder: &str) -> String {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-11-21T05:00:00Z"});
        self.post(BASE, json!({"metadata": {"name": name}, "spec": spec})).expect(201);
        format!("{BASE}/{name}")
    }

    pub fn watch(&self, target: &str) -> Stream {
        let request = request("GET", target, Value::Null);
        Stream::begin(self, &request)
    }
}

/// A watch as its client sees it.
pub struct Stream {
    watcher: Watcher,
    begun: bool,
}

impl Stream {
    pub fn begin(server: &Server, request: &Request) -> Self {
        let ask = request.ask().unwrap_or_else(|e| panic!("{}", e.message));
        assert_eq!(ask.takes, Takes::Watch);
        Self { watcher: Watcher::begin(&ask, &server.tables).expect("the watch begins"), begun: false }
    }

    /// All events not returned yet.
    pub fn events(&mut self, server: &Server) -> Vec<Value> {
        let mut lines = String::new();
        while let Some(more) = self.watcher.initial(600, server.wall()) {
            lines += &more;
        }
        self.begun = true;
        let changes = server.history.since(self.watcher.after(), usize::MAX).expect("the history reaches back");
        for change in changes {
            lines.extend(self.watcher.change(&change, server.wall()));
        }
        self.watcher.caught_up(server.tables.revision);
        lines.lines().map(|line| serde_json::from_str(line).expect("each line is one event")).collect()
    }

    /// The same, in short form: type and name.
    pub fn observed(&mut self, server: &Server) -> Vec<String> {
        let short = |event: Value| {
            let name = event.pointer("/object/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
            format!("{} {name}", event["type"].as_str().unwrap_or_default()).trim_end().to_owned()
        };
        self.events(server).into_iter().map(short).collect()
    }

    pub fn watcher(&self) -> &Watcher {
        assert!(self.begun, "drain the initial events first");
        &self.watcher
    }
}
