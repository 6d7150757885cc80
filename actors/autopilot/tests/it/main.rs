//! The autopilot in a model of a cluster, and its actor under a real supervisor.

#![expect(clippy::unwrap_used, reason = "these are tests, also outside their test functions")]

mod actor;
mod drains;
mod histories;
mod partitions;
mod promotions;
mod scenarios;
mod wakes;
mod world;
