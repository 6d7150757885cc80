//! One process's tree of actors.

use muster_kernel::{ActorNode, ActorState, Children, Cx, Fault, Intensity, Named, Shell, Spec, Supervisor, Tree};
use tokio::time::Instant;

use crate::WAIT_LIMIT;
use crate::harness::eventually;

/// A real root supervisor with its live tree, as one process has it. A test of several processes has one for each, all
/// observed by one [`ActorHarness`](crate::ActorHarness).
pub struct Host {
    tree: Tree,
    path: String,
    root: Supervisor,
}

impl Host {
    pub(crate) async fn start(path: &str) -> Self {
        let tree = Tree::new();
        let root = Supervisor::root(path, tree.clone(), Intensity::default()).await;
        Self { tree, path: path.to_owned(), root: root.expect("a root always starts") }
    }
    /// Stops the tree in reverse start order.
    pub async fn stop(self) {
        self.root.shut_down().await;
    }

    /// Starts an actor, or a group of actors, below the root. It is reachable once it is [healthy](Self::healthy).
    pub fn start_actor(&self, spec: Spec) {
        self.children().start(spec);
    }
    /// The root's children.
    pub fn children(&self) -> &Children {
        self.root.children()
    }
    /// The live tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }
    /// The root's path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Waits until an actor satisfies the condition; returns the actor.
    pub async fn until(&self, path: &str, what: &str, holds: impl Fn(&ActorNode) -> bool) -> ActorNode {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            match self.tree.inspect(path).await {
                Ok(actor) if holds(&actor) => return actor,
                seen => assert!(
                    Instant::now() < deadline,
                    "never at {path}: {what}; last seen: {seen:#?}; the tree: {:#?}",
                    self.tree.list()
                ),
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }
    /// Waits until this incarnation of an actor is healthy.
    pub async fn healthy(&self, path: &str, incarnation: u64) -> ActorNode {
        let holds = |actor: &ActorNode| (actor.incarnation, actor.state) == (incarnation, ActorState::Healthy);
        self.until(path, &format!("incarnation {incarnation}, healthy"), holds).await
    }
    /// Waits until there is no actor at this path.
    pub async fn gone(&self, path: &str) {
        eventually(&format!("{path} is gone"), || !self.tree.list().iter().any(|p| p == path)).await;
    }
}

/// An actor without messages: a child whose start and stop a test is about.
pub struct Idle;
/// Its messages: none.
pub enum Never {}
impl Named for Never {
    fn name(&self) -> &'static str {
        match *self {}
    }
}
impl Shell for Idle {
    type Msg = Never;
    const KIND: &'static str = "Idle";
    async fn handle(&mut self, _cx: &Cx<Never>, msg: Never) -> Result<(), Fault> {
        match msg {}
    }
}
