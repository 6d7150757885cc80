//! What is seen of the actors of a cluster, and what has become of them since an earlier look.

use std::collections::BTreeMap;

use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use serde_json::Value;

use super::kinds::{LEADER, above, comes_and_goes};
use crate::harness::World;

/// One actor. Of an incarnation and the next of its name, in the same supervisor or in another, no two have the same life.
#[derive(Clone, Debug)]
pub struct Seen {
    pub life: (u64, String),
    pub restarts: u64,
    pub state: String,
    pub handling: Option<String>,
    /// A thread beside an actor: it cannot be crashed, and lives as long as its actor.
    pub is_thread: bool,
    /// Its kind and its text.
    pub last_exit: String,
}

/// The actors of one node by path.
pub type Tree = BTreeMap<String, Seen>;

/// Asks `by` for the actors of `node`. Nothing: there is no answer now.
pub fn tree_of(world: &World, node: &str, by: &str) -> Option<Tree> {
    let whose = if node == by { ActorsOf::Here } else { ActorsOf::Node(node.to_owned()) };
    let root = world.ask(by, Request::Actors { node: whose, ask: ActorsAsk::Tree }).ok()?;
    let (mut tree, mut open) = (Tree::new(), vec![root]);
    while let Some(mut actor) = open.pop() {
        if let Some(children) = actor["children"].as_array_mut() {
            open.append(children);
        }
        tree.insert(text(&actor["path"]), Seen::of(&actor));
    }
    Some(tree)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Seen {
    fn of(actor: &Value) -> Self {
        let number = |key: &str| actor[key].as_u64().unwrap_or_default();
        let exits = actor["last_exits"].as_array();
        Self {
            life: (number("incarnation"), text(&actor["since"])),
            restarts: number("restarts"),
            state: text(&actor["state"]),
            handling: actor["handling"]["message"].as_str().map(str::to_owned),
            is_thread: actor["mailbox_limit"].is_null() && actor["kind"] != "Supervisor",
            last_exit: exits
                .and_then(|all| all.last())
                .map_or_else(String::new, |e| format!("{}: {}", text(&e["kind"]), text(&e["text"]))),
        }
    }
    pub fn is_well(&self) -> bool {
        self.state == "healthy" || self.state == "done"
    }
}

/// Topmost paths whose actor is another than before; those that have gone are not among them.
pub fn tops(before: &Tree, now: &Tree) -> Vec<String> {
    let is_new = |path: &str| match (before.get(path), now.get(path)) {
        (Some(was), Some(is)) => was.life != is.life,
        (None, is) => is.is_some(),
        (Some(_), None) => false,
    };
    now.keys().filter(|path| is_new(path) && !is_new(above(path))).cloned().collect()
}

/// Whether a top was not started again by its supervisor after a failure, but by an actor whose business that is.
pub fn came_by_itself(now: &Tree, top: &str) -> bool {
    comes_and_goes(top) && (now[top].restarts == 0 || now[top].last_exit.starts_with("normal"))
}

/// Who should be there again and is not.
pub fn missing<'a>(before: &'a Tree, now: &Tree) -> Option<&'a String> {
    let returns = |path: &&String| !comes_and_goes(path) && !super::kinds::within(path, LEADER);
    before.keys().find(|path| !now.contains_key(*path) && returns(path))
}
