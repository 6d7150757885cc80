//! Each violated invariant is detected.

use std::sync::Arc;

use muster_messages::*;
use muster_store::bugs::{self, BugInjection};
use muster_store::invariants::*;

use crate::world::*;

fn breaks(name: &str, by: impl FnOnce(&mut Tables)) {
    let mut tables = World::founded().with([(2, Role::Worker)]).tables;
    check(&tables).unwrap();
    by(&mut tables);
    assert_eq!(check(&tables).unwrap_err().name, name);
}

#[test]
fn every_violated_invariant_is_reported() {
    let edit = |tables: &mut Tables, write: fn(&mut NodeRecord)| {
        if let Some(record) = tables.nodes.get_mut(&id(2)) {
            write(Arc::make_mut(record));
        }
    };
    breaks(MEMBER_1, |t| drop(t.nodes.remove(&id(1))));
    breaks(MEMBER_1, |t| {
        let twin = Member { raft_id: RaftId(0), ..t.members[&RaftId(1)].clone() };
        t.members.insert(RaftId(0), twin);
    });
    breaks(ROLE_1, |t| {
        if let Some(founder) = t.nodes.get_mut(&id(1)) {
            Arc::make_mut(founder).role = Role::Worker;
        }
    });
    breaks(VOTER_1, |t| t.members.clear());
    breaks(RAFTID_1, |t| {
        t.removed_raft_ids.insert(RaftId(1));
    });
    breaks(RAFTID_1, |t| t.next_raft_id = RaftId(1));
    breaks(BLOCK_1, |t| {
        let entry = Blocked { node: id(2), by: Principal::Operator, blocked_at: T0, expires_at: T0 };
        t.blocklist.insert(id(2), entry);
    });
    breaks(NAME_1, |t| edit(t, |n| n.name = name("n1")));
    breaks(REVISION_1, |t| edit(t, |n| n.revision = Revision(99)));
    breaks(CERT_1, |t| {
        edit(t, |n| {
            n.certificate = Some(certificate(Role::Manager, Some(n.granted), 0));
        });
    });
    breaks(BLOCK_2, |t| {
        edit(t, |n| {
            n.certificate = Some(certificate(Role::Worker, Some(n.granted), 9));
        });
    });
    breaks(BOUND_1, |t| t.outcome_order.push_back(RequestId(1)));
}

#[test]
fn steps_backwards_are_reported() {
    let mut world = World::founded().with([(2, Role::Manager)]);
    world.learner(2, 2).unwrap();
    world.remove_member(2).unwrap();
    world.must(command([block(9, WallTime(T0.0 + HOUR))]));
    let before = world.tables;
    let breaks = |name: &str, by: &dyn Fn(&mut Tables)| {
        let mut after = before.clone();
        check_step(&before, &after).unwrap();
        by(&mut after);
        assert_eq!(check_step(&before, &after).unwrap_err().name, name);
    };
    breaks(REVISION_1, &|t| t.revision = Revision(1));
    breaks(RAFTID_1, &|t| t.next_raft_id = RaftId(2));
    breaks(RAFTID_1, &|t| t.removed_raft_ids.clear());
    breaks(RAFTID_1, &|t| t.members.clear());
    breaks(BLOCK_2, &|t| {
        if let Some(entry) = t.blocklist.get_mut(&id(9)) {
            entry.expires_at = T0;
        }
    });
}

/// Each injected bug makes possible exactly what its invariant rules out.
#[test]
fn every_injected_bug_breaks_its_invariant() {
    let violated_by = |switch: BugInjection| {
        bugs::set(Some(switch));
        let mut world = World::founded().with([(2, Role::Manager), (3, Role::Worker)]);
        let mut broken = Ok(());
        let mut check_state = |world: &World| {
            broken = broken.clone().and_then(|()| check(&world.tables));
        };
        world.learner(2, 2).unwrap();
        let _ = world.apply(command([Change::RecordCertificate {
            node: id(3),
            certificate: certificate(Role::Manager, Some(world.record(3).granted), 9),
        }]));
        check_state(&world);
        let _ = world.apply(command([Change::DeleteNode(id(2))]));
        check_state(&world);
        world.remove_member(2).unwrap();
        check_state(&world);
        bugs::set(None);
        broken.unwrap_err().name
    };
    assert_eq!(violated_by(BugInjection::RecordAnyCertificate), CERT_1);
    assert_eq!(violated_by(BugInjection::SkipNodeGuard), MEMBER_1);
    assert_eq!(violated_by(BugInjection::ReuseRaftId), RAFTID_1);
}
