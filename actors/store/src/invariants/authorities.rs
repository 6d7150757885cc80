//! Invariants of the roots.

use muster_messages::{AuthorityState, MAX_ROOTS, Tables};

use super::{CheckResult, ROOT_1, ROOT_4, ROOT_11, UP_2, holds};

pub(super) fn check(tables: &Tables) -> CheckResult {
    let all = &tables.authorities;
    if let Some(requested) = &all.requested {
        let known = all.roots.contains_key(&requested.root);
        holds(!known, UP_2, || format!("the requested root {} is on record", requested.root))?;
    }
    if all.roots.is_empty() {
        return Ok(());
    }
    let in_state = |state| all.roots.values().filter(|root| root.state == state).count();
    let (active, prepared) = (in_state(AuthorityState::Active), in_state(AuthorityState::Prepared));
    holds(active == 1 && prepared <= 1, ROOT_1, || format!("{active} active roots, {prepared} prepared ones"))?;
    holds(all.roots.len() <= MAX_ROOTS, ROOT_1, || format!("{} roots", all.roots.len()))?;
    if let (Some((id, root)), Some(cluster)) = (all.active(), &tables.cluster) {
        let same = (&cluster.root_cert_pem, Some(&cluster.root_key_pem)) == (&root.cert_pem, root.key_pem.as_ref());
        holds(same, ROOT_1, || format!("the cluster does not sign with the active root {id}"))?;
    }
    for (id, root) in &all.roots {
        holds(root.key_pem.is_some() == root.state.trusted(), ROOT_4, || {
            format!(
                "the root {id} is {:?}, and its key {}",
                root.state,
                if root.key_pem.is_some() { "stays" } else { "is gone" }
            )
        })?;
    }
    Ok(())
}

/// A root whose key was deleted never signs or is trusted again.
pub(super) fn check_step(before: &Tables, after: &Tables) -> CheckResult {
    for (id, was) in &before.authorities.roots {
        let now = after.authorities.roots.get(id);
        let only_forward = was.state.trusted() || now.is_none_or(|now| now.state >= was.state);
        holds(only_forward, ROOT_4, || {
            format!("the root {id} went from {:?} to {:?}", was.state, now.map(|n| n.state))
        })?;
        let ended = was.compromised && was.state != AuthorityState::Active;
        holds(!ended || now.is_none_or(|now| now.state != AuthorityState::Active), ROOT_11, || {
            format!("the root {id} signs again, and others may have its key")
        })?;
        let same_key = now.is_none_or(|now| now.cert_pem == was.cert_pem);
        holds(same_key, ROOT_1, || format!("the certificate of the root {id} changed"))?;
    }
    if let Some(requested) = &before.authorities.requested
        && let Some(key) = after.authorities.roots.get(&requested.root).and_then(|root| root.key_pem.as_ref())
    {
        holds(*key == requested.key_pem, UP_2, || format!("another key for the requested root {}", requested.root))?;
    }
    Ok(())
}
