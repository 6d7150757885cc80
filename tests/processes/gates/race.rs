//! Members that are admitted at the very moment at which a runner restricts the gate: both have read what they decide by, and write.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, ready};
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{Dice, ErrorBody, ErrorCode, Release, Triple};
use muster_reconciler::{
    Admission, ApplyCtx, Cluster, Embedded, Handler, HandlerError, Link, Member, ReconcilerSpec, Setup, Socket,
    Standing,
};
use serde_json::Value;
use tokio::sync::oneshot;

use super::barrier::{Answer, Barrier, Held, is_admission, is_restriction};
use super::record::{self, Scene, events};
use super::{dice, managers_of};
use crate::harness::PATIENCE;

/// Reconcilers that race beside each other, each in a scope of its own.
const LANES: u64 = 4;
/// Rounds of one lane in which the admission is let go first, and as many in which the restriction is.
const ROUNDS: u64 = 50;
/// Of the runners: above every floor there will be.
const NEWEST: Triple = Triple::new(1000, 0, 0);
/// How far behind the second may be let go; an entry of the log takes about as long.
const BEHIND: Duration = Duration::from_millis(6);
/// Between two tries of an operator.
const AGAIN: Duration = Duration::from_millis(20);

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Admission,
    Restriction,
}

/// When the second is let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    None,
    Short,
    /// Once the first was answered.
    Whole,
}

/// How often who was let go first, how far ahead, and who came first in the log.
type Counts = BTreeMap<(Side, Gap, Side), u64>;

/// The action of these reconcilers: what it does is not what is raced for.
struct Nothing;
impl Handler for Nothing {
    fn apply(&self, _: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>> {
        ready(Ok(())).boxed()
    }
}

/// Within the patience of these tests.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// One reconciler, its runner in this process, and a member of its scope each round.
struct Lane {
    reconciler: String,
    scope: String,
    links: Vec<Link>,
    runner: Arc<Barrier>,
    embedded: Embedded,
    dice: Dice,
    /// What the gate says.
    floor: u64,
    counts: Counts,
}

impl Lane {
    async fn start(number: u64, sockets: &[PathBuf], mut dice: Dice) -> Self {
        let links: Vec<Link> = sockets.iter().map(|socket| Link::new(Socket(socket.clone()))).collect();
        let (reconciler, scope) = (format!("race-{number}"), format!("pool-{number}"));
        let runner = Barrier::new(links[dice.index(links.len())].clone(), is_restriction);
        let handlers = BTreeMap::from([(reconciler.clone(), Arc::new(Nothing) as Arc<dyn Handler>)]);
        let setup = Setup::new(runner.clone(), format!("runner-{number}"), Release::from(NEWEST));
        let mut completed = runner.completed();
        let embedded = Embedded::start(Setup { handlers, ..setup }).await.expect("it starts");
        let lane = Self { reconciler, scope, links, runner, embedded, dice, floor: 1, counts: Counts::new() };
        lane.define(1).await;
        soon("the gate is made", completed.wait_for(|runs| *runs > 0)).await.expect("the runner lives");
        lane
    }

