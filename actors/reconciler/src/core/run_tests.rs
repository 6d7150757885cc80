//! One term of running a reconciler, against views that the test writes.

use muster_messages::ErrorCode;
use muster_messages::wire::{CandidateView, GateView, Waiting};

use super::story::*;
use super::*;

/// Scenarios 5 and 6.
#[test]
fn nothing_is_applied_while_somebody_serves_who_could_not_live_with_it() {
    let mut story = Story::new(command(), "restrict");
    story.see(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("b", "1.0.0")], 1));
    story.is("waiting", "blockers");
    story.pass(3_600_000);
    story.nothing();
    story.see(|view| (view.blockers, view.blockers_in_all) = (vec![], 0));
    story.grant(GateStep::Restrict, true);
    story.is("settling", "settling");
    story.pass(4_999);
    story.nothing();
    story.pass(1);
    let (number, work) = story.acts();
    assert_eq!((work.attempt, work.from), (1, Some("1.0.0".parse().unwrap())));
    story.end(number, Outcome::Done);
    story.grant(GateStep::Complete, true);
    story.is("idle", "done");
}

/// Scenario 18.
#[test]
fn blockers_are_said_once_for_each_set_of_releases() {
    let mut story = Story::new(command(), "restrict");
    let lines = |story: &mut Story| story.told().iter().filter(|e| matches!(e, Effect::Say(_))).count();
    story.see(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("a", "1.0.0"), blocker("b", "1.0.0")], 2));
    assert_eq!(lines(&mut story), 1);
    story.see(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("a", "1.0.0")], 1));
    assert_eq!(lines(&mut story), 0);
    story.see(|view| view.blockers = vec![blocker("a", "1.1.0")]);
    assert_eq!(lines(&mut story), 1);
}

/// Scenario 7: nobody is waited for.
#[test]
fn the_open_way_begins_at_once_and_settles_first() {
    let mut story = Story::new(command(), "open");
    story.look();
    story.grant(GateStep::Work, false);
    story.is("settling", "settling");
    story.pass(5_000);
    // The view is older than our own step: it is waited for.
    story.nothing();
    story.look();
    story.acts();
}

/// Somebody was told to stop, and serves still.
#[test]
fn also_on_the_open_way_nobody_is_run_over() {
    let mut story = Story::new(command(), "open");
    story.see(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("b", "1.0.0")], 1));
    story.is("waiting", "blockers");
    story.see(|view| (view.blockers, view.blockers_in_all) = (vec![], 0));
    story.grant(GateStep::Work, false);
}

/// Scenario 14.
#[test]
fn a_successor_in_the_middle_of_it_takes_the_open_way() {
    let mut story = Story::new(command(), "open"); // what a restricted gate is for whoever restricted it
    story.look();
    story.grant(GateStep::Work, true);
}

#[test]
fn the_first_run_ever_writes_no_gate_before_it_has_succeeded() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, work) = story.acts();
    assert_eq!(work.from, None);
    story.end(number, Outcome::Done);
    story.grant(GateStep::Complete, true);
    story.is("idle", "done");
}

#[test]
fn waves_follow_each_other_only_after_success() {
    let mut story = Story::new(Action::Objects(vec![]), "first");
    story.view.definition.as_mut().unwrap().settle_ms = 0;
    story.look();
    let errors = vec![ObjectError { key: "a".into(), message: "no".into() }];
    for (wave, errors) in [(0, vec![]), (1, errors), (1, vec![]), (2, vec![])] {
        let Effect::Wave { number, wave: asked, .. } = story.only() else { panic!() };
        assert_eq!(asked, wave);
        let fails = !errors.is_empty();
        story.hear(Input::Waved { number, result: Ok(Waved { errors, errors_in_all: 0 }) });
        if fails {
            story.nothing();
            assert_eq!(story.run.progress(WallTime(0)).wave, Some((2, 3)));
            story.pass(150);
        }
    }
    story.grant(GateStep::Complete, true);
}

#[test]
fn what_is_kept_is_applied_again_each_period_without_touching_the_gate() {
    let mut story = Story::new(command(), "reached");
    story.look();
    story.is("settling", "settling");
    story.pass(5_000);
    let (number, _) = story.acts();
    story.end(number, Outcome::Done);
    for _ in 0..3 {
        story.is("idle", "done");
        story.pass(29_999);
        story.look(); // news of others
        story.nothing();
        story.pass(1);
        let (number, work) = story.acts();
        assert_eq!(work.attempt, 1);
        story.end(number, Outcome::Done);
    }
}

