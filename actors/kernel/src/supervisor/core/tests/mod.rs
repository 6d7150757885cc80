//! What a supervisor decides: tests of one child, tests of groups, and properties of both.

mod group;
mod model;
mod single;
mod world;
