//! What systemd knows of a daemon of `Type=notify`: see sd_notify(3). Without `NOTIFY_SOCKET` nothing is sent.
//!
//! The daemon is *ready* for systemd once only the cluster, or a person, can move it on: its tree runs, it joins, or it is locked. The
//! `musterd ready` line, which says that it serves its role, may follow much later. Were this the other way round, the managers of a cluster
//! that are started in turn would wait for each other, and `systemctl start` with them.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use muster_kernel::Tree;
use muster_messages::{ActorState, Name, QuorumView, Role};
use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::cli::output::printable;

/// Where systemd listens, see sd_notify(3).
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// How often the status line is brought up to date.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Reports that the start is complete, with what it waits for. Repeated, it only replaces the status.
pub fn ready(status: impl std::fmt::Display) {
    static SENT: OnceLock<()> = OnceLock::new();
    let status = printable(&status.to_string());
    match SENT.set(()) {
        Ok(()) => send(&[NotifyState::Ready, NotifyState::Status(&status)]),
        Err(()) => send(&[NotifyState::Status(&status)]),
    }
}

/// The daemon was asked to stop.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// The configuration is read again; a call of [`reloaded`] follows.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no monotonic time for systemd"),
    }
}

pub fn reloaded() {
    send(&[NotifyState::Ready]);
}

/// Never blocks: systemd may be restarting or stopped, and then its socket is full. What it must know is sent again: the status with its next
/// change, the watchdog with its next beat.
fn send(states: &[NotifyState<'_>]) {
    static QUEUE: OnceLock<Option<SyncSender<String>>> = OnceLock::new();
    let text = states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    if let Some(queue) = QUEUE.get_or_init(start_sender)
        && queue.try_send(text).is_err()
    {
        tracing::debug!("systemd does not read its notifications");
    }
}

/// Starts the thread that sends, if there is a service manager. A send waits for as long as the socket is full.
fn start_sender() -> Option<SyncSender<String>> {
    std::env::var_os(NOTIFY_SOCKET)?;
    let (queue, texts) = sync_channel::<String>(16);
    let send_all = move || {
        for text in texts {
            if let Err(error) = sd_notify::notify(&[NotifyState::Custom(&text)]) {
                tracing::debug!(%error, "systemd cannot be notified");
            }
        }
    };
    std::thread::Builder::new().name("systemd".to_owned()).spawn(send_all).ok().map(|_| queue)
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
        Some(period) => feed(period, tree, answers, || send(&[NotifyState::Watchdog])).await,
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
                tracing::error!(?unhealthy, "the root supervisor does not answer: systemd's watchdog is not fed");
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
        .map(|(path, actor)| format!("{path}: {:?}, handling for {} ms", actor.states, actor.handling_ms))
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
            (None, Role::Worker, None) => write!(f, "worker, without a session: no manager can be reached")?,
            (None, Role::Manager, _) => write!(f, "manager, waiting for its Raft data or its seat")?,
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
        write!(f, ", {reachable} of {} managers reachable", reachable + missing.len())?;
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
        assert_eq!(line(Role::Worker, Some("10.0.0.1:4400"), None), "worker, in session with 10.0.0.1:4400");
        let troubled =
            Summary { role: Role::Worker, session: None, raft: None, trouble: Some("blocked".to_owned()) }.to_string();
        assert_eq!(troubled, "worker, without a session: no manager can be reached; blocked");
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
