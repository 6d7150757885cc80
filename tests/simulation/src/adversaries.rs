//! Malicious callers of low privilege: a user who may only hold leases, a worker's process, a thief of old certificates.
//! They use request ids that other callers chose or will choose, report unbounded labels and names of other nodes, and present
//! superseded certificates, or certificates with forged grants. Their requests go through the real cores and may not delay,
//! replace or undo any other request.

use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_gateway::core::admission::{Admission, admit};
use muster_messages::protocol::Service;
use muster_messages::{
    CertIdentity, Change, Command, Guard, Name, NodeId, ObjectKey, Principal, RequestId, Revision, Role, SessionId, Uid,
};

use crate::checks::violation;
use crate::connections::AgentConnections;
use crate::events::Event;
use crate::machine::{Asker, Authority, Caller, MachineIdx};
use crate::world::World;

pub const ADMIT_6: &str = "ADMIT-6";
pub const ADMIT_7: &str = "ADMIT-7";
pub const CERT_6: &str = "CERT-6";

/// New requests, per thousand, whose id an adversary uses first.
const REUSED_IDS_PER_1000: u32 = 40;
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Remembered certificates per node. The newest two may be valid.
pub const MAX_FORMER_CERTIFICATES: usize = 6;
const CURRENT_CERTIFICATES: usize = 2;

/// Whether they act in this run.
#[derive(Clone, Debug, Default)]
pub struct Adversaries {
    active: bool,
}

impl Adversaries {
    pub(crate) fn start(&mut self, world: &mut World) {
        self.active = true;
        world.time.after(Duration::from_millis(500), Event::Adversary);
    }

    /// A random adversary action.
    pub(crate) fn act(world: &mut World) {
        let next = world.rng.millis(200, 1200);
        world.time.after(next, Event::Adversary);
        let leader = world.leading().filter(|p| world.machines[*p].runs() && !world.resting);
        let Some(idx) = leader else { return };
        let term = world.machines[idx].runtime.as_ref().map_or(0, |h| h.core.replica().raft.term.0);
        match world.rng.below(4) {
            0 => Self::guess_ids(world, idx),
            1 => Self::report_false_labels(world, idx),
            // A replaced leader does not know what was recorded since; it finds out within an election timeout.
            2 if world.checks.is_replaced(term) => {}
            2 => Self::present_superseded_certificate(world, idx),
            _ => Self::present_forged_certificate(world, idx),
        }
    }

    // ---- request ids ----------------------------------------------------------------------------------------------

    /// Uses the id of a request that was just sent, ahead of it.
    pub(crate) fn reuse_new_id(&self, world: &mut World, request: RequestId) {
        if !self.active || !world.rng.chance(REUSED_IDS_PER_1000) {
            return;
        }
        if let Some(idx) = world.leading().filter(|p| world.machines[*p].runs()) {
            world.totals.count("adversary: request ids taken");
            Self::submit_with_id(world, idx, request);
        }
    }

    /// The role manager numbers its requests within a term.
    fn guess_ids(world: &mut World, idx: MachineIdx) {
        let term = world.machines[idx].runtime.as_ref().map_or(0, |h| h.core.replica().raft.term.0);
        world.totals.count("adversary: request ids guessed");
        for n in 1..=8 {
            Self::submit_with_id(world, idx, RequestId((u128::from(term) << 64) | n));
        }
    }

    fn submit_with_id(world: &mut World, idx: MachineIdx, request: RequestId) {
        let by = Principal::User(Name::sanitized("liar"));
        let (key, session) = (ObjectKey::lease("default", "a-liars"), SessionId(world.rng.next_u128()));
        let (digest, uid) = (world.rng.sample(), Uid(world.rng.next_u128()));
        let change = Change::AcquireLease { key, holder: "liar".to_owned(), session, duration_ms: 1000, uid };
        let command = Command::idempotent(world.wall(idx), by, "a lie").with_request(request);
        let command = if world.digested(idx) { command.guard(Guard::Request { digest }) } else { command };
        world.propose(idx, Asker::Internal, command.change(change), PROPOSE_TIMEOUT);
    }

