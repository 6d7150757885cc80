//! Nodes that run reconcilers: upgrades, handovers, failures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::clock::TokioTime;
use muster_messages::{CrashHow, FencingToken, GateState, ReconcilerChange};
use muster_reconciler::{ApplyCtx, Handler, HandlerError, ReconcilerSpec, ServingGuard, Setup};
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::World;
use crate::fleet::{Commands, Jumping, Node, announce, digested, objects, schema};
use crate::judge::{Judge, release, triple};

pub fn phase(judge: &Judge, name: &str) -> (String, String) {
    judge.progress.get(name).map_or_else(Default::default, |p| (p.phase.to_string(), p.reason.to_string()))
}
/// Records of members and of candidates.
pub fn participants(judge: &Judge) -> usize {
    judge.tables.reconcilers.participants.len()
}
pub fn is_done(judge: &Judge, name: &str, of: &str) -> bool {
    judge.gate(name).is_some_and(|gate| gate.now.state == GateState::Done && gate.now.reconciled == release(of))
}
pub async fn serves(world: &World, member: &str, runs: &str) -> ServingGuard {
    timeout(Duration::from_secs(60), announce(world, member, runs, None).await.ready()).await.unwrap().unwrap()
}
fn begun(commands: &Commands) -> usize {
    commands.with(|ledger| ledger.begun.len())
}

/// A rolling upgrade, with scenarios 5, 6 and 14.
#[tokio::test(start_paused = true)]
async fn rolling_upgrade_runs_once_after_the_last_old_member_left() {
    let world = World::begin().await;
    let commands = Commands::default();
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once().downgrade(false))));
    let mut nodes = Vec::new();
    for name in ["n1", "n2", "n3"] {
        nodes.push(Node::start(&world, name, "1.0.0", &commands).await);
    }
    world.until("1.0.0 is applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), 1, "by one of three");
    let mut guards = Vec::new();
    for member in ["m1", "m2", "m3"] {
        guards.push(serves(&world, member, "1.0.0").await);
    }

    world.with(|judge| judge.define(digested(schema("2.0.0", "2.0.0").once())));
    nodes.remove(0).stop().await;
    guards.remove(0).drain().await;
    let new = Node::start(&world, "n1", "2.0.0", &commands).await;
    world.until("the new node waits", |judge| phase(judge, "schema") == ("waiting".into(), "blockers".into())).await;
    world.with(|judge| {
        assert_eq!(judge.runner("schema").unwrap().0, "n1");
        let message = &judge.progress["schema"].message;
        assert!(message.contains("m2") && message.contains("m3") && !message.contains("m1"), "{message}");
    });
    guards.remove(0).drain().await;
    world.stays("one old member is enough", 60, |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), 1, "{:?}", commands.with(|ledger| ledger.begun.clone()));
    guards.remove(0).drain().await;
    world.until("2.0.0 is applied", |judge| is_done(judge, "schema", "2.0.0")).await;
    assert_eq!(begun(&commands), 2);
    world.with(|judge| {
        let restricted = judge.gate("schema").unwrap().history.last().unwrap().clone();
        assert_eq!(restricted.state, GateState::Working);
        assert_eq!((restricted.reconciled, restricted.floor), (release("1.0.0"), triple("2.0.0")));
    });
    commands.with(|ledger| {
        assert_eq!(ledger.env["MUSTER_FROM_RELEASE"], "1.0.0");
        assert_eq!(ledger.env["MUSTER_TARGET_RELEASE"], "2.0.0");
        assert_eq!(ledger.env["MUSTER_RECONCILER"], "schema");
        assert!(ledger.env.contains_key("MUSTER_DEADLINE"));
    });
    new.stop().await;
    world.stays("nothing is undone", 120, |judge| is_done(judge, "schema", "2.0.0")).await;
    assert_eq!(begun(&commands), 2);
    world.end(nodes).await;
}

