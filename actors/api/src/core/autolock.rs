//! Autolock as it is shown: which managers are sealed, under which version of the unlock key.

use muster_messages::{
    AutoUnlock, AutolockView, ManagerSealView, NodeRecord, OldKeyView, Revision, Seal, SealReport, SealState, Tables,
};

/// `muster autolock status`.
pub fn autolock(tables: &Tables) -> AutolockView {
    let autolock = &tables.autolock;
    let sealable = |node: &&NodeRecord| node.may_be_sealed() || autolock.seals.contains_key(&node.id);
    let mut managers: Vec<ManagerSealView> =
        tables.nodes.values().map(|node| &**node).filter(sealable).map(|node| manager(tables, node)).collect();
    managers.sort_by(|a, b| (&a.name, a.node).cmp(&(&b.name, b.node)));
    let is_sealed =
        |manager: &&ManagerSealView| autolock.seals.get(&manager.node).is_some_and(|report| report.seal.sealed);
    let behind = managers.iter().filter(is_sealed);
    let needs_old_key = behind.filter_map(|manager| {
        let version = manager.version.filter(|version| *version != autolock.version)?;
        let since = autolock.key_of(version).map(|(_, set_at)| set_at);
        Some(OldKeyView { node: manager.node, name: manager.name.clone(), version, since })
    });
    AutolockView {
        enabled: autolock.is_on(),
        version: autolock.version,
        set_at: (autolock.version > Revision(0)).then_some(autolock.set_at),
        needs_old_key: needs_old_key.collect(),
        managers,
    }
}

fn manager(tables: &Tables, node: &NodeRecord) -> ManagerSealView {
    let report = tables.autolock.seals.get(&node.id);
    let state = match report {
        Some(SealReport { seal: Seal { sealed: true, files_sealed: true, .. }, .. }) => SealState::Sealed,
        Some(SealReport { seal: Seal { sealed: true, .. }, .. }) => SealState::Incomplete,
        Some(_) => SealState::Clear,
        // There was never a key under which it could be sealed.
        None if tables.autolock.version == Revision(0) => SealState::Clear,
        None => SealState::Unknown,
    };
    ManagerSealView {
        node: node.id,
        name: node.name.clone(),
        state,
        version: report.map(|report| report.seal.version),
        auto: report.map_or(AutoUnlock::None, |report| report.seal.unlock),
        at: report.map(|report| report.at),
        liveness: node.liveness,
    }
}
