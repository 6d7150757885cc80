//! The actor itself, between a raft member and a mesh that are probes: mailboxes without behaviour.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Address, AskError, Slot, Spec};
use muster_messages::protocol::{
    Applied, MeshMsg, ProposeError, RaftMemberMsg, Reply, RoleManagerMsg, RoleRequestAccepted,
};
use muster_messages::wire::{MembershipReply, MembershipRequest};
use muster_messages::*;
use muster_role_manager::{Config, Msg, Ports, RoleManagerShell};
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT};
use tokio::sync::watch;

use crate::world::{World, id};

pub const PATH: &str = "node/role-manager";

pub struct Stage {
    pub tables: Tables,
    publish: watch::Sender<Arc<Replica>>,
    pub raft: Probe<RaftMemberMsg>,
    pub mesh: Probe<MeshMsg>,
    pub view: watch::Receiver<Arc<RoleView>>,
    pub roles: Address<Msg>,
    pub harness: ActorHarness,
    /// Its replica may follow an answer; else it precedes it.
    pub late_replica: bool,
}

impl Stage {
    pub async fn set(managers: u64, workers: u64) -> Self {
        let tables = World::new(managers, workers).tables;
        let (publish, replica) = watch::channel(Arc::default());
        let (view, seen) = watch::channel(Arc::default());
        let (view, slot) = (Arc::new(view), Slot::new());
        let harness = ActorHarness::start().await;
        let (raft, mesh, roles) = (harness.probe("raft-member"), harness.probe("mesh"), Address::new(64));
        let ports = Ports { raft: raft.recipient(), mesh: mesh.recipient(), replica, view };
        let stage = Self { tables, publish, raft, mesh, view: seen, roles, harness, late_replica: false };
        stage.show();
        stage.harness.start_actor(Spec::actor("role-manager", stage.roles.clone(), move || {
            Ok(RoleManagerShell::new(id(1), Config::default(), ports.clone(), slot.clone()))
        }));
        stage.harness.healthy(PATH, 1).await;
        stage
    }
    /// Publishes the tables, with every voter answering.
    pub fn show(&self) {
        let at = self.tables.revision;
        let progress = |m: &Member| PeerProgress {
            raft_id: m.raft_id,
            node: Some(m.node),
            voter: m.voter,
            matched: at.0,
            acked_ago: Some(Duration::ZERO),
            in_snapshot: false,
            problem: None,
        };
        let raft = RaftStatus {
            raft_id: Some(RaftId(1)),
            role: RaftRole::Leader,
            term: Term(3),
            leader: Some(RaftId(1)),
            leader_node: Some(id(1)),
            commit: at,
            applied: at,
            leading: true,
            progress: self.tables.members.values().map(progress).collect(),
            silent: Vec::new(),
        };
        self.publish.send_replace(Arc::new(Replica { tables: self.tables.clone(), raft }));
    }
    /// Applies the next command and answers it.
    async fn apply_command(&mut self) -> Command {
        let (command, reply) = self.expect_command("a command").await;
        let at = self.tables.revision.next();
        let result = muster_store::apply(&mut self.tables, at, &command);
        self.show();
        let _gone = reply.send(result.map(|()| Applied { revision: at }).map_err(ProposeError::Refused));
        *command
    }
    /// Answers that every member responds.
    async fn answer_reachability_check(&mut self) {
        let pick = |msg| match msg {
            RaftMemberMsg::CheckReachable { members, reply, .. } => Some((members, reply)),
            _ => None,
        };
        let (members, reply) = self.raft.expect("a reachability check", pick).await;
        let _gone = reply.send(Ok(members));
    }
    async fn expect_command(&mut self, what: &str) -> (Box<Command>, Reply<Result<Applied, ProposeError>>) {
        let pick = |msg| match msg {
            RaftMemberMsg::Propose { command, reply, .. } => Some((command, reply)),
            _ => None,
        };
        self.raft.expect(what, pick).await
    }
    async fn expect_membership_change(&mut self) -> (MembershipChange, Reply<Result<Applied, ProposeError>>) {
        let pick = |msg| match msg {
            RaftMemberMsg::ProposeMembership { change, confirm_within_ms, reply } => {
                assert!(confirm_within_ms.is_some(), "ROLE-3");
                Some((*change, reply))
            }
            _ => None,
        };
        self.raft.expect("a membership change", pick).await
    }
    fn apply_membership(&mut self, change: &MembershipChange) -> Applied {
        let at = self.tables.revision.next();
        muster_store::apply_membership(&mut self.tables, at, change).unwrap();
        self.show();
        Applied { revision: at }
    }
    pub fn certify(&mut self, n: u64) {
        let record = self.tables.nodes[&id(n)].clone();
        let certificate = CertificateRecord {
            role: record.role,
            serial: "ff".to_owned(),
            granted: Some(record.granted),
            not_after: record.last_not_after,
            state: CertificateState::Issued,
        };
        let change = Change::RecordCertificate { node: record.id, certificate };
        let command = Command::idempotent(WallTime(1), Principal::Operator, "test").change(change);
        let at = self.tables.revision.next();
        muster_store::apply(&mut self.tables, at, &command).unwrap();
        self.show();
    }
    fn set_role(&self, n: u64, role: Role, request: u128) -> impl Future<Output = RequestResult> + 'static {
        let roles = self.roles.clone();
        let (node, by, request) = (id(n), Principal::Operator, RequestId(request));
        async move { roles.ask(WAIT_LIMIT, |reply| RoleManagerMsg::SetRole { node, role, by, request, reply }.into()).await }
    }
    async fn until_view(&mut self, what: &str, holds: impl Fn(&RoleView) -> bool) {
        let seen = tokio::time::timeout(WAIT_LIMIT, self.view.wait_for(|v| holds(v))).await;
        let _view = seen.unwrap_or_else(|_| panic!("condition never held: {what}")).unwrap();
    }
}

