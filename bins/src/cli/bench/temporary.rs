//! The cluster of one benchmark: daemons that run only as long as the measurement, in a folder that is removed with them.

use muster_client::{Failure, Outcome};
use muster_local_cluster::{Lifetime, free_address, temporary_folder};
use tempfile::TempDir;

use crate::cli::dev::cluster::LocalCluster;
use crate::cli::dev::state::State;
use crate::cli::signals::Interrupts;

/// Measures on a new cluster, whose nodes are not started yet. `settings` are more sections for their configuration. The measurement decides
/// what a signal ends ([`Interrupts::during`]): what it runs in this process beside the cluster, it ends itself.
pub async fn on_temporary_cluster<T>(
    managers: u16,
    workers: u16,
    settings: &str,
    measure: impl AsyncFnOnce(&mut LocalCluster, &mut Interrupts) -> Outcome<T>,
) -> Outcome<T> {
    // First: a signal that arrives before this ends the process at once, and must find nothing to clean up.
    let mut interrupts = Interrupts::listen()?;
    let folder = temporary_folder("bench")?;
    let state = State::plan(managers, workers, free_address)?;
    let mut cluster = LocalCluster::prepare_with(folder.path(), state, Lifetime::Tied, settings)?;
    let outcome = measure(&mut cluster, &mut interrupts).await;
    // In this order: a running daemon would write into the folder that is being removed.
    cluster.kill_all().await;
    removed(folder, outcome)
}

/// Removes a folder. The outcome stays, unless it was good and the folder cannot be removed.
pub fn removed<T>(folder: TempDir, outcome: Outcome<T>) -> Outcome<T> {
    let removed = folder.close().map_err(|e| Failure::io("cannot remove the temporary folder", &e));
    outcome.and_then(|value| removed.map(|()| value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_reported_and_the_folder_is_gone() {
        let outcomes = [Ok(7), Err(Failure::internal("it took too long"))];
        for outcome in outcomes {
            let folder = temporary_folder("removed").unwrap();
            let path = folder.path().to_owned();
            assert_eq!(removed(folder, outcome.clone()), outcome);
            assert!(!path.exists(), "{outcome:?}");
        }
        let gone = temporary_folder("removed").unwrap();
        std::fs::remove_dir(gone.path()).unwrap();
        assert!(removed(gone, Ok(7)).is_err(), "what was to be removed is not there");
    }
}
