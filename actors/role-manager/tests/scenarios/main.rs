//! Scenarios about roles, run with the real core and real tables. `E5` marks the interleaving of that number in
//! the catalogue of known failures elsewhere, `S3` the restated scenario of that number.

#![allow(clippy::unwrap_used, reason = "a scenario that cannot continue has failed")]

mod crash;
mod crash_points;
mod demotion;
mod flips;
mod gates;
mod membership;
mod promotion;
mod random;
mod removal;
mod shell;
mod world;
