//! What is to be applied, as a program describes it.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::wire::ReconcilerRequest;
use muster_messages::{
    Action, Applies, ChainStep, CommandAction, Definition, DesiredObject, ErrorBody, Finalize, NodeId, Release,
    RunnerChoice, Triple, millis,
};
use serde_json::Value;

use crate::cluster_requests::{ANSWER_TIMEOUT, ask};
use crate::ports::Cluster;

/// A definition under construction, with default values for what is not set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ReconcilerSpec(Definition);

impl ReconcilerSpec {
    fn new(name: &str, release: Release, scope: &str, action: Action) -> Self {
        Self(Definition::new(name, release, scope, Triple::default(), action))
    }
    /// A set of objects in the cluster's own store.
    pub fn objects(name: &str, release: Release, scope: &str, objects: Vec<DesiredObject>) -> Self {
        Self::new(name, release, scope, Action::Objects(objects))
    }
    /// A command, on the runner's node.
    pub fn command(
        name: &str,
        release: Release,
        scope: &str,
        argv: Vec<String>,
        env: BTreeMap<String, String>,
    ) -> Self {
        Self::new(name, release, scope, Action::Command(CommandAction { argv, env }))
    }
    /// A [`Handler`](crate::Handler) of the programs of this release.
    pub fn handler(name: &str, release: Release, scope: &str) -> Self {
        Self::new(name, release, scope, Action::Handler)
    }

    /// The lowest release of a participant that is compatible with the outcome.
    pub fn floor(mut self, floor: Triple) -> Self {
        self.0.floor = floor;
        self
    }
    /// Applied once, as commands are by default.
    pub fn once(mut self) -> Self {
        self.0.every_ms = None;
        self
    }
    /// Applied again after each period.
    pub fn every(mut self, period: Duration) -> Self {
        self.0.every_ms = Some(millis(period));
        self
    }
    /// Delay before the first run of a term.
    pub fn settle(mut self, settle: Duration) -> Self {
        self.0.settle_ms = millis(settle);
        self
    }
    /// Time limit for one attempt.
    pub fn run_timeout(mut self, limit: Duration) -> Self {
        self.0.run_timeout_ms = millis(limit);
        self
    }
    /// Runs only while the gates of these reconcilers are done.
    pub fn depends_on(mut self, reconcilers: impl IntoIterator<Item = String>) -> Self {
        self.0.depends_on.extend(reconcilers);
        self
    }
    /// An operator confirms before the point of no return.
    pub fn finalized_by_hand(mut self) -> Self {
        self.0.finalize = Finalize::Manual;
        self
    }
    pub fn chosen_by(mut self, choice: RunnerChoice) -> Self {
        self.0.choice = choice;
        self
    }
    pub fn pinned_to(mut self, node: NodeId) -> Self {
        self.0.pinned = Some(node);
        self
    }
    /// Whether it may follow a newer release.
    pub fn downgrade(mut self, allowed: bool) -> Self {
        self.0.downgrade = allowed;
        self
    }
    /// Refuses to follow an older release.
    pub fn from_at_least(mut self, release: Triple) -> Self {
        self.0.from_at_least = Some(release);
        self
    }
    /// After this many failures in a row, at least 1, a runner resigns for another.
    pub fn resign_after(mut self, failures: u32) -> Self {
        self.0.resign_after = failures;
        self
    }

    /// Commands that run once each, in order. The digest of a step: of its content; empty: of its command.
    pub fn chain(name: &str, release: Release, scope: &str, steps: Vec<ChainStep>) -> Self {
        Self::new(name, release, scope, Action::Chain(steps))
    }
    /// Nodes of later releases apply it, too, until one of them has a definition of its own.
    pub fn or_later(mut self) -> Self {
        self.0.options.applies = Applies::OrLater;
        self
    }
    /// The lease of its runner: the longest wait for a takeover.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.options.timing.lease_ms = Some(millis(lease));
        self
    }
    /// How long newer candidates that have left still hold back older ones.
    pub fn hold(mut self, hold: Duration) -> Self {
        self.0.options.timing.hold_ms = Some(millis(hold));
        self
    }
    /// How long a runner that resigned keeps out.
    pub fn resign_pause(mut self, pause: Duration) -> Self {
        self.0.options.timing.resign_pause_ms = Some(millis(pause));
        self
    }

    /// The finished definition.
    pub fn definition(self) -> Definition {
        self.0
    }

    /// Registers the definition; needs an operator's rights. Repeating it changes nothing. A different one under this name and
    /// release is refused, unless `replace`.
    pub async fn register(self, cluster: &dyn Cluster, replace: bool) -> Result<(), ErrorBody> {
        let request = ReconcilerRequest::Apply { definitions: vec![self.0], replace };
        ask::<Value>(cluster, request, ANSWER_TIMEOUT).await.map(drop)
    }
}
