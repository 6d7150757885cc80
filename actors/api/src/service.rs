//! One request in, one answer out, wherever the leader is.

use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_audit::Origin;
use muster_kernel::AdminAction;
use muster_messages::protocol::{RaftMemberMsg, ReadError};
use muster_messages::wire::{ActorsAsk, ActorsCall, ApiCall, LeaseRequest, ReconcilerRequest, Refusal, Request};
use muster_messages::{
    AdmissionOpenedView, Details, ErrorBody, ErrorCode, NodeId, Principal, RefusalReason, Replica, RequestId, SelfView,
    Trouble, detail, millis,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tracing::{Instrument, Level, Span};

use crate::actors::ActorRequests;
use crate::building::Builders;
use crate::core::{Kind, authorize, described, kind_of, on_behalf};
use crate::kube::refused_tokens::RefusedTokens;
use crate::leases::LeaseRequests;
use crate::log_quota::LogQuota;
use crate::ports::{ApiPorts, ManagerPorts, NodeFacts};
use crate::reads::{Reads, not_leading, to_text};
use crate::reconcilers::ReconcilerRequests;
use crate::relay::Relay;
use crate::run_logs::RunLogRequest;
use crate::shares::{Share, Shares};
use crate::work::Work;
use crate::writes::Writes;

/// One caller may hold this fraction of all watches and of all permits for waiting requests, so that others find some.
const WAITING_SHARE_DIVISOR: u64 = 4;
/// One caller may hold this fraction of the permits for requests being worked on, since others wait for that work.
const WORKING_SHARE_DIVISOR: u64 = 32;
/// Requests of one caller for a leader elsewhere: others must find room among the calls to that manager, of which a few
/// more are accepted.
const MAX_LEADER_CALLS_PER_CALLER: usize = 256;
/// Long answers of one caller in flight: a list of ten thousand leases takes some 10 MB until it is read.
const MAX_LONG_ANSWERS_PER_CALLER: usize = 16;
/// Reachability checks for `node may-stop` at once. Each sends a heartbeat to every manager, and one operator at a time is expected to ask: a
/// script that asks for every node of a cluster at once must retry.
pub(crate) const MAX_STOP_CHECKS: usize = 16;

/// The API of this process. Cheap to clone: each request holds a clone.
#[derive(Clone)]
pub struct Service(Arc<Parts>);

/// What all requests share.
pub struct Parts {
    pub(crate) ports: ApiPorts,
    pub(crate) relay: Relay,
    /// Permits for requests that this node forwards unchanged.
    pub(crate) forwarding: Arc<Semaphore>,
    /// Refused tokens among the requests that this node forwards.
    refused_tokens: Mutex<RefusedTokens>,
    pub(crate) counters: Arc<Counters>,
    /// By caller: requests being worked on, requests that wait for changes, requests that a leader elsewhere works on,
    /// watch streams, and long answers in flight.
    working: Shares,
    waiting: Shares,
    calling: Shares,
    watching: Shares,
    long: Shares,
    pub(crate) builders: Builders,
    stop_checks: Semaphore,
    pub(crate) quorum_wait: crate::quorum_wait::QuorumWait,
    pub(crate) log_quota: LogQuota,
}

/// The API's counters.
#[derive(Debug, Default)]
pub struct Counters {
    pub answered: AtomicU64,
    pub refused: AtomicU64,
    pub overloaded: AtomicU64,
    pub in_progress: AtomicU64,
    /// Open watch streams.
    pub watches: AtomicU64,
    /// Events of Kubernetes clients that were accepted and not kept.
    pub events_dropped: AtomicU64,
    /// When the last backup was handed out, in milliseconds since 1970; 0 before the first.
    pub last_backup_at: AtomicI64,
}

/// One request in progress.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub caller: Principal,
    pub request_id: RequestId,
    pub deadline: Instant,
    pub request: Request,
    /// The revision at which it was applied here, once known; 0 before.
    pub applied: Arc<AtomicU64>,
}

impl Asked {
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
    pub(crate) fn left_ms(&self) -> u64 {
        millis(self.left())
    }
}

