//! How certificates, sessions and the agent itself end.

use super::*;

#[test]
fn new_certificate_ends_the_expired_certificate_trouble() {
    let mut w = World::worker();
    w.wall = WallTime(1_000_000_001);
    w.step(Input::Woke);
    assert!(
        w.has_effect(|e| matches!(e, Effect::PublishTrouble(Some(t)) if t.reason == TroubleReason::CertificateExpired))
    );
    let mut fresh = certificate(Role::Worker, 5, "bb");
    fresh.not_after = WallTime(9_000_000_000);
    w.step(Input::Installed(fresh));
    assert!(w.has_effect(|e| *e == Effect::PublishTrouble(None)));
}

#[test]
fn stopping_agent_closes_its_session_and_stops_dialling() {
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Worker, 5));
    w.step(Input::Stop);
    assert!(w.has_effect(
        |e| matches!(e, Effect::Send { frame, .. } if **frame == AgentFrame::Bye { reason: BYE_SHUTDOWN.to_owned() })
    ));
    w.after(Duration::from_secs(10));
    assert_eq!(w.dialled(), None);
}

#[test]
fn reports_of_an_older_connection_change_nothing() {
    let mut w = World::worker();
    w.open();
    let old = w.attempt();
    w.lose();
    w.open();
    w.show(view(9, Role::Worker, 5));
    w.step(Input::Lost { attempt: old, why: Loss::Broken("late".to_owned()) });
    assert!(w.agent.session().is_some());
    let removed = HostFrame::Ended(refusal(RefusalReason::Removed));
    w.step(Input::Received { attempt: old, frame: Box::new(removed) });
    assert!(w.agent.session().is_some());
}

impl World {
    fn hung_up(&self, attempt: Attempt) -> bool {
        self.has_effect(|e| *e == Effect::HangUp { attempt })
    }
    /// A worker that has just been given a manager's certificate.
    fn promoted() -> (Self, Attempt) {
        let mut w = World::worker();
        w.open();
        w.show(view(9, Role::Manager, 8));
        let (id, _) = w.certificate_requested().expect("a promoted node asks for its certificate");
        let former = w.attempt();
        w.signed(id, certificate(Role::Manager, 8, "bb"));
        (w, former)
    }
}

/// AGENT-11.
#[test]
fn request_waits_for_a_session_for_a_while() {
    let mut w = World::worker();
    w.ask(1);
    assert!(w.asked().is_none() && !w.refused(1), "{:?}", w.out);
    w.open();
    w.show(view(9, Role::Worker, 5));
    assert_eq!(w.asked().map(|(attempt, _)| attempt), Some(w.attempt()));

    w.lose();
    assert!(w.refused(1), "its answer is lost with the session");
    w.ask(2);
    w.run_for(asks::WAIT_FOR_SESSION - Duration::from_millis(1));
    assert!(!w.refused(2));
    w.run_for(Duration::from_millis(1));
    assert!(w.refused(2));
}

#[test]
fn requests_beyond_the_limit_are_refused() {
    let mut w = World::worker();
    let limit = AgentConfig::default().open_asks as u64;
    for ask in 0..limit {
        w.ask(ask);
        assert!(!w.refused(ask), "{ask}");
    }
    w.ask(limit);
    assert!(w.refused(limit));
    w.step(Input::RefusedByPeer { refusal: refusal(RefusalReason::Removed), serial: None });
    assert!((0..limit).all(|ask| w.refused(ask)), "no session will follow: {:?}", w.out);
}

/// AGENT-12.
#[test]
fn requests_use_the_former_session_until_the_new_one_is_open() {
    let (mut w, former) = World::promoted();
    assert!(!w.hung_up(former) && w.dialled().is_some(), "{:?}", w.out);
    w.ask(1);
    let (attempt, id) = w.asked().expect("the former session carries the request");
    assert_eq!(attempt, former);
    w.step(Input::Received {
        attempt: former,
        frame: Box::new(HostFrame::Answer { id, result: Ok(AgentAnswer::Reported) }),
    });
    assert!(w.has_effect(|e| matches!(e, Effect::LeaderAnswered { ask: AskId(1), result: Ok(_) })));
    w.ask(2);
    w.open();
    assert!(!w.hung_up(former), "the new host has not shown that it knows this node");
    w.show(view(9, Role::Manager, 8));
    assert!(w.hung_up(former) && !w.refused(2), "{:?}", w.out);
    let (attempt, id) = w.asked().expect("the request without an answer is repeated");
    assert_eq!(attempt, w.attempt());
    w.answer(id, Ok(AgentAnswer::Reported));
    assert!(w.has_effect(|e| matches!(e, Effect::LeaderAnswered { ask: AskId(2), result: Ok(_) })));
}

/// The host itself ends it when the new connection arrives there.
#[test]
fn end_of_the_former_session_is_neither_a_failure_nor_a_refusal() {
    let (mut w, former) = World::promoted();
    w.ask(1);
    let ended = HostFrame::Ended(refusal(RefusalReason::TooManyRequests));
    w.step(Input::Received { attempt: former, frame: Box::new(ended) });
    assert!(w.hung_up(former) && !w.refused(1), "{:?}", w.out);
    w.step(Input::Lost { attempt: former, why: Loss::Broken("closed".to_owned()) });
    assert_eq!((w.agent.failures(), w.agent.last_refusal(), w.agent.last_loss()), (0, None, None));
    w.open();
    w.show(view(9, Role::Manager, 8));
    assert!(w.agent.session().is_some() && w.asked().is_some(), "the request is repeated: {:?}", w.out);
}

#[test]
fn former_session_ends_with_the_first_attempt_to_replace_it() {
    let (mut w, former) = World::promoted();
    w.ask(1);
    w.lose();
    assert!(w.hung_up(former) && !w.refused(1), "{:?}", w.out);
    w.step(Input::RefusedByPeer { refusal: refusal(RefusalReason::Removed), serial: None });
    assert!(w.refused(1), "no session will follow");

    let (mut w, former) = World::promoted();
    w.step(Input::Stop);
    assert!(w.hung_up(former), "{:?}", w.out);
    let bye = |e: &Effect| matches!(e, Effect::Send { attempt, frame } if *attempt == former && matches!(**frame, AgentFrame::Bye { .. }));
    assert!(w.has_effect(bye));
}
