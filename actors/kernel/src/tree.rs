//! The live tree: every actor of this process by its path.

mod admin_action;
mod numbers;
mod snapshot;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::{ActorNode, ActorState, CrashHow, ErrorBody, ErrorCode, ID_LEN};

pub use self::admin_action::AdminAction;
use self::admin_action::What;
pub use self::numbers::ActorNumbers;
use crate::Fuse;
use crate::vitals::Vitals;

type Paths = BTreeMap<String, Arc<Vitals>>;

/// A registry of actors by path. One per node, so that several nodes can share a test process.
#[derive(Clone, Default)]
pub struct Tree {
    paths: Arc<Mutex<Paths>>,
    /// The counts of actors that have ended, by their shared label: a counter never decreases.
    gone: Arc<Mutex<BTreeMap<String, ActorNumbers>>>,
}

/// Keeps a path in the tree; dropping it removes the path.
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
        if !self.vitals.has_series_of_its_own() {
            self.tree.remember(&self.vitals);
        }
    }
}

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
    /// The name in metrics of an actor called `name` below that path, or of those that share the label `name`.
    pub(crate) fn label(&self, parent: &str, name: &str) -> String {
        let paths = self.paths();
        let parent = paths.get(parent).map_or(parent, |vitals| &vitals.label);
        format!("{parent}/{name}")
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

    /// All actors as one tree, as they are now. Views are as fresh as the actors could make them within 40 ms; a
    /// busy or stuck actor shows its last one. Of many siblings of a kind the most notable are shown.
    pub async fn snapshot(&self) -> ActorNode {
        let all = self.paths().values().cloned().collect();
        snapshot::tree(all).await
    }

    /// One actor and everything below it.
    pub async fn inspect(&self, path: &str) -> Result<ActorNode, ErrorBody> {
        let path = self.find(path)?.path.clone();
        let below = format!("{path}/");
        let within = |p: &str| p == path || p.starts_with(&below);
        let all = self.paths().values().filter(|v| within(&v.path)).cloned().collect();
        Ok(snapshot::tree(all).await)
    }

    /// Crashes an actor on purpose, once the answer is dropped.
    pub fn crash(&self, path: &str, how: CrashHow) -> Result<AdminAction, ErrorBody> {
        self.admin_action(path, What::Crash(how))
    }

    /// Makes an actor crash at one of its crash points, once in the life of its path. For tests.
    pub fn arm(&self, path: &str, fuse: Fuse) -> Result<(), ErrorBody> {
        self.find(path)?.arm(fuse);
        Ok(())
    }

    /// Asks an actor's supervisor to restart it gracefully, once the answer is dropped.
    pub fn restart(&self, path: &str) -> Result<AdminAction, ErrorBody> {
        self.admin_action(path, What::Restart)
    }
    fn admin_action(&self, path: &str, what: What) -> Result<AdminAction, ErrorBody> {
        let handle = self.find(path)?.handle().ok_or_else(|| without_handle(path))?;
        Ok(AdminAction::new(handle, what))
    }

    /// The last failure of an actor that waits for its next start.
    pub fn failing(&self, path: &str) -> Option<String> {
        let node = self.paths().get(path).cloned()?.node();
        let failing = matches!(node.state, ActorState::BackingOff | ActorState::Escalated | ActorState::Stuck);
        node.last_exits.last().filter(|_| failing).map(|exit| exit.text.clone())
    }

    /// How many messages and reports of older incarnations of an actor were dropped.
    pub fn stale(&self, path: &str) -> Option<u64> {
        let vitals = self.paths().get(path).cloned()?;
        Some(vitals.stale())
    }

    /// The paths of all actors, in order.
    pub fn list(&self) -> Vec<String> {
        self.paths().keys().cloned().collect()
    }

    /// Every actor without its children and with its last view, in path order.
    pub fn flat(&self) -> Vec<ActorNode> {
        let all: Vec<Arc<Vitals>> = self.paths().values().cloned().collect();
        all.iter().map(|v| v.node()).collect()
    }
}

fn without_handle(path: &str) -> ErrorBody {
    let text = match path.contains('/') {
        false => format!("{path} is the root of this process's actors and ends with it: restart the process instead"),
        true => {
            format!("{path} is not running at the moment, or is a thread of an actor and restarts with that actor")
        }
    };
    ErrorBody::new(ErrorCode::Conflict, text)
}

/// The only actor named after a node whose id starts with the end of this path: `muster actors` shows the start
/// alone.
fn by_id_prefix<'a>(paths: &'a Paths, path: &str) -> Option<&'a Arc<Vitals>> {
    const MIN_PREFIX_CHARS: usize = 4;
    let prefix = path.rsplit_once('/')?.1.split_once('-')?.1;
    let fits = |p: &str| p.strip_prefix(path).is_some_and(|rest| rest.len() + prefix.len() == ID_LEN);
    let mut fitting = paths.iter().filter(|(p, _)| prefix.len() >= MIN_PREFIX_CHARS && fits(p));
    match (fitting.next(), fitting.next()) {
        (Some((_, only)), None) => Some(only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_cannot_be_restarted_and_the_error_says_what_can() {
        let tree = Tree::new();
        let _kept = tree.register(Arc::new(Vitals::new("node".to_owned(), "Supervisor", "node".to_owned())));
        let refusal = tree.restart("node").err().unwrap();
        assert_eq!(refusal.code, ErrorCode::Conflict);
        assert!(refusal.message.contains("restart the process"), "{refusal}");
    }

    #[test]
    fn actor_named_after_a_node_is_found_by_its_id_prefix() {
        let tree = Tree::new();
        let names =
            ["node/session-7ewb12otbfzedvwe1dxxs3cy3", "node/session-7ewbz2otbfzedvwe1dxxs3cy3", "node/agent-host"];
        let _kept: Vec<_> = names
            .iter()
            .map(|path| tree.register(Arc::new(Vitals::new((*path).to_owned(), "T", (*path).to_owned()))))
            .collect();
        assert_eq!(tree.find("node/session-7ewb12ot").unwrap().path, names[0]);
        assert_eq!(tree.find(names[1]).unwrap().path, names[1]);
        for unclear in ["node/session-7ewb", "node/session-7", "node/agent-ho", "node/session-", "session-7ewb12ot"] {
            assert!(tree.find(unclear).is_err(), "{unclear}");
        }
    }
}
