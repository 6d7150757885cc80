//! Membership changes: one at a time for all plans, in order of arrival, each only if its quorum check passes.

use std::collections::BTreeSet;

use muster_messages::{MembershipChange, MembershipChangeKind, NodeId, RaftId, WaitReason, Wants};

use super::plan::{Next, Plan, Wait};
use super::quorum::{Electorate, QuorumCheck};
use super::reachability::Checked;
use super::{Effect, Moment, Now, RoleManager, Sent, plan, queues};

/// The only check that a membership change is judged by is its own, which has just failed.
const ANY_TIME: Moment = Moment(0);

impl RoleManager {
    /// Starts the next membership change whose quorum check passes by recent acknowledgements. One blocked by quorum lets others
    /// pass and keeps its position; a failed one goes to the end. The Raft member proposes it once the resulting voters have responded.
    pub(super) fn change_membership(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.queue_up();
        if !matches!(self.plans.membership_change(self.me), Some(MembershipChangeKind::Remove { .. })) {
            self.checkpoint.slot.forget_transfers();
        }
        self.decide_again(now);
        if self.checkpoint.outbox.membership().is_some() {
            return;
        }
        let electorate = self.electorate(now, None);
        let possible = |node: &NodeId| {
            matches!(self.quorum_check(*node, &electorate), QuorumCheck::Open | QuorumCheck::Unconfirmed(_))
        };
        let Some(node) = self.checkpoint.slot.waiting().find(possible) else { return };
        let Some(kind) = self.plans.membership_change(node).cloned() else { return };
        self.checkpoint.slot.remove(node);
        let own = self.seen.raft.raft_id == Some(plan::member_id_in(&kind));
        // A node whose demotion or removal is still being written would have to hand leadership on at once.
        let leaving: BTreeSet<NodeId> = self.checkpoint.outbox.leaving().collect();
        let may_lead = |n: &NodeId| self.checkpoint.slot.may_lead(*n) && !leaving.contains(n);
        let transfer_target = (own && matches!(kind, MembershipChangeKind::Remove { .. }))
            .then(|| electorate.transfer_targets(self.me).into_iter().find(may_lead))
            .flatten();
        let sent = match transfer_target {
            // The leader removes itself only when no other voter took leadership. An offer of leadership waits for no check: it
            // changes no voter, and the new leader's change has its own.
            Some(to) => Sent::Transfer { to },
            None => Sent::Membership(MembershipChange { at: now.wall, by: self.on_behalf_of(node), kind }),
        };
        debug_assert!(self.checkpoint.outbox.membership().is_none(), "ROLE-2");
        self.send(now, node, sent, out);
    }

    /// A change rejected because another was in flight goes first, if it is still needed. It is decided on again: the voters
    /// may have changed.
    fn decide_again(&mut self, now: Now) {
        let Some((step, outgoing)) = self.checkpoint.outbox.membership() else { return };
        let (Some(again_at), Sent::Membership(change)) = (outgoing.again_at, &outgoing.sent) else { return };
        let node = outgoing.node;
        if self.plans.membership_change(node) != Some(&change.kind) {
            self.checkpoint.outbox.remove(step);
        } else if again_at <= now.at {
            self.checkpoint.outbox.remove(step);
            self.checkpoint.slot.put_first(node);
        }
    }

    fn queue_up(&mut self) {
        let idle = |node: &NodeId| !self.backoff.is_held(*node) && !self.checkpoint.outbox.has_role_request(*node);
        let wanting: BTreeSet<NodeId> = self.plans.membership_changes().filter(idle).collect();
        let in_flight = self.checkpoint.outbox.membership().map(|(_, o)| o.node);
        self.checkpoint.slot.queue_up(&wanting, in_flight);
    }

