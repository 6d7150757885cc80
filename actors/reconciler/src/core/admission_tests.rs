//! How a member is admitted and leaves.

use super::*;

const NOW: Moment = Moment(1_000_000);

fn view(revision: u64, phase: Option<ParticipantPhase>, waiting: Option<&str>) -> Result<AdmissionView, ErrorBody> {
    let waiting = waiting.map(|reason| Waiting { reason: reason.into(), message: "because".into() });
    Ok(AdmissionView { revision: Revision(revision), phase, waiting })
}
const ANNOUNCED: Option<ParticipantPhase> = Some(ParticipantPhase::Announced);
const SERVING: Option<ParticipantPhase> = Some(ParticipantPhase::Serving);
const DRAINING: Option<ParticipantPhase> = Some(ParticipantPhase::Draining);

fn error(code: ErrorCode) -> Result<AdmissionView, ErrorBody> {
    Err(ErrorBody::new(code, "no"))
}

fn number(ask: Option<Ask>) -> u64 {
    match ask {
        Some(Ask::Announce { number, .. } | Ask::Admit { number } | Ask::Watch { number, .. }) => number,
        None => panic!("it sends no request"),
    }
}

/// A member and the clock.
struct Scenario(Admission, Moment);

impl Scenario {
    fn new(serves: bool) -> Self {
        Self(Admission::new(serves, 7), NOW)
    }
    fn receive(&mut self, input: Input) -> Option<Ask> {
        self.0.step(self.1, input)
    }
    /// Answers the last request, and waits until the next one.
    fn answer(&mut self, asked: Option<Ask>, result: Result<AdmissionView, ErrorBody>) -> Option<Ask> {
        let ask = self.receive(Input::Answered { number: number(asked), result });
        ask.or_else(|| self.woken())
    }
    fn woken(&mut self) -> Option<Ask> {
        loop {
            self.1 = self.1.max(self.0.wake_at()?);
            let asked = self.receive(Input::Woke);
            if asked.is_some() {
                return asked;
            }
        }
    }
    fn serving(&mut self) -> Option<Ask> {
        let announce = self.receive(Input::Held(FencingToken(3)));
        let admit = self.answer(announce, view(4, ANNOUNCED, None));
        let watch = self.answer(admit, view(5, SERVING, None));
        assert_eq!(self.0.admission_state(), &AdmissionState::Serving);
        watch
    }
    fn reason(&self) -> &str {
        match self.0.admission_state() {
            AdmissionState::Waiting { reason, .. } => reason.text(),
            other => panic!("{other:?}"),
        }
    }
}

/// Scenario 2, the node's side.
#[test]
fn a_member_waits_for_each_reason_in_turn_and_then_serves() {
    let mut scenario = Scenario::new(true);
    assert_eq!(scenario.receive(Input::Woke), None, "without a lease it announces nothing");
    let announce = scenario.receive(Input::Held(FencingToken(3)));
    assert_eq!(announce, Some(Ask::Announce { number: 1, token: FencingToken(3) }));
    let watch = scenario.answer(announce, view(4, ANNOUNCED, Some("no-gate")));
    assert_eq!(watch, Some(Ask::Watch { number: 2, seen: Revision(4) }));
    assert_eq!(scenario.reason(), "no-gate");
    let watch = scenario.answer(watch, view(5, ANNOUNCED, Some("reconciler-too-old")));
    assert_eq!(scenario.reason(), "reconciler-too-old");
    let watch = scenario.answer(watch, view(6, ANNOUNCED, Some("below-floor")));
    assert_eq!(scenario.reason(), "below-floor");
    let admit = scenario.answer(watch, view(7, ANNOUNCED, None));
    assert_eq!(admit, Some(Ask::Admit { number: 5 }));
    assert!(matches!(scenario.0.admission_state(), AdmissionState::Waiting { .. }), "not before the cluster admits it");
    scenario.answer(admit, view(8, SERVING, None));
    assert_eq!(scenario.0.admission_state(), &AdmissionState::Serving);
}

#[test]
fn gate_closing_at_last_moment_returns_member_to_waiting() {
    let mut scenario = Scenario::new(true);
    let announce = scenario.receive(Input::Held(FencingToken(3)));
    let admit = scenario.answer(announce, view(4, ANNOUNCED, None));
    let watch = scenario.answer(admit, view(6, ANNOUNCED, Some("below-floor")));
    assert_eq!(scenario.reason(), "below-floor");
    // Also as a refusal.
    let admit = scenario.answer(watch, view(7, ANNOUNCED, None));
    let watch = scenario.answer(admit, error(ErrorCode::GateClosed));
    assert!(matches!(watch, Some(Ask::Watch { .. })));
    assert_eq!(scenario.reason(), "gate-closed");
}

