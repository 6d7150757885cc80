//! Tables and small worlds: a core, its clock, and processes whose facts the test decides.

use super::*;

mod jwts;
mod many;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// A wall clock that has nothing to do with the monotonic one.
const WALL: WallTime = WallTime(1_700_000_000_000);

fn entry(name: &str, selectors: &[&str]) -> WorkloadEntry {
    WorkloadEntry::new(name.parse().unwrap(), selectors.iter().map(|text| text.parse().unwrap()))
}

fn roots(key: u8) -> Arc<Roots> {
    Arc::new(Roots { der: vec![key], keys: BTreeSet::from([vec![key]]), ..Roots::default() })
}

fn user(uid: u32) -> Facts {
    Facts { uid, gid: uid, ..Facts::default() }
}

fn svid(by: SignId, not_after: WallTime) -> Svid {
    Svid { chain_der: by.0.to_be_bytes().to_vec(), key_der: Vec::new().into(), not_after, issuer: vec![1] }
}

struct World {
    core: WorkloadCore,
    now: Moment,
    wall: WallTime,
    /// Effects that the test has not taken.
    out: Vec<Effect>,
    /// Signs by itself, unless the leader is away.
    leader: bool,
    root: u8,
    ttl: Duration,
    signatures: u64,
}

impl World {
    fn with(entries: &[WorkloadEntry]) -> Self {
        let mut world = Self {
            core: WorkloadCore::new(Certificates::default(), 7),
            now: Moment(1_000_000_000),
            wall: WALL,
            out: Vec::new(),
            leader: true,
            root: 1,
            ttl: HOUR,
            signatures: 0,
        };
        world.view(entries);
        world
    }

    fn step(&mut self, input: Input) {
        self.core.step(self.now, self.wall, input, &mut self.out);
        self.sign_all();
    }
    fn sign_all(&mut self) {
        while let Some(at) = self.out.iter().position(|effect| matches!(effect, Effect::Sign(..))) {
            let Effect::Sign(by, _) = self.out.remove(at) else { unreachable!("found above") };
            let outcome = if self.leader {
                self.signatures += 1;
                Ok(Svid { issuer: vec![self.root], ..svid(by, self.wall.plus(self.ttl)) })
            } else {
                Err(SignFailure { refused: false, why: "no quorum".to_owned() })
            };
            self.core.step(self.now, self.wall, Input::Signed { by, outcome }, &mut self.out);
        }
    }
    fn view(&mut self, entries: &[WorkloadEntry]) {
        let view =
            View { cluster: ClusterId::from_entropy(1), entries: Arc::new(entries.to_vec()), roots: roots(self.root) };
        self.step(Input::View(view));
    }
    fn ask(&mut self, id: u64, uid: u32) {
        self.step(Input::Asked { stream: StreamId(id), uid, kind: Kind::Svids });
        self.attest(id, user(uid));
    }
    /// A request whose signatures are left to the test.
    fn ask_unsigned(&mut self, id: u64, uid: u32) -> Vec<SignId> {
        let asked = Input::Asked { stream: StreamId(id), uid, kind: Kind::Svids };
        self.core.step(self.now, self.wall, asked, &mut self.out);
        self.out.retain(|effect| !matches!(effect, Effect::Attest(..)));
        let facts = Input::Attested { stream: StreamId(id), facts: Ok(user(uid)) };
        self.core.step(self.now, self.wall, facts, &mut self.out);
        let signings = self.out.extract_if(.., |effect| matches!(effect, Effect::Sign(..)));
        let by = |effect| if let Effect::Sign(by, _) = effect { Some(by) } else { None };
        signings.filter_map(by).collect()
    }
    /// Answers the question about the process of a stream, which must have been asked.
    fn attest(&mut self, id: u64, facts: Facts) {
        let asked = |effect: &Effect| matches!(effect, Effect::Attest(of, _) if *of == StreamId(id));
        let at = self.out.iter().position(asked);
        self.out.remove(at.expect("the process is looked at"));
        self.step(Input::Attested { stream: StreamId(id), facts: Ok(facts) });
    }
    /// Lets time pass, and answers every question about a process: its user is `uid`.
    fn pass(&mut self, time: Duration, uid: u32) {
        self.pass_as(time, |_| uid);
    }
    /// The same, with the user of each stream.
    fn pass_as(&mut self, time: Duration, uid_of: impl Fn(u64) -> u32) {
        let until = self.now + time;
        loop {
            while let Some(id) = self.out.iter().find_map(|effect| match effect {
                Effect::Attest(id, _) => Some(id.0),
                _ => None,
            }) {
                self.attest(id, user(uid_of(id)));
            }
            let next = self.core.wake_at(self.now, self.wall).unwrap_or(until).min(until);
            let next = if next <= self.now { self.now + Duration::from_millis(1) } else { next };
            self.wall = self.wall.plus(next.since(self.now));
            // Whole milliseconds, as wall time has.
            self.now = next;
            if self.now >= until {
                self.step(Input::Woke);
                if !self.out.iter().any(|effect| matches!(effect, Effect::Attest(..))) {
                    return;
                }
                continue;
            }
            self.step(Input::Woke);
        }
    }
    /// Of each message that a stream's client received since the last call: whether it trusts the roots of its certificates.
    fn verifiable(&mut self, id: u64) -> Vec<bool> {
        let messages = self.out.extract_if(.., |effect| matches!(effect, Effect::Send(of, _) if of.0 == id));
        let answers = messages.map(|effect| if let Effect::Send(_, answer) = effect { answer } else { unreachable!() });
        let trusts =
            |answer: Arc<Answer>| answer.identities.iter().all(|of| answer.roots.keys.contains(&of.svid.issuer));
        answers.map(trusts).collect()
    }
    /// What a stream's client received since the last call: `a/b,c/d`, `denied`, `unavailable`.
    fn received(&mut self, id: u64) -> Vec<String> {
        let mut received = Vec::new();
        self.out.retain(|effect| {
            let text = match effect {
                Effect::Send(of, answer) if of.0 == id => {
                    let names = answer.identities.iter().map(|identity| identity.name.to_string());
                    names.collect::<Vec<_>>().join(",")
                }
                Effect::End(of, Denial::PermissionDenied(_)) if of.0 == id => "denied".to_owned(),
                Effect::End(of, Denial::Unavailable(_)) if of.0 == id => "unavailable".to_owned(),
                _ => return true,
            };
            received.push(text);
            false
        });
        received
    }
}

