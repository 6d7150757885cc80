//! A root that an authority above certifies: from its request to the nodes that have its certificates.

use std::time::Duration;

use muster_messages::protocol::{ProposeError, RootsChange, RootsChanged};
use muster_messages::*;
use muster_pki::{Bundle, Issuer, cluster_of_root_pem, first_of_answer, not_after_of_pem};
use muster_root_rotation::Config;
use muster_root_rotation::core::{Input, UpstreamEnd, is_same};
use muster_testkit::company::Company;

use crate::world::*;
use AuthorityState::{Active, Prepared, Retired, Revoked};

impl World {
    fn ask_above(&mut self, compromised: bool) -> RootsChanged {
        self.operator(RootsChange::Request { compromised }).unwrap()
    }
    fn csr(&self) -> String {
        self.log.authorities.requested.as_ref().unwrap().csr_pem.clone()
    }
    fn issued(&mut self, answer: &str) -> Result<RootsChanged, ErrorBody> {
        self.operator(RootsChange::Issued { automatic: true, answer: answer.to_owned() })
    }
}

#[test]
fn certified_root_is_rotated_to_as_any_other() {
    let (mut world, company) = (World::new(3, 2), Company::root().subordinate("company issuing"));
    let cluster = world.log.cluster.as_ref().unwrap().id;
    let (old, old_pem) = (world.active(), world.log.cluster.as_ref().unwrap().root_cert_pem.clone());
    let asked = world.ask_above(false);
    let new = asked.root.unwrap();
    assert!(asked.changed && world.state(new).is_none(), "nothing is published");
    let csr = world.csr();
    let again = world.ask_above(false);
    assert_eq!((again.changed, world.csr()), (false, csr.clone()), "the same request");

    let answer = company.sign(&csr);
    let published = world.issued(&answer).unwrap();
    assert_eq!((published.root, published.changed), (Some(new), true));
    assert_eq!((world.state(old), world.state(new)), (Some(Active), Some(Prepared)));
    let repeated = world.issued(&answer).unwrap();
    assert_eq!((repeated.root, repeated.changed), (Some(new), false));
    world.run();
    assert_eq!((world.state(old), world.state(new)), (Some(Retired), Some(Active)));
    assert_eq!((world.active(), world.behind()), (new, vec![]));
    let refused = world.issued(&answer).unwrap_err();
    assert_eq!(refused.code, ErrorCode::SameKey);

    // Nodes that trusted the old root trust the certificate in the answer, and none above it.
    let bundle = Bundle::from_pem(&old_pem).unwrap().accept(cluster, &world.log.authorities.offer()).unwrap();
    let (_, certificate) = first_of_answer(&answer).unwrap();
    assert_eq!(bundle.to_pem(), certificate);
    assert_eq!(cluster_of_root_pem(&certificate), Some(cluster), "joiners read it there");
    // After the certificate of the old root; the company's root itself is left out.
    let chain = world.log.authorities.chain();
    assert_eq!((chain.len(), chain[1]), (3, certificate.as_str()));
}

#[test]
fn bad_answers_are_refused_and_change_nothing() {
    let (mut world, company) = (World::new(3, 0), Company::root());
    let early = world.issued(&company.chain).unwrap_err();
    assert_eq!(early.code, ErrorCode::Conflict);
    assert!(early.message.contains("muster ca rotate --csr"), "{}", early.message);
    world.ask_above(false);
    let csr = world.csr();
    let other = {
        let mut other = World::new(1, 0);
        other.ask_above(false);
        other.csr()
    };
    let revision = world.log.revision;
    for answer in ["".to_owned(), company.sign(&other), first_of_answer(&company.sign(&csr)).unwrap().1] {
        let refused = world.issued(&answer).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Invalid, "{}", refused.message);
    }
    assert_eq!(world.log.revision, revision, "no entry");
    assert!(world.issued(&company.sign(&csr)).is_ok(), "the request still waits");
}

#[test]
fn abort_deletes_the_request() {
    let (mut world, company) = (World::new(3, 0), Company::root());
    let asked = world.ask_above(false);
    let answer = company.sign(&world.csr());
    let aborted = world.operator(RootsChange::Abort).unwrap();
    assert_eq!((aborted.root, aborted.changed), (asked.root, true));
    assert_eq!(world.issued(&answer).unwrap_err().code, ErrorCode::Conflict);
    let another = world.ask_above(false);
    assert_ne!(another.root, asked.root);
    assert_eq!(world.issued(&answer).unwrap_err().code, ErrorCode::Invalid, "of the key before");
}