/// Scenario 8.
#[tokio::test(start_paused = true)]
async fn second_equal_takes_over_at_once_when_the_first_leaves() {
    let world = World::begin().await;
    let commands = Commands::default();
    let spec = schema("1.0.0", "1.0.0").every(Duration::from_secs(30));
    world.with(|judge| judge.define(digested(spec)));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    world.stays("the first node runs it", 60, |judge| judge.runner("schema").is_some_and(|(who, _)| who == "n1")).await;
    assert!(commands.with(|ledger| ledger.begun.iter().all(|(node, ..)| node == "n1")));
    let left = Instant::now();
    first.stop().await;
    world.until("the second node runs it", |judge| judge.runner("schema").is_some_and(|(who, _)| who == "n2")).await;
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    world.until("it repairs possible drift", |_| commands.with(|l| l.begun.iter().any(|(n, ..)| n == "n2"))).await;
    world.end([second]).await;
}

/// A reload that allows a program makes the node a candidate, and one that forbids it ends that, without any other change.
#[tokio::test(start_paused = true)]
async fn candidates_follow_what_a_reload_allows() {
    let world = World::begin().await;
    let commands = Commands::default();
    commands.allow("n1", false);
    commands.allow("n2", false);
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").every(Duration::from_secs(3600)))));
    let nodes =
        [Node::start(&world, "n1", "1.0.0", &commands).await, Node::start(&world, "n2", "1.0.0", &commands).await];
    world.stays("no node is a candidate", 60, |judge| judge.runner("schema").is_none()).await;
    commands.allow("n1", true);
    world.until("the node runs it", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(world.with(|judge| judge.runner("schema").unwrap().0), "n1");
    commands.allow("n2", true);
    commands.allow("n1", false);
    world.until("the other node runs it", |judge| judge.runner("schema").is_some_and(|(who, _)| who == "n2")).await;
    world.end(nodes).await;
}

#[tokio::test(start_paused = true)]
async fn a_runner_that_dies_is_followed_when_its_lease_has_run_out() {
    let world = World::begin().await;
    let commands = Commands::default();
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").every(Duration::from_secs(5)))));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    sleep(Duration::from_secs(5)).await;
    let before = world.with(|judge| judge.runner("schema").unwrap().1);
    first.die().await;
    let died = Instant::now();
    world.until("another runner takes over", |judge| judge.runner("schema").is_some_and(|(who, _)| who == "n2")).await;
    assert!(died.elapsed() < Duration::from_secs(17), "{:?}", died.elapsed());
    assert!(world.with(|judge| judge.runner("schema").unwrap().1) > before);
    world.end([second]).await;
}

/// 5.5: disconnected while its command runs; the command has ended before another's begins.
#[tokio::test(start_paused = true)]
async fn disconnected_runner_ends_its_command_before_another_begins() {
    let world = World::begin().await;
    let commands = Commands::default();
    commands.with(|ledger| ledger.takes = Duration::from_secs(3600));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").run_timeout(Duration::from_secs(7200)))));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it runs", |_| begun(&commands) == 1).await;
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    sleep(Duration::from_secs(5)).await;
    world.cut("n1", true);
    world
        .until("the other node runs it", |_| {
            commands.with(|ledger| {
                assert!(ledger.at_work.len() <= 1, "two at once: {:?}", ledger.at_work);
                ledger.at_work.contains_key("n2")
            })
        })
        .await;
    assert_eq!(commands.with(|ledger| ledger.ended_early), 1);
    world.end([first, second]).await;
}

/// A runner that exits releases its lease, and not before its command has ended.
#[tokio::test(start_paused = true)]
async fn a_node_that_stops_ends_its_command_and_gives_the_term_back() {
    let world = World::begin().await;
    let commands = Commands::default();
    commands.with(|ledger| ledger.takes = Duration::from_secs(3600));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0"))));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it runs", |_| begun(&commands) == 1).await;
    let asked = Instant::now();
    node.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    assert_eq!(commands.with(|ledger| (ledger.ended_early, ledger.at_work.len())), (1, 0));
    world.with(|judge| {
        assert_eq!(judge.runner("schema"), None);
        assert!(judge.tables.reconcilers.participants.is_empty());
        assert_eq!(judge.gate("schema"), None, "nothing was completed");
    });
    world.end([]).await;
}

