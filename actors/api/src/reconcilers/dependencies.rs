//! Dependencies of definitions that could never be met.

use std::collections::BTreeSet;

use muster_messages::{Definition, ErrorBody, Reconcilers};

/// Refuses definitions of which no run could ever start: they depend on a reconciler that does not exist, or on each other in a cycle.
/// Those that are submitted together may depend on each other. A reconciler that ran before has a gate, which an earlier definition
/// can have made done: it does not count.
pub(super) fn check_dependencies(all: &Reconcilers, submitted: &[Definition]) -> Result<(), ErrorBody> {
    let replaced = |d: &Definition| submitted.iter().any(|s| s.reconciler == d.reconciler && s.release == d.release);
    let kept = all.definitions.values().map(AsRef::as_ref).filter(|d| !replaced(d));
    let definitions: Vec<&Definition> = submitted.iter().chain(kept).collect();
    let reachable = reachable(all, &definitions);
    for definition in submitted {
        let Some(unmet) = definition.depends_on.iter().find(|name| !reachable.contains(name.as_str())) else {
            continue;
        };
        let Definition { reconciler, release, .. } = definition;
        if !definitions.iter().any(|d| d.reconciler == *unmet) {
            return Err(ErrorBody::invalid(format!(
                "{reconciler} {release} depends on {unmet}, which does not exist and would never be done; apply {unmet} first, or both \
                 in one request"
            )));
        }
        return Err(ErrorBody::invalid(format!(
            "{reconciler} {release} would never run: {}; remove one of these dependencies",
            cycle(&definitions, &reachable, unmet)
        )));
    }
    Ok(())
}

/// The reconcilers that have run, and, from those, all that have a definition whose dependencies are among them.
fn reachable<'a>(all: &'a Reconcilers, definitions: &[&'a Definition]) -> BTreeSet<&'a str> {
    let mut reachable: BTreeSet<&str> = all.gates.keys().map(String::as_str).collect();
    loop {
        let before = reachable.len();
        for definition in definitions {
            if definition.depends_on.iter().all(|name| reachable.contains(name.as_str())) {
                reachable.insert(&definition.reconciler);
            }
        }
        if reachable.len() == before {
            return reachable;
        }
    }
}

/// The chain of unmet dependencies from `first` to one that was named before, or to one that is not defined any more.
fn cycle(definitions: &[&Definition], reachable: &BTreeSet<&str>, first: &str) -> String {
    let mut names = vec![first];
    loop {
        let last = names[names.len() - 1];
        let unmet = definitions.iter().filter(|d| d.reconciler == last).flat_map(|d| &d.depends_on);
        let Some(next) = unmet.map(String::as_str).find(|name| !reachable.contains(name)) else {
            return format!("{}, which does not exist", names.join(" depends on "));
        };
        let seen = names.contains(&next);
        names.push(next);
        if seen {
            return names.join(" depends on ");
        }
    }
}
