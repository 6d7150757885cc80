//! Pages of long lists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::wire::MAX_FRAME;
use muster_messages::{
    Blocked, BlockedListView, CertificateRecord, CertificateState, NodeListView, Principal, Replica, ReportedNode,
    Role, WallTime,
};

use super::*;

fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n * 7919)
}

fn replica(nodes: u128, blocks: u128) -> Replica {
    let mut replica = Replica::default();
    for n in 0..nodes {
        let record = NodeRecord::new(node(n), Name::sanitized(&format!("n{n}")), Role::Worker, WallTime(0));
        replica.tables.nodes.insert(record.id, Arc::new(record));
    }
    for n in nodes..nodes + blocks {
        let blocked =
            Blocked { node: node(n), by: Principal::Operator, blocked_at: WallTime(0), expires_at: WallTime(1) };
        replica.tables.blocklist.insert(node(n), blocked);
    }
    replica
}

fn of(replica: &Replica, list: ListOf, page: &Page) -> Result<Value, ErrorBody> {
    let text = super::list(&source(replica), list, Some(page))?;
    assert!(text.len() < MAX_FRAME / 2, "{} bytes", text.len());
    Ok(serde_json::from_str(&text).unwrap())
}

fn source(replica: &Replica) -> Source<'_> {
    let (roles, peers, doubts) = (Arc::default(), BTreeSet::new(), Arc::default());
    Source { replica, roles, this: node(0), peers, doubts, stale: None, certificate_lifetime: None }
}

/// All items, and the number of pages.
fn follow_pages(replica: &Replica, list: ListOf, limit: u32) -> (Vec<Value>, usize) {
    let (mut items, mut page, mut pages) = (vec![], Page { limit, after: None }, 0);
    loop {
        let mut document = of(replica, list, &page).unwrap();
        pages += 1;
        items.append(document["items"].as_array_mut().unwrap());
        match document["continue"].as_str() {
            Some(next) => page.after = Some(next.to_owned()),
            None => return (items, pages),
        }
    }
}

/// E33.
#[test]
#[ignore = "full tier"]
fn fifty_thousand_nodes_and_blocks_come_in_pages_of_a_frame() {
    let replica = replica(50_000, 50_000);
    for (list, key, limit) in
        [(ListOf::Nodes, "id", 0), (ListOf::Blocklist, "node_id", 0), (ListOf::Certificates, "node", 7_000)]
    {
        let (items, pages) = follow_pages(&replica, list, limit);
        let ids: BTreeSet<&str> = items.iter().filter_map(|item| item[key].as_str()).collect();
        assert_eq!((items.len(), ids.len()), (50_000, 50_000), "{list:?}");
        assert!(pages > 5, "{list:?}: {pages}");
    }
    let (nodes, _) = follow_pages(&replica, ListOf::Nodes, 0);
    assert!(nodes.is_sorted_by_key(|n| n["name"].as_str().unwrap().to_owned()), "the order of `node ls`");
}

#[test]
fn concurrent_changes_hide_no_item_that_stays_in_a_list() {
    let mut replica = replica(100, 0);
    let first = of(&replica, ListOf::Nodes, &Page { limit: 40, after: None }).unwrap();
    let listed: BTreeSet<String> = first["items"].as_array().unwrap().iter().map(|n| n["id"].to_string()).collect();
    let gone: Vec<NodeId> =
        (0..100).map(node).filter(|id| listed.contains(&Value::from(id.as_str()).to_string())).take(30).collect();
    for id in gone {
        replica.tables.nodes.remove(&id);
    }
    let after = first["continue"].as_str().map(str::to_owned);
    let rest = of(&replica, ListOf::Nodes, &Page { limit: 0, after }).unwrap();
    assert_eq!(rest["items"].as_array().unwrap().len(), 60);
    assert_eq!(rest["continue"], Value::Null);
}

/// The list by its typed document, in its order.
fn expected(replica: &Replica, list: ListOf) -> Value {
    let source = source(replica);
    let tables = &replica.tables;
    let document = match list {
        ListOf::Nodes => {
            let mut items: Vec<_> = tables.nodes.values().map(|record| source.node(record)).collect();
            items.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
            serde_json::to_value(NodeListView { items, ..source.no_nodes() })
        }
        ListOf::Blocklist => {
            let items = tables.blocklist.values().map(BlockedView::from).collect();
            serde_json::to_value(BlockedListView { items, ..source.no_blocks() })
        }
        ListOf::Certificates => serde_json::to_value(ListView::of(
            tables.nodes.values().map(|record| NodeCertificateView::new(record, None)),
        )),
        ListOf::Tokens | ListOf::Users | ListOf::Workloads => unreachable!("not compared"),
    };
    document.unwrap()
}

