//! The quorum is lost permanently, and one manager recovers alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use muster_local_cluster::parent;
use muster_messages::wire::Request;
use muster_messages::{Liveness, Membership, NodeView, Role};
use serde_json::Value;

use crate::autolock::{file, key_of, restarted_locked, switched_on};
use crate::harness::{MUSTERD, WAIT_LIMIT, World, between_checks, eventually, eventually_so};
use crate::rotation::{AT_ONCE, roots, trusted_by};

const FORCE: &str = "--force-new-cluster";

fn incarnation(world: &World, by: &str) -> u64 {
    world.answer(by, Request::Status { fresh: true })["cluster"]["incarnation"].as_u64().expect("a number")
}

/// Every file below, with content and modification time.
fn all_files(folder: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable")) {
        let (path, about) = (entry.path(), entry.metadata().expect("readable"));
        if about.is_dir() {
            files.extend(all_files(&path));
        } else if about.is_file() {
            files.insert(path.clone(), (std::fs::read(&path).expect("readable"), about.modified().expect("a time")));
        }
    }
    files
}

/// Runs a daemon that exits at once: status, stdout, stderr. One that serves instead is killed.
pub fn at_once(folder: &Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(MUSTERD);
    command.arg("--data-dir").arg(folder).args(["--listen", "127.0.0.1:0"]).args(flags);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    parent::tie(&mut command);
    let mut daemon = command.spawn().expect("musterd runs");
    let end = Instant::now() + WAIT_LIMIT;
    while daemon.try_wait().expect("it is our child").is_none() && Instant::now() < end {
        between_checks();
    }
    let _ended = daemon.kill();
    let ended = daemon.wait_with_output().expect("it is our child");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
}

fn is_settled_worker(node: &NodeView) -> bool {
    (node.desired_role, node.role) == (Role::Worker, Role::Worker)
        && node.state == Liveness::Ready
        && node.certificate.role == Some(Role::Worker)
        && node.membership == Membership::None
}

/// E28. The hard part: the two former managers return together and would have a quorum between themselves.
#[test]
fn forced_recovery_keeps_node_ids() {
    let mut world = World::with(3, 1);
    world.muster(&["node", "update", "n4", "--label-add", "kept=yes"]).ended(0);
    let before: BTreeMap<String, String> =
        world.nodes_seen_by("n1").into_iter().map(|n| (n.name.to_string(), n.id.to_string())).collect();
    for name in ["n2", "n3", "n1"] {
        world.node(name).kill();
    }
    world.node("n1").start(&[FORCE]).ready();
    assert!(incarnation(&world, "n1") > 1);
    world.muster(&["node", "update", "n4", "--label-add", "written=alone"]).ended(0);
    let worker = eventually("the worker is back", || world.seen("n1", "n4").filter(is_settled_worker));
    assert_eq!(worker.labels.get("kept").map(String::as_str), Some("yes"), "the data is kept");

    for name in ["n2", "n3"] {
        world.node(name).start(&[]);
    }
    for name in ["n2", "n3"] {
        eventually_so("a former manager is a worker", || world.seen("n1", name).is_some_and(|n| is_settled_worker(&n)));
        eventually_so("its old data is set aside", || world.node(name).folder.join("raft.fenced").exists());
        assert!(!world.node(name).folder.join("raft").join("log").exists());
    }
    let member_ids = world.answer("n1", Request::RaftStatus { fresh: true });
    assert_eq!(member_ids["members"].as_array().map(Vec::len), Some(1), "{member_ids}");
    let after = world.nodes_seen_by("n1").into_iter().map(|n| (n.name.to_string(), n.id.to_string())).collect();
    assert_eq!(before, after, "no node had to join again");

    world.muster(&["node", "promote", "n2", "n3", "--wait=300s"]).ended(0);
    world.all_settled();
    let first = incarnation(&world, "n1");
    assert_eq!((incarnation(&world, "n2"), incarnation(&world, "n3")), (first, first));
    // The flag stayed in a unit file: no second recovery, and the others keep their roles.
    world.node("n1").stop();
    let (code, _, said) = at_once(&world.node("n1").folder.clone(), &[FORCE]);
    assert!(code == Some(6) && said.contains("the quorum is not lost"), "{code:?}: {said}");
    world.node("n1").start(&[]).ready();
    assert_eq!(incarnation(&world, "n1"), first);
}

