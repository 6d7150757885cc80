//! The live tree: every actor of this process by its path.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_messages::{ActorNode, ActorState, CrashHow, ErrorBody, ErrorCode, ID_LEN};

use crate::vitals::Vitals;

type Paths = BTreeMap<String, Arc<Vitals>>;

/// A registry of actors by path. One per node, so that several nodes can share a test process.
#[derive(Clone, Default)]
pub struct Tree {
    paths: Arc<Mutex<Paths>>,
}

/// Keeps a path in the tree; dropping it takes the path out.
pub(crate) struct Registration {
    tree: Tree,
    vitals: Arc<Vitals>,
}
impl Drop for Registration {
    fn drop(&mut self) {
        let mut paths = self.tree.paths();
        if paths.get(&self.vitals.path).is_some_and(|v| Arc::ptr_eq(v, &self.vitals)) {
            paths.remove(&self.vitals.path);
        }
    }
}

/// How long a reader waits for fresh views before it takes the last published ones.
const REFRESH_WAIT: Duration = Duration::from_millis(40);

impl Tree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }
    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(crate) fn register(&self, vitals: Arc<Vitals>) -> Registration {
        self.paths().insert(vitals.path.clone(), Arc::clone(&vitals));
        Registration { tree: self.clone(), vitals }
    }
    fn find(&self, path: &str) -> Result<Arc<Vitals>, ErrorBody> {
        let paths = self.paths();
        paths.get(path).or_else(|| by_id_prefix(&paths, path)).cloned().ok_or_else(|| {
            let near: Vec<&String> = paths.keys().filter(|p| p.ends_with(path)).take(3).collect();
            let hint = if near.is_empty() {
                "`muster actors` lists them".to_owned()
            } else {
                format!("did you mean {near:?}?")
            };
            ErrorBody::new(ErrorCode::NotFound, format!("no actor at {path}; {hint}"))
        })
    }

    /// All actors as one tree, as they are now. Views are as fresh as the actors could make them within 40 ms;
    /// an actor that is busy or stuck shows its last one.
    pub async fn snapshot(&self) -> ActorNode {
        let all: Vec<Arc<Vitals>> = self.paths().values().cloned().collect();
        refresh(&all).await;
        assemble(all.iter().map(|v| v.node()).collect())
    }

    /// One actor and what is below it.
    pub async fn inspect(&self, path: &str) -> Result<ActorNode, ErrorBody> {
        let path = self.find(path)?.path.clone();
        let below = format!("{path}/");
        let all: Vec<Arc<Vitals>> = self
            .paths()
            .iter()
            .filter(|(p, _)| **p == path || p.starts_with(&below))
            .map(|(_, v)| Arc::clone(v))
            .collect();
        refresh(&all).await;
        Ok(assemble(all.iter().map(|v| v.node()).collect()))
    }

    /// Crashes an actor on purpose.
    pub fn crash(&self, path: &str, how: CrashHow) -> Result<(), ErrorBody> {
        let vitals = self.find(path)?;
        let handle =
            vitals.handle().ok_or_else(|| ErrorBody::new(ErrorCode::Conflict, format!("{path} is not running")))?;
        handle.crash(how);
        Ok(())
    }

    /// Asks an actor's supervisor to restart it gracefully.
    pub fn restart(&self, path: &str) -> Result<(), ErrorBody> {
        let vitals = self.find(path)?;
        let handle =
            vitals.handle().ok_or_else(|| ErrorBody::new(ErrorCode::Conflict, format!("{path} is not running")))?;
        handle.restart();
        Ok(())
    }

    /// What the last incarnation of an actor failed of, while it waits for the next one.
    pub fn failing(&self, path: &str) -> Option<String> {
        let node = self.paths().get(path).cloned()?.node();
        let failing = matches!(node.state, ActorState::BackingOff | ActorState::Escalated | ActorState::Stuck);
        node.last_exits.last().filter(|_| failing).map(|exit| exit.text.clone())
    }

    /// What older incarnations of an actor still said to it, or to its supervisor: dropped, and counted.
    pub fn stale(&self, path: &str) -> Option<u64> {
        let vitals = self.paths().get(path).cloned()?;
        Some(vitals.stale())
    }

    /// Paths of all actors.
    pub fn list(&self) -> Vec<String> {
        self.paths().keys().cloned().collect()
    }

    /// Every actor without its children, in the order of paths: for metrics.
    pub fn flat(&self) -> Vec<ActorNode> {
        let all: Vec<Arc<Vitals>> = self.paths().values().cloned().collect();
        all.iter().map(|v| v.node()).collect()
    }
}

