//! What a supervisor decides: claims about one child, claims about groups, and properties of both.

mod group;
mod model;
mod single;
mod world;
