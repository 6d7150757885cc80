use muster_kernel::{Address, Spec};
use muster_messages::protocol::Reply;
use muster_messages::wire::{DataLoss, MembershipRequest};
use muster_messages::{ActorNode, CrashHow, ErrorCode, WaitReason};
use muster_pki::IdentityStore;
use muster_testkit::{ActorHarness, Idle, Probe, answered, at_every_point, eventually};
use tempfile::TempDir;

use super::*;

type Asked = (MembershipRequest, Reply<Result<MembershipReply, ErrorBody>>);

struct World {
    harness: ActorHarness,
    agent: Probe<AgentMsg>,
    replica: Arc<watch::Sender<Arc<Replica>>>,
    incompatible: Arc<watch::Sender<Option<Incompatible>>>,
    ports: MembershipPorts,
    over: Probe<String>,
    _dir: TempDir,
}

const MEMBERSHIP_PATH: &str = "node/membership";

impl World {
    /// A manager that found its data in this state, and whose Raft member starts with this id.
    async fn new(data: RaftData, holds: Option<u64>) -> Self {
        let harness = ActorHarness::start().await;
        let dir = tempfile::tempdir().unwrap();
        let raft_dir = dir.path().join("raft");
        std::fs::create_dir(&raft_dir).unwrap();
        let (agent, over) = (harness.probe("agent"), Probe::showing("over", String::clone));
        let replica = Arc::new(watch::Sender::new(Arc::new(local_replica(holds, true))));
        let incompatible = Arc::new(watch::Sender::new(None));
        let end = over.recipient();
        let ports = MembershipPorts {
            agent: agent.recipient(),
            replica: replica.subscribe(),
            incompatible: incompatible.subscribe(),
            group: harness.children().clone(),
            raft_dir: raft_dir.clone(),
            memory: NodeMemory::new(IdentityStore::open(dir.path()).unwrap()),
            data: Arc::new(Mutex::new(data)),
            trouble: Arc::new(watch::Sender::new(None)),
            advertise: "10.0.0.1:4400".to_owned(),
            feature_level: 2,
            report_incompatible: Arc::new(move |why| end.tell(why.to_owned()).unwrap()),
        };
        // Like the real one: on a mark it restarts empty, and it follows the leader.
        let shows = Arc::clone(&replica);
        harness.start_actor(Spec::actor("raft-member", Address::new(1), move || {
            let mark = raft_dir.join("wipe");
            if mark.exists() {
                std::fs::remove_file(mark).unwrap();
                shows.send_replace(Arc::new(local_replica(None, true)));
            }
            Ok(Idle)
        }));
        harness.healthy("node/raft-member", 1).await;
        let made = ports.clone();
        harness.start_actor(
            Spec::actor("membership", Address::new(64), move || Ok(MembershipAgent::new(made.clone()))).contained(),
        );
        harness.healthy(MEMBERSHIP_PATH, 1).await;
        Self { harness, agent, replica, incompatible, ports, over, _dir: dir }
    }
    async fn asked(&mut self) -> Asked {
        self.agent
            .expect("a membership request", |msg| match msg {
                AgentMsg::RequestMembership { request, reply } => Some((request, reply)),
                AgentMsg::ReportManager { .. } | AgentMsg::RefusedByPeer { .. } | AgentMsg::SignWorkload { .. } => None,
            })
            .await
    }
    /// Answers the next request and returns it.
    async fn answer(&mut self, with: Result<MembershipReply, ErrorBody>) -> MembershipRequest {
        let (request, reply) = self.asked().await;
        reply.send(with).unwrap();
        request
    }
    fn member_holds(&self, member_id: Option<u64>) {
        self.replica.send_replace(Arc::new(local_replica(member_id, true)));
    }
    async fn waits_with(&self, what: &str) -> ActorNode {
        let text = |actor: &ActorNode| actor.view["waiting"].as_str().is_some_and(|text| text.contains(what));
        self.harness.until(MEMBERSHIP_PATH, what, text).await
    }
    fn data(&self) -> RaftData {
        self.ports.data.lock().unwrap().clone()
    }
    /// It is settled: for an hour it requests nothing.
    async fn settles(mut self) {
        self.agent.expect_none(Duration::from_secs(3600)).await;
        self.harness.finish().await;
    }
}