#[test]
fn a_failing_repair_waits_for_its_next_turn_and_leaves_the_gate() {
    let mut story = Story::new(command(), "reached");
    story.look();
    story.pass(5_000);
    let (number, _) = story.acts();
    story.end(number, Outcome::Done);
    story.pass(30_000);
    story.fails("no");
    assert_eq!(story.run.progress(WallTime(0)).consecutive_failures, 1);
    story.pass(29_999);
    story.nothing();
    story.pass(1);
    story.acts();
}

#[test]
fn once_is_once_whoever_has_done_it() {
    let mut story = Story::new(command(), "reached");
    story.view.definition.as_mut().unwrap().every_ms = None;
    story.look();
    story.pass(3_600_000);
    story.nothing();
    story.is("idle", "done");
    // Unless somebody asks for it.
    story.see(|view| view.retries = 1);
    story.pass(5_000);
    let (number, _) = story.acts();
    story.end(number, Outcome::Done);
    story.look();
    story.pass(3_600_000);
    story.nothing();
}

/// RUN-2.
#[test]
fn a_refused_step_is_followed_by_a_look_and_not_by_an_action() {
    for code in [ErrorCode::Conflict, ErrorCode::GateClosed] {
        let mut story = Story::new(command(), "restrict");
        story.look();
        story.refuse(code);
        story.nothing();
        story.see(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("late", "1.0.0")], 1));
        story.nothing();
        story.is("waiting", "blockers");
    }
    // A refusal that no newer view explains is put again after a while.
    let mut story = Story::new(command(), "open");
    story.look();
    story.refuse(ErrorCode::Conflict);
    story.pass(4_999);
    story.nothing();
    story.pass(1);
    assert!(matches!(story.only(), Effect::Step { step: GateStep::Work, .. }));
}

/// RUN-4. An operator moves the floor while the action runs: the completion is refused for its epoch, and asked again for the
/// new one. Where somebody else has led the gate on meanwhile, what was applied may be undone.
#[test]
fn what_has_run_is_not_run_again_for_a_floor_set_meanwhile() {
    for (at_work, again) in [(true, false), (false, true)] {
        let mut story = Story::new(command(), "open");
        story.look();
        story.grant(GateStep::Work, true);
        story.pass(5_000);
        let (number, _) = story.acts();
        story.end(number, Outcome::Done);
        story.refuse(ErrorCode::Conflict);
        story.see(|view| (view.gate.epoch, view.gate.at_work) = (view.gate.epoch + 1, at_work));
        story.grant(GateStep::Work, true);
        match again {
            false => assert!(matches!(story.only(), Effect::Step { step: GateStep::Complete, .. })),
            true => drop(story.acts()),
        }
    }
}

/// Nobody else can have run anything in our term: also before there is a gate that says so.
#[test]
fn what_has_run_for_the_first_time_is_not_run_again_because_its_completion_had_to_wait() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.end(number, Outcome::Done);
    story.refuse(ErrorCode::Conflict); // somebody has come who is in the way, or an operator has paused it
    story.see(|view| view.hold = Some(Waiting { reason: "paused".into(), message: "paused".into() }));
    story.nothing();
    story.see(|view| view.hold = None);
    story.grant(GateStep::Complete, true);
}

/// RUN-4.
#[test]
fn a_view_from_before_its_completion_begins_no_second_run() {
    for seen in [true, false] {
        let mut story = Story::new(command(), "first");
        story.look();
        let old = story.view.clone();
        let (number, _) = story.acts();
        story.end(number, Outcome::Done);
        story.grant(GateStep::Complete, seen);
        story.hear(Input::View(Arc::new(RunnerView { ..old.clone() })));
        story.nothing();
        story.hear(Input::View(Arc::new(story.view.clone())));
        story.pass(20_000);
        story.nothing();
        story.is("idle", "done");
    }
}

/// RUN-4.
#[test]
fn a_view_from_before_the_term_is_not_looked_at() {
    let mut story = Story::new(command(), "first");
    story.view.revision = Revision(TERM.0 - 2);
    story.look(); // what the runner before has completed since is not in it
    story.pass(60_000);
    story.nothing();
    story.look();
    story.acts();
}

