//! Writes: carried out by the leader on its own applied replica; other managers forward them to the leader until the
//! caller's deadline, under the caller's request id.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_kernel::{AskError, Clock};
use muster_messages::protocol::{MeshMsg, ProposeError, RaftMemberMsg};
use muster_messages::wire::{PeerCall, Request, encode, encode_stored};
use muster_messages::{
    Command, CommandRefusal, ErrorBody, ErrorCode, ErrorMark, Guard, IDENTITY_LEVEL, LeaderView, NodeId, Replica,
    RequestId, Revision, Tables, in_short, request_digest,
};

use crate::core::{Kind, kind_of, resolve};
use crate::lead::Lead;
use crate::leader::{Leader, LeaderSearch};
use crate::ports::ManagerPorts;
use crate::reads::{is_unavailable, not_leading, to_text};
use crate::service::{Asked, Service, missing_managers};

/// How a proposal ended.
pub(crate) enum Proposed {
    /// Applied at this revision, which the replica includes.
    Applied(Revision, Arc<Replica>),
    Refused(CommandRefusal),
}

impl Service {
    pub(crate) async fn write(
        &self,
        manager: &Arc<ManagerPorts>,
        asked: &Asked,
        relayed: bool,
    ) -> Result<String, ErrorBody> {
        check_supported_by_all(&manager.replica.borrow().tables, &asked.request)?;
        if manager.replica.borrow().raft.leading {
            let unsure = match Lead::new(self, manager, asked).answer().await {
                Err(error) if !relayed && lost_leadership(&error) => {
                    Some(error).filter(|error| is_unsure(asked, error))
                }
                Err(error) if !relayed && is_late(asked, &error) => {
                    return Err(self.may_still_happen(manager, asked, &error));
                }
                done => return done,
            };
            return self.follow_leader(manager, asked, Some(manager.node), unsure).await;
        }
        if relayed {
            return Err(not_leading());
        }
        self.to_leader(manager, asked).await
    }

    /// Forwards a request to the current leader until it is answered or the deadline passes.
    pub(crate) async fn to_leader(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        let _permit = self.leader_call_permit(&asked.caller)?;
        self.follow_leader(manager, asked, None, None).await
    }

    /// `asked_first`: the manager that received the request first. `unsure`: how an attempt failed that may have been
    /// carried out; from then on the request is never reported as refused.
    async fn follow_leader(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        mut asked_first: Option<NodeId>,
        mut unsure: Option<ErrorBody>,
    ) -> Result<String, ErrorBody> {
        let mut search = manager.leader_search(asked.deadline);
        loop {
            let leader = search.leader();
            let leader_node = leader.map(|leader| match leader {
                Leader::Here => manager.node,
                Leader::At(node) => node,
            });
            asked_first = asked_first.or(leader_node);
            if let Some(done) = transferred(manager, asked, asked_first, leader_node) {
                return to_text(&done);
            }
            let answer = match leader {
                Some(Leader::Here) => Some(Lead::new(self, manager, asked).answer().await),
                Some(Leader::At(leader)) => Some(self.call_leader(manager, asked, &search, leader).await),
                None => None,
            };
            match answer {
                Some(Err(error)) if retriable(&error) => {
                    unsure = Some(error).filter(|error| is_unsure(asked, error)).or(unsure);
                }
                Some(Err(error)) if is_late(asked, &error) => {
                    return Err(self.may_still_happen(manager, asked, &error));
                }
                Some(done) => return done,
                None => {}
            }
            if !search.retry().await {
                return Err(match unsure {
                    Some(error) => self.may_still_happen(manager, asked, &error),
                    None => self.no_quorum(manager, "no leader took the request in time"),
                });
            }
        }
    }

    /// The error of a write with unknown outcome: where to look, and which managers are missing.
    fn may_still_happen(&self, manager: &ManagerPorts, asked: &Asked, why: &ErrorBody) -> ErrorBody {
        if why.is_final() {
            return why.clone();
        }
        let check_with = check_command(&asked.request);
        let text =
            format!("the outcome is not known, and it may still happen (check {check_with} before you repeat it)");
        let missing = missing_managers(manager);
        let no_quorum = self.no_quorum_without(&missing, &text);
        let message = match missing.ids.is_empty() {
            true => format!("{text}: {why}"),
            false => no_quorum.message.clone(),
        };
        ErrorBody { code: ErrorCode::UnknownOutcome, message, ..no_quorum }
    }

