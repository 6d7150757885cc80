//! client-go's own scenarios, and ours. A server in a variable answers at once; time is a number.

use std::collections::VecDeque;

use muster_messages::FencingToken;
use muster_messages::wire::LeaseRef;

use super::*;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn config() -> ElectorConfig {
    ElectorConfig::new(LeaseRef { namespace: "foo".into(), name: "bar".into() }, "baz")
}

/// The request's name in upstream's tables.
fn verb(what: &What) -> &'static str {
    match what {
        What::Get => "get",
        What::Create(_) => "create",
        What::Update(_) => "update",
    }
}

struct World {
    now: Moment,
    elector: KubernetesElector,
    server: Option<Versioned>,
    revision: u64,
    /// The token that the cluster reports with each write, if it is Muster's.
    token: Option<FencingToken>,
    verbs: Vec<&'static str>,
    /// Results of the next requests of a kind, in place of the server's.
    fails: VecDeque<(&'static str, LockError)>,
    /// While set, requests stay unanswered.
    holds_answers: bool,
    pending: Vec<Ask>,
    effects: Vec<Effect<Ask>>,
    wake: Option<Moment>,
}

impl World {
    fn new(config: &ElectorConfig) -> Self {
        Self {
            now: Moment(3_600_000_000),
            elector: KubernetesElector::new(config, 7, None),
            server: None,
            revision: 40,
            token: None,
            verbs: Vec::new(),
            fails: VecDeque::new(),
            holds_answers: false,
            pending: Vec::new(),
            effects: Vec::new(),
            wake: None,
        }
    }
    fn coordinated() -> Self {
        Self::new(&ElectorConfig { coordinated: true, ..config() })
    }
    /// A lease that another client wrote.
    fn with(record: Record) -> Self {
        let mut world = Self::new(&config());
        world.write(record);
        world
    }
    fn write(&mut self, record: Record) {
        self.revision += 1;
        self.server = Some(Versioned { record, resource_version: self.revision.to_string(), token: self.token });
    }
    fn wall(&self) -> MicroTime {
        MicroTime(self.now.0 as i64)
    }

    fn signal(&mut self, signal: Signal) {
        let mut out = Vec::new();
        let wall = self.wall();
        self.elector.step(self.now, wall, signal, &mut out);
        self.take(out);
    }
    fn answer_all(&mut self) {
        while !self.pending.is_empty() && !self.holds_answers {
            let ask = self.pending.remove(0);
            let result = self.serve(&ask.what);
            self.answer(ask.number, result);
        }
    }
    fn answer(&mut self, number: u64, result: Result<Versioned, LockError>) {
        let mut out = Vec::new();
        let wall = self.wall();
        self.elector.answer(self.now, wall, Answer { number, result }, &mut out);
        self.take(out);
    }
    fn take(&mut self, out: Vec<Effect<Ask>>) {
        self.wake = None;
        for effect in out {
            match effect {
                Effect::Ask(ask) => {
                    self.verbs.push(verb(&ask.what));
                    self.pending.push(ask);
                }
                Effect::WakeAt(at) => self.wake = Some(at),
                other => self.effects.push(other),
            }
        }
        self.answer_all();
    }
    fn serve(&mut self, what: &What) -> Result<Versioned, LockError> {
        if let Some(at) = self.fails.iter().position(|(failing, _)| *failing == verb(what)) {
            return Err(self.fails.remove(at).expect("it was just found").1);
        }
        match what {
            What::Get => {}
            What::Create(_) if self.server.is_some() => return Err(LockError::Conflict),
            What::Update(_) if self.server.is_none() => return Err(LockError::NotFound),
            What::Create(record) | What::Update(record) => self.write(record.clone()),
        }
        self.server.clone().ok_or(LockError::NotFound)
    }
    /// Time passes, and timers fire when due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.wake.filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.signal(Signal::Woke);
        }
        self.now = end;
    }
    fn start(&mut self) {
        self.signal(Signal::Started);
    }
    /// The attempt of a poll, without waiting for it.
    fn attempt(&mut self) {
        self.signal(Signal::RetryNow);
    }

    fn record(&self) -> &Record {
        &self.server.as_ref().expect("the lease is there").record
    }
    fn leads(&self) -> bool {
        self.elector.view().phase == "leading"
    }
    fn leaders(&self) -> Vec<Option<&str>> {
        let effects = self.effects.iter();
        effects.filter_map(|e| if let Effect::Leader(name) = e { Some(name.as_deref()) } else { None }).collect()
    }
    fn endings(&self) -> Vec<&Ending> {
        self.effects.iter().filter_map(|e| if let Effect::End(ending) = e { Some(ending) } else { None }).collect()
    }
    fn count_effects(&self, wanted: impl Fn(&Effect<Ask>) -> bool) -> usize {
        self.effects.iter().filter(|effect| wanted(effect)).count()
    }
}