/// A runner that was frozen past its term receives the news that it waited for, and begins nothing under a term that may be
/// over.
#[tokio::test(start_paused = true)]
async fn a_runner_that_was_frozen_begins_nothing_by_its_old_term() {
    let world = World::begin().await;
    let (commands, clock) = (Commands::default(), Jumping::default());
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once().settle(Duration::ZERO))));
    let old = serves(&world, "m0", "0.9.0").await;
    let setup = Setup {
        clock: Arc::new(clock.clone()),
        commands: Some(commands.on("n1")),
        ..Setup::new(world.link("n1"), "n1", release("1.0.0"))
    };
    let node = Node::with(&world, setup).await;
    world.until("it waits", |judge| phase(judge, "schema").1 == "blockers").await;
    let before = world.with(|judge| judge.runner("schema").unwrap().1);
    clock.jump(Duration::from_secs(11));
    old.drain().await;
    world.until("it runs", |_| begun(&commands) > 0).await;
    let token = commands.with(|ledger| ledger.begun[0].1);
    assert!(token > before.0, "the term {before} was over by its own clock, and {token} ran");
    world.end([node]).await;
}

/// Scenario 9.
#[tokio::test(start_paused = true)]
async fn sets_of_objects_are_made_changed_pruned_and_repaired() {
    let world = World::begin().await;
    let things = |wanted: &[(&str, &str)]| digested(objects("1.0.0", wanted).every(Duration::from_secs(10)));
    world.with(|judge| judge.define(things(&[("foo", "1"), ("bar", "1"), ("baz", "1")])));
    let node = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    let names = |judge: &Judge| judge.objects("things").into_keys().collect::<Vec<_>>();
    world.until("all three are applied", |judge| is_done(judge, "things", "1.0.0")).await;
    world.with(|judge| {
        assert_eq!(names(judge), ["bar", "baz", "foo"]);
        let order: Vec<_> = judge.writes.iter().map(|(_, key)| key.name.clone()).collect();
        assert_eq!(order[..3], ["foo", "bar", "baz"], "in waves");
    });
    // Another set under the same release needs an operator's confirmation.
    world.with(|judge| judge.define(things(&[("bar", "2"), ("baz", "1")])));
    world.until("it waits", |judge| phase(judge, "things").1 == "digest-mismatch").await;
    let digest = things(&[("bar", "2"), ("baz", "1")]).digest;
    let retry = ReconcilerChange::Retry { reconciler: "things".into(), digest: Some(digest) };
    world.with(|judge| judge.change(retry).unwrap());
    world
        .until("foo is gone, bar changed", |judge| {
            names(judge) == ["bar", "baz"] && judge.objects("things")["bar"].contains('2')
        })
        .await;
    let key = world.with(|judge| judge.tables.reconcilers.objects.keys().next().unwrap().clone());
    world.with(|judge| judge.change(ReconcilerChange::DeleteObject(key)).unwrap());
    world.until("a deleted object is restored", |judge| names(judge) == ["bar", "baz"]).await;
    world.end([node]).await;
}

