//! Arbitrary objects, in any order of writes.

use muster_kubernetes::Context;
use muster_messages::{
    CandidateSpec, Change, ConfigMap, LeaseSpec, MicroTime, Object, ObjectBody, ObjectKind, ObjectMeta, Uid, WallTime,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::*;

fn time() -> impl Strategy<Value = MicroTime> {
    (-62_167_219_200_000_000i64..253_402_300_800_000_000).prop_map(MicroTime)
}

fn lease() -> impl Strategy<Value = LeaseSpec> {
    let times = (option::of(time()), option::of(time()));
    let numbers = (option::of(1..10_000_000u64), option::of(0..i32::MAX));
    (option::of("[ -~äöü]{0,8}"), times, numbers, any::<bool>()).prop_map(
        |(holder, (acquired, renewed), (ms, transitions), elected)| {
            let strategy = elected.then(|| "OldestEmulationVersion".to_owned());
            LeaseSpec { holder, duration_ms: ms, acquired, renewed, transitions, strategy, preferred_holder: None }
        },
    )
}

fn body() -> impl Strategy<Value = ObjectBody> {
    let lease = lease().prop_map(|spec| ObjectBody::Lease(muster_messages::Lease { spec, ..Default::default() }));
    let candidate = (option::of(time()), option::of(time())).prop_map(|(pinged, renewed)| {
        ObjectBody::LeaseCandidate(CandidateSpec {
            lease_name: "l".into(),
            pinged,
            renewed,
            binary_version: "1.2.3".into(),
            emulation_version: "1.2.0".into(),
            strategy: "example.com/x".into(),
        })
    });
    let map =
        (btree_map("[a-c][a-c.]{0,2}", ".{0,6}", 0..3), option::of(any::<bool>())).prop_map(|(data, immutable)| {
            ObjectBody::ConfigMap(ConfigMap {
                data,
                binary_data: Default::default(),
                immutable: immutable.filter(|i| !i),
            })
        });
    let endpoints = vec(0..9u8, 0..3).prop_map(|ports| {
        let subsets: Vec<Value> = ports.iter().map(|port| json!({"ports": [{"port": port}]})).collect();
        ObjectBody::Endpoints(if subsets.is_empty() { String::new() } else { Value::from(subsets).to_string() })
    });
    prop_oneof![lease, candidate, map, endpoints]
}

fn object() -> impl Strategy<Value = Object> {
    let words = || btree_map("[a-z]{1,3}(\\.[a-z]{1,2}/[a-z])?", "[a-z0-9]{0,4}", 0..3);
    (body(), words(), words(), any::<u128>()).prop_map(|(body, labels, annotations, bits)| {
        let meta = ObjectMeta { labels, annotations, ..ObjectMeta::fresh(Uid::from_entropy(bits)) };
        Object { namespace: "ns".into(), name: "x".into(), meta, body }
    })
}

fn base(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Lease => BASE,
        ObjectKind::LeaseCandidate => CANDIDATES,
        ObjectKind::ConfigMap => MAPS,
        ObjectKind::Endpoints => "/api/v1/namespaces/ns/endpoints",
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put { blind: bool, holder: u8 },
    Merge { holder: Option<u8>, label: u8 },
    Apply { manager: u8, label: u8, force: bool },
    Delete,
    Create,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<bool>(), 0..3u8).prop_map(|(blind, holder)| Step::Put { blind, holder }),
        (option::of(0..3u8), 0..3u8).prop_map(|(holder, label)| Step::Merge { holder, label }),
        (0..3u8, 0..3u8, any::<bool>()).prop_map(|(manager, label, force)| Step::Apply { manager, label, force }),
        Just(Step::Delete),
        Just(Step::Create),
    ]
}

