//! What the mesh decides, without doing any of it: which frames of a peer may pass, whose seat a hello may name,
//! which process is heard for a node, when a snapshot is whole, which session of a node stays and when to dial.

pub mod assembly;
pub mod backlog;
pub mod claims;
pub mod filter;
pub mod frames;
pub mod hello;
pub mod hints;
pub mod links;
pub mod pace;
