//! The live actor tree, as `muster actors` shows it.

use serde::{Deserialize, Serialize};

use super::WallTime;

/// An actor's place in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorState {
    Starting,
    Healthy,
    Done,
    BackingOff,
    Stopping,
    /// Ignored both stop and kill; fenced off by its incarnation.
    Stuck,
    Dead,
    Escalated,
}

/// How an incarnation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitKind {
    /// It was asked to stop, or had nothing left to do.
    Normal,
    Error,
    Panic,
    Killed,
    /// It never started.
    Start,
    Stuck,
}

/// One past exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorExit {
    pub kind: ExitKind,
    pub text: String,
    pub at: WallTime,
}

/// The message in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handling {
    pub message: String,
    pub for_ms: u64,
}

/// One actor and its children. JSON only (the view is free-form).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorNode {
    pub path: String,
    pub kind: String,
    pub incarnation: u64,
    pub state: ActorState,
    pub since: WallTime,
    pub restarts: u64,
    pub mailbox: u64,
    pub handled: u64,
    pub handling: Option<Handling>,
    pub last_exits: Vec<ActorExit>,
    pub view: serde_json::Value,
    pub children: Vec<ActorNode>,
}

/// How `muster actors crash` ends an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrashHow {
    Panic,
    Error,
    Kill,
    /// Blocks the handler for a while.
    Hang,
}
