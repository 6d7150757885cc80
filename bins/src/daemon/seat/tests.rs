use muster_kernel::{Address, Spec};
use muster_messages::protocol::Reply;
use muster_messages::{ActorNode, CrashHow, WaitReason};
use muster_pki::IdentityStore;
use muster_tests::{Idle, Probe, Universe, answered, at_every_point, eventually};
use tempfile::TempDir;

use super::*;

type Asked = (SeatRequest, Reply<Result<SeatReply, ErrorBody>>);

struct World {
    universe: Universe,
    agent: Probe<AgentMsg>,
    replica: Arc<watch::Sender<Arc<Replica>>>,
    outgrown: Arc<watch::Sender<Option<Outgrown>>>,
    ports: SeatPorts,
    over: Probe<String>,
    _dir: TempDir,
}

const SEAT: &str = "node/seat";

impl World {
    /// A manager that found its data like this, and whose raft member starts on that seat.
    async fn new(data: RaftData, holds: Option<u64>) -> Self {
        let universe = Universe::start().await;
        let dir = tempfile::tempdir().unwrap();
        let raft_dir = dir.path().join("raft");
        std::fs::create_dir(&raft_dir).unwrap();
        let (agent, over) = (universe.probe("agent"), Probe::showing("over", String::clone));
        let replica = Arc::new(watch::Sender::new(Arc::new(copy(holds, true))));
        let outgrown = Arc::new(watch::Sender::new(None));
        let end = over.recipient();
        let ports = SeatPorts {
            agent: agent.recipient(),
            replica: replica.subscribe(),
            outgrown: outgrown.subscribe(),
            group: universe.children().clone(),
            raft_dir: raft_dir.clone(),
            memory: NodeMemory::new(IdentityStore::open(dir.path()).unwrap()),
            data: Arc::new(Mutex::new(data)),
            trouble: Arc::new(watch::Sender::new(None)),
            advertise: "10.0.0.1:4400".to_owned(),
            feature_level: 2,
            outgrow: Arc::new(move |why| end.tell(why.to_owned()).unwrap()),
        };
        // As the real one does: a mark has it begin again with nothing, and it follows whoever leads.
        let shows = Arc::clone(&replica);
        universe.start_actor(Spec::actor("raft-member", Address::new(1), move || {
            let mark = raft_dir.join("wipe");
            if mark.exists() {
                std::fs::remove_file(mark).unwrap();
                shows.send_replace(Arc::new(copy(None, true)));
            }
            Ok(Idle)
        }));
        universe.healthy("node/raft-member", 1).await;
        let made = ports.clone();
        universe
            .start_actor(Spec::actor("seat", Address::new(64), move || Ok(SeatKeeper::new(made.clone()))).contained());
        universe.healthy(SEAT, 1).await;
        Self { universe, agent, replica, outgrown, ports, over, _dir: dir }
    }
    async fn asked(&mut self) -> Asked {
        self.agent
            .expect("a request for a seat", |msg| match msg {
                AgentMsg::RequestSeat { request, reply } => Some((request, reply)),
                AgentMsg::ReportManager { .. } | AgentMsg::RefusedByPeer { .. } => None,
            })
            .await
    }
    /// Answers the next request; what it said.
    async fn answer(&mut self, with: Result<SeatReply, ErrorBody>) -> SeatRequest {
        let (request, reply) = self.asked().await;
        reply.send(with).unwrap();
        request
    }
    fn member_holds(&self, seat: Option<u64>) {
        self.replica.send_replace(Arc::new(copy(seat, true)));
    }
    async fn says(&self, what: &str) -> ActorNode {
        let said = |actor: &ActorNode| actor.view["waiting"].as_str().is_some_and(|said| said.contains(what));
        self.universe.until(SEAT, what, said).await
    }
    fn data(&self) -> RaftData {
        self.ports.data.lock().unwrap().clone()
    }
    /// It is content: for an hour it asks for nothing.
    async fn rests(mut self) {
        self.agent.expect_none(Duration::from_secs(3600)).await;
        self.universe.finish().await;
    }
}

