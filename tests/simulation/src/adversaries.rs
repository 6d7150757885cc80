//! Malicious callers of low privilege: a user who may only hold leases, a worker's process, a thief of old certificates.
//! They use request ids that other callers chose or will choose, report unbounded labels and names of other nodes, and present
//! superseded certificates, or certificates with forged grants. Their requests go through the real cores and may not delay,
//! replace or undo any other request.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_gateway::core::admission::{Admission, admit};
use muster_messages::protocol::Service;
use muster_messages::{
    CertIdentity, Change, Command, Guard, Name, NodeId, ObjectKey, Principal, RequestId, Revision, Role, SessionId, Uid,
};

use crate::checks::violation;
use crate::machine::{Asker, Caller, MachineIdx};
use crate::simulation::{Event, Simulation};

pub const ADMIT_6: &str = "ADMIT-6";
pub const ADMIT_7: &str = "ADMIT-7";
pub const CERT_6: &str = "CERT-6";

/// New requests, per thousand, whose id an adversary uses first.
const REUSED_IDS_PER_1000: u32 = 40;
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Remembered certificates per node. The newest two may be valid.
const MAX_FORMER_CERTIFICATES: usize = 6;
const CURRENT_CERTIFICATES: usize = 2;

/// The adversaries' requests.
#[derive(Clone, Debug, Default)]
pub struct Adversaries {
    active: bool,
    /// Certificate requests, by number.
    requests: BTreeSet<u64>,
}

impl Simulation {
    pub(crate) fn start_adversaries(&mut self) {
        self.adversaries.active = true;
        self.time.after(Duration::from_millis(500), Event::Adversary);
    }

    /// A random adversary action.
    pub(crate) fn adversary(&mut self) {
        let next = self.rng.millis(200, 1200);
        self.time.after(next, Event::Adversary);
        let leader = self.leading().filter(|p| self.machines[*p].runs() && !self.clients.resting);
        let Some(idx) = leader else { return };
        let term = self.machines[idx].runtime.as_ref().map_or(0, |h| h.core.replica().raft.term.0);
        match self.rng.below(4) {
            0 => self.guess_ids(idx),
            1 => self.report_false_labels(idx),
            // A replaced leader does not know what was recorded since; it finds out within an election timeout.
            2 if self.checks.is_replaced(term) => {}
            2 => self.present_superseded_certificate(idx),
            _ => self.present_forged_certificate(idx),
        }
    }

    // ---- request ids ----------------------------------------------------------------------------------------------

    /// Uses the id of a request that was just sent, ahead of it.
    pub(crate) fn reuse_new_id(&mut self, request: RequestId) {
        if !self.adversaries.active || !self.rng.chance(REUSED_IDS_PER_1000) {
            return;
        }
        if let Some(idx) = self.leading().filter(|p| self.machines[*p].runs()) {
            self.totals.count("adversary: request ids taken");
            self.submit_with_id(idx, request);
        }
    }

    /// The role manager numbers its requests within a term.
    fn guess_ids(&mut self, idx: MachineIdx) {
        let term = self.machines[idx].runtime.as_ref().map_or(0, |h| h.core.replica().raft.term.0);
        self.totals.count("adversary: request ids guessed");
        for n in 1..=8 {
            self.submit_with_id(idx, RequestId((u128::from(term) << 64) | n));
        }
    }

    fn submit_with_id(&mut self, idx: MachineIdx, request: RequestId) {
        let by = Principal::User(Name::sanitized("liar"));
        let (key, session) = (ObjectKey::lease("default", "a-liars"), SessionId(self.rng.next_u128()));
        let (digest, uid) = (self.rng.sample(), Uid(self.rng.next_u128()));
        let change = Change::AcquireLease { key, holder: "liar".to_owned(), session, duration_ms: 1000, uid };
        let command = Command::idempotent(self.wall(idx), by, "a lie").with_request(request);
        let command = if self.digested(idx) { command.guard(Guard::Request { digest }) } else { command };
        self.propose(idx, Asker::Internal, command.change(change), PROPOSE_TIMEOUT);
    }

    // ---- reports --------------------------------------------------------------------------------------------------