fn held_by(holder: &str) -> Record {
    Record { holder: holder.into(), lease_duration: secs(3), ..Record::default() }
}

fn leading() -> World {
    let mut world = World::new(&config());
    world.start();
    assert!(world.leads());
    world
}

/// Case 1.
#[test]
fn a_missing_lease_is_created() {
    let world = leading();
    assert_eq!(world.verbs, ["get", "create"]);
    assert_eq!((world.record().holder.as_str(), world.record().transitions), ("baz", 0));
    assert_eq!(world.leaders(), [Some("baz")]);
}

/// Case 2.
#[test]
fn a_lease_without_a_spec_is_taken() {
    let mut world = World::with(Record::default());
    world.start();
    assert_eq!(world.verbs, ["get", "update"]);
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
    assert!(world.record().acquired.is_some());
}

/// Case 3.
#[test]
fn newly_seen_lease_is_waited_for_however_old_it_is() {
    let mut world = World::with(Record { renewed: Some(MicroTime(0)), ..held_by("bing") });
    world.start();
    assert!(!world.leads());
    world.now = world.now + secs(3);
    world.attempt();
    assert_eq!(world.verbs, ["get", "get", "update"]);
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
    assert_eq!(world.leaders(), [Some("bing"), Some("baz")]);
}

/// Case 4.
#[test]
fn lease_without_a_holder_is_taken_at_once() {
    let mut world = World::with(held_by(""));
    world.start();
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
}

/// Case 5.
#[test]
fn a_lease_unchanged_for_its_duration_is_taken() {
    let mut world = World::with(held_by("bing"));
    world.elector.seen = Some(Observation { record: held_by("bing"), at: world.now - secs(60) });
    world.start();
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
}

/// Case 6.
#[test]
fn an_empty_holder_counts_more_than_any_clock() {
    let mut world = World::with(held_by(""));
    world.elector.seen = Some(Observation { record: held_by(""), at: world.now + secs(1000) });
    world.start();
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
}

/// Case 7.
#[test]
fn a_live_holder_keeps_the_lease() {
    let mut world = World::with(held_by("bing"));
    world.elector.seen = Some(Observation { record: held_by("bing"), at: world.now + secs(1000) });
    world.start();
    assert_eq!(world.verbs, ["get"]);
    assert_eq!((world.leads(), world.record()), (false, &held_by("bing")));
    assert_eq!(world.leaders(), [Some("bing")]);
}

/// Case 8.
#[test]
fn own_lease_of_an_earlier_process_is_read_and_renewed() {
    let mut world = World::with(Record { acquired: Some(MicroTime(5)), ..held_by("baz") });
    world.start();
    assert_eq!(world.verbs, ["get", "update"]);
    assert_eq!((world.leads(), world.record().transitions, world.record().acquired), (true, 0, Some(MicroTime(5))));
}