#[test]
fn unanswered_request_is_repeated_later() {
    let mut scenario = Scenario::new(true);
    let announce = scenario.receive(Input::Held(FencingToken(3)));
    let before = scenario.1;
    let again = scenario.answer(announce, error(ErrorCode::NoQuorum));
    assert!(matches!(again, Some(Ask::Announce { .. })) && scenario.1 > before);
    assert_eq!(scenario.0.admission_state(), &AdmissionState::Announcing { trouble: Some("no".into()) });
    // The late answer to the first one changes nothing.
    assert_eq!(scenario.receive(Input::Answered { number: 1, result: view(9, SERVING, None) }), None);
    assert!(!scenario.0.is_announced());
}

#[test]
fn missing_lease_reason_is_reported_until_acquired() {
    let blocked = |why: &str| Input::Blocked { why: why.into() };
    let announcing = |why: Option<&str>| AdmissionState::Announcing { trouble: why.map(str::to_owned) };
    let mut scenario = Scenario::new(true);
    assert_eq!(scenario.receive(blocked("no quorum")), None);
    assert_eq!(scenario.0.admission_state(), &announcing(Some("no quorum")));
    scenario.receive(Input::Held(FencingToken(3)));
    assert_eq!(scenario.0.admission_state(), &announcing(None));
    // Failing renewals do not explain why it waits.
    scenario.receive(blocked("late news"));
    assert_eq!(scenario.0.admission_state(), &announcing(None));
    scenario.receive(Input::Lost { why: "lease".into() });
    scenario.receive(blocked("no quorum again"));
    assert_eq!(scenario.0.admission_state(), &announcing(Some("no quorum again")));
    scenario.receive(Input::Leave);
    scenario.receive(blocked("late news"));
    assert_eq!(scenario.0.admission_state(), &AdmissionState::Left);
}

/// SERVE-1.
#[test]
fn serving_ends_with_the_lease_for_good() {
    let mut scenario = Scenario::new(true);
    let watch = scenario.serving();
    scenario.receive(Input::Lost { why: "lease".into() });
    let revoked = AdmissionState::Revoked { why: "lease".into() };
    assert_eq!(scenario.0.admission_state(), &revoked);
    assert_eq!(scenario.receive(Input::Answered { number: number(watch), result: view(9, SERVING, None) }), None);
    assert_eq!(scenario.receive(Input::Held(FencingToken(10))), None, "another lease does not make it serve again");
    assert_eq!(scenario.0.admission_state(), &revoked);
}

/// SERVE-1.
#[test]
fn serving_ends_when_asked_to_stop_or_record_removed() {
    for (seen, why) in [(DRAINING, "it was asked to stop"), (None, "its record was removed")] {
        let mut scenario = Scenario::new(true);
        let watch = scenario.serving();
        scenario.answer(watch, view(9, seen, None));
        assert_eq!(scenario.0.admission_state(), &AdmissionState::Revoked { why: why.into() });
    }
}

#[test]
fn serving_outlives_unreachable_cluster_and_lagging_replica() {
    let mut scenario = Scenario::new(true);
    let watch = scenario.serving();
    let watch = scenario.answer(watch, error(ErrorCode::NoQuorum));
    let watch = scenario.answer(watch, view(4, ANNOUNCED, Some("no-gate")));
    let watch = scenario.answer(watch, error(ErrorCode::Forbidden));
    assert!(matches!(watch, Some(Ask::Watch { .. })));
    assert_eq!(scenario.0.admission_state(), &AdmissionState::Serving, "its lease limits how long");
}

#[test]
fn lease_lost_while_waiting_does_not_end_the_member() {
    let mut scenario = Scenario::new(true);
    let announce = scenario.receive(Input::Held(FencingToken(3)));
    let admit = scenario.answer(announce, view(4, ANNOUNCED, None));
    scenario.receive(Input::Lost { why: "lease".into() });
    // Admitted at the last moment, but without a lease to serve under.
    assert_eq!(scenario.receive(Input::Answered { number: number(admit), result: view(9, SERVING, None) }), None);
    assert!(!scenario.0.is_announced());
    let announce = scenario.receive(Input::Held(FencingToken(12)));
    assert!(matches!(announce, Some(Ask::Announce { token: FencingToken(12), .. })));
}

