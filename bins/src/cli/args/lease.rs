//! What `muster lease` and `muster kubeconfig` accept.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use muster_messages::{GuardMode, Name};

use crate::cli::duration::parse_duration;

#[derive(Debug, Args)]
pub struct LeaseArgs {
    /// The namespace
    #[arg(short = 'n', long, global = true, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    #[command(subcommand)]
    pub command: LeaseCommand,
}

#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// List the leases
    Ls {
        /// Of every namespace
        #[arg(short = 'A', long)]
        all_namespaces: bool,
    },
    /// One lease
    Get { name: String },
    /// Create a lease
    Create {
        name: String,
        /// Who holds it from the start
        #[arg(long, value_name = "ID")]
        holder: Option<String>,
        /// How long a renewal is good for
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        duration: Option<Duration>,
    },
    /// Delete a lease; its fencing tokens are never used again
    Delete {
        name: String,
        /// Also if a running session holds it (`muster elect`). Its command is ended as after a loss, and the name stays taken
        /// until the lease would have run out: waits for that
        #[arg(long)]
        force: bool,
    },
    /// How much holders are protected from clients that take a lease while it lives
    #[command(subcommand)]
    Guard(GuardCommand),
}

#[derive(Debug, Subcommand)]
pub enum GuardCommand {
    /// List the guards that were set
    Ls,
    /// Set the guard of a namespace, or of one lease in it
    Set {
        mode: GuardArg,
        /// Only for this lease
        name: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuardArg {
    /// Whatever a write's own preconditions allow
    Off,
    /// A write that names neither a resourceVersion nor the present holder does not take, renew or empty another's live lease
    Blind,
    /// No write takes a live holder's lease, and none deletes it without a precondition
    All,
    /// What the wider setting says; `blind` where there is none
    Default,
}

impl GuardArg {
    /// The mode that is set; `None`: none of its own.
    pub fn mode(self) -> Option<GuardMode> {
        match self {
            GuardArg::Off => Some(GuardMode::Off),
            GuardArg::Blind => Some(GuardMode::Blind),
            GuardArg::All => Some(GuardMode::All),
            GuardArg::Default => None,
        }
    }
}
impl std::fmt::Display for GuardArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            GuardArg::Off => "off",
            GuardArg::Blind => "blind",
            GuardArg::All => "all",
            GuardArg::Default => "default",
        })
    }
}

#[derive(Debug, Args)]
pub struct KubeconfigArgs {
    /// Whose; made if there is no such user [default: kube-NAMESPACE]
    #[arg(long, value_name = "NAME")]
    pub user: Option<Name>,
    /// The namespace that the user may touch and the file's context names
    #[arg(short = 'n', long, value_name = "NS", default_value = "default")]
    pub namespace: Name,
    /// Which node the clients talk to; any will do [default: a manager]
    #[arg(long, value_name = "HOST:PORT")]
    pub server: Option<String>,
    /// How long the token in it lives
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "90d")]
    pub ttl: Duration,
    /// Write it here, readable by you alone [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub out: Option<std::path::PathBuf>,
}
