//! What operators see of the actor: in `muster actors inspect`, and in the log.

use muster_messages::WorkloadName;
use serde_json::{Map, Value, json};

use crate::WorkloadApiPorts;
use crate::core::{SignFailure, WorkloadCore};
use crate::serve::Inbox;

/// Workloads in the actor's view: it is made often.
const MAX_SHOWN: usize = 20;

pub(crate) fn shown(ports: &WorkloadApiPorts, inbox: &Inbox, core: &WorkloadCore) -> Value {
    let (certificates, jwts) = (core.certificates(), core.tokens());
    let (held, signing, failed) = certificates.counts();
    let (jwts_held, jwts_signing, jwts_failed) = jwts.counts();
    let (sent, refused) = core.totals();
    let until = certificates.held().map(|(name, until)| (name.to_string(), json!(until)));
    json!({
        "socket": ports.socket, "streams": core.streams(), "sent": sent, "refused": refused,
        "refused_connections": inbox.refused_connections(),
        "entries": core.view().map(|view| view.entries.len()), "held": held, "signing": signing, "failed": failed,
        "until": until.take(MAX_SHOWN).collect::<Map<_, _>>(),
        "failing": failing(certificates.failing()),
        "jwts": {"held": jwts_held, "signing": jwts_signing, "failed": jwts_failed, "failing": failing(jwts.failing())},
    })
}

fn failing<'a>(failures: impl Iterator<Item = (&'a WorkloadName, &'a SignFailure)>) -> Map<String, Value> {
    failures.take(MAX_SHOWN).map(|(name, failure)| (name.to_string(), json!(failure.why))).collect()
}

/// Logs the first failure and the success after it: there may be one attempt every 30 s for each of hundreds of workloads. `asked_for`:
/// the workload, and whether the attempt before this one failed.
pub(crate) fn log_signed(what: &str, asked_for: Option<(&WorkloadName, bool)>, failure: Option<&SignFailure>) {
    let Some((workload, failed_before)) = asked_for else { return };
    match failure {
        Some(SignFailure { why, refused }) if !failed_before => {
            tracing::warn!(%workload, refused, %why, "no {what} for a workload; retrying");
        }
        None if failed_before => tracing::info!(%workload, "{what} for a workload again"),
        _ => tracing::debug!(%workload, signed = failure.is_none(), "{what} for a workload"),
    }
}
