//! What goes wrong, at random: crashes, freezes, cuts, bad weather, bad disks, crashed actors, outdated commands.

use std::time::Duration;

use muster_messages::{Moment, RaftId, Role};
use muster_raft_member::core::Input;
use muster_role_manager::core::Sent;

use crate::disk::Pace;
use crate::machine::{Asker, Place};
use crate::network::Weather;
use crate::world::{Event, Universe};

/// A fault that ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injury {
    Down(Place, u32),
    Frozen(Place),
    Dying(Place, u32),
    Brownout,
    Cut(Vec<(Place, Place)>),
    Weather(u32),
    Disk(Place, u32),
}

/// Which faults there are, and what they left behind.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub active: bool,
    thawed: Vec<(Place, Moment)>,
    weathers: u32,
    disks: u32,
    /// The seat whose data is lost. While it is in the configuration, no other disk may die: losing the data of two
    /// members at once is more than a majority of three can bear.
    lost: Option<RaftId>,
    /// No other fault is injected before this time, so that the effects of the last one can develop.
    next_fault_after: Moment,
}

impl Faults {
    /// When a machine last woke from being frozen.
    pub fn froze(&self, place: Place) -> Option<Moment> {
        self.thawed.iter().rev().find(|(p, _)| *p == place).map(|(_, at)| *at)
    }
}

impl Universe {
    pub(crate) fn fault(&mut self) {
        if !self.faults.active {
            return;
        }
        self.disturbed = self.now();
        let next = self.dice.millis(150, 1400);
        self.time.after(next, Event::Fault);
        if self.now() < self.faults.next_fault_after {
            return;
        }
        let place = self.dice.below(self.machines.len());
        match self.dice.below(34) {
            0..=2 => self.crash_for_a_while(place, false),
            3..=5 => self.crash_for_a_while(place, true),
            6 => self.crash_leader(),
            7 => self.everybody_down(),
            8 => self.freeze_for_a_while(place),
            9 => self.freeze_leader(place),
            10 | 11 => self.partition(),
            12 => self.isolate(place),
            13 => self.cut_one_way(place),
            14 | 15 => self.bad_weather(),
            16 | 17 => self.bad_disk(place, Pace::Slow),
            18 => self.bad_disk(place, Pace::Hung),
            19 | 20 => self.lose_disk(),
            21 => self.doom_roles(),
            22 => self.crash_an_authority(),
            23 => self.hand_over(place),
            24 => self.outdated(),
            25 => self.brownout(),
            26..=28 => self.rotate(),
            29 => self.outdated_seat(),
            30 => self.dismiss(),
            31 | 32 => self.false_hint(place),
            _ => self.crash_a_dispatcher(),
        }
    }

    // ---- processes ------------------------------------------------------------------------------------------------

    /// The process ends. With the power goes what the disk had not synced, and nobody is told.
    pub(crate) fn crash(&mut self, place: Place, power: bool) {
        if !self.machines[place].up {
            return;
        }
        self.disturbed = self.now();
        let name = self.machines[place].name.clone();
        self.say(format!("{name} {}", if power { "loses its power" } else { "is killed" }));
        self.totals.count(if power { "fault: power lost" } else { "fault: process killed" });
        let now = self.now();
        self.drop_half(place, !power);
        self.lines_end(place, false, !power);
        let machine = &mut self.machines[place];
        machine.up = false;
        machine.agent.core = None;
        machine.agent.wanted = false;
        machine.thaws = None;
        machine.life += 1;
        machine.silent_since.get_or_insert(now);
        if power {
            let lost = machine.disk.power_lost(&mut self.dice);
            self.totals.add("fault: unsynced writes lost", u64::from(lost));
        } else {
            machine.disk.killed();
        }
    }

    pub(crate) fn start(&mut self, place: Place) {
        if self.machines[place].up || self.machines[place].gone {
            return;
        }
        self.disturbed = self.now();
        // A monotonic clock belongs to one start of the machine.
        let clock = self.dice.roll() % 1_000_000_000_000;
        let moves = self.faults.active && self.dice.chance(120);
        let machine = &mut self.machines[place];
        machine.up = true;
        machine.clock = clock;
        machine.agent.asking = None;
        machine.disk.pace = Pace::Good;
        if moves {
            let port = 4401 + self.dice.below(200);
            machine.addr = format!("10.0.0.{}:{port}", place + 1);
        }
        self.returns(place);
        let machine = &self.machines[place];
        let life = machine.life;
        let name = machine.name.clone();
        self.say(format!("{name} starts{}", if moves { " at another address" } else { "" }));
        let soon = self.dice.millis(1, 30);
        self.time.after(soon, Event::Agent { place, life });
        self.start_agent(place);
    }

