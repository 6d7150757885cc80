//! How soon the daemons of a test take each other for gone.

use super::World;

/// Raft's timing for scenarios that are about something else: on a busy machine a leader that gets no processor for a moment
/// keeps its office. A leader that was killed is missed as soon as ever, because its address refuses connections. Scenarios
/// about the timing itself clear [`World::settings`], and have what is shipped.
pub const PATIENT: &str = "[raft]\nheartbeat = \"200ms\"\nelection_timeout = \"3s\"\ntransfer_wait = \"10s\"\n";

impl World {
    /// A running cluster with the timing that is shipped.
    pub fn as_shipped(managers: usize, workers: usize) -> Self {
        Self::as_shipped_but("", managers, workers)
    }

    /// The same, with further tables of their configuration.
    pub fn as_shipped_but(settings: &str, managers: usize, workers: usize) -> Self {
        let mut world = Self::new();
        world.settings = settings.to_owned();
        world.up(managers, workers)
    }
}
