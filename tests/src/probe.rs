//! Probes: mailboxes without behaviour, or with as much as a script gives them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Recipient, Undeliverable};
use muster_messages::protocol::{Named, Reply};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::PATIENCE;
use crate::journal::{Journal, locked};

type Script<M> = Box<dyn FnMut(M) -> Option<M> + Send>;

struct Inbox<M> {
    name: Arc<str>,
    show: fn(&M) -> String,
    journal: Journal,
    /// Each with its text: a failure still tells it when the message has been taken apart.
    waiting: Mutex<VecDeque<(M, String)>>,
    arrived: Notify,
    scripts: Mutex<Vec<Script<M>>>,
    refuses: Mutex<Option<Undeliverable>>,
}

impl<M: Send + 'static> Inbox<M> {
    fn take(&self, msg: M) -> Result<(), Undeliverable> {
        if let Some(why) = *locked(&self.refuses) {
            return Err(why);
        }
        let text = (self.show)(&msg);
        self.journal.add(&self.name, text.clone());
        let left = locked(&self.scripts).iter_mut().try_fold(msg, |msg, script| script(msg));
        if let Some(msg) = left {
            locked(&self.waiting).push_back((msg, text));
            self.arrived.notify_one();
        }
        Ok(())
    }
}

/// Answers a reply port from a script, and keeps the message: see [`Probe::on`]. Whoever asked may have gone.
pub fn answered<T, M>(port: Reply<T>, with: T) -> Option<M> {
    let _gone = port.send(with);
    None
}

/// A mailbox that stands in for an actor: it records what arrives, in order, and a test takes it out again.
///
/// The actor under test gets its [recipient](Self::recipient), or the address of an actor that hands everything to it
/// ([`Universe::address_of`](crate::Universe::address_of)). A test that waits longer than [`PATIENCE`] fails, and tells what
/// did arrive at its probes.
pub struct Probe<M> {
    inbox: Arc<Inbox<M>>,
    patience: Duration,
}

impl<M: Named + Send + 'static> Probe<M> {
    /// A probe by itself; [`Universe::probe`](crate::Universe::probe) makes those that share a journal.
    pub fn new(name: &str) -> Self {
        Self::recording(name, Journal::new())
    }
    pub(crate) fn recording(name: &str, journal: Journal) -> Self {
        Self::made(name, |msg| msg.name().to_owned(), journal)
    }
}

impl<M: Send + 'static> Probe<M> {
    /// A probe of messages that have no name of their own, or whose fields a failure should show.
    pub fn showing(name: &str, show: fn(&M) -> String) -> Self {
        Self::made(name, show, Journal::new())
    }

    fn made(name: &str, show: fn(&M) -> String, journal: Journal) -> Self {
        let inbox = Inbox {
            name: name.into(),
            show,
            journal,
            waiting: Mutex::default(),
            arrived: Notify::new(),
            scripts: Mutex::default(),
            refuses: Mutex::new(None),
        };
        Self { inbox: Arc::new(inbox), patience: PATIENCE }
    }

    /// Waits for as long instead: for what is meant to come late.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// What the actor under test is given.
    pub fn recipient(&self) -> Recipient<M> {
        let inbox = Arc::clone(&self.inbox);
        Recipient::new(move |msg| inbox.take(msg))
    }

    /// Lets a script answer some of the messages. It is called with each as it arrives, by whoever sends it, and hands
    /// back what is not for it; the next script sees that, then the test. A script says nothing to its own probe.
    ///
    /// ```ignore
    #[doc = include_str!("../kit/examples/script.rs")]
    /// ```
    pub fn on(&self, script: impl FnMut(M) -> Option<M> + Send + 'static) {
        locked(&self.inbox.scripts).push(Box::new(script));
    }

    /// From now on senders are told this instead: a full mailbox, or an actor that is not running.
    pub fn refuse(&self, why: Undeliverable) {
        *locked(&self.inbox.refuses) = Some(why);
    }
    /// Takes messages again.
    pub fn accept(&self) {
        *locked(&self.inbox.refuses) = None;
    }

    /// Takes the next message, which must be the one that is expected: `pick` gives what the test wants of it, or nothing.
    pub async fn expect<T>(&mut self, what: &str, pick: impl FnOnce(M) -> Option<T>) -> T {
        let (msg, text) = self.take(what, |_| true).await;
        let (name, told) = (&self.inbox.name, self.inbox.journal.told());
        pick(msg).unwrap_or_else(|| panic!("{name}: expected {what}, but {text} came{told}"))
    }
    /// Takes the next message, whatever it is.
    pub async fn next(&mut self, what: &str) -> M {
        self.take(what, |_| true).await.0
    }
    /// Takes the first message of which `holds` is true, now or when it comes. Those before it stay, in their order.
    pub async fn until(&mut self, what: &str, holds: impl FnMut(&M) -> bool) -> M {
        self.take(what, holds).await.0
    }
    /// Nothing waits, and nothing comes for this long. Meant for virtual time: a real second proves little and costs one.
    pub async fn expect_none(&mut self, during: Duration) {
        let until = Instant::now() + during;
        loop {
            if let Some((_, text)) = locked(&self.inbox.waiting).front() {
                panic!("{}: expected nothing, but {text} came{}", self.inbox.name, self.inbox.journal.told());
            }
            if timeout_at(until, self.inbox.arrived.notified()).await.is_err() {
                return;
            }
        }
    }

    /// How many messages wait to be taken.
    pub fn waiting(&self) -> usize {
        locked(&self.inbox.waiting).len()
    }
    /// Takes all that wait.
    pub fn drain(&mut self) -> Vec<M> {
        locked(&self.inbox.waiting).drain(..).map(|(msg, _)| msg).collect()
    }
    /// `probe: message` for everything that ever arrived in the journal of this probe, oldest first.
    pub fn heard(&self) -> Vec<String> {
        self.inbox.journal.lines()
    }

    async fn take(&mut self, what: &str, mut holds: impl FnMut(&M) -> bool) -> (M, String) {
        let until = Instant::now() + self.patience;
        let mut seen = 0;
        loop {
            if let Some(found) = self.first(&mut seen, &mut holds) {
                return found;
            }
            if timeout_at(until, self.inbox.arrived.notified()).await.is_err() {
                let (name, patience, told) = (&self.inbox.name, self.patience, self.inbox.journal.told());
                panic!("{name}: expected {what}, which did not come within {patience:?}{told}");
            }
        }
    }
    /// Looks once at each message that waits.
    fn first(&self, seen: &mut usize, holds: &mut impl FnMut(&M) -> bool) -> Option<(M, String)> {
        let mut waiting = locked(&self.inbox.waiting);
        let found = waiting.iter().skip(*seen).position(|(msg, _)| holds(msg)).map(|at| at + *seen);
        *seen = waiting.len();
        found.and_then(|at| waiting.remove(at))
    }

    pub(crate) fn name(&self) -> &str {
        &self.inbox.name
    }
    /// For the actor that stands before it.
    pub(crate) fn hand_over(&self) -> impl Fn(M) + Clone + Send + Sync + 'static {
        let inbox = Arc::clone(&self.inbox);
        move |msg| {
            let _refused = inbox.take(msg);
        }
    }
}
