//! One term of running a reconciler, against views that the test writes.

use muster_messages::wire::{CandidateView, GateView};
use muster_messages::{ErrorCode, GatePath, HoldReason, HoldView};

use super::scenario::*;
use super::*;

/// Scenarios 5 and 6.
#[test]
fn nothing_is_applied_while_an_incompatible_member_serves() {
    let mut scenario = Scenario::new(command(), GatePath::Restrict);
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("b", "1.0.0")], 1));
    scenario.is("waiting", "blockers");
    scenario.pass(3_600_000);
    scenario.nothing();
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![], 0));
    scenario.grant(GateStep::Restrict, true);
    scenario.is("settling", "settling");
    scenario.pass(4_999);
    scenario.nothing();
    scenario.pass(1);
    let (number, work) = scenario.acts();
    assert_eq!((work.attempt, work.from), (1, Some("1.0.0".parse().unwrap())));
    scenario.end(number, Outcome::Done);
    scenario.grant(GateStep::Complete, true);
    scenario.is("idle", "done");
}

/// Scenario 18.
#[test]
fn blockers_are_logged_once_for_each_set_of_releases() {
    let mut scenario = Scenario::new(command(), GatePath::Restrict);
    let lines = |scenario: &mut Scenario| scenario.effects().iter().filter(|e| matches!(e, Effect::Log(_))).count();
    scenario.change_view(|view| {
        (view.blockers, view.blockers_in_all) = (vec![blocker("a", "1.0.0"), blocker("b", "1.0.0")], 2)
    });
    assert_eq!(lines(&mut scenario), 1);
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("a", "1.0.0")], 1));
    assert_eq!(lines(&mut scenario), 0);
    scenario.change_view(|view| view.blockers = vec![blocker("a", "1.1.0")]);
    assert_eq!(lines(&mut scenario), 1);
}

/// Scenario 7: no member is waited for.
#[test]
fn open_path_begins_at_once_and_settles_first() {
    let mut scenario = Scenario::new(command(), GatePath::Open);
    scenario.unchanged_view();
    scenario.grant(GateStep::Work, false);
    scenario.is("settling", "settling");
    scenario.pass(5_000);
    // The view is older than our own step: it waits for a newer one.
    scenario.nothing();
    scenario.unchanged_view();
    scenario.acts();
}

/// A member was asked to stop and still serves.
#[test]
fn open_path_also_waits_for_members_that_still_serve() {
    let mut scenario = Scenario::new(command(), GatePath::Open);
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("b", "1.0.0")], 1));
    scenario.is("waiting", "blockers");
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![], 0));
    scenario.grant(GateStep::Work, false);
}

/// Scenario 14.
#[test]
fn successor_during_a_transition_takes_the_open_path() {
    let mut scenario = Scenario::new(command(), GatePath::Open); // the path of a restricted gate, for its runner
    scenario.unchanged_view();
    scenario.grant(GateStep::Work, true);
}

#[test]
fn the_first_run_ever_writes_no_gate_before_it_has_succeeded() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, work) = scenario.acts();
    assert_eq!(work.from, None);
    scenario.end(number, Outcome::Done);
    scenario.grant(GateStep::Complete, true);
    scenario.is("idle", "done");
}

#[test]
fn applied_definition_is_reapplied_without_gate_steps() {
    let mut scenario = Scenario::new(command(), GatePath::Reached);
    scenario.unchanged_view();
    scenario.is("settling", "settling");
    scenario.pass(5_000);
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Done);
    for _ in 0..3 {
        scenario.is("idle", "done");
        scenario.pass(29_999);
        scenario.unchanged_view(); // a change by others
        scenario.nothing();
        scenario.pass(1);
        let (number, work) = scenario.acts();
        assert_eq!(work.attempt, 1);
        scenario.end(number, Outcome::Done);
    }
}

