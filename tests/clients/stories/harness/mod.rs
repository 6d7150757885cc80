//! A real cluster, and real clients beside it: programs of other languages as processes, clients in Rust within.
//!
//! Keeps  CLIENTS-1  whatever happens to a test, its processes end and its folder goes: they are killed with the values
//!                   that stand for them, and by the kernel when the test's thread ends.
//!        CLIENTS-2  every wait is for something to become true, with a deadline far above what it takes.

mod cluster;
mod program;
mod proto;
mod wire;

pub use muster_local_cluster::eventually;

pub use self::cluster::{Cluster, Kubeconfig};
pub use self::program::{Program, Ran};
pub use self::proto::{Answer, Connection, Elector, Timing};
pub use self::wire::{candidate, envelope, lease};

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_local_cluster::until;

/// How long anything may take before a story fails.
pub const PATIENCE: Duration = muster_local_cluster::WAIT_LIMIT;

/// The longest story: a client that hangs must not hang the run.
const LONGEST: Duration = Duration::from_secs(180);

/// Where `tests/clients/run` keeps the clients that it fetched.
pub fn fetched() -> PathBuf {
    at("MUSTER_CLIENTS", "../../target/clients")
}

/// `muster` as cargo built it.
pub fn muster() -> PathBuf {
    at("MUSTER", "../../target/debug/muster")
}

fn at(variable: &str, usual: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(|| here().join(usual), PathBuf::from);
    assert!(path.exists(), "{} is missing: `tests/clients/run` makes it", path.display());
    path
}

/// The folder of this package.
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a story of asynchronous clients, beside which the story may also wait for processes.
#[track_caller]
pub fn story(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let told = runtime.expect("a runtime").block_on(async { tokio::time::timeout(LONGEST, work).await });
    told.unwrap_or_else(|_| panic!("the story did not end within {LONGEST:?}"));
}

/// [`eventually`] for what is asked of a client.
pub async fn eventually_async<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    until(what, async || Ok(look().await)).await.unwrap_or_else(|failure| panic!("{failure}"))
}
