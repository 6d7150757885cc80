//! Managers whose disks are sealed under the cluster's unlock key: locked daemons, and the ways to unlock them.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_local_cluster::ProcessId;
use muster_messages::Liveness;
use muster_sealing::UnlockKey;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{ForegroundMuster, World, eventually, eventually_so};

/// A file of its own with this text.
pub(crate) fn file(world: &World, name: &str, text: &str) -> String {
    let path = world.folder().join(name);
    std::fs::write(&path, text).expect("the world's folder is writable");
    path.to_str().expect("a path").to_owned()
}

/// Switches autolock on; returns the answer. Every manager has taken the key.
pub(crate) fn switched_on(world: &World) -> Value {
    let on = world.muster(&["autolock", "on", "--wait=60s"]).ended(0).json();
    assert_eq!((&on["enabled"], &on["changed"]), (&true.into(), &true.into()), "{on}");
    on
}

pub(crate) fn key_of(answer: &Value) -> &str {
    answer["key"].as_str().expect("the answer shows the key")
}

/// Restarts a manager without a key, and waits until it says that it is locked.
pub(crate) fn restarted_locked(world: &mut World, name: &str, flags: &[&str]) -> Value {
    if world.node(name).is_running() {
        world.node(name).stop();
    }
    world.node(name).start(flags);
    is_locked(world, name)
}

fn is_locked(world: &World, name: &str) -> Value {
    eventually("it is locked", || {
        let status = world.muster_at(name, &["status"]);
        let status = (status.code == 0).then(|| status.json())?;
        (status["locked"] == true).then_some(status)
    })
}

fn keyring(world: &mut World, name: &str) -> Vec<u8> {
    std::fs::read(world.node(name).folder.join("identity/keyring.json")).expect("a manager has a keyring")
}

/// What `autolock status` says of each manager: its state and version.
fn seals(world: &World) -> Vec<(String, String, Option<u64>)> {
    let status = world.muster_insists(&["autolock", "status"]);
    let managers = status["managers"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    managers.map(|m| (text(&m["name"]), text(&m["state"]), m["version"].as_u64())).collect()
}

#[test]
#[ignore = "full tier"]
fn locked_manager_serves_nothing_until_it_has_its_key() {
    let mut world = World::with(3, 1);
    let off = world.muster(&["autolock", "key"]).ended(6);
    assert_eq!(off.error_code(), "not_enabled");
    let on = switched_on(&world);
    let (key, version) = (key_of(&on).to_owned(), on["version"].as_u64());
    let sealed: Vec<_> = ["n1", "n2", "n3"].map(|name| (name.to_owned(), "sealed".to_owned(), version)).into();
    assert_eq!(seals(&world), sealed);
    let again = world.muster(&["autolock", "on"]).ended(0).json();
    assert_eq!((key_of(&again), &again["changed"]), (key.as_str(), &false.into()));

    let metrics = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port").to_string();
    let status = restarted_locked(&mut world, "n2", &["--metrics", &metrics]);
    assert_eq!(status["version"].as_u64(), version, "{status}");
    let before = keyring(&mut world, "n2");
    for request in [&["node", "ls"][..], &["autolock", "key"], &["actors"], &["raft", "status"]] {
        let refused = world.muster_at("n2", request).ended(5);
        assert_eq!(refused.error_code(), "locked");
    }
    world.node("n2").metrics = Some(metrics);
    assert!(world.scraped("n2", "/livez").starts_with("HTTP/1.1 200"));
    let ready = world.scraped("n2", "/readyz");
    assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("locked\n"), "{ready}");
    assert_eq!((world.metric("n2", "muster_locked"), world.metric("n1", "muster_locked")), (1, 0));
    let mut peer = TcpStream::connect(world.node("n2").listen).expect("its port accepts");
    assert!(matches!(peer.read(&mut [0; 8]), Ok(0) | Err(_)), "and closes");
    assert!(world.node("n2").is_starting(), "no ready line");

    let wrong = file(&world, "wrong", &UnlockKey::new().to_text());
    let refused = world.muster_at("n2", &["unlock", "--key-file", &wrong]).ended(6);
    assert_eq!(refused.error_code(), "bad_unlock_key");
    let mistyped = file(&world, "mistyped", &key.replacen('-', "", 3));
    assert_eq!(world.muster_at("n2", &["unlock", "--key-file", &mistyped]).ended(2).error_code(), "invalid");
    world.muster_at("n2", &["unlock"]).ended(2);
    // SIGTERM ends it, and changes nothing.
    world.node("n2").stop();
    assert_eq!(keyring(&mut world, "n2"), before);

    restarted_locked(&mut world, "n2", &[]);
    let right = file(&world, "right", &key);
    let unlocked = world.muster_at("n2", &["unlock", "--key-file", &right]).ended(0).json();
    assert_eq!((&unlocked["unlocked"], unlocked["version"].as_u64()), (&true.into(), version));
    world.node("n2").ready();
    assert_eq!(world.muster_at("n2", &["unlock", "--key-file", &right]).ended(6).error_code(), "not_locked");
    assert_eq!(world.muster_at("n4", &["unlock", "--key-file", &right]).ended(6).error_code(), "not_locked");
    // A worker has nothing that is sealed.
    world.node("n4").stop();
    world.node("n4").start(&[]).ready();

    let off = world.muster(&["autolock", "off", "--yes", "--wait=60s"]).ended(0).json();
    assert_eq!((&off["enabled"], &off["changed"]), (&false.into(), &true.into()));
    world.node("n2").stop();
    world.node("n2").start(&[]).ready();
    world.muster(&["autolock", "off"]).ended(2);
}