/// A manager promoted again before its return starts with empty data, not with its old data.
#[test]
#[ignore = "full tier"]
fn former_manager_promoted_again_starts_with_empty_data() {
    let mut world = World::with(2, 0);
    world.node("n2").kill();
    world.node("n1").kill();
    world.node("n1").start(&[FORCE]).ready();
    world.muster(&["node", "promote", "n2"]).ended(0);
    world.node("n2").start(&[]).ready();
    world.is_recorded_as_ready("n1", "n2");
    world.all_settled();
    assert!(world.node("n2").folder.join("raft.fenced").exists());
    let votes = |name: &str| world.seen("n1", name).is_some_and(|n| n.membership == Membership::Voter);
    assert!(votes("n1") && votes("n2"));
}

#[test]
#[ignore = "full tier"]
fn recovery_plan_changes_nothing() {
    let mut world = World::with(3, 0);
    let folder = world.node("n1").folder.clone();
    let plan = |kind: &str| at_once(&folder, &[FORCE, kind]);
    let (code, _, said) = plan("--print-plan");
    assert!(code == Some(1) && said.contains("stop it first"), "{code:?}: {said}");

    world.node("n1").kill();
    // Each of them has two seconds to answer.
    eventually_so("the others answer", || {
        let (code, _, said) = plan("--print-plan");
        assert!(code == Some(6) && said.contains("the quorum is not lost"), "{code:?}: {said}");
        said.contains("n2, n3")
    });

    for name in ["n2", "n3"] {
        world.node(name).kill();
    }
    let before = all_files(&folder);
    let (code, text, said) = plan("--print-plan");
    assert!(code == Some(0), "{said}");
    assert!(text.contains("worker now   n2 (") && text.ends_with("Nothing was changed.\n"), "{text}");
    let (code, json, _) = plan("--print-plan=json");
    let json: Value = serde_json::from_str(&json).expect("one document");
    assert_eq!((code, json["lost"].as_array().map(Vec::len), &json["voter"]), (Some(0), Some(2), &Value::Bool(true)));
    assert!(before == all_files(&folder), "a plan changes nothing");

    world.node("n1").start(&[]);
    world.node("n2").start(&[]);
    world.node("n1").ready();
    assert_eq!(incarnation(&world, "n1"), 1, "no recovery happened");
}

#[test]
#[ignore = "full tier"]
fn killed_recovery_is_finished_by_next_start() {
    let mut world = World::with(2, 0);
    world.node("n2").kill();
    world.node("n1").kill();
    let begun = world.node("n1").folder.join("identity").join("recovery.json");
    std::fs::remove_file(world.socket("n1")).expect("the killed process left it");
    world.node("n1").start(&[FORCE]);
    // It exists during a few writes: whether it was seen or missed, the rest holds.
    eventually_so("recovery has begun or completed", || begun.exists() || world.node("n1").socket().exists());
    world.node("n1").kill();
    world.node("n1").start(&[FORCE]).ready();
    let once = incarnation(&world, "n1");
    assert!(once > 1 && !begun.exists());
    world.node("n1").stop();
    world.node("n1").start(&[]).ready();
    assert_eq!(incarnation(&world, "n1"), once);
}

/// E21. One of two managers is dead: changes are impossible, and the error names the options.
#[test]
#[ignore = "full tier"]
fn cluster_without_quorum_names_recovery_options() {
    let mut world = World::with(2, 0);
    world.node("n2").kill();
    let refused = eventually("the missing quorum is reported", || {
        let ran = world.muster(&["--timeout", "5s", "node", "demote", "n2"]);
        ran.stderr.contains(FORCE).then_some(ran)
    });
    assert!(matches!(refused.code, 5 | 6) && refused.stderr.contains("n2"), "{}", refused.stderr);
    eventually_so("it is reported after a restart without a leader", || {
        let ran = world.muster(&["--timeout", "5s", "token", "ls"]);
        ran.code == 5 && ran.stderr.contains(FORCE)
    });
}

