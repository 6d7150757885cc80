//! Random faults: crashes, freezes, partitions, bad networks and disks, crashed actors, outdated commands.

use std::time::Duration;

use muster_messages::{AuthorityState, Moment, RaftId};
use muster_raft_member::core::Input;
use muster_role_manager::core::Sent;

use crate::disk::DiskSpeed;
use crate::events::Event;
use crate::machine::{Asker, Authority, Dispatch, Machine, MachineIdx, Roles};
use crate::network::NetworkConditions;
use crate::outdated;
use crate::world::World;

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

/// What faults remember of earlier ones.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    conditions_number: u32,
    disks: u32,
    /// The member id whose data is lost. While it is in the configuration no other disk may fail: losing the data of two
    /// members at once exceeds what a majority of three tolerates.
    lost: Option<RaftId>,
    /// No other fault is injected before this time, so that the last one can take effect.
    next_fault_after: Moment,
}

impl Faults {
    pub(crate) fn inject(&mut self, world: &mut World) {
        if !world.faults_active {
            return;
        }
        world.last_fault_at = world.now();
        let next = world.rng.millis(150, 1400);
        world.time.after(next, Event::Fault);
        if world.now() < self.next_fault_after {
            return;
        }
        let idx = world.rng.below(world.machines.len());
        match world.rng.below(34) {
            0..=2 => Self::crash_for_a_while(world, idx, false),
            3..=5 => Self::crash_for_a_while(world, idx, true),
            6 => Self::crash_leader(world),
            7 => Self::crash_all(world),
            8 => Self::freeze_for_a_while(world, idx),
            9 => Self::freeze_leader(world, idx),
            10 | 11 => Self::partition(world),
            12 => Self::isolate(world, idx),
            13 => Self::disconnect_one_way(world, idx),
            14 | 15 => self.degrade_network(world),
            16 | 17 => self.bad_disk(world, idx, DiskSpeed::Slow),
            18 => self.bad_disk(world, idx, DiskSpeed::Hung),
            19 | 20 => self.lose_disk(world),
            21 => Self::schedule_roles_crash(world),
            22 => Self::crash_an_authority(world),
            23 => Self::hand_over(world, idx),
            24 => outdated::propose_outdated(world),
            25 => self.brownout(world),
            26..=28 => outdated::rotate(world),
            29 => outdated::outdated_member(world),
            30 => self.remove_lost_manager(world),
            31 | 32 => Self::false_hint(world, idx),
            _ => Self::crash_a_dispatcher(world),
        }
    }

    /// Loses a manager, removes it once it is declared down, and returns it before, during or after the removal.
    fn remove_lost_manager(&mut self, world: &mut World) {
        let voters = self.healthy_voters(world, None);
        let others: Vec<MachineIdx> =
            voters.iter().copied().filter(|p| Some(world.machines[*p].id) != world.model.ledger).collect();
        let Some(idx) = world.rng.pick(&others).filter(|_| voters.len() >= 3) else { return };
        let power = world.rng.chance(500);
        Machine::crash(world, idx, power);
        let noticed = world.settings.sessions.down_after() + world.rng.millis(0, 1500);
        world.time.after(noticed, Event::Dismiss(world.machines[idx].id));
        let back = noticed + world.rng.millis(0, 2500);
        let back = if world.rng.chance(300) { noticed + world.rng.micros(0, 20_000) } else { back };
        world.time.after(back, Event::TimedFaultEnds(TimedFault::Down(idx, world.machines[idx].life)));
    }

    fn crash_for_a_while(world: &mut World, idx: MachineIdx, power: bool) {
        if world.machines[idx].up {
            Machine::crash(world, idx, power);
            let back = if world.rng.chance(150) { world.rng.millis(4000, 9000) } else { world.rng.millis(30, 3500) };
            world.time.after(back, Event::TimedFaultEnds(TimedFault::Down(idx, world.machines[idx].life)));
        }
    }

    fn crash_leader(world: &mut World) {
        if let Some(idx) = world.leading() {
            let power = world.rng.chance(400);
            Self::crash_for_a_while(world, idx, power);
        }
    }

