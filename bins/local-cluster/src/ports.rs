//! Ports that no other process, and no other node of this one, takes.

use std::net::{SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use muster_client::{Failure, Outcome};

/// Where ports are taken from: below the range that outgoing connections take theirs from, because a node that is
/// restarted must find its port free.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Each process takes its ports from a part of its own, in turn: between choosing a port and listening on it another
/// process, or another test of this one, must not choose the same; nor while a node that had it is down.
const PART: u16 = 200;

/// A part that is ours as long as this process lives: it listens on the first port of it.
fn part() -> Option<u16> {
    static PART_OF_OURS: OnceLock<Option<(TcpListener, u16)>> = OnceLock::new();
    let taken = PART_OF_OURS.get_or_init(|| {
        let parts = (PORTS.end - PORTS.start) / PART;
        let first = u16::try_from(std::process::id() % u32::from(parts)).expect("there are fewer than 65,536 parts");
        let bases = (0..parts).map(|next| PORTS.start + (first + next) % parts * PART);
        bases.filter_map(|base| Some((TcpListener::bind(("127.0.0.1", base)).ok()?, base))).next()
    });
    taken.as_ref().map(|(_, base)| *base)
}

/// An address on loopback that nobody listens on.
pub fn free_address() -> Outcome<SocketAddr> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::random_range(0..PART)));
    let base = part().ok_or_else(|| Failure::internal("a hundred processes look for free ports on 127.0.0.1"))?;
    for _ in 0..PART {
        let port = base + next.fetch_add(1, Ordering::Relaxed) % PART;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener.local_addr().map_err(|e| Failure::io("cannot find a free port", &e));
        }
    }
    Err(Failure::internal("cannot find a free port on 127.0.0.1"))
}