#[test]
#[ignore = "full tier"]
fn manager_unlocks_without_a_person() {
    let mut world = World::with(1, 0);
    let on = switched_on(&world);
    let (key, json) = (file(&world, "key", key_of(&on)), file(&world, "json", &on.to_string()));
    let auto = |world: &World| {
        let status = world.muster_insists(&["autolock", "status"]);
        status["managers"][0]["auto"].as_str().unwrap_or_default().to_owned()
    };
    world.node("n1").stop();
    world.node("n1").start(&["--unlock-key-file", &json]).ready();
    eventually_so("it reports how it starts", || auto(&world) == "file");

    let credentials = world.folder().join("credentials");
    std::fs::create_dir(&credentials).expect("the world's folder is writable");
    std::fs::copy(&key, credentials.join("muster-unlock")).expect("copied");
    world.node("n1").environment.push(("CREDENTIALS_DIRECTORY", credentials.clone().into()));
    world.node("n1").stop();
    world.node("n1").start(&[]).ready();
    eventually_so("it reports how it starts", || auto(&world) == "credential");

    // One that is wrong leaves it locked, and says why; the file is read again.
    std::fs::write(credentials.join("muster-unlock"), UnlockKey::new().to_text().as_bytes()).expect("written");
    world.node("n1").stop();
    world.node("n1").start(&[]);
    let status = is_locked(&world, "n1");
    assert!(status["unattended"].as_str().is_some_and(|why| why.contains("opens nothing here")), "{status}");
    std::fs::copy(&key, credentials.join("muster-unlock")).expect("copied");
    world.node("n1").ready();
}

#[test]
#[ignore = "full tier"]
fn manager_that_missed_rotations_needs_its_old_key() {
    let mut world = World::with(3, 0);
    let on = switched_on(&world);
    let version = on["version"].as_u64().expect("a number");
    world.is_recorded_as_ready("n1", "n3");
    world.node("n3").kill();
    eventually_so("n3 is down", || world.seen("n1", "n3").is_some_and(|node| node.state == Liveness::Down));
    let mut newest = Value::Null;
    for _ in 0..2 {
        newest = world.muster(&["autolock", "rotate", "--wait=60s"]).ended(0).json();
    }
    assert_ne!(key_of(&newest), key_of(&on));
    let status = world.muster_insists(&["autolock", "status"]);
    let needs = status["needs_old_key"].as_array().expect("a list");
    assert_eq!((needs.len(), needs[0]["name"].as_str(), needs[0]["version"].as_u64()), (1, Some("n3"), Some(version)));

    let asks = restarted_locked(&mut world, "n3", &[]);
    assert_eq!(asks["version"].as_u64(), Some(version));
    let text = file(&world, "newest", key_of(&newest));
    assert_eq!(world.muster_at("n3", &["unlock", "--key-file", &text]).ended(6).error_code(), "bad_unlock_key");
    let json = file(&world, "newest.json", &newest.to_string());
    assert_eq!(world.muster_at("n3", &["unlock", "--key-file", &json]).ended(6).error_code(), "old_key_needed");
    let old = world.muster(&["autolock", "key", "--version", &version.to_string()]).ended(0).json();
    assert_eq!(key_of(&old), key_of(&on));
    let old = file(&world, "old", key_of(&old));
    world.muster_at("n3", &["unlock", "--key-file", &old]).ended(0);
    world.node("n3").ready();
    // It takes the newest key, and then no manager needs the old one.
    eventually_so("no former key is needed", || {
        world.muster_insists(&["autolock", "status"])["needs_old_key"] == Value::Array(vec![])
    });
    world.muster(&["autolock", "key", "--version", &version.to_string()]).ended(4);
    restarted_locked(&mut world, "n3", &[]);
    assert_eq!(world.muster_at("n3", &["unlock", "--key-file", &old]).ended(6).error_code(), "bad_unlock_key");
    world.muster_at("n3", &["unlock", "--key-file", &text]).ended(0);
    world.node("n3").ready();
}