    fn crash_all(world: &mut World) {
        world.totals.count("fault: all machines down");
        let power = world.rng.chance(700);
        for idx in 0..world.machines.len() {
            Self::crash_for_a_while(world, idx, power);
        }
    }

    /// All disks become slow, then all machines lose power: the worst moment for unsynced writes.
    fn brownout(&mut self, world: &mut World) {
        world.log("a brownout");
        for idx in 0..world.machines.len() {
            self.bad_disk(world, idx, DiskSpeed::Slow);
        }
        let soon = world.rng.millis(100, 1500);
        world.time.after(soon, Event::TimedFaultEnds(TimedFault::Brownout));
    }

    fn blackout(world: &mut World) {
        world.totals.count("fault: all machines down");
        for idx in 0..world.machines.len() {
            Self::crash_for_a_while(world, idx, true);
        }
    }

    fn freeze_for_a_while(world: &mut World, idx: MachineIdx) {
        let takes = world.rng.millis(50, 4000);
        Machine::freeze(world, idx, takes);
    }

    /// Long enough for another leader, and for the expiry of leases, before it thaws.
    fn freeze_leader(world: &mut World, idx: MachineIdx) {
        let idx = world.leading().unwrap_or(idx);
        let takes = if world.rng.chance(500) { world.rng.millis(3000, 4000) } else { world.rng.millis(50, 3000) };
        Machine::freeze(world, idx, takes);
    }

    // ---- network --------------------------------------------------------------------------------------------------

    fn disconnect_for_a_while(world: &mut World, links: Vec<(MachineIdx, MachineIdx)>) {
        let now = world.now();
        for (from, to) in &links {
            world.net.disconnect(now, *from, *to);
        }
        let takes = if world.rng.chance(200) { world.rng.millis(3000, 9000) } else { world.rng.millis(50, 3000) };
        world.time.after(takes, Event::TimedFaultEnds(TimedFault::Disconnected(links)));
    }

    fn partition(world: &mut World) {
        let size = world.machines.len();
        let side: Vec<bool> = (0..size).map(|_| world.rng.chance(500)).collect();
        let between = |a: &usize, b: &usize| side[*a] != side[*b];
        let links = (0..size).flat_map(|a| (0..size).map(move |b| (a, b))).filter(|(a, b)| between(a, b)).collect();
        world.totals.count("fault: partition");
        let names: Vec<String> = (0..size).filter(|p| side[*p]).map(|p| format!("n{}", p + 1)).collect();
        world.log(format!("a partition cuts off {}", names.join(" ")));
        Self::disconnect_for_a_while(world, links);
    }

    fn isolate(world: &mut World, idx: MachineIdx) {
        let others = (0..world.machines.len()).filter(|p| *p != idx);
        let links = others.flat_map(|p| [(p, idx), (idx, p)]).collect();
        world.totals.count("fault: partition");
        world.log(format!("n{} is disconnected", idx + 1));
        Self::disconnect_for_a_while(world, links);
    }

    /// Disconnects the leader repeatedly, each time long enough that the others elect a leader while the old one
    /// still believes that it leads, and that leases expire.
    pub(crate) fn disconnect_leader(&mut self, world: &mut World) {
        let next = world.rng.millis(3000, 7000);
        world.time.after(next, Event::DisconnectLeader);
        let Some(leader) = world.leading().filter(|_| world.faults_active) else { return };
        world.totals.count("fault: partition");
        world.log(format!("leader n{} is disconnected", leader + 1));
        let others = (0..world.machines.len()).filter(|p| *p != leader);
        let links: Vec<(MachineIdx, MachineIdx)> = others.flat_map(|p| [(p, leader), (leader, p)]).collect();
        let (now, takes) = (world.now(), world.rng.millis(2500, 4500));
        for (from, to) in &links {
            world.net.disconnect(now, *from, *to);
        }
        world.last_fault_at = now;
        self.next_fault_after = now + takes;
        world.time.after(takes, Event::TimedFaultEnds(TimedFault::Disconnected(links)));
    }

    fn disconnect_one_way(world: &mut World, from: MachineIdx) {
        let to = world.rng.below(world.machines.len());
        if from != to {
            world.totals.count("fault: one-way partition");
            world.log(format!("link n{} to n{} is disconnected", from + 1, to + 1));
            Self::disconnect_for_a_while(world, vec![(from, to)]);
        }
    }

