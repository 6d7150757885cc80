//! A small world for scenarios about roles: real tables (`muster-store`) behind a simulated Raft, nodes that fetch
//! certificates and ask for membership by themselves, one role manager on the leader. Time moves only on request.

mod advance;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{DataLoss, MembershipReply};
use muster_messages::*;
use muster_role_manager::Config;
use muster_role_manager::core::*;

pub const TICK: Duration = Duration::from_millis(100);
/// A number of simulated seconds.
pub fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
pub fn id(n: u64) -> NodeId {
    NodeId::from_entropy(u128::from(n))
}

/// The reachability check that an effect requests.
pub fn reachability_check(effect: &Effect) -> Option<(StepId, BTreeSet<RaftId>)> {
    match effect {
        Effect::CheckReachable { step, members, .. } => Some((*step, members.clone())),
        _ => None,
    }
}

/// What a machine does by itself.
#[derive(Clone, Debug)]
pub struct Machine {
    pub up: bool,
    /// Others cannot dial it.
    pub firewalled: bool,
    /// Does not fetch certificates / ask for membership.
    pub no_certificates: bool,
    pub no_membership_requests: bool,
    pub refuses_leadership: bool,
    pub addr: String,
    pub last_ack: Option<Moment>,
    pub matched: u64,
    /// The member id whose data it has on disk.
    pub held: Option<RaftId>,
    pub data_lost: Option<DataLoss>,
    awaited_answer: Option<AskId>,
    next_request_at: Moment,
    pub replies: Vec<MembershipReply>,
}

