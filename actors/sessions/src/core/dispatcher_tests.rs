//! Tests of liveness.

use std::sync::Arc;
use std::time::Duration;

use muster_messages::{
    Blocked, ClusterId, ClusterRecord, Generation, IDENTITY_LEVEL, Incarnation, Name, ReportedNode, Role, Secret,
};

use super::super::testing::{fact, node};
use super::*;
use crate::core::instances::Instance;

/// A leader whose state applies proposals when the test lets it.
struct World {
    dispatcher: Dispatcher,
    tables: Tables,
    now: Moment,
    out: Vec<Effect>,
    sequences: BTreeMap<NodeId, u64>,
    commands: usize,
    warned: Vec<NodeId>,
    over: Vec<NodeId>,
    /// What was written to the event log.
    recorded_duplicates: Vec<Vec<String>>,
}

type Edit = Box<dyn Fn(&mut NodeRecord)>;

fn record(n: u128, liveness: Liveness) -> NodeRecord {
    let f = fact(n);
    NodeRecord {
        addr: f.addr,
        release: f.release,
        granted: Revision(1),
        liveness,
        revision: Revision(1),
        ..NodeRecord::new(f.node, f.name, Role::Worker, WallTime(0))
    }
}

impl World {
    fn new(nodes: impl IntoIterator<Item = (u128, Liveness)>) -> Self {
        let mut tables = Tables { revision: Revision(10), ..Tables::default() };
        for (n, liveness) in nodes {
            tables.nodes.insert(node(n), Arc::new(record(n, liveness)));
        }
        let now = Moment(1_000_000);
        let dispatcher = Dispatcher::new(DispatcherConfig::default(), now, WallTime(0));
        let mut world = World {
            dispatcher,
            tables,
            now,
            out: vec![],
            sequences: BTreeMap::new(),
            commands: 0,
            warned: vec![],
            over: vec![],
            recorded_duplicates: vec![],
        };
        world.publish();
        world
    }
    fn step(&mut self, input: Input) -> DigestOutcome {
        self.dispatcher.step(self.now, WallTime(0), input, &mut self.out)
    }
    fn publish(&mut self) {
        let tables = self.tables.clone();
        self.step(Input::Replica(tables));
        self.settle();
    }
    /// Applies every proposal, as a healthy cluster would.
    fn settle(&mut self) {
        while !self.out.is_empty() {
            for effect in std::mem::take(&mut self.out) {
                match effect {
                    Effect::DuplicateFound(node) => self.warned.push(node),
                    Effect::DuplicateResolved(node) => self.over.push(node),
                    Effect::Propose { batch, command } => {
                        self.commands += 1;
                        assert!(command.changes.len() <= 100);
                        let outcome = self.apply(&command);
                        self.step(Input::Proposed { batch, outcome });
                        let tables = self.tables.clone();
                        self.step(Input::Replica(tables));
                    }
                }
            }
        }
    }
    fn apply(&mut self, command: &Command) -> Outcome {
        let mut next = self.tables.clone();
        next.revision = next.revision.next();
        for change in &command.changes {
            let (id, edit): (NodeId, Edit) = match change.clone() {
                Change::SetLiveness { node, liveness } => (node, Box::new(move |r| r.liveness = liveness)),
                Change::Report { node, name, addr, release, labels } if next.feature_level() >= IDENTITY_LEVEL => {
                    let reported = ReportedNode { name, named_at: WallTime(0), labels };
                    next.reported.insert(node, Arc::new(reported));
                    (
                        node,
                        Box::new(move |r| {
                            r.addr = addr.clone();
                            r.release = release.clone();
                        }),
                    )
                }
                Change::Report { node, name, addr, release, labels } => (
                    node,
                    Box::new(move |r| {
                        r.name = name.clone();
                        r.addr = addr.clone();
                        r.release = release.clone();
                        r.labels.extend(labels.clone());
                    }),
                ),
                Change::RecordDuplicate { node, processes } => {
                    self.recorded_duplicates.push(processes);
                    (node, Box::new(|_| ()))
                }
                other => panic!("the dispatcher writes no {other:?}"),
            };
            let Some(old) = next.nodes.get(&id) else {
                return Outcome::Refused;
            };
            let mut new = NodeRecord::clone(old);
            edit(&mut new);
            next.nodes.insert(id, Arc::new(new));
        }
        self.tables = next;
        Outcome::Applied(self.tables.revision)
    }
    fn digest(&mut self, host: u128, full: bool, facts: Vec<SessionFact>) -> DigestOutcome {
        let sequence = self.sequences.entry(node(host)).or_default();
        *sequence += 1;
        let digest = SessionDigest { sequence: *sequence, full, sessions: facts };
        let digest_outcome = self.step(Input::Digest { host: node(host), digest });
        self.settle();
        digest_outcome
    }
    /// Time passes while every named host repeats its sessions each second.
    fn run(&mut self, secs: u64, hosts: &[(u128, Vec<SessionFact>)]) {
        for _ in 0..secs {
            self.now = self.now + Duration::from_secs(1);
            for (host, facts) in hosts {
                self.digest(*host, true, facts.clone());
            }
            self.step(Input::Woke);
            self.settle();
        }
    }
    fn liveness(&self, n: u128) -> Liveness {
        self.tables.nodes[&node(n)].liveness
    }
    fn is_stale(&self, n: u128) -> bool {
        self.dispatcher.doubts().unconfirmed.contains(&node(n))
    }
}