#[test]
fn caller_gets_all_its_identities_at_once() {
    let mut world = World::with(&[
        entry("b/two", &["unix:uid:7"]),
        entry("a/one", &["unix:gid:7"]),
        entry("a/other", &["unix:uid:8"]),
        entry("c/both", &["unix:uid:7", "systemd:unit:x.service"]),
    ]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    assert_eq!(world.received(1), ["a/one,b/two"]);
    assert_eq!(world.signatures, 2, "no certificate that no process asked for");
    world.ask(2, 8);
    world.pass(SECOND, 8);
    assert_eq!(world.received(2), ["a/other"]);
}

#[test]
fn caller_without_an_identity_is_denied_both_kinds() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    for (id, kind) in [(1, Kind::Svids), (2, Kind::Roots)] {
        world.step(Input::Asked { stream: StreamId(id), uid: 8, kind });
        world.attest(id, user(8));
        assert_eq!(world.received(id), ["denied"]);
    }
    assert_eq!((world.core.streams(), world.signatures), (0, 0));
}

#[test]
fn roots_alone_need_no_signature() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.leader = false;
    world.step(Input::Asked { stream: StreamId(1), uid: 7, kind: Kind::Roots });
    world.attest(1, user(7));
    let sent = world.out.iter().any(|effect| matches!(effect, Effect::Send(_, answer) if answer.roots == roots(1)));
    assert!(sent, "{:?}", world.out);
}

#[test]
fn nothing_is_denied_before_the_cluster_is_known() {
    let mut world = World::with(&[]);
    world.core = WorkloadCore::new(Certificates::default(), 7);
    world.ask(1, 7);
    world.pass(FIRST_ANSWER_TIMEOUT - SECOND, 7);
    assert!(world.received(1).is_empty());
    world.view(&[entry("a/b", &["unix:uid:7"])]);
    world.pass(SECOND / 10, 7);
    assert_eq!(world.received(1), ["a/b"]);
    world.core = WorkloadCore::new(Certificates::default(), 7);
    world.ask(2, 7);
    world.pass(FIRST_ANSWER_TIMEOUT, 7);
    assert_eq!(world.received(2), ["unavailable"]);
}

