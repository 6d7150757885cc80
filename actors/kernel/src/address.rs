//! Addresses: counted, bounded mailboxes that survive the restarts of their actor.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use muster_messages::{AskError, CrashHow, Reply, Undeliverable};
use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::fence::{crash_point, is_stale};
use crate::vitals::Mailbox;

/// An entry of a mailbox.
pub(crate) enum Letter<M> {
    Message(M, Ticket),
    Refresh,
    /// `muster actors crash`.
    Crash(CrashHow),
    /// A task of this incarnation panicked.
    TaskPanicked(String),
}
#[cfg(feature = "cluster")]
impl<M: Send + 'static> ractor::Message for Letter<M> {}

/// One slot of a mailbox; returned when dropped, also when the mailbox is dropped with messages in it.
pub(crate) struct Ticket(Arc<AtomicUsize>);
impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Live<M: Send + 'static> {
    tenancy: u64,
    ended: CancellationToken,
    actor: ActorRef<Letter<M>>,
}

struct Shared<M: Send + 'static> {
    live: RwLock<Option<Live<M>>>,
    /// The latest tenancy granted. Incarnations are counted per child; an address that several groups use in turn tells
    /// their incarnations apart by this number.
    granted: AtomicU64,
    depth: Arc<AtomicUsize>,
    capacity: usize,
    refused: AtomicU64,
    stale: AtomicU64,
}

/// The address of an actor. The code that wires the tree makes it before the actor exists; each incarnation moves in.
pub struct Address<M: Send + 'static> {
    shared: Arc<Shared<M>>,
    /// Set in an incarnation's address of itself: messages from an older incarnation are dropped and counted.
    only: Option<u64>,
}

impl<M: Send + 'static> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), only: self.only }
    }
}
impl<M: Send + 'static> fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address(depth {})", self.depth())
    }
}

