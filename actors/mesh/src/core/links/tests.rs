//! Claims about links.

use std::collections::VecDeque;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}
fn wanted(nodes: &[u128]) -> Input {
    Input::Wanted(nodes.iter().map(|n| (node(*n), format!("n{n}:1"))).collect())
}
struct World {
    links: Links,
    now: Moment,
    leader: Option<NodeId>,
}
impl World {
    fn of(own: u128) -> Self {
        Self { links: Links::new(node(own), 42, vec![]), now: Moment(1_000_000), leader: None }
    }
    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut out = Vec::new();
        self.links.step(self.now, self.leader, input, &mut out);
        out
    }
    fn after(&mut self, d: Duration) -> Vec<Effect> {
        self.now = self.now + d;
        self.step(Input::Woke)
    }
    fn session(&mut self, number: u64, with: u128, dialed: bool) -> Vec<Effect> {
        self.step(Input::Opened { number, node: node(with), dialed });
        if dialed {
            self.step(Input::Dialed { node: node(with), outcome: DialOutcome::Opened });
        }
        self.step(Input::Ready { number })
    }
}
fn dials(effects: &[Effect]) -> Vec<NodeId> {
    let dial = |e: &Effect| match e {
        Effect::Dial { node, .. } => Some(*node),
        _ => None,
    };
    effects.iter().filter_map(dial).collect()
}

#[test]
fn the_smaller_id_dials_at_once_and_the_greater_after_a_while() {
    assert_eq!(dials(&World::of(1).step(wanted(&[1, 2]))), [node(2)]);
    let mut greater = World::of(3);
    greater.step(wanted(&[3])); // started before the other one was a member
    assert_eq!(dials(&greater.step(wanted(&[2, 3]))), []);
    assert_eq!(dials(&greater.after(SECOND / 2)), []);
    assert_eq!(dials(&greater.after(SECOND * 2)), [node(2)]);
}

#[test]
fn a_manager_dials_everybody_once_when_it_starts() {
    let mut greatest = World::of(3);
    assert_eq!(dials(&greatest.step(wanted(&[]))), []);
    assert_eq!(dials(&greatest.step(wanted(&[1, 2, 3]))), [], "those that start with it may dial first");
    let mut dialed = dials(&greatest.after(START_PATIENCE));
    dialed.sort();
    let mut both = [node(1), node(2)];
    both.sort();
    assert_eq!(dialed, both);
}

#[test]
fn a_session_ready_for_half_a_second_resets_the_pause() {
    for (lived, at_once) in [(SECOND / 2, true), (SECOND / 4, false)] {
        let mut world = World::of(1);
        world.step(wanted(&[1, 2]));
        for _ in 0..4 {
            world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
            world.after(SECOND * 2);
        }
        world.session(1, 2, true);
        world.now = world.now + lived;
        assert_eq!(dials(&world.step(Input::Ended { number: 1 })).is_empty(), !at_once, "{lived:?}");
    }
}

/// B11. A manager that moved knows none of today's members by address, and was told the way to one that it never heard of.
#[test]
fn manager_found_by_hint_is_dialled_before_it_is_a_member() {
    let mut world = World::of(3);
    world.links = Links::new(node(3), 42, vec!["new-4:1".into()]);
    let mut todo: VecDeque<Effect> = world.step(wanted(&[1, 2, 3])).into();
    let mut introduced = 0;
    for _ in 0..200 {
        while let Some(effect) = todo.pop_front() {
            todo.extend(match effect {
                Effect::Ask { addr } => world.step(Input::Asked { addr, found: Some(node(4)) }),
                Effect::Dial { node: to, addr } if to == node(4) => {
                    assert_eq!(addr, "new-4:1");
                    introduced += 1;
                    match introduced {
                        1 => world.step(Input::Dialed { node: to, outcome: DialOutcome::Failed }),
                        _ => world.session(1, 4, true),
                    }
                }
                Effect::Dial { node, .. } => world.step(Input::Dialed { node, outcome: DialOutcome::Refused }),
                _ => vec![],
            });
        }
        todo.extend(world.after(SECOND / 20));
    }
    assert_eq!(introduced, 2, "once for each time that it was found, until there is a session");
    assert_eq!(world.links.up(node(4)), Some(1));
}

#[test]
fn whoever_probed_a_new_member_dials_it_at_once() {
    let mut greater = World::of(3);
    greater.step(wanted(&[3]));
    assert_eq!(greater.step(Input::Answered { node: node(2) }), []);
    assert_eq!(dials(&greater.step(wanted(&[2, 3]))), [node(2)]);
    let mut late = World::of(3);
    late.step(wanted(&[3]));
    late.step(Input::Answered { node: node(2) });
    late.now = late.now + ANSWERED;
    assert_eq!(dials(&late.step(wanted(&[2, 3]))), []);
}

