//! The mesh: manager to manager over ractor_cluster sessions, on streams that the gateway or the dialer has
//! authenticated. The library trusts every authenticated peer fully and has neither bounds nor timeouts; this crate
//! adds them. See `OVERVIEW.md`.

pub mod core;
mod dial;
mod endpoint;
mod greeting;
mod greetings;
mod handle;
mod handshake;
mod incoming;
mod mesh;
mod msg;
mod offences;
mod open_sessions;
mod peer;
mod peer_call;
mod peers;
mod raft_reports;
mod register;
mod service_calls;
mod session;
mod session_server;
mod stream;
mod wiring;

pub use self::dial::{Dial, DialFailure, DialedPeer, Dialing};
pub use self::handle::MeshHandle;
pub use self::wiring::{Mesh, MeshConfig, MeshWiring};
