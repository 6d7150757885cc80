//! Which workloads a process is: what its node has found out about it, against the selectors of the entries.
//!
//! Owns        what is known of a process; the order of its identities.
//! Why names decide the order, and not how exact an entry is: an operator can predict it, and no change of an entry's selectors gives a
//! process another default.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_messages::{
    UnknownSelectorView, WorkloadEntry, WorkloadExplainedView, WorkloadMismatchView, WorkloadName, WorkloadSelector,
};

/// What a node has found out about a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups.
    pub groups: BTreeSet<u32>,
    /// The systemd unit that the process belongs to.
    pub unit: Option<String>,
    /// The file that the process executes.
    pub path: Option<String>,
    /// Why some of them are not known.
    pub unknown: Vec<UnknownSelectorView>,
}

impl Facts {
    pub fn has(&self, selector: &WorkloadSelector) -> bool {
        match selector {
            WorkloadSelector::UnixUid(uid) => self.uid == *uid,
            WorkloadSelector::UnixGid(gid) => self.gid == *gid || self.groups.contains(gid),
            WorkloadSelector::SystemdUnit(unit) => self.unit.as_ref() == Some(unit),
            WorkloadSelector::UnixPath(path) => self.path.as_ref() == Some(path),
        }
    }
    /// The facts as selectors.
    pub fn selectors(&self) -> BTreeSet<WorkloadSelector> {
        let groups = self.groups.iter().copied().chain([self.gid]).map(WorkloadSelector::UnixGid);
        let unit = self.unit.clone().map(WorkloadSelector::SystemdUnit);
        let path = self.path.clone().map(WorkloadSelector::UnixPath);
        groups.chain([WorkloadSelector::UnixUid(self.uid)]).chain(unit).chain(path).collect()
    }
    fn is(&self, entry: &WorkloadEntry) -> bool {
        // An entry without a selector is refused by the cluster; here it would be every process.
        !entry.selectors.is_empty() && entry.selectors.iter().all(|selector| self.has(selector))
    }
}

/// One of a process' identities, as an entry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    pub name: WorkloadName,
    /// Unique among the identities of a process: of two entries with the same hint, the first keeps it.
    pub hint: Option<String>,
}

/// The identities of a process, by name; the first one is its default.
pub fn matches(entries: &[WorkloadEntry], facts: &Facts) -> Vec<Matched> {
    let mut found: Vec<&WorkloadEntry> = entries.iter().filter(|entry| facts.is(entry)).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hints = BTreeSet::new();
    let unique = |hint: &Option<String>| hint.clone().filter(|hint| hints.insert(hint.clone()));
    let hints: Vec<Option<String>> = found.iter().map(|entry| &entry.hint).map(unique).collect();
    found.iter().zip(hints).map(|(entry, hint)| Matched { name: entry.name.clone(), hint }).collect()
}

/// Which values of a fact matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted<T> {
    All,
    /// Those that an entry names.
    These(Arc<BTreeSet<T>>),
}

impl<T> Default for Wanted<T> {
    fn default() -> Self {
        Wanted::These(Arc::default())
    }
}

impl<T: Ord> Wanted<T> {
    pub fn is_nothing(&self) -> bool {
        matches!(self, Wanted::These(these) if these.is_empty())
    }
    pub fn contains(&self, value: &T) -> bool {
        match self {
            Wanted::All => true,
            Wanted::These(these) => these.contains(value),
        }
    }
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Wanted::All, _) => true,
            (Wanted::These(_), Wanted::All) => false,
            (Wanted::These(these), Wanted::These(others)) => Arc::ptr_eq(these, others) || others.is_subset(these),
        }
    }
}

/// Which facts the entries of this node name: the others need not be found out, and are not kept. A process may have 65,536 groups, and
/// its executable may be on a file system that hangs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub groups: Wanted<u32>,
    pub unit: bool,
    pub path: Wanted<String>,
}

impl Needs {
    /// For a report to a person.
    pub const ALL: Needs = Needs { groups: Wanted::All, unit: true, path: Wanted::All };

    pub fn of(entries: &[WorkloadEntry]) -> Self {
        let (mut groups, mut unit, mut paths) = (BTreeSet::new(), false, BTreeSet::new());
        for selector in entries.iter().flat_map(|entry| &entry.selectors) {
            match selector {
                WorkloadSelector::UnixUid(_) => {}
                WorkloadSelector::UnixGid(gid) => drop(groups.insert(*gid)),
                WorkloadSelector::SystemdUnit(_) => unit = true,
                WorkloadSelector::UnixPath(path) => drop(paths.insert(path.clone())),
            }
        }
        Self { groups: Wanted::These(Arc::new(groups)), unit, path: Wanted::These(Arc::new(paths)) }
    }
    /// Whether facts that were found out for these are enough for others.
    pub fn cover(&self, others: &Self) -> bool {
        self.groups.covers(&others.groups) && (self.unit || !others.unit) && self.path.covers(&others.path)
    }
}