impl Deref for Service {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Service {
    /// The API over these ports.
    pub fn new(ports: ApiPorts) -> Self {
        let relay = Relay::new(ports.dialer.clone());
        let forwarding = Arc::new(Semaphore::new(crate::kube::proxy::MAX_FORWARDED_REQUESTS));
        let part = |all: u64, part: u64| Shares::of(usize::try_from((all / part).max(1)).unwrap_or(usize::MAX));
        let (permits, watches) = (ports.limits.in_progress, ports.limits.watches);
        let (working, waiting, watching) = (
            part(permits, WORKING_SHARE_DIVISOR),
            part(permits, WAITING_SHARE_DIVISOR),
            part(watches, WAITING_SHARE_DIVISOR),
        );
        let (calling, long, counters) = (
            Shares::of(MAX_LEADER_CALLS_PER_CALLER),
            Shares::of(MAX_LONG_ANSWERS_PER_CALLER),
            Arc::new(Counters::default()),
        );
        let refused_tokens = Mutex::new(RefusedTokens::new());
        Self(Arc::new(Parts {
            ports,
            relay,
            forwarding,
            refused_tokens,
            counters,
            working,
            waiting,
            calling,
            watching,
            long,
            builders: Builders::default(),
            stop_checks: Semaphore::new(MAX_STOP_CHECKS),
            quorum_wait: crate::quorum_wait::QuorumWait::default(),
            log_quota: LogQuota::default(),
        }))
    }

    /// For a test's own ports.
    #[cfg(test)]
    pub(crate) fn ports_mut(&mut self) -> &mut ApiPorts {
        &mut Arc::get_mut(&mut self.0).expect("no request holds it").ports
    }

    /// What this node reports about itself now.
    pub fn facts(&self) -> NodeFacts {
        (self.ports.facts)()
    }

    pub(crate) fn refused_tokens(&self) -> MutexGuard<'_, RefusedTokens> {
        self.refused_tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request of this process itself, within its timeout.
    pub async fn answer(&self, caller: Principal, call: ApiCall) -> Result<String, ErrorBody> {
        self.answer_from(&Origin::default(), caller, call).await
    }

    /// Answers a request of an authenticated caller, within its timeout. If another manager forwarded it, that manager
    /// has authenticated the caller.
    pub async fn answer_from(&self, origin: &Origin, caller: Principal, call: ApiCall) -> Result<String, ErrorBody> {
        let permit = self.enter(&caller, waits(&call.request))?;
        self.answer_in(&permit, origin, caller, call).await
    }

    /// Answers a request that holds its permit.
    pub(crate) async fn answer_in(
        &self,
        _permit: &RequestPermit,
        origin: &Origin,
        caller: Principal,
        call: ApiCall,
    ) -> Result<String, ErrorBody> {
        let timeout = Duration::from_millis(call.timeout_ms).min(self.ports.limits.longest);
        // When a leader is lost, its successor is asked again: a write without its own id could be carried out twice.
        let request_id = match (call.request_id, kind_of(&call.request)) {
            (RequestId(0), Kind::Write | Kind::SecretRead | Kind::ActorsAdmin) => {
                RequestId::fresh(muster_kernel::Clock.wall(), rand::random())
            }
            (given, _) => given,
        };
        let (deadline, applied) = (Instant::now() + timeout, Arc::default());
        let socket = || origin.forwarder.unwrap_or_else(|| self.facts().id);
        let request = on_behalf::placed(call.request, &caller, socket);
        let asked = Asked { caller, request_id, deadline, request, applied };
        let work = async {
            let work = self.until_runtime_stops(&asked, origin.forwarder.is_some());
            let result = self.with_audit_line(origin, &asked, work).await;
            log_answer(origin, &asked, &result);
            result
        };
        let result = work.instrument(span_of(request_id)).await;
        let counter = if result.is_ok() { &self.counters.answered } else { &self.counters.refused };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// A permit for a request in progress, held until dropped.
    pub(crate) fn enter(&self, caller: &Principal, waits: bool) -> Result<RequestPermit, ErrorBody> {
        let shares = if waits { &self.waiting } else { &self.working };
        let Some(share) = shares.take(caller) else {
            return Err(self.overloaded("per-client limit of concurrent requests reached; retry later"));
        };
        let permit = RequestPermit(Arc::clone(&self.counters), share);
        if self.counters.in_progress.fetch_add(1, Ordering::Relaxed) >= self.ports.limits.in_progress {
            return Err(self.overloaded("limit of concurrent requests on this node reached; retry later"));
        }
        Ok(permit)
    }

    fn overloaded(&self, text: &str) -> ErrorBody {
        self.counters.overloaded.fetch_add(1, Ordering::Relaxed);
        ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_millis(500))
    }

