//! Claims: which process is taken for a node.
//!
//! Owns   for each peer the process that this manager takes for it, and what the other managers take.
//! Hears  hellos, the claims of others, whether a process that was asked still lives.     Says  take, ask, refuse; give way.
//! Keeps  MESH-22  a manager hears one process of a node at a time: of two that live, the one that was taken first.
//!        MESH-23  a process on a copy of an older state of its directory is not taken for the seat that it copied, whether the
//!                 other one lives or not: what that one has promised since, it does not know.
//!        MESH-24  managers that reach each other take the same process of a node.
//! Why not the newest: two processes on copies of one directory would take the seat from each other for ever, and each could vote.
//! What it cannot see is in docs/decisions/0023-one-process-per-seat.md.

use std::collections::BTreeMap;

use muster_messages::wire::{Claim, MOST_CLAIMS, StartId, Starts};
use muster_messages::{NodeId, RaftId, WallTime};

/// Who says hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    pub node: NodeId,
    pub starts: Starts,
    /// The seat that it names.
    pub seat: Option<RaftId>,
    pub addr: String,
    pub remote: String,
}

/// What becomes of a newcomer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    Take,
    /// Refused if this process still lives, taken if it does not.
    Ask(Box<Claim>),
    /// It runs on a copy of an older state than this process has left.
    Refuse(Box<Claim>),
}

/// What follows from another manager's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// This process is heard no more: another manager has taken `to` before.
    GiveWay { node: NodeId, from: StartId, to: Box<Claim> },
    /// Whether this process still lives: `because` of that one.
    Ask { own: Box<Claim>, because: StartId },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Claims {
    me: NodeId,
    own: BTreeMap<NodeId, Claim>,
    /// By who claims it. Kept while the claimant is away: it is what was true last.
    told: BTreeMap<NodeId, BTreeMap<NodeId, Claim>>,
}

impl Claims {
    pub fn new(me: NodeId) -> Self {
        Self { me, own: BTreeMap::new(), told: BTreeMap::new() }
    }

    /// What this manager claims, for the others.
    pub fn all(&self) -> Vec<Claim> {
        self.own.values().take(MOST_CLAIMS).cloned().collect()
    }

    /// The process that is taken for a node, here or else by others.
    pub fn of(&self, node: NodeId) -> Option<&Claim> {
        let by_others = self.told.iter().filter_map(|(by, claims)| Some((claims.get(&node)?, *by)));
        let first = by_others.min_by_key(|(claim, by)| (claim.since, *by)).map(|(claim, _)| claim);
        self.own.get(&node).or(first)
    }

    /// `open`: whether the process that is taken has a session here.
    pub fn judge(&self, newcomer: &Newcomer, open: impl FnOnce(StartId) -> bool) -> Judged {
        let Some((claim, taken)) = self.of(newcomer.node).and_then(|claim| Some((claim, claim.starts.this()?))) else {
            return Judged::Take;
        };
        if newcomer.starts.this() == Some(taken) {
            return Judged::Take;
        }
        let seats = newcomer.seat.is_some() && self.is_seated(newcomer.node, taken);
        if seats && !newcomer.starts.had(taken) {
            return Judged::Refuse(Box::new(claim.clone()));
        }
        // Started again in its place: nobody else can listen there.
        if newcomer.addr == claim.addr && !open(taken) {
            return Judged::Take;
        }
        Judged::Ask(Box::new(claim.clone()))
    }

    /// Whether this process has spoken for a seat, to this manager or to another one.
    fn is_seated(&self, node: NodeId, start: StartId) -> bool {
        let by_others = self.told.values().filter_map(|claims| claims.get(&node));
        let mut known = self.own.get(&node).into_iter().chain(by_others);
        known.any(|claim| claim.seat.is_some() && claim.starts.this() == Some(start))
    }

    /// The newcomer is taken. Whether that is news for the others.
    pub fn take(&mut self, wall: WallTime, newcomer: Newcomer) -> bool {
        let known = self.of(newcomer.node).filter(|claim| claim.starts.this() == newcomer.starts.this());
        let since = known.map_or(wall, |claim| claim.since);
        let Newcomer { node, starts, seat, addr, remote } = newcomer;
        // What it has promised for a seat that it has no more, a copy of an older state does not know either.
        let seat = seat.or(known.and_then(|claim| claim.seat));
        let old = self.own.get(&node);
        if old.is_some_and(|old| old.starts == starts && old.seat == seat && old.addr == addr) {
            return false;
        }
        let insists = old.filter(|old| old.starts == starts).and_then(|old| old.insists);
        self.own.insert(node, Claim { node, starts, seat, addr, remote, since, insists });
        true
    }

    /// The process that is heard got a seat after its hello. Whether that is news for the others: its first one is, once. Which
    /// seat it is decides nothing, and a peer that names one after the other is not passed on.
    pub fn seated(&mut self, node: NodeId, start: StartId, seat: RaftId) -> bool {
        let own = self.own.get_mut(&node).filter(|own| own.starts.this() == Some(start));
        own.is_some_and(|own| own.seat.replace(seat).is_none())
    }

    /// All that another manager claims.
    pub fn told(&mut self, by: NodeId, claims: Vec<Claim>) -> Vec<Reaction> {
        let sound = |claim: &Claim| claim.node != self.me && claim.node != by && claim.starts.this().is_some();
        let claims = claims.into_iter().filter(sound).take(MOST_CLAIMS);
        let claims: BTreeMap<NodeId, Claim> = claims.map(|claim| (claim.node, claim)).collect();
        let reactions: Vec<Reaction> = claims.values().filter_map(|theirs| self.react(by, theirs)).collect();
        self.told.insert(by, claims);
        for reaction in &reactions {
            if let Reaction::GiveWay { node, .. } = reaction {
                self.own.remove(node);
            }
        }
        reactions
    }

    fn react(&self, by: NodeId, theirs: &Claim) -> Option<Reaction> {
        let own = self.own.get(&theirs.node)?;
        let (mine, other) = (own.starts.this()?, theirs.starts.this()?);
        if mine == other {
            return None;
        }
        let give_way = || Reaction::GiveWay { node: own.node, from: mine, to: Box::new(theirs.clone()) };
        let (later, earlier) = (own.starts.had(other), theirs.starts.had(mine));
        match (later, earlier) {
            // Ours is a later start of the same directory: theirs has ended, or ours runs on a copy of a running one.
            (true, _) => (theirs.insists == Some(mine)).then(give_way),
            (_, true) => Some(Reaction::Ask { own: Box::new(own.clone()), because: other }),
            _ => ((theirs.since, by) < (own.since, self.me)).then(give_way),
        }
    }

    /// What came of [`Reaction::Ask`]. Whether that is news for the others, and who is heard no more.
    pub fn asked(&mut self, node: NodeId, start: StartId, because: StartId, lives: bool) -> (bool, Option<StartId>) {
        let Some(own) = self.own.get_mut(&node).filter(|own| own.starts.this() == Some(start)) else {
            return (false, None);
        };
        if lives {
            own.insists = Some(because);
            return (true, None);
        }
        self.own.remove(&node);
        (true, Some(start))
    }

    /// This node is no manager any more.
    pub fn forget(&mut self, node: NodeId) {
        self.own.remove(&node);
        self.told.remove(&node);
        self.told.values_mut().for_each(|claims| drop(claims.remove(&node)));
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
