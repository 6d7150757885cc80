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
    w.step(Input::Heard { attempt: old, frame: Box::new(removed) });
    assert!(w.agent.session().is_some());
}