fn local_replica(holds: Option<u64>, led: bool) -> Replica {
    let mut local_replica = Replica::default();
    local_replica.raft.raft_id = holds.map(RaftId);
    local_replica.raft.leader = led.then_some(RaftId(99));
    local_replica
}
fn assigned(member_id: u64) -> Result<MembershipReply, ErrorBody> {
    Ok(MembershipReply::IsMember { raft_id: RaftId(member_id) })
}
fn unreachable() -> Result<MembershipReply, ErrorBody> {
    Err(ErrorBody::new(ErrorCode::Unreachable, "no session"))
}

#[tokio::test(start_paused = true)]
async fn new_manager_requests_membership_until_it_is_member() {
    let mut world = World::new(RaftData::None, None).await;
    let first = world.answer(unreachable()).await;
    assert_eq!((first.held, first.data_lost, first.advertise.as_str()), (None, None, "10.0.0.1:4400"));
    world.waits_with("cannot request Raft membership yet").await;
    let (reason, message) = (WaitReason::QuorumAtRisk, "n2 has not answered for 4 s".to_owned());
    world.answer(Ok(MembershipReply::Wait { reason, message, retry_after_ms: 400 })).await;
    world.waits_with("n2 has not answered for 4 s").await;
    world.answer(assigned(7)).await;
    // The leader removes a silent learner: until it has contacted this one, the membership may be lost again.
    let (_, reply) = world.asked().await;
    world.member_holds(Some(7));
    reply.send(assigned(7)).unwrap();
    world.waits_with("this manager is Raft member 7").await;
    let both = |actor: &ActorNode| {
        let member_id = |field: &str| actor.view[field].as_u64();
        (member_id("holds"), member_id("assigned")) == (Some(7), Some(7))
    };
    world.harness.until(MEMBERSHIP_PATH, "its member has that id", both).await;
    assert_eq!(world.data(), RaftData::Present);
    let memory = world.ports.memory.clone();
    eventually("it records its member id", || memory.load().unwrap().held_member_id == Some(RaftId(7))).await;
    world.settles().await;
}

/// E41. The operator of an unreachable manager works at this machine.
#[tokio::test(start_paused = true)]
async fn failed_dial_back_shows_in_own_status_until_reached() {
    let mut world = World::new(RaftData::None, None).await;
    let trouble = Arc::clone(&world.ports.trouble);
    let wait =
        |reason, message: &str| Ok(MembershipReply::Wait { reason, message: message.to_owned(), retry_after_ms: 100 });
    world.answer(wait(WaitReason::DialBackFailed, "n2 could not be reached at 10.0.0.1:4400")).await;
    let expected = Some(Trouble::DialBackFailed("n2 could not be reached at 10.0.0.1:4400".to_owned()));
    eventually("its status says so", || *trouble.borrow() == expected).await;
    // Whatever else it waits for meanwhile: no manager has reached it yet.
    world.answer(wait(WaitReason::MembershipBusy, "n3 is being added")).await;
    world.waits_with("n3 is being added").await;
    assert_eq!(*trouble.borrow(), expected);
    world.member_holds(Some(7));
    world.answer(assigned(7)).await;
    eventually("it was found", || trouble.borrow().is_none()).await;
    world.settles().await;
}

#[tokio::test(start_paused = true)]
async fn lost_data_is_reported_until_the_new_member_has_data() {
    let mut world = World::new(RaftData::Missing { held: RaftId(3) }, None).await;
    assert_eq!(*world.ports.trouble.borrow(), Some(Trouble::RaftDataMissing));
    for answer in [unreachable(), assigned(8)] {
        let request = world.answer(answer).await;
        assert_eq!((request.held, request.data_lost.unwrap().damaged), (Some(RaftId(3)), false));
    }
    // The new member id has lost nothing, also before the leader has contacted the member.
    let (request, reply) = world.asked().await;
    assert_eq!((request.held, request.data_lost), (None, None));
    world.member_holds(Some(8));
    reply.send(assigned(8)).unwrap();
    let trouble = Arc::clone(&world.ports.trouble);
    eventually("the trouble is over", || trouble.borrow().is_none()).await;
    assert_eq!(world.data(), RaftData::Present);
    world.settles().await;
}

