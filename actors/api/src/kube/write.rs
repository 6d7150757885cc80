//! Writes: planned by the leader on its own replica, proposed with the plan's guards, answered with the object exactly
//! as that entry left it.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Clock;
use muster_kubernetes::{Ask, Context, Head, Plan, Refused, Status};
use muster_messages::wire::{KubeAnswer, KubeCall};
use muster_messages::{CommandRefusal, ErrorBody, ErrorCode, Replica, RequestId};

use super::{may, name_of};
use crate::core::may_write;
use crate::service::Asked;
use crate::work::{Proposed, Work};

/// How often a write is planned again on a newer replica; each time another client has written first.
const MAX_ATTEMPTS: u128 = 64;

/// Why a write failed.
enum Failed {
    /// The client's answer, from the replica that the write was planned on.
    Status(Status),
    /// The cluster could not carry it out, or the outcome is unknown: a relay may ask again.
    Error(ErrorBody),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        Failed::Status(status)
    }
}
impl From<ErrorBody> for Failed {
    fn from(error: ErrorBody) -> Self {
        Failed::Error(error)
    }
}

/// A write, on the leader.
pub(crate) struct ObjectWrite<'a> {
    pub work: Work<'a>,
    pub call: &'a KubeCall,
}

impl ObjectWrite<'_> {
    pub async fn lead(&self) -> Result<String, ErrorBody> {
        let answer = match self.write().await {
            Ok(answer) => answer,
            Err(Failed::Status(status)) => status.into(),
            Err(Failed::Error(error)) => return Err(error),
        };
        crate::reads::to_text(&answer)
    }

    async fn write(&self) -> Result<KubeAnswer, Failed> {
        let ask = muster_kubernetes::route(Head::from(self.call))?;
        if !ask.is_write() {
            return Err(ErrorBody::new(ErrorCode::Internal, "only writes are forwarded to the leader").into());
        }
        let asked = self.work.asked;
        let mut replica = self.work.local();
        self.check_not_applied(&replica)?;
        if let Err(full) = self.check_quota(&ask, &replica) {
            // An earlier attempt may be in the log and not applied here yet.
            let confirmed = self.work.confirmed().await?;
            self.check_not_applied(&confirmed)?;
            return Err(full.into());
        }
        let mut confirmed = false;
        for attempt in 0..MAX_ATTEMPTS {
            // A new plan is a new request.
            let request_id = id(asked, attempt);
            let planned = self.plan(&ask, &replica, request_id);
            let plan = match planned {
                Ok(plan) if !plan.dry_run || confirmed => plan,
                Err(status) if confirmed => return Err(status.into()),
                // KUBE-1. A leader that was replaced and does not know it yet must not deny anything, nor show its
                // state.
                _ => {
                    replica = self.work.confirmed().await?;
                    confirmed = true;
                    continue;
                }
            };
            if plan.dry_run {
                return Ok(plan.done(&ask, None, Clock.wall()));
            }
            match self.apply(&ask, &plan, request_id).await? {
                WriteOutcome::Answered(answer) => return Ok(answer),
                WriteOutcome::Applied(newer) => replica = newer,
                WriteOutcome::Refused(refusal) => match plan.refused(&refusal) {
                    Refused::Final(status) => return Err(status.into()),
                    // The refusal was applied here, so the newest replica contains the conflicting change.
                    Refused::Replan => replica = self.work.confirmed().await?,
                },
            }
        }
        let text = "other clients keep writing this object; retry";
        Err(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1)).into())
    }

    /// Refuses a request of which an attempt under an earlier leader was applied and its answer lost: a new plan would conflict with that
    /// attempt.
    fn check_not_applied(&self, replica: &Replica) -> Result<(), Status> {
        let asked = self.work.asked;
        if !replica.tables.has_applied(&asked.caller, asked.request_id..id(asked, MAX_ATTEMPTS)) {
            return Ok(());
        }
        Err(unknown_outcome("leadership was lost after the write was made and before it was answered"))
    }

    /// API-6, before the object is read; for a dry run as well, since planning it costs as much. Who may not write learns that, and not
    /// that the quota is used up.
    fn check_quota(&self, ask: &Ask, replica: &Replica) -> Result<(), ErrorBody> {
        match self.check_rights(ask, replica) {
            Ok(()) => self.work.check_log_quota(self.call.body.len()),
            Err(_) => Ok(()),
        }
    }

    fn check_rights(&self, ask: &Ask, replica: &Replica) -> Result<(), Status> {
        let Work { service, asked, .. } = self.work;
        may(Some(&asked.caller), ask, &replica.tables)?;
        let namespace = ask.namespace.as_deref().unwrap_or("*");
        may_write(&replica.tables, &service.ports.limits.node_namespaces, &asked.caller, namespace)
            .map_err(|_| ask.forbidden(&name_of(&asked.caller)))
    }

    fn plan(&self, ask: &Ask, replica: &Replica, request_id: RequestId) -> Result<Plan, Status> {
        self.check_rights(ask, replica)?;
        let context = Context { now: Clock.wall(), entropy: request_id.0 };
        muster_kubernetes::plan(ask, &self.call.body, &replica.tables, context)
    }

    async fn apply(&self, ask: &Ask, plan: &Plan, request_id: RequestId) -> Result<WriteOutcome, Failed> {
        let Work { manager, asked, .. } = self.work;
        let mut command = self.work.command(&format!("{} by {}", ask.verb, asked.caller)).with_request(request_id);
        command.guards.extend_from_slice(&plan.guards);
        command.changes.clone_from(&plan.changes);
        let (revision, replica) = match self.work.try_propose(command).await? {
            Proposed::Applied(revision, replica) => (revision, replica),
            Proposed::Refused(refusal) => return Ok(WriteOutcome::Refused(refusal)),
        };
        if plan.more {
            return Ok(WriteOutcome::Applied(replica));
        }
        let stored = plan.changes.iter().find_map(|change| manager.feed.change_at(revision, &change.object()?));
        if stored.is_none() && plan.creates {
            let text = format!("it was applied at revision {revision}, which this leader's history no longer contains");
            return Err(unknown_outcome(&text).into());
        }
        Ok(WriteOutcome::Answered(plan.done(
            ask,
            stored.and_then(|change| change.after.clone()).as_deref(),
            Clock.wall(),
        )))
    }
}

/// The request id of one attempt.
fn id(asked: &Asked, attempt: u128) -> RequestId {
    RequestId(asked.request_id.0.saturating_add(attempt))
}

/// The write was applied, and its answer can no longer be determined. Final: a relay must not ask again, because no
/// leader will ever know more.
fn unknown_outcome(why: &str) -> Status {
    ErrorBody::unknown_outcome(why).retry_after(Duration::from_secs(1)).into()
}

/// How a plan ended.
enum WriteOutcome {
    Answered(KubeAnswer),
    /// There is more to do, starting from this replica.
    Applied(Arc<Replica>),
    Refused(CommandRefusal),
}
