//! A watch of the cluster's events that continues where it was.

use muster_messages::wire::Request;
use muster_messages::{Details, ErrorCode, EventsView, Revision, detail, millis};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::client::{Client, RETRY_PAUSE};
use crate::failure::{Failure, Outcome};

/// The cluster's events, each once and in order, whichever managers die meanwhile.
///
/// [`EventWatch::position`] is where it resumes. A program that stores it together with what it made of the events can itself be killed: a
/// watch from there misses nothing and repeats nothing.
pub struct EventWatch {
    client: Client,
    position: Revision,
    skips_lost: bool,
    /// A manager did not answer: others may have taken its place.
    managers_may_differ: bool,
}

impl Client {
    /// Watches for events after a revision, over a connection of its own; 0: from the oldest one that is kept.
    pub fn watch_events(&self, since: Revision) -> EventWatch {
        EventWatch { client: self.clone(), position: since, skips_lost: false, managers_may_differ: false }
    }
}

impl EventWatch {
    /// Continues where events are no longer kept, instead of failing with `expired`: the page's `incomplete_before` is then set.
    #[must_use]
    pub fn skipping_lost(mut self) -> Self {
        self.skips_lost = true;
        self
    }

    /// The revision up to which all events have been returned.
    pub fn position(&self) -> Revision {
        self.position
    }

    /// Waits for the next events. They are read as [`EventView`](crate::EventView), or as JSON values by programs that pass on fields of newer
    /// releases. May be cancelled without losing events.
    ///
    /// # Errors
    ///
    /// - `expired`: events after the position are no longer kept, or the position is of another incarnation of the cluster. Read what you need
    ///   again, and watch from its revision.
    /// - A failure that [may pass](Failure::may_pass), once no server has answered for the client's time limit. The next call tries again.
    /// - Any other failure would be repeated.
    pub async fn next<E: DeserializeOwned>(&mut self) -> Outcome<EventsView<E>> {
        let mut answered = Instant::now();
        loop {
            // Half of the time limit: a quiet cluster answers well before the call times out.
            let wait_ms = millis(self.client.timeout() / 2);
            let page = match self.client.ask(Request::Events { since: self.position, wait_ms }).await {
                Ok(page) => self.checked(page)?,
                Err(failure) if failure.may_pass() => {
                    self.client.leave_manager();
                    self.managers_may_differ = true;
                    if answered.elapsed() >= self.client.timeout() {
                        return Err(failure);
                    }
                    tokio::time::sleep(RETRY_PAUSE).await;
                    continue;
                }
                Err(failure) if failure.is(ErrorCode::Conflict) && !self.skips_lost => {
                    return Err(self.expired(&failure.message));
                }
                Err(failure) => return Err(failure),
            };
            answered = Instant::now();
            if std::mem::take(&mut self.managers_may_differ) {
                // Only an improvement: one of the addresses known so far has answered.
                let _learned = self.client.learn_managers().await;
            }
            self.position = page.revision;
            if !page.items.is_empty() {
                return Ok(page);
            }
        }
    }

    /// The page, unless it does not follow the position.
    fn checked<E>(&self, page: EventsView<E>) -> Outcome<EventsView<E>> {
        if page.revision < self.position {
            return Err(self.expired("the cluster's revision is lower: it was restored, or is another one"));
        }
        if self.position != Revision(0) && page.incomplete_before.is_some() && !self.skips_lost {
            return Err(self.expired("events of some kinds after it are no longer kept"));
        }
        Ok(page)
    }

