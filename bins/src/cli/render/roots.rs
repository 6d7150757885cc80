//! The certificate authority: its roots, and the progress of a rotation.

use muster_client::unrevoked;
use muster_messages::{CaView, RootView, RootsProgressView, RootsView, RootsWaitReason, RotationPhase, word};

use super::{list, when};
use crate::cli::output::{Table, or_dash, printable_lines};

pub fn ca(ca: &CaView) -> String {
    let mut table = Table::bare();
    table.row(["digest".to_owned(), ca.digest.clone()]);
    table.row(["not after".to_owned(), when(ca.not_after)]);
    table.render() + &printable_lines(&ca.pem)
}

/// The certificates of all trusted roots. A daemon of an earlier release has one.
pub fn bundle(ca: &CaView) -> String {
    printable_lines(if ca.bundle.is_empty() { &ca.pem } else { &ca.bundle })
}

pub fn roots(roots: &RootsView) -> String {
    list(
        &roots.items,
        &["ID", "STATE", "ORIGIN", "CREATED", "NOT AFTER", "ISSUED", "OUTDATED", "DIGEST"],
        &[
            |root| root.id.to_string(),
            state,
            |root| word(root.origin),
            |root| when(root.created_at),
            |root| when(root.not_after),
            |root| root.issued.to_string(),
            |root| root.outdated.to_string(),
            |root| root.digest.clone(),
        ],
        "no roots",
    )
}

fn state(root: &RootView) -> String {
    word(root.state) + if root.compromised { " (compromised)" } else { "" }
}

/// `muster ca status`.
pub fn rotation(roots: &RootsView) -> String {
    let mut table = Table::bare();
    let of_nodes = |progress: &RootsProgressView| format!("{} of {} nodes", progress.n, progress.of);
    let active = roots.items.iter().find(|root| Some(root.id) == roots.active);
    let rows = [
        ("active", or_dash(active.map(|root| format!("{} ({})", root.id, word(root.origin))).as_ref())),
        ("expires", or_dash(active.map(|root| when(root.not_after)).as_ref())),
        ("target", or_dash(roots.target)),
        ("phase", format!("{}: {}", word(roots.phase), explained(roots))),
        ("trusted by", of_nodes(&roots.acknowledged)),
        ("renewed", of_nodes(&roots.renewed)),
        ("outdated users", roots.users_outdated.to_string()),
        ("last certificate of earlier roots", when(roots.last_not_after)),
    ];
    for (key, value) in rows {
        table.row([key.to_owned(), value]);
    }
    if let Some(requested) = &roots.requested {
        let text =
            format!("root {} since {}: `muster ca rotate --issued FILE`", requested.id, when(requested.created_at));
        table.row(["waits for an authority above".to_owned(), text]);
    }
    table.render() + &missing("trusts", &roots.acknowledged) + &missing("renews", &roots.renewed)
}

fn explained(roots: &RootsView) -> String {
    let prepared = roots.items.iter().find(|root| Some(root.id) == roots.target);
    // Nodes that are down are not awaited.
    let waits = roots.renewed.missing.iter().any(|node| node.reason != RootsWaitReason::WaitingForNode);
    let by_digest = waits && unrevoked(roots).any(|root| Some(root.id) == roots.active);
    let first = if by_digest { DIGESTS_FIRST } else { "" };
    match (roots.phase, prepared) {
        (RotationPhase::Publishing, Some(root)) if !root.automatic => {
            format!("{first}`muster ca activate {}` lets the target sign", root.id)
        }
        (RotationPhase::Publishing, _) => format!("{first}the target signs as soon as the nodes trust it"),
        (RotationPhase::Signing, _) => "nodes renew their certificates".to_owned(),
        (RotationPhase::Retiring | RotationPhase::Done, _) => former(roots),
    }
}

/// Others may have the key of the root that signs: afterwards, its certificates count only by their digest.
const DIGESTS_FIRST: &str = "nodes renew certificates whose digest is not on record; then ";

/// What becomes of the roots that no longer sign.
fn former(roots: &RootsView) -> String {
    match unrevoked(roots).find(|root| Some(root.id) != roots.active) {
        Some(root) => {
            format!("root {} is revoked once a majority of the managers is up and uses newer certificates", root.id)
        }
        None if roots.phase == RotationPhase::Retiring => {
            let managers = if roots.renewed.missing.is_empty() { "" } else { ", and until every manager has renewed" };
            format!("the earlier root is still trusted, so that it can sign again{managers}")
        }
        None => "no rotation is in progress".to_owned(),
    }
}

