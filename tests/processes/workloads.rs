//! Programs that get identities of the cluster: their entries, the socket of a node, and what ends an identity.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::Dialer;
use muster_messages::protocol::{NodeCredentials, Service};
use muster_messages::{RefusalReason, Role, Secret};
use muster_workload_api::client::WorkloadClient;
use muster_workload_api::proto::{X509Svid, X509SvidResponse};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Stream};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use crate::harness::{World, eventually, eventually_so};

pub type Svids = Streaming<X509SvidResponse>;

pub const LIMIT: Duration = Duration::from_secs(60);

/// The selector of this test's own process. With `--yes`, because it may be root's.
pub fn own_uid() -> String {
    format!("unix:uid:{}", rustix::process::getuid().as_raw())
}

fn another_uid() -> String {
    format!("unix:uid:{}", rustix::process::getuid().as_raw() + 1)
}

/// Restarts a node with a socket for workloads, which every name of a file there is short enough for.
pub fn serves(world: &mut World, name: &str) -> PathBuf {
    let socket = world.folder().join(format!("{name}.w"));
    serves_at(world, name, &socket);
    socket
}

/// Restarts a node with this socket for workloads.
pub fn serves_at(world: &mut World, name: &str, socket: &Path) {
    world.node(name).stop();
    world.node(name).start(&["--workload-socket", socket.to_str().expect("the folder's path is text")]).ready();
}

async fn open(socket: &Path) -> Result<(X509SvidResponse, Svids), Status> {
    let mut stream = WorkloadClient::connect(socket).await?.fetch_x509_svid().await?;
    match timeout(LIMIT, stream.message()).await {
        Ok(first) => Ok((first?.expect("a stream ends with a status"), stream)),
        Err(_) => Err(Status::deadline_exceeded("no first message")),
    }
}

/// What this process is, once the node knows.
pub fn identities(world: &World, socket: &Path, count: usize) -> (Vec<X509Svid>, Svids) {
    eventually(&format!("{count} identities at {socket:?}"), || {
        let (first, stream) = world.wait_for(open(socket)).ok()?;
        (first.svids.len() == count).then_some((first.svids, stream))
    })
}

fn is_nothing(world: &World, socket: &Path) {
    eventually_so("this process has no identity", || {
        world.wait_for(open(socket)).is_err_and(|status| status.code() == Code::PermissionDenied)
    });
}

/// The messages of a stream up to its end, and how it ended.
fn end_of(world: &World, mut stream: Svids) -> Status {
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok("it ended without a status"),
                Err(status) => return status,
            }
        }
    };
    world.wait_for(async { timeout(LIMIT, end).await.expect("the stream ends") })
}

#[test]
#[ignore = "full tier"]
fn program_is_a_workload_while_its_entry_applies() {
    let mut world = World::with(1, 1);
    let socket = serves(&mut world, "n2");
    is_nothing(&world, &socket);
    let refused = world.muster(&["workload", "set", "shop/web"]).code;
    assert_eq!(refused, 2, "a selector is required");

    // Of another user, and of other nodes.
    world.muster(&["workload", "set", "shop/other", "--selector", &another_uid()]).ended(0);
    let elsewhere = ["--selector", &own_uid(), "--node-label", "zone=a", "--yes"];
    world.muster(&[&["workload", "set", "shop/zone"], &elsewhere[..]].concat()).ended(0);
    let set = ["workload", "set", "shop/web", "--selector", &own_uid(), "--dns", "web.example", "--ttl", "5m", "--yes"];
    let web = world.muster(&set).ended(0).json();
    let (svids, stream) = identities(&world, &socket, 1);
    assert_eq!(web["spiffe_id"], svids[0].spiffe_id.as_str());
    assert_eq!(world.muster(&set).ended(0).json()["changed"], false);

    let explained = world.muster_at("n2", &["workload", "explain", "--pid", &std::process::id().to_string()]).ended(0);
    let explained = explained.json();
    assert_eq!(explained["matches"], serde_json::json!(["shop/web"]), "{explained}");
    assert_eq!(explained["others"][0]["selector"], another_uid().as_str(), "{explained}");
    let shown = world.muster(&["workload", "show", "shop/web"]).ended(0).json();
    assert_eq!(shown["holders"][0]["name"], "n2", "{shown}");

    // A label of the operator's makes the node one of them, at once and for the open stream, too.
    world.muster(&["node", "update", "n2", "--label-add", "zone=a"]).ended(0);
    let (both, _second) = identities(&world, &socket, 2);
    assert_eq!(both[0].spiffe_id, svids[0].spiffe_id, "the first stays the default");
    world.muster(&["node", "update", "n2", "--label-rm", "zone"]).ended(0);
    identities(&world, &socket, 1);

    let removed = world.muster(&["workload", "rm", "shop/web"]).ended(0).json();
    assert_eq!(removed["removed"], true);
    let ended = end_of(&world, stream);
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended}");
    is_nothing(&world, &socket);
    assert_eq!(world.muster(&["workload", "rm", "shop/web"]).ended(4).error_code(), "not_found");
    let left: Vec<String> = world.muster(&["workload", "ls"]).ended(0).json()["items"]
        .as_array()
        .map(|items| items.iter().map(|item| item["name"].to_string()).collect())
        .unwrap_or_default();
    assert_eq!(left, ["\"shop/other\"", "\"shop/zone\""]);
}

