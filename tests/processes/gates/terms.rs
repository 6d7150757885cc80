//! Runners that are killed, or frozen until another one has begun: they write nothing afterwards.

use std::collections::BTreeMap;
use std::time::Instant;

use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{ManagedKey, Rng};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::record::{self, events};
use super::writes::{Write, fenced};
use super::{apply, items, managers_of, rng, text};
use crate::harness::{Follower, World, eventually, eventually_so};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const ROUNDS: u64 = 3;
/// Each object is changed by hand at most once per round, so that its last write alone repaired it.
const OBJECTS: usize = 320;
/// Objects changed at once, so that the repair is interrupted.
const BATCH_SIZE: usize = 100;
/// Maximum number of changes at a time.
const MAX_CHANGES_BETWEEN: u64 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Killed,
    /// Frozen until its successor has written.
    Frozen,
}

/// A cluster in which every node can keep the objects, and an operator who changes them by hand.
struct RunnerTest {
    world: World,
    log: Follower,
    rng: Rng,
    names: Vec<String>,
    /// Objects not yet changed in this round, in random order.
    order: Vec<usize>,
    edited: usize,
    /// The node that answers in this round.
    by: String,
    writes: Vec<Write>,
}

fn is_by_hand(object: &Value) -> bool {
    object["body"]["release"] != "1.0.0"
}

fn write_of(object: &Value) -> Write {
    let meta = &object["metadata"];
    let number = |key: &str| meta[key].as_u64().expect("a number");
    Write { object: text(&meta["name"]), revision: number("revision"), term: number("term") }
}

impl RunnerTest {
    fn begin() -> Self {
        let rng = rng();
        let world = managers_of("1.0.0");
        let log = record::follow(&world, &NODES);
        let names: Vec<String> = (0..OBJECTS).map(|number| format!("o{number:03}")).collect();
        apply(&world, "1.0.0", "1.0.0", &names);
        let by = "n1".to_owned();
        Self { world, log, rng, names, order: vec![], edited: 0, by, writes: vec![] }
    }

    fn ask(&self, request: ReconcilerRequest) -> Value {
        self.world.answer(&self.by, Request::Reconciler(request))
    }

    fn objects(&self) -> Vec<Value> {
        items(&self.ask(ReconcilerRequest::ObjectList { kind: Some("table".to_owned()), namespace: None }), "items")
    }

    fn key(&self, number: usize) -> ManagedKey {
        let kind = "table".to_owned();
        ManagedKey { kind, namespace: "default".to_owned(), name: self.names[number].clone() }
    }

    /// Changes this many more objects by hand.
    fn edit(&mut self, more: usize) {
        for at in self.edited..self.edited + more {
            let number = self.order[at];
            let body = json!({"release": format!("by hand {}", self.edited)}).to_string();
            self.ask(ReconcilerRequest::ObjectPut { key: self.key(number), labels: BTreeMap::new(), body });
            self.edited += 1;
        }
    }

    /// Waits until all objects match the definition; returns their last writes.
    #[track_caller]
    fn repaired(&self) -> Vec<Write> {
        eventually("all objects match the definition", || {
            let objects = self.objects();
            let good = objects.len() == OBJECTS && !objects.iter().any(is_by_hand);
            good.then(|| objects.iter().map(write_of).collect())
        })
    }

    /// The node that runs the reconciler, and its term.
    #[track_caller]
    fn runner(&self, after: u64) -> (String, u64) {
        let request =
            ReconcilerRequest::Status { name: "schema".to_owned(), seen: muster_messages::Revision(0), wait_ms: 0 };
        let (id, term) = eventually("a node runs it", || {
            let status = self.world.ask(&self.by, Request::Reconciler(request.clone())).ok()?;
            let term = status["runner"]["term"].as_u64().filter(|term| *term > after)?;
            Some((text(&status["runner"]["member"]), term))
        });
        let node = self.world.nodes_seen_by(&self.by).into_iter().find(|node| node.id.as_str() == id);
        (node.expect("runners are nodes").name.to_string(), term)
    }

