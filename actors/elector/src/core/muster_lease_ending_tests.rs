//! How a term of leadership ends, and what follows.

use super::*;

#[test]
fn lease_is_renewed_while_the_work_drains_then_released() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    assert_eq!(world.endings(), [&Ending::Cancelled]);
    for _ in 0..30 {
        world.pass(secs(2));
        world.renew(Ok(RenewalOutcome::Renewed));
    }
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Release { .. })), 0);
    assert!(!world.effects.contains(&Effect::Overdue));
    world.signal(Signal::WorkEnded);
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Renew { .. })), 0);
    world.release(Ok(()));
    let effects = &world.effects[world.effects.len() - 3..];
    assert_eq!(effects, [Effect::Over(Ending::Cancelled), Effect::Leader(None), Effect::Stopped(Ok(()))]);
}

#[test]
fn returning_work_releases_the_lease_and_ends_the_elector() {
    let mut world = World::leading();
    world.signal(Signal::WorkEnded);
    world.release(Ok(()));
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
    assert!(world.effects.contains(&Effect::Over(Ending::Done)) && world.endings().is_empty());
}

#[test]
fn conflicting_release_is_done_and_unanswered_one_repeated() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    world.signal(Signal::WorkEnded);
    world.release(Err(error(ErrorCode::Unreachable)));
    world.pass(ms(200));
    world.release(Err(error(ErrorCode::Conflict)));
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn a_release_is_given_up_when_the_lease_has_run_out() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    world.signal(Signal::WorkEnded);
    for _ in 0..20 {
        if world.asks_of(|ask| matches!(ask, Ask::Release { .. })) > 0 {
            world.release(Err(error(ErrorCode::NoQuorum)));
        }
        world.pass(secs(1));
    }
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn after_a_lapse_it_campaigns_once_token_outcome_is_known() {
    let mut world = World::leading();
    world.pass(secs(10));
    world.asks.clear();
    world.signal(Signal::WorkEnded);
    let (number, token) = world.asked_release();
    assert_eq!((token, world.acquisitions()), (FencingToken(10), 0));
    world.answer(Answer::Released { number, result: Ok(()) });
    assert!(world.effects.contains(&Effect::Over(Ending::Lapsed)));
    world.sees(20, Some(lease(None, 10)));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn expired_lease_is_released_before_it_is_requested_again() {
    let expired = LeaseView { expired: true, ..lease(Some(ME), 10) };
    let mut world = World::leading();
    world.sees(12, Some(expired.clone()));
    world.signal(Signal::WorkEnded);
    assert_eq!(world.acquisitions(), 0, "it would be granted under the old token");
    world.release(Err(error(ErrorCode::Conflict))); // another acquired it first
    world.sees(13, Some(expired));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn elector_set_to_end_on_loss_does_not_campaign_again() {
    let mut world = World::new(&ElectorConfig { campaign_again: false, ..config() });
    world.acquire(Ok(lease(Some(ME), 10)));
    world.sees(11, Some(lease(Some("bing"), 11)));
    world.signal(Signal::WorkEnded);
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn lease_in_our_name_is_taken_over_only_at_the_start() {
    // At the start: an earlier process had the name, and the cluster lets the name have it.
    let mut world = World::new(&config());
    assert_eq!(world.acquisitions(), 1, "it does not read the holder first");
    world.acquire(Ok(lease(Some(ME), 10)));
    // Later another process with our name appears.
    world.sees(11, Some(lease(Some(ME), 11)));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: Some(ME.into()) }]);
    world.signal(Signal::WorkEnded);
    world.sees(12, Some(lease(Some(ME), 11)));
    world.pass(secs(60));
    assert_eq!(world.acquisitions(), 0, "two processes of one name do not take it from each other in turns");
}

#[test]
fn a_preferred_holder_challenges_once_and_the_work_decides() {
    let mut world = World::leading();
    let preferring = |token, name: &str| LeaseView { preferred_holder: Some(name.into()), ..lease(Some(ME), token) };
    world.sees(11, Some(preferring(10, "bing")));
    world.sees(12, Some(preferring(10, "bing")));
    let challenges = |world: &World| world.effects.iter().filter(|e| matches!(e, Effect::Challenged { .. })).count();
    assert_eq!(challenges(&world), 1);
    world.signal(Signal::Challenge { by: "bing".into(), yields: false });
    assert!(world.leads());
    world.sees(13, Some(preferring(10, "bong")));
    assert_eq!(challenges(&world), 2);
    world.signal(Signal::Challenge { by: "bong".into(), yields: true });
    assert_eq!(world.endings(), [&Ending::Yielded { to: "bong".into() }]);
}

#[test]
fn a_coordinated_candidate_waits_to_be_chosen() {
    let mut world = World::new(&ElectorConfig { coordinated: true, ..config() });
    assert_eq!(world.acquisitions(), 0);
    world.sees(9, None);
    world.pass(secs(5));
    world.sees(10, Some(lease(Some("bing"), 10)));
    world.pass(secs(60));
    assert_eq!(world.acquisitions(), 0);
    world.sees(20, Some(lease(Some(ME), 20)));
    world.acquire(Ok(lease(Some(ME), 21)));
    assert!(world.leads());
}

