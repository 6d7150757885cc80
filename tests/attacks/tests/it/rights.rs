//! Rights of tokens and node certificates beyond their purpose: S8, S11 and S16 of the security review.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use muster_attacks::caller::Caller;
use muster_attacks::cluster::Cluster;
use muster_client::{CallError, Connection};
use muster_messages::protocol::Service;
use muster_messages::wire::{LeaseRef, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{RequestId, Revision, Triple, UserKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const PROGRAM: &str = env!("CARGO_BIN_EXE_muster-attack");
const HTTP: &[&[u8]] = &[b"http/1.1"];

async fn cluster(managers: usize, workers: usize) -> Cluster {
    Cluster::up(Path::new(PROGRAM), managers, workers).await.expect("a cluster")
}

/// The status of one request, and its answer.
async fn send_request(caller: &Caller, method: &str, path: &str, bearer: Option<&str>, body: &str) -> (u16, String) {
    let bearer = bearer.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    let length = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{bearer}{length}\r\n{body}");
    let mut stream = caller.tls().await.expect("TLS");
    let mut answer = Vec::new();
    let talk = async {
        stream.write_all(request.as_bytes()).await.expect("it is read");
        let _closed = stream.read_to_end(&mut answer).await;
    };
    timeout(Duration::from_secs(60), talk).await.expect("an answer");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status in {answer:?}")), answer)
}

fn lease(namespace: &str, name: &str, holder: &str) -> (String, String) {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let body = format!(
        "{{\"apiVersion\":\"coordination.k8s.io/v1\",\"kind\":\"Lease\",\
         \"metadata\":{{\"name\":\"{name}\",\"namespace\":\"{namespace}\"}},\"spec\":{{\"holderIdentity\":\"{holder}\"}}}}"
    );
    (path, body)
}

/// S8: bob's token is for one namespace; bob becomes an administrator.
#[tokio::test]
async fn old_token_keeps_its_scope_after_user_becomes_admin() {
    let cluster = cluster(1, 0).await;
    let bob = || "bob".parse().expect("a name");
    let ask = Request::AccessTokenCreate { user: bob(), namespace: "team-b".to_owned(), ttl_ms: None };
    let made = cluster.ask("n1", ask).await.expect("a token");
    let token = made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let caller = Caller::unauthenticated(cluster.node("n1").listen, HTTP);
    let every = "/apis/coordination.k8s.io/v1/leases";
    let (theirs, body) = lease("team-a", "db", "bob");
    let (own, own_body) = lease("team-b", "db", "bob");
    assert_eq!(
        send_request(&caller, "POST", &own, Some(token.as_str()), &own_body).await.0,
        201,
        "it is valid in its own namespace"
    );
    for administrator in [false, true] {
        if administrator {
            let csr_pem = muster_pki::make_csr(&muster_pki::new_key()).expect("a key");
            let ttl_ms = Some(120_000);
            let ask =
                Request::UserCreate { name: bob(), kind: UserKind::Operator, namespaces: Vec::new(), ttl_ms, csr_pem };
            cluster.ask("n1", ask).await.expect("an administrator of that name");
        }
        for (method, path, body) in
            [("GET", every, ""), ("POST", theirs.as_str(), body.as_str()), ("GET", "/v1/tokens", "")]
        {
            let (status, answer) = send_request(&caller, method, path, Some(token.as_str()), body).await;
            assert!([401, 403].contains(&status), "{method} {path}, administrator: {administrator}: {answer}");
        }
    }
}

/// S11: a worker's certificate against other users' locks.
#[tokio::test]
async fn worker_certificate_cannot_take_lease_in_other_namespace() {
    let cluster = cluster(1, 1).await;
    let held = LeaseRef { namespace: "team-a".to_owned(), name: "db-primary".to_owned() };
    let create = LeaseRequest::Create { lease: held.clone(), holder: Some("honest".to_owned()), duration_ms: None };
    cluster.ask("n1", Request::Lease(create)).await.expect("it is made");
    let thief = cluster.node("n2").credentials().expect("an identity");
    for node in ["n1", "n2"] {
        let caller = Caller::with(cluster.node(node).listen, HTTP, &thief).expect("good credentials");
        let (path, body) = lease("team-a", "db-primary", "attacker");
        let one = format!("{path}/db-primary");
        let config_map = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"x\"}}";
        for (method, path, body) in [
            ("PUT", one.as_str(), body.as_str()),
            ("DELETE", one.as_str(), ""),
            ("DELETE", path.as_str(), ""),
            ("POST", path.as_str(), body.as_str()),
            ("POST", "/api/v1/namespaces/kube-system/configmaps", config_map),
        ] {
            let (status, answer) = send_request(&caller, method, path, None, body).await;
            assert!([401, 403].contains(&status), "{node}: {method} {path}: {answer}");
        }
    }
    let seen = cluster.ask("n1", Request::Lease(LeaseRequest::Get { lease: held })).await.expect("it is there");
    assert!(seen.to_string().contains("honest"), "{seen}");
}

/// S16: passwords in the arguments and environment of another node's command.
#[tokio::test]
async fn worker_certificate_cannot_read_other_command_arguments() {
    let cluster = cluster(1, 1).await;
    let file = cluster.folder().join("job.toml");
    let definition = "name = \"job\"\nrelease = \"1.0.0\"\nscope = \"db\"\nfloor = \"1.0.0\"\n\n[command]\n\
                      argv = [\"/bin/true\", \"--password=hunter2\"]\nenv = { SECRET = \"hunter3\" }\n";
    std::fs::write(&file, definition).expect("the folder is ours");
    let mut apply = Command::new(PROGRAM);
    apply.arg("muster").arg("--socket").arg(cluster.node("n1").socket()).args(["reconciler", "apply", "-f"]).arg(&file);
    let applied = apply.output().expect("the program runs");
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    let thief = cluster.node("n2").credentials().expect("an identity");
    let caller = Caller::with(cluster.node("n1").listen, Service::Api.alpn(), &thief).expect("good credentials");
    let mut api = Connection::over(caller.greeted().await.unwrap_or_else(|no| panic!("{no:?}")));
    let (name, release) = (|| "job".to_owned(), Triple::new(1, 0, 0));
    for ask in [
        ReconcilerRequest::List,
        ReconcilerRequest::Status { name: name(), seen: Revision(0), wait_ms: 0 },
        ReconcilerRequest::Plan { name: name(), release: None },
        ReconcilerRequest::History { name: name() },
        ReconcilerRequest::Definitions { release, seen: Revision(0), wait_ms: 0 },
        ReconcilerRequest::View { name: name(), release, seen: Revision(0), wait_ms: 0 },
    ] {
        let id = RequestId::fresh(muster_kernel::Clock.wall(), rand::random());
        let asked = format!("{ask:?}");
        let answer = match api.call(Request::Reconciler(ask), id, Duration::from_secs(60)).await {
            Ok(text) => text,
            Err(CallError::Refused(error)) => error.message,
            Err(other) => panic!("{asked}: {other}"),
        };
        println!("{asked}: {answer}");
        assert!(!answer.contains("hunter"), "{asked}: {answer}");
    }
}
