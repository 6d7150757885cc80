//! The state machine of an elector beside the port to its authority: its requests leave as futures.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_messages::{MicroTime, Moment};

use crate::config::ElectorConfig;
use crate::core::kubernetes_lease::{self, KubernetesElector, What};
use crate::core::muster_lease::{self, MusterElector, OutstandingToken};
use crate::core::{Effect, ElectorView, LockError, Signal};
use crate::handle::{Election, Setup};
use crate::leadership::Held;
use crate::ports::Lock;
use crate::session::Session;

/// Inputs of either machine.
#[derive(Debug)]
pub enum Input {
    Signal(Signal),
    Muster(muster_lease::Answer),
    Kubernetes(kubernetes_lease::Answer),
}

/// A request in flight; its result is the answer.
pub type Request = BoxFuture<'static, Input>;

pub enum Machine {
    Muster(MusterElector, Session, Arc<ElectorConfig>),
    Kubernetes(KubernetesElector, Arc<dyn Lock>),
}

impl Machine {
    /// `left`: the work of the incarnation before.
    pub fn new(setup: &Setup, left: Option<Held>) -> Self {
        let (config, seed) = (&setup.config, rand::random());
        match &setup.election {
            Election::Muster(session) => {
                let outstanding =
                    left.and_then(|held| Some(OutstandingToken { token: held.token?, until: held.hold.over_at }));
                Self::Muster(MusterElector::new(config, seed, outstanding), session.clone(), Arc::new(config.clone()))
            }
            Election::Kubernetes(lock) => {
                let quiet_until = left.map(|held| held.hold.over_at);
                Self::Kubernetes(KubernetesElector::new(config, seed, quiet_until), Arc::clone(lock))
            }
        }
    }

    /// The machine's requests, and its other effects. An answer of the other authority is ignored.
    pub fn step(&mut self, (now, wall): (Moment, MicroTime), input: Input) -> (Vec<Request>, Vec<Effect<Infallible>>) {
        let (mut requests, mut effects) = (Vec::new(), Vec::new());
        match self {
            Self::Muster(machine, session, config) => {
                let mut out = Vec::new();
                match input {
                    Input::Signal(signal) => machine.step(now, signal, &mut out),
                    Input::Muster(answer) => machine.answer(now, answer, &mut out),
                    Input::Kubernetes(_) => {}
                }
                for effect in out {
                    effect.sort(&mut effects, |ask| requests.push(ask_cluster(session, config, ask)));
                }
            }
            Self::Kubernetes(machine, lock) => {
                let mut out = Vec::new();
                match input {
                    Input::Signal(signal) => machine.step(now, wall, signal, &mut out),
                    Input::Kubernetes(answer) => machine.answer(now, wall, answer, &mut out),
                    Input::Muster(_) => {}
                }
                for effect in out {
                    effect.sort(&mut effects, |ask| requests.push(ask_lock(lock, ask)));
                }
            }
        }
        (requests, effects)
    }

    pub fn view(&self) -> ElectorView {
        match self {
            Self::Muster(machine, ..) => machine.view(),
            Self::Kubernetes(machine, _) => machine.view(),
        }
    }
}

fn ask_cluster(session: &Session, config: &ElectorConfig, ask: muster_lease::Ask) -> Request {
    let (session, lease, identity) = (session.clone(), config.lease.clone(), config.identity.clone());
    let lease_duration = config.lease_duration;
    async move { Input::Muster(session.ask(lease, identity, lease_duration, ask).await) }.boxed()
}

fn ask_lock(lock: &Arc<dyn Lock>, ask: kubernetes_lease::Ask) -> Request {
    let lock = Arc::clone(lock);
    async move {
        let asked = match ask.what {
            What::Get => lock.get(),
            What::Create(record) => lock.create(record),
            What::Update(record) => lock.update(record),
        };
        let result = tokio::time::timeout(ask.timeout, asked).await;
        let result = result.unwrap_or_else(|_| Err(LockError::Other("no answer in time".to_owned())));
        Input::Kubernetes(kubernetes_lease::Answer { number: ask.number, result })
    }
    .boxed()
}
