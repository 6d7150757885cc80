//! A cluster whose root has path length 0, as builds before the first rotation made them: what clients that know only this root accept
//! while it is replaced (docs/root-rotation.md).

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use muster_local_cluster::parent;
use muster_messages::{AuthorityState, CaView, Role};
use muster_pki::{cluster_of_root_pem, path_length_of_pem};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd};

use crate::harness::{EndedMuster, World, eventually, eventually_so};
use crate::rotation::{roots, state};
use crate::upstream::https;

/// A certificate of this root's key, with path length 0.
fn as_made_before_rotations(root_pem: &str, key_pem: &str) -> String {
    let cluster = cluster_of_root_pem(root_pem).expect("a cluster's root");
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "muster-ca");
    params.distinguished_name.push(DnType::OrganizationName, cluster.to_string());
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2045, 1, 1));
    params.self_signed(&KeyPair::from_pem(key_pem).expect("its key")).expect("signed").pem()
}

/// Two managers and a worker, m1 to m3, by a backup whose root was exchanged: no build makes such a root any more.
fn cluster_of_before() -> World {
    let mut world = World::new();
    let (term, mut tables) = world.backup_of_founder();
    let cluster = Arc::make_mut(tables.cluster.as_mut().expect("it was founded"));
    cluster.root_cert_pem = as_made_before_rotations(&cluster.root_cert_pem, cluster.root_key_pem.expose());
    world.restored_as_m1(term, &tables);

    let seed = world.node("m1").listen.to_string();
    for (name, role) in [("m2", Role::Manager), ("m3", Role::Worker)] {
        let shown = world.muster_at("m1", &["token", "show", &role.to_string()]).ended(0).json();
        let token = shown["token"].as_str().expect("a token is text").to_owned();
        world.node(name).start(&["--join", &seed, "--token", &token]).ready();
        world.is_recorded_as_ready("m1", name);
    }
    world
}

/// A program of this machine, or `None` if there is none.
fn ran(folder: &Path, program: &str, args: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).env("HOME", folder).env_remove("KUBECONFIG").stdin(Stdio::null());
    parent::tie(&mut command);
    let output = command.output();
    if output.is_err() {
        println!("{program} is not installed: what it accepts was not checked");
    }
    output.ok()
}

#[track_caller]
fn succeeds(output: Option<Output>) {
    let Some(output) = output else { return };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// A program in Go, with its file.
fn kubectl(world: &World, file: &str) -> Option<Output> {
    let args = ["--kubeconfig", file, "--cache-dir", "kube-cache", "--request-timeout", "60s"];
    ran(world.folder(), "kubectl", &[&args[..], &["get", "lease", "kept", "-o", "name"]].concat())
}

/// With the file from before, kubectl refuses the manager. A renewed certificate is on record a moment before its node presents it: until
/// then the file still works.
#[track_caller]
fn kubectl_needs_another_file(world: &World) {
    let refused = eventually("kubectl refuses, or is not installed", || match kubectl(world, "before.yaml") {
        Some(output) if output.status.success() => None,
        refused_or_absent => Some(refused_or_absent),
    });
    let Some(output) = refused else { return };
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("x509: "), "{words}");
    println!("kubectl with a file from before: {words}");
}

/// Connects and verifies with these roots, and sends no request.
const PYTHON: &str = "import socket, ssl, sys
host, port = sys.argv[2].rsplit(':', 1)
trusting = ssl.create_default_context(cafile=sys.argv[1])
with socket.create_connection((host, int(port)), 60) as tcp, trusting.wrap_socket(tcp, server_hostname=host) as tls:
    assert tls.version() == 'TLSv1.3', tls.version()
";

/// Clients on rustls and OpenSSL that know the roots in this file accept every node.
fn others_accept(world: &mut World, file: &str) {
    let roots = std::fs::read_to_string(world.folder().join(file)).expect("written");
    for name in ["m1", "m2", "m3"] {
        assert_eq!(https(world, name, &roots).expect("rustls accepts it"), "HTTP/1.1 200");
        let address = world.node(name).address().to_string();
        let s_client = ["s_client", "-brief", "-verify_return_error", "-verify_ip", "127.0.0.1", "-CAfile", file];
        succeeds(ran(world.folder(), "openssl", &[&s_client[..], &["-connect", &address]].concat()));
        succeeds(ran(world.folder(), "python3", &["-c", PYTHON, file, &address]));
    }
}

