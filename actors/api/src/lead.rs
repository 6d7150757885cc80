//! Lead: one request that this manager carries out as the leader, on its own applied replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::protocol::{RaftMemberMsg, RoleManagerMsg, UserRights};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{
    CertificateRotationView, CertificateState, Change, CommandRefusal, ErrorBody, ErrorCode, ErrorMark, Generation,
    Guard, IDENTITY_LEVEL, LeaderView, Name, NodeId, NodeRecord, NodeRemovedView, NodeRenamedView, Replica, Revision,
    Role, RoleChangeView, Tables, Token, TokenTextView, check_labels, removal_digest,
};
use serde_json::json;

use crate::autolock::AutolockRequests;
use crate::autopilot::AutopilotRequests;
use crate::core::{check_lifetime, check_removed_labels, node_of, resolve, resolve_for_irreversible};
use crate::kube::ObjectWrite;
use crate::leases::LeaseRequests;
use crate::may_stop::MayStop;
use crate::reads::{Reads, to_text};
use crate::reconcilers::ReconcilerRequests;
use crate::roots::RootRequests;
use crate::users::UserRequests;
use crate::work::Work;
use crate::workloads::WorkloadRequests;

pub(crate) struct Lead<'a> {
    work: Work<'a>,
    replica: Arc<Replica>,
}

impl<'a> Lead<'a> {
    pub(crate) fn new(work: Work<'a>) -> Self {
        Self { work, replica: work.local() }
    }

    pub(crate) async fn answer(self) -> Result<String, ErrorBody> {
        let work = self.work;
        match &work.asked.request {
            Request::SetRole { node, role } => to_text(&self.set_role(node, *role).await?),
            Request::NodeRemove { node, force } => to_text(&self.remove(node, *force).await?),
            Request::NodeRename { node, name } => to_text(&self.rename(node, name).await?),
            Request::NodeUpdate { node, add, remove, generation } => self.update(node, add, remove, *generation).await,
            Request::NodeMayStop { node } => {
                let node = self.node(node).await?;
                to_text(&MayStop { work, node: &node }.answer().await?)
            }
            Request::Autopilot(request) => {
                let node = match node_of(&work.asked.request) {
                    Some(node) => Some(self.node(node).await?.id),
                    None => None,
                };
                AutopilotRequests { work, request }.lead(node).await
            }
            Request::CertRotate { node } => to_text(&self.rotate(node).await?),
            Request::CertRevoke { node } => to_text(&self.revoke(node).await?),
            Request::TokenShow { role } => to_text(&self.show_token(*role).await?),
            Request::TokenCreate { role, ttl_ms, uses } => to_text(&self.create_token(*role, *ttl_ms, *uses).await?),
            Request::TokenRotate { role } => {
                let old = self.tables().default_token(*role).map(|t| t.id.clone());
                to_text(&self.put_token(self.new_token(*role, true, None, None), old).await?)
            }
            Request::TokenRevoke { id } => {
                let command = self.work.command("token revoked").guard(Guard::TokenExists(id.clone()));
                self.work.propose(command.change(Change::DeleteToken(id.clone()))).await?;
                Ok(json!({"id": id, "revoked": true}).to_string())
            }
            Request::UserCreate { name, kind, namespaces, ttl_ms, csr_pem } => {
                let rights = UserRights::New { kind: *kind, namespaces: namespaces.clone() };
                to_text(&UserRequests { work, user: name }.sign(rights, *ttl_ms, csr_pem).await?)
            }
            Request::UserRenew { name, ttl_ms, csr_pem } => {
                to_text(&UserRequests { work, user: name }.renew(*ttl_ms, csr_pem).await?)
            }
            Request::UserRevoke { name } => {
                let command = work.command("user revoked").guard(Guard::UserExists(name.clone()));
                work.propose(command.change(Change::DeleteUser(name.clone()))).await?;
                Ok(json!({"name": name, "revoked": true}).to_string())
            }
            Request::AccessTokenCreate { user, namespace, ttl_ms } => {
                to_text(&UserRequests { work, user }.create_token(namespace, *ttl_ms).await?)
            }
            Request::RootRotate { .. }
            | Request::RootActivate { .. }
            | Request::RootAbort
            | Request::RootRetire { .. }
            | Request::RootRevoke { .. }
            | Request::RootRequest { .. }
            | Request::RootIssued { .. } => RootRequests { work }.lead().await,
            Request::AutolockOn => to_text(&AutolockRequests { work }.on().await?),
            Request::AutolockRotate => to_text(&AutolockRequests { work }.rotate().await?),
            Request::AutolockOff => to_text(&AutolockRequests { work }.off().await?),
            Request::AutolockKey { version } => to_text(&AutolockRequests { work }.key(*version).await?),
            Request::WorkloadSet { .. } | Request::WorkloadRemove { .. } | Request::WorkloadShow { .. } => {
                WorkloadRequests { work }.lead().await
            }
            Request::TransferLeader { to } => to_text(&self.transfer(to.as_deref()).await?),
            Request::Lease(request) => LeaseRequests { work, request }.lead().await,
            Request::Reconciler(request) => ReconcilerRequests { work, request }.lead().await,
            Request::Kube(call) => ObjectWrite { work, call }.lead().await,
            Request::TokenList | Request::Page { of: ListOf::Tokens, .. } => Reads { work }.confirmed().await,
            _ => Box::pin(Reads { work }.staleable(true)).await,
        }
    }

