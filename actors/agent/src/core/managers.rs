//! ManagerBook: the managers an agent knows, and which one to try next.
//!
//! Owns        the known addresses, the seeds given at start, the last one that worked, and recent failures.
//! Invariants  AGENT-1  the address book never becomes empty once it held an address: an empty list from a host is ignored.
//!             AGENT-2  an address that named a retry time is not tried before it.
//! Why no weights: one recent failure is all that a choice needs; weights converge slowly and hide why.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{Moment, Rng};

/// The most addresses kept. A cluster has a handful of managers; refusals may name others.
const MAX_ADDRESSES: usize = 64;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    Now(String),
    /// Every address named a retry time; this is the first.
    At(Moment),
    /// No address is known.
    NoAddress,
}

#[derive(Clone, Debug, Default)]
struct Mark {
    failed_at: Option<Moment>,
    not_before: Option<Moment>,
}

#[derive(Clone, Debug, Default)]
pub struct ManagerBook {
    known: Vec<String>,
    hinted: Vec<String>,
    seeds: Vec<String>,
    last_good: Option<String>,
    marks: BTreeMap<String, Mark>,
}

impl ManagerBook {
    pub fn new(known: Vec<String>, seeds: Vec<String>) -> Self {
        Self { known: tidy(known), seeds: tidy(seeds), ..Self::default() }
    }

    /// The managers of the cluster's latest list.
    pub fn known(&self) -> &[String] {
        &self.known
    }

    /// A host's full list. True: it differs and should be kept on disk.
    pub fn learn(&mut self, list: &[String]) -> bool {
        let list = tidy(list.to_vec());
        if list.is_empty() || list == self.known {
            return false;
        }
        self.known = list;
        self.hinted.clear();
        let everyone = self.everyone();
        self.marks.retain(|addr, _| everyone.contains(addr));
        true
    }

    /// Addresses that a refusal named: tried, but ranked below the cluster's own list.
    pub fn hint(&mut self, list: &[String]) {
        for addr in list {
            if self.hinted.len() < MAX_ADDRESSES && !self.everyone().contains(addr) {
                self.hinted.push(addr.clone());
            }
        }
    }

    pub fn worked(&mut self, addr: &str) {
        self.marks.remove(addr);
        self.last_good = Some(addr.to_owned());
    }

    pub fn failed(&mut self, addr: &str, now: Moment) {
        self.marks.entry(addr.to_owned()).or_default().failed_at = Some(now);
        if self.last_good.as_deref() == Some(addr) {
            self.last_good = None;
        }
    }

    /// The address named a retry time.
    pub fn back_off(&mut self, addr: &str, until: Moment) {
        self.marks.entry(addr.to_owned()).or_default().not_before = Some(until);
    }

    /// The last good address if it has not failed since, else any that has not failed lately, else the one whose failure
    /// is oldest. The cluster's own list goes first. The others are tried once all of it has failed since they were
    /// tried: every manager may have moved.
    pub fn pick(&self, now: Moment, forgive: Duration, rng: &mut Rng) -> Pick {
        let everyone = self.everyone();
        if everyone.is_empty() {
            return Pick::NoAddress;
        }
        let ready: Vec<&String> = everyone.iter().filter(|a| self.not_before(a).is_none_or(|at| at <= now)).collect();
        if ready.is_empty() {
            let first = everyone.iter().filter_map(|a| self.not_before(a)).min();
            return Pick::At(first.expect("every address that is not ready has a time"));
        }
        let fresh: Vec<&String> =
            ready.iter().copied().filter(|a| self.failed_at(a).is_none_or(|at| now >= at + forgive)).collect();
        if let Some(good) = fresh.iter().find(|a| Some(**a) == self.last_good.as_ref()) {
            return Pick::Now((*good).clone());
        }
        let (ours, others): (Vec<&String>, Vec<&String>) = fresh.iter().copied().partition(|a| self.known.contains(a));
        let last_attempt = ours.iter().map(|a| self.failed_at(a)).min();
        let due: Vec<&String> =
            others.into_iter().filter(|a| last_attempt.is_none_or(|last| self.failed_at(a) < last)).collect();
        let pool = if due.is_empty() { &ours } else { &due };
        if !pool.is_empty() {
            return Pick::Now(pool[rng.index(pool.len())].clone());
        }
        let oldest = ready.into_iter().min_by_key(|a| self.failed_at(a));
        Pick::Now(oldest.expect("some address is ready").clone())
    }

