//! Failure-detection times of a test's daemons.

use super::World;

/// Raft timing for scenarios that are not about timing: on a busy machine a leader without processor time for a moment
/// stays leader. A killed leader is still noticed at once, because its address refuses connections. Scenarios
/// about timing clear [`World::settings`] and use the shipped values.
pub const SLOW_RAFT_TIMING: &str = "[raft]\nheartbeat = \"200ms\"\nelection_timeout = \"3s\"\n";

impl World {
    /// A running cluster with shipped timing.
    pub fn with_default_timing(managers: usize, workers: usize) -> Self {
        Self::with_timing_and_settings("", managers, workers)
    }

    /// The same, with additional configuration tables.
    pub fn with_timing_and_settings(settings: &str, managers: usize, workers: usize) -> Self {
        let mut world = Self::new();
        world.settings = settings.to_owned();
        world.up(managers, workers)
    }
}