fn copy(holds: Option<u64>, led: bool) -> Replica {
    let mut copy = Replica::default();
    copy.raft.raft_id = holds.map(RaftId);
    copy.raft.leader = led.then_some(RaftId(99));
    copy
}
fn seated(seat: u64) -> Result<SeatReply, ErrorBody> {
    Ok(SeatReply::Seated { raft_id: RaftId(seat) })
}
fn unreachable() -> Result<SeatReply, ErrorBody> {
    Err(ErrorBody::new(ErrorCode::Unreachable, "no session"))
}

#[tokio::test(start_paused = true)]
async fn a_new_manager_asks_until_it_is_seated_and_rests_when_its_member_has_the_seat() {
    let mut world = World::new(RaftData::None, None).await;
    let first = world.answer(unreachable()).await;
    assert_eq!((first.held, first.data_lost, first.advertise.as_str()), (None, None, "10.0.0.1:4400"));
    world.says("cannot ask for a raft seat yet").await;
    let (reason, message) = (WaitReason::QuorumAtRisk, "n2 has not answered for 4 s".to_owned());
    world.answer(Ok(SeatReply::Wait { reason, message, retry_after_ms: 400 })).await;
    world.says("n2 has not answered for 4 s").await;
    world.answer(seated(7)).await;
    // The leader gives up on a silent learner: until it has spoken to this one, the seat may be gone again.
    let (_, reply) = world.asked().await;
    world.member_holds(Some(7));
    reply.send(seated(7)).unwrap();
    world.says("this manager has raft seat 7").await;
    let both = |actor: &ActorNode| {
        let seat = |field: &str| actor.view[field].as_u64();
        (seat("holds"), seat("seated")) == (Some(7), Some(7))
    };
    world.universe.until(SEAT, "its member has that seat", both).await;
    assert_eq!(world.data(), RaftData::Present);
    let memory = world.ports.memory.clone();
    eventually("it remembers its seat", || memory.load().unwrap().held_seat == Some(RaftId(7))).await;
    world.rests().await;
}

/// E41. Its operator is at this machine.
#[tokio::test(start_paused = true)]
async fn who_cannot_be_dialled_reads_it_in_its_own_status_until_it_was_found() {
    let mut world = World::new(RaftData::None, None).await;
    let trouble = Arc::clone(&world.ports.trouble);
    let wait = |reason, message: &str| Ok(SeatReply::Wait { reason, message: message.to_owned(), retry_after_ms: 100 });
    world.answer(wait(WaitReason::DialBackFailed, "n2 could not be reached at 10.0.0.1:4400")).await;
    let shown = Some("dial_back_failed: n2 could not be reached at 10.0.0.1:4400".to_owned());
    eventually("its status says so", || *trouble.borrow() == shown).await;
    // Whatever else it waits for meanwhile: nobody has found it yet.
    world.answer(wait(WaitReason::MembershipBusy, "n3 is being seated")).await;
    world.says("n3 is being seated").await;
    assert_eq!(*trouble.borrow(), shown);
    world.member_holds(Some(7));
    world.answer(seated(7)).await;
    eventually("it was found", || trouble.borrow().is_none()).await;
    world.rests().await;
}

