//! Reads: linearizable from the local replica after a read index; with the leader's conditions where they matter; from
//! the local replica, marked stale, where there is no quorum and the contract allows it.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::Clock;
use muster_messages::wire::{ListOf, Request};
use muster_messages::{CaView, ErrorBody, ErrorCode, ErrorMark, Replica, Revision, WallTime};
use tokio::time::Instant;

use crate::core::{self, resolve};
use crate::service::Asked;
use crate::work::Work;
use crate::writes::Writes;

/// Bytes of events in one answer: half a frame, which leaves room for the rest of the answer and for the events of one
/// revision, which are never split.
const MAX_EVENTS_PAGE_BYTES: usize = 512 * 1024;

/// A request that changes nothing.
pub(crate) struct Reads<'a> {
    pub work: Work<'a>,
}

impl Reads<'_> {
    /// The answer of a request that needs a quorum and nothing of the leader's memory.
    pub async fn confirmed(&self) -> Result<String, ErrorBody> {
        match &self.work.asked.request {
            Request::Events { since, wait_ms } => self.events(*since, Duration::from_millis(*wait_ms)).await,
            _ => {
                let replica = self.work.confirmed().await?;
                self.render(&replica, None).await
            }
        }
    }

    /// The answer of a request that the local replica may answer without quorum. The conditions of nodes are known only
    /// to the leader, so a follower forwards these requests; the leader answers after a read index.
    pub async fn staleable(&self, relayed: bool) -> Result<String, ErrorBody> {
        let Work { service, manager, asked } = self.work;
        let leading = manager.replica.borrow().raft.leading;
        let fresh = wants_fresh(&asked.request);
        let quorum_wait = if fresh { asked.left() } else { asked.left().min(service.quorum_wait.now()) };
        let local = matches!(asked.request.list(), Some((ListOf::Blocklist, _)));
        let began = Instant::now();
        if leading || (local && !relayed) {
            return match service.replica(manager, quorum_wait).await {
                Ok(replica) => self.render(&replica, None).await,
                // The relaying manager looks for the new leader, and has a replica of its own.
                Err(error) if fresh || relayed || !is_unavailable(error.code) => Err(error),
                Err(_) => self.render_stale(began).await,
            };
        }
        if relayed {
            return Err(not_leading());
        }
        let limited = Asked { deadline: began + quorum_wait, ..asked.clone() };
        let forwarded = Writes { work: Work { asked: &limited, ..self.work } };
        match Box::pin(forwarded.to_leader()).await {
            Ok(answer) => service.localize(asked, service.quorum_wait.confirmed(answer)),
            Err(error) if fresh || !is_unavailable(error.code) => Err(error),
            Err(_) => self.render_stale(began).await,
        }
    }

    /// Waits for a change of the node here, so that the leader is asked when there is something new to be read; what only the
    /// leader knows, a failed dial-back for example, is read after `wait` at the latest. A role change that this manager sees end
    /// is answered from its own replica, marked stale: the caller compares generations, so that an older state ends no wait.
    pub async fn watch_node(&self, node: &str, seen: u64, wait: Duration) -> Result<String, ErrorBody> {
        let Work { manager, asked, .. } = self.work;
        let mut changes = manager.cluster_replica.clone();
        let id = resolve(&changes.borrow().tables, node).ok().map(|record| record.id);
        let digest = |replica: &Replica| id.map_or(0, |id| core::node_digest(&replica.tables, id));
        let changed = changes.wait_for(|replica| digest(replica) != seen);
        let _in_time = tokio::time::timeout(wait.min(asked.left()), changed).await.is_ok();
        let request = Request::NodeInspect { node: node.to_owned(), fresh: false };
        let inspect = Asked { request, ..asked.clone() };
        let inspect = Reads { work: Work { asked: &inspect, ..self.work } };
        let mut settling = manager.cluster_replica.clone();
        // Before the leader is asked: a change in between ends the next wait at once.
        let known = digest(&settling.borrow());
        // The first answer, and that to a caller which has seen this state already, is the leader's.
        let ends = |replica: &Replica| {
            let settled = id.is_some_and(|id| replica.tables.is_settled(id));
            seen != 0 && settled && digest(replica) != seen
        };
        let settled = async {
            let own = settling.wait_for(|replica| ends(replica)).await.map(|replica| Arc::clone(&replica));
            match own {
                Ok(own) => own,
                // The manager runtime has ended; the answer of the leader, or its absence, is what is left.
                Err(_) => std::future::pending().await,
            }
        };
        let (seen, node) = tokio::select! {
            biased;
            own = settled => (digest(&own), inspect.render_marked(&own).await?),
            answer = Box::pin(inspect.staleable(false)) => (known, answer?),
        };
        Ok(format!("{{\"seen\":{seen},\"node\":{node}}}"))
    }

    /// A wait for a quorum that began then was in vain.
    async fn render_stale(&self, began: Instant) -> Result<String, ErrorBody> {
        self.work.service.quorum_wait.was_in_vain(began.elapsed());
        // A stale replica does not know what came after it: it never denies a node.
        self.render_marked(&self.work.local()).await.map_err(|error| match error.code {
            ErrorCode::NotFound => self.work.no_quorum(&error.message),
            _ => error,
        })
    }

    /// The answer of this manager's own replica, marked as such.
    async fn render_marked(&self, replica: &Replica) -> Result<String, ErrorBody> {
        let as_of = replica.tables.last_event().map_or_else(|| Clock.wall(), |e| e.at);
        self.render(replica, Some(as_of)).await
    }

    async fn render(&self, replica: &Replica, stale: Option<WallTime>) -> Result<String, ErrorBody> {
        let Work { service, manager, asked } = self.work;
        let _turn = match asked.request.list() {
            Some(_) => Some(service.builders.turn().await),
            None => None,
        };
        let certificate_lifetime = service.ports.certificate_lifetime;
        let source = core::Source { stale, certificate_lifetime, ..manager.source(replica) };
        if let Some((of, page)) = asked.request.list() {
            return core::list(&source, of, page);
        }
        match &asked.request {
            Request::Status { .. } => to_text(&source.status(service.this(), Clock.wall())),
            Request::NodeInspect { node, .. } => to_text(&source.node(resolve(&replica.tables, node)?)),
            Request::RaftStatus { .. } => to_text(&source.raft_status()),
            Request::CaShow => to_text(&ca(replica)?),
            Request::RootList => to_text(&core::roots(&replica.tables)?),
            Request::AutolockStatus => to_text(&core::autolock(&replica.tables)),
            other => Err(ErrorBody::new(ErrorCode::Internal, format!("not a read: {other:?}"))),
        }
    }

    async fn events(&self, since: Revision, wait: Duration) -> Result<String, ErrorBody> {
        let replica = self.work.confirmed().await?;
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
        let mut changes = self.work.manager.replica.clone();
        let limit = wait.min(self.work.asked.left());
        let newer = |r: &Replica| r.tables.events_after(since).next().is_some();
        let seen = tokio::time::timeout(limit, async { changes.wait_for(|r| newer(r)).await.ok().map(|r| r.clone()) });
        let replica = seen.await.ok().flatten().unwrap_or(replica);
        let page = move || to_text(&core::events_page(&replica.tables, since, MAX_EVENTS_PAGE_BYTES));
        self.work.service.builders.build(page).await?
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

fn ca(replica: &Replica) -> Result<CaView, ErrorBody> {
    let cluster = replica.tables.cluster.as_ref();
    let cluster = cluster.ok_or_else(|| {
        ErrorBody::new(ErrorCode::NoQuorum, "the cluster's first entry has not been applied on this node yet")
    })?;
    let bad = |why: String| ErrorBody::new(ErrorCode::Internal, format!("unreadable root certificate: {why}"));
    let digest = muster_pki::digest(&cluster.root_cert_pem).map_err(|e| bad(e.to_string()))?;
    let not_after = muster_pki::not_after_of_pem(&cluster.root_cert_pem).map_err(|e| bad(e.to_string()))?;
    Ok(CaView { digest, not_after, pem: cluster.root_cert_pem.clone(), bundle: replica.tables.bundle_pem() })
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
