//! Identity bindings: which process is accepted for each node.
//!
//! Owns        for each peer, the process that this manager accepts, and those that the other managers accept.
//! Inputs      hellos, the bindings of other managers, whether a queried process is still alive.
//! Outputs     take, ask, refuse; whether a stream becomes a session; give way.
//! Invariants  MESH-22  a manager accepts one process of a node at a time: of two live ones, the one accepted first.
//!             MESH-23  a process on a copy of an older state of its directory is not accepted for the member id that it copied,
//!                      whether the other process lives or not: it does not know what that one has promised since.
//!             MESH-24  managers that reach each other accept the same process of a node.
//! Why not the newest: two processes on copies of one directory would replace each other indefinitely, and each could vote.
//! Limits: docs/decisions/0023-one-process-per-seat.md.

use std::collections::BTreeMap;

use muster_messages::wire::{IdentityBinding, MAX_BINDINGS, StartId, Starts};
use muster_messages::{NodeId, RaftId, WallTime};

/// The sender of a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    pub node: NodeId,
    pub starts: Starts,
    pub member_id: Option<RaftId>,
    pub addr: String,
    pub remote: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewcomerDecision {
    Accept,
    /// Refuse if this process is still alive, otherwise take.
    Ask(Box<IdentityBinding>),
    /// It runs on a copy of an older state than this process's.
    Refuse(Box<IdentityBinding>),
}

/// What becomes of a stream whose hello both sides have accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// No session can open now, or the hello names no process: no process is accepted because of it.
    Impossible,
    /// Another process of the node was accepted meanwhile.
    Superseded,
    /// The process is accepted, and the stream becomes its session. `is_news`: the other managers must be informed.
    Session { start: StartId, is_news: bool },
}

/// The reaction to another manager's binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// This process is no longer accepted: another manager accepted `to` earlier.
    GiveWay { node: NodeId, from: StartId, to: Box<IdentityBinding> },
    /// Check whether this process is still alive, because of process `because`.
    Ask { own: Box<IdentityBinding>, because: StartId },
}

#[derive(Clone, Debug)]
pub struct IdentityBindings {
    me: NodeId,
    own: BTreeMap<NodeId, IdentityBinding>,
    /// By the manager that reported it. Kept while that manager is away: it is the last known state.
    reported: BTreeMap<NodeId, BTreeMap<NodeId, IdentityBinding>>,
}

impl IdentityBindings {
    pub fn new(me: NodeId) -> Self {
        Self { me, own: BTreeMap::new(), reported: BTreeMap::new() }
    }

    /// This manager's bindings, for the others.
    pub fn all(&self) -> Vec<IdentityBinding> {
        self.own.values().take(MAX_BINDINGS).cloned().collect()
    }

    /// The accepted process of a node: this manager's, or else the other managers' earliest.
    pub fn of(&self, node: NodeId) -> Option<&IdentityBinding> {
        let by_others = self.reported.iter().filter_map(|(by, bindings)| Some((bindings.get(&node)?, *by)));
        let first = by_others.min_by_key(|(binding, by)| (binding.since, *by)).map(|(binding, _)| binding);
        self.own.get(&node).or(first)
    }

    /// `open`: whether the accepted process has a session with this manager.
    pub fn decide(&self, newcomer: &Newcomer, open: impl FnOnce(StartId) -> bool) -> NewcomerDecision {
        let Some((binding, taken)) = self.of(newcomer.node).and_then(|binding| Some((binding, binding.starts.this()?)))
        else {
            return NewcomerDecision::Accept;
        };
        if newcomer.starts.this() == Some(taken) {
            return NewcomerDecision::Accept;
        }
        let both_members = newcomer.member_id.is_some() && self.has_member_id(newcomer.node, taken);
        if both_members && !newcomer.starts.had(taken) {
            return NewcomerDecision::Refuse(Box::new(binding.clone()));
        }
        // Restarted at the same address: no other process can listen there.
        if newcomer.addr == binding.addr && !open(taken) {
            return NewcomerDecision::Accept;
        }
        NewcomerDecision::Ask(Box::new(binding.clone()))
    }

    /// Whether this process has used a member id, with this manager or another one.
    fn has_member_id(&self, node: NodeId, start: StartId) -> bool {
        let by_others = self.reported.values().filter_map(|bindings| bindings.get(&node));
        let mut known = self.own.get(&node).into_iter().chain(by_others);
        known.any(|binding| binding.member_id.is_some() && binding.starts.this() == Some(start))
    }

