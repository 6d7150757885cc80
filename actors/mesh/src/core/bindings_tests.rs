//! Tests of identity bindings.

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
        Newcomer { node: node(9), starts: self.starts.clone(), member_id: Some(RaftId(3)), addr, remote }
    }
}

/// A manager whose peers' sessions stay open unless a test ends them.
struct Manager {
    bindings: IdentityBindings,
    id: NodeId,
    open: Vec<StartId>,
}

impl Manager {
    fn new(n: u128) -> Self {
        Self { bindings: IdentityBindings::new(node(n)), id: node(n), open: vec![] }
    }
    fn decide(&self, who: &Directory) -> NewcomerDecision {
        self.bindings.decide(&who.hello(), |start| self.open.contains(&start))
    }
    /// As the mesh does. `alive`: whether the queried process is alive.
    fn greet(&mut self, at: i64, who: &Directory, alive: bool) -> bool {
        let taken = match self.decide(who) {
            NewcomerDecision::Accept => true,
            NewcomerDecision::Ask(_) => !alive,
            NewcomerDecision::Refuse(_) => false,
        };
        if taken {
            self.bindings.take(WallTime(at), who.hello());
            self.open = vec![who.start()];
        }
        taken
    }
    fn accepted_start(&self) -> Option<StartId> {
        self.open.first().copied()
    }
    /// `alive`: the processes that are alive.
    fn receive_from(&mut self, other: &Manager, alive: &[StartId]) {
        for reaction in self.bindings.reported(other.id, other.bindings.all()) {
            match reaction {
                Reaction::GiveWay { from, .. } => self.open.retain(|start| *start != from),
                Reaction::Ask { own, because } => {
                    let start = own.starts.this().unwrap();
                    let (_, gone) = self.bindings.asked(own.node, start, because, alive.contains(&start));
                    self.open.retain(|open| Some(*open) != gone);
                }
            }
        }
    }
}

fn talk(a: &mut Manager, b: &mut Manager, alive: &[StartId]) {
    for _ in 0..4 {
        a.receive_from(b, alive);
        b.receive_from(a, alive);
    }
}

/// E45.
#[test]
fn first_of_two_processes_on_copies_stays_accepted() {
    let running = Directory::new();
    let duplicate = running.restarted(200).elsewhere("10.0.0.10:4400");
    let mut a = Manager::new(1);
    assert!(a.greet(1, &running, false));
    assert!(matches!(a.decide(&duplicate), NewcomerDecision::Ask(of) if of.addr == running.addr));
    assert!(!a.greet(2, &duplicate, true), "the accepted process is alive");
    assert!(a.greet(3, &running, true), "the same process");
    assert!(a.greet(4, &duplicate, false), "no answer: it may be a restart");
    assert!(!a.greet(5, &running, false), "a replaced process does not come back");
}

#[test]
fn restarted_process_is_accepted_without_query() {
    let mut directory = Directory::new();
    let mut a = Manager::new(1);
    for nonce in 0..200 {
        assert_eq!(a.decide(&directory), NewcomerDecision::Accept);
        a.bindings.take(WallTime(nonce), directory.hello());
        a.open.clear();
        directory = directory.restarted(u64::try_from(nonce).unwrap());
    }
    a.open = vec![a.bindings.of(node(9)).unwrap().starts.this().unwrap()];
    assert!(matches!(a.decide(&directory), NewcomerDecision::Ask(_)), "the previous connection is still open");
}

/// A directory that was copied while not in use, or restored from a backup.
#[test]
fn copy_of_older_state_is_always_refused() {
    let stopped = Directory::new();
    let (one, other) = (stopped.restarted(1), stopped.restarted(2).elsewhere("10.0.0.10:4400"));
    let mut a = Manager::new(1);
    assert!(a.greet(1, &one, false));
    a.open.clear();
    assert!(matches!(a.decide(&other), NewcomerDecision::Refuse(_)));
    assert!(
        matches!(a.decide(&stopped), NewcomerDecision::Refuse(_)),
        "an earlier, frozen start of the same directory"
    );
    assert!(a.greet(2, &one.restarted(3), false));
    let without_its_raft_data = Newcomer { member_id: None, ..other.hello() };
    let decided = a.bindings.decide(&without_its_raft_data, |_| false);
    assert!(matches!(decided, NewcomerDecision::Ask(_)), "it has no vote, and may get another member id");
}

