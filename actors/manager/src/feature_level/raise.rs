//! The reconciler that raises the cluster's feature level: its definition and its action.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{Definition, LEVEL_RECONCILER, MANAGERS_SCOPE, level_release};
use muster_reconciler::{ApplyCtx, Cluster, Handler, HandlerError, ReconcilerSpec};
use tracing::info;

/// The leader answers from memory.
pub(super) const LEADER_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The definition of this level. All builds of a level bring the same one: it is never changed.
pub fn definition(level: u32) -> Definition {
    ReconcilerSpec::handler(LEVEL_RECONCILER, level_release(level).into(), MANAGERS_SCOPE)
        .floor(level_release(level))
        .once()
        // The gate and the term judge the entry that raises the level when it is applied.
        .settle(Duration::ZERO)
        .definition()
}

/// Raises the cluster's level to what the definition says.
pub(super) struct Raise(pub Arc<dyn Cluster>);

impl Handler for Raise {
    fn apply(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>> {
        let cluster = Arc::clone(&self.0);
        async move {
            let level = u32::try_from(ctx.target.triple.major)
                .map_err(|_| HandlerError::Permanent(format!("{} is not a feature level", ctx.target)))?;
            let request = ReconcilerRequest::RaiseLevel { level, term: ctx.fence };
            let raised = cluster.reconcile(request, LEADER_ANSWER_TIMEOUT).await;
            raised
                .map(|_| info!(level, "cluster feature level raised"))
                // Not a failure: some member has not reported its level yet, or there is no leader.
                .map_err(|e| HandlerError::Later(e.message))
        }
        .boxed()
    }
}
