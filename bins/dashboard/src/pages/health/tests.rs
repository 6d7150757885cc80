//! The page as text, for what a cluster may answer.

use std::collections::BTreeSet;

use muster_messages::{ActorNode, Handling};
use serde_json::{Value, json};

use super::super::tests::{HOSTILE, NODES, node, read, seen, status};
use super::*;
use crate::document::Document;
use crate::feed::{Answer, Point, Sample};
use crate::pages::Page;

const NOW: i64 = 1_704_067_200_000; // 2024-01-01T00:00:00Z

fn render(seen: &Seen, alert: &str) -> Document {
    Page::Health { alert: alert.to_owned() }.render(seen)
}

fn findings(seen: &Seen) -> String {
    render(seen, "").part("findings")
}

fn certificate(name: &str, until: &str, state: &str) -> Value {
    json!({"node": NODES[0], "name": name, "role": "worker", "state": state, "serial": "ab", "granted": null, "not_after": until})
}

fn gate(name: &str, phase: &str, failures: u32, blockers: u32) -> Value {
    json!({"name": name, "scope": "s", "gate": null, "runner": null, "phase": phase, "reason": "", "message": "m", "last_error": "exit 1",
        "next_retry_at": null, "wave": null, "consecutive_failures": failures, "blockers_in_all": blockers})
}

fn tree(path: &str, change: impl FnOnce(&mut ActorNode)) -> Value {
    let (mut root, mut actor) = (ActorNode::unknown("node"), ActorNode::unknown(path));
    for actor in [&mut root, &mut actor] {
        actor.state = muster_messages::ActorState::Healthy;
    }
    change(&mut actor);
    root.children = vec![actor];
    json!({"node": NODES[1], "name": "n2", "root": root, "error": null})
}

/// All that the page asks for, of a cluster in which nothing is wrong, changed.
fn answers(change: impl Fn(&str, &mut Value)) -> Vec<(Topic, Answer)> {
    let of = |name: &str, mut value: Value| {
        change(name, &mut value);
        value
    };
    let nodes = json!({"revision": 1, "stale": false, "items": [node(NODES[0], "n1", "ready", "1.0.0"), node(NODES[1], "n2", "ready", "1.0.0")]});
    let member =
        json!({"node": NODES[1], "raft_id": 2, "addr": "a:1", "role": "voter", "match": 120, "reachable": true});
    let raft = json!({"term": 4, "leader": NODES[0], "commit": 120, "applied": 120, "stale": false, "members": [member],
        "removed_raft_ids": []});
    let root = json!({"id": "0000000000000001", "state": "active", "origin": "founded", "digest": "d", "not_after": "2034-01-01T00:00:00.000Z",
        "created_at": "2023-01-01T00:00:00.000Z", "activated_at": null, "issued": 2, "outdated": 0});
    let progress = json!({"of": 2, "n": 2, "missing": []});
    let roots = json!({"items": [root], "active": "0000000000000001", "target": null, "phase": "done", "acknowledged": progress, "renewed": progress,
        "users_outdated": 0, "last_not_after": null});
    let autolock = json!({"enabled": false, "version": 0, "set_at": null, "managers": [], "needs_old_key": []});
    let certificates = json!([certificate("n1", "2024-03-01T00:00:00.000Z", "issued")]);
    let actors = json!([tree("node/audit", |actor| actor.view = json!({"failing": null}))]);
    vec![
        (Topic::Status, Answer::Status(read(of("status", status(3, &[], false))))),
        (Topic::Raft, Answer::Raft(read(of("raft", raft)))),
        (Topic::Nodes, Answer::nodes(read(of("nodes", nodes)))),
        (Topic::Certificates, Answer::Certificates(read(of("certificates", certificates)))),
        (Topic::Roots, Answer::Roots(read(of("roots", roots)))),
        (Topic::Autolock, Answer::Autolock(read(of("autolock", autolock)))),
        (Topic::Reconcilers, Answer::Reconcilers(read(of("reconcilers", json!([]))))),
        (Topic::ManagerActors, Answer::ManagerActors(read(of("actors", actors)))),
    ]
}

