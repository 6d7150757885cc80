//! Requests to change a role or to remove a node: judged, written to the replicated state, and answered once they are seen
//! there.
//!
//! Owns        the requests that have not been answered: undecided, being written, or waiting for the end of a removal.
//! Inputs      requests, the steps that write them, the replicated state.
//! Outputs     a decision on each request by the facts of the moment, answers.
//! Invariants  INTENT-1  an accepted request is in the replicated state before it is answered.
//!             INTENT-2  requests for one node are written one after the other, so that the last one received is the last one
//!                     written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_messages::{
    AUTOPILOT_LEVEL, Change, Command, CommandRefusal, ErrorBody, ErrorCode, Guard, Liveness, NodeId, NodeRecord,
    Principal, Removal, RequestId, Role, Tables, removal_digest, request_digest,
};

use super::quorum::{Electorate, QuorumCheck};
use super::reachability::Required;
use super::{Answer, AskId, Config, Effect, Moment, Now, StepId, not_leading, refuse};

/// What a caller requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestedChange {
    /// That the node get this role.
    Role(Role),
    /// That the node be removed.
    Remove {
        /// Also one that is not down, or that is a manager.
        force: bool,
    },
}

/// A request that has not been answered.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleRequest {
    /// Under this id the caller is answered.
    pub ask: AskId,
    /// The node.
    pub node: NodeId,
    /// What is requested for it.
    pub change: RequestedChange,
    /// The caller.
    pub by: Principal,
    /// The caller's own id of the request: repeated under the same one, it is carried out once.
    pub request: RequestId,
}

impl RoleRequest {
    /// Identifies the requested change among other uses of the same id.
    pub(crate) fn digest(&self) -> u64 {
        match self.change {
            RequestedChange::Remove { force } => removal_digest(self.node, force),
            RequestedChange::Role(role) => self.role_digest(b"role", role),
        }
    }

    /// The digest of a request for a role that the node is to hold already. It differs from [`RoleRequest::digest`], so that the outcome
    /// on record tells whether the request changed anything, as its first answer did. The replica of the moment decides which of the two
    /// is proposed: two proposals of one request may differ, and then the second is decided again (`end_proposal`).
    fn unchanged_digest(&self) -> Option<u64> {
        match self.change {
            RequestedChange::Remove { .. } => None,
            RequestedChange::Role(role) => Some(self.role_digest(b"role unchanged", role)),
        }
    }

    fn role_digest(&self, kind: &[u8], role: Role) -> u64 {
        let role = match role {
            Role::Manager => "manager",
            Role::Worker => "worker",
        };
        request_digest(&[kind, role.as_bytes(), self.node.as_str().as_bytes()])
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// Already so, or done before; true: by this very request.
    Done {
        changed: bool,
    },
    Refused(ErrorBody),
    /// Write it. `leaves`: the node counts as leaving from now on.
    Write {
        command: Box<Command>,
        leaves: bool,
    },
    /// The removal is in progress: wait for its end.
    Follow,
    /// The leader is too young to refuse.
    Later,
    /// A majority of the remaining voters must respond first.
    CheckReachable(Required),
}

/// The facts for an admission check.
pub(crate) struct AdmissionCheck<'a> {
    pub tables: &'a Tables,
    pub electorate: &'a Electorate,
    /// Leaving nodes, by requests in flight too.
    pub leaving: BTreeSet<NodeId>,
    /// Nodes that are being added as members.
    pub joining: BTreeSet<NodeId>,
    pub now: Now,
}

/// The requests that have not been answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoleRequests {
    /// Undecided: each with its arrival time, in that order.
    undecided: VecDeque<(Moment, RoleRequest)>,
    /// Being written.
    sent: BTreeMap<StepId, RoleRequest>,
    /// Accepted removals, answered when member and record are removed and the id is blocked.
    removals: BTreeMap<NodeId, Vec<AskId>>,
}

