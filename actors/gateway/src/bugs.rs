//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `bug-injection`, and per thread: a simulation runs on one.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BugInjection {
    /// A certificate that is no longer on record is accepted like one that is (breaks ADMIT-7).
    AdmitSuperseded,
    /// A leader accepts grants that it has not applied (breaks ADMIT-6).
    AdmitForged,
    /// A certificate of a root that was withdrawn counts as recorded (breaks ADMIT-9).
    CountUnrecorded,
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
