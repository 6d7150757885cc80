//! What an elector does it for: the guarded work, and what it is handed.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_messages::{FencingToken, Moment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Timekeeper;
use crate::core::{Ending, Hold};

/// A program that stands for election. All but the work itself must return at once: they are called from the elector.
pub trait Candidate: Send + Sync + 'static {
    /// The guarded work. It must end soon after [`Term::ended`], within what is left of [`Hold::over_at`]; the lease is
    /// renewed until it returns, and released then. Returning before means: the work is done, stop standing.
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()>;

    /// The work has returned; the lease is given up next. Called once for each time of leading, unless the elector crashed.
    fn on_stopped_leading(&self, ending: &Ending) {
        let _ = ending;
    }

    /// Somebody else is known to lead, this process, or nobody. Called once for each change, the first sighting included.
    fn on_new_leader(&self, leader: Option<&str>) {
        let _ = leader;
    }

    /// A coordinator prefers another candidate. The answer says whether to make room: the work is then told to end.
    fn on_challenge(&self, challenger: &str) -> bool {
        let _ = challenger;
        true
    }

    /// Whether the work must be over before the lease can be another's; that it is not is logged as an error then. Not so where
    /// the lease only says that somebody is there, and what is done is made safe by other means.
    fn must_end_in_time(&self) -> bool {
        true
    }

    /// Something worth telling people: `NAME became leader`, `NAME stopped leading`, and that work outlives its lease.
    fn on_event(&self, event: &str) {
        let _ = event;
    }
}

/// One time of leading, as the work sees it. Clones are of the same one.
#[derive(Clone)]
pub struct Term {
    pub(crate) token: Option<FencingToken>,
    pub(crate) ended: CancellationToken,
    pub(crate) hold: watch::Receiver<Hold>,
    pub(crate) clock: Arc<dyn Timekeeper>,
}

impl Term {
    /// What every write of the work should carry: a resource that refuses smaller tokens than it has seen is safe from
    /// whoever led before. A Muster cluster always gives one.
    pub fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// Waits until leadership is over.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The same, to be handed on.
    pub fn cancellation(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Whether leadership holds at this very moment, by the clock: true after a freeze only if no time was lost by it. Ask
    /// right before anything that cannot be taken back.
    pub fn is_current(&self) -> bool {
        !self.ended.is_cancelled() && self.clock.now() < self.hold.borrow().step_down_at
    }

    /// How long leadership is good for now, on the elector's clock; watch it to follow each renewal.
    pub fn hold(&self) -> watch::Receiver<Hold> {
        self.hold.clone()
    }

    /// The elector's clock, which [`Term::hold`] is measured with.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }
}
