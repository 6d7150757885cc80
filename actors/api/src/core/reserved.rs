//! Requests about release gates that are reserved to the managers: the scope `muster`, and the reconciler whose gate
//! raises the feature level.
//!
//! Invariants  API-3  only a manager takes part in the managers' scope, campaigns for or runs its reconciler, or supplies a
//!                    definition of it; no caller removes its gate or forces it.
//! Why it may not be forced: participants below a forced floor must stop, and the managers that stop may be the quorum.
//! A blocking manager is upgraded, demoted or removed.

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Definition, ErrorBody, GateEntry, LEVEL_RECONCILER, MANAGERS_SCOPE, ParticipantKey, Principal, Role, Tables,
    candidates_scope, level_release,
};

/// Refuses requests that are reserved to other callers.
pub fn check(tables: &Tables, caller: &Principal, request: &ReconcilerRequest) -> Result<(), ErrorBody> {
    use ReconcilerRequest as R;
    let ours = |name: &String| name == LEVEL_RECONCILER;
    let name = match request {
        R::Apply { definitions, .. } => return definitions.iter().try_for_each(|d| defines(tables, caller, d)),
        R::Announce { participant } => return check_participation(tables, caller, &participant.key),
        R::RaiseLevel { .. } => LEVEL_RECONCILER,
        R::Step { name, .. } | R::Wave { name, .. } | R::StepDone { name, .. } if ours(name) => name,
        R::Progress { progress } if ours(&progress.reconciler) => &progress.reconciler,
        R::RecordRun { record } if ours(&record.reconciler) => &record.reconciler,
        R::MemberForget { scope, member } | R::MemberDrain { scope, member } if is_managers(scope) => {
            return Err(ErrorBody::forbidden(format!(
                "{member} of {scope} is a manager of this cluster and is forgotten 15 s after it stops; `muster node demote` makes it a worker, `muster node rm` removes it"
            )));
        }
        R::MemberAnnounce { scope, .. } if is_managers(scope) => {
            return Err(ErrorBody::forbidden(format!(
                "the scope {scope} is reserved to the managers, and each registers itself; use another scope"
            )));
        }
        R::Leave { key } if is_managers(&key.scope) => return check_participation(tables, caller, key),
        R::Repair { name, epoch } if ours(name) => return repairs(tables, *epoch),
        R::ForceFloor { name, .. } | R::DeleteGate { name } | R::Delete { name } if ours(name) => {
            return Err(ErrorBody::forbidden(format!(
                "{name} is built in: its gate excludes managers that could not read what the others write; \
                 `muster reconciler status {name}` lists the blocking managers: upgrade, demote or remove them"
            )));
        }
        _ => return Ok(()),
    };
    if is_manager(tables, caller) {
        return Ok(());
    }
    Err(ErrorBody::forbidden(format!("{name} is built in: only managers run it, and {caller} is not a manager")))
}

/// An unreadable gate may be repaired; a readable one does not go below the level that managers already use.
fn repairs(tables: &Tables, epoch: u64) -> Result<(), ErrorBody> {
    let Some(gate) = tables.reconcilers.gates.get(LEVEL_RECONCILER).filter(|gate| gate.is_readable()) else {
        return Ok(());
    };
    let falls = |entry: &&GateEntry| entry.epoch == epoch && entry.floor < gate.now.floor;
    match gate.history.iter().find(falls) {
        None => Ok(()),
        Some(entry) => Err(ErrorBody::forbidden(format!(
            "epoch {epoch} of {LEVEL_RECONCILER} has floor {}, below {}: managers of that level could not read what the others \
             write now; only an unreadable gate is repaired from it",
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
            "the scope {scope} is reserved to the managers, and {LEVEL_RECONCILER} is its only reconciler; use another scope"
        ))),
        (true, whole) => {
            let level = u32::try_from(release.triple.major).unwrap_or(u32::MAX);
            let sound = whole && release.triple == level_release(level) && *floor == release.triple;
            if sound && is_manager(tables, caller) {
                return Ok(());
            }
            Err(ErrorBody::forbidden(format!(
                "{reconciler} is built in: only managers supply its definitions; use another name"
            )))
        }
    }
}

/// A manager acts for itself, with a lease: a record without a lease would never end by itself.
fn check_participation(tables: &Tables, caller: &Principal, key: &ParticipantKey) -> Result<(), ErrorBody> {
    let itself = matches!(caller, Principal::Node(id) if id.to_string() == key.member) && !key.is_external();
    if !is_managers(&key.scope) || itself && is_manager(tables, caller) {
        return Ok(());
    }
    let scope = &key.scope;
    Err(ErrorBody::forbidden(format!(
        "the scope {scope} is reserved to the managers, and each registers itself; use another scope"
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

    /// Its gate was at level 2 and is now at 3, in a format with this number.
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
    fn readable_managers_gate_is_not_repaired_to_a_lower_level() {
        let repair = |format, epoch| {
            let request = ReconcilerRequest::Repair { name: LEVEL_RECONCILER.to_owned(), epoch };
            check(&risen(format), &Principal::Operator, &request).map_err(|refused| refused.code)
        };
        assert_eq!(repair(GATE_FORMAT, 1), Err(ErrorCode::Forbidden));
        assert_eq!(repair(GATE_FORMAT, 2), Ok(()), "the same level");
        assert_eq!(repair(GATE_FORMAT + 1, 1), Ok(()), "the only remedy");
    }

    /// Whether it is allowed to: an operator, a manager's process, a worker's process.
    fn allowed(request: &ReconcilerRequest) -> [bool; 3] {
        [Principal::Operator, node(MANAGER), node(WORKER)].map(|caller| {
            let asked = wire::Request::Reconciler(request.clone());
            authorize(&caller, &asked, Vec::new).and_then(|()| check(&tables(), &caller, request)).is_ok()
        })
    }

    #[test]
    fn managers_scope_is_reserved_to_managers() {
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
            (
                ReconcilerRequest::MemberAnnounce {
                    scope: "muster".to_owned(),
                    member: "n1".to_owned(),
                    release: level_release(2),
                    needs: Default::default(),
                    allow_undefined_scope: true,
                },
                none,
            ),
            (ReconcilerRequest::ForceFloor { name: level.to_owned(), floor: level_release(3), dry_run: true }, none),
        ] {
            assert_eq!(allowed(&request), who, "{request:?}");
        }
    }
}
