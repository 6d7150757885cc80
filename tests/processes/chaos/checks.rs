//! After a storm: all faults are cleared, and the cluster must settle.

use std::collections::{BTreeMap, BTreeSet};

use muster_client::{Progress, progress};
use muster_messages::wire::Request;
use muster_messages::{Liveness, Membership, NodeId, NodeListView, NodeView, RaftStatusView, Role};

use super::cluster::{Cluster, WITNESS};
use crate::harness::{WAIT_LIMIT, between_checks, eventually, eventually_so};
use crate::removal::removal_reason;

impl Cluster {
    /// Clears all faults and waits until the cluster is settled; fails if it does not settle, or if anything was lost.
    pub fn calm(&mut self) {
        self.settle(|_| true);
        self.notice_ends();
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for machine in self.machines.values() {
            machine.clock.set(0);
        }
        for name in names {
            if !self.machines[&name].served {
                self.world.node(&name).ready();
                self.machine(&name).served = true;
            }
        }
        self.forget_removed_nodes();
        let managers = self.wait_until_healthy();
        if let Some(clients) = self.clients.take() {
            clients.stop();
            self.check_history(&managers);
        }
        self.check_logs();
        self.check_files();
    }

    /// Stops every process cleanly.
    pub fn end(mut self) {
        self.log(&format!("{} storms, {} operations, {:?}", self.storms, self.operations, self.counts));
        self.vitals.assert_no_growth();
        for name in self.machines.keys() {
            self.world.node(name).stop();
        }
    }

    /// A removed node has learned it, or exits because of it. No other node has exited.
    fn forget_removed_nodes(&mut self) {
        let listed: BTreeSet<String> = eventually("the cluster answers", || {
            let list = self.world.ask(WITNESS, Request::NodeList { fresh: true }).ok()?;
            let list: NodeListView = serde_json::from_value(list).expect("a list of nodes");
            Some(list.items.iter().map(|node| node.name.to_string()).collect())
        });
        let removed: Vec<String> = self.machines.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        for name in &removed {
            let ended = self.machines[name].ended;
            assert!(matches!(ended, None | Some(Some(6))), "{name} was removed and exited with {ended:?}");
            if ended.is_none() {
                let reason = eventually("the removed node has learned it", || {
                    let ended = !self.world.node(name).is_running();
                    removal_reason(&self.world, name).or_else(|| ended.then(|| "removed".to_owned()))
                });
                assert!(["blocked", "removed"].contains(&reason.as_str()), "{name} was given reason {reason}");
                if self.world.node(name).is_running() {
                    self.world.node(name).kill();
                }
            }
            self.log(&format!("{name} was removed and has learned it"));
            self.machines.remove(name);
        }
        for (name, machine) in &self.machines {
            assert_eq!(machine.ended, None, "{name} is a node, but exited:\n{}", self.world.nodes_log(name));
        }
    }

    /// Waits until all facts agree: per node, and among all managers. Returns the managers' names.
    fn wait_until_healthy(&self) -> Vec<String> {
        let end = std::time::Instant::now() + WAIT_LIMIT;
        loop {
            match self.is_well() {
                Ok(managers) => return managers,
                Err(why) => assert!(std::time::Instant::now() < end, "not settled within {WAIT_LIMIT:?}: {why}"),
            }
            between_checks();
        }
    }

    fn is_well(&self) -> Result<Vec<String>, String> {
        let list = self.world.ask(WITNESS, Request::NodeList { fresh: true }).map_err(|e| e.message)?;
        let list: NodeListView = serde_json::from_value(list).expect("a list of nodes");
        for node in &list.items {
            let settled = progress(node, node.desired_role);
            if settled != Progress::Settled || node.state != Liveness::Ready || !node.conditions.is_empty() {
                let NodeView { name, state, conditions, .. } = node;
                return Err(format!("{name} is {state:?} and {settled:?}, {conditions:?}"));
            }
        }
        let managers: BTreeMap<NodeId, String> = list
            .items
            .iter()
            .filter(|node| node.role == Role::Manager)
            .map(|node| (node.id, node.name.to_string()))
            .collect();
        let mut leaders = BTreeSet::new();
        for name in managers.values() {
            let status = self.world.ask(name, Request::RaftStatus { fresh: false }).map_err(|e| e.message)?;
            let status: RaftStatusView = serde_json::from_value(status).expect("a status");
            let voters: BTreeSet<NodeId> =
                status.members.iter().filter(|m| m.role == Membership::Voter).map(|m| m.node).collect();
            if status.members.len() != voters.len() || !voters.iter().eq(managers.keys()) {
                return Err(format!("{name}: members differ from managers: {:?}, {managers:?}", status.members));
            }
            leaders.insert((status.leader, status.term));
        }
        match (leaders.len(), leaders.first()) {
            (1, Some((Some(_), _))) => Ok(managers.into_values().collect()),
            _ => Err(format!("not one leader in one term: {leaders:?}")),
        }
    }

    /// Acknowledged writes can be read at every manager, and the history is linearizable.
    fn check_history(&mut self, managers: &[String]) {
        for name in managers {
            let node = self.world.seen(name, WITNESS).expect("the witness is a node");
            self.history.read_all(|key| node.labels.get(key).and_then(|text| text.parse().ok()));
        }
        let operations = self.history.assert_linearizable();
        self.operations += operations;
        let acknowledged = self.history.acknowledged();
        self.log(&format!(
            "managers: {}; {operations} operations, {acknowledged} writes acknowledged",
            managers.join(", ")
        ));
        let labels = self.world.seen(WITNESS, WITNESS).expect("the witness is a node").labels;
        let remove = labels.into_keys().collect::<Vec<_>>();
        let request = Request::NodeUpdate { node: WITNESS.to_owned(), add: BTreeMap::new(), remove, generation: None };
        self.world.answer(&managers[0], request);
    }

    /// No node has panicked or logged an error, except nodes whose disk was full.
    fn check_logs(&mut self) {
        for (name, machine) in &mut self.machines {
            let log = self.world.nodes_log(name);
            let new = log.get(machine.judged..).unwrap_or_default();
            // A node frozen past a lease notices the lost lease after the thaw.
            let true_of_frozen =
                |line: &str| machine.was_frozen && line.contains("the guarded work outlives its lease");
            let error = |line: &str| line.contains(" ERROR ") && !machine.disk_was_full && !true_of_frozen(line);
            let wrong: Vec<&str> = new.lines().filter(|line| line.contains("panicked at") || error(line)).collect();
            assert!(wrong.is_empty(), "{name} had trouble: {wrong:#?}");
            machine.judged = log.len();
            (machine.disk_was_full, machine.was_frozen) = (false, false);
        }
    }

    fn check_files(&mut self) {
        let mut snapshots = Vec::new();
        for name in self.machines.keys() {
            let process = self.world.node(name).process_id();
            eventually_so("closed connections are released", || self.vitals.files_as_before(process));
            let snapshot = self.vitals.note(process);
            snapshots.push(format!("{name}: {} files, {} KiB", snapshot.files, snapshot.kib));
        }
        self.log(&snapshots.join("; "));
    }
}