    fn tables(&self) -> &Tables {
        &self.replica.tables
    }

    /// The node that a write names. Only a confirmed replica may report that it does not exist: a leader that was
    /// replaced and does not know it yet must not deny a node that its successor knows.
    async fn node(&self, reference: &str) -> Result<Arc<NodeRecord>, ErrorBody> {
        if let Ok(node) = resolve(self.tables(), reference) {
            return Ok(Arc::clone(node));
        }
        resolve(&self.work.confirmed().await?.tables, reference).cloned()
    }

    /// The same for irreversible operations.
    async fn node_for_irreversible(&self, reference: &str) -> Result<Arc<NodeRecord>, ErrorBody> {
        if let Ok(node) = resolve_for_irreversible(self.tables(), reference) {
            return Ok(Arc::clone(node));
        }
        resolve_for_irreversible(&self.work.confirmed().await?.tables, reference).cloned()
    }

    async fn set_role(&self, node: &str, role: Role) -> Result<RoleChangeView, ErrorBody> {
        let record = self.node_for_irreversible(node).await?;
        let (id, by, request) = (record.id, self.work.asked.caller.clone(), self.work.asked.request_id);
        let make = |reply| RoleManagerMsg::SetRole { node: id, role, by, request, reply };
        let accepted = self.work.ask(&self.work.manager.leader.roles, make).await?;
        Ok(RoleChangeView {
            node: id,
            name: record.name.clone(),
            addr: Some(record.addr.clone()),
            member_since: Some(record.created_at),
            role: Some(record.role),
            desired_role: Some(role),
            changed: accepted.changed,
        })
    }

    async fn remove(&self, node: &str, force: bool) -> Result<NodeRemovedView, ErrorBody> {
        let record = match self.node_for_irreversible(node).await {
            Err(gone) if gone.code == ErrorCode::NotFound && self.removed_before(force) => {
                let (node, name) = (node.to_owned(), node.to_owned());
                // Its certificates are gone with its record.
                let knew_root_key = None;
                return Ok(NodeRemovedView {
                    node,
                    name,
                    addr: None,
                    member_since: None,
                    removed: true,
                    knew_root_key,
                    workloads_until: None,
                });
            }
            found => found?,
        };
        let (id, by, request) = (record.id, self.work.asked.caller.clone(), self.work.asked.request_id);
        let make = |reply| RoleManagerMsg::Remove { node: id, force, by, request, reply };
        let knew_root_key = Some(was_manager(self.tables(), &record));
        self.work.ask(&self.work.manager.leader.roles, make).await?;
        let now = Clock.wall();
        Ok(NodeRemovedView {
            node: id.to_string(),
            name: record.name.to_string(),
            addr: Some(record.addr.clone()),
            member_since: Some(record.created_at),
            removed: true,
            knew_root_key,
            workloads_until: muster_store::workloads_end_after(self.tables(), now).filter(|until| *until > now),
        })
    }

