//! A small world for stories about roles: real tables (`muster-store`) behind a Raft that is played, nodes that fetch
//! certificates and ask for seats by themselves, one role manager on whoever leads. Time moves only when told to.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{DataLoss, SeatReply, SeatRequest};
use muster_messages::*;
use muster_role_manager::Config;
use muster_role_manager::core::*;

pub const TICK: Duration = Duration::from_millis(100);
/// A second of played time.
pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
pub fn id(n: u64) -> NodeId {
    NodeId::from_entropy(u128::from(n))
}

/// What a machine does by itself.
#[derive(Clone, Debug)]
pub struct Machine {
    pub up: bool,
    /// Others cannot dial it.
    pub firewalled: bool,
    /// Does not fetch certificates / ask for seats.
    pub no_certificates: bool,
    pub no_knocks: bool,
    pub refuses_leadership: bool,
    pub addr: String,
    pub last_ack: Option<Moment>,
    pub matched: u64,
    /// The seat whose data it has on disk.
    pub held: Option<RaftId>,
    pub data_lost: Option<DataLoss>,
    knocking: Option<AskId>,
    knock_after: Moment,
    pub replies: Vec<SeatReply>,
}

#[derive(Clone, Debug)]
enum Proposal {
    Command(Box<Command>),
    Seat(SeatChange),
}

pub struct World {
    pub now: Now,
    pub tables: Tables,
    pub machines: BTreeMap<NodeId, Machine>,
    pub leader: Option<NodeId>,
    pub term: Term,
    pub core: Option<RoleManager>,
    pub slot: Option<Checkpoint>,
    pub config: Config,
    /// Proposals that are not applied yet, with the step that waits for each (none: its proposer is gone).
    flight: VecDeque<(Option<StepId>, Proposal)>,
    probes: Vec<(StepId, NodeId)>,
    transfers: Vec<(StepId, NodeId)>,
    inputs: VecDeque<Input>,
    pub answers: BTreeMap<AskId, Answer>,
    knocks: BTreeMap<AskId, NodeId>,
    open: BTreeSet<AskId>,
    pub lost_asks: BTreeSet<AskId>,
    next_ask: u64,
    next_request: u128,
    wake: Option<Moment>,
    pub wakes: usize,
    /// Nothing is applied / no seat change is applied / no dial-back ends while these are set.
    pub hold_commits: bool,
    pub hold_seats: bool,
    pub hold_probes: bool,
    /// The next step crashes the role manager after its checkpoint and before its effects.
    pub crash_before_effects: bool,
    /// Answers to requests for a seat are kept, and not given to the machine.
    pub keep_seat_answers: bool,
    pub log: Vec<String>,
    /// The first promise broken.
    pub broken: Option<String>,
}

impl World {
    /// `managers` voters (n1 leads) and `workers` workers, all ready and settled.
    pub fn new(managers: u64, workers: u64) -> Self {
        let mut world = Self::bare();
        for n in 1..=managers + workers {
            let role = if n <= managers { Role::Manager } else { Role::Worker };
            world.install(n, role, n <= managers);
        }
        world.elect(id(1));
        world.run_for(secs(1));
        world.log.clear();
        world
    }

    fn bare() -> Self {
        let mut tables = Tables { next_raft_id: RaftId(1), ..Tables::default() };
        muster_store::apply_empty(&mut tables, Revision(1));
        let wall = WallTime(1_800_000_000_000);
        Self {
            now: Now { at: Moment(3_600_000_000), wall },
            tables,
            machines: BTreeMap::new(),
            leader: None,
            term: Term(0),
            core: None,
            slot: None,
            config: Config::default(),
            flight: VecDeque::new(),
            probes: Vec::new(),
            transfers: Vec::new(),
            inputs: VecDeque::new(),
            answers: BTreeMap::new(),
            knocks: BTreeMap::new(),
            open: BTreeSet::new(),
            lost_asks: BTreeSet::new(),
            next_ask: 0,
            next_request: 1 << 100,
            wake: None,
            wakes: 0,
            hold_commits: false,
            hold_seats: false,
            hold_probes: false,
            crash_before_effects: false,
            keep_seat_answers: false,
            log: Vec::new(),
            broken: None,
        }
    }

