//! A demotion with one of three managers silent, and with all of them there. No cluster runs: the core is a value, and this program is
//! everything around it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    Liveness, Member, NodeId, NodeRecord, PeerProgress, Principal, RaftId, RaftRole, RaftStatus, Replica, RequestId,
    Revision, Role, Tables, Term, WallTime,
};
use muster_role_manager::core::{Answer, AskId, Config, Effect, Input, Now, RequestedChange, RoleManager, RoleRequest};

fn main() {
    println!("n1 and n2 answer: {}", demotion_of_n2(&[1, 2, 3]));
    println!("n3 is silent:     {}", demotion_of_n2(&[1, 2]));
}

/// Asks for the demotion of n2 while these of three managers answer.
fn demotion_of_n2(answering: &[u64]) -> String {
    let replica = three_managers();
    let mut core = RoleManager::new(NodeId::from_entropy(1), Config::default(), None);
    let request = RoleRequest {
        ask: AskId(1),
        node: NodeId::from_entropy(2),
        change: RequestedChange::Role(Role::Worker),
        by: Principal::Operator,
        request: RequestId(1),
    };
    let mut inputs = vec![Input::RoleRequested(request), Input::Seen(Arc::new(replica))];
    let (mut effects, mut now, mut wake) = (Vec::new(), Now::default(), Now::default().at);
    // Bounded: the first proposal or answer ends it.
    for _ in 0..30 {
        // Without an input, time advances to when the core asked to be woken.
        let input = inputs.pop().unwrap_or_else(|| {
            now.at = wake;
            Input::Woke
        });
        core.step(now, input, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                // What a Raft member does: a heartbeat to each, and who has answered it.
                Effect::CheckReachable { step, members, needed, .. } => {
                    let reachable: BTreeSet<RaftId> =
                        members.into_iter().filter(|member| answering.contains(&member.0)).collect();
                    println!("  reachability check: {} of {needed} needed answer", reachable.len());
                    inputs.push(Input::ReachabilityChecked { step, reachable: Some(reachable) });
                }
                Effect::WakeAt(at) => wake = at,
                Effect::Propose { command, .. } => return format!("proposed, {} changes", command.changes.len()),
                Effect::Answer(_, Answer::Role(Err(refusal))) => {
                    return format!("refused ({}): {}", refusal.code, refusal.message);
                }
                _ => {}
            }
        }
    }
    "nothing is decided".to_owned()
}

/// The state of a settled cluster of three managers, in which n1 leads.
fn three_managers() -> Replica {
    let mut tables = Tables { revision: Revision(10), next_raft_id: RaftId(4), ..Tables::default() };
    let mut progress = Vec::new();
    for n in 1..=3 {
        let (node, raft_id, addr) = (NodeId::from_entropy(n.into()), RaftId(n), format!("192.0.2.{n}:4400"));
        let name = format!("n{n}").parse().expect("a name");
        let record = NodeRecord {
            addr: addr.clone(),
            liveness: Liveness::Ready,
            ..NodeRecord::new(node, name, Role::Manager, WallTime(0))
        };
        tables.nodes.insert(node, Arc::new(record));
        tables.members.insert(raft_id, Member { node, raft_id, addr, voter: true });
        progress.push(PeerProgress {
            raft_id,
            node: Some(node),
            voter: true,
            matched: 10,
            acked_ago: Some(Duration::ZERO),
            in_snapshot: false,
            problem: None,
        });
    }
    let leader = Some(RaftId(1));
    let raft = RaftStatus {
        raft_id: leader,
        role: RaftRole::Leader,
        term: Term(1),
        leader,
        leader_node: Some(NodeId::from_entropy(1)),
        commit: Revision(10),
        applied: Revision(10),
        leading: true,
        progress,
        silent: Vec::new(),
    };
    Replica { tables, raft }
}
