//! Lead: one request that this manager carries out as the leader, on its own applied replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::protocol::{RaftMemberMsg, RoleManagerMsg, UserRights};
use muster_messages::wire::{ListOf, Page, Request};
use muster_messages::{
    CertificateRotationView, CertificateState, Change, Command, CommandRefusal, ErrorBody, ErrorCode, Generation,
    Guard, IDENTITY_LEVEL, LeaderView, ListView, Name, NodeDoubts, NodeId, NodeRecord, NodeRemovedView,
    NodeRenamedView, Replica, Revision, Role, RoleChangeView, RoleView, Tables, Token, TokenTextView, TokenView,
    check_labels, removal_digest,
};
use serde_json::json;

use crate::core::{self, Source, check_lifetime, check_removed_labels, resolve, resolve_for_irreversible};
use crate::ports::ManagerPorts;
use crate::reads::to_text;
use crate::service::{Asked, Service};
use crate::users;

pub(crate) struct Lead<'a> {
    service: &'a Service,
    manager: &'a ManagerPorts,
    asked: &'a Asked,
    replica: Arc<Replica>,
}

impl<'a> Lead<'a> {
    pub(crate) fn new(service: &'a Service, manager: &'a ManagerPorts, asked: &'a Asked) -> Self {
        let replica = manager.replica.borrow().clone();
        Self { service, manager, asked, replica }
    }

    pub(crate) async fn answer(self) -> Result<String, ErrorBody> {
        let (service, manager, asked) = (self.service, self.manager, self.asked);
        match &asked.request {
            Request::SetRole { node, role } => to_text(&self.set_role(node, *role).await?),
            Request::NodeRemove { node, force } => to_text(&self.remove(node, *force).await?),
            Request::NodeRename { node, name } => to_text(&self.rename(node, name).await?),
            Request::NodeUpdate { node, add, remove, generation } => self.update(node, add, remove, *generation).await,
            Request::CertRotate { node } => to_text(&self.rotate(node).await?),
            Request::CertRevoke { node } => to_text(&self.revoke(node).await?),
            Request::TokenList => {
                let replica = self.confirmed().await?;
                to_text(&ListView::of(replica.tables.tokens.values().map(TokenView::from)))
            }
            Request::Page { of: ListOf::Tokens, page, .. } => self.page_of_tokens(page).await,
            Request::TokenShow { role } => to_text(&self.show_token(*role).await?),
            Request::TokenCreate { role, ttl_ms, uses } => to_text(&self.create_token(*role, *ttl_ms, *uses).await?),
            Request::TokenRotate { role } => {
                let old = self.tables().default_token(*role).map(|t| t.id.clone());
                to_text(&self.put_token(self.new_token(*role, true, None, None), old).await?)
            }
            Request::TokenRevoke { id } => {
                let command = self.command("token revoked").guard(Guard::TokenExists(id.clone()));
                self.propose(command.change(Change::DeleteToken(id.clone()))).await?;
                Ok(json!({"id": id, "revoked": true}).to_string())
            }
            Request::UserCreate { name, kind, namespaces, ttl_ms, csr_pem } => {
                let rights = UserRights::New { kind: *kind, namespaces: namespaces.clone() };
                to_text(&service.sign_user(manager, asked, name, rights, *ttl_ms, csr_pem).await?)
            }
            Request::UserRenew { name, ttl_ms, csr_pem } => {
                users::check_not_own_certificate(&asked.caller, name)?;
                to_text(&service.sign_user(manager, asked, name, UserRights::Kept, *ttl_ms, csr_pem).await?)
            }
            Request::UserRevoke { name } => {
                let command = self.command("user revoked").guard(Guard::UserExists(name.clone()));
                self.propose(command.change(Change::DeleteUser(name.clone()))).await?;
                Ok(json!({"name": name, "revoked": true}).to_string())
            }
            Request::AccessTokenCreate { user, namespace, ttl_ms } => {
                check_lifetime(*ttl_ms)?;
                to_text(&service.create_access(manager, asked, user, namespace, *ttl_ms).await?)
            }
            Request::TransferLeader { to } => to_text(&self.transfer(to.as_deref()).await?),
            Request::Lease(request) => service.lead_lease(manager, asked, request).await,
            Request::Reconciler(request) => service.lead_reconciler(manager, asked, request).await,
            Request::Kube(call) => service.lead_kube(manager, asked, call).await,
            _ => Box::pin(service.staleable_read(manager, asked, true)).await,
        }
    }