/// Log rotation signals every daemon with an audit log, a locked one too.
#[test]
fn locked_daemon_with_an_audit_log_outlives_sighup() {
    let mut world = World::with_settings("[audit]\nfile = \"audit.log\"\n", 1, 0);
    let key = file(&world, "key", key_of(&switched_on(&world)));
    restarted_locked(&mut world, "n1", &[]);
    world.node("n1").signal(Signal::HUP);
    // Its default action would have ended the process before the next request.
    world.muster_at("n1", &["unlock", "--key-file", &key]).ended(0);
    world.node("n1").ready();
    let log = world.node("n1").folder.join("audit.log");
    std::fs::rename(&log, world.folder().join("audit.old")).expect("it is there");
    world.node("n1").signal(Signal::HUP);
    eventually_so("the log is reopened", || log.exists());
}

/// The key of a change must not be lost with a command that is interrupted while it waits.
#[test]
fn key_is_printed_before_the_managers_have_taken_it() {
    let mut world = World::with(1, 0);
    let keyring = world.node("n1").folder.join("identity/keyring.json");
    // A folder cannot be replaced by a file: no manager takes the key.
    let aside = world.folder().join("keyring.json");
    std::fs::rename(&keyring, &aside).expect("it is there");
    std::fs::create_dir(&keyring).expect("its folder is writable");
    let socket = world.socket("n1").to_str().expect("a path").to_owned();
    let run = |args: &[&str]| {
        let args = [&["--socket", &socket, "--timeout", "60s"], args].concat();
        ForegroundMuster::start(world.folder(), &args)
    };
    let mut quiet = run(&["-q", "autolock", "on", "--wait=600s"]);
    quiet.wait_for_line("MSTR-UNLOCK-1-");
    // Not SIGINT: a shell's background jobs ignore it.
    quiet.signal(Signal::TERM);
    assert_eq!(quiet.exit(), None, "it was still waiting");
    let mut json = run(&["-o", "json", "autolock", "rotate", "--wait=600s"]);
    json.wait_for_line("}");
    std::fs::remove_dir(&keyring).expect("it is empty");
    std::fs::rename(&aside, &keyring).expect("it is there");
    assert_eq!(json.exit(), Some(0));
    let answer: Value = serde_json::from_str(json.seen()).expect("one document");
    assert_eq!((&answer["changed"], &answer["settled"]), (&true.into(), &Value::Null));
    assert_eq!(key_of(&answer), key_of(&world.muster_insists(&["autolock", "key"])));
}

/// No process of an unlock command outlives its attempt, or its daemon.
#[test]
#[ignore = "full tier"]
fn unlock_command_that_hangs_leaves_no_process() {
    let mut world = World::new();
    let (script, pids) = (world.folder().join("unlock.sh"), world.folder().join("pids"));
    let text = format!(
        "#!/bin/sh\n[ -e '{key}' ] && exec cat '{key}'\nsleep 3600 & one=$!\nsetsid sleep 3600 & two=$!\n\
         echo $$ $one $two >> '{pids}'\nwait\n",
        key = world.folder().join("key").display(),
        pids = pids.display()
    );
    std::fs::write(&script, text).expect("the world's folder is writable");
    world.settings += &format!("[unlock]\ncommand = [\"/bin/sh\", {script:?}]\n");
    world.node("n1").start(&["--init"]).ready();
    let on = switched_on(&world);

    let started = |attempt: usize| {
        eventually("the command runs", || {
            let text = std::fs::read_to_string(&pids).unwrap_or_default();
            let numbers = text.lines().nth(attempt)?.split_whitespace().flat_map(str::parse);
            let ids: Vec<ProcessId> = numbers.filter_map(ProcessId::of).collect();
            (ids.len() == 3).then_some(ids)
        })
    };
    let are_gone =
        |ids: &[ProcessId]| eventually_so("all its processes are gone", || ids.iter().all(|id| !id.is_alive()));
    restarted_locked(&mut world, "n1", &[]);
    let first = started(0);
    world.node("n1").stop();
    are_gone(&first);

    restarted_locked(&mut world, "n1", &[]);
    let second = started(1);
    eventually_so("its time is over", || {
        let why = is_locked(&world, "n1")["unattended"].as_str().unwrap_or_default().to_owned();
        why.contains("not ended within 10 s")
    });
    are_gone(&second);
    // Later it has the key.
    file(&world, "key", key_of(&on));
    world.node("n1").ready();
}

