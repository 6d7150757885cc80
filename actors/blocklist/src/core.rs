//! Blocklist: which principals must be disconnected, and which blocks have expired.
//!
//! Owns        the last state that it processed, and the principals that still have to be disconnected.
//! Inputs      each next replicated state, ticks, results of its proposals.
//! Outputs     disconnects, a sweep.
//! Invariants  CUT-1  a principal that lost a right in a processed state is disconnected, despite crashes and full mailboxes.
//!             CUT-2  a demoted node loses only the mesh: its agent session stays, to report the demotion.
//!             CUT-3  no principal is disconnected for being unknown: only one known in an earlier state can be missing in a later one.
//!             CUT-4  a sweep requests only entries whose node's last certificate expired more than an hour ago; the store
//!                    checks the same again.
//! It acts on states, not on removal events: a state may be skipped, a snapshot may replace all of it, and an incarnation may
//! crash. A new incarnation processes everything.
//! The gateway alone is not enough: it refuses newcomers, and after a restart or when busy it must be informed again of what a later
//! state no longer shows (a revoked user is simply absent).

use std::collections::BTreeSet;
use std::time::Duration;

use imbl::ordmap::DiffItem;
use muster_messages::protocol::Service;
use muster_messages::{
    Change, Command, Guard, Moment, NodeId, Principal, RefusalReason, Replica, Revision, Role, Tables, User, WallTime,
};

/// How often the leader checks for expired blocks. They last 90 days and more; a minute is soon enough.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Pause before repeating a disconnect that the gateway could not accept: well within the second that a disconnect may take.
pub const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Entries per sweep: some 30 KiB, far below the limit of a proposal. The next sweep follows at once.
pub const MAX_SWEEP_ENTRIES: usize = 256;

/// Connections to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub principal: Principal,
    /// Empty: all.
    pub services: Vec<Service>,
    pub reason: RefusalReason,
}

/// What a node must not have according to this state, if anything: a blocked node no connection, a worker no mesh. An unknown node
/// is not judged.
pub fn decision(tables: &Tables, node: NodeId) -> Option<Cut> {
    let principal = Principal::Node(node);
    if tables.blocklist.contains_key(&node) {
        let reason = RefusalReason::Blocked;
        return Some(Cut { principal, services: vec![], reason });
    }
    let worker = tables.nodes.get(&node).is_some_and(|n| n.role == Role::Worker);
    worker.then(|| Cut { principal, services: vec![Service::Mesh], reason: RefusalReason::Demoted })
}

/// Everything that must be disconnected according to this state.
pub fn due(tables: &Tables) -> impl Iterator<Item = Cut> {
    let known = tables.blocklist.keys().chain(tables.nodes.keys());
    known.filter_map(|node| decision(tables, *node))
}

/// Inputs.
#[derive(Debug)]
pub enum Input<'a> {
    /// A newer replica. Some may have been skipped.
    NewReplica(&'a Replica),
    /// The gateway has accepted this principal's disconnect.
    Told(Principal),
    /// The gateway was down or full: the disconnect stays pending.
    NotTold,
    /// Time to repeat pending disconnects.
    Retry,
    /// Time to check for expired blocks.
    Ticked,
    /// A sweep ended: applied at this revision, or not.
    Swept(Option<Revision>),
}

/// Effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send to the gateway; report as `Told` or `NotTold`.
    Cut(Cut),
    /// Send `Retry` at this time.
    RetryAt(Moment),
    /// Propose; report as `Swept`.
    Sweep(Box<Command>),
}

/// What survives a crash: the processed state, and pending disconnects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    seen: Tables,
    pending_disconnects: BTreeSet<Principal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    Idle,
    Proposed {
        /// There were more than one sweep may take.
        more: bool,
    },
    /// Checks again once the replica has applied the last sweep.
    Continues(Revision),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Blocklist {
    memory: Memory,
    /// The next comparison covers everything, not only what changed.
    fresh: bool,
    retrying: bool,
    leading: bool,
    sweep: Sweep,
    disconnects: u64,
    swept: u64,
}

/// The actor's view in the live tree.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BlocklistView {
    pub revision: Revision,
    pub entries: usize,
    pub next_expiry: Option<WallTime>,
    /// Disconnects that the gateway accepted, of this incarnation.
    pub disconnects: u64,
    /// Principals whose disconnect the gateway has not accepted yet.
    pub pending_disconnects: usize,
    pub leading: bool,
    /// Sweeps applied, of this incarnation.
    pub sweeps: u64,
}

impl Blocklist {
    /// A new incarnation, with the previous one's memory, if any.
    pub fn resume(memory: Memory) -> Self {
        Self { memory, fresh: true, retrying: false, leading: false, sweep: Sweep::Idle, disconnects: 0, swept: 0 }
    }