/// The hello precedes the member id, or only another manager saw the process with one.
#[test]
fn copy_is_refused_once_any_manager_saw_the_member_id() {
    let stopped = Directory::new();
    let (one, other) = (stopped.restarted(1), stopped.restarted(2).elsewhere("10.0.0.10:4400"));
    let without_member_id = Newcomer { member_id: None, ..one.hello() };
    let accept_without_member_id = || {
        let mut a = Manager::new(1);
        assert!(a.bindings.take(WallTime(1), without_member_id.clone()));
        assert!(matches!(a.decide(&other), NewcomerDecision::Ask(_)), "it may be a successor");
        a
    };
    let mut a = accept_without_member_id();
    assert!(!a.bindings.member_id_announced(node(9), other.start(), RaftId(3)), "not the accepted process");
    assert!(a.bindings.member_id_announced(node(9), one.start(), RaftId(3)), "the others must be informed");
    for again in [3, 4, 3] {
        assert!(
            !a.bindings.member_id_announced(node(9), one.start(), RaftId(again)),
            "a repeated or another member id: no message"
        );
    }
    assert!(matches!(a.decide(&other), NewcomerDecision::Refuse(_)));
    assert!(!a.bindings.take(WallTime(2), without_member_id.clone()), "it lost its data: its earlier votes count");
    assert!(matches!(a.decide(&other), NewcomerDecision::Refuse(_)));

    let (mut a, mut b) = (accept_without_member_id(), Manager::new(2));
    assert!(b.greet(2, &one, false));
    a.receive_from(&b, &[one.start()]);
    assert!(matches!(a.decide(&other), NewcomerDecision::Refuse(_)), "the other manager saw its member id");
}

#[test]
fn managers_with_different_bindings_converge() {
    let stopped = Directory::new();
    let (one, other) = (stopped.restarted(1), stopped.restarted(2).elsewhere("10.0.0.10:4400"));
    for (at_a, at_b, stays) in [(1, 2, &one), (2, 1, &other), (1, 1, &one)] {
        let (mut a, mut b) = (Manager::new(1), Manager::new(2));
        assert!(a.greet(at_a, &one, false) && b.greet(at_b, &other, false));
        talk(&mut a, &mut b, &[one.start(), other.start()]);
        let accepted: Vec<StartId> = [a.accepted_start(), b.accepted_start()].into_iter().flatten().collect();
        assert_eq!(accepted, [stays.start()]);
        let loser = if stays.start() == one.start() { &other } else { &one };
        for manager in [&mut a, &mut b] {
            assert!(!manager.greet(3, loser, true));
            assert!(manager.greet(3, stays, true));
        }
    }
}

#[test]
fn running_process_beats_later_copy_and_restart_is_accepted() {
    let before = Directory::new();
    let after = before.restarted(7).elsewhere("10.0.0.10:4400");
    for alive in [true, false] {
        let (mut a, mut b) = (Manager::new(1), Manager::new(2));
        assert!(a.greet(1, &before, false));
        assert!(b.greet(2, &after, false), "b knows no process yet");
        let living = if alive { vec![before.start(), after.start()] } else { vec![after.start()] };
        talk(&mut a, &mut b, &living);
        let accepted: Vec<StartId> = [a.accepted_start(), b.accepted_start()].into_iter().flatten().collect();
        assert_eq!(accepted, [if alive { before.start() } else { after.start() }]);
    }
}

#[test]
fn bindings_of_malicious_peer_are_bounded_and_filtered() {
    let mut a = Manager::new(1);
    let directory = Directory::new();
    assert!(a.greet(5, &directory, false));
    let binding = |n: u128, starts: Starts| IdentityBinding {
        node: node(n),
        starts,
        member_id: None,
        addr: String::new(),
        remote: String::new(),
        since: WallTime(0),
        insists: None,
    };
    let none = Starts { before: u64::MAX, nonces: vec![] };
    let far = Starts { before: u64::MAX, nonces: vec![1] };
    let many: Vec<IdentityBinding> = (10..1000).map(|n| binding(n, Starts::first(1))).collect();
    let odd = vec![binding(1, Starts::first(1)), binding(2, Starts::first(1)), binding(9, none), binding(9, far)];
    assert_eq!(a.bindings.reported(node(2), [odd, many].concat()), []);
    assert_eq!(a.bindings.reported[&node(2)].len(), MAX_BINDINGS);
    assert!(a.bindings.of(node(1)).is_none() && a.bindings.of(node(2)).is_none());
    a.bindings.forget(node(2));
    assert!(a.bindings.reported.is_empty());
}

