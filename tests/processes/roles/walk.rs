//! The hops of docs/walks/promotion.md in a run: each actor of its list is entered.
//!
//! What this proves differs. The certificate authority, the manager switch and the actors of `w` that appear are
//! entered by little else. The mesh's peers, Raft members, sessions and agents also handle heartbeats, and the api
//! answers this test: of these it shows little more than that they exist under the names of the page.

use std::collections::{BTreeMap, BTreeSet};

use muster_messages::NodeId;
use serde_json::Value;

use crate::actors::tree;
use crate::harness::{World, eventually, eventually_so};

#[path = "../../tidy/walks/hops.rs"]
mod hops;

pub const WALK: &str = include_str!("../../../docs/walks/promotion.md");

/// Every actor of a node, by path.
type Actors = BTreeMap<String, Value>;

/// The nodes of a promotion by their letters on the page: `h`, a follower that hosts the session of the worker `w`;
/// `l`, the leader. With their actors before it.
pub struct Cast {
    nodes: BTreeMap<&'static str, (String, NodeId)>,
    before: BTreeMap<&'static str, Actors>,
}

/// The manager that hosts this node's session, by its agent.
fn host_of(world: &World, name: &str) -> NodeId {
    eventually("its agent has a session", || {
        let host = tree(world, name)["node/agent"]["view"]["session"]["host"].clone();
        serde_json::from_value(host).ok()
    })
}

/// What an actor has handled. Three take connections or calls in tasks, which no message shows: their views count them.
fn handled(actor: &Value) -> u64 {
    let count = match actor["kind"].as_str() {
        Some("Api") => &actor["view"]["answered"],
        Some("Gateway") => &actor["view"]["accepted"],
        Some("RpcEndpoint") => &actor["view"]["calls"],
        _ => &actor["handled"],
    };
    count.as_u64().unwrap_or(0)
}

impl Cast {
    /// Leadership is transferred if the leader hosts the worker's session.
    pub fn of(world: &World, worker: &str) -> Self {
        let all = world.nodes_seen_by("n1");
        let named = |id: NodeId| all.iter().find(|node| node.id == id).expect("it is listed").name.as_str().to_owned();
        let id_of = |name: &str| all.iter().find(|node| node.name.as_str() == name).expect("it is listed").id;
        let host = host_of(world, worker);
        let h = named(host);
        let l = eventually("another manager than the host leads", || {
            let leader = world.leader_seen_by(&h);
            if leader == h {
                world.make_lead(&world.other_than(&[&h, worker]));
            }
            (leader != h).then_some(leader)
        });
        let leader = id_of(&l);
        let nodes = BTreeMap::from([("h", (h, host)), ("l", (l, leader)), ("w", (worker.to_owned(), id_of(worker)))]);
        let before = trees(world, &nodes);
        Self { nodes, before }
    }

    /// The name of the node with this letter.
    pub fn name(&self, letter: &str) -> &str {
        &self.nodes[letter].0
    }

    /// Whether the same node leads and the same one hosts the session as before: otherwise other actors were entered.
    /// On a busy machine either may change at any time.
    pub fn is_unchanged(&self, world: &World) -> bool {
        let (l, w) = (self.name("l"), self.name("w"));
        world.leader_seen_by(self.name("h")) == l && host_of(world, w) == self.nodes["h"].1
    }

    /// Waits until every actor that the page names has appeared, or has another count than before: a larger one, or
    /// that of an actor which was started anew.
    #[track_caller]
    pub fn enter_every_actor_of_the_walk(&self, world: &World) {
        let mut now = trees(world, &self.nodes);
        for hop in hops::hops(WALK).into_values().flatten().collect::<BTreeSet<_>>() {
            let (node, actor) = hop.split_once('/').expect("node/actor");
            let path_end = format!("/{}", self.with_id(actor));
            let count = |actors: &BTreeMap<&str, Actors>| {
                let found = actors[node].iter().find(|(path, _)| path.ends_with(&path_end));
                found.map(|(_, actor)| handled(actor))
            };
            let before = count(&self.before);
            eventually_so(&format!("{hop} is entered"), || {
                let count_now = count(&now);
                let is_entered = count_now.is_some() && count_now != before;
                if !is_entered {
                    now = trees(world, &self.nodes);
                }
                is_entered
            });
        }
    }

    /// The name of an actor with the id of the node that it is named after: `peer-l`.
    fn with_id(&self, actor: &str) -> String {
        let named = actor.rsplit_once('-').and_then(|(family, letter)| Some((family, self.nodes.get(letter)?)));
        named.map_or_else(|| actor.to_owned(), |(family, (_, id))| format!("{family}-{id}"))
    }
}

fn trees(world: &World, nodes: &BTreeMap<&'static str, (String, NodeId)>) -> BTreeMap<&'static str, Actors> {
    nodes.iter().map(|(letter, (name, _))| (*letter, tree(world, name))).collect()
}