    // ---- reports --------------------------------------------------------------------------------------------------

    /// A node reports another node's name and unbounded labels. LABEL-1 and NAME-1 are checked of every state.
    fn report_false_labels(world: &mut World, idx: MachineIdx) {
        let Some(tables) = world.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()) else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        let (Some(node), Some(other)) = (world.rng.pick(&nodes), world.rng.pick(&nodes)) else { return };
        let (Some(record), Some(other)) = (tables.nodes.get(&node), tables.nodes.get(&other)) else { return };
        let shadows = Name::sanitized(&other.id.as_str().chars().take(8).collect::<String>());
        let name = if world.rng.chance(500) { other.name.clone() } else { shadows };
        let many = 50 + world.rng.below(300);
        let labels = (0..many).map(|n| (format!("label-{n}"), "x".repeat(100))).collect();
        let (addr, release) = (record.addr.clone(), record.release.clone());
        world.totals.count("adversary: false reports");
        let change = Change::Report { node, name, addr, release, labels };
        let command = Command::idempotent(world.wall(idx), Principal::Node(node), "a lie").change(change);
        world.propose(idx, Asker::Internal, command, PROPOSE_TIMEOUT);
    }

    /// Two certificates were issued since, so neither one on record is this one: the leader knows.
    fn present_superseded_certificate(world: &mut World, idx: MachineIdx) {
        let all: Vec<MachineIdx> = (0..world.machines.len()).collect();
        let Some(whose) = world.rng.pick(&all) else { return };
        let former = world.machines[whose].agent.former.clone();
        let over = former.len().saturating_sub(CURRENT_CERTIFICATES);
        let Some(shown) = former.get(world.rng.below(over)).filter(|_| over > 0) else { return };
        world.totals.count("adversary: superseded certificates presented");
        Self::must_refuse(world, idx, shown, ADMIT_7);
        let caller = Caller { idx: whose, life: Caller::ADVERSARY, ask: world.number() };
        let (observed, key) = (Some(AgentConnections::seen_at(whose)), world.key.clone());
        let request = authority::NodeRequest { identity: shown.clone(), observed, key };
        Authority::request(world, idx, caller, authority::CertificateRequest::Node(request));
    }

    fn present_forged_certificate(world: &mut World, idx: MachineIdx) {
        let Some(tables) = world.machines[idx].runtime.as_ref().map(|h| h.core.tables().clone()) else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        let Some(node) = world.rng.pick(&nodes) else { return };
        let granted = Revision(tables.revision.0 + 1 + world.rng.sample() % 1000);
        let not_after = world.wall(idx).plus(Duration::from_secs(3600));
        let name = ("f0".to_owned(), world.incarnation(idx));
        let forged = crate::agents::certificate(node, Role::Manager, Some(granted), name, not_after);
        world.totals.count("adversary: forged certificates presented");
        Self::must_refuse(world, idx, &forged, ADMIT_6);
    }

    /// By a leader's gateway.
    fn must_refuse(world: &mut World, idx: MachineIdx, shown: &CertIdentity, name: &'static str) {
        let Some(runtime) = world.machines[idx].runtime.as_ref() else { return };
        let replica = runtime.core.replica();
        let here = world.here(idx);
        for service in [Service::Agent, Service::Mesh, Service::Api] {
            if let Admission::Refuse(..) = admit(Some(shown), service, Some(replica), &here, world.wall(idx)) {
                continue;
            }
            let detail = format!("leader n{} serves {service:?} to the invalid certificate {}", idx + 1, shown.serial);
            return world.require(Err(violation(name, detail)));
        }
    }

    /// The authority answered. True: it was an adversary's request.
    pub(crate) fn answered(world: &mut World, caller: Caller, is_signed: bool) -> bool {
        if caller.life != Caller::ADVERSARY {
            return false;
        }
        if is_signed {
            let detail = "a superseded certificate was renewed".to_owned();
            world.require(Err(violation(CERT_6, detail)));
        }
        true
    }
}
