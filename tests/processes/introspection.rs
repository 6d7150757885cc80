//! Inspection of processes while they work, hang and fail.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_messages::Role;
use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use serde_json::Value;

use crate::harness::{
    SLOW_HEARTBEAT, UNANSWERED, WAIT_LIMIT, World, Writer, between_checks, eventually, eventually_so,
};

/// One actor of a node, seen from n1.
fn inspected(world: &World, path: &str, node: &str) -> Value {
    world.muster_insists(&["actors", "inspect", path, "--node", node])
}

#[test]
#[ignore = "full tier"]
fn worker_is_inspected_through_session_while_agent_hangs() {
    // A session ends when its agent has sent no heartbeat for long enough.
    let world = World::with_settings(SLOW_HEARTBEAT, 1, 1);
    let root = world.muster_insists(&["actors", "--node", "n2"]);
    assert_eq!((root["path"].as_str(), root["kind"].as_str()), (Some("node"), Some("Supervisor")), "{root}");
    let agent = inspected(&world, "node/agent", "n2");
    assert!(agent["view"]["session"].is_object() && agent["view_age_ms"].is_number(), "{agent}");
    assert!(
        agent["mailbox_limit"].as_u64() > Some(0) && agent["refused"] == 0 && agent["stale"].is_number(),
        "{agent}"
    );
    let buckets = agent["handler_times"]["buckets"].as_array().expect("buckets");
    assert_eq!(buckets.last().map(|all| (&all["le_ms"], &all["count"])), Some((&Value::Null, &agent["handled"])));

    world.muster(&["actors", "crash", "node/agent", "--node", "n2", "--how", "panic"]).ended(0);
    let again = |world: &World| {
        let ran = world.muster(&["actors", "inspect", "node/agent", "--node", "n2"]);
        Some(ran).filter(|ran| ran.code == 0).map(|ran| ran.json()).filter(|agent| agent["incarnation"] == 2)
    };
    let agent = eventually("its next incarnation has a session", || again(&world));
    assert_eq!((&agent["restarts"], &agent["last_exits"][0]["kind"]), (&1.into(), &"panic".into()), "{agent}");
    assert_eq!(agent["last_exits"][0]["text"], "panicked: crashed on request");
    assert!(agent["last_exits"][0]["at"].as_str() <= agent["since"].as_str(), "{agent}");

    // Its session outlives it for a while, and requests on the session do not wait for the agent.
    world.muster(&["actors", "crash", "node/agent", "--node", "n2", "--how", "hang"]).ended(0);
    let hangs =
        |agent: &Value| agent["handling"]["message"] == "crash" && agent["handling"]["for_ms"].as_u64() > Some(500);
    eventually_so("it shows the message in progress", || hangs(&inspected(&world, "node/agent", "n2")));
    let all = world.muster(&["actors", "--all"]).ended(0).json();
    let names: Vec<&str> =
        all["items"].as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect();
    assert!(names.len() == 2 && names.contains(&"n1") && names.contains(&"n2"), "{names:?}");

    let metrics = world.metrics("n2");
    for said in [
        r#"muster_actor_restarts_total{path="node/agent"} 1"#,
        r#"muster_actor_alive{path="node/agent"} 1"#,
        r#"muster_actors{state="stuck"} 0"#,
    ] {
        assert!(metrics.lines().any(|line| line == said), "{said}\n{metrics}");
    }
    let hanging =
        metrics.lines().find_map(|line| line.strip_prefix(r#"muster_actor_handling_seconds{path="node/agent"} "#));
    assert!(hanging.and_then(|seconds| seconds.parse::<f64>().ok()) > Some(0.5), "{hanging:?}");
}

#[test]
#[ignore = "full tier"]
fn metric_series_end_with_actors_and_sessions_share_one() {
    let world = World::with(2, 1);
    let leader = world.leader_seen_by("n1");
    let follower = world.other_than(&[&leader, "n3"]);
    let metrics = world.metrics(&leader);
    assert!(metrics.contains(r#"{path="node/manager/leader/role-manager"}"#), "{metrics}");
    let sessions = |world: &World, name: &str| {
        let metrics = world.metrics(name);
        let each = metrics.lines().filter(|line| line.contains("/sessions/session-"));
        each.for_each(|line| assert!(line.contains("/session-*"), "{line}"));
        let all = r#"muster_actor_alive{path="node/manager/sessions/session-*"} "#;
        metrics.lines().find_map(|line| line.strip_prefix(all)?.parse::<u64>().ok()).unwrap_or(0)
    };
    eventually_so("sessions share one series", || sessions(&world, &leader) + sessions(&world, &follower) == 3);
    world.make_lead(&follower);
    eventually_so("the leader's actors have no series here", || {
        !world.metrics(&leader).contains("node/manager/leader/")
    });
    eventually_so("they have one on the new leader", || {
        world.metrics(&follower).contains(r#"{path="node/manager/leader/role-manager"}"#)
    });
}

const METRICS: &str = "docs/metrics.md";

/// Where the list begins in the document; what is above is written by hand.
const LIST_HEAD: &str = "| series | type | meaning |\n|---|---|---|\n";

/// The list of these metrics.
fn list_of(text: &str) -> String {
    let mut list = String::from(LIST_HEAD);
    let described = |kind: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("# ")?.strip_prefix(kind)?.strip_prefix(' '));
        lines.filter_map(|line| line.split_once(' ')).map(|(name, of)| (name.to_owned(), of.to_owned())).collect()
    };
    let helps = described("HELP");
    for (name, kind) in described("TYPE") {
        let help = helps.get(&name).map_or("", |help| help.trim_end_matches('.'));
        writeln!(list, "| `{name}` | {kind} | {help} |").expect("a string takes it");
    }
    list
}

/// Every series that a leader, which audits, exports, with its type and its help. A number that an actor's view no longer has
/// would leave its series out. One that has just started shows its view a moment later.
#[test]
#[ignore = "full tier"]
fn every_exported_series_is_in_the_list_of_metrics() {
    let world = World::with_settings("[audit]\nfile = \"audit.log\"\n", 1, 1);
    let backup = world.folder().join("backup");
    world.muster(&["backup", backup.to_str().expect("a path")]).ended(0);
    // The families of a reconciler come with its first run: of the one that raises the feature level.
    eventually_so("the built-in reconciler has run", || {
        world.metrics("n1").contains("muster_reconciler_last_run_seconds{")
    });
    // That of its last failure comes with a failure.
    let release = env!("CARGO_PKG_VERSION");
    let failing = format!(
        "name = \"failing\"\nrelease = \"{release}\"\nscope = \"s\"\nfloor = \"{release}\"\nsettle = \"0s\"\n\
         [command]\nargv = [\"/bin/false\"]\n"
    );
    let file = world.folder().join("failing.toml");
    std::fs::write(&file, failing).expect("the world's folder is writable");
    world.muster(&["reconciler", "apply", "-f", file.to_str().expect("a path")]).ended(0);
    eventually_so("a failure is measured", || {
        world.metrics("n1").contains("muster_reconciler_last_failure_timestamp_seconds{")
    });
    eventually_so("the backup is measured", || world.metrics("n1").contains("muster_backup_last_timestamp_seconds"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(METRICS);
    let document = std::fs::read_to_string(&path).expect("the document exists");
    let (above, _) = document.split_once(LIST_HEAD).expect("it has a list");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{above}{}", list_of(&world.metrics("n1")))).expect("the list can be written");
    }
    let document = std::fs::read_to_string(&path).expect("the document exists");
    let written = &document[above.len()..];
    let mut differs = Vec::new();
    let deadline = Instant::now() + WAIT_LIMIT;
    while Instant::now() < deadline {
        let list = list_of(&world.metrics("n1"));
        let lacks = |one: &str, other: &str| -> Vec<String> {
            one.lines().filter(|line| !other.lines().any(|o| o == *line)).map(str::to_owned).collect()
        };
        differs = [lacks(&list, written), lacks(written, &list)].concat();
        if differs.is_empty() {
            return;
        }
        between_checks();
    }
    panic!("{METRICS} is out of date; write its list again with UPDATE=1 and review: {differs:#?}");
}

/// How long the disk of the next scenario hangs at least.
const MIN_HANG_MS: u64 = 5_000;

#[test]
#[ignore = "full tier"]
fn leader_with_hung_disk_answers_and_shows_the_write() {
    let mut world = World::new();
    let hang = world.folder().join("hang");
    world.node("n1").disk_hangs_while(&hang).start(&["--init"]).ready();
    world.join_more(2, Role::Manager);
    world.all_settled();
    world.make_lead("n1");
    let writer =
        Writer::start(["n2", "n3"].map(|name| world.socket(name)).to_vec(), world.seen("n1", "n1").expect("n1").id);
    eventually_so("there is something to write", || writer.acknowledged() > 20);

    std::fs::write(&hang, "").expect("the world's folder is writable");
    let (mut slowest, mut snapshots) = (Duration::ZERO, 0);
    // All these answers arrive while the disk hangs: only this test ends that.
    let last = eventually("the write has been in progress for that long", || {
        snapshots += 1;
        let asked = Instant::now();
        let tree = world.ask("n1", Request::Actors { node: ActorsOf::Here, ask: ActorsAsk::Tree }).expect("it answers");
        slowest = slowest.max(asked.elapsed());
        assert_eq!(tree["path"], "node");
        // Asked through its session, which moves when this leader steps down.
        let disk = ["actors", "inspect", "node/manager/raft-member/disk", "--node", "n1"];
        let disk = world.muster_at("n2", &disk).done_unless(&UNANSWERED)?;
        (disk["handling"]["for_ms"].as_u64() >= Some(MIN_HANG_MS)).then_some(disk)
    });
    println!("disk hangs: {snapshots} requests, slowest {slowest:?}, {}", last["handling"]);
    assert_eq!((last["kind"].as_str(), last["handling"]["message"].as_str()), (Some("Disk"), Some("write")));
    let metrics = world.metrics("n1");
    let disk = r#"muster_actor_handling_seconds{path="node/manager/raft-member/disk"} "#;
    let hanging = metrics.lines().find_map(|line| line.strip_prefix(disk)?.parse::<f64>().ok());
    assert!(hanging.map(|seconds| seconds * 1_000.0) >= Some(MIN_HANG_MS as f64), "{hanging:?}");
    // Another node leads, so the other nodes' writes continue.
    let written = writer.acknowledged();
    eventually_so("writes continue without it", || writer.acknowledged() > written + 20);

    std::fs::remove_file(&hang).expect("it was there");
    let disk = |world: &World| world.muster(&["actors", "inspect", "node/manager/raft-member/disk"]).ended(0).json();
    eventually_so("the write ends, and took long", || {
        let disk = disk(&world);
        let buckets = &disk["handler_times"]["buckets"];
        disk["handled"].as_u64() > last["handled"].as_u64()
            && buckets[4]["count"].as_u64() < buckets[6]["count"].as_u64()
    });
    writer.stop();
}
