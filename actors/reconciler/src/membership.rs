//! One member of a scope as an actor: its lease, its record, its state. Candidates are members of a scope of their own.
//!
//! Owns        the lease and its child, see [`crate::member_lease`].
//! Inputs      the lease won and lost, answers, the request to leave.  Outputs  [`MemberView`], as a watched value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use muster_elector::Term;
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::{AdmissionView, ReconcilerRequest};
use muster_messages::{
    ErrorBody, Participant, ParticipantKey, ParticipantPhase, Revision, SessionId, WallTime, millis,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cluster_requests::{ANSWER_TIMEOUT, ANSWER_TRANSIT_TIME, ask};
use crate::core::admission::{Admission, AdmissionState, Ask, Input, WATCH_WAIT};
use crate::member::{Leave, Member, MemberSetup, MemberView};
use crate::member_lease::MemberLease;

const MAILBOX: usize = 64;

/// A member for an existing tree, and its state as a watched value. After a final state, take part again with a new member,
/// also under the same name.
pub fn member_spec(name: &str, setup: MemberSetup) -> (Spec, watch::Receiver<MemberView>, Leave) {
    let admission_state = AdmissionState::Announcing { trouble: None };
    let view = MemberView { admission_state, announced: false, incarnation: SessionId(0), term: None, gone: false };
    let (tell, view) = watch::channel(view);
    let (tell, leave) = (Arc::new(tell), Leave::default());
    let left = leave.clone();
    // Not the actor's incarnation: that continues from the previous member at this path of the tree.
    let begun = AtomicBool::new(false);
    let make = move || {
        let restarted = begun.swap(true, Ordering::SeqCst);
        Ok(MemberShell::new(setup.clone(), Arc::clone(&tell), left.clone(), restarted))
    };
    (Spec::actor(name, Address::new(MAILBOX), make).with_children(), view, leave)
}

/// Messages of the actor, all sent by itself.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum Msg {
    Held(Term),
    Lost(String),
    Blocked(String),
    Refused(String),
    Answered { number: u64, result: Result<AdmissionView, ErrorBody> },
    Leave,
    LeaseReleased,
    Woke,
}

/// One incarnation, of the actor and of the member.
pub struct MemberShell {
    setup: MemberSetup,
    core: Admission,
    /// `None` before the start, and for a serving member whose earlier incarnation crashed.
    lease: Option<MemberLease>,
    view: Arc<watch::Sender<MemberView>>,
    leave: Leave,
    /// An earlier incarnation of this member crashed.
    restarted: bool,
    alarm: Alarm,
}

impl MemberShell {
    fn new(setup: MemberSetup, view: Arc<watch::Sender<MemberView>>, leave: Leave, restarted: bool) -> Self {
        let core = Admission::new(setup.member.serves, rand::random());
        Self { setup, core, lease: None, view, leave, restarted, alarm: Alarm::default() }
    }

    fn key(&self) -> ParticipantKey {
        let Member { scope, member, .. } = &self.setup.member;
        let incarnation = self.lease.as_ref().map_or(SessionId(0), MemberLease::incarnation);
        ParticipantKey { scope: scope.clone(), member: member.clone(), incarnation }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        if let Some(ask) = self.core.step(cx.now(), input) {
            self.ask(cx, ask);
        }
        self.alarm.set(cx, self.core.wake_at(), Msg::Woke);
        self.publish();
    }

    /// Applies an input as far as the lease admits it.
    fn take(&mut self, cx: &Cx<Msg>, input: Input) {
        let lease = self.lease.as_ref().map(MemberLease::state).unwrap_or_default();
        for input in lease.admits(input) {
            self.step(cx, input);
        }
    }

    fn term(&self) -> Option<&Term> {
        self.lease.as_ref().and_then(MemberLease::term)
    }

    fn publish(&self) {
        self.view.send_modify(|view| {
            view.admission_state = self.core.admission_state().clone();
            view.announced = self.core.is_announced();
            view.incarnation = self.key().incarnation;
            view.term = self.term().cloned();
        });
    }

    fn ask(&self, cx: &Cx<Msg>, ask_for: Ask) {
        let Member { node, release, needs, .. } = self.setup.member.clone();
        let key = self.key();
        let (number, request, limit) = match ask_for {
            Ask::Announce { number, token } => {
                let phase = ParticipantPhase::Announced;
                let (since, revision) = (WallTime(0), Revision(0)); // set by the cluster
                let token = Some(token);
                let participant = Participant { key, node, release, needs, phase, token, since, revision };
                (number, ReconcilerRequest::Announce { participant }, ANSWER_TIMEOUT)
            }
            Ask::Admit { number } => (number, ReconcilerRequest::Admit { key }, ANSWER_TIMEOUT),
            Ask::Watch { number, seen } => {
                let request = ReconcilerRequest::Admission { key, seen, wait_ms: millis(WATCH_WAIT) };
                (number, request, WATCH_WAIT + ANSWER_TRANSIT_TIME)
            }
        };
        let cluster = Arc::clone(&self.setup.cluster);
        cx.report(async move { Msg::Answered { number, result: ask(&*cluster, request, limit).await } });
    }
}

impl Shell for MemberShell {
    type Msg = Msg;
    const KIND: &'static str = "Member";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        let shown = self.view.borrow().admission_state.clone();
        if self.restarted
            && let Some(shown) = self.core.restarted(shown)
        {
            self.view.send_modify(|view| (view.admission_state, view.term, view.gone) = (shown, None, true));
            return Ok(());
        }
        self.lease = Some(MemberLease::begin(cx, &self.setup, &self.leave, &self.view)?);
        cx.report(self.leave.asked.clone().cancelled_owned().map(|()| Msg::Leave));
        self.publish();
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Held(term) => {
                if let Some(lease) = &mut self.lease {
                    let token = lease.held(cx, term)?;
                    self.step(cx, Input::Held(token));
                }
            }
            Msg::Lost(why) => self.take(cx, Input::Lost { why }),
            Msg::Blocked(why) => self.take(cx, Input::Blocked { why }),
            Msg::Refused(why) => self.take(cx, Input::Refused { why }),
            Msg::Answered { number, result } => self.take(cx, Input::Answered { number, result }),
            Msg::Leave => {
                self.step(cx, Input::Leave);
                if let Some(lease) = &mut self.lease {
                    lease.release(cx);
                }
            }
            Msg::LeaseReleased => self.view.send_modify(|view| view.gone = true),
            Msg::Woke => {
                self.alarm.fired();
                self.step(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let key = self.key();
        json!({
            "scope": key.scope, "member": key.member, "incarnation": key.incarnation.to_string(),
            "release": self.setup.member.release, "admission": self.core.admission_state(),
            "token": self.term().and_then(Term::token),
        })
    }
}
