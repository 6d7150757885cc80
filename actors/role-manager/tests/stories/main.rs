//! Stories about roles, told with the real core and real tables. `E5` marks the interleaving of that number in the
//! catalogue of what goes wrong elsewhere, `S3` the restated scenario of that number.

mod crash;
mod demotion;
mod flips;
mod gates;
mod promotion;
mod random;
mod removal;
mod seats;
mod world;
