//! Rotations of the root: operators who start, abort and reverse them at any time, nodes that are away meanwhile, and attackers with
//! a stolen key. Also the run about them, and its checks.
//!
//! Checked of every newest state: a root signs only once every reachable member has acknowledged it (ROOT-2), what was acknowledged
//! is on disk (AGENT-13), only certificates of the root that signs are recorded (ROOT-10), no root is retired that a member
//! depends on (ROOT-3) or deleted while its certificates are valid (ROOT-7), and every node finds a path from the root that signs to one that
//! it trusts (ROOTPATH-1). The states themselves show a compromised root that signs again (ROOT-11). In the end every node has a certificate
//! of the active root and trusts exactly the roots of the cluster, and a leader that made none of them deletes former ones (ROOT-9).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::core::admission::{Admission, admit};
use muster_gateway::core::roots::is_withdrawn;
use muster_messages::protocol::{RootsChange, Service};
use muster_messages::wire::{HostFrame, RootsOffer};
use muster_messages::{
    Authorities, AuthorityChange, AuthorityState, CertIdentity, CertificatePin, ErrorCode, Liveness, Moment, NodeId,
    OfferedRoot, Revision, Role, RootId, Subject, Tables, WallTime,
};
use muster_root_rotation::Config;
use muster_sessions::core::session::ConnId;
use muster_store::invariants::Broken;

use crate::checks::{CONVERGE_1, violation};
use crate::connections::AgentConnections;
use crate::events::Event;
use crate::faults::TimedFault;
use crate::machine::{Machine, MachineIdx, Rotation};
use crate::members::cluster;
use crate::report::Failure;
use crate::roots::{Chain, FOUNDING, pair, text_of, verifies, voucher};
use crate::run;
use crate::simulation::Simulation;
use crate::world::World;

pub const ROOT_2: &str = "ROOT-2";
pub const ROOT_3: &str = "ROOT-3";
pub const ROOTPATH_1: &str = "ROOTPATH-1";
pub const ROOT_7: &str = "ROOT-7";
pub const ROOT_9: &str = "ROOT-9";
pub const ROOT_10: &str = "ROOT-10";
pub const ADMIT_9: &str = "ADMIT-9";
pub const AGENT_13: &str = "AGENT-13";
pub const PKI_9: &str = "PKI-9";

const SECOND: u64 = 1_000_000;
const ROTATIONS_BEGIN: Moment = Moment(2 * SECOND);
const FAULTS_END: Moment = Moment(28 * SECOND);
/// After faults end: a node that was refused, several pauses, the waves of one more rotation, and its retirement.
const CONVERGENCE_LIMIT: Duration = Duration::from_secs(60);
/// Maximum difference of two calendars.
const SKEW: Duration = Duration::from_secs(4);

/// What is known of the rotations so far.
#[derive(Clone, Debug, Default)]
pub struct Rotations {
    /// The leaders' root rotation runs.
    pub active: bool,
    /// Every root that a leader has made.
    made: BTreeSet<RootId>,
    /// Roots whose retirement an operator forces.
    pub(crate) forced: BTreeSet<RootId>,
    /// Roots that were ever revoked: no path leads over them, whether they are on record or not.
    revoked: BTreeSet<RootId>,
    /// Every certificate between roots that was ever recorded: the root that it is about, and the root that signed it.
    crosses: BTreeSet<(RootId, RootId)>,
    /// The newest state that was checked.
    last: Tables,
}

