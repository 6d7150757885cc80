//! Snapshots of a cluster's actors, and comparison with an earlier snapshot.

use std::collections::BTreeMap;

use muster_messages::wire::{ActorsAsk, ActorsOf, Request};
use serde_json::Value;

use super::kinds::{LEADER, is_transient, parent_path};
use crate::harness::World;

/// One actor. Two incarnations of a name, in the same supervisor or in another, never have the same life.
#[derive(Clone, Debug)]
pub struct Seen {
    pub life: (u64, String),
    pub restarts: u64,
    pub state: String,
    pub handling: Option<String>,
    /// A thread with an actor's place in the tree: it cannot be crashed, and lives as long as its actor.
    pub is_thread: bool,
    /// Kind and text of the last exit.
    pub last_exit: String,
}

/// The actors of one node by path.
pub type Tree = BTreeMap<String, Seen>;

/// Asks `by` for the actors of `node`. `None`: no answer now.
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

/// Whether an actor was not there before.
pub fn is_new(before: &Tree, now: &Tree, path: &str) -> bool {
    now.get(path).is_some_and(|is| before.get(path).is_none_or(|was| was.life != is.life))
}

/// The topmost paths of new actors.
pub fn tops(before: &Tree, now: &Tree) -> Vec<String> {
    let is_new = |path: &str| is_new(before, now, path);
    now.keys().filter(|path| is_new(path) && !is_new(parent_path(path))).cloned().collect()
}

/// Whether an actor, not a supervisor after a failure, started this top.
pub fn started_by_actor(now: &Tree, top: &str) -> bool {
    is_transient(top) && (now[top].restarts == 0 || now[top].last_exit.starts_with("normal"))
}

/// A path that should exist again and does not.
pub fn missing<'a>(before: &'a Tree, now: &Tree) -> Option<&'a String> {
    let returns = |path: &&String| !is_transient(path) && !super::kinds::within(path, LEADER);
    before.keys().find(|path| !now.contains_key(*path) && returns(path))
}