#[test]
fn good_health_needs_every_answer_and_a_quorum() {
    let well = seen(answers(|_, _| {}));
    let document = render(&well, "");
    assert!(document.part("summary").contains("class=\"good\""), "{}", document.part("summary"));
    assert!(document.part("findings").contains("nothing is wrong"), "{}", document.part("findings"));
    assert!(document.part("facts").contains("written on 1 manager") && document.part("facts").contains("1.0.0 on 2"));
    for (topic, name) in NEEDED {
        let mut less = seen(answers(|_, _| {}));
        less.samples.remove(&topic);
        let summary = render(&less, "").part("summary");
        assert!(!summary.contains("class=\"good\"") && summary.contains("Not known now"), "{name}: {summary}");
        assert!(summary.contains(name), "{name}: {summary}");
        let mut old = seen(answers(|_, _| {}));
        old.samples.get_mut(&topic).unwrap().failure = Some("no quorum".to_owned());
        let summary = render(&old, "").part("summary");
        assert!(!summary.contains("class=\"good\"") && summary.contains(name), "{name}: {summary}");
    }
}

/// Without a quorum, and with a dashboard that only just started.
#[test]
fn lost_quorum_names_who_is_missing_and_what_to_do() {
    let lost = seen(vec![(Topic::Status, Answer::Status(read(status(1, &["n2", "n3"], true))))]);
    let document = render(&lost, "");
    let found = document.part("findings");
    for said in [
        "no quorum",
        ">n2</a>",
        ">n3</a>",
        "systemctl status musterd",
        "alert=MusterNoLeader",
        "musterd --force-new-cluster",
    ] {
        assert!(found.contains(said), "{said}: {found}");
    }
    assert!(document.part("summary").contains("Not known now: the Raft members, the nodes"));
    let mut nothing = Seen::default();
    nothing.samples.insert(Topic::Status, Sample { failure: Some("refused".to_owned()), ..Sample::default() });
    assert!(findings(&nothing).contains("no daemon answers this dashboard: refused"));
    let mut old = seen(answers(|_, _| {}));
    old.samples.get_mut(&Topic::Status).unwrap().failure = Some("refused".to_owned());
    assert!(findings(&old).contains("any more: refused"));
}

type Check = (&'static str, &'static str, fn(&mut Value), &'static [&'static str]);