#[derive(Clone, Debug)]
enum Proposal {
    Command(Box<Command>),
    Membership(MembershipChange),
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
    /// Proposals not applied yet, with the step that waits for each (none: its proposer has ended).
    flight: VecDeque<(Option<StepId>, Proposal)>,
    probes: Vec<(StepId, NodeId)>,
    pub dials: usize,
    transfers: Vec<(StepId, NodeId)>,
    inputs: VecDeque<Input>,
    pub answers: BTreeMap<AskId, Answer>,
    open_requests: BTreeMap<AskId, NodeId>,
    open: BTreeSet<AskId>,
    pub lost_asks: BTreeSet<AskId>,
    next_ask: u64,
    next_request: u128,
    wake: Option<Moment>,
    pub wakes: usize,
    /// Nothing is applied / no membership change is applied / no dial-back ends while these are set.
    pub hold_commits: bool,
    pub hold_membership_changes: bool,
    pub hold_probes: bool,
    /// The next step crashes the role manager after its checkpoint and before its effects.
    pub crash_before_effects: bool,
    /// Answers to membership requests are kept, and not given to the machine.
    pub keep_membership_answers: bool,
    /// The scenario breaks an invariant of the tables itself.
    pub breaks_invariants: bool,
    pub log: Vec<String>,
    /// The first violated invariant.
    pub violation: Option<String>,
    /// The result of the last reachability check.
    reachable: BTreeSet<RaftId>,
    /// Checks with too few responses end at these times.
    short_checks: Vec<(Moment, StepId)>,
    /// The membership change that waits for its voters, too few of which respond: it is refused at this time.
    short_change: Option<(Moment, Option<StepId>, StepOutcome)>,
    /// The role manager's own writes are answered as applied, but change nothing.
    pub ignore_writes: bool,
    pub swallowed: usize,
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
            dials: 0,
            transfers: Vec::new(),
            inputs: VecDeque::new(),
            answers: BTreeMap::new(),
            open_requests: BTreeMap::new(),
            open: BTreeSet::new(),
            lost_asks: BTreeSet::new(),
            next_ask: 0,
            next_request: 1 << 100,
            wake: None,
            wakes: 0,
            hold_commits: false,
            hold_membership_changes: false,
            hold_probes: false,
            crash_before_effects: false,
            keep_membership_answers: false,
            breaks_invariants: false,
            log: Vec::new(),
            violation: None,
            reachable: BTreeSet::new(),
            short_checks: Vec::new(),
            short_change: None,
            ignore_writes: false,
            swallowed: 0,
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
            addr: addr.clone(),
            release: "0.1.0".to_owned(),
            granted: at,
            certificate: Some(certificate),
            last_not_after: not_after,
            liveness: Liveness::Ready,
            revision: at,
            ..NodeRecord::new(node, format!("n{n}").parse().unwrap(), role, self.now.wall)
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
            no_membership_requests: false,
            refuses_leadership: false,
            addr,
            last_ack: None,
            matched: 0,
            held,
            data_lost: None,
            awaited_answer: None,
            next_request_at: Moment(0),
            replies: Vec::new(),
        };
        self.machines.insert(node, machine);
    }

    // ---- what a scenario does ----

    pub fn machine(&mut self, n: u64) -> &mut Machine {
        self.machines.get_mut(&id(n)).unwrap()
    }
    /// Stops a machine; the cluster has noticed that it is down.
    pub fn stop(&mut self, n: u64) {
        self.stop_unnoticed(n);
        self.set_liveness(n, Liveness::Down);
    }
    /// Stops a machine unnoticed.
    pub fn stop_unnoticed(&mut self, n: u64) {
        let machine = self.machine(n);
        machine.up = false;
        machine.awaited_answer = None;
    }
    pub fn start(&mut self, n: u64) {
        self.machine(n).up = true;
        self.set_liveness(n, Liveness::Ready);
    }
    pub fn set_liveness(&mut self, n: u64, liveness: Liveness) {
        let change = Change::SetLiveness { node: id(n), liveness };
        if self.tables.nodes.contains_key(&id(n)) {
            self.apply_directly(change);
        }
    }
    /// Clears all acknowledgements: as after an election.
    pub fn elect(&mut self, node: NodeId) {
        self.term = self.term.next();
        self.log.push(format!("{} leads in term {}", self.name(node), self.term));
        self.leader = Some(node);
        for machine in self.machines.values_mut() {
            machine.last_ack = None;
            machine.awaited_answer = None;
            machine.next_request_at = Moment(0);
        }
        let at = self.tables.revision.next();
        muster_store::apply_empty(&mut self.tables, at);
        self.flight.clear();
        self.short_change = None;
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
        if let Some((_, step, _)) = &mut self.short_change {
            *step = None;
        }
        self.probes.clear();
        self.transfers.clear();
        self.inputs.clear();
        self.wake = None;
        for ask in std::mem::take(&mut self.open) {
            match self.open_requests.remove(&ask) {
                Some(node) => {
                    if let Some(m) = self.machines.get_mut(&node) {
                        m.awaited_answer = None;
                    }
                }
                None => drop(self.lost_asks.insert(ask)),
            }
        }
        self.core = Some(RoleManager::new(node, self.config.clone(), self.slot.clone()));
        self.see();
    }
    pub fn promote(&mut self, n: u64) -> AskId {
        self.change(n, RequestedChange::Role(Role::Manager))
    }
    pub fn demote(&mut self, n: u64) -> AskId {
        self.change(n, RequestedChange::Role(Role::Worker))
    }
    pub fn remove(&mut self, n: u64, force: bool) -> AskId {
        self.change(n, RequestedChange::Remove { force })
    }
    pub fn change(&mut self, n: u64, change: RequestedChange) -> AskId {
        self.next_request += 1;
        self.request_again(n, change, RequestId(self.next_request))
    }
    pub fn request_again(&mut self, n: u64, change: RequestedChange, request: RequestId) -> AskId {
        self.next_ask += 1;
        let ask = AskId(self.next_ask);
        self.open.insert(ask);
        let role_request = RoleRequest { ask, node: id(n), change, by: Principal::Operator, request };
        self.inputs.push_back(Input::RoleRequested(role_request));
        ask
    }
    pub fn last_request(&self) -> RequestId {
        RequestId(self.next_request)
    }
    /// The cluster is at the newest feature level, at which it remembers the requests of each caller.
    pub fn remember_callers(&mut self) {
        self.tables.cluster = Some(Arc::new(ClusterRecord {
            id: ClusterId::from_entropy(1),
            name: "c".parse().unwrap(),
            incarnation: Incarnation(1),
            feature_level: FEATURE_LEVEL,
            root_cert_pem: String::new(),
            root_key_pem: Secret::new(String::new()),
            founded_at: WallTime(0),
            revision: Revision(1),
        }));
        // The role manager sees it with the next revision.
        self.set_liveness(1, Liveness::Ready);
        self.run_for(TICK);
    }
    /// The certificate authority, the dispatcher and the founder write past the role manager.
    pub fn apply_directly(&mut self, change: Change) {
        let at = self.tables.revision.next();
        let command = Command::idempotent(self.now.wall, Principal::Operator, "test").change(change);
        let _refused = muster_store::apply(&mut self.tables, at, &command);
        self.see();
    }

    // ---- what a scenario reads ----

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
            Answer::Role(Err(e)) | Answer::Removed(Err(e)) | Answer::Membership(Err(e)) => e.clone(),
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
    pub fn changes_in_flight(&self) -> usize {
        self.flight.iter().filter(|(_, p)| matches!(p, Proposal::Membership(_))).count()
    }
}