/// Roots are replaced while the cluster changes under faults. `Err`: an invariant is violated.
pub fn simulate(sim: &mut Simulation) -> Result<(), Failure> {
    sim.world.rotations.active = true;
    sim.world.settings.rotation = Config {
        publish: Duration::from_secs(3),
        retire_after: Duration::from_secs(2),
        renew: Duration::from_secs(3),
        wave: 2,
        longest_certificate: sim.world.settings.authority.node_lifetime,
        ..Config::default()
    };
    let (managers, workers) = (3 + sim.world.rng.below(2), 1 + sim.world.rng.below(3));
    sim.world.found();
    sim.clients.start(&mut sim.world, 1);
    sim.adversaries.start(&mut sim.world);
    for idx in 1..managers + workers {
        sim.world.join_machine(if idx < managers { Role::Manager } else { Role::Worker });
    }
    sim.run_to(ROTATIONS_BEGIN)?;
    sim.inject([Event::Fault, Event::RootFault, Event::Operator, Event::RootOperator], 800, FAULTS_END)?;
    rotate_once_more(sim)?;
    come_to_rest(sim, CONVERGENCE_LIMIT)?;
    if sim.world.rng.chance(300) {
        forget_roots(sim)?;
    }
    Ok(())
}

fn rotate_once_more(sim: &mut Simulation) -> Result<(), Failure> {
    let limit = sim.world.now() + CONVERGENCE_LIMIT;
    let change = RootsChange::Rotate { automatic: true, compromised: sim.world.rng.chance(300) };
    let mut op = sim.operators.ask(&mut sim.world, change.clone());
    loop {
        match sim.operators.result(op) {
            Some(Ok(_)) => return Ok(()),
            Some(Err(error)) if error.code == ErrorCode::TooManyRoots => return Ok(()),
            Some(Err(_)) => op = sim.operators.ask(&mut sim.world, change.clone()),
            None => {}
        }
        if sim.world.now() >= limit {
            let detail = format!("the root cannot be rotated: {:?}", sim.operators.result(op));
            return Err(sim.world.failure(&violation(CONVERGE_1, detail)));
        }
        let next = sim.world.now() + Duration::from_millis(200);
        sim.run_to(next)?;
    }
}

fn come_to_rest(sim: &mut Simulation, within: Duration) -> Result<(), Failure> {
    let limit = sim.world.now() + within;
    sim.finish(limit, CONVERGE_1, |sim| {
        Rotations::rekey(&mut sim.world);
        // A step that is repeated later begins another rotation.
        let asked = sim.operators.unanswered().map(|op| format!("operator's step {op} is not answered"));
        sim.unsettled().or_else(|| unfinished(&sim.world)).or(asked)
    })
}

/// Why rotations are not complete.
fn unfinished(world: &World) -> Option<String> {
    let tables = world.checks.newest()?;
    let all = &tables.authorities;
    let (active, _) = all.active()?;
    let trusted: BTreeSet<RootId> =
        all.roots.iter().filter(|(_, root)| root.state.trusted()).map(|(id, _)| *id).collect();
    for node in tables.nodes.keys() {
        let idx = world.idx_of(*node)?;
        let machine = &world.machines[idx];
        let (newest, trust) = (tables.newest_issuer(*node), &machine.agent.trust);
        let bundle: BTreeSet<RootId> = trust.bundle.iter().copied().collect();
        if newest != Some(active) || trust.chain.issuer != active || bundle != trusted || !all.is_trusted_by(*node) {
            let (acknowledged, roots) = (all.trusted_by.get(node), states(all));
            return Some(format!(
                "{}: recorded={newest:?} {trust:?} acknowledged={acknowledged:?} of {}; roots: {roots:?}",
                machine.name, all.generation
            ));
        }
    }
    let leader = world.leading().and_then(|idx| world.machines[idx].runtime.as_ref()?.leader.as_ref());
    let rotation = leader.and_then(|leader| leader.rotation.as_ref());
    let waits = all.roots.values().any(|root| match root.state {
        AuthorityState::Prepared => root.automatic,
        AuthorityState::Retiring => true,
        _ => false,
    });
    waits.then(|| {
        let behind = rotation.map(|r| (r.core.tables().revision, r.core.in_progress()));
        format!("roots: {:?}; the leader's rotation: {behind:?} at {}", states(all), tables.revision)
    })
}

fn states(all: &Authorities) -> Vec<(String, AuthorityState)> {
    all.roots.iter().map(|(id, root)| (id.to_string(), root.state)).collect()
}

