//! S37: the cluster's secrets appear only in the answers that are meant to contain them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use muster_messages::wire::{
    ActorsAsk, ActorsOf, KubeCall, LeaseRef, LeaseRequest, ListOf, Page, ReconcilerRequest, Request,
};
use muster_messages::{Revision, Role, RootId, Secret};
use muster_pki::IdentityStore;
use serde_json::Value;

use crate::harness::World;
use crate::sealed_disk::token_secrets;

/// One answer over the admin socket, with any status.
fn http(socket: &Path, method: &str, target: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the socket answers");
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: muster\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The lines of the private keys in a text or a file.
fn key_lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes).replace("\\n", "\n");
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            inside = true;
        } else if line.contains("-----END") {
            inside = false;
        } else if inside {
            lines.push(line.trim().to_owned());
        }
    }
    lines.retain(|line| line.len() >= 20);
    lines
}

fn secret_of(token: &Value) -> String {
    token["token"].as_str().and_then(|t| t.rsplit('-').next()).expect("a token ends with its secret").to_owned()
}

/// The native requests: each kind, and variants with different answers. A missing kind does not compile below.
fn requests(token: &str) -> Vec<Request> {
    let node = || "n3".to_owned();
    let lists =
        [ListOf::Nodes, ListOf::Blocklist, ListOf::Certificates, ListOf::Tokens, ListOf::Users, ListOf::Workloads];
    let lease = || LeaseRef { namespace: "default".to_owned(), name: "l".to_owned() };
    let kube = |method: &str, target: &str| {
        Request::Kube(KubeCall {
            method: method.to_owned(),
            target: target.to_owned(),
            content_type: None,
            accept: None,
            user_agent: None,
            body: vec![],
        })
    };
    let workload = || "shop/web".parse().expect("a name");
    let actors = |node, ask| Request::Actors { node, ask };
    let inspect = |path: &str| ActorsAsk::Inspect { path: path.to_owned() };
    let mut all = vec![
        Request::Status { fresh: true },
        Request::NodeList { fresh: true },
        Request::NodeInspect { node: node(), fresh: true },
        Request::NodeWatch { node: node(), seen: 0, wait_ms: 0 },
        Request::NodeMayStop { node: node() },
        Request::TokenList,
        Request::CertList,
        Request::CertRotate { node: node() },
        Request::CertRevoke { node: node() },
        Request::CaShow,
        Request::RootList,
        Request::RootAbort,
        Request::RootActivate { root: RootId([7; 8]) },
        Request::RootRetire { root: RootId([7; 8]), force: false },
        Request::RootRevoke { root: RootId([7; 8]) },
        Request::AutolockStatus,
        Request::Unlock { key: Secret::new("x"), version: None },
        Request::RootRequest { compromised: false },
        Request::UserList,
        Request::WorkloadList,
        Request::WorkloadShow { name: workload() },
        Request::WorkloadRemove { name: workload() },
        Request::WorkloadExplain { pid: 1 },
        Request::BlocklistList { fresh: true },
        Request::RaftStatus { fresh: true },
        Request::Events { since: Revision(0), wait_ms: 0 },
        Request::Contact,
        Request::OpenAdmission,
        Request::NodeUpdate {
            node: node(),
            add: [("a".to_owned(), "b".to_owned())].into(),
            remove: vec![],
            generation: None,
        },
        Request::NodeRename { node: node(), name: node().parse().expect("a name") },
        Request::TransferLeader { to: None },
        Request::SetRole { node: node(), role: Role::Worker },
        Request::NodeRemove { node: node(), force: false },
        Request::TokenRevoke { id: token.to_owned() },
        Request::UserRevoke { name: "mallory".parse().expect("a name") },
        Request::Lease(LeaseRequest::List { namespace: None }),
        Request::Lease(LeaseRequest::Get { lease: lease() }),
        Request::Lease(LeaseRequest::Guards),
        Request::Reconciler(ReconcilerRequest::List),
        Request::Reconciler(ReconcilerRequest::MemberList { scope: None }),
        Request::Reconciler(ReconcilerRequest::ObjectList { kind: None, namespace: None }),
        Request::Reconciler(ReconcilerRequest::History { name: "feature-level".to_owned() }),
        Request::Reconciler(ReconcilerRequest::Runs { name: "feature-level".to_owned() }),
        Request::Reconciler(ReconcilerRequest::Log {
            name: "feature-level".to_owned(),
            run: None,
            offset: 0,
            wait_ms: 0,
        }),
        kube("GET", "/apis/coordination.k8s.io/v1/leases"),
        kube("GET", "/api/v1/configmaps"),
        actors(ActorsOf::All, ActorsAsk::Tree),
        actors(ActorsOf::Leader, ActorsAsk::Tree),
        actors(ActorsOf::Here, inspect("node/manager/raft-member")),
        actors(ActorsOf::Node(node()), inspect("node/agent")),
    ];
    all.extend(lists.map(|of| Request::Page { of, page: Page::default(), fresh: true }));
    all
}