    /// Too few of the voters that its change would result in respond: what the node waits for.
    pub(super) fn wait_for_voters(
        &self,
        now: Now,
        node: NodeId,
        voters: &BTreeSet<RaftId>,
        reachable: &BTreeSet<RaftId>,
    ) -> Option<Wait> {
        let checked = Checked { since: now.at, members: voters.clone(), reachable: reachable.clone() };
        match self.quorum_check(node, &self.electorate(now, Some(checked))) {
            QuorumCheck::Closed(obstacle) => Some(Wait::new(obstacle.reason, obstacle.message)),
            QuorumCheck::Open | QuorumCheck::Undecided | QuorumCheck::Unconfirmed(_) => None,
        }
    }

    /// ROLE-3, judged on present knowledge, just before the change.
    fn quorum_check(&self, node: NodeId, electorate: &Electorate) -> QuorumCheck {
        let Some(kind) = self.plans.membership_change(node) else { return QuorumCheck::Open };
        let name = queues::name_of(&self.seen.tables, node);
        match kind {
            MembershipChangeKind::AddLearner { .. } | MembershipChangeKind::SetAddress { .. } => {
                electorate.can_commit()
            }
            MembershipChangeKind::PromoteLearner { raft_id, .. } => {
                electorate.can_promote(*raft_id, name.as_str(), ANY_TIME)
            }
            MembershipChangeKind::Remove { raft_id } => {
                let voter = self.seen.tables.members.get(raft_id).is_some_and(|m| m.voter);
                let returns = self.plans.get(node).is_some_and(|p| p.wants == Wants::Manager);
                if voter && returns {
                    electorate.can_replace(node, name.as_str(), ANY_TIME)
                } else if voter {
                    let leaving = BTreeSet::from([node]);
                    electorate.can_remove(&leaving, node, name.as_str(), ANY_TIME)
                } else {
                    electorate.can_commit()
                }
            }
        }
    }

    /// ROLE-5: writes into the queues what every unsettled node waits for.
    pub(super) fn explain(&mut self, now: Now) {
        let electorate = self.electorate(now, None);
        for (node, plan) in self.plans.iter() {
            let wait = self.wait_of(node, plan, &electorate, now);
            let since = if self.checkpoint.queues.get(node).is_none() {
                plan::since(&self.seen.tables, node, plan).min(now.wall)
            } else {
                now.wall
            };
            self.checkpoint.queues.put(node, plan.wants, wait, plan.holds, (since, now.wall));
        }
    }

    fn wait_of(&self, node: NodeId, plan: &Plan, electorate: &Electorate, now: Now) -> Wait {
        let held = self.backoff.wait(node).cloned();
        if !matches!(plan.next, Some(Next::Membership(_))) {
            return held.unwrap_or_else(|| plan.wait.clone());
        }
        let in_flight = self.checkpoint.outbox.membership().map(|(_, o)| o);
        if let Some(own) = in_flight.filter(|o| o.node == node) {
            return self.progress_of(own, &plan.wait, now);
        }
        let other = in_flight.map(|o| o.node).filter(|other| *other != node);
        match (self.quorum_check(node, electorate), other) {
            (QuorumCheck::Closed(obstacle), _) => Wait::new(obstacle.reason, obstacle.message),
            (_, _) if held.is_some() => held.unwrap_or_else(|| plan.wait.clone()),
            (_, Some(other)) => {
                let name = queues::name_of(&self.seen.tables, other);
                let message = format!("waiting for the membership change of {name}");
                Wait::new(WaitReason::MembershipBusy, message)
            }
            (_, None) => plan.wait.clone(),
        }
    }

    fn progress_of(&self, own: &super::Outgoing, plain: &Wait, now: Now) -> Wait {
        if let Sent::Transfer { to } = own.sent {
            let name = queues::name_of(&self.seen.tables, to);
            return Wait::new(WaitReason::TransferringLeadership, format!("transferring leadership to {name}"));
        }
        let age = now.at.since(own.since.at);
        if age < self.config.slow_change {
            return plain.clone();
        }
        let message = format!(
            "the membership change has not been applied after {} s; it is proposed again only once known to be lost",
            self.config.slow_change.as_secs()
        );
        Wait::new(WaitReason::ConfChangeSlow, message)
    }
}
