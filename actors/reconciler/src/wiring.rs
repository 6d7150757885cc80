//! What the actors of one reconciler share, and what all reconcilers of a process share. Outlives their crashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_elector::{BootTime, ConfigRefusal, ElectorConfig, Term, Timekeeper};
use muster_kernel::{Address, Slot};
use muster_messages::wire::{LeaseRef, RunnerView};
use muster_messages::{Action, CommandAction, Definition, NodeId, Release};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::action_slot::ActionSlot;
use crate::candidates::{self, Memory};
use crate::core::eligibility::EligibilityTiming;
use crate::core::groups::Abilities;
use crate::core::run::Run;
use crate::member::LeaseTiming;
use crate::participants::Views;
use crate::ports::{Cluster, CommandRunner, Handler};
use crate::releases::Releases;

/// The configuration of a process that runs reconcilers.
#[derive(Clone)]
pub struct Setup {
    pub cluster: Arc<dyn Cluster>,
    pub clock: Arc<dyn Timekeeper>,
    /// Its name among candidates. No two processes share one.
    pub member: String,
    pub node: Option<NodeId>,
    /// What it can run where nothing else is declared.
    pub release: Release,
    /// What it can run for the reconcilers of a scope, where that is not `release`: an application has its own release.
    pub releases: Releases,
    /// Whether it applies sets of objects.
    pub objects: bool,
    /// Runs commands, if this process runs any.
    pub commands: Option<Arc<dyn CommandRunner>>,
    pub handlers: BTreeMap<String, Arc<dyn Handler>>,
    pub lease: LeaseTiming,
    pub timing: EligibilityTiming,
}

impl Setup {
    /// A setup without any action, with the default durations.
    pub fn new(cluster: Arc<dyn Cluster>, member: impl Into<String>, release: Release) -> Self {
        Self {
            cluster,
            clock: Arc::new(BootTime),
            member: member.into(),
            node: None,
            release,
            releases: Releases::default(),
            objects: false,
            commands: None,
            handlers: BTreeMap::new(),
            lease: LeaseTiming::default(),
            timing: EligibilityTiming::default(),
        }
    }

    /// Refuses durations with which no candidate could be elected.
    pub fn validate(&self) -> Result<(), ConfigRefusal> {
        let lease = LeaseRef { namespace: String::new(), name: String::new() };
        let config: ElectorConfig = self.lease.config(lease, &self.member);
        config.validate()
    }

    /// What it can do for reconcilers, whatever their definitions.
    pub(crate) fn abilities(&self) -> Abilities {
        Abilities {
            release: self.release.clone(),
            handlers: self.handlers.keys().cloned().collect(),
            others: self.objects || self.commands.is_some(),
        }
    }

    /// Whether this process can carry out a definition.
    pub fn runs(&self, definition: &Definition) -> bool {
        match &definition.action {
            Action::Objects(_) => self.objects,
            Action::Command(command) => self.allows(command) && self.permits(definition),
            Action::Chain(steps) => self.permits(definition) && steps.iter().all(|step| self.allows(&step.command)),
            Action::Handler => self.handlers.contains_key(&definition.reconciler),
        }
    }

    fn permits(&self, definition: &Definition) -> bool {
        self.commands.as_ref().is_some_and(|runner| runner.permits(&definition.options.command))
    }

    fn allows(&self, command: &CommandAction) -> bool {
        let program = command.argv.first();
        self.commands.as_ref().is_some_and(|runner| program.is_some_and(|program| runner.allows(program)))
    }
}

/// What the actors of one reconciler share.
#[derive(Clone)]
pub(crate) struct Wiring {
    pub name: String,
    pub setup: Setup,
    pub publish: Arc<watch::Sender<Option<Arc<RunnerView>>>>,
    pub views: Views,
    pub terms: Arc<watch::Sender<Option<Term>>>,
    pub action_slot: ActionSlot,
    /// No run is in progress, and the cluster has decided about the records of all.
    pub recorded: Arc<watch::Sender<bool>>,
    pub candidates: Address<candidates::Msg>,
    pub memory: Memory,
    pub run: Slot<Option<Run>>,
    /// Set to end everything in order.
    pub retire: CancellationToken,
    /// Everything has ended and no lease is held.
    pub retired: Arc<watch::Sender<bool>>,
}

impl Wiring {
    pub fn new(name: &str, setup: Setup) -> Self {
        let (publish, views) = watch::channel(None);
        Self {
            name: name.to_owned(),
            setup,
            publish: Arc::new(publish),
            views,
            terms: Arc::new(watch::Sender::new(None)),
            action_slot: ActionSlot::default(),
            recorded: Arc::new(watch::Sender::new(true)),
            candidates: candidates::candidates_address(),
            memory: Memory::default(),
            run: Slot::new(),
            retire: CancellationToken::new(),
            retired: Arc::new(watch::Sender::new(false)),
        }
    }
}