/// Whether its answer is a secret. A new kind of request must be added to [`requests`], or be listed here.
fn is_asked_for_a_secret(request: &Request) -> bool {
    match request {
        Request::TokenCreate { .. }
        | Request::TokenRotate { .. }
        | Request::TokenShow { .. }
        | Request::AutolockOn
        | Request::AutolockRotate
        | Request::AutolockKey { .. }
        | Request::AccessTokenCreate { .. } => true,
        Request::Status { .. }
        | Request::NodeList { .. }
        | Request::NodeInspect { .. }
        | Request::NodeWatch { .. }
        | Request::Autopilot(_)
        | Request::NodeMayStop { .. }
        | Request::SetRole { .. }
        | Request::NodeRemove { .. }
        | Request::NodeUpdate { .. }
        | Request::NodeRename { .. }
        | Request::TokenList
        | Request::TokenRevoke { .. }
        | Request::CertList
        | Request::CertRotate { .. }
        | Request::CertRevoke { .. }
        | Request::CaShow
        | Request::RootList
        | Request::RootRotate { .. }
        | Request::RootActivate { .. }
        | Request::RootAbort
        | Request::RootRetire { .. }
        | Request::RootRevoke { .. }
        | Request::AutolockStatus
        | Request::AutolockOff
        | Request::Unlock { .. }
        // The key of a request stays in the state.
        | Request::RootRequest { .. }
        | Request::RootIssued { .. }
        // Its key never leaves the client.
        | Request::UserCreate { .. }
        | Request::UserRenew { .. }
        | Request::UserList
        | Request::UserRevoke { .. }
        | Request::BlocklistList { .. }
        | Request::RaftStatus { .. }
        | Request::TransferLeader { .. }
        | Request::Actors { .. }
        | Request::Events { .. }
        | Request::Lease(_)
        | Request::Kube(_)
        | Request::Contact
        | Request::Reconciler(_)
        | Request::Page { .. }
        // A workload's private key never leaves its node, and is in no answer.
        | Request::WorkloadList
        | Request::WorkloadShow { .. }
        | Request::WorkloadSet { .. }
        | Request::WorkloadRemove { .. }
        | Request::WorkloadExplain { .. }
        | Request::OpenAdmission => false,
    }
}

/// Every described path of `/v1`, with values for its parameters, and those of the Kubernetes subset.
fn calls(described: &Value, actors: &[String]) -> Vec<(String, String)> {
    let mut calls = vec![];
    for (path, methods) in described["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            let method = method.to_uppercase();
            if path == "/v1/actors/{path}" && method == "GET" {
                calls.extend(actors.iter().map(|actor| (method.clone(), format!("/v1/actors/{actor}"))));
                continue;
            }
            let fill = [
                ("{node}", "n2"),
                ("{id}", "nobody"),
                ("{root}", "0707070707070707"),
                ("{path}", "node/nobody"),
                ("{scope}", "muster"),
                ("{member}", "nobody"),
                ("{kind}", "K"),
                ("{namespace}", "default"),
                ("{name}", "feature-level"),
                ("{run}", "last"),
            ];
            let path = fill.iter().fold(path.clone(), |path, (from, to)| path.replace(from, to));
            calls.push((method, path));
        }
    }
    let kube = ["/version", "/api", "/apis", "/api/v1", "/apis/coordination.k8s.io/v1", "/v1/openapi.json", "/livez"];
    calls.extend(kube.map(|path| ("GET".to_owned(), path.to_owned())));
    calls
}

