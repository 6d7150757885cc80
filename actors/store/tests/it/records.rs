//! Nodes, certificates, blocks, tokens, users.

use std::collections::BTreeMap;

use muster_messages::*;
use muster_store::{MAX_EVENTS, apply};

use crate::world::*;

fn role(n: u8, role: Role) -> Change {
    Change::SetDesiredRole { node: id(n), role }
}

fn grant(n: u8, role: Role) -> Change {
    Change::GrantRole { node: id(n), role }
}

fn removing(n: u8, forced: bool) -> Change {
    Change::SetRemoving { node: id(n), removal: Removal { by: Principal::Operator, forced, at: T0 } }
}

fn labels(n: u8, add: &[(&str, &str)], remove: &[&str]) -> Change {
    Change::UpdateLabels {
        node: id(n),
        add: (add.iter().map(|(k, v)| (k.to_string(), v.to_string()))).collect(),
        remove: remove.iter().map(|k| k.to_string()).collect(),
    }
}

fn certify(n: u8, certificate: CertificateRecord) -> Change {
    Change::RecordCertificate { node: id(n), certificate }
}

fn news(world: &World) -> Vec<(EventKind, String)> {
    let text = |e: &Event| {
        let or_none = |t: &Option<String>| t.clone().unwrap_or("-".to_owned());
        format!("{} > {}", or_none(&e.before), or_none(&e.after))
    };
    world.tables.events.iter().map(|e| (e.kind, text(e))).collect()
}

#[test]
fn only_the_spec_raises_the_generation() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    assert_eq!(world.record(2).generation, Generation(1));
    world.must(command([role(2, Role::Manager)]));
    world.must(command([labels(2, &[("zone", "a")], &[])]));
    assert_eq!(world.record(2).generation, Generation(3));
    // E48: what a node's liveness writes must not conflict with an operator who guards the generation.
    world.must(command([grant(2, Role::Manager)]));
    world.must(command([Change::SetLiveness { node: id(2), liveness: Liveness::Ready }]));
    assert_eq!(world.record(2).generation, Generation(3));
    assert_eq!(world.record(2).revision, world.tables.revision);
}

#[test]
fn changes_without_effect_cause_no_event() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    world.must(command([labels(2, &[("zone", "a")], &[])]));
    let before = world.tables.clone();
    world.must(command([
        role(2, Role::Worker),
        grant(2, Role::Worker),
        labels(2, &[("zone", "a")], &["absent", "zone"]),
        Change::SetLiveness { node: id(2), liveness: Liveness::Unknown },
        Change::DeleteNode(id(9)),
        Change::Unblock(id(9)),
        Change::DeleteToken("none".to_owned()),
        Change::DeleteUser(name("none")),
        Change::SetFeatureLevel(1),
    ]));
    let revision = before.revision.next();
    assert_eq!(world.tables, Tables { revision, ..before });
}

#[test]
fn a_grant_is_dated_and_repeating_it_keeps_the_date() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let created = world.record(2).granted;
    world.must(command([grant(2, Role::Manager)]));
    let granted = world.record(2).granted;
    assert_eq!(granted, world.tables.revision);
    assert!(granted > created);
    world.must(command([grant(2, Role::Manager)]));
    assert_eq!(world.record(2).granted, granted);
}

#[test]
fn manager_role_cannot_end_before_membership() {
    let mut world = World::founded().with([(2, Role::Manager)]);
    world.learner(2, 2).unwrap();
    let refusal = world.refused(command([grant(2, Role::Worker)]));
    let raft_id = RaftId(2);
    assert_eq!(refusal, CommandRefusal::StillMember { node: id(2), raft_id });
    world.remove_member(2).unwrap();
    world.must(command([grant(2, Role::Worker)]));
}

#[test]
fn leaving_node_may_be_demoted_but_not_promoted() {
    let mut world = World::founded().with([(2, Role::Worker), (3, Role::Manager)]);
    world.must(command([removing(2, false), removing(3, true), role(3, Role::Worker)]));
    let refused = CommandRefusal::BeingRemoved { node: id(2) };
    assert_eq!(world.refused(command([role(2, Role::Manager)])), refused);
    assert_eq!(world.refused(command([grant(2, Role::Manager)])), refused);
    assert_eq!(world.record(3).desired_role, Role::Worker);
}

#[test]
fn force_is_added_to_a_removal_and_never_taken_away() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let forced = |w: &World| w.record(2).removing.as_ref().map(|r| r.forced);
    world.must(command([removing(2, false)]));
    assert_eq!(forced(&world), Some(false));
    world.must(command([removing(2, true)]));
    world.must(command([removing(2, false)]));
    assert_eq!(forced(&world), Some(true));
}

