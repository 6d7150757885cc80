//! The children of a supervisor, by name.
//!
//! Owns        the children, and the order in which they were first started.
//! Inputs      specs; what the supervisor's core decides about one of them.
//! What is decided about a child that is not there any more has no effect.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_messages::{ActorState, ExitKind};
use ractor::ActorCell;
use serde_json::json;

use super::child::Child;
use super::core::{Input, Policy};
use crate::spec::is_segment;
use crate::vitals::Vitals;
use crate::{Spec, Tree};

/// See the module.
pub(super) struct ChildTable {
    /// The supervisor's own path.
    path: String,
    tree: Tree,
    children: BTreeMap<String, Child>,
    started: u64,
}

impl ChildTable {
    pub fn new(path: String, tree: Tree) -> Self {
        Self { path, tree, children: BTreeMap::new(), started: 0 }
    }
    pub fn len(&self) -> usize {
        self.children.len()
    }
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Child> {
        self.children.get_mut(name)
    }

    /// Adds a child, or replaces the spec of the one of that name. `None`: it cannot be started.
    pub fn add(&mut self, spec: Spec) -> Option<Input> {
        let name = spec.name.clone();
        if !is_segment(&name) {
            tracing::error!(path = %self.path, ?name, "child not started: its name is not a valid path segment");
            return None;
        }
        let policy = Policy {
            restart: spec.restart,
            backoff: spec.backoff,
            start_deadline: spec.start_deadline,
            stop_deadline: spec.stop_deadline,
            contained: spec.contained,
        };
        let requires = spec.requires.clone();
        for missing in requires.iter().filter(|sibling| !self.children.contains_key(*sibling)) {
            tracing::warn!(path = %self.path, %name, %missing, "child requires a sibling not started before it");
        }
        match self.children.get_mut(&name) {
            Some(child) => child.spec = spec,
            None => {
                let path = format!("{}/{name}", self.path);
                let label = self.tree.label(&self.path, spec.counted_as.unwrap_or(&name));
                let vitals = Arc::new(Vitals::new(path, spec.kind, label));
                let registration = self.tree.register(Arc::clone(&vitals));
                self.started += 1;
                self.children.insert(name.clone(), Child::new(spec, vitals, registration, self.started));
            }
        }
        Some(Input::Start { name, policy, requires })
    }

    pub fn stop(&self, name: &str, run: u64) {
        if let Some(cell) = self.cell(name, run) {
            cell.stop(Some("stopped".to_owned()));
        }
    }
    pub fn kill(&self, name: &str, run: u64) {
        if let Some(cell) = self.cell(name, run) {
            cell.kill();
        }
    }
    fn cell(&self, name: &str, run: u64) -> Option<&ActorCell> {
        self.children.get(name)?.cell_of(run)
    }

    /// Continues without a child's stuck incarnation. Returns what shows that one from now on.
    pub fn abandon(&self, name: &str) -> Option<Vitals> {
        let child = self.children.get(name)?;
        child.abandon();
        let left = child.vitals.abandoned_vitals();
        tracing::error!(path = %left.path, "actor ignored stop and kill; abandoned as stuck");
        Some(left)
    }
    pub fn enter(&mut self, name: &str, state: ActorState) {
        if let Some(child) = self.children.get_mut(name) {
            child.enter(state);
        }
    }
    /// Shows why a child is not launched yet.
    pub fn waits(&self, name: &str, on: &[String]) {
        if let Some(child) = self.children.get(name) {
            tracing::debug!(path = %child.vitals.path, ?on, "actor waits for its siblings before it starts");
            child.vitals.explain(json!({ "waits_for": on }));
        }
    }
    pub fn ended(&mut self, name: &str, kind: ExitKind, text: String) {
        if let Some(child) = self.children.get_mut(name) {
            child.ended(kind, text);
        }
    }
    pub fn count_stale(&self, name: &str) {
        if let Some(child) = self.children.get(name) {
            child.vitals.count_stale();
        }
    }
    pub fn remove(&mut self, name: &str) {
        if let Some(mut child) = self.children.remove(name) {
            child.notify_stopped();
        }
    }

    /// Stops all of them, the last started first.
    pub async fn stop_all(&mut self) {
        // An actor that is still being made finds its fence closed and no supervisor.
        let mut in_order: Vec<(u64, String)> = self.children.iter().map(|(name, c)| (c.order, name.clone())).collect();
        in_order.sort();
        for (_, name) in in_order.into_iter().rev() {
            if let Some(child) = self.children.remove(&name) {
                child.stop_in_order().await;
            }
        }
    }
}
