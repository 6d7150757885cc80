//! Writes: carried out by the leader on its own applied replica; other managers forward them to the leader until the
//! caller's deadline, under the caller's request id.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_kernel::{AskError, Clock};
use muster_messages::protocol::{MeshMsg, ProposeError, RaftMemberMsg, RoleManagerMsg, UserRights};
use muster_messages::wire::{ListOf, PeerCall, Request, encode, encode_stored};
use muster_messages::{
    Change, Command, CommandRefusal, ErrorBody, ErrorCode, ErrorMark, Guard, IDENTITY_LEVEL, NodeDoubts, NodeId,
    NodeRecord, Replica, RequestId, Revision, Role, RoleView, Tables, Token, check_labels, in_short, removal_digest,
    request_digest,
};
use serde_json::{Value, json};

use crate::core::{
    self, Kind, Source, check_lifetime, check_removed_labels, kind_of, resolve, resolve_for_irreversible,
};
use crate::leader::{Leader, LeaderSearch};
use crate::ports::ManagerPorts;
use crate::reads::{is_unavailable, not_leading, to_text};
use crate::service::{Asked, Service, missing_managers};
use crate::users;

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
            let unsure = match self.lead(manager, asked).await {
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
                return Ok(done);
            }
            let answer = match leader {
                Some(Leader::Here) => Some(self.lead(manager, asked).await),
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
        String::from_utf8(answer).map_err(|_| ErrorBody::new(ErrorCode::Internal, "the leader's answer is no text"))
    }

    /// The leader's own part.
    async fn lead(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        let replica = manager.replica.borrow().clone();
        let tables = &replica.tables;
        let answer = match &asked.request {
            Request::SetRole { node, role } => {
                let record = self.node_for_irreversible(manager, asked, tables, node).await?;
                let (id, role, by, request) = (record.id, *role, asked.caller.clone(), asked.request_id);
                let make = |reply| RoleManagerMsg::SetRole { node: id, role, by, request, reply };
                let accepted = self.ask(asked, &manager.leader.roles, make).await?;
                json!({
                    "node": id, "name": record.name, "addr": record.addr, "member_since": record.created_at,
                    "role": record.role, "desired_role": role, "changed": accepted.changed,
                })
            }
            Request::NodeRemove { node, force } => {
                let record = match self.node_for_irreversible(manager, asked, tables, node).await {
                    Err(gone) if gone.code == ErrorCode::NotFound && done_before(manager, asked, *force) => {
                        return Ok(json!({"node": node, "name": node, "removed": true}).to_string());
                    }
                    found => found?,
                };
                let (id, force, by, request) = (record.id, *force, asked.caller.clone(), asked.request_id);
                let make = |reply| RoleManagerMsg::Remove { node: id, force, by, request, reply };
                self.ask(asked, &manager.leader.roles, make).await?;
                json!({
                    "node": id, "name": record.name, "addr": record.addr, "member_since": record.created_at, "removed": true,
                })
            }
            Request::NodeRename { node, name } => {
                let record = self.node_for_irreversible(manager, asked, tables, node).await?;
                let (id, old) = (record.id, record.name.clone());
                let command = self.command(asked, "renamed").guard(Guard::NodeExists(id));
                self.propose(manager, asked, command.change(Change::RenameNode { node: id, name: name.clone() }))
                    .await?;
                json!({"node": id, "name": name, "before": old, "changed": old != *name})
            }
            Request::NodeUpdate { node, add, remove, generation } => {
                let id = self.node(manager, asked, tables, node).await?.id;
                check_labels(add).map_err(ErrorBody::invalid)?;
                check_removed_labels(tables, id, remove)?;
                let mut command = self.command(asked, "labels").guard(Guard::NodeExists(id));
                if let Some(generation) = generation {
                    command = command.guard(Guard::Generation { node: id, generation: *generation });
                }
                let change = Change::UpdateLabels { node: id, add: add.clone(), remove: remove.clone() };
                let replica = self.propose(manager, asked, command.change(change)).await?;
                let roles = manager.leader.view.borrow().clone();
                let (peers, doubts) = ((manager.peers)(), manager.leader.doubts.borrow().clone());
                let source = Source {
                    replica: &replica,
                    roles: &roles,
                    this: manager.node,
                    peers: &peers,
                    doubts: &doubts,
                    stale: None,
                };
                let record = replica.tables.nodes.get(&id);
                let record =
                    record.ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, format!("{id} was removed meanwhile")))?;
                return to_text(&source.node(record));
            }
            Request::TokenList => {
                let replica = self.replica(manager, asked.left()).await?;
                json!({"items": replica.tables.tokens.values().map(core::token_listed).collect::<Vec<_>>()})
            }
            Request::Page { of: ListOf::Tokens, page, .. } => {
                let replica = self.replica(manager, asked.left()).await?;
                let (roles, doubts) = (RoleView::default(), NodeDoubts::default());
                let peers = BTreeSet::new();
                let source = Source {
                    replica: &replica,
                    roles: &roles,
                    this: manager.node,
                    peers: &peers,
                    doubts: &doubts,
                    stale: None,
                };
                return core::list_page(&source, ListOf::Tokens, page);
            }
            Request::TokenShow { role } => {
                let replica = self.replica(manager, asked.left()).await?;
                let none = || {
                    ErrorBody::new(
                        ErrorCode::NotFound,
                        format!("no default token for {role}; `muster token rotate {role}` creates one"),
                    )
                };
                shown(&replica, replica.tables.default_token(*role).ok_or_else(none)?)?
            }
            Request::TokenCreate { role, ttl_ms, uses } => {
                check_lifetime(*ttl_ms)?;
                if *uses == Some(0) {
                    return Err(ErrorBody::invalid(
                        "a token with 0 uses admits no node; set at least 1 or omit the limit",
                    ));
                }
                let token = self.new_token(asked, *role, false, *ttl_ms, *uses);
                self.put_token(manager, asked, token, None).await?
            }
            Request::TokenRotate { role } => {
                let old = tables.default_token(*role).map(|t| t.id.clone());
                let token = self.new_token(asked, *role, true, None, None);
                self.put_token(manager, asked, token, old).await?
            }
            Request::TokenRevoke { id } => {
                let command = self.command(asked, "token revoked").guard(Guard::TokenExists(id.clone()));
                self.propose(manager, asked, command.change(Change::DeleteToken(id.clone()))).await?;
                json!({"id": id, "revoked": true})
            }
            Request::CertRotate { node } => {
                let id = self.node(manager, asked, tables, node).await?.id;
                let command = self
                    .command(asked, "rotation requested")
                    .guard(Guard::NodeExists(id))
                    .change(Change::AskRotate(id));
                self.propose(manager, asked, command).await?;
                json!({"node": id, "state": "rotate"})
            }
            Request::CertRevoke { node } => {
                let id = self.node(manager, asked, tables, node).await?.id;
                if !tables.records_identities() {
                    let (needs, level) = (IDENTITY_LEVEL, tables.cluster.as_ref().map_or(0, |c| c.feature_level));
                    return Err(CommandRefusal::FeatureLevel { needs, level }.into());
                }
                let revoking = Change::RevokeCertificates(id);
                let command = self.command(asked, "revoked").guard(Guard::NodeExists(id)).change(revoking);
                self.propose(manager, asked, command).await?;
                json!({"node": id, "state": "rotate", "revoking": true})
            }
            Request::UserCreate { name, kind, namespaces, ttl_ms, csr_pem } => {
                let rights = UserRights::New { kind: *kind, namespaces: namespaces.clone() };
                self.sign_user(manager, asked, name, rights, *ttl_ms, csr_pem).await?
            }
            Request::UserRenew { name, ttl_ms, csr_pem } => {
                users::check_not_own_certificate(&asked.caller, name)?;
                self.sign_user(manager, asked, name, UserRights::Kept, *ttl_ms, csr_pem).await?
            }
            Request::UserRevoke { name } => {
                let command = self.command(asked, "user revoked").guard(Guard::UserExists(name.clone()));
                self.propose(manager, asked, command.change(Change::DeleteUser(name.clone()))).await?;
                json!({"name": name, "revoked": true})
            }
            Request::AccessTokenCreate { user, namespace, ttl_ms } => {
                check_lifetime(*ttl_ms)?;
                self.create_access(manager, asked, user, namespace, *ttl_ms).await?
            }
            Request::TransferLeader { to } => {
                let to = match to {
                    Some(node) => Some(self.node(manager, asked, tables, node).await?.id),
                    None => None,
                };
                if let Some(to) = to {
                    self.can_take_over(manager, &replica, to)?;
                }
                let transferred =
                    manager.raft.ask(asked.left(), |reply| RaftMemberMsg::TransferLeadership { to, reply }).await;
                let leader = transferred.map_err(ErrorBody::from)?.map_err(|e| self.proposal_error(manager, e))?;
                json!({"leader": leader})
            }
            Request::Lease(request) => return self.lead_lease(manager, asked, request).await,
            Request::Reconciler(request) => return self.lead_reconciler(manager, asked, request).await,
            Request::Kube(call) => return self.lead_kube(manager, asked, call).await,
            _ => return self.staleable_or_refuse(manager, asked).await,
        };
        Ok(answer.to_string())
    }

    /// The node that a write names. Only a confirmed replica may report that it does not exist: a leader that was
    /// replaced and does not know it yet must not deny a node that its successor knows.
    async fn node(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        tables: &Tables,
        reference: &str,
    ) -> Result<Arc<NodeRecord>, ErrorBody> {
        if let Ok(node) = resolve(tables, reference) {
            return Ok(Arc::clone(node));
        }
        let replica = self.replica(manager, asked.left()).await?;
        resolve(&replica.tables, reference).cloned()
    }

    /// The same for irreversible operations.
    async fn node_for_irreversible(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        tables: &Tables,
        reference: &str,
    ) -> Result<Arc<NodeRecord>, ErrorBody> {
        if let Ok(node) = resolve_for_irreversible(tables, reference) {
            return Ok(Arc::clone(node));
        }
        let replica = self.replica(manager, asked.left()).await?;
        resolve_for_irreversible(&replica.tables, reference).cloned()
    }

    async fn staleable_or_refuse(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        Box::pin(self.staleable_read(manager, asked, true)).await
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

    fn proposal_error(&self, manager: &ManagerPorts, error: ProposeError) -> ErrorBody {
        match error {
            ProposeError::NotLeader { .. } => not_leading(),
            // It never entered the log. The shared text knows only ids; this one names the managers.
            ProposeError::NoQuorum { .. } => self.no_quorum(manager, "the change was not made"),
            // It is in a log.
            ProposeError::TimedOut => ErrorBody::new(ErrorCode::UnknownOutcome, "the change was not confirmed in time"),
            other => other.into(),
        }
    }

    /// Refuses at once what would otherwise time out: an unreachable node cannot take over.
    fn can_take_over(&self, manager: &ManagerPorts, replica: &Replica, to: NodeId) -> Result<(), ErrorBody> {
        let (roles, doubts, peers) = (RoleView::default(), NodeDoubts::default(), (manager.peers)());
        let source = Source { replica, roles: &roles, this: manager.node, peers: &peers, doubts: &doubts, stale: None };
        if !source.missing().contains(&to) {
            return Ok(());
        }
        let name = |id: &NodeId| replica.tables.nodes.get(id).map_or_else(|| id.to_string(), |n| n.name.to_string());
        let text =
            format!("{} does not answer and cannot take over; {} remains the leader", name(&to), name(&manager.node));
        Err(ErrorBody::new(ErrorCode::TimedOut, text))
    }

    fn new_token(&self, asked: &Asked, role: Role, default: bool, ttl_ms: Option<u64>, uses: Option<u32>) -> Token {
        let now = Clock.wall();
        Token {
            // Derived from the request id, so that a retry names the same token.
            id: NodeId::from_entropy(asked.request_id.0).as_str()[17..].to_owned(),
            role,
            secret: muster_pki::new_token_secret(),
            default,
            created_at: now,
            expires_at: ttl_ms.map(|ms| now.plus(Duration::from_millis(ms))),
            uses_left: uses,
            revision: Revision(0),
        }
    }

    async fn put_token(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        token: Token,
        old: Option<String>,
    ) -> Result<Value, ErrorBody> {
        let id = token.id.clone();
        let mut command = self.command(asked, if old.is_some() { "token rotated" } else { "token created" });
        if let Some(old) = old.filter(|old| *old != id) {
            command = command.change(Change::DeleteToken(old));
        }
        let replica = self.propose(manager, asked, command.change(Change::PutToken(token))).await?;
        let token = replica.tables.tokens.get(&id);
        shown(&replica, token.ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, "the token was revoked meanwhile"))?)
    }
}

