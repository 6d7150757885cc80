//! The verbs of told stories: a calm universe in which exactly what is told goes wrong.

use std::time::Duration;

use muster_messages::{ErrorBody, Liveness, Membership, NodeId, Role};
use muster_role_manager::core::Wish;

use crate::clients::OpNumber;
use crate::machine::Place;
use crate::report::Failure;
use crate::world::{Event, Universe};

/// What is held back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Nobody is given a new certificate.
    pub certificates: bool,
}

/// Something between machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Every request for a certificate.
    Certificates,
    Between(String, String),
    /// Everything from and to this machine.
    Of(String),
}

impl Link {
    pub fn between(a: &str, b: &str) -> Self {
        Self::Between(a.to_owned(), b.to_owned())
    }
    pub fn of(name: &str) -> Self {
        Self::Of(name.to_owned())
    }
}

/// Longer than any story needs.
const PATIENCE: Duration = Duration::from_secs(60);

impl Universe {
    /// A settled cluster of so many managers, named n1, n2, …
    #[must_use]
    pub fn with_nodes(mut self, managers: usize) -> Self {
        self.found();
        self.start_clients(1);
        for _ in 1..managers {
            self.join_machine(Role::Manager);
        }
        self.run_until_quiet();
        self
    }
    /// And so many workers, named on.
    #[must_use]
    pub fn with_workers(mut self, workers: usize) -> Self {
        for _ in 0..workers {
            self.join_machine(Role::Worker);
        }
        self.run_until_quiet();
        self
    }

    /// A settled cluster that nobody uses, whose agents beat this often.
    #[must_use]
    pub fn calm(seed: u64, managers: usize, workers: usize, heartbeat: Duration) -> Self {
        let mut universe = Self::seeded(seed);
        universe.settings.hurry_agents(heartbeat);
        universe.found();
        for place in 1..managers + workers {
            universe.join_machine(if place < managers { Role::Manager } else { Role::Worker });
        }
        universe.run_until("all have come", |u| u.checks.newest().is_some_and(|t| t.nodes.len() == managers + workers));
        universe.run_until_quiet();
        universe
    }
    /// How many there were so far.
    pub fn events(&self) -> u64 {
        self.time.passed()
    }

    // ---- what happens ---------------------------------------------------------------------------------------------

    pub fn promote(&mut self, name: &str) -> OpNumber {
        self.wish(self.id(name), Wish::Role(Role::Manager))
    }
    pub fn demote(&mut self, name: &str) -> OpNumber {
        self.wish(self.id(name), Wish::Role(Role::Worker))
    }
    pub fn remove(&mut self, name: &str, force: bool) -> OpNumber {
        self.wish(self.id(name), Wish::Remove { force })
    }
    /// The wish is carried to this machine, whoever leads.
    pub fn wish_at(&mut self, machine: &str, name: &str, role: Role) -> OpNumber {
        let place = self.place(machine);
        let op = self.note_wish(self.id(name), Wish::Role(role));
        self.time.after(Duration::from_millis(1), Event::WishArrives { place, op, attempt: 0 });
        self.lose_patience(op, 0);
        op
    }
    /// Nothing happens in it for so long; everything waits for it.
    pub fn freeze(&mut self, name: &str, takes: Duration) {
        self.freeze_for(self.place(name), takes);
    }
    /// The process is killed.
    pub fn kill(&mut self, name: &str) {
        self.crash(self.place(name), false);
    }
    /// The power goes, and with it what was not synced.
    pub fn unplug(&mut self, name: &str) {
        self.crash(self.place(name), true);
    }
    pub fn start_again(&mut self, name: &str) {
        self.start(self.place(name));
    }
    /// Its disk dies and is replaced by an empty one, while it is off.
    pub fn replace_disk(&mut self, name: &str) {
        let place = self.place(name);
        self.machines[place].disk.replace(false);
    }
    pub fn hold(&mut self, link: Link) {
        self.switch(link, true);
    }
    pub fn release(&mut self, link: Link) {
        self.switch(link, false);
    }
    fn switch(&mut self, link: Link, hold: bool) {
        let pairs: Vec<(Place, Place)> = match link {
            Link::Certificates => {
                self.holds.certificates = hold;
                return;
            }
            Link::Between(a, b) => vec![(self.place(&a), self.place(&b))],
            Link::Of(a) => (0..self.machines.len()).map(|b| (self.place(&a), b)).filter(|(a, b)| a != b).collect(),
        };
        let now = self.now();
        self.disturbed = now;
        for (a, b) in pairs {
            for (from, to) in [(a, b), (b, a)] {
                if hold {
                    self.net.cut(now, from, to);
                } else {
                    self.net.mend(from, to);
                }
            }
            if !hold && self.net.both_open(a, b) {
                self.session(a, b, true, Duration::from_millis(20));
            }
        }
    }