    /// Moves leadership to this node, or away from it.
    fn lead(&self, node: &str, leads: bool) {
        eventually_so("leadership has moved", || {
            let leader = self.world.leader_seen_by(&self.by);
            if (leader == node) == leads {
                return true;
            }
            let to = if leads { node } else { &self.by };
            self.world.muster_at(&leader, &["raft", "transfer-leader", to]);
            false
        });
    }

    fn round(&mut self, fault: FaultKind) {
        self.by = "n1".to_owned();
        self.repaired();
        let (victim, old) = self.runner(0);
        self.by = self.world.other_than(&[&victim]);
        self.order = (0..OBJECTS).collect();
        for last in (1..OBJECTS).rev() {
            let other = self.rng.index(last + 1);
            self.order.swap(last, other);
        }
        self.edited = 0;
        let leads = self.rng.one_in(2);
        self.lead(&victim, leads);

        self.edit(BATCH_SIZE);
        let one_of_them = self.rng.index(BATCH_SIZE);
        let watched = self.key(self.order[one_of_them]);
        eventually_so("it repairs them", || {
            !is_by_hand(&self.ask(ReconcilerRequest::ObjectGet { key: watched.clone() }))
        });
        let injected = Instant::now();
        match fault {
            FaultKind::Killed => self.world.node(&victim).kill(),
            FaultKind::Frozen => self.world.node(&victim).freeze(),
        }
        self.more(); // for the successor
        let (successor, new) = self.runner(old);
        let followed = injected.elapsed();
        assert_ne!(successor, victim);
        self.more();
        let begun = eventually("the successor has begun", || {
            self.objects().iter().map(write_of).find(|write| write.term >= new).map(|write| write.revision)
        });
        let absent = injected.elapsed();
        match fault {
            FaultKind::Killed => {
                self.world.node(&victim).start(&["--release", "1.0.0"]);
            }
            FaultKind::Frozen => {
                self.world.node(&victim).signal(Signal::CONT);
            }
        }
        self.more(); // while the thawed runner runs
        if fault == FaultKind::Killed {
            self.world.node(&victim).ready();
        }
        let id = self.world.seen(&self.by, &victim).expect("it is a node").id;
        eventually_so("it is the last candidate again", || {
            let list = self.ask(ReconcilerRequest::MemberList { scope: Some("candidates.schema".to_owned()) });
            items(&list, "items").iter().any(|candidate| candidate["member"] == id.as_str())
        });
        self.more();
        let writes = self.repaired();
        let by = |wanted: &dyn Fn(u64) -> bool| writes.iter().filter(|write| wanted(write.term)).count();
        let (before, after) = (by(&|term| term == old), by(&|term| term > old));
        println!(
            "{victim} {fault:?}, leading: {leads}, term {new} of {successor} followed {old} after {followed:?} and wrote \
             {begun} after {absent:?}; {} changes by hand, last written under the old term {before}, under newer ones \
             {after}",
            self.edited
        );
        assert!(before > 0 && after > 0, "both terms have written");
        self.writes.extend(writes);
    }

    fn more(&mut self) {
        let more = self.rng.below(MAX_CHANGES_BETWEEN) + 5;
        self.edit(more as usize);
    }
}

fn rounds_of(fault: FaultKind) {
    let mut runner_test = RunnerTest::begin();
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        runner_test.round(fault);
    }
    let end = runner_test.writes.iter().map(|write| write.revision).max().expect("there are objects");
    let terms = record::terms(&events(&runner_test.log.answers_until(end)), "schema");
    assert!(terms.len() as u64 > ROUNDS, "{terms:?}");
    fenced(&runner_test.writes, &terms).unwrap_or_else(|why| panic!("{why}; terms began at {terms:?}"));
    println!(
        "{ROUNDS} rounds in {:?}, {} writes judged, terms {:?}",
        begun.elapsed(),
        runner_test.writes.len(),
        terms.keys()
    );
}

#[test]
#[ignore = "full tier"]
fn killed_runner_writes_nothing_after_its_successor_began() {
    rounds_of(FaultKind::Killed);
}

#[test]
#[ignore = "full tier"]
fn frozen_runner_writes_nothing_after_its_successor_began() {
    rounds_of(FaultKind::Frozen);
}
