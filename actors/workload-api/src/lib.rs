//! The SPIFFE Workload API of a node: programs on it get their certificates here.
pub mod core;