    /// Writes a settled node straight into the tables.
    pub fn install(&mut self, n: u64, role: Role, voter: bool) {
        let (node, at) = (id(n), self.tables.revision.next());
        let addr = format!("127.0.0.1:44{n:02}");
        self.tables.revision = at;
        let not_after = self.now.wall.plus(secs(90 * 86_400));
        let certificate = CertificateRecord {
            role,
            serial: format!("{n:x}"),
            granted: Some(at),
            not_after,
            state: CertificateState::Issued,
        };
        let record = NodeRecord {
            id: node,
            name: format!("n{n}").parse().unwrap(),
            addr: addr.clone(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
            desired_role: role,
            role,
            granted: at,
            removing: None,
            certificate: Some(certificate),
            last_not_after: not_after,
            liveness: Liveness::Ready,
            liveness_since: self.now.wall,
            created_at: self.now.wall,
            generation: Generation(1),
            revision: at,
        };
        self.tables.nodes.insert(node, Arc::new(record));
        let mut held = None;
        if voter {
            let raft_id = self.tables.next_raft_id;
            self.tables.next_raft_id = raft_id.next();
            self.tables.members.insert(raft_id, Member { node, raft_id, addr: addr.clone(), voter: true });
            held = Some(raft_id);
        }
        let machine = Machine {
            up: true,
            firewalled: false,
            no_certificates: false,
            no_knocks: false,
            refuses_leadership: false,
            addr,
            last_ack: None,
            matched: 0,
            held,
            data_lost: None,
            knocking: None,
            knock_after: Moment(0),
            replies: Vec::new(),
        };
        self.machines.insert(node, machine);
    }

    // ---- what a story does ----

    pub fn machine(&mut self, n: u64) -> &mut Machine {
        self.machines.get_mut(&id(n)).unwrap()
    }
    /// Stops a machine; the cluster has noticed that it is down.
    pub fn stop(&mut self, n: u64) {
        self.cut(n);
        self.hear_liveness(n, Liveness::Down);
    }
    /// Stops a machine without anybody knowing yet.
    pub fn cut(&mut self, n: u64) {
        let machine = self.machine(n);
        machine.up = false;
        machine.knocking = None;
    }
    pub fn start(&mut self, n: u64) {
        self.machine(n).up = true;
        self.hear_liveness(n, Liveness::Ready);
    }
    pub fn hear_liveness(&mut self, n: u64, liveness: Liveness) {
        let change = Change::SetLiveness { node: id(n), liveness };
        if self.tables.nodes.contains_key(&id(n)) {
            self.apply_directly(change);
        }
    }
    /// Lets everybody forget whom they heard: as after an election.
    pub fn elect(&mut self, node: NodeId) {
        self.term = self.term.next();
        self.log.push(format!("{} leads in term {}", self.name(node), self.term));
        self.leader = Some(node);
        for machine in self.machines.values_mut() {
            machine.last_ack = None;
            machine.knocking = None;
            machine.knock_after = Moment(0);
        }
        let at = self.tables.revision.next();
        muster_store::apply_empty(&mut self.tables, at);
        self.flight.clear();
        self.slot = None;
        self.boot(node);
    }
    /// The role manager dies with work pending; the next incarnation starts from its slot.
    pub fn crash(&mut self) {
        let Some(leader) = self.leader else { return };
        self.log.push("the role manager crashes".to_owned());
        self.boot(leader);
    }
    fn boot(&mut self, node: NodeId) {
        for (step, _) in &mut self.flight {
            *step = None;
        }
        self.probes.clear();
        self.transfers.clear();
        self.inputs.clear();
        self.wake = None;
        for ask in std::mem::take(&mut self.open) {
            match self.knocks.remove(&ask) {
                Some(node) => {
                    if let Some(m) = self.machines.get_mut(&node) {
                        m.knocking = None;
                    }
                }
                None => drop(self.lost_asks.insert(ask)),
            }
        }
        self.core = Some(RoleManager::new(node, self.config.clone(), self.slot.clone()));
        self.see();
    }
    pub fn promote(&mut self, n: u64) -> AskId {
        self.wish(n, Wish::Role(Role::Manager))
    }
    pub fn demote(&mut self, n: u64) -> AskId {
        self.wish(n, Wish::Role(Role::Worker))
    }
    pub fn remove(&mut self, n: u64, force: bool) -> AskId {
        self.wish(n, Wish::Remove { force })
    }
    pub fn wish(&mut self, n: u64, wish: Wish) -> AskId {
        self.next_request += 1;
        self.wish_again(n, wish, RequestId(self.next_request))
    }
    pub fn wish_again(&mut self, n: u64, wish: Wish, request: RequestId) -> AskId {
        self.next_ask += 1;
        let ask = AskId(self.next_ask);
        self.open.insert(ask);
        let wished = Wished { ask, node: id(n), wish, by: Principal::Operator, request };
        self.inputs.push_back(Input::Wished(wished));
        ask
    }
    pub fn last_request(&self) -> RequestId {
        RequestId(self.next_request)
    }
    /// The certificate authority, the dispatcher and the founder write past the role manager.
    pub fn apply_directly(&mut self, change: Change) {
        let at = self.tables.revision.next();
        let command = Command::idempotent(self.now.wall, Principal::Operator, "test").change(change);
        let _refused = muster_store::apply(&mut self.tables, at, &command);
        self.see();
    }

    // ---- what a story looks at ----

    pub fn name(&self, node: NodeId) -> String {
        self.tables.nodes.get(&node).map_or_else(|| node.to_string(), |r| r.name.to_string())
    }
    pub fn record(&self, n: u64) -> &NodeRecord {
        self.tables.nodes.get(&id(n)).unwrap()
    }
    pub fn membership(&self, n: u64) -> Membership {
        self.tables.membership_of(id(n))
    }
    pub fn voters(&self) -> usize {
        self.tables.members.values().filter(|m| m.voter).count()
    }
    pub fn pending(&self) -> Vec<PendingView> {
        self.core.as_ref().unwrap().view().pending
    }
    pub fn reason(&self, n: u64) -> Option<WaitReason> {
        self.pending().into_iter().find(|p| p.node == id(n)).map(|p| p.reason)
    }
    pub fn message(&self, n: u64) -> String {
        self.pending().into_iter().find(|p| p.node == id(n)).unwrap().message
    }
    pub fn holds(&self, n: u64) -> bool {
        self.core.as_ref().unwrap().view().holding.contains(&id(n))
    }
    pub fn role_answer(&self, ask: AskId) -> Option<Result<bool, ErrorBody>> {
        match self.answers.get(&ask)? {
            Answer::Role(result) => Some(result.clone()),
            other => panic!("{other:?}"),
        }
    }
    pub fn removal_answer(&self, ask: AskId) -> Option<Result<(), ErrorBody>> {
        match self.answers.get(&ask)? {
            Answer::Removed(result) => Some(result.clone()),
            other => panic!("{other:?}"),
        }
    }
    pub fn error(&self, ask: AskId) -> ErrorBody {
        match &self.answers[&ask] {
            Answer::Role(Err(e)) | Answer::Removed(Err(e)) | Answer::Seat(Err(e)) => e.clone(),
            other => panic!("no error: {other:?}"),
        }
    }
    pub fn code(&self, ask: AskId) -> ErrorCode {
        self.error(ask).code
    }
    /// All four facts say manager.
    pub fn is_manager(&self, n: u64) -> bool {
        self.agrees(n, Role::Manager) && self.membership(n) == Membership::Voter
    }
    /// All four facts say worker.
    pub fn is_worker(&self, n: u64) -> bool {
        self.agrees(n, Role::Worker) && self.membership(n) == Membership::None
    }
    fn agrees(&self, n: u64, role: Role) -> bool {
        let Some(r) = self.tables.nodes.get(&id(n)) else { return false };
        r.desired_role == role
            && r.role == role
            && r.certificate.as_ref().is_some_and(|c| c.role == role && c.granted == Some(r.granted))
    }
    pub fn is_gone(&self, n: u64) -> bool {
        !self.tables.nodes.contains_key(&id(n))
            && self.tables.blocklist.contains_key(&id(n))
            && self.membership(n) == Membership::None
    }
    pub fn seats_in_flight(&self) -> usize {
        self.flight.iter().filter(|(_, p)| matches!(p, Proposal::Seat(_))).count()
    }

    // ---- how it goes on ----

    /// Plays for this long.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now.at + time;
        self.turn();
        while self.now.at < end {
            self.pass(TICK);
            self.turn();
        }
        self.check();
    }
    /// Plays everything that can happen at this very moment.
    pub fn turn(&mut self) {
        for _ in 0..200 {
            if !self.pump() {
                self.check();
                return;
            }
        }
        panic!("no end of work at one moment: {:#?}", self.log.iter().rev().take(20).collect::<Vec<_>>());
    }
    /// Plays one step.
    pub fn pump_once(&mut self) {
        self.pump();
        self.check();
    }
    /// Plays until every wish asked so far is written.
    pub fn turn_until_accepted(&mut self) {
        for _ in 0..100 {
            let waiting = self.core.as_ref().unwrap().outbox().0.values().any(|o| matches!(o.sent, Sent::Wish { .. }));
            if !waiting && self.inputs.iter().all(|i| !matches!(i, Input::Wished(_))) {
                return;
            }
            self.pump();
        }
    }
    /// Plays until nothing is pending; fails after a minute.
    pub fn settle(&mut self) {
        for _ in 0..600 {
            self.turn();
            if self.core.is_some() && self.open.is_empty() && self.flight.is_empty() && self.pending().is_empty() {
                return;
            }
            self.pass(TICK);
        }
        panic!("not settled: {:#?}\n{:#?}", self.pending(), self.log);
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { at: self.now.at + time, wall: self.now.wall.plus(time) };
        self.elect_if_needed();
        if self.wake.is_some_and(|at| at <= self.now.at) {
            self.wake = None;
            self.wakes += 1;
            self.inputs.push_back(Input::Woke);
        }
        self.see();
    }