/// As an operator runs it, with what it says.
fn said(world: &World, args: &[&str]) -> String {
    let socket = world.socket("m1");
    let socket = socket.to_str().expect("the folder's path is text");
    EndedMuster::new(world.folder(), &[&["--socket", socket, "--timeout", "60s"], args].concat()).ended(0).stderr
}

fn kubeconfig(world: &World, file: &str) {
    world.muster_at("m1", &["kubeconfig", "--out", file]).ended(0);
}

fn all_renewed(world: &World) {
    eventually_so("every node that is there has renewed", || {
        let roots = roots(world, "m1");
        let missing: Vec<&str> = roots.renewed.missing.iter().map(|node| node.name.as_str()).collect();
        missing == ["n1"]
    });
}

#[test]
#[ignore = "full tier"]
fn clients_follow_a_root_of_path_length_0_when_prepared() {
    let mut world = cluster_of_before();
    world.muster_at("m1", &["lease", "create", "kept"]).ended(0);
    let shown: CaView =
        serde_json::from_value(world.muster_at("m1", &["ca", "show"]).ended(0).json()).expect("a typed document");
    assert_eq!(path_length_of_pem(&shown.pem), Ok(Some(0)));
    std::fs::write(world.folder().join("before.pem"), &shown.pem).expect("written");
    kubeconfig(&world, "before.yaml");
    succeeds(kubectl(&world, "before.yaml"));
    others_accept(&mut world, "before.pem");

    let warned = said(&world, &["ca", "rotate", "--prepare", "--wait=300s"]);
    assert!(warned.contains("has path length 0") && warned.contains("before `muster ca activate`"), "{warned}");
    // It does not sign: files from before work, and new ones hold both roots.
    succeeds(kubectl(&world, "before.yaml"));
    kubeconfig(&world, "prepared.yaml");
    succeeds(kubectl(&world, "prepared.yaml"));
    let old = roots(&world, "m1").active.expect("a root signs");
    let list = roots(&world, "m1").items;
    let next = list.iter().find(|root| root.state == AuthorityState::Prepared).expect("it was published").id;
    world.muster_at("m1", &["ca", "activate", &next.to_string()]).ended(0);
    all_renewed(&world);
    assert_eq!(roots(&world, "m1").active, Some(next));

    succeeds(kubectl(&world, "prepared.yaml"));
    kubectl_needs_another_file(&world);
    others_accept(&mut world, "before.pem");
    // Also once nodes trust it no more. The node of the backup never comes back.
    world.muster_at("m1", &["ca", "retire", &old.to_string(), "--force"]).ended(0);
    eventually_so("it is retired", || state(&roots(&world, "m1"), old) == Some(AuthorityState::Retired));
    succeeds(kubectl(&world, "prepared.yaml"));
    kubectl_needs_another_file(&world);
    others_accept(&mut world, "before.pem");

    // The root of today has no path length: no warning, and no new file is needed.
    kubeconfig(&world, "after.yaml");
    let quiet = said(&world, &["ca", "rotate", "--wait=300s"]);
    assert!(!quiet.contains("path length"), "{quiet}");
    all_renewed(&world);
    succeeds(kubectl(&world, "after.yaml"));
    succeeds(kubectl(&world, "prepared.yaml"));
    others_accept(&mut world, "before.pem");
}

/// Without preparation: it warns, and Go programs need another file.
#[test]
#[ignore = "full tier"]
fn go_clients_need_new_files_after_an_unprepared_rotation() {
    let mut world = cluster_of_before();
    world.muster_at("m1", &["lease", "create", "kept"]).ended(0);
    let shown = world.muster_at("m1", &["ca", "show"]).ended(0).json();
    std::fs::write(world.folder().join("before.pem"), shown["pem"].as_str().expect("PEM")).expect("written");
    kubeconfig(&world, "before.yaml");
    succeeds(kubectl(&world, "before.yaml"));
    let warned = said(&world, &["ca", "rotate", "--wait=300s"]);
    assert!(warned.contains("has path length 0") && warned.contains("`muster ca rotate --prepare`"), "{warned}");
    all_renewed(&world);
    kubectl_needs_another_file(&world);
    others_accept(&mut world, "before.pem");
    kubeconfig(&world, "after.yaml");
    succeeds(kubectl(&world, "after.yaml"));
}
