//! Workloads: those that apply to this node, as the newest complete list of any host has them.
//!
//! Owns        the list that is being received, or the complete one that is not published, and how new the published one is.
//! Invariants  AGENT-14  a list is published only when it is complete, and never after a newer one: a host that lags behind, or whose
//!                       state no longer advances, brings back no workload that was removed. A false revision holds back a genuine list
//!                       for no longer than a minute in which one host's state advances.
//! Why a list that is older is kept: a host sends it once, and not again until it changes. It is published once the host's answers show
//! that it still holds as of a newer state, or once the newer stamp has proven false.
//! Why an answer must name a later revision than the one before: a host whose state no longer advances, such as a former leader that was
//! cut off, answers heartbeats with the same revision without end. That shows neither that its list still holds nor that another one's
//! revision is false.

use muster_messages::wire::WorkloadsPage;
use muster_messages::{Incarnation, MAX_WORKLOADS, Moment, WorkloadEntry};

use super::newest::{Age, Newest, Stamp};
use super::{Attempt, Effect};
use crate::config::AgentConfig;

/// A host's answers advance steadily while none of the pauses between two later revisions is longer than this part of
/// [`AgentConfig::forget_views`]: a few heartbeats. One that stood still for longer and then catches up was not there all the time.
const STEADY: u32 = 4;

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
    newest: Newest,
    /// The session whose host has sent a list.
    listed_on: Option<Attempt>,
    /// When the answers of that host last named a later revision than before.
    risen: Option<Moment>,
    /// The last complete list of that host, while it is older than another one, and the state as of which it is known to hold.
    unpublished: Option<(Stamp, Vec<WorkloadEntry>)>,
}

impl Workloads {
    /// `stamp`: of the list that an earlier incarnation has published.
    pub fn after(stamp: Stamp) -> Self {
        Self { newest: Newest::of(stamp), ..Self::default() }
    }

    /// A page. `vouched`: the newest incarnation of which this host may know.
    pub fn received(&mut self, (on, vouched): (Attempt, Incarnation), page: WorkloadsPage, out: &mut Vec<Effect>) {
        let stamp = (page.incarnation, page.revision);
        self.begin(on);
        // The host has another list by now, even if this page cannot be used.
        self.unpublished = None;
        let mut list = match self.partial.take() {
            _ if page.page == 0 => Partial { on, stamp, pages: 0, entries: Vec::new() },
            Some(begun) if (begun.on, begun.stamp, begun.pages) == (on, stamp, page.page) => begun,
            _ => return,
        };
        list.pages += 1;
        list.entries.extend(page.entries);
        if page.incarnation > vouched || list.entries.len() > MAX_WORKLOADS {
            return;
        }
        if !page.last {
            self.partial = Some(list);
        } else if self.newest.replace(stamp) {
            out.push(Effect::PublishWorkloads { entries: list.entries, stamp });
        } else {
            self.unpublished = Some((stamp, list.entries));
        }
    }

    /// A heartbeat answer: what its host has sent before holds as of this revision. If that is nothing, the cluster never had a workload.
    pub fn acknowledged(
        &mut self,
        (now, config): (Moment, &AgentConfig),
        on: Attempt,
        stamp: Stamp,
        out: &mut Vec<Effect>,
    ) {
        if self.begin(on) {
            if self.newest.replace(stamp) {
                out.push(Effect::PublishWorkloads { entries: Vec::new(), stamp });
            } else {
                self.unpublished = Some((stamp, Vec::new()));
            }
            return;
        }
        let Some((held, entries)) = self.unpublished.take() else { return };
        if stamp <= held {
            self.unpublished = Some((held, entries));
            return;
        }
        if self.risen.replace(now).is_some_and(|risen| now.since(risen) > config.forget_views / STEADY) {
            self.newest = Newest::of(self.newest.stamp());
        }
        if self.newest.judge(now, stamp, config.forget_views) == Age::Older {
            self.unpublished = Some((stamp, entries));
        } else {
            out.push(Effect::PublishWorkloads { entries, stamp });
        }
    }

