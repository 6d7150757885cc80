//! How steps end: proposals, dial-backs, offers of leadership.

use muster_messages::{CommandRefusal, Details, ErrorBody, ErrorCode, Guard, WaitReason, detail};

use super::membership_requests::Probe;
use super::plan::Wait;
use super::{
    Answer, EarlyDialPhase, Effect, Now, Outgoing, Proven, RequestedChange, RoleManager, Sent, StepId, StepOutcome,
    membership_requests, not_leading, queues, refuse,
};

impl RoleManager {
    /// An applied step ends once the state that contains it is observed: until then the facts are older than the step.
    pub(super) fn end_observed_steps(&mut self, now: Now, out: &mut Vec<Effect>) {
        for (step, outgoing) in self.checkpoint.outbox.take_seen(self.seen.tables.revision) {
            let node = outgoing.node;
            self.plans.mark(node);
            if let (Sent::Write(_), Some(applied)) = (&outgoing.sent, outgoing.applied) {
                let record = self.seen.tables.nodes.get(&node);
                let changed = record.is_none_or(|record| record.revision >= applied);
                self.backoff.wrote(node, changed, now.at + self.config.retry);
            }
            let Some(role_request) = self.role_requests.take_sent(step) else { continue };
            match role_request.change {
                RequestedChange::Role(role) => {
                    // Written on condition that the node is to hold the role already.
                    let unchanged = Guard::DesiredRole { node, role };
                    let changed = matches!(&outgoing.sent, Sent::RoleRequest { command, .. } if !command.guards.contains(&unchanged));
                    out.push(Effect::Answer(role_request.ask, Answer::Role(Ok(changed))));
                }
                RequestedChange::Remove { .. } => self.role_requests.follow(&role_request, &self.config, out),
            }
        }
    }

    pub(super) fn end_proposal(&mut self, now: Now, step: StepId, outcome: StepOutcome, out: &mut Vec<Effect>) {
        let Some(outgoing) = self.checkpoint.outbox.get_mut(step) else { return };
        match outcome {
            StepOutcome::Applied(at) => {
                outgoing.applied = Some(at);
                return;
            }
            StepOutcome::MembershipBusy => {
                outgoing.again_at = Some(now.at + self.config.ask_again / 5);
                return;
            }
            _ => {}
        }
        let node = outgoing.node;
        let is_request = matches!(outgoing.sent, Sent::RoleRequest { .. });
        let is_membership_change = matches!(outgoing.sent, Sent::Membership(_));
        let planned = self.plans.membership_change(node);
        let is_outdated =
            matches!(&outgoing.sent, Sent::Membership(change) if planned.is_some_and(|kind| *kind != change.kind));
        self.checkpoint.outbox.remove(step);
        if is_request {
            match (self.role_requests.take_sent(step), &outcome) {
                // The id is on record, for another request or for an earlier proposal of this one: the record decides. It is not
                // written again, so a later request cannot be overwritten.
                (Some(role_request), StepOutcome::Refused(CommandRefusal::RequestReused(_))) => {
                    self.role_requests.decide_next(now.at, role_request);
                }
                (Some(role_request), _) => out.push(refuse(&role_request, self.proposal_error(&outcome))),
                (None, _) => {}
            }
            return;
        }
        let (wait, pause) = match &outcome {
            StepOutcome::NoQuorum { .. } => {
                let message = self.proposal_error(&outcome).message;
                (Some(Wait::new(WaitReason::QuorumAtRisk, message)), self.config.retry)
            }
            StepOutcome::TooFewReachable { voters, reachable } => {
                (self.wait_for_voters(now, node, voters, reachable), self.config.ask_again)
            }
            _ => (None, self.config.retry),
        };
        if is_membership_change && node == self.me {
            self.checkpoint.slot.forget_transfers();
        }
        // Otherwise the facts have changed since: the node needs another change of the membership.
        if !is_outdated {
            self.backoff.hold(node, now.at + pause, wait);
        }
    }

    pub(super) fn end_probe(&mut self, now: Now, step: StepId, result: Result<(), ErrorBody>, out: &mut Vec<Effect>) {
        let Some(Probe { node, addr, early }) = self.membership_requests.end_probe(step) else { return };
        let until = now.at + self.config.dial_back_counts;
        let membership_request = self.membership_requests.get(node).filter(|k| k.request.advertise == addr);
        if early && (result.is_err() || membership_request.is_none()) {
            // A failure says nothing: the runtime may be starting. A success counts once the node has asked.
            let found = result.map(|()| EarlyDialPhase::Found(Proven { addr, until }));
            return self.checkpoint.observations.edit(node, |observation| {
                if let (Some(early), Ok(found)) = (&mut observation.early_dial, found) {
                    early.phase = found;
                }
            });
        }
        self.plans.mark(node);
        let failure = result.err().map(|error| {
            let name = queues::name_of(&self.seen.tables, node);
            format!(
                "{name} could not be reached at {addr}, the address it advertises: {error}; every manager must be able to \
                 dial it there (check its --advertise and its firewall)"
            )
        });
        self.checkpoint.observations.edit(node, |observation| {
            observation.proven = failure.is_none().then(|| Proven { addr: addr.clone(), until });
            observation.dial_back = failure.clone();
        });
        let membership_request = self.membership_requests.get(node).filter(|k| k.request.advertise == addr);
        if let (Some(message), Some(membership_request)) = (failure, membership_request) {
            let reply = membership_requests::wait(WaitReason::DialBackFailed, message, self.config.ask_again);
            out.push(Effect::Answer(membership_request.ask, Answer::Membership(Ok(reply))));
            self.membership_requests.close(node);
        }
    }

    pub(super) fn end_transfer(&mut self, now: Now, step: StepId, taken: bool) {
        let Some(Outgoing { sent: Sent::Transfer { to }, .. }) = self.checkpoint.outbox.remove(step) else {
            return;
        };
        if taken {
            let message = format!("{} now leads", queues::name_of(&self.seen.tables, to));
            let wait = Some(Wait::new(WaitReason::TransferringLeadership, message));
            self.backoff.hold(self.me, now.at + self.config.retry, wait);
        } else {
            self.checkpoint.slot.transfer_failed(to);
        }
    }

    pub(super) fn proposal_error(&self, outcome: &StepOutcome) -> ErrorBody {
        let soon = self.config.ask_again / 5;
        match outcome {
            StepOutcome::Refused(refusal) => refusal.clone().into(),
            StepOutcome::NoQuorum { missing } => {
                let names: Vec<String> =
                    (missing.iter()).map(|n| queues::name_of(&self.seen.tables, *n).to_string()).collect();
                let message = format!("no quorum: waiting for {}", names.join(", "));
                ErrorBody::new(ErrorCode::NoQuorum, message)
                    .with_details(&Details::default().with(detail::MISSING_BY_NAME, &names))
                    .retry_after(self.config.ask_again)
            }
            StepOutcome::Crowded => {
                ErrorBody::new(ErrorCode::TooManyRequests, "too many proposals in flight").retry_after(soon)
            }
            StepOutcome::NotLeader => not_leading().retry_after(soon),
            StepOutcome::Applied(_)
            | StepOutcome::MembershipBusy
            | StepOutcome::TooFewReachable { .. }
            | StepOutcome::TimedOut
            | StepOutcome::Unknown => {
                ErrorBody::unknown_outcome("not confirmed while this manager led").retry_after(soon)
            }
        }
    }
}
