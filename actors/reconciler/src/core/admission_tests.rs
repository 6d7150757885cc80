//! How a member gets in and out.

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
        None => panic!("it asks for nothing"),
    }
}

/// A member and the clock.
struct Story(Admission, Moment);

impl Story {
    fn new(serves: bool) -> Self {
        Self(Admission::new(serves, 7), NOW)
    }
    fn hear(&mut self, input: Input) -> Option<Ask> {
        self.0.step(self.1, input)
    }
    /// Answers the question before, and waits until the next one.
    fn answer(&mut self, asked: Option<Ask>, result: Result<AdmissionView, ErrorBody>) -> Option<Ask> {
        let ask = self.hear(Input::Answered { number: number(asked), result });
        ask.or_else(|| self.woken())
    }
    fn woken(&mut self) -> Option<Ask> {
        loop {
            self.1 = self.1.max(self.0.wake_at()?);
            let asked = self.hear(Input::Woke);
            if asked.is_some() {
                return asked;
            }
        }
    }
    fn serving(&mut self) -> Option<Ask> {
        let announce = self.hear(Input::Held(FencingToken(3)));
        let admit = self.answer(announce, view(4, ANNOUNCED, None));
        let watch = self.answer(admit, view(5, SERVING, None));
        assert_eq!(self.0.standing(), &Standing::Serving);
        watch
    }
    fn reason(&self) -> &str {
        match self.0.standing() {
            Standing::Waiting { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }
}

/// Scenario 2, the node's side.
#[test]
fn a_member_waits_for_each_reason_in_turn_and_then_serves() {
    let mut story = Story::new(true);
    assert_eq!(story.hear(Input::Woke), None, "without a lease there is nothing to tell");
    let announce = story.hear(Input::Held(FencingToken(3)));
    assert_eq!(announce, Some(Ask::Announce { number: 1, token: FencingToken(3) }));
    let watch = story.answer(announce, view(4, ANNOUNCED, Some("no-gate")));
    assert_eq!(watch, Some(Ask::Watch { number: 2, seen: Revision(4) }));
    assert_eq!(story.reason(), "no-gate");
    let watch = story.answer(watch, view(5, ANNOUNCED, Some("reconciler-too-old")));
    assert_eq!(story.reason(), "reconciler-too-old");
    let watch = story.answer(watch, view(6, ANNOUNCED, Some("below-floor")));
    assert_eq!(story.reason(), "below-floor");
    let admit = story.answer(watch, view(7, ANNOUNCED, None));
    assert_eq!(admit, Some(Ask::Admit { number: 5 }));
    assert!(matches!(story.0.standing(), Standing::Waiting { .. }), "not before the cluster says so");
    story.answer(admit, view(8, SERVING, None));
    assert_eq!(story.0.standing(), &Standing::Serving);
}

#[test]
fn a_gate_that_closes_at_the_last_moment_sends_it_back_to_waiting() {
    let mut story = Story::new(true);
    let announce = story.hear(Input::Held(FencingToken(3)));
    let admit = story.answer(announce, view(4, ANNOUNCED, None));
    let watch = story.answer(admit, view(6, ANNOUNCED, Some("below-floor")));
    assert_eq!(story.reason(), "below-floor");
    // As a refusal, too.
    let admit = story.answer(watch, view(7, ANNOUNCED, None));
    let watch = story.answer(admit, error(ErrorCode::GateClosed));
    assert!(matches!(watch, Some(Ask::Watch { .. })));
    assert_eq!(story.reason(), "gate-closed");
}

#[test]
fn a_question_without_an_answer_is_asked_again_later() {
    let mut story = Story::new(true);
    let announce = story.hear(Input::Held(FencingToken(3)));
    let before = story.1;
    let again = story.answer(announce, error(ErrorCode::NoQuorum));
    assert!(matches!(again, Some(Ask::Announce { .. })) && story.1 > before);
    assert_eq!(story.0.standing(), &Standing::Announcing { trouble: Some("no".into()) });
    // The late answer to the first one changes nothing.
    assert_eq!(story.hear(Input::Answered { number: 1, result: view(9, SERVING, None) }), None);
    assert!(!story.0.is_announced());
}

#[test]
fn why_it_has_no_lease_is_told_until_it_has_one() {
    let blocked = |why: &str| Input::Blocked { why: why.into() };
    let announcing = |why: Option<&str>| Standing::Announcing { trouble: why.map(str::to_owned) };
    let mut story = Story::new(true);
    assert_eq!(story.hear(blocked("no quorum")), None);
    assert_eq!(story.0.standing(), &announcing(Some("no quorum")));
    story.hear(Input::Held(FencingToken(3)));
    assert_eq!(story.0.standing(), &announcing(None));
    // Renewals that fail say nothing of why it waits.
    story.hear(blocked("late news"));
    assert_eq!(story.0.standing(), &announcing(None));
    story.hear(Input::Lost { why: "lease".into() });
    story.hear(blocked("no quorum again"));
    assert_eq!(story.0.standing(), &announcing(Some("no quorum again")));
    story.hear(Input::Leave);
    story.hear(blocked("late news"));
    assert_eq!(story.0.standing(), &Standing::Left);
}

/// SERVE-1.
#[test]
fn serving_ends_with_the_lease_for_good() {
    let mut story = Story::new(true);
    let watch = story.serving();
    story.hear(Input::Lost { why: "lease".into() });
    let revoked = Standing::Revoked { why: "lease".into() };
    assert_eq!(story.0.standing(), &revoked);
    assert_eq!(story.hear(Input::Answered { number: number(watch), result: view(9, SERVING, None) }), None);
    assert_eq!(story.hear(Input::Held(FencingToken(10))), None, "another lease does not make it serve again");
    assert_eq!(story.0.standing(), &revoked);
}

/// SERVE-1.
#[test]
fn serving_ends_when_told_to_stop_or_forgotten() {
    for (seen, why) in [(DRAINING, "it was told to stop"), (None, "it was forgotten")] {
        let mut story = Story::new(true);
        let watch = story.serving();
        story.answer(watch, view(9, seen, None));
        assert_eq!(story.0.standing(), &Standing::Revoked { why: why.into() });
    }
}

#[test]
fn serving_outlives_a_cluster_that_is_away_and_copies_that_lag() {
    let mut story = Story::new(true);
    let watch = story.serving();
    let watch = story.answer(watch, error(ErrorCode::NoQuorum));
    let watch = story.answer(watch, view(4, ANNOUNCED, Some("no-gate")));
    let watch = story.answer(watch, error(ErrorCode::Forbidden));
    assert!(matches!(watch, Some(Ask::Watch { .. })));
    assert_eq!(story.0.standing(), &Standing::Serving, "its lease says how long");
}

#[test]
fn a_lease_lost_while_it_waits_is_no_end() {
    let mut story = Story::new(true);
    let announce = story.hear(Input::Held(FencingToken(3)));
    let admit = story.answer(announce, view(4, ANNOUNCED, None));
    story.hear(Input::Lost { why: "lease".into() });
    // Admitted in the very last moment, but it has no lease to serve by.
    assert_eq!(story.hear(Input::Answered { number: number(admit), result: view(9, SERVING, None) }), None);
    assert!(!story.0.is_announced());
    let announce = story.hear(Input::Held(FencingToken(12)));
    assert!(matches!(announce, Some(Ask::Announce { token: FencingToken(12), .. })));
}

#[test]
fn a_record_that_is_gone_is_written_again() {
    let mut story = Story::new(false);
    let announce = story.hear(Input::Held(FencingToken(3)));
    let watch = story.answer(announce, view(4, ANNOUNCED, None));
    assert!(story.0.is_announced());
    let announce = story.answer(watch, view(9, None, None));
    assert!(matches!(announce, Some(Ask::Announce { .. })));
    assert!(!story.0.is_announced());
}

#[test]
fn a_candidate_is_known_and_never_asks_to_serve() {
    let mut story = Story::new(false);
    let mut ask = story.hear(Input::Held(FencingToken(3)));
    for revision in 4..40 {
        assert!(!matches!(ask, Some(Ask::Admit { .. })));
        ask = story.answer(ask, view(revision, ANNOUNCED, None));
    }
    assert!(story.0.is_announced());
    assert!(story.1.since(NOW) > Duration::from_secs(3), "a busy scope does not keep it busy");
}

#[test]
fn a_refusal_for_good_ends_it() {
    let mut story = Story::new(true);
    let announce = story.hear(Input::Held(FencingToken(3)));
    assert_eq!(story.answer(announce, error(ErrorCode::Forbidden)), None);
    assert_eq!(story.0.standing(), &Standing::Refused { why: "no".into() });
    assert_eq!(story.hear(Input::Held(FencingToken(4))), None);
}

#[test]
fn leaving_ends_everything() {
    let mut story = Story::new(true);
    let watch = story.serving();
    assert_eq!(story.hear(Input::Leave), None);
    assert_eq!(story.hear(Input::Answered { number: number(watch), result: view(9, SERVING, None) }), None);
    assert_eq!(story.0.standing(), &Standing::Left);
    assert_eq!(story.0.wake_at(), None);
}
