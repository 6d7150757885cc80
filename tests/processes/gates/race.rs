//! Members admitted while a runner restricts the gate: both have read what they decide by, then write.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, ready};
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{AdmissionReason, ErrorBody, ErrorCode, Release, Rng, Triple, detail};
use muster_reconciler::{
    Admission, AdmissionState, ApplyCtx, Cluster, Embedded, Handler, HandlerError, Link, Member, ReconcilerSpec, Setup,
    Socket,
};
use serde_json::Value;
use tokio::sync::oneshot;

use super::barrier::{Answer, Barrier, HeldWrite, is_admission, is_restriction};
use super::record::{self, CheckContext, events};
use super::{managers_of, rng};
use crate::harness::{WAIT_LIMIT, scenario_pause_async};

/// Concurrent races, each with a reconciler and scope of its own.
const RACES: u64 = 4;
/// Rounds per race in which the admission is released first, and as many for the restriction.
const ROUNDS: u64 = 50;
/// The runners' release: above every floor.
const NEWEST: Triple = Triple::new(1000, 0, 0);
/// Maximum delay of the second release; a log entry takes about as long.
const MAX_GAP: Duration = Duration::from_millis(6);
/// Delay between two attempts of an operator.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// One of the two writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Admission,
    Restriction,
}

/// When the second write is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    None,
    Short,
    /// After the answer to the first.
    Whole,
}

/// Counts by: first released, gap, first in the log.
type Counts = BTreeMap<(Side, Gap, Side), u64>;

/// The action of these reconcilers; its effect does not matter.
pub struct NoAction;
impl Handler for NoAction {
    fn apply(&self, _: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>> {
        ready(Ok(())).boxed()
    }
}

/// Within the time limit of these tests.
async fn within_limit<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_LIMIT, work).await.unwrap_or_else(|_| panic!("not within {WAIT_LIMIT:?}: {what}"))
}

/// One reconciler, its runner in this process, and a new member of its scope in each round.
struct Race {
    reconciler: String,
    scope: String,
    links: Vec<Link>,
    runner: Arc<Barrier>,
    embedded: Embedded,
    rng: Rng,
    /// What the gate says.
    floor: u64,
    counts: Counts,
}

impl Race {
    async fn start(number: u64, sockets: &[PathBuf], mut rng: Rng) -> Self {
        let links: Vec<Link> = sockets.iter().map(|socket| Link::new(Socket(socket.clone()))).collect();
        let (reconciler, scope) = (format!("race-{number}"), format!("pool-{number}"));
        let runner = Barrier::new(links[rng.index(links.len())].clone(), is_restriction);
        let handlers = BTreeMap::from([(reconciler.clone(), Arc::new(NoAction) as Arc<dyn Handler>)]);
        let setup = Setup::new(runner.clone(), format!("runner-{number}"), Release::from(NEWEST));
        let mut completed = runner.completed();
        let embedded = Embedded::start(Setup { handlers, ..setup }).await.expect("it starts");
        let race = Self { reconciler, scope, links, runner, embedded, rng, floor: 1, counts: Counts::new() };
        race.define(1).await;
        within_limit("the gate is created", completed.wait_for(|runs| *runs > 0)).await.expect("the runner lives");
        race
    }

    /// An operator's request, repeated until it is answered.
    async fn operator(&self, request: ReconcilerRequest) -> Value {
        within_limit("an operator is answered", async {
            loop {
                match self.links[0].reconcile(request.clone(), Duration::from_secs(5)).await {
                    Ok(answer) => return serde_json::from_str(&answer).expect("answers are JSON"),
                    Err(error) => {
                        assert!(error.code != ErrorCode::Invalid && error.code != ErrorCode::Conflict, "{error}");
                        scenario_pause_async("the operator tries again", RETRY_INTERVAL).await;
                    }
                }
            }
        })
        .await
    }

