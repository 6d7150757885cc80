//! The arguments of `muster workload`.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_messages::{WorkloadName, WorkloadSelector};

use crate::cli::duration::parse_lifetime;

#[derive(Debug, Subcommand)]
pub enum WorkloadCommand {
    /// Define which processes on which nodes have an identity; replaces the former entry
    #[command(after_help = SET_HELP)]
    Set(WorkloadArgs),
    /// List workloads
    Ls,
    /// Show one workload, and the nodes that hold a certificate of it
    Show {
        #[arg(value_name = "NS/NAME")]
        name: WorkloadName,
    },
    /// Delete a workload; its processes lose their identity at once
    Rm {
        #[arg(value_name = "NS/NAME")]
        name: WorkloadName,
    },
    /// Show which workloads a process of this node is, and why not the others
    #[command(after_help = "Example: muster workload explain --pid $(pidof nginx)")]
    Explain {
        /// A process on this machine
        #[arg(long, value_name = "N")]
        pid: u32,
    },
}

#[derive(Clone, Debug, Args)]
pub struct WorkloadArgs {
    /// Each of the two: 1 to 63 of [a-zA-Z0-9._-]
    #[arg(value_name = "NS/NAME")]
    pub name: WorkloadName,
    /// unix:uid:N, unix:gid:N, systemd:unit:NAME or unix:path:PATH. A process must match all that are given
    #[arg(long = "selector", value_name = "SELECTOR", required = true)]
    pub selectors: Vec<WorkloadSelector>,
    /// Only on nodes to which an operator gave this label (`muster node update`) [default: every node]
    #[arg(long = "node-label", value_name = "K=V", value_parser = super::parse_label)]
    pub node_labels: Vec<(String, String)>,
    /// Lifetime of a certificate, 5m to 24h [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub ttl: Option<Duration>,
    /// A DNS name for its certificates; may be repeated
    #[arg(long, value_name = "NAME")]
    pub dns: Vec<String>,
    /// Informs a program with several identities what this one is for
    #[arg(long, value_name = "TEXT")]
    pub hint: Option<String>,
    /// Allow JWTs, too
    #[arg(long)]
    pub jwt: bool,
    /// Confirm a selector unix:uid:0: every process of root would be this workload
    #[arg(long)]
    pub yes: bool,
}

const SET_HELP: &str =
    "The identity is spiffe://CLUSTER/workload/NS/NAME. Programs fetch it from the node's --workload-socket.

Example: muster workload set shop/web --selector unix:uid:1000 --node-label zone=a --dns web.shop.example
Example: muster workload set shop/db --selector systemd:unit:postgresql.service --ttl 2h";
