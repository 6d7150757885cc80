//! The promises that a universe can break on purpose, to show that it would notice.

use muster_cert_authority::sabotage as authority;
use muster_gateway::sabotage as gateway;
use muster_store::sabotage as store;

use crate::world::Settings;

/// One broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    AckBeforeSync,
    VoteBeforeSync,
    VoteAgain,
    ReadWithoutAsking,
    ForgetProposals,
    ReuseRaftId,
    SkipNodeGuard,
    RecordAnyCertificate,
    ApplyByMood,
    SignDesiredRole,
    SkipQuorumGate,
    AnswerBeforeWritten,
    /// Managers refuse on a copy that is too old to know.
    JudgeOnOldCopies,
    /// A manager that lost its disk takes its old seat again.
    TakeLostSeat,
    /// Somebody between a client and a manager asks again under another id, so that one write happens twice.
    RetryUnderAnotherId,
    /// A manager answers a read from its own copy.
    AnswerFromTheCopy,
    /// The leader's blocklist sweeps by a clock that is years ahead.
    SweepEarly,
    /// Managers that know of a block neither refuse the node nor cut it, and do not end its session.
    LetTheBlockedStay,
    /// A membership change counts voters by their last acknowledgement. They may have died since.
    TrustRecentAcks,
    /// A leader renews leases without asking anybody whether it still leads.
    RenewUnconfirmed,
    /// A lease passes to whoever asks, alive or not.
    TakeLiveLeases,
    /// A member is admitted by what it has read of the gates.
    AdmitUnseen,
    /// A gate is restricted by what its runner has read of those who serve.
    RestrictUnseen,
    /// A runner whose term is over goes on writing.
    RunWithoutTerm,
    /// Each recovery's revisions, and with them the fencing tokens, leap as far as every other's.
    LeapByConstant,
    /// A recovery leaves leases to whoever holds them in its copy.
    ReviveLeases,
    /// After a recovery a lease that its copy does not know is acquired at once.
    AcquireUnknownLeases,
    /// A retry is applied again once its outcome is forgotten.
    ApplyForgotten,
    /// Leases' events are kept with the others.
    KeepEventsTogether,
    /// What a sync that failed was to write is taken for written.
    TrustFailedSyncs,
    /// Candidates count on their leases to the end, by whatever their clocks say.
    NoMargin,
    /// All callers' request ids are one space.
    ShareRequestIds,
    /// A node's report is kept as it comes.
    TakeAnyLabels,
    /// A node is called as it says.
    TakeReportedNames,
    /// A certificate that is on record no more is as good as one that is.
    AdmitFormer,
    /// A leader believes in grants that it has not applied.
    AdmitForged,
    /// A certificate that is over is renewed.
    RenewFormer,
    /// The log is cut behind a snapshot that is on its way to a member.
    CutBehindTransfers,
    /// A member that refuses a snapshot is sent another one at once.
    SnapshotsWithoutPause,
}

impl Break {
    pub const ALL: [Break; 39] = [
        Break::AckBeforeSync,
        Break::VoteBeforeSync,
        Break::VoteAgain,
        Break::ReadWithoutAsking,
        Break::ForgetProposals,
        Break::ReuseRaftId,
        Break::SkipNodeGuard,
        Break::RecordAnyCertificate,
        Break::ApplyByMood,
        Break::SignDesiredRole,
        Break::SkipQuorumGate,
        Break::AnswerBeforeWritten,
        Break::JudgeOnOldCopies,
        Break::RetryUnderAnotherId,
        Break::AnswerFromTheCopy,
        Break::SweepEarly,
        Break::LetTheBlockedStay,
        Break::TrustRecentAcks,
        Break::ApplyForgotten,
        Break::TrustFailedSyncs,
        Break::ShareRequestIds,
        Break::TakeAnyLabels,
        Break::TakeReportedNames,
        Break::AdmitFormer,
        Break::AdmitForged,
        Break::RenewFormer,
        Break::TakeLostSeat,
        Break::RenewUnconfirmed,
        Break::TakeLiveLeases,
        Break::AdmitUnseen,
        Break::RestrictUnseen,
        Break::RunWithoutTerm,
        Break::LeapByConstant,
        Break::ReviveLeases,
        Break::AcquireUnknownLeases,
        Break::NoMargin,
        Break::KeepEventsTogether,
        Break::CutBehindTransfers,
        Break::SnapshotsWithoutPause,
    ];