    fn degrade_network(&mut self, world: &mut World) {
        let heavy = world.rng.chance(250);
        let most = if heavy { 300 } else { 60 };
        world.net.conditions = NetworkConditions {
            loss: world.rng.below(most) as u32,
            duplicate: world.rng.below(most) as u32,
            reorder: world.rng.below(most) as u32,
            slow: if world.rng.chance(300) { world.rng.millis(1, 90) } else { Duration::ZERO },
        };
        world.log(format!("{:?}", world.net.conditions));
        self.conditions_number += 1;
        let takes = world.rng.millis(200, 4000);
        world.time.after(takes, Event::TimedFaultEnds(TimedFault::NetworkConditions(self.conditions_number)));
    }

    // ---- disks ----------------------------------------------------------------------------------------------------

    fn bad_disk(&mut self, world: &mut World, idx: MachineIdx, speed: DiskSpeed) {
        world.totals.count(if speed == DiskSpeed::Hung { "fault: hung disk" } else { "fault: slow disk" });
        world.log(format!("the disk of n{} is {speed:?}", idx + 1));
        world.machines[idx].disk.speed = speed;
        self.disks += 1;
        let takes = world.rng.millis(100, 4500);
        world.time.after(takes, Event::TimedFaultEnds(TimedFault::Disk(idx, self.disks)));
    }

    /// Crashes a machine whose disk then proves lost. By then its leader has noticed the silence:
    /// a disk that fails unnoticed, just before a change that needs it, exceeds what any quorum tolerates.
    fn lose_disk(&mut self, world: &mut World) {
        let voters = self.healthy_voters(world, None);
        let Some(idx) = world.rng.pick(&voters).filter(|_| voters.len() >= 3 && takes_part(world, &voters)) else {
            return;
        };
        Machine::crash(world, idx, true);
        let noticed = world.settings.roles.election_timeout * 2;
        world.time.after(noticed, Event::TimedFaultEnds(TimedFault::Dying(idx, world.machines[idx].life)));
    }

    fn disk_dies(&mut self, world: &mut World, idx: MachineIdx) {
        let tables = world.checks.newest().cloned().unwrap_or_default();
        let member_id = tables.member_of(world.machines[idx].id).filter(|m| m.voter).map(|m| m.raft_id);
        let voters = self.healthy_voters(world, Some(idx));
        let busy = world.leading().and_then(|l| {
            let reaches = voters.iter().all(|v| *v == l || world.net.both_open(l, *v));
            let roles = world.machines[l].runtime.as_ref()?.leader.as_ref()?.roles.as_ref().filter(|_| reaches)?;
            Some(roles.core.outbox().iter().any(|(_, o)| matches!(o.sent, Sent::Membership(_))))
        });
        if let Some(member_id) =
            member_id.filter(|_| voters.len() >= 2 && busy == Some(false) && takes_part(world, &voters))
        {
            self.lost = Some(member_id);
            world.totals.count("fault: disk lost");
            let damaged = world.rng.chance(400);
            world.machines[idx].disk.replace(damaged);
            world.log(format!("disk lost: n{} member={member_id}", idx + 1));
        }
        let back = world.rng.millis(30, 2500);
        world.time.after(back, Event::TimedFaultEnds(TimedFault::Down(idx, world.machines[idx].life)));
    }