fn down(n: u128) -> SessionFact {
    SessionFact { liveness: Liveness::Down, since: WallTime(9_999), ..fact(n) }
}
fn ready(n: u128) -> SessionFact {
    fact(n)
}
use Liveness::{Down, Ready, Unknown};

#[test]
fn liveness_change_is_written_once_and_repeats_are_free() {
    let mut w = World::new([(1, Unknown)]);
    w.digest(100, true, vec![ready(1)]);
    assert_eq!((w.liveness(1), w.commands), (Ready, 1));
    w.run(60, &[(100, vec![ready(1)])]);
    assert_eq!(w.commands, 1);
    w.digest(100, false, vec![down(1)]);
    assert_eq!((w.liveness(1), w.commands), (Down, 2));
}

/// E43: after a failover healthy nodes were unknown for half a minute, and could be removed without force.
#[test]
fn new_leader_keeps_ready_nodes_during_the_grace_period() {
    let mut w = World::new((1..=50).map(|n| (n, Ready)));
    assert!((1..=50).all(|n| w.is_stale(n) && w.liveness(n) == Ready));
    w.run(1, &[(100, (1..=49).map(ready).collect())]);
    assert_eq!(w.commands, 0, "a leader change with fifty agents writes nothing");
    assert!(!w.is_stale(49) && w.is_stale(50));
    w.run(18, &[(100, (1..=49).map(ready).collect())]);
    assert_eq!(w.liveness(50), Ready);
    w.run(3, &[(100, (1..=49).map(ready).collect())]);
    assert_eq!((w.liveness(50), w.liveness(49)), (Down, Ready));
}

#[test]
fn down_and_unknown_nodes_stay_so_until_a_host_reports() {
    let mut w = World::new([(1, Down), (2, Unknown)]);
    w.run(60, &[(100, vec![])]);
    assert_eq!((w.liveness(1), w.liveness(2), w.commands), (Down, Unknown, 0));
    w.digest(100, false, vec![ready(1)]);
    assert_eq!(w.liveness(1), Ready);
}

#[test]
fn node_whose_session_moves_is_never_reported_down() {
    let mut w = World::new([(1, Ready)]);
    w.digest(100, true, vec![ready(1)]);
    w.digest(101, true, vec![ready(1)]); // moved; the first host does not know yet
    w.digest(100, false, vec![down(1)]); // now it does, later by every clock
    assert_eq!((w.liveness(1), w.commands), (Ready, 0));
    // The second host vanishes. The first host's old report no longer counts: the grace period does.
    w.run(10, &[(100, vec![down(1)])]);
    assert_eq!(w.liveness(1), Ready);
    w.run(12, &[(100, vec![down(1)])]);
    assert_eq!(w.liveness(1), Down);
}

#[test]
fn dead_hosts_nodes_get_grace_from_its_last_report() {
    let mut w = World::new((1..=20).map(|n| (n, Ready)));
    w.digest(100, true, (1..=20).map(ready).collect());
    w.digest(101, true, vec![]);
    w.run(5, &[(101, (1..=19).map(ready).collect())]); // all but one have moved
    w.run(14, &[(101, (1..=19).map(ready).collect())]);
    assert_eq!(w.liveness(20), Ready);
    w.run(2, &[(101, (1..=19).map(ready).collect())]);
    assert_eq!((w.liveness(20), w.liveness(19)), (Down, Ready));
}