/// A certificate lifetime later, former roots are deleted, and nothing else.
fn forget_roots(sim: &mut Simulation) -> Result<(), Failure> {
    run::expire_certificates(sim)?;
    if let Some(leader) = sim.world.leading() {
        Rotation::crash(&mut sim.world, leader); // the next one looks at once
    }
    let limit = sim.world.now() + Duration::from_secs(20);
    let ended = |tables: &Tables| tables.authorities.roots.values().any(|root| !root.state.trusted());
    sim.finish(limit, ROOT_9, |sim| {
        let remains = sim.world.checks.newest().is_some_and(ended);
        remains.then(|| "a root was not deleted".to_owned())
    })?;
    sim.world.totals.count("former roots deleted");
    come_to_rest(sim, Duration::from_secs(20))
}

impl Rotations {
    // ---- faults and attackers -------------------------------------------------------------------------------------

    pub(crate) fn fault(world: &mut World) {
        if !world.faults_active {
            return;
        }
        let next = world.rng.millis(200, 1500);
        world.time.after(next, Event::RootFault);
        let idx = world.rng.below(world.machines.len());
        match world.rng.below(8) {
            0 | 1 => {
                if let Some(leader) = world.leading() {
                    Rotation::crash(world, leader);
                }
            }
            2 => Self::go_away(world, idx),
            3 | 4 => Self::offer_unvouched(world, idx),
            _ => Self::use_stolen_key(world, idx),
        }
    }

    /// For longer than a rotation takes.
    fn go_away(world: &mut World, idx: MachineIdx) {
        if !world.machines[idx].up {
            return;
        }
        world.totals.count("fault: node away for long");
        let power = world.rng.chance(500);
        Machine::crash(world, idx, power);
        let back = world.rng.millis(5000, 20_000);
        world.time.after(back, Event::TimedFaultEnds(TimedFault::Down(idx, world.machines[idx].life)));
    }

    /// A manager that was taken over offers a root of its own to a node.
    fn offer_unvouched(world: &mut World, idx: MachineIdx) {
        let Some(conn) = world.connections.accepted_of(idx) else { return };
        let tables = world.checks.newest().cloned().unwrap_or_default();
        let (stranger, active) = (RootId(world.rng.sample().to_be_bytes()), signing(&tables));
        let vouchers = match world.rng.below(4) {
            0 => Vec::new(),
            1 => vec![voucher(stranger, stranger)],
            2 => vec![muster_messages::Voucher { by: active, ..voucher(stranger, stranger) }],
            _ => vec![voucher(RootId(world.rng.sample().to_be_bytes()), stranger)],
        };
        let mut roots = tables.authorities.offer();
        roots.truncate(muster_messages::MAX_ROOTS - 1);
        roots.push(OfferedRoot { cert_pem: text_of(stranger), vouchers, trusted: true });
        let generation = tables.authorities.generation.max(Revision(1));
        world.totals.count("adversary: unvouched roots offered");
        let offer = RootsOffer { generation, recorded: false, roots };
        AgentConnections::host_sends(world, ConnId(conn), Box::new(HostFrame::Roots(offer)));
    }

