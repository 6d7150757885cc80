//! Attacks on real daemons, over real connections, with real certificates from their data directories.
//!
//! - [`daemon`], [`cluster`]: processes to attack; this package's own program runs as `musterd`.
//! - [`caller`]: a client with any certificate, any ALPN and any loopback address.
//! - [`manager`]: a malicious manager, with the mesh protocol hand-written over TLS.
//! - [`flood`]: garbage, oversized frames, half-open connections and more, while others join.
//! - [`rush`]: 100,000 well-formed requests of one client, while another client works.
//! - [`siege`]: the worst combined attack with one certificate, while an operator works.
//! - [`pause`]: real time that passes because that is the scenario.
//! - [`watch`]: an attack's costs: memory, log lines, leadership.
//!
//! Loopback only; every loop is bounded by a number or a time.

// Shared with the mesh's own tests, which attack it without TLS and without a daemon.
#[path = "../../../actors/mesh/tests/processes/bytes.rs"]
pub mod bytes;
pub mod caller;
pub mod cluster;
pub mod daemon;
pub mod flood;
pub mod manager;
pub mod pause;
pub mod rush;
pub mod siege;
pub mod watch;
