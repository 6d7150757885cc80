//! Which request an id identifies, and how a write with unknown outcome is reported.

use axum::http::StatusCode;
use muster_messages::wire::{ApiCall, KubeCall, Request};
use muster_messages::*;
use serde_json::json;

use crate::core;
use crate::tests::{World, tables};
use crate::writes::lost_leadership;

fn label(value: &str) -> Request {
    let add = [("owner".to_owned(), value.to_owned())].into();
    Request::NodeUpdate { node: "n2".to_owned(), add, remove: vec![], generation: None }
}

/// A leader that applies what is proposed.
fn applying() -> World {
    World::with(tables(), |tables, command| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    })
}

#[tokio::test]
async fn request_id_identifies_one_request_of_one_caller() {
    let world = applying();
    let (ann, bob) = (Principal::Admin("ann".parse().unwrap()), Principal::Admin("bob".parse().unwrap()));
    let (status, node, _) = world.native(&ann, label("one")).await;
    assert_eq!((status, &node["labels"]["owner"]), (StatusCode::OK, &json!("one")));
    let (status, error, _) = world.native(&ann, label("two")).await;
    assert_eq!((status, &error["error"]["code"]), (StatusCode::CONFLICT, &json!("conflict")), "{error}");
    let (status, node, _) = world.native(&bob, label("three")).await;
    assert_eq!((status, &node["labels"]["owner"]), (StatusCode::OK, &json!("three")));
    let (status, node, _) = world.native(&ann, label("one")).await;
    assert_eq!((status, &node["labels"]["owner"]), (StatusCode::OK, &json!("three")), "a retry is not applied again");
}

/// Its answer was lost. The request names the node by its former name.
#[tokio::test]
async fn retried_rename_gets_the_first_answer() {
    let world = applying();
    let rename = || Request::NodeRename { node: "n2".to_owned(), name: "m2".parse().unwrap() };
    let (status, first, _) = world.native(&Principal::Operator, rename()).await;
    assert_eq!((status, &first["before"], &first["changed"]), (StatusCode::OK, &json!("n2"), &json!(true)), "{first}");
    let (status, again, _) = world.native(&Principal::Operator, rename()).await;
    assert_eq!((status, again), (StatusCode::OK, first));
}

