//! A declared number of managers: what an operator asked for, and what the autopilot did about it.
//!
//! Without a policy only operators change roles.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};

use super::{Generation, NodeId, Principal, Revision, Role, WallTime};

/// How many changes of roles are recorded, for operators and for the limits on their rate.
pub const AUTOPILOT_HISTORY: usize = 16;
/// What may be declared: odd numbers, of which less than half may fail.
pub const MANAGER_COUNTS: [u8; 4] = [1, 3, 5, 7];

/// An operator's declaration. One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotPolicy {
    /// One of [`MANAGER_COUNTS`].
    pub managers: u8,
    /// Labels that a worker must have to be promoted. Empty: every worker may be.
    pub eligible: BTreeMap<String, String>,
    /// The label whose values are failure domains: managers are spread over them. `None`: no spreading.
    pub zone_label: Option<String>,
    /// How long a manager must be down, as the leader itself sees it, before another node takes its place.
    pub replace_after_ms: u64,
    /// How long a worker must be ready before it is promoted.
    pub stabilize_ms: u64,
    /// Whether surplus managers are demoted.
    pub shrink: bool,
    pub paused: Option<AutopilotPause>,
    /// Grows by one with each change of the policy.
    pub generation: Generation,
    pub revision: Revision,
}

/// The shortest and longest values of `replace_after`.
pub const REPLACE_AFTER: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(7 * 24 * 3600));
/// The shortest and longest values of `stabilize`.
pub const STABILIZE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3600));

impl AutopilotPolicy {
    /// With the defaults: ten minutes until a manager is replaced, 30 s until a worker counts as stable, no demotion of surplus managers.
    pub fn new(managers: u8) -> Self {
        Self {
            managers,
            eligible: BTreeMap::new(),
            zone_label: None,
            replace_after_ms: 600_000,
            stabilize_ms: 30_000,
            shrink: false,
            paused: None,
            generation: Generation(0),
            revision: Revision(0),
        }
    }
    pub fn replace_after(&self) -> Duration {
        Duration::from_millis(self.replace_after_ms)
    }
    pub fn stabilize(&self) -> Duration {
        Duration::from_millis(self.stabilize_ms)
    }
    /// Why it is not a valid declaration. Checked where it is requested and again where it is applied.
    pub fn fault(&self) -> Option<String> {
        if self.replace_after_ms == 0 || self.stabilize_ms == 0 {
            return Some("replace-after and stabilize must be longer than 0 s".to_owned());
        }
        if MANAGER_COUNTS.contains(&self.managers) {
            return None;
        }
        let why = match self.managers {
            0 => "a cluster has at least one manager",
            n if n % 2 == 0 => {
                "an even number tolerates no more failures than the odd one below it, and needs one more manager to answer"
            }
            _ => "beyond seven, each write waits for too many",
        };
        Some(format!("{} managers: {why}; declare 1, 3, 5 or 7", self.managers))
    }
    /// Which of its times is outside of the recommended bounds. Checked only where it is requested: a test may apply shorter ones.
    /// `experiment`: only the upper bounds apply.
    pub fn outside_bounds(&self, experiment: bool) -> Option<String> {
        let within = |what: &str, ms: u64, (least, most): (Duration, Duration)| {
            let is = Duration::from_millis(ms);
            let least = if experiment { Duration::ZERO } else { least };
            (is < least || is > most).then(|| {
                format!("{what} is {} s: it must be from {} to {} s", is.as_secs_f64(), least.as_secs(), most.as_secs())
            })
        };
        within("replace-after", self.replace_after_ms, REPLACE_AFTER)
            .or_else(|| within("stabilize", self.stabilize_ms, STABILIZE))
    }
}

/// Nothing new begins until it is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotPause {
    pub by: Principal,
    pub at: WallTime,
    pub why: String,
    /// The autopilot paused itself: more managers were lost within an hour than it may replace.
    pub gave_up: bool,
}

/// Whether the autopilot may promote a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManagerPreference {
    /// Before all others.
    Prefer,
    Allow,
    Never,
}

impl std::str::FromStr for ManagerPreference {
    type Err = super::BadId;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "prefer" => Ok(Self::Prefer),
            "allow" => Ok(Self::Allow),
            "never" => Ok(Self::Never),
            _ => Err(super::BadId { what: "a preference", rule: "`prefer`, `allow` or `never`" }),
        }
    }
}

