//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `bug-injection`, and per thread: a simulation runs on one.

use std::cell::Cell;

/// A bug to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BugInjection {
    /// A freed raft id is handed out again (breaks RAFTID-1).
    ReuseRaftId,
    /// A node that is a Raft member may be deleted, and a deleted node may become a member (breaks MEMBER-1).
    SkipNodeGuard,
    /// A certificate is recorded for any role that it names (breaks CERT-1).
    RecordAnyCertificate,
    /// Now and then a member applies a command as nothing (breaks APPLY-1).
    ApplyNondeterministically,
    /// A live lease passes to any acquirer (breaks HELD-1).
    TakeLiveLeases,
    /// A participant is admitted by its own view of the gates, not by the gates (breaks RELEASE-1 and RELEASE-2).
    AdmitWithoutCheck,
    /// A gate is restricted by its runner's view of the serving participants (breaks RELEASE-1).
    RestrictWithoutCheck,
    /// A runner whose term has ended continues to write (breaks RELEASE-4).
    WriteAfterTerm,
    /// A wave's objects are written whatever its conditions are (breaks RELEASE-12).
    IgnoreWaveConditions,
    /// A chain completes its gate before its steps have run (breaks RELEASE-10).
    CompleteUnfinishedChains,
    /// A recovery's revisions leap by a constant from its replica's (breaks RECOVER-3).
    ConstantRevisionJump,
    /// A recovery keeps leases as its replica shows them (breaks RECOVER-9).
    ReviveLeases,
    /// A lease that a recovered state does not know is acquired at once (breaks RECOVER-9).
    AcquireUnknownLeases,
    /// A request whose outcome was forgotten counts as new (breaks APPLY-3).
    ReapplyForgotten,
    /// All callers share one space of request ids (breaks APPLY-3).
    ShareRequestIds,
    /// A node's report is kept without bounds (breaks LABEL-1).
    AcceptAnyLabels,
    /// A node's reported name becomes its name (breaks NAME-1).
    AcceptReportedNames,
    /// Events of leases are kept among the others (breaks EVENT-1).
    ShareEventQuota,
    /// The feature level is raised without a check at apply (breaks LEVEL-3).
    RaiseWithoutCheck,
    /// The former root stays active when another one is activated (breaks ROOT-1).
    KeepFormerActive,
    /// A root keeps its key when it is retired or revoked (breaks ROOT-4).
    KeepRetiredKey,
    /// The certificates that lead from a root to those before it are not recorded (breaks ROOTPATH-1).
    DropCrosses,
    /// A root may be deleted while its certificates are valid (breaks ROOT-7).
    ForgetEarly,
    /// A certificate is recorded although its root no longer signs (breaks ROOT-10).
    RecordOfFormerRoot,
    /// A root whose key others may have is activated again (breaks ROOT-11).
    ActivateCompromised,
    /// Former unlock keys are deleted with the next one (breaks SEAL-9).
    DeleteFormerKeys,
    /// The unlock key is changed twice in one entry (breaks SEAL-10).
    ChangeKeyTwice,
    /// A change of the autopilot begins while another one has not ended (breaks AUTO-4).
    BeginTwice,
    /// A role that a person requested is not remembered (breaks AUTO-6).
    ForgetPersons,
}

thread_local! {
    static INJECTED: Cell<Option<BugInjection>> = const { Cell::new(None) };
    static APPLIED: Cell<u64> = const { Cell::new(0) };
}

/// Breaks this promise on the current thread from now on; `None` keeps them all again.
#[cfg(feature = "bug-injection")]
pub fn set(bug: Option<BugInjection>) {
    INJECTED.set(bug);
    APPLIED.set(0);
}

/// True once in a while, for breaking APPLY-1.
pub(crate) fn sometimes() -> bool {
    APPLIED.set(APPLIED.get() + 1);
    APPLIED.get().is_multiple_of(401)
}

/// True while this promise is broken on the current thread; never without the feature.
pub fn is_injected(bug: BugInjection) -> bool {
    cfg!(feature = "bug-injection") && INJECTED.get() == Some(bug)
}
