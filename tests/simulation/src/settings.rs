//! The configuration of a simulation's cores.

use std::time::Duration;

use muster_agent::AgentConfig;
use muster_raft_member::core::RaftConfig;
use muster_sessions::{DispatcherConfig, SessionsConfig};

use crate::bugs::Bug;

/// Configuration of the cores in a simulation.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub raft: RaftConfig,
    pub roles: muster_role_manager::core::Config,
    pub authority: muster_cert_authority::Config,
    pub rotation: muster_root_rotation::Config,
    pub autopilot: muster_autopilot::Config,
    pub agent: AgentConfig,
    pub sessions: SessionsConfig,
    pub dispatcher: DispatcherConfig,
    pub bug: Option<Bug>,
}

impl Settings {
    /// Time after the last fault by which all its silences are over: the grace for a silent host, in which its
    /// agents find another.
    pub fn quiet_after(&self) -> Duration {
        self.sessions.down_after() + self.dispatcher.grace
    }

    /// Sets the heartbeat interval, and shorter timeouts than the product's, as a simulated minute needs.
    pub fn shorten_timeouts(&mut self, heartbeat: Duration) {
        const SILENCE_LIMIT: Duration = Duration::from_secs(3);
        let beats = u32::try_from(SILENCE_LIMIT.as_micros() / heartbeat.as_micros().max(1)).unwrap_or(1);
        self.agent = AgentConfig {
            heartbeat,
            silent_beats: beats,
            forgive: Duration::from_secs(2),
            first_view: Duration::from_secs(2),
            sign_deadline: Duration::from_millis(2500),
            sign_retry_cap: Duration::from_secs(2),
            ..AgentConfig::default()
        };
        self.sessions = SessionsConfig {
            heartbeat,
            missed: beats,
            hello_deadline: Duration::from_secs(2),
            remember_down: Duration::from_secs(8),
            leaderless_after: Duration::from_secs(2),
            leaderless_retry: Duration::from_secs(1),
            digest_every: Duration::from_secs(1),
            ..SessionsConfig::default()
        };
        self.dispatcher = DispatcherConfig {
            grace: SILENCE_LIMIT * 2,
            stood_still: Duration::from_secs(2),
            overlap: SILENCE_LIMIT * 3,
            ..DispatcherConfig::default()
        };
    }
}
