//! Claims about which process is taken for a node.

use super::*;

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

/// A data directory, and the process that runs on it.
#[derive(Clone)]
struct Directory {
    starts: Starts,
    addr: String,
}

impl Directory {
    fn new() -> Self {
        Self { starts: Starts::first(100), addr: "10.0.0.9:4400".to_owned() }
    }
    fn restarted(&self, nonce: u64) -> Self {
        Self { starts: self.starts.clone().next(nonce), ..self.clone() }
    }
    fn elsewhere(self, addr: &str) -> Self {
        Self { addr: addr.to_owned(), ..self }
    }
    fn start(&self) -> StartId {
        self.starts.this().unwrap()
    }
    fn hello(&self) -> Newcomer {
        let (addr, remote) = (self.addr.clone(), "10.0.0.9:55555".to_owned());
        Newcomer { node: node(9), starts: self.starts.clone(), seat: Some(RaftId(3)), addr, remote }
    }
}

/// A manager whose peers' sessions last, but for those that are said to be gone.
struct Manager {
    claims: Claims,
    id: NodeId,
    open: Vec<StartId>,
}

impl Manager {
    fn new(n: u128) -> Self {
        Self { claims: Claims::new(node(n)), id: node(n), open: vec![] }
    }
    fn judge(&self, who: &Directory) -> Judged {
        self.claims.judge(&who.hello(), |start| self.open.contains(&start))
    }
    /// As the mesh does: `lives` is whether the one that is asked does.
    fn greet(&mut self, at: i64, who: &Directory, lives: bool) -> bool {
        let taken = match self.judge(who) {
            Judged::Take => true,
            Judged::Ask(_) => !lives,
            Judged::Refuse(_) => false,
        };
        if taken {
            self.claims.take(WallTime(at), who.hello());
            self.open = vec![who.start()];
        }
        taken
    }
    fn hears(&self) -> Option<StartId> {
        self.open.first().copied()
    }
    /// `lives`: who does.
    fn told_by(&mut self, other: &Manager, lives: &[StartId]) {
        for reaction in self.claims.told(other.id, other.claims.all()) {
            match reaction {
                Reaction::GiveWay { from, .. } => self.open.retain(|start| *start != from),
                Reaction::Ask { own, because } => {
                    let start = own.starts.this().unwrap();
                    let (_, gone) = self.claims.asked(own.node, start, because, lives.contains(&start));
                    self.open.retain(|open| Some(*open) != gone);
                }
            }
        }
    }
}

fn talk(a: &mut Manager, b: &mut Manager, lives: &[StartId]) {
    for _ in 0..4 {
        a.told_by(b, lives);
        b.told_by(a, lives);
    }
}

/// E45.
#[test]
fn of_two_processes_on_copies_the_one_that_was_taken_first_stays() {
    let running = Directory::new();
    let copy = running.restarted(200).elsewhere("10.0.0.10:4400");
    let mut a = Manager::new(1);
    assert!(a.greet(1, &running, false));
    assert!(matches!(a.judge(&copy), Judged::Ask(of) if of.addr == running.addr));
    assert!(!a.greet(2, &copy, true), "it lives");
    assert!(a.greet(3, &running, true), "itself again");
    assert!(a.greet(4, &copy, false), "it does not answer: nobody knows that this is no restart");
    assert!(!a.greet(5, &running, false), "what has been replaced does not come back");
}

#[test]
fn a_process_that_is_started_again_in_its_place_asks_nobodys_leave() {
    let mut directory = Directory::new();
    let mut a = Manager::new(1);
    for nonce in 0..200 {
        assert_eq!(a.judge(&directory), Judged::Take);
        a.claims.take(WallTime(nonce), directory.hello());
        a.open.clear();
        directory = directory.restarted(u64::try_from(nonce).unwrap());
    }
    a.open = vec![a.claims.of(node(9)).unwrap().starts.this().unwrap()];
    assert!(matches!(a.judge(&directory), Judged::Ask(_)), "the connection of the one before is there yet");
}

/// A directory that was copied while nobody ran on it, or put back from a backup.
#[test]
fn a_copy_of_an_older_state_is_refused_whether_the_other_lives_or_not() {
    let stopped = Directory::new();
    let (one, other) = (stopped.restarted(1), stopped.restarted(2).elsewhere("10.0.0.10:4400"));
    let mut a = Manager::new(1);
    assert!(a.greet(1, &one, false));
    a.open.clear();
    assert!(matches!(a.judge(&other), Judged::Refuse(_)));
    assert!(matches!(a.judge(&stopped), Judged::Refuse(_)), "an earlier start of the same directory, which was frozen");
    assert!(a.greet(2, &one.restarted(3), false));
    let without_its_raft_data = Newcomer { seat: None, ..other.hello() };
    let judged = a.claims.judge(&without_its_raft_data, |_| false);
    assert!(matches!(judged, Judged::Ask(_)), "it has no vote, and may have another seat");
}

