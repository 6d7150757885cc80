//! Virtual time: jumps from one event to the next. Simultaneous events run in the order in which they
//! were scheduled.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use muster_messages::Moment;

struct Entry {
    at: Moment,
    number: u64,
    /// Index of the event: entries move within the heap, the large events do not.
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

/// The next wake-up of a core, unless an earlier one is scheduled: the core repeats its request after each step.
pub fn keep_earlier(woken: &mut Option<Moment>, wakes: Option<Moment>) -> Option<Moment> {
    let at = wakes.filter(|at| woken.is_none_or(|scheduled| *at < scheduled))?;
    *woken = Some(at);
    Some(at)
}

/// Current time and scheduled events.
pub struct Schedule<E> {
    now: Moment,
    number: u64,
    future: BinaryHeap<Reverse<Entry>>,
    events: Vec<Option<E>>,
    /// Free slots of `events`.
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
    /// How many events have run.
    pub fn passed(&self) -> u64 {
        self.number - self.future.len() as u64
    }
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }
    pub fn at(&mut self, at: Moment, event: E) {
        self.number += 1;
        let at = at.max(self.now);
        let slot = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(slot) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.future.push(Reverse(Entry { at, number: self.number, event: slot }));
    }
    /// The next event at or before `until`; time advances to it, or to `until` without one.
    pub fn next(&mut self, until: Moment) -> Option<E> {
        if self.future.peek().is_some_and(|Reverse(first)| first.at <= until) {
            let Reverse(first) = self.future.pop().expect("the heap is not empty");
            self.now = first.at;
            self.free.push(first.event);
            self.events[first.event].take()
        } else {
            self.now = self.now.max(until);
            None
        }
    }
}
