//! Views that a healthy cluster rarely answers with, as their schemas say. The others are checked on a running cluster.

use std::collections::BTreeMap;

use muster_messages::*;
use muster_testkit::Schemas;
use serde::Serialize;
use serde_json::{Value, json};

use crate::tests::{description, triple};

struct Checked(Schemas);

impl Checked {
    fn check(&mut self, name: &str, view: &impl Serialize) {
        let value = serde_json::to_value(view).unwrap();
        self.0.check(&json!({"$ref": format!("#/components/schemas/{name}")}), &value).unwrap();
        // A field less, or of another type, does not fit.
        let Value::Object(fields) = &value else { panic!("{value}") };
        let required = self.0.described["components"]["schemas"][name]["required"].clone();
        for field in required.as_array().unwrap().iter().map(|field| field.as_str().unwrap()) {
            let mut less = fields.clone();
            less.remove(field);
            let mut other = fields.clone();
            other.insert(field.to_owned(), json!([[1]]));
            for wrong in [less, other] {
                let free = self.0.described["components"]["schemas"][name]["properties"][field].get("type").is_none()
                    && wrong.contains_key(field);
                let schema = json!({"$ref": format!("#/components/schemas/{name}")});
                let fits = Schemas::of(self.0.described.clone()).check(&schema, &wrong.into()).is_ok();
                assert!(!fits || free, "{name} without {field}");
            }
        }
    }
}

#[test]
fn rare_views_match_their_schemas() {
    let (node, name, at): (NodeId, Name, WallTime) = (NodeId::from_entropy(1), "n1".parse().unwrap(), WallTime(0));
    let (root, version) = (RootId([7; 8]), Revision(3));
    let mut all = Checked(Schemas::of(description()));
    all.check("Locked", &LockedView { locked: true, node: None, version, since: Some(at), unattended: None });
    all.check("Unlocked", &UnlockedView { unlocked: true, version });
    let process = NodeProcess { instance: "i".into(), addr: "a:1".into(), remote: "b:2".into() };
    all.check("Duplicate", &DuplicateView { node, name: name.clone(), since: at, processes: vec![process] });
    all.check("RootExpiry", &RootExpiryView { root, origin: AuthorityOrigin::Made, not_after: at });
    let reason = RootsWaitReason::WaitingForNode;
    all.check("RootsMissing", &RootsMissingView { node, name: name.clone(), reason, since: Some(at) });
    all.check("OldKey", &OldKeyView { node, name: name.clone(), version, since: None });
    all.check("WorkloadHolder", &WorkloadHolderView { node, name: None, until: at });
    let (reason, message) = (WaitReason::CatchingUp, "m".to_owned());
    let condition = Condition {
        kind: ConditionKind::RoleChange.into(),
        reason,
        message: message.clone(),
        since: at,
        retry_at: None,
    };
    all.check("Condition", &condition);
    let wants = Wants::Manager;
    let pending = PendingView { node, name: name.clone(), wants, reason, message, since: at, retry_at: Some(at) };
    all.check("Pending", &pending);
    let release: Release = triple("2.0.0").into();
    let (member, phase, why) = ("m".to_owned(), ParticipantPhase::Serving, String::new());
    let blocker = Blocker { member, release: release.clone(), phase, external: false, since: at, why };
    all.check("Blocker", &BlockerView { blocker, name: Some(name) });
    let (kind, namespace, name) = ("k".into(), "default".into(), "o".into());
    all.check("DeletedObject", &DeletedObjectView { kind, namespace, name, revision: Revision(7) });
    let change = AutopilotChangeView {
        at,
        action: AutopilotAction::Promote,
        node: NodeId::from_entropy(4),
        replaces: None,
        outcome: AutopilotOutcome::Settled,
        why: "w".into(),
    };
    all.check("AutopilotChange", &change);
    let drain = Drain { by: Principal::Operator, at, until: Some(at), replace: true };
    all.check("Drain", &DrainView::from(&drain));
    let pause = AutopilotPause { by: Principal::Operator, at, why: "w".into(), gave_up: true };
    all.check("Declared", &DeclaredView { managers: 3, paused: Some(AutopilotPauseView::from(&pause)) });
    all.check("Hold", &HoldView { reason: "any".into(), message: "m".into() });
    all.check("GateTarget", &GateTarget { release, digest: "d".into(), floor: triple("2.0.0") });
    let wait = PlannedWaitView {
        wave: 1,
        kind: "job".into(),
        namespace: "default".into(),
        name: "warm-up".into(),
        path: "/status/phase".into(),
        equals: json!("done"),
        holds: false,
        message: Some("not yet".into()),
    };
    all.check("PlannedWait", &wait);
    let node = Some("n1".parse().unwrap());
    let (step, digest) = ("first".to_owned(), "d".to_owned());
    all.check("Step", &StepView { name: step, digest, release: Some(triple("2.0.0").into()), at: Some(at), node });
    let side = PlannedSideView { body: json!({}), labels: BTreeMap::from([("a".into(), "b".into())]) };
    let (kind, namespace, name) = ("k".into(), "default".into(), "o".into());
    all.check(
        "PlannedObject",
        &PlannedObjectView { op: "create".into(), kind, namespace, name, before: None, after: Some(side) },
    );
}

/// What a cluster without a program's members and gates does not answer.
#[tokio::test]
async fn answers_about_gates_and_members_match_their_schemas() {
    let world = crate::tests::World::new();
    let mut all = Checked(Schemas::of(description()));
    for (method, path, target, body) in [
        ("post", "/v1/members/{scope}/{member}/drain", "/v1/members/db/m1/drain", ""),
        ("delete", "/v1/members/{scope}/{member}", "/v1/members/db/m1", ""),
        ("get", "/v1/members", "/v1/members", ""),
        ("get", "/v1/reconcilers", "/v1/reconcilers", ""),
        ("get", "/v1/reconcilers/{name}", "/v1/reconcilers/schema", ""),
        ("get", "/v1/reconcilers/{name}/plan", "/v1/reconcilers/schema/plan", ""),
        ("get", "/v1/reconcilers/{name}/history", "/v1/reconcilers/schema/history", ""),
        ("get", "/v1/reconcilers/{name}/runs", "/v1/reconcilers/schema/runs", ""),
        ("get", "/v1/reconcilers/{name}/runs/{run}/log", "/v1/reconcilers/schema/runs/1/log?offset=2&wait=1s", ""),
        ("post", "/v1/reconcilers/{name}/retry", "/v1/reconcilers/schema/retry", ""),
        ("post", "/v1/reconcilers/{name}/force-floor", "/v1/reconcilers/schema/force-floor", r#"{"release":"3.0.0"}"#),
        ("post", "/v1/reconcilers/{name}/pause", "/v1/reconcilers/schema/pause", ""),
    ] {
        let (status, answer) = world.http(&Principal::Operator, &method.to_uppercase(), target, body).await;
        assert_eq!(status, 200, "{target}: {answer}");
        let operation = &all.0.described["paths"][path][method];
        let schema = operation["responses"]["200"]["content"]["application/json"]["schema"].clone();
        all.0.check(&schema, &answer).unwrap_or_else(|fault| panic!("{target}: {fault}"));
    }
    for met in [
        "MemberChanged",
        "Participant",
        "Reconciler",
        "ReconcilerStatus",
        "Plan",
        "GateHistory",
        "ForcedFloor",
        "Run",
        "RunExit",
        "RunLog",
    ] {
        assert!(all.0.met.contains(met), "{met}");
    }
}
