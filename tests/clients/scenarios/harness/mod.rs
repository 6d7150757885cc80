//! A real cluster with real clients: programs in other languages as processes, Rust clients in this process.
//!
//! Invariants  CLIENTS-1  whatever happens to a test, its processes end and its folder is deleted: they are killed with the values
//!                        that represent them, and by the kernel when the test's thread ends.
//!             CLIENTS-2  every wait is for a condition, with a deadline far above its usual duration.

mod cluster;
mod program;
mod proto;
mod wire;

pub use muster_local_cluster::eventually;

pub use self::cluster::{Cluster, Kubeconfig};
pub use self::program::{EndedProgram, Program};
pub use self::proto::{Answer, Connection, Elector, Timing};
pub use self::wire::{candidate, envelope, lease};

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_local_cluster::until;

/// Time limit of every wait.
pub const WAIT_LIMIT: Duration = muster_local_cluster::WAIT_LIMIT;

/// Time limit of a scenario: a hung client must not hang the run.
const SCENARIO_TIMEOUT: Duration = Duration::from_secs(180);

/// The folder for the clients that `tests/clients/run` fetches.
pub fn fetched() -> PathBuf {
    at("MUSTER_CLIENTS", "../../target/clients")
}

/// `muster` as cargo built it.
pub fn muster() -> PathBuf {
    at("MUSTER", "../../target/debug/muster")
}

fn at(variable: &str, usual: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(|| here().join(usual), PathBuf::from);
    assert!(path.exists(), "{} is missing: `tests/clients/run` creates it", path.display());
    path
}

/// The folder of this package.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a scenario of asynchronous clients, which may also wait for processes.
#[track_caller]
pub fn scenario(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime.expect("a runtime").block_on(async { tokio::time::timeout(SCENARIO_TIMEOUT, work).await });
    outcome.unwrap_or_else(|_| panic!("the scenario did not end within {SCENARIO_TIMEOUT:?}"));
}

/// [`eventually`] for asynchronous conditions.
pub async fn eventually_async<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    until(what, async || Ok(look().await)).await.unwrap_or_else(|failure| panic!("{failure}"))
}
