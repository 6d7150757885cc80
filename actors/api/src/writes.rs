//! Writes: carried out by the leader on its own applied replica; other managers forward them to the leader until the
//! caller's deadline, under the caller's request id.

use muster_messages::wire::{PeerCall, Request};
use muster_messages::{
    AUTOPILOT_LEVEL, CommandRefusal, ErrorBody, ErrorCode, ErrorMark, IDENTITY_LEVEL, LeaderView, NodeId, Tables,
    in_short,
};

use crate::core::{Kind, kind_of, resolve};
use crate::lead::Lead;
use crate::no_quorum::MissingManagers;
use crate::ports::ManagerPorts;
use crate::reads::{is_unavailable, not_leading, to_text};
use crate::service::Asked;
use crate::work::Work;

/// A request that the leader answers.
pub(crate) struct Writes<'a> {
    pub work: Work<'a>,
}

impl Writes<'_> {
    pub async fn answer(&self, relayed: bool) -> Result<String, ErrorBody> {
        let Work { manager, asked, .. } = self.work;
        check_supported_by_all(&manager.replica.borrow().tables, &asked.request)?;
        if manager.replica.borrow().raft.leading {
            let unsure = match Lead::new(self.work).answer().await {
                Err(error) if !relayed && lost_leadership(&error) => {
                    Some(error).filter(|error| is_unsure(asked, error))
                }
                Err(error) if !relayed && is_late(asked, &error) => return Err(self.may_still_happen(&error)),
                done => return done,
            };
            return self.follow_leader(Some(manager.node), unsure).await;
        }
        if relayed {
            return Err(not_leading());
        }
        self.to_leader().await
    }

    /// Forwards a request to the current leader until it is answered or the deadline passes.
    pub async fn to_leader(&self) -> Result<String, ErrorBody> {
        let _permit = self.work.service.leader_call_permit(&self.work.asked.caller)?;
        self.follow_leader(None, None).await
    }

    /// `asked_first`: the manager that received the request first. `unsure`: how an attempt failed that may have been
    /// carried out; from then on the request is never reported as refused.
    async fn follow_leader(
        &self,
        mut asked_first: Option<NodeId>,
        mut unsure: Option<ErrorBody>,
    ) -> Result<String, ErrorBody> {
        let Work { manager, asked, .. } = self.work;
        let mut search = manager.leader_search(asked.deadline);
        while let Some(leader) = search.next().await {
            let first = *asked_first.get_or_insert(leader);
            if let Some(done) = transferred(manager, asked, first, leader) {
                return to_text(&done);
            }
            let answer = match leader == manager.node {
                true => Lead::new(self.work).answer().await,
                false => self.call_leader(leader).await,
            };
            match answer {
                Err(error) if retriable(&error) => {
                    unsure = Some(error).filter(|error| is_unsure(asked, error)).or(unsure);
                }
                Err(error) if is_late(asked, &error) => return Err(self.may_still_happen(&error)),
                done => return done,
            }
        }
        Err(match unsure {
            Some(error) => self.may_still_happen(&error),
            None => self.work.no_quorum("no leader took the request in time"),
        })
    }

    /// The error of a write with unknown outcome: where to look, and which managers are missing.
    fn may_still_happen(&self, why: &ErrorBody) -> ErrorBody {
        if why.is_final() {
            return why.clone();
        }
        let known = why.code == ErrorCode::UnknownOutcome;
        let unknown = if known { why.clone() } else { ErrorBody::unknown_outcome(why) };
        let text = format!("{unknown} ({} shows it)", check_command(&self.work.asked.request));
        let missing = MissingManagers::of(self.work.manager);
        let no_quorum = self.work.service.no_quorum_without(&missing, &text);
        let message = if missing.ids.is_empty() { text } else { no_quorum.message.clone() };
        ErrorBody { code: ErrorCode::UnknownOutcome, message, ..no_quorum }
    }

    async fn call_leader(&self, leader: NodeId) -> Result<String, ErrorBody> {
        let Work { manager, asked, .. } = self.work;
        let call = PeerCall::Api {
            caller: asked.caller.clone(),
            request_id: asked.request_id,
            timeout_ms: asked.left_ms(),
            request: asked.request.clone(),
        };
        let Some(answer) = manager.call_leader(leader, asked.left(), call).await else {
            // What it may have done already, its successor knows by the request id.
            return Err(ErrorBody::unknown_outcome("leadership changed while the request was in progress"));
        };
        as_text(answer?)
    }
}

