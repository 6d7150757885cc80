//! The server's log of a lease: its holders, event by event, and when this process received each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use muster_client::{Client, Failure, parse};
use muster_elector::{BootTime, Timekeeper};
use muster_messages::wire::Request;
use muster_messages::{Moment, Revision};
use serde_json::Value;

/// A lease as an event shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub holder: String,
    pub token: u64,
    pub expired: bool,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub revision: u64,
    pub before: Option<Holding>,
    pub after: Option<Holding>,
    /// When it was received: it had happened by then.
    pub received: Moment,
}

/// Holders of a lease by token, in order, with the time of receipt. An elected candidate gets a token
/// of its own when it takes the lease up.
pub type Tenures = BTreeMap<u64, (String, Moment)>;

/// Follows the log, from any manager that answers.
pub struct Listener {
    stop: Arc<AtomicBool>,
    received: Arc<Mutex<Vec<Change>>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// From the first event on.
    pub fn start(sockets: Vec<PathBuf>, lease: &str) -> Self {
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, tell, lease) = (Arc::clone(&stop), Arc::clone(&received), lease.to_owned());
        let thread = std::thread::spawn(move || listen(&sockets, &lease, &stopped, &tell));
        Self { stop, received, thread: Some(thread) }
    }

    /// Everything received so far.
    pub fn received(&self) -> Vec<Change> {
        locked(&self.received).clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(sockets: &[PathBuf], lease: &str, stop: &AtomicBool, tell: &Mutex<Vec<Change>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut clients: Vec<Client> = sockets.iter().map(|s| Client::to_socket(s, Duration::from_secs(2))).collect();
    let (mut since, mut turn) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let request = Request::Events { since: Revision(since), wait_ms: 500 };
        let client = &mut clients[turn % sockets.len()];
        let answer: Result<Value, Failure> = runtime.block_on(async { parse(&client.call(request).await?) });
        let Ok(answer) = answer else {
            turn += 1;
            continue;
        };
        let received = BootTime.now();
        for event in answer["items"].as_array().into_iter().flatten() {
            since = since.max(event["revision"].as_u64().unwrap_or(0));
            locked(tell).extend(change_of(event, lease, received));
        }
    }
}

/// A lease's changes among events.
pub fn changes(events: &Value, lease: &str) -> Vec<Change> {
    events.as_array().into_iter().flatten().filter_map(|event| change_of(event, lease, BootTime.now())).collect()
}

fn change_of(event: &Value, lease: &str, received: Moment) -> Option<Change> {
    let holding = |key: &str| holding_of(event[key].as_str()?, lease);
    let (before, after) = (holding("before"), holding("after"));
    let revision = event["revision"].as_u64()?;
    (event["kind"] == "lease" && (before.is_some() || after.is_some())).then_some(Change {
        revision,
        before,
        after,
        received,
    })
}

/// `NAMESPACE/NAME held by HOLDER, token N[, expired]`.
fn holding_of(text: &str, lease: &str) -> Option<Holding> {
    let rest = text.strip_prefix(&format!("{lease} held by "))?;
    let (rest, expired) = rest.strip_suffix(", expired").map_or((rest, false), |rest| (rest, true));
    let (holder, token) = rest.rsplit_once(", token ")?;
    Some(Holding { holder: holder.to_owned(), token: token.parse().ok()?, expired })
}

/// Whether the lease never passed on while it was held, and every token was greater than all before.
pub fn tenures(changes: &[Change]) -> Result<Tenures, String> {
    let (mut tenures, mut known, mut revision) = (Tenures::new(), None, 0);
    for change in changes {
        if change.revision <= revision {
            return Err(format!("{change:?} follows revision {revision}"));
        }
        if change.before != known {
            return Err(format!("an event is missing between {known:?} and {change:?}"));
        }
        if let Some(now) = change.after.as_ref().filter(|now| !now.expired) {
            let same = |was: &Holding| (&was.holder, was.token) == (&now.holder, now.token);
            let live = change.before.as_ref().filter(|was| !was.expired);
            if let Some(was) = live.filter(|was| was.holder != now.holder) {
                return Err(format!("{} acquired it while {} held it: {change:?}", now.holder, was.holder));
            }
            let again = change.before.as_ref().is_some_and(same);
            let greatest = tenures.last_key_value().map_or(0, |(token, _)| *token);
            if !again && now.token <= greatest {
                return Err(format!("token {} came after {greatest}", now.token));
            }
            tenures.entry(now.token).or_insert_with(|| (now.holder.clone(), change.received));
        }
        (known, revision) = (change.after.clone(), change.revision);
    }
    Ok(tenures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(states: &[&str]) -> Vec<Change> {
        let holding = |text: &str| holding_of(&format!("default/prize held by {text}"), "default/prize");
        let states: Vec<_> = [None].into_iter().chain(states.iter().map(|text| holding(text))).collect();
        let change = |(number, pair): (usize, &[Option<Holding>])| Change {
            revision: number as u64 + 1,
            before: pair[0].clone(),
            after: pair[1].clone(),
            received: Moment(0),
        };
        states.windows(2).enumerate().map(change).collect()
    }

    #[test]
    fn expired_or_released_lease_may_pass_on() {
        let held = ["ann, token 3", "ann, token 3, expired", "bob, token 5", "", "ann, token 8"];
        let tenures = tenures(&chain(&held)).expect("all is well");
        assert_eq!(tenures.keys().copied().collect::<Vec<_>>(), [3, 5, 8]);
        assert_eq!(tenures[&5].0, "bob");
    }

    #[test]
    fn lease_taken_while_held_is_detected() {
        assert!(tenures(&chain(&["ann, token 3", "bob, token 5"])).is_err());
    }

    #[test]
    fn lease_event_with_stale_token_is_detected() {
        assert!(tenures(&chain(&["ann, token 3", "", "bob, token 3"])).is_err());
        assert!(tenures(&chain(&["ann, token 5", "", "bob, token 3"])).is_err());
    }

    #[test]
    fn elected_holder_takes_up_its_lease() {
        assert!(tenures(&chain(&["ann, token 3", "ann, token 4"])).is_ok());
        assert!(tenures(&chain(&["ann, token 3", "ann, token 2"])).is_err());
    }

    #[test]
    fn missing_lease_event_is_detected() {
        let mut changes = chain(&["ann, token 3", "ann, token 3, expired", "bob, token 5"]);
        changes.remove(1);
        assert!(tenures(&changes).is_err());
    }
}
