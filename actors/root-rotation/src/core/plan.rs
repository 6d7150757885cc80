//! What a rotation needs next, from the applied state and the time.
//!
//! Owns        since when nodes are awaited.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    Authority, AuthorityOrigin, AuthorityState, CertificateState, Liveness, MAX_ROOTS, Moment, NodeId, NodeRecord,
    Revision, Role, RootId, Tables, WallTime,
};

use crate::Config;
use crate::bugs::{BugInjection, is_injected as injected};

/// A change of the roots that the leader makes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Asks the authority above for the next issuing certificate.
    Request,
    Activate(RootId),
    Retire(RootId),
    Revoke(RootId),
    Forget(RootId),
}

/// What is to be done now, and when to look again if nothing changes before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub step: Option<Step>,
    /// Nodes to ask for another certificate.
    pub renew: Vec<NodeId>,
    pub wake: Option<Moment>,
}

impl Plan {
    fn wake_at(&mut self, at: Moment) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Since when nodes are awaited. Only this leader knows: the next one waits anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaited {
    published: Option<(Revision, Moment)>,
    asked: BTreeMap<NodeId, Moment>,
    /// When expired roots were last looked for.
    swept: Option<Moment>,
}

impl Awaited {
    /// These nodes were asked to renew.
    pub fn were_asked(&mut self, nodes: &[NodeId], now: Moment) {
        self.asked.extend(nodes.iter().map(|node| (*node, now)));
    }
}

/// How often expired roots are looked for: they last for years.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// The state of the nodes as far as a rotation is concerned.
struct Nodes<'a> {
    tables: &'a Tables,
    active: RootId,
    members: BTreeSet<NodeId>,
    /// A root is published because others may have the active one's key: once that no longer signs, only certificates whose digest
    /// is on record open anything (ADMIT-9).
    needs_digests: bool,
}

impl<'a> Nodes<'a> {
    fn is_behind(&self, node: NodeId) -> bool {
        let other_root = self.tables.newest_issuer(node).is_some_and(|issuer| issuer != self.active);
        other_root || self.needs_digests && !self.tables.has_digest(node)
    }
    fn is_manager(&self, node: &NodeRecord) -> bool {
        self.members.contains(&node.id) || node.role == Role::Manager
    }
    /// Nodes that are ready and have a certificate of another root.
    fn behind(&self) -> impl Iterator<Item = &'a NodeRecord> + '_ {
        let ready = self.tables.nodes.values().filter(|node| node.liveness == Liveness::Ready);
        ready.map(|node| &**node).filter(|node| self.is_behind(node.id))
    }
    fn any_renewed(&self) -> bool {
        self.tables.nodes.keys().any(|node| self.tables.newest_issuer(*node) == Some(self.active))
    }
}

/// The next step. `me` leads.
pub(crate) fn plan(
    tables: &Tables,
    config: &Config,
    awaited: &mut Awaited,
    me: NodeId,
    (now, wall): (Moment, WallTime),
) -> Plan {
    let mut plan = Plan::default();
    let Some((active, root)) = tables.authorities.active() else { return plan };
    let members: BTreeSet<NodeId> = tables.members.values().map(|member| member.node).collect();
    let needs_digests = root.compromised && tables.authorities.in_state(AuthorityState::Prepared).is_some();
    let nodes = Nodes { tables, active, members, needs_digests };
    plan.step = activation(&nodes, config, awaited, now, &mut plan);
    if plan.step.is_none() {
        renewals(&nodes, config, awaited, me, now, &mut plan);
    }
    if plan.step.is_none() {
        plan.step = withdrawal(&nodes, config, awaited, (now, wall), &mut plan);
    }
    if plan.step.is_none() {
        plan.step = forgotten(tables, config, awaited, (now, wall), &mut plan);
    }
    if plan.step.is_none() && config.upstream {
        plan.step = succession(tables, root, (now, wall), &mut plan);
    }
    plan
}

/// ROOT-2.
pub(crate) fn unacknowledged_members(tables: &Tables) -> Vec<NodeId> {
    if injected(BugInjection::ActivateUnacknowledged) { Vec::new() } else { tables.members_without_roots() }
}

