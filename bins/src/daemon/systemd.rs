//! What systemd knows of a daemon of `Type=notify`: see sd_notify(3). Without `NOTIFY_SOCKET` nothing is sent.
//!
//! The daemon is *ready* for systemd once only the cluster, or a person, can move it on: its tree runs, it joins, or it is locked. The
//! `musterd ready` line, which says that it serves its role, may follow much later. Were this the other way round, the managers of a cluster
//! that are started in turn would wait for each other, and `systemctl start` with them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use muster_kernel::Tree;
use muster_messages::{ActorState, Name, QuorumView, Role, counted, word};
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::cli::output::printable;

/// Where systemd listens, see sd_notify(3).
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// How often the status line is brought up to date.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// systemd drops a message of more than 4,096 bytes.
const MAX_STATUS_BYTES: usize = 1024;

/// Reports that the start is complete, with what it waits for. Repeated, it only replaces the status.
pub fn ready(status: impl std::fmt::Display) {
    static SENT: OnceLock<()> = OnceLock::new();
    if SENT.set(()).is_ok() {
        send(Message::State("READY=1".to_owned()));
    }
    let mut status = printable(&status.to_string());
    status.truncate(status.floor_char_boundary(MAX_STATUS_BYTES));
    send(Message::Status(status));
}

/// The daemon was asked to stop.
pub fn stopping() {
    send(Message::State("STOPPING=1".to_owned()));
    send(Message::Status("stopping".to_owned()));
}

/// The configuration is read again; a call of [`reloaded`] follows.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(Message::State(format!("{}\n{now}", NotifyState::Reloading))),
        Err(error) => tracing::debug!(%error, "no monotonic time for systemd"),
    }
}

pub fn reloaded() {
    send(Message::State("READY=1".to_owned()));
}

enum Message {
    /// Each is sent, in order; of too many, the newest.
    State(String),
    /// The newest is sent.
    Status(String),
    /// One that was not sent is worth nothing later, and not more than the next one.
    Beat,
}

/// What was not sent yet.
#[derive(Default)]
struct Unsent {
    states: VecDeque<String>,
    status: Option<String>,
    beat: bool,
}

/// More than a service manager can cause by its signals while it does not read.
const MAX_UNSENT_STATES: usize = 64;

impl Unsent {
    fn add(&mut self, message: Message) {
        match message {
            Message::State(state) => {
                // The newest ones say what holds: that the daemon stops, above all.
                if self.states.len() >= MAX_UNSENT_STATES {
                    self.states.pop_front();
                }
                self.states.push_back(state);
            }
            Message::Status(status) => self.status = Some(format!("STATUS={status}")),
            Message::Beat => self.beat = true,
        }
    }

    fn next(&mut self) -> Option<String> {
        let beat = || std::mem::take(&mut self.beat).then(|| NotifyState::Watchdog.to_string());
        self.states.pop_front().or_else(|| self.status.take()).or_else(beat)
    }
}

struct Sender {
    unsent: Mutex<Unsent>,
    added: Condvar,
}

impl Sender {
    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs on a thread of its own: a send waits for as long as systemd does not read, because it is stopped or restarting.
    fn run(&self) -> ! {
        loop {
            let waited = self.added.wait_while(self.unsent(), |unsent| {
                unsent.states.is_empty() && unsent.status.is_none() && !unsent.beat
            });
            let text = waited.unwrap_or_else(PoisonError::into_inner).next();
            if let Some(Err(error)) = text.map(|text| sd_notify::notify(&[NotifyState::Custom(&text)])) {
                tracing::debug!(%error, "systemd cannot be notified");
            }
        }
    }
}

/// Never blocks.
fn send(message: Message) {
    static SENDER: OnceLock<Option<Arc<Sender>>> = OnceLock::new();
    if let Some(sender) = SENDER.get_or_init(start_sender) {
        sender.unsent().add(message);
        sender.added.notify_one();
    }
}