#[test]
fn failing_repair_waits_a_period_and_leaves_the_gate() {
    let mut scenario = Scenario::new(command(), GatePath::Reached);
    scenario.unchanged_view();
    scenario.pass(5_000);
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Done);
    scenario.pass(30_000);
    scenario.fails("no");
    assert_eq!(scenario.run.progress(WallTime(0)).consecutive_failures, 1);
    scenario.pass(29_999);
    scenario.nothing();
    scenario.pass(1);
    scenario.acts();
}

#[test]
fn once_is_once_in_whichever_term() {
    let mut scenario = Scenario::new(command(), GatePath::Reached);
    scenario.view.definition.as_mut().unwrap().every_ms = None;
    scenario.unchanged_view();
    scenario.pass(3_600_000);
    scenario.nothing();
    scenario.is("idle", "done");
    // Unless an operator asks for it.
    scenario.change_view(|view| view.retries = 1);
    scenario.pass(5_000);
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Done);
    scenario.unchanged_view();
    scenario.pass(3_600_000);
    scenario.nothing();
}

/// RUN-2.
#[test]
fn refused_step_leads_to_a_newer_view_and_not_to_an_action() {
    for code in [ErrorCode::Conflict, ErrorCode::GateClosed] {
        let mut scenario = Scenario::new(command(), GatePath::Restrict);
        scenario.unchanged_view();
        scenario.refuse(code);
        scenario.nothing();
        scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![blocker("late", "1.0.0")], 1));
        scenario.nothing();
        scenario.is("waiting", "blockers");
    }
    // A refusal that no newer view explains is tried again after a while.
    let mut scenario = Scenario::new(command(), GatePath::Open);
    scenario.unchanged_view();
    scenario.refuse(ErrorCode::Conflict);
    scenario.pass(4_999);
    scenario.nothing();
    scenario.pass(1);
    assert!(matches!(scenario.only(), Effect::Step { step: GateStep::Work, .. }));
}

/// RUN-4. An operator moves the floor while the action runs: the completion is refused for its epoch, and requested again for
/// the new one. If another runner has advanced the gate meanwhile, what was applied may be undone.
#[test]
fn completed_action_is_not_repeated_for_a_moved_floor() {
    for (at_work, again) in [(true, false), (false, true)] {
        let mut scenario = Scenario::new(command(), GatePath::Open);
        scenario.unchanged_view();
        scenario.grant(GateStep::Work, true);
        scenario.pass(5_000);
        let (number, _) = scenario.acts();
        scenario.end(number, Outcome::Done);
        scenario.refuse(ErrorCode::Conflict);
        scenario.change_view(|view| (view.gate.epoch, view.gate.at_work) = (view.gate.epoch + 1, at_work));
        scenario.grant(GateStep::Work, true);
        match again {
            false => assert!(matches!(scenario.only(), Effect::Step { step: GateStep::Complete, .. })),
            true => drop(scenario.acts()),
        }
    }
}

/// No other runner can have run anything in our term, even before a gate exists.
#[test]
fn first_run_is_not_repeated_when_its_completion_is_delayed() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Done);
    scenario.refuse(ErrorCode::Conflict); // a new blocker, or an operator's pause
    scenario
        .change_view(|view| view.hold = Some(HoldView { reason: HoldReason::Paused.into(), message: "paused".into() }));
    scenario.nothing();
    scenario.change_view(|view| view.hold = None);
    scenario.grant(GateStep::Complete, true);
}

/// RUN-4.
#[test]
fn a_view_from_before_its_completion_begins_no_second_run() {
    for seen in [true, false] {
        let mut scenario = Scenario::new(command(), GatePath::First);
        scenario.unchanged_view();
        let old = scenario.view.clone();
        let (number, _) = scenario.acts();
        scenario.end(number, Outcome::Done);
        scenario.grant(GateStep::Complete, seen);
        scenario.receive(Input::View(Arc::new(RunnerView { ..old.clone() })));
        scenario.nothing();
        scenario.receive(Input::View(Arc::new(scenario.view.clone())));
        scenario.pass(20_000);
        scenario.nothing();
        scenario.is("idle", "done");
    }
}

/// RUN-4.
#[test]
fn view_from_before_the_term_is_ignored() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.view.revision = Revision(TERM.0 - 2);
    scenario.unchanged_view(); // it misses what the previous runner completed since
    scenario.pass(60_000);
    scenario.nothing();
    scenario.unchanged_view();
    scenario.acts();
}

