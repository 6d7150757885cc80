//! Every duration and bound of the elections, with its default and how it was chosen.

use std::time::Duration;

/// The elections actor: the clock and what is below it.
#[derive(Clone, Debug, PartialEq)]
pub struct ElectionsConfig {
    pub keeper: KeeperConfig,
    pub coordination: CoordinationConfig,
    /// Messages that may wait: a renewal each, of a session that waits for its answer before it sends the next.
    pub mailbox: usize,
    /// Leases with candidates that have an actor each, of a few KB. Further ones wait until one of these has none left.
    pub max_contests: usize,
    /// Candidates of one contest that take part. Further ones wait until one of these has gone. Electors run three to five
    /// candidates; each of these costs a little with every sign of life of any of them.
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

/// The clock over all leases.
#[derive(Clone, Debug, PartialEq)]
pub struct KeeperConfig {
    /// The clock's own beat, by which it notices that the process stood still.
    pub tick: Duration,
    /// So long without a beat, and this process had stopped. Above what a busy machine does to a timer, far below the
    /// shortest lease that anybody uses.
    pub stood_still: Duration,
    /// Leases of renewals that wait for their confirmation. At 10,000 renewals in 2 s and a read of 1 ms a few dozen wait;
    /// this many are those of every holder at once, in some 10 MB.
    pub max_waiting: usize,
    /// Renewals that come within this time of a read share the next one. A read costs a heartbeat to every peer: 100 of
    /// them a second are nothing, and 10 ms are little in a renewal.
    pub gather: Duration,
    /// Reads under way. Two, so that those who came while one is under way need not wait for its end.
    pub reads: usize,
    /// A read without a quorum ends after this: an election takes less, and a holder has time to try again.
    pub read_deadline: Duration,
    /// Expiries under way. They share the log's writes; a thousand holders that die together are expired in 16 rounds.
    pub expiring: usize,
    /// How long one proposal of an expiry is waited for.
    pub propose_deadline: Duration,
    /// The pause after one that failed.
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

/// Coordinated election, per contested lease.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinationConfig {
    /// After the last candidate came to a lease that nobody holds, this long others may follow before one is elected; three
    /// times this after the first in any case. Processes that are started together come within a second of each other.
    pub settle: Duration,
    /// A candidate that was asked has this long to answer before it is passed over. A client answers within its round trip.
    pub ack_window: Duration,
    /// The same for whoever has just given the lease up or let it expire: most likely it has gone.
    pub departed_window: Duration,
    /// Whoever gave a sign of life within this time may be elected without being asked again. More than `ack_window`, so
    /// that those who answered at once still count when the last one is given up.
    pub fresh: Duration,
    /// Whoever gave a sign within this time is believed to be there, which is enough not to elect: candidates renew
    /// themselves every 5 min.
    pub stale: Duration,
    /// How long the elected one has to take the lease up. Unmodified electors look every 2 to 4.4 s.
    pub elected_for: Duration,
    /// Whoever was elected and did not take the lease up lets others go first for this long.
    pub sit_out: Duration,
    /// A candidate without a sign of life for this long is deleted; six of its own renewals.
    pub candidate_lifetime: Duration,
    /// Pings and other commands of one contest under way.
    pub pings: usize,
    /// How long one command is waited for.
    pub propose_deadline: Duration,
    /// The pause after one that failed.
    pub retry: Duration,
    /// A write that does not show in the copy is looked at again after this.
    pub requeue: Duration,
    /// Messages that wait for one contest: looks at a newer scene, of which the newest counts.
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
