//! The private lease of a member, held by electing itself.
//!
//! Owns        the session that is the member's incarnation; the election, a child of the actor; the term that is held.
//! Why an election for a lease without a rival: it provides the two instants after which a member must stop, counts from before
//! each renewal was sent, and survives frozen managers and processes. A second mechanism would be one more to prove.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::{Candidate, Election, Ending, LeaderElector, Session, Setup as ElectorSetup, Status, Term};
use muster_kernel::{Address, Cx, Fault};
use muster_messages::wire::LeaseRef;
use muster_messages::{FencingToken, ParticipantKey, SessionId};
use tokio::sync::watch;

use crate::core::admission::{AdmissionState, LeaseState};
use crate::member::{Leave, MemberSetup, MemberView};
use crate::membership::Msg;

/// See the module.
pub(crate) struct MemberLease {
    session: Session,
    elector: LeaderElector,
    term: Option<Term>,
    released: bool,
}

impl MemberLease {
    /// Campaigns for the lease, in a new session.
    pub fn begin(
        cx: &Cx<Msg>,
        setup: &MemberSetup,
        leave: &Leave,
        view: &Arc<watch::Sender<MemberView>>,
    ) -> Result<Self, Fault> {
        let member = &setup.member;
        // The type that `Election::Muster` takes.
        let cluster: Arc<dyn muster_elector::Cluster> = setup.cluster.clone();
        let session = Session::new(cluster);
        let (scope, name) = (member.scope.clone(), member.member.clone());
        let lease = ParticipantKey { scope, member: name, incarnation: session.id() }.lease();
        let lease = LeaseRef { namespace: lease.namespace, name: lease.name };
        let holder = Holder {
            me: cx.me().clone(),
            leave: leave.clone(),
            view: Arc::clone(view),
            must_end_in_time: member.serves && member.relies_on_lease,
        };
        let (spec, elector) = LeaderElector::spec(
            "lease",
            ElectorSetup {
                config: setup.lease.config(lease, &member.member),
                election: Election::Muster(session.clone()),
                candidate: Arc::new(holder),
                clock: Arc::clone(&setup.clock),
            },
        )?;
        cx.children().start(spec);
        cx.spawn(report_blocked(elector.status(), cx.me().clone()));
        Ok(Self { session, elector, term: None, released: false })
    }

    /// The member's incarnation.
    pub fn incarnation(&self) -> SessionId {
        self.session.id()
    }
    /// The term that is held, or was held last.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref()
    }
    /// What holds now, for the decision of what counts.
    pub fn state(&self) -> LeaseState {
        let lasts = self.term.as_ref().is_some_and(|term| !term.cancellation().is_cancelled());
        LeaseState { lasts, lapsed: self.term.as_ref().filter(|term| !term.is_current()).map(lost) }
    }

    /// The lease is held.
    pub fn held(&mut self, cx: &Cx<Msg>, term: Term) -> Result<FencingToken, Fault> {
        let token = term.token().ok_or_else(|| Fault::new("a native lease is held under a token"))?;
        self.term = Some(term.clone());
        cx.report(async move {
            term.ended().await;
            Msg::Lost(lost(&term))
        });
        Ok(token)
    }

    /// Releases the lease; the record ends with it.
    pub fn release(&mut self, cx: &Cx<Msg>) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let elector = self.elector.clone();
        elector.stop();
        cx.report(async move {
            let _ended = elector.ended().await;
            Msg::LeaseReleased
        });
    }
}

/// Why a member whose term has ended no longer serves.
pub(crate) fn lost(term: &Term) -> String {
    term.why_ended().map_or_else(|| "its lease was lost".to_owned(), |why| format!("its lease was lost: {why}"))
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
