//! Writes the audit lines of calls that reach the leader outside the API.

use std::future::Future;

use muster_audit::{AuditLog, Outcome, Pending};
use muster_messages::ErrorBody;

use super::core::audit::Line;

/// Carries out the call, with its line: only if the log permits it.
pub async fn written(
    log: &AuditLog,
    line: Option<Line>,
    work: impl Future<Output = Result<Vec<u8>, ErrorBody>>,
) -> Result<Vec<u8>, ErrorBody> {
    match line.and_then(|Line { class, draft }| log.begin(class, || draft)) {
        Some(line) => close(line, work).await,
        None => work.await,
    }
}

async fn close(line: Pending, work: impl Future<Output = Result<Vec<u8>, ErrorBody>>) -> Result<Vec<u8>, ErrorBody> {
    let result = match line.admit().await {
        Ok(()) => work.await,
        Err(unavailable) => Err(unavailable),
    };
    line.close(result, Ok(Outcome::Done), None).await
}
