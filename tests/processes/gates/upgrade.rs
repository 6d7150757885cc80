//! The main purpose of gates: the new release waits for the old one, and the old one cannot return.

use std::collections::BTreeMap;

use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{GateState, Triple};
use rustix::process::Signal;
use serde_json::Value;

use super::record::{self, CheckContext, Gate, State, events, state_at};
use super::writes::{Write, fenced};
use super::{apply, blockers, gate_history, items, managers_of, member, status, text};
use crate::harness::{Follower, ForegroundMuster, WAIT_MS, World, eventually, eventually_so};

const ONE: Triple = Triple::new(1, 0, 0);
const TWO: Triple = Triple::new(2, 0, 0);

/// Each object's release and last write.
fn objects(world: &World) -> Vec<(String, Write)> {
    let list = world.muster(&["object", "ls", "table"]).ended(0).json();
    let write = |object: &Value| {
        let meta = &object["metadata"];
        let number = |key: &str| meta[key].as_u64().expect("a number");
        (
            text(&object["body"]["release"]),
            Write { object: text(&meta["name"]), revision: number("revision"), term: number("term") },
        )
    };
    items(&list, "items").iter().map(write).collect()
}

fn are_of(world: &World, release: &str, names: &str) -> bool {
    let objects = objects(world);
    objects.iter().map(|(_, write)| write.object.as_str()).collect::<String>() == names
        && objects.iter().all(|(of, _)| of == release)
}

/// The members of the scope, by name.
fn members(world: &World) -> Vec<String> {
    let list = world.muster(&["member", "list", "db"]).ended(0).json();
    items(&list, "items")
        .iter()
        .map(|m| format!("{} {} {}", text(&m["member"]), text(&m["release"]), text(&m["phase"])))
        .collect()
}

/// Stops a member and its node, and starts both as the new release.
fn upgrade(world: &mut World, node: &str, name: &str, old: &mut ForegroundMuster) -> ForegroundMuster {
    old.signal(Signal::TERM);
    assert_eq!(old.exit(), Some(128 + 15));
    world.node(node).stop();
    world.node(node).start(&["--release", "2.0.0"]).ready();
    let mut new = member(world, node, name, "2.0.0");
    new.wait_for_line("reconciler-too-old");
    new
}

#[test]
fn rolling_upgrade_waits_for_and_then_rejects_incompatible() {
    let mut world = managers_of("1.0.0");
    let log = record::follow(&world, &["n1", "n2", "n3"]);
    apply(&world, "1.0.0", "1.0.0", &["a", "b"]);
    let sockets = ["n1", "n2", "n3"].map(|name| world.socket(name));
    let views = Follower::start(sockets.to_vec(), |seen| {
        Request::Reconciler(ReconcilerRequest::Status { name: "schema".to_owned(), seen, wait_ms: WAIT_MS })
    });
    let mut old = [("n1", "m1"), ("n2", "m2"), ("n3", "m3")].map(|(by, name)| member(&world, by, name, "1.0.0"));
    for member in &mut old {
        member.wait_for_line("serving in db");
    }
    let before = objects(&world);
    apply(&world, "2.0.0", "2.0.0", &["a", "b", "c"]);
    assert!(are_of(&world, "1.0.0", "ab"), "a definition alone changes nothing");

    let [mut m1, mut m2, mut m3] = old;
    let mut m1 = upgrade(&mut world, "n1", "m1", &mut m1);
    let newest = world.seen("n2", "n1").expect("n1 is a node").id;
    let waits = eventually("the new release waits for the serving members", || {
        Some(status(&world)).filter(|s| s["runner"]["member"] == newest.as_str() && s["reason"] == "blockers")
    });
    // I6: `newer_candidate_takes_over_and_an_older_one_keeps_out` shows in virtual time how soon the older runner yields.
    assert_eq!((waits["phase"].as_str(), blockers(&waits)), (Some("waiting"), vec!["m2".to_owned(), "m3".to_owned()]));
    let help = text(&waits["message"]);
    assert!(help.contains("serving members incompatible with 2.0.0: 2"), "{help}");
    assert!(are_of(&world, "1.0.0", "ab"), "nothing is applied");

    let mut m2 = upgrade(&mut world, "n2", "m2", &mut m2);
    eventually_so("one member blocks", || blockers(&status(&world)) == ["m3"]);
    assert!(are_of(&world, "1.0.0", "ab"), "one blocker suffices");
    assert_eq!(members(&world), ["m1 2.0.0 announced", "m2 2.0.0 announced", "m3 1.0.0 serving"]);
    m3.signal(Signal::TERM);
    assert_eq!(m3.exit(), Some(128 + 15));
    for member in [&mut m1, &mut m2] {
        member.wait_for_line("serving in db");
    }
    world.node("n3").stop();
    world.node("n3").start(&["--release", "2.0.0"]).ready();
    let mut m3 = member(&world, "n3", "m3", "2.0.0");
    m3.wait_for_line("serving in db");
    eventually_so("the new objects exist", || are_of(&world, "2.0.0", "abc"));
    assert_eq!(members(&world), ["m1 2.0.0 serving", "m2 2.0.0 serving", "m3 2.0.0 serving"]);
    assert_eq!(gate_history(&world), ["done 1.0.0 1.0.0", "working 1.0.0 2.0.0", "done 2.0.0 2.0.0"]);

    let late = ["wait-ready", "db", "--release", "1.0.0", "--timeout", "5s"];
    let refused = world.muster(&late).ended(3);
    assert!(refused.stderr.contains("below-floor"), "{}", refused.stderr);
    assert!(refused.stderr.contains("start it as 2.0.0 or later"), "{}", refused.stderr);
    world.muster(&["member", "drain", "db/m1"]).ended(0);
    assert_eq!(m1.exit(), Some(7), "its command ended when drained");
    eventually_so("it is no longer a member", || members(&world) == ["m2 2.0.0 serving", "m3 2.0.0 serving"]);
    let end = status(&world)["revision"].as_u64().expect("a revision");
    check_race_events(&world, &events(&log.answers_until(end)), &views.answers_until(end), (&before, &objects(&world)));
}

