//! What a proposer with an old copy might ask for, and renewals at any time. The store must see through the former when
//! it applies them.

use std::time::Duration;

use muster_messages::{
    CertificateRecord, CertificateState, Change, Command, Guard, NodeId, Principal, Role, SeatChange, SeatChangeKind,
    Tables, WallTime,
};
use muster_raft_member::core::Input;

use crate::machine::{Asker, Place};
use crate::world::Universe;

impl Universe {
    /// What a proposer with an old copy might ask for. The store must see through it when it is applied.
    pub(crate) fn outdated(&mut self) {
        let Some((place, tables)) = self.leader_and_tables() else { return };
        if self.dice.chance(400) {
            return self.block_somebody(place, &tables);
        }
        let now = self.wall(place);
        let seated: Vec<NodeId> =
            tables.members.values().map(|m| m.node).filter(|n| Some(*n) != self.model.ledger).collect();
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().filter(|n| Some(*n) != self.model.ledger).collect();
        let command = Command::idempotent(now, Principal::Operator, "outdated");
        let command = match (self.dice.below(3), self.dice.pick(&seated), self.dice.pick(&nodes)) {
            // With this guard nobody is deleted who is only about to join.
            (0, Some(node), _) => {
                let voter = tables.membership_of(node) == muster_messages::Membership::Voter;
                if !voter || tables.nodes.get(&node).is_none_or(|n| n.desired_role == Role::Worker) {
                    return;
                }
                self.model.disturbed(node);
                command.guard(Guard::DesiredRole { node, role: Role::Manager }).change(Change::DeleteNode(node))
            }
            (1, _, Some(node)) => {
                command.change(Change::RecordCertificate { node, certificate: forged(&tables, node, now) })
            }
            (_, Some(node), _) => command.change(Change::GrantRole { node, role: Role::Worker }),
            _ => return,
        };
        self.totals.count("fault: outdated command");
        self.say(format!("outdated: {:?}", command.changes));
        self.propose(place, Asker::House, command, Duration::from_secs(2));
    }

    pub(crate) fn outdated_seat(&mut self) {
        let Some((place, tables)) = self.leader_and_tables() else { return };
        let unwanted: Vec<NodeId> = tables
            .nodes
            .values()
            .filter(|n| n.role == Role::Worker && n.desired_role == Role::Worker)
            .map(|n| n.id)
            .collect();
        let stranger = NodeId::from_entropy(self.dice.wide());
        let worker = self.dice.pick(&unwanted).unwrap_or(stranger);
        let node = if self.dice.chance(500) { worker } else { stranger };
        let kind = match self.dice.below(3) {
            0 => SeatChangeKind::Remove { raft_id: tables.next_raft_id },
            1 => {
                let reused = tables.removed_raft_ids.iter().next().copied().unwrap_or(tables.next_raft_id.next());
                SeatChangeKind::AddLearner { node, raft_id: reused, addr: "10.0.0.99:1".to_owned() }
            }
            _ => SeatChangeKind::AddLearner { node, raft_id: tables.next_raft_id, addr: "10.0.0.99:1".to_owned() },
        };
        self.totals.count("fault: outdated command");
        self.say(format!("outdated: {kind:?}"));
        let change = Box::new(SeatChange { at: self.wall(place), by: Principal::Operator, kind });
        if let Some(ask) = self.park(place, Asker::House) {
            self.hear(place, Input::ProposeSeat { ask, change });
        }
    }

    fn leader_and_tables(&self) -> Option<(Place, Tables)> {
        let place = self.leading().filter(|p| self.machines[*p].runs())?;
        let tables = self.machines[place].half.as_ref()?.core.tables().clone();
        tables.cluster.is_some().then_some((place, tables))
    }

    /// The cluster asks somebody for a new certificate, whatever else it asks of it.
    pub(crate) fn rotate(&mut self) {
        let Some((place, tables)) = self.leader_and_tables() else { return };
        let nodes: Vec<NodeId> = tables.nodes.keys().copied().collect();
        for node in nodes {
            let command =
                Command::idempotent(self.wall(place), Principal::Operator, "rotate").change(Change::AskRotate(node));
            self.propose(place, Asker::House, command, Duration::from_secs(2));
        }
        self.totals.count("certificates rotated");
    }
}

/// A certificate for the other role.
fn forged(tables: &Tables, node: NodeId, now: WallTime) -> CertificateRecord {
    let record = tables.nodes.get(&node);
    let role = if record.is_some_and(|r| r.role == Role::Manager) { Role::Worker } else { Role::Manager };
    let (granted, not_after) = (record.map(|r| r.granted), now.plus(Duration::from_secs(3600)));
    CertificateRecord { role, serial: "f0".to_owned(), granted, not_after, state: CertificateState::Issued }
}