    /// ADMIT-9, ADMIT-10: a copy of a recorded certificate, with another key, signed by a root that was withdrawn. Any manager
    /// that knows of the withdrawal refuses it, leader or not.
    fn use_stolen_key(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_ref().filter(|_| world.machines[idx].runs()) else { return };
        let replica = Arc::clone(runtime.core.replica());
        let roots = replica.tables.authorities.roots.iter();
        let stolen: Vec<RootId> = roots.filter(|(_, root)| is_withdrawn(root)).map(|(id, _)| *id).collect();
        let nodes: Vec<NodeId> = replica.tables.certificates.keys().copied().collect();
        let (Some(root), Some(node)) = (world.rng.pick(&stolen), world.rng.pick(&nodes)) else { return };
        let (unknown_grant, copies) = (world.rng.chance(500), world.rng.chance(500));
        let Some(record) = replica.tables.nodes.get(&node) else { return };
        let newest = replica.tables.certificates.get(&node).and_then(|row| row.current.as_ref());
        let serial = newest.filter(|_| copies).map_or_else(|| "f0".to_owned(), |newest| newest.serial.clone());
        let later = Revision(replica.tables.revision.0 + 1);
        let forged = CertIdentity {
            cluster: cluster(),
            subject: Subject::Node { node, role: Role::Manager },
            serial,
            granted: Some(if unknown_grant { later } else { record.granted }),
            incarnation: world.incarnation(idx),
            not_after: world.wall(idx).plus(Duration::from_secs(3600)),
            pin: Some(CertificatePin { fingerprint: [7; 32], key: [7; 32] }),
            issuer: Some(root),
        };
        world.totals.count("adversary: stolen keys used");
        let here = world.here(idx);
        for service in [Service::Agent, Service::Mesh, Service::Api] {
            if !matches!(admit(Some(&forged), service, Some(&replica), &here, world.wall(idx)), Admission::Refuse(..)) {
                let detail =
                    format!("n{} serves {service:?} to a forgery by the root {root}, which was withdrawn", idx + 1);
                return world.require(Err(violation(ADMIT_9, detail)));
            }
        }
    }

    /// Nodes whose paths were revoked: an operator starts them with a new token, or switches them off if they were removed.
    fn rekey(world: &mut World) {
        let Some(tables) = world.checks.newest().cloned() else { return };
        let all = &tables.authorities;
        for idx in 0..world.machines.len() {
            let machine = &world.machines[idx];
            let is_node = machine.up && machine.agent.certificate.is_some() && machine.agent.ended.is_none();
            let Some(leader) = world.leading() else { return };
            if !is_node || all.roots.is_empty() || verifies(world, idx, leader) {
                continue;
            }
            if !world.rotations.is_cut_off(signing(&tables), &machine.agent.trust.bundle) {
                continue; // it finds a path, or never settles
            }
            if !tables.nodes.contains_key(&machine.id) {
                world.totals.count("removed nodes switched off after a revocation");
                Machine::crash(world, idx, false);
                world.machines[idx].gone = true;
            } else {
                world.totals.count("nodes started with a new token after a revocation");
                world.log(format!("n{} is started with a new token", idx + 1));
                let trusted = all.roots.iter().filter(|(_, root)| root.state.trusted()).map(|(id, _)| *id).collect();
                world.machines[idx].agent.trust.bundle = trusted;
            }
        }
    }

    // ---- checks ---------------------------------------------------------------------------------------------------

    /// A leader proposes a change, on the grounds of this state.
    pub(crate) fn proposed(world: &mut World, change: &AuthorityChange, tables: &Tables) {
        match change {
            AuthorityChange::Prepare { root, .. } | AuthorityChange::Certify { root, .. } => {
                world.rotations.made.insert(*root);
            }
            AuthorityChange::Activate { root, .. } => {
                let outcome = published(tables, *root);
                world.require(outcome);
            }
            _ => {}
        }
    }

    /// PKI-9: a node trusts only roots that a leader has made.
    pub(crate) fn check_bundle(world: &mut World, idx: MachineIdx) {
        let trust = &world.machines[idx].agent.trust;
        let stranger = |root: &&RootId| **root != FOUNDING && !world.rotations.made.contains(*root);
        if let Some(root) = trust.bundle.iter().find(stranger) {
            let detail = format!("n{} trusts the root {root}, for which no root vouched", idx + 1);
            world.require(Err(violation(PKI_9, detail)));
        }
    }

    /// A member has applied this state.
    pub(crate) fn check(world: &mut World, tables: &Tables) {
        if !world.rotations.active || tables.revision <= world.rotations.last.revision {
            return;
        }
        let before = std::mem::replace(&mut world.rotations.last, tables.clone());
        if tables.authorities.roots.is_empty() {
            return;
        }
        let outcome = recorded(&before, tables)
            .and_then(|()| withdrawn(&before, tables, &world.rotations.forced, world.today()))
            .and_then(|()| Self::on_disk(world, &before, tables))
            .and_then(|()| Self::keeps_quorum(world, &before, tables));
        world.require(outcome);
        if !before.authorities.roots.ptr_eq(&tables.authorities.roots) {
            Self::count(world, &before, tables);
            let outcome = Self::reachable(world, tables);
            world.require(outcome);
        }
    }

