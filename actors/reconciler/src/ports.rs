//! External dependencies of reconcilers: a cluster, a command runner, and a program's own code.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use muster_elector::{Hold, Link, Term};
use muster_messages::wire::{ReconcilerRequest, Request, RunKey};
use muster_messages::{CommandOptions, ErrorBody, FencingToken, Release, RunExit, WallTime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::core::run::Outcome;

/// A cluster: leases and reconcilers. Programs use [`Link`]; a node asks itself.
pub trait Cluster: muster_elector::Cluster {
    /// Sends a request, which may be repeated; the answer is JSON text. After `limit` the caller no longer waits.
    fn reconcile(&self, request: ReconcilerRequest, limit: Duration) -> BoxFuture<'static, Result<String, ErrorBody>>;
}

impl Cluster for Link {
    fn reconcile(&self, request: ReconcilerRequest, limit: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let link = self.clone();
        async move { link.request(Request::Reconciler(request), limit).await }.boxed()
    }
}

/// How much of a command's output is kept: its end.
pub const MAX_OUTPUT_BYTES: usize = 64 * 1024;
/// How much of its beginning.
pub const MAX_HEAD_BYTES: usize = 1024;
/// Time between TERM and KILL for a cancelled command.
pub const GRACE: Duration = Duration::from_secs(5);

/// A command to run here while its term lasts.
#[derive(Clone, Debug)]
pub struct CommandOrder {
    /// Which run it is, for its log.
    pub run: RunKey,
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// The user, the directory, files of the environment, limits.
    pub options: CommandOptions,
    /// The term's validity on the boot-time clock: TERM at `step_down_at`, KILL before `over_at`, even when this process is
    /// killed or frozen. Each renewal moves it.
    pub hold: watch::Receiver<Hold>,
    /// Cancelled: TERM, [`GRACE`], KILL.
    pub cancelled: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandEnd {
    pub exit: CommandExit,
    /// The first [`MAX_HEAD_BYTES`] bytes that it wrote, to either stream.
    pub head: String,
    /// The last [`MAX_OUTPUT_BYTES`].
    pub output: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandExit {
    Code(u8),
    Signal(u8),
    NotStarted(String),
}

/// Runs commands under a guardian. The future ends once nothing of the command is left. When it is dropped, the guardian ends
/// the command.
pub trait CommandRunner: Send + Sync + 'static {
    /// Whether it runs this program, the first word of a command.
    fn allows(&self, _program: &str) -> bool {
        true
    }
    /// Whether this runner accepts these options. By default, only the default options.
    fn permits(&self, options: &CommandOptions) -> bool {
        *options == CommandOptions::default()
    }
    /// Changes whenever [`allows`](Self::allows) or [`permits`](Self::permits) may answer otherwise; never, by default.
    fn changes(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }
    /// Bytes of output since this process started that could not be kept for readers.
    fn lost_log_bytes(&self) -> u64 {
        0
    }
    fn run(&self, order: CommandOrder) -> BoxFuture<'static, CommandEnd>;
}

/// The exit statuses `EX_TEMPFAIL` and `EX_CONFIG` of sysexits.h.
const EX_TEMPFAIL: u8 = 75;
const EX_CONFIG: u8 = 78;

impl CommandExit {
    /// The outcome of the run that this exit status means.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Code(0) => Outcome::Done,
            Self::Code(EX_TEMPFAIL) => Outcome::Later("the command asked to be retried later (exit 75)".to_owned()),
            Self::Code(EX_CONFIG) => Outcome::Permanent("the command failed permanently (exit 78)".to_owned()),
            Self::Code(code) => Outcome::Failed(format!("the command exited with {code}")),
            Self::Signal(number) => Outcome::Failed(format!("the command was ended by signal {number}")),
            Self::NotStarted(why) => Outcome::Failed(format!("the command could not be started: {why}")),
        }
    }
    /// For the record of the run.
    pub(crate) fn recorded(&self) -> RunExit {
        match *self {
            Self::Code(status) => RunExit { status: Some(status), ..RunExit::default() },
            Self::Signal(signal) => RunExit { signal: Some(signal), ..RunExit::default() },
            Self::NotStarted(_) => RunExit::default(),
        }
    }
}

impl CommandEnd {
    /// The same, with the output cut to what is kept.
    pub(crate) fn kept(mut self) -> Self {
        let from = self.output.len().saturating_sub(MAX_OUTPUT_BYTES);
        self.output.drain(..self.output.ceil_char_boundary(from));
        self.head.truncate(self.head.floor_char_boundary(MAX_HEAD_BYTES));
        self
    }
}

/// The environment variables that describe the run to a command.
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

/// The context that a handler receives.
#[derive(Clone)]
pub struct ApplyCtx {
    pub reconciler: String,
    /// Every write should carry it: a target that refuses smaller numbers than it has seen is safe from earlier runners.
    pub fence: FencingToken,
    /// The release applied before, if any.
    pub from: Option<Release>,
    pub target: Release,
    /// Counts from 1, within one run.
    pub attempt: u32,
    /// The term is over or the action was cancelled: end.
    pub cancelled: CancellationToken,
    /// `None` while only planning.
    pub term: Option<Term>,
}

impl ApplyCtx {
    /// Whether this is still the runner now, by the clock. Check immediately before an irreversible effect.
    pub fn is_current(&self) -> bool {
        !self.cancelled.is_cancelled() && self.term.as_ref().is_none_or(Term::is_current)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// Not yet. Not counted as a failure.
    #[error("{0}")]
    Later(String),
    #[error("{0}")]
    Failed(String),
    /// Never, with this definition.
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

/// A program's own code as an action. It must be idempotent: it can be interrupted at any point and is then restarted.
pub trait Handler: Send + Sync + 'static {
    /// Brings the system to `ctx.target`. Should end soon after `ctx.cancelled`; the term lasts until it does.
    fn apply(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>>;

    /// What `apply` would change, one line each; changes nothing.
    fn plan(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<Vec<String>, HandlerError>> {
        let _ = ctx;
        ready(Ok(Vec::new())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_determine_whether_to_retry() {
        assert_eq!(CommandExit::Code(0).outcome(), Outcome::Done);
        assert!(matches!(CommandExit::Code(75).outcome(), Outcome::Later(_)));
        assert!(matches!(CommandExit::Code(78).outcome(), Outcome::Permanent(_)));
        let others = [CommandExit::Code(1), CommandExit::Code(255), CommandExit::Signal(9)];
        for exit in others.into_iter().chain([CommandExit::NotStarted("no such file".into())]) {
            assert!(matches!(exit.outcome(), Outcome::Failed(_)), "{exit:?}");
        }
    }

    #[test]
    fn both_ends_of_a_long_output_are_kept_in_whole_characters() {
        let end = |output: String| {
            let CommandEnd { head, output, .. } =
                CommandEnd { exit: CommandExit::Code(0), head: output.clone(), output }.kept();
            (head, output)
        };
        assert_eq!(end("short".into()), ("short".into(), "short".into()));
        let (head, kept) = end("!".to_owned() + &"ö".repeat(MAX_OUTPUT_BYTES) + "!");
        assert!(kept.len() <= MAX_OUTPUT_BYTES && kept.len() > MAX_OUTPUT_BYTES - 4 && kept.ends_with("ö!"));
        assert!(head.len() == MAX_HEAD_BYTES - 1 && head.starts_with("!ö"));
    }
}