    fn tables(&self) -> &Tables {
        &self.replica.tables
    }
    async fn confirmed(&self) -> Result<Arc<Replica>, ErrorBody> {
        self.service.replica(self.manager, self.asked.left()).await
    }
    fn command(&self, reason: &str) -> Command {
        self.service.command(self.asked, reason)
    }
    async fn propose(&self, command: Command) -> Result<Arc<Replica>, ErrorBody> {
        self.service.propose(self.manager, self.asked, command).await
    }

    /// The node that a write names. Only a confirmed replica may report that it does not exist: a leader that was
    /// replaced and does not know it yet must not deny a node that its successor knows.
    async fn node(&self, reference: &str) -> Result<Arc<NodeRecord>, ErrorBody> {
        if let Ok(node) = resolve(self.tables(), reference) {
            return Ok(Arc::clone(node));
        }
        resolve(&self.confirmed().await?.tables, reference).cloned()
    }

    /// The same for irreversible operations.
    async fn node_for_irreversible(&self, reference: &str) -> Result<Arc<NodeRecord>, ErrorBody> {
        if let Ok(node) = resolve_for_irreversible(self.tables(), reference) {
            return Ok(Arc::clone(node));
        }
        resolve_for_irreversible(&self.confirmed().await?.tables, reference).cloned()
    }

