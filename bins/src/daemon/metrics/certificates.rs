//! When certificates expire: points in time, so that the time of a scrape does not matter.

use muster_messages::WallTime;
use prometheus_client::registry::Registry;

use super::timestamp;

/// Of this node's own certificate.
pub(super) fn register(registry: &mut Registry, chain_pem: &str) {
    let Ok((from, until)) = muster_pki::validity_of_chain(chain_pem) else { return };
    let help = "When this node's certificate expires, since the Unix epoch; it is renewed long before";
    timestamp(registry, "certificate_not_after_timestamp_seconds", help, until);
    let lifetime = WallTime(until.0.saturating_sub(from.0));
    timestamp(registry, "certificate_lifetime_seconds", "Validity of this node's certificate", lifetime);
}

/// Of the root that signs certificates.
pub(super) fn register_root(registry: &mut Registry, root_pem: &str) {
    let Ok(until) = muster_pki::not_after_of_pem(root_pem) else { return };
    let help = "When the root that signs certificates expires, since the Unix epoch";
    timestamp(registry, "root_not_after_timestamp_seconds", help, until);
}