fn take(server: &mut Server, step: &Step) -> Reply {
    let target = format!("{BASE}/x");
    match step {
        Step::Put { blind, holder } => {
            let seen = server.get(&*target);
            let mut body = if seen.status == 200 && !blind { seen.json } else { json!({}) };
            body["spec"]["holderIdentity"] = format!("h{holder}").into();
            server.put(&target, body)
        }
        Step::Merge { holder, label } => {
            let holder = holder.map(|holder| format!("h{holder}"));
            server.merge(
                &target,
                json!({"metadata": {"labels": {format!("l{label}"): "m"}}, "spec": {"holderIdentity": holder}}),
            )
        }
        Step::Apply { manager, label, force } => {
            let target = format!("{target}?fieldManager=m{manager}&force={force}");
            server.apply_patch(&target, json!({"metadata": {"labels": {format!("l{label}"): format!("v{manager}")}}}))
        }
        Step::Delete => server.delete(&target, Value::Null),
        Step::Create => server.post(BASE, json!({"metadata": {"name": "x"}})),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Writing back what a client was shown changes nothing.
    #[test]
    fn objects_written_back_are_unchanged(object in object()) {
        let mut server = Server::new();
        let kind = object.body.kind();
        server.natively(Change::CreateObject(Box::new(object)));
        let target = format!("{}/x", base(kind));
        let before = server.object(kind, "x").cloned();
        let shown = server.get(&*target).expect(200);
        let put = server.put(&target, shown.json.clone()).expect(200);
        prop_assert_eq!(&put.json, &shown.json);
        prop_assert_eq!(server.object(kind, "x").cloned(), before, "not even the managers");
    }

    /// A watcher's view matches the state, whatever is written; fencing tokens and revisions grow.
    #[test]
    fn watcher_view_matches_the_state(steps in vec(step(), 1..24), selector in prop_oneof![Just(""), Just("&labelSelector=l1"), Just("&labelSelector=!l1")]) {
        let mut server = Server::new();
        let mut stream = server.watch(&format!("{BASE}?watch=1{selector}"));
        let (mut seen, mut revision, mut token): (Option<Value>, u64, u64) = (None, 0, 0);
        for step in steps {
            let reply = take(&mut server, &step);
            prop_assert!([200, 201, 404, 409, 422].contains(&reply.status), "{:?}: {}", step, reply.json);
            for event in stream.events(&server) {
                let object = &event["object"];
                let at: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                prop_assert!(at > revision);
                revision = at;
                let known = seen.is_some();
                match event["type"].as_str().unwrap() {
                    "ADDED" => prop_assert!(!known),
                    "MODIFIED" => prop_assert!(known),
                    _ => prop_assert!(known && event["type"] == "DELETED"),
                }
                seen = (event["type"] != "DELETED").then(|| object.clone());
            }
            let list = server.get(format!("{BASE}?{}", selector.trim_start_matches('&')));
            prop_assert_eq!(list.at("/items"), Value::from(seen.clone().into_iter().collect::<Vec<_>>()));
            if let Some(lease) = server.object(ObjectKind::Lease, "x").and_then(Object::lease) {
                prop_assert!(lease.holding.token.0 == 0 || lease.holding.token.0 >= token);
                token = token.max(lease.holding.token.0);
            }
        }
    }

    /// Any input gets an answer, and never creates an invalid object.
    #[test]
    fn arbitrary_bytes_never_break_a_write(method in 0..5usize, typed in 0..9usize, bytes in vec(any::<u8>(), 0..64), json in "[{}\\[\\]\":,a-z0-9 ]{0,48}", raw: bool) {
        let methods = ["POST", "PUT", "PATCH", "DELETE", "DELETE"];
        let types = [
            "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json-patch+json",
            "application/merge-patch+json", "application/strategic-merge-patch+json", "application/apply-patch+yaml", "", "x",
        ];
        let mut server = Server::new();
        server.held("x", "a");
        let target = if method == 0 || method == 4 { BASE.to_owned() } else { format!("{BASE}/x?fieldManager=m") };
        let body = if raw { bytes } else { json.into_bytes() };
        let request = Request { method: methods[method], target, body, ..Request::default() };
        let reply = server.send(&request.typed(types[typed]));
        prop_assert!((200..500).contains(&reply.status), "{}", reply.json);
    }

    /// A plan is a function of its inputs.
    #[test]
    fn plans_are_deterministic(entropy: u128, now in 0..i64::MAX / 2) {
        let server = Server::new();
        let request = request("POST", BASE, json!({"metadata": {"generateName": "x-"}, "spec": {"holderIdentity": "a"}}));
        let ask = request.ask().unwrap();
        let context = Context { now: WallTime(now), entropy };
        let plan = || muster_kubernetes::plan(&ask, &request.body, &server.tables, context).unwrap().changes;
        prop_assert_eq!(plan(), plan());
    }
}