/// A key file that hangs hides neither the locked daemon nor the other ways to unlock it.
#[test]
#[ignore = "full tier"]
fn key_file_that_hangs_does_not_hide_a_locked_daemon() {
    let mut world = World::with(1, 0);
    let on = switched_on(&world);
    let fifo = world.folder().join("fifo");
    mkfifo(&fifo);
    let flags = ["--unlock-key-file", fifo.to_str().expect("a path")];
    restarted_locked(&mut world, "n1", &flags);
    eventually_so("the status names the file", || {
        let why = is_locked(&world, "n1")["unattended"].as_str().unwrap_or_default().to_owned();
        why.contains("fifo") && why.contains("not read yet")
    });
    let key = file(&world, "key", key_of(&on));
    world.muster_at("n1", &["unlock", "--key-file", &key]).ended(0);
    world.node("n1").ready();
    // The thread that reads does not delay the end.
    world.node("n1").stop();
    // A writer that comes late is in time.
    restarted_locked(&mut world, "n1", &flags);
    std::fs::write(&fifo, key_of(&on)).expect("it is read");
    world.node("n1").ready();
}

fn mkfifo(path: &std::path::Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("coreutils are there");
    assert!(made.success());
}

/// All managers stop: a majority has to be unlocked.
#[test]
#[ignore = "full tier"]
fn stopped_cluster_serves_once_a_majority_is_unlocked() {
    let mut world = World::with(3, 1);
    let key = file(&world, "key", key_of(&switched_on(&world)));
    let names = ["n1", "n2", "n3"];
    for name in names {
        world.node(name).stop();
    }
    for name in names {
        restarted_locked(&mut world, name, &[]);
    }
    world.muster_at("n1", &["unlock", "--key-file", &key]).ended(0);
    eventually_so("n1 runs without a quorum", || {
        let refused = world.muster_at("n1", &["token", "ls", "--timeout", "2s"]);
        refused.code == 5 && refused.error_code() != "locked"
    });
    let (id, since) = (world.node("n1").process_id(), Instant::now());
    let used = || id.cpu_time().expect("it runs");
    let before = used();
    eventually_so("three seconds pass", || since.elapsed() >= Duration::from_secs(3));
    assert!(used() - before < since.elapsed() / 2, "it waits without work: {:?}", used() - before);
    world.muster_at("n2", &["unlock", "--key-file", &key]).ended(0);
    for name in ["n1", "n2"] {
        world.node(name).ready();
    }
    world.muster(&["node", "update", "n4", "--label-add", "a=b"]).ended(0);
    is_locked(&world, "n3");
    world.muster_at("n3", &["unlock", "--key-file", &key]).ended(0);
    world.node("n3").ready();
}

/// A demoted manager needs no key, wherever it is killed.
#[test]
#[ignore = "full tier"]
fn demoted_manager_starts_without_a_key() {
    let mut world = World::with(3, 0);
    switched_on(&world);
    let keyring = |world: &mut World| -> PathBuf { world.node("n3").folder.join("identity/keyring.json") };
    world.muster(&["node", "demote", "n3", "--wait=60s"]).ended(0);
    let file = keyring(&mut world);
    eventually_so("its keyring is deleted", || !file.exists());
    world.node("n3").kill();
    world.node("n3").start(&[]).ready();
    world.muster(&["node", "promote", "n3", "--wait=60s"]).ended(0);
    eventually_so("it is sealed again", || {
        seals(&world).iter().any(|(name, state, _)| name == "n3" && state == "sealed")
    });
    world.node("n3").kill();
    world.node("n3").start(&[]);
    is_locked(&world, "n3");
}
