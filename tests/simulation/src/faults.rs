//! Random faults: crashes, freezes, partitions, bad networks and disks, crashed actors, outdated commands.

use std::time::Duration;

use muster_messages::{Moment, RaftId, Role};
use muster_raft_member::core::Input;
use muster_role_manager::core::Sent;

use crate::disk::DiskSpeed;
use crate::machine::{Asker, MachineIdx};
use crate::network::NetworkConditions;
use crate::simulation::{Event, Simulation};

/// A fault that ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimedFault {
    Down(MachineIdx, u32),
    Frozen(MachineIdx),
    Dying(MachineIdx, u32),
    Brownout,
    Disconnected(Vec<(MachineIdx, MachineIdx)>),
    NetworkConditions(u32),
    Disk(MachineIdx, u32),
}

/// Active faults and their traces.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub active: bool,
    thawed: Vec<(MachineIdx, Moment)>,
    conditions_number: u32,
    disks: u32,
    /// The member id whose data is lost. While it is in the configuration no other disk may fail: losing the data of two
    /// members at once exceeds what a majority of three tolerates.
    lost: Option<RaftId>,
    /// No other fault is injected before this time, so that the last one can take effect.
    next_fault_after: Moment,
}

impl Faults {
    /// When a machine last thawed.
    pub fn froze(&self, idx: MachineIdx) -> Option<Moment> {
        self.thawed.iter().rev().find(|(p, _)| *p == idx).map(|(_, at)| *at)
    }
}

impl Simulation {
    pub(crate) fn fault(&mut self) {
        if !self.faults.active {
            return;
        }
        self.last_fault_at = self.now();
        let next = self.rng.millis(150, 1400);
        self.time.after(next, Event::Fault);
        if self.now() < self.faults.next_fault_after {
            return;
        }
        let idx = self.rng.below(self.machines.len());
        match self.rng.below(34) {
            0..=2 => self.crash_for_a_while(idx, false),
            3..=5 => self.crash_for_a_while(idx, true),
            6 => self.crash_leader(),
            7 => self.crash_all(),
            8 => self.freeze_for_a_while(idx),
            9 => self.freeze_leader(idx),
            10 | 11 => self.partition(),
            12 => self.isolate(idx),
            13 => self.disconnect_one_way(idx),
            14 | 15 => self.degrade_network(),
            16 | 17 => self.bad_disk(idx, DiskSpeed::Slow),
            18 => self.bad_disk(idx, DiskSpeed::Hung),
            19 | 20 => self.lose_disk(),
            21 => self.schedule_roles_crash(),
            22 => self.crash_an_authority(),
            23 => self.hand_over(idx),
            24 => self.propose_outdated(),
            25 => self.brownout(),
            26..=28 => self.rotate(),
            29 => self.outdated_member(),
            30 => self.remove_lost_manager(),
            31 | 32 => self.false_hint(idx),
            _ => self.crash_a_dispatcher(),
        }
    }

    // ---- processes ------------------------------------------------------------------------------------------------

    /// Ends the process. A power loss also loses unsynced writes, and closes no connection.
    pub(crate) fn crash(&mut self, idx: MachineIdx, power: bool) {
        if !self.machines[idx].up {
            return;
        }
        self.last_fault_at = self.now();
        let name = self.machines[idx].name.clone();
        self.log(format!("{name} {}", if power { "loses its power" } else { "is killed" }));
        self.totals.count(if power { "fault: power lost" } else { "fault: process killed" });
        let now = self.now();
        self.stop_runtime(idx, !power);
        self.connections_end(idx, false, !power);
        let machine = &mut self.machines[idx];
        machine.up = false;
        machine.agent.core = None;
        machine.agent.wanted = false;
        machine.thaws = None;
        machine.life += 1;
        machine.silent_since.get_or_insert(now);
        if power {
            let lost = machine.disk.power_lost(&mut self.rng);
            self.totals.add("fault: unsynced writes lost", u64::from(lost));
        } else {
            machine.disk.killed();
        }
    }

