//! The certificate authority: signs certificates for granted roles. Runs under the leader.
//!
//! Owns        pending certificate requests. They are soft state: a crash or a change of leader closes their ports, and the callers
//!             ask again. No answer is lost, because it was recorded first.
//! Inputs      `SignNode`, `Join`, `SignUser`; the local replica; results of its proposals.  Outputs  proposals, certificates.
//! Invariants  CERT-1  a certificate is signed for the granted role, at the revision of its grant, whatever was requested or
//!                     desired; if the grant changed meanwhile, it is signed again, never handed out.
//!             CERT-2  no certificate is handed out before its record is applied: the replicated state knows the latest expiry
//!                     of every node, and a block outlives it.
//!             CERT-3  a blocked node id gets no certificate, neither with its old certificate nor with a token.
//!             CERT-4  one join request creates one node and counts one use of its token, however often it is repeated.
//!             CERT-5  a node's id alone does not prove the identity: a repeated join must have the same key, a re-keying node
//!                     must sign with its old one.
//!             CERT-8  the key of an old certificate is worth no more than a token of the same role, for a limited time.
//! Only the leader signs: only its replica is known to hold everything that was acknowledged, so that a recent block or
//! demotion counts.

#[cfg(not(feature = "bug-injection"))]
mod bugs;
#[cfg(feature = "bug-injection")]
pub mod bugs;
mod config;
pub mod core;
mod requests;
mod shell;
mod signer;
mod verify;

pub use self::config::{BadConfig, Config};
pub use self::shell::{CertAuthorityShell, Clocks, Msg};

/// True while a test has broken this promise on purpose.
use self::bugs::is_injected as injected;