/// DISP-9: 8,000 sessions ended with their manager, and return more slowly than the grace period lasts.
#[test]
fn a_fleet_that_reconnects_is_not_shown_down() {
    let mut w = World::new((1..=8_010).map(|n| (n, Ready)));
    w.digest(100, true, (1..=8_010).map(ready).collect());
    w.digest(100, true, vec![]);
    for returned in 1..=26 {
        w.run(1, &[(101, (1..=returned * 300).map(ready).collect())]);
        assert_eq!(w.commands, 0, "after {returned} s");
    }
    // All but ten are back, and their time was prolonged once: by 8 s, when 2,010 were missing.
    w.run(2, &[(101, (1..=8_000).map(ready).collect())]);
    assert!((1..=8_000).all(|n| w.liveness(n) == Ready));
    assert!((8_001..=8_010).all(|n| w.liveness(n) == Down));
}

/// A host that died last reported on nodes that have sessions elsewhere by now: they do not count.
#[test]
fn nodes_that_moved_prolong_no_grace_period() {
    let mut w = World::new((1..=2_000).map(|n| (n, Ready)));
    w.digest(100, true, (1..=2_000).map(ready).collect());
    w.run(19, &[(101, (2..=2_000).map(ready).collect())]);
    assert_eq!(w.liveness(1), Ready);
    w.run(2, &[(101, (2..=2_000).map(ready).collect())]);
    assert_eq!((w.liveness(1), w.commands), (Down, 1));
}

#[test]
fn dead_nodes_are_shown_down_within_three_grace_periods() {
    let mut w = World::new((1..=20_000).map(|n| (n, Ready)));
    w.run(59, &[(100, vec![])]);
    assert_eq!(w.commands, 0);
    w.run(2, &[(100, vec![])]);
    assert!((1..=20_000).all(|n| w.liveness(n) == Down));
}

#[test]
fn a_host_that_restarts_empty_leaves_its_nodes_time_to_return() {
    let mut w = World::new([(1, Ready)]);
    w.digest(100, true, vec![ready(1)]);
    w.digest(100, true, vec![]);
    assert!(w.is_stale(1));
    w.run(2, &[(100, vec![])]);
    w.digest(100, false, vec![ready(1)]);
    assert_eq!((w.liveness(1), w.commands, w.is_stale(1)), (Ready, 0, false));
}

#[test]
fn old_digest_is_ignored_and_unknown_host_must_send_full_one() {
    let mut w = World::new([(1, Ready)]);
    let changes = SessionDigest { sequence: 5, full: false, sessions: vec![down(1)] };
    assert_eq!(w.step(Input::Digest { host: node(100), digest: changes.clone() }), DigestOutcome::NeedFull);
    let full = SessionDigest { sequence: 6, full: true, sessions: vec![ready(1)] };
    assert_eq!(w.step(Input::Digest { host: node(100), digest: full }), DigestOutcome::Accepted);
    assert_eq!(w.step(Input::Digest { host: node(100), digest: changes }), DigestOutcome::Accepted);
    w.settle();
    assert_eq!(w.liveness(1), Ready);
}

#[test]
fn ten_thousand_nodes_are_written_in_commands_of_a_hundred() {
    let mut w = World::new((1..=10_000).map(|n| (n, Unknown)));
    for piece in 0..10 {
        let facts = (piece * 1000 + 1..=(piece + 1) * 1000).map(ready).collect();
        w.digest(100, piece == 0, facts);
    }
    assert!((1..=10_000).all(|n| w.liveness(n) == Ready));
    assert!(w.commands <= 210, "{} commands", w.commands);
}

#[test]
fn at_most_a_few_commands_are_in_flight() {
    let mut w = World::new((1..=5000).map(|n| (n, Unknown)));
    let digest = SessionDigest { sequence: 1, full: true, sessions: (1..=5000).map(ready).collect() };
    w.step(Input::Digest { host: node(100), digest });
    assert_eq!(w.out.len(), 4);
    w.step(Input::Woke);
    assert_eq!(w.out.len(), 4);
}