/// RUN-4.
#[test]
fn a_completion_without_an_answer_is_asked_again_and_not_run_again() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.end(number, Outcome::Done);
    story.refuse(ErrorCode::TimedOut);
    story.pass(200);
    assert!(matches!(story.only(), Effect::Step { step: GateStep::Complete, .. }));

    // It had arrived, and the view says so.
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.end(number, Outcome::Done);
    story.refuse(ErrorCode::UnknownOutcome);
    story.see(|view| {
        view.gate = GateView { epoch: 1, term: TERM, ..view.gate.clone() };
        view.path = Some("reached".into());
    });
    story.pass(29_000);
    story.nothing();
    story.is("idle", "done");
}

#[test]
fn failures_are_retried_after_growing_pauses_and_reported() {
    let mut story = Story::new(command(), "first");
    story.look();
    story.told();
    story = Story::new(command(), "first");
    story.look();
    let mut attempts = 0;
    let began = story.now;
    while story.now.since(began) < Duration::from_secs(30) {
        story.fails("no space");
        attempts += 1;
        let at = story.run.progress(WallTime(0)).next_retry_at;
        assert!(at.is_some());
        while story.told.iter().all(|effect| !matches!(effect, Effect::Act { .. })) {
            story.pass(10);
        }
    }
    assert!((10..30).contains(&attempts), "{attempts} in half a minute");
    let last = story.reports.last().unwrap();
    assert_eq!((last.last_error.as_deref(), last.output.as_str()), (Some("no space"), "out"));
    assert!(last.consecutive_failures >= 9);
    assert!(story.reports.len() <= 35, "{} reports", story.reports.len());
}

#[test]
fn a_runner_that_keeps_failing_makes_way_for_an_equal_and_for_nobody_else() {
    let candidate = |member: &str, release: &str| CandidateView {
        node: None,
        member: member.into(),
        release: release.parse().unwrap(),
        revision: Revision(1),
    };
    for (other, resigns) in [("2.0.0+other", true), ("1.0.0", false)] {
        let mut story = Story::new(command(), "first");
        story.see(|view| view.candidates = vec![candidate("n1", "2.0.0"), candidate("n2", other)]);
        for attempt in 1..=3 {
            let (number, _) = story.acts();
            story.end(number, Outcome::Failed("no".into()));
            let told = story.told();
            assert_eq!(told.contains(&Effect::Resign), resigns && attempt == 3, "{other} {attempt}");
            story.pass(1_000);
        }
    }
}

#[test]
fn later_is_no_failure_and_never_needs_somebody_to_say_retry() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.end(number, Outcome::Later("not yet".into()));
    assert_eq!(story.run.progress(WallTime(0)).consecutive_failures, 0);
    story.pass(150);
    let (number, work) = story.acts();
    assert_eq!(work.attempt, 2);
    story.end(number, Outcome::Permanent("never".into()));
    story.is("failed", "permanent");
    story.look();
    story.pass(3_600_000);
    story.nothing();
    story.see(|view| view.retries = 1);
    story.acts();
}

#[test]
fn what_takes_too_long_is_ended_and_counts_as_a_failure() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.pass(59_999);
    story.nothing();
    story.pass(1);
    assert_eq!(story.only(), Effect::Cancel { number });
    story.pass(60_000);
    story.nothing();
    story.end(number, Outcome::Failed("signal".into()));
    let progress = story.run.progress(WallTime(0));
    assert_eq!((progress.consecutive_failures, progress.last_error.as_deref()), (1, Some("it did not end within 60s")));
}

#[test]
fn what_takes_too_long_is_told_to_end_again_after_a_crash_that_may_have_kept_it_from_hearing() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.pass(60_000);
    assert_eq!(story.only(), Effect::Cancel { number });
    story.run.recover(Some(number));
    story.hear(Input::Woke);
    assert_eq!(story.only(), Effect::Cancel { number });
}

/// RUN-3.
#[test]
fn the_end_of_the_term_cancels_what_runs_and_nothing_begins_after_it() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.hear(Input::Ended);
    assert_eq!(story.only(), Effect::Cancel { number });
    story.end(number, Outcome::Done);
    story.look();
    story.see(|view| view.retries = 9);
    story.pass(3_600_000);
    story.nothing();
    assert!(story.run.has_ended());
}