/// I6, and scenario 4.
#[tokio::test(start_paused = true)]
async fn newer_candidate_takes_over_and_an_older_one_keeps_out() {
    let world = World::begin().await;
    let commands = Commands::default();
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0"))));
    world.with(|judge| judge.define(digested(schema("2.0.0", "1.0.0"))));
    let old = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("1.0.0 is applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    let new = Node::start(&world, "n2", "2.0.0", &commands).await;
    let came = Instant::now();
    world.until("taken over", |judge| judge.runner("schema").is_some_and(|(who, _)| who == "n2")).await;
    assert!(came.elapsed() < Duration::from_secs(4), "{:?}", came.elapsed());
    world.until("2.0.0 is applied", |judge| is_done(judge, "schema", "2.0.0")).await;
    let late = Node::start(&world, "n3", "1.5.0", &commands).await;
    world
        .stays("the newest node runs it", 60, |judge| judge.runner("schema").is_some_and(|(who, _)| who == "n2"))
        .await;
    world.end([old, new, late]).await;
}

/// 5.5, the dead canary.
#[tokio::test(start_paused = true)]
async fn older_release_downgrades_only_if_allowed_or_reports_why() {
    for allowed in [true, false] {
        let world = World::begin().await;
        let commands = Commands::default();
        world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").downgrade(allowed))));
        world.with(|judge| judge.define(digested(schema("2.0.0", "1.0.0"))));
        let old = Node::start(&world, "n1", "1.0.0", &commands).await;
        let canary = Node::start(&world, "n2", "2.0.0", &commands).await;
        world.until("2.0.0 is applied", |judge| is_done(judge, "schema", "2.0.0")).await;
        canary.die().await;
        let died = Instant::now();
        world.until("an older one runs", |judge| judge.runner("schema").is_some_and(|(who, _)| who == "n1")).await;
        assert!(died.elapsed() > Duration::from_secs(30), "it may have been restarting: {:?}", died.elapsed());
        if allowed {
            world.until("back", |judge| is_done(judge, "schema", "1.0.0")).await;
        } else {
            world
                .until("it reports the reason", |judge| {
                    phase(judge, "schema") == ("blocked".into(), "downgrade-denied".into())
                })
                .await;
            world.stays("nothing is changed", 120, |judge| is_done(judge, "schema", "2.0.0")).await;
        }
        world.end([old]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn always_failing_runner_resigns_for_a_working_equal() {
    let mut world = World::begin().await;
    let commands = Commands::default();
    commands.with(|ledger| ledger.exits.insert("n1".into(), 1));
    world.harness.expects_error("schema: ");
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it fails", |judge| judge.progress.get("schema").is_some_and(|p| p.consecutive_failures >= 7)).await;
    world.with(|judge| {
        assert_eq!(judge.runner("schema").unwrap().0, "n1", "there is no other candidate");
        let progress = &judge.progress["schema"];
        assert_eq!(progress.output, "said something");
        assert!(progress.message.contains("muster reconciler retry schema"), "{}", progress.message);
    });
    let second = Node::start(&world, "n2", "1.0.0", &commands).await;
    world.until("the other node has applied it", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(commands.with(|ledger| ledger.begun.last().unwrap().0.clone()), "n2");
    world.end([first, second]).await;
}

#[tokio::test(start_paused = true)]
async fn operator_commands_take_effect() {
    let mut world = World::begin().await;
    let commands = Commands::default();
    let name = || "schema".to_owned();
    let definition = digested(schema("1.0.0", "1.0.0").once());
    world.with(|judge| judge.define(definition));
    world.with(|judge| judge.change(ReconcilerChange::Pause { reconciler: name(), paused: true }).unwrap());
    let first = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("paused", |judge| phase(judge, "schema") == ("paused".into(), "paused".into())).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(begun(&commands), 0);
    world.with(|judge| judge.change(ReconcilerChange::Pause { reconciler: name(), paused: false }).unwrap());
    world.until("resumed", |judge| is_done(judge, "schema", "1.0.0")).await;

    // Failed permanently, and retried.
    commands.with(|ledger| ledger.exits.insert("n2".into(), 78));
    world.harness.expects_error("schema failed permanently");
    let definition = digested(schema("2.0.0", "2.0.0").once().finalized_by_hand());
    let digest = definition.digest.clone();
    world.with(|judge| judge.define(definition));
    let second = Node::start(&world, "n2", "2.0.0", &commands).await;
    world.until("it waits for confirmation", |judge| phase(judge, "schema").0 == "ready-to-finalize").await;
    world.with(|judge| judge.change(ReconcilerChange::Finalize { reconciler: name(), digest }).unwrap());
    world.until("it gives up", |judge| phase(judge, "schema").0 == "failed").await;
    let runs = begun(&commands);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(begun(&commands), runs);
    commands.with(|ledger| ledger.exits.clear());
    world.with(|judge| judge.change(ReconcilerChange::Retry { reconciler: name(), digest: None }).unwrap());
    world.until("started again", |judge| is_done(judge, "schema", "2.0.0")).await;
    world.end([first, second]).await;
}

/// A crash in one name: its action continues and is not begun again, its term stays, the other name is not disturbed.
#[tokio::test(start_paused = true)]
async fn actor_crashes_repeat_no_action_and_spare_other_names() {
    let mut world = World::begin().await;
    let commands = Commands::default();
    commands.with(|ledger| ledger.takes = Duration::from_secs(40));
    world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("foo", "1")]))));
    let node = Node::start(&world, "n1", "1.0.0", &commands).await;
    world.until("it runs", |_| begun(&commands) == 1).await;
    world.until("the other is applied", |judge| is_done(judge, "things", "1.0.0")).await;
    let terms = |judge: &Judge| ["schema", "things"].map(|name| judge.runner(name).unwrap().1);
    let before = world.with(|judge| terms(judge));
    for actor in ["run", "participants", "candidates"] {
        for how in [CrashHow::Panic, CrashHow::Error] {
            world.harness.crash_in(node.tree(), &format!("node/reconcilers/schema/{actor}"), how);
            sleep(Duration::from_secs(2)).await;
        }
    }
    world.until("applied", |judge| is_done(judge, "schema", "1.0.0")).await;
    assert_eq!(begun(&commands), 1, "the action that ran was waited for");
    world.with(|judge| assert_eq!(terms(judge), before));
    world.end([node]).await;
}

