//! The actor crashes everywhere: at each of its crash points, and whenever a collaborator has heard of, done, or answered something.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_kernel::Fuse;
use muster_messages::protocol::{Applied, MeshMsg, ProposeError, RaftMemberMsg, Reply, RoleManagerMsg};
use muster_messages::wire::{SeatReply, SeatRequest};
use muster_messages::*;
use muster_role_manager::Msg;
use muster_tests::{PATIENCE, at_every_point, at_every_point_twice, insisting};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::shell::{PATH, Stage};
use crate::world::id;

/// What people and machines do: each repeats its request, under one id, until it is answered.
impl Stage {
    fn insists<T: Send + 'static>(
        &self,
        make: impl Fn(Reply<Result<T, ErrorBody>>) -> RoleManagerMsg + Send + Sync + 'static,
    ) -> JoinHandle<T> {
        let roles = self.roles.clone();
        tokio::spawn(async move {
            loop {
                match insisting(&roles, |reply| Msg::Protocol(make(reply))).await {
                    Ok(answer) => return answer,
                    Err(error) => {
                        let unknown = error.code == ErrorCode::UnknownOutcome;
                        assert!(unknown || error.retry_after_ms.is_some(), "it may be asked again: {error}");
                    }
                }
                sleep(Duration::from_millis(10)).await;
            }
        })
    }

    /// The raft member has applied something, or refused it.
    fn answer(
        &mut self,
        fuse: &Fuse,
        revision: Revision,
        result: Result<(), CommandRefusal>,
        reply: Reply<Result<Applied, ProposeError>>,
    ) {
        if !self.copies_late {
            self.show();
        }
        self.universe.point(PATH, fuse);
        let _gone = reply.send(result.map(|()| Applied { revision }).map_err(ProposeError::Refused));
        if self.copies_late {
            self.universe.point(PATH, fuse);
            self.show();
        }
    }

    /// One thing that the raft member or the mesh has been asked for. Whatever is asked twice is judged twice, as by the
    /// real ones.
    async fn serve(&mut self, fuse: &Fuse, seats: &mut BTreeMap<&'static str, u32>) {
        tokio::select! {
            msg = self.raft.next("work for the raft member") => {
                self.universe.point(PATH, fuse);
                let at = self.tables.revision.next();
                match msg {
                    RaftMemberMsg::Propose { command, reply, .. } => {
                        let result = muster_store::apply(&mut self.tables, at, &command);
                        self.answer(fuse, at, result, reply);
                    }
                    RaftMemberMsg::ProposeSeat { change, reply } => {
                        let result = muster_store::apply_seat(&mut self.tables, at, &change);
                        if result.is_ok() {
                            *seats.entry(kind(&change.kind)).or_default() += 1;
                        }
                        self.answer(fuse, at, result, reply);
                    }
                    // The first heir is not ready.
                    RaftMemberMsg::TransferLeadership { to, reply } => {
                        let offers = seats.entry("leadership offered").or_default();
                        *offers += 1;
                        let heir = if *offers == 1 { Err(ProposeError::TimedOut) } else { Ok(to.expect("it names one")) };
                        let _gone = reply.send(heir);
                    }
                    RaftMemberMsg::CheckReachable { members, reply, .. } => drop(reply.send(Ok(members))),
                    other => panic!("nothing else is wanted: {}", muster_messages::protocol::Named::name(&other)),
                }
                self.universe.point(PATH, fuse);
            }
            msg = self.mesh.next("work for the mesh") => {
                self.universe.point(PATH, fuse);
                if let MeshMsg::Probe { reply, .. } = msg {
                    let _gone = reply.send(Ok(()));
                }
                self.universe.point(PATH, fuse);
            }
            // As a leader does: who has answered is news, too.
            () = sleep(Duration::from_millis(50)) => self.show(),
        }
        let stale = |r: &NodeRecord| r.certificate.as_ref().is_some_and(|c| c.granted != Some(r.granted));
        let due: Vec<u64> = (1..=5).filter(|n| self.tables.nodes.get(&id(*n)).is_some_and(|r| stale(r))).collect();
        due.into_iter().for_each(|n| self.certify(n));
    }
}

