//! Simulated runs: samples, full runs, and runs with injected bugs.

mod bugs;
mod scenarios;
mod simulation;
