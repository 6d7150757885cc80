//! What `muster reconciler`, `muster member` and `muster object` accept.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use muster_messages::Triple;

#[derive(Debug, Subcommand)]
pub enum ReconcilerCommand {
    /// Bring definitions: TOML or YAML documents
    Apply {
        /// A file; `-` reads from stdin
        #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Also where a definition of this name and release is there already, and another one
        #[arg(long)]
        replace: bool,
    },
    /// All reconcilers
    #[command(alias = "ls")]
    List,
    /// Where one is, who runs it, and what is in the way
    Status {
        name: String,
        /// Go on showing it as it changes
        #[arg(long)]
        watch: bool,
    },
    /// What a definition would do now; changes nothing
    Plan {
        name: String,
        /// Of this release [default: the newest]
        #[arg(long)]
        release: Option<Triple>,
    },
    /// Who serves and could not live with the next release
    Blockers { name: String },
    /// Pass the point of no return of a definition with `finalize = "manual"`
    Finalize { name: String },
    /// Begin nothing new
    Pause { name: String },
    /// Go on
    Resume { name: String },
    /// Begin again what failed for good; apply another build of a release
    Retry { name: String },
    /// What its gate said before
    History { name: String },
    /// Put an earlier entry of the gate's history in force
    Repair {
        name: String,
        /// The entry's epoch
        #[arg(long, value_name = "N")]
        from_history: u64,
    },
    /// Set the lowest release that may serve; whoever is below it is told to stop
    ForceFloor {
        name: String,
        release: Triple,
        /// Without it, only who would be excluded is shown
        #[arg(long)]
        yes_i_know: bool,
    },
    /// Forget it: definitions, gate and progress; what it applied stays
    Delete {
        name: String,
        /// The gate alone: nobody is admitted until a run has succeeded
        #[arg(long)]
        gate: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum MemberCommand {
    /// Participants of all scopes, or of one
    #[command(alias = "ls")]
    List { scope: Option<String> },
    /// You vouch that it has ended: it blocks nothing any more
    Forget(MemberName),
    /// Tell it to stop serving
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

#[derive(Debug, Subcommand)]
pub enum ObjectCommand {
    /// Objects that reconcilers keep
    Ls {
        /// Of this kind only
        kind: Option<String>,
    },
    /// One of them
    Get(ObjectName),
    /// Write one by hand, its body as JSON; a reconciler that owns it will repair it
    Put {
        #[command(flatten)]
        name: ObjectName,
        #[arg(value_name = "JSON")]
        body: String,
        #[arg(long, value_name = "K=V", value_parser = super::parse_label)]
        label: Vec<(String, String)>,
    },
    /// Delete one by hand
    Delete(ObjectName),
}

#[derive(Debug, Args)]
pub struct ObjectName {
    pub kind: String,
    pub name: String,
    #[arg(short = 'n', long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
}