    /// What an operator asks: until there is an answer.
    async fn operator(&self, request: ReconcilerRequest) -> Value {
        soon("an operator is answered", async {
            loop {
                match self.links[0].reconcile(request.clone(), Duration::from_secs(5)).await {
                    Ok(answer) => return serde_json::from_str(&answer).expect("answers are JSON"),
                    Err(error) => {
                        assert!(error.code != ErrorCode::Invalid && error.code != ErrorCode::Conflict, "{error}");
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            }
        })
        .await
    }

    /// From now on the newest release wants this floor.
    async fn define(&self, floor: u64) {
        let spec = ReconcilerSpec::handler(&self.reconciler, Release::from(NEWEST), &self.scope);
        let spec = spec.floor(Triple::new(floor, 0, 0)).once().settle(Duration::ZERO);
        self.operator(ReconcilerRequest::Apply { definitions: vec![spec.definition()], replace: true }).await;
        self.operator(ReconcilerRequest::Retry { name: self.reconciler.clone(), release: None }).await;
    }

    /// A member that the gate admits now and would not after the restriction, and both writes at the barrier.
    async fn round(&mut self, first: Side) {
        let (floor, name) = (self.floor, format!("m{}", self.floor));
        let member = Barrier::new(self.links[self.dice.index(self.links.len())].clone(), is_admission);
        let (admit, restrict) = (member.close(), self.runner.close());
        let mut completed = self.runner.completed();
        let before = *completed.borrow_and_update();
        let who = Member::new(&self.scope, &name, Release::from(Triple::new(floor, 0, 0)));
        let waiting = Admission::announce(member.clone(), who).await.expect("it starts");
        self.define(floor + 1).await;
        let (admit, restrict) = (held(admit).await, held(restrict).await);
        let gap = self.dice.pick(&[Gap::None, Gap::Short, Gap::Whole]).expect("there are some");
        let behind = self.dice.up_to(BEHIND);
        let (admit, restrict) = match first {
            Side::Admission => let_go(admit, restrict, gap, behind).await,
            Side::Restriction => {
                let (restrict, admit) = let_go(restrict, admit, gap, behind).await;
                (admit, restrict)
            }
        };
        let admit: Value = serde_json::from_str(&admit.expect("the admission was judged")).expect("answers are JSON");
        let mut standing = waiting.standing();
        let winner = if admit["phase"] == "serving" { Side::Admission } else { Side::Restriction };
        match winner {
            Side::Admission => {
                let guard = soon("it serves", waiting.ready()).await.expect("it was admitted");
                assert!(guard.is_serving());
                names_in_the_way(&restrict.expect_err("the restriction is refused"), &name);
                let status = self.operator(status_of(&self.reconciler)).await;
                assert_eq!(status["gate"]["floor"], format!("{floor}.0.0"), "{status}");
                assert_eq!(status["blockers"][0]["member"], name.as_str(), "{status}");
                guard.drain().await;
            }
            Side::Restriction => {
                restrict.expect("nobody was in the way");
                assert_eq!(admit["waiting"]["reason"], "below-floor", "{admit}");
                let told = |standing: &Standing| {
                    let Standing::Waiting { reason, message } = standing else { return false };
                    reason == "below-floor" && message.contains(&format!("start it as {}.0.0 or later", floor + 1))
                };
                soon("it is told", standing.wait_for(|view| told(&view.standing))).await.expect("the member lives");
                waiting.leave().await;
            }
        }
        soon("the run ends", completed.wait_for(|runs| *runs > before)).await.expect("the runner lives");
        *self.counts.entry((first, gap, winner)).or_default() += 1;
        self.floor += 1;
    }

    async fn race(mut self) -> (String, String, Counts) {
        let mut left = [(Side::Admission, ROUNDS), (Side::Restriction, ROUNDS)];
        while left.iter().any(|(_, rounds)| *rounds > 0) {
            let sides: Vec<usize> = (0..left.len()).filter(|side| left[*side].1 > 0).collect();
            let (side, rounds) = &mut left[self.dice.pick(&sides).expect("one is left")];
            *rounds -= 1;
            let side = *side;
            self.round(side).await;
        }
        self.embedded.stop().await;
        (self.reconciler, self.scope, self.counts)
    }
}

fn status_of(reconciler: &str) -> ReconcilerRequest {
    ReconcilerRequest::Status { name: reconciler.to_owned(), seen: muster_messages::Revision(0), wait_ms: 0 }
}

async fn held(at_the_door: oneshot::Receiver<Held>) -> Held {
    soon("both are at the barrier", at_the_door).await.expect("the door stays")
}

/// Lets both go; their answers.
async fn let_go(first: Held, second: Held, gap: Gap, behind: Duration) -> (Answer, Answer) {
    let mut first = first.let_go();
    let mut answered = None;
    match gap {
        Gap::None => {}
        Gap::Short => tokio::time::sleep(behind).await,
        Gap::Whole => answered = Some(heard(&mut first).await),
    }
    let mut second = second.let_go();
    let first = match answered {
        Some(answer) => answer,
        None => heard(&mut first).await,
    };
    (first, heard(&mut second).await)
}

async fn heard(answer: &mut oneshot::Receiver<Answer>) -> Answer {
    soon("it is answered", answer).await.expect("whoever asked waits for the answer")
}

/// The refused runner is told who is in its way.
#[track_caller]
fn names_in_the_way(refused: &ErrorBody, member: &str) {
    assert_eq!(refused.code, ErrorCode::GateClosed, "{refused:?}");
    let details: Value = serde_json::from_str(&refused.details).expect("details are JSON");
    assert_eq!(
        (&details["reason"], &details["blockers"][0]["member"]),
        (&"blockers".into(), &member.into()),
        "{details}"
    );
}

#[test]
#[ignore = "full tier"]
fn an_admission_and_a_restriction_at_once_exclude_each_other_whoever_is_let_go_first() {
    let mut dice = dice();
    let world = managers_of("1.0.0");
    let names = ["n1", "n2", "n3"];
    let log = record::follow(&world, &names);
    let sockets = names.map(|name| world.socket(name));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let begun = Instant::now();
    let lanes: Vec<_> = (0..LANES)
        .map(|number| {
            let (sockets, dice) = (sockets.clone(), Dice::seeded(dice.roll()));
            runtime.spawn(async move { Lane::start(number, &sockets, dice).await.race().await })
        })
        .collect();
    let lanes = runtime.block_on(join_all(lanes));
    let took = begun.elapsed();
    let last =
        world.answer("n1", muster_messages::wire::Request::Events { since: muster_messages::Revision(0), wait_ms: 0 });
    let events = events(&log.heard_until(last["revision"].as_u64().expect("a revision")));
    let mut counts = Counts::new();
    for lane in lanes {
        let (reconciler, scope, counted) = lane.expect("no round failed");
        let admitted =
            counted.iter().filter(|((.., winner), _)| *winner == Side::Admission).map(|(_, n)| n).sum::<u64>();
        judge(&events, &reconciler, &scope, admitted);
        counted.into_iter().for_each(|(key, number)| *counts.entry(key).or_default() += number);
    }
    for ((first, gap, winner), number) in &counts {
        println!("{number:4} times {first:?} first, gap {gap:?}: {winner:?} came first");
        assert!(*gap != Gap::Whole || first == winner, "an answer was no answer");
    }
    let won = |side| counts.iter().filter(|((.., winner), _)| *winner == side).map(|(_, number)| number).sum::<u64>();
    println!("{} rounds in {took:?}, {} events", won(Side::Admission) + won(Side::Restriction), events.len());
    assert_eq!(won(Side::Admission) + won(Side::Restriction), 2 * ROUNDS * LANES);
    assert!(won(Side::Admission) > 0 && won(Side::Restriction) > 0, "{counts:?}");
}

/// Every state of this lane, by the cluster's own record.
fn judge(events: &[record::Event], reconciler: &str, scope: &str, admitted: u64) {
    let (floors, written_under) = (BTreeMap::new(), BTreeMap::new());
    let scene = Scene { reconciler, scope, floors, needs: |_| Triple::default(), written_under };
    let states = scene.states(events).unwrap_or_else(|why| panic!("{why}"));
    let serving = states.windows(2).filter(|pair| {
        let serves = |state: &record::State| state.members.iter().any(record::Member::serves);
        !serves(&pair[0]) && serves(&pair[1])
    });
    assert_eq!(serving.count() as u64, admitted, "{reconciler}: whoever was told so has served, and nobody else");
    let mut floors: Vec<_> = states.iter().filter_map(|state| state.gate.as_ref().map(|gate| gate.floor)).collect();
    floors.dedup();
    assert!(floors.is_sorted() && floors.len() as u64 == 2 * ROUNDS + 1, "{reconciler}: {floors:?}");
}