fn shown(replica: &Replica, token: &Token) -> Result<Value, ErrorBody> {
    let none = || ErrorBody::new(ErrorCode::Internal, "this node does not know the cluster's root");
    let root = &replica.tables.cluster.as_ref().ok_or_else(none)?.root_cert_pem;
    let full = muster_pki::JoinToken::new(root, token.secret.clone());
    let full = full.map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
    Ok(core::token_with_text(token, &full.to_text()))
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

/// The removal that this request asked for was accepted earlier, and its node is gone: it is done. Of a removed node
/// only the block remains, so the id must belong to the removal of a blocked node.
fn done_before(manager: &ManagerPorts, asked: &Asked, force: bool) -> bool {
    let tables = &manager.replica.borrow().tables;
    let first = tables.outcome_of(&asked.caller, asked.request_id).filter(|first| first.refused.is_none());
    first.is_some_and(|first| {
        let of = |digest| tables.blocklist.keys().any(|node| removal_digest(*node, force) == digest);
        first.digest.is_none_or(of)
    })
}

/// A transfer is the one request that ends the leadership of the leader it was sent to, and asking the next leader
/// again would end that one's. Once another manager leads, as requested, the transfer is done.
fn transferred(manager: &ManagerPorts, asked: &Asked, before: Option<NodeId>, now: Option<NodeId>) -> Option<String> {
    let Request::TransferLeader { to } = &asked.request else { return None };
    let now = now.filter(|now| before.is_some_and(|before| before != *now))?;
    let as_requested = match to {
        Some(to) => resolve(&manager.replica.borrow().tables, to).is_ok_and(|node| node.id == now),
        None => true,
    };
    as_requested.then(|| json!({"leader": now}).to_string())
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
