//! Simulated runs: samples, everything, and runs in which a promise must break.

mod breaks;
mod stories;
mod universe;
