//! The actor crashes at each of its crash points, and whenever a collaborator has received, done, or answered something.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_kernel::Fuse;
use muster_messages::protocol::{Applied, MeshMsg, ProposeError, RaftMemberMsg, Reply, RoleManagerMsg};
use muster_messages::wire::{MembershipReply, MembershipRequest};
use muster_messages::*;
use muster_role_manager::Msg;
use muster_testkit::{WAIT_LIMIT, at_every_point, at_every_point_twice, insisting_until_known};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::shell::{PATH, Stage};
use crate::world::id;

/// The actions of people and machines: each repeats its request, under one id, until it is answered.
impl Stage {
    fn insists<T: Send + 'static>(
        &self,
        make: impl Fn(Reply<Result<T, ErrorBody>>) -> RoleManagerMsg + Send + Sync + 'static,
    ) -> JoinHandle<T> {
        let roles = self.roles.clone();
        tokio::spawn(async move { insisting_until_known(&roles, |reply| Msg::Protocol(make(reply))).await })
    }

    /// The raft member has applied or refused something.
    fn answer(
        &mut self,
        fuse: &Fuse,
        revision: Revision,
        result: Result<(), CommandRefusal>,
        reply: Reply<Result<Applied, ProposeError>>,
    ) {
        if !self.late_replica {
            self.show();
        }
        self.harness.point(PATH, fuse);
        let _gone = reply.send(result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
        if self.late_replica {
            self.harness.point(PATH, fuse);
            self.show();
        }
    }

    /// One request to the raft member or the mesh. A repeated request is judged again, as by the real ones.
    async fn serve(&mut self, fuse: &Fuse, membership_changes: &mut BTreeMap<&'static str, u32>) {
        tokio::select! {
            msg = self.raft.next("work for the raft member") => {
                self.harness.point(PATH, fuse);
                let at = self.tables.revision.next();
                match msg {
                    RaftMemberMsg::Propose { command, reply, .. } => {
                        let result = muster_store::apply(&mut self.tables, at, &command);
                        self.answer(fuse, at, result, reply);
                    }
                    RaftMemberMsg::ProposeMembership { change, reply, .. } => {
                        let result = muster_store::apply_membership(&mut self.tables, at, &change);
                        if result.is_ok() {
                            *membership_changes.entry(kind(&change.kind)).or_default() += 1;
                        }
                        self.answer(fuse, at, result, reply);
                    }
                    // The first transfer target is not ready.
                    RaftMemberMsg::TransferLeadership { to, reply } => {
                        let offers = membership_changes.entry("leadership offered").or_default();
                        *offers += 1;
                        let transfer_result = if *offers == 1 { Err(ProposeError::TimedOut) } else { Ok(to.expect("it names one")) };
                        let _gone = reply.send(transfer_result);
                    }
                    RaftMemberMsg::CheckReachable { members, reply, .. } => drop(reply.send(Ok(members))),
                    other => panic!("no other message is expected: {}", muster_messages::protocol::Named::name(&other)),
                }
                self.harness.point(PATH, fuse);
            }
            msg = self.mesh.next("work for the mesh") => {
                self.harness.point(PATH, fuse);
                let MeshMsg::Probe { reply, .. } = msg;
                let _gone = reply.send(Ok(()));
                self.harness.point(PATH, fuse);
            }
            // As on a leader: a change in the answering voters is reported, too.
            () = sleep(Duration::from_millis(50)) => self.show(),
        }
        let stale = |r: &NodeRecord| r.certificate.as_ref().is_some_and(|c| c.granted != Some(r.granted));
        let due: Vec<u64> = (1..=5).filter(|n| self.tables.nodes.get(&id(*n)).is_some_and(|r| stale(r))).collect();
        due.into_iter().for_each(|n| self.certify(n));
    }
}

fn kind(change: &MembershipChangeKind) -> &'static str {
    match change {
        MembershipChangeKind::AddLearner { .. } => "learner added",
        MembershipChangeKind::PromoteLearner { .. } => "learner promoted",
        MembershipChangeKind::Remove { .. } => "member removed",
        MembershipChangeKind::SetAddress { .. } => "address set",
    }
}

