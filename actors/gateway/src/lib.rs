//! The one TLS port of a node: admission, routing to services, disconnects; and the client side, the dialer.
//!
//! - [`Port`] and [`Gateway`]: the listener with its connections, and the actor that runs it.
//! - [`Services`], [`LocalReplica`], [`KnownManagers`]: what the rest of the process provides to the port.
//! - [`Connection`], [`Kill`], [`Framed`]: what a service receives.
//! - [`Dialer`]: connections to others.
//! - `core`: which principals are current, the limits, the rate, the log lines; values only.

mod accept;
#[cfg(not(feature = "bug-injection"))]
mod bugs;
#[cfg(feature = "bug-injection")]
pub mod bugs;
mod connection;
pub mod core;
mod dial_error_text;
mod dialer;
mod gateway;
mod handshake_pool;
mod kill;
mod local_replica;
mod managers;
mod metrics;
mod port;
mod reported_time;
mod services;
mod stream;
mod tls;

pub use self::accept::JOIN_FRAME_LIMIT;
pub use self::connection::{Connection, ConnectionPermit};
pub use self::core::rate::{Buckets, Rate};
pub use self::core::source_of;
pub use self::dial_error_text::ClockFault;
pub use self::dialer::{DialError, DialTimeouts, Dialed, Dialer, Stage, Unverified};
pub use self::gateway::{Gateway, Msg};
pub use self::kill::Kill;
pub use self::local_replica::{LocalReplica, ReplicaGuard, ReplicaWatch};
pub use self::managers::KnownManagers;
pub use self::metrics::{GatewayMetrics, GatewayView};
pub use self::port::{GatewayConfig, Port};
pub use self::services::{Registration, Services};
pub use self::stream::{Killable, Prefixed};
pub use muster_messages::frames::{BoxStream, Duplex, FrameError, Framed, FramedReader, FramedWriter};

/// True while a test has broken this promise on purpose.
use self::bugs::is_injected as bug_injected;
