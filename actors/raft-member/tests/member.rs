//! The actor on a real disk: three members in one process, joined by a transport without sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Address, Backoff, Fuse, Spec};
use muster_messages::protocol::{Applied, ProposeError, RaftMemberMsg, RaftTransport, ReadError};
use muster_messages::wire::{RaftPacket, SnapshotHead};
use muster_messages::{
    Change, ClusterId, ClusterRecord, Command, CrashHow, Incarnation, Liveness, Member, Membership, Name, NodeId,
    NodeRecord, Principal, RaftId, Replica, Revision, Role, SeatChange, SeatChangeKind, Secret, WallTime,
};
use muster_raft_member::{Msg, ObjectFeed, RaftArgs, RaftConfig, RaftMember, disk};
use muster_tests::{Universe, eventually};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_secs(20);
/// Steps at which a member is made to crash: what a write costs it, several times over.
const POINTS: u32 = 36;

fn node_id(n: usize) -> NodeId {
    NodeId::from_entropy(0xabcd_0000 + n as u128)
}

fn record(n: usize) -> NodeRecord {
    NodeRecord {
        release: "0.1.0".into(),
        liveness: Liveness::Ready,
        ..NodeRecord::new(node_id(n), format!("n{n}").parse::<Name>().unwrap(), Role::Manager, WallTime(0))
    }
}

fn command() -> Command {
    Command::idempotent(WallTime(0), Principal::Operator, "test")
}

fn found() -> Command {
    let cluster = ClusterRecord {
        id: ClusterId::from_entropy(7),
        name: "test".parse().unwrap(),
        incarnation: Incarnation(1),
        feature_level: 1,
        root_cert_pem: "root".into(),
        root_key_pem: Secret::new("key"),
        founded_at: WallTime(0),
        revision: Revision(0),
    };
    command().change(Change::Found { cluster: Box::new(cluster), founder: Box::new(record(1)), tokens: vec![] })
}

fn label(value: &str) -> Command {
    command().change(Change::UpdateLabels {
        node: node_id(1),
        add: [("a".to_owned(), value.to_owned())].into(),
        remove: vec![],
    })
}

/// Knows every member's address; what cannot be delivered is reported, as the mesh does.
#[derive(Clone, Default)]
struct Wires(Arc<Mutex<BTreeMap<NodeId, Address<Msg>>>>);

struct Wire {
    from: NodeId,
    wires: Wires,
    own: Address<Msg>,
}

impl Wire {
    fn deliver(&self, to: NodeId, msg: RaftMemberMsg) -> bool {
        let target = self.wires.0.lock().unwrap().get(&to).cloned();
        target.is_some_and(|t| t.tell(msg.into()).is_ok())
    }
}

impl RaftTransport for Wire {
    fn send(&self, to: NodeId, _addr: &str, packets: Vec<RaftPacket>) {
        let (seat, peer_seat) = (packets[0].to, Some(packets[0].from));
        if !self.deliver(to, RaftMemberMsg::FromPeer { node: self.from, peer_seat, packets }) {
            let _down = self.own.tell(RaftMemberMsg::Unreachable { to: seat }.into());
        }
    }
    fn send_snapshot(&self, to: NodeId, _addr: &str, head: SnapshotHead, data: Arc<Vec<u8>>, packet: RaftPacket) {
        assert_eq!(head.bytes, data.len() as u64);
        let (seat, peer_seat) = (packet.to, Some(packet.from));
        let data = data.as_ref().clone();
        let ok = self.deliver(
            to,
            RaftMemberMsg::SnapshotReceived { node: self.from, peer_seat, packet: Box::new(packet), data },
        );
        let _down = self.own.tell(RaftMemberMsg::SnapshotSent { to: seat, ok }.into());
    }
    fn members(&self, _members: Vec<Member>, _own_seat: Option<RaftId>) {}
}

struct Cluster {
    universe: Universe,
    wires: Wires,
    members: BTreeMap<usize, (Address<Msg>, watch::Receiver<Arc<Replica>>)>,
    dir: tempfile::TempDir,
}