/// Case 9.
#[test]
fn coordinated_another_holder_is_left_alone() {
    let mut world = World::coordinated();
    world.write(held_by("bing"));
    world.start();
    world.now = world.now + secs(10);
    world.attempt();
    assert_eq!(world.verbs, ["get", "get"], "not even when its time is over");
    assert!(!world.leads());
}

/// Case 10.
#[test]
fn coordinated_what_we_were_given_is_renewed() {
    let mut world = World::coordinated();
    world.write(Record { strategy: Some("OldestEmulationVersion".into()), ..held_by("baz") });
    world.start();
    assert_eq!((world.verbs.as_slice(), world.leads()), (["get", "update"].as_slice(), true));
    assert_eq!(world.record().strategy.as_deref(), Some("OldestEmulationVersion"));
    assert_eq!((world.record().acquired, world.record().transitions), (None, 0));
}

#[test]
fn coordinated_creates_nothing_and_preference_is_a_challenge() {
    let mut world = World::coordinated();
    world.start();
    assert_eq!(world.verbs, ["get"]);
    world.write(held_by("baz"));
    world.attempt();
    let preferred = Record { preferred_holder: Some("bing".into()), ..world.record().clone() };
    world.write(preferred.clone());
    world.pass(secs(5));
    assert_eq!(world.record(), &preferred, "no longer renewed");
    assert_eq!(world.count_effects(|e| *e == Effect::Challenged { by: "bing".into() }), 1);
    world.signal(Signal::Challenge { by: "bing".into(), yields: true });
    assert_eq!(world.endings(), [&Ending::Yielded { to: "bing".into() }]);
    world.signal(Signal::WorkEnded);
    let record = world.record();
    assert_eq!((record.holder.as_str(), record.preferred_holder.as_deref()), ("", Some("bing")), "kept on release");
}

/// Case 12.
#[test]
fn what_was_acquired_is_released() {
    let mut world = World::with(held_by(""));
    world.start();
    world.signal(Signal::Cancelled);
    world.signal(Signal::WorkEnded);
    assert_eq!(world.verbs, ["get", "update", "get", "update"]);
    assert_eq!((world.record().holder.as_str(), world.record().lease_duration), ("", secs(1)));
    assert_eq!(world.record().transitions, 1, "kept");
    assert_eq!(world.leaders(), [Some("baz"), None]);
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
}

/// Case 13, and its purpose: another's lease is not released.
#[test]
fn release_reads_the_lease_first() {
    let mut world = leading();
    world.signal(Signal::Cancelled);
    world.write(held_by("bing"));
    world.signal(Signal::WorkEnded);
    assert_eq!(world.verbs, ["get", "create", "get"]);
    assert_eq!(world.record(), &held_by("bing"));
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
}

/// Case 14.
#[test]
fn a_release_that_lost_a_race_is_tried_again() {
    let mut world = leading();
    world.fails.push_back(("update", LockError::Conflict));
    world.signal(Signal::Cancelled);
    world.signal(Signal::WorkEnded);
    world.pass(secs(10));
    assert_eq!(world.verbs, ["get", "create", "get", "update", "get", "update"]);
    assert_eq!(world.record().holder, "");
}

/// Case 15.
#[test]
fn a_renewal_in_flight_at_the_end_is_followed_by_a_release() {
    let mut world = leading();
    world.holds_answers = true;
    world.pass(secs(2));
    assert_eq!(world.verbs, ["get", "create", "update"]);
    world.signal(Signal::Cancelled);
    world.signal(Signal::WorkEnded);
    let interrupted = world.pending.remove(0);
    world.holds_answers = false;
    world.answer(interrupted.number, Err(LockError::Other("cancelled".into())));
    assert_eq!(world.verbs, ["get", "create", "update", "get", "update"]);
    assert_eq!(world.record().holder, "");
    assert_eq!(world.count_effects(|e| matches!(e, Effect::Begin { .. })), 1);
    assert_eq!(world.count_effects(|e| matches!(e, Effect::Over(Ending::Cancelled))), 1);
}

