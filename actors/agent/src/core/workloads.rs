//! Workloads: those that apply to this node, as the newest complete list of any host has them.
//!
//! Owns        the list that is being received, and how new the last complete one was.
//! Invariants  AGENT-14  a list is published only when it is complete, and never after a newer one: a host that lags behind brings back
//!                       no workload that was removed.

use muster_messages::wire::WorkloadsPage;
use muster_messages::{Incarnation, MAX_WORKLOADS, Revision, WorkloadEntry};

use super::{Attempt, Effect};

/// How new a list is: a recovery begins another history.
type Stamp = (Incarnation, Revision);

/// A list whose last pages are missing.
#[derive(Clone, Debug)]
struct Partial {
    on: Attempt,
    stamp: Stamp,
    pages: u32,
    entries: Vec<WorkloadEntry>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Workloads {
    partial: Option<Partial>,
    newest: Stamp,
    /// The session whose host has sent a list.
    told_on: Option<Attempt>,
}

impl Workloads {
    /// A page. `vouched`: the newest incarnation of which this host may know.
    pub fn received(&mut self, on: Attempt, page: WorkloadsPage, vouched: Incarnation, out: &mut Vec<Effect>) {
        let stamp = (page.incarnation, page.revision);
        self.told_on = Some(on);
        let mut list = match self.partial.take() {
            Some(begun) if (begun.on, begun.stamp, begun.pages) == (on, stamp, page.page) => begun,
            _ if page.page == 0 => Partial { on, stamp, pages: 0, entries: Vec::new() },
            _ => return,
        };
        list.pages += 1;
        list.entries.extend(page.entries);
        if page.incarnation > vouched || list.entries.len() > MAX_WORKLOADS {
            return;
        }
        if page.last {
            self.complete(stamp, list.entries, out);
        } else {
            self.partial = Some(list);
        }
    }

    /// A sign of life of a host that has sent no list in its session: as of this revision the cluster never had a workload.
    pub fn silent(&mut self, on: Attempt, stamp: Stamp, out: &mut Vec<Effect>) {
        if self.told_on.replace(on) != Some(on) {
            self.complete(stamp, Vec::new(), out);
        }
    }

    fn complete(&mut self, stamp: Stamp, entries: Vec<WorkloadEntry>, out: &mut Vec<Effect>) {
        if stamp >= self.newest {
            self.newest = stamp;
            out.push(Effect::PublishWorkloads(entries));
        }
    }

    /// Views of every host have been older than one before: what that host said is as doubtful.
    pub fn forget(&mut self) {
        self.newest = Stamp::default();
    }

    /// This node is permanently out.
    pub fn end(&mut self, out: &mut Vec<Effect>) {
        self.partial = None;
        out.push(Effect::PublishWorkloads(Vec::new()));
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::WorkloadSelector;

    use super::*;

    const ONE: Incarnation = Incarnation(1);

    fn entry(n: u32) -> WorkloadEntry {
        WorkloadEntry::new(format!("a/w{n}").parse().unwrap(), [WorkloadSelector::UnixUid(n)])
    }

    fn page(revision: u64, page: u32, last: bool, entries: &[u32]) -> WorkloadsPage {
        let entries = entries.iter().map(|n| entry(*n)).collect();
        WorkloadsPage { incarnation: ONE, revision: Revision(revision), page, last, entries }
    }

    /// The list that the page completes.
    fn receive(workloads: &mut Workloads, on: u64, page: WorkloadsPage) -> Option<Vec<String>> {
        published(|out| workloads.received(Attempt(on), page, ONE, out))
    }

    fn published(step: impl FnOnce(&mut Vec<Effect>)) -> Option<Vec<String>> {
        let mut out = Vec::new();
        step(&mut out);
        out.pop().map(|effect| match effect {
            Effect::PublishWorkloads(entries) => entries.iter().map(|entry| entry.name.to_string()).collect(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn workloads_are_published_when_their_list_is_complete() {
        let mut workloads = Workloads::default();
        assert_eq!(receive(&mut workloads, 1, page(5, 0, false, &[1])), None);
        assert_eq!(receive(&mut workloads, 1, page(5, 1, true, &[2])), Some(vec!["a/w1".into(), "a/w2".into()]));
        // A page is missing, of another revision, or of another session.
        for (on, second) in [(1, page(6, 2, true, &[2])), (1, page(7, 1, true, &[2])), (2, page(6, 1, true, &[2]))] {
            assert_eq!(receive(&mut workloads, 1, page(6, 0, false, &[1])), None);
            assert_eq!(receive(&mut workloads, on, second), None);
        }
        assert_eq!(receive(&mut workloads, 2, page(6, 0, true, &[])), Some(vec![]));
    }

    #[test]
    fn older_workloads_never_replace_newer_ones() {
        let mut workloads = Workloads::default();
        assert!(receive(&mut workloads, 1, page(5, 0, true, &[])).is_some());
        assert_eq!(receive(&mut workloads, 2, page(4, 0, true, &[1])), None, "removed by then");
        assert!(receive(&mut workloads, 2, page(5, 0, true, &[])).is_some(), "as new");
        let false_one = WorkloadsPage { incarnation: Incarnation(2), ..page(9, 0, true, &[1]) };
        assert_eq!(receive(&mut workloads, 2, false_one), None, "an incarnation that the host does not vouch for");
        workloads.forget();
        assert!(receive(&mut workloads, 2, page(4, 0, true, &[1])).is_some());
    }

    #[test]
    fn a_host_without_a_list_knows_of_no_workload() {
        let mut workloads = Workloads::default();
        let silent = |workloads: &mut Workloads, on, revision| {
            published(|out| workloads.silent(Attempt(on), (ONE, Revision(revision)), out))
        };
        assert_eq!(silent(&mut workloads, 1, 3), Some(vec![]));
        assert_eq!(silent(&mut workloads, 1, 4), None, "said once in a session");
        assert!(receive(&mut workloads, 1, page(6, 0, true, &[1])).is_some());
        assert_eq!(silent(&mut workloads, 1, 7), None);
        assert_eq!(silent(&mut workloads, 2, 5), None, "it lags behind");
        assert_eq!(published(|out| workloads.end(out)), Some(vec![]));
    }
}
