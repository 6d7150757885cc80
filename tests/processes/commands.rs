//! The command line against a real cluster: documents, exit statuses, identities.

use muster_messages::{ErrorCode, Role};
use serde_json::Value;

use crate::harness::{EndedMuster, World, eventually, eventually_so, muster};

/// Fails unless a document has these keys.
#[track_caller]
fn has(document: &Value, keys: &[&str]) {
    for key in keys {
        assert!(document.get(key).is_some(), "no {key:?} in {document}");
    }
}

#[test]
fn json_documents_have_the_documented_fields() {
    let world = World::with(3, 1);
    let status = world.muster(&["status"]).ended(0).json();
    has(&status, &["cluster", "stale", "self", "raft", "quorum", "nodes", "pending"]);
    has(&status["cluster"], &["id", "name", "incarnation", "feature_level"]);
    assert_eq!((&status["nodes"]["total"], &status["nodes"]["managers"]), (&4.into(), &3.into()));
    let list = world.muster(&["node", "ls"]).ended(0).json();
    has(&list, &["revision", "stale", "items"]);
    for node in list["items"].as_array().expect("items") {
        has(
            node,
            &["id", "name", "addr", "release", "labels", "desired_role", "role", "state", "state_since", "stale"],
        );
        has(node, &["membership", "manager", "certificate", "conditions", "generation", "revision"]);
        has(&node["certificate"], &["role", "state", "serial", "not_after"]);
        assert_eq!(node["manager"].is_null(), node["membership"] == "none");
    }
    let raft = world.muster(&["raft", "status"]).ended(0).json();
    has(&raft, &["term", "leader", "commit", "applied", "members", "removed_raft_ids"]);
    has(&raft["members"][0], &["node", "raft_id", "addr", "role", "match", "reachable"]);
    let certs = world.muster(&["cert", "ls"]).ended(0).json();
    has(&certs["items"][0], &["node", "role", "state", "serial", "granted", "not_after"]);
    has(&world.muster(&["ca", "show"]).ended(0).json(), &["digest", "not_after", "pem"]);
    let events = world.muster(&["events"]).ended(0).json();
    has(&events["items"][0], &["revision", "at", "kind", "node", "by", "reason", "before", "after"]);
}

#[test]
#[ignore = "full tier"]
fn node_is_found_by_id_prefix_or_name() {
    let world = World::with(1, 1);
    let id = world.seen("n1", "n2").expect("n2 is a node").id.to_string();
    for name in ["n2", &id, &id[..12]] {
        let node = world.muster(&["node", "inspect", name]).ended(0).json();
        assert_eq!(node["id"], id.as_str());
    }
    assert_eq!(world.muster(&["node", "inspect", "nobody"]).ended(4).error_code(), "not_found");
}

#[test]
#[ignore = "full tier"]
fn stale_generation_is_a_conflict() {
    let world = World::with(1, 0);
    let node = world.muster(&["node", "update", "n1", "--label-add", "zone=a"]).ended(0).json();
    assert_eq!(node["labels"]["zone"], "a");
    let generation = node["generation"].as_u64().expect("a number");
    let old = (generation - 1).to_string();
    let conflict = world.muster(&["node", "update", "n1", "--label-rm", "zone", "--generation", &old]).ended(8);
    assert_eq!(conflict.error_code(), "conflict");
    let now = generation.to_string();
    let node = world.muster(&["node", "update", "n1", "--label-rm", "zone", "--generation", &now]).ended(0).json();
    assert!(node["labels"].get("zone").is_none(), "{node}");
}

