//! History: what changed lately, so that a watcher can go on from the revision it has seen.
//!
//! Owns   the changes of the last 10 minutes or 10,000 changes, whichever is longer, within 64 MiB.
//! Hears  each next state.     Says  the changes since a revision, or [`Expired`].
//! Keeps  WATCH-1  a watcher that applies everything since its revision to what it saw then has the newest state.
//! Why it compares states instead of listening to commands: the same code then serves a member that applied a
//! log and one that installed a snapshot, and whoever follows published replicas may miss some of them. Several
//! changes of one object between two states show as one, and what came and went between them does not show at all.
//! A watcher that saw it, on another member, would never hear that it is gone: hence [`Expired`] for every revision
//! strictly between two recorded states. Whoever records after each entry has none of those.
//! Maps share what did not change, so comparing is cheap. Local to a member: not replicated, and empty at first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use muster_messages::{
    Blocked, ClusterRecord, Event, Member, Moment, Name, NodeId, NodeRecord, RaftId, Revision, Tables, Token, User,
};

/// Changes younger than this are kept (within the limit of bytes).
pub const KEEP_FOR: Duration = Duration::from_secs(600);
/// This many changes are kept, however old (within the limit of bytes).
pub const KEEP_AT_LEAST: usize = 10_000;
/// Roughly what the history may occupy.
pub const MAX_BYTES: usize = 64 << 20;

/// An object as it was and as it is; `None`: it did not or does not exist.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    Cluster(Arc<ClusterRecord>),
    Node { id: NodeId, before: Option<Arc<NodeRecord>>, after: Option<Arc<NodeRecord>> },
    Member { raft_id: RaftId, before: Option<Member>, after: Option<Member> },
    Token { id: String, before: Option<Token>, after: Option<Token> },
    User { name: Name, before: Option<User>, after: Option<User> },
    Blocked { node: NodeId, before: Option<Blocked>, after: Option<Blocked> },
    Event(Arc<Event>),
}

/// One change and the revision it happened at.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub revision: Revision,
    pub changed: Changed,
}

/// The history does not reach back that far: list again and go on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the history begins at revision {oldest}; list again")]
pub struct Expired {
    /// The oldest revision to go on from.
    pub oldest: Revision,
}

/// What changed from one recorded state to the next.
#[derive(Clone, Debug)]
struct Batch {
    recorded: Moment,
    from: Revision,
    to: Revision,
    entries: Vec<Entry>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct History {
    batches: VecDeque<Batch>,
    /// The number of changes in all batches; a batch without any counts as one.
    len: usize,
    bytes: usize,
    max_bytes: usize,
    /// Everything after this revision is here.
    complete_after: Revision,
    /// The state up to which changes were taken in.
    last: Tables,
}

impl History {
    /// A history that begins with this state.
    pub fn starting_at(tables: Tables) -> Self {
        Self::bounded(tables, MAX_BYTES)
    }

    /// A history with a limit of its own.
    pub fn bounded(tables: Tables, max_bytes: usize) -> Self {
        Self { batches: VecDeque::new(), len: 0, bytes: 0, max_bytes, complete_after: tables.revision, last: tables }
    }

    /// Takes in a newer state. One that is not newer changes nothing.
    pub fn record(&mut self, now: Moment, tables: &Tables) {
        if tables.revision <= self.last.revision {
            return;
        }
        let mut batch = Batch {
            recorded: now,
            from: self.last.revision,
            to: tables.revision,
            entries: differences(&self.last, tables),
        };
        batch.entries.sort_by_key(|entry| entry.revision);
        self.last = tables.clone();
        let quiet = batch.entries.is_empty() && batch.to == batch.from.next();
        if !quiet {
            self.len += batch.len();
            self.bytes += batch.weight();
            self.batches.push_back(batch);
        }
        self.forget(now);
    }

    /// Everything that changed after `seen`, oldest first. A revision from the future is a watcher that saw a member
    /// ahead of this one: nothing yet.
    pub fn since(&self, seen: Revision) -> Result<impl Iterator<Item = &Entry>, Expired> {
        let first = self.batches.partition_point(|batch| batch.to <= seen);
        let oldest = match self.batches.get(first) {
            Some(batch) if batch.from < seen => batch.to,
            _ => self.complete_after,
        };
        if seen < oldest {
            return Err(Expired { oldest });
        }
        Ok((self.batches.range(first..)).flat_map(|batch| &batch.entries))
    }

    /// The revision up to which changes were taken in.
    pub fn newest(&self) -> Revision {
        self.last.revision
    }