/// All actors of a name crash at once, or the election alone: their successors campaign again and hold the term.
#[tokio::test(start_paused = true)]
async fn crashed_actors_of_a_name_campaign_again() {
    for (path, how) in [
        ("node/reconcilers/schema", CrashHow::Panic),
        ("node/reconcilers/schema", CrashHow::Kill),
        ("node/reconcilers/schema/elect", CrashHow::Kill),
        ("node/reconcilers", CrashHow::Error),
    ] {
        let mut world = World::begin().await;
        let commands = Commands::default();
        world.with(|judge| judge.define(digested(schema("1.0.0", "1.0.0").once())));
        let node = Node::start(&world, "n1", "1.0.0", &commands).await;
        world.until("applied", |judge| is_done(judge, "schema", "1.0.0")).await;
        world.harness.crash_in(node.tree(), path, how);
        // Every lease that was held is over by then.
        sleep(Duration::from_secs(60)).await;
        world.stays("the term is held", 60, |judge| judge.runner("schema").is_some()).await;
        assert_eq!(begun(&commands), 1, "{path}: once is once");
        world.end([node]).await;
    }
}

struct Applies(AtomicU32);
impl Handler for Applies {
    fn apply(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>> {
        let call = self.0.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(ctx.is_current() && ctx.fence > FencingToken(0));
            assert_eq!(ctx.attempt, call + 1);
            match call {
                0 => panic!("a handler panics"),
                1 => Err(HandlerError::Later("not yet".into())),
                _ => Ok(()),
            }
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn handler_runs_and_its_panic_counts_as_a_failure() {
    let mut world = World::begin().await;
    world.with(|judge| judge.define(digested(ReconcilerSpec::handler("own", release("1.0.0"), "db").once())));
    // A daemon of the same release has no such code, and keeps out.
    let daemon = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    world.stays("no runner", 10, |judge| judge.runner("own").is_none()).await;
    let handler: Arc<dyn Handler> = Arc::new(Applies(AtomicU32::new(0)));
    let setup = Setup {
        clock: Arc::new(TokioTime),
        handlers: BTreeMap::from([("own".to_owned(), handler)]),
        ..Setup::new(world.link("p1"), "p1", release("1.0.0"))
    };
    world.harness.expects_panic("a handler panics");
    let program = Node::with(&world, setup).await;
    world.until("applied", |judge| is_done(judge, "own", "1.0.0")).await;
    program.stop().await;
    world.with(|judge| assert_eq!(judge.runner("own"), None));
    world.end([daemon]).await;
}

#[tokio::test(start_paused = true)]
async fn deleted_definition_stops_its_actors() {
    let world = World::begin().await;
    world.with(|judge| judge.define(digested(objects("1.0.0", &[("foo", "1")]))));
    let node = Node::start(&world, "n1", "1.0.0", &Commands::default()).await;
    world.until("applied", |judge| is_done(judge, "things", "1.0.0")).await;
    world.with(|judge| judge.change(ReconcilerChange::Forget { reconciler: "things".into() }).unwrap());
    world
        .until("every lease is released", |judge| {
            judge.runner("things").is_none() && judge.tables.reconcilers.participants.is_empty()
        })
        .await;
    world.end([node]).await;
}
