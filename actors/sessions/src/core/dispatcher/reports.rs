//! What is recorded of a node's reports about itself.
//!
//! Invariants  DISP-8  the labels of a node are bounded, and it takes no name that denotes another node: another's name, an id,
//!                     or a prefix of another's id. From feature level 3 on it takes no name at all: the reported one is recorded
//!                     beside the operator's.

use std::collections::BTreeMap;

use muster_messages::wire::SessionFact;
use muster_messages::{
    Change, MAX_NODE_LABEL_BYTES, MAX_NODE_LABELS, MIN_ID_PREFIX, Name, NodeId, NodeRecord, fitting_labels,
};

use super::Dispatcher;

impl Dispatcher {
    /// From feature level 3 on: the node's report, if the recorded one differs.
    pub(super) fn report(&mut self, record: &NodeRecord, fact: &SessionFact) -> Option<Change> {
        let labels = fitting_labels(&fact.labels);
        let before = self.tables.reported.get(&record.id);
        let same = before.is_some_and(|before| before.name == fact.name && before.labels == labels);
        if same && fact.addr == record.addr && fact.release == record.release {
            return None;
        }
        self.labels_left_out += (fact.labels.len() - labels.len()) as u64;
        Some(Change::Report {
            node: record.id,
            name: fact.name.clone(),
            addr: fact.addr.clone(),
            release: fact.release.clone(),
            labels,
        })
    }

    /// The reported name, unless it denotes another node: then both keep the names they were admitted with.
    pub(super) fn free_name(&self, record: &NodeRecord, fact: &SessionFact) -> Name {
        let name = fact.name.as_str();
        let begins = |id: &NodeId| name.len() >= MIN_ID_PREFIX && id.as_str().starts_with(name);
        let taken = |n: &NodeRecord| n.id != record.id && (n.name == fact.name || begins(&n.id));
        let is_an_id = name.parse::<NodeId>().is_ok();
        if fact.name == record.name || is_an_id || self.tables.nodes.values().any(|n| taken(n)) {
            record.name.clone()
        } else {
            fact.name.clone()
        }
    }

    /// Labels of a process that started during this leader's term. Recorded once, so that an operator's change of them
    /// stays.
    pub(super) fn labels(&mut self, record: &NodeRecord, fact: &SessionFact) -> BTreeMap<String, String> {
        let first = self.labelled.insert(record.id, fact.instance) != Some(fact.instance);
        if !first || fact.since < self.started_wall {
            return BTreeMap::new();
        }
        let (mut all, mut new) = (record.labels.clone(), BTreeMap::new());
        let mut bytes: usize = all.iter().map(|(k, v)| k.len() + v.len()).sum();
        for (key, value) in fact.labels.iter().filter(|(k, v)| record.labels.get(*k) != Some(*v)) {
            let before = all.get(key).map(|value| key.len() + value.len());
            let after = bytes - before.unwrap_or_default() + key.len() + value.len();
            if after > MAX_NODE_LABEL_BYTES || (before.is_none() && all.len() == MAX_NODE_LABELS) {
                self.labels_left_out += 1;
                continue;
            }
            bytes = after;
            all.insert(key.clone(), value.clone());
            new.insert(key.clone(), value.clone());
        }
        new
    }

    /// Reported labels left out because the node has too many.
    pub fn labels_left_out(&self) -> u64 {
        self.labels_left_out
    }
}
