//! Object sets applied by real nodes: created, repaired, replaced by the newest release.

use super::{apply, items, status, text};
use crate::harness::{World, eventually, eventually_so};

/// Name and release of each object, as `muster object ls` and `get` show them.
fn objects(world: &World) -> Vec<(String, String)> {
    let list = world.muster(&["object", "ls", "table"]).ended(0).json();
    items(&list, "items").iter().map(|o| (text(&o["metadata"]["name"]), text(&o["body"]["release"]))).collect()
}

fn are(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, release)| ((*name).to_owned(), (*release).to_owned())).collect()
}

#[test]
#[ignore = "full tier"]
fn object_set_is_created_repaired_and_taken_over() {
    let mut world = World::with(1, 2);
    let wrong = world.muster(&["reconciler", "status", "schema"]).ended(4);
    assert_eq!(wrong.error_code(), "not_found");
    apply(&world, "0.1.0", "0.1.0", &["a", "b"]);
    eventually("both objects exist", || (objects(&world) == are(&[("a", "0.1.0"), ("b", "0.1.0")])).then_some(()));
    let done = eventually("the reconciler is idle", || Some(status(&world)).filter(|status| status["phase"] == "idle"));
    assert_eq!((&done["gate"]["state"], &done["gate"]["reconciled"]), (&"done".into(), &"0.1.0".into()));
    assert!(done["runner"]["term"].as_u64() > Some(0), "{done}");

    world.muster(&["object", "delete", "table", "a"]).ended(0);
    world.muster(&["object", "put", "table", "b", r#"{"release":"by hand"}"#]).ended(0);
    eventually_so("the drift is repaired", || objects(&world) == are(&[("a", "0.1.0"), ("b", "0.1.0")]));

    apply(&world, "0.2.0", "0.1.0", &["b", "c"]);
    let plan = world.muster(&["reconciler", "plan", "schema"]).ended(0).json();
    let ops: Vec<String> = items(&plan, "objects").iter().map(|o| o["op"].to_string()).collect();
    assert_eq!((ops.join(" ").as_str(), &plan["path"]), (r#""update" "create" "delete""#, &"open".into()), "{plan}");
    assert_eq!(
        objects(&world),
        are(&[("a", "0.1.0"), ("b", "0.1.0")]),
        "neither a plan nor a definition changes an object"
    );
    world.node("n3").stop();
    world.node("n3").start(&["--release", "0.2.0"]).ready();
    eventually_so("the newest release has applied its set", || {
        objects(&world) == are(&[("b", "0.2.0"), ("c", "0.2.0")])
    });
    let newest = world.seen("n1", "n3").expect("n3 is a node").id.to_string();
    let done = eventually("the reconciler is idle again", || {
        Some(status(&world)).filter(|status| status["phase"] == "idle" && status["gate"]["reconciled"] == "0.2.0")
    });
    assert_eq!(done["runner"]["member"], newest.as_str());

    let list = world.muster(&["reconciler", "history", "schema"]).ended(0).json();
    let epochs: Vec<u64> = items(&list, "history").iter().filter_map(|g| g["epoch"].as_u64()).collect();
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]) && epochs.len() >= 2, "{list}");
    world.muster(&["reconciler", "delete", "schema", "--yes"]).ended(0);
    world.muster(&["reconciler", "status", "schema"]).ended(4);
    assert_eq!(objects(&world).len(), 2, "applied objects stay");
}
