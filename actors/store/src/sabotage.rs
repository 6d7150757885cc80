//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `sabotage`, and per thread: a simulation runs on one.

use std::cell::Cell;

/// A promise to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A freed raft id is handed out again (breaks RAFTID-1).
    ReuseRaftId,
    /// A node with a seat may be deleted, and a seat given to a node that is gone (breaks MEMBER-1).
    SkipNodeGuard,
    /// A certificate is recorded for whatever role it says (breaks CERT-1).
    RecordAnyCertificate,
    /// Now and then a command is applied as nothing, by whoever happens to apply it then (breaks APPLY-1).
    ApplyByMood,
    /// A live lease passes to whoever asks for it (breaks HELD-1).
    TakeLiveLeases,
    /// A participant is admitted by what it read of the gates, not by what they say (breaks RELEASE-1 and RELEASE-2).
    AdmitUnseen,
    /// A gate is restricted by what its runner read of those who serve (breaks RELEASE-1).
    RestrictUnseen,
    /// A runner whose term is over goes on writing (breaks RELEASE-4).
    RunWithoutTerm,
    /// A recovery's revisions leap by a constant, from wherever its copy is (breaks RECOVER-3).
    LeapByConstant,
    /// A recovery leaves leases as its copy shows them (breaks RECOVER-9).
    ReviveLeases,
    /// A lease that a recovered state does not know is acquired at once (breaks RECOVER-9).
    AcquireUnknownLeases,
    /// A request whose outcome was forgotten counts as new (breaks APPLY-3).
    ApplyForgotten,
    /// All callers' request ids are one space (breaks APPLY-3).
    ShareRequestIds,
    /// A node's report is kept as it comes (breaks LABEL-1).
    TakeAnyLabels,
    /// A node is called as it says (breaks NAME-1).
    TakeReportedNames,
    /// Events that leases cause are kept among the others (breaks EVENT-1).
    KeepEventsTogether,
}

thread_local! {
    static ENGAGED: Cell<Option<Sabotage>> = const { Cell::new(None) };
    static APPLIED: Cell<u64> = const { Cell::new(0) };
}

/// Breaks this promise on the current thread from now on; `None` keeps them all again.
#[cfg(feature = "sabotage")]
pub fn set(promise: Option<Sabotage>) {
    ENGAGED.set(promise);
    APPLIED.set(0);
}

/// True once in a while, for whoever breaks APPLY-1.
pub(crate) fn mood() -> bool {
    APPLIED.set(APPLIED.get() + 1);
    APPLIED.get().is_multiple_of(401)
}

/// True while this promise is broken on the current thread; never without the feature.
pub fn engaged(promise: Sabotage) -> bool {
    cfg!(feature = "sabotage") && ENGAGED.get() == Some(promise)
}