#[tokio::test(start_paused = true)]
async fn who_lost_its_data_says_of_which_seat_until_the_new_one_holds_some() {
    let mut world = World::new(RaftData::Missing { held: RaftId(3) }, None).await;
    assert_eq!(*world.ports.trouble.borrow(), Some("raft_data_missing".to_owned()));
    for answer in [unreachable(), seated(8)] {
        let request = world.answer(answer).await;
        assert_eq!((request.held, request.data_lost.unwrap().damaged), (Some(RaftId(3)), false));
    }
    // Of the seat given since nothing is lost, also before the leader has spoken to its member.
    let (request, reply) = world.asked().await;
    assert_eq!((request.held, request.data_lost), (None, None));
    world.member_holds(Some(8));
    reply.send(seated(8)).unwrap();
    let trouble = Arc::clone(&world.ports.trouble);
    eventually("the trouble is over", || trouble.borrow().is_none()).await;
    assert_eq!(world.data(), RaftData::Present);
    world.rests().await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_file_is_named_to_the_leader() {
    let (file, why) = ("/var/lib/muster/raft/0001.raftlog".to_owned(), "a rotten record".to_owned());
    let data = RaftData::Damaged { held: Some(RaftId(3)), file: file.clone(), why };
    let mut world = World::new(data, None).await;
    let request = world.answer(unreachable()).await;
    assert_eq!(request.data_lost, Some(DataLoss { damaged: true, file }));
    assert_eq!(*world.ports.trouble.borrow(), Some("raft_data_damaged".to_owned()));
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_seat_that_is_taken_away_is_asked_for_again() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    world.answer(seated(7)).await;
    world.says("this manager has raft seat 7").await;
    world.member_holds(None);
    let message = "its desired role is worker".to_owned();
    assert_eq!(world.answer(Ok(SeatReply::NotWanted { message })).await.held, None);
    world.says("its desired role is worker").await;
    world.answer(unreachable()).await;
    world.universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn who_follows_nobody_for_a_while_asks_and_who_saw_an_election_does_not() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    world.answer(seated(7)).await;
    world.replica.send_replace(Arc::new(copy(Some(7), false)));
    world.agent.expect_none(ALONE / 2).await;
    world.member_holds(Some(7));
    world.agent.expect_none(ALONE * 2).await;
    world.replica.send_replace(Arc::new(copy(Some(7), false)));
    assert_eq!(world.answer(seated(7)).await.held, Some(RaftId(7)));
    world.member_holds(Some(7));
    world.rests().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_peer_sent_and_nobody_can_read_is_asked_about_and_only_the_leader_ends_the_manager_half() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    world.answer(seated(7)).await;
    world.says("this manager has raft seat 7").await;
    world.outgrown.send_replace(Some(Outgrown::Snapshot(9)));
    world.answer(Err(ErrorBody::new(ErrorCode::GateClosed, "the cluster is at feature level 3"))).await;
    assert_eq!(world.over.next("why it is over").await, "the cluster is at feature level 3");
    world.rests().await;
}

/// Its seat was replaced while it was cut off. Its data is worthless then: whoever still counts on the old seat must
/// not find it there. Wherever the keeper crashes, the raft member ends on an empty copy and then on its new seat.
#[tokio::test(start_paused = true)]
async fn wherever_the_keeper_crashes_the_data_of_an_older_seat_is_emptied_and_the_new_seat_taken() {
    let points = at_every_point(async |fuse| {
        let mut world = World::new(RaftData::Present, Some(3)).await;
        world.universe.crash_at(SEAT, &fuse);
        let (replica, seats) = (Arc::clone(&world.replica), Mutex::new(Vec::new()));
        let seats = Arc::new(seats);
        let heard = Arc::clone(&seats);
        world.agent.on(move |msg| match msg {
            AgentMsg::RequestSeat { request, reply } => {
                heard.lock().unwrap().push(request.held);
                // The leader speaks to the new seat only: once nothing is left of the old one, its member is there.
                if replica.borrow().raft.raft_id.is_none() {
                    replica.send_replace(Arc::new(copy(Some(8), true)));
                }
                answered(reply, seated(8))
            }
            other => Some(other),
        });
        drop(world.agent.drain()); // nobody answers what it asked before
        let (replica, data) = (Arc::clone(&world.replica), Arc::clone(&world.ports.data));
        let whole = || replica.borrow().raft.raft_id == Some(RaftId(8)) && *data.lock().unwrap() == RaftData::Present;
        eventually("it is whole on its new seat", whole).await;
        assert!(world.universe.tree().inspect("node/raft-member").await.unwrap().incarnation >= 2, "it was emptied");
        world.says("this manager has raft seat 8").await;
        let asked = seats.lock().unwrap().len();
        assert!(asked < 10, "it asked {asked} times");
        world.rests().await;
    })
    .await;
    assert!(points > 20, "{points}");
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_crashed_asks_anew() {
    let mut world = World::new(RaftData::Present, Some(7)).await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let (_, lost) = world.asked().await;
        world.universe.crash(SEAT, how);
        world.universe.healthy(SEAT, incarnation).await;
        drop(lost);
    }
    world.answer(seated(7)).await;
    world.rests().await;
}
