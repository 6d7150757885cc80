//! A real cluster under many faults at once, repeatedly restored and checked. docs/chaos.md describes the test and
//! its long run.

mod checks;
mod cluster;
mod faults;
pub mod vitals;

use std::time::{Duration, Instant};

use muster_messages::Rng;

use self::cluster::Cluster;
use crate::harness::exclusive_use;

/// Length of a storm. Combined faults find bugs; the check after each storm locates them.
const STORM_DURATION: Duration = Duration::from_secs(20);

/// A number from the environment.
fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().map_or(usual, |text| text.parse().expect("a number"))
}

/// `MUSTER_CHAOS_SECS=3600` is the long run; `MUSTER_SEED` repeats its choices.
#[test]
#[ignore = "full tier"]
fn cluster_is_consistent_after_every_storm() {
    let seed = setting("MUSTER_SEED", rand::random());
    println!("MUSTER_SEED={seed} repeats the choices of this run; the timing of processes differs");
    let storms_for = Duration::from_secs(setting("MUSTER_CHAOS_SECS", 40));
    let begun = Instant::now();
    let _machine = exclusive_use();
    let mut cluster = Cluster::begin(Rng::seeded(seed));
    while begun.elapsed() < storms_for {
        cluster.storm(STORM_DURATION);
        cluster.calm();
    }
    cluster.end();
}