    /// A permit for a request to a leader elsewhere, held until dropped.
    pub(crate) fn leader_call_permit(&self, caller: &Principal) -> Result<Share, ErrorBody> {
        let full = || {
            self.overloaded(
                "per-client limit of requests waiting for the leader reached; retry later, or ask the leader",
            )
        };
        self.calling.take(caller).ok_or_else(full)
    }

    /// A permit for a watch, held until dropped; `None`: none is left, or this caller has used its share.
    pub(crate) fn watch_permit(&self, caller: &Principal) -> Option<WatchPermit> {
        let permit = self.watching.take(caller).map(|share| WatchPermit(Arc::clone(&self.counters), share));
        let permit =
            permit.filter(|_| self.counters.watches.fetch_add(1, Ordering::Relaxed) < self.ports.limits.watches);
        if permit.is_none() {
            self.counters.overloaded.fetch_add(1, Ordering::Relaxed);
        }
        permit
    }

    /// A permit for a long answer of one caller that is being built or is still unread, held until dropped.
    pub(crate) fn long_answer(&self, caller: &Principal) -> Result<Share, ErrorBody> {
        self.long.take(caller).ok_or_else(|| {
            self.overloaded("per-client limit of unread long answers reached; read them, or retry later")
                .retry_after(Duration::from_secs(1))
        })
    }