#[test]
#[ignore = "full tier"]
fn tokens_are_created_shown_rotated_and_revoked() {
    let mut world = World::with(1, 0);
    let once = world.muster(&["token", "create", "--role", "worker", "--uses", "1", "--ttl", "1h"]).ended(0).json();
    has(&once, &["id", "role", "token", "expires_at", "uses_left"]);
    let token = once["token"].as_str().expect("text").to_owned();
    assert!(token.starts_with("MSTR-1-"));
    let list = world.muster(&["token", "ls"]).ended(0);
    let secret = token.rsplit('-').next().expect("a secret");
    assert!(!list.stdout.contains(secret), "a list shows no secret");
    let seed = world.node("n1").listen.to_string();
    world.node("n2").start(&["--join", &seed, "--token", &token]).ready();
    let node = world.node("n3").start(&["--join", &seed, "--token", &token]);
    assert_eq!(node.exit(), Some(6));
    assert!(node.log().contains("token_used_up"), "{}", node.log());
    let socket = world.socket("n1");
    let shown = EndedMuster::new(
        world.folder(),
        &["--socket", socket.to_str().expect("text"), "token", "show", "worker", "-q"],
    )
    .ended(0);
    assert_eq!(shown.stdout.lines().count(), 1, "only the token");
    // S39.
    let digest = |token: &str| token.rsplit_once('-').expect("a secret").0.to_owned();
    let of_managers = world.token(Role::Manager);
    world.muster(&["token", "rotate", "worker"]).ended(0);
    let rotated = world.token(Role::Worker);
    assert_eq!(world.token(Role::Manager), of_managers, "the other role's token is unchanged");
    assert!(
        rotated != shown.stdout.trim() && digest(&rotated) == digest(shown.stdout.trim()),
        "the digest is unchanged"
    );
    let old = shown.stdout.trim();
    let node = world.node("n4").start(&["--join", &seed, "--token", old]);
    assert_eq!(node.exit(), Some(6), "{}", node.log());
    let id = once["id"].as_str().expect("text");
    world.muster(&["token", "revoke", id]).ended(0);
    assert_eq!(world.muster(&["token", "revoke", "nothing"]).ended(4).error_code(), "not_found");
}

#[test]
fn operator_identity_is_accepted_at_worker_socket() {
    let world = World::with(1, 1);
    let forbidden = world.muster_at("n2", &["node", "update", "n2", "--label-add", "a=b"]).ended(6);
    assert_eq!(forbidden.error_code(), "forbidden");
    world.muster_at("n2", &["status"]).ended(0);
    world.muster(&["user", "create", "alice", "--admin", "--out", "alice.json"]).ended(0);
    let with_identity = ["--identity", "alice.json", "node", "update", "n2", "--label-add", "a=b"];
    world.muster_at("n2", &with_identity).ended(0);
    let users = world.muster(&["user", "ls"]).ended(0).json();
    assert_eq!(users["items"][0]["name"], "alice");
    let twice = world.muster(&["user", "create", "alice", "--admin", "--out", "alice.json"]).ended(6);
    assert_eq!(twice.error_code(), "file_exists");
    world.muster(&["user", "revoke", "alice"]).ended(0);
    eventually_so("a revoked identity is refused", || world.muster_at("n2", &with_identity).code == 6);
}

#[test]
#[ignore = "full tier"]
fn plain_user_cannot_change_the_cluster() {
    let world = World::with(1, 0);
    world.muster(&["user", "create", "bob", "--namespace", "default", "--out", "bob.json"]).ended(0);
    let refused = world.muster(&["--identity", "bob.json", "node", "update", "n1", "--label-add", "a=b"]).ended(6);
    assert_eq!(refused.error_code(), "forbidden");
}

