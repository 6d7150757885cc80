//! What reconcilers need of the world: a cluster, somebody who runs commands, and a program's own code.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use muster_elector::{Hold, Link, Term};
use muster_messages::wire::{ReconcilerRequest, Request};
use muster_messages::{ErrorBody, FencingToken, Release, WallTime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::core::run::Outcome;

/// A cluster, however it is reached: leases, and reconcilers. [`Link`] is the one for programs; a node asks itself.
pub trait Cluster: muster_elector::Cluster {
    /// Asks; the answer is JSON text. Asking twice is harmless for everything that is asked here. After `patience` nobody waits
    /// for the answer any more.
    fn reconcile(
        &self,
        request: ReconcilerRequest,
        patience: Duration,
    ) -> BoxFuture<'static, Result<String, ErrorBody>>;
}

impl Cluster for Link {
    fn reconcile(
        &self,
        request: ReconcilerRequest,
        patience: Duration,
    ) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let link = self.clone();
        async move { link.request(Request::Reconciler(request), patience).await }.boxed()
    }
}

/// How much of what a command writes is kept: the end of it.
pub const MOST_OUTPUT: usize = 64 * 1024;
/// How long a command has between TERM and KILL when it is not wanted any more.
pub const GRACE: Duration = Duration::from_secs(5);

/// A command that is to run here, for as long as its term lasts.
#[derive(Clone, Debug)]
pub struct CommandOrder {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// How long the term is good for, on the boot-time clock: TERM at its `step_down_at`, KILL before its `over_at`. Each
    /// renewal moves it. Must hold too when this process is killed or frozen.
    pub hold: watch::Receiver<Hold>,
    /// Not wanted any more: TERM, [`GRACE`], KILL.
    pub cancelled: CancellationToken,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    pub exit: CommandExit,
    /// The last [`MOST_OUTPUT`] bytes of what it wrote, to either stream.
    pub output: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandExit {
    Code(u8),
    Signal(u8),
    /// It could not be started.
    NotStarted(String),
}

/// Runs commands under a guardian. The future ends when nothing of the command is left, and not before. Dropped, the guardian
/// ends the command.
pub trait CommandRunner: Send + Sync + 'static {
    /// Whether it runs this program, the first word of a command.
    fn allows(&self, _program: &str) -> bool {
        true
    }
    fn run(&self, order: CommandOrder) -> BoxFuture<'static, CommandEnd>;
}

/// "Try again later" and "never mind" among exit statuses, as in sysexits.h.
const TEMPFAIL: u8 = 75;
const CONFIG: u8 = 78;

impl CommandExit {
    /// What it says about the run.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Code(0) => Outcome::Done,
            Self::Code(TEMPFAIL) => Outcome::Later("the command asks to be tried again later (exit 75)".to_owned()),
            Self::Code(CONFIG) => {
                Outcome::Permanent("the command says that trying again is of no use (exit 78)".to_owned())
            }
            Self::Code(code) => Outcome::Failed(format!("the command exited with {code}")),
            Self::Signal(number) => Outcome::Failed(format!("the command was ended by signal {number}")),
            Self::NotStarted(why) => Outcome::Failed(format!("the command could not be started: {why}")),
        }
    }
}

impl CommandEnd {
    /// The same with no more output than is kept.
    pub(crate) fn kept(mut self) -> Self {
        let from = self.output.len().saturating_sub(MOST_OUTPUT);
        let from = (from..=self.output.len()).find(|at| self.output.is_char_boundary(*at)).unwrap_or(0);
        self.output.drain(..from);
        self
    }
}

/// What a command sees of the run that it is of.
pub fn environment(ctx: &ApplyCtx, deadline: Option<WallTime>) -> BTreeMap<String, String> {
    let from = ctx.from.as_ref().map(Release::to_string).unwrap_or_default();
    let mut env = BTreeMap::from([
        ("MUSTER_FENCING_TOKEN".to_owned(), ctx.fence.to_string()),
        ("MUSTER_RECONCILER".to_owned(), ctx.reconciler.clone()),
        ("MUSTER_FROM_RELEASE".to_owned(), from),
        ("MUSTER_TARGET_RELEASE".to_owned(), ctx.target.to_string()),
        ("MUSTER_ATTEMPT".to_owned(), ctx.attempt.to_string()),
    ]);
    if let Some(deadline) = deadline {
        env.insert("MUSTER_DEADLINE".to_owned(), deadline.to_string());
    }
    env
}

/// What a handler is handed.
#[derive(Clone)]
pub struct ApplyCtx {
    pub reconciler: String,
    /// What every write should carry: whoever refuses smaller numbers than it has seen is safe from earlier runners.
    pub fence: FencingToken,
    /// What has been applied before, where anything has.
    pub from: Option<Release>,
    pub target: Release,
    /// From 1; tries of the same run.
    pub attempt: u32,
    /// The term is over, or this is not wanted any more: come to an end.
    pub cancelled: CancellationToken,
    /// `None` while only planning.
    pub term: Option<Term>,
}

impl ApplyCtx {
    /// Whether this is still the runner, at this very moment, by the clock. Ask right before what cannot be taken back.
    pub fn is_current(&self) -> bool {
        !self.cancelled.is_cancelled() && self.term.as_ref().is_none_or(Term::is_current)
    }
}

/// Why a handler did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// Not yet. Does not count as a failure.
    #[error("{0}")]
    Later(String),
    #[error("{0}")]
    Failed(String),
    /// Not ever, with this definition.
    #[error("{0}")]
    Permanent(String),
}

impl From<HandlerError> for Outcome {
    fn from(error: HandlerError) -> Self {
        match error {
            HandlerError::Later(why) => Outcome::Later(why),
            HandlerError::Failed(why) => Outcome::Failed(why),
            HandlerError::Permanent(why) => Outcome::Permanent(why),
        }
    }
}

/// A program's own code as an action. It must be idempotent: it can be cut off at any point, and is begun again then.
pub trait Handler: Send + Sync + 'static {
    /// Makes the world as `ctx.target` wants it. Should end soon after `ctx.cancelled`; the term goes on until it does.
    fn apply(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>>;

    /// What that would change, a line each; changes nothing.
    fn plan(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<Vec<String>, HandlerError>> {
        let _ = ctx;
        ready(Ok(Vec::new())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_say_whether_to_try_again() {
        assert_eq!(CommandExit::Code(0).outcome(), Outcome::Done);
        assert!(matches!(CommandExit::Code(75).outcome(), Outcome::Later(_)));
        assert!(matches!(CommandExit::Code(78).outcome(), Outcome::Permanent(_)));
        let others = [CommandExit::Code(1), CommandExit::Code(255), CommandExit::Signal(9)];
        for exit in others.into_iter().chain([CommandExit::NotStarted("no such file".into())]) {
            assert!(matches!(exit.outcome(), Outcome::Failed(_)), "{exit:?}");
        }
    }

    #[test]
    fn the_end_of_a_long_output_is_kept_in_whole_characters() {
        let end = |output: String| CommandEnd { exit: CommandExit::Code(0), output }.kept().output;
        assert_eq!(end("short".into()), "short");
        let kept = end("ö".repeat(MOST_OUTPUT) + "!");
        assert!(kept.len() <= MOST_OUTPUT && kept.len() > MOST_OUTPUT - 4 && kept.ends_with("ö!"));
    }
}
