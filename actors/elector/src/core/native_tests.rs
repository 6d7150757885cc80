//! Stories of the native elector. The cluster is a few lines: what it answers, and when, each story says.

use muster_messages::wire::LeaseRef;

use super::super::Hold;
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

/// The machine, and what it has said and not been answered yet.
struct World {
    now: Moment,
    elector: NativeElector,
    asks: Vec<Ask>,
    told: Vec<Effect<Ask>>,
    wake: Option<Moment>,
}

impl World {
    fn new(config: &ElectorConfig) -> Self {
        Self::owing(config, None)
    }
    fn owing(config: &ElectorConfig, owed: Option<Owed>) -> Self {
        let elector = NativeElector::new(config, 7, owed);
        let mut world = Self { now: Moment(3_600_000_000), elector, asks: Vec::new(), told: Vec::new(), wake: None };
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
                other => self.told.push(other),
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

    /// Takes the oldest question of a kind.
    #[track_caller]
    fn asked<T>(&mut self, what: &str, of: impl Fn(&Ask) -> Option<T>) -> T {
        let found = self.asks.iter().position(|ask| of(ask).is_some());
        let at = found.unwrap_or_else(|| panic!("it did not ask to {what}, but {:?}", self.asks));
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
        self.asks.retain(|ask| of(ask).is_none()); // those before are nobody's any more
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
    fn renew(&mut self, result: Result<Verdict, Trouble>) {
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
        self.told.iter().filter_map(|e| if let Effect::End(ending) = e { Some(ending) } else { None }).collect()
    }
    fn leaders(&self) -> Vec<Option<&str>> {
        let told = self.told.iter();
        told.filter_map(|e| if let Effect::Leader(name) = e { Some(name.as_deref()) } else { None }).collect()
    }
    fn last_hold(&self) -> Hold {
        let holds = self.told.iter().rev();
        let mut holds = holds.filter_map(|effect| match effect {
            Effect::Extend(hold) | Effect::Begin { hold, .. } => Some(*hold),
            _ => None,
        });
        holds.next().expect("it has led")
    }
}

#[test]
fn the_work_gets_the_token_and_the_time_counts_from_before_the_question() {
    let mut world = World::new(&config());
    let asked_at = world.now;
    world.now = world.now + secs(3);
    world.acquire(Ok(lease(Some(ME), 10)));
    let hold = Hold { step_down_at: asked_at + secs(10), over_at: asked_at + ms(14_250) };
    assert!(world.told.contains(&Effect::Begin { token: Some(FencingToken(10)), hold }));
    assert_eq!(world.leaders(), [Some(ME)]);
}

#[test]
fn a_held_lease_is_watched_and_taken_the_moment_it_is_free() {
    let mut world = World::new(&config());
    world.acquire(Err(error(ErrorCode::Conflict)));
    world.sees(9, Some(lease(Some("bing"), 9)));
    assert_eq!((world.leaders(), world.acquisitions()), (vec![Some("bing")], 0));
    world.pass(secs(60));
    assert_eq!(world.acquisitions(), 0, "nothing is asked while the watch is silent");
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
fn a_watch_goes_on_from_what_it_showed() {
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
        world.renew(Ok(Verdict::Renewed));
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
    let renewed = |number| Answer::Renewed { number, result: Ok(Verdict::Renewed) };
    world.answer(renewed(second));
    assert_eq!(world.last_hold().step_down_at, began + secs(14));
    world.answer(renewed(first)); // late: it says nothing new
    assert_eq!(world.last_hold().step_down_at, began + secs(14));
    world.answer(renewed(third));
    assert_eq!(world.last_hold().step_down_at, began + secs(16));
}

#[test]
fn a_silent_cluster_is_asked_no_more_than_a_few_times_at_once() {
    let quick = ElectorConfig { retry_period: ms(100), ..config() };
    let mut world = World::new(&quick);
    world.acquire(Ok(lease(Some(ME), 10)));
    world.pass(secs(9));
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Renew { .. })), MOST_UNANSWERED);
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
    world.renew(Ok(Verdict::Renewed));
    assert!(world.leads() && world.elector.view().blocked.is_none());
}

