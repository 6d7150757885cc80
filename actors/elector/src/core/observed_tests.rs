//! client-go's own stories, retold, and ours. A server in a variable answers at once; time is a number.

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

/// What a request is called in upstream's tables.
fn verb(what: &What) -> &'static str {
    match what {
        What::Get => "get",
        What::Create(_) => "create",
        What::Update(_) => "update",
    }
}

struct World {
    now: Moment,
    elector: ObservedElector,
    server: Option<Versioned>,
    revision: u64,
    /// What the cluster says beside each write, if it is Muster's.
    token: Option<FencingToken>,
    verbs: Vec<&'static str>,
    /// What becomes of the next requests of a kind, where it is not what the server says.
    fails: VecDeque<(&'static str, LockError)>,
    /// While set, requests stay without an answer.
    holds_answers: bool,
    pending: Vec<Ask>,
    told: Vec<Effect<Ask>>,
    wake: Option<Moment>,
}

impl World {
    fn new(config: &ElectorConfig) -> Self {
        Self {
            now: Moment(3_600_000_000),
            elector: ObservedElector::new(config, 7, None),
            server: None,
            revision: 40,
            token: None,
            verbs: Vec::new(),
            fails: VecDeque::new(),
            holds_answers: false,
            pending: Vec::new(),
            told: Vec::new(),
            wake: None,
        }
    }
    fn coordinated() -> Self {
        Self::new(&ElectorConfig { coordinated: true, ..config() })
    }
    /// A lease that somebody wrote.
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
                other => self.told.push(other),
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
    /// Time passes, and timers fire as they are due.
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
    /// The attempt that a poll would make, without waiting for it.
    fn attempt(&mut self) {
        self.signal(Signal::Nudged);
    }

