//! Bugs that a run can inject, to show that the simulation detects them.

use muster_cert_authority::bugs as authority;
use muster_gateway::bugs as gateway;
use muster_root_rotation::bugs as rotation;
use muster_store::bugs as store;

use crate::settings::Settings;

/// One injected bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    AckBeforeSync,
    VoteBeforeSync,
    VoteTwice,
    ReadWithoutQuorum,
    DropProposals,
    ReuseRaftId,
    SkipNodeGuard,
    RecordAnyCertificate,
    ApplyNondeterministically,
    SignDesiredRole,
    SkipQuorumCheck,
    AnswerBeforeCommit,
    /// Managers refuse nodes by a replica that is too old to know them.
    RefuseOnStaleReplica,
    /// A manager that lost its disk keeps its old member id.
    ReuseLostMemberId,
    /// A proxy repeats a client's request under another id, so that one write is applied twice.
    RetryWithNewId,
    /// A manager answers reads from its local replica.
    ReadLocalReplica,
    /// The leader's blocklist sweeps by a clock that is years ahead.
    SweepEarly,
    /// Managers that know a block neither refuse nor disconnect the node, and keep its session.
    AllowBlocked,
    /// A membership change counts voters by their last acknowledgement; they may have failed since.
    TrustRecentAcks,
    /// A leader renews leases without confirming its leadership.
    RenewUnconfirmed,
    /// A lease passes to any requester, even from a live holder.
    TakeLiveLeases,
    /// A member is admitted without a check of the gates at apply.
    AdmitWithoutCheck,
    /// A gate is restricted without a check of the serving members at apply.
    RestrictWithoutCheck,
    /// A runner keeps writing after its term.
    WriteAfterTerm,
    /// Each recovery raises revisions, and with them fencing tokens, by the same amount.
    ConstantRevisionJump,
    /// A recovery leaves leases to their holders.
    ReviveLeases,
    /// After a recovery a lease unknown to the recovered state can be acquired at once.
    AcquireUnknownLeases,
    /// A retry is applied again once its outcome is forgotten.
    ReapplyForgotten,
    /// Lease events share one history with other events.
    ShareEventQuota,
    /// Writes of a failed sync count as durable.
    TrustFailedSyncs,
    /// Candidates trust their leases to the end by their own clocks.
    NoClockMargin,
    /// All callers share one space of request ids.
    ShareRequestIds,
    /// A node's report is stored without limits.
    AcceptAnyLabels,
    /// A node is renamed to the name that it reports.
    AcceptReportedNames,
    /// A superseded certificate is accepted.
    AdmitSuperseded,
    /// A leader accepts grants that it has not applied.
    AdmitForged,
    /// A superseded certificate is renewed.
    RenewSuperseded,
    /// The log is compacted past a snapshot that is in transfer to a member.
    CompactDuringTransfer,
    /// A member that refuses a snapshot is sent another one at once.
    SnapshotsWithoutBackoff,
    /// The feature level is raised without a check at apply.
    RaiseWithoutCheck,
    /// A member continues beyond the feature level of its build.
    IgnoreLevel,
    /// The certificate authority records certificates as of the newest feature level.
    RecordAheadOfLevel,
    /// A root signs although members have not acknowledged it.
    ActivateUnacknowledged,
    /// A root is retired although members have certificates of it.
    RetireWhileBehind,
    /// The former root stays active when another one is activated.
    KeepFormerActive,
    /// A root keeps its key when it is retired or revoked.
    KeepRetiredKey,
    /// No certificates lead from a root to those before it.
    DropCrosses,
    /// A root is deleted as soon as it has ended, whatever its certificates.
    ForgetEarly,
    /// A leader continues no rotation that another one has begun.
    ContinueNothing,
    /// A certificate is recorded although another root signs since it was signed.
    RecordOfFormerRoot,
    /// A compromised root signs again when an operator asks for it.
    ActivateCompromised,
    /// An agent acknowledges roots before they are on disk.
    AcknowledgeUnwrittenRoots,
    /// An agent trusts roots for which no trusted root vouches.
    AcceptUnvouchedRoots,
    /// Certificates of a withdrawn root are accepted without being on record.
    CountUnrecordedOfWithdrawnRoot,
    /// Former unlock keys are deleted with the next one.
    DeleteFormerKeys,
    /// One entry changes the unlock key twice.
    ChangeKeyTwice,
    /// A manager reports an unlock key before its keyring is written.
    ReportUnwrittenKey,
    /// A keyring follows an older version of the unlock key.
    FollowOlderKey,
    /// The autopilot ignores that it is paused.
    ActWhilePaused,
    /// The autopilot ends an operator's pause.
    ResumeByItself,
    /// A dead manager's successor is promoted before the dead one is demoted.
    PromoteBeforeDemotion,
    /// A change of the autopilot begins while another one has not ended.
    BeginTwice,
    /// A manager that is silent for a moment counts as dead.
    DemoteSilentManagers,
    /// An operator's requests for roles are not remembered.
    ForgetPersons,
    /// Which candidate the autopilot promotes depends on how often it has planned.
    PickAnyCandidate,
    /// The autopilot trusts what another leader observed.
    TrustRecordedLiveness,
    /// A dead manager is demoted and not replaced.
    OnlyDemote,
}

