//! Tests of links.

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
fn smaller_id_dials_first() {
    assert_eq!(dials(&World::of(1).step(wanted(&[1, 2]))), [node(2)]);
    let mut greater = World::of(3);
    greater.step(wanted(&[3])); // started before node 3 was a member
    assert_eq!(dials(&greater.step(wanted(&[2, 3]))), []);
    assert_eq!(dials(&greater.after(SECOND / 2)), []);
    assert_eq!(dials(&greater.after(SECOND * 2)), [node(2)]);
}

#[test]
fn manager_dials_all_members_once_at_start() {
    let mut greatest = World::of(3);
    assert_eq!(dials(&greatest.step(wanted(&[]))), []);
    assert_eq!(dials(&greatest.step(wanted(&[1, 2, 3]))), [], "nodes that start at the same time may dial first");
    let mut dialed = dials(&greatest.after(START_DELAY));
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

/// B11. A manager that moved has no current member's address, and a hint to a manager that it does not know.
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
    assert_eq!(introduced, 2, "once each time that it was found, until there is a session");
    assert_eq!(world.links.up(node(4)), Some(1));
}

#[test]
fn manager_that_probed_a_new_member_dials_it_first() {
    let mut greater = World::of(3);
    greater.step(wanted(&[3]));
    assert_eq!(greater.step(Input::Answered { node: node(2) }), []);
    assert_eq!(dials(&greater.step(wanted(&[2, 3]))), [node(2)]);
    let mut late = World::of(3);
    late.step(wanted(&[3]));
    late.step(Input::Answered { node: node(2) });
    late.now = late.now + PROBE_VALIDITY;
    assert_eq!(dials(&late.step(wanted(&[2, 3]))), []);
}

/// The stream of the probe is its session: nothing is dialled twice.
#[test]
fn probed_stream_stays_as_the_new_members_session() {
    let mut world = World::of(3);
    world.step(wanted(&[3]));
    assert!(world.links.may_introduce(node(2)));
    world.step(Input::Answered { node: node(2) });
    world.step(Input::Opened { number: 1, node: node(2), dialed: true });
    assert!(!world.links.may_introduce(node(2)), "one session is enough");
    world.step(Input::Ready { number: 1 });
    assert_eq!(dials(&world.step(wanted(&[2, 3]))), []);
    assert_eq!(world.links.up(node(2)), Some(1));
    let out = world.step(Input::Ended { number: 1 });
    assert_eq!(dials(&out), [node(2)], "it may not know this manager yet");
    assert!(!world.links.may_introduce(node(2)));
}

/// It does not know this manager and cannot dial.
#[test]
fn new_member_whose_probed_stream_broke_is_dialled_at_once() {
    let mut world = World::of(3);
    world.step(wanted(&[3]));
    world.step(Input::Answered { node: node(2) });
    world.step(Input::Opened { number: 1, node: node(2), dialed: true });
    world.step(Input::Ended { number: 1 });
    assert!(world.links.may_introduce(node(2)));
    assert_eq!(dials(&world.step(wanted(&[2, 3]))), [node(2)]);
}

#[test]
fn new_session_of_restarted_peer_replaces_the_old_one() {
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
fn both_sides_keep_the_same_of_two_simultaneous_sessions() {
    // The smaller id dialled session 10, the greater one 20; each side sees them in its own order.
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
            let Some(Effect::WakeAt(at)) = out.last() else { panic!("no wake-up: {out:?}") };
            waited += at.since(world.now);
            world.now = *at;
            assert_eq!(dials(&world.step(Input::Woke)), [node(2)]);
        }
        dialed += 1;
    }
    assert!((10..40).contains(&dialed), "{dialed} dials in 10 s");
}

#[test]
fn only_refused_dial_to_the_leader_is_reported() {
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
        assert_eq!(
            dials(&out),
            if leader == 2 { vec![node(2)] } else { vec![] },
            "immediately, whichever id is smaller"
        );
        let out = world.step(Input::Dialed { node: node(2), outcome });
        assert_eq!(out.contains(&Effect::LeaderGone { node: node(2) }), gone);
    }
}

#[test]
fn dying_leader_is_redialled_soon_despite_earlier_failures() {
    let mut world = World::of(1);
    world.leader = Some(node(2));
    world.step(wanted(&[2]));
    for number in 0..8 {
        world.session(number, 2, true);
        world.step(Input::Ended { number }); // each too short to prove that dialling works
    }
    for _ in 0..3 {
        world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
        assert_eq!(dials(&world.after(LEADER_REDIAL_PAUSE)), [node(2)]);
    }
    let out = world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Refused });
    assert!(out.contains(&Effect::LeaderGone { node: node(2) }));
    assert_eq!(dials(&world.after(LEADER_REDIAL_PAUSE)), [], "a node that is not the leader can wait");
}

