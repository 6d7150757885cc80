//! Requests to the leader by various callers, and a wave's writes, before a raft member that is a closure.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::wire::{LeaseRef, LeaseRequest, Request};
use muster_messages::{
    Action, Blocker, CommandAction, FencingToken, GateStep, Hold, MANAGERS_SCOPE, ManagedKey, NodeId, NotAdmitted,
    Participant, PhaseReason, ReconcilerPhase, Release, WallTime, candidates_scope, level_release,
};
use serde_json::Value;

use super::*;
use crate::tests::{REQUEST, TERM, World, candidate, definition, leading, node, participant, run, tables_of, triple};

fn progress() -> Progress {
    Progress {
        reconciler: "schema".into(),
        term: TERM,
        node: NodeId::from_entropy(1),
        release: triple("2.0.0").into(),
        phase: ReconcilerPhase::Running.into(),
        reason: PhaseReason::Unneeded.into(),
        message: String::new(),
        since: WallTime(0),
        attempt: 1,
        consecutive_failures: 0,
        last_error: None,
        next_retry_at: None,
        wave: None,
        output: String::new(),
    }
}

fn step(name: &str) -> ReconcilerRequest {
    let (name, digest, step) = (name.to_owned(), definition(vec![]).digest, GateStep::Complete);
    ReconcilerRequest::Step { name, release: triple("2.0.0"), digest, term: TERM, epoch: 1, step }
}
fn wave(definition: &Definition) -> ReconcilerRequest {
    let (name, digest) = (definition.reconciler.clone(), definition.digest.clone());
    ReconcilerRequest::Wave { name, release: definition.release.triple, digest, term: TERM, wave: 0 }
}

/// API-4. Each of these would be valid on node 1, where the candidate and the run are.
#[tokio::test(start_paused = true)]
async fn other_node_cannot_act_for_candidate_participant_or_run() {
    use ReconcilerRequest as R;
    let world = World::new();
    let key = || candidate().key;
    let announced = Participant { phase: ParticipantPhase::Announced, ..participant("db", "m9", 9, Some(1)) };
    let lease = || LeaseRef { namespace: key().lease().namespace, name: key().lease().name };
    let renew = LeaseRequest::Renew { session: key().incarnation, held: vec![(lease(), FencingToken(2))] };
    let release = LeaseRequest::Release { lease: lease(), session: key().incarnation, token: FencingToken(2) };
    let reconcilers = [
        R::Announce { participant: announced },
        R::Admit { key: key() },
        R::Leave { key: key() },
        step("schema"),
        wave(&definition(vec![])),
        R::Progress { progress: progress() },
        R::RecordRun { record: Box::new(run(1, 1)) },
    ];
    for request in reconcilers.map(Request::Reconciler).into_iter().chain([renew, release].map(Request::Lease)) {
        let (status, answer, proposed) = world.native(&node(2), request.clone()).await;
        assert_eq!((status.as_u16(), proposed.len()), (403, 0), "{request:?}: {answer}");
        let (status, answer, _) = world.native(&node(1), request.clone()).await;
        assert_ne!(status, 403, "{request:?}: {answer}");
    }
}

/// A manager's socket acts as operator; after a demotion it acts as the node.
#[tokio::test]
async fn member_of_a_managers_socket_belongs_to_that_node() {
    let announce = |incarnation| {
        let key = participant("db", "m2", incarnation, None).key;
        let token = (!key.is_external()).then_some(FencingToken(2));
        ReconcilerRequest::Announce { participant: Participant { key, token, ..participant("db", "m2", 9, None) } }
    };
    let placed = |proposed: &[crate::tests::Proposal]| match &proposed[0].2[..] {
        [Change::Reconciler(ReconcilerChange::Announce(participant))] => participant.node,
        other => panic!("{other:?}"),
    };
    let world = World::new();
    let (_, _, proposed) = world.reconciler(&Principal::Operator, announce(9)).await;
    assert_eq!(placed(&proposed), Some(NodeId::from_entropy(1)), "the manager that was asked");
    let forward = |n: u128| {
        let request = Request::Reconciler(announce(9));
        world.service.answer_forwarded(NodeId::from_entropy(n), Principal::Operator, RequestId(n), 5_000, request)
    };
    let _answer = forward(3).await;
    assert_eq!(placed(&world.proposed()), Some(NodeId::from_entropy(3)), "the manager that forwarded it");
    let admin = Principal::Admin("ann".parse().unwrap());
    for (caller, incarnation) in [(Principal::Operator, 0), (admin, 9)] {
        let (_, _, proposed) = world.reconciler(&caller, announce(incarnation)).await;
        assert_eq!(
            placed(&proposed),
            None,
            "an external member, and one that an administrator announces from anywhere"
        );
    }
}

