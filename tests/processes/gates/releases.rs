//! Releases as they are given: one with a suffix is refused at every entrance, for a gate could not tell two builds of one release apart;
//! one that was just declared counts at once.

use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{Participant, ParticipantKey, ParticipantPhase, Release, Revision, SessionId, Triple, WallTime};
use muster_reconciler::ReconcilerSpec;
use serde_json::json;

use super::apply;
use crate::api::http;
use crate::harness::{World, eventually_so};

const SUFFIXED: [&str; 2] = ["2.0.0-rc.1", "2.0.0+build.7"];
const WHY: &str = "could not tell two builds of one release apart";

/// As a record of an earlier build has it.
fn recorded(text: &str) -> Release {
    serde_json::from_value(text.into()).expect("records with a suffix are read")
}

#[test]
fn suffixed_release_is_refused_at_every_entrance() {
    let mut world = World::with(1, 0);
    apply(&world, "1.0.0", "1.0.0", &["users"]);
    let toml = |release: &str, floor: &str, more: &str| {
        format!(
            "name = \"schema\"\nrelease = \"{release}\"\nscope = \"db\"\nfloor = \"{floor}\"\n{more}\nobjects = []\n"
        )
    };
    let file = world.folder().join("suffixed.toml");
    let file = file.to_str().expect("the folder's path is text").to_owned();
    for suffixed in SUFFIXED {
        // The command line.
        let arguments: [&[&str]; 9] = [
            &["release", "declare", "db", suffixed],
            &["wait-ready", "db", "--release", suffixed],
            &["wait-ready", "db", "--release", "2.0.0", "--reconciler", "schema", "--needs", suffixed],
            &["reconciler", "plan", "schema", "--release", suffixed],
            &["reconciler", "finalize", "schema", "--release", suffixed],
            &["reconciler", "retry", "schema", "--release", suffixed],
            &["reconciler", "force-floor", "schema", suffixed],
            &["member", "announce", "db/m1", "--release", suffixed],
            &["member", "announce", "db/m1", "--release", "2.0.0", "--needs", &format!("schema={suffixed}")],
        ];
        for args in arguments {
            let refused = world.muster(args).ended(2);
            assert!(refused.stderr.contains(WHY), "{}: {}", refused.line, refused.stderr);
        }
        // Files of definitions.
        let from = format!("from_at_least = \"{suffixed}\"");
        for text in [toml(suffixed, "1.0.0", ""), toml("2.0.0", suffixed, ""), toml("2.0.0", "1.0.0", &from)] {
            std::fs::write(&file, &text).expect("the world's folder is writable");
            let refused = world.muster(&["reconciler", "apply", "-f", &file]).ended(2);
            assert!(refused.stderr.contains(WHY), "{text}: {}", refused.stderr);
        }
        // A declaration that a deployment tool wrote.
        let declared = world.muster(&["release", "ls"]).ended(0).json();
        let directory = std::path::PathBuf::from(declared["directory"].as_str().expect("a directory"));
        std::fs::create_dir_all(&directory).expect("the data directory is ours");
        std::fs::write(directory.join("db.toml"), format!("scope = \"db\"\nrelease = \"{suffixed}\"\n"))
            .expect("the directory is ours");
        eventually_so("the declaration is refused", || {
            world.muster(&["release", "ls"]).ended(0).json()["faults"].to_string().contains(WHY)
        });
        std::fs::remove_file(directory.join("db.toml")).expect("it is there");
        // HTTP.
        let socket = world.socket("n1");
        let escaped = suffixed.replace('+', "%2B");
        let of = |release: &str, floor: &str| json!({"name": "schema", "release": release, "scope": "db", "floor": floor, "objects": []});
        for (method, target, body) in [
            ("GET", format!("/v1/reconcilers/schema/plan?release={escaped}"), json!({})),
            ("POST", format!("/v1/reconcilers/schema/finalize?release={escaped}"), json!({})),
            ("POST", format!("/v1/reconcilers/schema/retry?release={escaped}"), json!({})),
            ("POST", "/v1/reconcilers/schema/force-floor".to_owned(), json!({"release": suffixed})),
            ("POST", "/v1/reconcilers".to_owned(), of(suffixed, "1.0.0")),
            ("POST", "/v1/reconcilers".to_owned(), of("2.0.0", suffixed)),
            ("POST", "/v1/members/db/m1".to_owned(), json!({"release": suffixed})),
            ("POST", "/v1/members/db/m1".to_owned(), json!({"release": "2.0.0", "needs": {"schema": suffixed}})),
        ] {
            let answer = http(&socket, method, &target, "", &body.to_string());
            let text = String::from_utf8_lossy(&answer.body);
            assert!(answer.status == 400 && text.contains(WHY), "{method} {target} {body}: {} {text}", answer.status);
        }
        // The library: what was read from a record, and is sent as new.
        assert!(suffixed.parse::<Release>().is_err() && suffixed.parse::<Triple>().is_err());
        let definition = ReconcilerSpec::handler("other", recorded(suffixed), "db").definition();
        let key = ParticipantKey { scope: "db".to_owned(), member: "m1".to_owned(), incarnation: SessionId(7) };
        let participant = Participant {
            key,
            node: None,
            release: recorded(suffixed),
            needs: Default::default(),
            phase: ParticipantPhase::Announced,
            token: None,
            since: WallTime(0),
            revision: Revision(0),
        };
        for request in [
            ReconcilerRequest::Apply { definitions: vec![definition], replace: false },
            ReconcilerRequest::Announce { participant },
        ] {
            let refused = world.ask("n1", Request::Reconciler(request)).expect_err("it is refused");
            assert!(refused.to_string().contains(WHY), "{refused}");
        }
        // The daemon, as a flag and in its file.
        let node = world.node("n2").start(&["--join", "127.0.0.1:9", "--token", "x", "--release", suffixed]);
        assert_eq!(node.exit(), Some(2), "{}", node.log());
        assert!(node.log().contains(WHY), "{}", node.log());
    }
}