fn paths(actor: &Value, into: &mut Vec<String>) {
    into.extend(actor["path"].as_str().map(str::to_owned));
    actor["children"].as_array().into_iter().flatten().for_each(|child| paths(child, into));
}

#[test]
#[ignore = "full tier"]
fn answers_leak_no_root_key_or_token_secret() {
    let mut world = World::with(2, 1);
    let created = world.muster(&["token", "create", "--role", "worker"]).ended(0).json();
    let mut secrets = token_secrets(&world);
    secrets.push(secret_of(&created));
    let access = Request::AccessTokenCreate {
        user: "mallory".parse().expect("a name"),
        namespace: "default".to_owned(),
        ttl_ms: None,
    };
    assert!(is_asked_for_a_secret(&access));
    secrets.push(secret_of(&world.answer("n1", access)));
    let backup = world.folder().join("backup");
    world.muster(&["backup", backup.to_str().expect("a path")]).ended(0);
    let root = key_lines(&std::fs::read(&backup).expect("a backup"));
    assert!(!root.is_empty(), "a backup holds the root key");
    secrets.extend(root);
    for name in ["n1", "n2", "n3"] {
        let store = IdentityStore::open(&world.node(name).folder).expect("the directory is a node's");
        let own = store.load_credentials().expect("credentials").expect("a node has some").key_pem;
        let own = key_lines(own.expose().as_bytes());
        assert!(!own.is_empty());
        secrets.extend(own);
    }
    secrets.push("PRIVATE KEY".to_owned());
    assert!(is_asked_for_a_secret(&Request::AutolockOn));
    let unlock_key = world.answer("n1", Request::AutolockOn);
    secrets.push(secret_of(&serde_json::json!({"token": unlock_key["key"].as_str().and_then(|key| key.rsplit_once('-')).map(|(key, _)| key)})));

    let shown = world.answer("n1", Request::TokenShow { role: Role::Worker }).to_string();
    assert!(secrets.iter().any(|secret| shown.contains(secret.as_str())), "the search finds existing secrets");

    let mut answers = 0;
    let mut search = |what: &str, answer: &str| {
        answers += 1;
        let found = secrets.iter().position(|secret| answer.contains(secret.as_str()));
        assert_eq!(found, None, "{what} holds one of {} secrets", secrets.len());
    };
    let described = http(&world.socket("n1"), "GET", "/v1/openapi.json", "");
    let (_, described) = described.split_once("\r\n\r\n").expect("a body");
    let described: Value = serde_json::from_str(described).expect("a document");
    for at in ["n1", "n2", "n3"] {
        let tree = world.answer(at, Request::Actors { node: ActorsOf::Here, ask: ActorsAsk::Tree });
        let mut actors = vec![];
        paths(&tree, &mut actors);
        assert!(actors.len() > 5, "{actors:?}");
        for (method, target) in calls(&described, &actors) {
            // Their answer is the secret. `DELETE /v1/nodes/n2` comes without force: it is refused.
            let makes_a_key = ["/v1/autolock/on", "/v1/autolock/rotate", "/v1/autolock/key"].contains(&target.as_str());
            if target == "/v1/backup"
                || makes_a_key
                || (method == "POST" && target == "/v1/tokens")
                || target.starts_with("/v1/tokens/default/")
            {
                continue;
            }
            let answer = http(&world.socket(at), &method, &target, if method == "GET" { "" } else { "{}" });
            assert!(answer.starts_with("HTTP/1.1 "), "{method} {target}: {answer}");
            search(&format!("{at}: {method} {target}"), &answer);
        }
        for request in requests(created["id"].as_str().expect("an id")) {
            assert!(!is_asked_for_a_secret(&request));
            let what = format!("{at}: {request:?}");
            let answer = match world.ask(at, request) {
                Ok(answer) => answer.to_string(),
                Err(failure) => format!("{failure:?}"),
            };
            search(&what, &answer);
        }
        for path in ["/metrics", "/livez", "/readyz"] {
            search(&format!("{at}: {path}"), &world.scraped(at, path));
        }
        search(&format!("{at}: its log"), &world.node(at).log());
    }
    assert!(answers > 150, "{answers}");
}
