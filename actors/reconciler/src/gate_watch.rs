//! A watch of one gate, for programs that only observe it.

use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream::unfold;
use muster_messages::wire::ReconcilerRequest;
use muster_messages::{ErrorCode, FencingToken, GateState, Release, Revision, Triple};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::cluster_requests::{self, WatchedValue};
use crate::ports::Cluster;

/// A gate as an observer sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum GateSeen {
    /// Nothing has ever been applied, or the reconciler is unknown.
    Absent,
    /// The gate contains something that this build does not understand. It admits no member.
    Unreadable,
    Gate(GateStatus),
}

/// The contents of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateStatus {
    pub epoch: u64,
    pub state: GateState,
    pub reconciled: Release,
    pub floor: Triple,
    pub digest: String,
    pub term: FencingToken,
}

impl GateSeen {
    /// The gate in a status. One that cannot be read counts as unreadable, never as absent.
    fn of(status: &Value) -> Self {
        match &status["gate"] {
            Value::Null => Self::Absent,
            gate => GateStatus::deserialize(gate).map_or(Self::Unreadable, Self::Gate),
        }
    }
}

/// A watch of one gate. Its task ends with it.
pub struct GateWatch {
    seen: watch::Receiver<Option<GateSeen>>,
}

/// The two parts of a status that are read here.
#[derive(Deserialize)]
struct Status {
    revision: Revision,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

struct Name(String);

impl WatchedValue for Name {
    type View = Status;
    fn request(&self, seen: Revision, wait_ms: u64) -> ReconcilerRequest {
        ReconcilerRequest::Status { name: self.0.clone(), seen, wait_ms }
    }
    fn revision(view: &Status) -> Revision {
        view.revision
    }
}

impl GateWatch {
    /// Watches the gate of this reconciler. Needs a tokio runtime.
    pub fn new(cluster: Arc<dyn Cluster>, reconciler: impl Into<String>) -> Self {
        let (tell, seen) = watch::channel(None);
        let tell = Arc::new(tell);
        let unwatched = Arc::clone(&tell);
        let watched = cluster_requests::watch(cluster, Name(reconciler.into()), move |answer| {
            let news = match answer {
                Ok(status) => Some(GateSeen::of(&Value::Object(status.rest))),
                Err(body) if body.code == ErrorCode::NotFound => Some(GateSeen::Absent),
                // The last state stays: an unreachable cluster says nothing about its gates.
                Err(_) => None,
            };
            if let Some(news) = news {
                tell.send_if_modified(|known| known.replace(news.clone()).as_ref() != Some(&news));
            }
            std::future::ready(true)
        });
        // An answer takes as long as there is no news: the task can end while it waits.
        tokio::spawn(async move {
            tokio::select! {
                () = unwatched.closed() => {}
                () = watched => {}
            }
        });
        Self { seen }
    }

    /// The last state seen; `None` before the first answer.
    pub fn now(&self) -> Option<GateSeen> {
        self.seen.borrow().clone()
    }
    /// The first state, then each change; a slow reader skips to the newest. `None`: the runtime is ending.
    pub async fn next(&mut self) -> Option<GateSeen> {
        loop {
            self.seen.changed().await.ok()?;
            let seen = self.seen.borrow_and_update().clone();
            if seen.is_some() {
                return seen;
            }
        }
    }
    /// The same as a stream.
    pub fn into_stream(self) -> impl Stream<Item = GateSeen> {
        unfold(self, |mut gate| async move { gate.next().await.map(|seen| (seen, gate)) })
    }
}
