//! The reference model: acknowledged writes, and therefore what a reader may see.
//!
//! Each key has one writer, which writes growing numbers one at a time. A key's value is thus within an interval:
//! from the last acknowledged number to the last attempted one. A number whose proposal certainly failed never appears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_messages::{NodeId, NodeRecord, Role, Tables};

use crate::clients::OpNumber;

/// A key of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub usize);

impl Key {
    pub fn label(self) -> String {
        format!("k{}", self.0)
    }
}

#[derive(Clone, Debug, Default)]
struct Entry {
    label: String,
    acknowledged: u64,
    attempted: u64,
    never: BTreeSet<u64>,
}

/// What every later state must show of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    Desired(Role),
    Gone,
}

/// The promises when a read began.
#[derive(Clone, Debug, Default)]
pub struct Floor {
    written: Vec<u64>,
    promises: BTreeMap<NodeId, (OpNumber, Promise)>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The node whose labels are the ledger. It is never removed.
    pub ledger: Option<NodeId>,
    entries: Vec<Entry>,
    /// Enough time has passed for every block of a removal to expire.
    pub swept: bool,
    /// The newest request about each node, and what its acceptance promises.
    newest: BTreeMap<NodeId, OpNumber>,
    promises: BTreeMap<NodeId, (OpNumber, Promise)>,
}

impl Model {
    pub fn keys(&mut self, n: usize) {
        let entry = |key| Entry { label: Key(key).label(), ..Entry::default() };
        self.entries.extend((self.entries.len()..n).map(entry));
    }
    /// The next number to write under a key.
    pub fn attempt(&mut self, key: Key) -> u64 {
        self.entries[key.0].attempted += 1;
        self.entries[key.0].attempted
    }
    pub fn acknowledged(&mut self, key: Key, value: u64) {
        let entry = &mut self.entries[key.0];
        entry.acknowledged = entry.acknowledged.max(value);
    }
    pub fn never(&mut self, key: Key, value: u64) {
        self.entries[key.0].never.insert(value);
    }

    /// A request is sent: earlier promises about this node end. Of two open requests for one node
    /// either may be written last, so they promise nothing (`sole` is false).
    pub fn requested(&mut self, node: NodeId, op: OpNumber, sole: bool) {
        self.newest.insert(node, op);
        self.promises.remove(&node);
        if !sole {
            self.newest.remove(&node);
        }
    }
    /// It was accepted. Only the newest request promises anything.
    pub fn accepted(&mut self, node: NodeId, op: OpNumber, promise: Promise) {
        if self.newest.get(&node) == Some(&op) {
            self.promises.insert(node, (op, promise));
        }
    }
    /// The history continues from this state, whatever else was acknowledged.
    pub fn recovered(&mut self, tables: &Tables) {
        let labels = self.ledger.and_then(|node| tables.nodes.get(&node)).map(|n| &n.labels);
        for entry in &mut self.entries {
            let number = labels.and_then(|l| l.get(&entry.label)).and_then(|text| text.parse().ok());
            entry.acknowledged = number.unwrap_or(0);
            entry.never.clear();
        }
        self.promises.clear();
    }
    /// Another client may delete the node, or the autopilot change its role.
    pub fn changed_by_others(&mut self, node: NodeId) {
        self.newest.remove(&node);
        self.promises.remove(&node);
    }

    pub fn floor(&self) -> Floor {
        Floor { written: self.entries.iter().map(|e| e.acknowledged).collect(), promises: self.promises.clone() }
    }

    /// Whether a state honours the promises in `floor`. The caller names the violated invariant.
    pub fn check(&self, floor: &Floor, tables: &Tables) -> Result<(), String> {
        let labels = self.ledger.and_then(|node| tables.nodes.get(&node)).map(|n| &n.labels);
        for (at, (entry, floor)) in self.entries.iter().zip(&floor.written).enumerate() {
            let label = labels.and_then(|l| l.get(&entry.label));
            let value = label.map_or(Ok(0), |v| v.parse::<u64>()).map_err(|e| e.to_string())?;
            if value < *floor || value > entry.attempted {
                let top = entry.attempted;
                return Err(format!("k{at} is {value}; acknowledged={floor} attempted={top}"));
            }
            if entry.never.contains(&value) {
                return Err(format!("k{at} is {value}, whose proposal was certainly refused"));
            }
        }
        for (node, (op, promise)) in &floor.promises {
            if self.newest.get(node) != Some(op) {
                continue; // another request is in flight
            }
            let record = tables.nodes.get(node);
            let holds = match promise {
                Promise::Desired(role) => record.is_some_and(|r| r.desired_role == *role),
                Promise::Gone => record.is_none() && (self.swept || tables.blocklist.contains_key(node)),
            };
            if !holds {
                let is = record.map(|r| (r.desired_role, r.removing.is_some()));
                return Err(format!("{node} was promised {promise:?} by {op:?} and is {is:?}"));
            }
        }
        Ok(())
    }

    /// The first key whose number decreased between two states, with both numbers.
    pub fn first_decreased_key(&self, before: &Tables, after: &Tables) -> Option<(usize, u64, u64)> {
        let record = |t: &Tables| self.ledger.and_then(|id| t.nodes.get(&id).cloned());
        let (before, after) = (record(before), record(after));
        let same = match (&before, &after) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        if same {
            return None;
        }
        fn text<'a>(of: &'a Option<Arc<NodeRecord>>, label: &str) -> Option<&'a String> {
            of.as_ref()?.labels.get(label)
        }
        let number = |text: Option<&String>| text.and_then(|t| t.parse::<u64>().ok()).unwrap_or_default();
        self.entries.iter().enumerate().find_map(|(key, entry)| {
            let (was, is) = (text(&before, &entry.label), text(&after, &entry.label));
            let fell = was != is && number(is) < number(was);
            fell.then(|| (key, number(was), number(is)))
        })
    }
}
