//! Metrics of role changes and removals, as the leader sees them: what is pending and why, and how long it took to settle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{RoleView, SETTLE_BOUNDS_MS, WallTime, word};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;

use super::actors::histogram;

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct Why {
    wants: String,
    reason: String,
}
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct What {
    wants: String,
}

/// What the leader publishes.
#[derive(Debug)]
pub(super) struct Roles {
    pub view: Arc<RoleView>,
    pub now: WallTime,
}

impl Collector for Roles {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut pending: BTreeMap<Why, u64> = BTreeMap::new();
        for change in &self.view.pending {
            *pending.entry(Why { wants: word(change.wants), reason: word(change.reason) }).or_default() += 1;
        }
        let help = "Role changes and removals that are not settled, by reason";
        let mut family = encoder.encode_descriptor("role_changes_pending", help, None, MetricType::Gauge)?;
        for (why, count) in pending {
            family.encode_family(&why)?.encode_gauge(&count)?;
        }
        let mut oldest: BTreeMap<Why, WallTime> = BTreeMap::new();
        for change in &self.view.pending {
            let why = Why { wants: word(change.wants), reason: word(change.reason) };
            let began = self.view.began.get(&change.node).copied().unwrap_or(change.since);
            oldest.entry(why).and_modify(|oldest| *oldest = began.min(*oldest)).or_insert(began);
        }
        let help = "Age of the oldest of the role changes and removals that are not settled, by reason";
        let mut family = encoder.encode_descriptor("role_change_oldest_seconds", help, None, MetricType::Gauge)?;
        for (why, began) in oldest {
            let age = self.now.0.saturating_sub(began.0).max(0) as f64 / 1_000.0;
            family.encode_family(&why)?.encode_gauge(&age)?;
        }
        let help = "How long role changes and removals settled by this leader were pending";
        let mut family = encoder.encode_descriptor("role_change_settle_seconds", help, None, MetricType::Histogram)?;
        for (wants, times) in &self.view.settled {
            let what = What { wants: word(wants) };
            let bounds = SETTLE_BOUNDS_MS.map(|ms| ms as f64);
            histogram(family.encode_family(&what)?, bounds, &times.counts, Duration::from_millis(times.sum_ms))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::{NodeId, PendingView, SettleTimes, WaitReason, Wants};
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn pending_and_settled_role_changes_are_counted() {
        let pending = |n: u128, wants, reason| PendingView {
            node: NodeId::from_entropy(n),
            name: format!("n{n}").parse().unwrap(),
            wants,
            reason,
            message: String::new(),
            since: WallTime(0),
            retry_at: None,
        };
        let mut promoted = SettleTimes::default();
        for ms in [30, 70, 100_000_000] {
            promoted.add(ms);
        }
        let view = RoleView {
            pending: vec![
                pending(1, Wants::Manager, WaitReason::CatchingUp),
                pending(2, Wants::Worker, WaitReason::QuorumAtRisk),
                pending(3, Wants::Worker, WaitReason::QuorumAtRisk),
            ],
            began: [(NodeId::from_entropy(2), WallTime(3_000)), (NodeId::from_entropy(3), WallTime(1_500))].into(),
            settled: [(Wants::Manager, promoted)].into(),
            ..RoleView::default()
        };
        let mut registry = Registry::with_prefix("muster");
        registry.register_collector(Box::new(Roles { view: Arc::new(view), now: WallTime(10_000) }));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            r#"muster_role_changes_pending{wants="manager",reason="catching_up"} 1"#,
            r#"muster_role_changes_pending{wants="worker",reason="quorum_at_risk"} 2"#,
            r#"muster_role_change_oldest_seconds{wants="manager",reason="catching_up"} 10.0"#,
            r#"muster_role_change_oldest_seconds{wants="worker",reason="quorum_at_risk"} 8.5"#,
            r#"muster_role_change_settle_seconds_bucket{le="0.05",wants="manager"} 1"#,
            r#"muster_role_change_settle_seconds_bucket{le="0.1",wants="manager"} 2"#,
            r#"muster_role_change_settle_seconds_bucket{le="+Inf",wants="manager"} 3"#,
            r#"muster_role_change_settle_seconds_count{wants="manager"} 3"#,
            r#"muster_role_change_settle_seconds_sum{wants="manager"} 100000.1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }
}
