//! Workloads as tables.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{
    ListView, UnknownSelectorView, WorkloadEntryView, WorkloadExplainedView, WorkloadHolderView, WorkloadMismatchView,
    WorkloadShowView,
};

use super::{list, when};
use crate::cli::output::{Table, or_dash, printable, yes_or_no};

fn selectors(entry: &WorkloadEntryView) -> String {
    joined(entry.selectors.iter().map(|selector| printable(&selector.to_string())))
}

fn labels(labels: &BTreeMap<String, String>) -> String {
    joined(labels.iter().map(|(key, value)| printable(&format!("{key}={value}"))))
}

fn joined(texts: impl Iterator<Item = String>) -> String {
    let texts: Vec<String> = texts.collect();
    or_dash((!texts.is_empty()).then(|| texts.join(" ")))
}

fn lifetime(entry: &WorkloadEntryView) -> String {
    let secs = Duration::from_millis(entry.ttl_ms).as_secs();
    match (secs % 3600, secs % 60) {
        (0, _) => format!("{}h", secs / 3600),
        (_, 0) => format!("{}m", secs / 60),
        _ => format!("{secs}s"),
    }
}

/// `muster workload ls`.
pub fn workloads(workloads: &ListView<WorkloadEntryView>) -> String {
    list(
        &workloads.items,
        &["WORKLOAD", "SELECTORS", "NODE LABELS", "TTL", "HINT"],
        &[
            |entry: &WorkloadEntryView| entry.name.to_string(),
            selectors,
            |entry| labels(&entry.node_labels),
            lifetime,
            |entry| or_dash(entry.hint.as_deref().map(printable)),
        ],
        "no workloads; `muster workload set` makes one",
    )
}

/// `muster workload show`.
pub fn workload(shown: &WorkloadShowView) -> String {
    let entry = &shown.entry;
    let mut table = Table::bare();
    for (key, value) in [
        ("workload", entry.name.to_string()),
        ("identity", printable(&entry.spiffe_id)),
        ("selectors", selectors(entry)),
        ("node labels", labels(&entry.node_labels)),
        ("lifetime", lifetime(entry)),
        ("DNS names", joined(entry.dns.iter().map(|name| printable(name)))),
        ("hint", or_dash(entry.hint.as_deref().map(printable))),
        ("JWTs", yes_or_no(entry.jwt)),
        ("created by", printable(&entry.created_by)),
        ("revision", entry.revision.to_string()),
    ] {
        table.row([key.to_owned(), value]);
    }
    let holders = list(
        &shown.holders,
        &["NODE", "UNTIL"],
        &[
            |holder: &WorkloadHolderView| {
                holder.name.as_ref().map_or_else(|| holder.node.to_string(), ToString::to_string)
            },
            |holder| when(holder.until),
        ],
        "no node holds a certificate that this leader has signed for the workload",
    );
    format!("{}\n{holders}", table.render())
}

/// `muster workload explain`.
pub fn workload_explained(explained: &WorkloadExplainedView) -> String {
    let mut table = Table::bare();
    table.row(["process".to_owned(), explained.pid.to_string()]);
    table.row(["seen".to_owned(), joined(explained.selectors.iter().map(|s| printable(&s.to_string())))]);
    table.row(["matches".to_owned(), joined(explained.matches.iter().map(ToString::to_string))]);
    let mut text = table.render();
    if !explained.unknown.is_empty() {
        text += "\n";
        text += &list(
            &explained.unknown,
            &["NOT KNOWN", "WHY"],
            &[|unknown: &UnknownSelectorView| printable(&unknown.selector), |unknown| printable(&unknown.why)],
            "",
        );
    }
    if !explained.others.is_empty() {
        text += "\n";
        text += &list(
            &explained.others,
            &["NO MATCH", "FIRST MISMATCH"],
            &[
                |other: &WorkloadMismatchView| other.name.to_string(),
                |other| or_dash(other.selector.as_ref().map(|selector| printable(&selector.to_string()))),
            ],
            "",
        );
    }
    text
}
