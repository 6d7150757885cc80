//! Decides how far a root rotation is. Pure: the caller polls.

use muster_messages::{AuthorityState, RootId, RootView, RootsProgressView, RootsView, RootsWaitReason, word};

use crate::settled::Progress;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationGoal {
    /// All nodes that are ready trust the root.
    Trusted,
    /// All nodes that are ready have certificates of the root.
    Renewed,
    /// The root signs, and every other one whose key others may have is revoked. Nodes that do not renew in time do not count.
    Revoked,
}

/// Evaluates one view of a rotation to `root`. Nodes that are down follow when they return: the wait does not include them.
pub fn rotation_progress(roots: &RootsView, root: RootId, goal: RotationGoal) -> Progress {
    let Some(RootView { state, automatic, .. }) = roots.items.iter().find(|item| item.id == root) else {
        return Progress::Overridden;
    };
    match (state, goal) {
        (AuthorityState::Retiring | AuthorityState::Retired | AuthorityState::Revoked, _) => Progress::Overridden,
        (AuthorityState::Active, RotationGoal::Trusted) => Progress::Settled,
        (AuthorityState::Active, RotationGoal::Renewed) => {
            judged(&roots.renewed, Progress::Settled, "signing", "have renewed")
        }
        (AuthorityState::Active, RotationGoal::Revoked) => match unrevoked(roots).find(|item| item.id != root) {
            None => Progress::Settled,
            Some(RootView { id, .. }) => {
                let last = format!(
                    "revoking: root {id} is revoked once a majority of the managers is up and uses newer certificates"
                );
                judged(&roots.renewed, Progress::Waiting(last), "signing", "have renewed")
            }
        },
        (AuthorityState::Prepared, goal) => {
            let trusted = match (goal, automatic) {
                (RotationGoal::Trusted, _) => Progress::Settled,
                (_, true) => {
                    Progress::Waiting("publishing: the nodes trust the root, which is about to sign".to_owned())
                }
                (_, false) => Progress::Waiting(format!("publishing: `muster ca activate {root}` lets the root sign")),
            };
            // Certificates without a digest on record open nothing once a root signs whose predecessor's key others may have.
            let leaked = unrevoked(roots).any(|item| Some(item.id) == roots.active);
            let last = if leaked { judged(&roots.renewed, trusted, "renewing", HAVE_DIGESTS) } else { trusted };
            judged(&roots.acknowledged, last, "publishing", "trust the root")
        }
    }
}

const HAVE_DIGESTS: &str = "have certificates whose digest is on record";

/// Roots whose key others may have, and of which certificates still count.
pub fn unrevoked(roots: &RootsView) -> impl Iterator<Item = &RootView> {
    roots.items.iter().filter(|root| root.compromised && root.state != AuthorityState::Revoked)
}

/// `done`: once no node that is ready is missing.
fn judged(progress: &RootsProgressView, done: Progress, phase: &str, what: &str) -> Progress {
    // Those that are ready come first: a list that was cut off still names one.
    let holding = progress.missing.iter().filter(|node| node.reason != RootsWaitReason::WaitingForNode);
    let named: Vec<String> = holding.map(|node| format!("{} ({})", node.name, word(node.reason))).collect();
    if named.is_empty() {
        return done;
    }
    let more = if named.len() > MAX_NAMED { ", …" } else { "" };
    let names = named.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let RootsProgressView { of, n, .. } = progress;
    Progress::Waiting(format!("{phase}: {n} of {of} nodes {what}; waiting for {names}{more}"))
}