#[test]
fn unwanted_node_loses_its_sessions_and_its_link() {
    let mut world = World::of(1);
    world.step(wanted(&[2]));
    world.session(1, 2, true);
    assert_eq!(world.step(wanted(&[])), [], "an empty replica removes no node");
    let out = world.step(wanted(&[1]));
    assert_eq!(out, [Effect::End { number: 1, because: Because::NotWanted }]);
    let out = world.step(Input::Ended { number: 1 });
    assert_eq!(out, [Effect::Down { node: node(2) }, Effect::Forget { node: node(2) }]);
}

#[test]
fn admitted_unknown_node_keeps_its_session() {
    let mut world = World::of(1);
    world.step(wanted(&[2]));
    let out = world.session(1, 9, false);
    assert!(out.contains(&Effect::Up { node: node(9), number: 1 }));
    assert!(!world.step(wanted(&[2])).iter().any(|e| matches!(e, Effect::End { .. })));
}

#[test]
fn sessions_that_never_become_ready_are_bounded() {
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

/// E30. All managers have moved: no address in the replica is current.
#[test]
fn managers_that_all_moved_are_found_by_hints() {
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
    assert_eq!(asked.last().map(String::as_str), Some("new-2:1"), "dialled once found");
    let out = world.session(1, 2, true);
    assert!(out.contains(&Effect::Up { node: node(2), number: 1 }));
    // Two of three: the leader provides the third one's address.
    for _ in 0..600 {
        let mut out = world.after(SECOND / 10);
        for n in dials(&out) {
            out.extend(world.step(Input::Dialed { node: n, outcome: DialOutcome::Refused }));
        }
        assert_eq!(asks(&out), Vec::<&str>::new(), "no query with a majority");
    }
}

/// A useless hint does not prevent dials to the address in the replica, nor the other way round.
#[test]
fn known_and_hinted_address_are_dialled_alternately() {
    let mut world = World::of(1);
    world.step(wanted(&[1, 2, 3]));
    world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
    world.step(Input::Asked { addr: "hint:1".into(), found: Some(node(2)) });
    // Where it is dialled after a failure: immediately, or a little later.
    let next = |world: &mut World| {
        let out = world.step(Input::Dialed { node: node(2), outcome: DialOutcome::Failed });
        let out = if dialled_at(&out, 2).is_some() { out } else { world.after(SECOND * 2) };
        dialled_at(&out, 2).expect("a dial").to_owned()
    };
    let tried: Vec<String> = (0..50).map(|_| next(&mut world)).collect();
    assert!(tried.windows(2).all(|two| two[0] != two[1]), "in turn: {:?}", &tried[..6]);
    assert!(tried.contains(&"hint:1".to_owned()) && tried.contains(&"n2:1".to_owned()));
    let moved = [(node(1), "n1:1".to_owned()), (node(2), "moved:1".to_owned())];
    world.step(Input::Wanted(moved.into_iter().collect()));
    assert_eq!((0..5).map(|_| next(&mut world)).collect::<Vec<_>>(), ["moved:1"; 5]);
    // The node itself changes nothing; a manager that this replica does not know is dialled once.
    for (n, dialled) in [(1, vec![]), (7, vec![node(7)])] {
        let out = world.step(Input::Asked { addr: "other:1".into(), found: Some(node(n)) });
        assert_eq!(dials(&out), dialled);
    }
}

/// S94.
#[test]
fn moved_member_is_dialled_at_its_new_address() {
    let mut world = World::of(1);
    world.step(wanted(&[1, 2]));
    world.session(1, 2, true);
    world.now = world.now + SECOND * 60;
    // Its machine disappeared silently: the old session is half dead when the new one opens.
    let moved = |addr: &str| Input::Wanted([(node(1), "n1:1".to_owned()), (node(2), addr.to_owned())].into());
    assert_eq!(dials(&world.step(moved("new:1"))), [], "a working session stays");
    let out = world.session(2, 2, false);
    assert!(out.contains(&Effect::End { number: 1, because: Because::Superseded }), "{out:?}");
    assert!(out.contains(&Effect::Up { node: node(2), number: 2 }));
    world.step(Input::Ended { number: 1 });
    // Or the old session ended first: the new address is dialled.
    let out = world.step(Input::Ended { number: 2 });
    let out = if dials(&out).is_empty() { world.after(SECOND) } else { out };
    assert_eq!(dialled_at(&out, 2), Some("new:1"));
}
