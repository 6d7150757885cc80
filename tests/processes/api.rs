//! HTTP `/v1` of real daemons: every described path on a leader, a follower and a worker, each answer as its schema says.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use muster_testkit::Schemas;
use serde_json::{Value, json};

use crate::harness::{World, eventually_so};

/// An answer: the status, the head in lower case, and the body.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim)
    }
}

/// One request over the admin socket. 1.0: the answer is not in chunks.
pub fn http(socket: &Path, method: &str, target: &str, headers: &str, body: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).expect("the socket answers");
    let length = body.len();
    let request =
        format!("{method} {target} HTTP/1.0\r\nHost: muster\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Answer { status, head, body: answer[end + 4..].to_vec() }
}

/// A request: its method, its described path, its target and its body.
type Call = (&'static str, &'static str, String, Value);

/// Every described operation at least once, in an order in which most of them succeed on the leader.
fn calls(at: &str) -> Vec<Call> {
    let csr = muster_pki::make_csr(&muster_pki::new_key()).expect("a certificate request");
    let document = json!({"name": format!("r-{at}"), "release": "1.0.0", "scope": format!("s-{at}"), "floor": "1.0.0",
                          "objects": [{"kind": "t", "name": at, "body": {"a": 1}}]});
    let own = |text: &str| text.replace("{at}", at);
    let workload = json!({"selectors": ["unix:uid:12345"]});
    let (none, root) = (Value::Null, "0707070707070707");
    // The first one that is asked leads, and stays the leader: the next one is a follower.
    let stays = if at == "n1" { json!({"to": "n1"}) } else { json!({}) };
    let of_root = |step: &str| format!("/v1/ca/roots/{root}/{step}");
    let same = |method, path: &'static str, body: &Value| (method, path, path.to_owned(), body.clone());
    let mut calls = vec![
        ("POST", "/v1/tokens", "/v1/tokens".to_owned(), json!({"role": "worker", "ttl_ms": 60_000, "uses": 2})),
        ("POST", "/v1/tokens/default/{role}/rotate", "/v1/tokens/default/worker/rotate".to_owned(), none.clone()),
        ("GET", "/v1/tokens/default/{role}", "/v1/tokens/default/worker".to_owned(), none.clone()),
        ("POST", "/v1/users", "/v1/users".to_owned(), json!({"name": own("u-{at}"), "admin": true, "csr_pem": csr})),
        ("POST", "/v1/leases/{namespace}/{name}", own("/v1/leases/default/l-{at}"), json!({"holder": "h"})),
        ("GET", "/v1/leases/{namespace}/{name}", own("/v1/leases/default/l-{at}"), none.clone()),
        ("POST", "/v1/reconcilers", "/v1/reconcilers".to_owned(), document),
        ("GET", "/v1/reconcilers/{name}", own("/v1/reconcilers/r-{at}"), none.clone()),
        ("GET", "/v1/reconcilers/{name}", "/v1/reconcilers/feature-level".to_owned(), none.clone()),
        ("GET", "/v1/reconcilers/{name}/plan", own("/v1/reconcilers/r-{at}/plan"), none.clone()),
        ("GET", "/v1/reconcilers/{name}/history", "/v1/reconcilers/feature-level/history".to_owned(), none.clone()),
        ("GET", "/v1/reconcilers/{name}/runs", "/v1/reconcilers/feature-level/runs".to_owned(), none.clone()),
        (
            "GET",
            "/v1/reconcilers/{name}/runs/{run}/log",
            "/v1/reconcilers/feature-level/runs/last/log?offset=0&wait=1ms".to_owned(),
            none.clone(),
        ),
        (
            "PUT",
            "/v1/objects/{kind}/{namespace}/{name}",
            own("/v1/objects/k/default/o-{at}"),
            json!({"labels": {"a": "b"}, "body": {}}),
        ),
        ("GET", "/v1/objects/{kind}/{namespace}/{name}", own("/v1/objects/k/default/o-{at}"), none.clone()),
        ("PUT", "/v1/workloads/{namespace}/{name}", own("/v1/workloads/shop/w-{at}"), workload),
        ("GET", "/v1/workloads/{namespace}/{name}", own("/v1/workloads/shop/w-{at}"), none.clone()),
        ("PATCH", "/v1/nodes/{node}", "/v1/nodes/n2".to_owned(), json!({"add": {"rack": at}})),
        ("POST", "/v1/nodes/{node}/promote", "/v1/nodes/n2/promote".to_owned(), none.clone()),
        ("POST", "/v1/nodes/{node}/demote", "/v1/nodes/n3/demote".to_owned(), none.clone()),
        ("POST", "/v1/nodes/{node}/rename", "/v1/nodes/n3/rename".to_owned(), json!({"name": "n3"})),
        ("POST", "/v1/certificates/{node}/rotate", "/v1/certificates/n3/rotate".to_owned(), none.clone()),
    ];
    calls.extend(
        [
            "/v1/status",
            "/v1/nodes",
            "/v1/tokens",
            "/v1/certificates",
            "/v1/users",
            "/v1/workloads",
            "/v1/blocklist",
            "/v1/raft",
            "/v1/events",
            "/v1/backup",
            "/v1/metrics",
            "/v1/prometheus/targets",
            "/v1/leases",
            "/v1/reconcilers",
            "/v1/members",
            "/v1/objects",
            "/v1/ca",
            "/v1/ca/roots",
            "/v1/autolock",
            "/v1/actors",
        ]
        .map(|path| same("GET", path, &none)),
    );
    calls.extend([
        ("GET", "/v1/nodes", "/v1/nodes?limit=1".to_owned(), none.clone()),
        ("GET", "/v1/actors", "/v1/actors?all=true".to_owned(), none.clone()),
        ("GET", "/v1/actors/{path}", "/v1/actors/node/api".to_owned(), none.clone()),
        ("POST", "/v1/actors/{path}", "/v1/actors/node/agent?action=restart".to_owned(), none.clone()),
        ("GET", "/v1/nodes/{node}", "/v1/nodes/n1".to_owned(), none.clone()),
        ("GET", "/v1/nodes/{node}/may-stop", "/v1/nodes/n3/may-stop".to_owned(), none.clone()),
        ("POST", "/v1/reconcilers/{name}/pause", own("/v1/reconcilers/r-{at}/pause"), none.clone()),
        ("POST", "/v1/reconcilers/{name}/resume", own("/v1/reconcilers/r-{at}/resume"), none.clone()),
        ("POST", "/v1/reconcilers/{name}/finalize", own("/v1/reconcilers/r-{at}/finalize"), none.clone()),
        ("POST", "/v1/reconcilers/{name}/retry", own("/v1/reconcilers/r-{at}/retry"), none.clone()),
        ("POST", "/v1/reconcilers/{name}/repair", own("/v1/reconcilers/r-{at}/repair"), json!({"from_history": 9})),
        (
            "POST",
            "/v1/reconcilers/{name}/force-floor",
            "/v1/reconcilers/feature-level/force-floor".to_owned(),
            json!({"release": "1.0.0"}),
        ),
        (
            "POST",
            "/v1/members/{scope}/{member}",
            own("/v1/members/s-{at}/external"),
            json!({"release": "1.0.0", "allow_undefined_scope": true}),
        ),
        ("GET", "/v1/objects", "/v1/objects?watch=1&since=1".to_owned(), none.clone()),
        ("POST", "/v1/members/{scope}/{member}/drain", "/v1/members/s/nobody/drain".to_owned(), none.clone()),
        ("DELETE", "/v1/members/{scope}/{member}", "/v1/members/s/nobody".to_owned(), none.clone()),
        ("DELETE", "/v1/reconcilers/{name}", own("/v1/reconcilers/r-{at}"), none.clone()),
        ("DELETE", "/v1/objects/{kind}/{namespace}/{name}", own("/v1/objects/k/default/o-{at}"), none.clone()),
        ("DELETE", "/v1/workloads/{namespace}/{name}", own("/v1/workloads/shop/w-{at}"), none.clone()),
        ("DELETE", "/v1/leases/{namespace}/{name}", own("/v1/leases/default/l-{at}?force=true"), none.clone()),
        ("DELETE", "/v1/users/{name}", own("/v1/users/u-{at}"), none.clone()),
        ("DELETE", "/v1/tokens/{id}", "/v1/tokens/TOKEN".to_owned(), none.clone()),
        // A policy that is paused at once: nothing of this test may change a role.
        ("PUT", "/v1/autopilot", "/v1/autopilot?dry_run=true".to_owned(), json!({"managers": 3})),
        same("PUT", "/v1/autopilot", &json!({"managers": 1, "eligible": {"none": "such"}})),
        same("POST", "/v1/autopilot/pause", &json!({"why": "a test"})),
        same("GET", "/v1/autopilot", &none),
        same("GET", "/v1/status", &none),
        same("POST", "/v1/autopilot/resume", &none),
        ("POST", "/v1/nodes/{node}/drain", "/v1/nodes/n3/drain".to_owned(), json!({"for_ms": 60_000})),
        ("POST", "/v1/nodes/{node}/undrain", "/v1/nodes/n3/undrain".to_owned(), none.clone()),
        (
            "POST",
            "/v1/nodes/{node}/manager-preference",
            "/v1/nodes/n3/manager-preference".to_owned(),
            json!({"preference": "never"}),
        ),
        same("DELETE", "/v1/autopilot", &none),
        same("POST", "/v1/autolock/on", &none),
        same("GET", "/v1/autolock/key", &none),
        same("POST", "/v1/autolock/rotate", &none),
        same("POST", "/v1/autolock/off", &none),
        same("POST", "/v1/unlock", &json!({"key": "x"})),
        same("POST", "/v1/ca/csr", &none),
        same("GET", "/v1/ca/roots", &none),
        same("POST", "/v1/ca/abort", &none),
        same("POST", "/v1/ca/issued", &json!({"certificates": "x"})),
        same("POST", "/v1/ca/rotate", &json!({"prepare": true})),
        same("GET", "/v1/ca/roots", &none),
        same("POST", "/v1/ca/abort", &none),
        ("POST", "/v1/ca/roots/{root}/activate", of_root("activate"), none.clone()),
        ("POST", "/v1/ca/roots/{root}/retire", of_root("retire"), none.clone()),
        ("POST", "/v1/ca/roots/{root}/revoke", of_root("revoke"), none.clone()),
        // The worker's request comes last, and is refused.
        (
            "DELETE",
            "/v1/nodes/{node}",
            if at == "n2" { "/v1/nodes/n4?force=true".to_owned() } else { "/v1/nodes/nobody".to_owned() },
            none.clone(),
        ),
        same("GET", "/v1/blocklist", &none),
        ("POST", "/v1/raft/transfer-leader", "/v1/raft/transfer-leader".to_owned(), stays),
    ]);
    calls
}

