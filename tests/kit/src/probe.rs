//! Probes: mailboxes without behaviour, or with a script's.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_kernel::{Named, Recipient, Reply, Undeliverable};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::WAIT_LIMIT;
use crate::journal::{Journal, locked};

type Script<M> = Box<dyn FnMut(M) -> Option<M> + Send>;

struct Inbox<M> {
    name: Arc<str>,
    show: fn(&M) -> String,
    journal: Journal,
    /// Each with its text, which a failure shows even when the message has been taken apart.
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
        let rest = locked(&self.scripts).iter_mut().try_fold(msg, |msg, script| script(msg));
        if let Some(msg) = rest {
            locked(&self.waiting).push_back((msg, text));
            self.arrived.notify_one();
        }
        Ok(())
    }
}

/// Answers a reply port from a script, and consumes the message: see [`Probe::on`]. The asker may have gone.
pub fn answered<T, M>(port: Reply<T>, with: T) -> Option<M> {
    let _gone = port.send(with);
    None
}

/// A mailbox that stands in for an actor: it records messages in order of arrival, and a test takes them out.
///
/// The actor under test gets its [recipient](Self::recipient), or the address of an actor that passes everything to it
/// ([`ActorHarness::address_of`](crate::ActorHarness::address_of)). A test that waits longer than [`WAIT_LIMIT`] fails and shows what
/// its probes received.
pub struct Probe<M> {
    inbox: Arc<Inbox<M>>,
    timeout: Duration,
}

impl<M: Named + Send + 'static> Probe<M> {
    /// A probe with its own journal; those of [`ActorHarness::probe`](crate::ActorHarness::probe) share one.
    pub fn new(name: &str) -> Self {
        Self::recording(name, Journal::new())
    }
    pub(crate) fn recording(name: &str, journal: Journal) -> Self {
        Self::made(name, |msg| msg.name().to_owned(), journal)
    }
}

impl<M: Send + 'static> Probe<M> {
    /// A probe of messages without names, or whose fields a failure should show.
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
        Self { inbox: Arc::new(inbox), timeout: WAIT_LIMIT }
    }

    /// Changes how long it waits: for messages that come late.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The recipient for the actor under test.
    pub fn recipient(&self) -> Recipient<M> {
        let inbox = Arc::clone(&self.inbox);
        Recipient::new(move |msg| inbox.take(msg))
    }

    /// Adds a script that answers some messages. The sender calls it with each message on arrival, and it returns
    /// those not meant for it to the next script, then to the test. A script must not send to its own probe.
    ///
    /// ```ignore
    #[doc = include_str!("../tests/it/examples/script.rs")]
    /// ```
    pub fn on(&self, script: impl FnMut(M) -> Option<M> + Send + 'static) {
        locked(&self.inbox.scripts).push(Box::new(script));
    }

    /// From now on sends fail: a full mailbox, or an actor that is not running.
    pub fn refuse(&self, why: Undeliverable) {
        *locked(&self.inbox.refuses) = Some(why);
    }
    /// Accepts messages again.
    pub fn accept(&self) {
        *locked(&self.inbox.refuses) = None;
    }

    /// Takes the next message, which must be the expected one: `pick` extracts what the test wants, or `None`.
    pub async fn expect<T>(&mut self, what: &str, pick: impl FnOnce(M) -> Option<T>) -> T {
        let (msg, text) = self.take(what, |_| true).await;
        let (name, received) = (&self.inbox.name, self.inbox.journal.report());
        pick(msg).unwrap_or_else(|| panic!("{name}: expected {what}, but {text} came{received}"))
    }
    /// Takes the next message, whatever it is.
    pub async fn next(&mut self, what: &str) -> M {
        self.take(what, |_| true).await.0
    }
    /// Takes the first message for which `holds` is true, now or later. Earlier ones stay, in order.
    pub async fn until(&mut self, what: &str, holds: impl FnMut(&M) -> bool) -> M {
        self.take(what, holds).await.0
    }
    /// No message is waiting or arrives for this long. Meant for virtual time: a real second proves little and costs one.
    pub async fn expect_none(&mut self, during: Duration) {
        let until = Instant::now() + during;
        loop {
            if let Some((_, text)) = locked(&self.inbox.waiting).front() {
                panic!("{}: expected nothing, but {text} came{}", self.inbox.name, self.inbox.journal.report());
            }
            if timeout_at(until, self.inbox.arrived.notified()).await.is_err() {
                return;
            }
        }
    }

    /// The number of waiting messages.
    pub fn waiting(&self) -> usize {
        locked(&self.inbox.waiting).len()
    }
    /// Takes all waiting messages.
    pub fn drain(&mut self) -> Vec<M> {
        locked(&self.inbox.waiting).drain(..).map(|(msg, _)| msg).collect()
    }
    /// `probe: message` for everything in this probe's journal, oldest first.
    pub fn heard(&self) -> Vec<String> {
        self.inbox.journal.lines()
    }

    async fn take(&mut self, what: &str, mut holds: impl FnMut(&M) -> bool) -> (M, String) {
        let until = Instant::now() + self.timeout;
        let mut seen = 0;
        loop {
            if let Some(found) = self.first(&mut seen, &mut holds) {
                return found;
            }
            if timeout_at(until, self.inbox.arrived.notified()).await.is_err() {
                let (name, timeout, received) = (&self.inbox.name, self.timeout, self.inbox.journal.report());
                panic!("{name}: expected {what}, which did not come within {timeout:?}{received}");
            }
        }
    }
    /// Examines each waiting message once.
    fn first(&self, seen: &mut usize, holds: &mut impl FnMut(&M) -> bool) -> Option<(M, String)> {
        let mut waiting = locked(&self.inbox.waiting);
        let found = waiting.iter().skip(*seen).position(|(msg, _)| holds(msg)).map(|at| at + *seen);
        *seen = waiting.len();
        found.and_then(|at| waiting.remove(at))
    }

    pub(crate) fn name(&self) -> &str {
        &self.inbox.name
    }
    /// For the actor in front of it.
    pub(crate) fn hand_over(&self) -> impl Fn(M) + Clone + Send + Sync + 'static {
        let inbox = Arc::clone(&self.inbox);
        move |msg| {
            let _refused = inbox.take(msg);
        }
    }
}
