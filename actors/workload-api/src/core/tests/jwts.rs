//! Calls for JWTs.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn with_jwt(name: &str) -> WorkloadEntry {
    WorkloadEntry { jwt: true, ..entry(name, &["unix:uid:7"]) }
}

impl World {
    /// With one entry, and a token for `db` that was handed out.
    fn with_token(text: &str) -> Self {
        let mut world = World::with(&[with_jwt("a/b")]);
        let asked = world.ask_jwt(1, "db", None);
        world.sign_jwt(asked[0].0, text);
        assert_eq!(world.jwts(1), [format!("a/b={text}")]);
        world
    }
    /// User 7 asks for JWTs, and its process is looked at. Returns what is to be signed.
    fn ask_jwt(&mut self, id: u64, audience: &str, of: Option<&str>) -> Vec<(SignId, TokenKey)> {
        let spiffe_id = of.map(|name| name.parse::<WorkloadName>().unwrap().spiffe_id(ClusterId::from_entropy(1)));
        let request = JwtRequest { audience: Arc::new(vec![audience.to_owned()]), spiffe_id };
        self.step(Input::Asked { stream: StreamId(id), uid: 7, kind: Kind::Jwts(request) });
        self.attest(id, user(7));
        self.jwts_to_sign()
    }
    /// What is to be signed now, each once.
    fn jwts_to_sign(&mut self) -> Vec<(SignId, TokenKey)> {
        let signings = self.out.extract_if(.., |effect| matches!(effect, Effect::SignJwt(..)));
        signings.map(|effect| if let Effect::SignJwt(by, key) = effect { (by, key) } else { unreachable!() }).collect()
    }
    fn sign_jwt(&mut self, by: SignId, text: &str) {
        let token = Token { text: text.to_owned(), not_after: self.wall.plus(5 * MINUTE) };
        self.step(Input::SignedJwt { by, outcome: Ok(token) });
    }
    fn fail_jwt(&mut self, by: SignId, refused: bool) {
        let failure = SignFailure { refused, why: "no quorum".to_owned() };
        self.step(Input::SignedJwt { by, outcome: Err(failure) });
    }
    /// The answer to a call, once its process was looked at again: the tokens, or how it was refused.
    fn jwts(&mut self, id: u64) -> Vec<String> {
        self.pass(SECOND / 10, 7);
        let tokens = self.out.iter().find_map(|effect| match effect {
            Effect::Send(of, answer) if of.0 == id => Some(answer.tokens.clone()),
            _ => None,
        });
        match tokens {
            Some(tokens) => tokens.iter().map(|of| format!("{}={}", of.name, of.token.text)).collect(),
            None => self.received(id),
        }
    }
}

#[test]
fn jwts_are_of_the_identities_that_may_have_them() {
    let mut world = World::with(&[with_jwt("a/one"), entry("a/two", &["unix:uid:7"]), with_jwt("b/three")]);
    let asked = world.ask_jwt(1, "db", None);
    let names: Vec<_> = asked.iter().map(|(_, (name, audience))| format!("{name} {}", audience[0])).collect();
    assert_eq!(names, ["a/one db", "b/three db"]);
    world.sign_jwt(asked[0].0, "t1");
    assert!(world.jwts(1).is_empty(), "the answer is complete or is not given");
    world.sign_jwt(asked[1].0, "t3");
    assert_eq!(world.jwts(1), ["a/one=t1", "b/three=t3"]);
    assert_eq!((world.signatures, world.core.certificates().counts()), (0, (0, 0, 0)), "no certificate");
    // One of them alone; one that may have none; one that it is not.
    assert!(world.ask_jwt(2, "db", Some("b/three")).is_empty());
    assert_eq!(world.jwts(2), ["b/three=t3"]);
    for (id, name) in [(3, "a/two"), (4, "x/y")] {
        assert!(world.ask_jwt(id, "db", Some(name)).is_empty());
        assert_eq!(world.jwts(id), ["denied"]);
    }
}

#[test]
fn jwt_is_handed_out_again_until_half_of_its_life() {
    let mut world = World::with_token("first");
    world.step(Input::Closed(StreamId(1)));
    world.pass(2 * MINUTE, 7);
    assert!(world.ask_jwt(2, "db", None).is_empty());
    assert_eq!(world.jwts(2), ["a/b=first"]);
    assert_eq!(world.ask_jwt(3, "api", None).len(), 1, "another audience");
    world.pass(MINUTE, 7);
    let asked = world.ask_jwt(4, "db", None);
    world.sign_jwt(asked[0].0, "second");
    assert_eq!(world.jwts(4), ["a/b=second"]);
    // Without a leader the one that is held is good to its end.
    world.pass(3 * MINUTE, 7);
    let asked = world.ask_jwt(5, "db", None);
    world.fail_jwt(asked[0].0, false);
    assert_eq!(world.jwts(5), ["a/b=second"]);
    world.pass(3 * MINUTE, 7);
    let asked = world.ask_jwt(6, "db", None);
    world.fail_jwt(asked[0].0, false);
    assert_eq!(world.jwts(6), ["unavailable"]);
    world.pass(10 * MINUTE, 7);
    assert_eq!(world.core.tokens().counts().0, 0);
}

