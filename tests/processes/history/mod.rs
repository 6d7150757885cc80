//! Clients of real daemons, and the histories of what they saw.

mod clients;

pub use muster_tests::history::History;

pub use self::clients::{Clients, Refusal};