type Objects = [(String, Write)];

/// Checks every state, each status against the state of its revision, and the objects against the gate.
fn check_race_events(world: &World, events: &[record::Event], views: &[Value], (before, after): (&Objects, &Objects)) {
    let history = world.muster(&["reconciler", "history", "schema"]).ended(0).json();
    let number = |value: &Value| value.as_u64().expect("a number");
    let written_under: BTreeMap<u64, u64> =
        items(&history, "history").iter().map(|g| (number(&g["epoch"]), number(&g["term"]))).collect();
    let floors = [(ONE, ONE), (TWO, TWO)].into();
    let context = CheckContext { reconciler: "schema", scope: "db", floors, needs: |release| release, written_under };
    let states = context.states(events).unwrap_or_else(|why| panic!("{why}"));
    let mut gates: Vec<&Gate> = states.iter().filter_map(|state| state.gate.as_ref()).collect();
    gates.dedup();
    let gate_history: Vec<_> = gates.iter().map(|gate| (gate.reconciled, gate.floor, gate.target)).collect();
    assert_eq!(gate_history, [(ONE, ONE, None), (ONE, TWO, Some(TWO)), (TWO, TWO, None)]);
    for view in views {
        assert_matches_log(view, &state_at(&states, number(&view["revision"])));
    }
    let first = |wanted: &dyn Fn(&Gate) -> bool| {
        states.iter().find(|state| state.gate.as_ref().is_some_and(wanted)).expect("that state was reached").revision
    };
    let (success, restricted) = (first(&|_| true), first(&|gate| gate.target.is_some()));
    let done = first(&|gate| gate.reconciled == TWO);
    assert!(before.iter().all(|(_, write)| write.revision < success), "I7: {before:?}, and a gate at {success}");
    let between = |write: &Write| restricted < write.revision && write.revision < done;
    assert!(after.iter().all(|(_, write)| between(write)), "{after:?}, restricted at {restricted}, done at {done}");
    let writes: Vec<Write> = before.iter().chain(after).map(|(_, write)| write.clone()).collect();
    fenced(&writes, &record::terms(events, "schema")).unwrap_or_else(|why| panic!("I5: {why}"));
    println!("{} events, {} states, {} views", events.len(), states.len(), views.len());
}

/// A status must match the log at its revision.
fn assert_matches_log(view: &Value, state: &State) {
    let gate = state.gate.as_ref().map(|gate| {
        let word = if gate.target.is_some() { GateState::Working } else { GateState::Done };
        (gate.epoch, serde_json::json!(word), gate.reconciled.to_string(), gate.floor.to_string())
    });
    let shown = (!view["gate"].is_null()).then(|| {
        let gate = &view["gate"];
        (gate["epoch"].as_u64().unwrap_or(0), gate["state"].clone(), text(&gate["reconciled"]), text(&gate["floor"]))
    });
    assert_eq!(shown, gate, "{view} and {state:?}");
    for phase in ["serving", "draining"] {
        let there = state.members.iter().filter(|member| member.phase == phase).count();
        assert_eq!(view["participants"][phase], there, "{phase}: {view} and {state:?}");
    }
    let term = state.runner.as_ref().filter(|runner| !runner.expired).map(|runner| runner.term);
    assert_eq!(view["runner"]["term"].as_u64(), term, "{view} and {state:?}");
}
