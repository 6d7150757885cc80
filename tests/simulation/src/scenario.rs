//! Scenario steps: a simulation without random faults.

use std::time::Duration;

use muster_messages::{ErrorBody, Liveness, Membership, NodeId, Role};
use muster_role_manager::core::RequestedChange;

use crate::clients::{Clients, OpNumber};
use crate::events::Event;
use crate::machine::{Machine, MachineIdx};
use crate::policies::Policies;
use crate::report::Failure;
use crate::simulation::Simulation;

/// What is held back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// No certificate is issued.
    pub certificates: bool,
}

/// Connections to hold or release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Every request for a certificate.
    Certificates,
    Between(String, String),
    /// All links of this machine.
    AllOf(String),
}

impl Link {
    pub fn between(a: &str, b: &str) -> Self {
        Self::Between(a.to_owned(), b.to_owned())
    }
    pub fn of(name: &str) -> Self {
        Self::AllOf(name.to_owned())
    }
}

/// Longer than any scenario needs.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(60);

impl Simulation {
    /// The leaders' autopilot runs. Called before the first node is added.
    #[must_use]
    pub fn with_autopilot(mut self) -> Self {
        Policies::activate(&mut self.world);
        self
    }
    /// A settled cluster of managers named n1, n2, …
    #[must_use]
    pub fn with_nodes(mut self, managers: usize) -> Self {
        self.world.found();
        self.clients.start(&mut self.world, 1);
        for _ in 1..managers {
            self.world.join_machine(Role::Manager);
        }
        self.run_until_quiet();
        self
    }
    /// Adds workers, with the next names.
    #[must_use]
    pub fn with_workers(mut self, workers: usize) -> Self {
        for _ in 0..workers {
            self.world.join_machine(Role::Worker);
        }
        self.run_until_quiet();
        self
    }

    /// A settled idle cluster with this heartbeat interval.
    #[must_use]
    pub fn calm(seed: u64, managers: usize, workers: usize, heartbeat: Duration) -> Self {
        let mut simulation = Self::seeded(seed);
        simulation.world.settings.shorten_timeouts(heartbeat);
        simulation.world.found();
        for idx in 1..managers + workers {
            simulation.world.join_machine(if idx < managers { Role::Manager } else { Role::Worker });
        }
        simulation.run_until("all nodes have joined", |u| {
            u.world.checks.newest().is_some_and(|t| t.nodes.len() == managers + workers)
        });
        simulation.run_until_quiet();
        simulation
    }
    /// The number of events so far.
    pub fn events(&self) -> u64 {
        self.world.time.passed()
    }

    // ---- actions --------------------------------------------------------------------------------------------------