#[test]
fn taken_reported_name_keeps_the_current_name() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let mut twin = node(3, Role::Worker);
    twin.name = name("n2");
    let refusal = world.refused(command([Change::CreateNode(Box::new(twin))]));
    let (taken, holder) = (name("n2"), id(2));
    assert_eq!(refusal, CommandRefusal::NameTaken { name: taken, node: holder });
    let report = |n: &str| {
        command([Change::Report {
            node: id(2),
            name: name(n),
            addr: "10.9.9.9:1".to_owned(),
            release: "0.2.0".to_owned(),
            labels: BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]),
        }])
    };
    world.must(command([labels(2, &[("zone", "a")], &[])]));
    world.must(report("n1"));
    let record = world.record(2);
    assert_eq!((record.name.as_str(), record.addr.as_str()), ("n2", "10.9.9.9:1"));
    assert_eq!(record.labels.keys().collect::<Vec<_>>(), ["disk", "zone"], "a report adds to the operator's labels");
    world.must(report("n5"));
    assert_eq!(world.record(2).name.as_str(), "n5");
}

#[test]
fn certificates_are_recorded_for_the_grant_in_force_only() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let first = world.record(2).granted;
    world.must(command([certify(2, certificate(Role::Worker, Some(first), T0.0))]));
    world.must(command([role(2, Role::Manager)]));
    for wrong in [
        certificate(Role::Manager, Some(first), T0.0),
        certificate(Role::Worker, Some(first.next()), T0.0),
        certificate(Role::Worker, None, T0.0),
    ] {
        world.refused(command([certify(2, wrong)]));
    }
    world.must(command([grant(2, Role::Manager)]));
    assert_eq!(world.record(2).certificate_state(), CertificateState::Pending);
    // Signed before the grant, recorded after it: the authority must sign again.
    world.refused(command([certify(2, certificate(Role::Worker, Some(first), T0.0))]));
    let granted = Some(world.record(2).granted);
    world.must(command([certify(2, certificate(Role::Manager, granted, T0.0))]));
    assert_eq!(world.record(2).certificate_state(), CertificateState::Issued);
}

#[test]
fn the_founder_alone_has_a_certificate_without_a_grant() {
    let mut world = World::founded();
    world.must(command([certify(1, certificate(Role::Manager, None, T0.0))]));
    let granted = Some(world.record(1).granted);
    world.must(command([certify(1, certificate(Role::Manager, granted, T0.0))]));
    assert_eq!(world.record(1).certificate_state(), CertificateState::Issued);
}

#[test]
fn rotation_and_failure_last_until_the_next_certificate() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    let granted = Some(world.record(2).granted);
    let issue = certify(2, certificate(Role::Worker, granted, T0.0));
    world.must(command([Change::AskRotate(id(2))]));
    assert!(world.record(2).certificate.is_none());
    world.must(command([issue.clone()]));
    world.must(command([Change::AskRotate(id(2))]));
    assert_eq!(world.record(2).certificate_state(), CertificateState::Rotate);
    world.must(command([Change::CertificateFailed(id(2))]));
    assert_eq!(world.record(2).certificate_state(), CertificateState::Failed);
    world.must(command([issue]));
    assert_eq!(world.record(2).certificate_state(), CertificateState::Issued);
}

/// E32: the latest certificate may expire before earlier ones.
#[test]
fn block_outlives_the_longest_certificate_by_an_hour() {
    let last = T0.0 + 90 * 24 * HOUR;
    for block_first in [false, true] {
        let mut world = World::founded().with([(2, Role::Worker)]);
        let granted = Some(world.record(2).granted);
        world.must(command([certify(2, certificate(Role::Worker, granted, last))]));
        world.must(command([certify(2, certificate(Role::Worker, granted, T0.0 + HOUR))]));
        let mut remove = vec![block(2, T0), Change::DeleteNode(id(2))];
        if block_first {
            remove.reverse();
        }
        world.must(command(remove));
        let entry = &world.tables.blocklist[&id(2)];
        assert_eq!(entry.expires_at, WallTime(last + HOUR));
        let sweep = |at| command([Change::Unblock(id(2))]).guard(Guard::BlockExpired { node: id(2), at: WallTime(at) });
        world.refused(sweep(last + HOUR - 1));
        world.must(sweep(last + HOUR));
        assert!(world.tables.blocklist.is_empty());
    }
}

#[test]
fn a_block_is_lengthened_and_never_shortened() {
    let mut world = World::founded();
    for (asked, effective) in [(5, 5), (9, 9), (2, 9)] {
        world.must(command([block(2, WallTime(T0.0 + asked))]));
        assert_eq!(world.tables.blocklist[&id(2)].expires_at, WallTime(T0.0 + effective));
    }
}