    async fn set_role(&self, node: &str, role: Role) -> Result<RoleChangeView, ErrorBody> {
        let record = self.node_for_irreversible(node).await?;
        let (id, by, request) = (record.id, self.asked.caller.clone(), self.asked.request_id);
        let make = |reply| RoleManagerMsg::SetRole { node: id, role, by, request, reply };
        let accepted = self.service.ask(self.asked, &self.manager.leader.roles, make).await?;
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
                return Ok(NodeRemovedView { node, name, addr: None, member_since: None, removed: true });
            }
            found => found?,
        };
        let (id, by, request) = (record.id, self.asked.caller.clone(), self.asked.request_id);
        let make = |reply| RoleManagerMsg::Remove { node: id, force, by, request, reply };
        self.service.ask(self.asked, &self.manager.leader.roles, make).await?;
        Ok(NodeRemovedView {
            node: id.to_string(),
            name: record.name.to_string(),
            addr: Some(record.addr.clone()),
            member_since: Some(record.created_at),
            removed: true,
        })
    }

    /// The removal that this request asked for was accepted earlier, and its node is gone: it is done. Of a removed node
    /// only the block remains, so the id must belong to the removal of a blocked node.
    fn removed_before(&self, force: bool) -> bool {
        let tables = &self.manager.replica.borrow().tables;
        let first = tables.outcome_of(&self.asked.caller, self.asked.request_id);
        first.filter(|first| first.refused.is_none()).is_some_and(|first| {
            let of = |digest| tables.blocklist.keys().any(|node| removal_digest(*node, force) == digest);
            first.digest.is_none_or(of)
        })
    }

    async fn rename(&self, node: &str, name: &Name) -> Result<NodeRenamedView, ErrorBody> {
        let record = self.node_for_irreversible(node).await?;
        let (id, before) = (record.id, record.name.clone());
        let command = self.command("renamed").guard(Guard::NodeExists(id));
        self.propose(command.change(Change::RenameNode { node: id, name: name.clone() })).await?;
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
        let mut command = self.command("labels").guard(Guard::NodeExists(id));
        if let Some(generation) = generation {
            command = command.guard(Guard::Generation { node: id, generation });
        }
        let change = Change::UpdateLabels { node: id, add: add.clone(), remove: remove.to_vec() };
        let replica = self.propose(command.change(change)).await?;
        let roles = self.manager.leader.view.borrow().clone();
        let (peers, doubts) = ((self.manager.peers)(), self.manager.leader.doubts.borrow().clone());
        let this = self.manager.node;
        let source = Source { replica: &replica, roles: &roles, this, peers: &peers, doubts: &doubts, stale: None };
        let record = replica.tables.nodes.get(&id);
        let gone = || ErrorBody::new(ErrorCode::NotFound, format!("{id} was removed meanwhile"));
        to_text(&source.node(record.ok_or_else(gone)?))
    }

    async fn rotate(&self, node: &str) -> Result<CertificateRotationView, ErrorBody> {
        let id = self.node(node).await?.id;
        let command = self.command("rotation requested").guard(Guard::NodeExists(id));
        self.propose(command.change(Change::AskRotate(id))).await?;
        Ok(CertificateRotationView { node: id, state: CertificateState::Rotate, revoking: false })
    }

    async fn revoke(&self, node: &str) -> Result<CertificateRotationView, ErrorBody> {
        let id = self.node(node).await?.id;
        let tables = self.tables();
        if !tables.records_identities() {
            let (needs, level) = (IDENTITY_LEVEL, tables.cluster.as_ref().map_or(0, |c| c.feature_level));
            return Err(CommandRefusal::FeatureLevel { needs, level }.into());
        }
        let command = self.command("revoked").guard(Guard::NodeExists(id));
        self.propose(command.change(Change::RevokeCertificates(id))).await?;
        Ok(CertificateRotationView { node: id, state: CertificateState::Rotate, revoking: true })
    }

    async fn page_of_tokens(&self, page: &Page) -> Result<String, ErrorBody> {
        let replica = self.confirmed().await?;
        let (roles, doubts, peers) = (RoleView::default(), NodeDoubts::default(), BTreeSet::new());
        let this = self.manager.node;
        let source = Source { replica: &replica, roles: &roles, this, peers: &peers, doubts: &doubts, stale: None };
        core::list_page(&source, ListOf::Tokens, page)
    }

    async fn show_token(&self, role: Role) -> Result<TokenTextView, ErrorBody> {
        let replica = self.confirmed().await?;
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
            id: NodeId::from_entropy(self.asked.request_id.0).as_str()[17..].to_owned(),
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
        let mut command = self.command(if old.is_some() { "token rotated" } else { "token created" });
        if let Some(old) = old.filter(|old| *old != id) {
            command = command.change(Change::DeleteToken(old));
        }
        let replica = self.propose(command.change(Change::PutToken(token))).await?;
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
        let transferred = self.manager.raft.ask(self.asked.left(), make).await.map_err(ErrorBody::from)?;
        let leader = transferred.map_err(|e| self.service.proposal_error(self.manager, e))?;
        Ok(LeaderView { leader: Some(leader) })
    }

    /// Refuses at once what would otherwise time out: an unreachable node cannot take over.
    fn can_take_over(&self, to: NodeId) -> Result<(), ErrorBody> {
        let (roles, doubts, peers) = (RoleView::default(), NodeDoubts::default(), (self.manager.peers)());
        let (replica, this) = (&self.replica, self.manager.node);
        let source = Source { replica, roles: &roles, this, peers: &peers, doubts: &doubts, stale: None };
        if !source.missing().contains(&to) {
            return Ok(());
        }
        let name = |id: &NodeId| self.tables().nodes.get(id).map_or_else(|| id.to_string(), |n| n.name.to_string());
        let text = format!("{} does not answer and cannot take over; {} remains the leader", name(&to), name(&this));
        Err(ErrorBody::new(ErrorCode::TimedOut, text))
    }
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
