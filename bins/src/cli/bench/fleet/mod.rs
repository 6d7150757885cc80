//! `muster bench fleet`: many agents in this process against a temporary cluster of three managers.
//!
//! The agents are the nodes' own code: each joins with the one token, has a certificate, a session over TLS and heartbeats, and dials again
//! when it loses its manager. Their small files are in memory, because on their own machines they would not share the managers' disk. All else
//! is shared: this process takes its part of the processors from the managers.

mod agents;
mod cluster;
mod delays;
mod report;
mod sessions;
mod steps;
mod traffic;

use muster_client::{Failure, Outcome};
use muster_local_cluster::memory_folder;
use muster_messages::ErrorCode;

use self::agents::Fleet;
use self::steps::measured;
use super::temporary::{on_temporary_cluster, removed};
use crate::cli::args::BenchFleet;
use crate::cli::output::Out;
use crate::open_files::open_files_limit;

/// All agents join from one address, and not from ten thousand: the limit of joins for each address would be measured.
const SETTINGS: &str = "\n[gateway]\njoins_per_second = 10000\n";

/// Fewer than eight small files, also while it replaces one by another: a page of memory each.
const BYTES_OF_AN_AGENT: u64 = 8 * 4096;

/// Files that this process has open beside its agents' connections.
const OTHER_FILES: u64 = 256;

pub async fn run(args: &BenchFleet, out: Out) -> Outcome<u8> {
    check_open_files(args, open_files_limit())?;
    let document = on_temporary_cluster(3, 1, SETTINGS, async |cluster, interrupts| {
        let folder = memory_folder("fleet", u64::from(args.agents) * BYTES_OF_AN_AGENT)?;
        let mut fleet = Fleet::default();
        let work = Box::pin(measured(cluster, &mut fleet, folder.path(), args, out));
        let outcome = interrupts.during(work).await;
        // In this order, and before the managers end: a running agent that loses its manager writes into the folder that is being removed.
        fleet.shut_down().await;
        removed(folder, outcome)
    })
    .await?;
    out.document(&document.to_string(), String::new, || report::table(&document));
    Ok(0)
}

/// Each agent has one connection, and briefly another one while it moves.
fn check_open_files(args: &BenchFleet, allowed: Option<u64>) -> Outcome {
    let connections = u64::from(args.agents) * (1 + u64::from(args.reconcilers));
    let needed = connections + OTHER_FILES;
    let Some(allowed) = allowed.filter(|allowed| *allowed < needed) else { return Ok(()) };
    let text = format!(
        "{} agents need {needed} open files, and this process may have {allowed}; raise the hard limit (`ulimit -Hn`, or nofile in \
         limits.conf), or run fewer agents",
        args.agents
    );
    Err(Failure::new(ErrorCode::Invalid, text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn more_agents_than_open_files_are_refused() {
        let time = Duration::from_secs(1);
        let args =
            |reconcilers| BenchFleet { agents: 1000, joining: None, idle: time, changes: 0, limit: time, reconcilers };
        for (reconcilers, needed) in [(false, 1256), (true, 2256)] {
            assert_eq!(check_open_files(&args(reconcilers), Some(needed)), Ok(()));
            assert_eq!(check_open_files(&args(reconcilers), None), Ok(()), "there is no limit");
            let refused = check_open_files(&args(reconcilers), Some(needed - 1)).unwrap_err();
            assert!(refused.message.contains(&format!("need {needed} open files")), "{refused}");
        }
    }
}
