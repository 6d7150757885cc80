//! Audit lines of requests passing through the service, with a probe in place of the log's actor.

use std::sync::Arc;

use muster_audit::{AuditLog, AuditSetup, AuditState, Via};
use muster_messages::protocol::{AuditFault, AuditMsg};
use muster_messages::wire::{ApiCall, KubeCall};
use muster_messages::{Lease, LeaseSpec, NodeId, Object, ObjectBody, ObjectKey, ObjectMeta, Role, Uid};
use muster_testkit::{ActorHarness, Probe};
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::tests::{REQUEST, World};

/// A leader with an audit log whose actor is a probe.
async fn logged(required: bool) -> (ActorHarness, World, Probe<AuditMsg>) {
    let harness = ActorHarness::start().await;
    let probe: Probe<AuditMsg> = harness.probe("audit");
    let (node, state) = (NodeId::from_entropy(1), watch::channel(AuditState::default()).1);
    let mut world = World::with(crate::tests::tables(), |tables, command| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    });
    let setup = AuditSetup { node, required, reads: false, to: probe.recipient(), state };
    world.service.ports_mut().audit = AuditLog::new(setup);
    (harness, world, probe)
}

fn call(request: Request) -> ApiCall {
    ApiCall { id: 0, request_id: REQUEST, timeout_ms: 5_000, request }
}
fn rotate() -> Request {
    Request::TokenRotate { role: Role::Worker }
}

async fn line(probe: &mut Probe<AuditMsg>) -> Value {
    let pick = |msg| match msg {
        AuditMsg::Record { line, reply } => {
            if let Some(reply) = reply {
                let _gone = reply.send(Ok(()));
            }
            Some(line)
        }
        _ => None,
    };
    let line = probe.expect("a line", pick).await;
    serde_json::from_str(&line).unwrap()
}

#[tokio::test(start_paused = true)]
async fn change_has_one_audit_line_with_caller_origin_and_time() {
    let (harness, world, mut probe) = logged(false).await;
    let via = Via::Socket { uid: 1000, pid: Some(7) };
    let origin = Origin { via, ..Origin::default() };
    let create =
        Request::AccessTokenCreate { user: "ann".parse().unwrap(), namespace: "default".to_owned(), ttl_ms: None };
    let answer = world.service.answer_from(&origin, Principal::Operator, call(create)).await.unwrap();
    let entry = line(&mut probe).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&entry["verb"], &entry["outcome"]), (&json!("access_token.create"), &json!("done")));
    assert_eq!((&entry["request"], &entry["object"]["id"]), (&json!(REQUEST.to_string()), &answer["id"]));
    assert_eq!(entry["revision"], world.published.borrow().tables.revision.0);
    assert_eq!(entry["via"], json!({"socket": {"uid": 1000, "pid": 7}}));
    let secret = answer["token"].as_str().and_then(|token| token.rsplit('-').next()).unwrap();
    assert!(!entry.to_string().contains(secret));
    probe.expect_none(std::time::Duration::from_secs(60)).await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn refusals_have_lines_and_plain_reads_have_none() {
    let (harness, world, mut probe) = logged(true).await;
    let forwarder = NodeId::from_entropy(3);
    let user = Principal::User("ann".parse().unwrap());
    let promote = Request::SetRole { node: "n4".to_owned(), role: Role::Manager };
    probe.on(|msg| match msg {
        AuditMsg::Check { reply } => {
            let _gone = reply.send(Ok(()));
            None
        }
        other => Some(other),
    });
    let origin = Origin::forwarded_by(forwarder);
    let refused = world.service.answer_from(&origin, user.clone(), call(promote)).await.unwrap_err();
    let entry = line(&mut probe).await;
    assert_eq!((refused.code, &entry["code"]), (ErrorCode::Forbidden, &json!("forbidden")));
    assert_eq!((&entry["by"]["id"], &entry["forwarder"]), (&json!("ann"), &json!(forwarder)));
    let list = || call(Request::TokenList);
    assert!(world.service.answer(user, list()).await.is_err());
    assert_eq!(line(&mut probe).await["verb"], "token.list", "a forbidden read");
    world.service.answer(Principal::Operator, list()).await.unwrap();
    probe.expect_none(std::time::Duration::from_secs(60)).await;
    harness.finish().await;
}

