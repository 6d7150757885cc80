//! The kinds of actors, and the documented outcome of each failure: the specification that the matrix is
//! compared with.

use muster_messages::{CrashHow, ID_LEN};

/// The manager runtime.
pub const MANAGER: &str = "node/manager";
/// The leader's subtree.
pub const LEADER: &str = "node/manager/leader";

/// The failure modes, as the table's columns.
pub const FAILURE_MODES: [(&str, CrashHow); 5] = [
    ("panic", CrashHow::Panic),
    ("error", CrashHow::Error),
    ("kill", CrashHow::Kill),
    ("hang", CrashHow::Hang),
    ("start ×11", CrashHow::Start { times: CrashHow::STARTS }),
];

/// A path without what distinguishes actors of one kind: node ids, hashes, names of reconcilers.
pub fn kind_of(path: &str) -> String {
    let mut kind: Vec<String> = Vec::new();
    for segment in path.split('/') {
        let id = segment.split_once('-').filter(|(_, id)| id.len() >= ID_LEN && !id.contains('-'));
        kind.push(match id {
            _ if kind.last().is_some_and(|parent_path| parent_path == "reconcilers") => "*".to_owned(),
            Some((head, _)) => format!("{head}-*"),
            None => segment.to_owned(),
        });
    }
    kind.join("/")
}

/// The path above.
pub fn parent_path(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent_path, _)| parent_path)
}

/// Whether a path equals another or is below it.
pub fn within(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Contained: their failures never affect other actors.
fn contained(kind: &str) -> bool {
    const CONTAINED_ACTORS: [&str; 7] = [
        MANAGER,
        "node/manager/feature-level",
        "node/releases",
        "node/workloads",
        "elections",
        "election-*",
        "node/reconcilers",
    ];
    let last = kind.rsplit('/').next().unwrap_or(kind);
    CONTAINED_ACTORS.contains(&kind) || CONTAINED_ACTORS.contains(&last) || last == "*"
}

/// The outcome of a failure: the topmost restarted paths. `None`: the process ends.
///
/// A failure ends one incarnation, with everything below it. The eleventh within a minute ends its supervisor, which that
/// one's supervisor restarts; but an actor tolerates a thousand failures of its own children. A restarted switch stops what
/// its previous incarnation left running, and starts it again.
pub fn specified(path: &str, how: CrashHow) -> Option<Vec<String>> {
    let (kind, supervisor) = (kind_of(path), parent_path(path));
    let escalates = matches!(how, CrashHow::Start { .. }) && !contained(&kind) && is_group(&kind_of(supervisor));
    if escalates {
        return (supervisor != "node").then(|| vec![supervisor.to_owned()]);
    }
    let switched = path.strip_suffix("-switch").map(str::to_owned);
    Some([path.to_owned()].into_iter().chain(switched).collect())
}

/// Supervisors that are not actors. Of the other actors' children a thousand may fail.
fn is_group(kind: &str) -> bool {
    [String::from("node"), MANAGER.to_owned(), LEADER.to_owned()].iter().any(|group| group == kind)
        || kind.ends_with("/*")
}

/// Whether leadership may change: the failure concerns what a leader needs.
pub fn may_cost_leadership(path: &str, how: CrashHow) -> bool {
    let leads = ["node/manager/raft-member", "node/manager/mesh"];
    specified(path, how)
        .is_none_or(|tops| tops.iter().any(|top| top == MANAGER || leads.iter().any(|l| within(top, l))))
}

/// Actors that other actors start, stop and replace with connections, leases and records.
pub fn is_transient(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or(path);
    let kind = kind_of(last);
    ["session-*", "election-*", "elect", "lease", "member", "record"].contains(&kind.as_str())
}

/// An outcome as the table words it.
pub fn describe(path: &str, tops: Option<&[String]>, takes_children: bool) -> String {
    let Some(tops) = tops else { return "the process ends, 1".to_owned() };
    let name =
        |top: &str| if top == MANAGER { "the manager runtime".to_owned() } else { format!("`{}`", kind_of(top)) };
    match tops.split_first() {
        Some((top, others)) if top == path => {
            let own = if takes_children { "with its children" } else { "alone" };
            let with = others.iter().map(|other| format!(", then {}", name(other)));
            own.to_owned() + &with.collect::<String>()
        }
        _ => tops.iter().map(|top| name(top)).collect::<Vec<_>>().join(" and "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_a_path_without_ids_and_names() {
        for (path, kind) in [
            ("node/manager/leader-switch", "node/manager/leader-switch"),
            ("node/manager/sessions/session-7ewb12otbfzedvwe1dxxs3cy3", "node/manager/sessions/session-*"),
            ("node/reconcilers/schema/elect", "node/reconcilers/*/elect"),
            (
                "node/manager/leader/elections/election-c215aa34b47b50b27f3ccc467edd454c",
                "node/manager/leader/elections/election-*",
            ),
        ] {
            assert_eq!(kind_of(path), kind);
        }
    }

    #[test]
    fn failure_outcome_follows_from_supervision() {
        let start = CrashHow::Start { times: CrashHow::STARTS };
        let outcome = |path: &str, how| describe(path, specified(path, how).as_deref(), false);
        assert_eq!(outcome("node/gateway", CrashHow::Kill), "alone");
        assert_eq!(outcome("node/gateway", start), "the process ends, 1");
        assert_eq!(outcome("node/manager", start), "alone");
        for contained in ["node/releases", "node/workloads"] {
            assert_eq!(outcome(contained, start), "alone");
        }
        assert_eq!(outcome("node/manager/join", start), "the manager runtime");
        assert_eq!(outcome("node/manager/mesh/endpoint", start), "alone");
        assert_eq!(outcome("node/manager/leader-switch", CrashHow::Error), "alone, then `node/manager/leader`");
        assert_eq!(outcome("node/manager/leader/role-manager", start), "`node/manager/leader`");
        assert_eq!(outcome("node/manager/leader/elections", start), "alone");
        assert_eq!(outcome("node/reconcilers/schema/run", start), "`node/reconcilers/*`");
    }
}
