//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `bug-injection`, and per thread: a simulation runs on one.

use std::cell::Cell;

/// A bug to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BugInjection {
    /// A pause is ignored (breaks AUTO-1).
    ActWhilePaused,
    /// It ends an operator's pause (breaks AUTO-2).
    ResumeByItself,
    /// A dead manager's successor is promoted before the dead one is demoted (breaks AUTO-3).
    PromoteFirst,
    /// A change that has begun is forgotten (breaks AUTO-4, if the store accepts another one).
    ForgetBegun,
    /// A manager that is silent for a moment counts as dead (breaks AUTO-5).
    DemoteSilent,
    /// Which candidate is promoted depends on how often it has planned (breaks AUTO-7).
    PickAnyCandidate,
    /// It trusts the recorded liveness, which another leader may have observed (breaks AUTO-8).
    TrustTheRecord,
    /// A dead manager is demoted and not replaced (breaks AUTO-9).
    OnlyDemote,
}

thread_local! {
    static INJECTED: Cell<Option<BugInjection>> = const { Cell::new(None) };
    static PLANNED: Cell<u64> = const { Cell::new(0) };
}

/// Breaks this promise on the current thread from now on; `None` keeps them all again.
#[cfg(feature = "bug-injection")]
pub fn set(bug: Option<BugInjection>) {
    INJECTED.set(bug);
    PLANNED.set(0);
}

/// Another number each time, for breaking AUTO-7.
pub(crate) fn planned() -> u64 {
    PLANNED.set(PLANNED.get() + 1);
    PLANNED.get()
}

/// True while this promise is broken on the current thread; never without the feature.
pub fn is_injected(bug: BugInjection) -> bool {
    cfg!(feature = "bug-injection") && INJECTED.get() == Some(bug)
}
