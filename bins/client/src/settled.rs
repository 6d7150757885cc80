//! Decides whether a role change has settled. Pure: the caller asks.

use muster_messages::{
    CertificateState, Condition, ConditionKind, Generation, Liveness, NodeView, Role, WaitReason, word,
};

/// The progress of a node's role change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Desired role, role, certificate and membership agree, except for what a node that is down does when it returns.
    Settled,
    /// Not settled, and why.
    Waiting(String),
    /// Another request has set the other role.
    Overridden,
}

const UNCONFIRMED: &str =
    "its state is unconfirmed: the managers have no quorum, or a new leader has no report about it yet";

/// The wait for one accepted role change: what its answers show, taken together.
#[derive(Clone, Debug)]
pub struct RoleWait {
    wanted: Role,
    /// The newest generation that a leader has confirmed since the request was accepted. The request is part of it.
    confirmed: Option<Generation>,
}

impl RoleWait {
    pub fn new(wanted: Role) -> Self {
        Self { wanted, confirmed: None }
    }

    /// Evaluates the next answer. One that no leader has confirmed may be older than the request, and then shows nothing; one of
    /// the confirmed generation or a later one shows a state that the request is part of.
    pub fn progress(&mut self, node: &NodeView) -> Progress {
        if !node.stale {
            self.confirmed = self.confirmed.max(Some(node.generation));
            return progress(node, self.wanted);
        }
        if self.confirmed.is_none_or(|confirmed| node.generation < confirmed) {
            return Progress::Waiting(UNCONFIRMED.to_owned());
        }
        match progress(node, self.wanted) {
            Progress::Waiting(_) if facts_agree(node) => Progress::Settled,
            other => other,
        }
    }
}

/// Whether desired role, role, certificate and membership agree. No report of a node, and no leader, can change that.
fn facts_agree(node: &NodeView) -> bool {
    let role = node.desired_role;
    node.role == role && is_certified(node, role) && node.membership == role.membership()
}

/// Evaluates one view of a node whose role `wanted` was requested.
///
/// The certificate and the manager runtime of a node that is down follow when it returns: the wait does not include them.
pub fn progress(node: &NodeView, wanted: Role) -> Progress {
    if node.desired_role != wanted {
        return Progress::Overridden;
    }
    if node.stale {
        return Progress::Waiting(UNCONFIRMED.to_owned());
    }
    let (down, certified) = (node.state == Liveness::Down, is_certified(node, wanted));
    let membership_settled = node.membership == wanted.membership() || (down && wanted == Role::Manager);
    // The leader grants the role first and only then derives what the node itself must do, which is the reason to report.
    let granting = down && role_change(node).is_some_and(|c| c.reason == WaitReason::WaitingForCertificate);
    if node.role == wanted && (certified || down) && membership_settled && !granting {
        return Progress::Settled;
    }
    Progress::Waiting(reason(node, wanted, certified))
}

/// What a node that is down has left to do for a settled change, when it returns.
pub fn remaining_work(node: &NodeView, wanted: Role) -> Option<String> {
    let certified = is_certified(node, wanted);
    let membership_settled = wanted == Role::Worker || node.membership == wanted.membership();
    if certified && membership_settled {
        return None;
    }
    let why = reason(node, wanted, certified);
    let has_condition = role_change(node).is_some();
    Some(if has_condition { why } else { format!("{}: it is down, and {why}", word(WaitReason::WaitingForNode)) })
}

/// The condition of its role change, else its first other condition.
fn role_change(node: &NodeView) -> Option<&Condition> {
    // A differing reported name blocks nothing.
    let others = || node.conditions.iter().find(|c| c.reason != WaitReason::ReportedNameDiffers);
    node.conditions.iter().find(|c| c.kind == ConditionKind::RoleChange).or_else(others)
}

fn is_certified(node: &NodeView, wanted: Role) -> bool {
    node.certificate.role == Some(wanted) && node.certificate.state == CertificateState::Issued
}