/// Each condition that this page can tell: the answer it is in, the alert, a change, and what is said.
const CHECKS: [Check; 29] = [
    ("status", "MusterNoLeader", |v| v["raft"]["leader"] = Value::Null, &["no manager leads"]),
    (
        "status",
        "MusterQuorumMarginNone",
        |v| v["quorum"] = json!({"needed": 2, "reachable": 2, "missing": ["n3"]}),
        &["no manager may be lost", ">n3</a>"],
    ),
    (
        "status",
        "",
        |v| {
            v["raft"]["voters"] = json!([NODES[0], NODES[1]]);
            v["quorum"]["reachable"] = 2.into();
        },
        &["two managers tolerate no failure"],
    ),
    ("status", "MusterAuditFailing", |v| v["self"]["trouble"] = "audit_failing: no space".into(), &["no space"]),
    ("status", "", |v| v["self"]["trouble"] = "disk_failed: why".into(), &["disk_failed: why", "data directory"]),
    ("status", "", |v| v["self"]["trouble"] = "admission_closed: why".into(), &["muster recovery open"]),
    ("status", "MusterActorRestarts", |v| v["self"]["trouble"] = "manager_half_failing: x".into(), &["muster actors"]),
    ("status", "MusterCertificateExpires", |v| v["self"]["trouble"] = "certificate_expired".into(), &["--join"]),
    ("status", "", |v| v["self"]["trouble"] = "of_a_newer_release: disk_failed".into(), &["journalctl -u musterd"]),
    (
        "status",
        "MusterRoleChangePending",
        |v| {
            v["pending"] = json!([{"node": NODES[1], "name": "n2", "wants": "worker", "reason": "quorum_at_risk", "message": "two are silent",
                "since": "2023-12-31T23:40:00.000Z", "retry_at": null}]);
        },
        &["quorum at risk", "two are silent", "bring the silent managers back"],
    ),
    (
        "status",
        "MusterAutopilotGaveUp",
        |v| {
            let pause =
                json!({"by": "x", "at": "2024-01-01T00:00:00.000Z", "why": "too many in an hour", "gave_up": true});
            v["declared"] = json!({"managers": 3, "paused": pause});
        },
        &["the autopilot is paused: too many in an hour", "muster autopilot resume"],
    ),
    (
        "status",
        "MusterManagersMissing",
        |v| v["declared"] = json!({"managers": 7, "paused": null}),
        &["7 declared", "muster autopilot state"],
    ),
    (
        "status",
        "MusterDuplicateIdentity",
        |v| {
            v["duplicates"] =
                json!([{"node": NODES[1], "name": "n2", "since": "2024-01-01T00:00:00.000Z", "processes": []}])
        },
        &["two processes use", "muster cert rotate n2 --revoke"],
    ),
    (
        "nodes",
        "MusterManagerCannotFollow",
        |v| {
            v["items"][1]["conditions"] = json!([{"type": "x", "reason": "state_diverged", "message": "differs at 7",
                "since": "2024-01-01T00:00:00.000Z", "retry_at": null}]);
        },
        &["state diverged", "differs at 7", "empty directory"],
    ),
    ("status", "MusterNodesDown", |v| v["nodes"]["down"] = 1.into(), &["1 of 3 nodes are down"]),
    ("raft", "MusterFollowerBehind", |v| v["commit"] = 20_000.into(), &["19880 entries behind"]),
    (
        "certificates",
        "MusterCertificateExpires",
        |v| v.as_array_mut().unwrap().push(certificate("n2", "2024-01-05T00:00:00.000Z", "issued")),
        &["n2", "is not renewed; it expires"],
    ),
    // The only one: a day is left of 90.
    (
        "certificates",
        "MusterCertificateExpires",
        |v| {
            v[0]["not_after"] = "2024-01-02T00:00:00.000Z".into();
            v[0]["lifetime_secs"] = (90 * 24 * 3600).into();
        },
        &["is not renewed; it expires"],
    ),
    ("certificates", "MusterCertificateExpires", |v| v[0]["state"] = "failed".into(), &["could not be renewed"]),
    (
        "certificates",
        "MusterCertificateExpires",
        |v| v[0]["not_after"] = "2023-12-31T00:00:00.000Z".into(),
        &["has expired", "a token of its role"],
    ),
    (
        "roots",
        "MusterRootExpires",
        |v| v["items"][0]["not_after"] = "2024-05-01T00:00:00.000Z".into(),
        &["muster ca rotate"],
    ),
    (
        "autolock",
        "MusterLocked",
        |v| {
            *v = json!({"enabled": true, "version": 7, "set_at": null, "needs_old_key": [], "managers": [{"node": NODES[1], "name": "n2",
                "state": "sealed", "version": 7, "auto": "none", "at": null, "liveness": "down"}]});
        },
        &["waits for the unlock key", "muster unlock"],
    ),
    (
        "autolock",
        "",
        |v| {
            *v = json!({"enabled": true, "version": 7, "set_at": null, "managers": [{"node": NODES[1], "name": "n2", "state": "clear",
                "version": null, "auto": "none", "at": null, "liveness": "ready"}],
                "needs_old_key": [{"node": NODES[0], "name": "n1", "version": 3, "since": null}]});
        },
        &["not sealed: clear", "muster autolock key --version 3 -q"],
    ),
    (
        "reconcilers",
        "MusterReconcilerFails",
        |v| *v = json!([gate("g", "running", 3, 0)]),
        &["failed 3 times", "exit 1"],
    ),
    (
        "reconcilers",
        "MusterReconcilerFailed",
        |v| *v = json!([gate("g", "failed", 1, 0)]),
        &["muster reconciler retry g"],
    ),
    ("reconcilers", "MusterGateBlocked", |v| *v = json!([gate("g", "blocked", 0, 2)]), &["2 members hold"]),
    (
        "actors",
        "MusterAuditFailing",
        |v| *v = json!([tree("node/audit", |actor| actor.view = json!({"failing": "no space left"}))]),
        &["the audit log of", "no space left"],
    ),
    (
        "actors",
        "MusterHandlerLong",
        |v| {
            let write = Handling { message: "write".to_owned(), for_ms: 2_500 };
            *v = json!([tree("node/manager/raft-member/disk", |actor| actor.handling = Some(write))]);
        },
        &["for 2 s", "its disk or file system hangs"],
    ),
    (
        "actors",
        "MusterMailboxFilling",
        |v| *v = json!([tree("node/api", |actor| (actor.mailbox, actor.mailbox_limit) = (600, Some(1000)))]),
        &["600 of 1000"],
    ),
];

