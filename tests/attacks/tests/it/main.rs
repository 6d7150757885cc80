//! Attacks on a real cluster.

mod certificates;
mod event_reads;
mod floods;
mod http;
mod identity;
mod impersonation;
mod in_flight;
mod joining;
mod local;
mod mesh;
mod names;
mod permits;
mod requests;
mod rights;
mod roots;
mod rushes;
mod sieges;