/// Starts the thread that sends, if there is a service manager.
fn start_sender() -> Option<Arc<Sender>> {
    std::env::var_os(NOTIFY_SOCKET)?;
    let sender = Arc::new(Sender { unsent: Mutex::default(), added: Condvar::new() });
    let run = Arc::clone(&sender);
    let started = std::thread::Builder::new().name("systemd".to_owned()).spawn(move || run.run());
    started.ok().map(|_runs| sender)
}

/// Keeps the status line up to date. Never returns.
pub async fn report_status(status: impl Fn() -> String) {
    let mut sent = String::new();
    if std::env::var_os(NOTIFY_SOCKET).is_none() {
        std::future::pending().await
    }
    loop {
        let now = status();
        if now != sent {
            ready(&now);
            sent = now;
        }
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
}

/// Feeds the watchdog (`WatchdogSec=`) three times in its period, while `answers` returns in time: a runtime that hangs, or a root supervisor
/// that does, ends in a restart. Neither a lost quorum nor a disk that hangs does: a restart would help with neither, and hide the second. Never
/// returns.
pub async fn feed_watchdog(tree: Option<&Tree>, answers: impl AsyncFn() -> bool) {
    match sd_notify::watchdog_enabled().filter(|period| !period.is_zero()) {
        Some(period) => feed(period, tree, answers, || send(Message::Beat)).await,
        None => std::future::pending().await,
    }
}

async fn feed(period: Duration, tree: Option<&Tree>, answers: impl AsyncFn() -> bool, beat: impl Fn()) {
    let mut beats = interval((period / 3).max(Duration::from_millis(1)));
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beats.tick().await;
        // One question at a time: an answer that comes late counts.
        let mut answer = std::pin::pin!(answers());
        let answered = match timeout(beats.period(), &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                let unhealthy = tree.map(unhealthy).unwrap_or_default();
                tracing::error!(
                    unhealthy = unhealthy.join("; "),
                    "the root supervisor does not answer: systemd's watchdog is not fed"
                );
                answer.await
            }
        };
        if answered {
            beat();
        }
    }
}

/// The actors that are not healthy or handle one message for more than a second, for the log: after a kill by the watchdog there is nothing else to read.
fn unhealthy(tree: &Tree) -> Vec<String> {
    let numbers = tree.numbers();
    let others = |states: &BTreeMap<ActorState, u64>| states.keys().any(|state| *state != ActorState::Healthy);
    let unhealthy = numbers.into_iter().filter(|(_, actor)| others(&actor.states) || actor.handling_ms > 1_000);
    unhealthy
        .map(|(path, actor)| {
            let states: Vec<String> = actor.states.iter().map(|(state, n)| format!("{n} {}", word(state))).collect();
            format!("{path}: {}, handling for {} ms", states.join(", "), actor.handling_ms)
        })
        .take(20)
        .collect()
}

/// One line about a node: its role, whom it follows, and how many managers may fail.
pub struct Summary {
    pub role: Role,
    /// A worker's session, by the manager's address.
    pub session: Option<String>,
    pub raft: Option<Raft>,
    pub trouble: Option<String>,
}

/// A manager's part of a [`Summary`].
pub struct Raft {
    /// `None`: there is none. By name.
    pub leader: Option<String>,
    pub leads: bool,
    pub quorum: QuorumView,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.raft, self.role, &self.session) {
            (Some(raft), ..) => raft.fmt(f)?,
            (None, Role::Worker, Some(addr)) => write!(f, "worker, in session with {addr}")?,
            (None, Role::Worker, None) => write!(f, "worker, without a session")?,
            (None, Role::Manager, _) => write!(f, "manager, not a member of Raft yet")?,
        }
        match &self.trouble {
            Some(trouble) => write!(f, "; {trouble}"),
            None => Ok(()),
        }
    }
}