    pub(crate) fn start(&mut self, idx: MachineIdx) {
        if self.machines[idx].up || self.machines[idx].gone {
            return;
        }
        self.last_fault_at = self.now();
        let now = self.now();
        // A monotonic clock belongs to one start of the machine.
        let clock = self.rng.sample() % 1_000_000_000_000;
        let moves = self.faults.active && self.rng.chance(120);
        let machine = &mut self.machines[idx];
        machine.up = true;
        machine.started_at = now;
        machine.incompatible = false;
        machine.clock = clock;
        machine.agent.asking = None;
        machine.disk.speed = DiskSpeed::Good;
        if moves {
            let port = 4401 + self.rng.below(200);
            machine.addr = format!("10.0.0.{}:{port}", idx + 1);
        }
        self.returns(idx);
        let machine = &self.machines[idx];
        let life = machine.life;
        let name = machine.name.clone();
        self.log(format!("{name} starts{}", if moves { " at another address" } else { "" }));
        let soon = self.rng.millis(1, 30);
        self.time.after(soon, Event::Agent { idx, life });
        self.start_agent(idx);
    }

    /// E23: a machine that was removed meanwhile returns, with its log or with an empty directory.
    fn returns(&mut self, idx: MachineIdx) {
        let machine = &self.machines[idx];
        let removed = self.checks.newest().is_some_and(|t| t.cluster.is_some() && !t.nodes.contains_key(&machine.id));
        let manager = machine.certified() == Some(Role::Manager) && machine.disk.held.is_some();
        if !removed || !manager || machine.agent.ended.is_some() {
            return;
        }
        if self.rng.chance(500) {
            self.machines[idx].disk.replace(false);
            self.log(format!("n{} returns with an empty Raft directory", idx + 1));
            self.totals.count("fault: removed manager back without its log");
        } else {
            self.totals.count("fault: removed manager back with its log");
        }
    }

    /// Loses a manager, removes it once it is declared down, and returns it before, during or after the removal.
    fn remove_lost_manager(&mut self) {
        let voters = self.healthy_voters(None);
        let others: Vec<MachineIdx> =
            voters.iter().copied().filter(|p| Some(self.machines[*p].id) != self.model.ledger).collect();
        let Some(idx) = self.rng.pick(&others).filter(|_| voters.len() >= 3) else { return };
        let power = self.rng.chance(500);
        self.crash(idx, power);
        let noticed = self.settings.sessions.down_after() + self.rng.millis(0, 1500);
        self.time.after(noticed, Event::Dismiss(self.machines[idx].id));
        let back = noticed + self.rng.millis(0, 2500);
        let back = if self.rng.chance(300) { noticed + self.rng.micros(0, 20_000) } else { back };
        self.time.after(back, Event::TimedFaultEnds(TimedFault::Down(idx, self.machines[idx].life)));
    }

    fn crash_for_a_while(&mut self, idx: MachineIdx, power: bool) {
        if self.machines[idx].up {
            self.crash(idx, power);
            let back = if self.rng.chance(150) { self.rng.millis(4000, 9000) } else { self.rng.millis(30, 3500) };
            self.time.after(back, Event::TimedFaultEnds(TimedFault::Down(idx, self.machines[idx].life)));
        }
    }

    fn crash_leader(&mut self) {
        if let Some(idx) = self.leading() {
            let power = self.rng.chance(400);
            self.crash_for_a_while(idx, power);
        }
    }

    fn crash_all(&mut self) {
        self.totals.count("fault: all machines down");
        let power = self.rng.chance(700);
        for idx in 0..self.machines.len() {
            self.crash_for_a_while(idx, power);
        }
    }

    /// All disks become slow, then all machines lose power: the worst moment for unsynced writes.
    fn brownout(&mut self) {
        self.log("a brownout");
        for idx in 0..self.machines.len() {
            self.bad_disk(idx, DiskSpeed::Slow);
        }
        let soon = self.rng.millis(100, 1500);
        self.time.after(soon, Event::TimedFaultEnds(TimedFault::Brownout));
    }

    fn blackout(&mut self) {
        self.totals.count("fault: all machines down");
        for idx in 0..self.machines.len() {
            self.crash_for_a_while(idx, true);
        }
    }

    fn freeze_for_a_while(&mut self, idx: MachineIdx) {
        let takes = self.rng.millis(50, 4000);
        self.freeze_for(idx, takes);
    }

