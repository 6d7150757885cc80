//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `bug-injection`, and per thread: a simulation runs on one.

use std::cell::Cell;

/// A bug to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BugInjection {
    /// A root is activated although members have not acknowledged it (breaks ROOT-2).
    ActivateUnacknowledged,
    /// A root is retired although nodes have certificates of it (breaks ROOT-3).
    RetireWhileBehind,
    /// A root is deleted as soon as it has ended (breaks ROOT-7, if the store lets it).
    ForgetEarly,
    /// A leader waits until it is asked for something: it continues nothing that another one has begun (breaks ROOT-9).
    ContinueNothing,
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
