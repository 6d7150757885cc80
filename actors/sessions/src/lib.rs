//! The managers' side of agent sessions: the host of all sessions of one manager, one actor per session, and the
//! leader's dispatcher.
//!
//! See `OVERVIEW.md`.

pub mod config;
pub mod core;
mod dispatcher;
mod host;
mod hosted;
mod inbox;
mod leader;
mod line;
mod session;

pub use self::config::{DispatcherConfig, SessionsConfig};
pub use self::dispatcher::{
    DispatcherPorts, DispatcherShell, Msg as DispatcherMailbox, dispatcher_address, dispatcher_spec,
};
pub use self::host::{Msg as SessionsMailbox, SessionsPorts, SessionsShell, sessions_address, sessions_spec};
pub use self::line::Incoming;
pub use self::session::{Msg as SessionMailbox, SessionShell};
