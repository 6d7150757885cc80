//! Pages as text, for what a cluster may answer.

use std::sync::Arc;

use muster_messages::{ActorNode, ActorState, EventView, NodeListView, WallTime};
use serde_json::{Value, json};

use super::*;

pub const HOSTILE: &str = "<img src=x onerror=alert(1)></script>\"'\u{202e}\u{1b}[2J";
pub const NODES: [&str; 3] = ["0000000000000000000000001", "0000000000000000000000002", "0000000000000000000000003"];

pub fn read<T: serde::de::DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).unwrap()
}

pub fn status(reachable: usize, missing: &[&str], stale: bool) -> Value {
    json!({"cluster": {"id": "c", "name": "default", "incarnation": 1, "feature_level": 3}, "stale": stale,
        "as_of": "2024-01-01T00:00:00.000Z", "self": {"id": NODES[0], "name": "n1", "role": "manager"},
        "raft": {"term": 4, "leader": if stale { Value::Null } else { NODES[0].into() }, "commit": 120, "applied": 120, "voters": NODES,
            "learners": []},
        "quorum": {"needed": 2, "reachable": reachable, "missing": missing},
        "nodes": {"total": 3, "managers": 3, "workers": 0, "ready": reachable, "down": 3 - reachable}, "pending": []})
}

pub fn node(id: &str, name: &str, state: &str, release: &str) -> Value {
    json!({"id": id, "name": name, "addr": "127.0.0.1:4401", "release": release, "labels": {"zone": release}, "desired_role": "manager",
        "role": "manager", "state": state, "state_since": "2024-01-01T00:00:00.000Z", "stale": false, "membership": "voter",
        "manager": {"raft_id": 1, "leader": false, "reachable": state == "ready"},
        "certificate": {"role": "manager", "state": "issued", "serial": "ab", "not_after": "2024-02-01T00:00:00.000Z"},
        "conditions": [], "generation": 1, "revision": 9})
}

fn event(revision: u64, kind: &str, after: &str, reason: &str) -> EventView {
    read(json!({"revision": revision, "at": "2024-01-01T00:00:00.000Z", "kind": kind, "node": NODES[0],
        "by": {"kind": "node", "id": NODES[1]}, "reason": reason, "before": null, "after": after}))
}

pub fn seen(answers: Vec<(Topic, Answer)>) -> Seen {
    let at = Some(WallTime(1_704_067_200_000));
    let samples = answers
        .into_iter()
        .map(|(topic, answer)| (topic, Sample { answer: Some(Arc::new(answer)), at, ..Sample::default() }));
    Seen { samples: samples.collect(), points: VecDeque::new(), now: WallTime(1_704_067_200_000), actions: true }
}

fn page(page: &Page, seen: &Seen) -> String {
    page.render(seen).render().into_string()
}

#[test]
fn address_of_a_page_says_what_it_shows() {
    let at = |path: &str, query: &str| Page::at(path, query);
    assert_eq!(at("/", ""), Some(Page::Overview));
    assert_eq!(at("/nodes", "filter=web%2Da"), Some(Page::Nodes { filter: "web-a".to_owned() }));
    assert_eq!(at("/nodes", "node=n4"), Some(Page::Node("n4".to_owned())));
    assert_eq!(
        at("/actors", "node=&path=node%2Fagent"),
        Some(Page::Actor { node: String::new(), path: "node/agent".to_owned() })
    );
    assert_eq!(at("/leases", "namespace=a"), Some(Page::Leases { filter: String::new() }));
    assert_eq!(at("/gates", "name="), Some(Page::Gates));
    for other in ["", "/x", "/nodes/", "//", "/stream"] {
        assert_eq!(at(other, ""), None, "{other}");
    }
    for (path, ..) in PLACES {
        assert!(is_page(path) && at(path, "").is_some());
    }
}

#[test]
fn margin_is_a_number_and_a_word() {
    for (reachable, missing, said) in [
        (3, vec![], "3 of 3 managers answer, 1 may be lost"),
        (2, vec!["n3"], "2 of 3 managers answer, none may be lost"),
        (1, vec!["n2", "n3"], "quorum lost: 1 of 3 managers answer, 2 needed"),
    ] {
        let seen = seen(vec![(Topic::Status, Answer::Status(read(status(reachable, &missing, false))))]);
        let document = Page::Overview.render(&seen);
        assert!(document.part("currency").contains(said) && document.part("cards").contains(said), "{said}");
        for name in missing {
            assert!(document.part("cards").contains(&format!("missing: <a href=\"/nodes?node={name}\">{name}</a>")));
        }
    }
}

