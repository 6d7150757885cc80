//! The guarded work and what it receives.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use muster_messages::{FencingToken, Moment};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Timekeeper;
use crate::core::{Ending, Hold};

/// A program that campaigns for leadership. The elector calls its methods: all except the work must return at once.
pub trait Candidate: Send + Sync + 'static {
    /// The guarded work. It must end soon after [`Term::ended`], before [`Hold::over_at`]; the lease is renewed until it
    /// returns, and then released. Returning earlier means that the work is done: the elector stops campaigning.
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()>;

    /// The work has returned; the lease is released next. Called once per term, unless the elector crashed.
    fn on_stopped_leading(&self, ending: &Ending) {
        let _ = ending;
    }

    /// The known leader changed: another process, this one, or none. Called once per change, including the first observation.
    fn on_new_leader(&self, leader: Option<&str>) {
        let _ = leader;
    }

    /// A coordinator prefers another candidate. The answer says whether to yield: the work is then asked to end.
    fn on_challenge(&self, challenger: &str) -> bool {
        let _ = challenger;
        true
    }

    /// Whether the work must be over before the lease can be another's; otherwise an error is logged. Not needed where the
    /// lease only shows presence and other means make the work safe.
    fn must_end_in_time(&self) -> bool {
        true
    }

    /// Events for people: `NAME became leader`, `NAME stopped leading`, and work that outlives its lease.
    fn on_event(&self, event: &str) {
        let _ = event;
    }
}

/// One term of leadership, as the work sees it. Clones share it.
#[derive(Clone)]
pub struct Term {
    pub(crate) token: Option<FencingToken>,
    pub(crate) ended: CancellationToken,
    /// Set before `ended` is cancelled, except by a crash of the elector.
    pub(crate) why: Arc<OnceLock<String>>,
    pub(crate) hold: watch::Receiver<Hold>,
    pub(crate) clock: Arc<dyn Timekeeper>,
}

impl Term {
    /// Every write of the work should carry it: a resource that refuses smaller tokens than it has seen is safe from earlier
    /// leaders. Muster clusters always provide one.
    pub fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// Waits until leadership is over.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The same, to be passed on.
    pub fn cancellation(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Why leadership is over; `None` before, and after a crash of the elector.
    pub fn why_ended(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    /// Whether leadership holds now, by the clock, also after a freeze. Check immediately before every irreversible effect.
    pub fn is_current(&self) -> bool {
        !self.ended.is_cancelled() && self.clock.now() < self.hold.borrow().step_down_at
    }

    /// How long leadership is currently valid, on the elector's clock; each renewal moves it.
    pub fn hold(&self) -> watch::Receiver<Hold> {
        self.hold.clone()
    }

    /// The elector's clock, by which [`Term::hold`] is measured.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }
}
