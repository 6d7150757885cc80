//! Attacks on real daemons, over real connections, with real certificates taken from their data directories.
//!
//! - [`daemon`], [`cluster`]: processes to attack; this package's own program runs as `musterd`.
//! - [`caller`]: a client with any certificate, any ALPN and any loopback address.
//! - [`manager`]: a manager gone bad, the mesh protocol written by hand over TLS.
//! - [`flood`]: garbage, oversized frames, half-open connections and more, while others join.
//! - [`rush`]: 100,000 well-formed requests of one client, while another one works.
//! - [`siege`]: the worst that one certificate can do at once, while an operator works.
//! - [`watch`]: what an attack costs: memory, log lines, leadership.
//!
//! Loopback only, every loop bounded by a number or a time.

// Shared with the mesh's own tests, which attack it without TLS and without a daemon around it.
#[path = "../../../actors/mesh/tests/processes/bytes.rs"]
pub mod bytes;
pub mod caller;
pub mod cluster;
pub mod daemon;
pub mod flood;
pub mod manager;
pub mod rush;
pub mod siege;
pub mod watch;
