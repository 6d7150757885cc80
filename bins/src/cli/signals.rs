//! Interruption by a person or the system.

use muster_client::{Failure, Outcome};
use tokio::signal::unix::{SignalKind, signal};

/// The signals that ask this process to end, heard from the moment this is made.
pub struct Interrupts {
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
    hup: tokio::signal::unix::Signal,
}

impl Interrupts {
    /// Starts listening; from now on none of these signals ends the process by itself.
    pub fn listen() -> Outcome<Self> {
        let hear = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        Ok(Self {
            int: hear(SignalKind::interrupt())?,
            term: hear(SignalKind::terminate())?,
            hup: hear(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one and names it. Nothing is lost when the wait is abandoned.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.int.recv() => "interrupted",
            _ = self.term.recv() => "terminated",
            _ = self.hup.recv() => "hung up",
        }
    }
}
