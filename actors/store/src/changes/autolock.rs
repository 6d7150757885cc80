//! The unlock key, from feature level 3 on.
//!
//! Invariants  SEAL-9   a former key is kept while a node may need it to start.
//!             SEAL-10  versions of the replicated unlock key only grow, and a version has one key: of two changes in one entry the second is
//!                      refused.

use muster_messages::{
    Autolock, AutolockChange, AutolockRefusal, FormerKey, MAX_FORMER_KEYS, Seal, SealReport, Secret,
};

use super::*;
use crate::bugs::is_injected;

pub(super) fn make(tables: &mut Tables, stamp: &Stamp<'_>, change: &AutolockChange) -> Result<(), CommandRefusal> {
    certificates::at_identity_level(tables)?;
    match change {
        AutolockChange::Enable { .. } if tables.autolock.is_on() => Ok(()),
        AutolockChange::Disable if !tables.autolock.is_on() => Ok(()),
        AutolockChange::Enable { key } => {
            has_room(tables, 1)?;
            replace(tables, stamp, Some(key))
        }
        AutolockChange::Rotate { .. } if !tables.autolock.is_on() => {
            Err(CommandRefusal::Autolock(AutolockRefusal::NotEnabled))
        }
        AutolockChange::Rotate { key } => {
            // Then there is room for this key and for the one that `Disable` leaves.
            has_room(tables, 2)?;
            replace(tables, stamp, Some(key))
        }
        AutolockChange::Disable => replace(tables, stamp, None),
        AutolockChange::Sealed { node, seal } => sealed(tables, stamp, *node, *seal),
    }
}

/// Whether so many keys can still become former ones: `Disable` never fails for want of room.
fn has_room(tables: &Tables, for_keys: usize) -> Result<(), CommandRefusal> {
    let Autolock { previous, .. } = &tables.autolock;
    let Some(oldest) = previous.first().filter(|_| previous.len() + for_keys > MAX_FORMER_KEYS) else { return Ok(()) };
    // Without such a node it would have been deleted.
    let node = may_need_key(tables, oldest.version).ok_or_else(|| stale("former keys are about to be deleted"))?;
    Err(CommandRefusal::Autolock(AutolockRefusal::TooManyKeys { node }))
}

fn replace(tables: &mut Tables, stamp: &Stamp<'_>, key: Option<&Secret>) -> Result<(), CommandRefusal> {
    let autolock = &mut tables.autolock;
    if autolock.version >= stamp.at && !is_injected(BugInjection::ChangeKeyTwice) {
        return Err(stale("autolock is changed twice in one command"));
    }
    let before = text(autolock);
    retire(autolock);
    (autolock.version, autolock.key, autolock.set_at) = (stamp.at, key.cloned(), stamp.wall);
    let after = text(autolock);
    delete_unneeded(tables);
    stamp.log(tables, EventKind::Cluster, None, before, after);
    Ok(())
}

/// The key of today becomes a former one.
fn retire(autolock: &mut Autolock) {
    let (version, set_at) = (autolock.version, autolock.set_at);
    autolock.previous.extend(autolock.key.take().map(|key| FormerKey { version, key, set_at }));
}

/// After a recovery from older state, keyrings may be of later versions than this state knows, and ignore it: the key gets a version
/// that is later than all of them. The oldest former keys give way: `Disable` needs room for one more (BOUND-1).
pub(crate) fn renew(tables: &mut Tables, stamp: &Stamp<'_>) {
    if tables.autolock.version == Revision(0) {
        return;
    }
    let autolock = &mut tables.autolock;
    let key = autolock.key.clone();
    if key.is_some() {
        let excess = (autolock.previous.len() + 2).saturating_sub(MAX_FORMER_KEYS);
        autolock.previous.drain(..excess);
    }
    retire(autolock);
    (autolock.version, autolock.key) = (stamp.at, key);
    delete_unneeded(tables);
}

fn text(autolock: &Autolock) -> Option<String> {
    (autolock.version > Revision(0)).then(|| match autolock.is_on() {
        true => format!("autolock on, key of version {}", autolock.version),
        false => "autolock off".to_owned(),
    })
}

fn sealed(tables: &mut Tables, stamp: &Stamp<'_>, id: NodeId, seal: Seal) -> Result<(), CommandRefusal> {
    let record = node(tables, id)?;
    if record.role != Role::Manager {
        return Err(stale(format!("node {id} is a worker")));
    }
    if seal.version > tables.autolock.version || seal.version == Revision(0) {
        return Err(stale(format!("autolock is at version {}, not {}", tables.autolock.version, seal.version)));
    }
    let known = tables.autolock.seals.get(&id).map(|report| report.seal);
    if known == Some(seal) || known.is_some_and(|known| known.version > seal.version) {
        return Ok(());
    }
    tables.autolock.seals.insert(id, SealReport { seal, at: stamp.wall });
    delete_unneeded(tables);
    Ok(())
}

/// The node was deleted, or got a worker's certificate: with that it starts without a key (SEAL-4). Its granted role and its liveness
/// prove neither: it may have been killed before it learned of its demotion, and then needs the key of its keyring once.
pub(super) fn left(tables: &mut Tables, id: NodeId) {
    tables.autolock.seals.remove(&id);
    delete_unneeded(tables);
}

/// SEAL-9.
pub(super) fn delete_unneeded(tables: &mut Tables) {
    if tables.autolock.previous.is_empty() {
        return;
    }
    let oldest = may_be_sealed(tables).map(|(_, version)| version).min();
    let forgets = is_injected(BugInjection::DeleteFormerKeys);
    let is_needed = |former: &FormerKey| !forgets && oldest.is_some_and(|oldest| oldest <= former.version);
    tables.autolock.previous.retain(is_needed);
}

/// The nodes whose disk may be sealed, each with the oldest version under which it may be: managers, and former ones that have no worker's
/// certificate yet. A manager reports a version once it is on disk, so it may be under a later one.
pub(crate) fn may_be_sealed(tables: &Tables) -> impl Iterator<Item = (NodeId, Revision)> + '_ {
    let seals = &tables.autolock.seals;
    let unreported = tables.nodes.values().filter(|node| node.may_be_sealed() && !seals.contains_key(&node.id));
    let reported = seals.iter().map(|(node, report)| (*node, report.seal.version));
    reported.chain(unreported.map(|node| (node.id, Revision(0))))
}

/// A node that may need the key of this version, or of an earlier one, to start.
fn may_need_key(tables: &Tables, version: Revision) -> Option<NodeId> {
    may_be_sealed(tables).find(|(_, oldest)| *oldest <= version).map(|(node, _)| node)
}