#[test]
fn workloads_outlive_their_actor_and_the_leader() {
    let mut world = World::with(1, 1);
    let socket = serves(&mut world, "n2");
    world.muster(&["workload", "set", "shop/web", "--selector", &own_uid(), "--yes"]).ended(0);
    let (before, stream) = identities(&world, &socket, 1);
    world.muster_at("n1", &["actors", "crash", "node/workloads", "--node", "n2", "--how", "panic"]).ended(0);
    assert_ne!(end_of(&world, stream).code(), Code::Ok, "a crash costs the stream");
    let (kept, _second) = identities(&world, &socket, 1);
    assert!(kept == before, "the same certificate, with the same key");
    assert!(world.muster_at("n2", &["status"]).code == 0, "and nothing else");

    world.node("n1").kill();
    let (held, _third) = identities(&world, &socket, 1);
    assert!(held == before, "what is held is served without a leader");
}

/// SPIFFE-3, at a real port with a certificate that a program got.
#[test]
fn certificate_of_a_workload_opens_nothing() {
    let mut world = World::with(1, 1);
    let socket = serves(&mut world, "n2");
    world.muster(&["workload", "set", "shop/web", "--selector", &own_uid(), "--yes"]).ended(0);
    let (svids, _stream) = identities(&world, &socket, 1);
    let root_pem = world.muster(&["ca", "show"]).ended(0).json()["pem"].as_str().expect("PEM").to_owned();
    let credentials = Arc::new(credentials(&svids[0], root_pem));
    let dialer = Dialer::new(watch::Sender::new(Arc::clone(&credentials)).subscribe());
    let addr = world.node("n1").address().to_string();
    for service in [Service::Mesh, Service::Agent, Service::Join, Service::Api] {
        let dialled = world.wait_for(dialer.dial(&addr, service, None));
        let reason = dialled.err().and_then(|error| error.reason());
        assert_eq!(reason, Some(RefusalReason::Forbidden), "{service:?}");
    }
    for name in ["n1", "n2"] {
        let addr = world.node(name).address().to_string();
        for path in ["/v1/status", "/v1/nodes", "/apis/coordination.k8s.io/v1/leases"] {
            let answer = over_http(&addr, &credentials, path).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 403"), "{path} at {name}: {answer}");
        }
    }
    assert_eq!(world.seen("n1", "n2").map(|node| node.role), Some(Role::Worker));
    is_kept_in_memory_only(&world, &svids[0].x509_svid_key);
}

/// SPIFFE-4. Only the socket passes it on.
fn is_kept_in_memory_only(world: &World, key: &[u8]) {
    let control = world.folder().join("control");
    std::fs::create_dir(&control).expect("the folder is writable");
    std::fs::write(control.join("key.pem"), pem::encode(&pem::Pem::new("PRIVATE KEY", key))).expect("it is written");
    assert_eq!(files_with(&control, key).len(), 1, "it would be found");
    for name in ["n1", "n2"] {
        assert_eq!(files_with(&world.folder().join(name), key), Vec::<PathBuf>::new());
        let log = world.nodes_log(name);
        assert!(!log.is_empty() && forms_of(key).iter().all(|form| !contains(log.as_bytes(), form)), "{name}");
    }
}

/// A private key as it could be written: the number itself, in hex and as a list, and the whole key in base64, also in lines.
fn forms_of(key: &[u8]) -> Vec<Vec<u8>> {
    // PKCS #8 of the curve P-256: 36 bytes, then the number.
    let number = &key[36..68];
    let hex: String = number.iter().map(|byte| format!("{byte:02x}")).collect();
    let list = format!("{number:?}");
    let pem = pem::encode(&pem::Pem::new("PRIVATE KEY", key));
    let lines: Vec<&str> = pem.lines().filter(|line| !line.starts_with('-')).map(str::trim_end).collect();
    let texts =
        [hex.to_uppercase(), hex, list.trim_matches(['[', ']']).to_owned(), lines.concat(), lines[1].to_owned()];
    texts.into_iter().map(String::into_bytes).chain([number.to_vec()]).collect()
}

fn contains(bytes: &[u8], form: &[u8]) -> bool {
    bytes.windows(form.len()).any(|window| window == form)
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder exists").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

fn files_with(folder: &Path, key: &[u8]) -> Vec<PathBuf> {
    let forms = forms_of(key);
    let holds = |bytes: Vec<u8>| forms.iter().any(|form| contains(&bytes, form));
    // Sockets cannot be read, and files come and go.
    files_below(folder).into_iter().filter(|path| std::fs::read(path).is_ok_and(holds)).collect()
}

/// A certificate and its key as a node would present them.
fn credentials(svid: &X509Svid, root_pem: String) -> NodeCredentials {
    let leaf = &svid.x509_svid[..4 + usize::from(u16::from_be_bytes([svid.x509_svid[2], svid.x509_svid[3]]))];
    let cert_pem = pem::encode(&pem::Pem::new("CERTIFICATE", leaf));
    let key_pem = Secret::new(pem::encode(&pem::Pem::new("PRIVATE KEY", svid.x509_svid_key.clone())));
    let identity = muster_pki::identity_of_pem(&cert_pem).expect("an identity of the cluster");
    NodeCredentials { cert_pem, key_pem, root_pem, identity }
}

fn over_http(addr: &str, credentials: &NodeCredentials, path: &str) -> std::io::Result<String> {
    let config = muster_pki::client_config(&credentials.root_pem, Some(credentials), &[b"http/1.1"]).expect("TLS");
    let name = ServerName::try_from("localhost").expect("a name");
    let mut tls = ClientConnection::new(config, name).expect("a client");
    let mut tcp = TcpStream::connect(addr)?;
    tcp.set_read_timeout(Some(LIMIT))?;
    let mut stream = Stream::new(&mut tls, &mut tcp);
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