/// API-7. The reconciler `schema` is of the scope `db`.
#[tokio::test]
async fn member_of_another_scope_than_its_reconcilers_is_refused() {
    use ReconcilerRequest as R;
    let member = |scope: &str, needs: &[&str]| {
        let needs = needs.iter().map(|name| ((*name).to_owned(), triple("0.0.0"))).collect();
        Participant { needs, phase: ParticipantPhase::Announced, ..participant(scope, "m9", 9, Some(1)) }
    };
    for (scope, needs, status) in [
        ("db", &["schema"][..], 200),
        ("bd", &["schema"], 400),
        ("bd", &["schema", "unheard-of"], 200),
        ("bd", &["unheard-of"], 200),
        ("bd", &[], 200),
    ] {
        let announce = R::Announce { participant: member(scope, needs) };
        let (answered, answer, _) = World::new().reconciler(&node(1), announce).await;
        assert_eq!(answered.as_u16(), status, "{scope} {needs:?}: {answer}");
        let text = answer.to_string();
        assert_eq!(text.contains("schema belongs to scope db, not bd"), status == 400, "{text}");
    }
    // Its reconciler was defined, elsewhere, after it had been announced.
    let mut tables = tables_of(definition(vec![]));
    let early = member("bd", &["schema"]);
    let key = early.key.clone();
    tables.reconcilers.participants.insert(key.clone(), Arc::new(early));
    let world = World::with(tables, |_, _| Some(Ok(())));
    let (answered, answer, proposed) = world.reconciler(&node(1), R::Admit { key }).await;
    assert_eq!((answered.as_u16(), proposed.len()), (400, 0), "{answer}");
}

#[tokio::test]
async fn changed_definition_is_refused_with_the_flag_that_replaces_it() {
    let world = World::applying(tables_of(definition(vec![])));
    let changed = Definition { settle_ms: 7, ..definition(vec![]) };
    let apply = |replace| ReconcilerRequest::Apply { definitions: vec![changed.clone()], replace };
    let (status, answer, _) = world.reconciler(&Principal::Operator, apply(false)).await;
    assert_eq!(status.as_u16(), 409, "{answer}");
    assert!(answer.to_string().contains("needs --replace"), "{answer}");
}

fn depending(name: &str, depends_on: &[&str]) -> Definition {
    let depends_on = depends_on.iter().map(|name| (*name).to_owned()).collect();
    Definition { depends_on, reconciler: name.to_owned(), ..definition(vec![]) }
}

#[tokio::test]
async fn definition_that_depends_on_nothing_known_is_refused() {
    for (definitions, status) in [
        (vec![depending("app", &["shcema"])], 400),
        (vec![depending("app", &["schema"])], 200),
        (vec![depending("other", &["base"]), depending("base", &[])], 200),
    ] {
        let apply = ReconcilerRequest::Apply { definitions, replace: false };
        let world = World::applying(tables_of(definition(vec![])));
        let (answered, answer, _) = world.reconciler(&Principal::Operator, apply).await;
        assert_eq!(answered.as_u16(), status, "{answer}");
        assert_eq!(answer.to_string().contains("app 2.0.0 depends on shcema"), status == 400, "{answer}");
    }
}

#[tokio::test]
async fn definitions_that_wait_for_each_other_are_refused() {
    for (existing, definitions, refusal) in [
        (
            None,
            vec![depending("app", &["other"]), depending("other", &["app"])],
            "app 2.0.0 would never run: other depends on app depends on other;",
        ),
        (
            None,
            vec![depending("front", &["app"]), depending("app", &["other"]), depending("other", &["app"])],
            "app depends on other depends on app;",
        ),
        // `other` was defined when `app` had another definition.
        (
            Some(depending("other", &["app"])),
            vec![depending("app", &["other"])],
            "other depends on app depends on other;",
        ),
        // A chain without a cycle.
        (None, vec![depending("front", &["app"]), depending("app", &["other"]), depending("other", &[])], ""),
        (Some(depending("app", &[])), vec![depending("other", &["app"])], ""),
    ] {
        let mut tables = tables_of(definition(vec![]));
        let existing = existing.map(|d| (d.key(), Arc::new(d)));
        tables.reconcilers.definitions.extend(existing);
        let world = World::applying(tables);
        let apply = ReconcilerRequest::Apply { definitions, replace: false };
        let (answered, answer, _) = world.reconciler(&Principal::Operator, apply).await;
        assert_eq!(answered.as_u16(), if refusal.is_empty() { 200 } else { 400 }, "{answer}");
        assert!(answer.to_string().contains(refusal), "{refusal}: {answer}");
    }
}

