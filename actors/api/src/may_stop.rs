//! `muster node may-stop`: whether a node may be stopped for a while, as for an upgrade.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_messages::protocol::RaftMemberMsg;
use muster_messages::{
    Details, ErrorBody, ErrorCode, Name, NodeId, NodeMayStopView, NodeRecord, RaftId, Replica, Role, detail, millis,
};

use crate::work::Work;

/// Within which managers answer if they are there: many round trips.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// The question, to the leader. It reserves nothing: an operator asks before each stop, and stops one node at a time.
pub(crate) struct MayStop<'a> {
    pub work: Work<'a>,
    pub node: &'a NodeRecord,
}

impl MayStop<'_> {
    pub(crate) async fn answer(&self) -> Result<NodeMayStopView, ErrorBody> {
        let replica = self.work.confirmed().await?;
        let node = replica.tables.nodes.get(&self.node.id).cloned();
        let node = node.ok_or_else(|| ErrorBody::new(ErrorCode::NotFound, "the node was removed meanwhile"))?;
        let view = |leader, answering, needed| {
            let (node, name, role) = (node.id, node.name.clone(), node.role);
            NodeMayStopView { node, name, role, may_stop: true, leader, answering, needed }
        };
        let voters: Vec<_> = replica.tables.members.values().filter(|member| member.voter).collect();
        // No quorum is lost with it: also not with a manager that never became a voter, which a restart may help.
        if voters.iter().all(|voter| voter.node != node.id) {
            return Ok(view(false, 0, 0));
        }
        if let Some(why) = unfinished(&replica) {
            return Err(ErrorBody::new(ErrorCode::QuorumAtRisk, why));
        }
        let others: BTreeSet<RaftId> =
            voters.iter().filter(|voter| voter.node != node.id).map(|voter| voter.raft_id).collect();
        let needed = voters.len() / 2 + 1;
        if others.len() < needed {
            let text = match voters.len() {
                1 => format!("{} is the only manager: nothing can be changed while it is stopped", node.name),
                n => format!(
                    "without {} the other {} of {n} managers would not be a majority; promote another node first",
                    node.name,
                    n - 1
                ),
            };
            return Err(refused(text, others.len(), needed, &[]));
        }
        let answering = self.answering(others.clone(), needed).await?;
        if answering.len() < needed {
            let missing = names(&replica, others.difference(&answering));
            let text = format!(
                "without {} {needed} of the other managers must answer, and {} {}; missing: {}; retry when they are back",
                node.name,
                answering.len(),
                if answering.len() == 1 { "does" } else { "do" },
                missing.iter().map(Name::as_str).collect::<Vec<_>>().join(", "),
            );
            return Err(refused(text, answering.len(), needed, &missing));
        }
        Ok(view(self.work.manager.node == node.id, answering.len(), needed))
    }

    /// The others that answer now, as soon as there are enough.
    async fn answering(&self, members: BTreeSet<RaftId>, needed: usize) -> Result<BTreeSet<RaftId>, ErrorBody> {
        let _permit = self.work.service.enter_stop_check()?;
        let deadline_ms = millis(ANSWER_TIME.min(self.work.asked.left()));
        let make = |reply| RaftMemberMsg::CheckReachable { members, needed, deadline_ms, reply };
        let asked = self.work.manager.raft.ask(ANSWER_TIME + Duration::from_secs(1), make).await;
        asked.map_err(ErrorBody::from)?.map_err(|why| self.work.proposal_error(why))
    }
}

/// A change of the managers that is in progress, and that a stop would hold up or put at risk.
fn unfinished(replica: &Replica) -> Option<String> {
    let tables = &replica.tables;
    let name = |id: &NodeId| tables.nodes.get(id).map_or_else(|| id.to_string(), |node| node.name.to_string());
    if let Some(learner) = tables.members.values().find(|member| !member.voter) {
        return Some(format!("{} is catching up with the log; retry when it votes", name(&learner.node)));
    }
    let changing = |record: &&std::sync::Arc<NodeRecord>| {
        let leaves = record.removing.is_some() || record.desired_role == Role::Worker;
        leaves && tables.member_of(record.id).is_some()
    };
    let record = tables.nodes.values().find(changing)?;
    Some(format!("{} is to be demoted or removed; retry when `muster status` shows nothing pending", record.name))
}

fn names<'a>(replica: &Replica, members: impl Iterator<Item = &'a RaftId>) -> Vec<Name> {
    let nodes = members.filter_map(|id| replica.tables.members.get(id));
    let names = nodes.filter_map(|member| replica.tables.nodes.get(&member.node)).map(|node| node.name.clone());
    BTreeSet::from_iter(names).into_iter().collect()
}

fn refused(text: String, answering: usize, needed: usize, missing: &[Name]) -> ErrorBody {
    let missing = missing.iter().map(Name::to_string).collect();
    let details = Details::default().with(detail::ANSWERING, &answering).with(detail::NEEDED, &needed);
    let details = details.with(detail::MISSING_BY_NAME, &missing);
    ErrorBody::new(ErrorCode::QuorumAtRisk, text).with_details(&details)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_messages::{Member, Tables, WallTime};

    use super::*;

    fn id(n: u128) -> NodeId {
        NodeId::from_entropy(n)
    }

    /// Two managers that vote, and a worker.
    fn settled() -> Tables {
        let mut tables = Tables::default();
        for (n, role) in [(1, Role::Manager), (2, Role::Manager), (3, Role::Worker)] {
            let node = NodeRecord::new(id(n), Name::sanitized(&format!("n{n}")), role, WallTime(0));
            tables.nodes.insert(node.id, Arc::new(node));
        }
        for n in [1, 2] {
            let member = Member { node: id(n.into()), raft_id: RaftId(n), addr: "h:1".to_owned(), voter: true };
            tables.members.insert(member.raft_id, member);
        }
        tables
    }

    #[test]
    fn unfinished_changes_of_managers_are_named() {
        let why = |change: &dyn Fn(&mut Tables)| {
            let mut replica = Replica { tables: settled(), ..Replica::default() };
            change(&mut replica.tables);
            unfinished(&replica).unwrap_or_default()
        };
        let record = |tables: &mut Tables, n: u128, change: &dyn Fn(&mut NodeRecord)| {
            change(Arc::make_mut(tables.nodes.get_mut(&id(n)).unwrap()));
        };
        assert_eq!(why(&|_| {}), "");
        let joining = |tables: &mut Tables| {
            record(tables, 3, &|node| (node.desired_role, node.role) = (Role::Manager, Role::Manager));
        };
        assert_eq!(why(&joining), "", "one that is not a member yet does not block others");
        let demoted = |tables: &mut Tables| record(tables, 2, &|node| node.desired_role = Role::Worker);
        assert!(why(&demoted).starts_with("n2 is to be demoted or removed"));
        let learner = |tables: &mut Tables| tables.members.get_mut(&RaftId(2)).unwrap().voter = false;
        assert!(why(&learner).starts_with("n2 is catching up"));
    }
}