    /// E23: somebody who was removed meanwhile comes back, with its log or with an empty directory.
    fn returns(&mut self, place: Place) {
        let machine = &self.machines[place];
        let removed = self.checks.newest().is_some_and(|t| t.cluster.is_some() && !t.nodes.contains_key(&machine.id));
        let manager = machine.certified() == Some(Role::Manager) && machine.disk.held.is_some();
        if !removed || !manager || machine.agent.ended.is_some() {
            return;
        }
        if self.dice.chance(500) {
            self.machines[place].disk.replace(false);
            self.say(format!("the Raft directory of n{} is empty", place + 1));
            self.totals.count("fault: removed manager back without its log");
        } else {
            self.totals.count("fault: removed manager back with its log");
        }
    }

    /// A manager is lost, removed once it is called down, and comes back at some moment before, while or after that.
    fn dismiss(&mut self) {
        let voters = self.sound_voters(None);
        let others: Vec<Place> =
            voters.iter().copied().filter(|p| Some(self.machines[*p].id) != self.model.ledger).collect();
        let Some(place) = self.dice.pick(&others).filter(|_| voters.len() >= 3) else { return };
        let power = self.dice.chance(500);
        self.crash(place, power);
        let noticed = self.settings.sessions.down_after() + self.dice.millis(0, 1500);
        self.time.after(noticed, Event::Dismiss(self.machines[place].id));
        let back = noticed + self.dice.millis(0, 2500);
        let back = if self.dice.chance(300) { noticed + self.dice.micros(0, 20_000) } else { back };
        self.time.after(back, Event::Over(Injury::Down(place, self.machines[place].life)));
    }

    fn crash_for_a_while(&mut self, place: Place, power: bool) {
        if self.machines[place].up {
            self.crash(place, power);
            let back = if self.dice.chance(150) { self.dice.millis(4000, 9000) } else { self.dice.millis(30, 3500) };
            self.time.after(back, Event::Over(Injury::Down(place, self.machines[place].life)));
        }
    }

    fn crash_leader(&mut self) {
        if let Some(place) = self.leading() {
            let power = self.dice.chance(400);
            self.crash_for_a_while(place, power);
        }
    }

    fn everybody_down(&mut self) {
        self.totals.count("fault: everybody down");
        let power = self.dice.chance(700);
        for place in 0..self.machines.len() {
            self.crash_for_a_while(place, power);
        }
    }

    /// All disks become slow, and then the power goes everywhere: the worst moment for what was not synced.
    fn brownout(&mut self) {
        self.say("a brownout");
        for place in 0..self.machines.len() {
            self.bad_disk(place, Pace::Slow);
        }
        let soon = self.dice.millis(100, 1500);
        self.time.after(soon, Event::Over(Injury::Brownout));
    }

    fn blackout(&mut self) {
        self.totals.count("fault: everybody down");
        for place in 0..self.machines.len() {
            self.crash_for_a_while(place, true);
        }
    }

    fn freeze_for_a_while(&mut self, place: Place) {
        let takes = self.dice.millis(50, 4000);
        self.freeze_for(place, takes);
    }

    /// For so long that another may lead, and what hangs on a lease may be another's, when it wakes.
    fn freeze_leader(&mut self, place: Place) {
        let place = self.leading().unwrap_or(place);
        let takes = if self.dice.chance(500) { self.dice.millis(3000, 4000) } else { self.dice.millis(50, 3000) };
        self.freeze_for(place, takes);
    }

    pub(crate) fn freeze_for(&mut self, place: Place, takes: Duration) {
        let now = self.now();
        let machine = &mut self.machines[place];
        if machine.runs() {
            machine.thaws = Some(now + takes);
            machine.silent_since.get_or_insert(now);
            self.totals.count("fault: node frozen");
            self.say(format!("n{} freezes for {} ms", place + 1, takes.as_millis()));
            // Before everything that waited for it.
            self.time.at(now + takes, Event::Over(Injury::Frozen(place)));
        }
    }

    fn thaw(&mut self, place: Place) {
        let now = self.now();
        let machine = &mut self.machines[place];
        if machine.thaws.take().is_some() {
            self.disturbed = now;
            self.faults.thawed.push((place, now));
            if machine.seat().is_some() {
                machine.silent_since = None;
            }
        }
    }

    // ---- network --------------------------------------------------------------------------------------------------

    fn cut_for_a_while(&mut self, links: Vec<(Place, Place)>) {
        let now = self.now();
        for (from, to) in &links {
            self.net.cut(now, *from, *to);
        }
        let takes = if self.dice.chance(200) { self.dice.millis(3000, 9000) } else { self.dice.millis(50, 3000) };
        self.time.after(takes, Event::Over(Injury::Cut(links)));
    }

