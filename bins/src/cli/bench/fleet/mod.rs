//! `muster bench fleet`: many agents in this process against a temporary cluster of three managers.
//!
//! The agents are the nodes' own code: each joins with the one token, has a certificate, a session over TLS and heartbeats, and dials again
//! when it loses its manager. Their small files are in memory, because on their own machines they would not share the managers' disk. All else
//! is shared: this process takes its part of the processors from the managers.

mod agents;
mod cluster;
mod report;
mod sessions;
mod steps;
mod traffic;

use muster_client::{Failure, Outcome};
use muster_local_cluster::{Lifetime, free_address, memory_folder, temporary_folder};
use muster_messages::ErrorCode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::steps::measured;
use crate::cli::args::BenchFleet;
use crate::cli::dev::cluster::LocalCluster;
use crate::cli::dev::state::State;
use crate::cli::output::Out;
use crate::cli::signals::Interrupts;

/// All agents join from one address, and not from ten thousand: the limit of joins for each address would be measured.
const SETTINGS: &str = "\n[gateway]\njoins_per_second = 10000\n";

pub async fn run(args: &BenchFleet, out: Out) -> Outcome<u8> {
    raise_open_files(args)?;
    let mut interrupts = Interrupts::listen()?;
    let folder = temporary_folder("bench")?;
    let agents_folder = memory_folder("fleet")?;
    let state = State::plan(3, 1, free_address)?;
    let mut cluster = LocalCluster::prepare_with(folder.path(), state, Lifetime::Tied, SETTINGS)?;
    let outcome = tokio::select! {
        outcome = measured(&mut cluster, agents_folder.path(), args, out) => outcome,
        word = interrupts.next() => Err(Failure::internal(word)),
    };
    cluster.kill_all().await;
    let removed = [folder, agents_folder].map(|folder| {
        let failed = |e| Failure::io("cannot remove the temporary folder", &e);
        folder.close().map_err(failed)
    });
    let document = outcome?;
    for removed in removed {
        removed?;
    }
    out.document(&document.to_string(), String::new, || report::table(&document));
    Ok(0)
}

/// Files that this process has open beside its agents' connections.
const OTHER_FILES: u64 = 256;

/// Each agent has one connection, and briefly another one while it moves.
fn raise_open_files(args: &BenchFleet) -> Outcome {
    let limit = getrlimit(Resource::Nofile);
    let _refused = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = u64::from(args.agents) * (1 + u64::from(args.reconcilers));
    let needed = connections + OTHER_FILES;
    if needed <= allowed {
        return Ok(());
    }
    let text = format!(
        "{} agents need {needed} open files, and this process may have {allowed}; raise the hard limit (`ulimit -Hn`, or nofile in \
         limits.conf), or run fewer agents",
        args.agents
    );
    Err(Failure::new(ErrorCode::Invalid, text))
}
