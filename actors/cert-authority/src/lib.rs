//! CertAuthority: signs certificates for granted roles. Runs under the leader.
//!
//! Owns   the requests that are waiting for a certificate. They are soft state: a crash or a change of leader closes
//!        their ports, and whoever asked asks again; nothing that was answered is lost, because it was recorded first.
//! Hears  `SignNode`, `Join`, `SignUser`; the applied copy; ends of its proposals.   Says  proposals, certificates.
//! Keeps  CERT-1  a certificate is signed for the role that was granted, at the revision of its grant, whatever was
//!                asked or wished; if the grant changed meanwhile, it is signed again, never handed out.
//!        CERT-2  nobody gets a certificate before its record is applied: the replicated state knows the latest expiry
//!                of every node, and a block outlives it.
//!        CERT-3  a blocked node id gets no certificate, neither with its old certificate nor with a token.
//!        CERT-4  one join request creates one node and counts one use of its token, however often it is repeated.
//!        CERT-5  a node's id alone makes nobody that node: a repeated join must hold the same key, a re-keying node
//!                must sign with its old one.
//!        CERT-8  the key of an old certificate is worth no more than a token of the same role, for a limited time.
//! Why the leader alone: only its copy is known to hold everything that was acknowledged, so that a block or a
//! demotion of a moment ago counts.

mod config;
pub mod core;
#[cfg(not(feature = "sabotage"))]
mod sabotage;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod shell;
mod verify;

pub use self::config::{BadConfig, Config};
pub use self::shell::{CertAuthorityShell, Clocks, Msg};

/// True while a test has broken this promise on purpose.
use self::sabotage::engaged as sabotaged;
