//! Those who watch leases: each follows what happens after the revision that it has seen, at whatever manager it finds, and begins
//! anew where it is told that it missed something. What it makes of that must be what is there (WATCH-1, WATCH-2), also over a
//! recovery: a manager that goes on at a revision that the watcher has seen of another one would hide something from it.

use std::collections::BTreeMap;

use muster_messages::{Lease, ObjectKey, Revision, Tables};

use crate::checks::broken;
use crate::world::{Event, Universe};

pub const WATCH_1: &str = "WATCH-1";
pub const WATCH_2: &str = "WATCH-2";

/// Changes that a watcher is told at once.
const MOST: usize = 8;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Watcher {
    /// `None`: it begins with a list.
    seen: Option<Revision>,
    leases: BTreeMap<ObjectKey, Lease>,
}

fn leases(tables: &Tables) -> BTreeMap<ObjectKey, Lease> {
    tables.objects.iter().filter_map(|(key, object)| Some((key.clone(), object.lease()?.clone()))).collect()
}

impl Universe {
    pub(crate) fn start_watchers(&mut self, watchers: usize) {
        self.watchers = vec![Watcher::default(); watchers];
        for watcher in 0..watchers {
            let soon = self.dice.millis(1, 400);
            self.time.after(soon, Event::Watcher(watcher));
        }
    }

    /// A watcher's turn.
    pub(crate) fn watcher(&mut self, number: usize) {
        let next = self.dice.millis(40, 400);
        self.time.after(next, Event::Watcher(number));
        let Some(place) = self.some_manager().filter(|p| self.machines[*p].runs()) else { return };
        let Some(half) = self.machines[place].half.as_ref() else { return };
        let tables = half.core.tables();
        if tables.cluster.is_none() {
            return;
        }
        let watcher = &mut self.watchers[number];
        let Some(seen) = watcher.seen else {
            (watcher.seen, watcher.leases) = (Some(tables.revision), leases(tables));
            return;
        };
        let Ok(changes) = half.history.since(seen, MOST) else {
            watcher.seen = None;
            return self.totals.count("watches that began anew");
        };
        let last = changes.last().map_or(seen, |change| change.revision);
        let whole = changes.len() < MOST;
        let mut missed = None;
        for change in &changes {
            let (before, after) = (change.before.as_ref(), change.after.as_ref());
            let is = watcher.leases.get(&change.key);
            if is != before.and_then(|object| object.lease()) {
                missed.get_or_insert((change.revision, change.key.clone()));
            }
            match after.and_then(|object| object.lease()) {
                Some(lease) => drop(watcher.leases.insert(change.key.clone(), lease.clone())),
                None => drop(watcher.leases.remove(&change.key)),
            }
        }
        let newest = half.history.newest();
        let seen = if whole { last.max(newest) } else { last };
        watcher.seen = Some(seen);
        let differs = whole && seen == tables.revision && watcher.leases != leases(tables);
        self.totals.add("changes watched", changes.len() as u64);
        if let Some((revision, key)) = missed {
            let detail =
                format!("a watcher at n{} is told of {key} at {revision}, and has missed what was before", place + 1);
            self.hold_to(Err(broken(WATCH_2, detail)));
        } else if differs {
            let detail =
                format!("a watcher at n{} has followed everything up to {seen}, and sees other leases", place + 1);
            self.hold_to(Err(broken(WATCH_1, detail)));
        }
    }
}