#[test]
fn a_read_only_operator_reads_and_changes_nothing() {
    let world = World::with(1, 1);
    world.muster(&["user", "create", "eye", "--read-only", "--namespace", "default"]).ended(2);
    world.muster(&["user", "create", "eye", "--read-only", "--out", "eye.json"]).ended(0);
    let users = world.muster(&["user", "ls"]).ended(0).json();
    assert_eq!((&users["items"][0]["read_only"], &users["items"][0]["admin"]), (&true.into(), &false.into()));
    let asked = |command: &[&str]| world.muster_at("n2", &[&["--identity", "eye.json"], command].concat());
    for command in [
        &["status"][..],
        &["node", "inspect", "n1"],
        &["token", "ls"],
        &["user", "ls"],
        &["cert", "ls"],
        &["events"],
        &["lease", "ls"],
        &["raft", "status"],
        &["reconciler", "list"],
        &["actors"],
    ] {
        asked(command).ended(0);
    }
    for command in [
        &["token", "show", "worker"][..],
        &["backup", "all.backup"],
        &["node", "update", "n2", "--label-add", "a=b"],
        &["node", "promote", "n2"],
        &["token", "create", "--role", "worker"],
        &["user", "create", "eve", "--admin", "--out", "eve.json"],
        &["user", "renew", "eye", "--out", "again.json"],
        &["kubeconfig", "--user", "eye"],
        &["lease", "create", "l"],
        &["actors", "restart", "node/manager/leader/role-manager"],
    ] {
        assert_eq!(asked(command).ended(6).error_code(), "forbidden", "{command:?}");
    }
    // An operator creates a bearer token for it with no wider rights, and a certificate for the next call.
    world.muster(&["kubeconfig", "--user", "eye", "--namespace", "team-a", "--out", "eye.yaml"]).ended(0);
    let users = world.muster(&["user", "ls"]).ended(0).json();
    let eye = &users["items"][0];
    assert!(eye["read_only"] == true && eye["namespaces"].as_array().is_some_and(Vec::is_empty), "{eye}");
}

#[test]
#[ignore = "full tier"]
fn renewed_identity_replaces_the_old_one() {
    let world = World::with(1, 0);
    world.muster(&["user", "create", "ann", "--admin", "--out", "ann.json"]).ended(0);
    let as_ann = |command: &[&str]| world.muster(&[&["--identity", "ann.json"], command].concat());
    let file = world.folder().join("ann.json");
    let old = std::fs::read(&file).expect("the identity");
    std::fs::write(world.folder().join("old.json"), &old).expect("a copy");
    assert_eq!(as_ann(&["user", "renew", "ann", "--out", "ann.json"]).ended(6).error_code(), "forbidden");
    assert_eq!(std::fs::read(&file).expect("the identity"), old, "the refused request changed nothing");
    assert_eq!(world.muster(&["user", "renew", "bob"]).ended(4).error_code(), "not_found");
    std::fs::write(world.folder().join("other"), "something else").expect("a file");
    let taken = world.muster(&["user", "renew", "ann", "--out", "other"]).ended(6);
    assert_eq!(taken.error_code(), "file_exists");
    as_ann(&["node", "ls"]).ended(0);
    let renewed = world.muster(&["user", "renew", "ann", "--ttl", "2h", "--out", "ann.json"]).ended(0).json();
    assert_eq!(renewed["admin"], true);
    as_ann(&["node", "update", "n1", "--label-add", "a=b"]).ended(0);
    eventually_so("the old identity is refused", || world.muster(&["--identity", "old.json", "node", "ls"]).code == 6);
}

#[test]
#[ignore = "full tier"]
fn certificates_are_renewed_when_asked() {
    let world = World::with(1, 1);
    let serial = |name: &str| world.seen("n1", name).and_then(|node| node.certificate.serial);
    let before = serial("n2");
    world.muster(&["cert", "rotate", "n2"]).ended(0);
    eventually_so("n2 has another certificate", || serial("n2") != before);
}

#[test]
#[ignore = "full tier"]
fn leadership_transfers_to_named_node() {
    let world = World::with(3, 0);
    let leader = world.leader_seen_by("n1");
    let transfer_target = world.other_than(&[&leader]);
    // A target that has been silent for an election timeout, as on a busy machine, cannot take over. Nothing else is repeated.
    eventually("leadership is transferred", || {
        world.muster(&["raft", "transfer-leader", &transfer_target]).done_unless(&[ErrorCode::TimedOut])
    });
    eventually_so("the transfer target leads", || world.leader_seen_by("n1") == transfer_target);
}

