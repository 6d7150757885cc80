//! Requests for a Raft seat: who may have one, which one it holds already, and what stands in between.

use std::collections::BTreeMap;

use muster_messages::wire::{DataLoss, ManagerReport, SeatReply, SeatRequest};
use muster_messages::{ErrorBody, ErrorCode, Member, Name, NodeId, RaftId, Replica, Role, Tables, WaitReason, millis};

use super::{Answer, AskId, Effect, Moment, Now, RoleManager, StepId};

/// Characters of a reported failure that are kept and shown: a path and an error fit.
const MAX_FAILURE: usize = 500;

/// A node at the door. One per node: a newer request of the same node takes the place of an older one.
#[derive(Clone, Debug, PartialEq)]
pub struct Knock {
    pub ask: AskId,
    pub request: SeatRequest,
    pub since: Moment,
    /// It was found eligible: the seat that it holds since then was given to this very request.
    pub eligible: bool,
}

/// Open requests and dial-backs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seats {
    pub knocks: BTreeMap<NodeId, Knock>,
    /// Dial-backs in progress, with the address each dials.
    pub probes: BTreeMap<StepId, (NodeId, String)>,
    /// Reports that no leader has taken in yet.
    pub reports: Vec<(AskId, NodeId, ManagerReport)>,
}

impl Seats {
    pub fn is_probing(&self, node: NodeId, addr: &str) -> bool {
        self.probes.values().any(|(n, a)| *n == node && a == addr)
    }
}

/// Where a request stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// Nothing of the kind: refused for good, or malformed.
    Answer(Box<Result<SeatReply, ErrorBody>>),
    /// Its build does not speak what the cluster speaks.
    TooOld(ErrorBody),
    /// It holds this seat.
    Seated(RaftId),
    /// It holds this seat, and others dial it at another address.
    Moved(RaftId),
    /// It holds this seat, and its data is gone: the seat must go first.
    Lost(RaftId, DataLoss),
    /// It may have a seat.
    Eligible,
}

/// Judges a request against this leader's own applied state, never against what the caller's certificate says.
pub(crate) fn judge(replica: &Replica, node: NodeId, request: &SeatRequest) -> Standing {
    let tables = &replica.tables;
    let unwanted = |message: String| Standing::Answer(Box::new(Ok(SeatReply::NotWanted { message })));
    if let Some(block) = tables.blocklist.get(&node) {
        return unwanted(format!("node {node} is blocked until {}", block.expires_at));
    }
    let Some(record) = tables.nodes.get(&node) else {
        return unwanted(format!("node {node} is no member of this cluster"));
    };
    let name = &record.name;
    if record.removing.is_some() {
        return unwanted(format!("{name} is being removed"));
    }
    if record.desired_role != Role::Manager {
        return unwanted(format!("{name} is to be a worker"));
    }
    if let Some(why) = too_old(tables, name, request.feature_level) {
        return Standing::TooOld(why);
    }
    if let Err(why) = dialable(&request.advertise) {
        let message = format!("{name} advertises {:?}: {why}", request.advertise);
        return Standing::Answer(Box::new(Err(ErrorBody::invalid(message))));
    }
    match tables.seat_of(node) {
        Some(seat) => seated(replica, seat, request),
        None => Standing::Eligible,
    }
}

/// Also for one that holds a seat: it could apply nothing of what comes.
fn too_old(tables: &Tables, name: &Name, speaks: u32) -> Option<ErrorBody> {
    let level = tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level);
    let message = format!(
        "the cluster is at feature level {level}, and {name} speaks {speaks} at most; install a build of Muster that speaks \
         {level} there"
    );
    let details = serde_json::json!({"reason": "feature-level", "level": level, "speaks": speaks});
    (speaks < level).then(|| ErrorBody::new(ErrorCode::GateClosed, message).with_details(&details))
}

fn seated(replica: &Replica, seat: &Member, request: &SeatRequest) -> Standing {
    let id = seat.raft_id;
    // A learner that never acknowledged anything has no data to lose: the reply was lost, not the data.
    let matched = (replica.raft.progress.iter()).find(|p| p.raft_id == id).map_or(0, |p| p.matched);
    let untouched = !seat.voter && matched == 0;
    if !untouched {
        if let Some(loss) = &request.data_lost {
            return Standing::Lost(id, loss.clone());
        }
        if let Some(held) = request.held.filter(|held| *held != id) {
            let file = format!("it holds the data of seat {held}, not of seat {id}");
            return Standing::Lost(id, DataLoss { damaged: false, file });
        }
    }
    if seat.addr == request.advertise { Standing::Seated(id) } else { Standing::Moved(id) }
}

/// Others must be able to dial it.
fn dialable(addr: &str) -> Result<(), &'static str> {
    let (host, port) = addr.rsplit_once(':').ok_or("host:port is needed")?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.is_empty() || host.chars().any(|c| c.is_whitespace() || c == '/') {
        return Err("host:port is needed");
    }
    if bare == "0.0.0.0" || bare == "::" {
        return Err("nobody can dial an unspecified address");
    }
    match port.parse::<u16>() {
        Ok(0) | Err(_) => Err("the port must be a number from 1 to 65535"),
        Ok(_) => Ok(()),
    }
}

/// "Not now", with the reason.
pub(crate) fn wait(reason: WaitReason, message: impl Into<String>, again: std::time::Duration) -> SeatReply {
    SeatReply::Wait { reason, message: message.into(), retry_after_ms: millis(again) }
}

