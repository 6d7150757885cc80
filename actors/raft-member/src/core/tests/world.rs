//! A small deterministic network of cores: virtual time, delays, cut links, disks that lose unsynced writes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_messages::protocol::{Applied, ProposeError, ReadError, SnapshotOutcome};
use muster_messages::wire::{PacketKind, RaftPacket};
use muster_messages::{
    Change, ClusterId, ClusterRecord, Command, Incarnation, Liveness, MembershipChange, MembershipChangeKind, Moment,
    Name, NodeId, NodeRecord, Principal, RaftId, Revision, Rng, Role, Secret, WallTime,
};

use crate::core::{Answer, AskId, Input, LogPoint, Notice, OutboundSnapshot, RaftConfig, RaftCore, Recovered};
use crate::disk::{LogDisk, SimDisk};

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn node_id(n: usize) -> NodeId {
    NodeId::from_entropy(0xabcd_0000_0000 + n as u128)
}

pub fn record(n: usize, role: Role) -> NodeRecord {
    NodeRecord {
        addr: format!("10.0.0.{n}:4400"),
        release: "0.1.0".into(),
        liveness: Liveness::Ready,
        ..NodeRecord::new(node_id(n), format!("n{n}").parse::<Name>().unwrap(), role, WallTime(0))
    }
}

pub fn found(level: u32) -> Command {
    let cluster = ClusterRecord {
        id: ClusterId::from_entropy(7),
        name: "test".parse().unwrap(),
        incarnation: Incarnation(1),
        feature_level: level,
        root_cert_pem: "root".into(),
        root_key_pem: Secret::new("key"),
        founded_at: WallTime(0),
        revision: Revision(0),
    };
    let founder = Box::new(record(1, Role::Manager));
    command().change(Change::Found { cluster: Box::new(cluster), founder, tokens: vec![] })
}

pub fn command() -> Command {
    Command::idempotent(WallTime(0), Principal::Operator, "test")
}

pub fn label(key: &str, value: &str) -> Command {
    command().change(Change::UpdateLabels {
        node: node_id(1),
        add: [(key.to_owned(), value.to_owned())].into(),
        remove: vec![],
    })
}

pub fn membership_change(kind: MembershipChangeKind) -> MembershipChange {
    MembershipChange { at: WallTime(0), by: Principal::Operator, kind }
}

pub struct Node {
    pub core: Option<RaftCore>,
    pub disk: SimDisk,
    inbox: VecDeque<Input>,
    /// Writes are synced this long after they were handed over; `None`: the disk hangs.
    pub disk_takes: Option<Duration>,
    busy: bool,
    wake: Option<Moment>,
    pub notices: Vec<(Moment, Notice)>,
}

enum Event {
    Packets { to: NodeId, from: NodeId, member_id: RaftId, packets: Vec<RaftPacket>, snapshot: Option<Vec<u8>> },
    Synced { node: usize, life: u64, number: u64 },
    Received { node: usize, life: u64, input: Input },
}

pub struct World {
    pub now: Moment,
    pub nodes: BTreeMap<usize, Node>,
    events: BTreeMap<(Moment, u64), Event>,
    seq: u64,
    lives: BTreeMap<usize, u64>,
    pub rng: Rng,
    pub config: RaftConfig,
    /// Packets from the first to the second node are lost.
    pub cut_links: BTreeSet<(usize, usize)>,
    pub loss_percent: u64,
    pub answers: BTreeMap<AskId, Vec<Answer>>,
    next_ask: u64,
    pub packets: u64,
    /// Rejected appends among them.
    pub rejected_appends: u64,
    /// Snapshots cannot be written.
    pub no_room: bool,
    pub snapshots_tried: u64,
    /// A snapshot takes this long, and arrives in pieces a tenth of that apart.
    pub snapshots_take: Duration,
    /// This node refuses snapshots.
    pub refuses_snapshots: Option<usize>,
    /// The snapshots sent, and the number of their encodings.
    pub snapshots_sent: Vec<(usize, u64)>,
    pub encoded: BTreeSet<u64>,
    /// Of the cluster that is founded.
    pub level: u32,
    /// The states of the members may differ.
    pub unequal: bool,
    /// Members that reported that their data cannot be trusted.
    pub lost: BTreeMap<usize, String>,
    /// Transfers that the leader stopped, by receiver and index.
    pub stopped: BTreeSet<(usize, u64)>,
    /// This node's heartbeat responses name the last possible round.
    pub claims_future_rounds: Option<usize>,
}

