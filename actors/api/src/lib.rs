//! The API: requests of people, scripts and programs to a cluster, over the one TLS port and the admin socket.
//!
//! - [`core`]: who may do what, names to ids, and the JSON shapes of the contract. Pure.
//! - [`Service`]: one request in, one answer out, wherever the leader is.
//! - [`ApiShell`]: the actor `node/api`; connections of both services and of the admin socket.
//!
//! A follower forwards to the leader what only the leader can answer; a worker forwards everything to a manager.

mod access;
mod actors;
mod audit;
mod autolock;
mod autopilot;
mod backup;
mod building;
mod connections;
pub mod core;
mod http;
mod kube;
mod lead;
mod leader;
mod leases;
mod locked;
mod log_quota;
mod may_stop;
mod metrics;
mod msg;
mod native;
mod no_quorum;
mod ports;
mod quorum_wait;
mod reads;
mod reconcilers;
mod relay;
mod roots;
mod run_logs;
mod service;
mod shares;
mod shell;
mod socket;
#[cfg(test)]
mod tests;
mod users;
mod work;
mod workloads;
mod writes;

pub use http::definition;
pub use leader::{LeaderSearch, RETRY_PAUSE};
pub use msg::ApiMsg;
pub use native::{Caller, serve_native};
pub use ports::{
    ApiLimits, ApiPorts, ExplainWorkloads, LeaderPorts, LockedDaemon, ManagerPorts, NodeFacts, PeerCalls,
    RenderMetrics, RenderedMetrics, RunLogSource,
};
pub use service::Service;
pub use shell::ApiShell;
pub use socket::AdminSocket;