    /// Raises the floor of the newest release's definition.
    async fn define(&self, floor: u64) {
        let spec = ReconcilerSpec::handler(&self.reconciler, Release::from(NEWEST), &self.scope);
        let spec = spec.floor(Triple::new(floor, 0, 0)).once().settle(Duration::ZERO);
        self.operator(ReconcilerRequest::Apply { definitions: vec![spec.definition()], replace: true }).await;
        self.operator(ReconcilerRequest::Retry { name: self.reconciler.clone(), release: None }).await;
    }

    /// A member that the gate admits before the restriction only, with both writes at the barrier.
    async fn round(&mut self, first: Side) {
        let (floor, name) = (self.floor, format!("m{}", self.floor));
        let member = Barrier::new(self.links[self.rng.index(self.links.len())].clone(), is_admission);
        let (admit, restrict) = (member.close(), self.runner.close());
        let mut completed = self.runner.completed();
        let before = *completed.borrow_and_update();
        let who = Member::new(&self.scope, &name, Release::from(Triple::new(floor, 0, 0)));
        let waiting = Admission::announce(member.clone(), who).await.expect("it starts");
        self.define(floor + 1).await;
        let (admit, restrict) = (held(admit).await, held(restrict).await);
        let gap = self.rng.pick(&[Gap::None, Gap::Short, Gap::Whole]).expect("the list is not empty");
        let behind = self.rng.up_to(MAX_GAP);
        let (admit, restrict) = match first {
            Side::Admission => release_held(admit, restrict, gap, behind).await,
            Side::Restriction => {
                let (restrict, admit) = release_held(restrict, admit, gap, behind).await;
                (admit, restrict)
            }
        };
        let admit: Value = serde_json::from_str(&admit.expect("the admission was judged")).expect("answers are JSON");
        let mut admission_state = waiting.admission_state();
        let winner = if admit["phase"] == "serving" { Side::Admission } else { Side::Restriction };
        match winner {
            Side::Admission => {
                let guard = within_limit("it serves", waiting.ready()).await.expect("it was admitted");
                assert!(guard.is_serving());
                names_the_blocker(&restrict.expect_err("the restriction is refused"), &name);
                let status = self.operator(status_of(&self.reconciler)).await;
                assert_eq!(status["gate"]["floor"], format!("{floor}.0.0"), "{status}");
                assert_eq!(status["blockers"][0]["member"], name.as_str(), "{status}");
                guard.drain().await;
            }
            Side::Restriction => {
                restrict.expect("no blocker");
                assert_eq!(admit["waiting"]["reason"], "below-floor", "{admit}");
                let is_below_floor = |admission_state: &AdmissionState| {
                    let AdmissionState::Waiting { reason, message } = admission_state else { return false };
                    *reason == AdmissionReason::BelowFloor
                        && message.contains(&format!("start it as {}.0.0 or later", floor + 1))
                };
                within_limit(
                    "the member is informed",
                    admission_state.wait_for(|view| is_below_floor(&view.admission_state)),
                )
                .await
                .expect("the member lives");
                waiting.leave().await;
            }
        }
        within_limit("the run ends", completed.wait_for(|runs| *runs > before)).await.expect("the runner lives");
        *self.counts.entry((first, gap, winner)).or_default() += 1;
        self.floor += 1;
    }