#[test]
fn a_restarted_peers_new_session_replaces_the_half_dead_one() {
    let mut world = World::of(1);
    world.step(wanted(&[2]));
    world.session(1, 2, true);
    world.now = world.now + SECOND * 10;
    let out = world.session(2, 2, false);
    assert!(out.contains(&Effect::End { number: 1, because: Because::Superseded }));
    assert!(out.contains(&Effect::Up { node: node(2), number: 2 }));
    assert_eq!(dials(&world.step(Input::Ended { number: 1 })), []);
    assert_eq!(world.links.up(node(2)), Some(2));
}

#[test]
fn both_sides_keep_the_same_one_of_two_simultaneous_sessions() {
    // Session 10 was dialled by the smaller id, 20 by the greater; each side sees them in its own order.
    for (small_order, great_order) in [([10, 20], [20, 10]), ([20, 10], [10, 20]), ([10, 20], [10, 20])] {
        let (mut small, mut great) = (World::of(1), World::of(2));
        for number in small_order {
            small.session(number, 2, number == 10);
        }
        for number in great_order {
            great.session(number, 1, number == 20);
        }
        assert_eq!((small.links.up(node(2)), great.links.up(node(1))), (Some(10), Some(10)));
    }
}

#[test]
fn a_lost_session_is_dialled_again_with_growing_pauses() {
    let mut world = World::of(1);
    world.step(wanted(&[2]));
    let mut dialed = 0;
    let mut waited = Duration::ZERO;
    while waited < SECOND * 10 {
        let out = world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
        assert!(dials(&out).len() <= 1);
        if dials(&out).is_empty() {
            let Some(Effect::WakeAt(at)) = out.last() else { panic!("it waits for something: {out:?}") };
            waited += at.since(world.now);
            world.now = *at;
            assert_eq!(dials(&world.step(Input::Woke)), [node(2)]);
        }
        dialed += 1;
    }
    assert!((10..40).contains(&dialed), "{dialed} dials in 10 s");
}

#[test]
fn only_the_leaders_refused_address_is_news() {
    for (leader, outcome, gone) in
        [(2, DialOutcome::Refused, true), (2, DialOutcome::Failed, false), (3, DialOutcome::Refused, false)]
    {
        let mut world = World::of(5);
        world.leader = Some(node(leader));
        world.step(wanted(&[2]));
        world.session(1, 2, false);
        world.now = world.now + SECOND * 10;
        let out = world.step(Input::Ended { number: 1 });
        assert!(out.contains(&Effect::Down { node: node(2) }));
        assert_eq!(dials(&out), if leader == 2 { vec![node(2)] } else { vec![] }, "at once, whoever is smaller");
        let out = world.step(Input::Dialed { node: node(2), outcome });
        assert_eq!(out.contains(&Effect::LeaderGone { node: node(2) }), gone);
    }
}

#[test]
fn a_dying_leader_that_still_accepts_is_dialled_again_soon_however_often_dials_failed_before() {
    let mut world = World::of(1);
    world.leader = Some(node(2));
    world.step(wanted(&[2]));
    for number in 0..8 {
        world.session(number, 2, true);
        world.step(Input::Ended { number }); // each lived for too short a time to prove that dialling works
    }
    for _ in 0..3 {
        world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
        assert_eq!(dials(&world.after(SOON)), [node(2)]);
    }
    let out = world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Refused });
    assert!(out.contains(&Effect::LeaderGone { node: node(2) }));
    assert_eq!(dials(&world.after(SOON)), [], "who does not lead can wait");
}

#[test]
fn a_node_that_is_wanted_no_more_loses_its_sessions_and_is_forgotten() {
    let mut world = World::of(1);
    world.step(wanted(&[2]));
    world.session(1, 2, true);
    assert_eq!(world.step(wanted(&[])), [], "an empty copy knows of nobody's leaving");
    let out = world.step(wanted(&[1]));
    assert_eq!(out, [Effect::End { number: 1, because: Because::NotWanted }]);
    let out = world.step(Input::Ended { number: 1 });
    assert_eq!(out, [Effect::Down { node: node(2) }, Effect::Forget { node: node(2) }]);
}

#[test]
fn a_stranger_that_the_gateway_let_in_keeps_its_session() {
    let mut world = World::of(1);
    world.step(wanted(&[2]));
    let out = world.session(1, 9, false);
    assert!(out.contains(&Effect::Up { node: node(9), number: 1 }));
    assert!(!world.step(wanted(&[2])).iter().any(|e| matches!(e, Effect::End { .. })));
}

#[test]
fn sessions_that_never_get_ready_stay_few() {
    let mut world = World::of(1);
    let mut ended = 0;
    for number in 0..100 {
        let out = world.step(Input::Opened { number, node: node(2), dialed: false });
        for effect in out {
            if let Effect::End { number, .. } = effect {
                ended += 1;
                world.step(Input::Ended { number });
            }
        }
    }
    assert_eq!(ended, 99);
}

