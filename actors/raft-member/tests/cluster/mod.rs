//! Members of one process on real disks, connected by a transport without sockets.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of tests and a benchmark, of which each uses a part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Address, Backoff, Spec};
use muster_messages::protocol::{Applied, ProposeError, RaftMemberMsg, RaftTransport, SnapshotOutcome};
use muster_messages::wire::{RaftPacket, SnapshotHead};
use muster_messages::{
    Change, ClusterId, ClusterRecord, Command, Incarnation, Liveness, Member, Membership, MembershipChange,
    MembershipChangeKind, Name, NodeId, NodeRecord, ObjectKey, Principal, RaftId, Replica, Revision, Role, Secret,
    SessionId, Uid, WallTime,
};
use muster_raft_member::{Msg, ObjectFeed, RaftArgs, RaftConfig, RaftMember, ReplicaSenders};
use muster_sealing::Keys;
use muster_testkit::ActorHarness;
use tokio::sync::watch;

pub const WAIT_LIMIT: Duration = Duration::from_secs(60);

pub fn node_id(n: usize) -> NodeId {
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

pub fn found() -> Command {
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

pub fn label(value: &str) -> Command {
    command().change(Change::UpdateLabels {
        node: node_id(1),
        add: [("a".to_owned(), value.to_owned())].into(),
        remove: vec![],
    })
}

/// A lease is taken, or renewed by the same session.
pub fn lease() -> Command {
    let (holder, session) = ("holder".to_owned(), SessionId(1));
    let key = ObjectKey::lease("default", "one");
    command().change(Change::AcquireLease { key, holder, session, duration_ms: 60_000, uid: Uid(1) })
}

/// Knows every member's address; reports undeliverable messages, as the mesh does.
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
        let (member_id, peer_member) = (packets[0].to, Some(packets[0].from));
        if !self.deliver(to, RaftMemberMsg::FromPeer { node: self.from, peer_member, packets }) {
            let _down = self.own.tell(RaftMemberMsg::Unreachable { to: member_id }.into());
        }
    }
    fn send_snapshot(&self, to: NodeId, _addr: &str, head: SnapshotHead, data: Arc<Vec<u8>>, packet: RaftPacket) {
        assert_eq!(head.bytes, data.len() as u64);
        let (member_id, peer_member, index) = (packet.to, Some(packet.from), head.index);
        let data = data.as_ref().clone();
        let ok = self.deliver(
            to,
            RaftMemberMsg::SnapshotReceived { node: self.from, peer_member, packet: Box::new(packet), data },
        );
        let outcome = if ok { SnapshotOutcome::Delivered } else { SnapshotOutcome::Lost("it is down".to_owned()) };
        let _down = self.own.tell(RaftMemberMsg::SnapshotSent { to: member_id, index, outcome }.into());
    }
    fn stop_snapshot(&self, _to: NodeId, _index: u64) {}
    fn members(&self, _members: Vec<Member>, _own_member: Option<RaftId>) {}
}

pub struct Cluster {
    pub harness: ActorHarness,
    wires: Wires,
    pub members: Members,
    /// The other replicas that they publish.
    pub clusters: BTreeMap<usize, watch::Receiver<Arc<Replica>>>,
    dir: tempfile::TempDir,
}

/// The members' addresses, and the replicas that they publish.
pub type Members = BTreeMap<usize, (Address<Msg>, watch::Receiver<Arc<Replica>>)>;

pub async fn leader_of(members: &Members) -> usize {
    loop {
        if let Some(n) = members.iter().find(|(_, m)| m.1.borrow().raft.leading).map(|(n, _)| *n) {
            return n;
        }
        pause().await;
    }
}

