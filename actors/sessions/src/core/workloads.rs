//! Which workloads apply to which node, computed once for all nodes with the same labels.
//!
//! Owns        the labels that any workload names, and the workloads of each combination of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::{AgentAsk, HostFrame, WorkloadsPage};
use muster_messages::{ErrorBody, ErrorCode, Incarnation, Revision, WorkloadEntry, Workloads};

use super::node_update::{NodeRecordState, NodeUpdate};

/// The workloads that apply to a node, by name.
pub type Applying = Arc<Vec<Arc<WorkloadEntry>>>;

type Labels = BTreeMap<String, String>;

/// The nodes of a host, by those of their labels that any workload names.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    keys: BTreeSet<String>,
    known: BTreeMap<Labels, Applying>,
}

/// Groups that are remembered: more than a cluster has kinds of nodes. Beyond that each node has its own list.
const MAX_GROUPS: usize = 256;

impl Groups {
    pub fn of(workloads: &Workloads) -> Self {
        let keys = workloads.entries.values().flat_map(|entry| entry.node_labels.keys().cloned());
        Self { keys: keys.collect(), known: BTreeMap::new() }
    }

    pub fn applying(&mut self, workloads: &Workloads, labels: &Labels) -> Applying {
        let asked = |key: &String| labels.get(key).map(|value| (key.clone(), value.clone()));
        let labels: Labels = self.keys.iter().filter_map(asked).collect();
        if let Some(applying) = self.known.get(&labels) {
            return Arc::clone(applying);
        }
        let entries = workloads.entries.values().filter(|entry| entry.applies_to(&labels)).cloned();
        let applying: Applying = Arc::new(entries.collect());
        if self.known.len() < MAX_GROUPS {
            self.known.insert(labels, Arc::clone(&applying));
        }
        applying
    }
}

/// What an agent that was shown `shown` has to learn of its workloads.
pub fn news(shown: Option<&NodeUpdate>, now: &NodeUpdate) -> Vec<Box<HostFrame>> {
    match &now.workloads {
        Some(applying) if shown.and_then(|shown| shown.workloads.as_ref()) != Some(applying) => {
            let pages = pages(applying, now.shared.incarnation, now.revision);
            pages.into_iter().map(|page| Box::new(HostFrame::Workloads(page))).collect()
        }
        // Without a record nothing is sent, and the node's session ends.
        _ => Vec::new(),
    }
}

/// Why a request is not passed on. An earlier release, whose leader cannot decode the call, has no workloads. Not final: the node knows of
/// the workload, or it would not ask, so this manager's copy of the state is behind. Programs keep waiting.
pub fn refusal(ask: &AgentAsk, known: Option<&NodeUpdate>) -> Option<ErrorBody> {
    let why = match known {
        _ if !matches!(ask, AgentAsk::SignWorkload(_)) => return None,
        Some(NodeUpdate { workloads: Some(_), .. }) => return None,
        Some(NodeUpdate { record_state: NodeRecordState::Known { .. }, .. }) => "no workload",
        _ => "no record of this node",
    };
    let text = format!("this manager's copy of the cluster's state has {why} yet; retry");
    Some(ErrorBody::new(ErrorCode::NotKnownHereYet, text).retry_after(CATCH_UP_PAUSE))
}

/// Time in which a manager that follows its leader has caught up.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(200);

/// Room of a page for entries: a frame has 1 MiB.
const MAX_PAGE_BYTES: usize = 960 << 10;

/// As frames for the agent: at least one.
fn pages(applying: &Applying, incarnation: Incarnation, revision: Revision) -> Vec<WorkloadsPage> {
    let mut pages = vec![Vec::new()];
    let mut bytes = 0;
    for entry in applying.iter() {
        let more = entry.encoded_bytes();
        if bytes + more > MAX_PAGE_BYTES {
            pages.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        pages.last_mut().expect("there is a first page").push(WorkloadEntry::clone(entry));
    }
    let last = pages.len() - 1;
    let page = |(n, entries): (u32, Vec<WorkloadEntry>)| WorkloadsPage {
        incarnation,
        revision,
        page: n,
        last: n as usize == last,
        entries,
    };
    (0..).zip(pages).map(page).collect()
}

#[cfg(test)]
mod tests {
    use muster_messages::wire::encode;
    use muster_messages::{MAX_WORKLOADS, WorkloadSelector};

    use super::*;

    fn labels(of: &[(&str, &str)]) -> Labels {
        of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn entry(n: usize, node_labels: Labels) -> Arc<WorkloadEntry> {
        let name = format!("shop/w{n:04}").parse().unwrap();
        Arc::new(WorkloadEntry { node_labels, ..WorkloadEntry::new(name, [WorkloadSelector::UnixUid(1)]) })
    }

    fn of(entries: impl IntoIterator<Item = Arc<WorkloadEntry>>) -> Workloads {
        let entries = entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        Workloads { entries, changed: Revision(7), ..Workloads::default() }
    }

    #[test]
    fn nodes_with_the_same_labels_share_their_workloads() {
        let workloads = of([entry(1, labels(&[])), entry(2, labels(&[("zone", "a")]))]);
        let mut groups = Groups::of(&workloads);
        let in_a = groups.applying(&workloads, &labels(&[("zone", "a"), ("disk", "ssd")]));
        let also_in_a = groups.applying(&workloads, &labels(&[("zone", "a")]));
        let elsewhere = groups.applying(&workloads, &labels(&[("zone", "b")]));
        assert!(Arc::ptr_eq(&in_a, &also_in_a));
        assert_eq!((in_a.len(), elsewhere.len()), (2, 1));
    }

    #[test]
    fn all_workloads_fit_into_frames() {
        let path = |n: usize| WorkloadSelector::UnixPath(format!("/{}{n}", "p".repeat(1000)));
        let large = |n: usize| {
            let name = format!("{}/{n:063}", "s".repeat(63)).parse().unwrap();
            let entry = WorkloadEntry::new(name, (0..4).map(path));
            entry.check().unwrap();
            Arc::new(WorkloadEntry { created_by: "an operator".repeat(20), ..entry })
        };
        let applying: Applying = Arc::new((0..MAX_WORKLOADS).map(large).collect());
        let pages = pages(&applying, Incarnation(1), Revision(9));
        assert!(pages.len() <= 10, "{} pages", pages.len());
        assert!(pages.iter().rev().skip(1).all(|page| !page.last) && pages.last().unwrap().last);
        assert_eq!(pages.iter().map(|page| page.entries.len()).sum::<usize>(), MAX_WORKLOADS);
        for (n, page) in pages.into_iter().enumerate() {
            assert_eq!(page.page as usize, n);
            encode(&HostFrame::Workloads(page)).unwrap();
        }
        let none = super::pages(&Applying::default(), Incarnation(1), Revision(9));
        assert!(none.len() == 1 && none[0].last && none[0].entries.is_empty());
    }
}