    // ---- time -----------------------------------------------------------------------------------------------------

    pub fn run_for(&mut self, time: Duration) {
        let until = self.now() + time;
        self.run_to(until).unwrap_or_else(|failure| tell(&failure));
    }
    /// Until this holds. A level, never an edge.
    pub fn run_until(&mut self, what: &str, mut holds: impl FnMut(&Universe) -> bool) {
        let limit = self.now() + PATIENCE;
        while !holds(self) {
            assert!(self.now() < limit, "never: {what}\n{}\nunsettled: {:?}", self.trace.tail(), self.unsettled());
            self.run_for(Duration::from_millis(5));
        }
    }
    /// Until nothing is pending and everybody who is up agrees.
    pub fn run_until_quiet(&mut self) {
        let (resting, reading) = (self.clients.resting, self.clients.reading);
        self.clients.resting = true;
        self.run_until("everything settles", |u| u.unsettled().is_none());
        (self.clients.resting, self.clients.reading) = (resting, reading);
    }

    // ---- looking --------------------------------------------------------------------------------------------------

    pub(crate) fn place(&self, name: &str) -> Place {
        let found = self.machines.iter().position(|m| m.name.as_str() == name);
        found.unwrap_or_else(|| panic!("no machine is called {name}"))
    }
    pub fn id(&self, name: &str) -> NodeId {
        self.machines[self.place(name)].id
    }
    /// Who leads and may decide.
    pub fn leader(&self) -> Option<&str> {
        self.leading().map(|p| self.machines[p].name.as_str())
    }
    /// The highest term that anybody is in.
    pub fn term(&self) -> u64 {
        let terms = self.machines.iter().filter_map(|m| Some(m.half.as_ref()?.core.replica().raft.term.0));
        terms.max().unwrap_or_default()
    }
    /// As it is written.
    pub fn is_down(&self, name: &str) -> bool {
        let node = self.id(name);
        let record = self.checks.newest().and_then(|t| t.nodes.get(&node));
        record.is_some_and(|r| r.liveness == Liveness::Down)
    }
    /// In the newest state that anybody has applied.
    pub fn membership_of(&self, name: &str) -> Membership {
        let node = self.id(name);
        self.checks.newest().map_or(Membership::None, |t| t.membership_of(node))
    }
    pub fn role_of(&self, name: &str) -> Option<Role> {
        let node = self.id(name);
        self.checks.newest()?.nodes.get(&node).map(|n| n.role)
    }
    pub fn certificate_of(&self, name: &str) -> Option<Role> {
        self.machines[self.place(name)].certified()
    }
    pub fn seat_of(&self, name: &str) -> Option<u64> {
        let node = self.id(name);
        self.checks.newest()?.seat_of(node).map(|m| m.raft_id.0)
    }
    /// `None`: not answered yet.
    pub fn answer(&self, op: OpNumber) -> Option<&Result<bool, ErrorBody>> {
        self.clients.ops.get(&op)?.answer.as_ref()
    }
    pub fn writes_acknowledged(&self) -> u64 {
        self.totals.of("writes acknowledged")
    }
    pub fn runs_manager_half(&self, name: &str) -> bool {
        self.machines[self.place(name)].half.is_some()
    }
    /// It was told for good that it is out.
    pub fn has_ended(&self, name: &str) -> bool {
        self.machines[self.place(name)].agent.ended.is_some()
    }
    /// Why a node is not settled, in the contract's words, as the leader says it.
    pub fn waits_for(&self, name: &str) -> Option<muster_messages::WaitReason> {
        let node = self.id(name);
        let half = self.machines[self.leading()?].half.as_ref()?;
        let view = half.leader.as_ref()?.roles.as_ref()?.core.view();
        view.pending.iter().find(|p| p.node == node).map(|p| p.reason)
    }
    /// By name.
    pub fn voters(&self) -> Vec<&str> {
        let Some(tables) = self.checks.newest() else { return Vec::new() };
        let voters = tables.members.values().filter(|m| m.voter).filter_map(|m| self.place_of(m.node));
        let mut names: Vec<&str> = voters.map(|p| self.machines[p].name.as_str()).collect();
        names.sort_unstable();
        names
    }
}

fn tell(failure: &Failure) {
    panic!("{failure}");
}
