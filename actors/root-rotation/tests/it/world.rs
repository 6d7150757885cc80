//! A cluster of one leader's core, a log that applies its proposals, real roots, and nodes that follow them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_messages::protocol::{ProposeError, RootsChange, RootsChanged};
use muster_messages::*;
use muster_pki::*;
use muster_root_rotation::core::*;
use muster_root_rotation::{Config, sign};
use muster_store::invariants;

pub const NOW: WallTime = WallTime(1_800_000_000_000);
pub const HOUR: Duration = Duration::from_secs(3600);

pub struct World {
    pub core: RootRotation,
    pub config: Config,
    /// The state that every member has applied.
    pub log: Tables,
    pub now: Moment,
    pub wall: WallTime,
    pub answers: BTreeMap<AskId, Result<Answer, ErrorBody>>,
    /// While set, proposals wait in `proposals`.
    pub hold: bool,
    pub proposals: VecDeque<(StepId, Command)>,
    pub alarm: Option<Moment>,
    /// Nodes that do not acknowledge roots.
    pub deaf: BTreeSet<NodeId>,
    /// Nodes that do not renew.
    pub silent: BTreeSet<NodeId>,
    /// Voters that do not answer, although they are recorded as up.
    pub mute: BTreeSet<RaftId>,
    /// The voters that were asked before a revocation, and how many must answer.
    pub checks: Vec<(BTreeSet<RaftId>, usize)>,
    /// Nodes in the order in which they were asked to renew.
    pub asked: Vec<NodeId>,
    /// While set, the core's replica does not change.
    pub blind: bool,
    /// How often it asked for a newer replica.
    pub catches_up: usize,
    /// What the command is asked.
    pub above: Vec<(RootId, String)>,
    /// Why it has not certified a root.
    pub not_certified: Vec<String>,
    /// Whether each of them passes soon.
    pub asked_later: Vec<bool>,
    /// Certificates are recorded as below feature level 3.
    pub without_digests: bool,
    last: u64,
    serials: u64,
}