impl World {
    pub fn seeded(seed: u64) -> Self {
        Self {
            now: Moment(10_000_000),
            nodes: BTreeMap::new(),
            events: BTreeMap::new(),
            seq: 0,
            lives: BTreeMap::new(),
            rng: Rng::seeded(seed),
            config: RaftConfig::default(),
            cut_links: BTreeSet::new(),
            loss_percent: 0,
            answers: BTreeMap::new(),
            next_ask: 0,
            packets: 0,
            rejected_appends: 0,
            no_room: false,
            snapshots_tried: 0,
            snapshots_take: ms(1),
            refuses_snapshots: None,
            snapshots_sent: Vec::new(),
            encoded: BTreeSet::new(),
            stopped: BTreeSet::new(),
            lost: BTreeMap::new(),
            level: 1,
            unequal: false,
            claims_future_rounds: None,
        }
    }

    /// Node 1 founds; nodes up to `n` join one after the other and become voters.
    pub fn cluster(seed: u64, n: usize) -> Self {
        let mut w = Self::seeded(seed);
        w.grow(n);
        w
    }
    pub fn grow(&mut self, n: usize) {
        self.start_founder();
        self.until("a founder leads", |w| w.leading() == Some(1));
        let ask = self.propose(1, found(self.level));
        self.applied(ask);
        for i in 2..=n {
            self.join(i);
        }
    }
    pub fn start_founder(&mut self) {
        let seed = self.rng.sample();
        let core = RaftCore::found(self.config.clone(), node_id(1), seed, self.now, logger()).unwrap();
        self.add(1, core, SimDisk::default());
    }
    pub fn start_empty(&mut self, n: usize) {
        let seed = self.rng.sample();
        let core =
            RaftCore::open(self.config.clone(), node_id(n), Recovered::default(), seed, self.now, logger()).unwrap();
        self.add(n, core, SimDisk::default());
    }
    /// A node that restarts with an empty disk, and knows its former member id.
    pub fn start_empty_without(&mut self, n: usize, lost: RaftId) {
        let seed = self.rng.sample();
        let core = RaftCore::open(self.config.clone(), node_id(n), Recovered::default(), seed, self.now, logger());
        self.add(n, core.unwrap().without(Some(lost)), SimDisk::default());
    }
    fn add(&mut self, n: usize, core: RaftCore, disk: SimDisk) {
        *self.lives.entry(n).or_default() += 1;
        let node = Node {
            core: Some(core),
            disk,
            inbox: VecDeque::new(),
            disk_takes: Some(ms(1)),
            busy: false,
            wake: None,
            notices: vec![],
        };
        self.nodes.insert(n, node);
        self.sessions(n, true);
    }
    pub fn create(&mut self, n: usize) {
        let l = self.leading().expect("a leader");
        let ask = self.propose(l, command().change(Change::CreateNode(Box::new(record(n, Role::Manager)))));
        self.applied(ask);
    }
    pub fn join(&mut self, n: usize) -> RaftId {
        self.create(n);
        self.start_empty(n);
        let id = self.add_learner(n);
        let l = self.leading().unwrap();
        self.until("the learner catches up", |w| {
            w.core(n).tables().membership_of(node_id(n)) == muster_messages::Membership::Learner
        });
        let ask = self.propose_membership(l, MembershipChangeKind::PromoteLearner { node: node_id(n), raft_id: id });
        self.applied(ask);
        id
    }
    pub fn add_learner(&mut self, n: usize) -> RaftId {
        let l = self.leading().expect("a leader");
        let raft_id = self.core(l).tables().next_raft_id;
        let addr = format!("10.0.0.{n}:4400");
        let ask = self.propose_membership(l, MembershipChangeKind::AddLearner { node: node_id(n), raft_id, addr });
        self.applied(ask);
        raft_id
    }

    // ---- requests

