//! The fields that Muster's errors have in their details. Their names and forms are part of the interface for scripts.

use super::{AdmissionReason, Blocker, HoldReason, NodeId, Revision, RootId, RunView};
use crate::base::{DetailField, WallTime};

/// Addresses of managers to ask instead.
pub const MANAGERS: DetailField<Vec<String>> = DetailField::new("managers");
/// Voters that do not answer.
pub const MISSING: DetailField<Vec<NodeId>> = DetailField::new("missing");
/// As [`MISSING`], where the error is about managers by name.
pub const MISSING_BY_NAME: DetailField<Vec<String>> = DetailField::new("missing");
/// Beside [`MISSING`]: the same ones for people, with their addresses.
pub const MISSING_NAMES: DetailField<Vec<String>> = DetailField::new("missing_names");
/// How many managers answer.
pub const ANSWERING: DetailField<usize> = DetailField::new("answering");
/// How many must.
pub const NEEDED: DetailField<usize> = DetailField::new("needed");
/// The size of the replicated state.
pub const BYTES: DetailField<u64> = DetailField::new("bytes");
/// Its limit.
pub const LIMIT: DetailField<u64> = DetailField::new("limit");
/// A version of the unlock key.
pub const VERSION: DetailField<Revision> = DetailField::new("version");
/// When a keyring was last written.
pub const SINCE: DetailField<Option<WallTime>> = DetailField::new("since");
/// The generation of what is declared now.
pub const GENERATION: DetailField<u64> = DetailField::new("generation");
/// What is on record of a run.
pub const RUN: DetailField<RunView> = DetailField::new("run");
/// Why, in a word.
pub const REASON: DetailField<String> = DetailField::new("reason");
/// Why a gate stays closed.
pub const HOLD_REASON: DetailField<HoldReason> = DetailField::new("reason");
/// Why a participant is not admitted.
pub const ADMISSION_REASON: DetailField<AdmissionReason> = DetailField::new("reason");
/// Members that keep a gate closed: the first ones.
pub const BLOCKERS: DetailField<Vec<Blocker>> = DetailField::new("blockers");
/// How many there are.
pub const BLOCKERS_IN_ALL: DetailField<usize> = DetailField::new("blockers_in_all");
/// The cluster's feature level.
pub const LEVEL: DetailField<u32> = DetailField::new("level");
/// The highest one that a build supports.
pub const SPEAKS: DetailField<u32> = DetailField::new("speaks");
/// The node that a request was about.
pub const NODE: DetailField<String> = DetailField::new("node");
/// The root that a rotation was about.
pub const ROOT: DetailField<RootId> = DetailField::new("root");
/// The revision after which changes were asked for.
pub const SINCE_REVISION: DetailField<Revision> = DetailField::new("since");