fn missing(step: &str, progress: &RootsProgressView) -> String {
    if progress.missing.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[&format!("NOT YET ({step})"), "REASON", "SINCE"]);
    for node in &progress.missing {
        table.row([node.name.to_string(), word(node.reason), when(node.since)]);
    }
    let unnamed = progress.of.saturating_sub(progress.n).saturating_sub(progress.missing.len());
    let more = if unnamed > 0 { format!("and {unnamed} more\n") } else { String::new() };
    format!("\n{}{more}", table.render())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen(phase: &str, automatic: bool) -> RootsView {
        let root = |id: &str, state: &str, compromised: bool| {
            json!({"id": id, "state": state, "origin": "made", "digest": "abc", "not_after": "2044-01-01T00:00:00Z",
                "created_at": "2024-01-01T00:00:00Z", "activated_at": null, "issued": 3, "outdated": 3, "automatic": automatic,
                "compromised": compromised})
        };
        let missing = json!([{"node": "0000000000000000000000001", "name": "n5", "reason": "waiting_for_node",
            "since": "2024-01-02T00:00:00Z"}]);
        serde_json::from_value(json!({
            "items": [root("4be3c1d20f6a9587", "active", true), root("0123456789abcdef", "prepared", false)],
            "active": "4be3c1d20f6a9587", "target": "0123456789abcdef", "phase": phase,
            "acknowledged": {"of": 5, "n": 2, "missing": missing}, "renewed": {"of": 5, "n": 5, "missing": []},
            "users_outdated": 2, "last_not_after": null
        }))
        .unwrap()
    }

    #[test]
    fn roots_are_a_table() {
        let table = roots(&seen("publishing", true));
        let mut lines = table.lines();
        assert_eq!(
            lines.next().unwrap().split_whitespace().collect::<Vec<_>>().join(" "),
            "ID STATE ORIGIN CREATED NOT AFTER ISSUED OUTDATED DIGEST"
        );
        let first = lines.next().unwrap();
        assert!(first.starts_with("4be3c1d20f6a9587  active (compromised)  made"), "{first}");
    }

    #[test]
    fn status_names_what_is_missing_and_what_to_do() {
        let text = rotation(&seen("publishing", false));
        assert!(text.contains("trusted by                         2 of 5 nodes"), "{text}");
        assert!(text.contains("publishing: `muster ca activate 0123456789abcdef` lets the target sign"), "{text}");
        assert!(text.contains("NOT YET (trusts)  REASON"), "{text}");
        assert!(text.ends_with("n5                waiting_for_node  2024-01-02T00:00:00Z\nand 2 more\n"), "{text}");
        assert!(rotation(&seen("done", true)).contains("done: no rotation is in progress"));
        assert!(
            rotation(&seen("publishing", true)).contains("publishing: the target signs as soon as the nodes trust it")
        );
    }

    #[test]
    fn status_shows_an_authority_above() {
        let mut view = seen("done", true);
        view.items[0].origin = muster_messages::AuthorityOrigin::Upstream;
        let text = rotation(&view);
        assert!(text.contains("4be3c1d20f6a9587 (upstream)") && text.contains("2044-01-01T00:00:00Z"), "{text}");
        assert!(!text.contains("authority above"), "{text}");
        let requested = json!({"id": "0123456789abcdef", "created_at": "2024-01-01T00:00:00Z"});
        view.requested = Some(serde_json::from_value(requested).unwrap());
        let text = rotation(&view);
        assert!(text.contains("waits for an authority above") && text.contains("muster ca rotate --issued"), "{text}");
    }

    #[test]
    fn status_says_what_a_compromised_rotation_waits_for() {
        let mut waiting = seen("publishing", true);
        waiting.renewed = waiting.acknowledged.clone();
        let text = rotation(&waiting);
        assert!(text.contains("publishing: the target signs"), "a node that is down is not awaited: {text}");
        waiting.renewed.missing[0].reason = RootsWaitReason::Renewing;
        let text = rotation(&waiting);
        assert!(
            text.contains("digest is not on record; then the target signs") && text.contains("NOT YET (renews)"),
            "{text}"
        );
        let mut signing = seen("retiring", true);
        signing.active = signing.target;
        let text = rotation(&signing);
        assert!(text.contains("retiring: root 4be3c1d20f6a9587 is revoked once a majority"), "{text}");
        signing.items[0].compromised = false;
        assert!(rotation(&signing).contains("still trusted, so that it can sign again\n"));
        signing.renewed = signing.acknowledged.clone();
        assert!(rotation(&signing).contains("can sign again, and until every manager has renewed"));
    }

    #[test]
    fn bundle_of_an_earlier_daemon_is_its_root() {
        let view = |document| serde_json::from_value::<CaView>(document).unwrap();
        let old = json!({"digest": "d", "not_after": "2044-01-01T00:00:00Z", "pem": "A\n"});
        assert_eq!(bundle(&view(old)), "A\n");
        let new = json!({"digest": "d", "not_after": "2044-01-01T00:00:00Z", "pem": "A\n", "bundle": "A\nB\n"});
        assert_eq!(bundle(&view(new)), "A\nB\n");
    }
}
