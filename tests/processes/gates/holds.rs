//! Candidates of an older release, while newer ones are there and after they have gone.

use std::time::{Duration, Instant};

use super::{shown, status, submit, text, world_with_workers};
use crate::harness::{eventually, eventually_so};

/// As shipped.
const USUAL_HOLD: Duration = Duration::from_secs(30);

fn definition(release: &str, hold: &str) -> String {
    format!(
        "name = \"schema\"\nrelease = \"{release}\"\nscope = \"db\"\nfloor = \"1.0.0\"\n[timing]\nhold = \"{hold}\"\n\
         [[objects]]\nkind = \"table\"\nname = \"a\"\n[objects.body]\nrelease = \"{release}\"\n"
    )
}

/// A hold of 5 min by configuration: after the newest node has died, and until an operator shortens it.
#[test]
#[ignore = "full tier"]
fn older_candidates_say_how_long_they_wait_for_the_newest() {
    let mut world = world_with_workers(&["n2"]);
    submit(&world, &[&definition("1.0.0", "1s"), &definition("2.0.0", "5m")], &[]).ended(0);
    eventually_so("2.0.0 is applied", || status(&world)["gate"]["reconciled"] == "2.0.0");
    let plan = world.muster(&["reconciler", "plan", "schema", "--release", "1.0.0"]).ended(0).json();
    let hold = (plan["path"].is_null(), text(&plan["hold"]["reason"]));
    assert_eq!(hold, (true, "newer-release-present".to_owned()), "{plan}");
    let read = shown(&world, &["plan", "schema", "--release", "1.0.0"]).ended(0).stdout;
    let why = "it would not start: nodes of release 2.0.0 are candidates, and the newest release runs it; those of 1.0.0 begin \
               300s after the last of them has left";
    assert!(read.contains(why), "{read}");

    world.node("n2").kill();
    let why = "no live node has the newer release 2.0.0: after the last one has left, those of 1.0.0 wait 300s in case it returns";
    let alone = |status: &serde_json::Value| status["runner"].is_null() && status["candidates"] == 1;
    let held = eventually("lease and candidate of the dead node are gone", || Some(status(&world)).filter(alone));
    assert_eq!(held["phase"], "electing", "{held}");
    assert!(text(&held["message"]).contains(why), "{held}");
    assert!(shown(&world, &["status", "schema"]).ended(0).stdout.contains(why));
    let since = Instant::now();
    eventually_so("the shipped hold would be over", || {
        let status = status(&world);
        assert!(
            status["runner"].is_null() && status["gate"]["reconciled"] == "2.0.0",
            "it is held for 5 min: {status}"
        );
        since.elapsed() > USUAL_HOLD + USUAL_HOLD / 3
    });
    submit(&world, &[&definition("2.0.0", "1s")], &["--replace"]).ended(0);
    let taken = eventually("1.0.0 is applied", || Some(status(&world)).filter(|s| s["gate"]["reconciled"] == "1.0.0"));
    assert_eq!(taken["runner"]["node"], "n1", "{taken}");
}
