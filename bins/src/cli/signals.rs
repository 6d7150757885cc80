//! Signals that end a command.

use muster_client::{Failure, Outcome};
use tokio::signal::unix::{SignalKind, signal};

/// The signals that ask this process to end, received from the moment of creation.
pub struct Interrupts {
    int: tokio::signal::unix::Signal,
    term: tokio::signal::unix::Signal,
    hup: tokio::signal::unix::Signal,
}

impl Interrupts {
    /// Starts listening; from now on these signals no longer end the process by themselves.
    pub fn listen() -> Outcome<Self> {
        let subscribe = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        Ok(Self {
            int: subscribe(SignalKind::interrupt())?,
            term: subscribe(SignalKind::terminate())?,
            hup: subscribe(SignalKind::hangup())?,
        })
    }

    /// The outcome of this work. A signal ends it early: the work is dropped, and the failure names the signal.
    pub async fn during<T>(&mut self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        tokio::select! {
            outcome = work => outcome,
            word = self.next() => Err(Failure::internal(word)),
        }
    }

    /// Waits for the next signal and names it. Cancelling the wait loses no signal.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.int.recv() => "interrupted",
            _ = self.term.recv() => "terminated",
            _ = self.hup.recv() => "hung up",
        }
    }
}