/// As a deployment does it: the file of the new release is put in place, and the service is restarted at once.
#[test]
#[ignore = "full tier"]
fn service_started_at_once_announces_what_was_just_declared() {
    let mut world = World::with(1, 0);
    let declared = world.muster(&["release", "ls"]).ended(0).json();
    let directory = std::path::PathBuf::from(declared["directory"].as_str().expect("a directory"));
    std::fs::create_dir_all(&directory).expect("the data directory is ours");
    let file = directory.join("shop.toml");
    let ready = |world: &mut World| {
        let args = ["wait-ready", "shop", "--allow-undefined-scope", "--timeout", "1m", "-o", "json"];
        world.muster(&args).ended(0).json()["release"].clone()
    };
    for release in ["1.0.0", "2.0.0", "1.5.0"] {
        let new = directory.join(".new");
        std::fs::write(&new, format!("scope = \"shop\"\nrelease = \"{release}\"\n")).expect("the directory is ours");
        std::fs::rename(&new, &file).expect("the directory is ours");
        assert_eq!(ready(&mut world), release);
    }
    // Where a declaration cannot be used, and where nothing is installed, the release must be named.
    for (text, why) in [("scope = ", "cannot be used"), ("scope = \"shop\"\nrelease = \"none\"\n", "nothing of shop")] {
        std::fs::write(&file, text).expect("the directory is ours");
        let refused = world.muster(&["wait-ready", "shop", "--allow-undefined-scope", "--timeout", "1m"]).ended(2);
        assert!(refused.stderr.contains(why) && refused.stderr.contains("--release"), "{}", refused.stderr);
    }
    let own = world.muster(&["release", "declare", "muster", "9.0.0"]).ended(2);
    assert!(own.stderr.contains("that of the managers themselves"), "{}", own.stderr);
    assert!(!directory.join("muster.toml").exists(), "nothing was written");
    world.muster(&["release", "declare", "shop", "none"]).ended(0);
    let listed = world.muster(&["release", "ls"]).ended(0);
    assert!(listed.json()["declared"]["shop"].is_null(), "{}", listed.stdout);
}
