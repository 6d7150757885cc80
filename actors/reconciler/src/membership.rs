//! One member of a scope as an actor: its lease, its record, its state. Candidates are members of a scope of their own.
//!
//! Owns        the session that is its incarnation; a child that holds its private lease by electing itself.
//! Inputs      the lease won and lost, answers, the request to leave.  Outputs  [`MemberView`], as a watched value.
//! Why an election for a lease without a rival: it provides the two instants after which a member must stop, counts from before
//! each renewal was sent, and survives frozen managers and processes. A second mechanism would be one more to prove.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::{
    Candidate, Election, ElectorConfig, Ending, LeaderElector, Session, Setup as ElectorSetup, Status, Term, Timekeeper,
};
use muster_kernel::{Address, Alarm, Cx, Fault, Shell, Spec};
use muster_messages::protocol::Named;
use muster_messages::wire::{AdmissionView, LeaseRef, ReconcilerRequest};
use muster_messages::{
    ErrorBody, NodeId, Participant, ParticipantKey, ParticipantPhase, Release, Revision, SessionId, Triple, WallTime,
    millis,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster_requests::{ANSWER_TIMEOUT, ANSWER_TRANSIT_TIME, ask};
use crate::core::admission::{Admission, AdmissionState, Ask, Input, WATCH_WAIT};
use crate::ports::Cluster;

const MAILBOX: usize = 64;

/// The identity that a member announces.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub scope: String,
    pub member: String,
    pub node: Option<NodeId>,
    pub release: Release,
    pub needs: BTreeMap<String, Triple>,
    /// Whether it wants to serve, or only to be known.
    pub serves: bool,
    /// Whether it serves under its lease, and must have stopped before the lease is over.
    pub relies_on_lease: bool,
}

impl Member {
    /// A member that wants to serve.
    pub fn new(scope: &str, member: &str, release: Release) -> Self {
        let (scope, member) = (scope.to_owned(), member.to_owned());
        Self { scope, member, node: None, release, needs: BTreeMap::new(), serves: true, relies_on_lease: true }
    }
    /// Other means make its work safe: it may still serve when its lease is over.
    #[must_use]
    pub fn safe_without_lease(mut self) -> Self {
        self.relies_on_lease = false;
        self
    }
    /// It cannot serve before at least this release of the reconciler has been applied.
    #[must_use]
    pub fn needs(mut self, reconciler: &str, release: Triple) -> Self {
        self.needs.insert(reconciler.to_owned(), release);
        self
    }
    #[must_use]
    pub fn on(mut self, node: NodeId) -> Self {
        self.node = Some(node);
        self
    }
}

/// What a member is made of.
#[derive(Clone)]
pub struct MemberSetup {
    pub cluster: Arc<dyn Cluster>,
    pub clock: Arc<dyn Timekeeper>,
    pub lease: LeaseTiming,
    pub member: Member,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// How long others wait for a holder that died.
    pub lease: Duration,
    /// When to stop after the last confirmed renewal; the rest of the lease is the margin.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseTiming {
    pub(crate) fn config(&self, lease: LeaseRef, identity: &str) -> ElectorConfig {
        ElectorConfig {
            lease_duration: self.lease,
            renew_deadline: self.renew_deadline,
            retry_period: self.retry_period,
            ..ElectorConfig::new(lease, identity)
        }
    }
}

#[derive(Clone)]
pub struct MemberView {
    pub admission_state: AdmissionState,
    pub announced: bool,
    pub incarnation: SessionId,
    /// The term of its lease. While the member serves it must stop when this ends.
    pub term: Option<Term>,
    /// Its lease has been released, as far as that was possible.
    pub gone: bool,
}

/// Handle to make a member leave.
#[derive(Clone, Default)]
pub struct Leave {
    /// The member was asked to leave.
    asked: CancellationToken,
}

impl Leave {
    /// Gives up the membership: the program must have stopped serving. Does not wait.
    pub fn leave(&self) {
        self.asked.cancel();
    }
}

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
    session: Option<Session>,
    elector: Option<LeaderElector>,
    term: Option<Term>,
    view: Arc<watch::Sender<MemberView>>,
    leave: Leave,
    leaving: bool,
    /// An earlier incarnation of this member crashed.
    restarted: bool,
    alarm: Alarm,
}

impl MemberShell {
    fn new(setup: MemberSetup, view: Arc<watch::Sender<MemberView>>, leave: Leave, restarted: bool) -> Self {
        let core = Admission::new(setup.member.serves, rand::random());
        Self {
            setup,
            core,
            session: None,
            elector: None,
            term: None,
            view,
            leave,
            leaving: false,
            restarted,
            alarm: Alarm::default(),
        }
    }

    fn key(&self) -> ParticipantKey {
        let Member { scope, member, .. } = &self.setup.member;
        let incarnation = self.session.as_ref().map_or(SessionId(0), Session::id);
        ParticipantKey { scope: scope.clone(), member: member.clone(), incarnation }
    }

    fn step(&mut self, cx: &Cx<Msg>, input: Input) {
        if let Some(ask) = self.core.step(cx.now(), input) {
            self.ask(cx, ask);
        }
        self.alarm.set(cx, self.core.wake_at(), Msg::Woke);
        self.publish();
    }