    /// A stopping manager runtime loses the answers of its actors: its pending requests are not waited for.
    async fn until_runtime_stops(&self, asked: &Asked, relayed: bool) -> Result<String, ErrorBody> {
        loop {
            let runtime = self.ports.manager.borrow().clone();
            let Some(runtime) = runtime else {
                return Box::pin(self.dispatch(asked, relayed)).await;
            };
            let mut now = self.ports.manager.clone();
            let stopped = now.wait_for(|now| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &runtime)));
            tokio::select! {
                answer = Box::pin(self.dispatch(asked, relayed)) => return answer,
                _ = stopped => {}
            }
            if kind_of(&asked.request) == Kind::Write {
                let why = "this node's manager runtime stopped during the request (ask another manager)";
                let managers = Details::default().with(detail::MANAGERS, &(self.ports.facts)().managers);
                return Err(ErrorBody::unknown_outcome(why).with_details(&managers));
            }
        }
    }

    async fn dispatch(&self, asked: &Asked, relayed: bool) -> Result<String, ErrorBody> {
        if let Some(locked) = &self.ports.locked {
            return crate::locked::answer(locked, &asked.request).await;
        }
        let manager = self.ports.manager.borrow().clone();
        // The socket of a node whose manager runtime has just stopped acts as that node, whatever its certificate still
        // states.
        let as_node;
        let asked = match (&manager, &asked.caller) {
            (None, Principal::Operator) => {
                as_node = Asked { caller: Principal::Node(self.facts().id), ..asked.clone() };
                &as_node
            }
            _ => asked,
        };
        authorize(&asked.caller, &asked.request, || self.facts().managers)?;
        if matches!(asked.request, Request::Unlock { .. }) {
            // The socket of a locked daemon is served elsewhere, before there is an API.
            return Err(ErrorBody::new(ErrorCode::NotLocked, "this daemon is not locked"));
        }
        crate::core::node_of(&asked.request).map_or(Ok(()), crate::core::check_node_ref)?;
        match &asked.request {
            Request::Contact => {
                let facts = self.facts();
                let answer = serde_json::json!({"managers": facts.managers, "root_pem": facts.root_pem, "cluster": facts.cluster});
                return Ok(answer.to_string());
            }
            // Large and rare: boxed, so that what each request allocates stays small.
            Request::Actors { node, ask } => {
                return Box::pin(ActorRequests { service: self, ask }.answer(asked, node)).await;
            }
            Request::OpenAdmission => return self.open_admission().await,
            Request::WorkloadExplain { pid } => return self.explain_workloads(asked, &self.facts(), *pid).await,
            _ => {}
        }
        let Some(manager) = manager else {
            return Box::pin(self.without_manager_runtime(asked, &self.facts())).await;
        };
        let work = Work { service: self, manager: &manager, asked };
        match (&asked.request, kind_of(&asked.request)) {
            (Request::NodeWatch { node, seen, wait_ms }, _) => {
                Reads { work }.watch_node(node, *seen, Duration::from_millis(*wait_ms)).await
            }
            (Request::Lease(request @ LeaseRequest::Watch { lease, seen, wait_ms }), _) => {
                LeaseRequests { work, request }.watch(lease, *seen, Duration::from_millis(*wait_ms)).await
            }
            (Request::Reconciler(ReconcilerRequest::Log { name, run, offset, wait_ms }), _) => {
                let (offset, wait_ms) = (*offset, *wait_ms);
                RunLogRequest { work, reconciler: name, number: *run, offset, wait_ms }.answer().await
            }
            (Request::Reconciler(request), Kind::Read) => ReconcilerRequests { work, request }.read().await,
            (_, Kind::Write | Kind::SecretRead | Kind::LeaderRead) => Writes { work }.answer(relayed).await,
            (_, Kind::StaleableRead) => Reads { work }.staleable(relayed).await,
            _ => Reads { work }.confirmed().await,
        }
    }

    async fn open_admission(&self) -> Result<String, ErrorBody> {
        let open = Arc::clone(&self.ports.open_admission);
        let opened = tokio::task::spawn_blocking(move || open()).await;
        let opened = opened.unwrap_or_else(|_| Err("the daemon is shutting down".to_owned()));
        let failed = |why| ErrorBody::new(ErrorCode::Internal, format!("the cluster stays closed: {why}"));
        to_text(&AdmissionOpenedView { changed: opened.map_err(failed)? })
    }

    /// A worker forwards its own node's requests to a manager. It vouches for no other caller.
    async fn without_manager_runtime(&self, asked: &Asked, facts: &NodeFacts) -> Result<String, ErrorBody> {
        if asked.caller != Principal::Node(facts.id) {
            let details = Details::default().with(detail::MANAGERS, &facts.managers);
            let sentence = match facts.managers.first() {
                Some(first) => format!("this node is not a manager; ask a manager, for example {first}"),
                None => "this node is not a manager and knows no manager".to_owned(),
            };
            return Err(ErrorBody::new(ErrorCode::NotAManager, sentence).with_details(&details));
        }
        // Final: no manager will answer this node again.
        if let Some(trouble) = &facts.trouble
            && let Some(code) = trouble.kind().final_code()
        {
            let sentence = format!(
                "this node is {trouble}: it was removed from the cluster, and no manager talks to it any more; to use this machine \
                 again, join it as a new node, with an empty data directory"
            );
            return Err(ErrorBody::new(code, sentence));
        }
        let answer = self.relay.to_any_manager(asked, &facts.managers).await?;
        self.localize(asked, answer)
    }

    /// A request that another manager forwards for a caller it has authenticated. Answered only while leading.
    pub async fn answer_forwarded(
        &self,
        forwarder: NodeId,
        caller: Principal,
        request_id: RequestId,
        timeout_ms: u64,
        request: Request,
    ) -> Result<String, ErrorBody> {
        let call = ApiCall { id: 0, request_id, timeout_ms, request };
        self.answer_from(&Origin::forwarded_by(forwarder), caller, call).await
    }

    /// Another manager's request about the actors of this process, or of a node in session with it.
    pub async fn answer_actors(&self, call: &ActorsCall, left: Duration) -> Result<String, ErrorBody> {
        let actors = ActorRequests { service: self, ask: &call.ask };
        if call.node == (self.ports.facts)().id {
            return actors.here().await;
        }
        let manager = self.ports.manager.borrow().clone().ok_or_else(not_leading)?;
        actors.hosted(&manager, call.node, left).await
    }

    /// The actors of this process: the answer, and the admin action to run once the answer has been sent.
    pub async fn inspect(&self, ask: &ActorsAsk) -> Result<(String, Option<AdminAction>), ErrorBody> {
        ActorRequests { service: self, ask }.inspect().await
    }

    /// A permit for one reachability check.
    pub(crate) fn enter_stop_check(&self) -> Result<SemaphorePermit<'_>, ErrorBody> {
        self.stop_checks.try_acquire().map_err(|_| {
            self.counters.overloaded.fetch_add(1, Ordering::Relaxed);
            let text = "too many managers are being asked whether a node may stop; retry";
            ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(Duration::from_millis(500))
        })
    }

    /// A linearizable replica.
    pub(crate) async fn replica(&self, manager: &ManagerPorts, limit: Duration) -> Result<Arc<Replica>, ErrorBody> {
        let deadline_ms = millis(limit);
        let margin = limit + Duration::from_millis(200);
        let read = manager.raft.ask(margin, |reply| RaftMemberMsg::Read { deadline_ms, reply }).await;
        match read {
            Ok(Ok(replica)) => Ok(self.quorum_wait.confirmed(replica)),
            Ok(Err(ReadError::Busy)) => {
                let busy = ErrorBody::new(ErrorCode::TooManyRequests, "too many reads are in flight; retry");
                Err(busy.retry_after(Duration::from_millis(200)))
            }
            // The names of those that do not answer follow.
            Ok(Err(ReadError::NoQuorum { .. } | ReadError::TimedOut)) => {
                Err(self.no_quorum(manager, "the read was not confirmed in time"))
            }
            Ok(Err(why)) => Err(self.no_quorum(manager, &format!("the read was not confirmed ({why})"))),
            Err(why) => Err(why.into()),
        }
    }

    /// This node, as `status` shows it.
    pub(crate) fn this(&self) -> SelfView {
        let facts = (self.ports.facts)();
        let trouble = facts.trouble.or_else(|| self.manager_runtime_fault().map(Trouble::ManagerFailing));
        SelfView { id: facts.id, name: facts.name, role: facts.role, trouble: trouble.map(|t| t.to_string()) }
    }

    /// The answering manager wrote itself into `self` of `status`; it is replaced by the node that was asked.
    pub(crate) fn localize(&self, asked: &Asked, answer: String) -> Result<String, ErrorBody> {
        if !matches!(asked.request, Request::Status { .. }) {
            return Ok(answer);
        }
        let internal = |e: serde_json::Error| ErrorBody::new(ErrorCode::Internal, e.to_string());
        let mut value: serde_json::Value = serde_json::from_str(&answer).map_err(internal)?;
        if let Some(map) = value.as_object_mut() {
            map.insert("self".to_owned(), serde_json::to_value(self.this()).map_err(internal)?);
        }
        Ok(value.to_string())
    }

    /// Why this node's manager runtime is missing although it should run (a full disk, for example).
    pub(crate) fn manager_runtime_fault(&self) -> Option<String> {
        self.ports.tree.failing("node/manager")
    }
}

