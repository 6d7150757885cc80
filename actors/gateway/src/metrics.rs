//! The gateway's metrics.

use std::collections::BTreeMap;

use muster_messages::RefusalReason;
use muster_messages::protocol::Service;
use serde::{Deserialize, Serialize};

/// A snapshot: counters since the process started, then gauges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayMetrics {
    pub accepted: u64,
    /// Handed to a service.
    pub admitted: BTreeMap<Service, u64>,
    /// Of these: on the certificate alone, because the local replica was too old.
    pub on_certificate: u64,
    /// Decisions that first waited for the local replica.
    pub caught_up: u64,
    /// Refused after the handshake, by reason.
    pub refused: BTreeMap<RefusalReason, u64>,
    /// Handshakes that failed: not TLS, a certificate of another cluster, an expired one.
    pub handshake_failed: u64,
    /// Unauthenticated connections that missed a deadline.
    pub timed_out: u64,
    /// Unauthenticated connections evicted for newer ones.
    pub evicted: u64,
    pub malformed: u64,
    /// Live connections disconnected, by reason.
    pub cut: BTreeMap<RefusalReason, u64>,
    /// Connections ended because their certificate expired.
    pub expired: u64,
    /// Failed accepts (no file descriptors, for example).
    pub accept_failed: u64,
    /// Connection tasks that panicked; each is a bug.
    pub panicked: u64,
    /// Now: not served yet.
    pub waiting: usize,
    /// Now: served without a certificate.
    pub anonymous: usize,
    /// Now: with a certificate.
    pub identified: usize,
    /// Now: by service.
    pub live: BTreeMap<Service, usize>,
}

/// The gateway's view in the tree, from which metrics are made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayView {
    #[serde(flatten)]
    pub metrics: GatewayMetrics,
    pub listens: Option<String>,
    pub services: Vec<Service>,
}

/// The reason's name on the wire, for the log.
pub(crate) fn word(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Blocked => "blocked",
        RefusalReason::Demoted => "demoted",
        RefusalReason::Removed => "removed",
        RefusalReason::NotKnownHereYet => "not_known_here_yet",
        RefusalReason::NotAManager => "not_a_manager",
        RefusalReason::Unauthenticated => "unauthenticated",
        RefusalReason::Forbidden => "forbidden",
        RefusalReason::OldIncarnation => "old_incarnation",
        RefusalReason::TooManyRequests => "too_many_requests",
        RefusalReason::Protocol => "protocol",
        RefusalReason::ShuttingDown => "shutting_down",
        RefusalReason::Duplicate => "duplicate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_snapshot_has_the_keys_of_the_contract() {
        let mut metrics = GatewayMetrics::default();
        metrics.admitted.insert(Service::Mesh, 1);
        metrics.refused.insert(RefusalReason::NotAManager, 2);
        let json = serde_json::to_value(&metrics).unwrap();
        assert_eq!((&json["admitted"]["mesh"], &json["refused"]["not_a_manager"]), (&1.into(), &2.into()));
    }

    #[test]
    fn each_reason_has_its_wire_name() {
        use RefusalReason as R;
        for reason in [
            R::Blocked,
            R::Demoted,
            R::Removed,
            R::NotKnownHereYet,
            R::NotAManager,
            R::Unauthenticated,
            R::Forbidden,
            R::OldIncarnation,
            R::TooManyRequests,
            R::Protocol,
            R::ShuttingDown,
        ] {
            assert_eq!(word(reason), reason.to_string());
        }
    }

    #[test]
    fn view_is_read_as_it_was_written() {
        let mut metrics = GatewayMetrics { evicted: 3, ..GatewayMetrics::default() };
        metrics.refused.insert(RefusalReason::TooManyRequests, 2);
        metrics.live.insert(Service::Http, 1);
        let view = GatewayView { metrics, listens: Some("127.0.0.1:1".into()), services: vec![Service::Mesh] };
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["refused"]["too_many_requests"], &json["services"][0]), (&2.into(), &"mesh".into()));
        assert_eq!(GatewayView::deserialize(json).unwrap(), view);
    }
}