    /// The removal that this request asked for was accepted earlier, and its node is gone: it is done. Of a removed node
    /// only the block remains, so the id must belong to the removal of a blocked node.
    fn removed_before(&self, force: bool) -> bool {
        let tables = &self.work.manager.replica.borrow().tables;
        let first = tables.outcome_of(&self.work.asked.caller, self.work.asked.request_id);
        first.filter(|first| first.refused.is_none()).is_some_and(|first| {
            let of = |digest| tables.blocklist.keys().any(|node| removal_digest(*node, force) == digest);
            first.digest.is_none_or(of)
        })
    }

    async fn rename(&self, node: &str, name: &Name) -> Result<NodeRenamedView, ErrorBody> {
        // A retry: the node has the new name, so it may not be found by what the request calls it.
        if let Some(Ok(at)) = self.work.earlier(self.tables())
            && let Some((node, before)) = muster_store::renamed_at(self.tables(), at)
        {
            return Ok(NodeRenamedView { node, name: name.clone(), changed: true, before });
        }
        let record = self.node_for_irreversible(node).await?;
        let (id, before) = (record.id, record.name.clone());
        let command = self.work.command("renamed").guard(Guard::NodeExists(id));
        self.work.propose(command.change(Change::RenameNode { node: id, name: name.clone() })).await?;
        Ok(NodeRenamedView { node: id, name: name.clone(), changed: before != *name, before })
    }

    async fn update(
        &self,
        node: &str,
        add: &BTreeMap<String, String>,
        remove: &[String],
        generation: Option<Generation>,
    ) -> Result<String, ErrorBody> {
        let id = self.node(node).await?.id;
        check_labels(add).map_err(ErrorBody::invalid)?;
        check_removed_labels(self.tables(), id, remove)?;
        let mut command = self.work.command("labels").guard(Guard::NodeExists(id));
        if let Some(generation) = generation {
            command = command.guard(Guard::Generation { node: id, generation });
        }
        let change = Change::UpdateLabels { node: id, add: add.clone(), remove: remove.to_vec() };
        let replica = self.work.propose(command.change(change)).await?;
        let record = replica.tables.nodes.get(&id);
        let gone = || ErrorBody::new(ErrorCode::NotFound, format!("{id} was removed meanwhile"));
        to_text(&self.work.manager.source(&replica).node(record.ok_or_else(gone)?))
    }

    async fn rotate(&self, node: &str) -> Result<CertificateRotationView, ErrorBody> {
        let id = self.node(node).await?.id;
        let command = self.work.command("rotation requested").guard(Guard::NodeExists(id));
        self.work.propose(command.change(Change::AskRotate(id))).await?;
        Ok(CertificateRotationView { node: id, state: CertificateState::Rotate, revoking: false })
    }

    async fn revoke(&self, node: &str) -> Result<CertificateRotationView, ErrorBody> {
        let id = self.node(node).await?.id;
        let tables = self.tables();
        if !tables.records_identities() {
            let (needs, level) = (IDENTITY_LEVEL, tables.cluster.as_ref().map_or(0, |c| c.feature_level));
            return Err(CommandRefusal::FeatureLevel { needs, level }.into());
        }
        let command = self.work.command("revoked").guard(Guard::NodeExists(id));
        self.work.propose(command.change(Change::RevokeCertificates(id))).await?;
        Ok(CertificateRotationView { node: id, state: CertificateState::Rotate, revoking: true })
    }