/// What is logged about a request carries its id, on the node that accepts it and on the leader that carries it out.
fn span_of(id: RequestId) -> Span {
    match id {
        RequestId(0) => Span::none(),
        id => tracing::info_span!("api", request = %id),
    }
}

/// Only names and outcomes: neither the content of a request nor its answer, which may be secrets.
fn log_answer(origin: &Origin, asked: &Asked, result: &Result<String, ErrorBody>) {
    if asked.request_id == RequestId(0) || !tracing::enabled!(Level::DEBUG) {
        return;
    }
    let (verb, _) = described(&asked.request, None);
    let code = result.as_ref().err().map(|error| error.code);
    let forwarder = origin.forwarder.map(tracing::field::display);
    tracing::debug!(%verb, by = %asked.caller, forwarder, code = code.map(tracing::field::debug), "API request answered");
}

/// Whether the request may wait for changes: then it takes long and is not work.
pub(crate) fn waits(request: &Request) -> bool {
    matches!(
        request,
        Request::Events { wait_ms: 1.., .. }
            | Request::NodeWatch { wait_ms: 1.., .. }
            | Request::Lease(LeaseRequest::Watch { wait_ms: 1.., .. })
            | Request::Reconciler(
                ReconcilerRequest::View { wait_ms: 1.., .. }
                    | ReconcilerRequest::ObjectChanges { wait_ms: 1.., .. }
                    | ReconcilerRequest::Log { wait_ms: 1.., .. }
            )
    )
}