    /// Long enough for another leader, and for the expiry of leases, before it thaws.
    fn freeze_leader(&mut self, idx: MachineIdx) {
        let idx = self.leading().unwrap_or(idx);
        let takes = if self.rng.chance(500) { self.rng.millis(3000, 4000) } else { self.rng.millis(50, 3000) };
        self.freeze_for(idx, takes);
    }

    pub(crate) fn freeze_for(&mut self, idx: MachineIdx, takes: Duration) {
        let now = self.now();
        let machine = &mut self.machines[idx];
        if machine.runs() {
            machine.thaws = Some(now + takes);
            machine.silent_since.get_or_insert(now);
            self.totals.count("fault: node frozen");
            self.log(format!("n{} freezes for {} ms", idx + 1, takes.as_millis()));
            // Before every event that waited for the thaw.
            self.time.at(now + takes, Event::TimedFaultEnds(TimedFault::Frozen(idx)));
        }
    }

    fn thaw(&mut self, idx: MachineIdx) {
        let now = self.now();
        let machine = &mut self.machines[idx];
        if machine.thaws.take().is_some() {
            self.last_fault_at = now;
            self.faults.thawed.push((idx, now));
            if machine.member_id().is_some() {
                machine.silent_since = None;
            }
        }
    }

    // ---- network --------------------------------------------------------------------------------------------------

    fn disconnect_for_a_while(&mut self, links: Vec<(MachineIdx, MachineIdx)>) {
        let now = self.now();
        for (from, to) in &links {
            self.net.disconnect(now, *from, *to);
        }
        let takes = if self.rng.chance(200) { self.rng.millis(3000, 9000) } else { self.rng.millis(50, 3000) };
        self.time.after(takes, Event::TimedFaultEnds(TimedFault::Disconnected(links)));
    }

    fn partition(&mut self) {
        let size = self.machines.len();
        let side: Vec<bool> = (0..size).map(|_| self.rng.chance(500)).collect();
        let between = |a: &usize, b: &usize| side[*a] != side[*b];
        let links = (0..size).flat_map(|a| (0..size).map(move |b| (a, b))).filter(|(a, b)| between(a, b)).collect();
        self.totals.count("fault: partition");
        let names: Vec<String> = (0..size).filter(|p| side[*p]).map(|p| format!("n{}", p + 1)).collect();
        self.log(format!("a partition cuts off {}", names.join(" ")));
        self.disconnect_for_a_while(links);
    }

    fn isolate(&mut self, idx: MachineIdx) {
        let others = (0..self.machines.len()).filter(|p| *p != idx);
        let links = others.flat_map(|p| [(p, idx), (idx, p)]).collect();
        self.totals.count("fault: partition");
        self.log(format!("n{} is disconnected", idx + 1));
        self.disconnect_for_a_while(links);
    }

    /// Disconnects the leader repeatedly, each time long enough that the others elect a leader while the old one
    /// still believes that it leads, and that leases expire.
    pub(crate) fn disconnect_leader(&mut self) {
        let next = self.rng.millis(3000, 7000);
        self.time.after(next, Event::DisconnectLeader);
        let Some(leader) = self.leading().filter(|_| self.faults.active) else { return };
        self.totals.count("fault: partition");
        self.log(format!("leader n{} is disconnected", leader + 1));
        let others = (0..self.machines.len()).filter(|p| *p != leader);
        let links: Vec<(MachineIdx, MachineIdx)> = others.flat_map(|p| [(p, leader), (leader, p)]).collect();
        let (now, takes) = (self.now(), self.rng.millis(2500, 4500));
        for (from, to) in &links {
            self.net.disconnect(now, *from, *to);
        }
        self.last_fault_at = now;
        self.faults.next_fault_after = now + takes;
        self.time.after(takes, Event::TimedFaultEnds(TimedFault::Disconnected(links)));
    }

    fn disconnect_one_way(&mut self, from: MachineIdx) {
        let to = self.rng.below(self.machines.len());
        if from != to {
            self.totals.count("fault: one-way partition");
            self.log(format!("link n{} to n{} is disconnected", from + 1, to + 1));
            self.disconnect_for_a_while(vec![(from, to)]);
        }
    }

