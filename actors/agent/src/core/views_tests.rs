//! What a lying host can do to an agent, and what it cannot.

use super::tests::*;
use super::*;

/// AGENT-10.
#[test]
fn an_impossible_revision_is_forgotten() {
    let mut w = World::worker();
    w.open();
    w.show(AgentView { managers: vec![OTHER.to_owned()], ..view(u64::MAX, Role::Worker, 5) });
    assert_eq!(w.agent.managers(), [OTHER]);
    w.lose();
    w.open();
    w.show(view(9, Role::Manager, 9));
    assert_eq!(w.agent.need(w.wall), None, "a host that lags does not change the need");
    w.run_for(w.agent.config.forget_views / 2);
    w.open_if_lost();
    w.show(view(10, Role::Manager, 9));
    assert_eq!(w.agent.need(w.wall), None);
    w.now = w.now + w.agent.config.forget_views;
    w.show(view(11, Role::Manager, 9));
    assert_eq!(w.agent.need(w.wall), Some(Because::RoleChanged));
    assert!(w.agent.managers().iter().any(|addr| addr == MANAGER));
}

#[test]
fn the_hosts_certificate_must_vouch_for_an_incarnation() {
    let mut w = World::worker();
    w.vouched = Incarnation(1);
    w.open();
    w.show(AgentView { incarnation: Incarnation(u64::MAX), ..view(9, Role::Worker, 5) });
    assert!(w.has_effect(|e| matches!(e, Effect::HangUp { .. })));
    w.open();
    w.show(view(10, Role::Worker, 5));
    assert!(w.agent.session().is_some(), "genuine hosts are not left because of it");
}