fn kind(change: &SeatChangeKind) -> &'static str {
    match change {
        SeatChangeKind::AddLearner { .. } => "learner added",
        SeatChangeKind::PromoteLearner { .. } => "learner promoted",
        SeatChangeKind::Remove { .. } => "seat removed",
        SeatChangeKind::SetAddress { .. } => "address set",
    }
}

/// One is promoted, one demoted, one removed, all at once.
async fn three_wishes(fuse: Fuse, copies_late: bool) {
    let mut stage = Stage::set(3, 2).await;
    stage.copies_late = copies_late;
    stage.universe.crash_at(PATH, &fuse);
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
    let mut seated = None;
    let mut seats = BTreeMap::new();
    let deadline = Instant::now() + PATIENCE;
    let settled = |stage: &Stage| {
        let voters: Vec<NodeId> = stage.tables.members.values().filter(|m| m.voter).map(|m| m.node).collect();
        voters == [id(1), id(2), id(4)] && stage.view.borrow().pending.is_empty()
    };
    while !(promoted.is_finished() && demoted.is_finished() && removed.is_finished() && settled(&stage)) {
        assert!(Instant::now() < deadline, "never settled: {:?} {:?}", stage.tables.members, stage.view.borrow());
        stage.serve(&fuse, &mut seats).await;
        // The promoted one asks for its seat once it is a manager by its certificate.
        if seated.is_none() && stage.tables.nodes[&id(4)].role == Role::Manager {
            seated = Some(stage.insists(|reply| {
                let (advertise, feature_level) = ("10.0.0.4:4400".to_owned(), FEATURE_LEVEL);
                let request = SeatRequest { advertise, held: None, data_lost: None, feature_level };
                RoleManagerMsg::RequestSeat { node: id(4), request, reply }
            }));
        }
    }
    let seat = seated.expect("it has asked").await.unwrap();
    assert!(matches!(seat, SeatReply::Seated { raft_id: RaftId(4) }), "{seat:?}");
    assert!(stage.tables.blocklist.contains_key(&id(5)) && !stage.tables.nodes.contains_key(&id(5)));
    assert_eq!(stage.tables.nodes[&id(3)].role, Role::Worker);
    let once = BTreeMap::from([("learner added", 1), ("learner promoted", 1), ("seat removed", 1)]);
    assert_eq!(seats, once, "each change of the membership has happened once");
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_it_crashes_every_wish_is_fulfilled_and_no_seat_changes_twice() {
    for copies_late in [false, true] {
        let points = at_every_point(async |fuse| three_wishes(fuse, copies_late).await).await;
        assert!(points > 100, "there were {points} crash points");
    }
}

#[tokio::test(start_paused = true)]
async fn wherever_it_crashes_while_it_recovers_from_a_crash_the_same_holds() {
    for later in 0..4 {
        at_every_point_twice(later, async |fuse| three_wishes(fuse, false).await).await;
    }
}

/// The leader itself is to be a worker: it may not go before somebody else leads.
async fn the_leader_is_demoted(fuse: Fuse) {
    let mut stage = Stage::set(3, 0).await;
    stage.universe.crash_at(PATH, &fuse);
    let demoted = stage.insists(|reply| {
        let (node, role, request) = (id(1), Role::Worker, RequestId(1));
        RoleManagerMsg::SetRole { node, role, by: Principal::Operator, request, reply }
    });
    let mut seats = BTreeMap::new();
    let deadline = Instant::now() + PATIENCE;
    while !(demoted.is_finished() && seats.get("leadership offered").is_some_and(|offers| *offers > 1)) {
        assert!(Instant::now() < deadline, "never offered again: {seats:?} {:?}", stage.view.borrow());
        stage.serve(&fuse, &mut seats).await;
    }
    assert_eq!(stage.tables.nodes[&id(1)].desired_role, Role::Worker);
    assert_eq!(seats.keys().collect::<Vec<_>>(), [&"leadership offered"], "its seat stays while it leads");
    stage.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wherever_it_crashes_a_leader_that_is_to_go_offers_its_office_until_somebody_takes_it() {
    let points = at_every_point(the_leader_is_demoted).await;
    assert!(points > 30, "there were {points} crash points");
}