/// ROOT-2. A published root signs once every Raft member that is ready trusts it, and every worker that is ready or has had its time.
fn activation(nodes: &Nodes<'_>, config: &Config, awaited: &mut Awaited, now: Moment, plan: &mut Plan) -> Option<Step> {
    let authorities = &nodes.tables.authorities;
    let Some((id, root)) = authorities.in_state(AuthorityState::Prepared) else {
        awaited.published = None;
        return None;
    };
    let published = match awaited.published {
        Some((generation, since)) if generation == authorities.generation => since,
        _ => now,
    };
    awaited.published = Some((authorities.generation, published));
    if !root.automatic {
        return None;
    }
    let ready = || nodes.tables.nodes.values().filter(|node| node.liveness == Liveness::Ready);
    let shut_out = |node: NodeId| nodes.needs_digests && !nodes.tables.has_digest(node);
    if !unacknowledged_members(nodes.tables).is_empty()
        || ready().any(|node| nodes.members.contains(&node.id) && shut_out(node.id))
    {
        return None; // no time overrides a manager
    }
    let until = published + config.publish;
    if now >= until
        || injected(BugInjection::ActivateUnacknowledged)
        || ready().all(|node| authorities.is_trusted_by(node.id) && !shut_out(node.id))
    {
        return Some(Step::Activate(id));
    }
    plan.wake_at(until);
    None
}

/// Waves: one node first, then workers, then managers one at a time, the leader last.
fn renewals(nodes: &Nodes<'_>, config: &Config, awaited: &mut Awaited, me: NodeId, now: Moment, plan: &mut Plan) {
    let (workers, mut managers): (Vec<&NodeRecord>, Vec<&NodeRecord>) =
        nodes.behind().partition(|node| !nodes.is_manager(node));
    managers.sort_by_key(|node| node.id == me);
    awaited.asked.retain(|node, _| nodes.is_behind(*node));
    // Without a worker that could be first, a manager is.
    let canary = !nodes.any_renewed();
    let at_once = if canary { 1 } else { config.wave };
    if !wave(&workers, at_once, config, awaited, now, plan) {
        wave(&managers, 1, config, awaited, now, plan);
    }
}

/// Asks as many of these nodes as may renew at the same time. False: none of them holds a place.
fn wave(
    group: &[&NodeRecord],
    at_once: usize,
    config: &Config,
    awaited: &mut Awaited,
    now: Moment,
    plan: &mut Plan,
) -> bool {
    let (mut outstanding, mut next) = (0, Vec::new());
    for node in group {
        let since = match awaited.asked.get(&node.id) {
            Some(since) => Some(*since),
            None => is_asked(node).then_some(now),
        };
        awaited.asked.extend(since.map(|since| (node.id, since)));
        match since.map(|since| since + config.renew) {
            Some(until) if now < until => {
                outstanding += 1;
                plan.wake_at(until);
            }
            // Asked and silent: it renews when it can, and holds no place.
            Some(_) if is_asked(node) => {}
            // Never asked, or the certificate could not be signed.
            Some(_) | None => next.push(node.id),
        }
    }
    next.truncate(at_once.saturating_sub(outstanding));
    plan.renew.extend(&next);
    outstanding > 0 || !next.is_empty()
}

fn is_asked(node: &NodeRecord) -> bool {
    node.certificate.as_ref().is_some_and(|certificate| certificate.state == CertificateState::Rotate)
}

