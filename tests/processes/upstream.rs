//! A company's authority above the cluster: it certifies a root, which a rotation leads to.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_client::Identity;
use muster_kernel::Clock;
use muster_messages::{AuthorityState, ErrorCode, Incarnation, UserKind};
use muster_pki::{
    CsrKey, Issuer, UserProfile, cluster_of_root_pem, first_of_answer, issued_authority, make_authority_csr, make_csr,
    new_key,
};
use muster_testkit::company::Company;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

use crate::harness::{World, eventually, eventually_so};
use crate::rotation::{AT_ONCE, roots, state, trusted_by};

/// The first line of an answer over HTTPS, to a client that trusts only this root.
pub fn https(world: &mut World, node: &str, root_pem: &str) -> std::io::Result<String> {
    let mut anchors = RootCertStore::empty();
    let last = CertificateDer::pem_slice_iter(root_pem.as_bytes()).map(|der| der.expect("PEM")).last();
    anchors.add(last.expect("a root")).expect("an anchor");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
    let config = config.with_root_certificates(anchors).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut tcp = TcpStream::connect(world.node(node).address())?;
    tcp.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = Stream::new(&mut tls, &mut tcp);
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The identity with a certificate of the same content by another subordinate of the company.
fn by_a_sibling(genuine: &Identity, company: &Company) -> Identity {
    let (cluster, key) = (cluster_of_root_pem(&genuine.root_pem).expect("of this cluster"), new_key());
    let answer = company.sign(&make_authority_csr(&key, cluster).expect("a request"));
    let sibling = issued_authority(&answer, &key, cluster, Clock.wall()).expect("as good as the cluster's own");
    let issuer = Issuer::from_pem(&sibling.cert_pem, &key).expect("its key");
    let (key_pem, incarnation) =
        (new_key(), muster_pki::identity_of_pem(&genuine.cert_pem).expect("a certificate").incarnation);
    assert_ne!(incarnation, Incarnation(0));
    let profile = UserProfile {
        cluster,
        name: genuine.name.clone(),
        kind: UserKind::Operator,
        incarnation,
        lifetime: Duration::from_secs(3600),
        now: Clock.wall(),
    };
    let csr = CsrKey::parse(&make_csr(&key_pem).expect("a key")).expect("a request");
    let leaf = issuer.sign_user(&profile, &csr).expect("signed").cert_pem;
    // With all that leads to the company's root.
    Identity { cert_pem: leaf + &answer, key_pem, ..genuine.clone() }
}

#[test]
#[ignore = "full tier"]
fn root_certified_by_a_company_replaces_the_clusters_own() {
    let mut world = World::with_settings(AT_ONCE, 3, 2);
    let old = roots(&world, "n1").active.expect("a root signs");
    world.muster(&["user", "create", "bob", "--admin", "--out", "bob.json"]).ended(0);
    let asked = world.muster_at("n2", &["ca", "rotate", "--csr"]).ended(0).json();
    let again = world.muster_at("n3", &["ca", "rotate", "--csr"]).ended(0).json();
    assert_eq!(
        (&asked["csr"], &again["changed"]),
        (&again["csr"], &false.into()),
        "one request, wherever it is asked for"
    );
    let csr = asked["csr"].as_str().expect("PEM");
    let waiting = roots(&world, "n1").requested.expect("a request");
    assert_eq!(asked["root"], waiting.id.to_string());

    let company = Company::root();
    let answer = company.subordinate("company issuing").sign(csr);
    let write = |name: &str, text: &str| std::fs::write(world.folder().join(name), text).expect("written");
    let (_, alone) = first_of_answer(&answer).expect("PEM");
    write("alone.pem", &alone);
    let refused =
        world.muster(&["ca", "rotate", "--issued", "alone.pem"]).ended(ErrorCode::Invalid.exit_status().into());
    assert!(refused.stderr.contains("append the certificate that signed it"), "{}", refused.stderr);
    write("chain.pem", &answer);
    let done = world.muster(&["ca", "rotate", "--issued", "chain.pem", "--wait=300s"]).ended(0).json();

    let after = roots(&world, "n1");
    let new = after.active.expect("a root signs");
    assert_eq!((new, after.renewed.n, &after.requested), (waiting.id, 5, &None), "{done}");
    eventually_so("the old root is retired", || state(&roots(&world, "n1"), old) == Some(AuthorityState::Retired));
    for name in ["n1", "n2", "n3", "n4", "n5"] {
        eventually_so("each node trusts the certified root only", || trusted_by(&mut world, name) == [new]);
    }
    let listed = world.muster(&["ca", "ls"]).ended(0).json();
    let item = listed["items"].as_array().and_then(|items| items.iter().find(|item| item["id"] == new.to_string()));
    assert_eq!(item.map(|item| &item["origin"]), Some(&"upstream".into()), "{listed}");

    // Clients: one with the new bundle, one from before, and one that trusts only the company.
    world.muster(&["user", "create", "ann", "--admin", "--out", "ann.json"]).ended(0);
    for identity in ["ann.json", "bob.json"] {
        world.muster(&["--identity", identity, "node", "ls"]).ended(0);
    }
    assert_eq!(https(&mut world, "n1", &company.chain).expect("the chain leads there"), "HTTP/1.1 200");
    https(&mut world, "n1", &Company::root().chain).expect_err("another company");

    // The company certifies others, too.
    let genuine = Identity::read(&world.folder().join("ann.json")).expect("an identity");
    by_a_sibling(&genuine, &company).write(&world.folder().join("sibling.json")).expect("written");
    let refused = world.muster(&["--identity", "sibling.json", "node", "ls"]);
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    // In the handshake, by every manager.
    let alerts = refused.stderr.matches("received fatal alert").count();
    assert!(refused.stderr.contains("no manager accepted this identity") && alerts == 3, "{}", refused.stderr);
    // A machine that joins later follows the company's certificate as its token's root.
    let joined = world.join_more(1, muster_messages::Role::Worker);
    assert_eq!(trusted_by(&mut world, &joined[0]), [new]);
}

/// A command that leaves its request and process ids behind, then waits for the file `answer.pem`, with a child that ends by itself
/// only after the test.
fn waiting_command(folder: &Path, first: &str) -> String {
    let program = folder.join("ask");
    let script = format!(
        "#!/bin/sh\n{first}\ncd {}\ncat > csr.$$\nmv csr.$$ csr.pem\nsleep 1000 >&- 2>&- &\necho $$ $! > pids.$$\nmv pids.$$ pids\n\
         while ! [ -f answer.pem ]; do sleep 0.1; done\ncat answer.pem\n",
        folder.display()
    );
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, Permissions::from_mode(0o700)).expect("ours");
    format!("[authority]\nupstream_command = [\"{}\"]\nauto = true\n", program.display())
}

