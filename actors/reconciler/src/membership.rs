//! One member of a scope as an actor: its lease, its record, where it stands. Candidates are members of a scope of their own.
//!
//! Owns   the session that is its incarnation; a child that holds its private lease by electing itself.
//! Hears  the lease won and lost, answers, that it is to leave.   Says  [`MemberView`], as a level.
//! Why an election for a lease that nobody else wants: it brings the two instants after which a member must stop, counts
//! from before each renewal was sent, and survives frozen managers and processes. A second machine for that would be one
//! more to prove.

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

use crate::asking::{ON_THE_WAY, PATIENCE, ask};
use crate::core::admission::{Admission, Ask, Input, Standing, WATCH};
use crate::ports::Cluster;

const MAILBOX: usize = 64;

/// Who a member says that it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub scope: String,
    pub member: String,
    pub node: Option<NodeId>,
    pub release: Release,
    pub needs: BTreeMap<String, Triple>,
    /// Whether it wants to serve, or only to be known.
    pub serves: bool,
    /// Whether it serves by its lease, and must have stopped before that is over.
    pub relies_on_lease: bool,
}

impl Member {
    /// A member that wants to serve.
    pub fn new(scope: &str, member: &str, release: Release) -> Self {
        let (scope, member) = (scope.to_owned(), member.to_owned());
        Self { scope, member, node: None, release, needs: BTreeMap::new(), serves: true, relies_on_lease: true }
    }
    /// What it does is made safe by other means: nothing goes wrong if it still serves when its lease is over.
    #[must_use]
    pub fn safe_without_lease(mut self) -> Self {
        self.relies_on_lease = false;
        self
    }
    /// It cannot serve unless this reconciler has been applied, of this release at least.
    #[must_use]
    pub fn needs(mut self, reconciler: &str, release: Triple) -> Self {
        self.needs.insert(reconciler.to_owned(), release);
        self
    }
    /// The node it runs on.
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

/// How a lease is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// How long others wait for whoever died.
    pub lease: Duration,
    /// When to stop after the last confirmed renewal; what is left of the lease is the margin.
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

/// Where a member stands.
#[derive(Clone)]
pub struct MemberView {
    pub standing: Standing,
    pub announced: bool,
    pub incarnation: SessionId,
    /// Of its lease. While it serves it must stop when this ends.
    pub term: Option<Term>,
    /// Its lease is given up, as far as that was possible.
    pub gone: bool,
}

/// How a member is told to go.
#[derive(Clone, Default)]
pub struct Leave {
    /// It is not wanted any more.
    asked: CancellationToken,
}

impl Leave {
    /// Gives its place up: whoever served must have stopped. Does not wait.
    pub fn leave(&self) {
        self.asked.cancel();
    }
}

/// A member for a tree that is there already; where it stands, as a level. Whoever has been told that it is over takes part anew
/// with another of these, under the same name if it likes.
pub fn member_spec(name: &str, setup: MemberSetup) -> (Spec, watch::Receiver<MemberView>, Leave) {
    let standing = Standing::Announcing { trouble: None };
    let view = MemberView { standing, announced: false, incarnation: SessionId(0), term: None, gone: false };
    let (tell, view) = watch::channel(view);
    let (tell, leave) = (Arc::new(tell), Leave::default());
    let left = leave.clone();
    // Not by the actor's incarnation: that counts on from the member whose place in the tree this one takes.
    let begun = AtomicBool::new(false);
    let make = move || {
        let again = begun.swap(true, Ordering::SeqCst);
        Ok(MemberShell::new(setup.clone(), Arc::clone(&tell), left.clone(), again))
    };
    (Spec::actor(name, Address::new(MAILBOX), make).with_children(), view, leave)
}

/// What the actor hears. All of it is its own.
pub enum Msg {
    Held(Term),
    Lost(String),
    Blocked(String),
    Refused(String),
    Answered { number: u64, result: Result<AdmissionView, ErrorBody> },
    Leave,
    Gone,
    Woke,
}

impl Named for Msg {
    fn name(&self) -> &'static str {
        match self {
            Self::Held(_) => "held",
            Self::Lost(_) => "lost",
            Self::Blocked(_) => "blocked",
            Self::Refused(_) => "refused",
            Self::Answered { .. } => "answered",
            Self::Leave => "leave",
            Self::Gone => "gone",
            Self::Woke => "woke",
        }
    }
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
    /// An earlier incarnation of this member has crashed.
    again: bool,
    alarm: Alarm,
}