    async fn run_rounds(mut self) -> (String, String, Counts) {
        let mut left = [(Side::Admission, ROUNDS), (Side::Restriction, ROUNDS)];
        while left.iter().any(|(_, rounds)| *rounds > 0) {
            let sides: Vec<usize> = (0..left.len()).filter(|side| left[*side].1 > 0).collect();
            let (side, rounds) = &mut left[self.rng.pick(&sides).expect("a side remains")];
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

async fn held(at_the_barrier: oneshot::Receiver<HeldWrite>) -> HeldWrite {
    within_limit("both are at the barrier", at_the_barrier).await.expect("the barrier exists")
}

/// Releases both; returns their answers.
async fn release_held(first: HeldWrite, second: HeldWrite, gap: Gap, behind: Duration) -> (Answer, Answer) {
    let mut first = first.release_held();
    let mut answered = None;
    match gap {
        Gap::None => {}
        Gap::Short => scenario_pause_async("the time between the writes", behind).await,
        Gap::Whole => answered = Some(await_answer(&mut first).await),
    }
    let mut second = second.release_held();
    let first = match answered {
        Some(answer) => answer,
        None => await_answer(&mut first).await,
    };
    (first, await_answer(&mut second).await)
}

async fn await_answer(answer: &mut oneshot::Receiver<Answer>) -> Answer {
    within_limit("it is answered", answer).await.expect("the sender waits for the answer")
}

/// The refused runner's error names the blocking member.
#[track_caller]
fn names_the_blocker(refused: &ErrorBody, member: &str) {
    assert_eq!(refused.code, ErrorCode::GateClosed, "{refused:?}");
    assert_eq!(refused.detail(detail::GATE_REASON), Some(detail::GateReason::Blockers.into()), "{refused:?}");
    let blockers = refused.detail(detail::BLOCKERS).unwrap_or_default();
    assert_eq!(blockers.first().map(|blocker| blocker.member.as_str()), Some(member), "{refused:?}");
}

#[test]
#[ignore = "full tier"]
fn concurrent_admission_and_restriction_exclude_each_other() {
    let mut rng = rng();
    let world = managers_of("1.0.0");
    let names = ["n1", "n2", "n3"];
    let log = record::follow(&world, &names);
    let sockets = names.map(|name| world.socket(name));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let begun = Instant::now();
    let races: Vec<_> = (0..RACES)
        .map(|number| {
            let (sockets, rng) = (sockets.clone(), Rng::seeded(rng.sample()));
            runtime.spawn(async move { Race::start(number, &sockets, rng).await.run_rounds().await })
        })
        .collect();
    let races = runtime.block_on(join_all(races));
    let took = begun.elapsed();
    let last =
        world.answer("n1", muster_messages::wire::Request::Events { since: muster_messages::Revision(0), wait_ms: 0 });
    let events = events(&log.answers_until(last["revision"].as_u64().expect("a revision")));
    let mut counts = Counts::new();
    for race in races {
        let (reconciler, scope, counted) = race.expect("no round failed");
        let admitted =
            counted.iter().filter(|((.., winner), _)| *winner == Side::Admission).map(|(_, n)| n).sum::<u64>();
        check_race_events(&events, &reconciler, &scope, admitted);
        counted.into_iter().for_each(|(key, number)| *counts.entry(key).or_default() += number);
    }
    for ((first, gap, winner), number) in &counts {
        println!("{number:4} times {first:?} first, gap {gap:?}: {winner:?} came first");
        assert!(*gap != Gap::Whole || first == winner, "the first answered write is not first in the log");
    }
    let won = |side| counts.iter().filter(|((.., winner), _)| *winner == side).map(|(_, number)| number).sum::<u64>();
    println!("{} rounds in {took:?}, {} events", won(Side::Admission) + won(Side::Restriction), events.len());
    assert_eq!(won(Side::Admission) + won(Side::Restriction), 2 * ROUNDS * RACES);
    assert!(won(Side::Admission) > 0 && won(Side::Restriction) > 0, "{counts:?}");
}

/// Every state of this race, by the cluster's record.
fn check_race_events(events: &[record::Event], reconciler: &str, scope: &str, admitted: u64) {
    let (floors, written_under) = (BTreeMap::new(), BTreeMap::new());
    let context = CheckContext { reconciler, scope, floors, needs: |_| Triple::default(), written_under };
    let states = context.states(events).unwrap_or_else(|why| panic!("{why}"));
    let serving = states.windows(2).filter(|pair| {
        let serves = |state: &record::State| state.members.iter().any(record::Member::serves);
        !serves(&pair[0]) && serves(&pair[1])
    });
    assert_eq!(serving.count() as u64, admitted, "{reconciler}: exactly the admitted members have served");
    let mut floors: Vec<_> = states.iter().filter_map(|state| state.gate.as_ref().map(|gate| gate.floor)).collect();
    floors.dedup();
    assert!(floors.is_sorted() && floors.len() as u64 == 2 * ROUNDS + 1, "{reconciler}: {floors:?}");
}