    fn elect_if_needed(&mut self) {
        let leads = |l: NodeId| self.tables.members.values().any(|m| m.voter && m.node == l && self.votes(m));
        if self.leader.is_some_and(|l| leads(l) && self.has_quorum()) {
            return;
        }
        if self.leader.take().is_some() {
            self.log.push("nobody leads".to_owned());
            self.core = None;
            self.flight.clear();
            let asks = std::mem::take(&mut self.open);
            self.lost_asks.extend(asks);
            for machine in self.machines.values_mut() {
                machine.knocking = None;
            }
            return; // the others need an election timeout
        }
        if !self.has_quorum() {
            return;
        }
        let next = self.tables.members.values().find(|m| m.voter && self.votes(m)).map(|m| m.node);
        if let Some(next) = next {
            self.elect(next);
        }
    }

    pub fn has_quorum(&self) -> bool {
        let answering = self.tables.members.values().filter(|m| m.voter && self.votes(m)).count();
        answering > self.voters() / 2
    }
    /// It is up and has the data of its seat.
    fn votes(&self, member: &Member) -> bool {
        self.machines.get(&member.node).is_some_and(|m| m.up && m.held == Some(member.raft_id))
    }

    /// The newest level, as the raft member would publish it.
    fn see(&mut self) {
        if self.core.is_none() {
            return;
        }
        let (leader, commit) = (self.leader, self.tables.revision.0);
        for member in self.tables.members.values() {
            let holds = |m: &&mut Machine| m.up && m.held == Some(member.raft_id);
            if let Some(m) = self.machines.get_mut(&member.node).filter(holds) {
                m.last_ack = Some(self.now.at);
                m.matched = commit;
            }
        }
        let progress = (self.tables.members.values())
            .map(|member| {
                let m = self.machines.get(&member.node).filter(|m| m.held == Some(member.raft_id));
                PeerProgress {
                    raft_id: member.raft_id,
                    node: Some(member.node),
                    voter: member.voter,
                    matched: m.filter(|m| m.last_ack.is_some()).map_or(0, |m| m.matched),
                    acked_ago: m.and_then(|m| m.last_ack).map(|at| self.now.at.since(at)),
                    in_snapshot: false,
                }
            })
            .collect();
        let own = leader.and_then(|l| self.tables.seat_of(l)).map(|m| m.raft_id);
        let raft = RaftStatus {
            raft_id: own,
            role: RaftRole::Leader,
            term: self.term,
            leader: own,
            leader_node: leader,
            commit: Revision(commit),
            applied: Revision(commit),
            leading: true,
            progress,
        };
        self.inputs.push_back(Input::Seen(Arc::new(Replica { tables: self.tables.clone(), raft })));
    }