fn asks(effects: &[Effect]) -> Vec<&str> {
    effects.iter().filter_map(|e| if let Effect::Ask { addr } = e { Some(addr.as_str()) } else { None }).collect()
}
fn dialled_at(effects: &[Effect], n: u128) -> Option<&str> {
    effects.iter().find_map(|e| match e {
        Effect::Dial { node: to, addr } if *to == node(n) => Some(addr.as_str()),
        _ => None,
    })
}

/// E30. All of them have moved: nobody is where the copy says.
#[test]
fn managers_that_have_all_moved_are_found_where_this_one_was_told_to_look() {
    let mut world = World::of(1);
    world.links = Links::new(node(1), 42, vec!["new-9:1".into(), "new-2:1".into()]);
    let out = world.step(wanted(&[1, 2, 3]));
    assert_eq!((dialled_at(&out, 2), dialled_at(&out, 3), asks(&out).len()), (Some("n2:1"), Some("n3:1"), 0));
    let (mut asked, mut found) = (Vec::new(), false);
    let mut todo: VecDeque<Effect> = out.into();
    while !found {
        while let Some(effect) = todo.pop_front() {
            todo.extend(match effect {
                Effect::Ask { addr } => {
                    asked.push(addr.clone());
                    let found = (addr == "new-2:1").then(|| node(2));
                    world.step(Input::Asked { addr, found })
                }
                Effect::Dial { addr, .. } if addr == "new-2:1" => {
                    found = true;
                    break;
                }
                Effect::Dial { node, .. } => world.step(Input::Dialed { node, outcome: DialOutcome::Refused }),
                _ => vec![],
            });
        }
        assert!(asked.len() < 5, "{asked:?}");
        todo.extend(world.after(SECOND / 20));
    }
    assert_eq!(asked.last().map(String::as_str), Some("new-2:1"), "dialled as soon as it was found");
    let out = world.session(1, 2, true);
    assert!(out.contains(&Effect::Up { node: node(2), number: 1 }));
    // Two of three: whoever leads tells the third one's address.
    for _ in 0..600 {
        let mut out = world.after(SECOND / 10);
        for n in dials(&out) {
            out.extend(world.step(Input::Dialed { node: n, outcome: DialOutcome::Refused }));
        }
        assert_eq!(asks(&out), Vec::<&str>::new(), "nobody is asked with a majority");
    }
}

/// A hint that leads nowhere keeps nobody from the address that the cluster knows, nor the other way round.
#[test]
fn both_addresses_of_a_node_have_their_turn_until_the_cluster_knows_a_new_one() {
    let mut world = World::of(1);
    world.step(wanted(&[1, 2, 3]));
    world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
    world.step(Input::Asked { addr: "hint:1".into(), found: Some(node(2)) });
    // Where it is dialled after a failure: at once, or a little later.
    let next = |world: &mut World| {
        let out = world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
        let out = if dialled_at(&out, 2).is_some() { out } else { world.after(SECOND * 2) };
        dialled_at(&out, 2).expect("it is wanted").to_owned()
    };
    let tried: Vec<String> = (0..50).map(|_| next(&mut world)).collect();
    assert!(tried.windows(2).all(|two| two[0] != two[1]), "in turn: {:?}", &tried[..6]);
    assert!(tried.contains(&"hint:1".to_owned()) && tried.contains(&"n2:1".to_owned()));
    let moved = [(node(1), "n1:1".to_owned()), (node(2), "moved:1".to_owned())];
    world.step(Input::Wanted(moved.into_iter().collect()));
    assert_eq!((0..5).map(|_| next(&mut world)).collect::<Vec<_>>(), ["moved:1"; 5]);
    // Ourselves changes nothing; a manager that this copy does not know is dialled once.
    for (n, dialled) in [(1, vec![]), (7, vec![node(7)])] {
        let out = world.step(Input::Asked { addr: "other:1".into(), found: Some(node(n)) });
        assert_eq!(dials(&out), dialled);
    }
}

/// S94.
#[test]
fn a_member_that_moved_is_dialled_at_its_new_address_and_the_old_session_ends() {
    let mut world = World::of(1);
    world.step(wanted(&[1, 2]));
    world.session(1, 2, true);
    world.now = world.now + SECOND * 60;
    // Its machine went away without a word: the old session is half dead when the new one is there.
    let moved = |addr: &str| Input::Wanted([(node(1), "n1:1".to_owned()), (node(2), addr.to_owned())].into());
    assert_eq!(dials(&world.step(moved("new:1"))), [], "what works is left alone");
    let out = world.session(2, 2, false);
    assert!(out.contains(&Effect::End { number: 1, because: Because::Superseded }), "{out:?}");
    assert!(out.contains(&Effect::Up { node: node(2), number: 2 }));
    world.step(Input::Ended { number: 1 });
    // Or the old one has ended first: the new address it is.
    let out = world.step(Input::Ended { number: 2 });
    let out = if dials(&out).is_empty() { world.after(SECOND) } else { out };
    assert_eq!(dialled_at(&out, 2), Some("new:1"));
}
