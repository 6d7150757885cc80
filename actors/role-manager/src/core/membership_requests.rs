//! Requests for Raft membership: which nodes are eligible, which member id each holds already, and what blocks it.

use std::collections::BTreeMap;

use muster_messages::wire::{DataLoss, ManagerReport, MembershipReply, MembershipRequest};
use muster_messages::{ErrorBody, ErrorCode, Member, Name, NodeId, RaftId, Replica, Role, Tables, WaitReason, millis};

use super::{Answer, AskId, Effect, Moment, Now, RoleManager, StepId};

/// Characters of a reported failure that are kept and shown: a path and an error fit.
const MAX_FAILURE: usize = 500;

/// A pending join request. One per node: a newer request of the same node replaces an older one.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenRequest {
    pub ask: AskId,
    pub request: MembershipRequest,
    pub since: Moment,
    /// It was found eligible: a member id that the node has had since then was given to this very request.
    pub eligible: bool,
}

/// Open requests and dial-backs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MembershipRequests {
    pub open_requests: BTreeMap<NodeId, OpenRequest>,
    /// Dial-backs in progress, with the address each dials.
    pub probes: BTreeMap<StepId, (NodeId, String)>,
    /// Reports that no leader has taken in yet.
    pub reports: Vec<(AskId, NodeId, ManagerReport)>,
}

impl MembershipRequests {
    pub fn is_probing(&self, node: NodeId, addr: &str) -> bool {
        self.probes.values().any(|(n, a)| *n == node && a == addr)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RequestState {
    /// Refused permanently, or malformed.
    Answer(Box<Result<MembershipReply, ErrorBody>>),
    /// Its build does not support the cluster's feature level.
    TooOld(ErrorBody),
    /// It is a member with this id.
    IsMember(RaftId),
    /// It holds this member id, but is dialled at another address.
    Moved(RaftId),
    /// It holds this member id, and its data is gone: the member must be removed first.
    Lost(RaftId, DataLoss),
    /// It may become a member.
    Eligible,
}

/// Judges a request against this leader's applied state, never against the caller's certificate.
pub(crate) fn judge(replica: &Replica, node: NodeId, request: &MembershipRequest) -> RequestState {
    let tables = &replica.tables;
    let unwanted = |message: String| RequestState::Answer(Box::new(Ok(MembershipReply::NotWanted { message })));
    if let Some(block) = tables.blocklist.get(&node) {
        return unwanted(format!("node {node} is blocked until {}", block.expires_at));
    }
    let Some(record) = tables.nodes.get(&node) else {
        return unwanted(format!("node {node} is not a member of this cluster"));
    };
    let name = &record.name;
    if record.removing.is_some() {
        return unwanted(format!("{name} is being removed"));
    }
    if record.desired_role != Role::Manager {
        return unwanted(format!("the desired role of {name} is worker"));
    }
    if let Some(why) = too_old(tables, name, request.feature_level) {
        return RequestState::TooOld(why);
    }
    if let Err(why) = dialable(&request.advertise) {
        let message = format!("{name} advertises {:?}: {why}", request.advertise);
        return RequestState::Answer(Box::new(Err(ErrorBody::invalid(message))));
    }
    match tables.member_of(node) {
        Some(member) => member_state(replica, member, request),
        None => RequestState::Eligible,
    }
}

/// Also for a node that is already a member: it could apply no further entries.
fn too_old(tables: &Tables, name: &Name, speaks: u32) -> Option<ErrorBody> {
    let level = tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
    let message = format!(
        "the cluster is at feature level {level}, and {name} supports {speaks} at most; install a build of Muster that \
         supports {level} there"
    );
    let details = serde_json::json!({"reason": "feature-level", "level": level, "speaks": speaks});
    (speaks < level).then(|| ErrorBody::new(ErrorCode::GateClosed, message).with_details(&details))
}

fn member_state(replica: &Replica, member: &Member, request: &MembershipRequest) -> RequestState {
    let id = member.raft_id;
    // A learner that never acknowledged anything has no data to lose: the reply was lost, not the data.
    let matched = (replica.raft.progress.iter()).find(|p| p.raft_id == id).map_or(0, |p| p.matched);
    let untouched = !member.voter && matched == 0;
    if !untouched {
        if let Some(loss) = &request.data_lost {
            return RequestState::Lost(id, loss.clone());
        }
        if let Some(held) = request.held.filter(|held| *held != id) {
            let file = format!("its data is of member {held}, not of member {id}");
            return RequestState::Lost(id, DataLoss { damaged: false, file });
        }
    }
    if member.addr == request.advertise { RequestState::IsMember(id) } else { RequestState::Moved(id) }
}

/// Whether others can dial it.
fn dialable(addr: &str) -> Result<(), &'static str> {
    let (host, port) = addr.rsplit_once(':').ok_or("host:port is needed")?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.is_empty() || host.chars().any(|c| c.is_whitespace() || c == '/') {
        return Err("host:port is needed");
    }
    if bare == "0.0.0.0" || bare == "::" {
        return Err("an unspecified address cannot be dialled");
    }
    match port.parse::<u16>() {
        Ok(0) | Err(_) => Err("the port must be a number from 1 to 65535"),
        Ok(_) => Ok(()),
    }
}

/// "Not now", with the reason.
pub(crate) fn wait(reason: WaitReason, message: impl Into<String>, again: std::time::Duration) -> MembershipReply {
    MembershipReply::Wait { reason, message: message.into(), retry_after_ms: millis(again) }
}

impl RoleManager {
    pub(super) fn open_request(
        &mut self,
        now: Now,
        ask: AskId,
        node: NodeId,
        request: MembershipRequest,
        out: &mut Vec<Effect>,
    ) {
        let open_request = OpenRequest { ask, request, since: now.at, eligible: false };
        if let Some(older) = self.membership_requests.open_requests.insert(node, open_request) {
            let reply = wait(WaitReason::WaitingForJoin, "replaced by a newer request", self.config.ask_again);
            out.push(Effect::Answer(older.ask, Answer::Membership(Ok(reply))));
        }
    }

