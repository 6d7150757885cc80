//! The join service: serves `muster-join/1` on every manager.
//!
//! Owns        unauthenticated connections, each for one short conversation.
//! Inputs      `JoinFrame`s.  Outputs  root certificates; `PeerCall::Join` to the leader; the leader's answer.
//! Invariants  JOIN-4  a client holds a connection for a bounded time and sends the leader one request on it; the number of
//!                     concurrent requests is bounded ([`JoinLimits`]).
//! Tokens are not checked here: the leader's certificate authority checks them against its own applied state.

mod conversation;
mod core;
mod ports;
mod shell;

pub use self::ports::{JoinLimits, JoinMsg, JoinPorts, offered};
pub use self::shell::JoinService;
