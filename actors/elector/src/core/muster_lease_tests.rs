//! Scenarios of the native elector. The cluster is a few lines: each scenario defines its answers and when they arrive.

use muster_messages::wire::LeaseRef;

use super::super::Hold;
use super::super::phases::MAX_UNANSWERED_RENEWALS;
use super::*;

const ME: &str = "baz";

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
fn config() -> ElectorConfig {
    ElectorConfig::new(LeaseRef { namespace: "foo".into(), name: "bar".into() }, ME)
}
fn error(code: ErrorCode) -> Trouble {
    Trouble::Error(ErrorBody::new(code, "so it is"))
}

fn lease(holder: Option<&str>, token: u64) -> LeaseView {
    LeaseView {
        namespace: "foo".into(),
        name: "bar".into(),
        holder: holder.map(str::to_owned),
        expired: false,
        fencing_token: FencingToken(token),
        transitions: 0,
        acquired_at: None,
        renewed_at: None,
        lease_duration_ms: Some(15_000),
        expires_in_ms: Some(15_000),
        strategy: None,
        preferred_holder: None,
        revision: Revision(token),
    }
}

/// The machine and its unanswered requests.
struct World {
    now: Moment,
    elector: MusterElector,
    asks: Vec<Ask>,
    effects: Vec<Effect<Ask>>,
    wake: Option<Moment>,
}

impl World {
    fn new(config: &ElectorConfig) -> Self {
        Self::with_outstanding(config, None)
    }
    fn with_outstanding(config: &ElectorConfig, outstanding: Option<OutstandingToken>) -> Self {
        let elector = MusterElector::new(config, 7, outstanding);
        let mut world = Self { now: Moment(3_600_000_000), elector, asks: Vec::new(), effects: Vec::new(), wake: None };
        world.signal(Signal::Started);
        world
    }
    /// Leads under token 10.
    fn leading() -> Self {
        let mut world = Self::new(&config());
        world.acquire(Ok(lease(Some(ME), 10)));
        assert!(world.leads());
        world
    }

    fn signal(&mut self, signal: Signal) {
        let mut out = Vec::new();
        self.elector.step(self.now, signal, &mut out);
        self.take(out);
    }
    fn answer(&mut self, answer: Answer) {
        let mut out = Vec::new();
        self.elector.answer(self.now, answer, &mut out);
        self.take(out);
    }
    fn take(&mut self, out: Vec<Effect<Ask>>) {
        self.wake = None;
        for effect in out {
            match effect {
                Effect::Ask(ask) => self.asks.push(ask),
                Effect::WakeAt(at) => self.wake = Some(at),
                other => self.effects.push(other),
            }
        }
    }
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.wake.filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.signal(Signal::Woke);
        }
        self.now = end;
    }

    /// Takes the oldest request of a kind.
    #[track_caller]
    fn asked<T>(&mut self, what: &str, of: impl Fn(&Ask) -> Option<T>) -> T {
        let found = self.asks.iter().position(|ask| of(ask).is_some());
        let at = found.unwrap_or_else(|| panic!("no request to {what}: {:?}", self.asks));
        of(&self.asks.remove(at)).expect("it was just found")
    }
    #[track_caller]
    fn asked_acquire(&mut self) -> u64 {
        self.asked("acquire", |ask| if let Ask::Acquire { number, .. } = ask { Some(*number) } else { None })
    }
    #[track_caller]
    fn asked_renew(&mut self) -> (u64, FencingToken) {
        let of = |ask: &Ask| if let Ask::Renew { number, token, .. } = ask { Some((*number, *token)) } else { None };
        self.asked("renew", of)
    }
    #[track_caller]
    fn asked_release(&mut self) -> (u64, FencingToken) {
        let of = |ask: &Ask| if let Ask::Release { number, token, .. } = ask { Some((*number, *token)) } else { None };
        self.asked("release", of)
    }
    #[track_caller]
    fn asked_watch(&mut self) -> (u64, Revision) {
        let of = |ask: &Ask| if let Ask::Watch { number, seen, .. } = ask { Some((*number, *seen)) } else { None };
        let newest = self.asks.iter().rev().find_map(of).expect("it watches");
        self.asks.retain(|ask| of(ask).is_none()); // earlier ones are superseded
        newest
    }
    fn asks_of(&self, wanted: impl Fn(&Ask) -> bool) -> usize {
        self.asks.iter().filter(|ask| wanted(ask)).count()
    }
    fn acquisitions(&self) -> usize {
        self.asks_of(|ask| matches!(ask, Ask::Acquire { .. }))
    }

    #[track_caller]
    fn acquire(&mut self, result: Result<LeaseView, Trouble>) {
        let number = self.asked_acquire();
        self.answer(Answer::Acquired { number, result });
    }
    #[track_caller]
    fn renew(&mut self, result: Result<RenewalOutcome, Trouble>) {
        let (number, _) = self.asked_renew();
        self.answer(Answer::Renewed { number, result });
    }
    #[track_caller]
    fn release(&mut self, result: Result<(), Trouble>) {
        let (number, _) = self.asked_release();
        self.answer(Answer::Released { number, result });
    }
    #[track_caller]
    fn sees(&mut self, revision: u64, lease: Option<LeaseView>) {
        let (number, _) = self.asked_watch();
        self.answer(Answer::Watched { number, result: Ok(Seen { revision: Revision(revision), lease }) });
    }

    fn leads(&self) -> bool {
        self.elector.view().phase == "leading"
    }
    fn endings(&self) -> Vec<&Ending> {
        self.effects.iter().filter_map(|e| if let Effect::End(ending) = e { Some(ending) } else { None }).collect()
    }
    fn leaders(&self) -> Vec<Option<&str>> {
        let effects = self.effects.iter();
        effects.filter_map(|e| if let Effect::Leader(name) = e { Some(name.as_deref()) } else { None }).collect()
    }
    fn last_hold(&self) -> Hold {
        let holds = self.effects.iter().rev();
        let mut holds = holds.filter_map(|effect| match effect {
            Effect::Extend(hold) | Effect::Begin { hold, .. } => Some(*hold),
            _ => None,
        });
        holds.next().expect("it has led")
    }
}

