//! What `muster bench` accepts.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::duration::parse_duration;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// What the clients do: replicated label writes, changes of a lease guarded by its revision, linearizable reads, or
    /// looks at the whole tree of actors
    /// [default: write and read]
    #[arg(long)]
    pub op: Option<BenchOp>,
    /// How they ask: in frames over muster-api/1, or over HTTP: leases as clients of Kubernetes do, labels in `/v1`
    #[arg(long, default_value = "native")]
    pub via: Via,
    /// How many clients at once, one run each
    #[arg(long, value_delimiter = ',', default_value = "1,64,256", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub clients: Vec<u32>,
    /// Operations per run
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// Run for this long instead of counting operations
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with = "ops")]
    pub lasting: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time join, promotion, demotion and loss of the leader, on a cluster of its own
    Roles {
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
    },
    /// Hold many leases for a while, on a cluster of its own: what their renewals take and cost, and whether one is lost
    Leases(BenchLeases),
}

#[derive(Debug, Args)]
pub struct BenchLeases {
    /// How many
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub leases: u32,
    /// Sessions, each with a connection of its own, that hold them
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub sessions: u32,
    /// How often each is renewed
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    pub every: Duration,
    /// How long a renewal is good for; holders step down after two thirds of it
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = parse_duration)]
    pub lease_duration: Duration,
    /// How long, once all are held
    #[arg(long = "for", default_value = "60s", value_name = "DURATION", value_parser = parse_duration)]
    pub lasting: Duration,
    /// Kill the cluster's leader (kill -9) so long after the start
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub kill_leader: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchOp {
    Write,
    Cas,
    Read,
    Actors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    Native,
    Rest,
}