    /// AGENT-13: what a node has acknowledged is on its disk.
    fn on_disk(world: &World, before: &Tables, tables: &Tables) -> Result<(), Broken> {
        let all = &tables.authorities;
        if before.authorities.trusted_by.ptr_eq(&all.trusted_by) {
            return Ok(());
        }
        for (node, _) in all.trusted_by.iter().filter(|(_, generation)| **generation == all.generation) {
            let Some(idx) = world.idx_of(*node) else { continue };
            // A restarted process may take an earlier set from a host that lags, until it receives of the newer one.
            if world.machines[idx].agent.trust.written < all.generation {
                let detail =
                    format!("n{} has acknowledged the roots of {}, which are not on its disk", idx + 1, all.generation);
                return Err(violation(AGENT_13, detail));
            }
        }
        Ok(())
    }

    /// ROOT-3: a revocation leaves a majority of voters whose certificates open the mesh. The others can renew only while there is
    /// a leader.
    fn keeps_quorum(world: &World, before: &Tables, tables: &Tables) -> Result<(), Broken> {
        let state = |tables: &Tables, id: &RootId| tables.authorities.roots.get(id).map(|root| root.state);
        let revoked = |id: &RootId| state(tables, id) == Some(AuthorityState::Revoked);
        let is_new = |id: &RootId| revoked(id) && state(before, id) != Some(AuthorityState::Revoked);
        let Some(id) = tables.authorities.roots.keys().find(|id| is_new(id)) else { return Ok(()) };
        let issuer = |idx: MachineIdx| world.machines[idx].agent.trust.chain.issuer;
        let voters = || tables.members.values().filter(|member| member.voter);
        let shut_out = voters().filter(|voter| world.idx_of(voter.node).is_some_and(|idx| revoked(&issuer(idx))));
        let (shut_out, voters) = (shut_out.count(), voters().count());
        if 2 * shut_out < voters {
            return Ok(());
        }
        let detail = format!("with the root {id}, certificates of {shut_out} of {voters} voters are revoked");
        Err(violation(ROOT_3, detail))
    }

    /// Whether every path from this root to one of these leads over a revoked root.
    fn is_cut_off(&self, active: RootId, bundle: &[RootId]) -> bool {
        let path = |crosses: Vec<(RootId, RootId)>| Chain { issuer: active, crosses }.issuer_in(bundle);
        let sound = self.crosses.iter().filter(|(of, by)| ![of, by].iter().any(|root| self.revoked.contains(root)));
        path(sound.copied().collect()).is_none() && path(self.crosses.iter().copied().collect()).is_some()
    }

    /// ROOTPATH-1.
    fn reachable(world: &mut World, tables: &Tables) -> Result<(), Broken> {
        let all = &tables.authorities;
        let Some((active, _)) = all.active() else { return Ok(()) };
        let recorded = all.roots.values().flat_map(|root| &root.crosses);
        world.rotations.crosses.extend(recorded.flat_map(pair));
        let chain = Chain { issuer: active, crosses: all.crosses().into_iter().flat_map(pair).collect() };
        for machine in world.machines.iter().filter(|machine| tables.nodes.contains_key(&machine.id)) {
            let bundle = &machine.agent.trust.bundle;
            let joined = machine.agent.certificate.is_some();
            if joined && chain.issuer_in(bundle).is_none() && !world.rotations.is_cut_off(active, bundle) {
                let detail = format!(
                    "{} trusts {bundle:?}, and the root {active} leads to {:?}; roots: {:?}",
                    machine.name,
                    chain.crosses,
                    states(all)
                );
                return Err(violation(ROOTPATH_1, detail));
            }
        }
        Ok(())
    }

