//! Members that want to serve.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_elector::clock::TokioTime;
use muster_messages::{CrashHow, HoldReason, PhaseReason, ReconcilerChange, SessionId};
use muster_reconciler::{
    Admission, AdmissionState, GateSeen, GateWatch, LeaseTiming, Member, MemberSetup, ServingGuard, Waiting,
    member_spec,
};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::World;
use crate::fleet::{Commands, Jumping, Node, announce, digested, schema};
use crate::judge::{release, triple};

async fn reason(waiting: &Waiting, wanted: &str) {
    let mut admission_state = waiting.admission_state();
    let found = admission_state.wait_for(
        |view| matches!(&view.admission_state, AdmissionState::Waiting { reason, .. } if reason.text() == wanted),
    );
    timeout(Duration::from_secs(60), found.map(|found| drop(found.unwrap()))).await.unwrap();
}
async fn ready(waiting: Waiting) -> ServingGuard {
    timeout(Duration::from_secs(60), waiting.ready()).await.unwrap().unwrap()
}

/// Scenario 2.
#[tokio::test(start_paused = true)]
async fn a_member_waits_for_the_first_run_and_then_serves() {
    let world = World::begin().await;
    let waiting = announce(&world, "m1", "1.0.0", Some("1.0.0")).await;
    reason(&waiting, "no-gate").await;
    world.with(|judge| judge.define(digested(schema("0.9.0", "0.0.0"))));
    let old = Node::start(&world, "n0", "0.9.0", &Commands::default()).await;
    reason(&waiting, "reconciler-too-old").await;
    old.stop().await;

    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0"))));
    let node = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    let guard = ready(waiting).await;
    assert!(guard.is_serving());
    world.with(|judge| assert_eq!(judge.serving("db").len(), 1));

    let late = announce(&world, "m0", "0.9.9", None).await;
    reason(&late, "below-floor").await;
    drop(late);
    guard.drain().await;
    world.with(|judge| assert_eq!(judge.serving("db").len(), 0));
    world.end([node]).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_dropped_leaves_at_once() {
    let world = World::begin().await;
    let guard = ready(announce(&world, "m1", "1.0.0", None).await).await;
    world.with(|judge| assert_eq!(judge.serving("db").len(), 1));
    let began = Instant::now();
    drop(guard);
    world.until("its record is gone", |judge| judge.tables.reconcilers.participants.is_empty()).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());

    let waiting = announce(&world, "m1", "1.0.0", Some("1.0.0")).await;
    reason(&waiting, "no-gate").await;
    drop(waiting);
    world
        .until("the waiting member's record is gone too", |judge| judge.tables.reconcilers.participants.is_empty())
        .await;
    world.with(|judge| assert!(judge.tables.objects.is_empty(), "no lease is left behind"));
    world.end([]).await;
}

/// 5.5: it has stopped before the cluster considers it stopped.
#[tokio::test(start_paused = true)]
async fn disconnected_member_is_revoked_before_its_record_goes() {
    let mut world = World::begin().await;
    let guard = ready(announce(&world, "m1", "1.0.0", None).await).await;
    sleep(Duration::from_secs(30)).await;
    assert!(guard.is_serving(), "renewed");
    world.cut("m1", true);
    let cut = Instant::now();
    let why = timeout(Duration::from_secs(60), guard.revoked()).await.unwrap();
    assert!(cut.elapsed() <= Duration::from_millis(10_100), "{:?}: {why}", cut.elapsed());
    assert_eq!(why, "its lease was lost: no renewal was confirmed in time");
    assert!(!guard.is_serving());
    world.harness.expects_error("the guarded work outlives its lease"); // as long as the guard is held
    world.with(|judge| assert_eq!(judge.serving("db").len(), 1, "the cluster waits out its margin"));
    world.until("its record goes with its lease", |judge| judge.serving("db").is_empty()).await;
    assert!(cut.elapsed() >= Duration::from_secs(13), "{:?}", cut.elapsed());

    // It returns: the revoked member stays revoked, and a new one starts from the beginning.
    world.cut("m1", false);
    sleep(Duration::from_secs(30)).await;
    assert!(!guard.is_serving());
    drop(guard);
    let guard = ready(announce(&world, "m1", "1.0.0", None).await).await;
    assert!(guard.is_serving());
    drop(guard);
    world.end([]).await;
}

#[tokio::test(start_paused = true)]
async fn member_asked_to_stop_is_revoked_and_blocks_until_stopped() {
    let world = World::begin().await;
    let guard = ready(announce(&world, "m1", "1.0.0", None).await).await;
    world.with(|judge| {
        let key = judge.serving("db")[0].key.clone();
        judge.change(ReconcilerChange::Drain(key)).unwrap();
    });
    timeout(Duration::from_secs(2), guard.revoked()).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    world.with(|judge| assert_eq!(judge.tables.reconcilers.participants.len(), 1, "it may still serve"));
    guard.drain().await;
    world.with(|judge| assert!(judge.tables.reconcilers.participants.is_empty()));
    world.end([]).await;
}