pub fn id(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

impl World {
    /// Managers are the nodes from 1 on, workers those from 101 on. Node 1 leads.
    pub fn new(managers: u128, workers: u128) -> Self {
        Self::with(Config { retire_after: Duration::ZERO, ..Config::default() }, managers, workers)
    }

    pub fn with(config: Config, managers: u128, workers: u128) -> Self {
        let cluster = ClusterId::from_entropy(1);
        let root = Root::create(cluster, NOW).unwrap();
        let mut world = Self {
            core: RootRotation::new(id(1), config.clone()),
            config,
            log: Tables::default(),
            now: Moment(0),
            wall: NOW,
            answers: BTreeMap::new(),
            hold: false,
            proposals: VecDeque::new(),
            alarm: None,
            deaf: BTreeSet::new(),
            silent: BTreeSet::new(),
            mute: BTreeSet::new(),
            checks: Vec::new(),
            asked: Vec::new(),
            blind: false,
            catches_up: 0,
            above: Vec::new(),
            not_certified: Vec::new(),
            asked_later: Vec::new(),
            without_digests: false,
            last: 0,
            serials: 0,
        };
        let record = ClusterRecord {
            id: cluster,
            name: "default".parse().unwrap(),
            incarnation: Incarnation(1),
            feature_level: FEATURE_LEVEL,
            root_cert_pem: root.cert_pem,
            root_key_pem: root.key_pem,
            founded_at: NOW,
            revision: Revision(0),
        };
        let founder = Box::new(NodeRecord::new(id(1), "n1".parse().unwrap(), Role::Manager, NOW));
        world.change(Change::Found { cluster: Box::new(record), founder, tokens: Vec::new() });
        for n in 2..=managers {
            world.add(n, Role::Manager);
        }
        for n in 1..=managers {
            let addr = format!("n{n}:1");
            let member = Member { raft_id: RaftId(n as u64), node: id(n), addr, voter: true };
            world.log.members.insert(RaftId(n as u64), member);
            world.log.next_raft_id = RaftId(n as u64 + 1);
            world.ready(n, Liveness::Ready);
            world.renew(id(n));
        }
        for n in 101..101 + workers {
            world.add(n, Role::Worker);
        }
        world.show();
        world
    }

    pub fn add(&mut self, n: u128, role: Role) {
        let record = NodeRecord::new(id(n), format!("n{n}").parse().unwrap(), role, NOW);
        self.change(Change::CreateNode(Box::new(record)));
        self.ready(n, Liveness::Ready);
        self.renew(id(n));
    }

    /// An entry of another proposer.
    pub fn change(&mut self, change: Change) {
        let command = Command::idempotent(self.wall, Principal::Operator, "test").change(change);
        self.apply(&command).unwrap();
        self.show();
    }

    pub fn ready(&mut self, n: u128, liveness: Liveness) {
        let node = self.log.nodes.get_mut(&id(n)).unwrap();
        std::sync::Arc::make_mut(node).liveness = liveness;
        self.log.revision = self.log.revision.next();
    }

    /// A node gets a certificate of the root that signs, and connects with it.
    pub fn renew(&mut self, node: NodeId) {
        self.serials += 1;
        let record = self.log.nodes[&node].clone();
        let issuer = root_id_of_pem(&self.log.cluster.as_ref().unwrap().root_cert_pem).unwrap();
        let certificate = Box::new(IssuedCertificate {
            serial: format!("{:x}", self.serials),
            role: record.role,
            granted: Some(record.granted),
            not_after: self.wall.plus(HOUR * 24 * 90),
            pin: Some(CertificatePin { fingerprint: [0; 32], key: [0; 32] }).filter(|_| !self.without_digests),
            issuer: Some(issuer),
        });
        let newest = self.log.certificates.get(&node).and_then(|row| row.current.as_ref());
        let replaces = newest.map(|newest| newest.serial.clone());
        let command = Command::idempotent(self.wall, Principal::Node(node), "test").change(Change::IssueCertificate {
            node,
            certificate,
            held: None,
            replaces,
        });
        self.apply(&command).unwrap();
        let seen = Change::CertificateSeen { node, serial: format!("{:x}", self.serials) };
        self.apply(&Command::idempotent(self.wall, Principal::Cluster, "test").change(seen)).unwrap();
    }

    pub fn apply(&mut self, command: &Command) -> Result<Revision, CommandRefusal> {
        let at = self.log.revision.next();
        let before = self.log.clone();
        muster_store::apply(&mut self.log, at, command)?;
        invariants::check(&self.log).unwrap();
        invariants::check_step(&before, &self.log).unwrap();
        self.check_published(&before);
        for change in &command.changes {
            if let Change::AskRotate(node) = change {
                self.asked.push(*node);
            }
        }
        Ok(at)
    }

    /// ROOT-2. A root that signed before is known.
    fn check_published(&self, before: &Tables) {
        let active = |tables: &Tables| tables.authorities.active().map(|(id, _)| id);
        let (was, is) = (active(before), active(&self.log));
        if was.is_none() || was == is {
            return;
        }
        let known = before.authorities.roots[&is.unwrap()].activated_at.is_some();
        if known {
            return;
        }
        for member in self.log.members.values() {
            let ready = self.log.nodes[&member.node].liveness == Liveness::Ready;
            let trusts = before.authorities.is_trusted_by(member.node);
            assert!(!ready || trusts, "ROOT-2: {} does not trust the root that signs", member.node);
        }
    }

    pub fn show(&mut self) {
        if !self.blind {
            self.input(Input::Replica(Box::new(self.log.clone())));
        }
    }

    pub fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.core.step(self.now, self.wall, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Sign { step, what } => {
                    let signed = sign(self.core.tables(), &self.config, what, self.wall);
                    self.input(Input::Signed(step, signed));
                }
                Effect::CheckReachable { step, members, needed } => {
                    // The question ends with the last answer that is needed: the slowest are those with the greatest ids.
                    let answering: BTreeSet<RaftId> = members.difference(&self.mute).copied().take(needed).collect();
                    self.checks.push((members, needed));
                    self.input(Input::ReachabilityChecked(step, Some(answering)));
                }
                Effect::Propose { step, command } => {
                    self.proposals.push_back((step, command));
                    if !self.hold {
                        self.settle();
                    }
                }
                Effect::Answer(ask, answer) => {
                    assert!(self.answers.insert(ask, answer).is_none(), "answered once");
                }
                Effect::CatchUp(_) => {
                    self.catches_up += 1;
                    self.show();
                }
                Effect::AskAbove { root, csr_pem } => self.above.push((root, csr_pem)),
                Effect::NotCertified { why, later, .. } => {
                    self.not_certified.push(why);
                    self.asked_later.push(later);
                }
                Effect::StepFailed(_) => {}
                Effect::WakeAt(at) => self.alarm = Some(self.alarm.map_or(at, |earlier| earlier.min(at))),
            }
        }
    }

    pub fn settle(&mut self) {
        while let Some((step, command)) = self.proposals.pop_front() {
            let result = self.apply(&command).map_err(ProposeError::Refused);
            self.show();
            self.input(Input::Proposed(step, result));
        }
    }

    /// The oldest waiting proposal ends like this, without being applied.
    pub fn fail(&mut self, why: ProposeError) {
        let (step, _) = self.proposals.pop_front().unwrap();
        self.input(Input::Proposed(step, Err(why)));
    }

    /// Another leader, or this one after a crash: it knows only the log.
    pub fn restart(&mut self) {
        self.core = RootRotation::new(id(1), self.config.clone());
        self.proposals.clear();
        self.alarm = None;
        self.show();
    }

    pub fn request(&mut self, change: RootsChange, request: u128) -> AskId {
        self.last += 1;
        let step = OperatorStep { change, by: Principal::Operator, request: RequestId(request) };
        self.input(Input::Asked(AskId(self.last), step));
        AskId(self.last)
    }

    pub fn operator(&mut self, change: RootsChange) -> Result<RootsChanged, ErrorBody> {
        let request = 1_000 + u128::from(self.last);
        let ask = self.request(change, request);
        self.changed(ask)
    }

    pub fn changed(&self, ask: AskId) -> Result<RootsChanged, ErrorBody> {
        match self.answers[&ask].clone()? {
            Answer::Changed(changed) => Ok(changed),
            other => panic!("{other:?}"),
        }
    }

    pub fn rotate(&mut self) -> RootId {
        self.operator(RootsChange::Rotate { automatic: true, compromised: false }).unwrap().root.unwrap()
    }

    pub fn acknowledge(&mut self, node: NodeId) -> AskId {
        self.last += 1;
        self.input(Input::Trusted(AskId(self.last), node, self.log.authorities.generation));
        AskId(self.last)
    }

    /// Every node that is ready does what it is asked to do.
    pub fn nodes_act(&mut self) {
        let ready = self.log.nodes.values().filter(|node| node.liveness == Liveness::Ready);
        let ready: Vec<NodeId> = ready.map(|node| node.id).collect();
        for node in ready {
            let trusts = self.log.authorities.roots.is_empty() || self.log.authorities.is_trusted_by(node);
            if !trusts && !self.deaf.contains(&node) {
                self.acknowledge(node);
            }
            let asked = self.log.nodes[&node].certificate.as_ref().is_some_and(|c| c.state == CertificateState::Rotate);
            if asked && !self.silent.contains(&node) {
                self.renew(node);
            }
        }
        self.show();
    }

    pub fn pass(&mut self, d: Duration) {
        self.now = self.now + d;
        self.wall = self.wall.plus(d);
        if self.alarm.is_some_and(|at| at <= self.now) {
            self.alarm = None;
            self.input(Input::Woke);
        }
    }

    /// Nodes act and time passes until nothing changes for ten seconds.
    pub fn run(&mut self) {
        let mut quiet = 0;
        for _ in 0..20_000 {
            let before = self.log.revision;
            self.nodes_act();
            self.pass(Duration::from_millis(100));
            quiet = if self.log.revision == before { quiet + 1 } else { 0 };
            if quiet > 100 {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    pub fn state(&self, root: RootId) -> Option<AuthorityState> {
        self.log.authorities.roots.get(&root).map(|root| root.state)
    }

    /// The root that signs.
    pub fn active(&self) -> RootId {
        root_id_of_pem(&self.log.cluster.as_ref().unwrap().root_cert_pem).unwrap()
    }

    /// Nodes whose newest certificate is not of the root that signs.
    pub fn behind(&self) -> Vec<NodeId> {
        let nodes = self.log.nodes.keys().copied();
        nodes.filter(|node| self.log.newest_issuer(*node).is_some_and(|issuer| issuer != self.active())).collect()
    }
}
