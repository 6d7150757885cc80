//! Losses: Raft data, answers, places in a queue. And secrets, which must not leak.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use muster_client::Client;
use muster_messages::wire::Request;
use muster_messages::{RaftId, Revision, Role};
use muster_pki::IdentityStore;
use serde_json::Value;

use crate::harness::{ForegroundMuster, World, eventually, eventually_so};

fn member_of(world: &World, name: &str) -> Option<RaftId> {
    world.seen("n1", name)?.manager.map(|m| m.raft_id)
}

/// Flips bytes within acknowledged entries.
fn damage(raft: &Path) {
    let files = std::fs::read_dir(raft.join("log")).expect("a log").map(|entry| entry.expect("readable").path());
    let log = files.filter(|path| path.extension().is_some_and(|e| e == "raftlog")).min().expect("a file of the log");
    let mut bytes = std::fs::read(&log).expect("readable");
    bytes.iter_mut().skip(300).step_by(97).take(18).for_each(|byte| *byte ^= 0xff);
    std::fs::write(&log, bytes).expect("writable");
}

/// A voter that lost its votes must not vote again, not even until it has a new member id.
#[test]
#[ignore = "full tier"]
fn lost_raft_data_leads_to_a_new_member_id() {
    let mut world = World::with(3, 0);
    for name in ["n2", "n3"] {
        let old = member_of(&world, name).expect("it is a member");
        let node = world.node(name);
        node.kill();
        let raft = node.folder.join("raft");
        match name {
            "n2" => std::fs::remove_dir_all(&raft).expect("it can be removed"),
            _ => damage(&raft),
        }
        let before = node.log().len();
        node.start(&[]).ready();
        let log = world.node(name).log().split_off(before);
        let word = if name == "n2" { "raft_data_missing" } else { "raft_data_damaged" };
        assert!(log.contains(word), "{log}");
        let resumed = format!("this manager is Raft member {old}");
        assert!(!log.lines().any(|line| line.ends_with(&resumed)), "it resumed its old membership:\n{log}");
        eventually_so("it votes with a newer member id", || member_of(&world, name).is_some_and(|now| now > old));
        world.all_settled();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("it can be made");
    for entry in std::fs::read_dir(from).expect("readable").map(|entry| entry.expect("readable")) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("it can be copied");
        }
    }
}

/// A directory restored from an older copy lacks later acknowledged entries. The identity remembers them; without that
/// memory the leader's heartbeats reveal it.
#[test]
#[ignore = "full tier"]
fn restored_old_raft_data_leads_to_a_new_member_id() {
    let mut world = World::with(3, 0);
    for name in ["n2", "n3"] {
        let old = member_of(&world, name).expect("it is a member");
        let older = world.folder().join(format!("older-{name}"));
        let node = world.node(name);
        node.kill();
        let (raft, identity) = (node.folder.join("raft"), node.folder.join("identity"));
        copy(&raft, &older);
        node.start(&[]).ready();
        for _ in 0..20 {
            world.muster(&["token", "create", "--role", "worker"]).ended(0);
        }
        let revision = world.muster(&["raft", "status"]).ended(0).json()["commit"].as_u64().expect("a number");
        // By the leader's record of acknowledgements. Whichever node is asked for `applied`, the leader answers with its own.
        eventually_so("it has acknowledged them", || {
            let status = world.muster(&["raft", "status"]).ended(0).json();
            let member = status["members"].as_array().into_iter().flatten().find(|m| m["raft_id"] == old.0);
            member.is_some_and(|member| member["match"].as_u64() >= Some(revision))
        });
        let node = world.node(name);
        node.kill();
        std::fs::remove_dir_all(&raft).expect("it can be removed");
        std::fs::rename(&older, &raft).expect("it can be put back");
        if name == "n3" {
            std::fs::remove_file(identity.join("raft-acked")).expect("it was there");
        }
        node.start(&[]).ready();
        eventually_so("it votes with a newer member id", || member_of(&world, name).is_some_and(|now| now > old));
        assert!(world.node(name).folder.join("raft.damaged").exists(), "the damaged data is kept");
        world.all_settled();
    }
}

#[test]
#[ignore = "full tier"]
fn watch_on_worker_socket_blocks_no_other_request() {
    let world = World::with(1, 1);
    let socket = world.socket("n2");
    let socket = socket.to_str().expect("the path is text");
    let mut watch = ForegroundMuster::start(world.folder(), &["--socket", socket, "-o", "json", "events", "--watch"]);
    watch.wait_for_line("revision");
    // The shipped poll repeats every 25 s; this one waits longer than any test, for a change that never happens.
    let mut client = Client::to_socket(world.socket("n2"), Duration::from_secs(110));
    let polls = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(client.call(Request::Events { since: Revision(u64::MAX - 1), wait_ms: 100_000 }))
    });
    for _ in 0..5 {
        let status = world.muster_at("n2", &["status"]).ended(0).json();
        assert_eq!(status["self"]["name"], "n2", "the asked node, not the answering manager");
    }
    assert!(!polls.is_finished(), "the polls ended too early");
}

