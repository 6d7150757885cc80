//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `bug-injection`, and per thread: a simulation runs on one.

use std::cell::Cell;

/// A bug to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BugInjection {
    /// Signs for the desired role, and records the granted one (breaks CERT-1).
    SignDesiredRole,
    /// Renews a superseded certificate (breaks CERT-6).
    RenewSuperseded,
    /// Records certificates as of feature level 3, whatever the cluster's (breaks LEVEL-4).
    IgnoreLevel,
    /// Signs for workloads that do not apply to the node (breaks SPIFFE-1).
    SignAnyWorkload,
}

thread_local! {
    static INJECTED: Cell<Option<BugInjection>> = const { Cell::new(None) };
}

/// Breaks this promise on the current thread from now on; `None` keeps them all again.
#[cfg(feature = "bug-injection")]
pub fn set(bug: Option<BugInjection>) {
    INJECTED.set(bug);
}

/// True while this promise is broken on the current thread; never without the feature.
pub fn is_injected(bug: BugInjection) -> bool {
    cfg!(feature = "bug-injection") && INJECTED.get() == Some(bug)
}
