//! The one TLS port of a node: who may come in, where they go, how they are cut off; and its client side, the dialer.

mod connection;
mod core;
mod dialer;
mod framed;
mod kill;
mod services;
mod stream;
mod tls;

pub use self::connection::{Connection, ConnectionPermit};
pub use self::dialer::{DialError, DialTimeouts, Dialed, Dialer, Stage, Unverified};
pub use self::framed::{FrameError, Framed, FramedReader, FramedWriter};
pub use self::kill::Kill;
pub use self::services::{Registration, Services};
pub use self::stream::{BoxStream, Duplex, Killable};