/// A renewal has no line, and its refusal is an answer of its protocol.
#[tokio::test(start_paused = true)]
async fn refused_renewal_of_a_kubernetes_client_has_a_line() {
    let (harness, world, mut probe) = logged(false).await;
    let key = ObjectKey::lease("default", "l");
    let spec = LeaseSpec { holder: Some("a".to_owned()), ..Default::default() };
    let lease = Object {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        meta: ObjectMeta::fresh(Uid(1)),
        body: ObjectBody::Lease(Lease { spec, holding: Default::default() }),
    };
    world.published.send_modify(|replica| {
        Arc::make_mut(replica).tables.objects.insert(key, Arc::new(lease));
    });
    let renewal = KubeCall {
        method: "PUT".to_owned(),
        target: "/apis/coordination.k8s.io/v1/namespaces/default/leases/l".to_owned(),
        content_type: None,
        accept: None,
        user_agent: None,
        body: br#"{"spec":{"holderIdentity":"a"}}"#.to_vec(),
    };
    let user = Principal::User("ann".parse().unwrap());
    let answer = world.service.answer(user, call(Request::Kube(renewal))).await.unwrap();
    assert!(answer.contains("403"), "{answer}");
    let entry = line(&mut probe).await;
    assert_eq!((&entry["verb"], &entry["code"]), (&json!("PUT leases"), &json!("forbidden")));
    assert_eq!((&entry["by"]["id"], &entry["object"]["name"]), (&json!("ann"), &json!("default/l")));
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn hanging_required_log_refuses_only_changes_and_secrets() {
    let (harness, world, mut probe) = logged(true).await;
    probe.on(|msg| match msg {
        // It never answers.
        AuditMsg::Check { reply } => {
            std::mem::forget(reply);
            None
        }
        other => Some(other),
    });
    for request in [rotate(), Request::TokenShow { role: Role::Worker }] {
        let begun = tokio::time::Instant::now();
        let refused = world.service.answer(Principal::Operator, call(request)).await.unwrap_err();
        assert_eq!(
            (refused.code, refused.code.http_status(), refused.code.exit_status()),
            (ErrorCode::AuditUnavailable, 503, 5)
        );
        assert!(begun.elapsed() < std::time::Duration::from_secs(2));
        assert_eq!(line(&mut probe).await["code"], "audit_unavailable");
    }
    assert!(world.proposed().is_empty(), "nothing was proposed");
    world.service.answer(Principal::Operator, call(Request::Status { fresh: false })).await.unwrap();
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn change_whose_line_fails_has_an_unknown_outcome() {
    let (harness, world, probe) = logged(true).await;
    probe.on(|msg| {
        match msg {
            AuditMsg::Check { reply } => drop(reply.send(Ok(()))),
            AuditMsg::Record { reply: Some(reply), .. } => {
                drop(reply.send(Err(AuditFault("no space left".to_owned()))));
            }
            _ => {}
        }
        None
    });
    let update = Request::NodeUpdate {
        node: "n1".to_owned(),
        add: [("a".to_owned(), "b".to_owned())].into(),
        remove: vec![],
        generation: None,
    };
    let failed = world.service.answer(Principal::Operator, call(update)).await.unwrap_err();
    assert_eq!(failed.code, ErrorCode::UnknownOutcome);
    assert!(failed.message.contains("no space left"), "{failed}");
    assert_eq!(world.proposed().len(), 1, "the write was proposed");
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn caller_that_hangs_up_leaves_a_line() {
    let (harness, world, mut probe) = logged(false).await;
    let published = Arc::clone(&world.published);
    // Without a leader, the request waits for one.
    published.send_modify(|replica| Arc::make_mut(replica).raft.leading = false);
    let asking = world.service.answer(Principal::Operator, call(rotate()));
    assert!(tokio::time::timeout(std::time::Duration::from_secs(1), asking).await.is_err());
    let entry = line(&mut probe).await;
    assert_eq!((&entry["outcome"], &entry["verb"]), (&json!("unknown_outcome"), &json!("token.rotate")));
    harness.finish().await;
}
