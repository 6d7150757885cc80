//! Store: turns committed entries into replicated state.
//!
//! Owns   nothing: the raft member owns the [`Tables`](muster_messages::Tables), this library writes them.
//! Hears  committed entries in log order: commands, seat changes, empty entries.   Says  applied, or a refusal.
//! Keeps  the invariants of [`invariants`], and
//!        APPLY-1  applying is a pure function of tables and entry: two members that applied the same log are equal.
//!        APPLY-2  a command happens whole or not at all; a refusal leaves a revision and a remembered outcome, no more.
//!        APPLY-3  a request id is applied at most once; its retry gets the first outcome, or is refused once that is forgotten
//!                 (below `IDENTITY_LEVEL` it may then be applied again).
//!        APPLY-4  no caller's requests evict outcomes of another that has fewer of them (from `IDENTITY_LEVEL` on).
//!        EVENT-1  an event makes room for one of its own sort alone: what leases, liveness and nodes' reports cause pushes out
//!                 nothing else (from `IDENTITY_LEVEL` on).
//! Why guards are judged here and not where a command is proposed: between proposing and applying, other entries
//! are applied. Judged here, callers may pipeline without a lock, and every member judges alike.

mod apply;
pub mod backup;
mod changes;
pub mod growth;
mod guards;
pub mod history;
pub mod invariants;
mod limits;
pub mod recovery;
mod requests;
#[cfg(not(feature = "sabotage"))]
mod sabotage;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod seats;
pub mod snapshot;

pub use self::apply::{Place, apply, apply_empty, apply_watched, apply_watched_within, apply_within};
pub use self::history::History;
pub use self::limits::{Limits, MAX_CALLERS, MAX_EVENTS, MAX_OUTCOMES};
pub use self::seats::{apply_seat, apply_seat_within, judge_seat};

/// True while a test has broken this promise on purpose.
use self::sabotage::engaged as sabotaged;
