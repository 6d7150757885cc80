//! The arguments of `muster autolock` and `muster unlock`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use muster_messages::Revision;

use crate::cli::duration::parse_duration;

#[derive(Debug, Subcommand)]
pub enum AutolockCommand {
    /// Make an unlock key and print it: from now on each manager needs it when it starts
    #[command(after_help = ON_HELP)]
    On(SealWait),
    /// Let managers start without a key again; their disks then hold everything in clear
    #[command(after_help = "Example: muster autolock off --yes")]
    Off {
        /// Confirm: a copied disk of a manager can be read again
        #[arg(long, required = true)]
        yes: bool,
        #[command(flatten)]
        wait: SealWait,
    },
    /// Print the unlock key
    #[command(after_help = "Example: muster autolock key -q
For a manager that was down during a rotation: muster autolock key --version N; `muster autolock status` names N.")]
    Key {
        /// The key of an earlier version, as long as a manager may need it
        #[arg(long, value_name = "N", value_parser = parse_version)]
        version: Option<Revision>,
    },
    /// Replace the unlock key and print the new one
    #[command(
        after_help = "The former key opens no manager that has taken the new one. A manager that is down needs the former key once.

Example: muster autolock rotate --wait"
    )]
    Rotate(SealWait),
    /// Show which managers are sealed, and which will ask for an earlier key
    #[command(after_help = "Example: muster autolock status -o json")]
    Status,
}

const ON_HELP: &str = "Keep the key in a safe place that does not depend on this cluster. If all managers are locked and the key is lost, the
cluster's data is lost for good.

Example: muster autolock on --wait";

#[derive(Clone, Copy, Debug, Args)]
pub struct SealWait {
    /// Wait until all managers that are ready have written it [default when given: 30s]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "30s", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}

#[derive(Clone, Debug, Args)]
pub struct UnlockArgs {
    /// A file with the key, or with the JSON of `muster autolock key -o json`; `-` reads stdin [default: ask at the terminal]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

pub const UNLOCK_HELP: &str = "The key is never an argument: every user of the machine can read those.

Example: muster unlock --socket /run/muster/muster.sock
From another manager: ssh n2 muster autolock key -q | muster unlock --key-file -";

fn parse_version(text: &str) -> Result<Revision, String> {
    text.parse().map(Revision).map_err(|_| "expected a number, as `muster autolock status` prints it".to_owned())
}
