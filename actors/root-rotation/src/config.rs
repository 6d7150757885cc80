//! The times and limits of a rotation.

use std::time::Duration;

/// The settings of a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long workers that are ready are awaited before a published root signs. A worker that has not answered by then learns
    /// of the root by its next session; certificates lead it there meanwhile.
    pub publish: Duration,
    /// How long a root stays trusted, with its key, after another one was activated: the time for a way back.
    pub retire_after: Duration,
    /// How long a node that was asked to renew holds its place.
    pub renew: Duration,
    /// Workers that are asked to renew at the same time: signing takes about 100 µs, the log entry a few milliseconds.
    pub wave: usize,
    /// The longest lifetime of a certificate. The certificates that lead to an older root last a day longer.
    pub longest_certificate: Duration,
    /// The shortest time between two looks at the state: one look costs as much as there are nodes.
    pub pace: Duration,
    /// A command asks the authority above for issuing certificates.
    pub upstream: bool,
    /// A root that the authority above certified by that command signs as soon as the nodes trust it. Otherwise an operator activates
    /// it: the authority above limits the lifetime, and the operator decides when all nodes renew.
    pub auto: bool,
    /// Steps of operators in progress. Each takes a few milliseconds.
    pub max_pending: usize,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Default for Config {
    fn default() -> Self {
        Self {
            publish: Duration::from_secs(60),
            retire_after: HOUR,
            renew: Duration::from_secs(60),
            wave: 64,
            longest_certificate: HOUR * 24 * 366,
            pace: Duration::from_millis(100),
            upstream: false,
            auto: false,
            max_pending: 16,
        }
    }
}
