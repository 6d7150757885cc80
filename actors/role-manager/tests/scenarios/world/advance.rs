//! How the world advances: proposals are applied, machines act, time passes, invariants are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{ManagerReport, MembershipReply, MembershipRequest};
use muster_messages::*;
use muster_role_manager::core::*;

use super::{Machine, Proposal, TICK, World, secs};

impl World {
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now.at + time;
        self.run_moment();
        while self.now.at < end {
            self.pass(TICK);
            self.run_moment();
        }
        self.check();
    }
    /// Runs everything that can happen at this moment.
    pub fn run_moment(&mut self) {
        for _ in 0..200 {
            if !self.run_one() {
                self.check();
                return;
            }
        }
        panic!("no end of work at one moment: {:#?}", self.log.iter().rev().take(20).collect::<Vec<_>>());
    }
    pub fn run_step(&mut self) {
        self.run_one();
        self.check();
    }
    /// Runs one step, or lets time pass if there is none.
    pub fn run_step_or_wait(&mut self) {
        if !self.run_one() {
            self.pass(TICK);
        }
        self.check();
    }
    /// Runs until every request so far is written.
    pub fn run_until_accepted(&mut self) {
        for _ in 0..100 {
            let waiting =
                self.core.as_ref().unwrap().outbox().iter().any(|(_, o)| matches!(o.sent, Sent::RoleRequest { .. }));
            if !waiting && self.inputs.iter().all(|i| !matches!(i, Input::RoleRequested(_))) {
                return;
            }
            self.run_one();
        }
    }
    /// Runs until nothing is pending; fails after a minute.
    pub fn settle(&mut self) {
        for _ in 0..600 {
            self.run_moment();
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
        let due = self.short_checks.extract_if(.., |(at, _)| *at <= self.now.at).map(|(_, step)| step);
        for step in due.collect::<Vec<_>>() {
            self.end_reachability_check(step);
        }
        if let Some((_, step, outcome)) = self.short_change.take_if(|(at, ..)| *at <= self.now.at)
            && let Some(step) = step
        {
            self.inputs.push_back(Input::Committed { step, outcome });
        }
        self.see();
    }

    fn elect_if_needed(&mut self) {
        let leads = |l: NodeId| self.tables.members.values().any(|m| m.voter && m.node == l && self.votes(m));
        if self.leader.is_some_and(|l| leads(l) && self.has_quorum()) {
            return;
        }
        if self.leader.take().is_some() {
            self.log.push("no manager leads".to_owned());
            self.core = None;
            self.flight.clear();
            self.short_change = None;
            let asks = std::mem::take(&mut self.open);
            self.lost_asks.extend(asks);
            for machine in self.machines.values_mut() {
                machine.awaited_answer = None;
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
    /// It is up and has the data of its member.
    fn votes(&self, member: &Member) -> bool {
        self.machines.get(&member.node).is_some_and(|m| m.up && m.held == Some(member.raft_id))
    }

    /// The newest value, as the raft member would publish it.
    pub(super) fn see(&mut self) {
        if self.core.is_none() {
            return;
        }
        let commit = self.tables.revision.0;
        for member in self.tables.members.values() {
            let holds = |m: &&mut Machine| m.up && m.held == Some(member.raft_id);
            if let Some(m) = self.machines.get_mut(&member.node).filter(holds) {
                m.last_ack = Some(self.now.at);
                m.matched = commit;
            }
        }
        let raft = self.raft_status();
        self.inputs.push_back(Input::Seen(Arc::new(Replica { tables: self.tables.clone(), raft })));
    }

    /// The leader's status, as its raft member would publish it.
    pub fn raft_status(&self) -> RaftStatus {
        let (leader, commit) = (self.leader, self.tables.revision.0);
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
                    problem: None,
                }
            })
            .collect();
        let own = leader.and_then(|l| self.tables.member_of(l)).map(|m| m.raft_id);
        RaftStatus {
            raft_id: own,
            role: RaftRole::Leader,
            term: self.term,
            leader: own,
            leader_node: leader,
            commit: Revision(commit),
            applied: Revision(commit),
            leading: true,
            progress,
            silent: Vec::new(),
        }
    }

    /// One thing that can happen now. False: nothing can.
    pub(super) fn run_one(&mut self) -> bool {
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
            self.apply_effect(effect);
        }
    }

    fn apply_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Propose { step, command } => {
                self.log.push(format!("{step:?} proposes {}: {:?}", command.reason, command.changes));
                self.flight.push_back((Some(step), Proposal::Command(command)));
            }
            Effect::ProposeMembership { step, change, confirm_within } => {
                self.log.push(format!("{step:?} proposes {:?}", change.kind));
                if self.changes_in_flight() > 0 || self.short_change.is_some() {
                    let outcome = StepOutcome::MembershipBusy;
                    self.inputs.push_back(Input::Committed { step, outcome });
                } else if let Some((within, outcome)) = confirm_within.zip(self.refusal_by_voters(&change)) {
                    self.short_change = Some((self.now.at + within, Some(step), outcome));
                } else {
                    self.judge_safety(&change);
                    self.flight.push_back((Some(step), Proposal::Membership(change)));
                }
            }
            Effect::Probe { step, node, .. } => {
                self.dials += 1;
                self.probes.push((step, node));
            }
            Effect::CheckReachable { step, members, needed, within } => {
                self.reachable = members.into_iter().filter(|member| self.responds(*member)).collect();
                if self.reachable.len() < needed {
                    self.short_checks.push((self.now.at + within, step));
                } else {
                    self.end_reachability_check(step);
                }
            }
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

    /// The refusal of a change, if too few of the voters that it results in respond. As the Raft member judges it.
    fn refusal_by_voters(&mut self, change: &MembershipChange) -> Option<StepOutcome> {
        let mut voters: BTreeSet<RaftId> =
            self.tables.members.values().filter(|m| m.voter).map(|m| m.raft_id).collect();
        let changed = match &change.kind {
            MembershipChangeKind::PromoteLearner { raft_id, .. } => voters.insert(*raft_id),
            MembershipChangeKind::Remove { raft_id } => voters.remove(raft_id),
            _ => false,
        };
        if !changed {
            return None;
        }
        self.reachable = voters.iter().copied().filter(|member| self.responds(*member)).collect();
        let reachable = self.reachable.clone();
        (reachable.len() <= voters.len() / 2).then_some(StepOutcome::TooFewReachable { voters, reachable })
    }

    fn end_reachability_check(&mut self, step: StepId) {
        let reachable = Some(self.reachable.clone());
        self.inputs.push_back(Input::ReachabilityChecked { step, reachable });
    }
    /// Whether the node with this Raft id would respond to a heartbeat.
    fn responds(&self, id: RaftId) -> bool {
        let node = self.tables.members.get(&id).map(|member| member.node);
        node.and_then(|node| self.machines.get(&node)).is_some_and(|m| m.up && m.held == Some(id))
    }

    fn answered(&mut self, ask: AskId, answer: Answer) {
        assert!(self.open.remove(&ask), "{ask:?} is answered twice or was never asked: {answer:?}");
        let awaited_answer = self.open_requests.remove(&ask);
        let Some(node) = awaited_answer.filter(|_| !self.keep_membership_answers) else {
            self.log.push(format!("{ask:?} is answered {answer:?}"));
            self.answers.insert(ask, answer);
            return;
        };
        let now = self.now.at;
        let Some(machine) = self.machines.get_mut(&node) else { return };
        machine.awaited_answer = None;
        machine.next_request_at = now + secs(1);
        if let Answer::Membership(Ok(reply)) = answer {
            if let MembershipReply::IsMember { raft_id } = reply {
                if machine.held != Some(raft_id) {
                    (machine.last_ack, machine.matched) = (None, 0);
                }
                machine.held = Some(raft_id);
                machine.data_lost = None;
            }
            machine.replies.push(reply);
        }
    }

    /// ROLE-3, judged by the state of the machines. A voter of the current configuration counts if it was up within the last
    /// election timeout; a voter of the resulting configuration counts if it is up, or was during the last reachability check.
    fn judge_safety(&mut self, change: &MembershipChange) {
        let recent = |node: NodeId| {
            self.machines.get(&node).is_some_and(|m| {
                m.up || m.last_ack.is_some_and(|at| self.now.at.since(at) <= self.config.election_timeout)
            })
        };
        let mut voters: BTreeMap<RaftId, NodeId> =
            self.tables.members.values().filter(|m| m.voter).map(|m| (m.raft_id, m.node)).collect();
        let is_up = |id: &RaftId, node: &NodeId| {
            self.leader == Some(*node) || self.reachable.contains(id) || self.machines.get(node).is_some_and(|m| m.up)
        };
        let before = voters.values().filter(|n| recent(**n)).count() > voters.len() / 2;
        match &change.kind {
            MembershipChangeKind::PromoteLearner { node, raft_id } => drop(voters.insert(*raft_id, *node)),
            MembershipChangeKind::Remove { raft_id } => drop(voters.remove(raft_id)),
            _ => {}
        }
        let same =
            matches!(change.kind, MembershipChangeKind::AddLearner { .. } | MembershipChangeKind::SetAddress { .. });
        let after = same || voters.iter().filter(|(id, node)| is_up(id, node)).count() > voters.len() / 2;
        if !before || !after {
            self.violation.get_or_insert_with(|| format!("quorum is lost to {:?}", change.kind));
        }
        if voters.is_empty() {
            self.violation.get_or_insert_with(|| "the last manager leaves".to_owned());
        }
    }

    fn apply_next(&mut self) -> bool {
        if self.hold_commits || !self.has_quorum() {
            return false;
        }
        let held = |p: &Proposal| self.hold_membership_changes && matches!(p, Proposal::Membership(_));
        let Some(index) = self.flight.iter().position(|(_, p)| !held(p)) else { return false };
        let Some((step, proposal)) = self.flight.remove(index) else { return false };
        let at = self.tables.revision.next();
        let result = match &proposal {
            Proposal::Command(command) if self.ignore_writes && command.by == Principal::Cluster => {
                self.swallowed += 1;
                muster_store::apply_empty(&mut self.tables, at);
                Ok(())
            }
            Proposal::Command(command) => muster_store::apply(&mut self.tables, at, command),
            Proposal::Membership(change) => muster_store::apply_membership(&mut self.tables, at, change),
        };
        if let Some(step) = step {
            let outcome = match result {
                Ok(()) => StepOutcome::Applied(at),
                Err(refusal) => StepOutcome::Refused(refusal),
            };
            self.log.push(format!("{step:?} ends {outcome:?}"));
            self.inputs.push_back(Input::Committed { step, outcome });
        }
        if self.leader.is_some_and(|l| self.tables.member_of(l).is_none()) {
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

    /// The proposals in flight are not confirmed in time. They stay in flight.
    pub fn time_out_proposals(&mut self) {
        for step in self.flight.iter_mut().filter_map(|(step, _)| step.take()) {
            self.inputs.push_back(Input::Committed { step, outcome: StepOutcome::TimedOut });
        }
    }

    /// The dials in progress fail.
    pub fn fail_dials(&mut self) {
        for (step, _) in std::mem::take(&mut self.probes) {
            let result = Err(ErrorBody::new(ErrorCode::Unreachable, "the runtime is starting"));
            self.inputs.push_back(Input::Probed { step, result });
        }
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

    /// Machines fetch certificates for their grants, and ask for membership if they lack it.
    fn machines_act(&mut self) -> bool {
        if self.core.is_none() || self.hold_commits {
            return false;
        }
        let nodes: Vec<NodeId> = self.machines.keys().copied().collect();
        nodes.into_iter().any(|node| self.fetch_certificate(node) || self.open_request(node))
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

    fn open_request(&mut self, node: NodeId) -> bool {
        let now = self.now.at;
        let own_id = self.tables.member_of(node).map(|m| m.raft_id);
        let Some(record) = self.tables.nodes.get(&node) else { return false };
        let certified = record.certificate.as_ref().is_some_and(|c| c.role == Role::Manager);
        let Some(machine) = self.machines.get_mut(&node) else { return false };
        let idle = machine.awaited_answer.is_none() && machine.next_request_at <= now;
        let startup_failure = own_id.is_none() || machine.held != own_id;
        if !machine.up || machine.no_membership_requests || !certified || !idle || !startup_failure {
            return false;
        }
        let (advertise, data_lost) = (machine.addr.clone(), machine.data_lost.clone());
        let request = MembershipRequest { advertise, held: machine.held, data_lost, feature_level: FEATURE_LEVEL };
        self.request_membership(node, request);
        true
    }

    /// A membership request, as the host of the node's session relays it.
    pub fn request_membership(&mut self, node: NodeId, request: MembershipRequest) -> AskId {
        self.next_ask += 1;
        let ask = AskId(self.next_ask);
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.awaited_answer = Some(ask);
        }
        self.open.insert(ask);
        self.open_requests.insert(ask, node);
        self.inputs.push_back(Input::MembershipRequested { ask, node, request });
        ask
    }

    pub fn report_manager(&mut self, node: NodeId, report: ManagerReport) -> AskId {
        self.next_ask += 1;
        let ask = AskId(self.next_ask);
        self.open.insert(ask);
        self.inputs.push_back(Input::Reported { ask, node, report });
        ask
    }

    /// What holds after every moment.
    pub fn check(&mut self) {
        if !self.breaks_invariants
            && let Err(violation) = muster_store::invariants::check(&self.tables)
        {
            self.violation.get_or_insert_with(|| format!("{violation:?}"));
        }
        if let Some(core) = &self.core {
            let changes = |(_, o): &(StepId, &Outgoing)| matches!(o.sent, Sent::Membership(_) | Sent::Transfer { .. });
            if core.outbox().iter().filter(changes).count() > 1 {
                self.violation.get_or_insert_with(|| "ROLE-2".to_owned());
            }
        }
        let managers = |r: &&Arc<NodeRecord>| r.desired_role == Role::Manager && r.removing.is_none();
        if self.tables.nodes.values().filter(managers).count() == 0 {
            self.violation.get_or_insert_with(|| "no desired manager is left".to_owned());
        }
        if let Some(violation) = &self.violation
            && !self.bug_is_injected()
        {
            panic!("{violation}\n{:#?}", self.log);
        }
    }
    fn bug_is_injected(&self) -> bool {
        self.config.bugs.skip_quorum_gate || self.config.bugs.trust_recent_acks
    }
}