/// It says hello before it has its seat, or is heard without one here and with one by others.
#[test]
fn a_copy_is_refused_whoever_heard_of_the_seat_and_whenever() {
    let stopped = Directory::new();
    let (one, other) = (stopped.restarted(1), stopped.restarted(2).elsewhere("10.0.0.10:4400"));
    let unseated = Newcomer { seat: None, ..one.hello() };
    let took_without_a_seat = || {
        let mut a = Manager::new(1);
        assert!(a.claims.take(WallTime(1), unseated.clone()));
        assert!(matches!(a.judge(&other), Judged::Ask(_)), "it may have come in its place");
        a
    };
    let mut a = took_without_a_seat();
    assert!(!a.claims.seated(node(9), other.start(), RaftId(3)), "that one is not heard");
    assert!(a.claims.seated(node(9), one.start(), RaftId(3)), "news for the others");
    for again in [3, 4, 3] {
        assert!(
            !a.claims.seated(node(9), one.start(), RaftId(again)),
            "said again, or of another seat: all know enough"
        );
    }
    assert!(matches!(a.judge(&other), Judged::Refuse(_)));
    assert!(!a.claims.take(WallTime(2), unseated.clone()), "it lost its data: what it voted before counts");
    assert!(matches!(a.judge(&other), Judged::Refuse(_)));

    let (mut a, mut b) = (took_without_a_seat(), Manager::new(2));
    assert!(b.greet(2, &one, false));
    a.told_by(&b, &[one.start()]);
    assert!(matches!(a.judge(&other), Judged::Refuse(_)), "the others heard it speak for its seat");
}

#[test]
fn managers_that_took_different_processes_agree_as_soon_as_they_talk() {
    let stopped = Directory::new();
    let (one, other) = (stopped.restarted(1), stopped.restarted(2).elsewhere("10.0.0.10:4400"));
    for (at_a, at_b, stays) in [(1, 2, &one), (2, 1, &other), (1, 1, &one)] {
        let (mut a, mut b) = (Manager::new(1), Manager::new(2));
        assert!(a.greet(at_a, &one, false) && b.greet(at_b, &other, false));
        talk(&mut a, &mut b, &[one.start(), other.start()]);
        let heard: Vec<StartId> = [a.hears(), b.hears()].into_iter().flatten().collect();
        assert_eq!(heard, [stays.start()]);
        let loser = if stays.start() == one.start() { &other } else { &one };
        for manager in [&mut a, &mut b] {
            assert!(!manager.greet(3, loser, true));
            assert!(manager.greet(3, stays, true));
        }
    }
}

#[test]
fn of_a_running_process_and_a_copy_that_began_later_the_first_stays_and_a_restart_is_taken() {
    let before = Directory::new();
    let after = before.restarted(7).elsewhere("10.0.0.10:4400");
    for lives in [true, false] {
        let (mut a, mut b) = (Manager::new(1), Manager::new(2));
        assert!(a.greet(1, &before, false));
        assert!(b.greet(2, &after, false), "b has heard of nobody");
        let living = if lives { vec![before.start(), after.start()] } else { vec![after.start()] };
        talk(&mut a, &mut b, &living);
        let heard: Vec<StartId> = [a.hears(), b.hears()].into_iter().flatten().collect();
        assert_eq!(heard, [if lives { before.start() } else { after.start() }]);
    }
}

#[test]
fn what_a_lying_or_broken_peer_claims_takes_bounded_room_and_concerns_neither_itself_nor_us() {
    let mut a = Manager::new(1);
    let directory = Directory::new();
    assert!(a.greet(5, &directory, false));
    let claim = |n: u128, starts: Starts| Claim {
        node: node(n),
        starts,
        seat: None,
        addr: String::new(),
        remote: String::new(),
        since: WallTime(0),
        insists: None,
    };
    let none = Starts { before: u64::MAX, nonces: vec![] };
    let far = Starts { before: u64::MAX, nonces: vec![1] };
    let many: Vec<Claim> = (10..1000).map(|n| claim(n, Starts::first(1))).collect();
    let odd = vec![claim(1, Starts::first(1)), claim(2, Starts::first(1)), claim(9, none), claim(9, far)];
    assert_eq!(a.claims.told(node(2), [odd, many].concat()), []);
    assert_eq!(a.claims.told[&node(2)].len(), MOST_CLAIMS);
    assert!(a.claims.of(node(1)).is_none() && a.claims.of(node(2)).is_none());
    a.claims.forget(node(2));
    assert!(a.claims.told.is_empty());
}

/// Managers that come, go and talk in any order: whoever has talked agrees, and nobody hears two.
#[test]
fn in_any_order_of_greetings_and_talk_all_come_to_hear_one() {
    let mut dice = muster_messages::Dice::seeded(45);
    for _ in 0..500 {
        let stopped = Directory::new();
        let offline = dice.index(2) == 0;
        let one = stopped.restarted(1);
        let copied = if offline { &stopped } else { &one };
        let other = copied.restarted(2).elsewhere("10.0.0.10:4400");
        let living = [one.start(), other.start()];
        let mut managers: Vec<Manager> = (1..=3).map(Manager::new).collect();
        for at in 0..20 {
            let (m, who) = (dice.index(3), if dice.index(2) == 0 { &one } else { &other });
            managers[m].greet(at, who, true);
            if dice.index(3) == 0 {
                let (a, b) = [(0, 1), (0, 2), (1, 2)][dice.index(3)];
                let (left, right) = managers.split_at_mut(b);
                talk(&mut left[a], &mut right[0], &living);
            }
        }
        for _ in 0..3 {
            for (a, b) in [(0, 1), (0, 2), (1, 2)] {
                let (left, right) = managers.split_at_mut(b);
                talk(&mut left[a], &mut right[0], &living);
            }
        }
        let mut heard: Vec<StartId> = managers.iter().filter_map(Manager::hears).collect();
        heard.dedup();
        assert_eq!(heard.len(), 1, "offline: {offline}");
    }
}