#[test]
fn removed_entry_is_denied_mid_stream_within_a_second() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"]), entry("a/c", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    assert_eq!(world.received(1), ["a/b,a/c"]);
    world.view(&[entry("a/c", &["unix:uid:7"])]);
    world.pass(SECOND, 7);
    assert_eq!(world.received(1), ["a/c"]);
    world.view(&[]);
    world.pass(SECOND, 7);
    assert_eq!((world.received(1), world.core.streams()), (vec!["denied".to_owned()], 0));
    assert_eq!(world.core.certificates().counts().0, 0, "their keys are forgotten");
}

#[test]
fn added_entry_reaches_open_streams_once_signed() {
    let mut world = World::with(&[entry("b/b", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    world.received(1);
    world.leader = false;
    world.view(&[entry("a/a", &["unix:uid:7"]), entry("b/b", &["unix:uid:7"])]);
    world.pass(SECOND, 7);
    assert!(world.received(1).is_empty(), "it keeps what it holds");
    world.leader = true;
    world.pass(2 * SIGN_PAUSES.1, 7);
    assert_eq!(world.received(1), ["a/a,b/b"]);
}

#[test]
fn first_message_waits_for_every_identity() {
    // Without the first, b/b would become the default; without the last, the message would not be complete.
    for missing in ["a/a", "c/c"] {
        let mut world = World::with(&[entry("b/b", &["unix:uid:7"])]);
        world.ask(1, 7);
        world.pass(SECOND, 7);
        world.received(1);
        world.leader = false;
        world.view(&[entry(missing, &["unix:uid:7"]), entry("b/b", &["unix:uid:7"])]);
        world.ask(2, 7);
        world.pass(FIRST_ANSWER_TIMEOUT, 7);
        assert_eq!(world.received(2), ["unavailable"], "{missing}");
        assert!(world.received(1).is_empty(), "an open stream keeps what it has");
    }
}

#[test]
fn refused_identity_does_not_hold_back_the_others() {
    let mut world = World::with(&[entry("a/a", &["unix:uid:7"]), entry("b/b", &["unix:uid:7"])]);
    let asked = world.ask_unsigned(1, 7);
    let outcome = Err(SignFailure { refused: true, why: "no such entry".to_owned() });
    world.step(Input::Signed { by: asked[0], outcome });
    let outcome = Ok(svid(asked[1], world.wall.plus(HOUR)));
    world.step(Input::Signed { by: asked[1], outcome });
    world.pass(SECOND / 2, 7);
    assert_eq!(world.received(1), ["b/b"]);
}

#[test]
fn certificates_are_renewed_at_half_their_life() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(HOUR * 44 / 100, 7);
    assert_eq!(world.received(1), ["a/b"]);
    world.pass(HOUR * 12 / 100, 7);
    assert_eq!((world.received(1), world.signatures), (vec!["a/b".to_owned()], 2));
    world.step(Input::Closed(StreamId(1)));
    world.pass(HOUR * 9 / 10, 7);
    assert_eq!(world.signatures, 2, "no stream uses it");
    assert_eq!(world.core.certificates().counts().0, 1, "but a process that starts now gets it at once");
    let changes = world.core.certificates().changes();
    world.pass(HOUR, 7);
    assert_eq!(world.core.certificates().counts().0, 0);
    assert_ne!(world.core.certificates().changes(), changes, "its copy is replaced");
}

/// Scenario: renewal fails, the certificate is served to its end, and then withdrawn.
#[test]
fn valid_is_served_to_its_end_then_unavailable() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    world.received(1);
    world.leader = false;
    world.pass(HOUR * 9 / 10, 7);
    assert!(world.received(1).is_empty());
    world.ask(2, 7);
    world.pass(SECOND, 7);
    assert_eq!(world.received(2), ["a/b"], "a new stream is served, too");
    world.pass(HOUR / 10, 7);
    assert_eq!(
        (world.received(1), world.received(2)),
        (vec!["unavailable".to_owned()], vec!["unavailable".to_owned()])
    );
    world.ask(3, 7);
    assert_eq!(world.received(3), ["unavailable"], "the last attempt failed: not after a wait");
    world.leader = true;
    world.pass(SIGN_PAUSES.1, 7);
    world.ask(3, 7);
    world.pass(SECOND, 7);
    assert_eq!(world.received(3), ["a/b"]);
}

#[test]
fn failed_signatures_are_retried_with_growing_pauses() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    world.received(1);
    world.leader = false;
    let mut attempts = 0;
    let until = world.now + HOUR;
    while world.now < until {
        world.core.step(world.now, world.wall, Input::Woke, &mut world.out);
        attempts += world.out.iter().filter(|effect| matches!(effect, Effect::Sign(..))).count();
        world.sign_all();
        world.now = world.now + SECOND;
        world.wall = world.wall.plus(SECOND);
    }
    // Half an hour is left after the renewal time: one attempt every 30 s at most.
    assert!((50..=70).contains(&attempts), "{attempts}");
}

