//! The arguments of `muster bench`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::duration::parse_duration;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Operation: replicated label writes, lease updates guarded by the revision (cas), linearizable reads, or reads of
    /// the whole actor tree [default: write and read]
    #[arg(long)]
    pub op: Option<BenchOp>,
    /// Protocol: muster-api/1, or HTTP (leases as Kubernetes clients do, labels in `/v1`)
    #[arg(long, default_value = "native")]
    pub via: Via,
    /// Concurrent clients, one run per number
    #[arg(long, value_delimiter = ',', default_value = "1,64,256", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub clients: Vec<u32>,
    /// Operations per run
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub ops: u64,
    /// Duration of a run, instead of a number of operations
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration, conflicts_with = "ops")]
    pub lasting: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure join, promotion, demotion and leader loss on a temporary cluster
    Roles {
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        rounds: u32,
    },
    /// Hold many leases on a temporary cluster; show latency and cost of renewals, and lost leases
    Leases(BenchLeases),
}

#[derive(Debug, Args)]
pub struct BenchLeases {
    /// Number of leases
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub leases: u32,
    /// Number of sessions that hold them, each with its own connection
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub sessions: u32,
    /// Renewal period of each lease
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = parse_duration)]
    pub every: Duration,
    /// Validity of a renewal; a holder steps down after two thirds of it
    #[arg(long, default_value = "15s", value_name = "DURATION", value_parser = parse_duration)]
    pub lease_duration: Duration,
    /// Duration of the measurement, once all leases are held
    #[arg(long = "for", default_value = "60s", value_name = "DURATION", value_parser = parse_duration)]
    pub lasting: Duration,
    /// Kill the leader (kill -9) this long into the measurement
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