#[test]
fn request_after_a_compromise_uses_another_key_and_revokes() {
    let (mut world, company) = (World::new(3, 0), Company::root());
    let old = world.active();
    let leaked = world.ask_above(false).root;
    let new = world.ask_above(true).root;
    assert_ne!(new, leaked, "a copied disk holds the key of the earlier request");
    assert_eq!(world.ask_above(true).root, None, "the same request");
    assert_eq!(world.log.authorities.requested.as_ref().map(|requested| requested.root), new);
    let answer = company.sign(&world.csr());
    world.issued(&answer).unwrap();
    world.run();
    assert_eq!((Some(world.active()), world.state(old)), (new, Some(Revoked)));
}

#[test]
fn retried_request_finds_its_first_outcome() {
    let (mut world, company) = (World::new(3, 0), Company::root());
    let request = RootsChange::Request { compromised: false };
    let first = world.request(request.clone(), 77);
    let second = world.request(request, 77);
    assert_eq!(world.changed(first), world.changed(second));
    let issued = RootsChange::Issued { automatic: false, answer: company.sign(&world.csr()) };
    let first = world.request(issued.clone(), 78);
    let first = world.changed(first).unwrap();
    world.operator(RootsChange::Activate(first.root.unwrap())).unwrap_err(); // no node trusts it yet
    let second = world.request(issued, 78);
    assert_eq!(world.changed(second), Ok(first));
}

/// What the company's certificate leads to next: a root of the cluster's own, or another one of the company's.
#[test]
fn rotations_lead_away_from_a_certified_root() {
    let (mut world, company) = (World::new(3, 0), Company::root());
    world.ask_above(false);
    let answer = company.sign(&world.csr());
    let first = world.issued(&answer).unwrap().root.unwrap();
    world.run();
    let own = world.rotate();
    world.run();
    assert_eq!((world.active(), world.state(first)), (own, Some(Retired)));
    let crosses = world.log.authorities.crosses();
    assert_eq!(crosses[0].by, first, "the certified root leads to its successor");
    let ends = not_after_of_pem(&first_of_answer(&answer).unwrap().1).unwrap();
    assert!(not_after_of_pem(&crosses[0].cert_pem).unwrap() <= ends);
    assert_eq!(world.log.authorities.chain().len(), crosses.len(), "nothing above leads to the cluster's own root");
    world.ask_above(false);
    let answer = company.sign(&world.csr());
    let second = world.issued(&answer).unwrap().root.unwrap();
    world.run();
    assert_eq!(world.active(), second);
    let root = &world.log.authorities.roots[&second];
    Issuer::from_pem(&root.cert_pem, root.key_pem.as_ref().unwrap()).unwrap();
}

/// The answer of an authority above makes room as a root of the cluster's own does.
#[test]
fn certified_roots_make_room_in_a_full_table() {
    let (mut world, company) = (World::new(1, 1), Company::root());
    let first = world.active();
    for _ in 0..=MAX_ROOTS {
        world.ask_above(false);
        let answer = company.sign(&world.csr());
        let new = world.issued(&answer).unwrap().root.unwrap();
        world.run();
        assert_eq!((world.active(), world.behind()), (new, vec![]));
        assert!(world.log.authorities.roots.len() <= MAX_ROOTS);
    }
    assert_eq!(world.state(first), None);
}

// ---- by a command -----------------------------------------------------------------------------------------------------

fn with_command(auto: bool) -> World {
    World::with(Config { retire_after: Duration::ZERO, upstream: true, auto, ..Config::default() }, 3, 0)
}

impl World {
    fn answers(&mut self, answer: UpstreamEnd) {
        let (root, _) = self.above.pop().expect("it was asked");
        self.input(Input::Above(root, answer));
    }
}

#[test]
fn command_certifies_each_request() {
    for auto in [false, true] {
        let (mut world, company) = (with_command(auto), Company::root());
        world.ask_above(false);
        world.ask_above(false);
        assert_eq!(world.above.len(), 1, "one at a time");
        let (root, csr) = world.above[0].clone();
        world.answers(UpstreamEnd::Answered(company.sign(&csr)));
        assert_eq!(world.state(root), Some(Prepared));
        world.run();
        assert_eq!(world.state(root), Some(if auto { Active } else { Prepared }), "an operator activates it");
        assert!(world.above.is_empty(), "it is answered");
    }
}