#[test]
#[ignore = "full tier"]
fn event_watch_survives_api_restart() {
    let world = World::with(1, 0);
    let socket = world.socket("n1");
    let socket = socket.to_str().expect("the path is text");
    let mut watch = ForegroundMuster::start(world.folder(), &["--socket", socket, "-o", "json", "events", "--watch"]);
    watch.wait_for_line("revision");
    world.muster(&["actors", "crash", "node/api", "--how", "panic"]).ended(0);
    let made = || {
        let made = world.muster(&["token", "create", "--role", "worker"]);
        (made.code == 0).then(|| made.json()["id"].as_str().map(str::to_owned)).flatten()
    };
    let id = eventually("the api has restarted", made);
    watch.wait_for_line(&format!("worker token {id}"));
}

/// Its log is on the same disk: those lines are lost, at no further cost.
#[test]
#[ignore = "full tier"]
fn full_disk_start_serves_as_worker_until_space_is_free() {
    let mut world = World::with(3, 1);
    for name in ["n3", "n4"] {
        world.node(name).kill();
        world.node(name).disk_is_full_from_the_start().start(&[]);
    }
    world.node("n4").ready();
    // Its socket may be there later than the other's.
    let trouble = |world: &World| {
        let ran = world.muster_at("n3", &["status"]);
        (ran.code == 0).then(|| ran.json()["self"]["trouble"].clone())
    };
    let why = eventually("its status names the failed disk", || {
        let trouble = trouble(&world)?.as_str()?.to_owned();
        trouble.starts_with("disk_failed: ").then_some(trouble)
    });
    assert!(why.contains("starts.json"), "{why}");
    world.node("n3").disk_is_full(false);
    world.node("n3").ready();
    world.all_settled();
    assert!(world.node("n3").is_running(), "without a restart");
    eventually_so("its trouble has ended", || trouble(&world).is_some_and(|trouble| trouble.is_null()));
}

fn http(socket: &Path, request: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).expect("the socket answers");
    let request = format!("{request}\r\nHost: muster\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, answer)
}

#[test]
#[ignore = "full tier"]
fn removal_retried_by_request_id_is_done_not_unknown() {
    let world = World::with(1, 1);
    let remove = "DELETE /v1/nodes/n2?force=true HTTP/1.1\r\nMuster-Request-Id: 5eed";
    for attempt in 1..=2 {
        let (status, answer) = http(&world.socket("n1"), remove);
        assert_eq!(status, 200, "attempt {attempt}: {answer}");
    }
    let (status, answer) = http(&world.socket("n1"), "DELETE /v1/nodes/n2?force=true HTTP/1.1");
    assert_eq!(status, 404, "another request: {answer}");
}

/// Lines of private keys, as they would be printed.
fn key_lines(pem: &str) -> Vec<String> {
    let mut inside = false;
    let keep = |line: &&str| {
        inside = (inside || line.contains("BEGIN") && line.contains("PRIVATE KEY")) && !line.contains("END");
        inside && !line.contains("BEGIN")
    };
    pem.lines().filter(keep).map(str::to_owned).collect()
}

#[test]
#[ignore = "full tier"]
fn no_log_holds_a_key_or_the_secret_of_a_token() {
    let mut world = World::new();
    world.node("n1").start(&["--init", "--log", "trace"]).ready();
    let seed = world.node("n1").listen.to_string();
    for (name, role) in [("n2", Role::Manager), ("n3", Role::Worker)] {
        let token = world.token(role);
        world.node(name).start(&["--join", &seed, "--token", &token, "--log", "trace"]).ready();
    }
    let mut tokens = vec![world.token(Role::Worker), world.token(Role::Manager)];
    let created: Value = world.muster(&["token", "create", "--role", "worker"]).ended(0).json();
    tokens.push(created["token"].as_str().expect("a token").to_owned());
    world.muster_at("n2", &["token", "rotate", "manager"]).ended(0);
    tokens.push(world.token(Role::Manager));
    let identity = world.muster(&["user", "create", "eve", "--admin"]).ended(0);
    world.muster(&["node", "promote", "n3", "--wait=300s"]).ended(0);
    world.muster(&["node", "demote", "n3", "--wait=300s"]).ended(0);
    let _tree = world.answer("n1", Request::Status { fresh: true });

    let mut secrets: Vec<String> =
        tokens.iter().map(|token| token.rsplit('-').next().expect("a secret").to_owned()).collect();
    secrets.extend(key_lines(&identity.stdout.replace("\\n", "\n")));
    for name in ["n1", "n2", "n3"] {
        let store = IdentityStore::open(&world.node(name).folder).expect("the directory is a node's");
        let keys = store.load_credentials().expect("credentials").expect("a node has some").key_pem;
        let keys = key_lines(keys.expose());
        assert!(!keys.is_empty());
        secrets.extend(keys);
    }
    secrets.push("PRIVATE KEY".to_owned());
    for name in ["n1", "n2", "n3"] {
        let log = world.node(name).log();
        assert!(log.contains("DEBUG"), "{name} logs what it decides");
        let out = secrets.iter().position(|secret| log.contains(secret.as_str()));
        assert_eq!(out, None, "{name}'s log holds one of the {} secrets", secrets.len());
    }
}