fn reason(node: &NodeView, wanted: Role, certified: bool) -> String {
    if let Some(condition) = role_change(node) {
        return format!("{}: {}", word(condition.reason), condition.message);
    }
    if node.role != wanted {
        format!("its role is still {}", node.role)
    } else if !certified {
        format!("it has no {wanted} certificate yet")
    } else {
        "its raft membership is still changing".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::Membership;
    use serde_json::json;

    use super::*;

    fn node(change: impl FnOnce(&mut serde_json::Value)) -> NodeView {
        let mut document = json!({
            "id": "0000000000000000000000001", "name": "n4", "addr": "127.0.0.1:4404", "release": "0.1.0", "labels": {},
            "desired_role": "manager", "role": "manager", "state": "ready", "state_since": "2024-01-01T00:00:00Z",
            "stale": false, "membership": "voter", "manager": null,
            "certificate": {"role": "manager", "state": "issued", "serial": null, "not_after": null},
            "conditions": [], "generation": 2, "revision": 9
        });
        change(&mut document);
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn settled_requires_that_all_four_facts_agree() {
        assert_eq!(progress(&node(|_| ()), Role::Manager), Progress::Settled);
        for (pointer, value) in [
            ("/role", json!("worker")),
            ("/membership", json!("learner")),
            ("/certificate/role", json!("worker")),
            ("/certificate/state", json!("pending")),
        ] {
            let seen = node(|d| *d.pointer_mut(pointer).unwrap() = value);
            assert!(matches!(progress(&seen, Role::Manager), Progress::Waiting(_)), "{pointer}");
        }
    }

    #[test]
    fn node_that_is_down_blocks_neither_promotion_nor_demotion() {
        let down = |membership: &str, role: &str, desired: &str| {
            node(|d| {
                d["state"] = json!("down");
                d["membership"] = json!(membership);
                d["role"] = json!(role);
                d["desired_role"] = json!(desired);
                d["certificate"]["state"] = json!("pending");
            })
        };
        for role in [Role::Manager, Role::Worker] {
            let absent = down("none", &role.to_string(), &role.to_string());
            assert_eq!(progress(&absent, role), Progress::Settled);
            let left = format!("waiting_for_node: it is down, and it has no {role} certificate yet");
            assert_eq!(remaining_work(&absent, role), Some(left), "the rest is reported");
        }
        let because = |reason: &str, message: &str| {
            let mut absent = down("none", "manager", "manager");
            absent.conditions = serde_json::from_value(json!([{"type": "role_change", "reason": reason,
                "message": message, "since": "2024-01-01T00:00:00Z", "retry_at": null}]))
            .unwrap();
            absent
        };
        let granting = progress(&because("waiting_for_certificate", "n4 is being granted the role"), Role::Manager);
        assert!(matches!(granting, Progress::Waiting(_)), "the leader plans again at once");
        let absent = because("waiting_for_node", "n4 is down");
        assert_eq!(progress(&absent, Role::Manager), Progress::Settled);
        assert_eq!(remaining_work(&absent, Role::Manager), Some("waiting_for_node: n4 is down".to_owned()));
        assert_eq!(remaining_work(&node(|_| ()), Role::Manager), None);
        let still_voter = progress(&down("voter", "worker", "worker"), Role::Worker);
        assert!(matches!(still_voter, Progress::Waiting(_)), "the cluster removes its membership without the node");
    }

    #[test]
    fn unconfirmed_answer_counts_from_the_confirmed_generation() {
        let own = |generation: u64, desired: &str| {
            node(|d| {
                d["stale"] = json!(true);
                d["generation"] = json!(generation);
                d["desired_role"] = json!(desired);
            })
        };
        let unconfirmed = Progress::Waiting(UNCONFIRMED.to_owned());
        let mut wait = RoleWait::new(Role::Manager);
        // It was a manager before, was demoted, and is to be one again: the first two states are of before the request.
        assert_eq!(wait.progress(&own(5, "manager")), unconfirmed, "nothing is confirmed yet");
        assert_eq!(wait.progress(&own(5, "worker")), unconfirmed, "no other request is shown by an older state");
        let accepted = node(|d| {
            d["generation"] = json!(7);
            d["membership"] = json!("none");
        });
        assert!(matches!(wait.progress(&accepted), Progress::Waiting(why) if why != UNCONFIRMED));
        assert_eq!(wait.progress(&own(5, "manager")), unconfirmed);
        assert_eq!(wait.progress(&own(6, "worker")), unconfirmed);
        let learner = NodeView { membership: Membership::Learner, ..own(7, "manager") };
        assert_eq!(wait.progress(&learner), unconfirmed, "not settled");
        assert_eq!(wait.progress(&own(7, "manager")), Progress::Settled);
        assert_eq!(wait.progress(&own(8, "worker")), Progress::Overridden);
    }

    #[test]
    fn latest_request_wins_and_reasons_are_reported() {
        assert_eq!(progress(&node(|d| d["desired_role"] = json!("worker")), Role::Manager), Progress::Overridden);
        let waiting = node(|d| {
            d["membership"] = json!("learner");
            d["conditions"] = json!([{"type": "role_change", "reason": "catching_up", "message": "120 entries behind",
                "since": "2024-01-01T00:00:00Z", "retry_at": null}]);
        });
        assert_eq!(progress(&waiting, Role::Manager), Progress::Waiting("catching_up: 120 entries behind".to_owned()));
        let stale = node(|d| d["stale"] = json!(true));
        assert!(matches!(progress(&stale, Role::Manager), Progress::Waiting(_)));
    }
}
