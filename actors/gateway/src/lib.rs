//! The one TLS port of a node: who may come in, where they go, how they are cut off; and its client side, the dialer.
//!
//! - [`Port`] and [`Gateway`]: the listener with its connections, and the actor that runs it.
//! - [`Services`], [`LocalCopy`], [`KnownManagers`]: what the rest of the process tells the port.
//! - [`Connection`], [`Kill`], [`Framed`]: what a service receives.
//! - [`Dialer`]: connections to others.
//! - `core`: who is current, the limits, the rate, the log lines; values only.

mod accept;
mod connection;
mod copy;
pub mod core;
mod dialer;
mod framed;
mod gateway;
mod kill;
mod lobby;
mod managers;
mod metrics;
mod port;
#[cfg(not(feature = "sabotage"))]
mod sabotage;
#[cfg(feature = "sabotage")]
pub mod sabotage;
mod services;
mod stream;
mod tls;
mod told_time;
mod words;

pub use self::accept::JOIN_FRAME_LIMIT;
pub use self::connection::{Connection, ConnectionPermit};
pub use self::copy::{CopyGuard, CopyWatch, LocalCopy};
pub use self::core::rate::{Buckets, Rate};
pub use self::core::source_of;
pub use self::dialer::{DialError, DialTimeouts, Dialed, Dialer, Stage, Unverified};
pub use self::framed::{FrameError, Framed, FramedReader, FramedWriter};
pub use self::gateway::{Gateway, Msg};
pub use self::kill::Kill;
pub use self::managers::KnownManagers;
pub use self::metrics::GatewayMetrics;
pub use self::port::{GatewayConfig, Port};
pub use self::services::{Registration, Services};
pub use self::stream::{BoxStream, Duplex, Killable, Prefixed};
pub use self::words::ClockFault;

/// True while a test has broken this promise on purpose.
use self::sabotage::engaged as sabotaged;