    pub fn promote(&mut self, name: &str) -> OpNumber {
        self.change(name, RequestedChange::Role(Role::Manager))
    }
    pub fn demote(&mut self, name: &str) -> OpNumber {
        self.change(name, RequestedChange::Role(Role::Worker))
    }
    pub fn remove(&mut self, name: &str, force: bool) -> OpNumber {
        self.change(name, RequestedChange::Remove { force })
    }
    /// Declares a number of managers; surplus ones stay.
    pub fn declare_managers(&mut self, managers: u8) {
        Policies::declare(&mut self.world, managers, false);
    }
    fn change(&mut self, name: &str, change: RequestedChange) -> OpNumber {
        let node = self.id(name);
        self.clients.change(&mut self.world, node, change)
    }
    /// Sends the request to this machine, whether it leads or not.
    pub fn change_at(&mut self, machine: &str, name: &str, role: Role) -> OpNumber {
        let idx = self.idx(machine);
        let node = self.id(name);
        let op = self.clients.record_change(&mut self.world, node, RequestedChange::Role(role));
        self.world.time.after(Duration::from_millis(1), Event::ChangeArrives { idx, op, attempt: 0 });
        Clients::schedule_timeout(&mut self.world, op, 0);
        op
    }
    /// Freezes a machine; its events wait.
    pub fn freeze(&mut self, name: &str, takes: Duration) {
        let idx = self.idx(name);
        Machine::freeze(&mut self.world, idx, takes);
    }
    /// Kills the process.
    pub fn kill(&mut self, name: &str) {
        let idx = self.idx(name);
        Machine::crash(&mut self.world, idx, false);
    }
    /// Power loss: unsynced data is lost.
    pub fn cut_power(&mut self, name: &str) {
        let idx = self.idx(name);
        Machine::crash(&mut self.world, idx, true);
    }
    pub fn restart(&mut self, name: &str) {
        let idx = self.idx(name);
        Machine::start(&mut self.world, idx);
    }
    /// Replaces the disk of a stopped machine with an empty one.
    pub fn replace_disk(&mut self, name: &str) {
        let idx = self.idx(name);
        self.world.machines[idx].disk.replace(false);
    }
    pub fn hold(&mut self, link: Link) {
        self.switch(link, true);
    }
    pub fn release(&mut self, link: Link) {
        self.switch(link, false);
    }
    fn switch(&mut self, link: Link, hold: bool) {
        let pairs: Vec<(MachineIdx, MachineIdx)> = match link {
            Link::Certificates => {
                self.world.holds.certificates = hold;
                return;
            }
            Link::Between(a, b) => vec![(self.idx(&a), self.idx(&b))],
            Link::AllOf(a) => {
                (0..self.world.machines.len()).map(|b| (self.idx(&a), b)).filter(|(a, b)| a != b).collect()
            }
        };
        let now = self.world.now();
        self.world.last_fault_at = now;
        for (a, b) in pairs {
            for (from, to) in [(a, b), (b, a)] {
                if hold {
                    self.world.net.disconnect(now, from, to);
                } else {
                    self.world.net.reconnect(from, to);
                }
            }
            if !hold && self.world.net.both_open(a, b) {
                self.world.session(a, b, true, Duration::from_millis(20));
            }
        }
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    pub fn run_for(&mut self, time: Duration) {
        let until = self.world.now() + time;
        self.run_to(until).unwrap_or_else(|failure| fail(&failure));
    }
    /// Runs until this holds at some event.
    pub fn run_until(&mut self, what: &str, mut holds: impl FnMut(&Simulation) -> bool) {
        let limit = self.world.now() + SCENARIO_TIMEOUT;
        while !holds(self) {
            assert!(
                self.world.now() < limit,
                "never: {what}\n{}\nunsettled: {:?}",
                self.world.trace.tail(),
                self.unsettled()
            );
            self.run_for(Duration::from_millis(5));
        }
    }
    /// Runs until nothing is pending and all running nodes agree.
    pub fn run_until_quiet(&mut self) {
        let (resting, reading) = (self.world.resting, self.clients.reading);
        self.world.resting = true;
        self.run_until("everything settles", |u| u.unsettled().is_none());
        (self.world.resting, self.clients.reading) = (resting, reading);
    }

    // ---- queries --------------------------------------------------------------------------------------------------

    pub(crate) fn idx(&self, name: &str) -> MachineIdx {
        let found = self.world.machines.iter().position(|m| m.name.as_str() == name);
        found.unwrap_or_else(|| panic!("no machine named {name}"))
    }
    pub fn id(&self, name: &str) -> NodeId {
        self.world.machines[self.idx(name)].id
    }
    /// The leader that may decide.
    pub fn leader(&self) -> Option<&str> {
        self.world.leading().map(|p| self.world.machines[p].name.as_str())
    }
    /// The highest term of any member.
    pub fn term(&self) -> u64 {
        let terms = self.world.machines.iter().filter_map(|m| Some(m.runtime.as_ref()?.core.replica().raft.term.0));
        terms.max().unwrap_or_default()
    }
    /// By the record.
    pub fn is_down(&self, name: &str) -> bool {
        let node = self.id(name);
        let record = self.world.checks.newest().and_then(|t| t.nodes.get(&node));
        record.is_some_and(|r| r.liveness == Liveness::Down)
    }
    /// In the newest state that any member has applied.
    pub fn membership_of(&self, name: &str) -> Membership {
        let node = self.id(name);
        self.world.checks.newest().map_or(Membership::None, |t| t.membership_of(node))
    }
    pub fn role_of(&self, name: &str) -> Option<Role> {
        let node = self.id(name);
        self.world.checks.newest()?.nodes.get(&node).map(|n| n.role)
    }
    pub fn certificate_of(&self, name: &str) -> Option<Role> {
        self.world.machines[self.idx(name)].certified()
    }
    pub fn member_of(&self, name: &str) -> Option<u64> {
        let node = self.id(name);
        self.world.checks.newest()?.member_of(node).map(|m| m.raft_id.0)
    }
    /// `None`: unanswered.
    pub fn answer(&self, op: OpNumber) -> Option<&Result<bool, ErrorBody>> {
        self.clients.ops.get(&op)?.answer.as_ref()
    }
    pub fn writes_acknowledged(&self) -> u64 {
        self.world.totals.of("writes acknowledged")
    }
    pub fn runs_manager_runtime(&self, name: &str) -> bool {
        self.world.machines[self.idx(name)].runtime.is_some()
    }
    /// It has learned that it is permanently out of the cluster.
    pub fn has_ended(&self, name: &str) -> bool {
        self.world.machines[self.idx(name)].agent.ended.is_some()
    }
    /// The leader's reason why a node is pending.
    pub fn waits_for(&self, name: &str) -> Option<muster_messages::WaitReason> {
        let node = self.id(name);
        let runtime = self.world.machines[self.world.leading()?].runtime.as_ref()?;
        let view = runtime.leader.as_ref()?.roles.as_ref()?.core.view();
        view.pending.iter().find(|p| p.node == node).map(|p| p.reason)
    }
    /// By name.
    pub fn voters(&self) -> Vec<&str> {
        let Some(tables) = self.world.checks.newest() else { return Vec::new() };
        let voters = tables.members.values().filter(|m| m.voter).filter_map(|m| self.world.idx_of(m.node));
        let mut names: Vec<&str> = voters.map(|p| self.world.machines[p].name.as_str()).collect();
        names.sort_unstable();
        names
    }
}

fn fail(failure: &Failure) {
    panic!("{failure}");
}
