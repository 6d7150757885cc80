//! Requests about workloads: their entries, carried out by the leader, and which of them a local process is.

use muster_messages::protocol::CertAuthorityMsg;
use muster_messages::wire::Request;
use muster_messages::{
    Change, ErrorBody, ErrorCode, Principal, Replica, WorkloadChange, WorkloadEntry, WorkloadEntryView,
    WorkloadHolderView, WorkloadName, WorkloadRemovedView, WorkloadSelector, WorkloadSetView, WorkloadShowView,
};

use crate::ports::NodeFacts;
use crate::reads::to_text;
use crate::service::{Asked, Service};
use crate::work::{Proposed, Work};

/// A request about the entry of a workload, to the leader.
pub(crate) struct WorkloadRequests<'a> {
    pub work: Work<'a>,
}

impl WorkloadRequests<'_> {
    pub async fn lead(&self) -> Result<String, ErrorBody> {
        match &self.work.asked.request {
            Request::WorkloadSet { entry, root } => to_text(&self.set(entry, *root).await?),
            Request::WorkloadRemove { name } => to_text(&self.remove(name).await?),
            Request::WorkloadShow { name } => to_text(&self.show(name).await?),
            _ => Err(ErrorBody::new(ErrorCode::Internal, "this request does not concern workloads")),
        }
    }

    async fn set(&self, entry: &WorkloadEntry, root: bool) -> Result<WorkloadSetView, ErrorBody> {
        entry.check().map_err(ErrorBody::invalid)?;
        if entry.selectors.contains(&WorkloadSelector::UnixUid(0)) && !root {
            let text = "unix:uid:0 makes every process of root this workload, this daemon among them; confirm it with --yes, or \"root\": true over HTTP";
            return Err(ErrorBody::invalid(text));
        }
        let change = Change::Workload(Box::new(WorkloadChange::Set(entry.clone())));
        let command = self.work.command("workload set").change(change);
        let (at, replica) = match self.work.try_propose(command).await? {
            Proposed::Applied(at, replica) => (at, replica),
            Proposed::Refused(refusal) => return Err(refusal.into()),
        };
        // Of a retry, the first attempt counts; another request may have followed that.
        let first = self.work.earlier(&replica.tables).and_then(Result::ok).unwrap_or(at);
        let now = replica.tables.workloads.entries.get(&entry.name).filter(|now| now.revision <= first);
        let now = now.ok_or_else(|| overtaken(&entry.name))?;
        Ok(WorkloadSetView { changed: now.revision == first, entry: WorkloadEntryView::of(now, &replica.tables) })
    }

    async fn remove(&self, name: &WorkloadName) -> Result<WorkloadRemovedView, ErrorBody> {
        let change = Change::Workload(Box::new(WorkloadChange::Remove(name.clone())));
        let replica = self.work.propose(self.work.command("workload removed").change(change)).await?;
        // The latest end of a certificate of any entry that was removed: at the earliest this one's.
        let certificates_until = replica.tables.workloads.former_until;
        Ok(WorkloadRemovedView { name: name.clone(), removed: true, certificates_until })
    }

    async fn show(&self, name: &WorkloadName) -> Result<WorkloadShowView, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let entry = WorkloadEntryView::of(found(&replica, name)?, &replica.tables);
        let make = |reply| CertAuthorityMsg::GetHolders { workload: name.clone(), reply };
        let mut holders = self.work.ask(&self.work.manager.leader.authority, make).await?;
        holders.sort_unstable();
        let name_of = |node| replica.tables.nodes.get(&node).map(|record| record.name.clone());
        let holders = holders.into_iter().map(|(node, until)| WorkloadHolderView { node, name: name_of(node), until });
        Ok(WorkloadShowView { entry, holders: holders.collect() })
    }
}

fn overtaken(name: &WorkloadName) -> ErrorBody {
    let text = format!("workload {name} was set, and another request has changed or deleted it since");
    ErrorBody::new(ErrorCode::Conflict, text)
}

fn found<'a>(replica: &'a Replica, name: &WorkloadName) -> Result<&'a WorkloadEntry, ErrorBody> {
    let entry = replica.tables.workloads.entries.get(name);
    entry.map(|entry| &**entry).ok_or_else(|| {
        ErrorBody::new(ErrorCode::NotFound, format!("no such workload: {name}; `muster workload ls` lists them"))
    })
}

impl Service {
    /// Processes are this machine's: neither another node nor a user on the network may look at them.
    pub(crate) async fn explain_workloads(
        &self,
        asked: &Asked,
        facts: &NodeFacts,
        pid: u32,
    ) -> Result<String, ErrorBody> {
        if !matches!(&asked.caller, Principal::Operator) && asked.caller != Principal::Node(facts.id) {
            let text = "processes are explained on the socket of their own node; run the command there";
            return Err(ErrorBody::forbidden(text));
        }
        let explain = self.ports.explain_workloads.clone().ok_or_else(|| {
            let text = "this daemon serves no workloads; it does with --workload-socket PATH";
            ErrorBody::new(ErrorCode::NotFound, text)
        })?;
        let explained = tokio::task::spawn_blocking(move || explain(pid)).await;
        explained.unwrap_or_else(|_| Err(ErrorBody::new(ErrorCode::Internal, "the daemon is shutting down")))
    }
}

#[cfg(test)]
#[path = "workloads_tests.rs"]
mod tests;