impl Bug {
    pub const ALL: [Bug; 67] = [
        Bug::AckBeforeSync,
        Bug::VoteBeforeSync,
        Bug::VoteTwice,
        Bug::ReadWithoutQuorum,
        Bug::DropProposals,
        Bug::ReuseRaftId,
        Bug::SkipNodeGuard,
        Bug::RecordAnyCertificate,
        Bug::ApplyNondeterministically,
        Bug::SignDesiredRole,
        Bug::SkipQuorumCheck,
        Bug::AnswerBeforeCommit,
        Bug::RefuseOnStaleReplica,
        Bug::RetryWithNewId,
        Bug::ReadLocalReplica,
        Bug::SweepEarly,
        Bug::AllowBlocked,
        Bug::TrustRecentAcks,
        Bug::ReapplyForgotten,
        Bug::TrustFailedSyncs,
        Bug::ShareRequestIds,
        Bug::AcceptAnyLabels,
        Bug::AcceptReportedNames,
        Bug::AdmitSuperseded,
        Bug::AdmitForged,
        Bug::RenewSuperseded,
        Bug::ReuseLostMemberId,
        Bug::RenewUnconfirmed,
        Bug::TakeLiveLeases,
        Bug::AdmitWithoutCheck,
        Bug::RestrictWithoutCheck,
        Bug::WriteAfterTerm,
        Bug::ConstantRevisionJump,
        Bug::ReviveLeases,
        Bug::AcquireUnknownLeases,
        Bug::NoClockMargin,
        Bug::ShareEventQuota,
        Bug::CompactDuringTransfer,
        Bug::SnapshotsWithoutBackoff,
        Bug::RaiseWithoutCheck,
        Bug::IgnoreLevel,
        Bug::RecordAheadOfLevel,
        Bug::ActivateUnacknowledged,
        Bug::RetireWhileBehind,
        Bug::KeepFormerActive,
        Bug::KeepRetiredKey,
        Bug::DropCrosses,
        Bug::ForgetEarly,
        Bug::ContinueNothing,
        Bug::RecordOfFormerRoot,
        Bug::ActivateCompromised,
        Bug::AcknowledgeUnwrittenRoots,
        Bug::AcceptUnvouchedRoots,
        Bug::CountUnrecordedOfWithdrawnRoot,
        Bug::DeleteFormerKeys,
        Bug::ChangeKeyTwice,
        Bug::ReportUnwrittenKey,
        Bug::FollowOlderKey,
        Bug::ActWhilePaused,
        Bug::ResumeByItself,
        Bug::PromoteBeforeDemotion,
        Bug::BeginTwice,
        Bug::DemoteSilentManagers,
        Bug::ForgetPersons,
        Bug::PickAnyCandidate,
        Bug::TrustRecordedLiveness,
        Bug::OnlyDemote,
    ];

