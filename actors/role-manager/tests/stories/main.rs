//! Stories about roles, told with the real core and real tables. `E5` marks the interleaving of that number in the
//! catalogue of what goes wrong elsewhere, `S3` the restated scenario of that number.

#![allow(clippy::unwrap_used, reason = "a story that cannot go on has failed")]

mod crash;
mod demotion;
mod everywhere;
mod flips;
mod gates;
mod promotion;
mod random;
mod removal;
mod seats;
mod shell;
mod world;
