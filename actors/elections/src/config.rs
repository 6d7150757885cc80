//! Every duration and bound of the elections, with its default and its reason.

use std::time::Duration;

/// The elections actor: the clock and its children.
#[derive(Clone, Debug, PartialEq)]
pub struct ElectionsConfig {
    pub keeper: KeeperConfig,
    pub coordination: CoordinationConfig,
    /// Mailbox capacity: one renewal per session, which waits for its answer.
    pub mailbox: usize,
    /// Maximum leases with candidates, each with an actor of a few KB. Further ones wait until one of these has no candidate
    /// left.
    pub max_contests: usize,
    /// Maximum candidates that participate in one election. Further ones wait until one has left. Electors run three to five;
    /// each costs a little with every sign of life of any of them.
    pub max_candidates: usize,
}

impl Default for ElectionsConfig {
    fn default() -> Self {
        Self {
            keeper: KeeperConfig::default(),
            coordination: CoordinationConfig::default(),
            mailbox: 16_384,
            max_contests: 4096,
            max_candidates: 256,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct KeeperConfig {
    /// The beat of the clock, by which it notices a suspended process.
    pub tick: Duration,
    /// The gap between beats that counts as a suspension: above a busy machine's timer delays, far below the shortest lease in
    /// use.
    pub stood_still: Duration,
    /// Maximum leases of waiting renewals. At 10,000 renewals in 2 s and a read of 1 ms a few dozen wait; this bound covers
    /// every holder at once, in some 10 MB.
    pub max_waiting: usize,
    /// Renewals within this time of a read share the next one. A read costs a heartbeat to every peer: 100 a second are
    /// negligible, and 10 ms matter little to a renewal.
    pub gather: Duration,
    /// Maximum reads in progress. Two, so that renewals during one read need not wait for its end.
    pub reads: usize,
    /// A read without a quorum ends after this: an election takes less, and a holder has time to retry.
    pub read_deadline: Duration,
    /// Maximum expiries in progress. They share the log's writes; a thousand simultaneous ones take 16 rounds.
    pub expiring: usize,
    /// Time limit for one proposal of an expiry.
    pub propose_deadline: Duration,
    /// The pause after a failed one.
    pub retry: Duration,
}

impl Default for KeeperConfig {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(100),
            stood_still: Duration::from_millis(250),
            max_waiting: 65_536,
            gather: Duration::from_millis(10),
            reads: 2,
            read_deadline: Duration::from_secs(2),
            expiring: 64,
            propose_deadline: Duration::from_secs(5),
            retry: Duration::from_millis(200),
        }
    }
}

/// Coordinated election, per contended lease.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinationConfig {
    /// How long others may follow the last candidate for a lease without a holder before one is elected; three times this after
    /// the first at most. Processes started together arrive within a second.
    pub settle: Duration,
    /// Time limit for a pinged candidate's answer before it is passed over. A client answers within its round trip.
    pub ack_window: Duration,
    /// The same for the candidate that just released the lease or let it expire: it has most likely stopped.
    pub departed_window: Duration,
    /// A candidate with a sign of life within this time may be elected without a ping. More than `ack_window`, so that early
    /// answers still count when the last candidate is given up.
    pub fresh: Duration,
    /// A candidate with a sign of life within this time is considered present, which suffices for a decision not to elect:
    /// candidates renew every 5 min.
    pub stale: Duration,
    /// Time for the elected candidate to take the lease. Unmodified electors read it every 2 to 4.4 s.
    pub elected_for: Duration,
    /// How long a candidate that was elected and did not take the lease yields to others.
    pub sit_out: Duration,
    /// A candidate silent for this long is deleted; six of its own renewals.
    pub candidate_lifetime: Duration,
    /// Maximum pings and other commands of one election in progress.
    pub pings: usize,
    /// Time limit for one command.
    pub propose_deadline: Duration,
    /// The pause after a failed one.
    pub retry: Duration,
    /// A write that the replica does not show is checked again after this.
    pub requeue: Duration,
    /// Mailbox capacity of one election: notifications, of which the newest counts.
    pub mailbox: usize,
}

impl Default for CoordinationConfig {
    fn default() -> Self {
        Self {
            settle: Duration::from_millis(1500),
            ack_window: Duration::from_secs(3),
            departed_window: Duration::from_millis(500),
            fresh: Duration::from_secs(5),
            stale: Duration::from_secs(15 * 60),
            elected_for: Duration::from_secs(5),
            sit_out: Duration::from_secs(60),
            candidate_lifetime: Duration::from_secs(30 * 60),
            pings: 64,
            propose_deadline: Duration::from_secs(5),
            retry: Duration::from_millis(200),
            requeue: Duration::from_secs(5),
            mailbox: 64,
        }
    }
}
