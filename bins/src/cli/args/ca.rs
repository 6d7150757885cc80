//! The arguments of `muster ca`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::duration::parse_duration;

#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Show the root certificate that signs, and its digest
    Show {
        /// Print the certificates of all roots that nodes trust, as PEM
        #[arg(long)]
        bundle: bool,
    },
    /// List the roots on record
    #[command(after_help = "Example: muster ca ls -o json")]
    Ls,
    /// Show how far a rotation is, and which nodes it waits for
    #[command(after_help = "Example: muster ca status")]
    Status,
    /// Replace the root: publish another one, then sign with it; all nodes renew their certificates
    #[command(after_help = ROTATE_HELP)]
    Rotate(RotateArgs),
    /// Let a published root sign, or one that is retiring sign again
    #[command(after_help = ACTIVATE_HELP)]
    Activate(RootArg),
    /// Delete the root that is published and does not sign yet, and a request to an authority above
    #[command(after_help = "Example: muster ca abort")]
    Abort,
    /// Delete the key of a root that no longer signs; nodes stop trusting it
    #[command(after_help = "Example: muster ca retire 4be3c1d2")]
    Retire {
        #[command(flatten)]
        root: RootArg,
        /// Retire it although managers still have certificates of it: one whose certificate has no digest on record then needs a
        /// join token
        #[arg(long)]
        force: bool,
    },
    /// Delete the key of a root that no longer signs, and accept its certificates only from nodes that renew
    #[command(after_help = REVOKE_HELP)]
    Revoke(RootArg),
}

const ROTATE_HELP: &str =
    "Nodes that are down follow when they return; only the end of the earlier key waits for managers. `muster ca status` shows them.

Use --compromised over the admin socket of a manager: the certificates of users, yours among them, end when the earlier root is revoked.

An authority above, such as a company's, can certify the new root: --csr prints a request, --issued takes the answer. Its key never leaves the managers.
Nodes trust the certificate in the answer, and not the company's root.

Example: muster ca rotate --wait
After a manager was stolen: muster node rm --force NODE, then muster ca rotate --compromised --wait
Below a company's root: muster ca rotate --csr > muster.csr, have it signed, then muster ca rotate --issued chain.pem --wait";

const ACTIVATE_HELP: &str = "Refused while a manager that is ready does not trust the root. A root whose key others may have (`muster ca ls` shows it as compromised)
never signs again: `muster ca rotate` makes another one.

Example: muster ca activate 4be3c1d20f6a9587";

const REVOKE_HELP: &str = "Certificates of users that it signed open nothing afterwards. Refused (root_in_use) until a majority of the managers is up and uses certificates
of other roots.

Example: muster ca revoke 4be3c1d2";

#[derive(Debug, Args)]
pub struct RotateArgs {
    /// Only publish the new root; `muster ca activate ID` lets it sign
    #[arg(long)]
    pub prepare: bool,
    /// The keys of the present roots may have leaked: revoke these roots as soon as possible, and replace the default join tokens
    #[arg(long)]
    pub compromised: bool,
    /// Wait until all nodes that are ready have renewed; with --prepare until they trust the root, else with --compromised until the
    /// earlier roots are revoked [default when given: 10m]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "10m", value_parser = parse_duration)]
    pub wait: Option<Duration>,
    /// Print a request for an issuing certificate, for an authority above; repeated, the same one
    #[arg(long, conflicts_with_all = ["issued", "prepare", "wait"])]
    pub csr: bool,
    /// The answer of the authority above, PEM: the issuing certificate, the one that signed it, and so on
    #[arg(long, value_name = "FILE", conflicts_with = "compromised")]
    pub issued: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RootArg {
    /// Id, or at least 4 digits of its beginning (`muster ca ls`)
    #[arg(value_name = "ID")]
    pub root: String,
}