    async fn call_leader(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        search: &LeaderSearch,
        leader: NodeId,
    ) -> Result<String, ErrorBody> {
        let call = PeerCall::Api {
            caller: asked.caller.clone(),
            request_id: asked.request_id,
            timeout_ms: asked.left_ms(),
            request: asked.request.clone(),
        };
        let deadline_ms = asked.left_ms();
        let make = |reply| MeshMsg::Call { to: leader, deadline_ms, call: Box::new(call), reply };
        let answer = search.while_leading(leader, manager.mesh.ask(asked.left(), make)).await;
        let Some(answer) = answer else {
            // What it may have done already, its successor knows by the request id.
            return Err(ErrorBody::new(
                ErrorCode::UnknownOutcome,
                "leadership changed while the request was in progress; it may have been done: look before you repeat it",
            ));
        };
        let answer = answer.map_err(ErrorBody::from)??;
        String::from_utf8(answer)
            .map_err(|_| ErrorBody::new(ErrorCode::Internal, "the leader's answer is not UTF-8 text"))
    }

    pub(crate) async fn ask<P: Send + 'static, T: Send + 'static>(
        &self,
        asked: &Asked,
        to: &muster_kernel::Recipient<P>,
        make: impl FnOnce(muster_messages::protocol::Reply<Result<T, ErrorBody>>) -> P,
    ) -> Result<T, ErrorBody> {
        match to.ask(asked.left(), make).await {
            Ok(answer) => answer,
            // The leader's actors are starting, or restarting after a crash: worth another attempt.
            Err(AskError::Down) => Err(not_leading()),
            // It restarted with the request in its mailbox or in progress. Requests are recorded under their id, so
            // asking again is safe; whether this one was carried out is unknown.
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn command(&self, asked: &Asked, reason: &str) -> Command {
        let command = Command::idempotent(Clock.wall(), asked.caller.clone(), reason).with_request(asked.request_id);
        let manager = self.ports.manager.borrow();
        let by_caller = manager.as_ref().is_some_and(|runtime| runtime.replica.borrow().tables.remembers_callers());
        if by_caller { command.guard(Guard::Request { digest: digest(&asked.request) }) } else { command }
    }

    /// Proposes, and returns a replica that has applied the command.
    pub(crate) async fn propose(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        command: Command,
    ) -> Result<Arc<Replica>, ErrorBody> {
        match self.try_propose(manager, asked, command).await? {
            Proposed::Applied(_, replica) => Ok(replica),
            Proposed::Refused(refusal) => Err(self.proposal_error(manager, ProposeError::Refused(refusal))),
        }
    }

    /// Proposes; a refusal is an outcome.
    pub(crate) async fn try_propose(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        command: Command,
    ) -> Result<Proposed, ErrorBody> {
        self.take_log_quota(asked, &command)?;
        let deadline_ms = asked.left_ms();
        let command = Box::new(command);
        let proposed = manager.raft.ask(asked.left() + Duration::from_millis(200), |reply| RaftMemberMsg::Propose {
            command,
            deadline_ms,
            reply,
        });
        let applied = match proposed.await {
            Ok(Err(ProposeError::Refused(refusal))) => return Ok(Proposed::Refused(refusal)),
            Ok(done) => done.map_err(|e| self.proposal_error(manager, e))?,
            Err(AskError::Down) if asked.request_id != RequestId(0) => return Err(not_leading()),
            // It restarted with the proposal in its mailbox or in flight: the request id makes a retry safe.
            Err(error @ (AskError::Closed | AskError::TimedOut)) => {
                return Err(ErrorBody::new(ErrorCode::UnknownOutcome, ErrorBody::from(error).message));
            }
            Err(error) => return Err(error.into()),
        };
        asked.applied.store(applied.revision.0, Ordering::Relaxed);
        let mut changes = manager.replica.clone();
        let gone = |_| ErrorBody::new(ErrorCode::UnknownOutcome, "the manager runtime stopped meanwhile");
        // Applied by this member already, so this wait is short, unless the member restarts in between and has to catch
        // up.
        let margin = asked.left() + Duration::from_millis(200);
        let seen = tokio::time::timeout(margin, changes.wait_for(|r| r.tables.revision >= applied.revision)).await;
        let late = |_| {
            ErrorBody::new(
                ErrorCode::UnknownOutcome,
                "applied, but not visible in time: check the outcome before you retry",
            )
        };
        Ok(Proposed::Applied(applied.revision, seen.map_err(late)?.map_err(gone)?.clone()))
    }

    /// API-6.
    fn take_log_quota(&self, asked: &Asked, command: &Command) -> Result<(), ErrorBody> {
        if asked.caller.is_operator() {
            return Ok(());
        }
        let bytes = encode_stored(command).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?.len();
        self.log_quota.take(Clock.now(), &asked.caller, bytes).inspect_err(|_| {
            self.counters.overloaded.fetch_add(1, Ordering::Relaxed);
        })
    }

    pub(crate) fn proposal_error(&self, manager: &ManagerPorts, error: ProposeError) -> ErrorBody {
        match error {
            ProposeError::NotLeader { .. } => not_leading(),
            // It never entered the log. The shared text knows only ids; this one names the managers.
            ProposeError::NoQuorum { .. } => self.no_quorum(manager, "the change was not made"),
            // It is in a log.
            ProposeError::TimedOut => ErrorBody::new(ErrorCode::UnknownOutcome, "the change was not confirmed in time"),
            other => other.into(),
        }
    }
}

/// Refuses what managers of an earlier release could not read, before it is forwarded to one.
fn check_supported_by_all(tables: &Tables, request: &Request) -> Result<(), ErrorBody> {
    let level = tables.feature_level();
    let needs = match request {
        Request::NodeRename { .. } | Request::UserRenew { .. } => true,
        Request::UserCreate { kind, .. } => kind.is_read_only(),
        _ => false,
    };
    if needs && level < IDENTITY_LEVEL {
        return Err(CommandRefusal::FeatureLevel { needs: IDENTITY_LEVEL, level }.into());
    }
    Ok(())
}

/// A transfer is the one request that ends the leadership of the leader it was sent to, and asking the next leader
/// again would end that one's. Once another manager leads, as requested, the transfer is done.
fn transferred(
    manager: &ManagerPorts,
    asked: &Asked,
    before: Option<NodeId>,
    now: Option<NodeId>,
) -> Option<LeaderView> {
    let Request::TransferLeader { to } = &asked.request else { return None };
    let now = now.filter(|now| before.is_some_and(|before| before != *now))?;
    let as_requested = match to {
        Some(to) => resolve(&manager.replica.borrow().tables, to).is_ok_and(|node| node.id == now),
        None => true,
    };
    as_requested.then_some(LeaderView { leader: Some(now) })
}

fn lost_leadership(error: &ErrorBody) -> bool {
    error.code == ErrorCode::UnknownOutcome && !error.is_final() || error.is_marked(ErrorMark::NotLeading)
}

/// Whether it was not answered in time and may still be carried out. An accepted removal is known to continue.
fn is_late(asked: &Asked, error: &ErrorBody) -> bool {
    let removal = matches!(asked.request, Request::NodeRemove { .. });
    error.code == ErrorCode::TimedOut && kind_of(&asked.request) == Kind::Write && !removal
}

/// Whether a write that failed with this error may have been carried out all the same. Not if it was never sent, or was
/// refused before it entered a log.
fn is_unsure(asked: &Asked, error: &ErrorBody) -> bool {
    let never_taken = || error.is_marked(ErrorMark::NotLeading) || error.is_marked(ErrorMark::NotSent);
    kind_of(&asked.request) == Kind::Write && error.code != ErrorCode::NoQuorum && !never_taken()
}

/// The command that shows whether a write was carried out.
fn check_command(request: &Request) -> String {
    match request {
        Request::SetRole { node, .. } | Request::NodeRemove { node, .. } | Request::NodeUpdate { node, .. } => {
            format!("`muster node inspect {}`", in_short(node, 64))
        }
        Request::TokenCreate { .. } | Request::TokenRotate { .. } | Request::TokenRevoke { .. } => {
            "`muster token ls`".to_owned()
        }
        Request::CertRotate { .. } => "`muster cert ls`".to_owned(),
        Request::UserCreate { .. }
        | Request::UserRenew { .. }
        | Request::UserRevoke { .. }
        | Request::AccessTokenCreate { .. } => "`muster user ls`".to_owned(),
        Request::Lease(_) => "`muster lease ls`".to_owned(),
        Request::TransferLeader { .. } => "`muster raft status`".to_owned(),
        Request::Reconciler(_) => "`muster reconciler ls`".to_owned(),
        _ => "`muster status`".to_owned(),
    }
}

/// A digest that distinguishes the request from everything else that may use the same id.
fn digest(request: &Request) -> u64 {
    let bytes = encode(request).expect("a request that was decoded has an encoding");
    request_digest(&[&bytes])
}

fn retriable(error: &ErrorBody) -> bool {
    lost_leadership(error) || (is_unavailable(error.code) && error.code != ErrorCode::TimedOut && !error.is_final())
}

#[cfg(test)]
#[path = "writes_tests.rs"]
mod tests;