    /// The number of changes kept.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn forget(&mut self, now: Moment) {
        while let Some(oldest) = self.batches.front() {
            let old = now.since(oldest.recorded) > KEEP_FOR;
            let spared = self.len - oldest.len() >= KEEP_AT_LEAST;
            if !(old && spared) && self.bytes <= self.max_bytes {
                break;
            }
            self.len -= oldest.len();
            self.bytes -= oldest.weight();
            self.complete_after = oldest.to;
            self.batches.pop_front();
        }
    }
}

impl Batch {
    fn len(&self) -> usize {
        self.entries.len().max(1)
    }

    fn weight(&self) -> usize {
        size_of::<Batch>() + self.entries.iter().map(weight).sum::<usize>()
    }
}

fn differences(before: &Tables, after: &Tables) -> Vec<Entry> {
    let mut out = Vec::new();
    // An object tells when it changed last; what is gone, or does not tell, changed at the newest revision at the
    // latest.
    let mut push = |revision: Option<Revision>, changed| {
        let revision = revision.unwrap_or(after.revision);
        out.push(Entry { revision, changed });
    };
    if let Some(cluster) = &after.cluster
        && before.cluster.as_ref() != Some(cluster)
    {
        push(Some(cluster.revision), Changed::Cluster(cluster.clone()));
    }
    compare(&before.nodes, &after.nodes, |id, before, after| {
        let revision = after.as_ref().map(|n| n.revision);
        push(revision, Changed::Node { id, before, after });
    });
    compare(&before.members, &after.members, |raft_id, before, after| {
        let changed = Changed::Member { raft_id, before, after };
        push(None, changed);
    });
    compare(&before.tokens, &after.tokens, |id, before, after| {
        let revision = after.as_ref().map(|t| t.revision);
        push(revision, Changed::Token { id, before, after });
    });
    compare(&before.users, &after.users, |name, before, after| {
        let revision = after.as_ref().map(|u| u.revision);
        let changed = Changed::User { name, before, after };
        push(revision, changed);
    });
    compare(&before.blocklist, &after.blocklist, |node, before, after| {
        let changed = Changed::Blocked { node, before, after };
        push(None, changed);
    });
    let news = (after.events.iter().rev()).take_while(|event| event.revision > before.revision);
    for event in news.cloned().collect::<Vec<_>>().into_iter().rev() {
        push(Some(event.revision), Changed::Event(event));
    }
    out
}

fn compare<K: Ord + Clone, V: Clone + PartialEq>(
    before: &OrdMap<K, V>,
    after: &OrdMap<K, V>,
    mut push: impl FnMut(K, Option<V>, Option<V>),
) {
    for item in before.diff(after) {
        match item {
            DiffItem::Add(k, v) => push(k.clone(), None, Some(v.clone())),
            DiffItem::Update { old, new } => {
                push(new.0.clone(), Some(old.1.clone()), Some(new.1.clone()));
            }
            DiffItem::Remove(k, v) => push(k.clone(), Some(v.clone()), None),
        }
    }
}

/// Bytes that keeping an entry costs, roughly and from above: both versions of an object count as its own, although
/// neighbours share one.
fn weight(entry: &Entry) -> usize {
    fn both<T>(before: &Option<T>, after: &Option<T>, each: impl Fn(&T) -> usize) -> usize {
        before.as_ref().map_or(0, &each) + after.as_ref().map_or(0, &each)
    }
    let text = |t: &Option<String>| t.as_ref().map_or(0, String::len);
    let inside = match &entry.changed {
        Changed::Cluster(c) => size_of::<ClusterRecord>() + c.root_cert_pem.len() * 2,
        Changed::Node { before, after, .. } => both(before, after, |n| weight_of_node(n)),
        Changed::Member { before, after, .. } => both(before, after, |m| m.addr.len()),
        Changed::Token { before, after, .. } => both(before, after, |t| 64 + t.id.len() * 2),
        Changed::User { before, after, .. } => both(before, after, |u| {
            let namespaces = u.namespaces.iter().map(|n| n.len() + size_of::<String>());
            u.serial.len() + 2 * u.name.as_str().len() + namespaces.sum::<usize>()
        }),
        Changed::Blocked { .. } => 0,
        Changed::Event(e) => size_of::<Event>() + e.reason.len() + text(&e.before) + text(&e.after),
    };
    size_of::<Entry>() + inside
}

fn weight_of_node(node: &NodeRecord) -> usize {
    // A map entry costs two strings' heads beside their text.
    let label = |(k, v): (&String, &String)| k.len() + v.len() + 2 * size_of::<String>();
    let serial = node.certificate.as_ref().map_or(0, |c| c.serial.len());
    size_of::<NodeRecord>()
        + node.name.as_str().len()
        + node.addr.len()
        + node.release.len()
        + serial
        + node.labels.iter().map(label).sum::<usize>()
}
