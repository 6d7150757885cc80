//! RootRotation: replaces the root that signs the cluster's certificates. Runs under the leader.
//!
//! Owns        nothing that outlives it: what a rotation still has to do follows from the replicated table of roots, the recorded
//!             certificates and the recorded acknowledgements (ROOT-9). In memory: since when the nodes are awaited.
//! Inputs      an operator's steps, acknowledgements of nodes, the local replica, results of its proposals.
//! Outputs     proposals: roots and their states, nodes that are to renew, recorded acknowledgements.
//! Invariants  ROOT-2  no root signs before every Raft member that is ready has acknowledged it.
//!             ROOT-3  a Raft member is not left with a certificate that the others refuse: a root is retired only once all of them
//!                     have a certificate of the active one, unless an operator forces it. A compromised root is revoked without
//!                     those that are down or silent, while a majority of the voters is up, with certificates of roots that are not.
//!             ROOT-9  a crash, a restart or a new leader changes nothing but the time that it takes.
//!             UP-1    no join, renewal or role change waits for an authority above: it certifies one root, and everything else is
//!                     signed by the leader.
//! Trust first, sign later, drop last: every other order cuts off a node that was away at the wrong moment.

#[cfg(not(feature = "bug-injection"))]
mod bugs;
#[cfg(feature = "bug-injection")]
pub mod bugs;
mod config;
pub mod core;
mod shell;
mod signer;

pub use self::config::Config;
pub use self::shell::{Msg, RootRotationShell, Upstream};
pub use self::signer::sign;