#[test]
fn term_counts_from_before_the_request_and_has_the_token() {
    let mut world = World::new(&config());
    let asked_at = world.now;
    world.now = world.now + secs(3);
    world.acquire(Ok(lease(Some(ME), 10)));
    let hold = Hold { step_down_at: asked_at + secs(10), over_at: asked_at + ms(14_250) };
    assert!(world.effects.contains(&Effect::Begin { token: Some(FencingToken(10)), hold }));
    assert_eq!(world.leaders(), [Some(ME)]);
}

#[test]
fn a_held_lease_is_watched_and_taken_the_moment_it_is_free() {
    let mut world = World::new(&config());
    world.acquire(Err(error(ErrorCode::Conflict)));
    world.sees(9, Some(lease(Some("bing"), 9)));
    assert_eq!((world.leaders(), world.acquisitions()), (vec![Some("bing")], 0));
    world.pass(secs(60));
    assert_eq!(world.acquisitions(), 0, "no request while the watch is silent");
    world.sees(12, Some(lease(None, 9)));
    world.acquire(Ok(lease(Some(ME), 13)));
    assert!(world.leads());
    assert_eq!(world.leaders(), [Some("bing"), None, Some(ME)]);
}

#[test]
fn an_expired_or_deleted_lease_is_free() {
    for free in [Some(LeaseView { expired: true, ..lease(Some("bing"), 9) }), None] {
        let mut world = World::new(&config());
        world.acquire(Err(error(ErrorCode::Conflict)));
        world.sees(9, Some(lease(Some("bing"), 9)));
        world.sees(11, free);
        assert_eq!(world.acquisitions(), 1);
    }
}

#[test]
fn watch_continues_from_the_revision_that_it_showed() {
    let mut world = World::new(&config());
    world.acquire(Err(error(ErrorCode::Conflict)));
    world.sees(9, Some(lease(Some("bing"), 9)));
    assert_eq!(world.asked_watch().1, Revision(9));
}

#[test]
fn a_renewal_moves_the_deadline_and_is_repeated_every_period() {
    let mut world = World::leading();
    let began = world.now;
    for period in 1..20 {
        world.pass(secs(2));
        world.renew(Ok(RenewalOutcome::Renewed));
        assert_eq!(world.last_hold().step_down_at, began + secs(2) * period + secs(10));
    }
    assert!(world.leads() && world.endings().is_empty());
}

#[test]
fn renewals_overlap_and_each_counts_from_when_it_was_sent() {
    let mut world = World::leading();
    let began = world.now;
    world.pass(secs(6));
    let first = world.asked_renew().0;
    let second = world.asked_renew().0;
    let third = world.asked_renew().0;
    let renewed = |number| Answer::Renewed { number, result: Ok(RenewalOutcome::Renewed) };
    world.answer(renewed(second));
    assert_eq!(world.last_hold().step_down_at, began + secs(14));
    world.answer(renewed(first)); // late: no effect
    assert_eq!(world.last_hold().step_down_at, began + secs(14));
    world.answer(renewed(third));
    assert_eq!(world.last_hold().step_down_at, began + secs(16));
}

#[test]
fn silent_cluster_gets_few_requests_at_once() {
    let quick = ElectorConfig { retry_period: ms(100), ..config() };
    let mut world = World::new(&quick);
    world.acquire(Ok(lease(Some(ME), 10)));
    world.pass(secs(9));
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Renew { .. })), MAX_UNANSWERED_RENEWALS);
}