#[test]
#[ignore = "full tier"]
fn backup_restores_cluster_on_empty_machine() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut world = World::with(2, 1);
    world.muster(&["node", "update", "n3", "--label-add", "kept=yes"]).ended(0);
    let file = world.folder().join("cluster.backup");
    let path = file.to_str().expect("the path is text").to_owned();
    let output = world.muster_at("n2", &["backup", &path]).ended(0).json();
    assert_eq!(output["file"], path.as_str());
    assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(world.muster(&["backup", &path]).ended(6).error_code(), "file_exists");
    assert_eq!(world.muster_at("n3", &["backup", "-"]).ended(6).error_code(), "forbidden", "a worker cannot do it");
    world.muster(&["node", "update", "n3", "--label-add", "after=yes"]).ended(0);
    let joined_since = world.join_more(1, Role::Worker).remove(0);
    let worker = world.seen("n1", "n3").expect("n3 is a node").id;

    let flags = ["--restore", &path, "--name", "n9"];
    let (code, _, said) = at_once(&world.folder().join("n9"), &flags);
    assert!(code == Some(6) && said.contains("the quorum is not lost"), "the cluster has a quorum: {code:?}: {said}");
    for name in ["n1", "n2"] {
        world.node(name).kill();
    }
    // The workers know a former manager's address, which the new machine takes over.
    world.node("n9").listen = world.node("n1").listen;
    world.node("n9").start(&["--restore", &path]).ready();
    world.muster_at("n9", &["recovery", "open"]).ended(0);
    let back = eventually("the worker is back", || world.seen("n9", "n3").filter(is_settled_worker));
    assert_eq!(back.id, worker);
    assert_eq!(
        (back.labels.contains_key("kept"), back.labels.contains_key("after")),
        (true, false),
        "the backup's state"
    );
    world.muster_at("n9", &["node", "update", "n3", "--label-add", "written=since"]).ended(0);
    eventually_so("a node that joined after the backup is informed permanently", || {
        crate::removal::removal_reason(&world, &joined_since).as_deref() == Some("removed")
    });

    world.node("n2").start(&[]).ready();
    eventually_so("a former manager is a worker", || world.seen("n9", "n2").is_some_and(|n| is_settled_worker(&n)));
    world.muster_at("n9", &["node", "promote", "n2", "--wait=300s"]).ended(0);
    // Not twice: the flag in a unit file does not restore over later changes.
    world.node("n9").stop();
    let (code, _, said) = at_once(&world.node("n9").folder.clone(), &flags);
    assert!(code == Some(6) && said.contains("needs an empty directory"), "{code:?}: {said}");
}

/// The data is sealed for a recovery as for any start: nothing is read or changed without the key, and the recovered cluster keeps it.
#[test]
#[ignore = "full tier"]
fn forced_recovery_under_autolock_needs_the_key() {
    let mut world = World::with(2, 0);
    let on = switched_on(&world);
    let key = file(&world, "key", key_of(&on));
    for name in ["n2", "n1"] {
        world.node(name).kill();
    }
    let folder = world.node("n1").folder.clone();
    let before = all_files(&folder);
    let (code, plan, said) = at_once(&folder, &[FORCE, "--print-plan"]);
    assert!(code == Some(5) && said.contains("--unlock-key-file") && plan.is_empty(), "{code:?}: {plan}{said}");
    let (code, plan, said) = at_once(&folder, &[FORCE, "--print-plan", "--unlock-key-file", &key]);
    assert!(code == Some(0) && plan.contains("worker now   n2 ("), "{code:?}: {plan}{said}");
    assert!(before == all_files(&folder), "a plan changes nothing");

    restarted_locked(&mut world, "n1", &[FORCE]);
    let keyring = folder.join("identity/keyring.json");
    assert!(before.contains_key(&keyring) && !folder.join("identity/recovery.json").exists(), "nothing has begun");
    world.muster_at("n1", &["unlock", "--key-file", &key]).ended(0);
    world.node("n1").ready();
    assert!(incarnation(&world, "n1") > 1);
    let kept = world.muster(&["autolock", "key"]).ended(0).json();
    assert_eq!(key_of(&kept), key_of(&on), "the recovered cluster has the key");
    assert!(kept["version"].as_u64() > on["version"].as_u64(), "under another version: {kept}");
    eventually_so("its keyring follows", || {
        let status = world.muster_insists(&["autolock", "status"]);
        let own = status["managers"].as_array().and_then(|all| all.iter().find(|manager| manager["name"] == "n1"));
        own.is_some_and(|own| own["state"] == "sealed" && own["version"] == kept["version"])
    });

    // The former manager needs its key once more, and none as a worker.
    restarted_locked(&mut world, "n2", &[]);
    world.muster_at("n2", &["unlock", "--key-file", &key]).ended(0);
    eventually_so("a former manager is a worker", || world.seen("n1", "n2").is_some_and(|n| is_settled_worker(&n)));
    let keyring = world.node("n2").folder.join("identity/keyring.json");
    eventually_so("its keyring is not in use any more", || !keyring.exists());
    world.node("n2").kill();
    world.node("n2").start(&[]).ready();
    restarted_locked(&mut world, "n1", &[]);
    world.muster_at("n1", &["unlock", "--key-file", &key]).ended(0);
    world.node("n1").ready();
}

