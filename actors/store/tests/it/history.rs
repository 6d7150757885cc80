//! Watches of objects.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::*;
use muster_store::history::{Expired, FURTHER_BYTES, KEEP_AT_LEAST, KEEP_FOR};
use muster_store::{History, LogPosition, apply_watched};

use crate::world::*;

/// A state with its history, as a member keeps them.
struct Watched {
    tables: Tables,
    history: History,
    now: Moment,
}

impl Watched {
    fn new() -> Self {
        Self { tables: World::founded().tables, history: History::default(), now: Moment(0) }
    }
    fn apply(&mut self, command: &Command) -> Result<(), CommandRefusal> {
        let at = LogPosition { revision: self.tables.revision.next(), term: Term(1) };
        let mut seen = Vec::new();
        let outcome = apply_watched(&mut self.tables, at, command, &mut seen);
        self.history.record(self.now, at.revision, seen);
        outcome
    }
    fn acquire(&mut self, name: &str, holder: &str) -> Revision {
        self.apply(&acquire(name, holder, 1)).unwrap();
        self.tables.revision
    }
    fn since(&self, seen: Revision) -> Vec<String> {
        let text = |object: &Option<Arc<Object>>| {
            let lease = object.as_ref()?.lease()?;
            lease.spec.held_by().map(str::to_owned)
        };
        let changes = self.history.since(seen, usize::MAX).unwrap();
        changes.iter().map(|c| format!("{} {:?} {:?}", c.key.name, text(&c.before), text(&c.after))).collect()
    }
}

