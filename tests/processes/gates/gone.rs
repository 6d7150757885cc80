//! Members that died unseen, and a cluster that is unreachable.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{Participant, ParticipantKey, ParticipantPhase, Release, Revision, SessionId, Triple, WallTime};
use rustix::process::Signal;
use serde_json::Value;

use super::record::{self, CheckContext, events};
use super::{apply, blockers, gate_history, items, managers_in, member, member_for, status, world_with_workers};
use crate::harness::{ForegroundMuster, World, eventually, eventually_so};

/// A lease of 30 s; renewals are sent every 4 s and given up after 20 s: at least this much remains.
const MIN_LEASE_REMAINING: Duration = Duration::from_secs(10);

/// Announces an external member, confirmed by an operator, and admits it.
fn admit_external_member(world: &World, name: &str, release: Triple) {
    let key = ParticipantKey { scope: "db".to_owned(), member: name.to_owned(), incarnation: SessionId(0) };
    let participant = Participant {
        key: key.clone(),
        node: None,
        release: Release::from(release),
        needs: BTreeMap::new(),
        phase: ParticipantPhase::Announced,
        token: None,
        since: WallTime(0),
        revision: Revision(0),
    };
    world.answer("n1", Request::Reconciler(ReconcilerRequest::Announce { participant }));
    let admitted = world.answer("n1", Request::Reconciler(ReconcilerRequest::Admit { key }));
    assert_eq!(admitted["phase"], "serving", "{admitted}");
}

#[test]
#[ignore = "full tier"]
fn dead_members_block_until_lease_ends_or_forgotten() {
    let world = world_with_workers(&["n2"]);
    let log = record::follow(&world, &["n1"]);
    apply(&world, "1.0.0", "1.0.0", &["a"]);
    let mut m1 = member_for(&world, "n1", "m1", "1.0.0", "30s");
    m1.wait_for_line("serving in db");
    let leases = world.muster(&["lease", "ls", "-A"]).ended(0).json();
    let of_member = |lease: &Value| {
        lease["namespace"] == "muster-members" && lease["name"].as_str().is_some_and(|name| name.contains("m1"))
    };
    let durations: Vec<Value> =
        items(&leases, "items").into_iter().filter(of_member).map(|lease| lease["lease_duration_ms"].clone()).collect();
    assert_eq!(durations, [30_000], "the duration that was asked for: {leases}");
    admit_external_member(&world, "appliance", Triple::new(1, 0, 0));
    apply(&world, "2.0.0", "2.0.0", &["a"]);
    eventually_so("both members block", || blockers(&status(&world)) == ["appliance", "m1"]);

    let family = m1.descendants();
    assert!(family.len() >= 2, "a guardian and a command: {family:?}");
    let died = Instant::now();
    m1.signal(Signal::KILL);
    family[0].signal(Signal::KILL);
    assert_eq!(m1.exit(), None);
    eventually_so("its command has ended", || !family.iter().any(|process| process.is_alive()));
    let still = blockers(&status(&world));
    assert!(
        still == ["appliance", "m1"] || died.elapsed() > MIN_LEASE_REMAINING,
        "blockers changed before the lease ended: {still:?}"
    );
    eventually_so("its lease has ended", || blockers(&status(&world)) == ["appliance"]);
    assert!(died.elapsed() > MIN_LEASE_REMAINING, "{:?}", died.elapsed());
    let waits = status(&world);
    assert_eq!(waits["blockers"][0]["external"], true, "{waits}");
    assert_eq!(gate_history(&world), ["done 1.0.0 1.0.0"]);

    world.muster(&["member", "forget", "db/appliance"]).ended(0);
    eventually_so("the new release is applied", || status(&world)["gate"]["reconciled"] == "2.0.0");
    assert_eq!(gate_history(&world), ["done 1.0.0 1.0.0", "working 1.0.0 2.0.0", "done 2.0.0 2.0.0"]);
    let mut back = member(&world, "n1", "m1", "1.0.0");
    back.wait_for_line("below-floor");
    let end = status(&world);
    assert_eq!((&end["participants"]["announced"], &end["participants"]["serving"]), (&1.into(), &0.into()), "{end}");

    let events = events(&log.answers_until(end["revision"].as_u64().expect("a revision")));
    let (floors, written_under) = (BTreeMap::new(), BTreeMap::new());
    let context =
        CheckContext { reconciler: "schema", scope: "db", floors, needs: |_| Triple::default(), written_under };
    context.states(&events).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
#[ignore = "full tier"]
fn members_serve_until_lease_ends_without_quorum() {
    let mut world = World::new();
    // Shipped timing: the missing quorum must be known before any lease ends.
    world.settings.clear();
    let mut world = managers_in(world, "1.0.0");
    apply(&world, "1.0.0", "1.0.0", &["a"]);
    let mut m1 = member_for(&world, "n1", "m1", "1.0.0", "30s");
    m1.wait_for_line("serving in db");
    let (before, family) = (status(&world)["gate"].clone(), m1.descendants());
    for name in ["n2", "n3"] {
        world.node(name).kill();
    }
    let lost = Instant::now();
    let refused = |args: &[&str]| {
        let refused = world.muster(&[&["--timeout", "3s"], args].concat()).ended(5);
        // The first one may have entered the log of the remaining manager.
        assert!(["no_quorum", "unknown_outcome"].contains(&refused.error_code().as_str()), "{}", refused.stderr);
        assert!(refused.stderr.contains("n2") && refused.stderr.contains("n3"), "{}", refused.stderr);
    };
    refused(&["reconciler", "pause", "schema"]);
    let serves = family.iter().all(|process| process.is_alive());
    assert!(serves || lost.elapsed() > MIN_LEASE_REMAINING, "it keeps serving");
    refused(&["member", "drain", "db/m1"]);
    refused(&["reconciler", "status", "schema"]);
    // A wait for a phase outlasts this, also if it began without a quorum.
    let socket = world.socket("n1");
    let socket = socket.to_str().expect("the folder's path is text");
    let until = ["--socket", socket, "--timeout", "3s", "reconciler", "status", "schema", "--until", "idle"];
    let mut until = ForegroundMuster::start_for_command(world.folder(), &until);
    until.wait_for_line("n3");
    let late = ["wait-ready", "db", "--release", "1.0.0", "--timeout", "1s"];
    let late = world.muster(&late).ended(3);
    assert!(late.stderr.contains("not admitted in time"), "{}", late.stderr);
    m1.wait_for_line("admission to db was revoked");
    assert_eq!(m1.exit(), Some(7), "it stopped before anybody could rely on its being gone");
    assert!(lost.elapsed() > MIN_LEASE_REMAINING, "{:?}", lost.elapsed());
    assert!(!family.iter().any(|process| process.is_alive()), "all its processes have ended");

    world.node("n2").start(&["--release", "1.0.0"]).ready();
    let after = eventually("the cluster is back", || {
        let asked = world.muster(&["--timeout", "1s", "reconciler", "status", "schema"]);
        (asked.code == 0).then(|| asked.json())
    });
    assert_eq!(after["gate"], before, "the gate is unchanged");
    // The command that was answered with `unknown_outcome` may have been carried out.
    world.muster(&["reconciler", "resume", "schema"]).ended(0);
    assert_eq!(until.exit(), Some(0), "{}", until.seen());
    let mut again = member(&world, "n1", "m1", "1.0.0");
    again.wait_for_line("serving in db");
    again.signal(Signal::TERM);
    assert_eq!(again.exit(), Some(128 + 15));
}