    /// One thing that can happen now. False: nothing can.
    fn pump(&mut self) -> bool {
        if let Some(input) = self.inputs.pop_front() {
            self.step(input);
            return true;
        }
        self.apply_next() || self.end_probe() || self.end_transfer() || self.machines_act()
    }

    fn step(&mut self, input: Input) {
        let Some(core) = &mut self.core else { return };
        let mut effects = Vec::new();
        core.step(self.now, input, &mut effects);
        self.slot = Some(core.checkpoint());
        if std::mem::take(&mut self.crash_before_effects) {
            self.crash();
            return;
        }
        for effect in effects {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Propose { step, command } => {
                self.log.push(format!("{step:?} proposes {}: {:?}", command.reason, command.changes));
                self.flight.push_back((Some(step), Proposal::Command(command)));
            }
            Effect::ProposeSeat { step, change } => {
                self.log.push(format!("{step:?} proposes {:?}", change.kind));
                if self.seats_in_flight() > 0 {
                    let outcome = StepOutcome::MembershipBusy;
                    self.inputs.push_back(Input::Committed { step, outcome });
                } else {
                    self.judge_safety(&change);
                    self.flight.push_back((Some(step), Proposal::Seat(change)));
                }
            }
            Effect::Probe { step, node, .. } => self.probes.push((step, node)),
            Effect::TransferLeadership { step, to } => {
                self.log.push(format!("{step:?} offers leadership to {}", self.name(to)));
                self.transfers.push((step, to));
            }
            Effect::Answer(ask, answer) => self.answered(ask, answer),
            Effect::WakeAt(at) => {
                assert!(at > self.now.at, "a wake in the past");
                self.wake = Some(self.wake.map_or(at, |old| old.min(at)));
            }
        }
    }