#[test]
fn chosen_candidate_with_a_request_in_progress_only_waits() {
    let mut world = World::new(&ElectorConfig { coordinated: true, ..config() });
    world.sees(20, Some(lease(Some(ME), 20)));
    world.sees(21, Some(lease(Some(ME), 21)));
    assert_eq!(world.acquisitions(), 1);
    assert!(world.wake.is_none_or(|at| at > world.now), "nothing is due before the answer: {:?}", world.wake);
}

#[test]
fn lease_without_a_coordinator_does_not_stay_empty() {
    let mut world = World::new(&ElectorConfig { coordinated: true, ..config() });
    world.sees(9, None);
    world.pass(ms(14_999));
    assert_eq!(world.acquisitions(), 0);
    world.pass(ms(1));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn a_coordinator_has_its_time_however_short_the_lease() {
    let (lease_duration, renew_deadline, retry_period) = (secs(1), ms(700), ms(200));
    let short = ElectorConfig { lease_duration, renew_deadline, retry_period, ..config() };
    let mut world = World::new(&ElectorConfig { coordinated: true, ..short });
    world.sees(9, None);
    world.pass(ms(7999));
    assert_eq!(world.acquisitions(), 0);
    world.pass(ms(1));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn lease_held_by_a_namesake_does_not_count_as_chosen() {
    let mut world = World::new(&ElectorConfig { coordinated: true, ..config() });
    world.sees(9, Some(lease(Some(ME), 9)));
    world.acquire(Ok(lease(Some(ME), 10)));
    world.sees(11, Some(lease(Some(ME), 11)));
    world.signal(Signal::WorkEnded);
    world.sees(12, Some(lease(Some(ME), 11)));
    assert_eq!(world.acquisitions(), 0);
    world.sees(13, Some(lease(Some(ME), 13)));
    assert_eq!(world.acquisitions(), 1, "chosen again");
}

#[test]
fn elector_that_yielded_lets_the_other_acquire() {
    let mut world = World::leading();
    world.sees(11, Some(LeaseView { preferred_holder: Some("bing".into()), ..lease(Some(ME), 10) }));
    world.signal(Signal::Challenge { by: "bing".into(), yields: true });
    world.signal(Signal::WorkEnded);
    world.release(Ok(()));
    world.sees(14, Some(lease(None, 10)));
    assert_eq!(world.acquisitions(), 0);
    world.pass(secs(15));
    assert_eq!(world.acquisitions(), 1, "but not indefinitely");
}

#[test]
fn permanent_refusal_ends_the_elector_other_errors_do_not() {
    let mut world = World::new(&config());
    for _ in 0..10 {
        world.acquire(Err(error(ErrorCode::NoQuorum)));
        world.pass(secs(4));
    }
    world.acquire(Err(error(ErrorCode::Forbidden)));
    assert!(matches!(world.effects.last(), Some(Effect::Stopped(Err(body))) if body.code == ErrorCode::Forbidden));
}

#[test]
fn permanently_refused_leader_ends_its_work_first() {
    let mut world = World::leading();
    world.pass(secs(2));
    world.renew(Err(error(ErrorCode::Forbidden)));
    assert!(matches!(world.endings()[..], [Ending::Refused { .. }]));
    assert!(!world.effects.iter().any(|e| matches!(e, Effect::Stopped(_))));
    world.signal(Signal::WorkEnded);
    assert!(matches!(world.effects.last(), Some(Effect::Stopped(Err(_)))));
}

#[test]
fn stopped_elector_releases_a_lease_that_is_granted_late() {
    let mut world = World::new(&config());
    world.signal(Signal::Cancelled);
    assert!(world.effects.is_empty(), "it waits for the answer");
    world.acquire(Ok(lease(Some(ME), 10)));
    world.release(Ok(()));
    assert_eq!(world.effects.last(), Some(&Effect::Stopped(Ok(()))));
    assert!(!world.effects.iter().any(|e| matches!(e, Effect::Begin { .. } | Effect::Over(_))));
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
fn lease_of_a_crashed_incarnation_is_released_after_its_work() {
    let until = Moment(3_600_000_000) + secs(9);
    let mut world = World::with_outstanding(&config(), Some(OutstandingToken { token: FencingToken(10), until }));
    world.pass(ms(8_999));
    assert!(world.asks.is_empty());
    world.pass(ms(1));
    assert_eq!(world.asked_release().1, FencingToken(10));
}

/// It is lost by then anyway, and its work has ended with that incarnation.
#[test]
fn stopped_elector_does_not_wait_for_a_crashed_ones_lease() {
    let until = Moment(3_600_000_000) + secs(9);
    let mut world = World::with_outstanding(&config(), Some(OutstandingToken { token: FencingToken(10), until }));
    world.signal(Signal::Cancelled);
    assert!(world.asks.is_empty() && world.effects.contains(&Effect::Stopped(Ok(()))), "{:?}", world.effects);
}

#[test]
fn leases_of_less_than_a_second_work_the_same_way() {
    let quick = ElectorConfig { lease_duration: ms(300), renew_deadline: ms(200), retry_period: ms(50), ..config() };
    let mut world = World::new(&quick);
    let asked_at = world.now;
    world.acquire(Ok(lease(Some(ME), 10)));
    assert_eq!(world.last_hold(), Hold { step_down_at: asked_at + ms(200), over_at: asked_at + ms(285) });
    world.pass(ms(50));
    world.renew(Ok(RenewalOutcome::Renewed));
    assert_eq!(world.last_hold().step_down_at, asked_at + ms(250));
    world.pass(ms(200));
    assert_eq!(world.endings(), [&Ending::Lapsed]);
}
