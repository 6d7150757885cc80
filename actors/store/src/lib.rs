//! Store: applies committed entries to the replicated state.
//!
//! Owns        nothing: the raft member owns the [`Tables`](muster_messages::Tables), this library writes them.
//! Inputs      committed entries in log order: commands, membership changes, empty entries.
//! Outputs     applied, or a refusal.
//! Invariants  those of [`invariants`], and
//!             APPLY-1  applying is a pure function of tables and entry: two members that applied the same log are equal.
//!             APPLY-2  a command is applied completely or not at all; a refusal leaves only a revision and a remembered outcome.
//!             APPLY-3  a request id is applied at most once; its retry gets the first outcome, or is refused once that is forgotten
//!                      (below `IDENTITY_LEVEL` it may then be applied again).
//!             APPLY-4  no caller's requests evict outcomes of another that has fewer of them (from `IDENTITY_LEVEL` on).
//!             EVENT-1  an event evicts only events of its own class: leases, liveness and nodes' reports evict no others (from
//!                      `IDENTITY_LEVEL` on).
//! Why guards are evaluated here and not when a command is proposed: other entries are applied in between. So callers may
//! pipeline without a lock, and every member decides alike.

mod apply;
pub mod backup;
#[cfg(not(feature = "bug-injection"))]
mod bugs;
#[cfg(feature = "bug-injection")]
pub mod bugs;
mod changes;
mod deletions;
pub mod growth;
mod guards;
pub mod history;
pub mod invariants;
mod limits;
mod membership;
pub mod recovery;
mod requests;
pub mod snapshot;

pub use self::apply::{LogPosition, apply, apply_empty, apply_watched, apply_watched_within, apply_within};
pub use self::changes::{
    forgettable_at, last_certificate_expires_at, may_be_revoked, may_be_revoked_by, renamed_at, root_changed_at,
    voters_without, workloads_end_after,
};
pub use self::deletions::{Deleted, Deletions, deleted_between};
pub use self::history::History;
pub use self::limits::{Limits, MAX_CALLERS, MAX_EVENTS, MAX_OUTCOMES};
pub use self::membership::{apply_membership, apply_membership_within, check_membership};

/// True while a test has broken this promise on purpose.
use self::bugs::is_injected as injected;
