//! What of release gates is the managers' own: the scope `muster`, and the reconciler whose gate raises the feature level.
//!
//! Keeps  API-3  nobody but a manager takes part in the managers' scope, stands for or runs its reconciler, or brings it a
//!               definition; and nobody takes its gate away or forces it.
//! Why not forced: whoever is below a forced floor is told to stop, and managers that stop may be the quorum. One that is in the
//! way is upgraded, demoted or removed.

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Definition, ErrorBody, GateEntry, LEVEL_RECONCILER, MANAGERS_SCOPE, ParticipantKey, Principal, Role, Tables,
    candidates_scope, level_release,
};

/// Refuses what is not this caller's.
pub fn judge(tables: &Tables, caller: &Principal, request: &ReconcilerRequest) -> Result<(), ErrorBody> {
    use ReconcilerRequest as R;
    let ours = |name: &String| name == LEVEL_RECONCILER;
    let name = match request {
        R::Apply { definitions, .. } => return definitions.iter().try_for_each(|d| defines(tables, caller, d)),
        R::Announce { participant } => return takes_part(tables, caller, &participant.key),
        R::RaiseLevel { .. } => LEVEL_RECONCILER,
        R::Step { name, .. } | R::Wave { name, .. } if ours(name) => name,
        R::Progress { progress } if ours(&progress.reconciler) => &progress.reconciler,
        R::MemberForget { scope, member } | R::MemberDrain { scope, member } if is_managers(scope) => {
            return Err(ErrorBody::forbidden(format!(
                "{member} of {scope} is a manager of this cluster: it is forgotten 15 s after it has stopped; `muster node demote` makes it a worker, `muster node rm` removes it"
            )));
        }
        R::Leave { key } if is_managers(&key.scope) => return takes_part(tables, caller, key),
        R::Repair { name, epoch } if ours(name) => return repairs(tables, *epoch),
        R::ForceFloor { name, .. } | R::DeleteGate { name } | R::Delete { name } if ours(name) => {
            return Err(ErrorBody::forbidden(format!(
                "{name} is built in: its gate keeps managers out that could not read what the others write; \
                 `muster reconciler status {name}` says who is in the way: upgrade, demote or remove them"
            )));
        }
        _ => return Ok(()),
    };
    if is_manager(tables, caller) {
        return Ok(());
    }
    Err(ErrorBody::forbidden(format!("{name} is built in: only managers run it, and {caller} is none")))
}

/// An unreadable gate is repaired; a sound one does not go back below what managers have been told.
fn repairs(tables: &Tables, epoch: u64) -> Result<(), ErrorBody> {
    let Some(gate) = tables.reconcilers.gates.get(LEVEL_RECONCILER).filter(|gate| gate.is_readable()) else {
        return Ok(());
    };
    let falls = |entry: &&GateEntry| entry.epoch == epoch && entry.floor < gate.now.floor;
    match gate.history.iter().find(falls) {
        None => Ok(()),
        Some(entry) => Err(ErrorBody::forbidden(format!(
            "epoch {epoch} of {LEVEL_RECONCILER} has floor {}, below {}: managers of that level could not read what the others \
             write by now; only a gate that cannot be read is repaired from it",
            entry.floor, gate.now.floor
        ))),
    }
}

fn is_managers(scope: &str) -> bool {
    scope == MANAGERS_SCOPE || scope == candidates_scope(LEVEL_RECONCILER)
}

fn is_manager(tables: &Tables, caller: &Principal) -> bool {
    matches!(caller, Principal::Node(id) if tables.nodes.get(id).is_some_and(|node| node.role == Role::Manager))
}

fn defines(tables: &Tables, caller: &Principal, definition: &Definition) -> Result<(), ErrorBody> {
    let Definition { reconciler, scope, release, floor, .. } = definition;
    match (reconciler == LEVEL_RECONCILER, scope == MANAGERS_SCOPE) {
        (false, false) => Ok(()),
        (false, true) => Err(ErrorBody::forbidden(format!(
            "the scope {scope} is the managers' own, and {LEVEL_RECONCILER} its only reconciler; take another scope"
        ))),
        (true, whole) => {
            let level = u32::try_from(release.triple.major).unwrap_or(u32::MAX);
            let sound = whole && release.triple == level_release(level) && *floor == release.triple;
            if sound && is_manager(tables, caller) {
                return Ok(());
            }
            Err(ErrorBody::forbidden(format!(
                "{reconciler} is built in: managers bring its definitions; take another name"
            )))
        }
    }
}

