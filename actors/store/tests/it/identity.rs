//! Names and labels of nodes at feature level 3: the operator's, and those that nodes report.

use std::collections::BTreeMap;

use muster_messages::*;
use muster_store::snapshot::{decode, encode};

use crate::world::*;

fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

/// Node 1 founded the cluster at this level, and node 2 is a worker that joined with a label.
fn at_level(feature_level: u32) -> World {
    let mut world = World::empty();
    let cluster = ClusterRecord { feature_level, ..cluster() };
    let founder = NodeRecord { labels: labels(&[("rack", "1")]), ..node(1, Role::Manager) };
    world.must(command([Change::Found { cluster: Box::new(cluster), founder: Box::new(founder), tokens: vec![] }]));
    let joined = NodeRecord { labels: labels(&[("zone", "a")]), ..node(2, Role::Worker) };
    world.must(command([Change::CreateNode(Box::new(joined))]));
    world
}

fn report(n: u8, name_of: &str, of: &[(&str, &str)]) -> Command {
    let record = node(n, Role::Worker);
    command([Change::Report {
        node: id(n),
        name: name(name_of),
        addr: record.addr,
        release: record.release,
        labels: labels(of),
    }])
}

fn label(n: u8, add: &[(&str, &str)], remove: &[&str]) -> Command {
    let remove = remove.iter().map(|k| (*k).to_owned()).collect();
    command([Change::UpdateLabels { node: id(n), add: labels(add), remove }])
}

fn effective_labels(world: &World, n: u8) -> BTreeMap<String, String> {
    world.tables.labels_of(world.record(n))
}

#[test]
fn report_replaces_the_last_report_and_no_operator_labels() {
    let mut w = at_level(IDENTITY_LEVEL);
    assert_eq!(effective_labels(&w, 2), labels(&[("zone", "a")]), "labels given at joining");
    assert_eq!(effective_labels(&w, 1), labels(&[("rack", "1")]), "labels of the founder");
    w.must(label(2, &[("zone", "b"), ("team", "x")], &[]));
    w.must(report(2, "n2", &[("zone", "c"), ("disk", "ssd")]));
    assert_eq!(effective_labels(&w, 2), labels(&[("disk", "ssd"), ("team", "x"), ("zone", "b")]));
    w.must(report(2, "n2", &[("gpu", "no")]));
    assert_eq!(effective_labels(&w, 2), labels(&[("gpu", "no"), ("team", "x"), ("zone", "b")]));
    w.must(label(2, &[], &["zone", "team"]));
    assert_eq!(effective_labels(&w, 2), labels(&[("gpu", "no")]));
}

#[test]
fn below_level_three_reports_are_added_as_before() {
    let mut w = at_level(RECONCILERS_LEVEL);
    w.must(report(2, "web-1", &[("disk", "ssd")]));
    assert_eq!(w.record(2).name, name("web-1"));
    assert_eq!(w.record(2).labels, labels(&[("disk", "ssd"), ("zone", "a")]));
    assert!(w.tables.reported.is_empty());
}

#[test]
fn reported_name_is_not_used_and_causes_no_event() {
    let mut w = at_level(IDENTITY_LEVEL);
    let events = w.tables.events.len();
    w.must(report(2, "db-1", &[]));
    assert_eq!((w.record(2).name.as_str(), w.tables.events.len()), ("n2", events));
    assert_eq!(w.tables.reported[&id(2)].name, name("db-1"));
    // The name stays free for a later machine.
    w.must(command([Change::CreateNode(Box::new(NodeRecord { name: name("db-1"), ..node(3, Role::Worker) }))]));
    w.must(command([Change::DeleteNode(id(2))]));
    assert!(!w.tables.reported.contains_key(&id(2)), "it is deleted with the record");
}

#[test]
fn an_operator_renames_a_node_to_a_free_name() {
    let mut w = at_level(IDENTITY_LEVEL);
    let rename = |to: &str| command([Change::RenameNode { node: id(2), name: name(to) }]);
    w.must(rename("db-1"));
    assert_eq!((w.record(2).name.as_str(), w.record(2).generation), ("db-1", Generation(2)));
    assert_eq!(w.tables.events.last().unwrap().after.as_deref(), Some("named db-1"));
    w.must(rename("db-1"));
    assert_eq!(w.record(2).generation, Generation(2), "repeating it changes nothing");
    for taken in ["n1", &id(1).as_str()[..8], &id(1).as_str()[..4], id(1).as_str()] {
        let refusal = w.refused(rename(taken));
        assert!(matches!(refusal, CommandRefusal::NameTaken { node, .. } if node == id(1)), "{taken}: {refusal}");
    }
    let absent = command([Change::RenameNode { node: id(9), name: name("db-9") }]);
    assert!(matches!(w.refused(absent), CommandRefusal::NotFound { .. }));
}

/// F15: 2,816 labels on one node made every list of nodes fail.
#[test]
fn labels_of_a_node_are_bounded_for_each_source() {
    let mut w = at_level(IDENTITY_LEVEL);
    let many: Vec<(String, String)> = (0..100).map(|n| (format!("k{n:03}"), "v".repeat(200))).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    for _ in 0..3 {
        w.must(report(2, "n2", &many));
        assert_eq!(w.tables.reported[&id(2)].labels.len(), MAX_NODE_LABELS);
    }
    let refusal = w.refused(label(2, &many, &[]));
    assert!(matches!(refusal, CommandRefusal::TooManyLabels { .. }), "{refusal}");
    w.must(label(2, &many[..64], &[]));
    w.must(label(2, &[("k000", "another")], &["k001"]));
    assert!(matches!(w.refused(label(2, &[("a", ""), ("b", "")], &[])), CommandRefusal::TooManyLabels { .. }));
}

#[test]
fn labels_of_level_two_become_the_operators() {
    let before = {
        let mut w = at_level(1);
        w.must(report(2, "n2", &[("disk", "ssd")]));
        w
    };
    // From level 1 no gate is needed.
    let mut w = World { tables: decode(&encode(&before.tables)).unwrap() };
    w.must(command([Change::SetFeatureLevel(IDENTITY_LEVEL)]));
    assert!(w.tables.reported.is_empty());
    w.must(report(2, "n2", &[("disk", "hdd"), ("gpu", "no")]));
    assert_eq!(effective_labels(&w, 2), labels(&[("disk", "ssd"), ("gpu", "no"), ("zone", "a")]));
    assert_eq!(decode(&encode(&w.tables)), Ok(w.tables.clone()), "a snapshot keeps both");
}