/// Its member is gone then, which says nothing about whether it was ever there.
#[tokio::test]
async fn retry_of_forgotten_member_gets_the_first_outcome() {
    let world = World::with(tables_of(definition(vec![])), |tables, command| {
        let at = tables.revision.next();
        Some(muster_store::apply(tables, at, command))
    });
    let forget = |member: &str| ReconcilerRequest::MemberForget { scope: "db".to_owned(), member: member.to_owned() };
    let (status, answer, _) = world.reconciler(&Principal::Operator, forget("m2")).await;
    assert_eq!(status.as_u16(), 404, "{answer}");
    for starts in [1, 0] {
        let (status, answer, _) = world.reconciler(&Principal::Operator, forget("m1")).await;
        assert_eq!((status.as_u16(), &answer["starts"]), (200, &starts.into()), "{answer}");
    }
    let (status, answer, _) = world.reconciler(&Principal::Operator, forget("m2")).await;
    assert_eq!(status.as_u16(), 409, "the id belongs to another request: {answer}");
}

/// Refusals, which the log remembers, repeat the names in a request.
#[tokio::test]
async fn run_name_longer_than_label_and_digest_is_refused() {
    use ReconcilerRequest as R;
    let world = World::new();
    let long = "a".repeat(600_000);
    for (name, digest) in [(&long, &definition(vec![]).digest), (&"schema".to_owned(), &long)] {
        let (name, release, digest) = (name.clone(), triple("2.0.0"), digest.clone());
        let wave = R::Wave { name: name.clone(), release, digest: digest.clone(), term: TERM, wave: 0 };
        let step = R::Step { name, release, digest, term: TERM, epoch: 1, step: GateStep::Work };
        for request in [wave, step] {
            let (status, answer, proposed) = world.reconciler(&node(1), request).await;
            assert_eq!((status.as_u16(), proposed.len()), (400, 0));
            assert!(answer.to_string().len() < 1_000);
        }
    }
}

#[tokio::test]
async fn progress_report_is_attributed_to_its_sender() {
    let claimed = Progress { node: NodeId::from_entropy(2), ..progress() };
    let (status, _, proposed) =
        World::new().reconciler(&node(1), ReconcilerRequest::Progress { progress: claimed }).await;
    let sent = vec![Change::Reconciler(ReconcilerChange::Progress(Box::new(progress())))];
    assert_eq!((status.as_u16(), proposed), (200, vec![(REQUEST, node(1), sent)]));
}

#[tokio::test]
async fn recorded_run_is_attributed_to_its_sender_and_cut() {
    let claimed = RunRecord { node: NodeId::from_entropy(2), tail: "x".repeat(9_000), ..run(1, 1) };
    let (status, _, proposed) =
        World::new().reconciler(&node(1), ReconcilerRequest::RecordRun { record: Box::new(claimed) }).await;
    let sent = RunRecord { tail: "x".repeat(muster_messages::MAX_RUN_TEXT_BYTES), ..run(1, 1) };
    let sent = vec![Change::Reconciler(ReconcilerChange::RecordRun(Box::new(sent)))];
    assert_eq!((status.as_u16(), proposed), (200, vec![(REQUEST, node(1), sent)]));
    let unnamed = RunRecord { reconciler: "x".repeat(9_000), ..run(1, 1) };
    let (status, ..) =
        World::new().reconciler(&node(1), ReconcilerRequest::RecordRun { record: Box::new(unnamed) }).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn run_of_a_step_with_a_long_name_is_recorded() {
    let status = async |step: usize, release: &str| {
        let release = serde_json::from_value(release.into()).unwrap();
        let record = Box::new(RunRecord { step: Some("s".repeat(step)), release, ..run(1, 1) });
        World::new().reconciler(&node(1), ReconcilerRequest::RecordRun { record }).await.0.as_u16()
    };
    assert_eq!((status(65, "2.0.0").await, status(253, "2.0.0").await, status(254, "2.0.0").await), (200, 200, 400));
    assert_eq!(status(1, "2.0.0-rc.1").await, 400, "releases are three numbers");
}

/// The raft member publishes while a reader looks through what it has published before.
#[tokio::test]
async fn reader_that_looks_for_news_holds_up_no_publication() {
    let (published, mut replicas) = watch::channel(Arc::<Replica>::default());
    let published = Arc::new(published);
    let mut looked = 0;
    let found = news_of(&mut replicas, |_| {
        looked += 1;
        let (publish, (done, finished)) = (Arc::clone(&published), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            publish.send_replace(Arc::default());
            let _late = done.send(());
        });
        finished.recv_timeout(Duration::from_secs(20)).expect("the publisher waits for the reader");
        looked == 2
    });
    assert!(found.await);
}