#[test]
#[ignore = "full tier"]
fn short_bench_names_its_runs() {
    let world = World::with(1, 0);
    let runs = world.muster(&["bench", "--op", "write", "--clients", "1,8", "--ops", "50"]).ended(0).json();
    let runs = runs["runs"].as_array().expect("runs").clone();
    assert_eq!(runs.len(), 2);
    for run in &runs {
        has(run, &["op", "via", "clients", "per_s", "p50_ms", "p99_ms"]);
        assert_eq!((&run["errors"], &run["transport"]), (&0.into(), &"tls".into()), "{run}");
    }
    for op in ["write", "cas", "read"] {
        let args = ["bench", "--op", op, "--via", "rest", "--clients", "4", "--ops", "40"];
        let run = world.muster(&args).ended(0).json()["runs"][0].clone();
        assert_eq!((&run["op"], &run["via"], &run["ops"]), (&op.into(), &"rest".into(), &40.into()), "{run}");
        assert_eq!((&run["errors"], &run["transport"]), (&0.into(), &"tls".into()), "{run}");
    }
    // A user may do less, so these are requests of a user.
    let refused = world.muster(&["bench", "--op", "write", "--as", "user"]).ended(2);
    assert!(refused.stderr.contains("--op cas"), "{}", refused.stderr);
    for (op, via) in [("cas", "native"), ("read", "native"), ("cas", "rest"), ("read", "rest")] {
        let args = ["bench", "--op", op, "--via", via, "--as", "user", "--clients", "4", "--ops", "40"];
        let run = world.muster(&args).ended(0).json()["runs"][0].clone();
        assert_eq!((&run["op"], &run["as"], &run["errors"]), (&op.into(), &"user".into(), &0.into()), "{run}");
    }
    let users = world.muster(&["user", "ls"]).ended(0).json();
    assert!(users["items"].as_array().is_some_and(Vec::is_empty), "its identity is gone: {users}");
    let leases = world.muster(&["lease", "ls", "-A"]).ended(0).json();
    // Managers hold leases of their own.
    let mut left = leases["items"].as_array().into_iter().flatten();
    let own = |lease: &serde_json::Value| {
        lease["namespace"] == "muster-members" || lease["namespace"] == "muster-reconcilers"
    };
    assert!(left.all(own), "its leases are gone: {leases}");
}

/// A script must not take an empty file for an answer.
#[test]
#[ignore = "full tier"]
fn output_to_a_full_disk_fails_every_command() {
    let world = World::with(1, 0);
    let socket = world.socket("n1");
    for line in [
        "status",
        "node ls",
        "node ls -q",
        "node ls -o json",
        "node update n1 --label-add a=b",
        "token show worker",
        "raft status",
        "actors",
        "events",
        "lease ls -A",
        "user create ann --out -",
        "dev down --dir none",
        "--help",
        "--version",
    ] {
        let full = std::fs::File::create("/dev/full").expect("there is a full disk");
        let args: Vec<&str> = line.split(' ').collect();
        let mut command = muster(world.folder(), &args);
        let ended = command.env("MUSTER_SOCKET", &socket).stdout(full).status().expect("muster starts");
        assert!(ended.code() > Some(0), "{line}: {ended}");
    }
    let users = world.muster(&["user", "ls"]).ended(0).json();
    assert_eq!(users["items"], serde_json::json!([]), "ann's key was not written, so she is not a user");
}

#[test]
#[ignore = "full tier"]
fn user_is_not_created_if_key_cannot_be_written() {
    let world = World::with(1, 0);
    for out in ["no/such/folder/ann.json", "/dev/full"] {
        let refused = world.muster(&["user", "create", "ann", "--out", out]);
        assert_ne!(refused.code, 0, "{out}");
    }
    let users = world.muster(&["user", "ls"]).ended(0).json();
    assert_eq!(users["items"], serde_json::json!([]));
    world.muster(&["user", "create", "ann", "--out", "ann.json"]).ended(0);
    assert!(world.folder().join("ann.json").metadata().is_ok_and(|file| file.len() > 100));
}
