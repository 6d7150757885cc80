//! Scenarios about leases, run with the real cores and real tables. `K40` marks the restated case of that number of Kubernetes'
//! own tests.

#![allow(clippy::unwrap_used, reason = "a scenario that cannot continue has failed")]

mod coordination;
mod crash_points;
mod expiries;
mod load;
mod random;
mod renewals;
mod rules;
mod shell;
mod stage;
mod weaknesses;
mod world;
