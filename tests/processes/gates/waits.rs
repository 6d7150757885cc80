//! Waves that wait for a condition of an object that another program writes.

use serde_json::Value;

use super::{items, text};
use crate::harness::{World, eventually, eventually_so};

/// `first`, then `second` and without `gone`, once `warm-up` says that it is done.
fn apply(world: &World, release: &str, timeout: &str) {
    let text = format!(
        "name = \"waits\"\nrelease = \"{release}\"\nscope = \"shop\"\nfloor = \"0.1.0\"\nevery = \"1s\"\ntimeout = \"{timeout}\"\n\
         [[waits]]\nwave = 0\nkind = \"job\"\nname = \"warm-up\"\npath = \"/status/phase\"\nequals = \"done\"\n\
         [[objects]]\nkind = \"table\"\nname = \"first\"\n[[objects]]\nkind = \"table\"\nname = \"second\"\nwave = 1\n"
    );
    let file = world.folder().join(format!("waits-{release}.toml"));
    std::fs::write(&file, text).expect("the world's folder is writable");
    world.muster(&["reconciler", "apply", "-f", file.to_str().expect("the folder's path is text")]).ended(0);
}

fn status(world: &World) -> Value {
    world.muster(&["reconciler", "status", "waits"]).ended(0).json()
}

fn tables(world: &World) -> Vec<String> {
    let list = world.muster(&["object", "ls", "table"]).ended(0).json();
    items(&list, "items").iter().map(|object| text(&object["metadata"]["name"])).collect()
}

fn report(world: &World, phase: &str) {
    let body = format!("{{\"status\": {{\"phase\": \"{phase}\"}}}}");
    world.muster(&["object", "put", "job", "warm-up", &body]).ended(0);
}

#[test]
#[ignore = "full tier"]
fn next_wave_waits_for_a_condition_of_an_object() {
    let world = World::with(2, 1);
    apply(&world, "0.1.0", "10m");
    let is_waiting = |found: &'static str| {
        move |status: &Value| {
            status["phase"] == "waiting" && status["reason"] == "condition" && text(&status["message"]).contains(found)
        }
    };
    let waiting = eventually("it waits", || Some(status(&world)).filter(is_waiting("the object does not exist")));
    assert!(text(&waiting["message"]).contains("/status/phase of job default/warm-up is \"done\""), "{waiting}");
    assert_eq!((&waiting["wave"], &waiting["gate"]), (&serde_json::json!([2, 2]), &Value::Null), "{waiting}");
    assert_eq!(tables(&world), ["first"]);
    report(&world, "running");
    eventually("it sees the change", || Some(status(&world)).filter(is_waiting("its value is \"running\"")));
    let plan = world.muster(&["reconciler", "plan", "waits"]).ended(0).json();
    let wait = &items(&plan, "waits")[0];
    assert_eq!((&wait["wave"], &wait["holds"], &wait["equals"]), (&0.into(), &false.into(), &"done".into()), "{plan}");
    assert_eq!(tables(&world), ["first"], "nothing of the next wave is written before");
    report(&world, "done");
    let done = eventually("it goes on at once", || Some(status(&world)).filter(|status| status["phase"] == "idle"));
    assert_eq!(done["gate"]["reconciled"], "0.1.0", "{done}");
    assert_eq!(tables(&world), ["first", "second"]);
    assert_eq!(items(&world.muster(&["reconciler", "plan", "waits"]).ended(0).json(), "waits")[0]["holds"], true);
}

#[test]
#[ignore = "full tier"]
fn run_fails_when_a_condition_is_not_met_in_time() {
    let world = World::with(1, 0);
    apply(&world, "0.1.0", "2s");
    let failed = eventually("the run fails", || {
        Some(status(&world)).filter(|status| status["consecutive_failures"].as_u64() >= Some(1))
    });
    let error = text(&failed["last_error"]);
    assert!(error.contains("it has waited for 2s") && error.contains("warm-up"), "{failed}");
    assert_eq!(tables(&world), ["first"]);
    report(&world, "done");
    eventually_so("a later run succeeds", || status(&world)["phase"] == "idle");
    assert_eq!(tables(&world), ["first", "second"]);
}