/// A manager speaks for itself, with a lease: one without would never end by itself.
fn takes_part(tables: &Tables, caller: &Principal, key: &ParticipantKey) -> Result<(), ErrorBody> {
    let itself = matches!(caller, Principal::Node(id) if id.to_string() == key.member) && !key.is_external();
    if !is_managers(&key.scope) || itself && is_manager(tables, caller) {
        return Ok(());
    }
    let scope = &key.scope;
    Err(ErrorBody::forbidden(format!(
        "the scope {scope} is the managers' own: each takes part by itself; take another scope"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::*;

    use super::*;
    use crate::core::authorize::authorize;

    const MANAGER: u128 = 1;
    const WORKER: u128 = 2;

    fn node(n: u128) -> Principal {
        Principal::Node(NodeId::from_entropy(n))
    }

    fn tables() -> Tables {
        let mut tables = Tables::default();
        for (n, role) in [(MANAGER, Role::Manager), (WORKER, Role::Worker)] {
            let id = NodeId::from_entropy(n);
            tables.nodes.insert(id, Arc::new(NodeRecord::new(id, "n".parse().unwrap(), role, WallTime(0))));
        }
        tables
    }

    fn definition(name: &str, scope: &str, release: &str, floor: &str) -> ReconcilerRequest {
        let (release, floor) = (release.parse().unwrap(), floor.parse().unwrap());
        let definition = Definition::new(name, release, scope, floor, Action::Handler);
        ReconcilerRequest::Apply { definitions: vec![definition], replace: false }
    }

    fn announce(scope: &str, member: u128, incarnation: u128) -> ReconcilerRequest {
        let (scope, member) = (scope.to_owned(), NodeId::from_entropy(member).to_string());
        let participant = Participant {
            key: ParticipantKey { scope, member, incarnation: SessionId(incarnation) },
            node: None,
            release: Release::from(level_release(2)),
            needs: Default::default(),
            phase: ParticipantPhase::Announced,
            token: Some(FencingToken(1)),
            since: WallTime(0),
            revision: Revision(0),
        };
        ReconcilerRequest::Announce { participant }
    }

    /// Its gate was at level 2 once, and says 3 now, in a format of this number.
    fn risen(format: u32) -> Tables {
        let entry = |epoch, level| GateEntry {
            epoch,
            state: GateState::Done,
            reconciled: level_release(level).into(),
            digest: String::new(),
            floor: level_release(level),
            target: None,
            term: FencingToken(1),
            at: WallTime(0),
            revision: Revision(0),
            why: String::new(),
        };
        let (reconciler, scope) = (LEVEL_RECONCILER.to_owned(), MANAGERS_SCOPE.to_owned());
        let gate = Gate {
            reconciler: reconciler.clone(),
            scope,
            format,
            now: entry(3, 3),
            history: vec![entry(1, 2), entry(2, 3)],
        };
        let mut tables = tables();
        tables.reconcilers.gates.insert(reconciler, Arc::new(gate));
        tables
    }

    #[test]
    fn a_gate_of_managers_that_can_be_read_is_not_repaired_to_a_lower_level() {
        let repair = |format, epoch| {
            let request = ReconcilerRequest::Repair { name: LEVEL_RECONCILER.to_owned(), epoch };
            judge(&risen(format), &Principal::Operator, &request).map_err(|refused| refused.code)
        };
        assert_eq!(repair(GATE_FORMAT, 1), Err(ErrorCode::Forbidden));
        assert_eq!(repair(GATE_FORMAT, 2), Ok(()), "of the same level");
        assert_eq!(repair(GATE_FORMAT + 1, 1), Ok(()), "nothing else would help");
    }

    /// Who may, of: an operator, a manager's process, a worker's.
    fn allowed(request: &ReconcilerRequest) -> [bool; 3] {
        [Principal::Operator, node(MANAGER), node(WORKER)].map(|caller| {
            let asked = wire::Request::Reconciler(request.clone());
            authorize(&caller, &asked, &[]).and_then(|()| judge(&tables(), &caller, request)).is_ok()
        })
    }

    #[test]
    fn the_managers_scope_is_for_managers() {
        let (none, manager, operator) = ([false; 3], [false, true, false], [true, false, false]);
        let level = LEVEL_RECONCILER;
        for (request, who) in [
            (definition("schema", "db", "1.0.0", "1.0.0"), operator),
            (definition("schema", "muster", "1.0.0", "1.0.0"), none),
            (definition(level, "muster", "3.0.0", "3.0.0"), manager),
            (definition(level, "db", "3.0.0", "3.0.0"), none),
            (definition(level, "muster", "3.1.0", "3.1.0"), none),
            (definition(level, "muster", "3.0.0", "2.0.0"), none),
            (announce("muster", MANAGER, 7), manager),
            (announce("muster", WORKER, 7), none),
            (announce("muster", MANAGER, 0), none),
            (announce("candidates.feature-level", MANAGER, 7), manager),
            (announce("db", WORKER, 7), [true, true, true]),
            (ReconcilerRequest::RaiseLevel { level: 3, term: FencingToken(1) }, manager),
            (ReconcilerRequest::Delete { name: level.to_owned() }, none),
            (ReconcilerRequest::DeleteGate { name: level.to_owned() }, none),
            (ReconcilerRequest::Delete { name: "schema".to_owned() }, operator),
            (ReconcilerRequest::Pause { name: level.to_owned(), paused: true }, operator),
            (ReconcilerRequest::MemberForget { scope: "muster".to_owned(), member: "n1".to_owned() }, none),
            (ReconcilerRequest::MemberDrain { scope: "muster".to_owned(), member: "n1".to_owned() }, none),
            (ReconcilerRequest::ForceFloor { name: level.to_owned(), floor: level_release(3), dry_run: true }, none),
        ] {
            assert_eq!(allowed(&request), who, "{request:?}");
        }
    }
}
