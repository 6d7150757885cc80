//! What the role manager knows beyond the replicated state.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Condition, PendingView, Wants};
use crate::model::{NodeId, Revision, WallTime};

/// What the role manager publishes for the API: all pending changes, and each node's conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleView {
    /// The replicated state from which this was derived. A request is answered only once this has caught up with it.
    pub revision: Revision,
    pub pending: Vec<PendingView>,
    /// Since when each of them is pending, whatever the reasons were; `since` of the former is that of the reason.
    pub began: BTreeMap<NodeId, WallTime>,
    pub conditions: BTreeMap<NodeId, Vec<Condition>>,
    /// The pending nodes for which `--wait` waits. A node that is down and has no step left is pending with
    /// `waiting_for_node`, but does not block `--wait`.
    pub holding: BTreeSet<NodeId>,
    /// How long changes settled by this leader were pending, by desired outcome.
    pub settled: BTreeMap<Wants, SettleTimes>,
}

/// The upper bounds of [`SettleTimes`], in milliseconds; longer times are counted too. A healthy node settles within the first
/// ones; a node that is off takes as long as it is off.
pub const SETTLE_BOUNDS_MS: [u64; 12] =
    [20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 30_000, 300_000, 3_600_000, 86_400_000];

/// How long role changes and removals were pending before they were settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettleTimes {
    /// By bound; the last are those above all bounds.
    pub counts: [u64; SETTLE_BOUNDS_MS.len() + 1],
    pub sum_ms: u64,
}

impl SettleTimes {
    /// Counts one settled change that took this many milliseconds.
    pub fn add(&mut self, ms: u64) {
        self.counts[SETTLE_BOUNDS_MS.iter().take_while(|bound| ms > **bound).count()] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }
    /// The number of settled changes.
    pub fn settled(&self) -> u64 {
        self.counts.iter().sum()
    }
}