    fn publish(&self) {
        self.view.send_modify(|view| {
            view.admission_state = self.core.admission_state().clone();
            view.announced = self.core.is_announced();
            view.incarnation = self.key().incarnation;
            view.term.clone_from(&self.term);
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
        let (cluster, me) = (Arc::clone(&self.setup.cluster), cx.me().clone());
        cx.spawn(async move {
            let result = ask(&*cluster, request, limit).await;
            let _gone = me.tell(Msg::Answered { number, result });
        });
    }

    /// Releases the lease; the record ends with it.
    fn release_lease(&mut self, cx: &Cx<Msg>) {
        if std::mem::replace(&mut self.leaving, true) {
            return;
        }
        let Some(elector) = self.elector.clone() else { return };
        elector.stop();
        let me = cx.me().clone();
        cx.spawn(async move {
            let _ended = elector.ended().await;
            let _gone = me.tell(Msg::LeaseReleased);
        });
    }
}

/// Reports to the actor what blocks its lease, each cause once, until the election is over: by itself only after a permanent
/// refusal.
async fn report_blocked(mut status: watch::Receiver<Status>, me: Address<Msg>) {
    let mut known = None;
    loop {
        let Status { view, outcome, .. } = status.borrow_and_update().clone();
        if let Some(Err(body)) = &outcome {
            let _gone = me.tell(Msg::Refused(body.message.clone()));
        }
        if outcome.is_some() {
            return;
        }
        if let Some(why) = view.blocked.as_ref().filter(|_| view.blocked != known) {
            let _gone = me.tell(Msg::Blocked(why.clone()));
        }
        known = view.blocked;
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Reports the lease to the actor. The lease is kept while a program may still serve under it.
struct Holder {
    me: Address<Msg>,
    leave: Leave,
    view: Arc<watch::Sender<MemberView>>,
    must_end_in_time: bool,
}

impl Candidate for Holder {
    fn must_end_in_time(&self) -> bool {
        self.must_end_in_time
    }

    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        let (me, leave, view) = (self.me.clone(), self.leave.clone(), Arc::clone(&self.view));
        let serving =
            move || matches!(view.borrow().admission_state, AdmissionState::Serving | AdmissionState::Revoked { .. });
        async move {
            let _gone = me.tell(Msg::Held(term.clone()));
            term.ended().await;
            if serving() {
                leave.asked.cancelled().await;
            }
        }
        .boxed()
    }

    fn on_stopped_leading(&self, ending: &Ending) {
        let _gone = self.me.tell(Msg::Lost(ending.to_string()));
    }
}

impl Shell for MemberShell {
    type Msg = Msg;
    const KIND: &'static str = "Member";

    async fn started(&mut self, cx: &Cx<Msg>) -> Result<(), Fault> {
        if self.setup.member.serves && self.restarted {
            // The program that served relied on the incarnation that crashed. Its lease runs out.
            self.view.send_modify(|view| {
                if !view.admission_state.is_over() {
                    view.admission_state =
                        AdmissionState::Revoked { why: "the actor that holds its lease crashed".to_owned() };
                }
                (view.term, view.gone) = (None, true);
            });
            self.core.step(cx.now(), Input::Leave);
            return Ok(());
        }
        // The type that `Election::Muster` takes.
        let cluster: Arc<dyn muster_elector::Cluster> = self.setup.cluster.clone();
        let session = Session::new(cluster);
        self.session = Some(session.clone());
        let lease = self.key().lease();
        let lease = LeaseRef { namespace: lease.namespace, name: lease.name };
        let config = self.setup.lease.config(lease, &self.setup.member.member);
        let member = &self.setup.member;
        let holder = Holder {
            me: cx.me().clone(),
            leave: self.leave.clone(),
            view: Arc::clone(&self.view),
            must_end_in_time: member.serves && member.relies_on_lease,
        };
        let clock = Arc::clone(&self.setup.clock);
        let setup = ElectorSetup { config, election: Election::Muster(session), candidate: Arc::new(holder), clock };
        let (spec, elector) = LeaderElector::spec("lease", setup)?;
        cx.children().start(spec);
        cx.spawn(report_blocked(elector.status(), cx.me().clone()));
        self.elector = Some(elector);
        let (asked, me) = (self.leave.asked.clone(), cx.me().clone());
        cx.spawn(async move {
            asked.cancelled().await;
            let _gone = me.tell(Msg::Leave);
        });
        self.publish();
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<Msg>, msg: Msg) -> Result<(), Fault> {
        match msg {
            Msg::Held(term) => {
                let token = term.token().ok_or_else(|| Fault::new("a native lease is held under a token"))?;
                self.term = Some(term.clone());
                let me = cx.me().clone();
                cx.spawn(async move {
                    term.ended().await;
                    let _gone = me.tell(Msg::Lost("its lease was lost".to_owned()));
                });
                self.step(cx, Input::Held(token));
            }
            Msg::Lost(why) => {
                // Of an earlier term, while a later one lasts.
                let lasts = self.term.as_ref().is_some_and(|term| !term.cancellation().is_cancelled());
                if !lasts {
                    self.step(cx, Input::Lost { why });
                }
            }
            Msg::Blocked(why) => self.step(cx, Input::Blocked { why }),
            Msg::Refused(why) => self.step(cx, Input::Refused { why }),
            Msg::Answered { number, result } => {
                // The process may have been frozen: an admission counts only while the lease does (SERVE-1).
                if self.term.as_ref().is_some_and(|term| !term.is_current()) {
                    self.step(cx, Input::Lost { why: "its lease was lost".to_owned() });
                }
                self.step(cx, Input::Answered { number, result });
            }
            Msg::Leave => {
                self.step(cx, Input::Leave);
                self.release_lease(cx);
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
            "token": self.term.as_ref().and_then(Term::token),
        })
    }
}