    fn count(world: &mut World, before: &Tables, tables: &Tables) {
        for (id, root) in &tables.authorities.roots {
            let was = before.authorities.roots.get(id).map(|root| root.state);
            if was == Some(root.state) {
                continue;
            }
            world.totals.count(match root.state {
                AuthorityState::Prepared => "roots prepared",
                AuthorityState::Active if was == Some(AuthorityState::Retiring) => "roots activated again",
                AuthorityState::Active => "roots activated",
                AuthorityState::Retiring => "roots retiring",
                AuthorityState::Retired => "roots retired",
                AuthorityState::Revoked => "roots revoked",
            });
            if root.state == AuthorityState::Revoked {
                world.rotations.revoked.insert(*id);
            }
            world.log(format!("root {id} is {} at {}", root.state, tables.revision));
        }
    }
}

/// The root that signs.
fn signing(tables: &Tables) -> RootId {
    tables.authorities.active().map_or(FOUNDING, |(id, _)| id)
}

/// ROOT-2. A root that signed before is known.
fn published(tables: &Tables, root: RootId) -> Result<(), Broken> {
    let all = &tables.authorities;
    if all.roots.get(&root).is_none_or(|root| root.activated_at.is_some()) {
        return Ok(());
    }
    for member in tables.members.values() {
        let ready = tables.nodes.get(&member.node).is_some_and(|node| node.liveness == Liveness::Ready);
        if ready && all.trusted_by.get(&member.node) != Some(&all.generation) {
            let detail = format!("the root {root} is to sign, and {} has not acknowledged it", member.node);
            return Err(violation(ROOT_2, detail));
        }
    }
    Ok(())
}

/// ROOT-10.
fn recorded(before: &Tables, after: &Tables) -> Result<(), Broken> {
    if before.certificates.ptr_eq(&after.certificates) || before.authorities.roots.is_empty() {
        return Ok(());
    }
    let signed = [signing(before), signing(after)];
    for (node, row) in &after.certificates {
        let newest =
            |row: &muster_messages::NodeCertificates| row.current.as_ref().map(|c| (c.serial.clone(), c.issuer));
        let (was, is) = (before.certificates.get(node).and_then(|row| newest(row)), newest(row));
        if let Some((serial, Some(issuer))) = is.filter(|is| was.as_ref() != Some(is))
            && !signed.contains(&issuer)
        {
            let detail = format!("the certificate {serial} of {node} is recorded, and its root {issuer} does not sign");
            return Err(violation(ROOT_10, detail));
        }
    }
    Ok(())
}

/// ROOT-3 and ROOT-7.
fn withdrawn(before: &Tables, after: &Tables, forced: &BTreeSet<RootId>, today: WallTime) -> Result<(), Broken> {
    for (id, was) in &before.authorities.roots {
        let state = after.authorities.roots.get(id).map(|root| root.state);
        let uses = |tables: &Tables, node: NodeId| tables.newest_issuer(node) == Some(*id);
        if was.state == AuthorityState::Retiring && state == Some(AuthorityState::Retired) && !forced.contains(id) {
            let members = after.members.values().map(|member| member.node);
            let depends = |node: &NodeId| before.member_of(*node).is_some() && uses(after, *node);
            if let Some(node) = members.into_iter().find(depends) {
                let detail = format!("the root {id} is retired, and the member {node} has a certificate of it");
                return Err(violation(ROOT_3, detail));
            }
        }
        if state.is_none() && !was.state.trusted() {
            for (node, row) in &after.certificates {
                let issued = row.current.iter().chain(&row.previous).chain(&row.unclaimed);
                let is = |issuer: Option<RootId>| issuer.unwrap_or(FOUNDING) == *id;
                if issued.into_iter().any(|issued| is(issued.issuer) && issued.not_after > today.plus(SKEW)) {
                    let detail = format!("the root {id} is deleted, and a certificate of {node} is valid");
                    return Err(violation(ROOT_7, detail));
                }
            }
        }
    }
    Ok(())
}
