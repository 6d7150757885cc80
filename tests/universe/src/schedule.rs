//! Virtual time: what happens next. Time jumps from one event to the next; two events of one moment come in the order
//! they were scheduled.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use muster_messages::Moment;

struct Entry {
    at: Moment,
    number: u64,
    /// Entries move about in the heap; events are large, and stay where they are.
    event: usize,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// When a core is to be woken, unless it is woken before that anyway: it says so again after each step.
pub fn sooner(woken: &mut Option<Moment>, wakes: Option<Moment>) -> Option<Moment> {
    let at = wakes.filter(|at| woken.is_none_or(|sooner| *at < sooner))?;
    *woken = Some(at);
    Some(at)
}

/// The time of the universe and its future.
pub struct Schedule<E> {
    now: Moment,
    number: u64,
    future: BinaryHeap<Reverse<Entry>>,
    events: Vec<Option<E>>,
    /// Places of events that are free again.
    free: Vec<usize>,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { now: Moment(0), number: 0, future: BinaryHeap::new(), events: Vec::new(), free: Vec::new() }
    }
}

impl<E> Schedule<E> {
    pub fn now(&self) -> Moment {
        self.now
    }
    /// How many events there were so far.
    pub fn passed(&self) -> u64 {
        self.number - self.future.len() as u64
    }
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }
    pub fn at(&mut self, at: Moment, event: E) {
        self.number += 1;
        let at = at.max(self.now);
        let place = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(place) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.future.push(Reverse(Entry { at, number: self.number, event: place }));
    }
    /// The next event at or before `until`; time moves there. Without one, time moves to `until`.
    pub fn next(&mut self, until: Moment) -> Option<E> {
        if self.future.peek().is_some_and(|Reverse(first)| first.at <= until) {
            let Reverse(first) = self.future.pop().expect("there is a first one");
            self.now = first.at;
            self.free.push(first.event);
            self.events[first.event].take()
        } else {
            self.now = self.now.max(until);
            None
        }
    }
}