impl RoleRequests {
    pub fn keep_undecided(&mut self, since: Moment, role_request: RoleRequest) {
        self.undecided.push_back((since, role_request));
    }
    /// Keeps it undecided, before all others.
    pub fn decide_next(&mut self, since: Moment, role_request: RoleRequest) {
        self.undecided.push_front((since, role_request));
    }
    pub fn has_undecided(&self) -> bool {
        !self.undecided.is_empty()
    }
    /// Takes all undecided ones. Those that stay undecided are kept again, in this order.
    pub fn take_undecided(&mut self) -> VecDeque<(Moment, RoleRequest)> {
        std::mem::take(&mut self.undecided)
    }
    /// A step writes it.
    pub fn sent(&mut self, step: StepId, role_request: RoleRequest) {
        self.sent.insert(step, role_request);
    }
    /// The step has ended.
    pub fn take_sent(&mut self, step: StepId) -> Option<RoleRequest> {
        self.sent.remove(&step)
    }

    /// Waits for the end of an accepted removal, however it was accepted.
    pub fn follow(&mut self, role_request: &RoleRequest, config: &Config, out: &mut Vec<Effect>) {
        let waiters = self.removals.entry(role_request.node).or_default();
        if waiters.len() >= config.waiters_per_removal {
            let message = "the removal continues; too many callers are already waiting for its end";
            let error = ErrorBody::new(ErrorCode::TooManyRequests, message).retry_after(config.retry);
            out.push(refuse(role_request, error));
        } else {
            waiters.push(role_request.ask);
        }
    }
    /// Answers those whose node has no record any more.
    pub fn answer_removals(&mut self, tables: &Tables, out: &mut Vec<Effect>) {
        self.removals.retain(|node, asks| {
            let in_progress = tables.nodes.contains_key(node);
            if !in_progress {
                out.extend(asks.drain(..).map(|ask| Effect::Answer(ask, Answer::Removed(Ok(())))));
            }
            in_progress
        });
    }

    /// This member does not lead: it decides nothing. Requests in flight keep waiting for their outcome.
    pub fn reject(&mut self, out: &mut Vec<Effect>) {
        out.extend(self.undecided.drain(..).map(|(_, role_request)| refuse(&role_request, not_leading())));
        for ask in std::mem::take(&mut self.removals).into_values().flatten() {
            out.push(Effect::Answer(ask, Answer::Removed(Err(not_leading()))));
        }
    }
}