    async fn show_token(&self, role: Role) -> Result<TokenTextView, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let none = || {
            let text = format!("no default token for {role}; `muster token rotate {role}` creates one");
            ErrorBody::new(ErrorCode::NotFound, text)
        };
        shown(&replica, replica.tables.default_token(role).ok_or_else(none)?)
    }

    async fn create_token(
        &self,
        role: Role,
        ttl_ms: Option<u64>,
        uses: Option<u32>,
    ) -> Result<TokenTextView, ErrorBody> {
        check_lifetime(ttl_ms)?;
        if uses == Some(0) {
            let text = "a token with 0 uses admits no node; set at least 1 or omit the limit";
            return Err(ErrorBody::invalid(text));
        }
        self.put_token(self.new_token(role, false, ttl_ms, uses), None).await
    }

    fn new_token(&self, role: Role, default: bool, ttl_ms: Option<u64>, uses: Option<u32>) -> Token {
        let now = Clock.wall();
        Token {
            // Derived from the request id, so that a retry names the same token.
            id: NodeId::from_entropy(self.work.asked.request_id.0).as_str()[17..].to_owned(),
            role,
            secret: muster_pki::new_token_secret(),
            default,
            created_at: now,
            expires_at: ttl_ms.map(|ms| now.plus(Duration::from_millis(ms))),
            uses_left: uses,
            revision: Revision(0),
        }
    }

    async fn put_token(&self, token: Token, old: Option<String>) -> Result<TokenTextView, ErrorBody> {
        let id = token.id.clone();
        let mut command = self.work.command(if old.is_some() { "token rotated" } else { "token created" });
        if let Some(old) = old.filter(|old| *old != id) {
            // A root rotation may have replaced it meanwhile: then there would be a valid token that no command has shown.
            command = command.guard(Guard::TokenExists(old.clone())).change(Change::DeleteToken(old));
        }
        let replica = self.work.propose(command.change(Change::PutToken(token))).await?;
        let gone = || ErrorBody::new(ErrorCode::NotFound, "the token was revoked meanwhile");
        shown(&replica, replica.tables.tokens.get(&id).ok_or_else(gone)?)
    }

    async fn transfer(&self, to: Option<&str>) -> Result<LeaderView, ErrorBody> {
        let to = match to {
            Some(node) => Some(self.node(node).await?.id),
            None => None,
        };
        if let Some(to) = to {
            self.can_take_over(to)?;
        }
        let make = |reply| RaftMemberMsg::TransferLeadership { to, reply };
        let transferred = self.work.manager.raft.ask(self.work.asked.left(), make).await.map_err(ErrorBody::from)?;
        let leader = transferred.map_err(|e| self.work.proposal_error(e))?;
        Ok(LeaderView { leader: Some(leader) })
    }

    /// Refuses at once what would otherwise time out: an unreachable node cannot take over.
    fn can_take_over(&self, to: NodeId) -> Result<(), ErrorBody> {
        let manager = self.work.manager;
        if !manager.source(&self.replica).missing().contains(&to) {
            return Ok(());
        }
        let name = |id: &NodeId| self.tables().nodes.get(id).map_or_else(|| id.to_string(), |n| n.name.to_string());
        let text =
            format!("{} does not answer and cannot take over; {} remains the leader", name(&to), name(&manager.node));
        Err(ErrorBody::new(ErrorCode::TimedOut, text).marked(ErrorMark::NotSent))
    }
}

/// Whether a node is a manager, or was one a certificate ago: it is demoted before it is removed.
pub(crate) fn was_manager(tables: &Tables, node: &NodeRecord) -> bool {
    let row = tables.certificates.get(&node.id);
    let issued = row.into_iter().flat_map(|row| row.current.iter().chain(&row.previous).chain(&row.unclaimed));
    let mut roles = issued.map(|issued| issued.role).chain([node.role, node.desired_role]);
    roles.any(|role| role == Role::Manager)
}

fn shown(replica: &Replica, token: &Token) -> Result<TokenTextView, ErrorBody> {
    let none = || ErrorBody::new(ErrorCode::Internal, "this node does not know the cluster's root");
    let root = &replica.tables.cluster.as_ref().ok_or_else(none)?.root_cert_pem;
    let full = muster_pki::JoinToken::new(root, token.secret.clone());
    let full = full.map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
    Ok(TokenTextView {
        id: token.id.clone(),
        role: token.role,
        token: full.to_text(),
        expires_at: token.expires_at,
        uses_left: token.uses_left,
    })
}
