//! What Prometheus gets through the one TLS port and the admin sockets: metrics of each process, and the list of targets.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_client::Identity;
use muster_gateway::Dialer;
use muster_messages::protocol::Service;
use muster_pki::IdentityStore;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;

use crate::harness::{World, eventually, eventually_so};

const METRICS: &str = "/v1/metrics";
const TARGETS: &str = "/v1/prometheus/targets";

/// An answer: the status, the head in lower case, and the body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    headers: &str,
) -> std::io::Result<Answer> {
    // 1.0: the answer is not in chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: muster\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(answer.clone()))?;
    Ok(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
}

/// Over the TLS port of a node. The connection is one that the node may end before it answers.
fn over_tls(world: &mut World, dialer: &Dialer, at: &str, path: &str, headers: &str) -> Option<Answer> {
    let address = world.node(at).address().to_string();
    world.wait_for(async {
        let dialed = dialer.dial(&address, Service::Http, None).await.ok()?;
        exchange(dialed.stream.into_inner(), path, headers).await.ok()
    })
}

#[track_caller]
fn status(world: &mut World, dialer: &Dialer, at: &str, path: &str, headers: &str) -> u16 {
    let answer = over_tls(world, dialer, at, path, headers);
    answer.unwrap_or_else(|| panic!("{at} does not answer {path}")).status
}

fn over_socket(world: &World, at: &str, path: &str) -> Answer {
    let socket = world.socket(at);
    world.wait_for(async {
        exchange(UnixStream::connect(socket).await.expect("the socket answers"), path, "").await.expect("an answer")
    })
}

/// What a node presents.
fn as_node(world: &mut World, name: &str) -> Dialer {
    let store = IdentityStore::open(&world.node(name).folder).expect("the directory is a node's");
    let credentials = store.load_credentials().expect("readable").expect("the node has an identity");
    Dialer::new(watch::Sender::new(Arc::new(credentials)).subscribe())
}

/// A new user with these flags.
fn as_user(world: &World, name: &str, flags: &[&str]) -> Identity {
    let file = world.folder().join(format!("{name}.json"));
    let out = file.to_str().expect("a path");
    world.muster(&[&["user", "create", name, "--out", out], flags].concat()).ended(0);
    Identity::read(&file).expect("an identity file")
}

fn names_of(targets: &Answer) -> BTreeSet<String> {
    let groups: Value = serde_json::from_str(&targets.body).expect("a list of targets");
    let name = |group: &Value| group["labels"]["__meta_muster_node_name"].as_str().map(str::to_owned);
    groups.as_array().into_iter().flatten().filter_map(name).collect()
}

#[test]
#[ignore = "full tier"]
fn metrics_and_targets_are_read_over_tls_by_the_entitled() {
    let mut world = World::with(2, 1);
    let reader = as_user(&world, "prom", &["--read-only"]);
    let with_certificate = reader.dialer().expect("a certificate");
    let limited = as_user(&world, "bob", &["--namespace", "default"]).dialer().expect("a certificate");
    let (manager, worker) = (as_node(&mut world, "n2"), as_node(&mut world, "n3"));
    let unauthenticated = Dialer::anonymous(&reader.root_pem);
    let config = world.muster(&["kubeconfig", "--user", "prom"]).ended(0).json();
    let token = config["users"][0]["user"]["token"].as_str().expect("a token");
    let token = format!("Authorization: Bearer {token}\r\n");
    let everyone: BTreeSet<String> = ["n1", "n2", "n3"].map(str::to_owned).into();

    // The leader and the follower. A follower may not have applied the users yet.
    for at in ["n1", "n2"] {
        eventually_so(&format!("{at} knows prom"), || {
            status(&mut world, &with_certificate, at, METRICS, "") == 200
                && status(&mut world, &unauthenticated, at, METRICS, &token) == 200
        });
        let open = "Accept: application/openmetrics-text; version=1.0.0\r\n";
        let metrics = over_tls(&mut world, &with_certificate, at, METRICS, open).expect("an answer");
        assert!(metrics.body.ends_with("# EOF\n") && metrics.head.contains("openmetrics-text"), "{}", metrics.head);
        let metrics = over_tls(&mut world, &manager, at, METRICS, "").expect("an answer");
        assert!(metrics.head.contains("content-type: text/plain; version=0.0.4"), "{}", metrics.head);
        let leads = u64::from(world.leader_seen_by("n1") == at);
        assert!(metrics.body.contains(&format!("\nmuster_raft_leading {leads}\n")), "{}", metrics.body);
        assert_eq!(metrics.body.contains("\nmuster_quorum_margin 0\n"), leads == 1, "{}", metrics.body);
        for series in [
            "certificate_not_after_timestamp_seconds 1",
            "root_not_after_timestamp_seconds 2",
            "raft_leader_changes_total 1",
        ] {
            assert!(metrics.body.contains(&format!("\nmuster_{series}")), "{series}: {}", metrics.body);
        }
        let logged =
            metrics.body.lines().find_map(|line| line.strip_prefix("muster_log_events_total{level=\"info\"} "));
        assert!(logged.and_then(|count| count.parse::<u64>().ok()) > Some(3), "{logged:?}");

        for (dialer, headers) in [(&with_certificate, ""), (&unauthenticated, token.as_str()), (&manager, "")] {
            let targets = over_tls(&mut world, dialer, at, TARGETS, headers).expect("an answer");
            assert_eq!((targets.status, names_of(&targets)), (200, everyone.clone()), "{}", targets.body);
            assert!(targets.head.contains("muster-stale: false"), "{}", targets.head);
            assert!(targets.body.contains(&world.node("n3").address().to_string()), "{}", targets.body);
        }
        for path in [METRICS, TARGETS] {
            assert_eq!(status(&mut world, &worker, at, path, ""), 403, "a worker's certificate at {at}");
            assert_eq!(status(&mut world, &limited, at, path, ""), 403, "a user of a namespace at {at}");
            assert_eq!(status(&mut world, &unauthenticated, at, path, ""), 401, "unauthenticated at {at}");
            let unknown = "Authorization: Bearer muster-nothing\r\n";
            assert_eq!(status(&mut world, &unauthenticated, at, path, unknown), 401, "an unknown token at {at}");
            assert_eq!(over_socket(&world, at, path).status, 200);
        }
    }
    // A worker measures itself. (What it answers over TLS is shown in tests/attacks and tests/clients: our own dialer connects to
    // managers only.)
    assert_eq!([METRICS, TARGETS].map(|path| over_socket(&world, "n3", path).status), [200, 409]);

    // One of two managers has no quorum.
    world.node("n2").kill();
    let stale = eventually("the targets are marked stale", || {
        let targets = over_tls(&mut world, &with_certificate, "n1", TARGETS, "").expect("an answer");
        assert_eq!((targets.status, names_of(&targets)), (200, everyone.clone()), "{}", targets.body);
        targets.head.contains("muster-stale: true").then_some(targets)
    });
    assert!(stale.head.contains("muster-revision: "), "{}", stale.head);
    assert_eq!(status(&mut world, &unauthenticated, "n1", TARGETS, &token), 200);
    let metrics = over_tls(&mut world, &with_certificate, "n1", METRICS, "").expect("an answer");
    assert!(metrics.body.contains("\nmuster_raft_leading 0\n") && !metrics.body.contains("muster_quorum_margin "));
}

#[test]
#[ignore = "full tier"]
fn revoked_reader_gets_no_more_metrics() {
    let mut world = World::with(3, 0);
    let reader = as_user(&world, "prom", &["--read-only"]);
    let with_certificate = reader.dialer().expect("a certificate");
    let unauthenticated = Dialer::anonymous(&reader.root_pem);
    let config = world.muster(&["kubeconfig", "--user", "prom"]).ended(0).json();
    let token = config["users"][0]["user"]["token"].as_str().expect("a token");
    let token = format!("Authorization: Bearer {token}\r\n");
    let asked = |world: &mut World, at: &str| {
        [(&with_certificate, ""), (&unauthenticated, token.as_str())]
            .map(|(dialer, headers)| over_tls(world, dialer, at, METRICS, headers).map(|answer| answer.status))
    };
    for at in ["n1", "n2", "n3"] {
        eventually_so(&format!("{at} knows prom"), || asked(&mut world, at) == [Some(200), Some(200)]);
    }
    world.muster(&["user", "revoke", "prom"]).ended(0);
    for at in ["n1", "n2", "n3"] {
        eventually_so(&format!("{at} refuses prom"), || {
            asked(&mut world, at).iter().all(|status| matches!(status, Some(401 | 403)))
        });
    }
}
