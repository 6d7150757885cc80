//! Ports that no other process, and no other node of this process, uses.

use std::net::{SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use muster_client::{Failure, Outcome};

/// The range of ports: below that of outgoing connections, because a node that is restarted must find its port free.
const PORT_RANGE: std::ops::Range<u16> = 12_000..32_000;

/// Ports per part. Each process takes its ports in turn from its own part: no other process or test of this process may choose
/// the same port before it is listened on, or while its node is down.
const PORTS_PER_PROCESS: u16 = 200;

/// The part of this process: it listens on the part's first port until it ends.
fn reserved_base() -> Option<u16> {
    static RESERVED_PART: OnceLock<Option<(TcpListener, u16)>> = OnceLock::new();
    let taken = RESERVED_PART.get_or_init(|| {
        let parts = (PORT_RANGE.end - PORT_RANGE.start) / PORTS_PER_PROCESS;
        let first = u16::try_from(std::process::id() % u32::from(parts)).expect("there are fewer than 65,536 parts");
        let bases = (0..parts).map(|next| PORT_RANGE.start + (first + next) % parts * PORTS_PER_PROCESS);
        bases.filter_map(|base| Some((TcpListener::bind(("127.0.0.1", base)).ok()?, base))).next()
    });
    taken.as_ref().map(|(_, base)| *base)
}

/// An unused loopback address.
pub fn free_address() -> Outcome<SocketAddr> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::random_range(0..PORTS_PER_PROCESS)));
    let base = reserved_base()
        .ok_or_else(|| Failure::internal("all port ranges on 127.0.0.1 are in use by other processes"))?;
    for _ in 0..PORTS_PER_PROCESS {
        let port = base + next.fetch_add(1, Ordering::Relaxed) % PORTS_PER_PROCESS;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().map_err(|e| Failure::io("cannot find a free port", &e));
        }
    }
    Err(Failure::internal("cannot find a free port on 127.0.0.1"))
}
