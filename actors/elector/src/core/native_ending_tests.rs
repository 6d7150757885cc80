//! How a time of leading ends, and what comes after.

use super::*;

#[test]
fn the_lease_is_renewed_while_the_work_drains_and_released_after() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    assert_eq!(world.endings(), [&Ending::Cancelled]);
    for _ in 0..30 {
        world.pass(secs(2));
        world.renew(Ok(Verdict::Renewed));
    }
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Release { .. })), 0);
    assert!(!world.told.contains(&Effect::Overdue));
    world.signal(Signal::Drained);
    assert_eq!(world.asks_of(|ask| matches!(ask, Ask::Renew { .. })), 0);
    world.release(Ok(()));
    let told = &world.told[world.told.len() - 3..];
    assert_eq!(told, [Effect::Over(Ending::Cancelled), Effect::Leader(None), Effect::Stopped(Ok(()))]);
}

#[test]
fn work_that_returns_by_itself_gives_the_lease_up_and_ends_the_elector() {
    let mut world = World::leading();
    world.signal(Signal::Drained);
    world.release(Ok(()));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
    assert!(world.told.contains(&Effect::Over(Ending::Done)) && world.endings().is_empty());
}

#[test]
fn a_release_that_conflicts_is_done_and_one_without_an_answer_is_repeated() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    world.signal(Signal::Drained);
    world.release(Err(error(ErrorCode::Unreachable)));
    world.pass(ms(200));
    world.release(Err(error(ErrorCode::Conflict)));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn a_release_is_given_up_when_the_lease_has_run_out() {
    let mut world = World::leading();
    world.signal(Signal::Cancelled);
    world.signal(Signal::Drained);
    for _ in 0..20 {
        if world.asks_of(|ask| matches!(ask, Ask::Release { .. })) > 0 {
            world.release(Err(error(ErrorCode::NoQuorum)));
        }
        world.pass(secs(1));
    }
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn after_a_lapse_it_stands_again_only_once_it_is_known_what_became_of_its_token() {
    let mut world = World::leading();
    world.pass(secs(10));
    world.asks.clear();
    world.signal(Signal::Drained);
    let (number, token) = world.asked_release();
    assert_eq!((token, world.acquisitions()), (FencingToken(10), 0));
    world.answer(Answer::Released { number, result: Ok(()) });
    assert!(world.told.contains(&Effect::Over(Ending::Lapsed)));
    world.sees(20, Some(lease(None, 10)));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn a_lease_that_ran_out_is_released_before_it_is_asked_for_again() {
    let expired = LeaseView { expired: true, ..lease(Some(ME), 10) };
    let mut world = World::leading();
    world.sees(12, Some(expired.clone()));
    world.signal(Signal::Drained);
    assert_eq!(world.acquisitions(), 0, "it would come back under the token of before");
    world.release(Err(error(ErrorCode::Conflict))); // another was quicker
    world.sees(13, Some(expired));
    assert_eq!(world.acquisitions(), 1);
}

#[test]
fn one_that_was_told_to_end_with_a_loss_does_not_stand_again() {
    let mut world = World::new(&ElectorConfig { stand_again: false, ..config() });
    world.acquire(Ok(lease(Some(ME), 10)));
    world.sees(11, Some(lease(Some("bing"), 11)));
    world.signal(Signal::Drained);
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
}

#[test]
fn a_lease_in_our_name_is_taken_over_at_the_start_and_never_after() {
    // At the start: a process before us had the name, and the cluster lets the name have it.
    let mut world = World::new(&config());
    assert_eq!(world.acquisitions(), 1, "it does not ask who holds it first");
    world.acquire(Ok(lease(Some(ME), 10)));
    // Later another process with our name comes.
    world.sees(11, Some(lease(Some(ME), 11)));
    assert_eq!(world.endings(), [&Ending::Overtaken { by: Some(ME.into()) }]);
    world.signal(Signal::Drained);
    world.sees(12, Some(lease(Some(ME), 11)));
    world.pass(secs(60));
    assert_eq!(world.acquisitions(), 0, "two of one name do not take it from each other in turns");
}

#[test]
fn a_preferred_holder_challenges_once_and_the_work_decides() {
    let mut world = World::leading();
    let preferring = |token, name: &str| LeaseView { preferred_holder: Some(name.into()), ..lease(Some(ME), token) };
    world.sees(11, Some(preferring(10, "bing")));
    world.sees(12, Some(preferring(10, "bing")));
    let challenges = |world: &World| world.told.iter().filter(|e| matches!(e, Effect::Challenged { .. })).count();
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
fn a_lease_that_nobody_coordinates_does_not_stay_empty() {
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
fn a_candidate_whose_name_another_process_has_is_not_chosen_by_that() {
    let mut world = World::new(&ElectorConfig { coordinated: true, ..config() });
    world.sees(9, Some(lease(Some(ME), 9)));
    world.acquire(Ok(lease(Some(ME), 10)));
    world.sees(11, Some(lease(Some(ME), 11)));
    world.signal(Signal::Drained);
    world.sees(12, Some(lease(Some(ME), 11)));
    assert_eq!(world.acquisitions(), 0);
    world.sees(13, Some(lease(Some(ME), 13)));
    assert_eq!(world.acquisitions(), 1, "chosen anew");
}

#[test]
fn whoever_made_room_lets_the_other_have_it() {
    let mut world = World::leading();
    world.sees(11, Some(LeaseView { preferred_holder: Some("bing".into()), ..lease(Some(ME), 10) }));
    world.signal(Signal::Challenge { by: "bing".into(), yields: true });
    world.signal(Signal::Drained);
    world.release(Ok(()));
    world.sees(14, Some(lease(None, 10)));
    assert_eq!(world.acquisitions(), 0);
    world.pass(secs(15));
    assert_eq!(world.acquisitions(), 1, "but not for ever");
}

#[test]
fn a_refusal_for_good_ends_the_elector_and_trouble_does_not() {
    let mut world = World::new(&config());
    for _ in 0..10 {
        world.acquire(Err(error(ErrorCode::NoQuorum)));
        world.pass(secs(4));
    }
    world.acquire(Err(error(ErrorCode::Forbidden)));
    assert!(matches!(world.told.last(), Some(Effect::Stopped(Err(body))) if body.code == ErrorCode::Forbidden));
}

#[test]
fn a_leader_that_is_refused_for_good_ends_its_work_first() {
    let mut world = World::leading();
    world.pass(secs(2));
    world.renew(Err(error(ErrorCode::Forbidden)));
    assert!(matches!(world.endings()[..], [Ending::Refused { .. }]));
    assert!(!world.told.iter().any(|e| matches!(e, Effect::Stopped(_))));
    world.signal(Signal::Drained);
    assert!(matches!(world.told.last(), Some(Effect::Stopped(Err(_)))));
}

#[test]
fn stopped_while_it_asks_it_gives_back_what_it_is_granted() {
    let mut world = World::new(&config());
    world.signal(Signal::Cancelled);
    assert!(world.told.is_empty(), "the answer is waited for");
    world.acquire(Ok(lease(Some(ME), 10)));
    world.release(Ok(()));
    assert_eq!(world.told.last(), Some(&Effect::Stopped(Ok(()))));
    assert!(!world.told.iter().any(|e| matches!(e, Effect::Begin { .. } | Effect::Over(_))));
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
fn what_a_crashed_incarnation_held_is_left_alone_until_its_work_is_over_then_released() {
    let until = Moment(3_600_000_000) + secs(9);
    let mut world = World::owing(&config(), Some(Owed { token: FencingToken(10), until }));
    world.pass(ms(8_999));
    assert!(world.asks.is_empty());
    world.pass(ms(1));
    assert_eq!(world.asked_release().1, FencingToken(10));
}

#[test]
fn leases_of_less_than_a_second_work_the_same_way() {
    let quick = ElectorConfig { lease_duration: ms(300), renew_deadline: ms(200), retry_period: ms(50), ..config() };
    let mut world = World::new(&quick);
    let asked_at = world.now;
    world.acquire(Ok(lease(Some(ME), 10)));
    assert_eq!(world.last_hold(), Hold { step_down_at: asked_at + ms(200), over_at: asked_at + ms(285) });
    world.pass(ms(50));
    world.renew(Ok(Verdict::Renewed));
    assert_eq!(world.last_hold().step_down_at, asked_at + ms(250));
    world.pass(ms(200));
    assert_eq!(world.endings(), [&Ending::Lapsed]);
}