    /// A node reports another node's name and unbounded labels. LABEL-1 and NAME-1 are checked of every state.
    fn report_false_labels(&mut self, idx: MachineIdx) {
        let Some(tables) = self.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()) else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        let (Some(node), Some(other)) = (self.rng.pick(&nodes), self.rng.pick(&nodes)) else { return };
        let (Some(record), Some(other)) = (tables.nodes.get(&node), tables.nodes.get(&other)) else { return };
        let shadows = Name::sanitized(&other.id.as_str().chars().take(8).collect::<String>());
        let name = if self.rng.chance(500) { other.name.clone() } else { shadows };
        let many = 50 + self.rng.below(300);
        let labels = (0..many).map(|n| (format!("label-{n}"), "x".repeat(100))).collect();
        let (addr, release) = (record.addr.clone(), record.release.clone());
        self.totals.count("adversary: false reports");
        let change = Change::Report { node, name, addr, release, labels };
        let command = Command::idempotent(self.wall(idx), Principal::Node(node), "a lie").change(change);
        self.propose(idx, Asker::Internal, command, PROPOSE_TIMEOUT);
    }

    // ---- certificates ---------------------------------------------------------------------------------------------

    /// Remembers a certificate for later theft.
    pub(crate) fn remember_certificate(&mut self, idx: MachineIdx, certificate: &CertIdentity) {
        let former = &mut self.machines[idx].agent.former;
        former.push(certificate.clone());
        if former.len() > MAX_FORMER_CERTIFICATES {
            former.remove(0);
        }
    }

    /// Two certificates were issued since, so neither one on record is this one: the leader knows.
    fn present_superseded_certificate(&mut self, idx: MachineIdx) {
        let all: Vec<MachineIdx> = (0..self.machines.len()).collect();
        let Some(whose) = self.rng.pick(&all) else { return };
        let former = self.machines[whose].agent.former.clone();
        let over = former.len().saturating_sub(CURRENT_CERTIFICATES);
        let Some(shown) = former.get(self.rng.below(over)).filter(|_| over > 0) else { return };
        self.totals.count("adversary: superseded certificates presented");
        self.must_refuse(idx, shown, ADMIT_7);
        let requests = self.number();
        self.adversaries.requests.insert(requests);
        let caller = Caller { idx: whose, life: u32::MAX, ask: requests };
        let (observed, key) = (Some(Self::seen_at(whose)), self.key.clone());
        let request = authority::NodeRequest { identity: shown.clone(), observed, key };
        self.request_certificate(idx, caller, authority::CertificateRequest::Node(request));
    }

    fn present_forged_certificate(&mut self, idx: MachineIdx) {
        let Some(tables) = self.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()) else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        let Some(node) = self.rng.pick(&nodes) else { return };
        let granted = Revision(tables.revision.0 + 1 + self.rng.sample() % 1000);
        let not_after = self.wall(idx).plus(Duration::from_secs(3600));
        let name = ("f0".to_owned(), self.incarnation(idx));
        let forged = crate::agents::certificate(node, Role::Manager, Some(granted), name, not_after);
        self.totals.count("adversary: forged certificates presented");
        self.must_refuse(idx, &forged, ADMIT_6);
    }

    /// By a leader's gateway.
    fn must_refuse(&mut self, idx: MachineIdx, shown: &CertIdentity, name: &'static str) {
        let Some(runtime) = self.machines[idx].runtime.as_ref() else { return };
        let replica = runtime.core.replica();
        let here = self.here(idx);
        for service in [Service::Agent, Service::Mesh, Service::Api] {
            if let Admission::Refuse(..) = admit(Some(shown), service, Some(replica), &here, self.wall(idx)) {
                continue;
            }
            let detail = format!("leader n{} serves {service:?} to the invalid certificate {}", idx + 1, shown.serial);
            return self.require(Err(violation(name, detail)));
        }
    }

    /// The authority answered. True: it was an adversary's request.
    pub(crate) fn adversary_answered(&mut self, ask: u64, is_signed: bool) -> bool {
        if !self.adversaries.requests.remove(&ask) {
            return false;
        }
        if is_signed {
            let detail = "a superseded certificate was renewed".to_owned();
            self.require(Err(violation(CERT_6, detail)));
        }
        true
    }
}
