//! `muster workload …`

use muster_client::Outcome;
use muster_messages::wire::{ListOf, Request};
use muster_messages::{
    DEFAULT_WORKLOAD_TTL, ListView, WorkloadEntry, WorkloadEntryView, WorkloadExplainedView, WorkloadRemovedView,
    WorkloadSetView, WorkloadShowView,
};

use super::Context;
use crate::cli::args::{WorkloadArgs, WorkloadCommand};
use crate::cli::output::{lines, printable, without_fraction};
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: WorkloadCommand) -> Outcome<u8> {
    match command {
        WorkloadCommand::Set(args) => {
            let request = set(args);
            ctx.show(request, |set: &WorkloadSetView| printable(&set.entry.spiffe_id), sentence).await
        }
        WorkloadCommand::Ls => {
            let names = |list: &ListView<WorkloadEntryView>| lines(list.items.iter().map(|entry| &entry.name));
            ctx.show_list(ListOf::Workloads, true, names, render::workloads).await
        }
        WorkloadCommand::Show { name } => {
            let id = |shown: &WorkloadShowView| printable(&shown.entry.spiffe_id);
            ctx.show(Request::WorkloadShow { name }, id, render::workload).await
        }
        WorkloadCommand::Rm { name } => {
            let sentence = |removed: &WorkloadRemovedView| {
                format!(
                    "workload {} is removed; its processes lose their certificates now, and a copy that one of them made ends \
                     by {}",
                    removed.name,
                    without_fraction(&removed.certificates_until.to_string())
                )
            };
            ctx.show(Request::WorkloadRemove { name }, |_| String::new(), sentence).await
        }
        WorkloadCommand::Explain { pid } => {
            let names = |explained: &WorkloadExplainedView| lines(explained.matches.iter());
            ctx.show(Request::WorkloadExplain { pid }, names, render::workload_explained).await
        }
    }
}

/// The leader checks it.
fn set(args: WorkloadArgs) -> Request {
    let WorkloadArgs { name, selectors, node_labels, ttl, dns, hint, jwt, yes } = args;
    let entry = WorkloadEntry {
        node_labels: node_labels.into_iter().collect(),
        ttl: ttl.unwrap_or(DEFAULT_WORKLOAD_TTL),
        dns,
        hint,
        jwt,
        ..WorkloadEntry::new(name, selectors)
    };
    Request::WorkloadSet { entry: Box::new(entry), root: yes }
}

fn sentence(set: &WorkloadSetView) -> String {
    let id = printable(&set.entry.spiffe_id);
    match set.changed {
        true => format!("workload {} is set: processes that match it get {id}", set.entry.name),
        false => format!("workload {} is unchanged: {id}", set.entry.name),
    }
}
