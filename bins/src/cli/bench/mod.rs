//! `muster bench`: load on a running cluster, and the times of role changes.

mod load;
mod roles;
mod stats;

use super::args::{BenchArgs, BenchCommand, Global};
use super::failure::Outcome;
use super::output::Out;

pub(super) async fn run(args: BenchArgs, out: Out, global: &Global) -> Outcome<u8> {
    match args.command {
        None => load::run(&args, out, global).await,
        Some(BenchCommand::Roles { rounds }) => roles::run(rounds, out).await,
    }
}
