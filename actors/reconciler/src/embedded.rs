//! Reconcilers of a program, under a supervisor of its own.

use muster_elector::StartError;
use muster_kernel::{Intensity, Supervisor, Tree};

use crate::reconcilers::{Reconcilers, reconcilers_spec};
use crate::wiring::Setup;

/// A program that stands for running reconcilers. Dropped, its leases run out: [`Embedded::stop`] it.
pub struct Embedded {
    root: Supervisor,
    reconcilers: Reconcilers,
}

impl Embedded {
    /// Starts: what it can carry out of what its release has definitions of.
    pub async fn start(setup: Setup) -> Result<Self, StartError> {
        let (spec, reconcilers) = reconcilers_spec(setup)?;
        let root = Supervisor::root("program", Tree::new(), Intensity::default()).await;
        let root = root.map_err(|fault| StartError::Fault(fault.to_string()))?;
        root.children().start(spec);
        Ok(Self { root, reconcilers })
    }

    /// Ends every run in order and gives every lease back.
    pub async fn stop(self) {
        self.reconcilers.hand_over().await;
        self.root.shut_down().await;
    }
}