/// Case 16.
#[test]
fn release_that_cannot_read_ends_at_the_renew_deadline() {
    let mut world = leading();
    world.fails.extend((0..100).map(|_| ("get", LockError::Other("cancelled".into()))));
    world.signal(Signal::Cancelled);
    world.signal(Signal::WorkEnded);
    world.pass(secs(10));
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
    assert_eq!(world.record().holder, "baz", "until it runs out");
    assert_eq!(world.count_effects(|e| matches!(e, Effect::Over(Ending::Cancelled))), 1);
}

/// Case 19.
#[test]
fn leader_renews_without_reading() {
    let mut world = leading();
    world.pass(secs(4));
    assert_eq!(world.verbs, ["get", "create", "update", "update"]);
    assert_eq!(world.elector.view().read_after_failed_renewal, 0);
}

/// Case 20.
#[test]
fn conflicting_renewal_reads_and_continues() {
    let mut world = leading();
    world.pass(secs(2));
    world.fails.push_back(("update", LockError::Conflict));
    world.pass(secs(4));
    assert_eq!(world.verbs, ["get", "create", "update", "update", "get", "update", "update"]);
    assert!(world.leads());
    assert_eq!((world.elector.view().read_after_failed_renewal, world.record().transitions), (1, 0));
}

#[test]
fn a_leader_that_sees_another_steps_down_within_one_period() {
    let mut world = leading();
    world.write(held_by("bing"));
    world.fails.push_back(("update", LockError::Conflict));
    world.pass(secs(2));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: Some("bing".into()) }]);
    assert_eq!(world.leaders(), [Some("baz"), Some("bing")]);
    let asked = world.verbs.len();
    world.signal(Signal::WorkEnded);
    assert_eq!(world.verbs.len(), asked, "it has nothing to release");
    assert!(world.count_effects(|e| matches!(e, Effect::Over(Ending::Overtaken { .. }))) == 1);
}

#[test]
fn deleted_lease_is_recreated_and_leadership_continues() {
    let mut world = leading();
    world.server = None;
    world.pass(secs(2));
    assert_eq!(world.verbs, ["get", "create", "update", "get", "create"]);
    assert!(world.leads() && world.endings().is_empty());
}

#[test]
fn holder_between_two_reads_ends_leadership() {
    let mut world = leading();
    world.write(Record { transitions: 1, ..held_by("") });
    world.fails.push_back(("update", LockError::Conflict));
    world.pass(secs(2));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: None }]);
    world.signal(Signal::WorkEnded);
    world.pass(secs(5));
    assert!(world.leads() && world.record().transitions == 2, "it campaigned again");
}

#[test]
fn cleared_lease_without_a_new_holder_keeps_its_leader() {
    let mut world = leading();
    world.write(held_by(""));
    world.fails.push_back(("update", LockError::Conflict));
    world.pass(secs(2));
    assert!(world.leads() && world.endings().is_empty());
}

#[test]
fn leadership_does_not_outlast_its_token() {
    // Deleted, or cleared, and perhaps another's for a while: visible only by the cluster's later token.
    for deleted in [true, false] {
        let mut world = World::new(&config());
        world.token = Some(FencingToken(41));
        world.start();
        assert!(world.leads());
        world.pass(secs(2));
        assert!(world.leads(), "renewals keep the token");
        world.token = Some(FencingToken(57));
        if deleted {
            world.server = None;
        } else {
            world.write(held_by(""));
            world.fails.push_back(("update", LockError::Conflict));
        }
        world.pass(secs(2));
        assert_eq!(world.endings(), [&Ending::Overtaken { by: None }], "{deleted}");
        world.signal(Signal::WorkEnded);
        world.pass(secs(5));
        let token =
            world.effects.iter().rev().find_map(|e| if let Effect::Begin { token, .. } = e { *token } else { None });
        assert_eq!((world.leads(), token), (true, Some(FencingToken(57))), "{deleted}: it campaigned again");
    }
}