impl AdmissionCheck<'_> {
    /// Decides on a request by the newest applied state, and by the reachability of voters after its arrival at `since`.
    pub fn decide(&self, role_request: &RoleRequest, since: Moment) -> Decision {
        if let Some(decision) = self.remembered(role_request) {
            return decision;
        }
        let Some(record) = self.tables.nodes.get(&role_request.node) else {
            let message = format!("no such node: {}", role_request.node);
            return Decision::Refused(ErrorBody::new(ErrorCode::NotFound, message));
        };
        match role_request.change {
            RequestedChange::Role(role) => self.role(role_request, since, record, role),
            RequestedChange::Remove { force } => self.removal(role_request, since, record, force),
        }
    }

    /// A request that was applied before: its retry gets the first outcome.
    fn remembered(&self, role_request: &RoleRequest) -> Option<Decision> {
        let outcome = self.tables.outcome_of(&role_request.by, role_request.request)?;
        let unchanged = outcome.digest.is_some() && outcome.digest == role_request.unchanged_digest();
        if outcome.digest.is_some_and(|digest| digest != role_request.digest()) && !unchanged {
            return Some(Decision::Refused(CommandRefusal::RequestReused(Box::new(role_request.request)).into()));
        }
        Some(match (outcome.refused, role_request.change) {
            (Some(refusal), _) => Decision::Refused(refusal.clone().into()),
            (None, RequestedChange::Remove { .. }) if self.tables.nodes.contains_key(&role_request.node) => {
                Decision::Follow
            }
            // At feature level 2 outcomes have no digest: there it counts as a change.
            (None, _) => Decision::Done { changed: !unchanged },
        })
    }

    fn role(&self, role_request: &RoleRequest, since: Moment, record: &NodeRecord, role: Role) -> Decision {
        if record.removing.is_some() {
            let message = format!("{} is being removed", record.name);
            return Decision::Refused(ErrorBody::new(ErrorCode::Removed, message));
        }
        let node = record.id;
        if record.desired_role == role {
            // Decided through the log, not by this replica: a leader deposed while suspended has not noticed yet.
            let digest = role_request.unchanged_digest().unwrap_or_else(|| role_request.digest());
            let mut command = self.command(role_request, digest, "unchanged").guard(Guard::DesiredRole { node, role });
            if self.remembers_requests() && role_request.by != Principal::Cluster {
                command = command.change(Change::SetDesiredRole { node, role });
            }
            return Decision::Write { command: Box::new(command), leaves: false };
        }
        let mut command = self.command(
            role_request,
            role_request.digest(),
            match role {
                Role::Manager => "promote",
                Role::Worker => "demote",
            },
        );
        if role == Role::Worker {
            match self.may_leave(record, since) {
                QuorumCheck::Open => {}
                QuorumCheck::Undecided => return Decision::Later,
                QuorumCheck::Unconfirmed(required) => return Decision::CheckReachable(required),
                QuorumCheck::Closed(obstacle) => return Decision::Refused(obstacle.to_error()),
            }
            command = command.guard(Guard::OtherManagers { besides: node, at_least: 1 });
        } else {
            command = command.guard(Guard::NotBlocked(node));
        }
        command = command.change(Change::SetDesiredRole { node, role });
        // Nothing may forbid a promotion between the request and the grant, so one entry of the log carries both.
        if role == Role::Manager && record.role == Role::Worker {
            command = command.change(Change::GrantRole { node, role });
        }
        Decision::Write { command: Box::new(command), leaves: role == Role::Worker }
    }

    /// AUTO-6: under a declared number of managers a person's request is remembered, also of a role that the node is to hold already.
    fn remembers_requests(&self) -> bool {
        self.tables.feature_level() >= AUTOPILOT_LEVEL && self.tables.autopilot.policy.is_some()
    }

    fn removal(&self, role_request: &RoleRequest, since: Moment, record: &NodeRecord, force: bool) -> Decision {
        if record.removing.is_some() {
            return Decision::Follow;
        }
        let (node, name) = (record.id, &record.name);
        let member = self.tables.member_of(node);
        let down = record.liveness == Liveness::Down;
        let manager = record.desired_role == Role::Manager && (member.is_some() || self.joining.contains(&node));
        if manager && !(down && force) {
            let holds = if member.is_some() { "is a member" } else { "is being added as a member" };
            let help = if force {
                "--force removes a manager only when it is down"
            } else {
                "if it is down, --force does both"
            };
            let message = format!("{name} {holds} of the Raft configuration: demote it first ({help})");
            return Decision::Refused(ErrorBody::new(ErrorCode::DemoteFirst, message));
        }
        if !down && !force {
            let message = format!("{name} is not down: stop it first, or use --force");
            return Decision::Refused(ErrorBody::new(ErrorCode::NodeNotDown, message));
        }
        let mut command = self.command(role_request, role_request.digest(), "remove");
        if record.desired_role == Role::Manager {
            match self.may_leave(record, since) {
                QuorumCheck::Open => {}
                QuorumCheck::Undecided => return Decision::Later,
                QuorumCheck::Unconfirmed(required) => return Decision::CheckReachable(required),
                QuorumCheck::Closed(obstacle) => return Decision::Refused(obstacle.to_error()),
            }
            command = command
                .guard(Guard::OtherManagers { besides: node, at_least: 1 })
                .change(Change::SetDesiredRole { node, role: Role::Worker });
        }
        let removal = Removal { by: role_request.by.clone(), forced: force, at: self.now.wall };
        let command = command.change(Change::SetRemoving { node, removal });
        Decision::Write { command: Box::new(command), leaves: true }
    }

    fn command(&self, role_request: &RoleRequest, digest: u64, reason: &str) -> Command {
        let mut command =
            Command::idempotent(self.now.wall, role_request.by.clone(), reason).with_request(role_request.request);
        if self.tables.remembers_callers() {
            command = command.guard(Guard::Request { digest });
        }
        command
            .guard(Guard::NodeExists(role_request.node))
            .guard(Guard::Removing { node: role_request.node, removing: false })
    }

    /// Whether this manager may leave, counting all that are leaving already. A node that is not a member removes no vote.
    fn may_leave(&self, record: &NodeRecord, since: Moment) -> QuorumCheck {
        if self.tables.member_of(record.id).is_none() {
            return QuorumCheck::Open;
        }
        let mut leaving = self.leaving.clone();
        leaving.insert(record.id);
        self.electorate.can_remove(&leaving, record.id, record.name.as_str(), since)
    }
}
