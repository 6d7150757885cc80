//! Tenancy: an incarnation's hold on its actor's address.
//!
//! Owns        the number under which the incarnation has the address, and the token that ends its tasks and timers.
//! Invariants  it ends once, on every exit path; a later incarnation's hold is not touched.

use muster_messages::CrashHow;
use tokio_util::sync::CancellationToken;

use crate::Address;
use crate::address::Letter;
use crate::supervisor::Children;
use crate::vitals::{Handle, Mailbox};

/// What the live tree can do with an incarnation.
pub(crate) struct ActorHandle<M: Send + 'static> {
    pub tenancy: Tenancy<M>,
    pub siblings: Children,
    pub name: String,
}
impl<M: Send + 'static> Handle for ActorHandle<M> {
    fn refresh(&self) -> bool {
        self.tenancy.address.letter(Letter::Refresh)
    }
    fn crash(&self, how: CrashHow) {
        match how {
            CrashHow::Start { times } => self.siblings.fail_to_start(&self.name, times),
            how => drop(self.tenancy.address.letter(Letter::Crash(how))),
        }
    }
    fn restart(&self) {
        self.siblings.restart(&self.name);
    }
    fn mailbox(&self) -> Option<Mailbox> {
        Some(self.tenancy.address.mailbox())
    }
}

/// An incarnation's hold on its address, and the lifetime of its tasks and timers.
pub(crate) struct Tenancy<M: Send + 'static> {
    pub address: Address<M>,
    pub number: u64,
    pub ended: CancellationToken,
}
impl<M: Send + 'static> Clone for Tenancy<M> {
    fn clone(&self) -> Self {
        Self { address: self.address.clone(), number: self.number, ended: self.ended.clone() }
    }
}
impl<M: Send + 'static> Tenancy<M> {
    pub fn end(&self) {
        self.address.move_out(self.number);
        self.ended.cancel();
    }
}

/// Ends the tenancy on every exit path, panics and kills included.
pub(crate) struct EndOnDrop<M: Send + 'static>(pub Tenancy<M>);
impl<M: Send + 'static> Drop for EndOnDrop<M> {
    fn drop(&mut self) {
        self.0.end();
    }
}
