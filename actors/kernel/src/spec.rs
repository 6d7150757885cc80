//! How a child is made and supervised.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::launch::{Launch, launch_actor};
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
    /// The delay after a first failure, before jitter.
    pub first: Duration,
    /// The longest delay.
    pub cap: Duration,
    /// How long a run must last for the next failure to count as a first one.
    pub stable_after: Duration,
}

impl Backoff {
    /// 500 ms to 60 s: for actors that are costly to start or likely to fail again.
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

/// More than `max` failures within `window` end the supervisor itself: its parent decides (OTP's restart intensity).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// This many failures are tolerated.
    pub max: usize,
    /// Older failures no longer count.
    pub window: Duration,
}
impl Default for Intensity {
    fn default() -> Self {
        Self { max: 10, window: Duration::from_secs(60) }
    }
}

/// Which siblings restart with a child that failed or was asked to restart (OTP's supervisor strategies). They stop in reverse
/// start order and start again in start order after the child's delay: their exits are no failures, and they have no delay of their
/// own.
///
/// A child that was done starts again with them, a temporary child stops for good, and a contained child restarts with them but
/// takes no sibling along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// No sibling.
    #[default]
    OneForOne,
    /// All siblings: none can continue with what it knew about the failed one.
    OneForAll,
    /// Those started after it: they may depend on it, the earlier ones do not.
    RestForOne,
}

/// How a supervisor treats its children as a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Which siblings restart with a failed one.
    pub strategy: Strategy,
    /// How many failures end the supervisor.
    pub intensity: Intensity,
}
impl Group {
    /// What a supervisor of this many children shows; the children show their own work.
    pub(crate) fn view(&self, children: usize) -> Value {
        let restarts = match self.strategy {
            Strategy::OneForOne => "the child that failed",
            Strategy::OneForAll => "all children",
            Strategy::RestForOne => "the child that failed and those started after it",
        };
        let (failures, within_ms) = (self.intensity.max + 1, muster_messages::millis(self.intensity.window));
        json!({
            "children": children, "restarts": restarts,
            "gives_up_after": {"failures": failures, "within_ms": within_ms},
        })
    }
}
impl From<Intensity> for Group {
    fn from(intensity: Intensity) -> Self {
        Self { strategy: Strategy::OneForOne, intensity }
    }
}
impl From<Strategy> for Group {
    fn from(strategy: Strategy) -> Self {
        Self { strategy, intensity: Intensity::default() }
    }
}

/// How long stopping may take unless the spec sets it.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How long a kill may take, at most: it takes effect at the next await, so an actor that takes longer blocks its thread.
pub(crate) const KILL_DEADLINE: Duration = Duration::from_secs(2);
/// How long stopping may take for an actor with children. One of them may be stuck, and the others still stop in order.
const GROUP_STOP_DEADLINE: Duration = Duration::from_secs(8);
/// The longest an orderly shutdown of a tree may take: the contract gives the process 10 s.
pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(9);
const _: () = assert!(STOP_DEADLINE.as_secs() + KILL_DEADLINE.as_secs() < GROUP_STOP_DEADLINE.as_secs());
const _: () = assert!(GROUP_STOP_DEADLINE.as_secs() < SHUTDOWN_LIMIT.as_secs());

/// A child: how it is made, when it restarts, how long its phases may take.
#[derive(Clone)]
pub struct Spec {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) restart: Restart,
    pub(crate) backoff: Backoff,
    pub(crate) start_deadline: Duration,
    /// After this a stopping child is killed; after the same time again, but at most [`KILL_DEADLINE`], it counts as stuck.
    pub(crate) stop_deadline: Duration,
    pub(crate) contained: bool,
    pub(crate) reports_ready: bool,
    pub(crate) requires: Vec<String>,
    pub(crate) counted_as: Option<&'static str>,
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
            stop_deadline: STOP_DEADLINE,
            contained: false,
            reports_ready: false,
            requires: Vec::new(),
            counted_as: None,
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

    /// A supervisor with its own children. `fill` starts them, in order, for every incarnation. `group` may be just an
    /// [`Intensity`] or a [`Strategy`].
    pub fn group(
        name: impl Into<String>,
        group: impl Into<Group>,
        fill: impl Fn(&Children) -> Result<(), Fault> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, "Supervisor", launch_group(group.into(), fill)).with_children()
    }

    /// When the child is started again.
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }
    /// The delays between its restarts.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
    /// Contains its failures: however often it fails, it restarts after its backoff, and its siblings and their supervisor
    /// continue. For a part that the rest can do without.
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
    /// It starts children below itself: stopping may take as long as stopping a group.
    #[must_use]
    pub fn with_children(self) -> Self {
        self.stop_deadline(GROUP_STOP_DEADLINE)
    }
    /// It is `starting` until it reports that it is healthy ([`Cx::ready`](crate::Cx::ready)); a group, until each of its children
    /// is. Otherwise an actor is healthy when `started` returns, and a group when it has been filled.
    #[must_use]
    pub fn reports_ready(mut self) -> Self {
        self.reports_ready = true;
        self
    }
    /// Launches it only while the named sibling is healthy (or done). A sibling that was not started before it is ignored. Later
    /// changes of the sibling do not affect it, unless the group's strategy says so.
    #[must_use]
    pub fn requires(mut self, sibling: impl Into<String>) -> Self {
        self.requires.push(sibling.into());
        self
    }
    /// Metrics count it, and everything below it, together with all children of the same label, such as `session-*`. For children
    /// whose number is unbounded.
    #[must_use]
    pub fn counted_as(mut self, label: &'static str) -> Self {
        self.counted_as = Some(label);
        self
    }
    /// How long starting may take until it is healthy. After that it is stopped as failed.
    #[must_use]
    pub fn start_deadline(mut self, deadline: Duration) -> Self {
        self.start_deadline = deadline;
        self
    }
}

/// Whether this is a valid child name: one unambiguous segment of a path.
pub(crate) fn is_segment(name: &str) -> bool {
    // As long as the longest DNS name: children are named after definitions, among others.
    const MAX_SEGMENT_BYTES: usize = 253;
    let fits = |c: char| c.is_ascii_graphic() && c != '/' && c != '@';
    !name.is_empty() && name.len() <= MAX_SEGMENT_BYTES && name.chars().all(fits)
}