#[test]
fn stale_answer_says_so_and_names_who_is_missing() {
    let seen = seen(vec![(Topic::Status, Answer::Status(read(status(1, &["n2", "n3"], true))))]);
    for (path, ..) in PLACES {
        let currency = Page::at(path, "").unwrap().render(&seen).part("currency");
        for said in ["no quorum", "1 of 3 managers answer", "missing: n2, n3", "replica of n1", "2024-01-01 00:00:00"] {
            assert!(currency.contains(said), "{path}: {said}: {currency}");
        }
    }
}

#[test]
fn silence_never_looks_like_none() {
    let nothing = Seen::default();
    for (path, ..) in PLACES {
        let text = page(&Page::at(path, "").unwrap(), &nothing);
        assert!(text.contains("asking the cluster") && !text.contains(">no "), "{path}: {text}");
        for claim in ["nothing</span>", "none of", "0 nodes", "0 leases", "(0 in all)", "class=\"good\""] {
            assert!(!text.contains(claim), "{path}: {claim}: {text}");
        }
    }
    let mut seen = seen(vec![
        (Topic::Leases, Answer::Leases(Vec::new())),
        (Topic::Status, Answer::Status(read(status(3, &[], false)))),
    ]);
    for topic in [Topic::Leases, Topic::Status] {
        seen.samples.get_mut(&topic).unwrap().failure = Some("no quorum: <b>".to_owned());
    }
    let document = Page::at("/leases", "").unwrap().render(&seen);
    let silence = document.part("silence");
    for part in
        ["No newer answer about the cluster, shown as of ", "; the leases, shown as of ", ": no quorum: &lt;b&gt;."]
    {
        assert!(silence.contains(part), "{part}: {silence}");
    }
    assert_eq!(silence.matches("no quorum").count(), 1, "one reason is said once: {silence}");
    assert!(document.part("currency").contains("no answer") && document.part("currency").contains("since"));
    assert!(document.part("leases").contains("no leases"));
}

#[test]
fn what_the_cluster_does_not_have_is_said_in_its_place() {
    for asked in [
        Page::Node("n9".to_owned()),
        Page::Lease { namespace: "default".to_owned(), name: "gone".to_owned() },
        Page::Gate("gone".to_owned()),
        Page::Actor { node: String::new(), path: "node/gone".to_owned() },
    ] {
        let mut seen = seen(vec![(Topic::Status, Answer::Status(read(status(3, &[], false))))]);
        let topic = asked.topics()[1].clone();
        let refused = Sample { failure: Some("there is no such thing".to_owned()), refused: true, ..Sample::default() };
        seen.samples.insert(topic, refused);
        let text = page(&asked, &seen);
        assert!(
            text.contains("there is no such thing") && !text.contains("waiting for an answer about this"),
            "{asked:?}: {text}"
        );
        assert!(!text.contains("No newer answer"), "{asked:?}: {text}");
    }
}

#[test]
fn old_answers_are_no_good_news_and_offer_no_action() {
    let nodes: NodeListView =
        read(json!({"revision": 1, "stale": false, "items": [node(NODES[0], "n1", "ready", "1.0.0")]}));
    let answers = || {
        vec![
            (Topic::Status, Answer::Status(read(status(3, &[], false)))),
            (Topic::Node("n1".to_owned()), Answer::Node(Box::new(nodes.items[0].clone()))),
            (Topic::Nodes, Answer::nodes(nodes.clone())),
        ]
    };
    for asked in [Page::Overview, Page::Nodes { filter: String::new() }, Page::Node("n1".to_owned())] {
        let mut seen = seen(answers());
        let text = page(&asked, &seen);
        assert!(text.contains("class=\"good\""), "{asked:?}: {text}");
        seen.samples.get_mut(&Topic::Status).unwrap().failure = Some("timed out".to_owned());
        let text = page(&asked, &seen);
        assert!(!text.contains("class=\"good\"") && !text.contains("data-action"), "{asked:?}: {text}");
    }
    assert!(page(&Page::Node("n1".to_owned()), &seen(answers())).contains("data-action"));
}

