//! Admission for programs that embed it: announce, wait, serve, leave.
//!
//! ```ignore
#![doc = include_str!("../tests/stories/example.rs")]
//! ```

use std::sync::Arc;
use std::time::Duration;

use muster_elector::{BootTime, Hold, StartError, Term, Timekeeper};
use muster_kernel::{Intensity, Supervisor, Tree};
use muster_messages::FencingToken;
use tokio::sync::watch;

use crate::core::admission::Standing;
use crate::membership::{LeaseTiming, Leave, Member, MemberSetup, MemberView, member_spec};
use crate::ports::Cluster;

/// How long leaving may take before the lease is left to run out.
const FAREWELL: Duration = Duration::from_secs(10);

/// The way in.
pub struct Admission;

impl Admission {
    /// Starts to announce a member, with the usual durations. That it is announced shows in [`Waiting::standing`].
    pub async fn announce(cluster: Arc<dyn Cluster>, member: Member) -> Result<Waiting, StartError> {
        Self::announce_with(cluster, member, LeaseTiming::default(), Arc::new(BootTime)).await
    }

    /// The same, with durations and a clock of one's own.
    pub async fn announce_with(
        cluster: Arc<dyn Cluster>,
        member: Member,
        lease: LeaseTiming,
        clock: Arc<dyn Timekeeper>,
    ) -> Result<Waiting, StartError> {
        let root = Supervisor::root("admission", Tree::new(), Intensity::default()).await;
        let root = root.map_err(|fault| StartError::Fault(fault.to_string()))?;
        let (spec, view, leave) = member_spec("member", MemberSetup { cluster, clock, lease, member });
        root.children().start(spec);
        Ok(Waiting(Place { view, leave, root: Some(root) }))
    }
}

/// A place in the scope. Dropped: given up, in the background.
struct Place {
    view: watch::Receiver<MemberView>,
    leave: Leave,
    root: Option<Supervisor>,
}

impl Place {
    async fn gone(mut self) {
        self.leave.leave();
        let gone = self.view.wait_for(|view| view.gone);
        let _in_time = tokio::time::timeout(FAREWELL, gone).await.is_ok();
        if let Some(root) = self.root.take() {
            root.shut_down().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave.leave();
        let (Some(root), Ok(runtime)) = (self.root.take(), tokio::runtime::Handle::try_current()) else { return };
        let mut view = self.view.clone();
        // The lease is given up by the tree; without it, it would have to run out.
        runtime.spawn(async move {
            let _in_time = tokio::time::timeout(FAREWELL, view.wait_for(|view| view.gone)).await.is_ok();
            drop(root);
        });
    }
}

/// Why a member will not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServing {
    /// The cluster will not have it, or has told it to stop before it began.
    #[error("not admitted: {0}")]
    Refused(String),
}

/// A member that is not admitted yet. It may take for ever: [`Waiting::standing`] says what for. Dropped: it leaves.
pub struct Waiting(Place);

impl Waiting {
    /// Where it stands, as a level.
    pub fn standing(&self) -> watch::Receiver<MemberView> {
        self.0.view.clone()
    }

    /// Waits until every gate of the scope lets it in.
    pub async fn ready(self) -> Result<ServingGuard, NotServing> {
        let mut view = self.0.view.clone();
        let decided = |view: &MemberView| match (&view.standing, &view.term) {
            (Standing::Serving, Some(term)) => Some(Ok(term.clone())),
            (Standing::Revoked { why } | Standing::Refused { why }, _) => Some(Err(why.clone())),
            (Standing::Left, _) => Some(Err("it has left".to_owned())),
            _ => None,
        };
        let term = loop {
            let decision = decided(&view.borrow_and_update());
            match decision {
                Some(Ok(term)) => break term,
                Some(Err(why)) => return Err(NotServing::Refused(why)),
                None if view.changed().await.is_err() => return Err(NotServing::Refused("it was stopped".to_owned())),
                None => {}
            }
        };
        Ok(ServingGuard { place: self.0, term })
    }

    /// Leaves, and waits until the cluster knows, for a while.
    pub async fn leave(self) {
        self.0.gone().await;
    }
}

/// The right to serve. Dropped: it leaves, so that nobody waits for what does not serve any more. Drop it only then.
pub struct ServingGuard {
    place: Place,
    term: Term,
}

impl ServingGuard {
    /// Waits until it may serve no longer, and says why. Whoever serves must have stopped before [`Hold::over_at`].
    pub async fn revoked(&self) -> String {
        let mut view = self.place.view.clone();
        let over = async {
            match view.wait_for(|view| view.standing.is_over()).await.as_deref() {
                Ok(MemberView { standing: Standing::Revoked { why }, .. }) => why.clone(),
                _ => "it was stopped".to_owned(),
            }
        };
        tokio::select! {
            biased;
            why = over => why,
            () = self.term.ended() => "its lease was lost".to_owned(),
        }
    }

    /// Whether it may serve at this very moment, by the clock.
    pub fn is_serving(&self) -> bool {
        self.term.is_current() && self.place.view.borrow().standing == Standing::Serving
    }

    /// How long it may serve for now; each renewal moves it. For those who must be stopped from outside in time.
    pub fn hold(&self) -> watch::Receiver<Hold> {
        self.term.hold()
    }
    /// Under which its lease is held.
    pub fn token(&self) -> Option<FencingToken> {
        self.term.token()
    }

    /// Serves no more, and waits until the cluster knows, for a while. For whoever has stopped already.
    pub async fn drain(self) {
        self.place.gone().await;
    }
}
