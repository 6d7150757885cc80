//! A candidate's campaign: the sibling `elect`, of which there is one at most.
//!
//! A crash of the candidate does not end it: its handle is in a slot.

use std::sync::Arc;
use std::time::Duration;

use muster_elector::{Election, LeaderElector, Session, Setup as ElectorSetup};
use muster_kernel::{Children, Cx};
use muster_messages::runner_lease;
use muster_messages::wire::LeaseRef;

use crate::candidates::{Msg, REFUSAL_PAUSE};
use crate::core::campaign::{CampaignState, CampaignStep};
use crate::elect::RunnerCandidate;
use crate::member::LeaseTiming;
use crate::wiring::Wiring;

/// The elector's name among its siblings.
pub const ELECT: &str = "elect";
/// Time limit for a term to end before its elector is stopped. A command has 5 s from TERM to KILL.
const TERM_END_TIMEOUT: Duration = Duration::from_secs(20);

enum Elect {
    None,
    Running(LeaderElector, LeaseTiming),
    /// It was asked to end; nothing starts before it has.
    Ending,
}

/// See the module.
pub(crate) struct Campaign {
    wiring: Wiring,
    siblings: Children,
    elect: Elect,
    /// A task reports the end of the action: the lease's new timing takes effect then.
    awaits_idle: bool,
}

impl Campaign {
    /// An elector that an earlier incarnation started continues.
    pub fn new(wiring: Wiring, siblings: Children) -> Self {
        let running = wiring.memory.elector.get().flatten().filter(|(elector, _)| !has_ended(elector));
        let elect = running.map_or(Elect::None, |(elector, timing)| Elect::Running(elector, timing));
        Self { wiring, siblings, elect, awaits_idle: false }
    }

    pub fn is_running(&self) -> bool {
        matches!(self.elect, Elect::Running(..))
    }
    pub fn is_over(&self) -> bool {
        matches!(self.elect, Elect::None)
    }
    pub fn word(&self) -> &'static str {
        match &self.elect {
            Elect::None => "none",
            Elect::Running(..) => "running",
            Elect::Ending => "ending",
        }
    }

    /// Called when the candidate starts.
    pub fn resume(&mut self, cx: &Cx<Msg>) {
        match &self.elect {
            Elect::Running(elector, timing) => {
                let (elector, timing) = (elector.clone(), *timing);
                self.adopt(cx, elector, timing);
            }
            // An earlier incarnation may have started one that it did not record.
            _ if cx.incarnation() > 1 => self.end(cx, None, Duration::ZERO),
            _ => {}
        }
    }

    /// Starts or ends it, as decided. With another timing of the lease it begins again, once no action is running.
    pub fn follow(&mut self, cx: &Cx<Msg>, wanted: bool, lease: LeaseTiming) {
        let step = self.state(lease).step(wanted, self.wiring.action_slot.is_running());
        match (step, &self.elect) {
            (CampaignStep::Begin, _) => self.begin(cx, lease),
            (CampaignStep::AwaitIdle, _) => self.await_idle(cx),
            (CampaignStep::End, Elect::Running(elector, _)) => {
                let elector = elector.clone();
                elector.stop();
                self.end(cx, Some(elector), Duration::ZERO);
            }
            (CampaignStep::End | CampaignStep::Keep, _) => {}
        }
    }

    fn state(&self, lease: LeaseTiming) -> CampaignState {
        match &self.elect {
            Elect::None => CampaignState::None,
            Elect::Running(_, of) => CampaignState::Running { outdated: *of != lease },
            Elect::Ending => CampaignState::Ending,
        }
    }

    /// Wakes the candidate at the end of the action: no view may come then.
    fn await_idle(&mut self, cx: &Cx<Msg>) {
        if !std::mem::replace(&mut self.awaits_idle, true) {
            let action_slot = self.wiring.action_slot.clone();
            cx.report(async move {
                action_slot.idle().await;
                Msg::Idle
            });
        }
    }

    /// `Idle` has arrived.
    pub fn idle(&mut self) {
        self.awaits_idle = false;
    }

    /// An elector that the cluster refused is stopped, and another one may follow after a pause.
    pub fn check(&mut self, cx: &Cx<Msg>) {
        if matches!(&self.elect, Elect::Running(elector, _) if has_ended(elector)) {
            self.end(cx, None, REFUSAL_PAUSE);
        }
    }

    /// `ElectEnded` has arrived.
    pub fn ended(&mut self) {
        self.wiring.memory.elector.set(None);
        self.elect = Elect::None;
    }

    /// Waits for the end of this term, if any, stops the sibling, and pauses.
    fn end(&mut self, cx: &Cx<Msg>, elector: Option<LeaderElector>, pause: Duration) {
        self.elect = Elect::Ending;
        let siblings = self.siblings.clone();
        cx.report(async move {
            if let Some(elector) = elector {
                let _late = tokio::time::timeout(TERM_END_TIMEOUT, elector.ended()).await;
            }
            siblings.stop_and_wait(ELECT).await;
            tokio::time::sleep(pause).await;
            Msg::ElectEnded
        });
    }

    fn begin(&mut self, cx: &Cx<Msg>, timing: LeaseTiming) {
        let setup = &self.wiring.setup;
        let lease = runner_lease(&self.wiring.name);
        let lease = LeaseRef { namespace: lease.namespace, name: lease.name };
        let config = timing.config(lease, &setup.member);
        let candidate = RunnerCandidate {
            reconciler: self.wiring.name.clone(),
            terms: Arc::clone(&self.wiring.terms),
            action_slot: self.wiring.action_slot.clone(),
            recorded: self.wiring.recorded.subscribe(),
            handler: setup.handlers.contains_key(&self.wiring.name),
        };
        // A new session for each candidacy: a lease is never given back to a session that released it.
        let cluster: Arc<dyn muster_elector::Cluster> = setup.cluster.clone();
        let election = Election::Muster(Session::new(cluster));
        let clock = Arc::clone(&setup.clock);
        let made = LeaderElector::spec(ELECT, ElectorSetup { config, election, candidate: Arc::new(candidate), clock });
        let Ok((spec, elector)) = made else { return }; // the durations were validated at startup, and with the definition
        self.siblings.start(spec);
        self.adopt(cx, elector, timing);
    }

    fn adopt(&mut self, cx: &Cx<Msg>, elector: LeaderElector, timing: LeaseTiming) {
        self.wiring.memory.elector.set(Some((elector.clone(), timing)));
        self.elect = Elect::Running(elector.clone(), timing);
        cx.report(async move {
            let _how = elector.ended().await;
            Msg::Retry
        });
    }
}

fn has_ended(elector: &LeaderElector) -> bool {
    elector.status().borrow().outcome.is_some()
}