#[test]
fn hostile_names_labels_reasons_and_outputs_are_only_text() {
    let nodes: NodeListView =
        read(json!({"revision": 1, "stale": false, "items": [node(NODES[0], "n1", "ready", HOSTILE)]}));
    let actor = ActorNode {
        kind: HOSTILE.to_owned(),
        state: ActorState::Dead,
        view: json!({HOSTILE: HOSTILE}),
        last_exits: vec![read(json!({"kind": "panic", "text": HOSTILE, "at": "2024-01-01T00:00:00.000Z"}))],
        handling: Some(read(json!({"message": HOSTILE, "for_ms": 5}))),
        ..ActorNode::unknown(HOSTILE)
    };
    let actors = || Answer::Actors(muster_messages::OfNodeView { node: None, node_name: None, answer: actor.clone() });
    let lease = json!({"namespace": HOSTILE, "name": HOSTILE, "holder": HOSTILE, "expired": true, "fencing_token": 7, "transitions": 3,
        "acquired_at": null, "renewed_at": null, "lease_duration_ms": 15000, "expires_in_ms": null, "strategy": HOSTILE,
        "preferred_holder": HOSTILE, "revision": 7});
    let gate = json!({"name": HOSTILE, "scope": HOSTILE, "gate": null, "runner": {"member": HOSTILE, "node": null, "release": null, "term": 3,
        "since": null}, "phase": "failed", "reason": "action", "message": HOSTILE, "last_error": HOSTILE, "next_retry_at": null, "wave": null,
        "consecutive_failures": 3, "output": HOSTILE, "last_run": {"number": 7, "attempt": 2, "node": NODES[0], "node_name": null,
        "release": "2.0.0", "term": 3, "of_term": 2, "began": "2024-01-01T00:00:00Z", "ran_for_ms": 1250, "outcome": HOSTILE,
        "exit": {"status": 3, "signal": null}, "message": HOSTILE, "head": HOSTILE, "tail": HOSTILE}, "revision": 3});
    let asked = [
        Page::Overview,
        Page::Nodes { filter: HOSTILE.to_owned() },
        Page::Nodes { filter: String::new() },
        Page::Node(HOSTILE.to_owned()),
        Page::Actors(HOSTILE.to_owned()),
        Page::Actor { node: HOSTILE.to_owned(), path: HOSTILE.to_owned() },
        Page::Leases { filter: String::new() },
        Page::Lease { namespace: HOSTILE.to_owned(), name: HOSTILE.to_owned() },
        Page::Gates,
        Page::Gate(HOSTILE.to_owned()),
        Page::Events { kind: HOSTILE.to_owned(), node: HOSTILE.to_owned() },
        Page::Events { kind: String::new(), node: String::new() },
        Page::Certificates,
        Page::Managers,
        Page::Health { alert: HOSTILE.to_owned() },
    ];
    let seen = seen(vec![
        (Topic::Status, Answer::Status(read(status(3, &[], false)))),
        (Topic::Nodes, Answer::nodes(nodes.clone())),
        (Topic::Node(HOSTILE.to_owned()), Answer::Node(Box::new(nodes.items[0].clone()))),
        (Topic::Actors(HOSTILE.to_owned()), actors()),
        (Topic::Actor(HOSTILE.to_owned(), HOSTILE.to_owned()), actors()),
        (
            Topic::ManagerActors,
            Answer::ManagerActors(vec![read(json!({"node": NODES[0], "name": null, "root": actor.clone()}))]),
        ),
        (Topic::Leases, Answer::Leases(vec![read(lease.clone())])),
        (Topic::Lease(HOSTILE.to_owned(), HOSTILE.to_owned()), Answer::Leases(vec![read(lease)])),
        (Topic::Autopilot, Answer::Autopilot(Box::new(read(autopilot(HOSTILE))))),
        (Topic::Reconcilers, Answer::Reconcilers(vec![read(gate.clone())])),
        (Topic::Reconciler(HOSTILE.to_owned()), Answer::Reconciler(Box::new(read(gate)))),
        (Topic::Events, Answer::Events([event(1, HOSTILE, HOSTILE, HOSTILE)].into())),
        (
            Topic::Tokens,
            Answer::Tokens(vec![read(json!({"id": HOSTILE, "role": "worker", "expires_at": null, "uses_left": null}))]),
        ),
    ]);
    for asked in asked {
        let text = page(&asked, &seen);
        assert!(
            !text.contains("<img") && !text.contains("</script") && !text.contains("onerror=alert(1)>"),
            "{asked:?}: {text}"
        );
        assert!(!text.contains(['\u{202e}', '\u{1b}']), "{asked:?}: {text}");
        for tag in text.split('<').skip(1) {
            // Without the values of attributes.
            let tag: String = tag.split('>').next().unwrap().split('"').step_by(2).collect();
            assert!(!tag.contains(" on") && !tag.contains(" style="), "{asked:?}: {tag}");
        }
    }
}