/// Proposes to the leader until the command was applied, as a client would: these commands are idempotent, and a busy machine
/// may cost a leader its leadership.
pub async fn write_to(members: &Members, command: Command) -> Applied {
    let applied = async {
        loop {
            let command = Box::new(command.clone());
            let make = |reply| RaftMemberMsg::Propose { command, deadline_ms: 5000, reply }.into();
            if let Ok(Ok(applied)) = members[&leader_of(members).await].0.ask(WAIT_LIMIT, make).await {
                return applied;
            }
            pause().await;
        }
    };
    tokio::time::timeout(WAIT_LIMIT, applied).await.expect("it is applied")
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

impl Cluster {
    pub async fn new() -> Self {
        let (harness, dir) = (ActorHarness::start().await, tempfile::tempdir().unwrap());
        Self { harness, wires: Wires::default(), members: BTreeMap::new(), clusters: BTreeMap::new(), dir }
    }
    pub fn dir(&self, n: usize) -> std::path::PathBuf {
        self.dir.path().join(n.to_string()).join("raft")
    }
    pub fn start(&mut self, n: usize) {
        let address: Address<Msg> = Address::new(16_384);
        self.wires.0.lock().unwrap().insert(node_id(n), address.clone());
        let publish = ReplicaSenders::default();
        let receiver = publish.every.subscribe();
        self.clusters.insert(n, publish.cluster.subscribe());
        let transport = Arc::new(Wire { from: node_id(n), wires: self.wires.clone(), own: address.clone() });
        let config = RaftConfig { snapshot_entries: 200, keep_entries: 20, ..RaftConfig::default() };
        std::fs::create_dir_all(self.dir(n).parent().unwrap()).unwrap();
        let args = RaftArgs {
            keys: Keys::open(self.dir(n).parent().unwrap()).unwrap(),
            data_dir: self.dir(n),
            node: node_id(n),
            config,
            transport,
            publish,
            feed: ObjectFeed::default(),
            incompatible: Arc::default(),
            founding: n == 1,
            lost: None,
            disk_hangs_while: None,
        };
        let make = move || RaftMember::open(args.clone());
        let spec = Spec::actor(format!("m{n}"), address.clone(), make);
        // These tests crash members on purpose: crashes neither count against the parent nor slow it down.
        let backoff = Backoff { cap: Backoff::QUICK.first, ..Backoff::QUICK };
        self.harness.start_actor(spec.contained().backoff(backoff));
        self.members.insert(n, (address, receiver));
    }
    pub async fn until(&self, n: usize, what: &str, holds: impl FnMut(&Arc<Replica>) -> bool) -> Arc<Replica> {
        let mut receiver = self.members[&n].1.clone();
        let found = tokio::time::timeout(WAIT_LIMIT, receiver.wait_for(holds)).await;
        found.unwrap_or_else(|_| panic!("never: {what}")).expect("the sender lives").clone()
    }
    pub async fn leader(&self) -> usize {
        tokio::time::timeout(WAIT_LIMIT, leader_of(&self.members)).await.expect("there is a leader")
    }
    pub async fn write(&self, command: Command) -> Applied {
        write_to(&self.members, command).await
    }
    async fn change_membership(&self, kind: MembershipChangeKind) {
        let done = async {
            loop {
                let change = MembershipChange { at: WallTime(0), by: Principal::Operator, kind: kind.clone() };
                let make = |reply| {
                    let (change, confirm_within_ms) = (Box::new(change), Some(1000));
                    RaftMemberMsg::ProposeMembership { change, confirm_within_ms, reply }.into()
                };
                match self.members[&self.leader().await].0.ask(WAIT_LIMIT, make).await {
                    Ok(Ok(_)) => return,
                    // The outcome of an earlier attempt is not always known.
                    Ok(Err(ProposeError::Refused(_))) if self.is_applied(&kind).await => return,
                    Ok(Err(ProposeError::Refused(why))) => panic!("{kind:?}: {why}"),
                    Ok(Err(_)) | Err(_) => pause().await,
                }
            }
        };
        tokio::time::timeout(WAIT_LIMIT, done).await.expect("the membership change is applied");
    }
    async fn is_applied(&self, kind: &MembershipChangeKind) -> bool {
        let leader = self.leader().await;
        let replica = Arc::clone(&self.members[&leader].1.borrow());
        let member = |raft_id| replica.tables.members.get(raft_id);
        match kind {
            MembershipChangeKind::AddLearner { raft_id, .. } => member(raft_id).is_some(),
            MembershipChangeKind::PromoteLearner { raft_id, .. } => member(raft_id).is_some_and(|member| member.voter),
            _ => false,
        }
    }
    pub async fn read(&self, n: usize) -> Arc<Replica> {
        let read = async {
            loop {
                let make = |reply| RaftMemberMsg::Read { deadline_ms: 10_000, reply }.into();
                match self.members[&n].0.ask(WAIT_LIMIT, make).await {
                    Ok(Ok(replica)) => return replica,
                    _ => pause().await,
                }
            }
        };
        tokio::time::timeout(WAIT_LIMIT, read).await.expect("it answers")
    }
    pub async fn join(&mut self, n: usize) {
        self.write(command().change(Change::CreateNode(Box::new(record(n))))).await;
        self.start(n);
        self.until(n, "the member to run", |r| r.raft.raft_id.is_none()).await;
        let raft_id = self.members[&self.leader().await].1.borrow().tables.next_raft_id;
        self.change_membership(MembershipChangeKind::AddLearner { node: node_id(n), raft_id, addr: String::new() })
            .await;
        self.until(n, "it learns", |r| r.tables.membership_of(node_id(n)) == Membership::Learner).await;
        self.change_membership(MembershipChangeKind::PromoteLearner { node: node_id(n), raft_id }).await;
    }
    pub async fn three() -> Self {
        let mut c = Self::new().await;
        c.start(1);
        c.write(found()).await;
        c.join(2).await;
        c.join(3).await;
        c
    }
}

pub fn value(replica: &Replica) -> Option<&str> {
    replica.tables.nodes.get(&node_id(1))?.labels.get("a").map(String::as_str)
}
