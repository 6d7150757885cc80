//! `muster bench`: load on a running cluster, times of role changes, the cost of holding many leases, of many agents, and of sealed disks.

mod access;
mod fleet;
mod holders;
mod leases;
mod load;
mod native;
mod rest;
mod roles;
mod sealing;
mod stats;
mod temporary;

use muster_client::Outcome;

use super::args::{BenchArgs, BenchCommand, Global};
use super::output::Out;
use crate::open_files::raise_open_files;

pub(super) async fn run(args: BenchArgs, out: Out, global: &Global) -> Outcome<u8> {
    // Each client and each agent is a connection. Where the hard limit is too low, a benchmark fails by itself, with the reason.
    let _refused = raise_open_files();
    match args.command {
        None => load::run(&args, out, global).await,
        Some(BenchCommand::Roles { rounds }) => roles::run(rounds, out).await,
        Some(BenchCommand::Leases(args)) => leases::run(&args, out).await,
        Some(BenchCommand::Fleet(args)) => fleet::run(&args, out).await,
        Some(BenchCommand::Sealing(args)) => sealing::run(args, out).await,
    }
}
