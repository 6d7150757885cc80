//! Switches that break one promise each, so that the simulation can show that it notices. They can be set
//! only with the feature `sabotage`, and per thread: a simulation runs on one.

use std::cell::Cell;

/// A promise to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A certificate that is on record no more is as good as one that is (breaks ADMIT-7).
    AdmitFormer,
    /// A leader believes in grants that it has not applied (breaks ADMIT-6).
    AdmitForged,
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