#[test]
fn a_removed_or_blocked_node_is_not_written_and_spoils_no_batch() {
    let mut w = World::new([(1, Unknown), (3, Unknown)]);
    let blocked =
        Blocked { node: node(3), by: Principal::Operator, blocked_at: WallTime(0), expires_at: WallTime(i64::MAX) };
    w.tables.blocklist.insert(node(3), blocked);
    w.publish();
    w.digest(100, true, vec![ready(1), ready(2), ready(3)]);
    assert_eq!((w.liveness(1), w.liveness(3)), (Ready, Unknown));
    // A node that vanishes between check and apply: the command is refused, the others are written alone.
    let mut w = World::new([(1, Unknown), (2, Unknown)]);
    w.tables.nodes.remove(&node(2));
    w.tables.revision = w.tables.revision.next();
    w.digest(100, true, vec![ready(1), ready(2)]);
    w.run(1, &[(100, vec![ready(1), ready(2)])]);
    assert_eq!(w.liveness(1), Ready);
}

#[test]
fn a_failed_proposal_is_repeated_after_a_pause() {
    let mut w = World::new([(1, Unknown)]);
    let digest = SessionDigest { sequence: 1, full: true, sessions: vec![ready(1)] };
    w.step(Input::Digest { host: node(100), digest });
    let Some(Effect::Propose { batch, .. }) = w.out.pop() else { panic!("nothing proposed") };
    w.step(Input::Proposed { batch, outcome: Outcome::Failed });
    assert!(w.out.is_empty());
    let at = w.dispatcher.wake_at(w.now).unwrap();
    assert_eq!(at.since(w.now), Duration::from_millis(200));
    w.now = at;
    w.step(Input::Woke);
    w.settle();
    assert_eq!(w.liveness(1), Ready);
}

#[test]
fn applied_command_is_not_repeated_while_the_replica_lags() {
    let mut w = World::new([(1, Unknown)]);
    let digest = SessionDigest { sequence: 1, full: true, sessions: vec![ready(1)] };
    w.step(Input::Digest { host: node(100), digest });
    let Some(Effect::Propose { batch, command }) = w.out.pop() else { panic!("nothing proposed") };
    let outcome = w.apply(&command);
    w.step(Input::Proposed { batch, outcome });
    w.step(Input::Woke);
    assert!(w.out.is_empty(), "the record in the replica still says unknown");
    w.publish();
    assert_eq!(w.commands, 0);
}

#[test]
fn nodes_report_is_recorded_when_it_differs() {
    let mut w = World::new([(1, Ready), (2, Ready)]);
    let moved = SessionFact { addr: "10.9.9.9:1".to_owned(), release: "0.2.0".to_owned(), ..ready(1) };
    let namesake = SessionFact { name: Name::sanitized("n1"), ..ready(2) };
    w.digest(100, true, vec![moved.clone(), namesake.clone()]);
    let r = &w.tables.nodes[&node(1)];
    assert_eq!((r.addr.as_str(), r.release.as_str()), ("10.9.9.9:1", "0.2.0"));
    assert_eq!(w.tables.nodes[&node(2)].name, Name::sanitized("n2"), "a taken name is not recorded");
    let commands = w.commands;
    w.run(30, &[(100, vec![moved, namesake])]);
    assert_eq!(w.commands, commands, "and not proposed again and again");
}

#[test]
fn labels_are_recorded_once_so_operators_changes_stay() {
    let mut w = World::new([(1, Ready)]);
    let label = |v: &str| BTreeMap::from([("zone".to_owned(), v.to_owned())]);
    let labelled = SessionFact { labels: label("a"), ..ready(1) };
    w.digest(100, true, vec![labelled.clone()]);
    assert_eq!(w.tables.nodes[&node(1)].labels, label("a"));
    let mut edited = NodeRecord::clone(&w.tables.nodes[&node(1)]);
    edited.labels = label("b");
    w.tables.nodes.insert(node(1), Arc::new(edited));
    w.tables.revision = w.tables.revision.next();
    w.publish();
    w.run(30, &[(100, vec![labelled.clone()])]);
    assert_eq!(w.tables.nodes[&node(1)].labels, label("b"));
    let restarted = SessionFact { instance: 2, labels: label("c"), ..ready(1) };
    w.digest(100, false, vec![restarted]);
    assert_eq!(w.tables.nodes[&node(1)].labels, label("c"));
}

