//! Metrics of electors, for Prometheus, under client-go's names where it has one.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::handle::LeaderElector;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Name {
    /// `namespace/name` of the lease.
    name: String,
}

/// Describes these electors, each with its own lease. Rebuilt for each scrape.
pub fn describe(registry: &mut Registry, electors: &[LeaderElector]) {
    let leading: Family<Name, Gauge<u64, AtomicU64>> = Family::default();
    let counters: [(&str, &str, Family<Name, Counter>); 4] = [
        ("slowpath", "Renewals that first had to read the lease", Family::default()),
        ("terms", "Terms that this process has led", Family::default()),
        ("renewals", "Confirmed renewals", Family::default()),
        ("renewal_failures", "Renewals that were not confirmed", Family::default()),
    ];
    for elector in electors {
        let name = Name { name: elector.config().lease.to_string() };
        let view = elector.status().borrow().view.clone();
        leading.get_or_create(&name).set(u64::from(elector.is_leader()));
        let values = [view.read_after_failed_renewal, view.terms, view.renewals, view.failures];
        for ((_, _, family), value) in counters.iter().zip(values) {
            family.get_or_create(&name).inc_by(value);
        }
    }
    let registry = registry.sub_registry_with_prefix("leader_election");
    registry.register("master_status", "1 while this process leads", leading);
    for (name, help, family) in counters {
        registry.register(name, help, family);
    }
}
