//! Which actors are shown, with fresh views where available, and how they are nested.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use muster_messages::ActorNode;
use tokio::time::timeout;

use crate::vitals::Vitals;

/// How long a reader waits for fresh views before it takes the last published ones.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(40);
/// Siblings of one kind that are shown. A manager may have ten thousand sessions, too many to read, and a tree must fit
/// into one message (1 MiB) between nodes. Each can still be inspected by its path.
pub(super) const MAX_SIBLINGS_SHOWN: usize = 100;

type Hidden = BTreeMap<String, BTreeMap<String, u64>>;

/// The tree of these, which are in path order.
pub(super) async fn tree(all: Vec<Arc<Vitals>>) -> ActorNode {
    let (shown, hidden) = choose(all);
    refresh(&shown).await;
    assemble(shown.iter().map(|v| v.node()).collect(), hidden)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Leaves out the least notable of many siblings, and everything below them.
fn choose(all: Vec<Arc<Vitals>>) -> (Vec<Arc<Vitals>>, Hidden) {
    let mut kinds: BTreeMap<(&str, &str), Vec<&Arc<Vitals>>> = BTreeMap::new();
    for vitals in &all {
        kinds.entry((parent(&vitals.path), vitals.kind)).or_default().push(vitals);
    }
    let (mut left_out, mut hidden) = (Vec::new(), Hidden::new());
    for ((parent, kind), siblings) in kinds {
        if siblings.len() > MAX_SIBLINGS_SHOWN {
            let mut ranked: Vec<_> = siblings.into_iter().map(|v| (v.notable(), v)).collect();
            // Stable: among equals the first by path.
            ranked.sort_by(|(a, _), (b, _)| b.cmp(a));
            let rest: Vec<String> = ranked.drain(MAX_SIBLINGS_SHOWN..).map(|(_, v)| v.path.clone()).collect();
            hidden.entry(parent.to_owned()).or_default().insert(kind.to_owned(), rest.len() as u64);
            left_out.extend(rest);
        }
    }
    left_out.sort();
    let is_out = |path: &str| {
        let mut above = path;
        while !above.is_empty() {
            if left_out.binary_search_by(|out| out.as_str().cmp(above)).is_ok() {
                return true;
            }
            above = parent(above);
        }
        false
    };
    (all.iter().filter(|v| !is_out(&v.path)).cloned().collect(), hidden)
}

async fn refresh(all: &[Arc<Vitals>]) {
    let asked = all.iter().filter_map(|vitals| {
        let mut fresh = Box::pin(vitals.published());
        // Enabled before the request, so that no answer is missed.
        fresh.as_mut().enable();
        vitals.refresh().then_some(fresh)
    });
    let _some_are_old = timeout(REFRESH_TIMEOUT, join_all(asked)).await;
}

/// Nests a list of actors by their paths.
fn assemble(mut flat: Vec<ActorNode>, mut hidden: Hidden) -> ActorNode {
    let mut by_parent: BTreeMap<String, Vec<ActorNode>> = BTreeMap::new();
    flat.sort_by(|a, b| a.path.cmp(&b.path));
    let root = flat.first().map(|n| n.path.clone()).unwrap_or_default();
    for node in flat.into_iter().rev() {
        by_parent.entry(parent(&node.path).to_owned()).or_default().push(node);
    }
    let roots = nest(parent(&root), &mut by_parent, &mut hidden);
    roots.into_iter().find(|n| n.path == root).unwrap_or_else(|| ActorNode::unknown(root))
}

fn nest(parent: &str, by_parent: &mut BTreeMap<String, Vec<ActorNode>>, hidden: &mut Hidden) -> Vec<ActorNode> {
    let mut nodes = by_parent.remove(parent).unwrap_or_default();
    nodes.reverse();
    for node in &mut nodes {
        node.children = nest(&node.path, by_parent, hidden);
        node.more_children = hidden.remove(&node.path).unwrap_or_default();
    }
    nodes
}
