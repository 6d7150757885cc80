//! The durations and bounds of the agent and of joining, each with its default and reason.

use std::time::Duration;

/// The agent's timings and bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentConfig {
    /// Between heartbeats, ± `heartbeat_jitter`. 5 s: three missed are 15 s, the time after which a node is down.
    pub heartbeat: Duration,
    /// Share of the period by which heartbeats vary, so that a fleet started together spreads out.
    pub heartbeat_jitter: f64,
    /// This many periods without a frame from the host, and the agent reconnects.
    pub silent_beats: u32,
    /// The pause after the first failed connection. 20 ms: a killed manager should go unnoticed.
    pub reconnect_first: Duration,
    /// The longest pause between connections.
    pub reconnect_cap: Duration,
    /// A session that lasted this long clears the failures before it. Shorter ones do not: two processes with one
    /// identity would otherwise take the session from each other in a tight loop.
    pub stable_after: Duration,
    /// For this long a manager that failed is tried only after the others.
    pub forgive: Duration,
    /// A host that has sent no view by then does not know this node: another one may.
    pub first_view: Duration,
    /// The revision of a view or of a list of workloads is forgotten once all others have been older for this long: it was false. No
    /// host lags behind for so long and keeps its sessions.
    pub forget_views: Duration,
    /// For resolve, connect, TLS and greeting together, in addition to the dialer's own limits.
    pub dial_deadline: Duration,
    /// A certificate request without an answer by then was lost.
    pub sign_deadline: Duration,
    /// The pause after the first failed renewal.
    pub sign_retry_first: Duration,
    /// The longest pause between renewals: a role change must not wait for an hourly timer.
    pub sign_retry_cap: Duration,
    /// Requests to the leader that may await an answer at once. The manager runtime sends one at a time.
    pub open_asks: usize,
    /// Those of them for certificates of workloads. The host accepts six requests of a node, of which the other four are the node's own: those
    /// must not wait for workloads.
    pub open_workload_asks: usize,
    /// Frames waiting to be written to the host. A host that reads nothing for so long counts as silent.
    pub outbox: usize,
    /// The host's requests about this node's actors that may be in progress at once.
    pub open_questions: usize,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(5),
            heartbeat_jitter: 0.1,
            silent_beats: 3,
            reconnect_first: Duration::from_millis(20),
            reconnect_cap: Duration::from_secs(2),
            stable_after: Duration::from_secs(5),
            forgive: Duration::from_secs(10),
            first_view: Duration::from_secs(10),
            forget_views: Duration::from_secs(60),
            dial_deadline: Duration::from_secs(10),
            sign_deadline: Duration::from_secs(10),
            sign_retry_first: Duration::from_millis(100),
            sign_retry_cap: Duration::from_secs(5),
            open_asks: 8,
            open_workload_asks: 2,
            outbox: 32,
            open_questions: 8,
        }
    }
}

/// Joining's timings.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinConfig {
    /// The pause after the first failed round over the addresses, ×1.5 with each further one.
    pub retry_first: Duration,
    pub retry_cap: Duration,
    /// For each of resolve, connect, TLS and each frame.
    pub stage_deadline: Duration,
    /// For the answer to the request itself: it waits for a quorum.
    pub answer_deadline: Duration,
}

impl Default for JoinConfig {
    fn default() -> Self {
        Self {
            retry_first: Duration::from_millis(100),
            retry_cap: Duration::from_secs(5),
            stage_deadline: Duration::from_secs(5),
            answer_deadline: Duration::from_secs(15),
        }
    }
}