    fn partition(&mut self) {
        let size = self.machines.len();
        let side: Vec<bool> = (0..size).map(|_| self.dice.chance(500)).collect();
        let between = |a: &usize, b: &usize| side[*a] != side[*b];
        let links = (0..size).flat_map(|a| (0..size).map(move |b| (a, b))).filter(|(a, b)| between(a, b)).collect();
        self.totals.count("fault: partition");
        let names: Vec<String> = (0..size).filter(|p| side[*p]).map(|p| format!("n{}", p + 1)).collect();
        self.say(format!("a partition cuts off {}", names.join(" ")));
        self.cut_for_a_while(links);
    }

    fn isolate(&mut self, place: Place) {
        let others = (0..self.machines.len()).filter(|p| *p != place);
        let links = others.flat_map(|p| [(p, place), (place, p)]).collect();
        self.totals.count("fault: partition");
        self.say(format!("n{} is cut off", place + 1));
        self.cut_for_a_while(links);
    }

    /// Disconnects the leader, repeatedly: each time for long enough that the others elect another leader, while the old one
    /// still takes itself for the leader, and that leases expire.
    pub(crate) fn cut_off_the_leader(&mut self) {
        let next = self.dice.millis(3000, 7000);
        self.time.after(next, Event::CutOffTheLeader);
        let Some(leader) = self.leading().filter(|_| self.faults.active) else { return };
        self.totals.count("fault: partition");
        self.say(format!("n{}, which leads, is cut off", leader + 1));
        let others = (0..self.machines.len()).filter(|p| *p != leader);
        let links: Vec<(Place, Place)> = others.flat_map(|p| [(p, leader), (leader, p)]).collect();
        let (now, takes) = (self.now(), self.dice.millis(2500, 4500));
        for (from, to) in &links {
            self.net.cut(now, *from, *to);
        }
        self.disturbed = now;
        self.faults.next_fault_after = now + takes;
        self.time.after(takes, Event::Over(Injury::Cut(links)));
    }

    fn cut_one_way(&mut self, from: Place) {
        let to = self.dice.below(self.machines.len());
        if from != to {
            self.totals.count("fault: one-way cut");
            self.say(format!("n{} does not reach n{}", from + 1, to + 1));
            self.cut_for_a_while(vec![(from, to)]);
        }
    }

    fn bad_weather(&mut self) {
        let heavy = self.dice.chance(250);
        let most = if heavy { 300 } else { 60 };
        self.net.weather = Weather {
            loss: self.dice.below(most) as u32,
            twice: self.dice.below(most) as u32,
            reorder: self.dice.below(most) as u32,
            slow: if self.dice.chance(300) { self.dice.millis(1, 90) } else { Duration::ZERO },
        };
        self.say(format!("{:?}", self.net.weather));
        self.faults.weathers += 1;
        let takes = self.dice.millis(200, 4000);
        self.time.after(takes, Event::Over(Injury::Weather(self.faults.weathers)));
    }

    // ---- disks ----------------------------------------------------------------------------------------------------

    fn bad_disk(&mut self, place: Place, pace: Pace) {
        self.totals.count(if pace == Pace::Hung { "fault: hung disk" } else { "fault: slow disk" });
        self.say(format!("the disk of n{} is {pace:?}", place + 1));
        self.machines[place].disk.pace = pace;
        self.faults.disks += 1;
        let takes = self.dice.millis(100, 4500);
        self.time.after(takes, Event::Over(Injury::Disk(place, self.faults.disks)));
    }

    /// A machine fails, and a moment later turns out to have lost its disk. By then its leader has noticed the silence:
    /// a disk that dies unnoticed, just before a change that needs it, is more than any quorum can bear.
    fn lose_disk(&mut self) {
        let voters = self.sound_voters(None);
        let Some(place) = self.dice.pick(&voters).filter(|_| voters.len() >= 3) else { return };
        self.crash(place, true);
        let noticed = self.settings.roles.election_timeout * 2;
        self.time.after(noticed, Event::Over(Injury::Dying(place, self.machines[place].life)));
    }

    fn disk_dies(&mut self, place: Place) {
        let tables = self.checks.newest().cloned().unwrap_or_default();
        let seat = tables.seat_of(self.machines[place].id).filter(|m| m.voter).map(|m| m.raft_id);
        let voters = self.sound_voters(Some(place));
        let busy = self.leading().and_then(|l| {
            let reaches = voters.iter().all(|v| *v == l || self.net.both_open(l, *v));
            let roles = self.machines[l].half.as_ref()?.leader.as_ref()?.roles.as_ref().filter(|_| reaches)?;
            Some(roles.core.outbox().0.values().any(|o| matches!(o.sent, Sent::Seat(_))))
        });
        if let Some(seat) = seat.filter(|_| voters.len() >= 2 && busy == Some(false)) {
            self.faults.lost = Some(seat);
            self.totals.count("fault: disk lost");
            let damaged = self.dice.chance(400);
            self.machines[place].disk.replace(damaged);
            self.say(format!("the disk of n{}, seat {seat}, is lost", place + 1));
        }
        let back = self.dice.millis(30, 2500);
        self.time.after(back, Event::Over(Injury::Down(place, self.machines[place].life)));
    }

