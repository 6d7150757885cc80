//! Reads: linearizable from the local replica after a read index; with the leader's conditions where they matter; from
//! the local replica, marked stale, where there is no quorum and the contract allows it.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::protocol::{RaftMemberMsg, ReadError};
use muster_messages::wire::{ListOf, Request};
use muster_messages::{
    CaView, ErrorBody, ErrorCode, ErrorMark, ListView, NodeDoubts, Replica, RoleView, SelfView, Trouble, UserView,
    millis,
};
use serde_json::Value;

use crate::core::{self, Source, resolve};
use crate::ports::ManagerPorts;
use crate::service::{Asked, Service};

/// Bytes of events in one answer: half a frame, which leaves room for the rest of the answer and for the events of one
/// revision, which are never split.
const MAX_EVENTS_PAGE_BYTES: usize = 512 * 1024;

/// How long a read that may be answered stale first waits for a quorum: two election timeouts.
const QUORUM_WAIT: Duration = Duration::from_millis(1500);

impl Service {
    /// A linearizable replica.
    pub(crate) async fn replica(&self, manager: &ManagerPorts, limit: Duration) -> Result<Arc<Replica>, ErrorBody> {
        let deadline_ms = millis(limit);
        let margin = limit + Duration::from_millis(200);
        let read = manager.raft.ask(margin, |reply| RaftMemberMsg::Read { deadline_ms, reply }).await;
        match read {
            Ok(Ok(replica)) => Ok(replica),
            Ok(Err(ReadError::Busy)) => {
                let busy = ErrorBody::new(ErrorCode::TooManyRequests, "too many reads are in flight; retry");
                Err(busy.retry_after(Duration::from_millis(200)))
            }
            Ok(Err(why)) => Err(self.no_quorum(manager, &format!("the read was not confirmed ({why})"))),
            Err(why) => Err(why.into()),
        }
    }

    /// Reads that need a quorum and nothing of the leader's memory.
    pub(crate) async fn read(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        if let Request::Events { since, wait_ms } = &asked.request {
            return self.events(manager, asked, *since, Duration::from_millis(*wait_ms)).await;
        }
        let replica = self.replica(manager, asked.left()).await?;
        let (roles, peers, doubts) = (RoleView::default(), (manager.peers)(), NodeDoubts::default());
        let source = Source {
            replica: &replica,
            roles: &roles,
            this: manager.node,
            peers: &peers,
            doubts: &doubts,
            stale: None,
        };
        match &asked.request {
            Request::Page { of, page, .. } => core::list_page(&source, *of, page),
            Request::CertList => to_text(&source.certificates()),
            Request::CaShow => to_text(&ca(&replica)?),
            Request::UserList => to_text(&ListView::of(replica.tables.users.values().map(UserView::from))),
            other => Err(ErrorBody::new(ErrorCode::Internal, format!("not a read: {other:?}"))),
        }
    }

    /// Reads that the local replica may answer without quorum. The conditions of nodes are known only to the leader, so
    /// a follower forwards these reads; the leader answers after a read index.
    pub(crate) async fn staleable_read(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        relayed: bool,
    ) -> Result<String, ErrorBody> {
        let leading = manager.replica.borrow().raft.leading;
        let fresh = wants_fresh(&asked.request);
        let quorum_wait = if fresh { asked.left() } else { asked.left().min(QUORUM_WAIT) };
        let local =
            matches!(asked.request, Request::BlocklistList { .. } | Request::Page { of: ListOf::Blocklist, .. });
        if leading || (local && !relayed) {
            return match self.replica(manager, quorum_wait).await {
                Ok(replica) => self.render(manager, asked, &replica, None),
                // The relaying manager looks for the new leader, and has a replica of its own.
                Err(error) if fresh || relayed || !is_unavailable(error.code) => Err(error),
                Err(_) => self.render_stale(manager, asked),
            };
        }
        if relayed {
            return Err(not_leading());
        }
        let mut limited = asked.clone();
        limited.deadline = tokio::time::Instant::now() + quorum_wait;
        match self.to_leader(manager, &limited).await {
            Ok(answer) => self.localize(asked, answer),
            Err(error) if fresh || !is_unavailable(error.code) => Err(error),
            Err(_) => self.render_stale(manager, asked),
        }
    }

    /// Waits for a change of the node here, so that the leader is asked when there is something new to be read; what only the
    /// leader knows, a failed dial-back for example, is read after `wait` at the latest.
    pub(crate) async fn watch_node(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        node: &str,
        seen: u64,
        wait: Duration,
    ) -> Result<String, ErrorBody> {
        let mut changes = manager.replica.clone();
        let id = resolve(&changes.borrow().tables, node).ok().map(|record| record.id);
        let digest = |replica: &Replica| id.map_or(0, |id| core::node_digest(&replica.tables, id));
        let changed = changes.wait_for(|replica| digest(replica) != seen);
        let _in_time = tokio::time::timeout(wait.min(asked.left()), changed).await.is_ok();
        // Before the leader is asked: a change in between ends the next wait at once.
        let seen = digest(&manager.replica.borrow());
        let mut inspect = asked.clone();
        inspect.request = Request::NodeInspect { node: node.to_owned(), fresh: false };
        let node = self.staleable_read(manager, &inspect, false).await?;
        Ok(format!("{{\"seen\":{seen},\"node\":{node}}}"))
    }