/// Managers that come, go and talk in any order: those that talked agree, and none accepts two processes.
#[test]
fn all_managers_converge_on_one_process_in_any_order() {
    let mut rng = muster_messages::Rng::seeded(45);
    for _ in 0..500 {
        let stopped = Directory::new();
        let offline = rng.index(2) == 0;
        let one = stopped.restarted(1);
        let copied = if offline { &stopped } else { &one };
        let other = copied.restarted(2).elsewhere("10.0.0.10:4400");
        let living = [one.start(), other.start()];
        let mut managers: Vec<Manager> = (1..=3).map(Manager::new).collect();
        for at in 0..20 {
            let (m, who) = (rng.index(3), if rng.index(2) == 0 { &one } else { &other });
            managers[m].greet(at, who, true);
            if rng.index(3) == 0 {
                let (a, b) = [(0, 1), (0, 2), (1, 2)][rng.index(3)];
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
        let mut accepted: Vec<StartId> = managers.iter().filter_map(Manager::accepted_start).collect();
        accepted.dedup();
        assert_eq!(accepted.len(), 1, "offline: {offline}");
    }
}

/// Between the decision about a hello and the agreement of both sides another process may have been accepted.
#[test]
fn agreed_hello_counts_unless_another_process_was_accepted() {
    let original = Directory::new();
    let (copy, newer) = (original.restarted(8).elsewhere("10.0.0.10:4400"), original.restarted(9));
    let is_open = |start: StartId| move |open: StartId| open == start;
    let closed = |_: StartId| false;
    let opens = |who: &Directory, is_news| Opening::Session { start: who.start(), is_news };
    let mut bindings = IdentityBindings::new(node(1));
    let confirm = |bindings: &mut IdentityBindings, who: &Directory, asked: Option<StartId>| {
        bindings.confirm(WallTime(5), who.hello(), asked, true, is_open(original.start()))
    };
    assert_eq!(confirm(&mut bindings, &original, None), opens(&original, true), "the first");
    assert_eq!(confirm(&mut bindings, &original, None), opens(&original, false), "the others know it");
    // Another one: only if the process that is accepted now was asked, and did not answer.
    assert_eq!(confirm(&mut bindings, &copy, None), Opening::Superseded);
    assert_eq!(confirm(&mut bindings, &copy, Some(newer.start())), Opening::Superseded, "another process was asked");
    assert_eq!(bindings.of(node(9)).and_then(|binding| binding.starts.this()), Some(original.start()));
    let mut replaced = bindings.clone();
    assert_eq!(confirm(&mut replaced, &copy, Some(original.start())), opens(&copy, true));
    assert_eq!(replaced.of(node(9)).and_then(|binding| binding.starts.this()), Some(copy.start()));
    // The original runs on an older state than its successor by now.
    assert_eq!(confirm(&mut replaced, &original, Some(copy.start())), Opening::Superseded);
    // A restart at the same address needs no question.
    assert_eq!(confirm(&mut bindings.clone(), &newer, None), Opening::Superseded, "the old session is open");
    assert_eq!(bindings.confirm(WallTime(5), newer.hello(), None, true, closed), opens(&newer, true));
}

/// A session opens only to an identified process, and only while the session server runs: without one, no binding is made.
#[test]
fn no_process_is_accepted_while_no_session_can_open() {
    let (original, closed) = (Directory::new(), |_: StartId| false);
    let unidentified = Newcomer { starts: Starts { before: 0, nonces: vec![] }, ..original.hello() };
    let mut bindings = IdentityBindings::new(node(1));
    for (newcomer, can_open) in [(original.hello(), false), (unidentified.clone(), true), (unidentified, false)] {
        assert_eq!(bindings.confirm(WallTime(5), newcomer, None, can_open, closed), Opening::Impossible);
        assert_eq!(bindings.all(), []);
    }
    let opens = Opening::Session { start: original.start(), is_news: true };
    assert_eq!(bindings.confirm(WallTime(5), original.hello(), None, true, closed), opens);
    let duplicate = original.restarted(8).elsewhere("10.0.0.10:4400").hello();
    let refused = |bindings: &mut IdentityBindings, can_open| {
        bindings.confirm(WallTime(5), duplicate.clone(), None, can_open, closed)
    };
    assert_eq!(refused(&mut bindings, true), Opening::Superseded);
    assert_eq!(refused(&mut bindings, false), Opening::Impossible, "whatever else is true of it");
}