    /// The machines of all voters, if each is well but for this one; none otherwise, or while another loss is not made up.
    fn sound_voters(&self, but_for: Option<Place>) -> Vec<Place> {
        let tables = self.checks.newest().cloned().unwrap_or_default();
        let made_up = self.faults.lost.is_none_or(|seat| !tables.members.contains_key(&seat));
        let seats = tables.members.values().filter(|m| m.voter).map(|m| (m.raft_id, self.holder(m.raft_id)));
        let mut voters = Vec::new();
        for (seat, place) in seats.filter(|(_, p)| p.is_none() || *p != but_for) {
            let machine = place.map(|p| &self.machines[p]);
            let sound = |m: &&crate::machine::Machine| {
                m.runs() && m.seat() == Some(seat) && m.disk.lost.is_none() && m.disk.pace == Pace::Good
            };
            match (place, machine.filter(sound)) {
                (Some(place), Some(_)) if made_up => voters.push(place),
                _ => return Vec::new(),
            }
        }
        voters
    }

    // ---- actors ---------------------------------------------------------------------------------------------------

    fn doom_roles(&mut self) {
        let Some(place) = self.leading() else { return };
        self.totals.count("fault: role manager crashed");
        let in_a_step = self.dice.chance(700);
        match self.roles(place) {
            Some(roles) if in_a_step => roles.doomed = true,
            _ => self.crash_roles(place),
        }
    }

    fn crash_an_authority(&mut self) {
        if let Some(place) = self.leading() {
            self.totals.count("fault: cert authority crashed");
            self.crash_authority(place);
        }
    }

    fn crash_a_dispatcher(&mut self) {
        if let Some(place) = self.leading() {
            self.totals.count("fault: dispatcher crashed");
            self.crash_dispatcher(place);
        }
    }

    /// A member hears that its leader is gone, which is not so.
    fn false_hint(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let (half, leader) = (half.number, half.core.replica().raft.leader_node);
        let Some(node) = leader.filter(|node| *node != self.machines[place].id) else { return };
        self.totals.count("fault: false leader-loss hint");
        self.say(format!("n{} hears that its leader is gone, which is not so", place + 1));
        let (soon, input) = (self.dice.micros(100, 5000), Box::new(Input::LeaderGone { node }));
        self.time.after(soon, Event::Local { place, half, input });
    }

    /// Somebody asks a member to hand leadership over.
    fn hand_over(&mut self, place: Place) {
        let place = self.leading().unwrap_or(place);
        if !self.machines[place].runs() {
            return;
        }
        if let Some(ask) = self.park(place, Asker::House) {
            self.hear(place, Input::TransferLeadership { ask, to: None });
        }
    }

    // ---- the end of faults ----------------------------------------------------------------------------------------

    pub(crate) fn over(&mut self, injury: Injury) {
        self.disturbed = self.now();
        match injury {
            Injury::Down(place, life) if self.machines[place].life == life => self.start(place),
            Injury::Dying(place, life) if self.machines[place].life == life && !self.machines[place].up => {
                self.disk_dies(place)
            }
            Injury::Brownout if self.faults.active => self.blackout(),
            Injury::Frozen(place) => self.thaw(place),
            Injury::Cut(links) => {
                for (from, to) in links {
                    self.net.mend(from, to);
                    if self.net.both_open(from, to) && from < to {
                        self.session(from, to, true, Duration::from_millis(300));
                    }
                }
            }
            Injury::Weather(number) if number == self.faults.weathers => self.net.weather = Weather::default(),
            Injury::Disk(place, number) if number == self.faults.disks || self.dice.chance(500) => {
                self.mend_disk(place)
            }
            Injury::Disk(place, number) => {
                let later = self.dice.millis(100, 2000);
                self.time.after(later, Event::Over(Injury::Disk(place, number)));
            }
            _ => {}
        }
    }

    pub(crate) fn mend_disk(&mut self, place: Place) {
        self.machines[place].disk.pace = Pace::Good;
        self.begin_disk(place);
    }

    /// Everything works again.
    pub(crate) fn heal(&mut self) {
        self.say("everything is healed");
        self.disturbed = self.now();
        self.faults.active = false;
        self.net.mend_all();
        self.net.weather = Weather::default();
        for place in 0..self.machines.len() {
            self.thaw(place);
            self.mend_disk(place);
            self.start(place);
        }
        for a in 0..self.machines.len() {
            for b in a + 1..self.machines.len() {
                self.session(a, b, true, Duration::from_millis(300));
            }
        }
    }
}