#[test]
fn it_steps_down_at_the_renew_deadline_and_says_when_the_lease_itself_is_over() {
    let mut world = World::leading();
    world.pass(ms(9_999));
    assert!(world.leads());
    world.pass(ms(1));
    assert_eq!((world.endings(), world.leads()), (vec![&Ending::Lapsed], false));
    world.pass(ms(4_249));
    assert!(!world.told.contains(&Effect::Overdue));
    world.pass(ms(1));
    assert!(world.told.contains(&Effect::Overdue));
}

#[test]
fn overtaken_by_watch_it_steps_down_that_moment() {
    let mut world = World::leading();
    world.pass(ms(10));
    world.sees(11, Some(lease(Some("bing"), 11)));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: Some("bing".into()) }]);
    assert_eq!(world.leaders(), [Some(ME), Some("bing")]);
    world.signal(Signal::Drained);
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Release { .. })), 0, "it is not ours to give");
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
    world.renew(Ok(Verdict::Lost));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: None }]);
    world.pass(secs(20));
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Renew { .. })), 0);
}

#[test]
fn news_from_before_its_time_do_not_depose_a_leader() {
    let mut world = World::leading();
    world.sees(9, Some(lease(Some("bing"), 9))); // asked before the lease was won, answered by a member that lags
    world.sees(10, Some(lease(Some(ME), 10)));
    world.sees(14, Some(lease(Some("bing"), 9)));
    assert!(world.leads() && world.endings().is_empty());
    assert_eq!(world.leaders(), [Some(ME)]);
}

#[test]
fn a_freeze_past_the_deadline_is_noticed_before_an_answer_that_waited() {
    let mut world = World::leading();
    world.pass(secs(2));
    let (number, _) = world.asked_renew();
    world.now = world.now + secs(60); // no timer fired: the process stood still
    world.answer(Answer::Renewed { number, result: Ok(Verdict::Renewed) });
    let order: Vec<_> = world.told.iter().filter(|e| !matches!(e, Effect::Leader(_) | Effect::Begin { .. })).collect();
    assert_eq!(order[..2], [&Effect::End(Ending::Lapsed), &Effect::Overdue]);
    assert!(!world.leads());
}

#[test]
fn an_acquisition_answered_too_late_is_given_back() {
    let mut world = World::new(&config());
    world.now = world.now + secs(11);
    world.acquire(Ok(lease(Some(ME), 10)));
    assert!(!world.told.iter().any(|e| matches!(e, Effect::Begin { .. })));
    assert_eq!(world.asked_release().1, FencingToken(10));
}

#[test]
fn an_answer_of_an_old_session_changes_nothing() {
    let mut world = World::leading();
    world.pass(secs(2));
    let (old, _) = world.asked_renew();
    world.sees(11, Some(lease(Some("bing"), 11)));
    world.signal(Signal::Drained);
    world.sees(12, Some(lease(None, 11)));
    world.acquire(Ok(lease(Some(ME), 13)));
    let before = world.elector.clone();
    world.answer(Answer::Renewed { number: old, result: Ok(Verdict::Lost) });
    let hold = world.last_hold();
    world.answer(Answer::Renewed { number: old, result: Ok(Verdict::Renewed) });
    assert!(world.leads() && world.last_hold() == hold);
    assert_eq!(world.elector.view(), before.view());
}