#[test]
fn many_requests_without_a_leader_ask_it_rarely() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.leader = false;
    let mut attempts = 0;
    for id in 0..120 {
        for by in world.ask_unsigned(id, 7) {
            attempts += 1;
            let outcome = Err(SignFailure { refused: false, why: "no quorum".to_owned() });
            world.step(Input::Signed { by, outcome });
        }
        world.now = world.now + SECOND;
        world.wall = world.wall.plus(SECOND);
    }
    assert!(attempts <= 10, "{attempts}");
}

#[test]
fn another_bundle_reaches_every_stream_before_its_certificates() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    assert_eq!(world.verifiable(1), [true]);
    let both = Roots { der: vec![1, 2], keys: BTreeSet::from([vec![1], vec![2]]), ..Roots::default() };
    let view = world.core.view().unwrap().clone();
    world.step(Input::View(View { roots: Arc::new(both), ..view.clone() }));
    world.pass(SECOND, 7);
    assert_eq!((world.verifiable(1), world.signatures), (vec![true], 1), "the certificate is still good");
    world.root = 2;
    world.pass(HOUR * 6 / 10, 7);
    assert_eq!((world.verifiable(1), world.signatures), (vec![true], 2), "renewed by the new root");
    world.root = 3;
    world.step(Input::View(View { roots: roots(3), ..view.clone() }));
    world.pass(SECOND, 7);
    assert_eq!(world.signatures, 3, "its root is trusted no more");
    // Until it is signed, the withdrawn root's certificate is all there is.
    let messages = world.verifiable(1);
    assert!(messages == [true] || messages == [false, true], "{messages:?}");
    // A root that the node does not know: not signed again and again. Its chain leads to a known one.
    world.root = 4;
    world.step(Input::View(View { roots: roots(5), ..view }));
    world.pass(20 * SECOND, 7);
    assert_eq!(world.signatures, 4);
    assert_eq!(world.verifiable(1).last(), Some(&false));
}

