//! Reconcilers of a program, under a supervisor of its own.

use muster_elector::StartError;
use muster_kernel::{Intensity, Supervisor, Tree};

use crate::reconcilers::{Reconcilers, reconcilers_spec};
use crate::wiring::Setup;

/// A program that campaigns to run reconcilers. When it is dropped its leases run out: call [`Embedded::stop`].
pub struct Embedded {
    root: Supervisor,
    reconcilers: Reconcilers,
}

impl Embedded {
    /// Starts everything that its release defines and that it can carry out.
    pub async fn start(setup: Setup) -> Result<Self, StartError> {
        let (spec, reconcilers) = reconcilers_spec(setup)?;
        let root = Supervisor::root("program", Tree::new(), Intensity::default()).await;
        let root = root.map_err(|fault| StartError::Fault(fault.to_string()))?;
        root.children().start(spec);
        Ok(Self { root, reconcilers })
    }

    /// Ends every run in order and releases every lease.
    pub async fn stop(self) {
        self.reconcilers.hand_over().await;
        self.root.shut_down().await;
    }
}