    /// Accepts the sender of a hello that both sides have agreed on, unless another process of its node was accepted meanwhile.
    /// `asked`: the old process that did not answer. `can_open`: whether a session can open now. That is decided first, because a process
    /// is accepted together with its session, or not at all.
    pub fn confirm(
        &mut self,
        wall: WallTime,
        newcomer: Newcomer,
        asked: Option<StartId>,
        can_open: bool,
        open: impl FnOnce(StartId) -> bool,
    ) -> Opening {
        let Some(start) = newcomer.starts.this().filter(|_| can_open) else { return Opening::Impossible };
        let still_accepted = match self.decide(&newcomer, open) {
            NewcomerDecision::Accept => true,
            NewcomerDecision::Ask(binding) => asked.is_some() && binding.starts.this() == asked,
            NewcomerDecision::Refuse(_) => false,
        };
        if still_accepted {
            Opening::Session { start, is_news: self.take(wall, newcomer) }
        } else {
            Opening::Superseded
        }
    }

    /// Accepts the newcomer. Whether the others must be informed.
    pub fn take(&mut self, wall: WallTime, newcomer: Newcomer) -> bool {
        let known = self.of(newcomer.node).filter(|binding| binding.starts.this() == newcomer.starts.this());
        let since = known.map_or(wall, |binding| binding.since);
        let Newcomer { node, starts, member_id, addr, remote } = newcomer;
        // Promises for a former member id count too: a copy of an older state does not know them.
        let member_id = member_id.or(known.and_then(|binding| binding.member_id));
        let old = self.own.get(&node);
        if old.is_some_and(|old| old.starts == starts && old.member_id == member_id && old.addr == addr) {
            return false;
        }
        let insists = old.filter(|old| old.starts == starts).and_then(|old| old.insists);
        self.own.insert(node, IdentityBinding { node, starts, member_id, addr, remote, since, insists });
        true
    }

    /// The accepted process got a member id after its hello. Whether the others must be informed: only of the first one. Its value
    /// does not matter, and a peer that names one after another causes no further messages.
    pub fn member_id_announced(&mut self, node: NodeId, start: StartId, member_id: RaftId) -> bool {
        let own = self.own.get_mut(&node).filter(|own| own.starts.this() == Some(start));
        own.is_some_and(|own| own.member_id.replace(member_id).is_none())
    }

    pub fn reported(&mut self, by: NodeId, bindings: Vec<IdentityBinding>) -> Vec<Reaction> {
        let is_valid = |binding: &IdentityBinding| {
            binding.node != self.me && binding.node != by && binding.starts.this().is_some()
        };
        let bindings = bindings.into_iter().filter(is_valid).take(MAX_BINDINGS);
        let bindings: BTreeMap<NodeId, IdentityBinding> = bindings.map(|binding| (binding.node, binding)).collect();
        let reactions: Vec<Reaction> = bindings.values().filter_map(|theirs| self.react(by, theirs)).collect();
        self.reported.insert(by, bindings);
        for reaction in &reactions {
            if let Reaction::GiveWay { node, .. } = reaction {
                self.own.remove(node);
            }
        }
        reactions
    }

    fn react(&self, by: NodeId, theirs: &IdentityBinding) -> Option<Reaction> {
        let own = self.own.get(&theirs.node)?;
        let (mine, other) = (own.starts.this()?, theirs.starts.this()?);
        if mine == other {
            return None;
        }
        let give_way = || Reaction::GiveWay { node: own.node, from: mine, to: Box::new(theirs.clone()) };
        let (later, earlier) = (own.starts.had(other), theirs.starts.had(mine));
        match (later, earlier) {
            // Ours is a later start of the same directory: theirs has ended, or ours runs on a copy of a directory in use.
            (true, _) => (theirs.insists == Some(mine)).then(give_way),
            (_, true) => Some(Reaction::Ask { own: Box::new(own.clone()), because: other }),
            _ => ((theirs.since, by) < (own.since, self.me)).then(give_way),
        }
    }

    /// The result of [`Reaction::Ask`]. Whether the others must be informed, and the process that is no longer accepted.
    pub fn asked(&mut self, node: NodeId, start: StartId, because: StartId, alive: bool) -> (bool, Option<StartId>) {
        let Some(own) = self.own.get_mut(&node).filter(|own| own.starts.this() == Some(start)) else {
            return (false, None);
        };
        if alive {
            own.insists = Some(because);
            return (true, None);
        }
        self.own.remove(&node);
        (true, Some(start))
    }

    /// This node is no longer a manager.
    pub fn forget(&mut self, node: NodeId) {
        self.own.remove(&node);
        self.reported.remove(&node);
        self.reported.values_mut().for_each(|bindings| drop(bindings.remove(&node)));
    }
}

#[cfg(test)]
#[path = "bindings_tests.rs"]
mod tests;