    /// What the universe must find broken.
    pub fn breaks(self) -> &'static [&'static str] {
        match self {
            // What is lost was applied already where it was acknowledged.
            Break::AckBeforeSync => &["WRITE-1", "READ-1", "APPLY-1"],
            Break::VoteBeforeSync => &["LEADER-1", "WRITE-1", "READ-1", "APPLY-1"],
            Break::VoteAgain => &["LEADER-1"],
            Break::ReadWithoutAsking => &["READ-1"],
            Break::ForgetProposals => &["PROPOSE-1"],
            Break::ReuseRaftId => &["RAFTID-1"],
            Break::SkipNodeGuard => &["MEMBER-1"],
            Break::RecordAnyCertificate | Break::SignDesiredRole => &["CERT-1"],
            Break::ApplyByMood => &["APPLY-1"],
            Break::SkipQuorumGate | Break::TrustRecentAcks => &["QUORUM-1"],
            Break::AnswerBeforeWritten => &["WISH-1"],
            Break::JudgeOnOldCopies => &["TOLD-1"],
            Break::TakeLostSeat => &["WRITE-1", "READ-1", "APPLY-1"],
            Break::RetryUnderAnotherId | Break::AnswerFromTheCopy => &["LINEAR-1"],
            Break::SweepEarly => &["BLOCK-2"],
            Break::LetTheBlockedStay => &["OUT-1"],
            Break::RenewUnconfirmed | Break::TakeLiveLeases => &["HOLD-1"],
            Break::AdmitUnseen | Break::RestrictUnseen => &["RELEASE-1", "RELEASE-2"],
            Break::RunWithoutTerm => &["RELEASE-4"],
            Break::LeapByConstant => &["RECOVER-3"],
            Break::ReviveLeases => &["FENCE-1", "HOLD-1"],
            Break::AcquireUnknownLeases => &["HOLD-1"],
            Break::ApplyForgotten => &["WRITE-1"],
            Break::KeepEventsTogether => &["EVENT-1"],
            // A write of another is taken for this one, and acknowledged.
            Break::ShareRequestIds => &["WRITE-1", "READ-1"],
            Break::TrustFailedSyncs => &["WRITE-1", "READ-1", "APPLY-1", "LEADER-1"],
            Break::NoMargin => &["HOLD-1"],
            Break::TakeAnyLabels => &["LABEL-1"],
            Break::TakeReportedNames => &["NAME-1"],
            Break::AdmitFormer => &["ADMIT-7"],
            Break::AdmitForged => &["ADMIT-6"],
            Break::RenewFormer => &["CERT-6"],
            Break::CutBehindTransfers => &["SNAP-1"],
            Break::SnapshotsWithoutPause => &["SNAP-2"],
        }
    }

    /// Engages the switch: in the settings, and on this thread.
    pub(crate) fn engage(broken: Option<Break>, settings: &mut Settings) {
        let in_store = match broken {
            Some(Break::ReuseRaftId) => Some(store::Sabotage::ReuseRaftId),
            Some(Break::SkipNodeGuard) => Some(store::Sabotage::SkipNodeGuard),
            Some(Break::ApplyByMood) => Some(store::Sabotage::ApplyByMood),
            Some(Break::RecordAnyCertificate) => Some(store::Sabotage::RecordAnyCertificate),
            Some(Break::TakeLiveLeases) => Some(store::Sabotage::TakeLiveLeases),
            Some(Break::AdmitUnseen) => Some(store::Sabotage::AdmitUnseen),
            Some(Break::RestrictUnseen) => Some(store::Sabotage::RestrictUnseen),
            Some(Break::RunWithoutTerm) => Some(store::Sabotage::RunWithoutTerm),
            Some(Break::LeapByConstant) => Some(store::Sabotage::LeapByConstant),
            Some(Break::ReviveLeases) => Some(store::Sabotage::ReviveLeases),
            Some(Break::AcquireUnknownLeases) => Some(store::Sabotage::AcquireUnknownLeases),
            Some(Break::ApplyForgotten) => Some(store::Sabotage::ApplyForgotten),
            Some(Break::ShareRequestIds) => Some(store::Sabotage::ShareRequestIds),
            Some(Break::TakeAnyLabels) => Some(store::Sabotage::TakeAnyLabels),
            Some(Break::TakeReportedNames) => Some(store::Sabotage::TakeReportedNames),
            Some(Break::KeepEventsTogether) => Some(store::Sabotage::KeepEventsTogether),
            _ => None,
        };
        store::set(in_store);
        authority::set(match broken {
            Some(Break::SignDesiredRole) => Some(authority::Sabotage::SignDesiredRole),
            Some(Break::RenewFormer) => Some(authority::Sabotage::RenewFormer),
            _ => None,
        });
        gateway::set(match broken {
            Some(Break::AdmitFormer) => Some(gateway::Sabotage::AdmitFormer),
            Some(Break::AdmitForged) => Some(gateway::Sabotage::AdmitForged),
            _ => None,
        });
        let raft = &mut settings.raft.sabotage;
        raft.ack_before_sync = broken == Some(Break::AckBeforeSync);
        raft.vote_before_sync = broken == Some(Break::VoteBeforeSync);
        raft.vote_again = broken == Some(Break::VoteAgain);
        raft.read_without_asking = broken == Some(Break::ReadWithoutAsking);
        raft.forget_proposals = broken == Some(Break::ForgetProposals);
        raft.cut_behind_transfers = broken == Some(Break::CutBehindTransfers);
        raft.snapshots_without_pause = broken == Some(Break::SnapshotsWithoutPause);
        settings.roles.sabotage.answer_before_written = broken == Some(Break::AnswerBeforeWritten);
        settings.roles.sabotage.trust_recent_acks = broken == Some(Break::TrustRecentAcks);
        settings.roles.sabotage.skip_quorum_gate = broken == Some(Break::SkipQuorumGate);
    }
}
