//! What `apply` refuses and `plan` shows before anything has happened, with what would help.

use super::{apply, items, shown, status, submit, text};
use crate::harness::{World, eventually, eventually_so};

#[test]
#[ignore = "full tier"]
fn apply_and_plan_say_what_is_wrong_and_what_helps() {
    let world = World::with(1, 0);
    // An object that an operator made is not Muster's to change, and a plan says so.
    world.muster(&["object", "put", "table", "a", r#"{"columns":["mine"]}"#]).ended(0);
    apply(&world, "0.1.0", "0.1.0", &["a"]);
    let plan = world.muster(&["reconciler", "plan", "schema"]).ended(0).json();
    let ops: Vec<String> = items(&plan, "objects").iter().map(|object| text(&object["op"])).collect();
    assert_eq!(ops, ["taken"], "{plan}");
    let unknown = world.muster(&["reconciler", "plan", "schema", "--release", "9.9.9"]).ended(4);
    let why = "schema has no definition of 9.9.9; it has definitions of 0.1.0";
    assert!(unknown.stderr.contains(why), "{}", unknown.stderr);
    let read = shown(&world, &["plan", "schema"]).ended(0).stdout;
    for part in ["taken  table default/a: does not belong to schema; delete it, or rename yours", "the run would fail"]
    {
        assert!(read.contains(part), "{part}: {read}");
    }
    assert!(!read.contains("delete table") && !read.contains("gate afterwards"), "{read}");
    let failed = eventually("the run fails", || Some(status(&world)).filter(|s| s["last_error"].is_string()));
    assert!(text(&failed["last_error"]).contains("delete it or rename yours"), "{failed}");
    let mine = world.muster(&["object", "get", "table", "a"]).ended(0).json();
    assert_eq!(mine["body"]["columns"][0], "mine");
    world.muster(&["object", "delete", "table", "a"]).ended(0);
    eventually_so("it is applied without a retry", || status(&world)["phase"] == "idle");

    // A dependency without a definition would never be done.
    let of = |name: &str, more: &str| {
        format!("name = \"{name}\"\nrelease = \"0.1.0\"\nscope = \"db\"\nfloor = \"0.1.0\"\n{more}\nobjects = []\n")
    };
    let (after, before) = (of("after", "depends_on = [\"before\"]"), of("before", ""));
    let refused = submit(&world, &[&after], &[]).ended(2);
    for part in ["depends on before, which does not exist", "apply before first, or both in one request"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    world.muster(&["reconciler", "status", "after"]).ended(4);
    let moved = of("schema", "").replace("0.1.0", "0.2.0").replace("scope = \"db\"", "scope = \"bd\"");
    let refused = submit(&world, &[&moved], &[]).ended(2);
    assert!(
        refused.stderr.contains("schema belongs to scope db, and its gate cannot move to bd"),
        "{}",
        refused.stderr
    );
    submit(&world, &[&after, &before], &[]).ended(0);
    let phase = |name: &str| world.muster(&["reconciler", "status", name]).ended(0).json()["phase"].clone();
    eventually_so("both are applied", || phase("before") == "idle" && phase("after") == "idle");

    // A changed definition of the same release.
    let changed = of("before", "every = \"5s\"");
    let refused = submit(&world, &[&changed], &[]).ended(8);
    for part in ["--replace", "`muster reconciler retry`", "another release"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    let again = submit(&world, &[&before], &[]).ended(0).json();
    assert_eq!(items(&again, "definitions")[0]["changed"], false, "the first one is still there");
    submit(&world, &[&changed], &["--replace"]).ended(0);
}