/// ROOT-3. A former root goes once no node that is ready depends on it, and no Raft member does; others come back with their
/// recorded certificates. One whose key others may have does not wait for Raft members that are down.
fn withdrawal(
    nodes: &Nodes<'_>,
    config: &Config,
    awaited: &Awaited,
    (now, wall): (Moment, WallTime),
    plan: &mut Plan,
) -> Option<Step> {
    let authorities = &nodes.tables.authorities;
    let hurried = injected(BugInjection::RetireWhileBehind);
    let retiring = || authorities.roots.iter().filter(|(_, root)| root.state == AuthorityState::Retiring);
    let known_to_others = |(id, root): &(&RootId, &Arc<Authority>)| {
        let leaves = matches!(root.state, AuthorityState::Retiring | AuthorityState::Retired);
        leaves && root.compromised && muster_store::may_be_revoked(nodes.tables, **id).is_ok()
    };
    // A node that was asked and does not renew may belong to the attacker; it can still renew afterwards.
    let in_time = |node: &NodeRecord| awaited.asked.get(&node.id).is_none_or(|since| now < *since + config.renew);
    if let Some((id, _)) = authorities.roots.iter().find(known_to_others)
        && !nodes.behind().any(in_time)
    {
        return Some(Step::Revoke(*id));
    }
    if nodes.behind().next().is_some() && !hurried {
        return None;
    }
    let (id, _) = retiring().next()?;
    if nodes.members.iter().any(|member| nodes.is_behind(*member)) && !hurried {
        return None;
    }
    let (_, active) = authorities.active()?;
    let activated_at = active.activated_at.unwrap_or_default();
    // No record says which workload still has a certificate of it: the last one has ended by then.
    let workloads = muster_store::workloads_end_after(nodes.tables, activated_at);
    let until = activated_at.plus(config.retire_after).max(workloads.unwrap_or_default());
    if wall >= until {
        return Some(Step::Retire(*id));
    }
    let left = u64::try_from(until.0.saturating_sub(wall.0)).unwrap_or_default();
    plan.wake_at(now + Duration::from_millis(left).min(SWEEP_INTERVAL));
    None
}

/// Half of its life before an issuing certificate ends, the next one is requested: people, and the authority above, take their time.
fn succession(tables: &Tables, active: &Authority, (now, wall): (Moment, WallTime), plan: &mut Plan) -> Option<Step> {
    let waits =
        tables.authorities.requested.is_some() || tables.authorities.in_state(AuthorityState::Prepared).is_some();
    if active.origin != AuthorityOrigin::Upstream || waits {
        return None;
    }
    let ends = muster_pki::not_after_of_pem(&active.cert_pem).ok()?;
    let half = WallTime(active.created_at.0.midpoint(ends.0));
    if wall >= half {
        return Some(Step::Request);
    }
    let left = u64::try_from(half.0.saturating_sub(wall.0)).unwrap_or_default();
    plan.wake_at(now + Duration::from_millis(left).min(SWEEP_INTERVAL));
    None
}

/// A root leads tokens and clients of its time to the present one until the last certificate that it may have signed has expired,
/// recorded or not.
fn forgotten(
    tables: &Tables,
    config: &Config,
    awaited: &mut Awaited,
    (now, wall): (Moment, WallTime),
    plan: &mut Plan,
) -> Option<Step> {
    if tables.authorities.roots.values().all(|root| root.state.trusted()) {
        return None;
    }
    if let Some(swept) = awaited.swept.filter(|swept| now < *swept + SWEEP_INTERVAL) {
        plan.wake_at(swept + SWEEP_INTERVAL);
        return None;
    }
    let leads = |root: &Authority| {
        let in_use = root.retired_at.is_some_and(|at| wall < at.plus(config.longest_certificate));
        in_use && !injected(BugInjection::ForgetEarly)
    };
    let ended = forgettable(tables, wall).find(|id| !leads(&tables.authorities.roots[id]));
    if ended.is_none() {
        awaited.swept = Some(now);
        plan.wake_at(now + SWEEP_INTERVAL);
    }
    ended.map(Step::Forget)
}

/// ROOT-7. Roots without a recorded certificate that may still be valid.
fn forgettable(tables: &Tables, wall: WallTime) -> impl Iterator<Item = RootId> + '_ {
    let ended = tables.authorities.roots.iter().filter(|(_, root)| !root.state.trusted());
    let over = move |id: &RootId| muster_store::forgettable_at(tables, *id).is_none_or(|until| wall >= until);
    ended.map(|(id, _)| *id).filter(over)
}

/// The root that makes room for another one, where the table is full.
pub(crate) fn makes_room(tables: &Tables, wall: WallTime) -> Option<RootId> {
    let kept = tables.authorities.roots.values().filter(|root| root.state != AuthorityState::Prepared).count();
    let longest_retired = |id: &RootId| tables.authorities.roots[id].retired_at;
    forgettable(tables, wall).min_by_key(longest_retired).filter(|_| kept >= MAX_ROOTS)
}