    fn render_stale(&self, manager: &ManagerPorts, asked: &Asked) -> Result<String, ErrorBody> {
        let replica = manager.replica.borrow().clone();
        let as_of = replica.tables.last_event().map_or_else(|| muster_kernel::Clock.wall(), |e| e.at);
        // A stale replica does not know what came after it: it never denies a node.
        self.render(manager, asked, &replica, Some(as_of)).map_err(|error| match error.code {
            ErrorCode::NotFound => self.no_quorum(manager, &error.message),
            _ => error,
        })
    }

    fn render(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        replica: &Replica,
        stale: Option<muster_messages::WallTime>,
    ) -> Result<String, ErrorBody> {
        let roles = manager.leader.view.borrow().clone();
        let none = RoleView::default();
        let peers = (manager.peers)();
        let roles: &RoleView = if replica.raft.leading { &roles } else { &none };
        let doubts = if replica.raft.leading { manager.leader.doubts.borrow().clone() } else { Arc::default() };
        let source = Source { replica, roles, this: manager.node, peers: &peers, doubts: &doubts, stale };
        match &asked.request {
            Request::Status { .. } => to_text(&source.status(self.this())),
            Request::Page { of, page, .. } => core::list_page(&source, *of, page),
            Request::NodeList { .. } => to_text(&source.node_list()),
            Request::NodeInspect { node, .. } => to_text(&source.node(resolve(&replica.tables, node)?)),
            Request::BlocklistList { .. } => to_text(&source.blocklist()),
            Request::RaftStatus { .. } => to_text(&source.raft_status()),
            other => Err(ErrorBody::new(ErrorCode::Internal, format!("not a read: {other:?}"))),
        }
    }

    fn this(&self) -> SelfView {
        let facts = (self.ports.facts)();
        let trouble = facts.trouble.or_else(|| self.manager_runtime_fault().map(Trouble::ManagerFailing));
        SelfView { id: facts.id, name: facts.name, role: facts.role, trouble: trouble.map(|t| t.to_string()) }
    }

    /// The answering manager wrote itself into `self` of `status`; it is replaced by the node that was asked.
    pub(crate) fn localize(&self, asked: &Asked, answer: String) -> Result<String, ErrorBody> {
        if !matches!(asked.request, Request::Status { .. }) {
            return Ok(answer);
        }
        let mut value: Value =
            serde_json::from_str(&answer).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
        if let Some(map) = value.as_object_mut() {
            map.insert("self".to_owned(), to_json(&self.this())?);
        }
        Ok(value.to_string())
    }

    async fn events(
        &self,
        manager: &ManagerPorts,
        asked: &Asked,
        since: muster_messages::Revision,
        wait: Duration,
    ) -> Result<String, ErrorBody> {
        let replica = self.replica(manager, asked.left()).await?;
        if let Some(oldest) = replica.tables.events.front()
            && since.0 != 0
            && since.0.saturating_add(1) < oldest.revision.0
            && replica.tables.events.len() >= muster_store::MAX_EVENTS
        {
            let text = format!(
                "events after {since} are no longer kept (the oldest is {}); start again without --since",
                oldest.revision
            );
            return Err(ErrorBody::new(ErrorCode::Conflict, text));
        }
        let mut changes = manager.replica.clone();
        let limit = wait.min(asked.left());
        let newer = |r: &Replica| r.tables.events_after(since).next().is_some();
        let seen = tokio::time::timeout(limit, changes.wait_for(|r| newer(r))).await;
        let replica = match seen {
            Ok(Ok(replica)) => replica.clone(),
            _ => replica,
        };
        to_text(&core::events_page(&replica.tables, since, MAX_EVENTS_PAGE_BYTES))
    }
}

fn wants_fresh(request: &Request) -> bool {
    match request {
        Request::Status { fresh }
        | Request::NodeList { fresh }
        | Request::NodeInspect { fresh, .. }
        | Request::BlocklistList { fresh }
        | Request::RaftStatus { fresh }
        | Request::Page { fresh, .. } => *fresh,
        _ => true,
    }
}

/// The answer of a manager that was asked as the leader and is not: the relaying manager tries again.
pub(crate) fn not_leading() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead")
        .marked(ErrorMark::NotLeading)
        .retry_after(Duration::from_millis(20))
}

pub(crate) fn is_unavailable(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::NoQuorum | ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::UnknownOutcome)
}

/// A view as text, without a [`Value`] in between: that took a tenth of a leader's time under load.
pub(crate) fn to_text<T: serde::Serialize>(view: &T) -> Result<String, ErrorBody> {
    serde_json::to_string(view).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
}

fn to_json<T: serde::Serialize>(view: &T) -> Result<Value, ErrorBody> {
    serde_json::to_value(view).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))
}

fn ca(replica: &Replica) -> Result<CaView, ErrorBody> {
    let cluster = replica.tables.cluster.as_ref();
    let cluster = cluster.ok_or_else(|| {
        ErrorBody::new(ErrorCode::NoQuorum, "the cluster's first entry has not been applied on this node yet")
    })?;
    let bad = |why: String| ErrorBody::new(ErrorCode::Internal, format!("unreadable root certificate: {why}"));
    let digest = muster_pki::digest(&cluster.root_cert_pem).map_err(|e| bad(e.to_string()))?;
    let not_after = muster_pki::not_after_of_pem(&cluster.root_cert_pem).map_err(|e| bad(e.to_string()))?;
    Ok(CaView { digest, not_after, pem: cluster.root_cert_pem.clone() })
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
