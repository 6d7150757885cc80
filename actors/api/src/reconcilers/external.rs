//! External members: an operator vouches that they serve, and later that they have ended.

use std::collections::BTreeMap;

use muster_messages::Change;
use muster_messages::{
    CANDIDATES_SCOPE, CommandRefusal, ErrorBody, Participant, ParticipantKey, ParticipantPhase, ReconcilerChange,
    Reconcilers, Revision, Triple, WallTime,
};

use super::{ReconcilerRequests, explained};
use crate::core::{check_scope, on_behalf};
use crate::reads::to_text;
use crate::work::Proposed;

impl ReconcilerRequests<'_> {
    /// Announces and admits it in one entry of the log: a refused one leaves no record.
    pub(super) async fn announce_external(
        &self,
        key: ParticipantKey,
        release: Triple,
        needs: BTreeMap<String, Triple>,
        allow_undefined_scope: bool,
    ) -> Result<String, ErrorBody> {
        let participant = Participant {
            key: key.clone(),
            node: None,
            release: release.into(),
            needs,
            phase: ParticipantPhase::Announced,
            token: None,
            since: WallTime(0),
            revision: Revision(0),
        };
        let participant = on_behalf::announced(participant, &self.work.asked.caller)?;
        if key.scope.starts_with(CANDIDATES_SCOPE) {
            let text = "scopes that begin with `candidates.` are those of nodes that run reconcilers: each node announces itself there";
            return Err(ErrorBody::invalid(text));
        }
        let replica = self.work.confirmed().await?;
        let all = &replica.tables.reconcilers;
        check_scope(all, &participant)?;
        if !allow_undefined_scope {
            check_is_defined(all, &key.scope)?;
        }
        let admitted = Participant { phase: ParticipantPhase::Serving, ..participant.clone() };
        let command = self.work.command("announced by hand");
        let command = command.change(Change::Reconciler(ReconcilerChange::Announce(Box::new(participant))));
        let command = command.change(Change::Reconciler(ReconcilerChange::Admit(key.clone())));
        let replica = match self.work.try_propose(command).await? {
            Proposed::Applied(_, replica) => replica,
            Proposed::Refused(refusal) => return Err(not_announced(&key, refusal)),
        };
        let tables = &replica.tables;
        // Forgotten again meanwhile: what was admitted.
        let there = tables.reconcilers.participants.get(&key).map_or(&admitted, AsRef::as_ref);
        to_text(&muster_gates::member(tables, there))
    }
}

/// What is announced in a scope that was mistyped blocks nothing.
fn check_is_defined(all: &Reconcilers, scope: &str) -> Result<(), ErrorBody> {
    let is_defined = all.definitions.values().any(|definition| definition.scope == scope);
    if is_defined || all.gates_of(scope).next().is_some() {
        return Ok(());
    }
    Err(ErrorBody::invalid(format!(
        "no reconciler has the scope {scope}: a member of it blocks nothing; `muster reconciler list` lists scopes, \
         --allow-undefined-scope (`\"allow_undefined_scope\": true`) announces it nevertheless"
    )))
}

fn not_announced(key: &ParticipantKey, refusal: CommandRefusal) -> ErrorBody {
    let hint = match &refusal {
        CommandRefusal::NotAdmitted(_) => "; nothing was recorded".to_owned(),
        CommandRefusal::Stale { .. } => {
            format!("; once it has ended: `muster member forget {}/{}`", key.scope, key.member)
        }
        _ => String::new(),
    };
    let mut error = explained(refusal);
    error.message += &hint;
    error
}

#[cfg(test)]
#[path = "external_tests.rs"]
mod tests;