#[test]
fn the_lease_is_renewed_while_the_work_drains_and_released_after() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    assert_eq!(world.endings(), [&Ending::Cancelled]);
    for _ in 0..30 {
        world.pass(secs(2));
        world.renew(Ok(Verdict::Renewed));
    }
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Release { .. })), 0);
    assert!(!world.told.contains(&Effect::Overdue));
    world.signal(Signal::Drained);
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Renew { .. })), 0);
    world.release(Ok(()));
    let told = &world.told[world.told.len() - 3..];
    assert_eq!(told, [Effect::Over(Ending::Cancelled), Effect::Leader(None), Effect::Stopped(Ok(()))]);
}

#[test]
fn work_that_returns_by_itself_gives_the_lease_up_and_ends_the_elector() {
    let mut world = World::leading();
    world.signal(Signal::Drained);
    world.release(Ok(()));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
    assert!(world.told.contains(&Effect::Over(Ending::Done)) && world.endings().is_empty());
}

#[test]
fn a_release_that_conflicts_is_done_and_one_without_an_answer_is_repeated() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    world.signal(Signal::Drained);
    world.release(Err(error(ErrorCode::Unreachable)));
    world.pass(ms(200));
    world.release(Err(error(ErrorCode::Conflict)));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn a_release_is_given_up_when_the_lease_has_run_out() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    world.signal(Signal::Drained);
    for _ in 0..20 {
        if world.asks_of(|ask| matches!(ask, Ask::Release { .. })) > 0 {
            world.release(Err(error(ErrorCode::NoQuorum)));
        }
        world.pass(secs(1));
    }
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn after_a_lapse_it_stands_again_only_once_it_is_known_what_became_of_its_token() {
    let mut world = World::leading();
    world.pass(secs(10));
    world.asks.clear();
    world.signal(Signal::Drained);
    let (number, token) = world.asked_release();
    assert_eq!((token, world.acquisitions()), (FencingToken(10), 0));
    world.answer(Answer::Released { number, result: Ok(()) });
    assert!(world.told.contains(&Effect::Over(Ending::Lapsed)));
    world.sees(20, Some(lease(None, 10)));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn a_lease_that_ran_out_is_released_before_it_is_asked_for_again() {
    let expired = LeaseView { expired: true, ..lease(Some(ME), 10) };
    let mut world = World::leading();
    world.sees(12, Some(expired.clone()));
    world.signal(Signal::Drained);
    assert_eq!(world.acquisitions(), 0, "it would come back under the token of before");
    world.release(Err(error(ErrorCode::Conflict))); // another was quicker
    world.sees(13, Some(expired));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn one_that_was_told_to_end_with_a_loss_does_not_stand_again() {
    let mut world = World::new(&ElectorConfig { stand_again: false, ..config() });
    world.acquire(Ok(lease(Some(ME), 10)));
    world.sees(11, Some(lease(Some("bing"), 11)));
    world.signal(Signal::Drained);
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn a_lease_in_our_name_is_taken_over_at_the_start_and_never_after() {
    // At the start: a process before us had the name, and the cluster lets the name have it.
    let mut world = World::new(&config());
    assert_eq!(world.acquisitions(), 1, "it does not ask who holds it first");
    world.acquire(Ok(lease(Some(ME), 10)));
    // Later another process with our name comes.
    world.sees(11, Some(lease(Some(ME), 11)));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: Some(ME.into()) }]);
    world.signal(Signal::Drained);
    world.sees(12, Some(lease(Some(ME), 11)));
    world.pass(secs(60));
    assert_eq!(world.acquisitions(), 0, "two of one name do not take it from each other in turns");
}

#[test]
fn a_preferred_holder_challenges_once_and_the_work_decides() {
    let mut world = World::leading();
    let preferring = |token, name: &str| LeaseView { preferred_holder: Some(name.into()), ..lease(Some(ME), token) };
    world.sees(11, Some(preferring(10, "bing")));
    world.sees(12, Some(preferring(10, "bing")));
    let challenges = |world: &World| world.told.iter().filter(|e| matches!(e, Effect::Challenged { .. })).count();
    assert_eq!(challenges(&world), 1);
    world.signal(Signal::Challenge { by: "bing".into(), yields: false });
    assert!(world.leads());
    world.sees(13, Some(preferring(10, "bong")));
    assert_eq!(challenges(&world), 2);
    world.signal(Signal::Challenge { by: "bong".into(), yields: true });
    assert_eq!(world.endings(), [&Ending::Yielded { to: "bong".into() }]);
}

