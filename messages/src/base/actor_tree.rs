//! The live actor tree, as `muster actors` shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::WallTime;

/// An actor's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActorState {
    /// It is being made, or has not reported that it can work.
    Starting,
    /// It works.
    Healthy,
    /// It ended in order and is not started again.
    Done,
    /// It failed and waits for its next start.
    BackingOff,
    /// It was asked to stop, or is being killed.
    Stopping,
    /// Ignored both stop and kill; fenced off by its incarnation.
    Stuck,
    /// It has ended.
    Dead,
    /// It failed too often: its supervisor's parent decides.
    Escalated,
}

/// How an incarnation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitKind {
    /// It was asked to stop, or had nothing left to do.
    Normal,
    /// Its handler, its start or its stop returned an error.
    Error,
    /// Its code panicked.
    Panic,
    /// It was killed: on request, or because it did not stop in time.
    Killed,
    /// It never started.
    Start,
    /// It did not end when it was killed, and was given up.
    Stuck,
}

/// One past exit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorExit {
    /// How it ended.
    pub kind: ExitKind,
    /// Why. Of a panic: `panicked: ` and its text.
    pub text: String,
    /// When.
    pub at: WallTime,
}

/// The message in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handling {
    /// The message's name.
    pub message: String,
    /// How long it has been in progress.
    pub for_ms: u64,
}

/// The upper bounds of [`HandlerTimes`], in milliseconds; longer times are counted too. Handlers take microseconds: blocking ones
/// show from the third bound on.
pub const HANDLER_BOUNDS_MS: [f64; 6] = [0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0];

/// How long an actor's handlers took, over all its incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "HandlerTimesView", into = "HandlerTimesView")]
pub struct HandlerTimes {
    /// By bound; the last are those above all bounds.
    pub counts: [u64; HANDLER_BOUNDS_MS.len() + 1],
    /// All of them together.
    pub sum: Duration,
}

