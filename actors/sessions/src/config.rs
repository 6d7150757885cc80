//! The durations and bounds of sessions and dispatcher, each with its default and reason.

use std::time::Duration;

/// The host's side of agent sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionsConfig {
    /// How often agents send heartbeats, ± `heartbeat_jitter`. The same value as the agents'.
    pub heartbeat: Duration,
    pub heartbeat_jitter: f64,
    /// A node is down after this many missed heartbeats of the longest kind (15 s, and 10 %).
    pub missed: u32,
    /// A deadline noticed this late means that this process was suspended; the agent gets one more heartbeat.
    pub stood_still: Duration,
    /// An accepted connection without a hello by then is closed.
    pub hello_deadline: Duration,
    /// Requests of one agent that may await the leader at once: everything that an agent has in flight by itself, which is its certificate, a
    /// membership request, a report of its manager runtime, the acknowledgement of roots, and two certificates of workloads.
    pub open_asks: usize,
    /// Requests to one agent that may wait at once.
    pub open_questions: usize,
    /// How long an agent's request may take at the leader.
    pub leader_deadline: Duration,
    /// A node that is down is forgotten once the cluster has recorded it, and after this long in any case.
    pub remember_down: Duration,
    /// An agent that takes none of the host's frames for this long is gone.
    pub write_deadline: Duration,
    /// Frames waiting to be written to one agent. Views are coalesced, answers are few.
    pub outbox: usize,
    /// Sessions opened per second, sustained. 10,000 agents of a restarted cluster are back on 3 managers within 7 s,
    /// at the cost of half a core for handshakes.
    pub registrations_per_sec: f64,
    /// Sessions opened at once.
    pub registration_burst: f64,
    /// Without a leader for this long, agents are asked to move and new ones are refused.
    pub leaderless_after: Duration,
    /// The earliest time at which an agent refused for lack of a leader should try this manager again.
    pub leaderless_retry: Duration,
    /// How often the manager's share of the sessions is counted.
    pub spread_every: Duration,
    /// A manager that has had too many sessions for this long moves some to the others. 30 s: a manager that restarts is back by then.
    pub spread_after: Duration,
    /// The longest such time, after repeated moves.
    pub spread_longest: Duration,
    /// Agents moved per second: of 10,000, two thirds are moved within six minutes.
    pub spread_per_sec: f64,
    /// Sessions above the share, and a quarter of that, that are not too many.
    pub spread_tolerance: usize,
    /// Session changes are collected for this long before they are sent to the leader.
    pub digest_batch: Duration,
    /// A full digest is sent this often in any case: it shows that this host is alive.
    pub digest_every: Duration,
    /// A digest without an answer by then is sent again.
    pub digest_deadline: Duration,
    /// The pause after a failed digest.
    pub digest_retry: Duration,
    /// Roughly how many bytes of facts one digest carries, well under the frame limit; more follow as changes.
    pub digest_bytes: usize,
    /// Processes with one identity are checked this often; those that did not alternate for twice as long are no longer
    /// shown.
    pub warn_every: Duration,
    /// Messages that may wait for the sessions' host: reports of every session at once.
    pub mailbox: usize,
    /// Messages that may wait for one session.
    pub session_mailbox: usize,
    /// Accepted connections that wait for their session.
    pub arrivals: usize,
}

impl Default for SessionsConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(5),
            heartbeat_jitter: 0.1,
            missed: 3,
            stood_still: Duration::from_secs(2),
            hello_deadline: Duration::from_secs(5),
            open_asks: 6,
            open_questions: 8,
            leader_deadline: Duration::from_secs(10),
            remember_down: Duration::from_secs(60),
            write_deadline: Duration::from_secs(5),
            outbox: 16,
            registrations_per_sec: 500.0,
            registration_burst: 1000.0,
            leaderless_after: Duration::from_secs(5),
            leaderless_retry: Duration::from_secs(5),
            spread_every: Duration::from_secs(5),
            spread_after: Duration::from_secs(30),
            spread_longest: Duration::from_secs(3600),
            spread_per_sec: 20.0,
            spread_tolerance: 16,
            digest_batch: Duration::from_millis(20),
            digest_every: Duration::from_secs(5),
            digest_deadline: Duration::from_secs(2),
            digest_retry: Duration::from_millis(200),
            digest_bytes: 256 * 1024,
            warn_every: Duration::from_secs(60),
            mailbox: 65_536,
            session_mailbox: 64,
            arrivals: 256,
        }
    }
}

impl SessionsConfig {
    /// Silence for this long makes a node down.
    pub fn down_after(&self) -> Duration {
        self.heartbeat.mul_f64(1.0 + self.heartbeat_jitter) * self.missed
    }
}

/// The leader's settings for the liveness of all nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatcherConfig {
    /// How long a node without a session keeps its last state: three heartbeats of the longest kind (16.5 s), the longest
    /// pause between an agent's connections (2 s), and time for the digest. It is prolonged while many have none (DISP-9).
    pub grace: Duration,
    /// This long without any input means that this process was suspended (digests arrive every 5 s).
    pub stood_still: Duration,
    /// If two hosts call one node ready with different instances for this long, there are two processes: a dead session
    /// would be down by then.
    pub overlap: Duration,
    /// Changes per command. A command is applied without interruption; 100 changes keep that under a millisecond.
    pub batch: usize,
    /// Commands in flight.
    pub in_flight: usize,
    pub propose_deadline: Duration,
    /// The pause after a failed proposal.
    pub retry: Duration,
    /// Two processes with one identity are shown until no sign of them was seen for this long.
    pub quiet: Duration,
    pub mailbox: usize,
}

impl Default for DispatcherConfig {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(20),
            stood_still: Duration::from_secs(8),
            overlap: Duration::from_secs(25),
            batch: 100,
            in_flight: 4,
            propose_deadline: Duration::from_secs(5),
            retry: Duration::from_millis(200),
            quiet: Duration::from_secs(60),
            mailbox: 1024,
        }
    }
}
