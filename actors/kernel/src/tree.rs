//! The live tree: every actor of this process by its path.

mod numbers;
mod poke;
mod shown;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_messages::{ActorNode, ActorState, CrashHow, ErrorBody, ErrorCode, ID_LEN};

pub use self::numbers::ActorNumbers;
pub use self::poke::Poke;
use self::poke::What;
use crate::Fuse;
use crate::vitals::Vitals;

type Paths = BTreeMap<String, Arc<Vitals>>;

/// A registry of actors by path. One per node, so that several nodes can share a test process.
#[derive(Clone, Default)]
pub struct Tree {
    paths: Arc<Mutex<Paths>>,
    /// What was counted of actors that have gone, by a label that they shared: a counter never goes back.
    gone: Arc<Mutex<BTreeMap<String, ActorNumbers>>>,
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
    /// What metrics call an actor of that name, or of those that are told together as `name`, below that path.
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

    /// All actors as one tree, as they are now. Views are as fresh as the actors could make them within 40 ms;
    /// an actor that is busy or stuck shows its last one. Of many siblings of a kind the most notable are shown.
    pub async fn snapshot(&self) -> ActorNode {
        let all = self.paths().values().cloned().collect();
        shown::tree(all).await
    }

    /// One actor and what is below it.
    pub async fn inspect(&self, path: &str) -> Result<ActorNode, ErrorBody> {
        let path = self.find(path)?.path.clone();
        let below = format!("{path}/");
        let within = |p: &str| p == path || p.starts_with(&below);
        let all = self.paths().values().filter(|v| within(&v.path)).cloned().collect();
        Ok(shown::tree(all).await)
    }

    /// Crashes an actor on purpose, once the answer is dropped.
    pub fn crash(&self, path: &str, how: CrashHow) -> Result<Poke, ErrorBody> {
        self.poke(path, What::Crash(how))
    }

    /// Has an actor crash at one of its crash points, once in the life of its path. For tests.
    pub fn arm(&self, path: &str, fuse: Fuse) -> Result<(), ErrorBody> {
        self.find(path)?.arm(fuse);
        Ok(())
    }

    /// Asks an actor's supervisor to restart it gracefully, once the answer is dropped.
    pub fn restart(&self, path: &str) -> Result<Poke, ErrorBody> {
        self.poke(path, What::Restart)
    }
    fn poke(&self, path: &str, what: What) -> Result<Poke, ErrorBody> {
        let handle = self.find(path)?.handle().ok_or_else(|| without_handle(path))?;
        Ok(Poke::new(handle, what))
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

    /// Every actor without its children and with its last view, in the order of paths.
    pub fn flat(&self) -> Vec<ActorNode> {
        let all: Vec<Arc<Vitals>> = self.paths().values().cloned().collect();
        all.iter().map(|v| v.node()).collect()
    }
}

fn without_handle(path: &str) -> ErrorBody {
    let text = match path.contains('/') {
        false => format!("{path} is the root of this process's actors and ends with it: restart the process instead"),
        true => {
            format!("{path} does not run at the moment, or is a thread of an actor, which restarts with that actor")
        }
    };
    ErrorBody::new(ErrorCode::Conflict, text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_cannot_be_restarted_and_says_what_can() {
        let tree = Tree::new();
        let _kept = tree.register(Arc::new(Vitals::new("node".to_owned(), "Supervisor", "node".to_owned())));
        let refusal = tree.restart("node").err().unwrap();
        assert_eq!(refusal.code, ErrorCode::Conflict);
        assert!(refusal.message.contains("restart the process"), "{refusal}");
    }

    #[test]
    fn an_actor_named_after_a_node_is_found_by_the_beginning_of_the_id() {
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
