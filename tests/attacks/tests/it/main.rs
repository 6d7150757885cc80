//! Attacks on a real cluster.

mod certificates;
mod floods;
mod http;
mod identity;
mod joining;
mod local;
mod mesh;
mod places;
mod requests;
mod rushes;
