//! A candidate: known to the others by a record of its own; it campaigns while no candidate is better.
//!
//! Owns        whether to campaign; the record, a [member](crate::membership) of the scope `candidates.NAME`; the sibling `elect`.
//! Inputs      the view, the state of the record, the runner's resignation, the request to retire.
//! Outputs     none: it starts and stops actors.
//! A crash loses the record, which runs out and is written again; `elect` continues, and its handle is in a slot.

use std::sync::Arc;
use std::time::Duration;

use muster_elector::{Election, LeaderElector, Session, Setup as ElectorSetup};
use muster_kernel::{Address, Alarm, Children, Cx, Fault, Shell, Slot, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::LeaseRef;
use muster_messages::{Moment, candidates_scope, runner_lease};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::info;

use crate::core::eligibility::{Eligibility, Input, Me};
use crate::elect::RunnerCandidate;
use crate::membership::{Leave, Member, MemberSetup, MemberView, member_spec};
use crate::wiring::Wiring;

/// The elector's name among its siblings.
pub const ELECT: &str = "elect";
const MAILBOX: usize = 64;
/// Pause after a refusal that the cluster gave as final.
const REFUSAL_PAUSE: Duration = Duration::from_secs(10);
/// Time limit for a term to end before its elector is stopped. A command has 5 s from TERM to KILL.
const TERM_END_TIMEOUT: Duration = Duration::from_secs(20);

/// What outlives a crash of the actor.
#[derive(Clone, Default)]
pub struct Memory {
    elector: Slot<Option<LeaderElector>>,
    out_until: Slot<Option<Moment>>,
}

impl Memory {
    /// The elector is gone, with all actors of the name.
    pub fn forget_elector(&self) {
        self.elector.set(None);
    }
}

/// Messages of the actor, all sent by itself except `Resign`.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    ViewChanged,
    Member,
    /// The run failed here too often. Lost: repeated after the next failure.
    Resign,
    /// The elector has ended: it was stopped, or the cluster refused it.
    ElectEnded,
    Retry,
    Retire,
    Woke,
}

/// The address for resignations.
pub fn candidates_address() -> Address<Msg> {
    Address::new(MAILBOX)
}

pub fn candidates_spec(wiring: Wiring, siblings: Children) -> Spec {
    let address = wiring.candidates.clone();
    Spec::actor("candidates", address, move || Ok(Candidates::new(wiring.clone(), siblings.clone()))).with_children()
}

enum Elect {
    None,
    Running(LeaderElector),
    /// It was asked to end; nothing starts before it has.
    Ending,
}

/// See the module.
pub struct Candidates {
    wiring: Wiring,
    siblings: Children,
    core: Eligibility,
    elect: Elect,
    member: Option<(watch::Receiver<MemberView>, Leave)>,
    /// This process can run the definition.
    runnable: bool,
    retiring: bool,
    alarm: Alarm,
}

impl Candidates {
    fn new(wiring: Wiring, siblings: Children) -> Self {
        let setup = &wiring.setup;
        let me = Me { member: setup.member.clone(), node: setup.node, release: setup.release.triple };
        let memory = &wiring.memory;
        // An elector that an earlier incarnation started continues.
        let going = |elector: &LeaderElector| elector.status().borrow().outcome.is_none();
        let elector = memory.elector.get().flatten().filter(going);
        let core = Eligibility::new(me, setup.timing, elector.is_some(), memory.out_until.get().flatten());
        let elect = elector.map_or(Elect::None, Elect::Running);
        Self { wiring, siblings, core, elect, member: None, runnable: false, retiring: false, alarm: Alarm::default() }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input<'_>) {
        let was = self.core.decision().clone();
        let is = self.core.step(cx.now(), input).clone();
        if was != is {
            info!(reconciler = %self.wiring.name, stands = is.stands, why = ?is.why, "candidacy changed");
        }
        self.wiring.memory.out_until.set(self.core.out_until());
        self.act(cx);
        self.alarm.set(cx, self.core.wake_at(), Msg::Woke);
    }

    /// Applies the decision. The only place that starts or ends anything.
    fn act(&mut self, cx: &Cx<Msg>) {
        let stands = self.core.decision().stands && !self.retiring;
        match &self.elect {
            Elect::None if stands => self.campaign(cx),
            Elect::Running(elector) if !stands => {
                let (elector, me, siblings) = (elector.clone(), cx.me().clone(), self.siblings.clone());
                self.elect = Elect::Ending;
                elector.stop();
                cx.spawn(async move {
                    let _late = tokio::time::timeout(TERM_END_TIMEOUT, elector.ended()).await;
                    siblings.stop_and_wait(ELECT).await;
                    let _gone = me.tell(Msg::ElectEnded);
                });
            }
            _ => {}
        }
        // A candidate with nothing left to run must not hold back the others.
        if (self.retiring || !self.runnable) && matches!(self.elect, Elect::None) {
            if let Some((_, leave)) = &self.member {
                leave.leave();
            }
            let gone = self.member.as_ref().is_none_or(|(view, _)| view.borrow().gone);
            if self.retiring {
                self.wiring.retired.send_replace(gone);
            } else if gone {
                self.member = None;
            }
        }
    }

