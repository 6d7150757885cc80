//! The arguments of `muster reconciler`, `muster release`, `muster member` and `muster object`.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::duration::parse_duration;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use muster_messages::{DNS_LABEL, ReconcilerPhase, Release, Triple, Words, is_dns_label};
use muster_reconciler::NOT_INSTALLED;

pub const RECONCILER_HELP: &str = "A typical rollout:
  muster reconciler apply -f schema-2.toml    # `apply --help` shows an example file
  muster reconciler plan schema               # changes and blocking members
  muster reconciler status schema --watch
  muster reconciler blockers schema           # members that block it

Which members may serve meanwhile: `muster wait-ready --help`.";

const APPLY_HELP: &str = "Nodes that can run 2.0.0 of the scope (`muster release`) apply this definition, one node at a time:
  name = \"schema\"
  release = \"2.0.0\"
  scope = \"db\"           # gated on its members: those of `muster wait-ready db`
  floor = \"1.5.0\"        # the lowest compatible release of a member
  [[objects]]             # or [command] with argv = [\"./migrate\", \"up\"]; or [[steps]], each with a name and argv
  kind = \"table\"
  name = \"users\"
  body = { columns = [\"id\", \"name\"] }

The file extension selects the format: .toml, .yaml, .yml or .json. YAML may hold several documents. A different definition of an \
existing name and release needs --replace, and is applied after `muster reconciler retry`.";

const LOGS_HELP: &str = "Each node keeps the output of its own runs on disk: of a long one the first and the newest part. While the node \
is away, the first and the last lines that the cluster has on record are printed, and the exit status is 5. On a terminal, control \
characters are replaced; with `| less` or `> FILE` the output is unchanged.";

/// Reads one of the phases, which help lists.
fn phases() -> impl TypedValueParser<Value = ReconcilerPhase> {
    let words = ReconcilerPhase::ALL.iter().map(|phase| phase.text());
    PossibleValuesParser::new(words).try_map(|word| ReconcilerPhase::of(&word).ok_or("no such phase"))
}

#[derive(Debug, Subcommand)]
pub enum ReconcilerCommand {
    /// Submit definitions: TOML or YAML documents
    #[command(after_help = APPLY_HELP)]
    Apply {
        /// A file, or `-` for stdin
        #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Replace a different definition of the same name and release
        #[arg(long)]
        replace: bool,
    },
    /// List reconcilers
    #[command(alias = "ls")]
    List,
    /// Show phase, runner and blockers
    Status {
        #[command(flatten)]
        name: ReconcilerName,
        /// Print every change
        #[arg(long)]
        watch: bool,
        /// Print every change until this phase is reached: idle, waiting, failed, …
        #[arg(long, value_name = "PHASE", value_parser = phases())]
        until: Option<ReconcilerPhase>,
        /// Give up waiting after this long (exit 3) [default: never]
        #[arg(long, value_name = "DURATION", requires = "until", value_parser = parse_duration)]
        within: Option<Duration>,
    },
    /// Show what a definition would do now; changes nothing
    Plan {
        #[command(flatten)]
        name: ReconcilerName,
        /// Release of the definition [default: the newest]
        #[arg(long)]
        release: Option<Triple>,
    },
    /// List serving members that are incompatible with the next release
    Blockers(ReconcilerName),
    /// Pass the point of no return of a definition with `finalize = "manual"`: older members are no longer admitted
    Finalize {
        #[command(flatten)]
        name: ReconcilerName,
        /// Release of the definition [default: the one in `status`]
        #[arg(long)]
        release: Option<Triple>,
    },
    /// Start no new run; a current run finishes
    Pause(ReconcilerName),
    /// Resume after `pause`
    Resume(ReconcilerName),
    /// Retry a permanent failure, or apply another build of a release
    Retry {
        #[command(flatten)]
        name: ReconcilerName,
        /// Release of the definition [default: the one in `status`]
        #[arg(long)]
        release: Option<Triple>,
    },
    /// List current and earlier entries of the gate, with their epochs
    History(ReconcilerName),
    /// List the last runs: where, when, how long and how they ended
    Runs(ReconcilerName),
    /// Print the output of a run, from the node that ran it
    #[command(after_help = LOGS_HELP)]
    Logs {
        #[command(flatten)]
        name: ReconcilerName,
        /// Number of the run, as in `runs` [default: the newest]
        #[arg(long, value_name = "N")]
        run: Option<u64>,
        /// Print more as the run writes it, until the run has ended
        #[arg(short = 'f', long)]
        follow: bool,
    },
    /// Restore an earlier entry of a damaged gate
    Repair {
        #[command(flatten)]
        name: ReconcilerName,
        /// Epoch of the entry, as in `history`
        #[arg(long, value_name = "EPOCH")]
        from_history: u64,
    },
    /// Set the lowest release that may serve; members below it must stop
    ForceFloor {
        #[command(flatten)]
        name: ReconcilerName,
        /// The lowest release that may serve
        release: Triple,
        /// Confirm; without this, only the members that would have to stop are shown
        #[arg(long)]
        yes_i_know: bool,
    },
    /// Delete definitions, gate and progress; applied objects stay, without an owner
    #[command(alias = "rm")]
    Delete {
        #[command(flatten)]
        name: ReconcilerName,
        /// Delete only the gate: no member is admitted until a run has succeeded. What ran once runs again; the history is kept
        #[arg(long)]
        gate: bool,
        /// Confirm; without it the command says what would be lost or run again, and changes nothing
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub struct ReconcilerName {
    /// Reconciler, as shown by `muster reconciler list`
    pub name: String,
}

pub const RELEASE_HELP: &str = "A scope whose application has a release of its own: reconcilers of the scope run here as that release, and \
`muster wait-ready` has it as its default. Nothing is restarted when it changes. Scopes without a declaration follow the node's \
--release. A deployment tool may write the files itself: SCOPE.toml with `scope` and `release`, in the directory that `ls -o json` names.

Examples:
  muster release declare shop 1.2.0      # as the last step of installing shop 1.2.0 here
  muster release declare shop none       # shop is not on this machine: its reconcilers never run here
  muster release ls";

#[derive(Debug, Subcommand)]
pub enum ReleaseCommand {
    /// List declared releases, by scope
    #[command(alias = "list")]
    Ls,
    /// Declare that this machine can run this release of the scope
    Declare {
        /// Scope, as in definitions and `wait-ready`
        #[arg(value_parser = parse_scope)]
        scope: String,
        /// X.Y.Z, or `none`: nothing of the scope can be run on this machine
        release: Installed,
    },
    /// The node's --release counts for the scope again
    Withdraw {
        /// Scope that was declared
        #[arg(value_parser = parse_scope)]
        scope: String,
    },
}

/// What a machine has of an application.
#[derive(Clone, Debug)]
pub struct Installed(pub Option<Release>);

impl std::str::FromStr for Installed {
    type Err = <Release as std::str::FromStr>::Err;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == NOT_INSTALLED { Ok(Self(None)) } else { text.parse().map(Some).map(Self) }
    }
}

fn parse_scope(text: &str) -> Result<String, String> {
    if is_dns_label(text) { Ok(text.to_owned()) } else { Err(format!("a scope is {DNS_LABEL}")) }
}

pub const MEMBER_HELP: &str = "Members are named SCOPE/MEMBER, as in `muster member drain db/n1`; `muster wait-ready` creates \
them. A drained member gets TERM, and blocks until it has ended. `forget` is for a member that cannot be reached: an external one, \
or one on a lost machine. If it still serves, it serves state that it is incompatible with. `announce` vouches for a process that \
cannot run under `muster wait-ready`: nothing watches it, so it blocks until it is forgotten.";

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// List members of all scopes, or of one
    #[command(alias = "ls")]
    List {
        /// Only this scope
        scope: Option<String>,
    },
    /// Vouch for a member that Muster does not start: it counts as serving until `forget`
    Announce {
        #[command(flatten)]
        member: MemberName,
        /// Its release; refused below a gate's floor
        #[arg(long)]
        release: Triple,
        /// Lowest release of a reconciler that it needs; can be repeated
        #[arg(long, value_name = "NAME=RELEASE", value_parser = parse_need)]
        needs: Vec<(String, Triple)>,
        /// Also in a scope that no reconciler has: it blocks nothing there
        #[arg(long)]
        allow_undefined_scope: bool,
    },
    /// Declare that a member has ended: it no longer blocks
    Forget(MemberName),
    /// Ask a member to stop serving
    Drain(MemberName),
}

#[derive(Debug, Args)]
pub struct MemberName {
    /// `SCOPE/MEMBER`
    #[arg(value_parser = parse_member)]
    pub member: (String, String),
}

fn parse_member(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/').filter(|(scope, member)| !scope.is_empty() && !member.is_empty());
    let (scope, member) = parts.ok_or("expected SCOPE/MEMBER; `muster member list` shows members")?;
    Ok((scope.to_owned(), member.to_owned()))
}

fn parse_need(text: &str) -> Result<(String, Triple), String> {
    let (name, release) = text.split_once('=').ok_or("expected NAME=RELEASE, such as schema=2.0.0")?;
    let release = release.parse().map_err(|why: muster_messages::BadId| why.to_string())?;
    Ok((name.to_owned(), release))
}

pub const OBJECT_HELP: &str = "Examples:
  muster object ls table
  muster object ls --watch -o json                         # each change; `--since REVISION` resumes
  muster object get table users
  muster object put table users '{\"columns\": [\"id\"]}'    # soon repaired if a reconciler owns it";

#[derive(Debug, Subcommand)]
pub enum ObjectCommand {
    /// List objects that reconcilers keep
    #[command(alias = "list")]
    Ls {
        /// Only this kind
        kind: Option<String>,
        /// Print each change and deletion
        #[arg(long)]
        watch: bool,
        /// Only what has changed after this revision
        #[arg(long, value_name = "REV", requires = "watch")]
        since: Option<u64>,
    },
    /// Show an object
    Get(ObjectName),
    /// Write an object by hand; a reconciler that owns it will repair it
    Put {
        #[command(flatten)]
        name: ObjectName,
        /// Body, a JSON object
        #[arg(value_name = "JSON")]
        body: String,
        /// Labels; they replace existing ones
        #[arg(long, value_name = "K=V", value_parser = super::parse_label)]
        label: Vec<(String, String)>,
    },
    /// Delete an object by hand; a reconciler that owns it will recreate it
    #[command(alias = "rm")]
    Delete(ObjectName),
}

#[derive(Debug, Args)]
pub struct ObjectName {
    /// Kind, such as `table`
    pub kind: String,
    pub name: String,
    /// Namespace
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
}