pub(crate) struct WatchPermit(Arc<Counters>, #[expect(dead_code, reason = "dropped with it")] Share);
impl Drop for WatchPermit {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(crate) struct RequestPermit(Arc<Counters>, #[expect(dead_code, reason = "dropped with it")] Share);
impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The error for a refusal right after the handshake.
pub(crate) fn refusal_error(refusal: &Refusal) -> ErrorBody {
    let mut error = ErrorBody::new(refusal.reason.code(), refusal.message.clone())
        .with_details(&Details::default().with(detail::MANAGERS, &refusal.managers));
    error.retry_after_ms = refusal.retry_after_ms;
    if refusal.reason == RefusalReason::Forbidden {
        error.code = ErrorCode::Forbidden;
    }
    error
}

#[cfg(test)]
mod tests {
    use muster_messages::RaftStatus;
    use muster_messages::protocol::Reply;
    use muster_testkit::{Probe, eventually};
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    use super::*;
    use crate::tests::{World, runtime, service, tables, unreachable_actor};

    /// A call to another manager.
    struct SentCall(Reply<Result<Vec<u8>, ErrorBody>>);

    #[tokio::test]
    async fn one_callers_requests_leave_permits_for_other_callers() {
        let service = World::new().service;
        let (ann, bob) = (Principal::User("ann".parse().unwrap()), Principal::User("bob".parse().unwrap()));
        let all = service.ports.limits.in_progress;
        let mut permits = Vec::new();
        for (waits, share) in [(false, all / WORKING_SHARE_DIVISOR), (true, all / WAITING_SHARE_DIVISOR)] {
            permits.extend((0..share).map(|_| service.enter(&ann, waits).unwrap()));
            let refused = service.enter(&ann, waits).err().unwrap();
            assert_eq!((refused.code, refused.retry_after_ms), (ErrorCode::TooManyRequests, Some(500)));
            assert!(service.enter(&bob, waits).is_ok());
        }
        assert_eq!(service.counters.overloaded.load(Ordering::Relaxed), 2);
        permits.pop();
        assert!(service.enter(&ann, true).is_ok(), "an answered request returns its permit");
        drop(permits);
        assert_eq!(service.counters.in_progress.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_callers_leader_calls_leave_permits_for_others() {
        let mut mesh = Probe::showing("mesh", |_: &SentCall| String::new());
        let raft = RaftStatus { leader_node: Some(NodeId::from_entropy(2)), ..RaftStatus::default() };
        let published = watch::Sender::new(Arc::new(Replica { tables: tables(), raft }));
        let follower = runtime(published.subscribe(), unreachable_actor());
        let to_mesh = mesh.recipient();
        let call: crate::PeerCalls = Arc::new(move |_, timeout, _| {
            let to_mesh = to_mesh.clone();
            Box::pin(async move { to_mesh.ask(timeout, SentCall).await.map_err(ErrorBody::from)? })
        });
        let follower = ManagerPorts { call, ..Arc::into_inner(follower).unwrap() };
        let in_force = watch::Sender::new(Some(Arc::new(follower)));
        let service = service(in_force.subscribe());
        let ask = |who: &Principal| {
            let (service, who, request) = (service.clone(), who.clone(), Request::NodeList { fresh: true });
            async move {
                service.answer(who, ApiCall { id: 0, request_id: RequestId(0), timeout_ms: 60_000, request }).await
            }
        };
        let (ann, bob) = (Principal::Admin("ann".parse().unwrap()), Principal::Admin("bob".parse().unwrap()));
        let mut asked = JoinSet::new();
        (0..MAX_LEADER_CALLS_PER_CALLER).for_each(|_| drop(asked.spawn(ask(&ann))));
        eventually("all of them wait for the leader", || mesh.waiting() == MAX_LEADER_CALLS_PER_CALLER).await;
        let refused = ask(&ann).await.unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (ErrorCode::TooManyRequests, Some(500)));
        asked.spawn(ask(&bob));
        eventually("another caller's request waits too", || mesh.waiting() == MAX_LEADER_CALLS_PER_CALLER + 1).await;
        for call in mesh.drain() {
            call.0.send(Ok(b"{}".to_vec())).unwrap();
        }
        assert!(asked.join_all().await.iter().all(Result::is_ok));
        asked = JoinSet::new();
        asked.spawn(ask(&ann));
        eventually("answered requests return their permits", || mesh.waiting() == 1).await;
        drop((asked, mesh));
    }
}