    /// Whether this is the first of the session. A list of another host is not awaited any more, and what another host has shown does not
    /// count against the newest revision: that host may have lagged behind for longer.
    fn begin(&mut self, on: Attempt) -> bool {
        let is_first = self.listed_on.replace(on) != Some(on);
        if is_first {
            (self.partial, self.unpublished, self.risen) = (None, None, None);
            self.newest = Newest::of(self.newest.stamp());
        }
        is_first
    }

    /// This node is permanently out.
    pub fn end(&mut self, out: &mut Vec<Effect>) {
        (self.partial, self.unpublished) = (None, None);
        out.push(Effect::PublishWorkloads { entries: Vec::new(), stamp: self.newest.stamp() });
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::{Revision, WorkloadSelector};

    use super::*;

    const ONE: Incarnation = Incarnation(1);
    const NOW: Moment = Moment(1_000_000_000);
    const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(5);

    fn entry(n: u32) -> WorkloadEntry {
        WorkloadEntry::new(format!("a/w{n}").parse().unwrap(), [WorkloadSelector::UnixUid(n)])
    }

    fn page(revision: u64, page: u32, last: bool, entries: &[u32]) -> WorkloadsPage {
        let entries = entries.iter().map(|n| entry(*n)).collect();
        WorkloadsPage { incarnation: ONE, revision: Revision(revision), page, last, entries }
    }

    /// The list that is published with the page.
    fn receive(workloads: &mut Workloads, on: u64, page: WorkloadsPage) -> Option<Vec<String>> {
        published(|out| workloads.received((Attempt(on), ONE), page, out))
    }

    /// The list that is published with a heartbeat answer.
    fn acknowledge(workloads: &mut Workloads, now: Moment, on: u64, revision: u64) -> Option<Vec<String>> {
        let config = AgentConfig::default();
        published(|out| workloads.acknowledged((now, &config), Attempt(on), (ONE, Revision(revision)), out))
    }

    fn published(step: impl FnOnce(&mut Vec<Effect>)) -> Option<Vec<String>> {
        let mut out = Vec::new();
        step(&mut out);
        out.pop().map(|effect| match effect {
            Effect::PublishWorkloads { entries, .. } => entries.iter().map(|entry| entry.name.to_string()).collect(),
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
    }

    /// AGENT-10, for lists and for heartbeat answers: a host sends its list once.
    #[test]
    fn an_impossible_revision_of_a_list_is_forgotten() {
        let forget_after = AgentConfig::default().forget_views;
        for false_list in [true, false] {
            let mut workloads = Workloads::default();
            let lied = match false_list {
                true => receive(&mut workloads, 1, page(u64::MAX, 0, true, &[])),
                false => acknowledge(&mut workloads, NOW, 1, u64::MAX),
            };
            assert_eq!(lied, Some(vec![]));
            assert_eq!(receive(&mut workloads, 2, page(4, 0, true, &[1])), None);
            for beat in 0..12 {
                assert_eq!(acknowledge(&mut workloads, NOW + HEARTBEAT * beat, 2, 5 + u64::from(beat)), None);
            }
            assert_eq!(acknowledge(&mut workloads, NOW + forget_after, 2, 20), Some(vec!["a/w1".into()]));
            assert_eq!(receive(&mut workloads, 2, page(21, 0, true, &[2])), Some(vec!["a/w2".into()]));
        }
    }

    /// A host whose state does not advance, such as a leader that was cut off, names one revision for as long as it answers.
    #[test]
    fn a_host_that_is_stuck_brings_nothing_back() {
        let forget_after = AgentConfig::default().forget_views;
        let mut workloads = Workloads::default();
        assert!(receive(&mut workloads, 1, page(9, 0, true, &[])).is_some(), "w1 was removed");
        assert_eq!(receive(&mut workloads, 2, page(7, 0, true, &[1])), None);
        for beats in 0..100 {
            assert_eq!(acknowledge(&mut workloads, NOW + HEARTBEAT * beats, 2, 7), None);
        }
        let later = NOW + HEARTBEAT * 100;
        // It catches up, step by step: its list holds no longer.
        assert_eq!(acknowledge(&mut workloads, later, 2, 8), None);
        assert_eq!(receive(&mut workloads, 2, page(9, 0, true, &[])), Some(vec![]));
        // Neither does the time that one host has lost count for the next one, nor its list.
        for (on, after) in [(3, forget_after * 10), (4, forget_after * 20)] {
            assert_eq!(receive(&mut workloads, on, page(6, 0, true, &[1])), None);
            assert_eq!(acknowledge(&mut workloads, later + after, on, 7), None);
            assert_eq!(acknowledge(&mut workloads, later + after, on, 6), None, "a late answer");
        }
        // A page of the same list again, and one of a list whose first page is missing.
        assert_eq!(receive(&mut workloads, 4, page(6, 0, true, &[1])), None);
        assert_eq!(receive(&mut workloads, 4, page(9, 1, true, &[1])), None);
        assert_eq!(acknowledge(&mut workloads, later + forget_after * 30, 4, 10), None, "nothing that it has sent");
    }

    /// A host that was cut off, and answers again on its way to the newest state, shows nothing about the time between.
    #[test]
    fn a_host_that_catches_up_after_a_pause_brings_nothing_back() {
        let forget_after = AgentConfig::default().forget_views;
        let mut workloads = Workloads::default();
        assert!(receive(&mut workloads, 1, page(20, 0, true, &[])).is_some(), "w1 was removed");
        assert_eq!(receive(&mut workloads, 2, page(7, 0, true, &[1])), None);
        assert_eq!(acknowledge(&mut workloads, NOW, 2, 8), None);
        assert_eq!(acknowledge(&mut workloads, NOW + forget_after * 2, 2, 12), None);
        assert_eq!(acknowledge(&mut workloads, NOW + forget_after * 2 + HEARTBEAT, 2, 13), None);
    }

    /// Once the first page of a list is here, the one before holds no longer.
    #[test]
    fn the_first_page_of_a_list_replaces_what_was_collected() {
        let mut workloads = Workloads::default();
        assert!(receive(&mut workloads, 1, page(9, 0, true, &[])).is_some());
        assert_eq!(receive(&mut workloads, 2, page(8, 0, true, &[1])), None);
        assert_eq!(receive(&mut workloads, 2, page(10, 0, false, &[2])), None);
        assert_eq!(acknowledge(&mut workloads, NOW, 2, 10), None, "the list as of 8 does not hold as of 10");
        assert_eq!(receive(&mut workloads, 2, page(10, 0, false, &[3])), None, "it begins again");
        assert_eq!(receive(&mut workloads, 2, page(10, 1, true, &[4])), Some(vec!["a/w3".into(), "a/w4".into()]));
    }

    #[test]
    fn list_of_a_host_that_lagged_is_published_once_it_caught_up() {
        let mut workloads = Workloads::default();
        assert!(receive(&mut workloads, 1, page(9, 0, true, &[])).is_some());
        assert_eq!(receive(&mut workloads, 2, page(8, 0, true, &[1])), None);
        assert_eq!(acknowledge(&mut workloads, NOW, 2, 8), None);
        assert_eq!(acknowledge(&mut workloads, NOW, 2, 10), Some(vec!["a/w1".into()]), "it holds as of a newer state");
        assert_eq!(receive(&mut workloads, 3, page(8, 0, true, &[2])), None);
        assert_eq!(
            acknowledge(&mut workloads, NOW, 4, 11),
            Some(vec![]),
            "another host's list is not published for it"
        );
    }

    #[test]
    fn a_host_without_a_list_knows_of_no_workload() {
        let mut workloads = Workloads::default();
        assert_eq!(acknowledge(&mut workloads, NOW, 1, 3), Some(vec![]));
        assert_eq!(acknowledge(&mut workloads, NOW, 1, 4), None, "published once in a session");
        assert!(receive(&mut workloads, 1, page(6, 0, true, &[1])).is_some());
        assert_eq!(acknowledge(&mut workloads, NOW, 1, 7), None);
        assert_eq!(acknowledge(&mut workloads, NOW, 2, 5), None, "it lags behind");
        assert_eq!(published(|out| workloads.end(out)), Some(vec![]));
    }
}