/// RUN-4.
#[test]
fn unanswered_completion_is_repeated_without_a_new_run() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Done);
    scenario.refuse(ErrorCode::TimedOut);
    scenario.pass(200);
    assert!(matches!(scenario.only(), Effect::Step { step: GateStep::Complete, .. }));

    // It had arrived, and the view shows it.
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Done);
    scenario.refuse(ErrorCode::UnknownOutcome);
    scenario.change_view(|view| {
        view.gate = GateView { epoch: 1, term: TERM, ..view.gate.clone() };
        view.path = Some(GatePath::Reached.into());
    });
    scenario.pass(29_000);
    scenario.nothing();
    scenario.is("idle", "done");
}

#[test]
fn failures_are_retried_after_growing_pauses_and_reported() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    scenario.effects();
    scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let mut attempts = 0;
    let began = scenario.now;
    while scenario.now.since(began) < Duration::from_secs(30) {
        scenario.fails("no space");
        attempts += 1;
        let at = scenario.run.progress(WallTime(0)).next_retry_at;
        assert!(at.is_some());
        scenario.pass_until_it_acts();
    }
    assert!((10..30).contains(&attempts), "{attempts} in half a minute");
    let last = scenario.reports.last().unwrap();
    assert_eq!((last.last_error.as_deref(), last.output.as_str()), (Some("no space"), "out"));
    assert!(last.consecutive_failures >= 9);
    assert!(scenario.reports.len() <= 35, "{} reports", scenario.reports.len());
}

fn candidate(member: &str, release: &str) -> CandidateView {
    CandidateView {
        node: None,
        member: member.into(),
        release: serde_json::from_value(release.into()).unwrap(),
        missing_labels: Vec::new(),
        revision: Revision(1),
    }
}

#[test]
fn failing_runner_resigns_only_for_an_equal_candidate() {
    let pin = Some(NodeId::from_entropy(1));
    for (other, pinned, resigns) in [("2.0.0+other", None, true), ("1.0.0", None, false), ("2.0.0", pin, false)] {
        let mut scenario = Scenario::new(command(), GatePath::First);
        scenario.change_view(|view| {
            (view.candidates, view.pinned) = (vec![candidate("n1", "2.0.0"), candidate("n2", other)], pinned);
        });
        for attempt in 1..=3 {
            let (number, _) = scenario.acts();
            scenario.end(number, Outcome::Failed("no".into()));
            let effects = scenario.effects();
            assert_eq!(effects.contains(&Effect::Resign), resigns && attempt == 3, "{other} {attempt}");
            scenario.pass(1_000);
        }
    }
}

/// Nothing of a term can be reported once it is over.
#[test]
fn runner_resigns_after_its_last_failure_is_reported() {
    for ok in [true, false] {
        let mut scenario = Scenario::new(command(), GatePath::First);
        scenario.change_view(|view| view.candidates = vec![candidate("n1", "2.0.0"), candidate("n2", "2.0.0")]);
        scenario.fails("no");
        scenario.pass(1);
        while scenario.run.progress(WallTime(0)).consecutive_failures < 2 {
            scenario.pass(200);
            scenario.fails("no");
        }
        scenario.pass(300);
        let (number, _) = scenario.acts();
        let mut out = Vec::new();
        let ended = Ended { output: "a\n\nb\n".into(), ..Outcome::Failed("last".into()).into() };
        let input = Input::Acted { number, ended: Box::new(ended) };
        scenario.run.step(scenario.now, WallTime(0), input, &mut out);
        let reported = out.iter().find_map(|effect| match effect {
            Effect::Report(progress) => Some((progress.consecutive_failures, progress.last_error.clone())),
            _ => None,
        });
        assert_eq!(reported, Some((3, Some("last".into()))), "however soon after the report before: {out:?}");
        let logged = |effect: &Effect| matches!(effect, Effect::Log(LogLine::Warn(line)) if line.ends_with("last; output: a | b"));
        assert!(out.iter().any(logged) && !out.contains(&Effect::Resign), "{out:?}");
        out.clear();
        scenario.run.step(scenario.now, WallTime(0), Input::Reported { ok }, &mut out);
        assert!(out.contains(&Effect::Resign), "{ok}: {out:?}");
    }
}