#[test]
fn whoever_made_room_lets_the_other_have_it() {
    let mut world = World::leading();
    world.sees(11, Some(LeaseView { preferred_holder: Some("bing".into()), ..lease(Some(ME), 10) }));
    world.signal(Signal::Challenge { by: "bing".into(), yields: true });
    world.signal(Signal::Drained);
    world.release(Ok(()));
    world.sees(14, Some(lease(None, 10)));
    assert_eq!(world.acquisitions(), 0);
    world.pass(secs(15));
    assert_eq!(world.acquisitions(), 1, "but not for ever");
}

#[test]
fn a_refusal_for_good_ends_the_elector_and_trouble_does_not() {
    let mut world = World::new(&config());
    for _ in 0..10 {
        world.acquire(Err(error(ErrorCode::NoQuorum)));
        world.pass(secs(4));
    }
    world.acquire(Err(error(ErrorCode::Forbidden)));
    assert!(matches!(world.told.last(), Some(Effect::Stopped(Err(body))) if body.code == ErrorCode::Forbidden));
}

#[test]
fn a_leader_that_is_refused_for_good_ends_its_work_first() {
    let mut world = World::leading();
    world.pass(secs(2));
    world.renew(Err(error(ErrorCode::Forbidden)));
    assert!(matches!(world.endings()[..], [Ending::Refused { .. }]));
    assert!(!world.told.iter().any(|e| matches!(e, Effect::Stopped(_))));
    world.signal(Signal::Drained);
    assert!(matches!(world.told.last(), Some(Effect::Stopped(Err(_)))));
}

#[test]
fn stopped_while_it_asks_it_gives_back_what_it_is_granted() {
    let mut world = World::new(&config());
    world.signal(Signal::Cancelled);
    assert!(world.told.is_empty(), "the answer is waited for");
    world.acquire(Ok(lease(Some(ME), 10)));
    world.release(Ok(()));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
    assert!(!world.told.iter().any(|e| matches!(e, Effect::Begin { .. } | Effect::Over(_))));
}

#[test]
fn a_lease_that_cannot_be_read_blocks_with_a_status() {
    let mut world = World::new(&config());
    world.acquire(Err(Trouble::Unreadable("expected a string".into())));
    let blocked = world.elector.view().blocked.unwrap();
    assert!(blocked.contains("cannot be read"), "{blocked}");
    assert!(!world.leads());
}

#[test]
fn what_a_crashed_incarnation_held_is_left_alone_until_its_work_is_over_then_released() {
    let until = Moment(3_600_000_000) + secs(9);
    let mut world = World::owing(&config(), Some(Owed { token: FencingToken(10), until }));
    world.pass(ms(8_999));
    assert!(world.asks.is_empty());
    world.pass(ms(1));
    assert_eq!(world.asked_release().1, FencingToken(10));
}

#[test]
fn leases_of_less_than_a_second_work_the_same_way() {
    let quick = ElectorConfig { lease_duration: ms(300), renew_deadline: ms(200), retry_period: ms(50), ..config() };
    let mut world = World::new(&quick);
    let asked_at = world.now;
    world.acquire(Ok(lease(Some(ME), 10)));
    assert_eq!(world.last_hold(), Hold { step_down_at: asked_at + ms(200), over_at: asked_at + ms(285) });
    world.pass(ms(50));
    world.renew(Ok(Verdict::Renewed));
    assert_eq!(world.last_hold().step_down_at, asked_at + ms(250));
    world.pass(ms(200));
    assert_eq!(world.endings(), [&Ending::Lapsed]);
}