/// A worker's agent that sends hello again and again, each time as another process with other labels.
#[test]
fn labels_of_many_processes_fill_a_node_and_not_the_state() {
    let mut w = World::new([(1, Ready)]);
    w.digest(100, true, vec![ready(1)]);
    for instance in 2..42 {
        let label = |n: usize| (format!("{instance}-{n}"), "x".repeat(200));
        let flood = SessionFact { instance, labels: (0..64).map(label).collect(), ..ready(1) };
        w.digest(100, false, vec![flood]);
    }
    let labels = &w.tables.nodes[&node(1)].labels;
    let bytes: usize = labels.iter().map(|(k, v)| k.len() + v.len()).sum();
    assert!((60..=64).contains(&labels.len()) && bytes <= 16 << 10, "{} labels, {bytes} bytes", labels.len());
    assert_eq!(w.dispatcher.labels_left_out(), 40 * 64 - labels.len() as u64);

    // Its recorded labels may still change.
    let key = labels.keys().next().unwrap().clone();
    let changed = SessionFact { instance: 99, labels: BTreeMap::from([(key.clone(), "y".to_owned())]), ..ready(1) };
    w.digest(100, false, vec![changed]);
    assert_eq!(w.tables.nodes[&node(1)].labels[&key], "y");
}

#[test]
fn name_that_denotes_another_node_is_not_recorded() {
    let mut w = World::new([(1, Ready), (2, Ready)]);
    let own = w.tables.nodes[&node(1)].name.clone();
    let other = node(2).to_string();
    for name in [other.as_str(), &other[..8], &other[..4]] {
        let shadow = SessionFact { name: name.parse().unwrap(), ..ready(1) };
        w.run(2, &[(100, vec![shadow, ready(2)])]);
        assert_eq!(w.tables.nodes[&node(1)].name, own, "{name}");
    }
    let renamed = SessionFact { name: "web-1".parse().unwrap(), ..ready(1) };
    w.run(2, &[(100, vec![renamed, ready(2)])]);
    assert_eq!(w.tables.nodes[&node(1)].name.as_str(), "web-1");
}

/// E45 across hosts.
#[test]
fn duplicates_on_two_hosts_are_named_after_the_overlap() {
    let mut w = World::new([(1, Ready)]);
    let other = SessionFact { instance: 2, addr: "10.2.0.1:1".to_owned(), ..ready(1) };
    w.run(20, &[(100, vec![ready(1)]), (101, vec![other.clone()])]);
    assert!(w.warned.is_empty(), "the first may be a dead session not yet known to be dead");
    w.run(70, &[(100, vec![ready(1)]), (101, vec![other.clone()])]);
    assert_eq!(w.warned, [node(1)], "once");
    let doubts = w.dispatcher.doubts();
    let named = doubts.duplicates[&node(1)].named();
    assert!(named.contains("10.1.0.1:4400") && named.contains("10.2.0.1:1"), "{named}");
    assert_eq!(w.recorded_duplicates.len(), 1);
    assert!(w.recorded_duplicates[0].iter().any(|p| p.contains("10.1.0.1:4400")), "{:?}", w.recorded_duplicates);
    w.run(30, &[(100, vec![]), (101, vec![other.clone()])]);
    assert_eq!(w.dispatcher.doubts().duplicates.len(), 1, "it may be moving from one host to another");
    w.run(40, &[(100, vec![]), (101, vec![other])]);
    assert!(w.dispatcher.doubts().duplicates.is_empty());
    assert_eq!((w.over.len(), w.recorded_duplicates.len()), (1, 2));
    assert!(w.recorded_duplicates[1].is_empty(), "it is over");
}

