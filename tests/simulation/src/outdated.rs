//! Proposals by a proposer with a stale replica, and certificate rotations at any time. The store must reject the former when it
//! applies them.

use std::time::Duration;

use muster_messages::{
    Blocked, CertificateRecord, CertificateState, Change, Command, Guard, MembershipChange, MembershipChangeKind,
    NodeId, Principal, Role, Tables, WallTime,
};
use muster_raft_member::core::Input;

use crate::machine::{Asker, MachineIdx};
use crate::world::World;

/// Proposes a command that only a stale replica justifies. The store must reject it on apply.
pub(crate) fn propose_outdated(world: &mut World) {
    let Some((idx, tables)) = leader_and_tables(world) else { return };
    if world.rng.chance(400) {
        return propose_outdated_block(world, idx, &tables);
    }
    let now = world.wall(idx);
    let members: Vec<NodeId> =
        tables.members.values().map(|m| m.node).filter(|n| Some(*n) != world.model.ledger).collect();
    let nodes: Vec<NodeId> = tables.nodes.keys().copied().filter(|n| Some(*n) != world.model.ledger).collect();
    let command = Command::idempotent(now, Principal::Operator, "outdated");
    let command = match (world.rng.below(3), world.rng.pick(&members), world.rng.pick(&nodes)) {
        // This guard protects nodes that are about to join.
        (0, Some(node), _) => {
            let voter = tables.membership_of(node) == muster_messages::Membership::Voter;
            if !voter || tables.nodes.get(&node).is_none_or(|n| n.desired_role == Role::Worker) {
                return;
            }
            world.model.changed_by_others(node);
            command.guard(Guard::DesiredRole { node, role: Role::Manager }).change(Change::DeleteNode(node))
        }
        (1, _, Some(node)) => {
            command.change(Change::RecordCertificate { node, certificate: forged(&tables, node, now) })
        }
        (_, Some(node), _) => command.change(Change::GrantRole { node, role: Role::Worker }),
        _ => return,
    };
    world.totals.count("fault: outdated command");
    world.log(format!("outdated: {:?}", command.changes));
    world.propose(idx, Asker::Internal, command, Duration::from_secs(2));
}

pub(crate) fn outdated_member(world: &mut World) {
    let Some((idx, tables)) = leader_and_tables(world) else { return };
    let unwanted: Vec<NodeId> = tables
        .nodes
        .values()
        .filter(|n| n.role == Role::Worker && n.desired_role == Role::Worker)
        .map(|n| n.id)
        .collect();
    let unknown_node = NodeId::from_entropy(world.rng.next_u128());
    let worker = world.rng.pick(&unwanted).unwrap_or(unknown_node);
    let node = if world.rng.chance(500) { worker } else { unknown_node };
    let kind = match world.rng.below(3) {
        0 => MembershipChangeKind::Remove { raft_id: tables.next_raft_id },
        1 => {
            let reused = tables.removed_raft_ids.iter().next().copied().unwrap_or(tables.next_raft_id.next());
            MembershipChangeKind::AddLearner { node, raft_id: reused, addr: "10.0.0.99:1".to_owned() }
        }
        _ => MembershipChangeKind::AddLearner { node, raft_id: tables.next_raft_id, addr: "10.0.0.99:1".to_owned() },
    };
    world.totals.count("fault: outdated command");
    world.log(format!("outdated: {kind:?}"));
    let change = Box::new(MembershipChange { at: world.wall(idx), by: Principal::Operator, kind });
    if let Some(ask) = world.await_answer(idx, Asker::Internal) {
        world.deliver(idx, Input::ProposeMembership { ask, change, confirm_by: None });
    }
}

fn leader_and_tables(world: &World) -> Option<(MachineIdx, Tables)> {
    let idx = world.leading().filter(|p| world.machines[*p].runs())?;
    let tables = world.machines[idx].runtime.as_ref()?.core.tables().clone();
    tables.cluster.is_some().then_some((idx, tables))
}

/// Asks every node for a new certificate, whatever else is requested of it.
pub(crate) fn rotate(world: &mut World) {
    let Some((idx, tables)) = leader_and_tables(world) else { return };
    let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
    for node in nodes {
        let command =
            Command::idempotent(world.wall(idx), Principal::Operator, "rotate").change(Change::AskRotate(node));
        world.propose(idx, Asker::Internal, command, Duration::from_secs(2));
    }
    world.totals.count("certificates rotated");
}

/// A block of an id that never had a certificate, one that ends before the existing one, or a sweep by a proposer with a wrong
/// clock.
pub(crate) fn propose_outdated_block(world: &mut World, idx: MachineIdx, tables: &Tables) {
    let now = world.wall(idx);
    let unknown_node = NodeId::from_entropy(world.rng.next_u128());
    let blocked: Vec<NodeId> = tables.blocklist.keys().copied().collect();
    let known = world.rng.pick(&blocked);
    let command = Command::idempotent(now, Principal::Operator, "outdated");
    let command = match (world.rng.below(3), known) {
        (0, Some(node)) => command.guard(Guard::BlockExpired { node, at: now }).change(Change::Unblock(node)),
        (what, known) => {
            let node = known.filter(|_| what == 1).unwrap_or(unknown_node);
            let expires_at = now.plus(world.rng.millis(100, 9000));
            let block = Blocked { node, by: Principal::Operator, blocked_at: now, expires_at };
            command.change(Change::Block(block))
        }
    };
    world.totals.count("fault: outdated block");
    world.log(format!("outdated: {:?}", command.changes));
    world.propose(idx, Asker::Internal, command, Duration::from_secs(2));
}

/// A certificate for the other role.
fn forged(tables: &Tables, node: NodeId, now: WallTime) -> CertificateRecord {
    let record = tables.nodes.get(&node);
    let role = if record.is_some_and(|r| r.role == Role::Manager) { Role::Worker } else { Role::Manager };
    let (granted, not_after) = (record.map(|r| r.granted), now.plus(Duration::from_secs(3600)));
    CertificateRecord { role, serial: "f0".to_owned(), granted, not_after, state: CertificateState::Issued }
}