/// The backup signs with the root of its time: who trusts that one comes back, who trusts only the later one does not.
#[test]
#[ignore = "full tier"]
fn backup_from_before_a_rotation_signs_with_its_own_root() {
    let mut world = World::with_settings(AT_ONCE, 1, 2);
    let file = world.folder().join("cluster.backup");
    let path = file.to_str().expect("the path is text").to_owned();
    world.muster(&["backup", &path]).ended(0);
    let old = roots(&world, "n1").active.expect("a root signs");
    world.node("n3").kill();
    world.muster(&["ca", "rotate", "--wait=300s"]).ended(0);
    let new = roots(&world, "n1").active.expect("a root signs");
    eventually_so("n2 trusts the later root only", || trusted_by(&mut world, "n2") == [new]);
    world.node("n1").kill();

    world.node("n9").listen = world.node("n1").listen;
    world.node("n9").start(&["--restore", &path]).ready();
    world.muster_at("n9", &["recovery", "open"]).ended(0);
    assert_eq!(roots(&world, "n9").active, Some(old));
    world.node("n3").start(&[]).ready();
    eventually_so("n3 is back", || world.seen("n9", "n3").is_some_and(|node| is_settled_worker(&node)));
    eventually_so("n2 says why it is not", || world.nodes_log("n2").contains("older than a rotation of its root"));
    assert_eq!(trusted_by(&mut world, "n2"), [new], "what it trusts has not changed");
}

/// Removals and revocations after the backup are lost in it. No node is admitted before the operator has repeated them,
/// not even after a crash.
#[test]
#[ignore = "full tier"]
fn restored_cluster_admits_no_node_before_it_is_opened() {
    let mut world = World::with(1, 2);
    let file = world.folder().join("cluster.backup");
    let path = file.to_str().expect("the path is text").to_owned();
    world.muster(&["backup", &path]).ended(0);
    let revoked = world.token(Role::Manager);
    world.muster(&["token", "rotate", "manager"]).ended(0);
    let [worker, removed] = ["n2", "n3"].map(|name| world.seen("n1", name).expect("it is a node").id.to_string());
    // Before it can learn that it is removed: a node that has learned it does not dial again.
    world.node("n3").kill();
    world.muster(&["node", "rm", "n3", "--force"]).ended(0);
    world.node("n1").kill();

    let address = world.node("n1").listen;
    world.node("n9").listen = address;
    world.node("n9").start(&["--restore", &path]).ready();
    // The removed node and a joiner with the revoked token try while the cluster is closed.
    world.node("n3").start(&[]);
    world.node("n4").start(&["--join", &address.to_string(), "--token", &revoked]);
    let closed = "closed until its operator runs `muster recovery open`";
    for name in ["n2", "n3", "n4"] {
        eventually_so("it learns why it is not admitted", || world.nodes_log(name).contains(closed));
    }
    let trouble = |world: &World| {
        world.answer("n9", Request::Status { fresh: true })["self"]["trouble"].as_str().unwrap_or_default().to_owned()
    };
    assert!(trouble(&world).starts_with("admission_closed: "), "{}", trouble(&world));
    world.node("n9").kill();
    world.node("n9").start(&[]).ready();
    assert!(trouble(&world).starts_with("admission_closed: "), "still closed after a crash");

    world.muster_at("n9", &["node", "rm", &removed, "--force"]).ended(0);
    world.muster_at("n9", &["token", "rotate", "manager"]).ended(0);
    let tree = world.muster_at("n9", &["actors"]).ended(0).stdout;
    assert!(!tree.contains(&format!("session-{worker}")), "no session was opened: {tree}");
    let opened = world.muster_at("n9", &["recovery", "open"]).ended(0).json();
    assert_eq!(opened["changed"], true);
    assert_eq!(world.muster_at("n9", &["recovery", "open"]).ended(0).json()["changed"], false);
    eventually_so("the worker is back", || world.seen("n9", "n2").is_some_and(|node| is_settled_worker(&node)));
    eventually_so("the removed node learns it", || {
        let reason = crate::removal::removal_reason(&world, "n3");
        matches!(reason.as_deref(), Some("removed" | "blocked"))
    });
    assert_ne!(world.node("n4").exit(), Some(0), "the revoked token admits nobody");
    let names: Vec<String> = world.nodes_seen_by("n9").into_iter().map(|node| node.name.to_string()).collect();
    assert!(!names.iter().any(|name| name == "n3" || name == "n4"), "{names:?}");
    assert_eq!(trouble(&world), "");
}