/// The record does not follow them from one address to the other, and the event log has it once.
#[test]
fn alternating_processes_are_shown_while_they_alternate() {
    let mut w = World::new([(1, Ready)]);
    let process = |n: u64| Instance { instance: n, addr: format!("10.{n}.0.1:4400"), remote: format!("10.{n}.0.1:5") };
    let fact = |n: u64| SessionFact {
        instance: n,
        addr: process(n).addr,
        turns: vec![process(1).shown(), process(2).shown()],
        ..ready(1)
    };
    w.run(1, &[(100, vec![fact(1)])]);
    let commands = w.commands;
    for n in 0..100 {
        w.run(1, &[(100, vec![fact(1 + n % 2)])]);
    }
    assert_eq!((w.warned.len(), w.recorded_duplicates.len(), w.commands), (1, 1, commands));
    assert_eq!(w.dispatcher.doubts().duplicates[&node(1)].processes.len(), 2);
    w.run(61, &[(100, vec![SessionFact { turns: vec![], ..fact(2) }])]);
    assert!(w.dispatcher.doubts().duplicates.is_empty());
    assert_eq!(w.tables.nodes[&node(1)].addr, fact(2).addr);
}

#[test]
fn suspended_leader_marks_no_node_down() {
    let mut w = World::new((1..=20).map(|n| (n, Ready)));
    w.digest(100, true, (1..=20).map(ready).collect());
    w.now = w.now + Duration::from_secs(60);
    w.step(Input::Woke);
    w.settle();
    assert_eq!(w.commands, 0);
    w.run(1, &[(100, (1..=20).map(ready).collect())]);
    assert!((1..=20).all(|n| w.liveness(n) == Ready));
}

#[test]
fn no_wakeup_for_proposals_in_flight() {
    let mut w = World::new([(1, Ready)]);
    for _ in 0..20 {
        w.now = w.now + Duration::from_secs(1);
        w.step(Input::Woke);
    }
    assert_eq!(w.out.len(), 1, "the grace period has passed: down is proposed");
    assert_eq!(w.dispatcher.wake_at(w.now), None);
}

/// At the feature level at which reports have a table of their own.
fn identified(nodes: impl IntoIterator<Item = (u128, Liveness)>) -> World {
    let mut w = World::new(nodes);
    w.tables.cluster = Some(Arc::new(ClusterRecord {
        id: ClusterId::from_entropy(7),
        name: Name::sanitized("c"),
        incarnation: Incarnation(1),
        feature_level: IDENTITY_LEVEL,
        root_cert_pem: String::new(),
        root_key_pem: Secret::new("key"),
        founded_at: WallTime(0),
        revision: Revision(1),
    }));
    w.tables.revision = w.tables.revision.next();
    w.publish();
    w
}

#[test]
fn at_level_three_report_is_recorded_once_without_rename() {
    let mut w = identified([(1, Ready)]);
    let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let first_fact = SessionFact { name: "db-1".parse().unwrap(), labels: labels.clone(), ..ready(1) };
    w.digest(100, true, vec![first_fact.clone()]);
    let (record, reported) = (&w.tables.nodes[&node(1)], &w.tables.reported[&node(1)]);
    assert_eq!((record.name.as_str(), reported.name.as_str(), &reported.labels), ("n1", "db-1", &labels));
    let commands = w.commands;
    w.run(30, &[(100, vec![first_fact.clone()])]);
    assert_eq!(w.commands, commands, "once");
    // The same process with other labels, as after a change of leader: its present labels count.
    w.digest(100, false, vec![SessionFact { labels: BTreeMap::new(), ..first_fact }]);
    assert!(w.tables.reported[&node(1)].labels.is_empty());
    assert_eq!(w.tables.nodes[&node(1)].generation, Generation(1));
}

#[test]
fn a_lost_connection_is_shown_at_once_and_changes_no_state() {
    let mut w = identified([(1, Ready)]);
    let shown = |w: &World| w.dispatcher.doubts().no_contact.contains_key(&node(1));
    w.digest(100, true, vec![ready(1)]);
    assert!(!shown(&w));
    let lost = SessionFact { liveness: Unknown, ..ready(1) };
    w.digest(100, false, vec![lost.clone()]);
    let commands = w.commands;
    w.run(10, &[(100, vec![lost.clone()])]);
    assert!(shown(&w) && w.liveness(1) == Ready && w.commands == commands);
    // It is back with another host.
    w.digest(101, true, vec![ready(1)]);
    assert!(!shown(&w));
    w.digest(101, true, vec![]);
    assert!(shown(&w), "only the first host reports on it");
    w.digest(100, false, vec![down(1)]);
    assert!(!shown(&w) && w.liveness(1) == Down);
}