/// What begins before the term ends would be interrupted by its end.
#[test]
fn nothing_begins_between_resignation_and_end_of_term() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.change_view(|view| view.candidates = vec![candidate("n1", "2.0.0"), candidate("n2", "2.0.0")]);
    for _ in 1..=2 {
        scenario.fails("no");
        scenario.pass(1_000);
    }
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Failed("last".into()));
    assert!(scenario.effects().contains(&Effect::Resign));
    let acts = |scenario: &mut Scenario| scenario.effects().iter().any(|effect| matches!(effect, Effect::Act { .. }));
    scenario.change_view(|view| view.retries += 1);
    scenario.change_view(|view| view.definition.as_mut().unwrap().digest = "other".into());
    let limit = u64::try_from(RESIGNATION_LIMIT.as_millis()).unwrap();
    scenario.pass(limit - 1);
    assert!(!acts(&mut scenario));
    assert_eq!(scenario.run.progress(WallTime(0)).next_retry_at, None);
    // A crash may have lost it.
    scenario.run.recover(None);
    scenario.unchanged_view();
    assert!(scenario.effects().contains(&Effect::Resign), "sent again");
    scenario.pass(limit);
    assert!(acts(&mut scenario), "the resignation is lost: another attempt");
}

#[test]
fn later_is_not_a_failure_and_needs_no_manual_retry() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.end(number, Outcome::Later("not yet".into()));
    assert_eq!(scenario.run.progress(WallTime(0)).consecutive_failures, 0);
    scenario.pass(150);
    let (number, work) = scenario.acts();
    assert_eq!(work.attempt, 2);
    scenario.end(number, Outcome::Permanent("never".into()));
    scenario.is("failed", "permanent");
    scenario.unchanged_view();
    scenario.pass(3_600_000);
    scenario.nothing();
    scenario.change_view(|view| view.retries = 1);
    scenario.acts();
}

#[test]
fn timed_out_action_is_cancelled_and_counts_as_a_failure() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.pass(59_999);
    scenario.nothing();
    scenario.pass(1);
    assert_eq!(scenario.only(), Effect::Cancel { number });
    scenario.pass(60_000);
    scenario.nothing();
    scenario.end(number, Outcome::Failed("signal".into()));
    let progress = scenario.run.progress(WallTime(0));
    assert_eq!(
        (progress.consecutive_failures, progress.last_error.as_deref()),
        (1, Some("the action did not end within 60s"))
    );
}

#[test]
fn timed_out_action_is_cancelled_again_after_a_crash() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.pass(60_000);
    assert_eq!(scenario.only(), Effect::Cancel { number });
    scenario.run.recover(Some(number));
    scenario.receive(Input::Woke);
    assert_eq!(scenario.only(), Effect::Cancel { number });
}

/// RUN-3.
#[test]
fn end_of_term_cancels_the_action_and_nothing_else_begins() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.receive(Input::Ended);
    assert_eq!(scenario.only(), Effect::Cancel { number });
    scenario.end(number, Outcome::Done);
    scenario.unchanged_view();
    scenario.change_view(|view| view.retries = 9);
    scenario.pass(3_600_000);
    scenario.nothing();
    assert!(scenario.run.has_ended());
}

#[test]
fn another_definition_replaces_the_one_in_progress() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let (number, _) = scenario.acts();
    scenario.change_view(|view| view.definition.as_mut().unwrap().digest = "e".into());
    assert_eq!(scenario.only(), Effect::Cancel { number });
    scenario.end(number, Outcome::Failed("signal".into()));
    let (_, work) = scenario.acts();
    assert_eq!((work.definition.digest.as_str(), work.attempt), ("e", 1));
    assert_eq!(scenario.run.progress(WallTime(0)).consecutive_failures, 0);
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
        let mut scenario = Scenario::new(command(), GatePath::Open);
        let hold = HoldView { reason: reason.into(), message: "m".into() };
        scenario.change_view(|view| (view.hold, view.path) = (Some(hold), None));
        scenario.is(phase, reason);
        scenario.pass(3_600_000);
        scenario.nothing();
        scenario.change_view(|view| (view.hold, view.path) = (None, Some(GatePath::Open.into())));
        assert!(matches!(scenario.only(), Effect::Step { .. }), "{reason}");
    }
}