impl HandlerTimes {
    /// Counts one handled message.
    pub fn add(&mut self, took: Duration) {
        let ms = took.as_secs_f64() * 1_000.0;
        self.counts[HANDLER_BOUNDS_MS.iter().take_while(|bound| ms > **bound).count()] += 1;
        self.sum += took;
    }
    /// Adds another actor's messages.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }
    /// Messages handled.
    pub fn handled(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// [`HandlerTimes`] as people and programs read them: like a Prometheus histogram, each bucket counts those before it.
#[derive(Serialize, Deserialize)]
struct HandlerTimesView {
    sum_ms: f64,
    buckets: Vec<Bucket>,
}
#[derive(Serialize, Deserialize)]
struct Bucket {
    /// `null`: no bound.
    le_ms: Option<f64>,
    count: u64,
}

impl From<HandlerTimes> for HandlerTimesView {
    fn from(times: HandlerTimes) -> Self {
        let bounds = HANDLER_BOUNDS_MS.iter().copied().map(Some).chain([None]);
        let below = times.counts.iter().scan(0, |below, count| {
            *below += count;
            Some(*below)
        });
        let buckets = bounds.zip(below).map(|(le_ms, count)| Bucket { le_ms, count }).collect();
        Self { sum_ms: times.sum.as_micros() as f64 / 1_000.0, buckets }
    }
}

impl From<HandlerTimesView> for HandlerTimes {
    /// A bucket with another bound than this release's counts in the next one.
    fn from(view: HandlerTimesView) -> Self {
        let bounds = HANDLER_BOUNDS_MS.iter().copied().map(Some).chain([None]);
        let (mut counts, mut below) = ([0; HANDLER_BOUNDS_MS.len() + 1], 0);
        for (count, bound) in counts.iter_mut().zip(bounds) {
            let upto = view.buckets.iter().find(|bucket| bucket.le_ms == bound).map_or(below, |bucket| bucket.count);
            *count = upto.saturating_sub(below);
            below = below.max(upto);
        }
        Self { counts, sum: Duration::try_from_secs_f64(view.sum_ms / 1_000.0).unwrap_or_default() }
    }
}

/// One actor and its children, only as JSON: the view is free-form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActorNode {
    /// Its place in the tree, such as `node/api`.
    pub path: String,
    /// The kind of actor.
    pub kind: String,
    /// The number of its present incarnation, from 1.
    pub incarnation: u64,
    /// What it is doing.
    pub state: ActorState,
    /// Since when it has been in this state.
    pub since: WallTime,
    /// How often it was started again.
    pub restarts: u64,
    /// Messages waiting.
    pub mailbox: u64,
    /// The mailbox's bound. `None`: it has no mailbox of this kind (supervisors, threads).
    pub mailbox_limit: Option<u64>,
    /// Messages refused because the mailbox was full, ever.
    #[serde(default)]
    pub refused: u64,
    /// Messages, timers and reports of older incarnations that were dropped, ever.
    #[serde(default)]
    pub stale: u64,
    /// Messages handled, ever; each start of an incarnation counts as one. A message whose handler panicked does not count.
    pub handled: u64,
    /// The message in progress.
    pub handling: Option<Handling>,
    /// How long its handlers took.
    #[serde(default)]
    pub handler_times: HandlerTimes,
    /// The last eight, oldest first.
    pub last_exits: Vec<ActorExit>,
    /// Its own view of its state.
    pub view: serde_json::Value,
    /// The age of the view: old if the actor is busy or stuck.
    pub view_age_ms: Option<u64>,
    /// The actors below it.
    pub children: Vec<ActorNode>,
    /// Children that are omitted because there are too many of their kind, by kind.
    #[serde(default)]
    pub more_children: BTreeMap<String, u64>,
}

impl ActorNode {
    /// An actor of which nothing is known.
    pub fn unknown(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            kind: String::new(),
            incarnation: 0,
            state: ActorState::Dead,
            since: WallTime(0),
            restarts: 0,
            mailbox: 0,
            mailbox_limit: None,
            refused: 0,
            stale: 0,
            handled: 0,
            handling: None,
            handler_times: HandlerTimes::default(),
            last_exits: Vec::new(),
            view: serde_json::Value::Null,
            view_age_ms: None,
            children: Vec::new(),
            more_children: BTreeMap::new(),
        }
    }
}

/// An actor that is being restarted or crashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActorActionView {
    /// The actor's path.
    pub path: String,
    /// Present and true: it is being restarted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarting: bool,
    /// How it is being crashed. Absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crashed: Option<CrashHow>,
}

/// How `muster actors crash` ends an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CrashHow {
    /// It panics.
    Panic,
    /// Its handler returns an error.
    Error,
    /// It is killed.
    Kill,
    /// Blocks the handler for a while.
    Hang,
    /// It ends in order, and this many of its next starts fail. Forgotten when its supervisor ends.
    Start {
        /// How many starts fail.
        times: u32,
    },
}

impl CrashHow {
    /// How many starts fail by default: one more failure than a supervisor tolerates by default.
    pub const STARTS: u32 = 11;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_times_have_prometheus_style_buckets() {
        let mut times = HandlerTimes::default();
        for ms in [0, 1, 2, 99, 100, 9_000, 60_000] {
            times.add(Duration::from_millis(ms));
        }
        assert_eq!((times.counts, times.handled()), ([1, 1, 1, 2, 0, 1, 1], 7));
        let json = serde_json::to_value(times).unwrap();
        assert_eq!(json["sum_ms"], 69_202.0);
        assert_eq!(json["buckets"][3], serde_json::json!({"le_ms": 100.0, "count": 5}));
        assert_eq!(json["buckets"][6], serde_json::json!({"le_ms": null, "count": 7}));
        assert_eq!(serde_json::from_value::<HandlerTimes>(json).unwrap(), times);
        let mut both = times;
        both.merge(&times);
        assert_eq!((both.handled(), both.sum), (14, times.sum * 2));
    }
}
