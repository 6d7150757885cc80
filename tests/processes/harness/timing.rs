//! Failure-detection times of a test's daemons.

use super::World;

/// Raft timing for scenarios that are not about timing: on a busy machine a leader without processor time for a moment
/// stays leader. A killed leader is still noticed at once, because its address refuses connections. Scenarios
/// about timing clear [`World::settings`] and use the shipped values.
pub const SLOW_RAFT_TIMING: &str = "[raft]\nheartbeat = \"200ms\"\nelection_timeout = \"3s\"\n";

/// Heartbeats so rare that a frozen node is not recorded as down for a minute and a half: for scenarios about what waits for such a
/// node. Whatever waits for a node that is down has another reason.
pub const SLOW_HEARTBEAT: &str = "[agent]\nheartbeat = \"30s\"\n";

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