/// Scenario 13.
#[tokio::test(start_paused = true)]
async fn deleted_gate_keeps_a_member_waiting_and_spares_others() {
    let world = World::begin().await;
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let node = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    let serving = ready(announce(&world, "m1", "1.0.0", Some("1.0.0")).await).await;
    node.stop().await;
    let waiting = announce(&world, "m2", "1.0.0", Some("2.0.0")).await;
    reason(&waiting, "reconciler-too-old").await;
    world.with(|judge| judge.change(ReconcilerChange::DeleteGate { reconciler: "schema".into() }).unwrap());
    reason(&waiting, "no-gate").await;
    sleep(Duration::from_secs(60)).await;
    assert!(serving.is_serving());
    // The runner creates it again by a full run.
    let commands = Commands::default();
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("the gate is there again", |judge| judge.gate("schema").is_some()).await;
    assert_eq!(commands.with(|ledger| ledger.begun.len()), 1);
    reason(&waiting, "reconciler-too-old").await;
    drop((serving, waiting));
    world.end([node]).await;
}

/// Scenario 12: fail closed.
#[tokio::test(start_paused = true)]
async fn damaged_gate_admits_no_member_and_permits_no_run() {
    let world = World::begin().await;
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0"))));
    let commands = Commands::default();
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("applied", |judge| judge.gate("schema").is_some()).await;
    let mut gate = GateWatch::new(world.link("g"), "schema");
    assert!(matches!(gate.next().await, Some(GateSeen::Gate(seen)) if seen.floor == triple("1.0.0")));
    world.with(|judge| judge.damage("schema"));
    assert_eq!(gate.next().await, Some(GateSeen::Unreadable));
    let runs = commands.with(|ledger| ledger.begun.len());
    let waiting = announce(&world, "m1", "1.0.0", Some("1.0.0")).await;
    reason(&waiting, "gate-unreadable").await;
    world
        .until("blocked", |judge| judge.progress["schema"].reason == PhaseReason::Held(HoldReason::GateUnreadable))
        .await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(commands.with(|ledger| ledger.begun.len()), runs);
    world.with(|judge| judge.change(ReconcilerChange::DeleteGate { reconciler: "schema".into() }).unwrap());
    assert_eq!(gate.next().await, Some(GateSeen::Absent));
    drop(ready(waiting).await);
    drop(gate);
    world.end([node]).await;
}

#[tokio::test(start_paused = true)]
async fn two_starts_of_one_member_are_two_incarnations() {
    let world = World::begin().await;
    let first = ready(announce(&world, "m1", "1.0.0", None).await).await;
    let second = ready(announce(&world, "m1", "2.0.0", None).await).await;
    world.with(|judge| {
        let incarnations: Vec<SessionId> = judge.serving("db").iter().map(|p| p.key.incarnation).collect();
        assert_eq!(incarnations.len(), 2);
        assert_ne!(incarnations[0], incarnations[1]);
    });
    drop(first);
    world.until("the first has left", |judge| judge.serving("db").len() == 1).await;
    assert!(second.is_serving());
    drop(second);
    world.end([]).await;
}

/// A program that served under an incarnation that crashed is notified, and the next incarnation never serves for it.
#[tokio::test(start_paused = true)]
async fn crash_of_the_lease_actor_revokes_a_member() {
    let mut world = World::begin().await;
    let member = Member::new("db", "m1", release("1.0.0"));
    let setup =
        MemberSetup { cluster: world.link("m1"), clock: Arc::new(TokioTime), lease: LeaseTiming::default(), member };
    let (spec, mut view, _leave) = member_spec("member", setup.clone());
    world.harness.start_actor(spec);
    let serving =
        timeout(Duration::from_secs(60), view.wait_for(|view| view.admission_state == AdmissionState::Serving));
    let term = serving.await.unwrap().unwrap().term.clone().unwrap();
    world.harness.crash("node/member", CrashHow::Panic);
    timeout(Duration::from_secs(1), term.ended()).await.unwrap();
    let over = timeout(Duration::from_secs(1), view.wait_for(|view| view.admission_state.is_over() && view.gone));
    assert!(over.await.unwrap().is_ok());
    world.until("its record goes with its lease", |judge| judge.serving("db").is_empty()).await;
    sleep(Duration::from_secs(60)).await;
    assert!(view.borrow().admission_state.is_over());

    // It takes part again, at the same path of the tree.
    let (spec, mut view, _leave) = member_spec("member", setup);
    world.harness.start_actor(spec);
    let serving =
        timeout(Duration::from_secs(60), view.wait_for(|view| view.admission_state == AdmissionState::Serving));
    assert!(serving.await.unwrap().is_ok());
    world.end([]).await;
}

/// SERVE-1: an admission that arrives after a freeze has outlasted the lease does not count.
#[tokio::test(start_paused = true)]
async fn a_member_that_was_frozen_serves_only_by_a_lease_that_holds() {
    let world = World::begin().await;
    let clock = Jumping::default();
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0"))));
    let member = Member::new("db", "m1", release("1.0.0")).needs("schema", triple("1.0.0"));
    let link = world.link("m1");
    let waiting =
        Admission::announce_with(link, member, LeaseTiming::default(), Arc::new(clock.clone())).await.unwrap();
    reason(&waiting, "no-gate").await;
    let mut watched = waiting.admission_state();
    let node = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    // The cluster admits it; the answer finds a lease that is over by the member's clock.
    world.until("admitted", |judge| judge.serving("db").len() == 1).await;
    assert!(
        !matches!(watched.borrow_and_update().admission_state, AdmissionState::Serving),
        "the answer is on its way"
    );
    clock.jump(Duration::from_secs(11));
    let guard = ready(waiting).await;
    assert!(guard.is_serving());
    drop(guard);
    world.end([node]).await;
}
