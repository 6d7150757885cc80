//! The arguments of `muster lease` and `muster kubeconfig`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use muster_messages::{GuardMode, Name};

use crate::cli::duration::parse_duration;

#[derive(Debug, Args)]
pub struct LeaseArgs {
    /// Namespace of the leases
    #[arg(short = 'n', long, global = true, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,
    #[command(subcommand)]
    pub command: LeaseCommand,
}

#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// List leases
    Ls {
        /// In every namespace
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Refresh every second, in place on a terminal; Ctrl-C stops
        #[arg(long)]
        watch: bool,
    },
    /// Show a lease
    Get { name: String },
    /// Create a lease
    Create {
        name: String,
        /// Initial holder
        #[arg(long, value_name = "ID")]
        holder: Option<String>,
        /// Validity of a renewal
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        duration: Option<Duration>,
    },
    /// Delete a lease; its fencing tokens are never used again
    Delete {
        name: String,
        /// Delete even a lease held by a running session (`muster elect`), whose command is ended as after a loss. Waits
        /// until the lease would have expired; until then the name stays in use
        #[arg(long)]
        force: bool,
    },
    /// Show and set the protection of live holders from other clients
    #[command(subcommand)]
    Guard(GuardCommand),
}

#[derive(Debug, Subcommand)]
pub enum GuardCommand {
    /// List guards that were set
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
    /// Allow every write whose own preconditions hold
    Off,
    /// Reject taking, renewing or emptying another's live lease without naming a resourceVersion or the current holder
    Blind,
    /// Reject taking a live holder's lease, and deleting it without a precondition
    All,
    /// Inherit the wider setting, else `blind`
    Default,
}

impl GuardArg {
    /// The mode to set; `None` removes the setting.
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
    /// User, created if missing [default: kube-NAMESPACE]
    #[arg(long, value_name = "NAME")]
    pub user: Option<Name>,
    /// Namespace of the user's rights and of the file's context
    #[arg(short = 'n', long, value_name = "NS", default_value = "default")]
    pub namespace: Name,
    /// Node that the clients connect to; any node works [default: a manager]
    #[arg(long, value_name = "HOST:PORT")]
    pub server: Option<String>,
    /// Validity of the token
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "90d")]
    pub ttl: Duration,
    /// Output file, readable only by you [default: stdout]
    #[arg(long, value_name = "FILE")]
    pub out: Option<std::path::PathBuf>,
}
