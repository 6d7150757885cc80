//! Blocklist: who must be cut off, and which blocks are over.
//!
//! Owns   the state it has looked at, and the principals whose connections still have to be cut.
//! Hears  each next copy of the replicated state, ticks, how its proposals ended.   Says  cuts, a sweep.
//! Keeps  CUT-1    whoever lost a right in a copy that was looked at is cut, though crashes and full mailboxes come between.
//!        CUT-2    a demoted node loses the mesh alone: its agent session stays to tell it.
//!        CUT-3    nobody is cut for being unknown: only who was known in an earlier copy can be missing in a later one.
//!        CUT-4    a sweep asks only for entries whose node's last certificate expired more than an hour ago; the store
//!                 judges the same again.
//! Why it acts on states and not on news of removals: a copy may be skipped, a snapshot may replace all of it, and
//! an incarnation may crash. One that starts looks at everything.
//! Why it is not the gateway's own business alone: that refuses newcomers, and a busy or restarted gateway must be
//! told again what a later copy would no longer show it (a revoked user is simply absent).

use std::collections::BTreeSet;
use std::time::Duration;

use imbl::ordmap::DiffItem;
use muster_messages::protocol::Service;
use muster_messages::{
    Change, Command, Guard, Moment, NodeId, Principal, RefusalReason, Replica, Revision, Role, Tables, User, WallTime,
};

/// How often the leader looks for blocks that are over. They last 90 days and more; a minute is nobody's hurry.
pub const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How soon a cut that the gateway could not take is told again: well within the second that a cut may take.
pub const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Entries per sweep: some 30 KiB, far below what one proposal may weigh. The next sweep follows at once.
pub const SWEEP_AT_MOST: usize = 256;

/// Connections to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub principal: Principal,
    /// Empty: all.
    pub services: Vec<Service>,
    pub reason: RefusalReason,
}

/// What a node of this copy must not have, if anything: a blocked one nothing at all, a worker no mesh.
/// A node that this copy does not know is not judged.
pub fn verdict(tables: &Tables, node: NodeId) -> Option<Cut> {
    let principal = Principal::Node(node);
    if tables.blocklist.contains_key(&node) {
        let reason = RefusalReason::Blocked;
        return Some(Cut { principal, services: vec![], reason });
    }
    let worker = tables.nodes.get(&node).is_some_and(|n| n.role == Role::Worker);
    worker.then(|| Cut { principal, services: vec![Service::Mesh], reason: RefusalReason::Demoted })
}

/// Everything that a full look at this copy says must be cut.
pub fn due(tables: &Tables) -> impl Iterator<Item = Cut> {
    let known = tables.blocklist.keys().chain(tables.nodes.keys());
    known.filter_map(|node| verdict(tables, *node))
}

/// What happened.
#[derive(Debug)]
pub enum Input<'a> {
    /// A newer copy. Some may have been skipped.
    Looked(&'a Replica),
    /// The gateway has taken this principal's cut.
    Told(Principal),
    /// The gateway was down or full: it stays owed.
    NotTold,
    /// Time to tell again what is owed.
    Retry,
    /// Time to look for blocks that are over.
    Ticked,
    /// A sweep ended: applied at this revision, or not.
    Swept(Option<Revision>),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Tell the gateway; answer with `Told` or `NotTold`.
    Cut(Cut),
    /// Come back with `Retry` then.
    RetryAt(Moment),
    /// Propose; answer with `Swept`.
    Sweep(Box<Command>),
}

/// What survives a crash: what was looked at, and what is owed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    seen: Tables,
    owed: BTreeSet<Principal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sweep {
    Idle,
    Proposed {
        /// There was more than one sweep may take.
        more: bool,
    },
    /// Looks again once the copy has applied the last sweep.
    Continues(Revision),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Blocklist {
    memory: Memory,
    /// The next look is at everything, not at what changed.
    fresh: bool,
    retrying: bool,
    leading: bool,
    sweep: Sweep,
    cuts: u64,
    swept: u64,
}

/// Its own state, for the live tree.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BlocklistView {
    pub revision: Revision,
    pub entries: usize,
    pub next_expiry: Option<WallTime>,
    /// Cuts that the gateway took, of this incarnation.
    pub cuts: u64,
    /// Principals whose cut the gateway has not taken yet.
    pub owed: usize,
    pub leading: bool,
    /// Sweeps applied, of this incarnation.
    pub sweeps: u64,
}

