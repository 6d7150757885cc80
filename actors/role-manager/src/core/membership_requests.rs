//! Requests for Raft membership: which nodes are eligible, which member id each holds already, and what blocks it.
//!
//! Owns        open requests, dial-backs in progress, reports of manager runtimes.
//! Invariants  a node has at most one open request: a newer one replaces it.
//! Why a node is dialled before it asks: between distant managers its request arrives two round trips after its certificate was
//! recorded, and a dial-back takes three. Begun at the record, it reaches the node after the certificate, and ends soon after the
//! request has arrived. One that comes too early fails without a trace, and the request starts the next one.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::{DataLoss, ManagerReport, MembershipReply, MembershipRequest};
use muster_messages::{
    Details, ErrorBody, ErrorCode, Member, Name, NodeId, RaftId, Replica, Role, Tables, WaitReason, detail, millis,
};

use super::{Answer, AskId, Effect, Moment, StepId, not_leading};

/// Characters of a reported failure that are kept and shown: a path and an error fit.
pub(crate) const MAX_FAILURE: usize = 500;

/// From the record of a certificate to the early dial. A node that is nearer than this asks before, and is dialled once: a dial that
/// finds the runtime still starting would only fail.
pub(crate) const EARLY_DIAL_DELAY: Duration = Duration::from_millis(30);

/// A dial-back in progress.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub node: NodeId,
    pub addr: String,
    /// Begun before a request.
    pub early: bool,
}

/// A request that has not been answered.
#[derive(Clone, Debug)]
pub(crate) struct OpenRequest {
    pub ask: AskId,
    pub request: MembershipRequest,
    since: Moment,
    /// It was found eligible: a member id that the node has had since then was given to this very request.
    pub eligible: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MembershipRequests {
    open: BTreeMap<NodeId, OpenRequest>,
    /// Dial-backs in progress.
    probes: BTreeMap<StepId, Probe>,
    /// Reports that no leader has taken in yet.
    reports: Vec<(AskId, NodeId, ManagerReport)>,
}

impl MembershipRequests {
    /// Returns the older request that this one replaces.
    pub fn open(&mut self, now: Moment, ask: AskId, node: NodeId, request: MembershipRequest) -> Option<AskId> {
        let membership_request = OpenRequest { ask, request, since: now, eligible: false };
        self.open.insert(node, membership_request).map(|older| older.ask)
    }
    pub fn get(&self, node: NodeId) -> Option<&OpenRequest> {
        self.open.get(&node)
    }
    /// The nodes with an open request.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.open.keys().copied()
    }
    pub fn found_eligible(&mut self, node: NodeId) {
        self.open.entry(node).and_modify(|membership_request| membership_request.eligible = true);
    }
    /// It is answered.
    pub fn close(&mut self, node: NodeId) -> Option<OpenRequest> {
        self.open.remove(&node)
    }
    /// The nodes whose requests have waited this long.
    pub fn overdue(&self, now: Moment, limit: Duration) -> Vec<NodeId> {
        self.open.iter().filter(|(_, k)| now.since(k.since) >= limit).map(|(node, _)| *node).collect()
    }
    pub fn deadlines(&self, limit: Duration) -> impl Iterator<Item = Moment> {
        self.open.values().map(move |membership_request| membership_request.since + limit)
    }

    pub fn is_probing(&self, node: NodeId, addr: &str) -> bool {
        self.probes.values().any(|probe| probe.node == node && probe.addr == addr)
    }
    pub fn begin_probe(&mut self, step: StepId, probe: Probe) -> Effect {
        let (addr, node) = (probe.addr.clone(), probe.node);
        self.probes.insert(step, probe);
        Effect::Probe { step, addr, node }
    }
    pub fn end_probe(&mut self, step: StepId) -> Option<Probe> {
        self.probes.remove(&step)
    }

    pub fn report(&mut self, ask: AskId, node: NodeId, report: ManagerReport) {
        self.reports.push((ask, node, report));
    }
    pub fn take_reports(&mut self) -> Vec<(AskId, NodeId, ManagerReport)> {
        std::mem::take(&mut self.reports)
    }

    /// This member does not lead: it takes in nothing.
    pub fn reject(&mut self, out: &mut Vec<Effect>) {
        let reports = self.reports.drain(..);
        out.extend(reports.map(|(ask, ..)| Effect::Answer(ask, Answer::Reported(Err(not_leading())))));
        for membership_request in std::mem::take(&mut self.open).into_values() {
            out.push(Effect::Answer(membership_request.ask, Answer::Membership(Err(not_leading()))));
        }
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

/// Decides on a request by this leader's applied state, never by the caller's certificate.
pub(crate) fn decide(replica: &Replica, node: NodeId, request: &MembershipRequest) -> RequestState {
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
pub(crate) fn too_old(tables: &Tables, name: &Name, speaks: u32) -> Option<ErrorBody> {
    let level = tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
    let message = format!(
        "the cluster is at feature level {level}, and {name} supports {speaks} at most; install a build of Muster that \
         supports {level} there"
    );
    let details = Details::default().with(detail::LEVEL, &level).with(detail::SPEAKS, &speaks);
    let details = details.with(detail::GATE_REASON, &detail::GateReason::FeatureLevel.into());
    (speaks < level).then(|| ErrorBody::new(ErrorCode::GateClosed, message).with_details(&details))
}

fn member_state(replica: &Replica, member: &Member, request: &MembershipRequest) -> RequestState {
    let id = member.raft_id;
    // A learner that never acknowledged anything has no data to lose: the reply was lost, not the data.
    let matched = replica.raft.progress_of(id).map_or(0, |p| p.matched);
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
pub(crate) fn dialable(addr: &str) -> Result<(), &'static str> {
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
pub(crate) fn wait(reason: WaitReason, message: impl Into<String>, again: Duration) -> MembershipReply {
    MembershipReply::Wait { reason, message: message.into(), retry_after_ms: millis(again) }
}