#[test]
fn a_record_that_is_gone_is_written_again() {
    let mut scenario = Scenario::new(false);
    let announce = scenario.receive(Input::Held(FencingToken(3)));
    let watch = scenario.answer(announce, view(4, ANNOUNCED, None));
    assert!(scenario.0.is_announced());
    let announce = scenario.answer(watch, view(9, None, None));
    assert!(matches!(announce, Some(Ask::Announce { .. })));
    assert!(!scenario.0.is_announced());
}

#[test]
fn a_candidate_is_known_and_never_asks_to_serve() {
    let mut scenario = Scenario::new(false);
    let mut ask = scenario.receive(Input::Held(FencingToken(3)));
    for revision in 4..40 {
        assert!(!matches!(ask, Some(Ask::Admit { .. })));
        ask = scenario.answer(ask, view(revision, ANNOUNCED, None));
    }
    assert!(scenario.0.is_announced());
    assert!(scenario.1.since(NOW) > Duration::from_secs(3), "a busy scope does not keep it busy");
}

#[test]
fn permanent_refusal_ends_the_member() {
    let mut scenario = Scenario::new(true);
    let announce = scenario.receive(Input::Held(FencingToken(3)));
    assert_eq!(scenario.answer(announce, error(ErrorCode::Forbidden)), None);
    assert_eq!(scenario.0.admission_state(), &AdmissionState::Refused { why: "no".into() });
    assert_eq!(scenario.receive(Input::Held(FencingToken(4))), None);
}

#[test]
fn leaving_ends_everything() {
    let mut scenario = Scenario::new(true);
    let watch = scenario.serving();
    assert_eq!(scenario.receive(Input::Leave), None);
    assert_eq!(scenario.receive(Input::Answered { number: number(watch), result: view(9, SERVING, None) }), None);
    assert_eq!(scenario.0.admission_state(), &AdmissionState::Left);
    assert_eq!(scenario.0.wake_at(), None);
}

#[test]
fn server_is_over_after_a_crash_and_shows_an_earlier_end() {
    let left = AdmissionState::Left;
    let crashed = AdmissionState::Revoked { why: "the actor that holds its lease crashed".into() };
    let refused = AdmissionState::Refused { why: "no".into() };
    let asked = AdmissionState::Revoked { why: "it was asked to stop".into() };
    for (shown, expected) in [
        (AdmissionState::Announcing { trouble: None }, crashed.clone()),
        (AdmissionState::Serving, crashed),
        (left.clone(), left.clone()),
        (refused.clone(), refused),
        (asked.clone(), asked),
    ] {
        let mut scenario = Scenario::new(true);
        assert_eq!(scenario.0.restarted(shown), Some(expected));
        assert_eq!(scenario.0.admission_state(), &left);
        assert_eq!(scenario.receive(Input::Held(FencingToken(3))), None, "it never serves again");
        assert_eq!((scenario.0.wake_at(), scenario.0.is_announced()), (None, false));
    }
}

#[test]
fn candidate_begins_anew_after_a_crash() {
    for shown in [AdmissionState::Announcing { trouble: None }, AdmissionState::Left] {
        let mut scenario = Scenario::new(false);
        let new = scenario.0.clone();
        assert_eq!(scenario.0.restarted(shown), None);
        assert_eq!(scenario.0, new);
    }
}

#[test]
fn lapsed_lease_is_lost_before_an_answer_counts() {
    let lost = |why: &str| Input::Lost { why: why.into() };
    let answered = Input::Answered { number: 1, result: view(5, SERVING, None) };
    let lease = |lasts, lapsed: Option<&str>| LeaseState { lasts, lapsed: lapsed.map(str::to_owned) };
    for (state, input, expected) in [
        (lease(true, None), answered.clone(), vec![answered.clone()]),
        (lease(false, None), answered.clone(), vec![answered.clone()]),
        (lease(true, Some("late")), answered.clone(), vec![lost("late"), answered.clone()]),
        (lease(false, Some("late")), answered.clone(), vec![lost("late"), answered]),
        // The end of an earlier term, while a later one lasts.
        (lease(true, None), lost("gone"), vec![]),
        (lease(true, Some("late")), lost("gone"), vec![]),
        (lease(false, None), lost("gone"), vec![lost("gone")]),
        (lease(false, Some("late")), lost("gone"), vec![lost("gone")]),
        // Nothing else depends on it.
        (lease(true, Some("late")), Input::Leave, vec![Input::Leave]),
        (lease(true, Some("late")), Input::Woke, vec![Input::Woke]),
        (lease(true, Some("late")), Input::Held(FencingToken(3)), vec![Input::Held(FencingToken(3))]),
    ] {
        assert_eq!(state.clone().admits(input.clone()), expected, "{state:?} {input:?}");
    }
}