/// How many nodes a sentence names.
const MAX_NAMED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NEXT: &str = "bbbbbbbbbbbbbbbb";

    fn roots(state: &str, acknowledged: &Value, renewed: &Value) -> RootsView {
        let item = |id: &str, state: &str| {
            json!({"id": id, "state": state, "origin": "made", "digest": "d", "not_after": "2044-01-01T00:00:00Z",
                "created_at": "2024-01-01T00:00:00Z", "activated_at": null, "automatic": true, "issued": 0, "outdated": 0})
        };
        let progress = |missing: &Value| json!({"of": 3, "n": 1, "missing": missing});
        serde_json::from_value(json!({"items": [item("aaaaaaaaaaaaaaaa", "active"), item(NEXT, state)],
            "active": "aaaaaaaaaaaaaaaa", "target": NEXT, "phase": "publishing", "acknowledged": progress(acknowledged),
            "renewed": progress(renewed), "users_outdated": 0, "last_not_after": null}))
        .unwrap()
    }

    fn missing(name: &str, reason: &str) -> Value {
        json!({"node": "0000000000000000000000001", "name": name, "reason": reason})
    }

    fn progress(roots: &RootsView, goal: RotationGoal) -> Progress {
        rotation_progress(roots, NEXT.parse().unwrap(), goal)
    }

    #[test]
    fn ready_nodes_hold_the_wait_and_absent_nodes_do_not() {
        use RotationGoal as G;
        let down = missing("n5", "waiting_for_node");
        let waiting = roots("prepared", &json!([missing("n4", "waiting_for_answer"), down]), &json!([]));
        for goal in [G::Trusted, G::Renewed, G::Revoked] {
            let Progress::Waiting(why) = progress(&waiting, goal) else { panic!("{goal:?}") };
            assert_eq!(why, "publishing: 1 of 3 nodes trust the root; waiting for n4 (waiting_for_answer)");
        }
        let trusted = roots("prepared", &json!([down]), &json!([]));
        assert_eq!(progress(&trusted, G::Trusted), Progress::Settled);
        assert!(matches!(progress(&trusted, G::Renewed), Progress::Waiting(why) if why.contains("about to sign")));
        let renewing = roots("active", &json!([]), &json!([missing("n4", "queued"), down]));
        assert_eq!(progress(&renewing, G::Trusted), Progress::Settled);
        assert!(matches!(progress(&renewing, G::Renewed), Progress::Waiting(why) if why.contains("n4 (queued)")));
        let renewed = roots("active", &json!([]), &json!([down]));
        assert_eq!(progress(&renewed, G::Renewed), Progress::Settled);
    }

    #[test]
    fn compromised_rotation_ends_with_the_revocation() {
        let silent = json!([missing("n4", "renewing")]);
        let seen = |former: AuthorityState, renewed: &Value| {
            let mut seen = roots("active", &json!([]), renewed);
            (seen.items[0].state, seen.items[0].compromised) = (former, true);
            progress(&seen, RotationGoal::Revoked)
        };
        let waits = |seen| matches!(seen, Progress::Waiting(why) if why.starts_with("revoking: root aaaaaaaaaaaaaaaa"));
        assert!(matches!(seen(AuthorityState::Retiring, &silent), Progress::Waiting(why) if why.contains("n4")));
        assert!(waits(seen(AuthorityState::Retiring, &json!([]))));
        assert!(waits(seen(AuthorityState::Retired, &json!([]))));
        assert_eq!(seen(AuthorityState::Revoked, &silent), Progress::Settled, "a silent node does not count");
        assert_eq!(progress(&roots("active", &json!([]), &json!([])), RotationGoal::Revoked), Progress::Settled);
    }

    #[test]
    fn compromised_rotation_waits_for_digests_before_it_signs() {
        for (compromised, goal) in
            [(true, RotationGoal::Trusted), (true, RotationGoal::Revoked), (false, RotationGoal::Renewed)]
        {
            let mut seen = roots("prepared", &json!([]), &json!([missing("n4", "queued")]));
            seen.items[0].compromised = compromised;
            let Progress::Waiting(why) = progress(&seen, goal) else { panic!("{goal:?}") };
            let expected =
                "renewing: 1 of 3 nodes have certificates whose digest is on record; waiting for n4 (queued)";
            assert_eq!(why == expected, compromised, "{why}");
        }
    }

    #[test]
    fn another_request_ends_the_wait() {
        let mut manual = roots("prepared", &json!([]), &json!([]));
        manual.items[1].automatic = false;
        let Progress::Waiting(why) = progress(&manual, RotationGoal::Renewed) else {
            panic!("an operator activates it")
        };
        assert!(why.contains("muster ca activate"), "{why}");
        for state in ["retiring", "retired", "revoked"] {
            let seen = roots(state, &json!([]), &json!([]));
            assert_eq!(progress(&seen, RotationGoal::Renewed), Progress::Overridden, "{state}");
        }
        let mut aborted = manual;
        aborted.items.pop();
        assert_eq!(progress(&aborted, RotationGoal::Trusted), Progress::Overridden);
    }
}
