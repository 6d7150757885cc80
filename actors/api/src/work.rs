//! Work: one request on the manager that carries it out, and what requests of every kind need there: a confirmed
//! replica, the leader's actors, proposals.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_kernel::{AskError, Clock, Recipient};
use muster_messages::protocol::{ProposeError, RaftMemberMsg, Reply};
use muster_messages::wire::{Request, encode, encode_stored};
use muster_messages::{
    Command, CommandRefusal, ErrorBody, ErrorCode, Guard, Replica, RequestId, Revision, Tables, request_digest,
};

use crate::ports::ManagerPorts;
use crate::reads::not_leading;
use crate::service::{Asked, Service};

/// One request on one manager.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub service: &'a Service,
    pub manager: &'a ManagerPorts,
    pub asked: &'a Asked,
}

/// How a proposal ended.
pub(crate) enum Proposed {
    /// Applied at this revision, which the replica includes.
    Applied(Revision, Arc<Replica>),
    Refused(CommandRefusal),
}

impl Work<'_> {
    /// The local replica.
    pub fn local(&self) -> Arc<Replica> {
        self.manager.replica.borrow().clone()
    }

    /// A linearizable replica.
    pub async fn confirmed(&self) -> Result<Arc<Replica>, ErrorBody> {
        self.service.replica(self.manager, self.asked.left()).await
    }

    /// An error that names the managers missing for a quorum.
    pub fn no_quorum(&self, why: &str) -> ErrorBody {
        self.service.no_quorum(self.manager, why)
    }

    /// Asks an actor of the leader.
    pub async fn ask<P: Send + 'static, T: Send + 'static>(
        &self,
        to: &Recipient<P>,
        make: impl FnOnce(Reply<Result<T, ErrorBody>>) -> P,
    ) -> Result<T, ErrorBody> {
        match to.ask(self.asked.left(), make).await {
            Ok(answer) => answer,
            // The leader's actors are starting, or restarting after a crash: worth another attempt.
            Err(AskError::Down) => Err(not_leading()),
            // It restarted with the request in its mailbox or in progress. Requests are recorded under their id, so
            // asking again is safe; whether this one was carried out is unknown.
            Err(error) => Err(error.into()),
        }
    }

    pub fn command(&self, reason: &str) -> Command {
        let Asked { caller, request_id, request, .. } = self.asked;
        let command = Command::idempotent(Clock.wall(), caller.clone(), reason).with_request(*request_id);
        let by_caller = self.manager.replica.borrow().tables.remembers_callers();
        if by_caller { command.guard(Guard::Request { digest: digest(request) }) } else { command }
    }

    /// How an earlier attempt of this request ended: the revision at which it was applied, or its refusal. `None`: there was
    /// none, or its outcome is forgotten.
    pub fn earlier(&self, tables: &Tables) -> Option<Result<Revision, CommandRefusal>> {
        let Asked { caller, request_id, request, .. } = self.asked;
        let first = tables.outcome_of(caller, *request_id)?;
        Some(first.of_request(*request_id, digest(request)))
    }

    /// Proposes, and returns a replica that has applied the command.
    pub async fn propose(&self, command: Command) -> Result<Arc<Replica>, ErrorBody> {
        match self.try_propose(command).await? {
            Proposed::Applied(_, replica) => Ok(replica),
            Proposed::Refused(refusal) => Err(refusal.into()),
        }
    }

    /// Proposes; a refusal is an outcome.
    pub async fn try_propose(&self, command: Command) -> Result<Proposed, ErrorBody> {
        self.take_log_quota(&command)?;
        let (deadline_ms, command) = (self.asked.left_ms(), Box::new(command));
        let margin = self.asked.left() + Duration::from_millis(200);
        let make = |reply| RaftMemberMsg::Propose { command, deadline_ms, reply };
        let applied = match self.manager.raft.ask(margin, make).await {
            Ok(Err(ProposeError::Refused(refusal))) => return Ok(Proposed::Refused(refusal)),
            Ok(done) => done.map_err(|e| self.proposal_error(e))?,
            Err(AskError::Down) if self.asked.request_id != RequestId(0) => return Err(not_leading()),
            // In its mailbox or in flight: the request id makes a retry safe. The same holds where the member restarted (`Closed`).
            Err(error @ AskError::TimedOut) => return Err(ErrorBody::unknown_outcome(error)),
            Err(error) => return Err(error.into()),
        };
        self.asked.applied.store(applied.revision.0, Ordering::Relaxed);
        let mut changes = self.manager.replica.clone();
        let gone = |_| ErrorBody::unknown_outcome("the manager runtime stopped meanwhile");
        // Applied by this member already, so this wait is short, unless the member restarts in between and has to catch
        // up.
        let margin = self.asked.left() + Duration::from_millis(200);
        let seen = tokio::time::timeout(margin, changes.wait_for(|r| r.tables.revision >= applied.revision)).await;
        let late = |_| ErrorBody::unknown_outcome("applied, but not visible in time");
        Ok(Proposed::Applied(applied.revision, seen.map_err(late)?.map_err(gone)?.clone()))
    }

    /// API-6.
    fn take_log_quota(&self, command: &Command) -> Result<(), ErrorBody> {
        if self.asked.caller.is_operator() {
            return Ok(());
        }
        let bytes = encode_stored(command).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?.len();
        self.counted(self.service.log_quota.take(Clock.now(), &self.asked.caller, bytes))
    }

    /// API-6, before a command is made of that many bytes.
    pub fn check_log_quota(&self, bytes: usize) -> Result<(), ErrorBody> {
        self.counted(self.service.log_quota.check(Clock.now(), &self.asked.caller, bytes))
    }

    fn counted(&self, quota: Result<(), ErrorBody>) -> Result<(), ErrorBody> {
        quota.inspect_err(|_| {
            self.service.counters.overloaded.fetch_add(1, Ordering::Relaxed);
        })
    }

    pub fn proposal_error(&self, error: ProposeError) -> ErrorBody {
        match error {
            ProposeError::NotLeader { .. } => not_leading(),
            // It never entered the log. The shared text knows only ids; this one names the managers.
            ProposeError::NoQuorum { .. } => self.no_quorum("the change was not made"),
            // It is in a log.
            ProposeError::TimedOut => ErrorBody::unknown_outcome("the change was not confirmed in time"),
            other => other.into(),
        }
    }
}

/// A digest that distinguishes the request from everything else that may use the same id.
fn digest(request: &Request) -> u64 {
    let bytes = encode(request).expect("a request that was decoded has an encoding");
    request_digest(&[&bytes])
}
