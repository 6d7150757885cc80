//! The audit log: who did what, from where, and what happens when it cannot be written.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use muster_messages::Role;
use muster_messages::wire::Request;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{World, eventually, eventually_so};

/// The lines of a node's audit log. A request's line is there when it is answered, or a moment later. A line that crosses a page of
/// the file is seen half-written by who reads at that moment.
fn lines(world: &mut World, node: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(world.node(node).folder.join("audit.log")).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[track_caller]
fn line(world: &mut World, node: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually("the line is in the log", || lines(world, node).into_iter().find(|line| holds(line)))
}

fn is<'a>(verb: &'a str, outcome: &'a str) -> impl Fn(&Value) -> bool + 'a {
    move |line| line["verb"] == verb && line["outcome"] == outcome
}

fn secret_of(token: &str) -> String {
    token.rsplit('-').next().expect("a token ends with its secret").to_owned()
}

#[test]
fn audit_log_records_actor_action_and_source() {
    let mut world = World::with_settings("[audit]\nfile = \"audit.log\"\n", 2, 1);
    let leader = world.leader_seen_by("n1");
    let follower = world.other_than(&[&leader, "n3"]);
    let id = |world: &World, name: &str| world.seen("n1", name).expect("it is a node").id.to_string();
    let (leaders, followers, workers) = (id(&world, &leader), id(&world, &follower), id(&world, "n3"));

    // By the admin socket.
    world.muster_at(&leader, &["node", "promote", "n3"]).ended(0);
    let promote = line(&mut world, &leader, is("node.promote", "accepted"));
    assert_eq!(promote["by"]["kind"], "operator");
    assert_eq!(promote["via"]["socket"]["uid"], rustix::process::getuid().as_raw());
    assert!(promote["via"]["socket"]["pid"].as_i64().is_some_and(|pid| pid > 1), "{promote}");
    assert_eq!(promote["object"], json!({"kind": "node", "id": workers, "name": "n3"}));
    assert_eq!((&promote["node"], &promote["forwarder"]), (&json!(leaders), &Value::Null));

    // By a user who may not.
    world.muster(&["user", "create", "ann", "--namespace", "team-a", "--out", "ann.json"]).ended(0);
    world.muster_at(&leader, &["--identity", "ann.json", "node", "promote", "n3"]).ended(6);
    let is_anns = |line: &Value| line["verb"] == "node.promote" && line["by"]["id"] == "ann";
    // The client chooses the manager.
    let refused = eventually("a manager has logged the refusal", || {
        ["n1", "n2", "n3"].into_iter().find_map(|node| lines(&mut world, node).into_iter().find(is_anns))
    });
    assert_eq!((&refused["outcome"], &refused["code"]), (&json!("refused"), &json!("forbidden")));
    assert!(refused["by"]["serial"].is_string() && refused["via"]["addr"].is_string(), "{refused}");

    // A secret is read.
    let token = world.muster_at(&leader, &["token", "show", "worker"]).ended(0).json();
    line(&mut world, &leader, |line| is("token.show", "done")(line) && line["object"]["id"] == token["id"]);

    // Through a follower: two lines, one request.
    world.muster_at(&follower, &["node", "update", "n3", "--label-add", "colour=blue"]).ended(0);
    let own = line(&mut world, &follower, is("node.update", "done"));
    let request = own["request"].clone();
    let leaders_own = line(&mut world, &leader, |line| line["request"] == request);
    assert_eq!((&own["forwarder"], &leaders_own["forwarder"]), (&Value::Null, &json!(followers)));
    assert_eq!((&leaders_own["verb"], &leaders_own["outcome"]), (&json!("node.update"), &json!("done")));
    assert!(leaders_own["revision"].as_u64().is_some_and(|revision| revision > 0), "{leaders_own}");

    // Joins are logged, plain reads are not.
    let joins: Vec<Value> = [&leader, &follower].into_iter().flat_map(|node| lines(&mut world, node)).collect();
    assert!(joins.iter().any(|line| line["verb"] == "node.join" && line["object"]["name"] == "n3"));
    assert!(!joins.iter().any(|line| line["verb"] == "status" || line["verb"] == "node.list"));

    // No secret of the run is in any of the files.
    let access = Request::AccessTokenCreate {
        user: "bob".parse().expect("a name"),
        namespace: "default".to_owned(),
        ttl_ms: None,
    };
    let access = world.answer(&leader, access)["token"].as_str().expect("a token").to_owned();
    line(&mut world, &leader, is("access_token.create", "done"));
    let given = world.token(Role::Manager);
    world.muster_at(&leader, &["token", "revoke", &given]).ended(4);
    line(&mut world, &leader, is("token.revoke", "refused"));
    let secrets = [&given, &access, &world.token(Role::Worker)].map(|token| secret_of(token));
    for node in ["n1", "n2", "n3"] {
        let file = world.node(node).folder.join("audit.log");
        let text = std::fs::read_to_string(&file).expect("each node has a log");
        assert!(!text.contains("PRIVATE KEY") && !text.contains("blue"), "{node}");
        assert!(secrets.iter().all(|secret| !text.contains(secret.as_str())), "{node}");
        assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    }

    // After a rename SIGHUP reopens the file at once.
    let folder = world.node(&leader).folder.clone();
    std::fs::rename(folder.join("audit.log"), folder.join("audit.old")).expect("it is there");
    world.node(&leader).signal(Signal::HUP);
    eventually_so("a new file is there", || folder.join("audit.log").exists());
    world.muster_at(&leader, &["token", "show", "worker"]).ended(0);
    line(&mut world, &leader, is("token.show", "done"));
}

#[test]
fn failing_required_audit_log_refuses_only_changes() {
    let mut world = World::new();
    world.settings += "[audit]\nfile = \"logs/audit.log\"\nrequired = true\n";
    world.node("n1").start(&["--init"]).ready();
    let refused = world.muster(&["token", "rotate", "worker"]).ended(5);
    assert_eq!(refused.error_code(), "audit_unavailable");
    assert_eq!(world.muster(&["token", "show", "worker"]).ended(5).error_code(), "audit_unavailable");
    assert_eq!(world.muster(&["backup", "backup"]).ended(5).error_code(), "audit_unavailable");
    assert!(!world.folder().join("backup").exists());
    let status = world.muster(&["status"]).ended(0).json();
    let trouble = status["self"]["trouble"].as_str().unwrap_or_default();
    assert!(trouble.starts_with("audit_failing: "), "{status}");
    world.muster(&["node", "ls"]).ended(0);
    world.muster(&["elect", "chosen", "--", "true"]).ended(0);
    assert!(world.metric("n1", "muster_audit_failed_total") > 0);
    assert_eq!(world.metric("n1", "muster_audit_failing"), 1);

    let folder = world.node("n1").folder.join("logs");
    create_private(&folder);
    eventually_so("the log is written again", || world.muster(&["token", "rotate", "worker"]).code == 0);
    let text = std::fs::read_to_string(folder.join("audit.log")).expect("it is there");
    assert!(text.contains("audit_unavailable"), "refusals meanwhile are logged: {text}");
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    // A write that takes a second and a half counts as failed, until it has ended.
    eventually_so("the metric shows it", || world.metric("n1", "muster_audit_failing") == 0);
}

fn create_private(folder: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(folder).expect("a folder");
}
