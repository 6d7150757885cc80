//! The autopilot: what is declared, what it sees, and what it does next.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::word::words;
use crate::model::{
    AutopilotAction, AutopilotOutcome, AutopilotPause, AutopilotPolicy, Drain, Generation, ManagerPreference, Name,
    NodeId, WallTime, Word,
};

words! {
    /// Why the autopilot does nothing.
    AutopilotReason {
        /// No policy is declared.
        Off => "off",
        Paused => "paused",
        /// The leader does not know yet which managers answer.
        Settling => "settling",
        /// Too few managers answer to commit a change.
        NoQuorum => "no_quorum",
        /// Another change of roles is under way.
        Busy => "busy",
        /// The managers that answer would be no majority afterwards.
        QuorumAtRisk => "quorum_at_risk",
        /// No worker can be promoted.
        NoCandidate => "no_candidate",
        /// One worker can be promoted, and an even number of managers would be no better.
        NoPair => "no_pair",
        /// More than half of all nodes are down.
        TooManyDown => "too_many_down",
        /// A manager is down, but not for long enough.
        NotDeadYet => "not_dead_yet",
        /// The last change was too short a time ago.
        Slowed => "slowed",
        /// Surplus managers stay.
        MoreThanDeclared => "more_than_declared",
        /// As declared.
        Content => "content",
    }
}

words! {
    /// Why a worker is not promoted.
    Exclusion {
        /// It does not have a label that the policy requires.
        NotEligible => "not_eligible",
        /// The operator has excluded it.
        Never => "never",
        NotReady => "not_ready",
        /// It is ready, but not for long enough.
        NotStable => "not_stable",
        /// It is in maintenance.
        Drained => "drained",
        /// An operator's last request for its role was worker.
        DemotedByOperator => "demoted_by_operator",
        /// Its last promotion did not succeed.
        Backoff => "backoff",
        /// Its release is lower than that of every manager that answers.
        OlderRelease => "older_release",
        /// Two processes use its identity.
        Duplicate => "duplicate",
        CertificateFailed => "certificate_failed",
        /// Its certificate is revoked, and the node has not shown the next one.
        CertificateRevoked => "certificate_revoked",
        /// It has not reported a release.
        ReleaseUnknown => "release_unknown",
    }
}

/// The policy, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotPolicyView {
    pub managers: u8,
    pub eligible: BTreeMap<String, String>,
    pub zone_label: Option<String>,
    pub replace_after_ms: u64,
    pub stabilize_ms: u64,
    pub shrink: bool,
    pub paused: Option<AutopilotPauseView>,
    pub generation: Generation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotPauseView {
    /// Who paused it, for people.
    pub by: String,
    pub at: WallTime,
    pub why: String,
    /// It paused itself: more managers were lost within an hour than it may replace.
    pub gave_up: bool,
}

impl From<&AutopilotPause> for AutopilotPauseView {
    fn from(AutopilotPause { by, at, why, gave_up }: &AutopilotPause) -> Self {
        Self { by: by.to_string(), at: *at, why: why.clone(), gave_up: *gave_up }
    }
}

impl From<&AutopilotPolicy> for AutopilotPolicyView {
    fn from(policy: &AutopilotPolicy) -> Self {
        let paused = policy.paused.as_ref().map(AutopilotPauseView::from);
        Self {
            managers: policy.managers,
            eligible: policy.eligible.clone(),
            zone_label: policy.zone_label.clone(),
            replace_after_ms: policy.replace_after_ms,
            stabilize_ms: policy.stabilize_ms,
            shrink: policy.shrink,
            paused,
            generation: policy.generation,
        }
    }
}

/// `muster autopilot state` and `explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotView {
    /// `None`: nothing is declared, and only operators change roles.
    pub policy: Option<AutopilotPolicyView>,
    /// As many managers as declared answer.
    pub healthy: bool,
    /// How many managers may fail now.
    pub tolerance: usize,
    /// How many may fail one after the other, each being replaced before the next one fails.
    pub optimistic_tolerance: usize,
    pub voters: usize,
    pub answering: usize,
    /// Managers that answer, by zone. Empty without a zone label.
    pub zones: BTreeMap<String, usize>,
    pub managers: Vec<AutopilotManagerView>,
    /// Workers: candidates in their order, then the excluded ones.
    pub candidates: Vec<AutopilotCandidateView>,
    pub next: AutopilotNextView,
    /// Oldest first.
    pub history: Vec<AutopilotChangeView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotManagerView {
    pub node: NodeId,
    pub name: Name,
    pub zone: Option<String>,
    pub answers: bool,
    /// Since when the leader itself has seen it down. `None`: it has not.
    pub down_since: Option<WallTime>,
    /// It is in maintenance.
    pub drain: Option<DrainView>,
}

/// A node in maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// Who drained it, for people.
    pub by: String,
    pub at: WallTime,
    /// When the drain ends. `None`: an operator ends it.
    pub until: Option<WallTime>,
    /// Another node takes its place as manager first.
    pub replace: bool,
}

impl From<&Drain> for DrainView {
    fn from(drain: &Drain) -> Self {
        Self { by: drain.by.to_string(), at: drain.at, until: drain.until, replace: drain.replace }
    }
}

/// `muster node drain` and `undrain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainedView {
    pub node: NodeId,
    /// `None`: not drained, or no longer.
    pub drain: Option<DrainView>,
    pub changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotCandidateView {
    pub node: NodeId,
    pub name: Name,
    pub zone: Option<String>,
    pub preference: ManagerPreference,
    /// Its place, from 1. `None`: it is excluded.
    pub rank: Option<usize>,
    pub excluded: Option<Word<Exclusion>>,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotNextView {
    /// `None`: it waits.
    pub action: Option<AutopilotAction>,
    /// Why it waits. `None`: it does not.
    pub reason: Option<Word<AutopilotReason>>,
    /// The node that is changed, or that it waits for.
    pub node: Option<NodeId>,
    /// When time may change the decision although nothing else happens.
    pub not_before: Option<WallTime>,
    /// For people, with the numbers.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotChangeView {
    pub at: WallTime,
    pub action: AutopilotAction,
    pub node: NodeId,
    /// The node that it takes part in replacing.
    #[serde(rename = "for")]
    pub replaces: Option<NodeId>,
    pub outcome: AutopilotOutcome,
    pub why: String,
}

/// `muster cluster set`, `muster autopilot pause` and `resume`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotChangedView {
    /// `None`: withdrawn.
    pub policy: Option<AutopilotPolicyView>,
    pub changed: bool,
    /// What is done first under it. Absent if the leader could not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<AutopilotNextView>,
}

/// The actor's view in `muster actors inspect`, and what its metrics are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutopilotActorView {
    /// `None`: no number is declared.
    pub declared: Option<u8>,
    pub paused: bool,
    /// It paused itself.
    pub gave_up: bool,
    pub voters: usize,
    pub answering: usize,
    pub tolerance: usize,
    /// Workers that may be promoted.
    pub candidates: usize,
    pub drained: usize,
    /// Why it waits; `None` while it acts.
    pub reason: Option<String>,
    /// The last decision, for people.
    pub decided: String,
    /// The number of the change that has begun and not ended.
    pub outstanding: Option<u64>,
    /// Changes that ended in this term, by action and outcome.
    pub ended: Vec<(AutopilotAction, AutopilotOutcome, u64)>,
}