    fn campaign(&mut self, cx: &Cx<Msg>) {
        let setup = &self.wiring.setup;
        let lease = runner_lease(&self.wiring.name);
        let lease = LeaseRef { namespace: lease.namespace, name: lease.name };
        let config = setup.lease.config(lease, &setup.member);
        let candidate = RunnerCandidate {
            reconciler: self.wiring.name.clone(),
            terms: Arc::clone(&self.wiring.terms),
            action_slot: self.wiring.action_slot.clone(),
        };
        // A new session for each candidacy: a lease is never given back to a session that released it.
        let cluster: Arc<dyn muster_elector::Cluster> = setup.cluster.clone();
        let election = Election::Muster(Session::new(cluster));
        let clock = Arc::clone(&setup.clock);
        let made = LeaderElector::spec(ELECT, ElectorSetup { config, election, candidate: Arc::new(candidate), clock });
        let Ok((spec, elector)) = made else { return }; // the durations were validated at startup
        self.siblings.start(spec);
        self.adopt(cx, elector);
    }

    fn adopt(&mut self, cx: &Cx<Msg>, elector: LeaderElector) {
        self.wiring.memory.elector.set(Some(elector.clone()));
        self.elect = Elect::Running(elector.clone());
        let me = cx.me().clone();
        cx.spawn(async move {
            let _how = elector.ended().await;
            let _gone = me.tell(Msg::Retry);
        });
    }

    fn observe(&mut self, cx: &Cx<Msg>) {
        let view = self.wiring.views.borrow_and_update().clone();
        let Some(view) = view else { return };
        let runnable = view.definition.as_ref().is_some_and(|definition| self.wiring.setup.runs(definition));
        self.runnable = runnable;
        if runnable && self.member.is_none() && !self.retiring {
            self.announce(cx);
        }
        self.step(cx, Input::View { view: &view, runnable });
    }

    fn announce(&mut self, cx: &Cx<Msg>) {
        let setup = &self.wiring.setup;
        let member = Member {
            scope: candidates_scope(&self.wiring.name),
            member: setup.member.clone(),
            node: setup.node,
            release: setup.release.clone(),
            needs: Default::default(),
            serves: false,
            relies_on_lease: false,
        };
        let (cluster, clock, lease) = (Arc::clone(&setup.cluster), Arc::clone(&setup.clock), setup.lease);
        let (spec, view, leave) = member_spec("record", MemberSetup { cluster, clock, lease, member });
        cx.children().start(spec);
        cx.on_change(view.clone(), || Msg::Member);
        self.member = Some((view, leave));
    }
}

impl Shell for Candidates {
    type Msg = Msg;
    const KIND: &'static str = "Candidates";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        match &self.elect {
            Elect::Running(elector) => {
                let elector = elector.clone();
                self.adopt(cx, elector);
            }
            // An earlier incarnation may have started one that it did not record.
            _ if cx.incarnation() > 1 => {
                self.elect = Elect::Ending;
                let (siblings, me) = (self.siblings.clone(), cx.me().clone());
                cx.spawn(async move {
                    siblings.stop_and_wait(ELECT).await;
                    let _gone = me.tell(Msg::ElectEnded);
                });
            }
            _ => {}
        }
        let mut views = self.wiring.views.clone();
        views.mark_changed();
        cx.on_change(views, || Msg::ViewChanged);
        let (retire, me) = (self.wiring.retire.clone(), cx.me().clone());
        cx.spawn(async move {
            retire.cancelled().await;
            let _gone = me.tell(Msg::Retire);
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::ViewChanged => self.observe(cx),
            Msg::Member => {
                let view = self.member.as_mut().map(|(view, _)| view.borrow_and_update().clone());
                if view.as_ref().is_some_and(|view| view.admission_state.is_over()) && self.runnable && !self.retiring {
                    cx.after(REFUSAL_PAUSE, Msg::Retry);
                }
                self.step(cx, Input::Announced(view.is_some_and(|view| view.announced)));
            }
            Msg::Resign => self.step(cx, Input::Resign),
            Msg::ElectEnded => {
                self.wiring.memory.elector.set(None);
                self.elect = Elect::None;
                self.act(cx);
            }
            Msg::Retry => {
                let over = self.member.as_ref().is_some_and(|(view, _)| view.borrow().admission_state.is_over());
                if over && self.runnable && !self.retiring {
                    self.announce(cx);
                }
                if let Elect::Running(elector) = &self.elect
                    && elector.status().borrow().outcome.is_some()
                {
                    self.elect = Elect::Ending;
                    let (siblings, me) = (self.siblings.clone(), cx.me().clone());
                    cx.spawn(async move {
                        siblings.stop_and_wait(ELECT).await;
                        tokio::time::sleep(REFUSAL_PAUSE).await;
                        let _gone = me.tell(Msg::ElectEnded);
                    });
                }
            }
            Msg::Retire => {
                self.retiring = true;
                self.act(cx);
            }
            Msg::Woke => {
                self.alarm.fired();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let member = self.member.as_ref().map(|(view, _)| view.borrow().admission_state.clone());
        let elect = match &self.elect {
            Elect::None => "none",
            Elect::Running(_) => "running",
            Elect::Ending => "ending",
        };
        json!({"decision": self.core.decision(), "record": member, "elect": elect, "retiring": self.retiring})
    }
}
