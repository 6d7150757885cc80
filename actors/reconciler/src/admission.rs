//! Admission for programs that embed it: announce, wait, serve, leave.
//!
//! ```ignore
#![doc = include_str!("../tests/scenarios/example.rs")]
//! ```

use std::sync::Arc;
use std::time::Duration;

use muster_elector::{BootTime, Hold, StartError, Term, Timekeeper};
use muster_kernel::{Intensity, Supervisor, Tree};
use muster_messages::FencingToken;
use tokio::sync::watch;

use crate::core::admission::AdmissionState;
use crate::member::{LeaseTiming, Leave, Member, MemberSetup, MemberView};
use crate::member_lease::lost;
use crate::membership::member_spec;
use crate::ports::Cluster;

/// Time limit for leaving; afterwards the lease runs out.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The entry point.
pub struct Admission;

impl Admission {
    /// Starts to announce a member, with the default durations. [`Waiting::admission_state`] shows when it is announced.
    pub async fn announce(cluster: Arc<dyn Cluster>, member: Member) -> Result<Waiting, StartError> {
        Self::announce_with(cluster, member, LeaseTiming::default(), Arc::new(BootTime)).await
    }

    /// The same, with given durations and clock.
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
        Ok(Waiting(Membership { view, leave, root: Some(root) }))
    }
}

/// A membership of the scope. Dropping it gives it up in the background.
struct Membership {
    view: watch::Receiver<MemberView>,
    leave: Leave,
    root: Option<Supervisor>,
}

impl Membership {
    async fn gone(mut self) {
        self.leave.leave();
        let gone = self.view.wait_for(|view| view.gone);
        let _in_time = tokio::time::timeout(LEAVE_TIMEOUT, gone).await.is_ok();
        if let Some(root) = self.root.take() {
            root.shut_down().await;
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave.leave();
        let (Some(root), Ok(runtime)) = (self.root.take(), tokio::runtime::Handle::try_current()) else { return };
        let mut view = self.view.clone();
        // Only the tree can release the lease; otherwise it would run out.
        runtime.spawn(async move {
            let _in_time = tokio::time::timeout(LEAVE_TIMEOUT, view.wait_for(|view| view.gone)).await.is_ok();
            drop(root);
        });
    }
}

/// Why a member will not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotServing {
    /// The cluster refused it, or asked it to stop before it served.
    #[error("not admitted: {0}")]
    Refused(String),
}

/// A member that is not admitted yet, possibly indefinitely: [`Waiting::admission_state`] gives the reason. When dropped, it leaves.
pub struct Waiting(Membership);

impl Waiting {
    /// Its state, as a watched value.
    pub fn admission_state(&self) -> watch::Receiver<MemberView> {
        self.0.view.clone()
    }

    /// Waits until every gate of the scope admits it.
    pub async fn ready(self) -> Result<ServingGuard, NotServing> {
        let mut view = self.0.view.clone();
        let decided = |view: &MemberView| match (&view.admission_state, &view.term) {
            (AdmissionState::Serving, Some(term)) => Some(Ok(term.clone())),
            (AdmissionState::Revoked { why } | AdmissionState::Refused { why }, _) => Some(Err(why.clone())),
            (AdmissionState::Left, _) => Some(Err("the member has left".to_owned())),
            _ => None,
        };
        let term = loop {
            let decision = decided(&view.borrow_and_update());
            match decision {
                Some(Ok(term)) => break term,
                Some(Err(why)) => return Err(NotServing::Refused(why)),
                None if view.changed().await.is_err() => {
                    return Err(NotServing::Refused("the member was stopped".to_owned()));
                }
                None => {}
            }
        };
        Ok(ServingGuard { membership: self.0, term })
    }

    /// Leaves, and waits within a limit until the cluster has recorded it.
    pub async fn leave(self) {
        self.0.gone().await;
    }
}

/// The right to serve. When dropped, the member leaves, so that no runner waits for it: drop it only once serving has stopped.
pub struct ServingGuard {
    membership: Membership,
    term: Term,
}

impl ServingGuard {
    /// Waits until it may no longer serve, and returns why. Serving must have stopped before [`Hold::over_at`].
    pub async fn revoked(&self) -> String {
        let mut view = self.membership.view.clone();
        let over = async {
            match view.wait_for(|view| view.admission_state.is_over()).await.as_deref() {
                Ok(MemberView { admission_state: AdmissionState::Revoked { why }, .. }) => why.clone(),
                _ => "the member was stopped".to_owned(),
            }
        };
        tokio::select! {
            biased;
            why = over => why,
            () = self.term.ended() => lost(&self.term),
        }
    }

    /// Whether it may serve now, by the clock.
    pub fn is_serving(&self) -> bool {
        self.term.is_current() && self.membership.view.borrow().admission_state == AdmissionState::Serving
    }

    /// How long it may currently serve; each renewal moves it. For work that must be stopped from outside in time.
    pub fn hold(&self) -> watch::Receiver<Hold> {
        self.term.hold()
    }
    /// The token of its lease.
    pub fn token(&self) -> Option<FencingToken> {
        self.term.token()
    }

    /// Leaves after serving has stopped, and waits briefly until the cluster has recorded it.
    pub async fn drain(self) {
        self.membership.gone().await;
    }
}