impl Cluster {
    async fn new() -> Self {
        let (universe, dir) = (Universe::start().await, tempfile::tempdir().unwrap());
        Self { universe, wires: Wires::default(), members: BTreeMap::new(), dir }
    }
    fn dir(&self, n: usize) -> std::path::PathBuf {
        self.dir.path().join(n.to_string()).join("raft")
    }
    fn start(&mut self, n: usize) {
        let address: Address<Msg> = Address::new(16_384);
        self.wires.0.lock().unwrap().insert(node_id(n), address.clone());
        let publish = Arc::new(watch::Sender::new(Arc::new(Replica::default())));
        let receiver = publish.subscribe();
        let transport = Arc::new(Wire { from: node_id(n), wires: self.wires.clone(), own: address.clone() });
        let config = RaftConfig { snapshot_entries: 200, keep_entries: 20, ..RaftConfig::default() };
        let args = RaftArgs {
            data_dir: self.dir(n),
            node: node_id(n),
            config,
            transport,
            publish,
            feed: ObjectFeed::default(),
            outgrown: Arc::default(),
            founding: n == 1,
            lost: None,
            disk_hangs_while: None,
        };
        std::fs::create_dir_all(args.data_dir.parent().unwrap()).unwrap();
        let make = move || RaftMember::open(args.clone());
        let spec = Spec::actor(format!("m{n}"), address.clone(), make);
        // Crashes are what it is here for: they neither count against its parent nor slow it down.
        let backoff = Backoff { cap: Backoff::QUICK.first, ..Backoff::QUICK };
        self.universe.start_actor(spec.contained().backoff(backoff));
        self.members.insert(n, (address, receiver));
    }
    async fn until(&self, n: usize, what: &str, holds: impl FnMut(&Arc<Replica>) -> bool) -> Arc<Replica> {
        let mut receiver = self.members[&n].1.clone();
        let found = tokio::time::timeout(PATIENCE, receiver.wait_for(holds)).await;
        found.unwrap_or_else(|_| panic!("never: {what}")).expect("the sender lives").clone()
    }
    async fn leader(&self) -> usize {
        let any = async {
            loop {
                if let Some(n) = self.members.iter().find(|(_, m)| m.1.borrow().raft.leading).map(|(n, _)| *n) {
                    return n;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, any).await.expect("somebody leads")
    }
    async fn propose(&self, n: usize, command: Command) -> Option<Result<Applied, ProposeError>> {
        let make = |reply| RaftMemberMsg::Propose { command: Box::new(command), deadline_ms: 5000, reply }.into();
        self.members[&n].0.ask(PATIENCE, make).await.ok()
    }
    async fn write(&self, command: Command) -> Applied {
        // Retried as a client would: these commands are idempotent.
        for _ in 0..1000 {
            if let Some(Ok(applied)) = self.propose(self.leader().await, command.clone()).await {
                return applied;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never applied");
    }
    async fn seat(&self, kind: SeatChangeKind) {
        for _ in 0..1000 {
            let change = SeatChange { at: WallTime(0), by: Principal::Operator, kind: kind.clone() };
            let make = |reply| RaftMemberMsg::ProposeSeat { change: Box::new(change), reply }.into();
            match self.members[&self.leader().await].0.ask(PATIENCE, make).await {
                Ok(Ok(_)) => return,
                Ok(Err(ProposeError::MembershipBusy)) | Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Ok(Err(e)) => panic!("{kind:?}: {e}"),
            }
        }
        panic!("never seated");
    }
    async fn read(&self, n: usize) -> Result<Arc<Replica>, ReadError> {
        let make = |reply| RaftMemberMsg::Read { deadline_ms: 10_000, reply }.into();
        self.members[&n].0.ask(PATIENCE, make).await.expect("it answers")
    }
    async fn join(&mut self, n: usize) {
        self.write(command().change(Change::CreateNode(Box::new(record(n))))).await;
        self.start(n);
        self.until(n, "it runs", |r| r.raft.raft_id.is_none()).await;
        let raft_id = self.members[&self.leader().await].1.borrow().tables.next_raft_id;
        self.seat(SeatChangeKind::AddLearner { node: node_id(n), raft_id, addr: String::new() }).await;
        self.until(n, "it learns", |r| r.tables.membership_of(node_id(n)) == Membership::Learner).await;
        self.seat(SeatChangeKind::PromoteLearner { node: node_id(n), raft_id }).await;
    }
    async fn three() -> Self {
        let mut c = Self::new().await;
        c.start(1);
        c.write(found()).await;
        c.join(2).await;
        c.join(3).await;
        c
    }
}

fn value(replica: &Replica) -> Option<&str> {
    replica.tables.nodes.get(&node_id(1))?.labels.get("a").map(String::as_str)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_replicate_and_each_reads_what_was_acknowledged() {
    let c = Cluster::three().await;
    let at = c.write(label("1")).await.revision;
    for n in 1..=3 {
        assert!(c.read(n).await.unwrap().tables.revision >= at);
        c.until(n, "published", |r| value(r) == Some("1")).await;
    }
    c.universe.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_member_resumes_from_its_disk_and_nothing_acknowledged_is_lost() {
    let mut c = Cluster::three().await;
    for (i, how) in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill, CrashHow::Panic].into_iter().enumerate() {
        let at = c.write(label(&i.to_string())).await.revision;
        let leader = c.leader().await;
        let path = format!("node/m{leader}");
        let before = c.universe.tree().inspect(&path).await.unwrap().incarnation;
        c.universe.crash(&path, how);
        let mut level = c.members[&leader].1.clone();
        tokio::time::timeout(PATIENCE, level.wait_for(|r| !r.raft.leading))
            .await
            .expect("it does not claim to lead")
            .unwrap();
        c.universe.healthy(&path, before + 1).await;
        c.leader().await;
        let seen = c.read(leader).await.unwrap();
        assert!(seen.tables.revision >= at && value(&seen) == Some(i.to_string().as_str()));
    }
    c.universe.finish().await;
}

/// Each in turn, leader or not, at the first step of its work, at the second, and so on: before and after a message, an
/// effect of it, a word to the disk or to a peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_a_member_crashes_what_was_acknowledged_is_there() {
    let mut c = Cluster::three().await;
    let fuses: Vec<Fuse> = (1..=3).map(|_| Fuse::unlit()).collect();
    for (n, fuse) in (1..).zip(&fuses) {
        c.universe.crash_at(&format!("node/m{n}"), fuse);
    }
    for (point, (n, fuse)) in (0..POINTS).zip((1..).zip(&fuses).cycle()) {
        let path = format!("node/m{n}");
        let before = c.universe.tree().inspect(&path).await.unwrap().incarnation;
        fuse.renew(point);
        let at = c.write(label(&point.to_string())).await.revision;
        // It ticks, so it comes to any step sooner or later.
        eventually("it crashed", || fuse.blown()).await;
        c.universe.healthy(&path, before + 1).await;
        for n in 1..=3 {
            let seen = c.until(n, "it has what was acknowledged", |r| r.tables.revision >= at).await;
            assert_eq!(value(&seen), Some(point.to_string().as_str()), "member {n} after a crash of {path} at {point}");
        }
    }
    c.universe.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_takes_snapshots_and_a_latecomer_gets_one() {
    let mut c = Cluster::three().await;
    let c1 = &c;
    for round in 0..8 {
        let many: Vec<_> = (0..100)
            .map(|i| {
                let (to, command) = (c1.members[&1].0.clone(), label(&format!("{round}-{i}")));
                tokio::spawn(async move {
                    let make =
                        |reply| RaftMemberMsg::Propose { command: Box::new(command), deadline_ms: 5000, reply }.into();
                    to.ask(PATIENCE, make).await
                })
            })
            .collect();
        for one in many {
            assert!(one.await.unwrap().unwrap().is_ok());
        }
    }
    let view = c.universe.tree().inspect("node/m1").await.unwrap().view;
    assert!(view["snapshots"]["taken"].as_u64().unwrap() > 0, "{view}");
    c.join(4).await;
    let at = c.members[&1].1.borrow().tables.revision;
    c.until(4, "it catches up", |r| r.tables.revision >= at).await;
    let dir = c.dir(4);
    c.universe.finish().await;
    assert!(matches!(disk::state(&dir), disk::DirState::Present { raft_id: RaftId(4), .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_cluster_restarts_with_everything() {
    let mut c = Cluster::three().await;
    let at = c.write(label("kept")).await.revision;
    for n in 1..=3 {
        c.universe.children().stop_and_wait(&format!("m{n}")).await;
    }
    for n in 1..=3 {
        c.start(n);
    }
    c.leader().await;
    for n in 1..=3 {
        let seen = c.read(n).await.unwrap();
        assert!(seen.tables.revision >= at && value(&seen) == Some("kept"));
    }
    c.universe.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let c = Cluster::three().await;
    // Asked again as an operator would: on a machine that is held up a leader may lose its office, or not hear the others.
    let handed_over = async {
        loop {
            let leader = c.leader().await;
            let make = |reply| RaftMemberMsg::TransferLeadership { to: None, reply }.into();
            match c.members[&leader].0.ask(PATIENCE, make).await.unwrap() {
                Ok(heir) => return (leader, heir),
                Err(ProposeError::NotLeader { .. } | ProposeError::NoQuorum { .. } | ProposeError::TimedOut) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    let (leader, heir) = tokio::time::timeout(PATIENCE, handed_over).await.expect("somebody takes it over");
    assert_ne!(heir, node_id(leader));
    c.write(label("after")).await;
    c.universe.finish().await;
}

/// `cargo test --release -p muster-raft-member --test member -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn appends_per_second() {
    for members in [1, 3] {
        let mut c = Cluster::new().await;
        c.start(1);
        c.write(found()).await;
        for n in 2..=members {
            c.join(n).await;
        }
        let leader = c.leader().await;
        for clients in [1, 64, 256] {
            let total = 200 * clients + 1000;
            let started = std::time::Instant::now();
            let mut running = tokio::task::JoinSet::new();
            for client in 0..clients {
                let to = c.members[&leader].0.clone();
                running.spawn(async move {
                    for i in 0..total / clients {
                        let command = label(&format!("{client}-{i}"));
                        let make = |reply| {
                            RaftMemberMsg::Propose { command: Box::new(command), deadline_ms: 5000, reply }.into()
                        };
                        to.ask(PATIENCE, make).await.unwrap().unwrap();
                    }
                });
            }
            while running.join_next().await.is_some() {}
            let per_second = total as f64 / started.elapsed().as_secs_f64();
            println!("{members} members, {clients} clients: {per_second:.0} per second");
        }
        c.universe.finish().await;
    }
}