type RequestResult = Result<Result<RoleRequestAccepted, ErrorBody>, AskError>;

#[tokio::test(start_paused = true)]
async fn demotion_runs_from_request_to_worker() {
    let mut stage = Stage::set(3, 0).await;
    let ask = tokio::spawn(stage.set_role(3, Role::Worker, 9));
    stage.answer_reachability_check().await;
    let command = stage.apply_command().await;
    assert_eq!((command.request, command.reason.as_str()), (RequestId(9), "demote"));
    assert_eq!(ask.await.unwrap(), Ok(Ok(RoleRequestAccepted { changed: true })));
    let view = stage.view.borrow().clone();
    assert_eq!(view.pending[0].wants, Wants::Worker, "published before it is answered");
    let (change, reply) = stage.expect_membership_change().await;
    let applied = stage.apply_membership(&change);
    let _gone = reply.send(Ok(applied));
    assert_eq!(stage.apply_command().await.reason, "demotion");
    stage
        .until_view("waits for its certificate", |v| {
            v.pending.iter().any(|p| p.reason == WaitReason::WaitingForCertificate)
        })
        .await;
    stage.certify(3);
    stage.until_view("settled", |v| v.pending.is_empty()).await;
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_with_work_pending_loses_neither_queue() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut stage = Stage::set(4, 1).await;
        let ask = tokio::spawn(stage.set_role(4, Role::Worker, 9));
        stage.answer_reachability_check().await;
        stage.apply_command().await;
        assert!(ask.await.unwrap().is_ok());
        let roles = stage.roles.clone();
        let removal = tokio::spawn(async move {
            let make = |reply| {
                let (node, by, request) = (id(5), Principal::Operator, RequestId(10));
                RoleManagerMsg::Remove { node, force: true, by, request, reply }.into()
            };
            roles.ask(WAIT_LIMIT, make).await
        });
        let (change, first) = stage.expect_membership_change().await;
        stage.apply_command().await;
        let (deletion, _open) = stage.expect_command("the deletion").await;
        let actor = stage.harness.tree().inspect(PATH).await.unwrap();
        assert_eq!(actor.kind, "RoleManager");
        assert_eq!(actor.view["pending_reconciliation"][0]["reason"], "removing_seat", "{}", actor.view);
        assert_eq!(actor.view["pending_removal"][0], id(5).to_string());

        stage.harness.crash(PATH, how);
        assert_eq!(removal.await.unwrap(), Err(AskError::Closed), "the caller sees a closed port");
        stage.harness.healthy(PATH, 2).await;
        let view = stage.harness.tree().inspect(PATH).await.unwrap().view;
        assert_eq!(view["pending_reconciliation"][0]["node"], id(4).to_string());
        assert_eq!(view["pending_removal"][0], id(5).to_string());

        // The write is repeated under its old request id. The membership change, still in flight, is proposed again.
        let mut again = (None, None);
        while again.0.is_none() || again.1.is_none() {
            match stage.raft.next("both steps").await {
                RaftMemberMsg::Propose { command, reply, .. } => again.0 = Some((command, reply)),
                RaftMemberMsg::ProposeMembership { change, reply, .. } => again.1 = Some((change, reply)),
                _ => panic!("no other message is expected"),
            }
        }
        let ((command, reply), (repeated, busy)) = (again.0.unwrap(), again.1.unwrap());
        assert_eq!((command.request, &repeated.kind), (deletion.request, &change.kind));
        let _gone = busy.send(Err(ProposeError::MembershipBusy));
        let at = stage.tables.revision.next();
        muster_store::apply(&mut stage.tables, at, &command).unwrap();
        stage.show();
        let _gone = reply.send(Ok(Applied { revision: at }));
        let applied = stage.apply_membership(&change);
        let _gone = first.send(Ok(applied));
        assert_eq!(stage.apply_command().await.reason, "demotion");
        stage.certify(4);
        stage.until_view("settled", |v| v.pending.is_empty()).await;
        assert!(stage.tables.blocklist.contains_key(&id(5)));
        stage.harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn membership_is_granted_after_the_dial_back() {
    let mut stage = Stage::set(3, 1).await;
    let ask = tokio::spawn(stage.set_role(4, Role::Manager, 9));
    assert_eq!(stage.apply_command().await.reason, "promote");
    assert!(ask.await.unwrap().is_ok());
    stage.certify(4);
    let roles = stage.roles.clone();
    let open_request = tokio::spawn(async move {
        let request = MembershipRequest {
            advertise: "10.0.0.4:4400".to_owned(),
            held: None,
            data_lost: None,
            feature_level: FEATURE_LEVEL,
        };
        roles.ask(WAIT_LIMIT, |reply| RoleManagerMsg::RequestMembership { node: id(4), request, reply }.into()).await
    });
    // The request comes within the delay of the early dial, at the address of the record: there is none.
    let MeshMsg::Probe { addr, expect, reply } = stage.mesh.next("a dial-back").await;
    assert_eq!((addr.as_str(), expect), ("10.0.0.4:4400", id(4)));
    let _gone = reply.send(Ok(()));
    let (change, reply) = stage.expect_membership_change().await;
    assert!(matches!(&change.kind, MembershipChangeKind::AddLearner { addr, .. } if addr == "10.0.0.4:4400"));
    let applied = stage.apply_membership(&change);
    let _gone = reply.send(Ok(applied));
    assert_eq!(open_request.await.unwrap(), Ok(Ok(MembershipReply::IsMember { raft_id: RaftId(4) })));
    stage.show();
    let (change, reply) = stage.expect_membership_change().await;
    assert!(matches!(change.kind, MembershipChangeKind::PromoteLearner { .. }));
    let applied = stage.apply_membership(&change);
    let _gone = reply.send(Ok(applied));
    stage.until_view("settled", |v| v.pending.is_empty()).await;
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn lost_raft_member_leaves_the_outcome_unknown() {
    let mut stage = Stage::set(3, 0).await;
    let ask = tokio::spawn(stage.set_role(3, Role::Worker, 9));
    drop(stage.raft.next("a reachability check without an answer, which is repeated").await);
    stage.answer_reachability_check().await;
    drop(stage.raft.next("the request").await);
    let error = ask.await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownOutcome);
    // The retry carries the same request id.
    let ask = tokio::spawn(stage.set_role(3, Role::Worker, 9));
    stage.answer_reachability_check().await;
    assert_eq!(stage.apply_command().await.request, RequestId(9));
    assert_eq!(ask.await.unwrap(), Ok(Ok(RoleRequestAccepted { changed: true })));
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn published_view_ends_with_the_role_manager() {
    let mut stage = Stage::set(3, 0).await;
    let ask = tokio::spawn(stage.set_role(3, Role::Worker, 9));
    stage.answer_reachability_check().await;
    stage.apply_command().await;
    assert!(ask.await.unwrap().is_ok());
    assert!(!stage.view.borrow().pending.is_empty());
    stage.harness.children().stop_and_wait("role-manager").await;
    assert!(stage.view.borrow().pending.is_empty());
    stage.harness.finish().await;
}
