//! The network: a link between every two machines in each direction, each with its own faults. Without faults a link keeps
//! order, as a connection does; with them it loses, repeats and reorders messages, which every core must tolerate.

use std::time::Duration;

use muster_messages::Moment;

use crate::machine::MachineIdx;
use crate::rng::Rng;

/// The network's current conditions, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkConditions {
    pub loss: u32,
    pub duplicate: u32,
    pub reorder: u32,
    /// Added to every delay.
    pub slow: Duration,
}

/// The longest delay of a message, slow conditions and reordering included: two of these bound an exchange.
pub const MAX_DELAY: Duration = Duration::from_millis(400);

#[derive(Clone, Debug, Default)]
struct Link {
    /// How many faults disconnect it.
    disconnects: u32,
    disconnected_since: Moment,
    last: Moment,
}

/// Arrival times of a message: none, one or two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    pub first: Option<Moment>,
    pub second: Option<Moment>,
    pub reordered: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Network {
    size: usize,
    links: Vec<Link>,
    pub conditions: NetworkConditions,
}

impl Network {
    pub fn grow(&mut self, size: usize) {
        let mut links = vec![Link::default(); size * size];
        for from in 0..self.size {
            for to in 0..self.size {
                links[from * size + to] = self.links[from * self.size + to].clone();
            }
        }
        (self.size, self.links) = (size, links);
    }
    fn link(&mut self, from: MachineIdx, to: MachineIdx) -> &mut Link {
        &mut self.links[from * self.size + to]
    }
    pub fn open(&self, from: MachineIdx, to: MachineIdx) -> bool {
        self.links[from * self.size + to].disconnects == 0
    }
    pub fn both_open(&self, a: MachineIdx, b: MachineIdx) -> bool {
        self.open(a, b) && self.open(b, a)
    }
    /// Since when the link is disconnected, if it is.
    pub fn disconnected_since(&self, from: MachineIdx, to: MachineIdx) -> Option<Moment> {
        let link = &self.links[from * self.size + to];
        (link.disconnects > 0).then_some(link.disconnected_since)
    }
    pub fn disconnect(&mut self, now: Moment, from: MachineIdx, to: MachineIdx) {
        let link = self.link(from, to);
        if link.disconnects == 0 {
            link.disconnected_since = now;
        }
        link.disconnects += 1;
    }
    pub fn reconnect(&mut self, from: MachineIdx, to: MachineIdx) {
        let link = self.link(from, to);
        link.disconnects = link.disconnects.saturating_sub(1);
    }
    pub fn reconnect_all(&mut self) {
        for link in &mut self.links {
            link.disconnects = 0;
        }
    }

    /// The delivery of a message sent now.
    pub fn send(&mut self, now: Moment, from: MachineIdx, to: MachineIdx, rng: &mut Rng) -> Delivery {
        let conditions = self.conditions;
        if !self.open(from, to) || rng.chance(conditions.loss) {
            return Delivery::default();
        }
        let mut at = now + conditions.slow + rng.micros(80, 900);
        let reordered = rng.chance(conditions.reorder);
        let link = self.link(from, to);
        if reordered {
            at = at + rng.millis(1, 150);
        } else {
            at = at.max(link.last);
            link.last = at;
        }
        let second = rng.chance(conditions.duplicate).then(|| at + rng.millis(0, 150));
        Delivery { first: Some(at), second, reordered }
    }
}