#[test]
fn certificates_show_the_lifetime_that_the_manager_signs_for() {
    let mut replica = replica(2, 0);
    let (role, state, serial) = (Role::Worker, CertificateState::Issued, "ab".to_owned());
    let certificate = CertificateRecord { role, serial, granted: None, not_after: WallTime(1), state };
    let record = NodeRecord { certificate: Some(certificate), ..(*replica.tables.nodes[&node(1)]).clone() };
    replica.tables.nodes.insert(node(1), Arc::new(record));
    for certificate_lifetime in [Some(Duration::from_secs(7_776_000)), None] {
        let source = Source { certificate_lifetime, ..source(&replica) };
        let text = super::list(&source, ListOf::Certificates, None).unwrap();
        let list: ListView<NodeCertificateView> = serde_json::from_str(&text).unwrap();
        let of = |n: u128| list.items.iter().find(|item| item.node == node(n)).unwrap().lifetime_secs;
        assert_eq!((of(0), of(1)), (None, certificate_lifetime.map(|_| 7_776_000)));
    }
}

#[test]
fn page_matches_the_list_and_invented_continue_is_refused() {
    let replica = replica(3, 2);
    for list in [ListOf::Nodes, ListOf::Blocklist, ListOf::Certificates] {
        let whole: Value = serde_json::from_str(&super::list(&source(&replica), list, None).unwrap()).unwrap();
        assert_eq!(of(&replica, list, &Page::default()).unwrap(), whole, "{list:?}");
        assert_eq!(whole, expected(&replica, list), "{list:?}");
        for after in ["", "x", "n1/", "/", "\n", "n1"] {
            let page = Page { limit: 1, after: Some(after.to_owned()) };
            let refused = of(&replica, list, &page).unwrap_err();
            assert_eq!(refused.code, muster_messages::ErrorCode::Invalid, "{list:?} {after:?}");
        }
    }
}

/// A state of feature level 2 may contain a node whose labels alone exceed a frame.
#[test]
fn node_larger_than_a_frame_is_shortened_in_a_list() {
    let mut replica = Replica::default();
    for n in 0..3u128 {
        let name = Name::sanitized(&format!("n{n}"));
        let mut record = NodeRecord::new(node(n), name, Role::Worker, WallTime(0));
        if n == 1 {
            record.labels = (0..5000).map(|k| (format!("k{k:05}"), "v".repeat(250))).collect();
        }
        replica.tables.nodes.insert(record.id, Arc::new(record));
    }
    let (items, _) = follow_pages(&replica, ListOf::Nodes, 0);
    let shown: Vec<(&Value, u64)> =
        items.iter().map(|item| (&item["name"], item["labels_left_out"].as_u64().unwrap_or_default())).collect();
    assert_eq!((shown[0], shown[2]), ((&"n0".into(), 0), (&"n2".into(), 0)));
    let labels = items[1]["labels"].as_object().unwrap().len() as u64;
    assert_eq!((labels > 64, labels + shown[1].1), (true, 5000));
}

#[test]
fn a_reported_name_is_a_condition_with_its_remedy() {
    let mut replica = Replica::default();
    for (n, name) in [(1, "web-1"), (2, "web-2")] {
        let record = NodeRecord::new(node(n), name.parse().unwrap(), Role::Worker, WallTime(0));
        replica.tables.nodes.insert(record.id, Arc::new(record));
    }
    let mut report_name = |n: u128, name: &str| {
        let name = name.parse().unwrap();
        let reported = ReportedNode { name, named_at: WallTime(7), labels: BTreeMap::new() };
        replica.tables.reported.insert(node(n), Arc::new(reported));
    };
    report_name(1, "db-1");
    report_name(2, "web-1");
    let (items, _) = follow_pages(&replica, ListOf::Nodes, 0);
    let condition =
        |n: usize| (items[n]["conditions"][0]["reason"].clone(), items[n]["conditions"][0]["message"].to_string());
    let (reason, message) = condition(0);
    assert_eq!(reason, "reported_name_differs");
    assert!(message.contains("muster node rename") && message.contains("db-1"), "{message}");
    assert!(condition(1).1.contains("belongs to web-1"), "{}", condition(1).1);
    assert_eq!(items[0]["name"], "web-1");
}