/// What the autopilot asks of the role manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutopilotAction {
    Promote,
    Demote,
}

impl AutopilotAction {
    /// The role that it requests.
    pub fn role(self) -> Role {
        match self {
            Self::Promote => Role::Manager,
            Self::Demote => Role::Worker,
        }
    }
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutopilotOutcome {
    /// It is requested, or about to be.
    Begun,
    Settled,
    /// The role manager refused it.
    Refused,
    /// A promotion that did not settle in time.
    TakenBack,
    /// Overtaken by an operator's request, or lost before it was written.
    Dropped,
}

/// One change of a role by the autopilot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotChange {
    /// Its number: grows by one with each change.
    pub number: u64,
    pub at: WallTime,
    pub action: AutopilotAction,
    pub node: NodeId,
    /// It takes part in the replacement of this node.
    pub replaces: Option<NodeId>,
    pub outcome: AutopilotOutcome,
    /// For people: the reason, then what became of it.
    pub why: String,
}

/// A node that will go away for maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    pub by: Principal,
    pub at: WallTime,
    /// When the drain ends. `None`: an operator ends it.
    pub until: Option<WallTime>,
    /// Another node takes its place as manager first.
    pub replace: bool,
}

/// Everything that the state remembers about the autopilot. Empty until a policy is declared or a node is drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Autopilot {
    pub policy: Option<Arc<AutopilotPolicy>>,
    /// Nodes other than [`ManagerPreference::Allow`].
    pub preferences: OrdMap<NodeId, ManagerPreference>,
    /// The last role that a person requested for a node, while there is a policy; deleted when the autopilot changes its role.
    pub requested: OrdMap<NodeId, Role>,
    /// Oldest first; at most [`AUTOPILOT_HISTORY`].
    pub changes: Vector<Arc<AutopilotChange>>,
    /// Of the declaration that was withdrawn last. The next one gets a higher one, so that each generation identifies one declaration.
    pub withdrawn: Generation,
    /// Of the last change.
    pub last_number: u64,
    /// Of the last change when an operator resumed it after it had paused itself: it and earlier ones do not pause it again.
    pub forgiven: u64,
    /// Nodes in maintenance. They need no policy.
    pub drains: OrdMap<NodeId, Arc<Drain>>,
}

impl Autopilot {
    pub fn preference(&self, node: NodeId) -> ManagerPreference {
        self.preferences.get(&node).copied().unwrap_or(ManagerPreference::Allow)
    }
    /// The change that has begun and not ended.
    pub fn outstanding(&self) -> Option<&AutopilotChange> {
        self.changes.iter().rev().map(AsRef::as_ref).find(|change| change.outcome == AutopilotOutcome::Begun)
    }
}

/// A change of what the state remembers about the autopilot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AutopilotStep {
    /// An operator's declaration. Refused if its generation is not the policy's (0: nothing is declared), or if
    /// [`AutopilotPolicy::fault`] finds a reason.
    Declare(Box<AutopilotPolicy>),
    /// Withdraws it, with its pause and the remembered requests. Nothing is declared: no change. Refused as `Stale` if the declaration has
    /// another generation than this.
    Withdraw {
        generation: Option<Generation>,
    },
    Pause {
        why: String,
        gave_up: bool,
    },
    Resume,
    Prefer {
        node: NodeId,
        preference: ManagerPreference,
    },
    /// The autopilot is about to request a role. Refused as stale without a policy, while paused, while another change has begun, for the
    /// promotion of a node that is drained or never to be manager, and if an operator has requested the other role meanwhile (AUTO-6).
    Begin {
        /// The revision of the policy that it was decided by. Another one: stale.
        policy: Revision,
        action: AutopilotAction,
        node: NodeId,
        replaces: Option<NodeId>,
        why: String,
    },
    /// What became of it. Another number than that of the change that has begun: no change.
    End {
        number: u64,
        outcome: AutopilotOutcome,
        why: String,
    },
    /// The node will go away. Replaces an earlier drain of it.
    Drain {
        node: NodeId,
        until: Option<WallTime>,
        replace: bool,
    },
    /// The node is back, or its time is over. Not drained: no change.
    Undrain {
        node: NodeId,
        /// Only a drain that ends then: one that was renewed meanwhile stays. `None`: whenever it ends.
        ends: Option<WallTime>,
    },
}
