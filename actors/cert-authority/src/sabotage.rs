//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `sabotage`, and per thread: a simulation runs on one.

use std::cell::Cell;

/// A promise to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Signs for the role that is wished, and records the one that is granted (breaks CERT-1).
    SignDesiredRole,
    /// A certificate that is over is renewed (breaks CERT-6).
    RenewFormer,
}

thread_local! {
    static ENGAGED: Cell<Option<Sabotage>> = const { Cell::new(None) };
}

/// Breaks this promise on the current thread from now on; `None` keeps them all again.
#[cfg(feature = "sabotage")]
pub fn set(promise: Option<Sabotage>) {
    ENGAGED.set(promise);
}

/// True while this promise is broken on the current thread; never without the feature.
pub fn engaged(promise: Sabotage) -> bool {
    cfg!(feature = "sabotage") && ENGAGED.get() == Some(promise)
}