#[tokio::test(start_paused = true)]
async fn damaged_file_is_reported_to_the_leader() {
    let (file, why) = ("/var/lib/muster/raft/0001.raftlog".to_owned(), "a damaged record".to_owned());
    let data = RaftData::Damaged { held: Some(RaftId(3)), file: file.clone(), why };
    let mut world = World::new(data, None).await;
    let request = world.answer(unreachable()).await;
    assert_eq!(request.data_lost, Some(DataLoss { damaged: true, file }));
    assert_eq!(*world.ports.trouble.borrow(), Some(Trouble::RaftDataDamaged));
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn removed_membership_is_requested_again() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    world.answer(assigned(7)).await;
    world.waits_with("this manager is Raft member 7").await;
    world.member_holds(None);
    let message = "its desired role is worker".to_owned();
    assert_eq!(world.answer(Ok(MembershipReply::NotWanted { message })).await.held, None);
    world.waits_with("its desired role is worker").await;
    world.answer(unreachable()).await;
    world.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn long_leaderless_member_asks_but_an_election_does_not() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    world.answer(assigned(7)).await;
    world.replica.send_replace(Arc::new(local_replica(Some(7), false)));
    world.agent.expect_none(NO_LEADER_TIMEOUT / 2).await;
    world.member_holds(Some(7));
    world.agent.expect_none(NO_LEADER_TIMEOUT * 2).await;
    world.replica.send_replace(Arc::new(local_replica(Some(7), false)));
    assert_eq!(world.answer(assigned(7)).await.held, Some(RaftId(7)));
    world.member_holds(Some(7));
    world.settles().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_ends_an_incompatible_manager_runtime() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    world.answer(assigned(7)).await;
    world.waits_with("this manager is Raft member 7").await;
    world.incompatible.send_replace(Some(Incompatible::Snapshot(9)));
    world.answer(Err(ErrorBody::new(ErrorCode::GateClosed, "the cluster is at feature level 3"))).await;
    assert_eq!(world.over.next("why it is over").await, "the cluster is at feature level 3");
    world.settles().await;
}

/// Its member was replaced while it was disconnected. Its data is worthless: a leader that still counts on the old member must
/// not find the data there. Wherever the agent crashes, the Raft member ends on an empty state and then with its new id.
#[tokio::test(start_paused = true)]
async fn old_member_data_is_emptied_at_every_crash_point() {
    let points = at_every_point(async |fuse| {
        let mut world = World::new(RaftData::Present, Some(3)).await;
        world.harness.crash_at(MEMBERSHIP_PATH, &fuse);
        let (replica, requested_ids) = (Arc::clone(&world.replica), Mutex::new(Vec::new()));
        let requested_ids = Arc::new(requested_ids);
        let recorder = Arc::clone(&requested_ids);
        world.agent.on(move |msg| match msg {
            AgentMsg::RequestMembership { request, reply } => {
                recorder.lock().unwrap().push(request.held);
                // The leader contacts the new member only: once the old data is gone, the new member appears.
                if replica.borrow().raft.raft_id.is_none() {
                    replica.send_replace(Arc::new(local_replica(Some(8), true)));
                }
                answered(reply, assigned(8))
            }
            other => Some(other),
        });
        drop(world.agent.drain()); // its earlier requests stay unanswered
        let (replica, data) = (Arc::clone(&world.replica), Arc::clone(&world.ports.data));
        let recovered =
            || replica.borrow().raft.raft_id == Some(RaftId(8)) && *data.lock().unwrap() == RaftData::Present;
        eventually("it has data under its new member id", recovered).await;
        assert!(world.harness.tree().inspect("node/raft-member").await.unwrap().incarnation >= 2, "it was emptied");
        world.waits_with("this manager is Raft member 8").await;
        let asked = requested_ids.lock().unwrap().len();
        assert!(asked < 10, "it asked {asked} times");
        world.settles().await;
    })
    .await;
    assert!(points > 20, "{points}");
}

#[tokio::test(start_paused = true)]
async fn crashed_membership_agent_asks_anew() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let (_, lost) = world.asked().await;
        world.harness.crash(MEMBERSHIP_PATH, how);
        world.harness.healthy(MEMBERSHIP_PATH, incarnation).await;
        drop(lost);
    }
    world.answer(assigned(7)).await;
    world.settles().await;
}
