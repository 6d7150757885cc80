//! Attacks on a real cluster.

mod floods;
mod http;
mod identity;
mod joining;
mod mesh;
mod rushes;