impl RoleManager {
    pub(super) fn knock(&mut self, now: Now, ask: AskId, node: NodeId, request: SeatRequest, out: &mut Vec<Effect>) {
        let knock = Knock { ask, request, since: now.at, eligible: false };
        if let Some(older) = self.seats.knocks.insert(node, knock) {
            let reply = wait(WaitReason::WaitingForJoin, "it has asked again meanwhile", self.config.ask_again);
            out.push(Effect::Answer(older.ask, Answer::Seat(Ok(reply))));
        }
    }

    pub(super) fn serve_knocks(&mut self, now: Now, out: &mut Vec<Effect>) {
        let nodes: Vec<NodeId> = self.seats.knocks.keys().copied().collect();
        for node in nodes {
            let Some(knock) = self.seats.knocks.get(&node) else { continue };
            let (ask, addr, eligible) = (knock.ask, knock.request.advertise.clone(), knock.eligible);
            let standing = judge(&self.seen, node, &knock.request);
            let too_old = match &standing {
                Standing::TooOld(error) => Some(error.message.clone()),
                _ => None,
            };
            self.note_runtime(node, too_old, None);
            match standing {
                Standing::Answer(answer) => self.open(node, ask, *answer, out),
                Standing::TooOld(error) => self.open(node, ask, Err(error), out),
                Standing::Seated(raft_id) => self.open(node, ask, Ok(SeatReply::Seated { raft_id }), out),
                Standing::Lost(raft_id, _) if eligible => {
                    self.open(node, ask, Ok(SeatReply::Seated { raft_id }), out);
                }
                Standing::Lost(raft_id, loss) => {
                    self.kept.notes.edit(node, |note| note.lost = Some((raft_id, loss)));
                    self.dirty.insert(node);
                }
                Standing::Eligible => {
                    self.seats.knocks.entry(node).and_modify(|k| k.eligible = true);
                    self.dial_back(now, node, addr, out);
                }
                Standing::Moved(_) => self.dial_back(now, node, addr, out),
            }
        }
    }

    /// Takes in what nodes report of their manager runtimes.
    pub(super) fn take_reports(&mut self, out: &mut Vec<Effect>) {
        for (ask, node, report) in std::mem::take(&mut self.seats.reports) {
            let tables = &self.seen.tables;
            let record = (tables.nodes.get(&node)).filter(|r| r.desired_role == Role::Manager && r.removing.is_none());
            if let Some(record) = record.filter(|_| !tables.blocklist.contains_key(&node)) {
                let too_old = too_old(tables, &record.name, report.feature_level).map(|error| error.message);
                let failure = report.failure.map(|why| {
                    let why: String = why.chars().take(MAX_FAILURE).collect();
                    format!("the manager runtime of {} does not run: {why}", record.name)
                });
                self.note_runtime(node, too_old, failure);
            }
            out.push(Effect::Answer(ask, Answer::Reported(Ok(()))));
        }
    }

    /// What the newest request or report of a node says of its manager runtime.
    fn note_runtime(&mut self, node: NodeId, too_old: Option<String>, failure: Option<String>) {
        let before = self.kept.notes.of(node);
        if (&before.too_old, &before.failure) != (&too_old, &failure) {
            self.kept.notes.edit(node, |note| (note.too_old, note.failure) = (too_old, failure));
            self.dirty.insert(node);
        }
    }

    pub(super) fn open(
        &mut self,
        node: NodeId,
        ask: AskId,
        answer: Result<SeatReply, ErrorBody>,
        out: &mut Vec<Effect>,
    ) {
        self.seats.knocks.remove(&node);
        out.push(Effect::Answer(ask, Answer::Seat(answer)));
    }

    /// Nobody votes who cannot be reached where it says it is.
    pub(super) fn dial_back(&mut self, now: Now, node: NodeId, addr: String, out: &mut Vec<Effect>) {
        let proven = self.kept.notes.of(node).proven_at(now.at).is_some_and(|p| p.addr == addr);
        if proven || self.seats.is_probing(node, &addr) {
            return;
        }
        let step = self.next_step();
        self.seats.probes.insert(step, (node, addr.clone()));
        out.push(Effect::Probe { step, addr, node });
    }

    /// Nobody is kept at the door for long: told what it waits for, a node asks again, and keeps its place meanwhile.
    pub(super) fn lose_patience(&mut self, now: Now, out: &mut Vec<Effect>) {
        let patience = self.config.seat_patience;
        let tired: Vec<NodeId> = (self.seats.knocks.iter())
            .filter(|(_, k)| now.at.since(k.since) >= patience)
            .map(|(node, _)| *node)
            .collect();
        for node in tired {
            let Some(knock) = self.seats.knocks.remove(&node) else { continue };
            let reply = match judge(&self.seen, node, &knock.request) {
                // It has its seat and its data. Keeping it out until others know its new address could keep out the
                // very vote that is needed to tell them.
                Standing::Moved(raft_id) => SeatReply::Seated { raft_id },
                _ => match self.kept.queues.get(node) {
                    Some(p) => wait(p.reason, p.message.clone(), self.config.ask_again),
                    None => {
                        wait(WaitReason::WaitingForJoin, "its address is being dialled back", self.config.ask_again)
                    }
                },
            };
            out.push(Effect::Answer(knock.ask, Answer::Seat(Ok(reply))));
        }
    }
}