    pub(super) fn serve_open_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        let nodes: Vec<NodeId> = self.membership_requests.open_requests.keys().copied().collect();
        for node in nodes {
            let Some(open_request) = self.membership_requests.open_requests.get(&node) else { continue };
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
                    self.dirty.insert(node);
                }
                RequestState::Eligible => {
                    self.membership_requests.open_requests.entry(node).and_modify(|k| k.eligible = true);
                    self.dial_back(now, node, addr, out);
                }
                RequestState::Moved(_) => self.dial_back(now, node, addr, out),
            }
        }
    }

    /// Takes in what nodes report of their manager runtimes.
    pub(super) fn take_reports(&mut self, out: &mut Vec<Effect>) {
        for (ask, node, report) in std::mem::take(&mut self.membership_requests.reports) {
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
            self.dirty.insert(node);
        }
    }

    pub(super) fn answer_request(
        &mut self,
        node: NodeId,
        ask: AskId,
        answer: Result<MembershipReply, ErrorBody>,
        out: &mut Vec<Effect>,
    ) {
        self.membership_requests.open_requests.remove(&node);
        out.push(Effect::Answer(ask, Answer::Membership(answer)));
    }

    /// No node becomes a voter unless it is reachable at its advertised address.
    pub(super) fn dial_back(&mut self, now: Now, node: NodeId, addr: String, out: &mut Vec<Effect>) {
        let proven = self.kept.observations.of(node).proven_at(now.at).is_some_and(|p| p.addr == addr);
        if proven || self.membership_requests.is_probing(node, &addr) {
            return;
        }
        let step = self.next_step();
        self.membership_requests.probes.insert(step, (node, addr.clone()));
        out.push(Effect::Probe { step, addr, node });
    }

    /// No request waits for long: it is answered with the reason for the wait, the node asks again, and keeps its
    /// position meanwhile.
    pub(super) fn answer_waiting_requests(&mut self, now: Now, out: &mut Vec<Effect>) {
        let limit = self.config.membership_timeout;
        let tired: Vec<NodeId> = (self.membership_requests.open_requests.iter())
            .filter(|(_, k)| now.at.since(k.since) >= limit)
            .map(|(node, _)| *node)
            .collect();
        for node in tired {
            let Some(open_request) = self.membership_requests.open_requests.remove(&node) else { continue };
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