#[test]
fn changed_names_need_another_certificate_and_hints_do_not() {
    let mut changed = entry("a/b", &["unix:uid:7"]);
    let mut world = World::with(&[changed.clone()]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    world.received(1);
    changed.hint = Some("web".to_owned());
    world.view(&[changed.clone()]);
    world.pass(SECOND, 7);
    assert_eq!((world.received(1).len(), world.signatures), (1, 1));
    world.pass(RENEWAL_PAUSE, 7);
    changed.dns = vec!["b.example".to_owned()];
    world.view(&[changed]);
    world.pass(SECOND, 7);
    assert_eq!((world.received(1).len(), world.signatures), (1, 2));
    world.view(&[entry("a/b", &["unix:uid:7"]), entry("x/y", &["unix:uid:8"])]);
    world.pass(RENEWAL_PAUSE, 7);
    assert_eq!(world.signatures, 3);
}

/// The entry changes while the answer of the leader travels.
#[test]
fn late_certificate_counts_for_the_names_it_was_asked_for() {
    let mut changed = entry("a/b", &["unix:uid:7"]);
    let mut world = World::with(&[changed.clone()]);
    let asked = world.ask_unsigned(1, 7);
    changed.dns = vec!["b.example".to_owned()];
    world.view(&[changed]);
    world.step(Input::Signed { by: asked[0], outcome: Ok(svid(asked[0], world.wall.plus(HOUR))) });
    assert_eq!(world.signatures, 0, "the pause between two certificates");
    world.pass(RENEWAL_PAUSE + SECOND, 7);
    assert_eq!(world.signatures, 1, "the new name has a certificate");
}

/// An entry is removed and set again before the streams that used it were decided about.
#[test]
fn entry_that_returns_at_once_is_renewed_for_its_streams() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    for id in 0..=AT_ONCE as u64 {
        world.now = world.now + SECOND;
        world.ask(id, 7);
        world.pass(SECOND, 7);
    }
    world.view(&[]);
    world.view(&[entry("a/b", &["unix:uid:7"])]);
    world.out.clear();
    world.ask(1000, 7);
    world.pass(SECOND, 7);
    assert_eq!((world.received(1000).len(), world.signatures), (1, 2));
    world.step(Input::Closed(StreamId(0)));
    world.pass(HOUR * 6 / 10, 7);
    assert_eq!((world.received(1000).len(), world.signatures), (1, 3), "each stream has a claim of its own");
}

#[test]
fn process_is_looked_at_before_every_message() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7", "systemd:unit:x.service"])]);
    let inside = Facts { unit: Some("x.service".to_owned()), ..user(7) };
    world.step(Input::Asked { stream: StreamId(1), uid: 7, kind: Kind::Svids });
    world.attest(1, inside.clone());
    assert!(world.received(1).is_empty(), "the certificate came after the look");
    world.attest(1, inside.clone());
    assert_eq!(world.received(1), ["a/b"]);
    world.view(&[entry("a/b", &["unix:uid:7", "systemd:unit:x.service"]), entry("a/c", &["unix:uid:7"])]);
    world.step(Input::Woke);
    assert!(world.received(1).is_empty());
    world.attest(1, user(7)); // it has left the unit
    assert_eq!(world.received(1), ["a/c"]);
    world.step(Input::Asked { stream: StreamId(2), uid: 7, kind: Kind::Svids });
    world.step(Input::Attested { stream: StreamId(2), facts: Err(NotAttested::Ended) });
    assert_eq!(world.received(2), ["denied"]);
}