/// One is promoted, one demoted, one removed, all at once.
async fn three_requests(fuse: Fuse, late_replica: bool) {
    let mut stage = Stage::set(3, 2).await;
    stage.late_replica = late_replica;
    stage.harness.crash_at(PATH, &fuse);
    let by = || Principal::Operator;
    let promoted = stage.insists(move |reply| {
        let (node, role, request) = (id(4), Role::Manager, RequestId(1));
        RoleManagerMsg::SetRole { node, role, by: by(), request, reply }
    });
    let demoted = stage.insists(move |reply| {
        let (node, role, request) = (id(3), Role::Worker, RequestId(2));
        RoleManagerMsg::SetRole { node, role, by: by(), request, reply }
    });
    let removed = stage.insists(move |reply| {
        let (node, request) = (id(5), RequestId(3));
        RoleManagerMsg::Remove { node, force: true, by: by(), request, reply }
    });
    let mut membership_request = None;
    let mut membership_changes = BTreeMap::new();
    let deadline = Instant::now() + WAIT_LIMIT;
    let settled = |stage: &Stage| {
        let voters: Vec<NodeId> = stage.tables.members.values().filter(|m| m.voter).map(|m| m.node).collect();
        voters == [id(1), id(2), id(4)] && stage.view.borrow().pending.is_empty()
    };
    while !(promoted.is_finished() && demoted.is_finished() && removed.is_finished() && settled(&stage)) {
        assert!(Instant::now() < deadline, "never settled: {:?} {:?}", stage.tables.members, stage.view.borrow());
        stage.serve(&fuse, &mut membership_changes).await;
        // The promoted node asks for membership once its certificate says manager.
        if membership_request.is_none() && stage.tables.nodes[&id(4)].role == Role::Manager {
            membership_request = Some(stage.insists(|reply| {
                let (advertise, feature_level) = ("10.0.0.4:4400".to_owned(), FEATURE_LEVEL);
                let request = MembershipRequest { advertise, held: None, data_lost: None, feature_level };
                RoleManagerMsg::RequestMembership { node: id(4), request, reply }
            }));
        }
    }
    let membership_reply = membership_request.expect("it has asked").await.unwrap();
    assert!(matches!(membership_reply, MembershipReply::IsMember { raft_id: RaftId(4) }), "{membership_reply:?}");
    assert!(stage.tables.blocklist.contains_key(&id(5)) && !stage.tables.nodes.contains_key(&id(5)));
    assert_eq!(stage.tables.nodes[&id(3)].role, Role::Worker);
    let once = BTreeMap::from([("learner added", 1), ("learner promoted", 1), ("member removed", 1)]);
    assert_eq!(membership_changes, once, "each membership change has happened once");
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crash_anywhere_completes_requests_and_repeats_no_change() {
    for late_replica in [false, true] {
        let points = at_every_point(async |fuse| three_requests(fuse, late_replica).await).await;
        assert!(points > 80, "there were {points} crash points");
    }
}

#[tokio::test(start_paused = true)]
async fn crash_during_recovery_completes_requests_as_well() {
    for later in 0..4 {
        at_every_point_twice(later, async |fuse| three_requests(fuse, false).await).await;
    }
}

/// The leader's desired role is worker: it may not leave before another manager leads.
async fn the_leader_is_demoted(fuse: Fuse) {
    let mut stage = Stage::set(3, 0).await;
    stage.harness.crash_at(PATH, &fuse);
    let demoted = stage.insists(|reply| {
        let (node, role, request) = (id(1), Role::Worker, RequestId(1));
        RoleManagerMsg::SetRole { node, role, by: Principal::Operator, request, reply }
    });
    let mut membership_changes = BTreeMap::new();
    let deadline = Instant::now() + WAIT_LIMIT;
    while !(demoted.is_finished() && membership_changes.get("leadership offered").is_some_and(|offers| *offers > 1)) {
        assert!(Instant::now() < deadline, "never offered again: {membership_changes:?} {:?}", stage.view.borrow());
        stage.serve(&fuse, &mut membership_changes).await;
    }
    assert_eq!(stage.tables.nodes[&id(1)].desired_role, Role::Worker);
    assert_eq!(
        membership_changes.keys().collect::<Vec<_>>(),
        [&"leadership offered"],
        "it stays a member while it leads"
    );
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crash_anywhere_leaving_leader_offers_until_taken() {
    let points = at_every_point(the_leader_is_demoted).await;
    assert!(points > 20, "there were {points} crash points");
}