#[test]
fn a_failed_renewal_is_repeated_soon_and_less_soon_each_time() {
    let mut world = World::leading();
    world.pass(secs(2));
    let mut pauses = Vec::new();
    for _ in 0..5 {
        world.renew(Err(error(ErrorCode::NoQuorum)));
        let pause = world.wake.unwrap().since(world.now);
        pauses.push(pause);
        world.pass(pause);
    }
    assert_eq!(pauses, [ms(200), ms(400), ms(800), ms(1600), ms(2000)]);
    assert_eq!(world.elector.view().blocked.as_deref(), Some("so it is"));
    world.renew(Ok(RenewalOutcome::Renewed));
    assert!(world.leads() && world.elector.view().blocked.is_none());
}

#[test]
fn steps_down_at_the_renew_deadline_and_reports_lease_end() {
    let mut world = World::leading();
    world.pass(ms(9_999));
    assert!(world.leads());
    world.pass(ms(1));
    assert_eq!((world.endings(), world.leads()), (vec![&Ending::Lapsed], false));
    world.pass(ms(4_249));
    assert!(!world.effects.contains(&Effect::Overdue));
    world.pass(ms(1));
    assert!(world.effects.contains(&Effect::Overdue));
}

#[test]
fn overtaken_leader_steps_down_at_once_by_watch() {
    let mut world = World::leading();
    world.pass(ms(10));
    world.sees(11, Some(lease(Some("bing"), 11)));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: Some("bing".into()) }]);
    assert_eq!(world.leaders(), [Some(ME), Some("bing")]);
    world.signal(Signal::WorkEnded);
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Release { .. })), 0, "the lease is another's");
}

#[test]
fn a_lease_that_is_deleted_expired_or_emptied_is_lost() {
    let expired = LeaseView { expired: true, ..lease(Some(ME), 10) };
    for seen in [None, Some(expired), Some(lease(None, 10)), Some(lease(Some(ME), 11))] {
        let mut world = World::leading();
        world.sees(12, seen.clone());
        assert!(matches!(world.endings()[..], [Ending::Overtaken { .. }]), "{seen:?}");
    }
}

#[test]
fn a_refused_renewal_is_final() {
    let mut world = World::leading();
    world.pass(secs(2));
    world.renew(Ok(RenewalOutcome::Lost));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: None }]);
    world.pass(secs(20));
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Renew { .. })), 0);
}

#[test]
fn observation_from_before_the_term_does_not_end_it() {
    let mut world = World::leading();
    world.sees(9, Some(lease(Some("bing"), 9))); // sent before the lease was won, answered by a lagging manager
    world.sees(10, Some(lease(Some(ME), 10)));
    world.sees(14, Some(lease(Some("bing"), 9)));
    assert!(world.leads() && world.endings().is_empty());
    assert_eq!(world.leaders(), [Some(ME)]);
}

#[test]
fn freeze_is_noticed_before_a_waiting_answer_is_handled() {
    let mut world = World::leading();
    world.pass(secs(2));
    let (number, _) = world.asked_renew();
    world.now = world.now + secs(60); // no timer fired: the process was frozen
    world.answer(Answer::Renewed { number, result: Ok(RenewalOutcome::Renewed) });
    let order: Vec<_> =
        world.effects.iter().filter(|e| !matches!(e, Effect::Leader(_) | Effect::Begin { .. })).collect();
    assert_eq!(order[..2], [&Effect::End(Ending::Lapsed), &Effect::Overdue]);
    assert!(!world.leads());
}

#[test]
fn an_acquisition_answered_too_late_is_given_back() {
    let mut world = World::new(&config());
    world.now = world.now + secs(11);
    world.acquire(Ok(lease(Some(ME), 10)));
    assert!(!world.effects.iter().any(|e| matches!(e, Effect::Begin { .. })));
    assert_eq!(world.asked_release().1, FencingToken(10));
}

#[test]
fn an_answer_of_an_old_session_changes_nothing() {
    let mut world = World::leading();
    world.pass(secs(2));
    let (old, _) = world.asked_renew();
    world.sees(11, Some(lease(Some("bing"), 11)));
    world.signal(Signal::WorkEnded);
    world.sees(12, Some(lease(None, 11)));
    world.acquire(Ok(lease(Some(ME), 13)));
    let before = world.elector.clone();
    world.answer(Answer::Renewed { number: old, result: Ok(RenewalOutcome::Lost) });
    let hold = world.last_hold();
    world.answer(Answer::Renewed { number: old, result: Ok(RenewalOutcome::Renewed) });
    assert!(world.leads() && world.last_hold() == hold);
    assert_eq!(world.elector.view(), before.view());
}

#[path = "muster_lease_ending_tests.rs"]
mod ending;