    /// The machines of all voters if each is healthy, except for this one; none otherwise, or while another loss is unrepaired.
    fn healthy_voters(&self, world: &World, except: Option<MachineIdx>) -> Vec<MachineIdx> {
        let tables = world.checks.newest().cloned().unwrap_or_default();
        let loss_repaired = self.lost.is_none_or(|member_id| !tables.members.contains_key(&member_id));
        let member_ids = tables.members.values().filter(|m| m.voter).map(|m| (m.raft_id, world.holder(m.raft_id)));
        let mut voters = Vec::new();
        for (member_id, idx) in member_ids.filter(|(_, p)| p.is_none() || *p != except) {
            let machine = idx.map(|p| &world.machines[p]);
            let healthy = |m: &&Machine| {
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

    fn schedule_roles_crash(world: &mut World) {
        let Some(idx) = world.leading() else { return };
        world.totals.count("fault: role manager crashed");
        let in_a_step = world.rng.chance(700);
        match Roles::at(world, idx) {
            Some(roles) if in_a_step => roles.doomed = true,
            _ => Roles::crash(world, idx),
        }
    }

    fn crash_an_authority(world: &mut World) {
        if let Some(idx) = world.leading() {
            world.totals.count("fault: cert authority crashed");
            Authority::crash(world, idx);
        }
    }

    fn crash_a_dispatcher(world: &mut World) {
        if let Some(idx) = world.leading() {
            world.totals.count("fault: dispatcher crashed");
            Dispatch::crash(world, idx);
        }
    }

    /// A member is wrongly informed that its leader is gone.
    fn false_hint(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let (runtime, leader) = (runtime.number, runtime.core.replica().raft.leader_node);
        let Some(node) = leader.filter(|node| *node != world.machines[idx].id) else { return };
        world.totals.count("fault: false leader-loss hint");
        world.log(format!("n{} receives a false leader-loss hint", idx + 1));
        let (soon, input) = (world.rng.micros(100, 5000), Box::new(Input::LeaderGone { node }));
        world.time.after(soon, Event::Local { idx, runtime, input });
    }

    /// Asks a member to hand over leadership.
    fn hand_over(world: &mut World, idx: MachineIdx) {
        let idx = world.leading().unwrap_or(idx);
        if !world.machines[idx].runs() {
            return;
        }
        if let Some(ask) = world.await_answer(idx, Asker::Internal) {
            world.deliver(idx, Input::TransferLeadership { ask, to: None });
        }
    }

    // ---- the end of faults ----------------------------------------------------------------------------------------

    pub(crate) fn end(&mut self, world: &mut World, timed_fault: TimedFault) {
        world.last_fault_at = world.now();
        match timed_fault {
            TimedFault::Down(idx, life) if world.machines[idx].life == life => Machine::start(world, idx),
            TimedFault::Dying(idx, life) if world.machines[idx].life == life && !world.machines[idx].up => {
                self.disk_dies(world, idx)
            }
            TimedFault::Brownout if world.faults_active => Self::blackout(world),
            TimedFault::Frozen(idx) => Machine::thaw(world, idx),
            TimedFault::Disconnected(links) => {
                for (from, to) in links {
                    world.net.reconnect(from, to);
                    if world.net.both_open(from, to) && from < to {
                        world.session(from, to, true, Duration::from_millis(300));
                    }
                }
            }
            TimedFault::NetworkConditions(number) if number == self.conditions_number => {
                world.net.conditions = NetworkConditions::default()
            }
            TimedFault::Disk(idx, number) if number == self.disks || world.rng.chance(500) => {
                Machine::repair_disk(world, idx)
            }
            TimedFault::Disk(idx, number) => {
                let later = world.rng.millis(100, 2000);
                world.time.after(later, Event::TimedFaultEnds(TimedFault::Disk(idx, number)));
            }
            _ => {}
        }
    }

    /// Ends all faults.
    pub(crate) fn clear(world: &mut World) {
        world.log("all faults are cleared");
        world.last_fault_at = world.now();
        world.faults_active = false;
        world.net.reconnect_all();
        world.net.conditions = NetworkConditions::default();
        for idx in 0..world.machines.len() {
            Machine::thaw(world, idx);
            Machine::repair_disk(world, idx);
            Machine::start(world, idx);
        }
        for a in 0..world.machines.len() {
            for b in a + 1..world.machines.len() {
                world.session(a, b, true, Duration::from_millis(300));
            }
        }
    }
}

/// Whether no certificate of these voters is of a revoked root: until it has renewed, such a one does not count towards a quorum.
fn takes_part(world: &World, voters: &[MachineIdx]) -> bool {
    let Some(tables) = world.checks.newest() else { return true };
    let issuer = |idx: &MachineIdx| tables.authorities.roots.get(&world.machines[*idx].agent.trust.chain.issuer);
    let is_revoked = |idx| issuer(idx).is_some_and(|root| root.state == AuthorityState::Revoked);
    !voters.iter().any(is_revoked)
}