#[test]
fn watch_gets_every_change_in_log_order() {
    let mut world = Watched::new();
    let begun = world.tables.revision;
    let first = world.acquire("a", "x");
    world.acquire("b", "y");
    world.apply(&command([Change::DeleteObject { key: ObjectKey::lease("default", "a"), force: true }])).unwrap();
    world.acquire("a", "z");
    let all = [r#"a None Some("x")"#, r#"b None Some("y")"#, r#"a Some("x") None"#, r#"a None Some("z")"#];
    assert_eq!(world.since(begun), all);
    assert_eq!(world.since(first), all[1..], "changes already seen are not repeated");
    assert_eq!(world.since(Revision(1_000)), Vec::<String>::new(), "another member is ahead");
}

#[test]
fn commands_without_effect_cause_no_watch_event() {
    let mut world = Watched::new();
    let revision = world.acquire("a", "x");
    assert!(world.apply(&acquire("a", "other", 2)).is_err());
    world.apply(&command([Change::SetGuard { scope: scope(), mode: None }])).unwrap();
    assert_eq!(world.since(revision), Vec::<String>::new());
}

fn scope() -> GuardScope {
    GuardScope { namespace: "default".to_owned(), lease: None }
}

#[test]
fn replayed_log_repeats_no_watch_event() {
    let mut world = Watched::new();
    let begun = world.tables.revision;
    world.acquire("a", "x");
    let again = world.history.since(begun, 10).unwrap().iter().map(|c| (**c).clone()).collect::<Vec<_>>();
    world.history.record(world.now, world.tables.revision, again);
    assert_eq!(world.since(begun).len(), 1);
}

#[test]
fn watches_must_list_again_after_a_snapshot() {
    let mut world = Watched::new();
    let seen = world.acquire("a", "x");
    let installed = Revision(seen.0 + 50);
    world.history.begin_at(installed);
    assert_eq!(world.history.since(seen, 10), Err(Expired { oldest: installed }));
    assert_eq!(world.history.since(installed, 10), Ok(vec![]));
    world.history.begin_at(seen);
    assert_eq!(world.history.newest(), installed, "an older snapshot removes nothing");
}

#[test]
fn history_is_bounded_by_age_count_and_bytes() {
    let mut world = Watched::new();
    let begun = world.tables.revision;
    for n in 0..KEEP_AT_LEAST / 2 + 10 {
        world.acquire(&format!("l{}", n % 7), &format!("h{n}"));
        // The lease is taken over after a release in between.
        let key = ObjectKey::lease("default", format!("l{}", n % 7));
        world.apply(&command([Change::ExpireLease(key)])).unwrap();
    }
    assert!(world.history.since(begun, 1).is_ok(), "all changes are young");
    world.now = world.now + KEEP_FOR + Duration::from_secs(1);
    let last = world.acquire("later", "x");
    assert_eq!(world.history.len(), KEEP_AT_LEAST);
    assert!(world.history.since(begun, 1).is_err());
    assert!(world.history.since(Revision(last.0 - 1), 1).is_ok());

    let mut small = Watched { history: History::bounded(4096), ..Watched::new() };
    for n in 0..100 {
        small.acquire(&format!("l{n}"), "x");
    }
    assert!((1..50).contains(&small.history.len()), "{}", small.history.len());
}

/// Updates of one config map with this many bytes, each a change of its own.
fn updates(count: usize, bytes: usize) -> impl Iterator<Item = ObjectChange> {
    let version = move |n: usize| {
        let data = [("text".to_owned(), "x".repeat(bytes))].into();
        let body = ObjectBody::ConfigMap(ConfigMap { data, ..ConfigMap::default() });
        let meta = ObjectMeta { revision: Revision(n as u64), ..ObjectMeta::fresh(Uid(1)) };
        Arc::new(Object { namespace: "default".to_owned(), name: "large".to_owned(), meta, body })
    };
    (1..=count).scan(None, move |before, n| {
        let after = version(n);
        let before = before.replace(Arc::clone(&after));
        Some(ObjectChange { revision: Revision(n as u64), key: after.key(), before, after: Some(after) })
    })
}

#[test]
fn history_keeps_few_large_changes_beyond_the_least() {
    let mut history = History::default();
    for change in updates(KEEP_AT_LEAST + 10, 2 * FURTHER_BYTES / KEEP_AT_LEAST) {
        history.record(Moment(0), change.revision, [change]);
    }
    assert_eq!(history.len(), KEEP_AT_LEAST, "they take more than `FURTHER_BYTES`, and less than `MAX_BYTES`");
    assert_eq!(history.since(Revision(9), 1), Err(Expired { oldest: Revision(10) }));
}

#[test]
fn shared_version_of_an_object_counts_once() {
    let (bytes, room) = (10_000, 100_000);
    let mut history = History::bounded(room);
    for change in updates(50, bytes) {
        history.record(Moment(0), change.revision, [change]);
    }
    // Nine of 10,000 bytes and their structures fit; with both versions four would.
    assert_eq!(history.len(), room / bytes - 1);
}

#[test]
fn slow_watch_gets_pages_of_whole_entries() {
    let mut world = Watched::new();
    let begun = world.tables.revision;
    let [a, b] = ["a", "b"].map(|name| acquire(name, "x", 1).changes.remove(0));
    world.apply(&command([a, b])).unwrap();
    world.acquire("c", "x");
    let page = world.history.since(begun, 1).unwrap();
    assert_eq!(page.len(), 2, "both changes of one entry, although one would suffice");
    let rest = world.history.since(page[1].revision, 1).unwrap();
    assert_eq!(rest.len(), 1);
}

/// A watch of one object gets only its changes, whatever was forgotten meanwhile.
#[test]
fn touched_since_agrees_with_the_kept_changes() {
    let mut world = Watched { history: History::bounded(8192), ..Watched::new() };
    for n in 0..60 {
        let name = format!("l{}", n * n % 11);
        world.acquire(&name, &format!("h{n}"));
        if n % 3 == 0 {
            world
                .apply(&command([Change::DeleteObject { key: ObjectKey::lease("default", &name), force: true }]))
                .unwrap();
        } else {
            world.apply(&command([Change::ExpireLease(ObjectKey::lease("default", &name))])).unwrap();
        }
        for seen in (0..=world.tables.revision.0).map(Revision) {
            for name in 0..11 {
                let key = ObjectKey::lease("default", format!("l{name}"));
                let changes = world.history.since(seen, usize::MAX).map(|changes| changes.iter().any(|c| c.key == key));
                assert_eq!(world.history.touched_since(&key, seen), changes, "{key} after {seen:?}");
            }
        }
    }
    assert!(world.history.since(Revision(1), 1).is_err(), "some are forgotten");
}