    fn expired(&self, why: &str) -> Failure {
        let position = self.position;
        Failure::new(ErrorCode::Expired, format!("cannot resume after revision {position}: {why}"))
            .with_details(Details::default().with(detail::SINCE_REVISION, &position))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use muster_gateway::Framed;
    use muster_messages::ErrorBody;
    use muster_messages::wire::{ApiAnswer, ApiCall};
    use serde_json::{Value, json};
    use tokio::net::UnixListener;

    use super::*;

    /// What a daemon does with the next request.
    #[derive(Clone)]
    enum Does {
        Answers(Value),
        Refuses(ErrorCode),
        HangsUp,
        IsSilent,
    }

    fn page(revision: u64, events: &[u64], incomplete_before: Option<u64>) -> Does {
        Does::Answers(json!({"items": events, "revision": revision, "incomplete_before": incomplete_before}))
    }

    /// A daemon that does this, and the revisions after which it was asked for events. After the last one it is silent.
    fn daemon(socket: &Path, does: Vec<Does>) -> Arc<Mutex<Vec<u64>>> {
        let (listener, asked) = (UnixListener::bind(socket).unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (record, mut does) = (asked.clone(), does.into_iter());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut frames = Framed::new(stream);
                while let Ok(Some(ApiCall { id, request: Request::Events { since, .. }, .. })) = frames.recv().await {
                    record.lock().unwrap().push(since.0);
                    let result = match does.next() {
                        Some(Does::Answers(page)) => Ok(page.to_string()),
                        Some(Does::Refuses(code)) => Err(ErrorBody::new(code, "no")),
                        Some(Does::HangsUp) => break,
                        Some(Does::IsSilent) | None => continue,
                    };
                    frames.send(&ApiAnswer { id, result }).await.unwrap();
                }
            }
        });
        asked
    }

    fn watch(socket: &Path, since: u64) -> EventWatch {
        Client::to_socket(socket, Duration::from_secs(10)).watch_events(Revision(since))
    }

    /// The next events: here only their revisions.
    async fn next(watch: &mut EventWatch) -> Outcome<Vec<u64>> {
        watch.next().await.map(|page| page.items)
    }

    #[tokio::test(start_paused = true)]
    async fn pages_follow_each_other_over_lost_connections() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let does = vec![
            page(5, &[4, 5], None),
            Does::HangsUp,
            Does::Refuses(ErrorCode::NoQuorum),
            page(6, &[], None),
            page(8, &[8], None),
        ];
        let asked = daemon(&socket, does);
        let mut watch = watch(&socket, 3);
        assert_eq!(next(&mut watch).await.unwrap(), [4, 5]);
        assert_eq!(next(&mut watch).await.unwrap(), [8]);
        assert_eq!(watch.position(), Revision(8));
        assert_eq!(*asked.lock().unwrap(), [3, 5, 5, 5, 6], "each place again until it was answered");
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_wait_loses_no_event() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let asked = daemon(&socket, vec![Does::IsSilent, page(4, &[4], None)]);
        let mut watch = watch(&socket, 3);
        assert!(tokio::time::timeout(Duration::from_secs(1), next(&mut watch)).await.is_err());
        assert_eq!(next(&mut watch).await.unwrap(), [4]);
        assert_eq!(*asked.lock().unwrap(), [3, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn lost_events_end_a_watch_unless_it_skips_them() {
        let folder = tempfile::tempdir().unwrap();
        for (n, (since, first, strict, skipping)) in [
            (3, page(9, &[9], Some(8)), Err("expired"), Ok(())),
            (0, page(9, &[9], Some(8)), Ok(()), Ok(())),
            (30, page(9, &[9], None), Err("expired"), Err("expired")),
            (3, Does::Refuses(ErrorCode::Conflict), Err("expired"), Err("conflict")),
            (3, Does::Refuses(ErrorCode::Forbidden), Err("forbidden"), Err("forbidden")),
        ]
        .into_iter()
        .enumerate()
        {
            for (skips, expected) in [(false, strict), (true, skipping)] {
                let socket = folder.path().join(format!("{n}{skips}"));
                daemon(&socket, vec![first.clone()]);
                let strict = watch(&socket, since);
                let mut watch = if skips { strict.skipping_lost() } else { strict };
                let ended = next(&mut watch).await.map(drop).map_err(|failure| failure.code.to_string());
                assert_eq!(ended, expected.map_err(str::to_owned), "{n} {skips}");
                assert_eq!(watch.position().0, if expected.is_ok() { 9 } else { since }, "{n} {skips}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_fails_in_time_and_the_next_call_resumes() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let mut watch = watch(&socket, 3);
        let began = tokio::time::Instant::now();
        let failure = next(&mut watch).await.unwrap_err();
        assert!(failure.is(ErrorCode::Unreachable) && failure.may_pass(), "{failure}");
        assert!(began.elapsed() >= Duration::from_secs(10), "it tried again meanwhile");
        daemon(&socket, vec![page(4, &[4], None)]);
        assert_eq!(next(&mut watch).await.unwrap(), [4]);
    }
}
