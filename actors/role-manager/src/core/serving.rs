//! Serving requests: which of those that wait are written, answered or kept waiting, in each step.

use std::collections::BTreeSet;

use muster_messages::wire::MembershipReply;
use muster_messages::{ErrorBody, NodeId, Role, WaitReason};

use super::membership_requests::{
    MAX_FAILURE, Probe, RequestState, UNASKED_DIAL_DELAY, dialable, judge, too_old, wait,
};
use super::plan::Next;
use super::quorum::Electorate;
use super::requests::{AdmissionCheck, Decision};
use super::{Answer, AskId, DesiredChange, Effect, Now, RoleManager, Sent, UnaskedDial, UnaskedPhase, refuse};

impl RoleManager {
    // ---- roles and removals ---------------------------------------------------------------------------------------

    pub(super) fn decide_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        if !self.requests.has_parked() {
            return;
        }
        let electorate = self.electorate(now);
        let mut behind = BTreeSet::new();
        for (since, pending_change) in self.requests.take_parked() {
            let node = pending_change.node;
            if behind.contains(&node) || self.kept.outbox.request_for(node) {
                behind.insert(node);
                self.requests.park(since, pending_change);
                continue;
            }
            match self.admission_check(&electorate, now).judge(&pending_change, since) {
                Decision::Done { changed } => out.push(match pending_change.change {
                    DesiredChange::Role(_) => Effect::Answer(pending_change.ask, Answer::Role(Ok(changed))),
                    DesiredChange::Remove { .. } => Effect::Answer(pending_change.ask, Answer::Removed(Ok(()))),
                }),
                Decision::Refused(error) => out.push(refuse(&pending_change, error)),
                Decision::Follow => self.requests.follow(&pending_change, &self.config, out),
                Decision::Later => {
                    behind.insert(node);
                    self.requests.park(since, pending_change);
                }
                Decision::CheckReachable(required) => {
                    behind.insert(node);
                    self.requests.park(since, pending_change);
                    self.check_reachable(now, None, required, out);
                }
                Decision::Write { command, leaves } => {
                    let step = self.send(now, node, Sent::DesiredChange { command, leaves }, out);
                    if self.config.answers_before_written() && matches!(pending_change.change, DesiredChange::Role(_)) {
                        out.push(Effect::Answer(pending_change.ask, Answer::Role(Ok(true))));
                        continue;
                    }
                    self.requests.sent(step, pending_change);
                }
            }
        }
    }

    fn admission_check<'a>(&'a self, electorate: &'a Electorate, now: Now) -> AdmissionCheck<'a> {
        let tables = &self.seen.tables;
        let going = |node: &NodeId| {
            (tables.nodes.get(node)).is_none_or(|r| r.desired_role != Role::Manager || r.removing.is_some())
        };
        let leaving = electorate.nodes().filter(going).chain(self.kept.outbox.leaving()).collect();
        let proven =
            (self.kept.observations.nodes()).filter(|n| self.kept.observations.of(*n).proven_at(now.at).is_some());
        let joining = proven.chain(self.membership_requests.nodes()).collect();
        AdmissionCheck { tables, electorate, leaving, joining, now }
    }

    // ---- membership -----------------------------------------------------------------------------------------------

    pub(super) fn serve_open_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        let nodes: Vec<NodeId> = self.membership_requests.nodes().collect();
        for node in nodes {
            let Some(open_request) = self.membership_requests.get(node) else { continue };
            let (ask, addr, eligible) =
                (open_request.ask, open_request.request.advertise.clone(), open_request.eligible);
            let request_state = judge(&self.seen, node, &open_request.request);
            let too_old = match &request_state {
                RequestState::TooOld(error) => Some(error.message.clone()),
                _ => None,
            };
            self.note_runtime(node, too_old, None);
            match request_state {
                RequestState::Answer(answer) => self.answer_request(node, ask, *answer, out),
                RequestState::TooOld(error) => self.answer_request(node, ask, Err(error), out),
                RequestState::IsMember(raft_id) => {
                    self.answer_request(node, ask, Ok(MembershipReply::IsMember { raft_id }), out)
                }
                RequestState::Lost(raft_id, _) if eligible => {
                    self.answer_request(node, ask, Ok(MembershipReply::IsMember { raft_id }), out);
                }
                RequestState::Lost(raft_id, loss) => {
                    self.kept.observations.edit(node, |observation| observation.lost = Some((raft_id, loss)));
                    self.plans.mark(node);
                }
                RequestState::Eligible => {
                    self.membership_requests.found_eligible(node);
                    self.dial_back(now, node, addr, out);
                }
                RequestState::Moved(_) => self.dial_back(now, node, addr, out),
            }
        }
    }

    /// Takes in what nodes report of their manager runtimes.
    pub(super) fn take_reports(&mut self, out: &mut Vec<Effect>) {
        for (ask, node, report) in self.membership_requests.take_reports() {
            let tables = &self.seen.tables;
            let record = (tables.nodes.get(&node)).filter(|r| r.desired_role == Role::Manager && r.removing.is_none());
            if let Some(record) = record.filter(|_| !tables.blocklist.contains_key(&node)) {
                let too_old = too_old(tables, &record.name, report.feature_level).map(|error| error.message);
                let failure = report.failure.map(|why| {
                    let why: String = why.chars().take(MAX_FAILURE).collect();
                    format!("the manager runtime of {} is not running: {why}", record.name)
                });
                self.note_runtime(node, too_old, failure);
            }
            out.push(Effect::Answer(ask, Answer::Reported(Ok(()))));
        }
    }

    /// What the newest request or report of a node says of its manager runtime.
    fn note_runtime(&mut self, node: NodeId, too_old: Option<String>, failure: Option<String>) {
        let before = self.kept.observations.of(node);
        if (&before.too_old, &before.failure) != (&too_old, &failure) {
            self.kept
                .observations
                .edit(node, |observation| (observation.too_old, observation.failure) = (too_old, failure));
            self.plans.mark(node);
        }
    }

    fn answer_request(
        &mut self,
        node: NodeId,
        ask: AskId,
        answer: Result<MembershipReply, ErrorBody>,
        out: &mut Vec<Effect>,
    ) {
        self.membership_requests.close(node);
        out.push(Effect::Answer(ask, Answer::Membership(answer)));
    }

    /// No node becomes a voter unless it is reachable at its advertised address.
    fn dial_back(&mut self, now: Now, node: NodeId, addr: String, out: &mut Vec<Effect>) {
        let observation = self.kept.observations.of(node);
        if observation.proven_at(now.at).is_some_and(|proven| proven.addr == addr) {
            return;
        }
        if let Some(found) = observation.found_unasked(now.at, &addr) {
            self.kept.observations.edit(node, |observation| observation.proven = Some(found.clone()));
            return self.plans.mark(node);
        }
        if !self.membership_requests.is_probing(node, &addr) {
            let step = self.next_step();
            out.push(self.membership_requests.begin_probe(step, Probe { node, addr, unasked: false }));
        }
    }

    /// Dials new managers that have their certificate and have not asked for membership yet.
    pub(super) fn dial_unasked(&mut self, now: Now, out: &mut Vec<Effect>) {
        let due: Vec<(NodeId, String, String)> = (self.plans.iter())
            .filter_map(|(node, plan)| match &plan.next {
                Some(Next::DialBack { addr, serial }) => Some((node, addr.clone(), serial.clone())),
                _ => None,
            })
            .collect();
        for (node, addr, serial) in due {
            let known = self.kept.observations.of(node).unasked.filter(|unasked| unasked.serial == serial);
            let due = UnaskedPhase::Due(now.at + UNASKED_DIAL_DELAY);
            let mut unasked = known.unwrap_or(UnaskedDial { serial, phase: due });
            let asked = self.membership_requests.get(node).is_some();
            if asked || dialable(&addr).is_err() {
                unasked.phase = UnaskedPhase::Over;
            } else if matches!(unasked.phase, UnaskedPhase::Due(at) if at <= now.at) {
                unasked.phase = UnaskedPhase::Over;
                let step = self.next_step();
                out.push(self.membership_requests.begin_probe(step, Probe { node, addr, unasked: true }));
            }
            self.kept.observations.edit(node, |observation| observation.unasked = Some(unasked));
        }
    }

    /// No request waits for long: it is answered with the reason for the wait, the node asks again, and keeps its
    /// position meanwhile.
    pub(super) fn answer_waiting_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        for node in self.membership_requests.overdue(now.at, self.config.membership_timeout) {
            let Some(open_request) = self.membership_requests.close(node) else { continue };
            let reply = match judge(&self.seen, node, &open_request.request) {
                // It is a member and has its data. Keeping it out until others know its new address could exclude the
                // very vote needed to publish that address.
                RequestState::Moved(raft_id) => MembershipReply::IsMember { raft_id },
                _ => match self.kept.queues.get(node) {
                    Some(p) => wait(p.reason, p.message.clone(), self.config.ask_again),
                    None => {
                        wait(WaitReason::WaitingForJoin, "its address is being dialled back", self.config.ask_again)
                    }
                },
            };
            out.push(Effect::Answer(open_request.ask, Answer::Membership(Ok(reply))));
        }
    }
}