/// Three are declared; n3 was replaced by n4, and the next step has this reason.
fn autopilot(said: &str) -> Value {
    let at = "2024-01-01T00:00:00.000Z";
    let change = |action: &str, node: &str, outcome: &str| json!({"at": at, "action": action, "node": node, "for": NODES[2], "outcome": outcome, "why": said});
    json!({"policy": {"managers": 3, "eligible": {said: said}, "zone_label": said, "replace_after_ms": 600_000, "stabilize_ms": 30_000,
            "shrink": true, "paused": {"by": said, "at": at, "why": said, "gave_up": true}, "generation": 1},
        "healthy": false, "tolerance": 0, "optimistic_tolerance": 0, "voters": 3, "answering": 2, "zones": {said: 2},
        "managers": [
            {"node": NODES[0], "name": "n1", "zone": said, "answers": true, "down_since": null, "drain": null},
            {"node": NODES[1], "name": "n2", "zone": null, "answers": false, "down_since": at,
                "drain": {"by": said, "at": at, "until": at, "replace": false}}],
        "candidates": [
            {"node": NODES[2], "name": "n3", "zone": said, "preference": "prefer", "rank": 1, "excluded": null},
            {"node": NODES[2], "name": "n9", "zone": null, "preference": "allow", "rank": null, "excluded": said}],
        "next": {"action": null, "reason": said, "node": NODES[1], "not_before": at, "message": said},
        "history": [change("demote", NODES[2], "settled"), change("promote", NODES[1], "begun")]})
}

#[test]
fn managers_page_says_what_happens_next_and_why() {
    let of = |autopilot: Value| {
        Page::Managers.render(&seen(vec![
            (Topic::Status, Answer::Status(read(status(3, &[], false)))),
            (Topic::Autopilot, Answer::Autopilot(Box::new(read(autopilot)))),
        ]))
    };
    let paused = of(autopilot("not_dead_yet"));
    let declared = paused.part("declared");
    for said in [
        "3 managers; one is replaced after 600s",
        "2 of 3 managers answer",
        "class=\"bad\"",
        "muster autopilot resume",
        "not before <time",
    ] {
        assert!(declared.contains(said), "{said}: {declared}");
    }
    let (managers, workers, changes) = (paused.part("managers"), paused.part("workers"), paused.part("changes"));
    assert!(managers.contains("silent") && managers.contains("drained"), "{managers}");
    assert!(workers.find(">n3</a>").unwrap() < workers.find(">n9</a>").unwrap(), "{workers}");
    assert!(changes.find("promote").unwrap() < changes.find("demote").unwrap(), "the newest first: {changes}");
    assert!(!declared.contains("class=\"good\""), "{declared}");

    let mut content = autopilot("content");
    (content["policy"]["paused"], content["healthy"]) = (Value::Null, true.into());
    assert_eq!(of(content).part("declared").matches("class=\"good\"").count(), 2);
    let mut off = autopilot("off");
    off["policy"] = Value::Null;
    (off["candidates"], off["history"]) = (json!([]), json!([]));
    let off = of(off);
    let declared = off.part("declared");
    assert!(declared.contains("by operators only") && declared.contains("muster cluster set managers=3"), "{declared}");
    assert!(!off.render().into_string().contains("no workers"), "nothing is said about them");

    let mut large = autopilot("content");
    let workers = (0..150).map(|i| {
        json!({"node": format!("{i:025}"), "name": format!("w{i}"), "zone": null,
        "preference": "allow", "rank": i + 1, "excluded": null})
    });
    large["candidates"] = workers.collect();
    let large = of(large);
    let workers = large.part("workers");
    assert!(workers.contains(">w99</a>") && !workers.contains(">w100</a>"), "{workers}");
    assert!(large.part("rest").contains("50 more workers"), "{}", large.part("rest"));
}

#[test]
fn thousands_of_nodes_fit_a_page_with_those_in_trouble_first() {
    let items: Vec<Value> = (0..10_000)
        .map(|i| node(&format!("{i:025}"), &format!("n{i}"), if i == 9_876 { "down" } else { "ready" }, "1.0.0"))
        .collect();
    let nodes: NodeListView = read(json!({"revision": 1, "stale": false, "items": items}));
    let seen = seen(vec![(Topic::Nodes, Answer::nodes(nodes))]);
    let document = Page::Nodes { filter: String::new() }.render(&seen);
    let table = document.part("nodes");
    assert!(table.find("n9876").unwrap() < table.find("node=n0\"").unwrap());
    assert!(document.part("rest").contains("9900 more nodes match"), "{}", document.part("rest"));
    assert!(document.part("counts").contains("10000 nodes") && document.part("counts").contains("1 down"));
    assert!(document.render().into_string().len() < 200_000);
    let found = Page::Nodes { filter: "n77".to_owned() }.render(&seen);
    assert!(
        found.part("rest").contains("11 more") && found.part("nodes").contains("node=n7712"),
        "{}",
        found.part("rest")
    );
}

