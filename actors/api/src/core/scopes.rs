//! Whether a member takes part in the right scope, and a definition names it.
//!
//! Invariants  API-7  a member that names reconcilers, all of other scopes, is not admitted: no floor of theirs would hold for it.

use muster_messages::{CANDIDATES_SCOPE, Definition, ErrorBody, Participant, Reconcilers};

/// Refuses a member whose reconcilers are all known to belong to other scopes. One that is not defined yet may still belong to
/// this scope: its member waits for it, and is checked again when it asks to be admitted.
pub fn check_scope(all: &Reconcilers, participant: &Participant) -> Result<(), ErrorBody> {
    let scope = participant.key.scope.as_str();
    let mut others = Vec::new();
    for name in participant.needs.keys() {
        match scope_of(all, name) {
            Some(theirs) if theirs != scope => others.push((name, theirs)),
            // Of this scope, or perhaps of it.
            Some(_) | None => return Ok(()),
        }
    }
    let Some((name, theirs)) = others.first().filter(|_| !scope.starts_with(CANDIDATES_SCOPE)) else { return Ok(()) };
    Err(ErrorBody::invalid(format!(
        "{name} belongs to scope {theirs}, not {scope}: its floor would not hold for a member of {scope}; take part in scope {theirs}"
    )))
}

/// Refuses definitions that name another scope than their reconciler has: a gate belongs to one scope.
pub fn check_definitions(all: &Reconcilers, definitions: &[Definition]) -> Result<(), ErrorBody> {
    for Definition { reconciler, scope, .. } in definitions {
        if let Some(theirs) = scope_of(all, reconciler).filter(|theirs| *theirs != scope.as_str()) {
            return Err(ErrorBody::invalid(format!(
                "{reconciler} belongs to scope {theirs}, and its gate cannot move to {scope}: use another name, or delete {reconciler} first"
            )));
        }
    }
    Ok(())
}

fn scope_of<'a>(all: &'a Reconcilers, name: &'a str) -> Option<&'a str> {
    let defined = all.definitions_of(name).next().map(|definition| definition.scope.as_str());
    defined.or_else(|| all.gates.get(name).map(|gate| gate.scope.as_str()))
}