/// The entry that activates a root after a compromised one replaces the default tokens, too.
#[tokio::test]
async fn token_that_was_replaced_meanwhile_is_not_rotated() {
    let token = |id: &str| Token {
        id: id.to_owned(),
        role: Role::Worker,
        secret: Secret::new("secret"),
        default: true,
        created_at: WallTime(0),
        expires_at: None,
        uses_left: None,
        revision: Revision(1),
    };
    for replaced in [false, true] {
        let mut tables = tables();
        tables.tokens.insert("before".to_owned(), token("before"));
        let world = World::with(tables, move |tables, command| {
            if replaced {
                tables.tokens.remove("before");
                tables.tokens.insert("another".to_owned(), token("another"));
            }
            let at = tables.revision.next();
            Some(muster_store::apply(tables, at, command))
        });
        let (status, answer, _) = world.native(&Principal::Operator, Request::TokenRotate { role: Role::Worker }).await;
        assert_eq!(status == StatusCode::NOT_FOUND, replaced, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_write_is_not_reported_as_refused() {
    let world = World::with(tables(), |_, _| None);
    let (_, error, _) = world.native(&Principal::Operator, label("one")).await;
    assert_eq!(error["error"]["code"], "unknown_outcome", "{error}");
    let text = error["error"]["message"].as_str().unwrap();
    assert!(text.contains("may still happen") && text.contains("`muster node inspect n2`"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn write_that_entered_no_log_is_reported_as_refused() {
    let world = World::with(tables(), |_, _| None);
    world.published.send_replace(std::sync::Arc::new(Replica { tables: tables(), raft: RaftStatus::default() }));
    let (_, error, proposed) = world.native(&Principal::Operator, label("one")).await;
    assert_eq!((error["error"]["code"].as_str(), proposed.len()), (Some("no_quorum"), 0), "{error}");
}

/// Nothing was begun: its outcome is known, and a repeat until the deadline would be refused as well.
#[tokio::test(start_paused = true)]
async fn transfer_to_a_silent_manager_is_refused_at_once() {
    let world = World::with(tables(), |_, _| None);
    let mut with_n2 = tables();
    let member = Member { raft_id: RaftId(2), node: NodeId::from_entropy(2), addr: "n2:1".to_owned(), voter: true };
    with_n2.members.insert(RaftId(2), member);
    world.published.send_replace(crate::tests::leading(with_n2));
    let (_, error, _) = world.native(&Principal::Operator, Request::TransferLeader { to: Some("n2".to_owned()) }).await;
    assert_eq!(error["error"]["code"], "timed_out", "{error}");
    assert!(error["error"]["message"].as_str().unwrap().contains("n2 does not answer and cannot take over"), "{error}");
}

/// A user names a lease like a text that managers exchange.
#[test]
fn name_in_error_details_is_not_read_as_error_mark() {
    let refused = |name: &str| {
        let details = Details::of(&json!({"lease": name, "holder": name}));
        ErrorBody::new(ErrorCode::Conflict, "it is held").with_details(&details)
    };
    for name in ["not_leading", "not_sent"] {
        assert!(!lost_leadership(&refused(name)), "{name}: it must not be retried");
    }
    let leading = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead").marked(ErrorMark::NotLeading);
    assert!(lost_leadership(&leading));
}

#[tokio::test]
async fn a_forgotten_outcome_is_final() {
    let mut forgetful = tables();
    forgetful.requests.floor = RequestId(u128::MAX);
    let world = World::with(forgetful, |tables, command| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    });
    let (_, error, proposed) = world.native(&Principal::Operator, label("one")).await;
    assert_eq!((error["error"]["code"].as_str(), proposed.len()), (Some("unknown_outcome"), 1), "{error}");
    assert_eq!(error["error"]["details"]["final"], true);
}

/// API-6: config maps of 250 KB, as many as the caller can write, by a user and by a node in turn.
#[tokio::test(start_paused = true)]
async fn one_caller_adds_bounded_bytes_to_the_log() {
    let mut tables = tables();
    let ann: Name = "ann".parse().unwrap();
    let user = User {
        name: ann.clone(),
        kind: UserKind::User,
        namespaces: vec!["default".to_owned()],
        serial: String::new(),
        created_at: WallTime(0),
        not_after: WallTime(0),
        revision: Revision(1),
    };
    tables.users.insert(ann.clone(), user);
    let world = World::with(tables, |tables, command| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    });
    let mut number = 0;
    let mut written = async |caller: Principal, most: usize| {
        for done in 0..most {
            number += 1;
            let data = "x".repeat(250_000);
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{number}")}, "data": {"x": data}});
            let call = KubeCall {
                method: "POST".to_owned(),
                target: "/api/v1/namespaces/default/configmaps".to_owned(),
                content_type: None,
                accept: None,
                user_agent: None,
                body: map.to_string().into_bytes(),
            };
            let call =
                ApiCall { id: 0, request_id: RequestId(number), timeout_ms: 5_000, request: Request::Kube(call) };
            match world.service.answer(caller.clone(), call).await {
                // This leader keeps no history to show the object from.
                Ok(answer) => assert!(answer.contains("it was applied at revision"), "{answer}"),
                Err(error) => return (done, Some((error.code, error.retry_after_ms))),
            }
        }
        (most, None)
    };
    let user = Principal::User(ann);
    assert_eq!(written(user.clone(), 100).await, (33, Some((ErrorCode::TooManyRequests, Some(135)))));
    assert_eq!(written(user.clone(), 1).await.0, 0, "a refused write costs no quota, and none passes early");
    assert_eq!(written(crate::tests::node(2), 20).await, (20, None), "other callers have their own quota");
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    assert_eq!(written(user, 100).await.0, 4);
    let (status, _, proposed) = world.native(&Principal::Operator, label("one")).await;
    assert_eq!((status, proposed.len()), (StatusCode::OK, 33 + 20 + 4 + 1), "refused writes were not proposed");
}

#[test]
fn events_come_in_pages_that_a_frame_holds() {
    let mut tables = tables();
    for n in 0..6_000 {
        let event = Event {
            revision: Revision(20 + n / 2),
            at: WallTime(0),
            kind: [EventKind::Lease, EventKind::Role, EventKind::Certificate][n as usize % 3],
            node: None,
            by: Principal::Operator,
            reason: format!("{n} {}", "r".repeat(400)),
            before: None,
            after: None,
        };
        let history = match event.kind {
            EventKind::Lease => &mut tables.frequent_events,
            EventKind::Role => &mut tables.events,
            _ => &mut tables.routine_events,
        };
        history.push_back(std::sync::Arc::new(event));
    }
    tables.revision = Revision(5_000);
    let (mut whole, mut since, mut pages) = (None, Revision(0), 0);
    loop {
        let page = core::events_page(&tables, since, 512 * 1024);
        let bytes = serde_json::to_string(&page).unwrap().len();
        assert!(bytes < 600 * 1024, "a page of {bytes} bytes");
        let (document, next) = EventsView::joined(whole.take(), page);
        pages += 1;
        whole = Some(document);
        let Some(next) = next else { break };
        assert!(since < next);
        since = next;
    }
    let whole = whole.unwrap();
    let revisions: Vec<Revision> = whole.items.iter().map(|event| event.revision).collect();
    assert!(
        pages > 3 && revisions.is_sorted() && revisions.len() == 6_000,
        "{pages} pages, {} events",
        revisions.len()
    );
    assert_eq!((whole.revision, whole.more), (Revision(5_000), false));
}

#[test]
fn events_after_any_revision_are_answered_from_full_histories() {
    let mut tables = tables();
    let event = Event {
        revision: Revision(20),
        at: WallTime(0),
        kind: EventKind::Lease,
        node: None,
        by: Principal::Operator,
        reason: String::new(),
        before: None,
        after: None,
    };
    tables.frequent_events = std::iter::repeat_n(std::sync::Arc::new(event), muster_store::MAX_EVENTS).collect();
    tables.revision = Revision(21);
    for (since, incomplete_before) in [(7, Some(Revision(20))), (19, None), (u64::MAX, None)] {
        let page = core::events_page(&tables, Revision(since), 1024);
        assert_eq!(page.incomplete_before, incomplete_before, "{since}");
    }
}

/// LEVEL-4: a manager of an earlier build could not read them.
#[test]
fn newer_definitions_are_refused_below_their_level() {
    use muster_messages::wire::ReconcilerRequest;
    let at = |level: u32| {
        let mut tables = tables();
        let cluster =
            tables.cluster.as_ref().map(|cluster| ClusterRecord { feature_level: level, ..(**cluster).clone() });
        tables.cluster = cluster.map(std::sync::Arc::new);
        tables
    };
    let usual = Definition::new("schema", Triple::new(1, 0, 0).into(), "db", Triple::default(), Action::Handler);
    let options = DefinitionOptions { applies: Applies::OrLater, ..DefinitionOptions::default() };
    let (or_later, chain) =
        (Definition { options, ..usual.clone() }, Definition { action: Action::Chain(vec![]), ..usual.clone() });
    let apply = |definition: &Definition| {
        Request::Reconciler(ReconcilerRequest::Apply { definitions: vec![definition.clone()], replace: false })
    };
    let check = crate::writes::check_supported_by_all;
    assert_eq!(check(&at(DEFINITIONS_LEVEL - 1), &apply(&usual)), Ok(()));
    for newer in [&or_later, &chain] {
        let refusal = check(&at(DEFINITIONS_LEVEL - 1), &apply(newer)).unwrap_err();
        assert!(refusal.code == ErrorCode::GateClosed && refusal.message.contains("it rises once"), "{refusal:?}");
        assert_eq!(check(&at(DEFINITIONS_LEVEL), &apply(newer)), Ok(()));
    }
    // A manager that has just started knows no level: another one may answer.
    let unknown = check(&muster_messages::Tables::default(), &apply(&chain)).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::Unreachable);
}

#[test]
fn events_name_the_requests_that_caused_them() {
    let mut tables = tables();
    let user = Principal::Admin("ann".parse().unwrap());
    let event = |revision: u64, by: &Principal| Event {
        revision: Revision(revision),
        at: WallTime(0),
        kind: EventKind::Role,
        node: None,
        by: by.clone(),
        reason: String::new(),
        before: None,
        after: None,
    };
    for (revision, by) in
        [(11, &user), (12, &Principal::Operator), (12, &Principal::Operator), (13, &Principal::Cluster)]
    {
        tables.events.push_back(std::sync::Arc::new(event(revision, by)));
    }
    tables.revision = Revision(13);
    let mut answered = |by: &Principal, id, revision, refused: Option<CommandRefusal>| {
        let mut own = tables.requests.callers.get(by).map(|own| (**own).clone()).unwrap_or_default();
        let refused = refused.map(Box::new);
        own.outcomes.insert(RequestId(id), Answered { revision: Revision(revision), digest: 7, refused });
        tables.requests.callers.insert(by.clone(), std::sync::Arc::new(own));
    };
    // Another caller's request, one that was refused, and one of a later time are none of an event's.
    answered(&user, 0x21, 12, None);
    answered(&user, 0x22, 11, None);
    answered(&Principal::Operator, 0x31, 12, None);
    answered(&Principal::Operator, 0x32, 11, None);
    answered(&Principal::Operator, 0x33, 12, Some(CommandRefusal::OutcomeForgotten(Box::new(RequestId(1)))));
    answered(&Principal::Cluster, 0x41, 13, None);
    let page = core::events_page(&tables, Revision(0), 512 * 1024);
    let requests: Vec<Option<String>> = page.items.into_iter().map(|event| event.request).collect();
    let id = |id: u128| Some(RequestId(id).to_string());
    assert_eq!(requests, [id(0x22), id(0x31), id(0x31), None]);
}