    pub fn ask(&mut self) -> AskId {
        self.next_ask += 1;
        AskId(self.next_ask)
    }
    pub fn propose(&mut self, n: usize, command: Command) -> AskId {
        self.propose_within(n, command, ms(5000))
    }
    pub fn propose_within(&mut self, n: usize, command: Command, within: Duration) -> AskId {
        let ask = self.ask();
        let deadline = self.now + within;
        self.tell(n, Input::Propose { ask, command: Box::new(command), deadline });
        ask
    }
    pub fn propose_membership(&mut self, n: usize, kind: MembershipChangeKind) -> AskId {
        self.propose_confirmed(n, kind, None)
    }
    /// It enters the log once the voters that it results in have responded, within this time.
    pub fn propose_confirmed(&mut self, n: usize, kind: MembershipChangeKind, within: Option<Duration>) -> AskId {
        let (ask, confirm_by) = (self.ask(), within.map(|within| self.now + within));
        self.tell(n, Input::ProposeMembership { ask, change: Box::new(membership_change(kind)), confirm_by });
        ask
    }
    pub fn read(&mut self, n: usize) -> AskId {
        let ask = self.ask();
        let deadline = self.now + ms(3000);
        self.tell(n, Input::Read { ask, deadline });
        ask
    }
    pub fn tell(&mut self, n: usize, input: Input) {
        self.nodes.get_mut(&n).expect("a node").inbox.push_back(input);
    }
    pub fn answer(&self, ask: AskId) -> Option<&Answer> {
        self.answers.get(&ask).map(|a| {
            assert_eq!(a.len(), 1, "PROPOSE-1: {ask:?} was answered {a:?}");
            &a[0]
        })
    }
    pub fn outcome(&mut self, ask: AskId) -> Result<Applied, ProposeError> {
        self.until("an answer", |w| w.answer(ask).is_some());
        match self.answer(ask) {
            Some(Answer::Proposed(_, result)) => result.clone(),
            other => panic!("{other:?}"),
        }
    }
    pub fn applied(&mut self, ask: AskId) -> Revision {
        self.outcome(ask).expect("applied").revision
    }
    pub fn read_outcome(&mut self, ask: AskId) -> Result<std::sync::Arc<muster_messages::Replica>, ReadError> {
        self.until("a read's answer", |w| w.answer(ask).is_some());
        match self.answer(ask) {
            Some(Answer::Read(_, result)) => result.clone(),
            other => panic!("{other:?}"),
        }
    }

    // ---- state

    pub fn core(&self, n: usize) -> &RaftCore {
        self.nodes[&n].core.as_ref().expect("it runs")
    }
    pub fn up(&self) -> impl Iterator<Item = (usize, &RaftCore)> {
        self.nodes.iter().filter_map(|(n, node)| Some((*n, node.core.as_ref()?)))
    }
    /// The leader of the highest term that may decide.
    pub fn leading(&self) -> Option<usize> {
        let leaders = self.up().map(|(n, c)| (n, c.status(self.now))).filter(|(_, s)| s.leading);
        leaders.max_by_key(|(_, s)| s.term).map(|(n, _)| n)
    }
    /// The member id of a running node, as it knows it.
    pub fn member_id(&self, n: usize) -> Option<RaftId> {
        self.nodes[&n].core.as_ref()?.tables().member_of(node_id(n)).map(|m| m.raft_id)
    }
    pub fn label(&self, n: usize, key: &str) -> Option<String> {
        self.core(n).tables().nodes.get(&node_id(1))?.labels.get(key).cloned()
    }
    pub fn number_of(node: NodeId) -> usize {
        (1..100).find(|n| node_id(*n) == node).expect("a node of the test")
    }

    // ---- faults