/// The lease of a runner is an object, and a runner begins nothing before it sees its own term.
#[tokio::test(start_paused = true)]
async fn view_of_a_runner_follows_its_lease() {
    let (_unchanged, late) = watch::channel(leading(tables_of(definition(vec![]))));
    let world = World::new().showing(late);
    let seen = Revision(1000);
    let view = ReconcilerRequest::View { name: "schema".into(), release: triple("2.0.0"), seen, wait_ms: 4000 };
    let (began, runner) = (Instant::now(), node(1));
    let mut viewing = std::pin::pin!(world.reconciler(&runner, view));
    let waits = tokio::time::timeout(Duration::from_millis(100), viewing.as_mut()).await.is_err();
    assert!(waits, "nothing has changed");
    world.published.send_modify(|replica| {
        let lease = Arc::make_mut(replica).tables.objects.get_mut(&runner_lease("schema")).expect("its lease");
        Arc::make_mut(lease).meta.revision = seen.next();
    });
    let (status, answer, _) = viewing.await;
    assert_eq!(status.as_u16(), 200, "{answer}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// API-3. This module only asks for the check.
#[tokio::test]
async fn requests_reserved_to_managers_are_refused_to_others() {
    use ReconcilerRequest as R;
    let world = World::new();
    let name = || LEVEL_RECONCILER.to_owned();
    let own = |n: u128| {
        let (member, release) = (NodeId::from_entropy(n).to_string(), Release::from(level_release(2)));
        let there = participant(MANAGERS_SCOPE, &member, 3, Some(n));
        Participant { release, phase: ParticipantPhase::Announced, ..there }
    };
    let level = level_release(2);
    let built_in = Definition::new(&name(), level.into(), MANAGERS_SCOPE, level, Action::Handler);
    let apply = || R::Apply { definitions: vec![built_in.clone()], replace: false };
    let raise = || R::RaiseLevel { level: 2, term: TERM };
    let mut sent = progress();
    sent.reconciler = name();
    for (manager, worker) in [
        (R::Announce { participant: own(1) }, R::Announce { participant: own(2) }),
        (R::Leave { key: own(1).key }, R::Leave { key: own(2).key }),
        (apply(), apply()),
        (raise(), raise()),
        (step(LEVEL_RECONCILER), step(LEVEL_RECONCILER)),
        (R::Progress { progress: sent.clone() }, R::Progress { progress: sent }),
    ] {
        let (status, answer, proposed) = world.reconciler(&node(2), worker.clone()).await;
        assert_eq!((status.as_u16(), proposed.len()), (403, 0), "{worker:?}: {answer}");
        let (status, answer, proposed) = world.reconciler(&node(1), manager.clone()).await;
        assert_eq!((status.as_u16(), proposed.len()), (200, 1), "{manager:?}: {answer}");
    }
    let (scope, member) = (|| MANAGERS_SCOPE.to_owned(), NodeId::from_entropy(1).to_string());
    let own_scope = Definition::new("schema", triple("3.0.0").into(), MANAGERS_SCOPE, triple("3.0.0"), Action::Handler);
    for request in [
        R::DeleteGate { name: name() },
        R::Delete { name: name() },
        R::ForceFloor { name: name(), floor: level, dry_run: false },
        R::MemberForget { scope: scope(), member: member.clone() },
        R::MemberDrain { scope: candidates_scope(LEVEL_RECONCILER), member },
        R::Apply { definitions: vec![own_scope], replace: false },
    ] {
        let (status, answer, proposed) = world.reconciler(&Principal::Operator, request.clone()).await;
        assert_eq!((status.as_u16(), proposed.len()), (403, 0), "{request:?}: {answer}");
    }
}

#[test]
fn details_of_a_closed_gate_name_the_reason() {
    let name = || "schema".to_owned();
    let blocker = Blocker {
        member: "shop".into(),
        release: triple("1.0.0").into(),
        phase: ParticipantPhase::Serving,
        external: false,
        since: WallTime(0),
        why: "it is older".into(),
    };
    let blocked = explained(CommandRefusal::BlockedByMembers { blockers: vec![blocker.clone()], in_all: 7 });
    assert_eq!(blocked.code, ErrorCode::GateClosed);
    assert_eq!(blocked.detail(detail::GATE_REASON), Some(detail::GateReason::Blockers.into()));
    assert_eq!(
        (blocked.detail(detail::BLOCKERS), blocked.detail(detail::BLOCKERS_IN_ALL)),
        (Some(vec![blocker]), Some(7))
    );
    assert!(blocked.details.ends_with(r#""blockers_in_all":7,"reason":"blockers"}"#), "{}", blocked.details);
    let held = explained(CommandRefusal::Held(Hold::Paused { reconciler: name() }));
    let waits = explained(CommandRefusal::NotAdmitted(NotAdmitted::NoGate { reconciler: name() }));
    assert_eq!((&*held.details, &*waits.details), (r#"{"reason":"paused"}"#, r#"{"reason":"no-gate"}"#));
}

/// Objects of one wave.
fn three() -> Definition {
    let object = |name: &str| DesiredObject {
        key: ManagedKey { kind: "table".into(), namespace: "default".into(), name: name.into() },
        labels: BTreeMap::new(),
        body: "{}".into(),
        wave: 0,
    };
    definition(["orders", "items", "prices"].map(object).into())
}

/// The log takes each write once under its own id, whichever leader proposes it again, and a repeated wave does not
/// rewrite what is already written.
#[tokio::test(start_paused = true)]
async fn wave_with_lost_answer_is_applied_once() {
    let definition = three();
    let mut nth = 0;
    let world = World::with(tables_of(definition.clone()), move |tables, command| {
        nth += 1;
        match nth {
            1 => None, // lost before it was applied
            2 => {
                muster_store::apply(tables, tables.revision.next(), command).unwrap();
                None // lost after it was applied
            }
            _ => Some(muster_store::apply(tables, tables.revision.next(), command)),
        }
    });
    let (status, answer, proposed) = world.reconciler(&node(1), wave(&definition)).await;
    assert_eq!(status, 200, "{answer}");
    let ids: BTreeSet<RequestId> = proposed.iter().map(|(request, ..)| *request).collect();
    assert_eq!(ids.len(), proposed.len(), "each write is its own request: {proposed:?}");
    assert!(!ids.contains(&RequestId(0)) && !ids.contains(&REQUEST), "{ids:?}");
    let tables = world.published.borrow().tables.clone();
    assert!(tables.outcomes.keys().all(|id| ids.contains(id)) && tables.outcomes.len() < ids.len());
    let made: Vec<_> = tables.reconcilers.objects.values().filter(|o| o.owner.is_some()).collect();
    assert_eq!(made.len(), 3);
    assert!(made.iter().all(|object| object.term == TERM && object.created == object.revision), "each written once");
    // The client repeats the request for lack of an answer.
    let (status, answer, proposed) = world.reconciler(&node(1), wave(&definition)).await;
    let counts = ["created", "updated", "deleted", "unchanged"].map(|count| answer[count].as_u64().unwrap());
    assert_eq!((status.as_u16(), counts, proposed), (200, [0, 0, 0, 3], vec![]));
}

/// Node 1 runs it.
#[tokio::test]
async fn arguments_of_a_command_are_not_shown_to_other_nodes() {
    use ReconcilerRequest as R;
    let argv = ["/bin/apply", "--password=hunter2"].map(str::to_owned).to_vec();
    let command = CommandAction { argv, env: [("TOKEN".to_owned(), "hunter2".to_owned())].into() };
    let definition = Definition { action: Action::Command(command), ..definition(vec![]) };
    let world = World::with(tables_of(definition), |_, _| Some(Ok(())));
    let (name, release) = ("schema".to_owned(), triple("2.0.0"));
    let view = R::View { name: name.clone(), release, seen: Revision(0), wait_ms: 0 };
    let plan = R::Plan { name, release: Some(release) };
    let secret = |answer: &Value| answer.to_string().contains("hunter2");
    let reader = Principal::Reader("eye".parse().unwrap());
    for (caller, of_view, of_plan) in
        [(node(1), true, false), (node(2), false, false), (Principal::Operator, true, true), (reader, false, false)]
    {
        let (status, answer, _) = world.reconciler(&caller, view.clone()).await;
        assert_eq!((status.as_u16(), secret(&answer)), (200, of_view), "{caller}: {answer}");
        let (status, answer, _) = world.reconciler(&caller, plan.clone()).await;
        assert_eq!((status.as_u16(), secret(&answer)), (200, of_plan), "{caller}: {answer}");
        assert!(answer.to_string().contains("/bin/apply"));
    }
}
