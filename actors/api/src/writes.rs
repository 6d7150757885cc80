//! Writes: done by the leader on its own applied copy; passed to it by everyone else, again and again until the
//! caller's deadline, under the caller's request id.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{AskError, Clock};
use muster_messages::protocol::{CertAuthorityMsg, MeshMsg, ProposeError, RaftMemberMsg, RoleManagerMsg};
use muster_messages::wire::{ListOf, PeerCall, Request};
use muster_messages::{
    Change, Command, CommandRefusal, ErrorBody, ErrorCode, Guard, NodeDoubts, NodeId, NodeRecord, Replica, RequestId,
    Revision, Role, RoleView, Tables, Token,
};
use serde_json::{Value, json};

use crate::core::{self, Source, resolve};
use crate::ports::ManagerPorts;
use crate::reads::{is_unavailable, not_leading, to_text};
use crate::service::{Asked, Service};

/// The pause between two attempts to reach a leader. A leader change takes tens of milliseconds.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How a proposal ended.
pub(crate) enum Proposed {
    /// At this revision; the copy has applied it.
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
        if manager.replica.borrow().raft.leading {
            match self.lead(manager, asked).await {
                Err(error) if !relayed && lost_leadership(&error) => {}
                done => return done,
            }
            return self.follow_leader(manager, asked, Some(manager.node)).await;
        }
        if relayed {
            return Err(not_leading());
        }
        self.to_leader(manager, asked).await
    }

    /// Passes a request to whoever leads, until it is answered or the deadline passes.
    pub(crate) async fn to_leader(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        let _place = self.call_place(&asked.caller)?;
        self.follow_leader(manager, asked, None).await
    }

    /// `asked_first`: whoever had the request already.
    async fn follow_leader(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        mut asked_first: Option<NodeId>,
    ) -> Result<String, ErrorBody> {
        let mut last: Option<ErrorBody> = None;
        loop {
            let (leading, leader) = {
                let replica = manager.replica.borrow();
                (replica.raft.leading, replica.raft.leader_node)
            };
            asked_first = asked_first.or(leader);
            if let Some(done) = transferred(manager, asked, asked_first, leader) {
                return Ok(done);
            }
            let answer = match leader {
                _ if leading => Some(self.lead(manager, asked).await),
                Some(leader) if leader != manager.node => Some(self.call_leader(manager, asked, leader).await),
                _ => None,
            };
            match answer {
                Some(Err(error)) if retriable(&error) => last = Some(error),
                Some(done) => return done,
                None => {}
            }
            if asked.left() <= RETRY_PAUSE {
                let unsure = last.filter(|e| e.code == ErrorCode::UnknownOutcome);
                return Err(unsure.unwrap_or_else(|| self.no_quorum(manager, "no leader took the request in time")));
            }
            // A new leader shows as a change of the replica; the pause bounds the wait for what does not show there.
            let mut changes = manager.replica.clone();
            let _changed = tokio::time::timeout(RETRY_PAUSE, changes.changed()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn call_leader(&self, manager: &ManagerPorts, asked: &Asked, leader: NodeId) -> Result<String, ErrorBody> {
        let call = PeerCall::Api {
            caller: asked.caller.clone(),
            request_id: asked.request_id,
            timeout_ms: asked.left_ms(),
            request: asked.request.clone(),
        };
        let deadline_ms = asked.left_ms();
        let make = |reply| MeshMsg::Call { to: leader, deadline_ms, call: Box::new(call), reply };
        let mut changes = manager.replica.clone();
        let answer = tokio::select! {
            answer = manager.mesh.ask(asked.left(), make) => answer.map_err(ErrorBody::from)??,
            // A frozen leader does not answer, and its connection takes seconds to be given up. What it may have done
            // already, its successor knows by the request id.
            Ok(_) = changes.wait_for(|r| r.raft.leader_node != Some(leader)) => {
                return Err(ErrorBody::new(
                    ErrorCode::UnknownOutcome,
                    "leadership was lost while the request was in progress; retry with the same request id",
                ));
            }
        };
        String::from_utf8(answer).map_err(|_| ErrorBody::new(ErrorCode::Internal, "the leader's answer is no text"))
    }

    /// The leader's own part.
    async fn lead(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        let replica = manager.replica.borrow().clone();
        let tables = &replica.tables;
        let answer = match &asked.request {
            Request::SetRole { node, role } => {
                let record = self.node(manager, asked, tables, node).await?;
                let (id, role, by, request) = (record.id, *role, asked.caller.clone(), asked.request_id);
                let make = |reply| RoleManagerMsg::SetRole { node: id, role, by, request, reply };
                let wish = self.ask(asked, &manager.leader.roles, make).await?;
                json!({"node": id, "name": record.name, "desired_role": role, "changed": wish.changed})
            }
            Request::NodeRemove { node, force } => {
                let record = match self.node(manager, asked, tables, node).await {
                    Err(gone) if gone.code == ErrorCode::NotFound && done_before(manager, asked) => {
                        return Ok(json!({"node": node, "name": node, "removed": true}).to_string());
                    }
                    found => found?,
                };
                let (id, force, by, request) = (record.id, *force, asked.caller.clone(), asked.request_id);
                let make = |reply| RoleManagerMsg::Remove { node: id, force, by, request, reply };
                self.ask(asked, &manager.leader.roles, make).await?;
                json!({"node": id, "name": record.name, "removed": true})
            }
            Request::NodeUpdate { node, add, remove, generation } => {
                let id = self.node(manager, asked, tables, node).await?.id;
                labels_are_sane(add)?;
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
                let replica = self.copy(manager, asked.left()).await?;
                json!({"items": replica.tables.tokens.values().map(core::token_listed).collect::<Vec<_>>()})
            }
            Request::Portion { of: ListOf::Tokens, page, .. } => {
                let replica = self.copy(manager, asked.left()).await?;
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
                return core::portion(&source, ListOf::Tokens, page);
            }
            Request::TokenShow { role } => {
                let replica = self.copy(manager, asked.left()).await?;
                let none = || {
                    ErrorBody::new(
                        ErrorCode::NotFound,
                        format!("no default token for {role}; `muster token rotate {role}` makes one"),
                    )
                };
                shown(&replica, replica.tables.default_token(*role).ok_or_else(none)?)?
            }
            Request::TokenCreate { role, ttl_ms, uses } => {
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
                let command =
                    self.command(asked, "rotation asked").guard(Guard::NodeExists(id)).change(Change::AskRotate(id));
                self.propose(manager, asked, command).await?;
                json!({"node": id, "state": "rotate"})
            }
            Request::UserCreate { name, admin, namespaces, ttl_ms, csr_pem } => {
                let (name, admin, namespaces, lifetime_ms) = (name.clone(), *admin, namespaces.clone(), *ttl_ms);
                let (csr_pem, by, request) = (csr_pem.clone(), asked.caller.clone(), asked.request_id);
                let view = json!({"name": &name, "admin": admin, "namespaces": &namespaces});
                let make = |reply| CertAuthorityMsg::SignUser {
                    name,
                    admin,
                    namespaces,
                    lifetime_ms,
                    csr_pem,
                    by,
                    request,
                    reply,
                };
                let signed = self.ask(asked, &manager.leader.authority, make).await?;
                let mut view = view;
                view["cert_pem"] = json!(signed.cert_pem);
                view["root_pem"] = json!(signed.root_pem);
                view["serial"] = json!(signed.serial);
                view["not_after"] = json!(signed.not_after);
                view["managers"] = json!(tables.members.values().map(|m| &m.addr).collect::<Vec<_>>());
                view
            }
            Request::UserRevoke { name } => {
                let command = self.command(asked, "user revoked").guard(Guard::UserExists(name.clone()));
                self.propose(manager, asked, command.change(Change::DeleteUser(name.clone()))).await?;
                json!({"name": name, "revoked": true})
            }
            Request::AccessTokenCreate { user, namespace, ttl_ms } => {
                self.create_access(manager, asked, user, namespace, *ttl_ms).await?
            }
            Request::TransferLeader { to } => {
                let to = match to {
                    Some(node) => Some(self.node(manager, asked, tables, node).await?.id),
                    None => None,
                };
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

    /// The node that a write names. That there is no such node is said from a confirmed copy only: a leader that was
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
        let replica = self.copy(manager, asked.left()).await?;
        resolve(&replica.tables, reference).cloned()
    }

    async fn staleable_or_refuse(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        Box::pin(self.staleable_read(manager, asked, true)).await
    }

    async fn ask<P: Send + 'static, T: Send + 'static>(
        &self,
        asked: &Asked,
        to: &muster_kernel::Recipient<P>,
        make: impl FnOnce(muster_messages::protocol::Reply<Result<T, ErrorBody>>) -> P,
    ) -> Result<T, ErrorBody> {
        match to.ask(asked.left(), make).await {
            Ok(answer) => answer,
            // The leader's actors are starting with it, or restarting after a crash: worth another attempt.
            Err(AskError::Down) => Err(not_leading()),
            // It restarted with the question in its mailbox; wishes are written down under the request id: ask again.
            Err(AskError::Closed) => Err(not_leading()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn command(&self, asked: &Asked, reason: &str) -> Command {
        Command::idempotent(Clock.wall(), asked.caller.clone(), reason).with_request(asked.request_id)
    }

    /// Proposes and answers with a copy that has applied it.
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
            // The raft member restarted with the proposal in its mailbox or in flight: the request id makes a retry safe.
            Err(AskError::Closed | AskError::Down) if asked.request_id != RequestId(0) => return Err(not_leading()),
            Err(error) => return Err(error.into()),
        };
        let mut changes = manager.replica.clone();
        let gone = |_| ErrorBody::new(ErrorCode::UnknownOutcome, "the manager half stopped meanwhile");
        // Applied here, so this is a moment's wait, unless the member restarts in between and has to catch up.
        let margin = asked.left() + Duration::from_millis(200);
        let seen = tokio::time::timeout(margin, changes.wait_for(|r| r.tables.revision >= applied.revision)).await;
        let late =
            |_| ErrorBody::new(ErrorCode::UnknownOutcome, "applied, but not seen in time: look before you retry");
        Ok(Proposed::Applied(applied.revision, seen.map_err(late)?.map_err(gone)?.clone()))
    }

    fn proposal_error(&self, manager: &ManagerPorts, error: ProposeError) -> ErrorBody {
        match error {
            ProposeError::NotLeader { .. } => not_leading(),
            // The shared wording knows ids only; this one names the managers.
            ProposeError::NoQuorum { .. } => self.no_quorum(manager, "the change could not be committed"),
            other => other.into(),
        }
    }

    fn new_token(&self, asked: &Asked, role: Role, default: bool, ttl_ms: Option<u64>, uses: Option<u32>) -> Token {
        let now = Clock.wall();
        Token {
            // From the request id, so that a retry names the same token.
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
    let none = || ErrorBody::new(ErrorCode::Internal, "the cluster's root is unknown here");
    let root = &replica.tables.cluster.as_ref().ok_or_else(none)?.root_cert_pem;
    let full = muster_pki::JoinToken::new(root, token.secret.clone());
    let full = full.map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
    Ok(core::token_shown(token, &full.to_text()))
}

/// Labels are small: they travel with every node listing.
fn labels_are_sane(add: &std::collections::BTreeMap<String, String>) -> Result<(), ErrorBody> {
    let bad = |k: &str, v: &str| {
        k.is_empty()
            || k.len() > 128
            || v.len() > 256
            || k.chars().any(char::is_control)
            || v.chars().any(char::is_control)
    };
    match add.iter().find(|(k, v)| bad(k, v)) {
        Some((k, _)) => {
            let k: String = k.chars().take(40).collect();
            Err(ErrorBody::new(
                ErrorCode::Invalid,
                format!("label {k:?}: a key holds 1 to 128, a value at most 256 printable bytes"),
            ))
        }
        None if add.len() > 64 => Err(ErrorBody::invalid("at most 64 labels in one change")),
        None => Ok(()),
    }
}

/// The removal that this request asked for was accepted before, and its node is gone: it is done.
fn done_before(manager: &ManagerPorts, asked: &Asked) -> bool {
    let replica = manager.replica.borrow();
    asked.request_id != RequestId(0)
        && replica.tables.outcomes.get(&asked.request_id).is_some_and(|first| first.refused.is_none())
}

/// A transfer is the one request that ends the leadership it was asked of, and asking the next leader again would end
/// that one's: once another leads, as wished, it is done.
fn transferred(manager: &ManagerPorts, asked: &Asked, before: Option<NodeId>, now: Option<NodeId>) -> Option<String> {
    let Request::TransferLeader { to } = &asked.request else { return None };
    let now = now.filter(|now| before.is_some_and(|before| before != *now))?;
    let wished = match to {
        Some(to) => resolve(&manager.replica.borrow().tables, to).is_ok_and(|node| node.id == now),
        None => true,
    };
    wished.then(|| json!({"leader": now}).to_string())
}

fn lost_leadership(error: &ErrorBody) -> bool {
    error.code == ErrorCode::UnknownOutcome || error.details.contains("not_leading")
}

fn retriable(error: &ErrorBody) -> bool {
    lost_leadership(error) || (is_unavailable(error.code) && error.code != ErrorCode::TimedOut)
}