/// Compares a process with all entries of its node: what `muster workload explain` prints.
pub fn explain(pid: u32, entries: &[WorkloadEntry], facts: &Facts) -> WorkloadExplainedView {
    let mismatch = |entry: &WorkloadEntry| WorkloadMismatchView {
        name: entry.name.clone(),
        selector: entry.selectors.iter().find(|selector| !facts.has(selector)).cloned(),
    };
    let mut others: Vec<_> = entries.iter().filter(|entry| !facts.is(entry)).map(mismatch).collect();
    others.sort_by(|a, b| a.name.cmp(&b.name));
    WorkloadExplainedView {
        pid,
        selectors: facts.selectors(),
        unknown: facts.unknown.clone(),
        matches: matches(entries, facts).into_iter().map(|matched| matched.name).collect(),
        others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, selectors: &[&str], hint: Option<&str>) -> WorkloadEntry {
        let selectors = selectors.iter().map(|text| text.parse().unwrap());
        let mut entry = WorkloadEntry::new(name.parse().unwrap(), selectors);
        entry.hint = hint.map(str::to_owned);
        entry
    }

    fn web() -> Facts {
        Facts {
            uid: 33,
            gid: 33,
            groups: BTreeSet::from([4, 100]),
            unit: Some("nginx.service".to_owned()),
            path: Some("/usr/sbin/nginx".to_owned()),
            unknown: Vec::new(),
        }
    }

    #[test]
    fn all_selectors_of_an_entry_must_match() {
        for (selectors, is) in [
            (&["unix:uid:33"][..], true),
            (&["unix:uid:34"], false),
            (&["unix:gid:33"], true),
            (&["unix:gid:100"], true),
            (&["unix:gid:5"], false),
            (&["unix:uid:33", "systemd:unit:nginx.service"], true),
            (&["unix:uid:33", "systemd:unit:apache2.service"], false),
            (&["unix:path:/usr/sbin/nginx", "unix:gid:4", "unix:uid:33"], true),
            (&["unix:path:/usr/sbin/ngin"], false),
            (&[], false),
        ] {
            let found = matches(&[entry("a/b", selectors, None)], &web());
            assert_eq!(!found.is_empty(), is, "{selectors:?}");
        }
        let bare = Facts { unit: None, path: None, ..web() };
        assert!(matches(&[entry("a/b", &["unix:path:/usr/sbin/nginx"], None)], &bare).is_empty());
    }

    #[test]
    fn identities_are_ordered_by_name_with_unique_hints() {
        let uid = &["unix:uid:33"][..];
        let entries = [
            entry("b/b", uid, Some("db")),
            entry("a/z", uid, Some("web")),
            entry("a/a", &["unix:uid:1"], Some("db")),
            entry("b/a", uid, Some("web")),
            entry("c/c", uid, None),
        ];
        let found = matches(&entries, &web());
        let found: Vec<_> = found.iter().map(|m| (m.name.to_string(), m.hint.as_deref())).collect();
        let expected = [("a/z", Some("web")), ("b/a", None), ("b/b", Some("db")), ("c/c", None)];
        assert_eq!(found, expected.map(|(name, hint)| (name.to_owned(), hint)));
    }

    #[test]
    fn explanation_names_the_first_selector_that_fails() {
        let entries = [
            entry("b/no", &["unix:uid:33", "unix:path:/bin/sh", "systemd:unit:x.service"], None),
            entry("a/yes", &["unix:uid:33"], None),
        ];
        let unknown = UnknownSelectorView { selector: "unix:path".to_owned(), why: "no right".to_owned() };
        let facts = Facts { unknown: vec![unknown], ..web() };
        let explained = explain(7, &entries, &facts);
        let json = serde_json::to_value(&explained).unwrap();
        let expected = serde_json::json!({
            "pid": 7,
            "selectors": ["unix:uid:33", "unix:gid:4", "unix:gid:33", "unix:gid:100", "systemd:unit:nginx.service", "unix:path:/usr/sbin/nginx"],
            "unknown": [{"selector": "unix:path", "why": "no right"}],
            "matches": ["a/yes"],
            "others": [{"name": "b/no", "selector": "systemd:unit:x.service"}],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn only_facts_that_an_entry_asks_for_are_needed() {
        assert_eq!(Needs::of(&[entry("a/a", &["unix:uid:1"], None)]), Needs::default());
        let all = [entry("a/a", &["unix:gid:1"], None), entry("a/b", &["unix:path:/a", "systemd:unit:b"], None)];
        let needs = Needs::of(&all);
        assert_eq!((needs.groups.contains(&1), needs.groups.contains(&2), needs.unit), (true, false, true));
        assert_eq!((needs.path.contains(&"/a".to_owned()), needs.path.contains(&"/b".to_owned())), (true, false));
        let fewer = Needs::of(&all[..1]);
        assert!(needs.cover(&fewer) && !fewer.cover(&needs) && Needs::ALL.cover(&needs) && !needs.cover(&Needs::ALL));
    }
}
