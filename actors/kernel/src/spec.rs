//! How a child is made and kept.

use std::sync::Arc;
use std::time::Duration;

use crate::host::{Launch, launch_actor};
use crate::supervisor::launch_group;
use crate::{Address, Children, Fault, Shell};

/// When a child that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Always.
    Permanent,
    /// Only after a failure.
    Transient,
    /// Never.
    Temporary,
}

/// Delays between restarts: `first` × 1.5ⁿ with 50 % jitter, at most `cap`; back to `first` after `stable_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub cap: Duration,
    pub stable_after: Duration,
}

impl Backoff {
    /// 500 ms to 60 s: for actors whose start costs something or whose failure is likely to repeat.
    pub const SLOW: Backoff = Backoff {
        first: Duration::from_millis(500),
        cap: Duration::from_secs(60),
        stable_after: Duration::from_secs(30),
    };
    /// 10 ms to 5 s: for actors that start in microseconds.
    pub const QUICK: Backoff = Backoff {
        first: Duration::from_millis(10),
        cap: Duration::from_secs(5),
        stable_after: Duration::from_secs(30),
    };
}

/// More failures than `max` within `window` end the supervisor itself: its parent decides (OTP's restart intensity).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    pub max: usize,
    pub window: Duration,
}
impl Default for Intensity {
    fn default() -> Self {
        Self { max: 10, window: Duration::from_secs(60) }
    }
}

/// A child specification.
#[derive(Clone)]
pub struct Spec {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) restart: Restart,
    pub(crate) backoff: Backoff,
    /// A start that takes longer is a failure.
    pub(crate) start_deadline: Duration,
    /// After this a stopping child is killed; after twice this it is stuck.
    pub(crate) stop_deadline: Duration,
    pub(crate) contained: bool,
    pub(crate) launch: Arc<dyn Launch>,
}

impl Spec {
    fn new(name: impl Into<String>, kind: &'static str, launch: Arc<dyn Launch>) -> Self {
        Self {
            name: name.into(),
            kind,
            restart: Restart::Permanent,
            backoff: Backoff::QUICK,
            start_deadline: Duration::from_secs(30),
            stop_deadline: Duration::from_secs(5),
            contained: false,
            launch,
        }
    }

    /// An actor. The factory makes the shell of every incarnation; it may block (it runs on the blocking pool).
    pub fn actor<S: Shell>(
        name: impl Into<String>,
        address: Address<S::Msg>,
        factory: impl Fn() -> Result<S, Fault> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, S::KIND, launch_actor(address, factory))
    }

    /// A supervisor with children of its own. `fill` is called for every incarnation and starts them, in order.
    pub fn group(
        name: impl Into<String>,
        intensity: Intensity,
        fill: impl Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, "Supervisor", launch_group(intensity, fill)).stop_deadline(Duration::from_secs(8))
    }

    /// When it is started again.
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }
    /// How long it waits between restarts.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
    /// Its failures are its own: however often it fails, it is started again after its backoff, and its siblings and
    /// their supervisor live on. For a part without which the rest is still of use.
    #[must_use]
    pub fn contained(mut self) -> Self {
        self.contained = true;
        self
    }
    /// How long stopping may take.
    #[must_use]
    pub fn stop_deadline(mut self, deadline: Duration) -> Self {
        self.stop_deadline = deadline;
        self
    }
    /// How long starting may take.
    #[must_use]
    pub fn start_deadline(mut self, deadline: Duration) -> Self {
        self.start_deadline = deadline;
        self
    }
}