    /// The invariants of which the simulation must find one violated.
    pub fn violates(self) -> &'static [&'static str] {
        match self {
            // The lost entry was applied where it was acknowledged.
            Bug::AckBeforeSync => &["WRITE-1", "READ-1", "APPLY-1"],
            Bug::VoteBeforeSync => &["LEADER-1", "WRITE-1", "READ-1", "APPLY-1"],
            Bug::VoteTwice => &["LEADER-1"],
            Bug::ReadWithoutQuorum => &["READ-1"],
            Bug::DropProposals => &["PROPOSE-1"],
            Bug::ReuseRaftId => &["RAFTID-1"],
            Bug::SkipNodeGuard => &["MEMBER-1"],
            Bug::RecordAnyCertificate | Bug::SignDesiredRole => &["CERT-1"],
            Bug::ApplyNondeterministically => &["APPLY-1"],
            Bug::SkipQuorumCheck | Bug::TrustRecentAcks => &["QUORUM-1"],
            Bug::AnswerBeforeCommit => &["INTENT-1"],
            Bug::RefuseOnStaleReplica => &["NOTIFY-1"],
            Bug::ReuseLostMemberId => &["WRITE-1", "READ-1", "APPLY-1"],
            Bug::RetryWithNewId | Bug::ReadLocalReplica => &["LINEAR-1"],
            Bug::SweepEarly => &["BLOCK-2"],
            Bug::AllowBlocked => &["BLOCKED-1"],
            Bug::RenewUnconfirmed | Bug::TakeLiveLeases => &["HOLD-1"],
            Bug::AdmitWithoutCheck | Bug::RestrictWithoutCheck => &["RELEASE-1", "RELEASE-2"],
            Bug::WriteAfterTerm => &["RELEASE-4"],
            Bug::ConstantRevisionJump => &["RECOVER-3"],
            Bug::ReviveLeases => &["FENCE-1", "HOLD-1"],
            Bug::AcquireUnknownLeases => &["HOLD-1"],
            Bug::ReapplyForgotten => &["WRITE-1"],
            Bug::ShareEventQuota => &["EVENT-1"],
            // Another client's write is taken for this one and acknowledged.
            Bug::ShareRequestIds => &["WRITE-1", "READ-1"],
            Bug::TrustFailedSyncs => &["WRITE-1", "READ-1", "APPLY-1", "LEADER-1"],
            Bug::NoClockMargin => &["HOLD-1"],
            Bug::AcceptAnyLabels => &["LABEL-1"],
            Bug::AcceptReportedNames => &["NAME-1"],
            Bug::AdmitSuperseded => &["ADMIT-7"],
            Bug::AdmitForged => &["ADMIT-6"],
            Bug::RenewSuperseded => &["CERT-6"],
            Bug::CompactDuringTransfer => &["SNAP-1"],
            Bug::SnapshotsWithoutBackoff => &["SNAP-2"],
            Bug::RaiseWithoutCheck => &["LEVEL-1", "LEVEL-3"],
            Bug::IgnoreLevel => &["LEVEL-2"],
            Bug::RecordAheadOfLevel => &["LEVEL-4"],
            Bug::ActivateUnacknowledged => &["ROOT-2"],
            Bug::RetireWhileBehind => &["ROOT-3"],
            Bug::KeepFormerActive => &["ROOT-1"],
            Bug::KeepRetiredKey => &["ROOT-4"],
            Bug::DropCrosses => &["ROOTPATH-1"],
            Bug::ForgetEarly => &["ROOT-7"],
            Bug::ContinueNothing => &["ROOT-9"],
            Bug::RecordOfFormerRoot => &["ROOT-10"],
            Bug::ActivateCompromised => &["ROOT-11"],
            Bug::AcknowledgeUnwrittenRoots => &["AGENT-13"],
            Bug::AcceptUnvouchedRoots => &["PKI-9"],
            Bug::CountUnrecordedOfWithdrawnRoot => &["ADMIT-9"],
            Bug::DeleteFormerKeys => &["SEAL-9"],
            Bug::ChangeKeyTwice => &["SEAL-10"],
            Bug::ReportUnwrittenKey | Bug::FollowOlderKey => &["SEAL-9", "SEAL-11"],
            Bug::ActWhilePaused => &["AUTO-1"],
            Bug::ResumeByItself => &["AUTO-2"],
            Bug::PromoteBeforeDemotion => &["AUTO-3"],
            Bug::BeginTwice => &["AUTO-4"],
            Bug::DemoteSilentManagers => &["AUTO-5"],
            Bug::ForgetPersons => &["AUTO-6"],
            Bug::PickAnyCandidate => &["AUTO-7"],
            Bug::TrustRecordedLiveness => &["AUTO-8"],
            Bug::OnlyDemote => &["AUTO-9"],
        }
    }

    /// Sets the switch, in the settings and on this thread.
    pub(crate) fn enable(bug: Option<Bug>, settings: &mut Settings) {
        let in_store = match bug {
            Some(Bug::ReuseRaftId) => Some(store::BugInjection::ReuseRaftId),
            Some(Bug::SkipNodeGuard) => Some(store::BugInjection::SkipNodeGuard),
            Some(Bug::ApplyNondeterministically) => Some(store::BugInjection::ApplyNondeterministically),
            Some(Bug::RecordAnyCertificate) => Some(store::BugInjection::RecordAnyCertificate),
            Some(Bug::TakeLiveLeases) => Some(store::BugInjection::TakeLiveLeases),
            Some(Bug::AdmitWithoutCheck) => Some(store::BugInjection::AdmitWithoutCheck),
            Some(Bug::RestrictWithoutCheck) => Some(store::BugInjection::RestrictWithoutCheck),
            Some(Bug::WriteAfterTerm) => Some(store::BugInjection::WriteAfterTerm),
            Some(Bug::ConstantRevisionJump) => Some(store::BugInjection::ConstantRevisionJump),
            Some(Bug::ReviveLeases) => Some(store::BugInjection::ReviveLeases),
            Some(Bug::AcquireUnknownLeases) => Some(store::BugInjection::AcquireUnknownLeases),
            Some(Bug::ReapplyForgotten) => Some(store::BugInjection::ReapplyForgotten),
            Some(Bug::ShareRequestIds) => Some(store::BugInjection::ShareRequestIds),
            Some(Bug::AcceptAnyLabels) => Some(store::BugInjection::AcceptAnyLabels),
            Some(Bug::AcceptReportedNames) => Some(store::BugInjection::AcceptReportedNames),
            Some(Bug::ShareEventQuota) => Some(store::BugInjection::ShareEventQuota),
            Some(Bug::RaiseWithoutCheck) => Some(store::BugInjection::RaiseWithoutCheck),
            Some(Bug::KeepFormerActive) => Some(store::BugInjection::KeepFormerActive),
            Some(Bug::KeepRetiredKey) => Some(store::BugInjection::KeepRetiredKey),
            Some(Bug::DropCrosses) => Some(store::BugInjection::DropCrosses),
            Some(Bug::ForgetEarly) => Some(store::BugInjection::ForgetEarly),
            Some(Bug::RecordOfFormerRoot) => Some(store::BugInjection::RecordOfFormerRoot),
            Some(Bug::ActivateCompromised) => Some(store::BugInjection::ActivateCompromised),
            Some(Bug::DeleteFormerKeys) => Some(store::BugInjection::DeleteFormerKeys),
            Some(Bug::ChangeKeyTwice) => Some(store::BugInjection::ChangeKeyTwice),
            Some(Bug::BeginTwice) => Some(store::BugInjection::BeginTwice),
            Some(Bug::ForgetPersons) => Some(store::BugInjection::ForgetPersons),
            _ => None,
        };
        store::set(in_store);
        authority::set(match bug {
            Some(Bug::SignDesiredRole) => Some(authority::BugInjection::SignDesiredRole),
            Some(Bug::RenewSuperseded) => Some(authority::BugInjection::RenewSuperseded),
            Some(Bug::RecordAheadOfLevel) => Some(authority::BugInjection::IgnoreLevel),
            _ => None,
        });
        gateway::set(match bug {
            Some(Bug::AdmitSuperseded) => Some(gateway::BugInjection::AdmitSuperseded),
            Some(Bug::AdmitForged) => Some(gateway::BugInjection::AdmitForged),
            Some(Bug::CountUnrecordedOfWithdrawnRoot) => Some(gateway::BugInjection::CountUnrecorded),
            _ => None,
        });
        rotation::set(match bug {
            Some(Bug::ActivateUnacknowledged) => Some(rotation::BugInjection::ActivateUnacknowledged),
            Some(Bug::RetireWhileBehind) => Some(rotation::BugInjection::RetireWhileBehind),
            Some(Bug::ForgetEarly) => Some(rotation::BugInjection::ForgetEarly),
            Some(Bug::ContinueNothing) => Some(rotation::BugInjection::ContinueNothing),
            _ => None,
        });
        muster_autopilot::bugs::set(crate::policies::bug(bug));
        let raft = &mut settings.raft.bugs;
        raft.ack_before_sync = bug == Some(Bug::AckBeforeSync);
        raft.vote_before_sync = bug == Some(Bug::VoteBeforeSync);
        raft.vote_again = bug == Some(Bug::VoteTwice);
        raft.read_without_asking = bug == Some(Bug::ReadWithoutQuorum);
        raft.forget_proposals = bug == Some(Bug::DropProposals);
        raft.cut_behind_transfers = bug == Some(Bug::CompactDuringTransfer);
        raft.ignore_level = bug == Some(Bug::IgnoreLevel);
        raft.snapshots_without_pause = bug == Some(Bug::SnapshotsWithoutBackoff);
        settings.roles.bugs.answer_before_written = bug == Some(Bug::AnswerBeforeCommit);
        settings.roles.bugs.trust_recent_acks = bug == Some(Bug::TrustRecentAcks);
        settings.roles.bugs.skip_quorum_gate = bug == Some(Bug::SkipQuorumCheck);
    }
}