fn described_operations(described: &Value) -> BTreeSet<(String, String)> {
    let paths = described["paths"].as_object().expect("paths");
    let methods = |(path, methods): (&String, &Value)| {
        let methods: Vec<String> = methods.as_object().expect("methods").keys().map(|m| m.to_uppercase()).collect();
        methods.into_iter().map(|method| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(methods).collect()
}

/// Schemas that a healthy cluster of four nodes may not answer with. A test of `muster-api` checks views of each of them, except that of
/// what `muster reconciler apply` sends.
const RARE: [&str; 25] = [
    "AutopilotChange",
    "Blocker",
    "Condition",
    "Definition",
    "DeletedObject",
    "Duplicate",
    "ForcedFloor",
    "GateTarget",
    "Hold",
    "Locked",
    "MemberChanged",
    "NodeProcess",
    "OldKey",
    "Pending",
    "PlannedObject",
    "PlannedSide",
    "PlannedWait",
    "RootExpiry",
    "RootsMissing",
    "Run",
    "RunExit",
    "RunLog",
    "Step",
    "Unlocked",
    "WorkloadHolder",
];

#[test]
#[ignore = "full tier"]
fn answers_match_their_schemas_on_leader_follower_and_worker() {
    let world = World::with(2, 2);
    let described = http(&world.socket("n3"), "GET", "/v1/openapi.json", "", "").json();
    let operations = described_operations(&described);
    let mut schemas = Schemas::of(described.clone());
    let (mut answered, mut faults, mut statuses) = (BTreeSet::new(), Vec::new(), Vec::new());
    for at in ["n1", "n2", "n3"] {
        let mut token = String::new();
        let mut asked = BTreeSet::new();
        for (method, path, target, body) in calls(at) {
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let problem = answered.len() % 2 == 1;
            let accept = if problem { "Accept: application/problem+json\r\n" } else { "" };
            let target = target.replace("TOKEN", if token.is_empty() { "nobody" } else { &token });
            let answer = http(&world.socket(at), method, &target, accept, &body);
            asked.insert((method.to_owned(), path.to_owned()));
            let what = format!("{at}: {method} {target} ({})", answer.status);
            statuses.push(what.clone());
            assert_eq!(answer.header("muster-request-id").map(str::len), Some(32), "{what}: {}", answer.head);
            let operation = &described["paths"][path][method.to_lowercase()];
            let response = if answer.status == 200 {
                &operation["responses"]["200"]
            } else {
                &described["components"]["responses"]["Error"]
            };
            let media_type =
                answer.header("content-type").unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
            let schema = response["content"][&media_type]["schema"].clone();
            if schema.is_null() {
                faults.push(format!("{what}: {media_type} is not described"));
            } else if media_type.contains("json") {
                let value = answer.json();
                if let Err(fault) = schemas.check(&schema, &value) {
                    faults.push(format!("{what}{fault}"));
                }
                if path == "/v1/tokens" && method == "POST" {
                    token = value["id"].as_str().unwrap_or_default().to_owned();
                }
            }
            if answer.status == 200 {
                answered.insert((method.to_owned(), path.to_owned()));
            }
        }
        assert_eq!(asked, operations, "{at} is asked for every described operation");
    }
    let unmet: Vec<String> = schemas.unmet().into_iter().filter(|name| !RARE.contains(&name.as_str())).collect();
    let unanswered: Vec<&(String, String)> = operations.difference(&answered).collect();
    assert_eq!(faults, Vec::<String>::new(), "{statuses:#?}");
    assert_eq!(
        unmet,
        Vec::<String>::new(),
        "schemas that no answer had; operations that did not succeed: {unanswered:?}\n{statuses:#?}"
    );
}

/// A15.
#[test]
fn request_id_is_in_logs_and_events_of_two_managers() {
    let mut world = World::new();
    world.node("n1").start(&["--init", "--log", "info,muster_api=debug"]).ready();
    let (seed, token) = (world.node("n1").address().to_string(), world.token(muster_messages::Role::Manager));
    world.node("n2").start(&["--join", &seed, "--token", &token, "--log", "info,muster_api=debug"]).ready();
    let token = world.token(muster_messages::Role::Worker);
    world.node("n3").start(&["--join", &seed, "--token", &token]).ready();
    let id = "01932f1c7c00700080000000000000ff";
    let leader = world.leader_seen_by("n1");
    let follower = world.other_than(&[&leader, "n3"]);
    let answer =
        http(&world.socket(&follower), "POST", "/v1/nodes/n3/promote", &format!("Muster-Request-Id: {id}\r\n"), "");
    assert_eq!((answer.status, answer.header("muster-request-id")), (200, Some(id)), "{}", answer.head);
    for name in [&follower, &leader] {
        let found = || {
            world
                .nodes_log(name)
                .lines()
                .any(|line| line.contains(&format!("request={id}")) && line.contains("node.promote"))
        };
        eventually_so(&format!("{name} logs the request"), found);
    }
    // The event has it at each manager, and is found by it.
    for name in [&follower, &leader] {
        let found = || {
            let events = world.muster_at(name, &["events", "--request", &id[..12]]).stdout;
            events.contains(r#""kind":"role""#) && events.contains(&format!(r#""request":"{id}""#))
        };
        eventually_so(&format!("{name} shows the event of the request"), found);
    }
}
