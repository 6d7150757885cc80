//! Switches that break one promise each, so that the simulation can show that it notices. Behind a feature, off
//! by default, and per thread: a simulated universe runs on one.

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
pub fn set(promise: Option<Sabotage>) {
    ENGAGED.set(promise);
}

/// True while this promise is broken on the current thread.
pub fn engaged(promise: Sabotage) -> bool {
    ENGAGED.get() == Some(promise)
}
