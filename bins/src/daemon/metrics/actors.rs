//! Metrics of actors: the live tree's counters, by path.
//!
//! A path that no longer exists has no series. Sessions, contests and reconcilers, of which there may be ten thousand, share one path
//! each: `node/manager/sessions/session-*`. Its counters include those of ended actors.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use muster_kernel::ActorNumbers;
use muster_messages::{ActorState, HANDLER_BOUNDS_MS, word};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Path {
    path: String,
}
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: String,
}

/// What is counted, by path.
#[derive(Debug)]
pub(super) struct Actors(pub BTreeMap<String, ActorNumbers>);

type Number = fn(&ActorNumbers) -> u64;

const GAUGES: [(&str, &str, Number); 3] = [
    ("actor_alive", "Actors of the path: 1, or the number that share it", |n| n.states.values().sum()),
    ("actor_healthy", "Healthy actors of the path", |n| n.states.get(&ActorState::Healthy).copied().unwrap_or(0)),
    ("actor_mailbox", "Messages waiting", |n| n.mailbox),
];
const COUNTERS: [(&str, &str, Number); 4] = [
    ("actor_handled", "Messages handled", |n| n.handler_times.handled()),
    ("actor_restarts", "Restarts", |n| n.restarts),
    ("actor_refused", "Messages refused because the mailbox was full", |n| n.refused),
    ("actor_stale", "Dropped messages, timers and reports of older incarnations", |n| n.stale),
];

impl Collector for Actors {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for (name, help, number) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (path, numbers) in &self.0 {
                family.encode_family(&Path { path: path.clone() })?.encode_gauge(&number(numbers))?;
            }
        }
        // An actor without a limit has no series.
        let help = "Messages that may wait in all mailboxes of the path together; further ones are refused";
        let mut family = encoder.encode_descriptor("actor_mailbox_limit", help, None, MetricType::Gauge)?;
        for (path, numbers) in self.0.iter().filter(|(_, numbers)| numbers.mailbox_limit > 0) {
            family.encode_family(&Path { path: path.clone() })?.encode_gauge(&numbers.mailbox_limit)?;
        }
        for (name, help, number) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (path, numbers) in &self.0 {
                family
                    .encode_family(&Path { path: path.clone() })?
                    .encode_counter::<NoLabelSet, _, u64>(&number(numbers), None)?;
            }
        }
        let help = "How long the current message has been in progress; the longest of several";
        let mut family = encoder.encode_descriptor("actor_handling_seconds", help, None, MetricType::Gauge)?;
        for (path, numbers) in &self.0 {
            let seconds = numbers.handling_ms as f64 / 1_000.0;
            family.encode_family(&Path { path: path.clone() })?.encode_gauge(&seconds)?;
        }
        self.encode_times(&mut encoder)?;
        self.encode_states(&mut encoder)
    }
}

impl Actors {
    fn encode_times(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "How long messages took to handle";
        let mut family = encoder.encode_descriptor("actor_handler_seconds", help, None, MetricType::Histogram)?;
        for (path, ActorNumbers { handler_times: times, .. }) in &self.0 {
            let path = Path { path: path.clone() };
            histogram(family.encode_family(&path)?, HANDLER_BOUNDS_MS, &times.counts, times.sum)?;
        }
        Ok(())
    }

    /// Of the whole process: for alerts on stuck actors that do not know their paths.
    fn encode_states(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        use ActorState::{BackingOff, Dead, Done, Escalated, Healthy, Starting, Stopping, Stuck};
        let mut family = encoder.encode_descriptor("actors", "Actors by state", None, MetricType::Gauge)?;
        for state in [Starting, Healthy, Done, BackingOff, Stopping, Stuck, Dead, Escalated] {
            let count: u64 = self.0.values().filter_map(|numbers| numbers.states.get(&state)).sum();
            family.encode_family(&State { state: word(state) })?.encode_gauge(&count)?;
        }
        Ok(())
    }
}

/// One series of durations, counted by upper bounds; the last count is of those above all bounds.
pub(super) fn histogram(
    mut series: MetricEncoder<'_>,
    bounds_ms: impl IntoIterator<Item = f64>,
    counts: &[u64],
    sum: Duration,
) -> fmt::Result {
    let bounds = bounds_ms.into_iter().map(|ms| ms / 1_000.0).chain([f64::MAX]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
    series.encode_histogram::<NoLabelSet>(sum.as_secs_f64(), counts.iter().sum(), &buckets, None)
}

#[cfg(test)]
mod tests {

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn each_path_has_its_series_in_the_units_of_prometheus() {
        let mut numbers = ActorNumbers {
            states: [(ActorState::Healthy, 9_998), (ActorState::Stuck, 2)].into(),
            mailbox: 5,
            mailbox_limit: 640_000,
            handling_ms: 700,
            restarts: 3,
            ..ActorNumbers::default()
        };
        for ms in [1, 50, 60_000] {
            numbers.handler_times.add(Duration::from_millis(ms));
        }
        let mut registry = Registry::with_prefix("muster");
        let paths = [("node/sessions/session-*".to_owned(), numbers), ("node".to_owned(), ActorNumbers::default())];
        registry.register_collector(Box::new(Actors(paths.into())));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"muster_actor_alive{path="node/sessions/session-*"} 10000"#,
            r#"muster_actor_healthy{path="node/sessions/session-*"} 9998"#,
            r#"muster_actor_mailbox{path="node/sessions/session-*"} 5"#,
            r#"muster_actor_mailbox_limit{path="node/sessions/session-*"} 640000"#,
            r#"muster_actor_handling_seconds{path="node/sessions/session-*"} 0.7"#,
            r#"muster_actor_handled_total{path="node/sessions/session-*"} 3"#,
            r#"muster_actor_restarts_total{path="node/sessions/session-*"} 3"#,
            r#"muster_actor_refused_total{path="node"} 0"#,
            r#"muster_actor_handler_seconds_sum{path="node/sessions/session-*"} 60.051"#,
            r#"muster_actor_handler_seconds_bucket{le="0.0001",path="node/sessions/session-*"} 0"#,
            r#"muster_actor_handler_seconds_bucket{le="0.1",path="node/sessions/session-*"} 2"#,
            r#"muster_actor_handler_seconds_bucket{le="+Inf",path="node/sessions/session-*"} 3"#,
            r#"muster_actors{state="stuck"} 2"#,
            r#"muster_actors{state="backing_off"} 0"#,
        ] {
            assert!(text.lines().any(|said| said == line), "{line}\n{text}");
        }
        assert!(!text.contains(r#"muster_actor_mailbox_limit{path="node"}"#), "a supervisor has no limit\n{text}");
    }
}
