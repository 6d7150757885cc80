//! Writes: planned by the leader on its own copy, proposed with the plan's guards, answered with the object as exactly
//! that entry left it.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Clock;
use muster_kubernetes::{Ask, Context, Head, Plan, Refused, Status};
use muster_messages::wire::{KubeAnswer, KubeCall};
use muster_messages::{CommandRefusal, ErrorBody, ErrorCode, Replica, RequestId};

use super::{may, name_of};
use crate::core::may_write;
use crate::ports::ManagerPorts;
use crate::service::{Asked, Service};
use crate::writes::Proposed;

/// How often a patch is made again on a newer copy; each time somebody else has written first.
const MOST_ATTEMPTS: u128 = 64;

/// Why a write was not made.
enum Failed {
    /// What the client is told; from the copy that it was planned on.
    Status(Status),
    /// The cluster could not do it, or it is not known whether it did: whoever relays may ask again.
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

impl Service {
    /// The leader's part of a write.
    pub(crate) async fn lead_kube(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        call: &KubeCall,
    ) -> Result<String, ErrorBody> {
        let answer = match self.write_object(manager, asked, call).await {
            Ok(answer) => answer,
            Err(Failed::Status(status)) => status.into(),
            Err(Failed::Error(error)) => return Err(error),
        };
        crate::reads::to_text(&answer)
    }

    async fn write_object(&self, manager: &ManagerPorts, asked: &Asked, call: &KubeCall) -> Result<KubeAnswer, Failed> {
        let ask = muster_kubernetes::route(Head::from(call))?;
        if !ask.is_write() {
            return Err(ErrorBody::new(ErrorCode::Internal, "only writes are passed to the leader").into());
        }
        let mut copy = manager.replica.borrow().clone();
        let attempts = asked.request_id..id(asked, MOST_ATTEMPTS);
        if copy.tables.has_applied(&asked.caller, attempts) {
            // An attempt of an earlier leader was applied, and its answer lost. Planned again it would conflict with itself.
            return Err(unanswered("leadership was lost after the write was made and before it was answered").into());
        }
        let mut confirmed = false;
        for attempt in 0..MOST_ATTEMPTS {
            // Another plan is another request.
            let request_id = id(asked, attempt);
            let planned = self.planned(&ask, asked, call, &copy, request_id);
            let plan = match planned {
                Ok(plan) if !plan.dry_run || confirmed => plan,
                Err(status) if confirmed => return Err(status.into()),
                // KUBE-1. A leader that was replaced and does not know it yet must not say no, nor show what it has.
                _ => {
                    copy = self.copy(manager, asked.left()).await?;
                    confirmed = true;
                    continue;
                }
            };
            if plan.dry_run {
                return Ok(plan.done(&ask, None, Clock.wall()));
            }
            match self.made(manager, asked, &ask, &plan, request_id).await? {
                Made::Answered(answer) => return Ok(answer),
                Made::Applied(newer) => copy = newer,
                Made::Refused(refusal) => match plan.refused(&refusal) {
                    Refused::Finally(status) => return Err(status.into()),
                    // It was applied here before it was refused: the newest copy has what stood in the way.
                    Refused::Again => copy = self.copy(manager, asked.left()).await?,
                },
            }
        }
        let text = "others write this object all the time; retry";
        Err(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_secs(1)).into())
    }

    fn planned(
        &self,
        ask: &Ask,
        asked: &Asked,
        call: &KubeCall,
        copy: &Replica,
        request_id: RequestId,
    ) -> Result<Plan, Status> {
        may(Some(&asked.caller), ask, &copy.tables)?;
        let namespace = ask.namespace.as_deref().unwrap_or("*");
        may_write(&copy.tables, &self.ports.limits.node_namespaces, &asked.caller, namespace)
            .map_err(|_| ask.forbidden(&name_of(&asked.caller)))?;
        let context = Context { now: Clock.wall(), entropy: request_id.0 };
        muster_kubernetes::plan(ask, &call.body, &copy.tables, context)
    }

    async fn made(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        ask: &Ask,
        plan: &Plan,
        request_id: RequestId,
    ) -> Result<Made, Failed> {
        let mut command = self.command(asked, &format!("{} by {}", ask.verb, asked.caller)).with_request(request_id);
        command.guards.extend_from_slice(&plan.guards);
        command.changes.clone_from(&plan.changes);
        let (revision, copy) = match self.try_propose(manager, asked, command).await? {
            Proposed::Applied(revision, copy) => (revision, copy),
            Proposed::Refused(refusal) => return Ok(Made::Refused(refusal)),
        };
        if plan.more {
            return Ok(Made::Applied(copy));
        }
        let stored = plan.changes.iter().find_map(|change| manager.feed.change_at(revision, &change.object()?));
        if stored.is_none() && plan.creates {
            let text = format!("it was made at revision {revision}, which this leader's history has lost already");
            return Err(unanswered(&text).into());
        }
        Ok(Made::Answered(plan.done(ask, stored.and_then(|change| change.after.clone()).as_deref(), Clock.wall())))
    }
}

/// The id that one attempt is proposed under.
fn id(asked: &Asked, attempt: u128) -> RequestId {
    RequestId(asked.request_id.0.saturating_add(attempt))
}

/// It was made, and nobody knows any more how to answer it. Final: whoever relays must not ask again, for no leader will
/// ever know more.
fn unanswered(why: &str) -> Status {
    let error = ErrorBody::new(ErrorCode::UnknownOutcome, format!("{why}; read it again"));
    error.retry_after(Duration::from_secs(1)).into()
}

/// How a plan ended.
enum Made {
    Answered(KubeAnswer),
    /// There is more to do, from this copy on.
    Applied(Arc<Replica>),
    Refused(CommandRefusal),
}