    fn answered(&mut self, ask: AskId, answer: Answer) {
        assert!(self.open.remove(&ask), "{ask:?} is answered twice or was never asked: {answer:?}");
        let knocking = self.knocks.remove(&ask);
        let Some(node) = knocking.filter(|_| !self.keep_seat_answers) else {
            self.log.push(format!("{ask:?} is answered {answer:?}"));
            self.answers.insert(ask, answer);
            return;
        };
        let now = self.now.at;
        let Some(machine) = self.machines.get_mut(&node) else { return };
        machine.knocking = None;
        machine.knock_after = now + secs(1);
        if let Answer::Seat(Ok(reply)) = answer {
            if let SeatReply::Seated { raft_id } = reply {
                if machine.held != Some(raft_id) {
                    (machine.last_ack, machine.matched) = (None, 0);
                }
                machine.held = Some(raft_id);
                machine.data_lost = None;
            }
            machine.replies.push(reply);
        }
    }

    /// ROLE-3, judged by what machines really do: whoever was up within the last election timeout may count.
    fn judge_safety(&mut self, change: &SeatChange) {
        let recent = |node: NodeId| {
            self.machines.get(&node).is_some_and(|m| {
                m.up || m.last_ack.is_some_and(|at| self.now.at.since(at) <= self.config.election_timeout)
            })
        };
        let mut voters: BTreeMap<RaftId, NodeId> =
            self.tables.members.values().filter(|m| m.voter).map(|m| (m.raft_id, m.node)).collect();
        let quorum =
            |voters: &BTreeMap<RaftId, NodeId>| voters.values().filter(|n| recent(**n)).count() > voters.len() / 2;
        let before = quorum(&voters);
        match &change.kind {
            SeatChangeKind::PromoteLearner { node, raft_id } => drop(voters.insert(*raft_id, *node)),
            SeatChangeKind::Remove { raft_id } => drop(voters.remove(raft_id)),
            _ => {}
        }
        if !before || !quorum(&voters) {
            self.broken.get_or_insert_with(|| format!("quorum is lost to {:?}", change.kind));
        }
        if voters.is_empty() {
            self.broken.get_or_insert_with(|| "the last manager goes".to_owned());
        }
    }

    fn apply_next(&mut self) -> bool {
        if self.hold_commits || !self.has_quorum() {
            return false;
        }
        let held = |p: &Proposal| self.hold_seats && matches!(p, Proposal::Seat(_));
        let Some(index) = self.flight.iter().position(|(_, p)| !held(p)) else { return false };
        let Some((step, proposal)) = self.flight.remove(index) else { return false };
        let at = self.tables.revision.next();
        let result = match &proposal {
            Proposal::Command(command) => muster_store::apply(&mut self.tables, at, command),
            Proposal::Seat(change) => muster_store::apply_seat(&mut self.tables, at, change),
        };
        if let Some(step) = step {
            let outcome = match result {
                Ok(()) => StepOutcome::Applied(at),
                Err(refusal) => StepOutcome::Refused(refusal),
            };
            self.log.push(format!("{step:?} ends {outcome:?}"));
            self.inputs.push_back(Input::Committed { step, outcome });
        }
        if self.leader.is_some_and(|l| self.tables.seat_of(l).is_none()) {
            self.elect_if_needed();
        }
        self.see();
        true
    }