#[test]
fn command_is_asked_again_after_a_pause() {
    let (mut world, company) = (with_command(true), Company::root());
    let root = world.ask_above(false).root.unwrap();
    for pause in [10, 20, 40] {
        world.answers(UpstreamEnd::Later("busy".to_owned()));
        world.pass(Duration::from_secs(pause - 1));
        assert!(world.above.is_empty(), "not before {pause} s");
        world.pass(Duration::from_secs(1));
        assert_eq!(world.above.len(), 1, "after {pause} s");
    }
    // A failure, and an answer that cannot be read.
    for end in [UpstreamEnd::Failed("status 1".to_owned()), UpstreamEnd::Answered(company.chain.clone())] {
        world.answers(end);
        world.pass(Duration::from_secs(599));
        assert!(world.above.is_empty());
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(world.not_certified[..4], ["busy", "busy", "busy", "status 1"]);
    assert!(world.not_certified[4].contains("the first certificate is of the key"), "{}", world.not_certified[4]);
    // UP-1: nothing else waited.
    let own = world.rotate();
    world.run();
    assert_eq!(world.active(), own);
    let (_, csr) = world.above[0].clone();
    world.answers(UpstreamEnd::Answered(company.sign(&csr)));
    world.run();
    assert_eq!(world.active(), root);
}

/// What is not the answer's fault passes sooner.
#[test]
fn answer_that_cannot_be_recorded_is_asked_for_again_soon() {
    let (mut world, company) = (with_command(true), Company::root());
    let root = world.ask_above(false).root.unwrap();
    let (_, csr) = world.above[0].clone();
    world.hold = true;
    world.answers(UpstreamEnd::Answered(company.sign(&csr)));
    world.fail(ProposeError::Busy);
    assert_eq!(world.asked_later, [true]);
    world.hold = false;
    world.pass(Duration::from_secs(10));
    assert_eq!(world.above.len(), 1, "after 10 s");
    world.answers(UpstreamEnd::Answered(company.chain.clone()));
    assert_eq!(world.asked_later, [true, false], "a wrong answer");
    world.pass(Duration::from_secs(600));
    world.answers(UpstreamEnd::Answered(company.sign(&csr)));
    world.run();
    assert_eq!(world.active(), root);
}

#[test]
fn answer_of_an_aborted_request_is_not_used() {
    let (mut world, company) = (with_command(true), Company::root());
    world.ask_above(false);
    let (_, csr) = world.above[0].clone();
    world.operator(RootsChange::Abort).unwrap();
    let revision = world.log.revision;
    world.answers(UpstreamEnd::Answered(company.sign(&csr)));
    assert_eq!((world.log.revision, world.not_certified.len()), (revision, 0));
    world.ask_above(false);
    assert_eq!(world.above.len(), 1, "the next request is asked for at once");
    // Nor by a leader that asked before it was replaced: the next one asks with the same request.
    let asked = world.above[0].clone();
    world.restart();
    assert_eq!(world.above[1], asked);
}

#[test]
fn next_certificate_is_requested_at_half_of_its_life() {
    let (mut world, company) = (with_command(true), Company::root());
    world.ask_above(false);
    let (first, csr) = world.above[0].clone();
    let ends = rcgen::date_time_ymd(2027, 3, 16);
    let life = WallTime::from_unix_secs(ends.unix_timestamp()).0 - world.wall.0;
    world.answers(UpstreamEnd::Answered(company.sign_with(&csr, |certificate| certificate.not_after = ends)));
    world.run();
    let half = Duration::from_millis(u64::try_from(life / 2).unwrap());
    world.pass(half - HOUR);
    world.run();
    assert!(world.above.is_empty() && world.active() == first);
    world.pass(HOUR);
    world.run();
    assert_eq!(world.above.len(), 1, "the leader asks by itself");
    let (second, csr) = world.above[0].clone();
    world.answers(UpstreamEnd::Answered(company.sign(&csr)));
    world.run();
    assert_eq!(world.active(), second);
}

/// A change of the request alone is a reason to look.
#[test]
fn states_with_another_request_are_not_the_same() {
    for rotated in [false, true] {
        let mut world = with_command(true);
        if rotated {
            world.rotate();
            world.run();
        }
        let before = world.log.clone();
        world.ask_above(false);
        let asked = world.log.clone();
        assert!(is_same(&before, &before) && is_same(&asked, &asked));
        assert!(!is_same(&before, &asked), "rotated: {rotated}");
    }
}
