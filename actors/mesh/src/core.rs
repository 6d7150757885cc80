//! The decisions of the mesh, without effects: which frames of a peer may pass, which member id a hello may name,
//! which process of a node is accepted and gets a session, when a snapshot is complete, which session of a node stays or
//! ends, when to dial, what a refusal leads to, and what another link or the end of a call means for what is sent.

pub mod assembly;
pub mod backlog;
pub mod bindings;
pub mod call_end;
pub mod filter;
pub mod frames;
pub mod hello;
pub mod hints;
pub mod links;
pub mod non_members;
pub mod outgoing;
pub mod pace;
pub mod peer_session;
pub mod refusals;
pub mod waiting;
pub mod windows;