impl Blocklist {
    /// A new incarnation, with what the last one left, if there was one.
    pub fn resume(memory: Memory) -> Self {
        Self { memory, fresh: true, retrying: false, leading: false, sweep: Sweep::Idle, cuts: 0, swept: 0 }
    }

    /// What to leave to the next incarnation. Cheap: the tables are shared.
    pub fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Takes one input.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input<'_>, out: &mut Vec<Effect>) {
        match input {
            Input::Looked(replica) => {
                self.look(&replica.tables, out);
                let began = replica.raft.leading && !self.leading;
                self.leading = replica.raft.leading;
                if began || self.continues() {
                    self.sweep(wall, out);
                }
            }
            Input::Told(principal) => {
                self.memory.owed.remove(&principal);
                self.cuts += 1;
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
            cuts: self.cuts,
            owed: self.memory.owed.len(),
            leading: self.leading,
            sweeps: self.swept,
        }
    }

    fn look(&mut self, tables: &Tables, out: &mut Vec<Effect>) {
        // An older copy is another copy: this member started from nothing. Its gaps say nothing about anyone.
        if tables.revision < self.memory.seen.revision {
            self.memory.seen = Tables::default();
            self.fresh = true;
        }
        let mut lost = departed(&self.memory.seen, tables);
        if std::mem::take(&mut self.fresh) {
            lost.extend(due(tables).map(|cut| cut.principal));
            lost.append(&mut self.memory.owed);
        } else {
            lost.extend(newly_due(&self.memory.seen, tables));
        }
        self.memory.seen = tables.clone();
        for principal in lost {
            self.memory.owed.insert(principal.clone());
            self.tell_about(&principal, out);
        }
    }

    fn tell(&mut self, out: &mut Vec<Effect>) {
        for principal in self.memory.owed.clone() {
            self.tell_about(&principal, out);
        }
    }

    /// Judged by the newest copy: a node that is manager again meanwhile keeps the sessions it has opened since.
    fn tell_about(&mut self, principal: &Principal, out: &mut Vec<Effect>) {
        let tables = &self.memory.seen;
        let everything = |reason| Cut { principal: principal.clone(), services: vec![], reason };
        let cut = match principal {
            Principal::Node(node) if tables.nodes.contains_key(node) => verdict(tables, *node),
            Principal::Node(node) => Some(verdict(tables, *node).unwrap_or(everything(RefusalReason::Removed))),
            _ => Some(everything(RefusalReason::Unauthenticated)),
        };
        match cut {
            Some(cut) => out.push(Effect::Cut(cut)),
            None => drop(self.memory.owed.remove(principal)),
        }
    }

    /// Proposes to forget blocks that are over. Each is judged again when it is applied, by the guard.
    fn sweep(&mut self, wall: WallTime, out: &mut Vec<Effect>) {
        if !self.leading || self.sweep != Sweep::Idle {
            return;
        }
        let blocks = &self.memory.seen.blocklist;
        let mut over = blocks.values().filter(|b| b.expires_at <= wall).map(|b| b.node);
        let batch: Vec<NodeId> = over.by_ref().take(SWEEP_AT_MOST).collect();
        if batch.is_empty() {
            return;
        }
        self.sweep = Sweep::Proposed { more: over.next().is_some() };
        let start = Command::idempotent(wall, Principal::Cluster, "the block is over");
        let command = batch.into_iter().fold(start, |command, node| {
            command.guard(Guard::BlockExpired { node, at: wall }).change(Change::Unblock(node))
        });
        out.push(Effect::Sweep(Box::new(command)));
    }

    fn settle(&mut self, applied: Option<Revision>) {
        self.sweep = match (self.sweep, applied) {
            (Sweep::Proposed { more: true }, Some(at)) => Sweep::Continues(at),
            // Refused or lost: the next tick looks again.
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

/// Whoever an earlier copy knew and a later one does not, or knows by another certificate.
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

/// Nodes that must not have what the earlier copy did not forbid them. One that is new to this copy counts: its
/// connections may have been accepted on its certificate, when the copy was too old to know.
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
        let cut = verdict(tables, *node);
        cut.is_some() && cut != verdict(seen, *node)
    });
    lost.into_iter().map(Principal::Node).collect()
}

fn principal_of(user: &User) -> Principal {
    user.kind.principal(user.name.clone())
}

#[cfg(test)]
mod tests;