    fn degrade_network(&mut self) {
        let heavy = self.rng.chance(250);
        let most = if heavy { 300 } else { 60 };
        self.net.conditions = NetworkConditions {
            loss: self.rng.below(most) as u32,
            duplicate: self.rng.below(most) as u32,
            reorder: self.rng.below(most) as u32,
            slow: if self.rng.chance(300) { self.rng.millis(1, 90) } else { Duration::ZERO },
        };
        self.log(format!("{:?}", self.net.conditions));
        self.faults.conditions_number += 1;
        let takes = self.rng.millis(200, 4000);
        self.time.after(takes, Event::TimedFaultEnds(TimedFault::NetworkConditions(self.faults.conditions_number)));
    }

    // ---- disks ----------------------------------------------------------------------------------------------------

    fn bad_disk(&mut self, idx: MachineIdx, speed: DiskSpeed) {
        self.totals.count(if speed == DiskSpeed::Hung { "fault: hung disk" } else { "fault: slow disk" });
        self.log(format!("the disk of n{} is {speed:?}", idx + 1));
        self.machines[idx].disk.speed = speed;
        self.faults.disks += 1;
        let takes = self.rng.millis(100, 4500);
        self.time.after(takes, Event::TimedFaultEnds(TimedFault::Disk(idx, self.faults.disks)));
    }

    /// Crashes a machine whose disk then proves lost. By then its leader has noticed the silence:
    /// a disk that fails unnoticed, just before a change that needs it, exceeds what any quorum tolerates.
    fn lose_disk(&mut self) {
        let voters = self.healthy_voters(None);
        let Some(idx) = self.rng.pick(&voters).filter(|_| voters.len() >= 3) else { return };
        self.crash(idx, true);
        let noticed = self.settings.roles.election_timeout * 2;
        self.time.after(noticed, Event::TimedFaultEnds(TimedFault::Dying(idx, self.machines[idx].life)));
    }

    fn disk_dies(&mut self, idx: MachineIdx) {
        let tables = self.checks.newest().cloned().unwrap_or_default();
        let member_id = tables.member_of(self.machines[idx].id).filter(|m| m.voter).map(|m| m.raft_id);
        let voters = self.healthy_voters(Some(idx));
        let busy = self.leading().and_then(|l| {
            let reaches = voters.iter().all(|v| *v == l || self.net.both_open(l, *v));
            let roles = self.machines[l].runtime.as_ref()?.leader.as_ref()?.roles.as_ref().filter(|_| reaches)?;
            Some(roles.core.outbox().iter().any(|(_, o)| matches!(o.sent, Sent::Membership(_))))
        });
        if let Some(member_id) = member_id.filter(|_| voters.len() >= 2 && busy == Some(false)) {
            self.faults.lost = Some(member_id);
            self.totals.count("fault: disk lost");
            let damaged = self.rng.chance(400);
            self.machines[idx].disk.replace(damaged);
            self.log(format!("disk lost: n{} member={member_id}", idx + 1));
        }
        let back = self.rng.millis(30, 2500);
        self.time.after(back, Event::TimedFaultEnds(TimedFault::Down(idx, self.machines[idx].life)));
    }

    /// The machines of all voters if each is healthy, except for this one; none otherwise, or while another loss is unrepaired.
    fn healthy_voters(&self, except: Option<MachineIdx>) -> Vec<MachineIdx> {
        let tables = self.checks.newest().cloned().unwrap_or_default();
        let loss_repaired = self.faults.lost.is_none_or(|member_id| !tables.members.contains_key(&member_id));
        let member_ids = tables.members.values().filter(|m| m.voter).map(|m| (m.raft_id, self.holder(m.raft_id)));
        let mut voters = Vec::new();
        for (member_id, idx) in member_ids.filter(|(_, p)| p.is_none() || *p != except) {
            let machine = idx.map(|p| &self.machines[p]);
            let healthy = |m: &&crate::machine::Machine| {
                m.runs() && m.member_id() == Some(member_id) && m.disk.lost.is_none() && m.disk.speed == DiskSpeed::Good
            };
            match (idx, machine.filter(healthy)) {
                (Some(idx), Some(_)) if loss_repaired => voters.push(idx),
                _ => return Vec::new(),
            }
        }
        voters
    }

