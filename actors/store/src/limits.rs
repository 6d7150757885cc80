//! How much history the replicated state keeps.
//!
//! The limits are evaluated when an entry is applied, so all members need the same ones: they are constants of a build. Only
//! simulations use others than [`Limits::DEFAULT`]: in their minute the real ones would never be reached.

/// How many requests keep their outcome, over all callers. A refusal with a long text counts for several.
pub const MAX_OUTCOMES: usize = 65_536;
/// How many callers are remembered: more than a cluster has nodes.
pub const MAX_CALLERS: usize = 16_384;
/// How many events are kept; from `IDENTITY_LEVEL` on, so many of each class.
pub const MAX_EVENTS: usize = 10_000;

/// Limits of the state's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub outcomes: usize,
    pub callers: usize,
    pub events: usize,
}

impl Limits {
    /// The limits of every member.
    pub const DEFAULT: Limits = Limits { outcomes: MAX_OUTCOMES, callers: MAX_CALLERS, events: MAX_EVENTS };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
