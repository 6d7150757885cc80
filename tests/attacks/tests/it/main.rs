//! Attacks on a real cluster.

mod certificates;
mod floods;
mod http;
mod identity;
mod joining;
mod local;
mod mesh;
mod names;
mod places;
mod posing;
mod requests;
mod rights;
mod rushes;
mod sieges;