#[test]
fn blockers_take_precedence_over_manual_finalization() {
    let mut scenario = Scenario::new(command(), GatePath::Restrict);
    let hold = HoldView { reason: HoldReason::ReadyToFinalize.into(), message: "m".into() };
    scenario.change_view(|view| {
        (view.hold, view.path) = (Some(hold), None);
        (view.blockers, view.blockers_in_all) = (vec![blocker("b", "1.0.0")], 1);
    });
    scenario.is("waiting", "blockers");
    scenario.change_view(|view| (view.blockers, view.blockers_in_all) = (vec![], 0));
    scenario.is("ready-to-finalize", "ready-to-finalize");
}

#[test]
fn a_pause_lets_what_was_begun_end_and_begins_nothing() {
    let mut scenario = Scenario::new(command(), GatePath::Open);
    scenario.unchanged_view();
    scenario.grant(GateStep::Work, true);
    scenario.pass(5_000);
    let (number, _) = scenario.acts();
    let paused = HoldView { reason: HoldReason::Paused.into(), message: "m".into() };
    scenario.change_view(|view| (view.hold, view.path) = (Some(paused), None));
    scenario.nothing();
    scenario.end(number, Outcome::Done);
    assert!(matches!(scenario.only(), Effect::Step { step: GateStep::Complete, .. }));
}

#[test]
fn crash_repeats_requests_and_waits_for_the_running_action() {
    let mut scenario = Scenario::new(command(), GatePath::Open);
    scenario.unchanged_view();
    scenario.effects();
    scenario.run.recover(None);
    scenario.receive(Input::Woke);
    scenario.grant(GateStep::Work, true);
    scenario.pass(5_000);
    let (number, _) = scenario.acts();
    scenario.run.recover(Some(number));
    scenario.receive(Input::Woke);
    scenario.unchanged_view();
    scenario.nothing();
    scenario.end(number, Outcome::Failed("no".into()));
    scenario.pass(150);
    let (number, work) = scenario.acts();
    assert_eq!(work.attempt, 2, "attempts continue, and it settles only once");
    // This action ended with the crash.
    scenario.run.recover(None);
    scenario.receive(Input::Woke);
    let (again, work) = scenario.acts();
    assert!(again > number);
    assert_eq!(work.attempt, 3);
}

#[test]
fn reports_come_once_a_second_at_most_and_again_after_a_failure() {
    let mut scenario = Scenario::new(command(), GatePath::Restrict);
    for n in 0..50 {
        scenario
            .change_view(|view| (view.blockers, view.blockers_in_all) = (vec![blocker(&format!("m{n}"), "1.0.0")], 1));
        scenario.pass(100);
    }
    assert!((5..=7).contains(&scenario.reports.len()), "{}", scenario.reports.len());
    scenario.pass(2_000);
    let last = scenario.reports.last().unwrap();
    assert!(last.message.contains("m49"), "{}", last.message);
    assert_eq!(last.since, scenario.reports[0].since, "the reason has not changed");
    let effects = scenario.reports.len();
    scenario.receive(Input::Reported { ok: false });
    scenario.pass(6_000);
    assert_eq!(scenario.reports.len(), effects + 1);
}

#[test]
fn external_texts_are_truncated() {
    let mut scenario = Scenario::new(command(), GatePath::First);
    scenario.unchanged_view();
    let long = "ö".repeat(100_000);
    scenario.fails(&long);
    assert!(scenario.run.progress(WallTime(0)).last_error.unwrap().chars().count() <= MAX_ERROR_BYTES + 1);
}