#[test]
fn another_definition_takes_the_place_of_the_one_at_work() {
    let mut story = Story::new(command(), "first");
    story.look();
    let (number, _) = story.acts();
    story.see(|view| view.definition.as_mut().unwrap().digest = "e".into());
    assert_eq!(story.only(), Effect::Cancel { number });
    story.end(number, Outcome::Failed("signal".into()));
    let (_, work) = story.acts();
    assert_eq!((work.definition.digest.as_str(), work.attempt), ("e", 1));
    assert_eq!(story.run.progress(WallTime(0)).consecutive_failures, 0);
}

#[test]
fn holds_are_named_and_waited_out() {
    let cases = [
        ("paused", "paused"),
        ("gate-unreadable", "blocked"),
        ("downgrade-denied", "blocked"),
        ("skips-releases", "blocked"),
        ("digest-mismatch", "blocked"),
        ("dependency", "waiting"),
        ("ready-to-finalize", "ready-to-finalize"),
    ];
    for (reason, phase) in cases {
        let mut story = Story::new(command(), "open");
        let hold = Waiting { reason: reason.into(), message: "m".into() };
        story.see(|view| (view.hold, view.path) = (Some(hold), None));
        story.is(phase, reason);
        story.pass(3_600_000);
        story.nothing();
        story.see(|view| (view.hold, view.path) = (None, Some("open".into())));
        assert!(matches!(story.only(), Effect::Step { .. }), "{reason}");
    }
}

#[test]
fn whoever_is_in_the_way_comes_before_the_operators_word() {
    let mut story = Story::new(command(), "restrict");
    let hold = Waiting { reason: "ready-to-finalize".into(), message: "m".into() };
    story.see(|view| {
        (view.hold, view.path) = (Some(hold), None);
        (view.blockers, view.blockers_in_all) = (vec![blocker("b", "1.0.0")], 1);
    });
    story.is("waiting", "blockers");
    story.see(|view| (view.blockers, view.blockers_in_all) = (vec![], 0));
    story.is("ready-to-finalize", "ready-to-finalize");
}

#[test]
fn a_pause_lets_what_was_begun_end_and_begins_nothing() {
    let mut story = Story::new(command(), "open");
    story.look();
    story.grant(GateStep::Work, true);
    story.pass(5_000);
    let (number, _) = story.acts();
    let paused = Waiting { reason: "paused".into(), message: "m".into() };
    story.see(|view| (view.hold, view.path) = (Some(paused), None));
    story.nothing();
    story.end(number, Outcome::Done);
    assert!(matches!(story.only(), Effect::Step { step: GateStep::Complete, .. }));
}

#[test]
fn a_crash_asks_again_and_waits_for_the_action_that_still_runs() {
    let mut story = Story::new(command(), "open");
    story.look();
    story.told();
    story.run.recover(None);
    story.hear(Input::Woke);
    story.grant(GateStep::Work, true);
    story.pass(5_000);
    let (number, _) = story.acts();
    story.run.recover(Some(number));
    story.hear(Input::Woke);
    story.look();
    story.nothing();
    story.end(number, Outcome::Failed("no".into()));
    story.pass(150);
    let (number, work) = story.acts();
    assert_eq!(work.attempt, 2, "attempts go on, and nothing settles twice");
    // This one has gone with the crash.
    story.run.recover(None);
    story.hear(Input::Woke);
    let (again, work) = story.acts();
    assert!(again > number);
    assert_eq!(work.attempt, 3);
}

#[test]
fn reports_come_once_a_second_at_most_and_again_after_a_failure() {
    let mut story = Story::new(command(), "restrict");
    for n in 0..50 {
        story.see(|view| (view.blockers, view.blockers_in_all) = (vec![blocker(&format!("m{n}"), "1.0.0")], 1));
        story.pass(100);
    }
    assert!((5..=7).contains(&story.reports.len()), "{}", story.reports.len());
    story.pass(2_000);
    let last = story.reports.last().unwrap();
    assert!(last.message.contains("m49"), "{}", last.message);
    assert_eq!(last.since, story.reports[0].since, "it waits for the same reason all the time");
    let told = story.reports.len();
    story.hear(Input::Reported { ok: false });
    story.pass(6_000);
    assert_eq!(story.reports.len(), told + 1);
}

#[test]
fn texts_of_others_are_kept_in_short() {
    let mut story = Story::new(command(), "first");
    story.look();
    let long = "ö".repeat(100_000);
    story.fails(&long);
    assert!(story.run.progress(WallTime(0)).last_error.unwrap().chars().count() <= MOST_OF_AN_ERROR + 1);
}
