//! The decisions about sessions: one node's session ([`session`]), the host of all sessions of one manager ([`host`]),
//! and the leader's dispatcher ([`dispatcher`]), with the small state machines they share.

pub mod bucket;
pub mod digest;
pub mod dispatcher;
pub mod host;
pub mod instances;
pub mod node_update;
pub mod session;
pub mod spread;
#[cfg(test)]
pub(crate) mod testing;
pub mod workloads;
