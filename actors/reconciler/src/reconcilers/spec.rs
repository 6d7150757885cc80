//! How the actor is made, and the group of each reconciler; the handle to all of them.

use std::sync::Arc;
use std::time::Duration;

use muster_elector::ConfigRefusal;
use muster_kernel::{Address, Backoff, Children, Intensity, Spec};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{RETIRE_TIMEOUT, ReconcilersShell};
use crate::candidates::candidates_spec;
use crate::participants::participants_spec;
use crate::runner::runner_spec;
use crate::wiring::{Setup, Wiring};

const MAILBOX: usize = 64;

/// Handle to all reconcilers of a process. Cheap to clone.
#[derive(Clone)]
pub struct Reconcilers {
    retire: CancellationToken,
    retired: watch::Receiver<bool>,
}

impl Reconcilers {
    /// Ends every run in order and releases every lease, so that others can continue at once; waits for that briefly. Nothing
    /// starts afterwards.
    pub async fn hand_over(&self) {
        self.retire.cancel();
        let mut retired = self.retired.clone();
        let limit = RETIRE_TIMEOUT + Duration::from_secs(1);
        let _in_time = tokio::time::timeout(limit, retired.wait_for(|retired| *retired)).await.is_ok();
    }
}

/// Makes the reconcilers of a process.
pub fn reconcilers_spec(setup: Setup) -> Result<(Spec, Reconcilers), ConfigRefusal> {
    setup.validate()?;
    let (tell, retired) = watch::channel(false);
    let (tell, retire) = (Arc::new(tell), CancellationToken::new());
    let reconcilers = Reconcilers { retire: retire.clone(), retired };
    let make = move || Ok(ReconcilersShell::new(setup.clone(), retire.clone(), Arc::clone(&tell)));
    let spec = Spec::actor("reconcilers", Address::new(MAILBOX), make).with_children();
    Ok((spec.contained(), reconcilers))
}

/// The actors of one reconciler.
pub(super) fn group(wiring: Wiring) -> Spec {
    let path = wiring.name.clone();
    let fill = move |children: &Children| {
        let Wiring { name, setup, publish, .. } = wiring.clone();
        // The elector of an earlier group ended with that group.
        wiring.memory.forget_elector();
        children.start(participants_spec(setup.cluster, name, setup.release.triple, publish));
        children.start(runner_spec(wiring.clone()));
        children.start(candidates_spec(wiring.clone(), children.clone()));
        Ok(())
    };
    Spec::group(path, Intensity::default(), fill).backoff(Backoff::SLOW).contained().counted_as("*")
}
