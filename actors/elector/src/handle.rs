//! The handle of an elector for its program, and how one is started.

use std::sync::Arc;
use std::time::Duration;

use muster_kernel::{Address, Intensity, Slot, Spec, Supervisor, Tree};
use muster_messages::{ErrorBody, FencingToken};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::{BootTime, Timekeeper};
use crate::config::{ConfigRefusal, ElectorConfig};
use crate::core::{ElectorView, Hold};
use crate::elector::ElectorShell;
use crate::health::{Unhealthy, evaluate};
use crate::machine::Machine;
use crate::ports::Lock;
use crate::session::Session;
use crate::work::Candidate;

/// Mailbox capacity: an elector has a handful of open requests.
const MAILBOX: usize = 256;

/// The authority over the lease.
#[derive(Clone)]
pub enum Election {
    /// A Muster cluster.
    Muster(Session),
    /// A record in Kubernetes.
    Kubernetes(Arc<dyn Lock>),
}

/// The configuration of an elector.
#[derive(Clone)]
pub struct Setup {
    /// The lease, and its durations.
    pub config: ElectorConfig,
    /// Who decides.
    pub election: Election,
    /// The program.
    pub candidate: Arc<dyn Candidate>,
    /// The clock that leadership is measured by.
    pub clock: Arc<dyn Timekeeper>,
}

impl Setup {
    /// With the production clock.
    pub fn new(config: ElectorConfig, election: Election, candidate: Arc<dyn Candidate>) -> Self {
        Self { config, election, candidate, clock: Arc::new(BootTime) }
    }
}

/// The complete state of an elector.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// What it shows in the live tree.
    pub view: ElectorView,
    /// While leading: how long leadership is valid.
    pub hold: Option<Hold>,
    /// Set once the elector has ended.
    pub outcome: Option<Result<(), ErrorBody>>,
}

/// The handle of an elector. Cheap to clone.
#[derive(Clone)]
pub struct LeaderElector {
    config: Arc<ElectorConfig>,
    clock: Arc<dyn Timekeeper>,
    status: watch::Receiver<Status>,
    stop: CancellationToken,
    /// Of an elector with a tree of its own.
    _root: Option<Arc<Supervisor>>,
}

impl LeaderElector {
    /// Starts an elector under its own supervisor. It ends with the last clone of the handle: the work is dropped and the lease
    /// runs out. To release the lease, call [`LeaderElector::stop`] and wait for [`LeaderElector::ended`].
    pub async fn start(setup: Setup) -> Result<Self, StartError> {
        let (spec, mut elector) = Self::spec("elector", setup)?;
        let root = Supervisor::root("elector", Tree::new(), Intensity::default()).await;
        let root = root.map_err(|fault| StartError::Fault(fault.to_string()))?;
        root.children().start(spec);
        elector._root = Some(Arc::new(root));
        Ok(elector)
    }

    /// An elector for an existing tree.
    pub fn spec(name: &str, setup: Setup) -> Result<(Spec, Self), ConfigRefusal> {
        match setup.election {
            Election::Muster(_) => setup.config.validate()?,
            Election::Kubernetes(_) => setup.config.validate_for_kubernetes()?,
        }
        let memory = Slot::new();
        let view = Machine::new(&setup, None).view();
        let status = watch::Sender::new(Status { view, hold: None, outcome: None });
        let elector = Self {
            config: Arc::new(setup.config.clone()),
            clock: Arc::clone(&setup.clock),
            status: status.subscribe(),
            stop: CancellationToken::new(),
            _root: None,
        };
        let stop = elector.stop.clone();
        let status = Arc::new(status);
        let make = move || Ok(ElectorShell::new(setup.clone(), memory.clone(), Arc::clone(&status), stop.clone()));
        Ok((Spec::actor(name, Address::new(MAILBOX), make), elector))
    }

    /// Whether this process leads now, by the clock.
    pub fn is_leader(&self) -> bool {
        self.status.borrow().hold.is_some_and(|hold| self.clock.now() < hold.step_down_at)
    }
    /// The leader, as far as known.
    pub fn leader(&self) -> Option<String> {
        self.status.borrow().view.leader.clone()
    }
    /// The token of the current term.
    pub fn token(&self) -> Option<FencingToken> {
        self.status.borrow().view.token
    }
    /// The complete state, as a watched value.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
    /// Its configuration.
    pub fn config(&self) -> &ElectorConfig {
        &self.config
    }
    /// Fails only if this process still holds, in its own view, a lease that ran out more than `tolerance` ago: it hangs and
    /// should be restarted. Followers are always healthy.
    pub fn check(&self, tolerance: Duration) -> Result<(), Unhealthy> {
        evaluate(&self.status.borrow().view, &self.config, self.clock.now(), tolerance)
    }

    /// Asks it to end: the work is cancelled, and the lease is released once it has returned. Does not wait.
    pub fn stop(&self) {
        self.stop.cancel();
    }
    /// Waits until the elector has ended.
    pub async fn ended(&self) -> Result<(), ErrorBody> {
        let mut status = self.status.clone();
        let ended = status.wait_for(|status| status.outcome.is_some()).await;
        // A tree that was stopped has ended as well.
        ended.ok().and_then(|status| status.outcome.clone()).unwrap_or(Ok(()))
    }
}

/// Why an elector cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes a safe election impossible.
    #[error(transparent)]
    Config(#[from] ConfigRefusal),
    /// Its supervisor cannot run.
    #[error("the elector cannot run: {0}")]
    Fault(String),
}
