//! The kinds of actors there are, and what the documents say of a failure of each: the specification that the matrix is
//! held against.

use muster_messages::{CrashHow, ID_LEN};

/// Where the manager half is.
pub const MANAGER: &str = "node/manager";
/// Where the leader's subtree is.
pub const LEADER: &str = "node/manager/leader";

/// The ways to fail, as the table's columns.
pub const HOWS: [(&str, CrashHow); 5] = [
    ("panic", CrashHow::Panic),
    ("error", CrashHow::Error),
    ("kill", CrashHow::Kill),
    ("hang", CrashHow::Hang),
    ("start ×11", CrashHow::Start { times: CrashHow::STARTS }),
];

/// A path without what tells its actors from others of their kind: node ids, hashes, names of reconcilers.
pub fn kind_of(path: &str) -> String {
    let mut kind: Vec<String> = Vec::new();
    for segment in path.split('/') {
        let id = segment.split_once('-').filter(|(_, id)| id.len() >= ID_LEN && !id.contains('-'));
        kind.push(match id {
            _ if kind.last().is_some_and(|above| above == "reconcilers") => "*".to_owned(),
            Some((head, _)) => format!("{head}-*"),
            None => segment.to_owned(),
        });
    }
    kind.join("/")
}

/// The path above.
pub fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

/// Whether a path is another, or below it.
pub fn within(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// However often they fail, nobody else does.
fn contained(kind: &str) -> bool {
    const CONTAINED: [&str; 5] = [MANAGER, "node/manager/feature-level", "elections", "election-*", "node/reconcilers"];
    let last = kind.rsplit('/').next().unwrap_or(kind);
    CONTAINED.contains(&kind) || CONTAINED.contains(&last) || last == "*"
}

/// What follows from a failure: what is started again, its topmost paths. Nothing: the process ends.
///
/// A failure ends one incarnation, with whatever is below it. The eleventh within a minute ends its supervisor, which its
/// own supervisor then starts again; but an actor bears a thousand of its own children. A switch that starts anew stops what
/// the incarnation before it has left running, and starts it again.
pub fn specified(path: &str, how: CrashHow) -> Option<Vec<String>> {
    let (kind, supervisor) = (kind_of(path), above(path));
    let escalates = matches!(how, CrashHow::Start { .. }) && !contained(&kind) && is_group(&kind_of(supervisor));
    if escalates {
        return (supervisor != "node").then(|| vec![supervisor.to_owned()]);
    }
    let switched = path.strip_suffix("-switch").map(str::to_owned);
    Some([path.to_owned()].into_iter().chain(switched).collect())
}

/// Supervisors that are no actors beside. Of the others' own children a thousand may fail.
fn is_group(kind: &str) -> bool {
    [String::from("node"), MANAGER.to_owned(), LEADER.to_owned()].iter().any(|group| group == kind)
        || kind.ends_with("/*")
}

/// Whether somebody else may lead afterwards: it is what leading takes.
pub fn may_cost_leadership(path: &str, how: CrashHow) -> bool {
    let leads = ["node/manager/raft-member", "node/manager/mesh"];
    specified(path, how)
        .is_none_or(|tops| tops.iter().any(|top| top == MANAGER || leads.iter().any(|l| within(top, l))))
}

/// Those whom another actor starts, stops and replaces as things go, with connections, leases and records.
pub fn comes_and_goes(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or(path);
    let kind = kind_of(last);
    ["session-*", "election-*", "elect", "lease", "member", "record"].contains(&kind.as_str())
}

/// An outcome in the words of the table.
pub fn words(path: &str, tops: Option<&[String]>, takes_children: bool) -> String {
    let Some(tops) = tops else { return "the process ends, 1".to_owned() };
    let name = |top: &str| if top == MANAGER { "the manager half".to_owned() } else { format!("`{}`", kind_of(top)) };
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
    fn a_kind_is_a_path_without_ids_and_names() {
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
    fn a_failure_is_specified_by_who_supervises_whom() {
        let start = CrashHow::Start { times: CrashHow::STARTS };
        let told = |path: &str, how| words(path, specified(path, how).as_deref(), false);
        assert_eq!(told("node/gateway", CrashHow::Kill), "alone");
        assert_eq!(told("node/gateway", start), "the process ends, 1");
        assert_eq!(told("node/manager", start), "alone");
        assert_eq!(told("node/manager/join", start), "the manager half");
        assert_eq!(told("node/manager/mesh/door", start), "alone");
        assert_eq!(told("node/manager/leader-switch", CrashHow::Error), "alone, then `node/manager/leader`");
        assert_eq!(told("node/manager/leader/role-manager", start), "`node/manager/leader`");
        assert_eq!(told("node/manager/leader/elections", start), "alone");
        assert_eq!(told("node/reconcilers/schema/run", start), "`node/reconcilers/*`");
    }
}
