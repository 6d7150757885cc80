//! The fields that Muster's errors have in their details. Their names and forms are part of the interface for scripts.

use super::word::words;
use super::{AdmissionReason, Blocker, HoldReason, NodeId, Revision, RootId, RunView, Word};
use crate::base::{DetailField, WallTime};

words! {
    /// Why a request is refused as `gate_closed`, if neither a hold nor an admission is the reason.
    GateReason {
        /// Serving members are incompatible: [`BLOCKERS`].
        Blockers => "blockers",
        /// The cluster's feature level is above what the node's build supports: [`LEVEL`] and [`SPEAKS`].
        FeatureLevel => "feature-level",
    }
}

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
/// What a wait that timed out was waiting for, as a sentence.
pub const REASON: DetailField<String> = DetailField::new("reason");
/// Of an error with the code `gate_closed`: why.
pub const GATE_REASON: DetailField<Word<GateReason>> = DetailField::new("reason");
/// The same: why a reconciler's release does not begin.
pub const HOLD_REASON: DetailField<Word<HoldReason>> = DetailField::new("reason");
/// The same: why a participant is not admitted.
pub const ADMISSION_REASON: DetailField<Word<AdmissionReason>> = DetailField::new("reason");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Details;

    #[test]
    fn reasons_are_words_in_json_and_values_where_read() {
        let blocked = Details::default().with(GATE_REASON, &GateReason::Blockers.into());
        let held = Details::default().with(HOLD_REASON, &HoldReason::Paused.into());
        let waits = Details::default().with(ADMISSION_REASON, &AdmissionReason::NoGate.into());
        assert_eq!(
            [&blocked, &held, &waits].map(ToString::to_string),
            [r#"{"reason":"blockers"}"#, r#"{"reason":"paused"}"#, r#"{"reason":"no-gate"}"#]
        );
        assert_eq!(blocked.get(GATE_REASON), Some(GateReason::Blockers.into()));
        let level = Details::parse(r#"{"reason":"feature-level","level":4,"speaks":3}"#);
        assert_eq!(level.get(GATE_REASON), Some(GateReason::FeatureLevel.into()));
        let newer = Details::parse(r#"{"reason":"of-a-newer-release"}"#).get(GATE_REASON).unwrap();
        assert_eq!((newer.known(), newer.text()), (None, "of-a-newer-release"));
    }
}
