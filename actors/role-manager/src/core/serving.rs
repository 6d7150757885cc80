//! Serving requests: which of those that wait are written, answered or kept waiting, in each step.

use std::collections::BTreeSet;

use muster_messages::wire::MembershipReply;
use muster_messages::{ErrorBody, NodeId, Role, WaitReason};

use super::membership_requests::{EARLY_DIAL_DELAY, MAX_FAILURE, Probe, RequestState, decide, dialable, too_old, wait};
use super::plan::Next;
use super::quorum::Electorate;
use super::role_requests::{AdmissionCheck, Decision};
use super::{Answer, AskId, EarlyDial, EarlyDialPhase, Effect, Now, RequestedChange, RoleManager, Sent, refuse};

impl RoleManager {
    // ---- roles and removals ---------------------------------------------------------------------------------------

    pub(super) fn decide_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        if !self.role_requests.has_undecided() {
            return;
        }
        let electorate = self.electorate(now, self.reachability.result().cloned());
        let mut behind = BTreeSet::new();
        for (since, role_request) in self.role_requests.take_undecided() {
            let node = role_request.node;
            if behind.contains(&node) || self.checkpoint.outbox.has_role_request(node) {
                behind.insert(node);
                self.role_requests.keep_undecided(since, role_request);
                continue;
            }
            match self.admission_check(&electorate, now).decide(&role_request, since) {
                Decision::Done { changed } => out.push(match role_request.change {
                    RequestedChange::Role(_) => Effect::Answer(role_request.ask, Answer::Role(Ok(changed))),
                    RequestedChange::Remove { .. } => Effect::Answer(role_request.ask, Answer::Removed(Ok(()))),
                }),
                Decision::Refused(error) => out.push(refuse(&role_request, error)),
                Decision::Follow => self.role_requests.follow(&role_request, &self.config, out),
                Decision::Later => {
                    behind.insert(node);
                    self.role_requests.keep_undecided(since, role_request);
                }
                Decision::CheckReachable(required) => {
                    behind.insert(node);
                    self.role_requests.keep_undecided(since, role_request);
                    self.check_reachable(now, required, out);
                }
                Decision::Write { command, leaves } => {
                    let step = self.send(now, node, Sent::RoleRequest { command, leaves }, out);
                    if self.config.answers_before_written() && matches!(role_request.change, RequestedChange::Role(_)) {
                        out.push(Effect::Answer(role_request.ask, Answer::Role(Ok(true))));
                        continue;
                    }
                    self.role_requests.sent(step, role_request);
                }
            }
        }
    }

    fn admission_check<'a>(&'a self, electorate: &'a Electorate, now: Now) -> AdmissionCheck<'a> {
        let tables = &self.seen.tables;
        let going = |node: &NodeId| {
            (tables.nodes.get(node)).is_none_or(|r| r.desired_role != Role::Manager || r.removing.is_some())
        };
        let leaving = electorate.nodes().filter(going).chain(self.checkpoint.outbox.leaving()).collect();
        let proven = (self.checkpoint.observations.nodes())
            .filter(|n| self.checkpoint.observations.of(*n).proven_at(now.at).is_some());
        let joining = proven.chain(self.membership_requests.nodes()).collect();
        AdmissionCheck { tables, electorate, leaving, joining, now }
    }

    // ---- membership -----------------------------------------------------------------------------------------------

    pub(super) fn serve_open_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        let nodes: Vec<NodeId> = self.membership_requests.nodes().collect();
        for node in nodes {
            let Some(membership_request) = self.membership_requests.get(node) else { continue };
            let (ask, addr, eligible) =
                (membership_request.ask, membership_request.request.advertise.clone(), membership_request.eligible);
            let request_state = decide(&self.seen, node, &membership_request.request);
            let too_old = match &request_state {
                RequestState::TooOld(error) => Some(error.message.clone()),
                _ => None,
            };
            self.note_runtime(now, node, too_old, None);
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
                    self.checkpoint.observations.edit(node, |observation| observation.lost = Some((raft_id, loss)));
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
    pub(super) fn take_reports(&mut self, now: Now, out: &mut Vec<Effect>) {
        for (ask, node, report) in self.membership_requests.take_reports() {
            let tables = &self.seen.tables;
            let record = (tables.nodes.get(&node)).filter(|r| r.desired_role == Role::Manager && r.removing.is_none());
            if let Some(record) = record.filter(|_| !tables.blocklist.contains_key(&node)) {
                let too_old = too_old(tables, &record.name, report.feature_level).map(|error| error.message);
                let failure = report.failure.map(|why| {
                    let why: String = why.chars().take(MAX_FAILURE).collect();
                    format!("the manager runtime of {} is not running: {why}", record.name)
                });
                self.note_runtime(now, node, too_old, failure);
            }
            out.push(Effect::Answer(ask, Answer::Reported(Ok(()))));
        }
    }

    /// What the newest request or report of a node says of its manager runtime.
    fn note_runtime(&mut self, now: Now, node: NodeId, too_old: Option<String>, failure: Option<String>) {
        let before = self.checkpoint.observations.of(node);
        if (&before.too_old, &before.failure) != (&too_old, &failure) {
            self.plans.mark(node);
        }
        let absent_at = (too_old.is_some() || failure.is_some()).then_some(now.at);
        self.checkpoint.observations.edit(node, |observation| {
            (observation.too_old, observation.failure, observation.absent_at) = (too_old, failure, absent_at);
        });
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
        let observation = self.checkpoint.observations.of(node);
        if observation.proven_at(now.at).is_some_and(|proven| proven.addr == addr) {
            return;
        }
        if let Some(found) = observation.found_early(now.at, &addr) {
            self.checkpoint.observations.edit(node, |observation| observation.proven = Some(found.clone()));
            return self.plans.mark(node);
        }
        if !self.membership_requests.is_probing(node, &addr) {
            let step = self.next_step();
            out.push(self.membership_requests.begin_probe(step, Probe { node, addr, early: false }));
        }
    }

    /// Dials new managers that have their certificate and have not asked for membership yet.
    pub(super) fn begin_early_dials(&mut self, now: Now, out: &mut Vec<Effect>) {
        let due: Vec<(NodeId, String, String)> = (self.plans.iter())
            .filter_map(|(node, plan)| match &plan.next {
                Some(Next::DialBack { addr, serial }) => Some((node, addr.clone(), serial.clone())),
                _ => None,
            })
            .collect();
        for (node, addr, serial) in due {
            let known = self.checkpoint.observations.of(node).early_dial.filter(|early| early.serial == serial);
            let due = EarlyDialPhase::Due(now.at + EARLY_DIAL_DELAY);
            let mut early = known.unwrap_or(EarlyDial { serial, phase: due });
            let asked = self.membership_requests.get(node).is_some();
            if asked || dialable(&addr).is_err() {
                early.phase = EarlyDialPhase::Over;
            } else if matches!(early.phase, EarlyDialPhase::Due(at) if at <= now.at) {
                early.phase = EarlyDialPhase::Over;
                let step = self.next_step();
                out.push(self.membership_requests.begin_probe(step, Probe { node, addr, early: true }));
            }
            self.checkpoint.observations.edit(node, |observation| observation.early_dial = Some(early));
        }
    }

    /// No request waits for long: it is answered with the reason for the wait, the node asks again, and keeps its
    /// position meanwhile.
    pub(super) fn answer_waiting_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        for node in self.membership_requests.overdue(now.at, self.config.membership_timeout) {
            let Some(membership_request) = self.membership_requests.close(node) else { continue };
            let reply = match decide(&self.seen, node, &membership_request.request) {
                // It is a member and has its data. Keeping it out until others know its new address could exclude the
                // very vote needed to publish that address.
                RequestState::Moved(raft_id) => MembershipReply::IsMember { raft_id },
                _ => match self.checkpoint.queues.get(node) {
                    Some(p) => wait(p.reason, p.message.clone(), self.config.ask_again),
                    None => {
                        wait(WaitReason::WaitingForJoin, "its address is being dialled back", self.config.ask_again)
                    }
                },
            };
            out.push(Effect::Answer(membership_request.ask, Answer::Membership(Ok(reply))));
        }
    }
}
