//! The promises that a universe can break on purpose, to show that it would notice.

use muster_cert_authority::sabotage as authority;
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
}

impl Break {
    pub const ALL: [Break; 24] = [
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
        Break::TakeLostSeat,
        Break::RenewUnconfirmed,
        Break::TakeLiveLeases,
        Break::AdmitUnseen,
        Break::RestrictUnseen,
        Break::RunWithoutTerm,
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
            _ => None,
        };
        store::set(in_store);
        let signs_wishes = broken == Some(Break::SignDesiredRole);
        authority::set(signs_wishes.then_some(authority::Sabotage::SignDesiredRole));
        let raft = &mut settings.raft.sabotage;
        raft.ack_before_sync = broken == Some(Break::AckBeforeSync);
        raft.vote_before_sync = broken == Some(Break::VoteBeforeSync);
        raft.vote_again = broken == Some(Break::VoteAgain);
        raft.read_without_asking = broken == Some(Break::ReadWithoutAsking);
        raft.forget_proposals = broken == Some(Break::ForgetProposals);
        settings.roles.sabotage.answer_before_written = broken == Some(Break::AnswerBeforeWritten);
        settings.roles.sabotage.trust_recent_acks = broken == Some(Break::TrustRecentAcks);
        settings.roles.sabotage.skip_quorum_gate = broken == Some(Break::SkipQuorumGate);
    }
}
