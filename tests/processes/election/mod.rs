//! Elections among real `muster elect` processes on a real cluster.

mod candidate;
mod coordinated;
mod deletion;
mod fenced;
mod giving_up;
pub mod played;
mod records;
mod recovered;
mod rounds;
mod server;

/// The seed of the rounds; printed, and repeated with this variable.
const SEED: &str = "MUSTER_SEED";