/// The only actor named after a node whose id begins as the path ends: `muster actors` shows the beginning alone.
fn by_id_prefix<'a>(paths: &'a Paths, path: &str) -> Option<&'a Arc<Vitals>> {
    const ENOUGH: usize = 4;
    let prefix = path.rsplit_once('/')?.1.split_once('-')?.1;
    let fits = |p: &str| p.strip_prefix(path).is_some_and(|rest| rest.len() + prefix.len() == ID_LEN);
    let mut fitting = paths.iter().filter(|(p, _)| prefix.len() >= ENOUGH && fits(p));
    match (fitting.next(), fitting.next()) {
        (Some((_, only)), None) => Some(only),
        _ => None,
    }
}

async fn refresh(all: &[Arc<Vitals>]) {
    let waiting: Vec<(&Arc<Vitals>, u64)> = all
        .iter()
        .filter_map(|v| {
            let handle = v.handle()?;
            let seen = v.views();
            handle.refresh().then_some((v, seen))
        })
        .collect();
    let deadline = tokio::time::Instant::now() + REFRESH_WAIT;
    while tokio::time::Instant::now() < deadline && waiting.iter().any(|(v, seen)| v.views() == *seen) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Nests a list of actors, ordered by path, by their paths.
fn assemble(flat: Vec<ActorNode>) -> ActorNode {
    let mut by_parent: BTreeMap<String, Vec<ActorNode>> = BTreeMap::new();
    let mut sorted = flat;
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let root = sorted.first().map(|n| n.path.clone()).unwrap_or_default();
    for node in sorted.into_iter().rev() {
        let parent = node.path.rsplit_once('/').map(|(p, _)| p.to_owned()).unwrap_or_default();
        by_parent.entry(parent).or_default().push(node);
    }
    let top = root.rsplit_once('/').map(|(p, _)| p.to_owned()).unwrap_or_default();
    let roots = nest(&top, &mut by_parent);
    roots.into_iter().find(|n| n.path == root).unwrap_or_else(|| empty(root))
}

fn nest(parent: &str, by_parent: &mut BTreeMap<String, Vec<ActorNode>>) -> Vec<ActorNode> {
    let mut nodes = by_parent.remove(parent).unwrap_or_default();
    nodes.reverse();
    for node in &mut nodes {
        node.children = nest(&node.path.clone(), by_parent);
    }
    nodes
}

fn empty(path: String) -> ActorNode {
    ActorNode {
        path,
        kind: String::new(),
        incarnation: 0,
        state: ActorState::Dead,
        since: crate::Clock.wall(),
        restarts: 0,
        mailbox: 0,
        handled: 0,
        handling: None,
        last_exits: Vec::new(),
        view: serde_json::Value::Null,
        children: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_named_after_a_node_is_found_by_the_beginning_of_the_id() {
        let tree = Tree::new();
        let names =
            ["node/session-7ewb12otbfzedvwe1dxxs3cy3", "node/session-7ewbz2otbfzedvwe1dxxs3cy3", "node/agent-host"];
        let _kept: Vec<_> =
            names.iter().map(|path| tree.register(Arc::new(Vitals::new((*path).to_owned(), "T")))).collect();
        assert_eq!(tree.find("node/session-7ewb12ot").unwrap().path, names[0]);
        assert_eq!(tree.find(names[1]).unwrap().path, names[1]);
        for unclear in ["node/session-7ewb", "node/session-7", "node/agent-ho", "node/session-", "session-7ewb12ot"] {
            assert!(tree.find(unclear).is_err(), "{unclear}");
        }
    }
}