    fn end_probe(&mut self) -> bool {
        if self.hold_probes {
            return false;
        }
        let Some((step, node)) = self.probes.pop() else { return false };
        let reachable = self.machines.get(&node).is_some_and(|m| m.up && !m.firewalled);
        let result = if reachable { Ok(()) } else { Err(ErrorBody::new(ErrorCode::Unreachable, "connection refused")) };
        self.inputs.push_back(Input::Probed { step, result });
        true
    }

    fn end_transfer(&mut self) -> bool {
        let Some((step, to)) = self.transfers.pop() else { return false };
        let takes = self.machines.get(&to).is_some_and(|m| m.up && !m.refuses_leadership);
        if takes {
            self.elect(to);
        } else {
            self.log.push(format!("{} does not take leadership", self.name(to)));
            self.inputs.push_back(Input::Transferred { step, taken: false });
        }
        true
    }

    /// Machines fetch certificates for what they are granted, and ask for the seat they lack.
    fn machines_act(&mut self) -> bool {
        if self.core.is_none() || self.hold_commits {
            return false;
        }
        let nodes: Vec<NodeId> = self.machines.keys().copied().collect();
        nodes.into_iter().any(|node| self.fetch_certificate(node) || self.knock(node))
    }

    fn fetch_certificate(&mut self, node: NodeId) -> bool {
        let machine = &self.machines[&node];
        let Some(record) = self.tables.nodes.get(&node) else { return false };
        let stale =
            (record.certificate.as_ref()).is_none_or(|c| c.role != record.role || c.granted != Some(record.granted));
        if !machine.up || machine.no_certificates || !stale || !self.has_quorum() {
            return false;
        }
        let certificate = CertificateRecord {
            role: record.role,
            serial: format!("{:x}", self.tables.revision.0),
            granted: Some(record.granted),
            not_after: self.now.wall.plus(secs(90 * 86_400)),
            state: CertificateState::Issued,
        };
        self.apply_directly(Change::RecordCertificate { node, certificate });
        true
    }

    fn knock(&mut self, node: NodeId) -> bool {
        let now = self.now.at;
        let seat = self.tables.seat_of(node).map(|m| m.raft_id);
        let Some(record) = self.tables.nodes.get(&node) else { return false };
        let certified = record.certificate.as_ref().is_some_and(|c| c.role == Role::Manager);
        let Some(machine) = self.machines.get_mut(&node) else { return false };
        let idle = machine.knocking.is_none() && machine.knock_after <= now;
        let lacks = seat.is_none() || machine.held != seat;
        if !machine.up || machine.no_knocks || !certified || !idle || !lacks {
            return false;
        }
        let request =
            SeatRequest { advertise: machine.addr.clone(), held: machine.held, data_lost: machine.data_lost.clone() };
        self.ask_for_seat(node, request);
        true
    }

    /// A request for a seat, as the host of the node's session relays it.
    pub fn ask_for_seat(&mut self, node: NodeId, request: SeatRequest) -> AskId {
        self.next_ask += 1;
        let ask = AskId(self.next_ask);
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.knocking = Some(ask);
        }
        self.open.insert(ask);
        self.knocks.insert(ask, node);
        self.inputs.push_back(Input::Knocked { ask, node, request });
        ask
    }
    pub fn last_reply(&mut self, n: u64) -> SeatReply {
        self.machine(n).replies.last().cloned().unwrap()
    }

    /// What holds after every moment.
    pub fn check(&mut self) {
        if let Err(broken) = muster_store::invariants::check(&self.tables) {
            if self.tables.cluster.is_some() {
                self.broken.get_or_insert_with(|| format!("{broken:?}"));
            }
        }
        if let Some(core) = &self.core {
            let changes = |o: &&Outgoing| matches!(o.sent, Sent::Seat(_) | Sent::Transfer { .. });
            if core.outbox().0.values().filter(changes).count() > 1 {
                self.broken.get_or_insert_with(|| "ROLE-2".to_owned());
            }
        }
        let managers = |r: &&Arc<NodeRecord>| r.desired_role == Role::Manager && r.removing.is_none();
        if self.tables.nodes.values().filter(managers).count() == 0 {
            self.broken.get_or_insert_with(|| "nobody is to be a manager".to_owned());
        }
        if let Some(broken) = &self.broken
            && !self.config_is_sabotaged()
        {
            panic!("{broken}\n{:#?}", self.log);
        }
    }
    fn config_is_sabotaged(&self) -> bool {
        self.config.sabotage.skip_quorum_gate
    }
}