#[test]
fn leadership_ends_a_deadline_after_the_last_renewal() {
    let mut world = leading();
    world.pass(secs(4));
    world.holds_answers = true;
    world.pass(secs(9));
    assert!(world.leads());
    world.pass(secs(1));
    assert_eq!(world.endings(), [&Ending::Lapsed], "ten seconds after the renewal at four");
    assert_eq!(world.count_effects(|e| *e == Effect::Overdue), 0);
    world.pass(Duration::from_millis(4250));
    assert_eq!(world.count_effects(|e| *e == Effect::Overdue), 1);
}

#[test]
fn a_late_answer_counts_from_when_its_renewal_was_sent() {
    let mut world = leading();
    let began = world.now;
    world.holds_answers = true;
    world.pass(secs(6));
    world.holds_answers = false;
    world.answer_all(); // to the renewal that was sent at two seconds
    let extended = world.effects.iter().find_map(|e| if let Effect::Extend(hold) = e { Some(*hold) } else { None });
    assert_eq!(extended.map(|hold| hold.step_down_at), Some(began + secs(2) + secs(10)));
}

#[test]
fn frozen_leader_ends_before_it_accepts_an_answer() {
    let mut world = leading();
    world.holds_answers = true;
    world.pass(secs(2));
    world.now = world.now + secs(60);
    world.holds_answers = false;
    world.answer_all();
    assert_eq!(world.endings(), [&Ending::Lapsed]);
    let of_interest = |e: &&Effect<Ask>| matches!(e, Effect::End(_) | Effect::Extend(_) | Effect::Overdue);
    assert!(matches!(world.effects.iter().find(of_interest), Some(Effect::End(_))));
    assert!(!world.leads());
}

#[test]
fn the_lease_is_renewed_until_the_work_has_returned() {
    let mut world = leading();
    world.signal(Signal::Cancelled);
    world.pass(secs(30));
    assert_eq!(world.count_effects(|e| *e == Effect::Overdue), 0);
    assert_eq!(world.record().holder, "baz");
    assert_eq!(world.verbs.iter().filter(|verb| **verb == "update").count(), 15);
}

#[test]
fn unreadable_record_is_never_taken_and_is_shown() {
    let mut world = World::with(held_by("bing"));
    world.fails.extend((0..100).map(|_| ("get", LockError::Unreadable("renewTime is \"yesterday\"".into()))));
    world.start();
    world.pass(secs(60));
    assert!(world.verbs.iter().all(|verb| *verb == "get"));
    let blocked = world.elector.view().blocked.unwrap();
    assert!(blocked.contains("cannot be read") && blocked.contains("yesterday"), "{blocked}");
}

#[test]
fn a_follower_uses_the_duration_that_the_holder_wrote() {
    let mut world = World::with(Record { lease_duration: secs(60), ..held_by("bing") });
    world.start();
    world.pass(secs(59));
    assert!(!world.leads());
    world.pass(secs(6));
    assert!(world.leads());
}

#[test]
fn followers_read_again_after_1_to_2_2_periods() {
    let mut world = World::with(held_by("bing"));
    world.start();
    for renewal in 1..50 {
        world.write(Record { renewed: Some(MicroTime(renewal)), ..held_by("bing") });
        let pause = world.wake.unwrap().since(world.now);
        assert!(pause >= secs(2) && pause < Duration::from_millis(4400), "{pause:?}");
        world.pass(pause);
    }
    assert!(!world.leads());
}

#[test]
fn the_token_of_a_term_is_the_version_of_the_write_that_won_it() {
    let world = leading();
    let token = world.effects.iter().find_map(|e| if let Effect::Begin { token, .. } = e { *token } else { None });
    assert_eq!(token, Some(FencingToken(41)));
}

#[test]
fn answer_to_an_older_request_changes_nothing() {
    let mut world = leading();
    let before = world.elector.clone();
    world.answer(1, Err(LockError::NotFound));
    assert_eq!(world.elector, before);
}