#[test]
fn unblock_and_block_in_one_command_do_not_shorten() {
    let mut world = World::founded();
    world.must(command([block(2, WallTime(T0.0 + 9))]));
    world.must(command([Change::Unblock(id(2)), block(2, WallTime(T0.0 + 5))]));
    assert_eq!(world.tables.blocklist[&id(2)].expires_at, WallTime(T0.0 + 9));
    world.must(command([Change::Unblock(id(2))]));
    world.must(command([block(2, WallTime(T0.0 + 5))]));
    assert_eq!(world.tables.blocklist[&id(2)].expires_at, WallTime(T0.0 + 5));
}

#[test]
fn a_blocked_node_has_no_record() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    world.refused(command([block(2, T0)]));
    world.must(command([Change::DeleteNode(id(2)), block(2, T0)]));
    let create = command([Change::CreateNode(Box::new(node(2, Role::Worker)))]);
    let until = world.tables.blocklist[&id(2)].expires_at;
    let refused = CommandRefusal::Blocked { node: id(2), until };
    assert_eq!(world.refused(create), refused);
    let both = [Change::CreateNode(Box::new(node(3, Role::Worker))), block(3, T0)];
    world.refused(command(both));
}

#[test]
fn raft_member_node_is_not_deleted() {
    let mut world = World::founded();
    let raft_id = RaftId(1);
    let refusal = world.refused(command([Change::DeleteNode(id(1)), block(1, T0)]));
    assert_eq!(refusal, CommandRefusal::StillMember { node: id(1), raft_id });
}

#[test]
fn token_uses_count_down_and_each_role_has_one_default() {
    let mut world = World::founded();
    let mut twice = token("twice", Role::Worker);
    twice.uses_left = Some(2);
    twice.default = true;
    world.must(command([Change::PutToken(twice)]));
    for _ in 0..2 {
        world.must(command([Change::UseToken("twice".to_owned())]));
    }
    let used_up = CommandRefusal::TokenUsedUp { id: "twice".to_owned() };
    let one_more = command([Change::UseToken("twice".to_owned())]);
    assert_eq!(world.refused(one_more), used_up);

    let mut fresh = token("fresh", Role::Worker);
    fresh.default = true;
    let mut other = token("other", Role::Manager);
    other.default = true;
    world.must(command([Change::PutToken(fresh), Change::PutToken(other)]));
    let default = |role| world.tables.default_token(role).map(|t| t.id.as_str());
    assert_eq!(default(Role::Worker), Some("fresh"));
    assert_eq!(default(Role::Manager), Some("other"));
    assert!(!world.tables.tokens["twice"].default);
}

#[test]
fn events_record_changes_without_secrets() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    world.must(command([Change::PutToken(token("t", Role::Worker)), role(2, Role::Manager), grant(2, Role::Manager)]));
    world.learner(2, 2).unwrap();
    world.promote(2, 2).unwrap();
    world.must(command([labels(2, &[("zone", "a")], &[])]));
    world.must(command([Change::PutUser(user("ann", "a1"))]));
    world.must(command([Change::DeleteUser(name("ann"))]));
    let cluster = ClusterId::from_entropy(7);
    let expected = [
        (EventKind::Node, "- > manager n1".to_owned()),
        (EventKind::Cluster, format!("- > founded default as {cluster}")),
        (EventKind::Node, "- > worker n2".to_owned()),
        (EventKind::Token, "- > worker token t".to_owned()),
        (EventKind::Role, "wanted worker > wanted manager".to_owned()),
        (EventKind::Role, "worker > manager".to_owned()),
        (EventKind::Membership, "none > learner".to_owned()),
        (EventKind::Membership, "learner > voter".to_owned()),
        (EventKind::User, "- > user ann a1".to_owned()),
        (EventKind::User, "user ann a1 > -".to_owned()),
    ];
    assert_eq!(news(&world), expected);
    assert!(!format!("{:?}", world.tables).contains("hush"));
}

#[test]
fn old_events_are_evicted() {
    let mut world = World::founded().with([(2, Role::Worker)]);
    for n in 0..MAX_EVENTS as u64 + 5 {
        let liveness = if n % 2 == 0 { Liveness::Ready } else { Liveness::Down };
        let change = Change::SetLiveness { node: id(2), liveness };
        let at = world.next();
        apply(&mut world.tables, at, &command([change])).unwrap();
    }
    assert_eq!(world.tables.events.len(), MAX_EVENTS);
    let newest = world.tables.events.last().map(|e| e.revision);
    assert_eq!(newest, Some(world.tables.revision));
}