    pub fn crash(&mut self, n: usize, survive: usize) {
        *self.lives.get_mut(&n).unwrap() += 1;
        let node = self.nodes.get_mut(&n).unwrap();
        node.core = None;
        node.inbox.clear();
        node.wake = None;
        node.busy = false;
        node.disk.crash(survive);
        self.sessions(n, false);
    }
    pub fn restart(&mut self, n: usize) {
        let seed = self.rng.sample();
        let node = self.nodes.get_mut(&n).unwrap();
        let recovered = node.disk.recover().unwrap();
        node.disk_takes = Some(ms(1));
        node.core = Some(RaftCore::open(self.config.clone(), node_id(n), recovered, seed, self.now, logger()).unwrap());
        self.sessions(n, true);
    }
    fn sessions(&mut self, n: usize, up: bool) {
        for (m, _) in self.up().map(|(m, _)| (m, ())).collect::<Vec<_>>() {
            if m != n {
                self.tell(m, Input::PeerSession { node: node_id(n), up });
                if self.nodes[&n].core.is_some() {
                    self.tell(n, Input::PeerSession { node: node_id(m), up });
                }
            }
        }
    }
    pub fn isolate(&mut self, n: usize) {
        for m in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.cut_links.insert((n, m));
            self.cut_links.insert((m, n));
            if m != n && self.nodes[&m].core.is_some() {
                self.tell(m, Input::PeerSession { node: node_id(n), up: false });
                self.tell(n, Input::PeerSession { node: node_id(m), up: false });
            }
        }
    }
    pub fn clear_faults(&mut self) {
        self.cut_links.clear();
        for n in self.nodes.keys().copied().collect::<Vec<_>>() {
            if self.nodes[&n].core.is_some() {
                self.sessions(n, true);
            }
        }
    }

    // ---- time

    pub fn run(&mut self, d: Duration) {
        let end = self.now + d;
        while self.now < end {
            self.advance();
        }
    }
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&World) -> bool) {
        let end = self.now + ms(30_000);
        while !holds(self) {
            assert!(self.now < end, "never: {what}\n{}", self.describe());
            self.advance();
        }
    }
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (n, c) in self.up() {
            text +=
                &format!("n{n}: {:?} {:?} {:?} {:?}\n", c.status(self.now), c.log_span(), c.in_flight(), c.counters());
        }
        text
    }

    /// One millisecond.
    fn advance(&mut self) {
        self.now = self.now + ms(1);
        while let Some(first) = self.events.first_entry()
            && first.key().0 <= self.now
        {
            let event = first.remove();
            self.handle_event(event);
        }
        let tick = (self.now.0 / 1000) % 20;
        for n in self.nodes.keys().copied().collect::<Vec<_>>() {
            let now = self.now;
            let node = self.nodes.get_mut(&n).unwrap();
            if node.core.is_none() {
                continue;
            }
            if tick == (n as u64 * 7) % 20 {
                node.inbox.push_back(Input::Tick);
            }
            if node.wake.is_some_and(|at| at <= now) {
                node.wake = None;
                node.inbox.push_back(Input::Woke);
            }
            if !node.inbox.is_empty() {
                self.turn(n);
            }
        }
        self.check();
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Packets { to, from, member_id, packets, snapshot } => {
                let n = Self::number_of(to);
                if self.nodes.get(&n).is_none_or(|n| n.core.is_none()) {
                    return;
                }
                self.packets += packets.len() as u64;
                let rejected = packets.iter().filter(|p| p.reject && p.kind == PacketKind::AppendResponse);
                self.rejected_appends += rejected.count() as u64;
                match snapshot {
                    None => self.tell(n, Input::Packets { node: from, peer_member: Some(member_id), packets }),
                    Some(data) => {
                        let packet = Box::new(packets.into_iter().next().unwrap());
                        self.tell(
                            n,
                            Input::SnapshotReceived { node: from, peer_member: Some(member_id), packet, data },
                        );
                    }
                }
            }
            Event::Synced { node, life, number } if self.lives[&node] == life => {
                let n = self.nodes.get_mut(&node).unwrap();
                n.busy = false;
                if n.disk_takes.is_some() {
                    n.disk.sync(number);
                    n.inbox.push_back(Input::Persisted { number });
                    self.start_sync(node);
                }
            }
            Event::Received { node, life, input } if self.lives[&node] == life => self.tell(node, input),
            _ => {}
        }
    }

    pub fn start_sync(&mut self, n: usize) {
        let life = self.lives[&n];
        let node = self.nodes.get_mut(&n).unwrap();
        if let (false, Some(number), Some(takes)) = (node.busy, node.disk.newest(), node.disk_takes) {
            node.busy = true;
            self.schedule(takes, Event::Synced { node: n, life, number });
        }
    }

    fn turn(&mut self, n: usize) {
        let life = self.lives[&n];
        let now = self.now;
        loop {
            let node = self.nodes.get_mut(&n).unwrap();
            let core = node.core.as_mut().unwrap();
            while let Some(input) = node.inbox.pop_front() {
                core.step(now, input);
            }
            let batch = core.turn(now).expect("no fault");
            node.wake = batch.wake_at;
            node.notices.extend(batch.notices.into_iter().map(|notice| (now, notice)));
            for write in batch.make_durable {
                node.disk.put(write);
            }
            let full = self.no_room;
            let taken = batch.take_snapshot.map(|job| (!full).then(|| node.disk.take_snapshot(&job)));
            self.start_sync(n);
            if let Some(head) = taken {
                self.snapshots_tried += 1;
                self.schedule(ms(5), Event::Received { node: n, life, input: Input::SnapshotTaken { head } });
            }
            for answer in batch.answers {
                let ask = match &answer {
                    Answer::Proposed(ask, _)
                    | Answer::Read(ask, _)
                    | Answer::Transferred(ask, _)
                    | Answer::Reachable(ask, _) => *ask,
                };
                self.answers.entry(ask).or_default().push(answer);
            }
            for out in batch.send {
                self.post(n, out.node, vec![out.packet], None);
            }
            if let Some(job) = batch.digest_state {
                let input = Input::StateDigested { index: job.index, digest: Some(job.run()) };
                self.schedule(ms(3), Event::Received { node: n, life, input });
            }
            if let Some(why) = batch.lost {
                self.lost.entry(n).or_insert(why);
            }
            for stop in batch.stop_snapshots {
                self.stopped.insert((Self::number_of(stop.node), stop.index));
            }
            for out in batch.send_snapshots {
                self.send_snapshot(n, out);
            }
            if !batch.again {
                return;
            }
        }
    }

    fn send_snapshot(&mut self, n: usize, mut out: OutboundSnapshot) {
        let life = self.lives[&n];
        let (head, data) = out.job.run_shared();
        let (to, index, receiver) = (out.packet.to, head.index, Self::number_of(out.node));
        self.snapshots_sent.push((receiver, index));
        self.encoded.insert(std::sync::Arc::as_ptr(&data) as u64);
        out.packet.snapshot = Some(head);
        let outcome = if self.refuses_snapshots == Some(receiver) {
            SnapshotOutcome::Refused("it is too large".to_owned())
        } else if self.post_after(self.snapshots_take, n, out.node, vec![out.packet], Some(data.to_vec())) {
            SnapshotOutcome::Delivered
        } else {
            SnapshotOutcome::Lost("the link was cut".to_owned())
        };
        for tenth in 1..10 {
            let input = Input::SnapshotProgress { to, index };
            self.schedule(self.snapshots_take / 10 * tenth, Event::Received { node: n, life, input });
        }
        let input = Input::SnapshotSent { to, index, outcome };
        self.schedule(self.snapshots_take + ms(5), Event::Received { node: n, life, input });
    }

    fn post(&mut self, from: usize, to: NodeId, packets: Vec<RaftPacket>, snapshot: Option<Vec<u8>>) -> bool {
        self.post_after(Duration::ZERO, from, to, packets, snapshot)
    }

    fn post_after(
        &mut self,
        after: Duration,
        from: usize,
        to: NodeId,
        mut packets: Vec<RaftPacket>,
        snapshot: Option<Vec<u8>>,
    ) -> bool {
        if self.claims_future_rounds == Some(from) {
            for round in packets.iter_mut().filter_map(|packet| packet.context.get_mut(16..)) {
                round.fill(0xff);
            }
        }
        let lost = self.cut_links.contains(&(from, Self::number_of(to))) || self.rng.sample() % 100 < self.loss_percent;
        if !lost {
            let delay = Duration::from_micros(200 + self.rng.sample() % 1500);
            let member_id = packets[0].from;
            let bytes = muster_messages::wire::encode(&packets).expect("it fits a frame").len();
            assert!(bytes < 900 << 10, "{bytes} bytes in one packet");
            self.schedule(after + delay, Event::Packets { to, from: node_id(from), member_id, packets, snapshot });
        }
        !lost
    }
    fn schedule(&mut self, after: Duration, event: Event) {
        self.seq += 1;
        self.events.insert((self.now + after, self.seq), event);
    }

    /// Invariants that hold after every step.
    fn check(&self) {
        let mut leaders: BTreeMap<u64, usize> = BTreeMap::new();
        for (n, c) in self.up() {
            let s = c.status(self.now);
            if s.role == muster_messages::RaftRole::Leader
                && let Some(other) = leaders.insert(s.term.0, n)
            {
                panic!("n{other} and n{n} both lead term {}", s.term);
            }
        }
        if !self.now.0.is_multiple_of(50_000) {
            return;
        }
        let mut terms: BTreeMap<u64, u64> = BTreeMap::new();
        let mut tables = BTreeMap::new();
        for (n, c) in self.up() {
            let commit = c.status(self.now).commit.0;
            for LogPoint { index, term } in c.log_terms().into_iter().filter(|p| p.index <= commit) {
                let known = *terms.entry(index).or_insert(term);
                assert_eq!(known, term, "n{n}: committed entry {index} differs");
            }
            let at = c.tables().revision;
            let known = tables.entry(at).or_insert_with(|| c.tables().clone());
            assert!(self.unequal || known == c.tables(), "n{n}: its state at {at} differs");
            let (voters, learners) = c.configuration();
            let members = &c.tables().members;
            if !members.is_empty() {
                let of = |v: bool| members.values().filter(|m| m.voter == v).map(|m| m.raft_id.0).collect::<Vec<_>>();
                assert_eq!((voters, learners), (of(true), of(false)), "n{n}: MEMBER-2");
            }
        }
    }
}

pub fn logger() -> slog::Logger {
    slog::Logger::root(slog::Discard, slog::o!())
}
