//! Every duration and bound of sessions and dispatcher, with its default and how it was chosen.

use std::time::Duration;

/// The host's side of agent sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionsConfig {
    /// How often agents beat, ± `heartbeat_jitter`. The same value as the agents'.
    pub heartbeat: Duration,
    pub heartbeat_jitter: f64,
    /// A node is down after this many missed heartbeats of the longest kind (15 s, and 10 %).
    pub missed: u32,
    /// A deadline noticed so late means that this process had stopped; the agent gets one more heartbeat.
    pub stood_still: Duration,
    /// An accepted connection says hello by then or is closed.
    pub hello_deadline: Duration,
    /// Questions of one agent that wait for the leader at once: a certificate and a seat, and room for a repeat.
    pub open_asks: usize,
    /// Questions to one agent that wait at once.
    pub open_questions: usize,
    /// How long an agent's question may take at the leader.
    pub leader_deadline: Duration,
    /// A node that is down is forgotten once the cluster has recorded it, and after this long in any case.
    pub remember_down: Duration,
    /// An agent that takes none of our frames for this long is gone.
    pub write_deadline: Duration,
    /// Frames that wait to be written to one agent. Views are coalesced, answers are few.
    pub outbox: usize,
    /// Sessions opened per second, sustained. 10,000 agents of a restarted cluster are back on 3 managers within 7 s,
    /// at the cost of half a core for handshakes.
    pub registrations_per_sec: f64,
    /// Sessions opened at once.
    pub registration_burst: f64,
    /// Without a leader for this long, agents are asked to move and new ones are refused.
    pub leaderless_after: Duration,
    /// When an agent refused for want of a leader should try this manager again, at the earliest.
    pub leaderless_retry: Duration,
    /// Changes of sessions travel to the leader together for this long.
    pub digest_batch: Duration,
    /// A full digest goes out this often whatever happens: it says that this host is alive.
    pub digest_every: Duration,
    /// A digest without an answer by then is sent again.
    pub digest_deadline: Duration,
    /// The pause after a digest that failed.
    pub digest_retry: Duration,
    /// About this many bytes of facts travel in one digest, well under the frame limit; more follow as changes.
    pub digest_bytes: usize,
    /// What is remembered of processes with one identity is looked through this often; those that took no turns for twice as
    /// long are no longer shown.
    pub warn_every: Duration,
    /// Messages that may wait for the host of the sessions: news of every session at once.
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
            open_asks: 4,
            open_questions: 8,
            leader_deadline: Duration::from_secs(10),
            remember_down: Duration::from_secs(60),
            write_deadline: Duration::from_secs(5),
            outbox: 16,
            registrations_per_sec: 500.0,
            registration_burst: 1000.0,
            leaderless_after: Duration::from_secs(5),
            leaderless_retry: Duration::from_secs(5),
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

/// The leader's view of all sessions.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatcherConfig {
    /// How long a node keeps its last state without any session: three heartbeats of the longest kind (16.5 s), the
    /// longest pause between an agent's connections (2 s), and time for the digest.
    pub grace: Duration,
    /// So long without any input, and this process itself had stopped (digests come every 5 s).
    pub stood_still: Duration,
    /// Two hosts that both call one node ready under different instances for this long mean two processes: a session that
    /// is dead is down by then.
    pub overlap: Duration,
    /// Changes per command. A command is applied in one turn; 100 keep that turn under a millisecond.
    pub batch: usize,
    /// Commands in flight.
    pub in_flight: usize,
    pub propose_deadline: Duration,
    /// The pause after a proposal that failed.
    pub retry: Duration,
    /// Two processes with one identity are shown until there was no sign of them for so long.
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
