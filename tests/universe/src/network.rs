//! The network: a link from every machine to every other, each with its own faults. Without faults a link keeps the
//! order, as a connection does; with them it loses, repeats and reorders, which no connection does and every core must bear.

use std::time::Duration;

use muster_messages::Moment;

use crate::dice::Dice;
use crate::machine::Place;

/// How bad the network is at the moment. All in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    pub loss: u32,
    pub twice: u32,
    pub reorder: u32,
    /// Added to every delay.
    pub slow: Duration,
}

/// The longest that anything is under way, slow weather and reordering included: two of these bound an exchange.
pub const LONGEST: Duration = Duration::from_millis(400);

#[derive(Clone, Debug, Default)]
struct Link {
    /// How many faults cut it.
    cuts: u32,
    cut_since: Moment,
    last: Moment,
}

/// When copies of a message arrive: none, one or two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    pub first: Option<Moment>,
    pub second: Option<Moment>,
    pub overtaken: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Network {
    size: usize,
    links: Vec<Link>,
    pub weather: Weather,
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
    fn link(&mut self, from: Place, to: Place) -> &mut Link {
        &mut self.links[from * self.size + to]
    }
    pub fn open(&self, from: Place, to: Place) -> bool {
        self.links[from * self.size + to].cuts == 0
    }
    pub fn both_open(&self, a: Place, b: Place) -> bool {
        self.open(a, b) && self.open(b, a)
    }
    /// When the link was cut, if it is.
    pub fn cut_since(&self, from: Place, to: Place) -> Option<Moment> {
        let link = &self.links[from * self.size + to];
        (link.cuts > 0).then_some(link.cut_since)
    }
    pub fn cut(&mut self, now: Moment, from: Place, to: Place) {
        let link = self.link(from, to);
        if link.cuts == 0 {
            link.cut_since = now;
        }
        link.cuts += 1;
    }
    pub fn mend(&mut self, from: Place, to: Place) {
        let link = self.link(from, to);
        link.cuts = link.cuts.saturating_sub(1);
    }
    pub fn mend_all(&mut self) {
        for link in &mut self.links {
            link.cuts = 0;
        }
    }

    /// What becomes of a message that is sent now.
    pub fn send(&mut self, now: Moment, from: Place, to: Place, dice: &mut Dice) -> Fate {
        let weather = self.weather;
        if !self.open(from, to) || dice.chance(weather.loss) {
            return Fate::default();
        }
        let mut at = now + weather.slow + dice.micros(80, 900);
        let overtaken = dice.chance(weather.reorder);
        let link = self.link(from, to);
        if overtaken {
            at = at + dice.millis(1, 150);
        } else {
            at = at.max(link.last);
            link.last = at;
        }
        let second = dice.chance(weather.twice).then(|| at + dice.millis(0, 150));
        Fate { first: Some(at), second, overtaken }
    }
}
