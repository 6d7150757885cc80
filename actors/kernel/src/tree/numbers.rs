//! The counts of actors, for metrics.
//!
//! Each path has its own, except where the number of actors is unbounded: sessions, contended elections, reconcilers.
//! Those are counted [together](crate::Spec::counted_as), so the number of series is bounded whatever the size of the
//! cluster.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use muster_messages::{ActorState, HandlerTimes};

use super::Tree;
use crate::vitals::Vitals;

/// The actors of one path, or those counted together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActorNumbers {
    /// How many there are now, by state.
    pub states: BTreeMap<ActorState, u64>,
    /// Messages waiting.
    pub mailbox: u64,
    /// Of those that have one, together; 0: none has.
    pub mailbox_limit: u64,
    /// How long the oldest message in progress has been.
    pub handling_ms: u64,
    /// Restarts, ever.
    pub restarts: u64,
    /// Messages refused because a mailbox was full, ever.
    pub refused: u64,
    /// Messages, timers and reports of older incarnations that were dropped, ever.
    pub stale: u64,
    /// How long handlers took, ever.
    pub handler_times: HandlerTimes,
}

impl ActorNumbers {
    /// The counts of one actor; of one that has ended only those that never decrease.
    fn of(vitals: &Vitals, gone: bool) -> Self {
        let node = vitals.node();
        let counted = Self {
            restarts: node.restarts,
            refused: node.refused,
            stale: node.stale,
            handler_times: node.handler_times,
            ..Self::default()
        };
        if gone {
            return counted;
        }
        let handling_ms = node.handling.map_or(0, |handling| handling.for_ms);
        let (mailbox, mailbox_limit) = (node.mailbox, node.mailbox_limit.unwrap_or(0));
        Self { states: BTreeMap::from([(node.state, 1)]), mailbox, mailbox_limit, handling_ms, ..counted }
    }
    fn merge(&mut self, other: &Self) {
        for (state, count) in &other.states {
            *self.states.entry(*state).or_default() += count;
        }
        self.mailbox += other.mailbox;
        self.mailbox_limit += other.mailbox_limit;
        self.handling_ms = self.handling_ms.max(other.handling_ms);
        self.restarts += other.restarts;
        self.refused += other.refused;
        self.stale += other.stale;
        self.handler_times.merge(&other.handler_times);
    }
}

impl Tree {
    fn gone(&self) -> MutexGuard<'_, BTreeMap<String, ActorNumbers>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An actor with a shared label has ended: its counts are kept under that label.
    pub(super) fn remember(&self, vitals: &Vitals) {
        self.gone().entry(vitals.label.clone()).or_default().merge(&ActorNumbers::of(vitals, true));
    }

    /// The counts by path. A path that has ended leaves nothing. Where actors are counted together the last segment is
    /// their label, and the counts of those that have ended remain as long as their parent.
    pub fn numbers(&self) -> BTreeMap<String, ActorNumbers> {
        // Held to the end: an actor that ends meanwhile would be counted twice, and a counter would decrease next time.
        let paths = self.paths();
        let mut numbers: BTreeMap<String, ActorNumbers> = BTreeMap::new();
        for vitals in paths.values() {
            numbers.entry(vitals.label.clone()).or_default().merge(&ActorNumbers::of(vitals, false));
        }
        for (label, gone) in self.gone().iter() {
            let parent = label.rsplit_once('/').map_or("", |(parent, _)| parent);
            if numbers.contains_key(label) || numbers.contains_key(parent) {
                numbers.entry(label.clone()).or_default().merge(gone);
            }
        }
        numbers
    }
}
