//! Object sets applied by real nodes: made, repaired, replaced by the newest release.

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Front, World, eventually, eventually_so};

/// A definition of `schema` that keeps these objects.
fn definition(release: &str, floor: &str, objects: &[&str]) -> String {
    let head =
        format!("name = \"schema\"\nrelease = \"{release}\"\nscope = \"db\"\nfloor = \"{floor}\"\nevery = \"1s\"\n");
    let object = |name: &&str| {
        format!("[[objects]]\nkind = \"table\"\nname = \"{name}\"\n[objects.body]\nrelease = \"{release}\"\n")
    };
    head + &objects.iter().map(object).collect::<String>()
}

fn apply(world: &World, release: &str, floor: &str, objects: &[&str]) {
    let file = world.folder().join(format!("{release}.toml"));
    std::fs::write(&file, definition(release, floor, objects)).expect("the world's folder is writable");
    world.muster(&["reconciler", "apply", "-f", file.to_str().expect("the folder's path is text")]).ended(0);
}

/// Name and release of each object, as `muster object ls` and `get` show them.
fn objects(world: &World) -> Vec<(String, String)> {
    let list = world.muster(&["object", "ls", "table"]).ended(0).json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().map(|o| (text(&o["metadata"]["name"]), text(&o["body"]["release"]))).collect()
}

fn status(world: &World) -> Value {
    world.muster(&["reconciler", "status", "schema"]).ended(0).json()
}

fn are(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, release)| ((*name).to_owned(), (*release).to_owned())).collect()
}