impl MemberShell {
    fn new(setup: MemberSetup, view: Arc<watch::Sender<MemberView>>, leave: Leave, again: bool) -> Self {
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
            again,
            alarm: Alarm::default(),
        }
    }

    fn key(&self) -> ParticipantKey {
        let Member { scope, member, .. } = &self.setup.member;
        let incarnation = self.session.as_ref().map_or(SessionId(0), Session::id);
        ParticipantKey { scope: scope.clone(), member: member.clone(), incarnation }
    }

    fn turn(&mut self, cx: &Cx<Msg>, input: Input) {
        if let Some(ask) = self.core.step(cx.now(), input) {
            self.ask(cx, ask);
        }
        self.alarm.set(cx, self.core.wake_at(), Msg::Woke);
        self.publish();
    }

    fn publish(&self) {
        self.view.send_modify(|view| {
            view.standing = self.core.standing().clone();
            view.announced = self.core.is_announced();
            view.incarnation = self.key().incarnation;
            view.term.clone_from(&self.term);
        });
    }

    fn ask(&self, cx: &Cx<Msg>, ask_for: Ask) {
        let Member { node, release, needs, .. } = self.setup.member.clone();
        let key = self.key();
        let (number, request, patience) = match ask_for {
            Ask::Announce { number, token } => {
                let phase = ParticipantPhase::Announced;
                let (since, revision) = (WallTime(0), Revision(0)); // the cluster says when and where
                let token = Some(token);
                let participant = Participant { key, node, release, needs, phase, token, since, revision };
                (number, ReconcilerRequest::Announce { participant }, PATIENCE)
            }
            Ask::Admit { number } => (number, ReconcilerRequest::Admit { key }, PATIENCE),
            Ask::Watch { number, seen } => {
                let request = ReconcilerRequest::Admission { key, seen, wait_ms: millis(WATCH) };
                (number, request, WATCH + ON_THE_WAY)
            }
        };
        let (cluster, me) = (Arc::clone(&self.setup.cluster), cx.me().clone());
        cx.spawn(async move {
            let result = ask(&*cluster, request, patience).await;
            let _gone = me.tell(Msg::Answered { number, result });
        });
    }

    /// Gives the lease up; the record goes with it.
    fn go(&mut self, cx: &Cx<Msg>) {
        if std::mem::replace(&mut self.leaving, true) {
            return;
        }
        let Some(elector) = self.elector.clone() else { return };
        elector.stop();
        let me = cx.me().clone();
        cx.spawn(async move {
            let _ended = elector.ended().await;
            let _gone = me.tell(Msg::Gone);
        });
    }
}

/// Tells the actor what is in the way of its lease, each trouble once, until the election is over. It ends by itself only
/// where the cluster refuses it for good.
async fn tell_trouble(mut status: watch::Receiver<Status>, me: Address<Msg>) {
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

/// Tells the actor of its lease. The lease is kept for as long as somebody may still serve by it.
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
        let serving = move || matches!(view.borrow().standing, Standing::Serving | Standing::Revoked { .. });
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
        if self.setup.member.serves && self.again {
            // Whoever served relied on the incarnation that has crashed. Its lease runs out.
            self.view.send_modify(|view| {
                if !view.standing.is_over() {
                    view.standing = Standing::Revoked { why: "what held its lease has crashed".to_owned() };
                }
                (view.term, view.gone) = (None, true);
            });
            self.core.step(cx.now(), Input::Leave);
            return Ok(());
        }
        // As `Election::Native` takes it.
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
        let setup = ElectorSetup { config, election: Election::Native(session), candidate: Arc::new(holder), clock };
        let (spec, elector) = LeaderElector::spec("lease", setup)?;
        cx.children().start(spec);
        cx.spawn(tell_trouble(elector.status(), cx.me().clone()));
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
                self.turn(cx, Input::Held(token));
            }
            Msg::Lost(why) => {
                // Of an earlier term, while a later one lasts.
                let lasts = self.term.as_ref().is_some_and(|term| !term.cancellation().is_cancelled());
                if !lasts {
                    self.turn(cx, Input::Lost { why });
                }
            }
            Msg::Blocked(why) => self.turn(cx, Input::Blocked { why }),
            Msg::Refused(why) => self.turn(cx, Input::Refused { why }),
            Msg::Answered { number, result } => {
                // Frozen, perhaps: an admission counts only while the lease does (SERVE-1).
                if self.term.as_ref().is_some_and(|term| !term.is_current()) {
                    self.turn(cx, Input::Lost { why: "its lease was lost".to_owned() });
                }
                self.turn(cx, Input::Answered { number, result });
            }
            Msg::Leave => {
                self.turn(cx, Input::Leave);
                self.go(cx);
            }
            Msg::Gone => self.view.send_modify(|view| view.gone = true),
            Msg::Woke => {
                self.alarm.rang();
                self.turn(cx, Input::Woke);
            }
        }
        Ok(())
    }

    fn view(&self) -> Value {
        let key = self.key();
        json!({
            "scope": key.scope, "member": key.member, "incarnation": key.incarnation.to_string(),
            "release": self.setup.member.release, "standing": self.core.standing(),
            "token": self.term.as_ref().and_then(Term::token),
        })
    }
}