impl<M: Send + 'static> Address<M> {
    /// An address whose mailbox holds at most `capacity` messages.
    pub fn new(capacity: usize) -> Self {
        let shared = Shared {
            live: RwLock::new(None),
            granted: AtomicU64::new(0),
            depth: Arc::new(AtomicUsize::new(0)),
            capacity,
            refused: AtomicU64::new(0),
            stale: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared), only: None }
    }

    /// Sends a message. Never blocks. `Ok` means only that the message is in the mailbox.
    pub fn tell(&self, msg: M) -> Result<(), Undeliverable> {
        let live = self.shared.live.read().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = live.as_ref() else {
            return Err(Undeliverable::Down);
        };
        if self.only.is_some_and(|only| only != current.tenancy) || is_stale() {
            self.shared.stale.fetch_add(1, Ordering::Relaxed);
            return Err(Undeliverable::Down);
        }
        if current.ended.is_cancelled() {
            return Err(Undeliverable::Down);
        }
        if self.shared.depth.fetch_add(1, Ordering::Relaxed) >= self.shared.capacity && self.only.is_none() {
            self.shared.depth.fetch_sub(1, Ordering::Relaxed);
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Undeliverable::Full);
        }
        // An actor's own timers and task results are exempt from the bound: the actor started each of them, and
        // refusing one would lose the end of something it waits for.
        let ticket = Ticket(Arc::clone(&self.shared.depth));
        current.actor.send_message(Letter::Message(msg, ticket)).map_err(|_| Undeliverable::Down)
    }

    /// Asks and waits for the answer. Not for use in a handler: two actors that ask each other there deadlock.
    pub async fn ask<T: Send + 'static>(
        &self,
        deadline: Duration,
        make: impl FnOnce(Reply<T>) -> M,
    ) -> Result<T, AskError> {
        let (tx, rx) = oneshot::channel();
        self.tell(make(tx.into()))?;
        match tokio::time::timeout(deadline, rx).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(AskError::Closed),
            Err(_) => Err(AskError::TimedOut),
        }
    }

    /// This address, narrowed to one protocol: the form that collaborators get.
    pub fn recipient<P: Send + 'static>(&self) -> Recipient<P>
    where
        M: From<P>,
    {
        let to = self.clone();
        Recipient(Arc::new(move |p: P| to.tell(p.into())))
    }

    /// Messages waiting in the mailbox.
    pub fn depth(&self) -> usize {
        self.shared.depth.load(Ordering::Relaxed)
    }
    /// Messages refused because the mailbox was full.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
    /// Messages of older incarnations that were dropped.
    pub fn stale(&self) -> u64 {
        self.shared.stale.load(Ordering::Relaxed)
    }

    /// These counts and the capacity.
    pub(crate) fn mailbox(&self) -> Mailbox {
        Mailbox {
            depth: self.depth() as u64,
            limit: self.shared.capacity as u64,
            refused: self.refused(),
            stale: self.stale(),
        }
    }

    /// The right to move in, for an incarnation that is being made. Revokes any earlier grant.
    pub(crate) fn grant(&self) -> u64 {
        self.shared.granted.fetch_add(1, Ordering::SeqCst) + 1
    }
    /// The address as the incarnation of this tenancy uses it.
    pub(crate) fn of_tenancy(&self, tenancy: u64) -> Self {
        Self { shared: Arc::clone(&self.shared), only: Some(tenancy) }
    }
    /// False: a later incarnation is being made or has moved in, so this one must not run.
    pub(crate) fn move_in(&self, tenancy: u64, ended: CancellationToken, actor: ActorRef<Letter<M>>) -> bool {
        let mut live = self.shared.live.write().unwrap_or_else(PoisonError::into_inner);
        let current = self.shared.granted.load(Ordering::SeqCst) == tenancy;
        if current {
            *live = Some(Live { tenancy, ended, actor });
        } else {
            self.shared.stale.fetch_add(1, Ordering::Relaxed);
        }
        current
    }
    /// The incarnation has ended. A newer one that has already moved in stays.
    pub(crate) fn move_out(&self, tenancy: u64) {
        let mut live = self.shared.live.write().unwrap_or_else(PoisonError::into_inner);
        if live.as_ref().is_some_and(|l| l.tenancy == tenancy) {
            *live = None;
        }
    }
    /// Sends one of the kernel's own letters; returns whether an incarnation can read it.
    pub(crate) fn letter(&self, letter: Letter<M>) -> bool {
        let live = self.shared.live.read().unwrap_or_else(PoisonError::into_inner);
        let current = live.as_ref().filter(|current| self.only.is_none_or(|only| only == current.tenancy));
        let current = current.filter(|current| !current.ended.is_cancelled());
        current.is_some_and(|current| current.actor.send_message(letter).is_ok())
    }
}

/// An address narrowed to one protocol. Tests may put any function behind it.
pub struct Recipient<P>(Arc<dyn Fn(P) -> Result<(), Undeliverable> + Send + Sync>);

impl<P> Clone for Recipient<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
impl<P> fmt::Debug for Recipient<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recipient")
    }
}
impl<P: Send + 'static> Recipient<P> {
    /// A recipient that passes messages to `take`.
    pub fn new(take: impl Fn(P) -> Result<(), Undeliverable> + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }
    /// Sends a message. Never blocks.
    pub fn tell(&self, msg: P) -> Result<(), Undeliverable> {
        crash_point();
        let result = (self.0)(msg);
        crash_point();
        result
    }
    /// Asks and waits for the answer; see [`Address::ask`].
    pub async fn ask<T: Send + 'static>(
        &self,
        deadline: Duration,
        make: impl FnOnce(Reply<T>) -> P,
    ) -> Result<T, AskError> {
        let (tx, rx) = oneshot::channel();
        self.tell(make(tx.into()))?;
        match tokio::time::timeout(deadline, rx).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(AskError::Closed),
            Err(_) => Err(AskError::TimedOut),
        }
    }
}
