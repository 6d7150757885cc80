//! Metrics, and plain HTTP for monitoring: `/metrics` (Prometheus), `/livez`, `/readyz`. The API serves the same metrics on the
//! TLS port and the admin socket.

mod actors;
mod autopilot;
mod certificates;
mod format;
mod process;
mod reconcilers;
mod roles;
mod serve;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use muster_api::{ManagerPorts, RenderMetrics, RenderedMetrics};
use muster_audit::AuditLog;
use muster_gateway::GatewayView;
use muster_kernel::{Clock, Tree};
use muster_messages::protocol::NodeCredentials;
use muster_messages::{
    ApiView, ElectionsView, ErrorBody, ErrorCode, JoinView, Liveness, MeshView, NodeDoubts, PeerProblemKind,
    PeerProgress, QuorumView, RaftActorView, RefusalReason, WallTime,
};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::actors::Actors;
use self::format::Format;
use self::roles::Roles;
use super::boot::Exit;
use super::logging;
use super::ready::Readiness;

type Number = Gauge<u64, AtomicU64>;

/// Binds the metrics port, unless it is `off`.
pub async fn listen(addr: &str) -> Result<Option<Arc<TcpListener>>, Exit> {
    if addr == "off" {
        return Ok(None);
    }
    let listener = TcpListener::bind(addr).await;
    listener
        .map(|listener| Some(Arc::new(listener)))
        .map_err(|e| Exit::new(1, format!("cannot listen on {addr} for metrics: {e}; --metrics off disables metrics")))
}

/// What is measured. Clones measure the same.
#[derive(Clone)]
pub struct Source {
    pub release: String,
    pub tree: Tree,
    pub credentials: watch::Receiver<Arc<NodeCredentials>>,
    pub manager: watch::Receiver<Option<Arc<ManagerPorts>>>,
    pub audit: AuditLog,
}

/// Serves until the process ends.
pub fn serve(listener: Option<Arc<TcpListener>>, source: Source, readiness: Readiness) -> Option<SocketAddr> {
    let listener = listener?;
    let addr = listener.local_addr().ok();
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || {
                let ready = readiness.now();
                async move {
                    match ready {
                        Some(role) => (StatusCode::OK, format!("{role}\n")),
                        None => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n".to_owned()),
                    }
                }
            }),
        )
        .route("/metrics", get(move |headers: HeaderMap| scraped(source.clone(), headers)));
    tokio::spawn(serve::serve(listener, router));
    addr
}

/// Serves a locked daemon's metrics until it is aborted.
pub fn serve_locked(listener: Arc<TcpListener>) -> AbortHandle {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "locked\n") }))
        .route("/metrics", get(scraped_locked));
    tokio::spawn(serve::serve(listener, router)).abort_handle()
}

async fn scraped(source: Source, headers: HeaderMap) -> impl IntoResponse {
    response(render(&source, accept(&headers)).await)
}

/// The same for the API, which knows no daemon.
pub fn port(source: Source) -> RenderMetrics {
    Arc::new(move |accept| {
        let source = source.clone();
        Box::pin(async move { render(&source, &accept).await })
    })
}

/// The same while the daemon is locked. (The API of a locked daemon serves its status only.)
pub fn locked_port() -> RenderMetrics {
    Arc::new(|accept| Box::pin(async move { render_locked(&accept) }))
}

async fn scraped_locked(headers: HeaderMap) -> impl IntoResponse {
    response(render_locked(accept(&headers)))
}

fn render_locked(accept: &str) -> Result<RenderedMetrics, ErrorBody> {
    let mut all = Registry::default();
    process::register(&mut all);
    let muster = all.sub_registry_with_prefix("muster");
    locked(muster, true);
    log_events(muster);
    encoded(accept, &all)
}

fn accept(headers: &HeaderMap) -> &str {
    headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn response(rendered: Result<RenderedMetrics, ErrorBody>) -> impl IntoResponse {
    match rendered {
        Ok(metrics) => (StatusCode::OK, [(header::CONTENT_TYPE, metrics.media_type)], metrics.text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], error.message),
    }
}

fn locked(registry: &mut Registry, is_locked: bool) {
    gauge(registry, "locked", "1 while the daemon waits for the cluster's unlock key", u64::from(is_locked));
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: &'static str,
}

/// Built anew for each scrape: a removed path leaves no series. `accept`: the header of that name.
async fn render(source: &Source, accept: &str) -> Result<RenderedMetrics, ErrorBody> {
    let mut all = Registry::default();
    process::register(&mut all);
    let registry = all.sub_registry_with_prefix("muster");
    process::infos(registry, &source.release, cluster(source));
    registry.register_collector(Box::new(Actors(source.tree.numbers())));
    certificates::register(registry, &source.credentials.borrow().cert_pem);
    replica(registry, source);
    raft_member(registry, source).await;
    elections(registry, source).await;
    autopilot::register(registry, source).await;
    ingress(registry, source).await;
    reconcilers::register(registry, source).await;
    audit(registry, source);
    locked(registry, false);
    log_events(registry);
    encoded(accept, &all)
}

