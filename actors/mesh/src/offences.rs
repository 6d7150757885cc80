//! What peers did wrong, counted; and logged once per peer, kind and minute, however often it happens.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use muster_messages::{Moment, NodeId};
use serde_json::{Value, json};
use tracing::warn;

/// One line per offender, kind and minute.
const EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    count: u64,
    logged: Option<Moment>,
    unlogged: u64,
}

/// The record of all peers. The nodes are those whose certificates said manager, so there are few.
#[derive(Debug, Default)]
pub struct Offences(Mutex<BTreeMap<(NodeId, &'static str), Record>>);

impl Offences {
    /// Counts one. True when it was logged.
    pub fn note(&self, now: Moment, node: NodeId, what: &'static str) -> bool {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records.entry((node, what)).or_default();
        record.count += 1;
        record.unlogged += 1;
        let due = record.logged.is_none_or(|at| now.since(at) >= EVERY);
        if due {
            warn!(%node, offence = what, times = record.unlogged, "a manager broke the mesh protocol");
            record.logged = Some(now);
            record.unlogged = 0;
        }
        due
    }
    /// Node, kind, count.
    pub fn view(&self) -> Value {
        let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |((node, what), r): (&(NodeId, &'static str), &Record)| json!({"node": node, "offence": what, "count": r.count});
        records.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offender_costs_one_line_per_minute() {
        let (offences, node) = (Offences::default(), NodeId::from_entropy(1));
        let minute = 60_000_000;
        let lines = (0..3 * minute).step_by(10_000).filter(|t| offences.note(Moment(*t), node, "flood")).count();
        assert_eq!(lines, 3);
        assert_eq!(offences.view()[0]["count"], 18_000);
    }
}