    fn everyone(&self) -> Vec<String> {
        let mut all = self.known.clone();
        for addr in self.hinted.iter().chain(&self.seeds) {
            if !all.contains(addr) {
                all.push(addr.clone());
            }
        }
        all
    }
    fn failed_at(&self, addr: &str) -> Option<Moment> {
        self.marks.get(addr).and_then(|m| m.failed_at)
    }
    fn not_before(&self, addr: &str) -> Option<Moment> {
        self.marks.get(addr).and_then(|m| m.not_before)
    }
}

fn tidy(mut list: Vec<String>) -> Vec<String> {
    list.retain(|a| !a.is_empty());
    list.sort();
    list.dedup();
    list.truncate(MAX_ADDRESSES);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default of an agent's configuration.
    const FORGIVE: Duration = Duration::from_secs(10);

    fn book(known: &[&str]) -> ManagerBook {
        ManagerBook::new(known.iter().map(|s| (*s).to_owned()).collect(), vec![])
    }
    fn at(secs: u64) -> Moment {
        Moment(secs * 1_000_000)
    }

    /// E46: an empty list once made agents lose every known manager.
    #[test]
    fn an_empty_manager_list_is_ignored() {
        let mut b = book(&["a:1", "b:1"]);
        assert!(!b.learn(&[]));
        assert!(!b.learn(&[String::new()]));
        assert_eq!(b.known(), ["a:1", "b:1"]);
        assert!(b.learn(&["c:1".to_owned()]));
        assert_eq!(b.known(), ["c:1"]);
    }

    /// E30: by the time the last of many old addresses has failed, the first is forgiven again.
    #[test]
    fn agent_falls_back_to_seeds_when_all_managers_moved() {
        let known = (1..=9).map(|n| format!("old-{n}:1")).collect();
        let mut b = ManagerBook::new(known, vec!["seed:1".to_owned()]);
        let mut rng = Rng::seeded(1);
        let mut tried = Vec::new();
        for turn in 0..20 {
            let now = at(turn * 2);
            let Pick::Now(addr) = b.pick(now, FORGIVE, &mut rng) else { panic!("no address named a retry time") };
            b.failed(&addr, now);
            tried.push(addr);
        }
        assert!(tried[..9].iter().all(|addr| addr != "seed:1"), "the cluster's own list goes first: {tried:?}");
        assert!(tried.iter().any(|addr| addr == "seed:1"), "{tried:?}");
    }

    #[test]
    fn the_last_good_manager_is_preferred_until_it_fails() {
        let mut b = book(&["a:1", "b:1", "c:1"]);
        let mut rng = Rng::seeded(1);
        b.worked("b:1");
        for _ in 0..20 {
            assert_eq!(b.pick(at(1), FORGIVE, &mut rng), Pick::Now("b:1".into()));
        }
        b.failed("b:1", at(1));
        for _ in 0..20 {
            assert_ne!(b.pick(at(2), FORGIVE, &mut rng), Pick::Now("b:1".into()));
        }
    }

    #[test]
    fn equally_good_managers_are_equally_likely() {
        let b = book(&["a:1", "b:1", "c:1"]);
        let mut rng = Rng::seeded(42);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..3000 {
            if let Pick::Now(a) = b.pick(at(1), FORGIVE, &mut rng) {
                *counts.entry(a).or_default() += 1;
            }
        }
        assert!(counts.values().all(|n| (800..1200).contains(n)), "{counts:?}");
    }

    #[test]
    fn when_all_failed_the_oldest_failure_is_tried_first() {
        let mut b = book(&["a:1", "b:1"]);
        b.failed("a:1", at(2));
        b.failed("b:1", at(1));
        let pick = b.pick(at(3), FORGIVE, &mut Rng::seeded(1));
        assert_eq!(pick, Pick::Now("b:1".into()));
    }

    #[test]
    fn address_with_a_retry_time_is_not_tried_before_it() {
        let mut b = book(&["a:1"]);
        b.back_off("a:1", at(9));
        let mut rng = Rng::seeded(1);
        assert_eq!(b.pick(at(3), FORGIVE, &mut rng), Pick::At(at(9)));
        assert_eq!(b.pick(at(9), FORGIVE, &mut rng), Pick::Now("a:1".into()));
        assert_eq!(book(&[]).pick(at(0), FORGIVE, &mut rng), Pick::NoAddress);
    }

    #[test]
    fn managers_named_in_a_refusal_are_tried_after_known_ones() {
        let mut b = book(&["a:1"]);
        b.hint(&["z:1".to_owned()]);
        let mut rng = Rng::seeded(1);
        for _ in 0..10 {
            assert_eq!(b.pick(at(0), FORGIVE, &mut rng), Pick::Now("a:1".into()));
        }
        b.failed("a:1", at(0));
        assert_eq!(b.pick(at(1), FORGIVE, &mut rng), Pick::Now("z:1".into()));
    }
}