fn encoded(accept: &str, all: &Registry) -> Result<RenderedMetrics, ErrorBody> {
    let format = Format::accepted(accept);
    let mut text = String::new();
    let failed =
        |error: std::fmt::Error| ErrorBody::new(ErrorCode::Internal, format!("cannot encode the metrics: {error}"));
    encode(&mut text, all).map_err(failed)?;
    Ok(RenderedMetrics { media_type: format.media_type(), text: format.of(text) })
}

/// Name and id of the cluster, from this manager's replica.
fn cluster(source: &Source) -> Option<(String, String)> {
    let manager = source.manager.borrow().clone()?;
    let replica = manager.replica.borrow().clone();
    replica.tables.cluster.as_ref().map(|cluster| (cluster.name.to_string(), cluster.id.to_string()))
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Problem {
    node: String,
    problem: &'static str,
}

/// Only if a log is configured.
fn audit(registry: &mut Registry, source: &Source) {
    let Some(state) = source.audit.state() else { return };
    for (name, help, value) in [
        ("audit_lines", "Lines written to the audit log", state.written),
        ("audit_failed", "Lines whose first write failed; most are written later", state.failed),
        ("audit_dropped", "Lines that were never written", state.dropped),
        ("audit_suppressed", "Refusals of callers without identity beyond the rate that is logged", state.suppressed),
    ] {
        count(registry, name, help, value);
    }
    let failing = u64::from(state.failing.is_some());
    gauge(registry, "audit_failing", "1 while the audit log cannot be written", failing);
}

fn problems(registry: &mut Registry, progress: &[PeerProgress]) {
    let problems: Family<Problem, Number> = Family::default();
    for (peer, problem) in progress.iter().filter_map(|peer| Some((peer, peer.problem.as_ref()?))) {
        let problem = match problem.kind {
            PeerProblemKind::SnapshotNotTaken => "snapshot_not_taken",
            PeerProblemKind::StateDiverged => "state_diverged",
        };
        let node = peer.node.map_or_else(String::new, |node| node.to_string());
        problems.get_or_create(&Problem { node, problem }).set(1);
    }
    registry.register("raft_member_problem", "1 while a manager answers but cannot follow the leader", problems);
}

fn replica(registry: &mut Registry, source: &Source) {
    let Some(manager) = source.manager.borrow().clone() else { return };
    let replica = manager.replica.borrow().clone();
    let voters = replica.tables.members.values().filter(|member| member.voter).count();
    let gauges = [
        ("raft_term", "The Raft term", replica.raft.term.0),
        ("raft_commit", "The last committed index", replica.raft.commit.0),
        ("raft_applied", "The last applied index", replica.raft.applied.0),
        ("raft_leading", "1 while this manager leads", u64::from(replica.raft.leading)),
        ("raft_members", "Members of the Raft configuration", replica.tables.members.len() as u64),
        ("raft_voters", "Voting members of the Raft configuration", voters as u64),
        ("blocklist_entries", "Blocked node ids", replica.tables.blocklist.len() as u64),
        ("workloads", "Workloads with an entry", replica.tables.workloads.entries.len() as u64),
    ];
    for (name, help, value) in gauges {
        gauge(registry, name, help, value);
    }
    let nodes: Family<State, Number> = Family::default();
    for (state, liveness) in [("ready", Liveness::Ready), ("down", Liveness::Down), ("unknown", Liveness::Unknown)] {
        let count = replica.tables.nodes.values().filter(|n| n.liveness == liveness).count();
        nodes.get_or_create(&State { state }).set(count as u64);
    }
    registry.register("nodes", "Nodes by state", nodes);
    if let Some(cluster) = &replica.tables.cluster {
        certificates::register_root(registry, &cluster.root_cert_pem);
    }
    if replica.raft.leading {
        margin(registry, &manager.quorum());
        problems(registry, &replica.raft.progress);
        let view = Arc::clone(&manager.leader.view.borrow());
        registry.register_collector(Box::new(Roles { view, now: Clock.wall() }));
        duplicates(registry, &manager.leader.doubts.borrow());
    }
}

/// What only the leader can tell: the others see sessions, and not who acknowledges.
fn margin(registry: &mut Registry, quorum: &QuorumView) {
    let of = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let gauge = Gauge::<i64, AtomicI64>::default();
    gauge.set(of(quorum.reachable) - of(quorum.needed));
    registry.register("quorum_margin", "Voters that may be lost now without losing the quorum", gauge);
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Process {
    node: String,
    address: String,
    process: String,
}

/// One series for each process of a node that has more than one.
fn duplicates(registry: &mut Registry, doubts: &NodeDoubts) {
    let family: Family<Process, Number> = Family::default();
    for (node, what) in &doubts.duplicates {
        for process in &what.processes {
            let (address, process) = (process.addr.clone(), process.instance.clone());
            family.get_or_create(&Process { node: node.to_string(), address, process }).set(1);
        }
    }
    registry.register("duplicate_identity", "Processes that share one node's identity, if more than one", family);
}

/// An actor's view. Without it the series are left out, which an alert notices and the list of all series
/// (`docs/metrics.md`) forbids; a zero would pass for a figure.
async fn view<V: DeserializeOwned>(source: &Source, path: &str) -> Option<V> {
    let actor = source.tree.inspect(path).await.ok()?;
    serde_json::from_value(actor.view).ok()
}

fn count(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Number::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn timestamp(registry: &mut Registry, name: &str, help: &str, at: WallTime) {
    let gauge = Gauge::<f64, AtomicU64>::default();
    gauge.set(at.0 as f64 / 1_000.0);
    registry.register(name, help, gauge);
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Level {
    level: &'static str,
}

fn log_events(registry: &mut Registry) {
    let family: Family<Level, Counter> = Family::default();
    for (level, events) in logging::events() {
        family.get_or_create(&Level { level }).inc_by(events);
    }
    registry.register("log_events", "Lines of the log, by level; none of those that the filter leaves out", family);
}

async fn raft_member(registry: &mut Registry, source: &Source) {
    let Some(member) = view::<RaftActorView>(source, "node/manager/raft-member").await else { return };
    let help = "Times that a leader became known to this manager";
    count(registry, "raft_leader_changes", help, member.leader_changes);
    count(registry, "raft_disk_syncs", "Times that the log waited for the disk", member.disk.syncs);
}

/// Of the leader's elections, while this manager leads. Those of coordinated elections have Kubernetes' names.
async fn elections(registry: &mut Registry, source: &Source) {
    let Some(view) = view::<ElectionsView>(source, "node/manager/leader/elections").await else { return };
    let (leases, coordinated) = (view.counters, view.coordinated);
    for (name, help, value) in [
        ("lease_renewals", "Leases renewed without a log entry", leases.renewed),
        ("lease_renewals_lost", "Lease renewals that were too late or not from the holder", leases.lost),
        ("lease_renewals_unconfirmed", "Lease renewals that no quorum confirmed", leases.unconfirmed),
        ("lease_renewals_rejected", "Lease renewals rejected because too many were waiting", leases.rejected),
        ("lease_reads", "Reads that confirmed renewals", leases.reads),
        ("lease_expiries", "Leases that expired", leases.expired),
        ("lease_expiries_failed", "Lease expiries that were refused or not proposed", leases.expiries_failed),
        ("lease_clock_pauses", "Times this process was found to have been paused", leases.pauses),
        ("coordinated_leader_election_leader_changes", "Holders elected", coordinated.leader_changes_total),
        (
            "coordinated_leader_election_leader_preemptions",
            "Holders asked to release the lease",
            coordinated.leader_preemptions_total,
        ),
        ("coordinated_leader_election_failures", "Elections that failed", coordinated.failures_total),
        (
            "coordinated_leader_election_skew_preventions",
            "Elections that preferred an older candidate to a newer one",
            coordinated.skew_preventions_total,
        ),
        (
            "coordinated_leader_election_candidates_cleaned_up",
            "Dead candidates deleted",
            coordinated.candidates_cleaned_up_total,
        ),
    ] {
        count(registry, name, help, value);
    }
    gauge(registry, "leases_held", "Leases with a running expiry timer", view.leases as u64);
    gauge(registry, "lease_renewals_waiting", "Lease renewals waiting for confirmation", view.waiting as u64);
    gauge(registry, "leases_contested", "Leases with candidates", view.contests as u64);
}

/// Counters of incoming load.
async fn ingress(registry: &mut Registry, source: &Source) {
    if let Some(api) = view::<ApiView>(source, "node/api").await {
        count(registry, "api_requests_answered", "Requests answered successfully", api.answered);
        count(registry, "api_requests_refused", "Requests answered with an error", api.refused);
        count(registry, "api_requests_rejected", "Requests rejected for lack of a permit", api.overloaded);
        let help = "Events of Kubernetes clients that were accepted but not stored";
        count(registry, "api_events_dropped", help, api.events_dropped);
        if let Some(at) = api.last_backup_at {
            let help = "When this daemon last handed out a backup, since the Unix epoch; no series before the first";
            timestamp(registry, "backup_last_timestamp_seconds", help, at);
        }
    }
    if let Some(GatewayView { metrics, .. }) = view(source, "node/gateway").await {
        // Without an entry before the first one.
        let rejected = metrics.refused.get(&RefusalReason::TooManyRequests).copied().unwrap_or(0);
        let help = "Connections and join requests rejected for lack of a permit";
        count(registry, "gateway_rejected", help, rejected);
        let help = "Unauthenticated connections closed in favour of a newer one";
        count(registry, "gateway_evicted", help, metrics.evicted);
    }
    if let Some(join) = view::<JoinView>(source, "node/manager/join").await {
        count(registry, "join_requests_refused", "Join requests that were refused", join.refused);
    }
    if let Some(mesh) = view::<MeshView>(source, "node/manager/mesh").await {
        let help = "Messages of managers rejected for lack of a permit";
        count(registry, "mesh_calls_rejected", help, mesh.endpoint.dropped.busy);
        let help = "Sessions refused to a second process of one manager";
        count(registry, "mesh_duplicates_refused", help, mesh.identity.duplicates_refused);
    }
}