/// A manager's answer to a request.
pub(crate) fn as_text(answer: Vec<u8>) -> Result<String, ErrorBody> {
    String::from_utf8(answer).map_err(|_| ErrorBody::new(ErrorCode::Internal, "the answer is not UTF-8 text"))
}

/// Refuses what managers of an earlier release could not read, before it is forwarded to one.
fn check_supported_by_all(tables: &Tables, request: &Request) -> Result<(), ErrorBody> {
    let level = tables.feature_level();
    let needs = match request {
        Request::Reconciler(request) => request.needs_level(),
        Request::UserCreate { kind, .. } if kind.is_read_only() => IDENTITY_LEVEL,
        Request::NodeMayStop { .. }
        | Request::NodeRename { .. }
        | Request::UserRenew { .. }
        | Request::RootRotate { .. }
        | Request::RootActivate { .. }
        | Request::RootAbort
        | Request::RootRetire { .. }
        | Request::RootRevoke { .. }
        | Request::RootRequest { .. }
        | Request::RootIssued { .. }
        | Request::AutolockOn
        | Request::AutolockOff
        | Request::AutolockRotate
        | Request::AutolockKey { .. }
        | Request::WorkloadShow { .. }
        | Request::WorkloadSet { .. }
        | Request::WorkloadRemove { .. } => IDENTITY_LEVEL,
        Request::Autopilot(_) => AUTOPILOT_LEVEL,
        _ => 0,
    };
    if level >= needs {
        return Ok(());
    }
    // A manager that has just started has no state, and knows no level.
    if tables.cluster.is_none() {
        let text = "this manager has not received the cluster's state yet; retry, or ask another manager";
        return Err(ErrorBody::new(ErrorCode::Unreachable, text).marked(ErrorMark::NotSent));
    }
    Err(CommandRefusal::FeatureLevel { needs, level }.into())
}

/// A transfer is the one request that ends the leadership of the leader it was sent to, and asking the next leader
/// again would end that one's. Once another manager leads, as requested, the transfer is done.
fn transferred(manager: &ManagerPorts, asked: &Asked, before: NodeId, now: NodeId) -> Option<LeaderView> {
    let Request::TransferLeader { to } = &asked.request else { return None };
    let as_requested = match to {
        Some(to) => resolve(&manager.replica.borrow().tables, to).is_ok_and(|node| node.id == now),
        None => true,
    };
    (before != now && as_requested).then_some(LeaderView { leader: Some(now) })
}

fn lost_leadership(error: &ErrorBody) -> bool {
    error.code == ErrorCode::UnknownOutcome && !error.is_final() || error.is_marked(ErrorMark::NotLeading)
}

/// Whether it was not answered in time and may still be carried out. An accepted removal is known to continue.
fn is_late(asked: &Asked, error: &ErrorBody) -> bool {
    let removal = matches!(asked.request, Request::NodeRemove { .. });
    let begun = !error.is_marked(ErrorMark::NotSent);
    error.code == ErrorCode::TimedOut && kind_of(&asked.request) == Kind::Write && !removal && begun
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
        Request::RootRotate { .. }
        | Request::RootActivate { .. }
        | Request::RootAbort
        | Request::RootRetire { .. }
        | Request::RootRevoke { .. }
        | Request::RootRequest { .. }
        | Request::RootIssued { .. } => "`muster ca status`".to_owned(),
        Request::AutolockOn | Request::AutolockOff | Request::AutolockRotate => "`muster autolock status`".to_owned(),
        Request::WorkloadSet { .. } | Request::WorkloadRemove { .. } => "`muster workload ls`".to_owned(),
        Request::Autopilot(_) => "`muster autopilot state`".to_owned(),
        Request::Lease(_) => "`muster lease ls`".to_owned(),
        Request::TransferLeader { .. } => "`muster raft status`".to_owned(),
        Request::Reconciler(_) => "`muster reconciler ls`".to_owned(),
        _ => "`muster status`".to_owned(),
    }
}

fn retriable(error: &ErrorBody) -> bool {
    lost_leadership(error) || (is_unavailable(error.code) && error.code != ErrorCode::TimedOut && !error.is_final())
}

#[cfg(test)]
#[path = "writes_tests.rs"]
mod tests;