impl std::fmt::Display for Raft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.leader, self.leads) {
            (_, true) => write!(f, "manager, leader")?,
            (Some(leader), false) => write!(f, "manager, follower of {leader}")?,
            (None, false) => write!(f, "manager, without a leader")?,
        }
        let QuorumView { reachable, missing, .. } = &self.quorum;
        write!(f, ", {reachable} of {} reachable", counted(reachable + missing.len(), "manager"))?;
        let names: Vec<&str> = missing.iter().map(Name::as_str).collect();
        if names.is_empty() { Ok(()) } else { write!(f, ", missing: {}", names.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn status_line_names_role_leader_and_missing_managers() {
        let raft = |leader: Option<&str>, leads, missing: &[&str]| {
            let missing: Vec<Name> = missing.iter().map(|name| name.parse().unwrap()).collect();
            let quorum = QuorumView { needed: 2, reachable: 3 - missing.len(), missing };
            Some(Raft { leader: leader.map(str::to_owned), leads, quorum })
        };
        let line = |role, session: Option<&str>, raft| {
            Summary { role, session: session.map(str::to_owned), raft, trouble: None }.to_string()
        };
        let follower = line(Role::Manager, None, raft(Some("n2"), false, &[]));
        assert_eq!(follower, "manager, follower of n2, 3 of 3 managers reachable");
        let alone = line(Role::Manager, None, raft(None, false, &["n2", "n3"]));
        assert_eq!(alone, "manager, without a leader, 1 of 3 managers reachable, missing: n2, n3");
        let only = QuorumView { needed: 1, reachable: 1, missing: vec![] };
        let only = line(Role::Manager, None, Some(Raft { leader: None, leads: true, quorum: only }));
        assert_eq!(only, "manager, leader, 1 of 1 manager reachable");
        assert_eq!(line(Role::Worker, Some("10.0.0.1:4400"), None), "worker, in session with 10.0.0.1:4400");
        let troubled =
            Summary { role: Role::Worker, session: None, raft: None, trouble: Some("blocked".to_owned()) }.to_string();
        assert_eq!(troubled, "worker, without a session; blocked");
    }

    /// While nothing is read, states keep their order, a status is replaced, and beats are one.
    #[test]
    fn unsent_states_are_kept_and_the_newest_status() {
        let mut unsent = Unsent::default();
        let state = |text: &str| Message::State(text.to_owned());
        for message in [state("READY=1"), Message::Beat, Message::Status("a".into()), Message::Beat] {
            unsent.add(message);
        }
        unsent.add(Message::Status("b".into()));
        unsent.add(state("STOPPING=1"));
        let sent: Vec<String> = std::iter::from_fn(|| unsent.next()).collect();
        assert_eq!(sent, ["READY=1", "STOPPING=1", "STATUS=b", "WATCHDOG=1"]);
        (0..1_000).for_each(|_| unsent.add(state("READY=1")));
        unsent.add(state("STOPPING=1"));
        let sent: Vec<String> = std::iter::from_fn(|| unsent.next()).collect();
        assert_eq!((sent.len(), sent.last().map(String::as_str)), (MAX_UNSENT_STATES, Some("STOPPING=1")));
    }

    /// The watchdog is fed while the root supervisor answers, by late answers too, and not while it hangs.
    #[tokio::test(start_paused = true)]
    async fn only_answers_feed_the_watchdog() {
        let (beats, hangs) = (Cell::new(0), Cell::new(false));
        let answers = async || {
            while hangs.get() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            true
        };
        let fed = feed(Duration::from_secs(30), None, answers, || beats.set(beats.get() + 1));
        let mut fed = std::pin::pin!(fed);
        let mut pass = async |seconds| drop(timeout(Duration::from_secs(seconds), &mut fed).await);
        pass(35).await;
        assert_eq!(beats.get(), 4, "at once, then each 10 s");
        hangs.set(true);
        pass(600).await;
        assert_eq!(beats.get(), 4);
        hangs.set(false);
        pass(5).await;
        assert_eq!(beats.get(), 6, "the late answer, and the next beat");
    }
}
