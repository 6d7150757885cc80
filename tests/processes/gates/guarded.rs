//! What an operator, or a script, cannot do by mistake.

use rustix::process::Signal;

use super::{apply, items, member, status};
use crate::harness::{World, eventually, eventually_so};

#[test]
#[ignore = "full tier"]
fn wrong_scope_finalize_and_deleted_gate_are_refused() {
    let mut world = World::new();
    world.node("n1").start(&["--init", "--release", "1.0.0"]).ready();
    apply(&world, "1.0.0", "1.0.0", &["a"]);
    eventually_so("it is applied", || status(&world)["phase"] == "idle");
    let wait =
        |args: &[&str]| world.muster(&[&["wait-ready"], args, &["--release", "0.1.0", "--timeout", "20s"]].concat());
    let other = wait(&["bd", "--reconciler", "schema"]).ended(6);
    assert!(other.stderr.contains("schema belongs to scope db, not bd"), "{}", other.stderr);
    let mistyped = wait(&["bd"]).ended(6);
    assert_eq!(mistyped.error_code(), "undefined_scope");
    assert!(mistyped.stderr.contains("defined are db, muster"), "{}", mistyped.stderr);
    wait(&["bd", "--allow-undefined-scope"]).ended(0);
    assert!(wait(&["db"]).ended(3).stderr.contains("below-floor"));

    let mut old = member(&world, "n1", "m1", "1.0.0");
    old.wait_for_line("serving in db");
    let text = "name = \"schema\"\nrelease = \"2.0.0\"\nscope = \"db\"\nfloor = \"2.0.0\"\nfinalize = \"manual\"\n\
                [[objects]]\nkind = \"table\"\nname = \"a\"\n[objects.body]\nrelease = \"2.0.0\"\n";
    let file = world.folder().join("manual.toml");
    std::fs::write(&file, text).expect("the world's folder is writable");
    world.muster(&["reconciler", "apply", "-f", file.to_str().expect("the folder's path is text")]).ended(0);
    let finalize = || world.muster(&["reconciler", "finalize", "schema", "--release", "2.0.0"]);
    let refused = finalize().ended(6);
    assert!(
        refused.stderr.contains("m1") && refused.stderr.contains("reconciler blockers schema"),
        "{}",
        refused.stderr
    );
    assert!(status(&world)["finalized"].is_null());
    old.signal(Signal::TERM);
    assert_eq!(old.exit(), Some(128 + 15));
    eventually("it may be finalized once the member has left", || Some(finalize()).filter(|ended| ended.code == 0));
    assert_eq!(status(&world)["finalized"], "2.0.0");
    let mut again = member(&world, "n1", "m1", "1.0.0");
    again.wait_for_line("serving in db");
    assert!(status(&world)["finalized"].is_null(), "an old member that is admitted withdraws it");

    let delete = |yes: &[&str]| world.muster(&[&["reconciler", "delete", "schema", "--gate"], yes].concat());
    let asked = delete(&[]).ended(6);
    assert_eq!(asked.error_code(), "needs_confirmation");
    assert!(asked.stderr.contains("is applied again"), "{}", asked.stderr);
    let history = || world.muster(&["reconciler", "history", "schema"]).ended(0).json();
    assert_eq!(history()["deleted"], false);
    world.muster(&["reconciler", "pause", "schema"]).ended(0);
    delete(&["--yes"]).ended(0);
    let kept = history();
    assert_eq!((&kept["deleted"], items(&kept, "history").len()), (&true.into(), 1), "{kept}");
    world.muster(&["reconciler", "repair", "schema", "--from-history", "1"]).ended(0);
    assert_eq!((&history()["deleted"], &status(&world)["gate"]["epoch"]), (&false.into(), &2.into()));
}