#[test]
fn events_are_newest_first_without_own_leases() {
    let events = [
        event(1, "node", "joined", "a"),
        event(2, "lease", "muster-members/x held by y", "b"),
        event(3, "role", "manager", "c"),
    ];
    let nodes: NodeListView =
        read(json!({"revision": 1, "stale": false, "items": [node(NODES[0], "n1", "ready", "1.0.0")]}));
    let seen = seen(vec![(Topic::Events, Answer::Events(events.into())), (Topic::Nodes, Answer::nodes(nodes))]);
    let all = Page::Events { kind: String::new(), node: String::new() }.render(&seen).part("events");
    assert!(all.find("manager").unwrap() < all.find("joined").unwrap() && !all.contains("muster-members"), "{all}");
    assert!(all.contains("<a href=\"/nodes?node=n1\">n1</a>") && all.contains("node 00000000"), "{all}");
    let roles = Page::Events { kind: "role".to_owned(), node: "n1".to_owned() }.render(&seen).part("events");
    assert!(roles.contains("manager") && !roles.contains("joined"), "{roles}");
    let others = Page::Events { kind: String::new(), node: "n2".to_owned() }.render(&seen).part("events");
    assert!(others.contains("no events"), "{others}");
}

#[test]
fn actors_in_trouble_are_unfolded_and_counted() {
    let actor = |path: &str, state: ActorState, children: Vec<ActorNode>| ActorNode {
        kind: "Kind".to_owned(),
        state,
        children,
        ..ActorNode::unknown(path)
    };
    let tree = |state| {
        let deep = actor("node/manager/leader/role-manager/x", state, Vec::new());
        let role_manager = actor("node/manager/leader/role-manager", ActorState::Healthy, vec![deep]);
        let leader = actor("node/manager/leader", ActorState::Healthy, vec![role_manager]);
        actor("node", ActorState::Healthy, vec![actor("node/manager", ActorState::Healthy, vec![leader])])
    };
    for (state, said, open) in [(ActorState::Healthy, "all well", 2), (ActorState::Stuck, "1 not well", 4)] {
        let answer = Answer::Actors(muster_messages::OfNodeView {
            node: None,
            node_name: "n1".parse().ok(),
            answer: tree(state),
        });
        let seen = seen(vec![(Topic::Actors("leader".to_owned()), answer)]);
        let document = Page::Actors("leader".to_owned()).render(&seen);
        assert!(document.part("summary").contains(said) && document.part("summary").contains("5 actors"));
        assert_eq!(document.part("tree").matches("aria-expanded=\"true\"").count(), open, "{}", document.part("tree"));
        assert!(document.part("command").contains("muster actors --node leader"));
    }
}

#[test]
fn used_up_tokens_run_out_unnoticed() {
    for (left, shown) in [(Value::Null, true), (json!(1), true), (json!(0), false)] {
        let token = json!({"id": "abc", "role": "worker", "expires_at": "2024-01-01T00:10:00.000Z", "uses_left": left});
        let answers = vec![
            (Topic::Status, Answer::Status(read(status(3, &[], false)))),
            (Topic::Tokens, Answer::Tokens(vec![read(token)])),
        ];
        assert_eq!(Page::Overview.render(&seen(answers)).part("cards").contains("join token abc"), shown);
    }
}

#[test]
fn what_expires_first_is_listed_first() {
    let certificate = |name: &str, until: &str, state: &str| {
        read(
            json!({"node": NODES[0], "name": name, "role": "worker", "state": state, "serial": "abcdef0123456789", "granted": null,
            "not_after": until}),
        )
    };
    let all = vec![
        certificate("later", "2025-01-01T00:00:00.000Z", "issued"),
        certificate("sooner", "2024-01-02T00:00:00.000Z", "issued"),
        certificate("gone", "2023-12-31T00:00:00.000Z", "issued"),
        certificate("failed", "2026-01-01T00:00:00.000Z", "failed"),
    ];
    let seen = seen(vec![
        (Topic::Certificates, Answer::Certificates(all)),
        (Topic::Status, Answer::Status(read(status(3, &[], false)))),
    ]);
    let table = Page::Certificates.render(&seen).part("certificates");
    let places: Vec<usize> = ["node=failed", "node=gone", "node=sooner", "node=later"]
        .iter()
        .map(|name| table.find(name).unwrap())
        .collect();
    assert!(places.is_sorted(), "{table}");
    assert!(table.contains("expired"), "{table}");
}
