//! Requests about the declared number of managers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{AutopilotPolicy, Generation, ManagerPreference};

use super::NodeRef;

/// A request about the autopilot. Needs feature level 5.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutopilotRequest {
    /// What is declared, what the leader sees, and what it does next. Read: repeat freely.
    State,
    /// The same as if these settings were in force. `generation`: as for `Set`. Read: repeat freely.
    Preview { settings: AutopilotSettings, generation: Option<Generation> },
    /// Declares a number of managers, or changes a declaration. `generation`: only if the declaration has it (`conflict`). Write: by
    /// request id, see [`Request`](super::Request). Repeated under another id: no change.
    Set { settings: AutopilotSettings, generation: Option<Generation> },
    /// Withdraws the declaration. Write: by request id. Repeated under another id: no change.
    Withdraw { generation: Option<Generation> },
    /// The autopilot begins no change until it is resumed. Write: by request id. Repeated under another id: no change, and the first
    /// reason stays.
    Pause { why: String },
    /// Ends a pause. Write: by request id. Repeated under another id: no change.
    Resume,
    /// Whether the autopilot may promote a node. Write: by request id. Repeated under another id: no change.
    Prefer { node: NodeRef, preference: ManagerPreference },
    /// The node goes into maintenance: it gives up leadership, is not promoted, and does not count as dead before the drain ends.
    /// `for_ms`: the drain ends after this time. `replace`: another node takes its place as manager first; needs a declaration
    /// (`conflict`). Write: by request id. Repeated under another id: the time begins anew.
    Drain { node: NodeRef, for_ms: Option<u64>, replace: bool },
    /// The node is back. Write: by request id. Repeated under another id: no change.
    Undrain { node: NodeRef },
}

/// Settings of a declaration. What is absent stays as it is, or gets its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotSettings {
    pub managers: Option<u8>,
    pub eligible: Option<BTreeMap<String, String>>,
    /// Empty: no spreading.
    pub zone_label: Option<String>,
    pub replace_after_ms: Option<u64>,
    pub stabilize_ms: Option<u64>,
    pub shrink: Option<bool>,
}

impl AutopilotSettings {
    /// The declaration with these settings; `None`: the first one must say how many managers.
    pub fn over(&self, policy: Option<&AutopilotPolicy>) -> Option<AutopilotPolicy> {
        let mut policy = match (policy, self.managers) {
            (Some(policy), _) => policy.clone(),
            (None, Some(managers)) => AutopilotPolicy::new(managers),
            (None, None) => return None,
        };
        let Self { managers, eligible, zone_label, replace_after_ms, stabilize_ms, shrink } = self.clone();
        policy.managers = managers.unwrap_or(policy.managers);
        policy.eligible = eligible.unwrap_or(policy.eligible);
        policy.zone_label = zone_label.map_or(policy.zone_label, |label| Some(label).filter(|label| !label.is_empty()));
        policy.replace_after_ms = replace_after_ms.unwrap_or(policy.replace_after_ms);
        policy.stabilize_ms = stabilize_ms.unwrap_or(policy.stabilize_ms);
        policy.shrink = shrink.unwrap_or(policy.shrink);
        Some(policy)
    }
}