#[test]
fn a_set_of_objects_is_made_repaired_and_taken_over_by_the_newest_release() {
    let mut world = World::with(1, 2);
    let wrong = world.muster(&["reconciler", "status", "schema"]).ended(4);
    assert_eq!(wrong.error_code(), "not_found");
    apply(&world, "0.1.0", "0.1.0", &["a", "b"]);
    eventually("both objects are there", || (objects(&world) == are(&[("a", "0.1.0"), ("b", "0.1.0")])).then_some(()));
    let done = eventually("it is idle", || Some(status(&world)).filter(|status| status["phase"] == "idle"));
    assert_eq!((&done["gate"]["state"], &done["gate"]["reconciled"]), (&"done".into(), &"0.1.0".into()));
    assert!(done["runner"]["term"].as_u64() > Some(0), "{done}");

    world.muster(&["object", "delete", "table", "a"]).ended(0);
    world.muster(&["object", "put", "table", "b", r#"{"release":"by hand"}"#]).ended(0);
    eventually_so("what drifted is repaired", || objects(&world) == are(&[("a", "0.1.0"), ("b", "0.1.0")]));

    apply(&world, "0.2.0", "0.1.0", &["b", "c"]);
    let plan = world.muster(&["reconciler", "plan", "schema"]).ended(0).json();
    let ops: Vec<String> = plan["objects"].as_array().into_iter().flatten().map(|o| o["op"].to_string()).collect();
    assert_eq!((ops.join(" ").as_str(), &plan["path"]), (r#""update" "create" "delete""#, &"open".into()), "{plan}");
    assert_eq!(
        objects(&world),
        are(&[("a", "0.1.0"), ("b", "0.1.0")]),
        "a plan changes nothing, nor does a definition"
    );
    world.node("n3").stop();
    world.node("n3").start(&["--release", "0.2.0"]).ready();
    eventually_so("the newest release has it", || objects(&world) == are(&[("b", "0.2.0"), ("c", "0.2.0")]));
    let newest = world.seen("n1", "n3").expect("n3 is a node").id.to_string();
    let done = eventually("it is idle again", || {
        Some(status(&world)).filter(|status| status["phase"] == "idle" && status["gate"]["reconciled"] == "0.2.0")
    });
    assert_eq!(done["runner"]["member"], newest.as_str());

    let list = world.muster(&["reconciler", "history", "schema"]).ended(0).json();
    let epochs: Vec<u64> =
        list["history"].as_array().into_iter().flatten().filter_map(|g| g["epoch"].as_u64()).collect();
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]) && epochs.len() >= 2, "{list}");
    world.muster(&["reconciler", "delete", "schema"]).ended(0);
    world.muster(&["reconciler", "status", "schema"]).ended(4);
    assert_eq!(objects(&world).len(), 2, "what was applied stays");
}

/// A member that serves for as long as it may.
fn member(world: &World, name: &str, release: &str) -> Front {
    let socket = world.socket("n1");
    let socket = socket.to_str().expect("the folder's path is text");
    let args = ["--socket", socket, "wait-ready", "db", "--reconciler", "schema", "--needs", release];
    let who = ["--release", release, "--member", name, "--exec", "--", "sleep", "1000"];
    Front::around_a_command(world.folder(), &[&args[..], &who].concat())
}

fn phases(world: &World) -> Vec<(String, String)> {
    let list = world.muster(&["member", "list", "db"]).ended(0).json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list["items"].as_array().into_iter().flatten().map(|m| (text(&m["member"]), text(&m["phase"]))).collect()
}

/// The story that gates are for: the new release waits for the old one, and the old one does not come back.
#[test]
fn a_rolling_upgrade_waits_for_those_who_could_not_live_with_it_and_keeps_them_out_afterwards() {
    let mut world = World::with(1, 2);
    apply(&world, "0.1.0", "0.1.0", &["a"]);
    let mut old = ["m1", "m2", "m3"].map(|name| member(&world, name, "0.1.0"));
    for member in &mut old {
        member.says("serving in db");
    }
    apply(&world, "0.2.0", "0.2.0", &["a", "b"]);
    world.node("n3").stop();
    world.node("n3").start(&["--release", "0.2.0"]).ready();
    let waits = eventually("it waits for those who serve", || {
        Some(status(&world)).filter(|status| status["reason"] == "blockers")
    });
    assert_eq!((waits["phase"].as_str(), waits["blockers"].as_array().map(Vec::len)), (Some("waiting"), Some(3)));
    assert_eq!(waits["blockers"][0]["member"], "m1");
    assert_eq!(objects(&world), are(&[("a", "0.1.0")]), "nothing is applied");

    let [mut m1, mut m2, mut m3] = old;
    m1.signal(Signal::TERM);
    assert_eq!(m1.exit(), Some(128 + 15));
    let mut m1 = member(&world, "m1", "0.2.0");
    m1.says("reconciler-too-old");
    assert_eq!(status(&world)["blockers"].as_array().map(Vec::len), Some(2));
    for member in [&mut m2, &mut m3] {
        member.signal(Signal::TERM);
        assert_eq!(member.exit(), Some(128 + 15));
    }
    m1.says("serving in db");
    eventually_so("the new objects are there", || objects(&world) == are(&[("a", "0.2.0"), ("b", "0.2.0")]));
    assert_eq!(phases(&world), are(&[("m1", "serving")]));
    let list = world.muster(&["reconciler", "history", "schema"]).ended(0).json();
    let entry = |g: &Value| format!("{} {} {}", g["state"], g["reconciled"], g["floor"]).replace('"', "");
    let told: Vec<String> = list["history"].as_array().into_iter().flatten().map(entry).collect();
    assert_eq!(told, ["done 0.1.0 0.1.0", "working 0.1.0 0.2.0", "done 0.2.0 0.2.0"]);

    let late = ["wait-ready", "db", "--release", "0.1.0", "--timeout", "5s"];
    let refused = world.muster(&late).ended(3);
    assert!(refused.stderr.contains("start it as 0.2.0 or later"), "{}", refused.stderr);
    world.muster(&["member", "drain", "db/m1"]).ended(0);
    assert_eq!(m1.exit(), Some(7), "told to stop, its command ended");
    eventually_so("nobody takes part", || phases(&world).is_empty());
}
