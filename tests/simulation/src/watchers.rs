//! Watchers of leases: each follows the changes after the revision that it has seen, at a random manager, and restarts
//! when it missed some. Its result must equal the leases there (WATCH-1, WATCH-2), also across a
//! recovery: a manager that reuses revisions seen elsewhere would hide changes.

use std::collections::BTreeMap;

use muster_messages::{Lease, ObjectKey, Revision, Tables};

use crate::checks::violation;
use crate::events::Event;
use crate::world::World;

pub const WATCH_1: &str = "WATCH-1";
pub const WATCH_2: &str = "WATCH-2";

/// Maximum number of changes in one answer.
const MAX_CHANGES: usize = 8;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Watcher {
    /// `None`: it starts with a list.
    seen: Option<Revision>,
    leases: BTreeMap<ObjectKey, Lease>,
}

/// All watchers.
#[derive(Clone, Debug, Default)]
pub struct Watchers(Vec<Watcher>);

fn leases(tables: &Tables) -> BTreeMap<ObjectKey, Lease> {
    tables.objects.iter().filter_map(|(key, object)| Some((key.clone(), object.lease()?.clone()))).collect()
}

impl Watchers {
    pub(crate) fn start(&mut self, world: &mut World, watchers: usize) {
        self.0 = vec![Watcher::default(); watchers];
        for watcher in 0..watchers {
            let soon = world.rng.millis(1, 400);
            world.time.after(soon, Event::Watcher(watcher));
        }
    }

    /// One step of a watcher.
    pub(crate) fn step(&mut self, world: &mut World, number: usize) {
        let next = world.rng.millis(40, 400);
        world.time.after(next, Event::Watcher(number));
        let Some(idx) = world.any_manager().filter(|p| world.machines[*p].runs()) else { return };
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let tables = runtime.core.tables();
        if tables.cluster.is_none() {
            return;
        }
        let watcher = &mut self.0[number];
        let Some(seen) = watcher.seen else {
            (watcher.seen, watcher.leases) = (Some(tables.revision), leases(tables));
            return;
        };
        let Ok(changes) = runtime.history.since(seen, MAX_CHANGES) else {
            watcher.seen = None;
            return world.totals.count("watches restarted");
        };
        let last = changes.last().map_or(seen, |change| change.revision);
        let whole = changes.len() < MAX_CHANGES;
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
        let newest = runtime.history.newest();
        let seen = if whole { last.max(newest) } else { last };
        watcher.seen = Some(seen);
        let differs = whole && seen == tables.revision && watcher.leases != leases(tables);
        world.totals.add("changes watched", changes.len() as u64);
        if let Some((revision, key)) = missed {
            let detail =
                format!("a watcher at n{} receives {key} at {revision} and has missed earlier changes", idx + 1);
            world.require(Err(violation(WATCH_2, detail)));
        } else if differs {
            let detail = format!("a watcher at n{} followed all changes up to {seen}, but its leases differ", idx + 1);
            world.require(Err(violation(WATCH_1, detail)));
        }
    }
}
