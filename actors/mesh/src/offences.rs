//! Protocol violations of peers: counted, logged once per peer, kind and minute, and followed by a pause before the next session.
//!
//! Why a pause: each session costs a handshake and a few log lines. Without it an offender opens thousands per second.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use muster_messages::{Moment, NodeId};
use serde_json::{Value, json};
use tracing::warn;

use crate::session::EndReason;

/// One line per offender, kind and minute.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The pause after an offence: doubled with each further offence, reset after [`LOG_INTERVAL`] without one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// A manager whose fault is repaired has a session again within half a minute, and one that repeats its offence costs two handshakes a
/// minute.
const MAX_PAUSE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Moment,
    length: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    count: u64,
    logged: Option<Moment>,
    unlogged: u64,
}

/// The records of all peers. Only nodes with a manager's certificate have one, so there are few.
#[derive(Debug, Default)]
pub struct Offences {
    records: Mutex<BTreeMap<(NodeId, &'static str), Record>>,
    pauses: Mutex<BTreeMap<NodeId, Pause>>,
}

impl Offences {
    /// Counts an offence. True if it was logged.
    pub fn report(&self, now: Moment, node: NodeId, what: &'static str) -> bool {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records.entry((node, what)).or_default();
        record.count += 1;
        record.unlogged += 1;
        let due = record.logged.is_none_or(|at| now.since(at) >= LOG_INTERVAL);
        if due {
            warn!(%node, offence = what, times = record.unlogged, "mesh protocol violation by a manager");
            record.logged = Some(now);
            record.unlogged = 0;
        }
        due
    }
    /// A session of this node ended. If it broke the protocol: counts that, starts a pause, and describes the violation.
    pub fn ended(&self, now: Moment, node: NodeId, why: &EndReason) -> Option<String> {
        let EndReason::Violation(violation) = why else { return None };
        if !violation.is_offence() {
            return None;
        }
        self.report(now, node, violation.counter_key());
        self.pause(now, node);
        Some(violation.to_string())
    }
    /// Starts the pause before the node's next session.
    pub fn pause(&self, now: Moment, node: NodeId) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pauses.get(&node).filter(|p| now.since(p.until) < LOG_INTERVAL);
        let length = before.map_or(FIRST_PAUSE, |p| MAX_PAUSE.min(p.length * 2));
        pauses.insert(node, Pause { until: now + length, length });
    }
    /// Whether the node's next session must still wait.
    pub fn paused(&self, now: Moment, node: NodeId) -> bool {
        let pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        pauses.get(&node).is_some_and(|p| now < p.until)
    }
    pub fn view(&self) -> Vec<Value> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |((node, what), r): (&(NodeId, &'static str), &Record)| json!({"node": node, "offence": what, "count": r.count});
        records.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offender_is_logged_once_per_minute() {
        let (offences, node) = (Offences::default(), NodeId::from_entropy(1));
        let minute = 60_000_000;
        let lines = (0..3 * minute).step_by(10_000).filter(|t| offences.report(Moment(*t), node, "flood")).count();
        assert_eq!(lines, 3);
        assert_eq!(offences.view()[0]["count"], 18_000);
    }

    #[test]
    fn offender_pause_doubles_and_single_offence_costs_a_second() {
        let (offences, node) = (Offences::default(), NodeId::from_entropy(1));
        let minute = 60_000_000;
        let mut sessions = 0;
        for now in (0..10 * minute).step_by(1000).map(Moment) {
            if !offences.paused(now, node) {
                sessions += 1;
                offences.pause(now, node);
            }
        }
        assert!((20..30).contains(&sessions), "{sessions} sessions in 10 minutes");
        let later = Moment(20 * minute);
        offences.pause(later, node);
        assert!(offences.paused(later, node) && !offences.paused(later + FIRST_PAUSE, node));
    }
}