/// The first call waits as long as it may; those after a failure wait only while no attempt is in flight.
#[test]
fn jwt_is_handed_out_while_the_leader_is_silent() {
    let mut world = World::with_token("first");
    world.pass(3 * MINUTE, 7);
    let asked = world.ask_jwt(2, "db", None);
    assert_eq!(asked.len(), 1);
    assert!(world.jwts(2).is_empty());
    world.pass(FIRST_ANSWER_TIMEOUT, 7);
    assert_eq!(world.jwts(2), ["a/b=first"]);
    world.fail_jwt(asked[0].0, false);
    world.pass(SECOND, 7);
    let asked = world.ask_jwt(3, "db", None);
    assert_eq!((world.ask_jwt(4, "db", None), asked.len()), (Vec::new(), 1), "one attempt");
    assert_eq!(world.jwts(4), ["a/b=first"], "it does not wait");
    // Once the leader has said that the workload may have none, it gets none, however late it is.
    world.fail_jwt(asked[0].0, true);
    assert_eq!(world.jwts(3), ["denied"]);
    world.pass(2 * SECOND, 7);
    assert_eq!(world.ask_jwt(5, "db", None).len(), 1);
    world.pass(FIRST_ANSWER_TIMEOUT, 7);
    assert_eq!(world.jwts(5), ["unavailable"]);
}

#[test]
fn jwt_that_is_refused_or_late_ends_its_call() {
    let mut world = World::with(&[with_jwt("a/b")]);
    let asked = world.ask_jwt(1, "db", None);
    world.fail_jwt(asked[0].0, true);
    assert_eq!(world.jwts(1), ["denied"]);
    assert_eq!(world.ask_jwt(2, "late", None).len(), 1);
    world.pass(FIRST_ANSWER_TIMEOUT, 7);
    assert_eq!(world.jwts(2), ["unavailable"]);
}

#[test]
fn jwt_of_another_root_or_entry_is_forgotten() {
    let mut world = World::with_token("first");
    world.root = 2;
    world.view(&[with_jwt("a/b")]);
    assert_eq!(world.ask_jwt(2, "db", None).len(), 1, "its root may be withdrawn");
    world.view(&[entry("a/b", &["unix:uid:7"])]);
    assert_eq!(world.jwts(2), ["denied"], "the entry allows none any more");
    assert!(world.ask_jwt(3, "db", None).is_empty());
    assert_eq!(world.jwts(3), ["denied"]);
}

/// Whether the former or the new root has signed it is not known.
#[test]
fn jwt_in_flight_over_a_root_change_is_asked_for_again() {
    let mut world = World::with(&[with_jwt("a/b")]);
    let asked = world.ask_jwt(1, "db", None);
    world.root = 2;
    world.view(&[with_jwt("a/b")]);
    world.sign_jwt(asked[0].0, "of the former root");
    let again = world.jwts_to_sign();
    assert_eq!((again.len(), world.jwts(1)), (1, vec![]));
    world.sign_jwt(again[0].0, "of the new one");
    assert_eq!(world.jwts(1), ["a/b=of the new one"]);
}

#[test]
fn entry_that_changes_ends_the_pause_after_a_refusal() {
    let mut world = World::with(&[with_jwt("a/b")]);
    let asked = world.ask_jwt(1, "db", None);
    world.fail_jwt(asked[0].0, true);
    assert_eq!(world.jwts(1), ["denied"]);
    assert!(world.ask_jwt(2, "db", None).is_empty());
    assert_eq!(world.jwts(2), ["denied"], "during the pause");
    world.view(&[with_jwt("a/b"), entry("a/c", &["unix:uid:7"])]);
    assert!(world.ask_jwt(3, "db", None).is_empty(), "another entry");
    assert_eq!(world.jwts(3), ["denied"]);
    world.view(&[WorkloadEntry { hint: Some("x".to_owned()), ..with_jwt("a/b") }]);
    assert_eq!(world.ask_jwt(4, "db", None).len(), 1);
}

/// A program names audiences as it likes: it must not use up what its node may hold or have signed.
#[test]
fn audiences_of_a_workload_are_limited() {
    let mut world = World::with(&[with_jwt("a/b"), WorkloadEntry { jwt: true, ..entry("a/c", &["unix:uid:8"]) }]);
    for id in 0..MAX_TOKENS_OF_WORKLOAD as u64 {
        let asked = world.ask_jwt(id, &format!("audience {id}"), None);
        world.sign_jwt(asked[0].0, "t");
        assert_eq!(world.jwts(id), ["a/b=t"]);
        world.step(Input::Closed(StreamId(id)));
    }
    assert!(world.ask_jwt(100, "one more", None).is_empty());
    assert_eq!(world.jwts(100), ["unavailable"]);
    let request = JwtRequest { audience: Arc::new(vec!["one more".to_owned()]), spiffe_id: None };
    world.step(Input::Asked { stream: StreamId(101), uid: 8, kind: Kind::Jwts(request) });
    world.attest(101, user(8));
    assert!(world.out.iter().any(|effect| matches!(effect, Effect::SignJwt(..))), "another workload has its own");
}

#[test]
fn jwts_and_certificates_share_the_requests_in_flight() {
    let mut world = World::with(&[with_jwt("a/b"), with_jwt("a/c"), with_jwt("a/d")]);
    let asked = world.ask_jwt(1, "db", None);
    assert_eq!(asked.len(), MAX_SIGNINGS);
    assert!(world.ask_unsigned(2, 7).is_empty(), "the host accepts no more");
    let outcome = Err(SignFailure { refused: true, why: String::new() });
    world.core.step(world.now, world.wall, Input::SignedJwt { by: asked[0].0, outcome }, &mut world.out);
    let next = world.out.iter().filter(|effect| matches!(effect, Effect::Sign(..) | Effect::SignJwt(..)));
    let next: Vec<_> = next.collect();
    assert!(matches!(next[..], [Effect::Sign(..)]), "certificates come first: {next:?}");
}