    // ---- actors ---------------------------------------------------------------------------------------------------

    fn schedule_roles_crash(&mut self) {
        let Some(idx) = self.leading() else { return };
        self.totals.count("fault: role manager crashed");
        let in_a_step = self.rng.chance(700);
        match self.roles(idx) {
            Some(roles) if in_a_step => roles.doomed = true,
            _ => self.crash_roles(idx),
        }
    }

    fn crash_an_authority(&mut self) {
        if let Some(idx) = self.leading() {
            self.totals.count("fault: cert authority crashed");
            self.crash_authority(idx);
        }
    }

    fn crash_a_dispatcher(&mut self) {
        if let Some(idx) = self.leading() {
            self.totals.count("fault: dispatcher crashed");
            self.crash_dispatcher(idx);
        }
    }

    /// A member is wrongly informed that its leader is gone.
    fn false_hint(&mut self, idx: MachineIdx) {
        let Some(runtime) = self.machines[idx].runtime.as_ref() else { return };
        let (runtime, leader) = (runtime.number, runtime.core.replica().raft.leader_node);
        let Some(node) = leader.filter(|node| *node != self.machines[idx].id) else { return };
        self.totals.count("fault: false leader-loss hint");
        self.log(format!("n{} receives a false leader-loss hint", idx + 1));
        let (soon, input) = (self.rng.micros(100, 5000), Box::new(Input::LeaderGone { node }));
        self.time.after(soon, Event::Local { idx, runtime, input });
    }

    /// Asks a member to hand over leadership.
    fn hand_over(&mut self, idx: MachineIdx) {
        let idx = self.leading().unwrap_or(idx);
        if !self.machines[idx].runs() {
            return;
        }
        if let Some(ask) = self.await_answer(idx, Asker::Internal) {
            self.deliver(idx, Input::TransferLeadership { ask, to: None });
        }
    }

    // ---- the end of faults ----------------------------------------------------------------------------------------

    pub(crate) fn end_timed_fault(&mut self, timed_fault: TimedFault) {
        self.last_fault_at = self.now();
        match timed_fault {
            TimedFault::Down(idx, life) if self.machines[idx].life == life => self.start(idx),
            TimedFault::Dying(idx, life) if self.machines[idx].life == life && !self.machines[idx].up => {
                self.disk_dies(idx)
            }
            TimedFault::Brownout if self.faults.active => self.blackout(),
            TimedFault::Frozen(idx) => self.thaw(idx),
            TimedFault::Disconnected(links) => {
                for (from, to) in links {
                    self.net.reconnect(from, to);
                    if self.net.both_open(from, to) && from < to {
                        self.session(from, to, true, Duration::from_millis(300));
                    }
                }
            }
            TimedFault::NetworkConditions(number) if number == self.faults.conditions_number => {
                self.net.conditions = NetworkConditions::default()
            }
            TimedFault::Disk(idx, number) if number == self.faults.disks || self.rng.chance(500) => {
                self.repair_disk(idx)
            }
            TimedFault::Disk(idx, number) => {
                let later = self.rng.millis(100, 2000);
                self.time.after(later, Event::TimedFaultEnds(TimedFault::Disk(idx, number)));
            }
            _ => {}
        }
    }

    pub(crate) fn repair_disk(&mut self, idx: MachineIdx) {
        self.machines[idx].disk.speed = DiskSpeed::Good;
        self.begin_disk(idx);
    }

    /// Ends all faults.
    pub(crate) fn clear_faults(&mut self) {
        self.log("all faults are cleared");
        self.last_fault_at = self.now();
        self.faults.active = false;
        self.net.reconnect_all();
        self.net.conditions = NetworkConditions::default();
        for idx in 0..self.machines.len() {
            self.thaw(idx);
            self.repair_disk(idx);
            self.start(idx);
        }
        for a in 0..self.machines.len() {
            for b in a + 1..self.machines.len() {
                self.session(a, b, true, Duration::from_millis(300));
            }
        }
    }
}