#[test]
fn fact_that_a_new_entry_names_is_found_out() {
    let mut world = World::with(&[entry("a/a", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    world.received(1);
    world.view(&[entry("a/a", &["unix:uid:7"]), entry("b/b", &["unix:path:/bin/x"])]);
    world.step(Input::Woke);
    let needs = world.out.iter().find_map(|effect| match effect {
        Effect::Attest(_, needs) => Some(needs.clone()),
        _ => None,
    });
    assert_eq!(needs, Some(Needs::of(&[entry("b/b", &["unix:path:/bin/x"])])));
    // Another value of the same fact.
    world.pass(SECOND, 7);
    world.view(&[entry("a/a", &["unix:uid:7"]), entry("b/b", &["unix:path:/bin/y"])]);
    world.step(Input::Woke);
    assert!(world.out.iter().any(|effect| matches!(effect, Effect::Attest(..))));
}

#[test]
fn changes_for_many_streams_are_spread_over_a_second() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    for id in 0..300 {
        world.now = world.now + SECOND;
        world.ask(id, 7);
        world.pass(SECOND, 7);
    }
    world.out.clear();
    world.view(&[]);
    assert!(world.core.streams() > 250, "not at once");
    world.pass(SPREAD, 7);
    assert_eq!(world.core.streams(), 0);
}

#[test]
fn streams_are_limited_in_all_and_per_user() {
    let users: Vec<WorkloadEntry> =
        (0..10).map(|uid| entry(&format!("a/{uid}"), &[&format!("unix:uid:{uid}")])).collect();
    let mut world = World::with(&users);
    let mut open = [0; 10];
    for id in 0..5000u64 {
        world.now = world.now + SECOND;
        let uid = u32::try_from(id % 2).unwrap();
        world.step(Input::Asked { stream: StreamId(id), uid, kind: Kind::Svids });
        if world.received(id).is_empty() {
            open[uid as usize] += 1;
        }
    }
    assert_eq!(open[..2], [MAX_STREAMS_OF_USER, MAX_STREAMS_OF_USER]);
    for id in 5000..10_000u64 {
        world.now = world.now + SECOND;
        let uid = u32::try_from(2 + id % 8).unwrap();
        world.step(Input::Asked { stream: StreamId(id), uid, kind: Kind::Svids });
    }
    assert_eq!(world.core.streams(), MAX_STREAMS);
    world.step(Input::Closed(StreamId(0)));
    assert_eq!(world.core.streams(), MAX_STREAMS - 1);
}

#[test]
fn certificates_are_bounded_and_unused_ones_make_room() {
    let entries: Vec<WorkloadEntry> =
        (0..MAX_HELD as u32 + 1).map(|uid| entry(&format!("a/{uid}"), &[&format!("unix:uid:{uid}")])).collect();
    let mut world = World::with(&entries);
    for uid in 0..MAX_HELD as u32 {
        world.ask(u64::from(uid), uid);
        world.pass(SECOND / 100, uid);
    }
    assert_eq!(world.core.certificates().counts().0, MAX_HELD);
    let one_more = MAX_HELD as u32;
    world.ask(1000, one_more);
    world.pass(FIRST_ANSWER_TIMEOUT, one_more);
    assert_eq!(world.received(1000), ["unavailable"]);
    world.step(Input::Closed(StreamId(3)));
    world.pass(SIGN_PAUSES.1, one_more);
    world.ask(1001, one_more);
    world.pass(SECOND, one_more);
    assert_eq!(world.received(1001), [format!("a/{one_more}")]);
}

#[test]
fn signatures_in_flight_are_bounded() {
    let entries: Vec<WorkloadEntry> = (0..50).map(|n| entry(&format!("a/{n}"), &["unix:uid:7"])).collect();
    let mut world = World::with(&entries);
    let asked = world.ask_unsigned(1, 7);
    assert_eq!(asked.len(), MAX_SIGNINGS);
    for by in asked {
        world.step(Input::Signed { by, outcome: Ok(svid(by, world.wall.plus(HOUR))) });
    }
    world.pass(SECOND, 7);
    assert_eq!((world.signatures, world.received(1).len()), (50 - MAX_SIGNINGS as u64, 1));
}

#[test]
fn held_certificates_outlive_a_crash_of_the_actor() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    let view = world.core.view().unwrap().clone();
    world.core = WorkloadCore::new(world.core.certificates().clone(), 8);
    world.leader = false;
    world.out.clear();
    world.step(Input::View(view));
    world.ask(2, 7);
    world.pass(SECOND, 7);
    assert_eq!((world.received(2), world.signatures), (vec!["a/b".to_owned()], 1));
}

/// A wall clock that is set forward, by a person or after a suspend.
#[test]
fn certificates_follow_the_wall_clock() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    world.ask(1, 7);
    world.pass(SECOND, 7);
    world.received(1);
    world.wall = world.wall.plus(HOUR * 3 / 4);
    world.pass(CLOCK_CHECK, 7);
    assert_eq!((world.received(1).len(), world.signatures), (1, 2));
}

/// Nothing is left of streams that have ended, whatever happened to them.
#[test]
fn ended_streams_leave_no_users_behind() {
    let mut world = World::with(&[entry("a/b", &["unix:uid:7"])]);
    let mut rng = Rng::seeded(3);
    for id in 0..200 {
        world.ask(id, 7);
        if rng.one_in(2) {
            world.pass(SECOND, 7);
        }
        if rng.one_in(3) {
            world.view(&[]);
            world.view(&[entry("a/b", &["unix:uid:7"])]);
        }
        world.step(Input::Closed(StreamId(id)));
        world.out.clear();
    }
    let signed = world.signatures;
    world.pass(2 * HOUR, 7);
    assert_eq!((world.core.certificates().counts(), world.signatures), ((0, 0, 0), signed));
}