    /// The memory for the next incarnation. Cheap: the tables are shared.
    pub fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Handles one input.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input<'_>, out: &mut Vec<Effect>) {
        match input {
            Input::NewReplica(replica) => {
                self.observe(&replica.tables, out);
                let began = replica.raft.leading && !self.leading;
                self.leading = replica.raft.leading;
                if began || self.continues() {
                    self.sweep(wall, out);
                }
            }
            Input::Told(principal) => {
                self.memory.pending_disconnects.remove(&principal);
                self.disconnects += 1;
            }
            Input::NotTold if self.retrying => {}
            Input::NotTold => {
                self.retrying = true;
                out.push(Effect::RetryAt(now + RETRY_AFTER));
            }
            Input::Retry => {
                self.retrying = false;
                self.tell(out);
            }
            Input::Ticked => self.sweep(wall, out),
            Input::Swept(applied) => self.settle(applied),
        }
    }

    /// The view.
    pub fn view(&self) -> BlocklistView {
        let blocks = &self.memory.seen.blocklist;
        BlocklistView {
            revision: self.memory.seen.revision,
            entries: blocks.len(),
            next_expiry: blocks.values().map(|b| b.expires_at).min(),
            disconnects: self.disconnects,
            pending_disconnects: self.memory.pending_disconnects.len(),
            leading: self.leading,
            sweeps: self.swept,
        }
    }

    fn observe(&mut self, tables: &Tables, out: &mut Vec<Effect>) {
        // An older revision means another history: this member started from nothing. Its missing entries prove nothing.
        if tables.revision < self.memory.seen.revision {
            self.memory.seen = Tables::default();
            self.fresh = true;
        }
        let mut lost = departed(&self.memory.seen, tables);
        if std::mem::take(&mut self.fresh) {
            lost.extend(due(tables).map(|cut| cut.principal));
            lost.append(&mut self.memory.pending_disconnects);
        } else {
            lost.extend(newly_due(&self.memory.seen, tables));
        }
        self.memory.seen = tables.clone();
        for principal in lost {
            self.memory.pending_disconnects.insert(principal.clone());
            self.disconnect(&principal, out);
        }
    }

    fn tell(&mut self, out: &mut Vec<Effect>) {
        for principal in self.memory.pending_disconnects.clone() {
            self.disconnect(&principal, out);
        }
    }

    /// Judged by the newest state: a node that is a manager again keeps the sessions it has opened since.
    fn disconnect(&mut self, principal: &Principal, out: &mut Vec<Effect>) {
        let tables = &self.memory.seen;
        let everything = |reason| Cut { principal: principal.clone(), services: vec![], reason };
        let cut = match principal {
            Principal::Node(node) if tables.nodes.contains_key(node) => decision(tables, *node),
            Principal::Node(node) => Some(decision(tables, *node).unwrap_or(everything(RefusalReason::Removed))),
            _ => Some(everything(RefusalReason::Unauthenticated)),
        };
        match cut {
            Some(cut) => out.push(Effect::Cut(cut)),
            None => drop(self.memory.pending_disconnects.remove(principal)),
        }
    }

    /// Proposes to delete expired blocks. A guard checks each again when it is applied.
    fn sweep(&mut self, wall: WallTime, out: &mut Vec<Effect>) {
        if !self.leading || self.sweep != Sweep::Idle {
            return;
        }
        let blocks = &self.memory.seen.blocklist;
        let mut over = blocks.values().filter(|b| b.expires_at <= wall).map(|b| b.node);
        let batch: Vec<NodeId> = over.by_ref().take(MAX_SWEEP_ENTRIES).collect();
        if batch.is_empty() {
            return;
        }
        self.sweep = Sweep::Proposed { more: over.next().is_some() };
        let start = Command::idempotent(wall, Principal::Cluster, "block expired");
        let command = batch.into_iter().fold(start, |command, node| {
            command.guard(Guard::BlockExpired { node, at: wall }).change(Change::Unblock(node))
        });
        out.push(Effect::Sweep(Box::new(command)));
    }

    fn settle(&mut self, applied: Option<Revision>) {
        self.sweep = match (self.sweep, applied) {
            (Sweep::Proposed { more: true }, Some(at)) => Sweep::Continues(at),
            // Refused or lost: the next tick checks again.
            _ => Sweep::Idle,
        };
        self.swept += u64::from(applied.is_some());
    }

    fn continues(&mut self) -> bool {
        let caught_up = matches!(self.sweep, Sweep::Continues(at) if self.memory.seen.revision >= at);
        if caught_up {
            self.sweep = Sweep::Idle;
        }
        caught_up
    }
}

/// Principals that an earlier state knew and a later one does not, or knows with another certificate.
fn departed(seen: &Tables, tables: &Tables) -> BTreeSet<Principal> {
    let mut lost = BTreeSet::new();
    for item in seen.nodes.diff(&tables.nodes) {
        if let DiffItem::Remove(node, _) = item {
            lost.insert(Principal::Node(*node));
        }
    }
    for item in seen.users.diff(&tables.users) {
        match item {
            DiffItem::Remove(_, user) => drop(lost.insert(principal_of(user))),
            DiffItem::Update { old: (_, old), new: (_, new) } if old.serial != new.serial || old.kind != new.kind => {
                lost.insert(principal_of(old));
            }
            _ => {}
        }
    }
    lost
}

/// Nodes that must not have what the earlier state did not forbid them. A node that is new to this state counts: its
/// connections may have been accepted by its certificate while the state was too old to know it.
fn newly_due(seen: &Tables, tables: &Tables) -> BTreeSet<Principal> {
    let mut lost = BTreeSet::new();
    for item in seen.nodes.diff(&tables.nodes) {
        if let DiffItem::Add(node, _) | DiffItem::Update { new: (node, _), .. } = item {
            lost.insert(*node);
        }
    }
    for item in seen.blocklist.diff(&tables.blocklist) {
        if let DiffItem::Add(node, _) = item {
            lost.insert(*node);
        }
    }
    lost.retain(|node| {
        let cut = decision(tables, *node);
        cut.is_some() && cut != decision(seen, *node)
    });
    lost.into_iter().map(Principal::Node).collect()
}

fn principal_of(user: &User) -> Principal {
    user.kind.principal(user.name.clone())
}

#[cfg(test)]
mod tests;
