//! How the role manager observes the replicated state: one consistent view when it takes over, then the changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use muster_messages::{Replica, Tables, Term};

use super::{Checkpoint, Effect, Now, RoleManager, Sent};

impl RoleManager {
    pub(super) fn see(&mut self, now: Now, replica: Arc<Replica>, out: &mut Vec<Effect>) {
        let old = std::mem::replace(&mut self.seen, replica);
        self.seen_at = now;
        if !self.leads() {
            return;
        }
        let term = self.seen.raft.term;
        if !self.started || self.kept.term != term {
            self.take_over(now, term, out);
        } else {
            self.mark_changed(&old.tables);
        }
        let seen = Arc::clone(&self.seen);
        self.kept.observations.refresh(&seen, now);
        self.dirty.extend(self.kept.observations.nodes());
    }

    /// Takes one consistent view. Steps of this term continue; those of older terms are applied or lost, because a leader
    /// that decides has applied an entry of its own term.
    pub(super) fn take_over(&mut self, now: Now, term: Term, out: &mut Vec<Effect>) {
        if self.kept.term != term {
            // Step numbers continue: the result of an earlier term's step must not end a step of this one.
            let (queues, steps) = (std::mem::take(&mut self.kept.queues), self.kept.steps);
            self.kept = Checkpoint { term, queues, steps, ..Checkpoint::default() };
        }
        for (step, outgoing) in &mut self.kept.outbox.0 {
            if outgoing.applied.is_some() || outgoing.again_at.is_some() {
                continue;
            }
            match outgoing.sent {
                // Its reachability check belongs to the previous incarnation. If it was proposed, the next proposal is busy.
                Sent::Membership(_) => outgoing.again_at = Some(now.at),
                _ => out.push(outgoing.effect(*step)),
            }
        }
        self.started = true;
        self.plans.clear();
        self.held.clear();
        self.reachability = Default::default();
        self.requests.fresh_until = Some(now.at + self.config.election_timeout);
        let tables = &self.seen.tables;
        let everybody = tables.nodes.keys().copied().chain(tables.members.values().map(|m| m.node));
        self.dirty = everybody.chain(self.kept.queues.iter().map(|(n, _)| n)).collect();
    }

    pub(super) fn mark_changed(&mut self, old: &Tables) {
        let new = &self.seen.tables;
        let mut changed = BTreeSet::new();
        if !old.nodes.ptr_eq(&new.nodes) {
            for item in old.nodes.diff(&new.nodes) {
                changed.insert(match item {
                    DiffItem::Add(id, _) | DiffItem::Remove(id, _) => *id,
                    DiffItem::Update { new: (id, _), .. } => *id,
                });
            }
        }
        if !old.members.ptr_eq(&new.members) && old.members != new.members {
            for member in old.members.values() {
                if new.members.get(&member.raft_id) != Some(member) {
                    changed.insert(member.node);
                }
            }
            for member in new.members.values() {
                if old.members.get(&member.raft_id) != Some(member) {
                    changed.insert(member.node);
                }
            }
        }
        for node in changed {
            self.held.remove(&node);
            self.dirty.insert(node);
        }
    }
}
