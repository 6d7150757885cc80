//! A candidate: known to the others by a record of its own; it campaigns while no candidate is better.
//!
//! Owns        whether to campaign; the record, a [member](crate::membership) of the scope `candidates.NAME`; the sibling `elect`.
//! Inputs      the view, the state of the record, the runner's resignation, the request to retire.
//! Outputs     none: it starts and stops actors.
//! A crash loses the record, which runs out and is written again; `elect` continues, and its handle is in a slot.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use muster_elector::LeaderElector;
use muster_kernel::{Address, Alarm, Children, Cx, Fault, Shell, Slot, Spec};
use muster_messages::protocol::Named;
use muster_messages::{Moment, candidates_scope};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::info;

use crate::campaign::Campaign;
use crate::core::eligibility::{Eligibility, Input, Me};
use crate::core::record::{Record, RecordNeed, RecordStep};
use crate::member::{LeaseTiming, Leave, Member, MemberSetup, MemberView};
use crate::membership::member_spec;
use crate::wiring::Wiring;

const MAILBOX: usize = 64;
/// Pause after a refusal that the cluster gave as final.
pub(crate) const REFUSAL_PAUSE: Duration = Duration::from_secs(10);

/// What outlives a crash of the actor.
#[derive(Clone, Default)]
pub struct Memory {
    /// With the durations that it was started with.
    pub(crate) elector: Slot<Option<(LeaderElector, LeaseTiming)>>,
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
    /// The run failed here too often. Lost: repeated after the next failure. Repeated: from then on it stays out as
    /// long again. Late, when another candidate has taken over: it stays out all the same.
    Resign,
    /// The elector has ended: it was stopped, or the cluster refused it.
    ElectEnded,
    /// The action has ended: a new timing of the lease may take effect.
    Idle,
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

/// See the module.
pub struct Candidates {
    wiring: Wiring,
    core: Eligibility,
    campaign: Campaign,
    member: Option<(watch::Receiver<MemberView>, Leave)>,
    need: RecordNeed,
    alarm: Alarm,
}

impl Candidates {
    fn new(wiring: Wiring, siblings: Children) -> Self {
        let setup = &wiring.setup;
        let me = Me { member: setup.member.clone(), node: setup.node, release: setup.release.triple };
        let campaign = Campaign::new(wiring.clone(), siblings);
        let core = Eligibility::new(me, setup.timing, campaign.is_running(), wiring.memory.out_until.get().flatten());
        Self { wiring, core, campaign, member: None, need: RecordNeed::default(), alarm: Alarm::default() }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input<'_>) {
        let was = self.core.decision().clone();
        let is = self.core.step(cx.now(), input).clone();
        if was != is {
            info!(reconciler = %self.wiring.name, stands = is.stands, why = %is.why, "candidacy changed");
        }
        self.wiring.memory.out_until.set(self.core.out_until());
        self.act(cx);
        self.alarm.set(cx, self.core.wake_at(), Msg::Woke);
    }

    /// Applies the decision. The only place that starts or ends anything.
    fn act(&mut self, cx: &Cx<Msg>) {
        let view = self.wiring.views.borrow().clone();
        let timing = view.map(|view| view.timing).unwrap_or_default();
        let lease = self.wiring.setup.lease.with(&timing);
        self.campaign.follow(cx, self.need.campaigns(self.core.decision().stands), lease);
        match self.need.step(self.campaign.is_over(), self.record()) {
            RecordStep::Keep => {}
            RecordStep::Leave => self.member.iter().for_each(|(_, leave)| leave.leave()),
            RecordStep::Ended => self.member = None,
            RecordStep::Retired => {
                self.wiring.retired.send_replace(true);
            }
        }
    }

    fn record(&self) -> Option<Record> {
        let (view, _) = self.member.as_ref()?;
        let view = view.borrow();
        Some(Record { over: view.admission_state.is_over(), gone: view.gone })
    }

    fn observe(&mut self, cx: &Cx<Msg>) {
        let view = self.wiring.views.borrow_and_update().clone();
        let Some(view) = view else { return };
        let runnable = view.definition.as_ref().is_some_and(|definition| self.wiring.setup.runs(definition));
        if self.need.observe(runnable, self.record()) {
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
        self.campaign.resume(cx);
        let mut views = self.wiring.views.clone();
        views.mark_changed();
        cx.on_change(views, || Msg::ViewChanged);
        if let Some(commands) = &self.wiring.setup.commands {
            cx.on_change(commands.changes(), || Msg::ViewChanged);
        }
        cx.report(self.wiring.retire.clone().cancelled_owned().map(|()| Msg::Retire));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::ViewChanged => self.observe(cx),
            Msg::Member => {
                let view = self.member.as_mut().map(|(view, _)| view.borrow_and_update().clone());
                if self.need.announces_again(self.record()) {
                    cx.after(REFUSAL_PAUSE, Msg::Retry);
                }
                self.step(cx, Input::Announced(view.is_some_and(|view| view.announced)));
            }
            Msg::Resign => self.step(cx, Input::Resign),
            Msg::ElectEnded => {
                self.campaign.ended();
                self.act(cx);
            }
            Msg::Idle => {
                self.campaign.idle();
                self.act(cx);
            }
            Msg::Retry => {
                if self.need.announces_again(self.record()) {
                    self.announce(cx);
                }
                self.campaign.check(cx);
            }
            Msg::Retire => {
                self.need.retire();
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
        json!({
            "decision": self.core.decision(), "record": member, "elect": self.campaign.word(),
            "retiring": self.need.is_retiring(),
        })
    }
}
