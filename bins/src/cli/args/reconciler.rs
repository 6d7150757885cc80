//! What `muster reconciler`, `muster member` and `muster object` accept.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::duration::parse_duration;
use clap::{Args, Subcommand};
use muster_messages::Triple;

pub const RECONCILER_HELP: &str = "A rollout, as it is usually done:
  muster reconciler apply -f schema-2.toml    # `apply --help` shows such a file
  muster reconciler plan schema               # what it would do, and whom it would wait for
  muster reconciler status schema --watch
  muster reconciler blockers schema           # who is in the way

Who may serve meanwhile: `muster wait-ready --help`.";

const APPLY_HELP: &str = "The nodes that were started with `--release 2.0.0` apply this one, a node at a time:
  name = \"schema\"
  release = \"2.0.0\"
  scope = \"db\"           # its members are asked: those of `muster wait-ready db`
  floor = \"1.5.0\"        # the lowest release of a member that can live with it
  [[objects]]             # or [command], with argv = [\"./migrate\", \"up\"]
  kind = \"table\"
  name = \"users\"
  body = { columns = [\"id\", \"name\"] }

A file's name says its language: .toml, .yaml, .yml or .json. YAML may hold several documents. Another definition of a name and \
release that are there is refused unless --replace is given, and is applied after `muster reconciler retry`.";

/// Where a reconciler can be.
const PHASES: [&str; 10] = [
    "no-candidate",
    "electing",
    "waiting",
    "ready-to-finalize",
    "settling",
    "running",
    "idle",
    "paused",
    "blocked",
    "failed",
];

#[derive(Debug, Subcommand)]
pub enum ReconcilerCommand {
    /// Bring definitions: TOML or YAML documents
    #[command(after_help = APPLY_HELP)]
    Apply {
        /// A file; `-` reads from stdin
        #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Also where another definition of this name and release is there already
        #[arg(long)]
        replace: bool,
    },
    /// All reconcilers
    #[command(alias = "ls")]
    List,
    /// Where one is, who runs it, and what is in the way
    Status {
        #[command(flatten)]
        name: ReconcilerName,
        /// Go on showing it as it changes
        #[arg(long)]
        watch: bool,
        /// Show it as it changes until it is there: idle, waiting, failed, …
        #[arg(long, value_name = "PHASE", value_parser = PHASES)]
        until: Option<String>,
        /// Give up waiting after this long (exit 3) [default: never]
        #[arg(long, value_name = "DURATION", requires = "until", value_parser = parse_duration)]
        within: Option<Duration>,
    },
    /// What a definition would do now; changes nothing
    Plan {
        #[command(flatten)]
        name: ReconcilerName,
        /// Of this release [default: the newest]
        #[arg(long)]
        release: Option<Triple>,
    },
    /// Who serves and could not live with the next release
    Blockers(ReconcilerName),
    /// Pass the point of no return of a definition with `finalize = "manual"`: from then on older members are kept out
    Finalize {
        #[command(flatten)]
        name: ReconcilerName,
        /// Of this release [default: the one that `status` shows]
        #[arg(long)]
        release: Option<Triple>,
    },
    /// Begin nothing new; what runs is finished
    Pause(ReconcilerName),
    /// Go on after `pause`
    Resume(ReconcilerName),
    /// Begin again what failed for good; apply another build of a release
    Retry {
        #[command(flatten)]
        name: ReconcilerName,
        /// Of this release [default: the one that `status` shows]
        #[arg(long)]
        release: Option<Triple>,
    },
    /// What its gate says and said before, each with its epoch
    History(ReconcilerName),
    /// Put an earlier entry of the gate's history in force: for a gate that is damaged
    Repair {
        #[command(flatten)]
        name: ReconcilerName,
        /// The entry's epoch, as `history` shows it
        #[arg(long, value_name = "EPOCH")]
        from_history: u64,
    },
    /// Set the lowest release that may serve; whoever is below it is told to stop
    ForceFloor {
        #[command(flatten)]
        name: ReconcilerName,
        /// The lowest release that may serve
        release: Triple,
        /// Do it; without this, only who would be told to stop is shown
        #[arg(long)]
        yes_i_know: bool,
    },
    /// Forget it: definitions, gate and progress; what it applied stays, and belongs to nobody
    #[command(alias = "rm")]
    Delete {
        #[command(flatten)]
        name: ReconcilerName,
        /// The gate alone: nobody is admitted until a run has succeeded
        #[arg(long)]
        gate: bool,
    },
}

#[derive(Debug, Args)]
pub struct ReconcilerName {
    /// The reconciler, as `muster reconciler list` shows it
    pub name: String,
}

pub const MEMBER_HELP: &str = "Members are named SCOPE/MEMBER, as in `muster member drain db/n1`; `muster wait-ready` makes \
them. A member that is drained gets TERM, and is in the way until it has gone. `forget` is for what nobody can ask any more, an \
external member or a lost machine: if it serves all the same, it does so beside what it cannot live with.";

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Participants of all scopes, or of one
    #[command(alias = "ls")]
    List {
        /// Of this scope only
        scope: Option<String>,
    },
    /// Vouch that one has ended: it is in the way no longer
    Forget(MemberName),
    /// Tell one to stop serving
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
    let (scope, member) = parts.ok_or("write it as SCOPE/MEMBER; `muster member list` shows them")?;
    Ok((scope.to_owned(), member.to_owned()))
}

pub const OBJECT_HELP: &str = "Examples:
  muster object ls table
  muster object get table users
  muster object put table users '{\"columns\": [\"id\"]}'    # repaired soon, if a reconciler owns it";

#[derive(Debug, Subcommand)]
pub enum ObjectCommand {
    /// Objects that reconcilers keep
    #[command(alias = "list")]
    Ls {
        /// Of this kind only
        kind: Option<String>,
    },
    /// One of them
    Get(ObjectName),
    /// Write one by hand; a reconciler that owns it will repair it
    Put {
        #[command(flatten)]
        name: ObjectName,
        /// Its body, a JSON object
        #[arg(value_name = "JSON")]
        body: String,
        /// Labels to write; those it had are replaced
        #[arg(long, value_name = "K=V", value_parser = super::parse_label)]
        label: Vec<(String, String)>,
    },
    /// Delete one by hand; a reconciler that owns it will make it again
    #[command(alias = "rm")]
    Delete(ObjectName),
}

#[derive(Debug, Args)]
pub struct ObjectName {
    /// Its kind, a word such as `table`
    pub kind: String,
    pub name: String,
    /// Its namespace
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
}