    fn record(&self) -> &Record {
        &self.server.as_ref().expect("the lease is there").record
    }
    fn leads(&self) -> bool {
        self.elector.view().phase == "leading"
    }
    fn leaders(&self) -> Vec<Option<&str>> {
        let told = self.told.iter();
        told.filter_map(|e| if let Effect::Leader(name) = e { Some(name.as_deref()) } else { None }).collect()
    }
    fn endings(&self) -> Vec<&Ending> {
        self.told.iter().filter_map(|e| if let Effect::End(ending) = e { Some(ending) } else { None }).collect()
    }
    fn was_told(&self, wanted: impl Fn(&Effect<Ask>) -> bool) -> usize {
        self.told.iter().filter(|effect| wanted(effect)).count()
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
fn a_lease_seen_for_the_first_time_is_waited_for_however_old_it_is() {
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
fn a_lease_that_nobody_holds_is_taken_at_once() {
    let mut world = World::with(held_by(""));
    world.start();
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
}

/// Case 5.
#[test]
fn a_lease_unchanged_for_its_duration_is_taken() {
    let mut world = World::with(held_by("bing"));
    world.elector.seen = Some(Sight { record: held_by("bing"), at: world.now - secs(60) });
    world.start();
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
}

/// Case 6.
#[test]
fn an_empty_holder_counts_more_than_any_clock() {
    let mut world = World::with(held_by(""));
    world.elector.seen = Some(Sight { record: held_by(""), at: world.now + secs(1000) });
    world.start();
    assert_eq!((world.leads(), world.record().transitions), (true, 1));
}

/// Case 7.
#[test]
fn a_live_holder_keeps_the_lease() {
    let mut world = World::with(held_by("bing"));
    world.elector.seen = Some(Sight { record: held_by("bing"), at: world.now + secs(1000) });
    world.start();
    assert_eq!(world.verbs, ["get"]);
    assert_eq!((world.leads(), world.record()), (false, &held_by("bing")));
    assert_eq!(world.leaders(), [Some("bing")]);
}

/// Case 8.
#[test]
fn our_own_lease_of_an_earlier_life_is_read_and_renewed() {
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
fn coordinated_nothing_is_created_and_a_preferred_holder_is_a_challenge() {
    let mut world = World::coordinated();
    world.start();
    assert_eq!(world.verbs, ["get"]);
    world.write(held_by("baz"));
    world.attempt();
    let preferred = Record { preferred_holder: Some("bing".into()), ..world.record().clone() };
    world.write(preferred.clone());
    world.pass(secs(5));
    assert_eq!(world.record(), &preferred, "not renewed any more");
    assert_eq!(world.was_told(|e| *e == Effect::Challenged { by: "bing".into() }), 1);
    world.signal(Signal::Challenge { by: "bing".into(), yields: true });
    assert_eq!(world.endings(), [&Ending::Yielded { to: "bing".into() }]);
    world.signal(Signal::Drained);
    let record = world.record();
    assert_eq!((record.holder.as_str(), record.preferred_holder.as_deref()), ("", Some("bing")), "kept on release");
}

/// Case 12.
#[test]
fn what_was_acquired_is_released() {
    let mut world = World::with(held_by(""));
    world.start();
    world.signal(Signal::Cancelled);
    world.signal(Signal::Drained);
    assert_eq!(world.verbs, ["get", "update", "get", "update"]);
    assert_eq!((world.record().holder.as_str(), world.record().lease_duration), ("", secs(1)));
    assert_eq!(world.record().transitions, 1, "kept");
    assert_eq!(world.leaders(), [Some("baz"), None]);
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

/// Case 13, and what it is for: somebody else's lease is not released.
#[test]
fn a_release_looks_first() {
    let mut world = leading();
    world.signal(Signal::Cancelled);
    world.write(held_by("bing"));
    world.signal(Signal::Drained);
    assert_eq!(world.verbs, ["get", "create", "get"]);
    assert_eq!(world.record(), &held_by("bing"));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

/// Case 14.
#[test]
fn a_release_that_lost_a_race_is_tried_again() {
    let mut world = leading();
    world.fails.push_back(("update", LockError::Conflict));
    world.signal(Signal::Cancelled);
    world.signal(Signal::Drained);
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
    world.signal(Signal::Drained);
    let cut_off = world.pending.remove(0);
    world.holds_answers = false;
    world.answer(cut_off.number, Err(LockError::Other("cancelled".into())));
    assert_eq!(world.verbs, ["get", "create", "update", "get", "update"]);
    assert_eq!(world.record().holder, "");
    assert_eq!(world.was_told(|e| matches!(e, Effect::Begin { .. })), 1);
    assert_eq!(world.was_told(|e| matches!(e, Effect::Over(Ending::Cancelled))), 1);
}

/// Case 16.
#[test]
fn a_release_that_cannot_look_ends_with_the_renew_deadline() {
    let mut world = leading();
    world.fails.extend((0..100).map(|_| ("get", LockError::Other("cancelled".into()))));
    world.signal(Signal::Cancelled);
    world.signal(Signal::Drained);
    world.pass(secs(10));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
    assert_eq!(world.record().holder, "baz", "until it runs out");
    assert_eq!(world.was_told(|e| matches!(e, Effect::Over(Ending::Cancelled))), 1);
}

/// Case 19.
#[test]
fn a_leader_renews_without_looking() {
    let mut world = leading();
    world.pass(secs(4));
    assert_eq!(world.verbs, ["get", "create", "update", "update"]);
    assert_eq!(world.elector.view().slow_path, 0);
}

/// Case 20.
#[test]
fn a_renewal_that_conflicts_looks_and_goes_on() {
    let mut world = leading();
    world.pass(secs(2));
    world.fails.push_back(("update", LockError::Conflict));
    world.pass(secs(4));
    assert_eq!(world.verbs, ["get", "create", "update", "update", "get", "update", "update"]);
    assert!(world.leads());
    assert_eq!((world.elector.view().slow_path, world.record().transitions), (1, 0));
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
    world.signal(Signal::Drained);
    assert_eq!(world.verbs.len(), asked, "there is nothing to release");
    assert!(world.was_told(|e| matches!(e, Effect::Over(Ending::Overtaken { .. }))) == 1);
}

#[test]
fn a_deleted_lease_is_made_again_and_leadership_goes_on() {
    let mut world = leading();
    world.server = None;
    world.pass(secs(2));
    assert_eq!(world.verbs, ["get", "create", "update", "get", "create"]);
    assert!(world.leads() && world.endings().is_empty());
}

#[test]
fn whoever_had_the_lease_between_two_looks_ended_our_leadership() {
    let mut world = leading();
    world.write(Record { transitions: 1, ..held_by("") });
    world.fails.push_back(("update", LockError::Conflict));
    world.pass(secs(2));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: None }]);
    world.signal(Signal::Drained);
    world.pass(secs(5));
    assert!(world.leads() && world.record().transitions == 2, "it stood again");
}

#[test]
fn a_lease_that_was_cleared_and_taken_by_nobody_is_led_on() {
    let mut world = leading();
    world.write(held_by(""));
    world.fails.push_back(("update", LockError::Conflict));
    world.pass(secs(2));
    assert!(world.leads() && world.endings().is_empty());
}

#[test]
fn leadership_does_not_outlast_its_token() {
    // Deleted, or cleared, and perhaps another's for a while: all that shows is that the cluster counts on.
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
        world.signal(Signal::Drained);
        world.pass(secs(5));
        let token =
            world.told.iter().rev().find_map(|e| if let Effect::Begin { token, .. } = e { *token } else { None });
        assert_eq!((world.leads(), token), (true, Some(FencingToken(57))), "{deleted}: it stood again");
    }
}

#[test]
fn without_a_confirmed_renewal_leadership_ends_at_the_deadline_of_the_last_one() {
    let mut world = leading();
    world.pass(secs(4));
    world.holds_answers = true;
    world.pass(secs(9));
    assert!(world.leads());
    world.pass(secs(1));
    assert_eq!(world.endings(), [&Ending::Lapsed], "ten seconds after the renewal at four");
    assert_eq!(world.was_told(|e| *e == Effect::Overdue), 0);
    world.pass(Duration::from_millis(4250));
    assert_eq!(world.was_told(|e| *e == Effect::Overdue), 1);
}

#[test]
fn a_late_answer_counts_from_when_its_renewal_was_sent() {
    let mut world = leading();
    let began = world.now;
    world.holds_answers = true;
    world.pass(secs(6));
    world.holds_answers = false;
    world.answer_all(); // to the renewal that was sent at two seconds
    let extended = world.told.iter().find_map(|e| if let Effect::Extend(hold) = e { Some(*hold) } else { None });
    assert_eq!(extended.map(|hold| hold.step_down_at), Some(began + secs(2) + secs(10)));
}

#[test]
fn a_leader_frozen_past_its_time_ends_before_it_believes_an_answer() {
    let mut world = leading();
    world.holds_answers = true;
    world.pass(secs(2));
    world.now = world.now + secs(60);
    world.holds_answers = false;
    world.answer_all();
    assert_eq!(world.endings(), [&Ending::Lapsed]);
    let of_interest = |e: &&Effect<Ask>| matches!(e, Effect::End(_) | Effect::Extend(_) | Effect::Overdue);
    assert!(matches!(world.told.iter().find(of_interest), Some(Effect::End(_))));
    assert!(!world.leads());
}

#[test]
fn the_lease_is_renewed_until_the_work_has_returned() {
    let mut world = leading();
    world.signal(Signal::Cancelled);
    world.pass(secs(30));
    assert_eq!(world.was_told(|e| *e == Effect::Overdue), 0);
    assert_eq!(world.record().holder, "baz");
    assert_eq!(world.verbs.iter().filter(|verb| **verb == "update").count(), 15);
}

#[test]
fn a_record_that_cannot_be_read_is_nobodys_to_take_and_is_shown() {
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
fn followers_look_again_after_one_period_and_at_most_two_and_a_fifth() {
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
    let token = world.told.iter().find_map(|e| if let Effect::Begin { token, .. } = e { *token } else { None });
    assert_eq!(token, Some(FencingToken(41)));
}

#[test]
fn an_answer_to_an_older_question_changes_nothing() {
    let mut world = leading();
    let before = world.elector.clone();
    world.answer(1, Err(LockError::NotFound));
    assert_eq!(world.elector, before);
}