#[test]
fn each_condition_is_found_with_its_alert_and_a_way_out() {
    for (answer, alert, change, said) in CHECKS {
        let found = findings(&seen(answers(|name, value| {
            if name == answer {
                change(value);
            }
        })));
        for said in said {
            assert!(found.contains(said), "{answer} {alert}: {said}: {found}");
        }
        let linked = found.contains("/health?alert=");
        assert!(if alert.is_empty() { !linked } else { found.contains(&format!(">{alert}</a>")) }, "{alert}: {found}");
    }
}

/// Beside one that has 60 days left, and whose lifetime is not reported.
#[test]
fn each_certificate_is_late_by_its_own_lifetime() {
    for (hours, is_late) in [(10, false), (3, true)] {
        let found = findings(&seen(answers(|name, value| {
            if name == "certificates" {
                let mut of_a_day = certificate("n2", &format!("2024-01-01T{hours:02}:00:00.000Z"), "issued");
                of_a_day["lifetime_secs"] = 86_400.into();
                value.as_array_mut().unwrap().push(of_a_day);
            }
        })));
        assert_eq!(found.contains("is not renewed"), is_late, "{hours} h: {found}");
    }
}

#[test]
fn actors_that_fail_and_managers_that_are_silent_are_found() {
    use muster_messages::ActorState::{BackingOff, Escalated, Stuck};
    for (state, alert) in
        [(Stuck, "MusterActorStuck"), (Escalated, "MusterActorStuck"), (BackingOff, "MusterActorRestarts")]
    {
        let trees = json!([tree("node/mesh", |actor| actor.state = state)]);
        let found = findings(&seen(vec![
            (Topic::Status, Answer::Status(read(status(3, &[], false)))),
            (Topic::ManagerActors, Answer::ManagerActors(read(trees))),
        ]));
        assert!(found.contains(alert) && found.contains("node/mesh</a> on"), "{found}");
    }
    let silent = json!([{"node": NODES[1], "name": null, "root": null, "error": {"message": "timed out"}}]);
    let found = findings(&seen(answers(|name, value| {
        if name == "actors" {
            *value = silent.clone();
        }
    })));
    assert!(found.contains(">n2</a> are not known: timed out"), "{found}");
}

#[test]
fn terms_that_change_often_are_found() {
    let mut seen = seen(answers(|_, _| {}));
    for term in 1..=6 {
        let point = Point { at: WallTime(NOW), margin: Some(1), term: Some(term), pending: Some(0) };
        seen.points.push_back(point);
        assert_eq!(findings(&seen).contains("MusterLeaderChanges"), term == 6);
    }
}

#[test]
fn worst_findings_come_first() {
    let worst = seen(answers(|name, value| match name {
        "status" => value["raft"]["leader"] = Value::Null,
        "reconcilers" => *value = json!([gate("g", "blocked", 0, 2)]),
        _ => {}
    }));
    let found = findings(&worst);
    assert!(found.find("MusterNoLeader").unwrap() < found.find("MusterGateBlocked").unwrap(), "{found}");
    let summary = render(&worst, "").part("summary");
    assert!(summary.contains("1 to act on now") && summary.contains("1 to watch"), "{summary}");
}

/// A rule that is added is looked at here, or is named as one of Prometheus alone.
#[test]
fn every_alert_is_checked_or_named_and_has_instructions() {
    let alerts: BTreeSet<&str> = INSTRUCTIONS.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let more = ["MusterActorStuck", "MusterActorRestarts", "MusterLeaderChanges"];
    let checked: BTreeSet<&str> =
        CHECKS.iter().map(|check| check.1).filter(|alert| !alert.is_empty()).chain(more).collect();
    let named: BTreeSet<&str> = OF_PROMETHEUS.into();
    assert_eq!(checked.union(&named).copied().collect::<BTreeSet<_>>(), alerts);
    for alert in alerts {
        let shown = render(&Seen::default(), alert).part("runbook");
        assert!(shown.contains(&format!("<h2>{alert}</h2>")) && shown.len() > 80, "{alert}: {shown}");
        assert!(!shown.contains("](") && !shown.contains('`'), "{alert}: {shown}");
    }
    let slow = render(&Seen::default(), "MusterMailboxFilling").part("runbook");
    assert!(
        slow.contains("<code>muster actors inspect PATH</code>") && slow.contains("see flow-control.md."),
        "{slow}"
    );
    let unknown = render(&Seen::default(), HOSTILE).part("runbook");
    assert!(unknown.contains("there is no alert") && !unknown.contains("<img"), "{unknown}");
}
