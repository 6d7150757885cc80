//! Clients of real daemons, and their histories.

mod clients;

pub use muster_testkit::history::History;

pub use self::clients::{Clients, Refusal};
