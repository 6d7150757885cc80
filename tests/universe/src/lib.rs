//! The simulated universe.