/// The newest command and its child.
fn pids(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("pids")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

fn end(pids: &[String]) {
    assert_eq!(pids.len(), 2);
    for pid in pids {
        eventually_so("it ends", || !Path::new("/proc").join(pid).exists());
    }
}

/// A leader stops leading, and the next one dies, while it waits for the authority above: its command ends with all that it started,
/// and the next leader asks (UP-4).
#[test]
#[ignore = "full tier"]
fn command_asks_the_authority_above_for_each_leader() {
    let folder = tempfile::tempdir().expect("there is room");
    let settings = waiting_command(folder.path(), "") + AT_ONCE;
    let mut world = World::with_settings(&settings, 3, 1);
    let csr_read = || std::fs::read_to_string(folder.path().join("csr.pem")).unwrap_or_default();
    let asked = world.muster(&["ca", "rotate", "--csr"]).ended(0).json();
    let csr = asked["csr"].as_str().expect("PEM");
    eventually_so("the leader asks", || pids(folder.path()).len() == 2 && csr_read() == csr);
    let first = pids(folder.path());
    let former = eventually("a leader", || Some(world.leader_seen_by("n1")).filter(|leader| !leader.is_empty()));
    let leader = world.other_than(&[&former]);
    world.make_lead(&leader);
    end(&first);
    let asked_by_another = |former: &[String]| {
        let asking = pids(folder.path());
        asking.len() == 2 && asking != former && csr_read() == csr
    };
    eventually_so("the next leader asks", || asked_by_another(&first));
    let second = pids(folder.path());
    let leader = eventually("a leader", || Some(world.leader_seen_by("n1")).filter(|leader| !leader.is_empty()));
    world.node(&leader).kill();
    end(&second);
    let other = world.other_than(&[&leader]);
    eventually_so("the leader after that asks", || asked_by_another(&second));
    let third = pids(folder.path());
    std::fs::write(folder.path().join("answer"), Company::root().sign(csr)).expect("written");
    std::fs::rename(folder.path().join("answer"), folder.path().join("answer.pem")).expect("renamed");
    world.node(&leader).start(&[]).ready();
    eventually_so("all nodes have certificates of the answer", || {
        let roots = roots(&world, &other);
        roots.active.map(|id| id.to_string()).as_deref() == asked["root"].as_str() && roots.renewed.n == 4
    });
    end(&third);
}

/// Also one that does not end when it is asked to.
#[test]
#[ignore = "full tier"]
fn command_that_hangs_is_killed_and_shown() {
    let folder = tempfile::tempdir().expect("there is room");
    let world = World::with_settings(&waiting_command(folder.path(), "trap '' TERM\necho out of order >&2"), 1, 0);
    world.muster(&["ca", "rotate", "--csr"]).ended(0);
    eventually_so("it runs", || pids(folder.path()).len() == 2);
    let path = "node/manager/leader/root-rotation";
    eventually_so("its end is shown", || {
        let shown = world.muster(&["actors", "inspect", path]).ended(0).stdout;
        shown.contains("no answer within 30 s: out of order")
    });
    end(&pids(folder.path()));
}
