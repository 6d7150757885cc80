//! Writes the audit lines of calls that reach the leader outside the API.

use std::future::Future;

use muster_audit::{AuditLog, Outcome};
use muster_messages::ErrorBody;

use super::core::audit::Line;

/// Carries out the call, with its line: only if the log permits it.
pub async fn written(
    log: &AuditLog,
    line: Option<Line>,
    work: impl Future<Output = Result<Vec<u8>, ErrorBody>>,
) -> Result<Vec<u8>, ErrorBody> {
    let Some(Line { class, draft }) = line else { return work.await };
    let Some(pending) = log.begin(class, || draft.clone()) else { return work.await };
    let result = match pending.admit().await {
        Ok(()) => work.await,
        Err(unavailable) => Err(unavailable),
    };
    pending.close(result, Ok(Outcome::Done), None).await
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
