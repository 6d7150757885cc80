//! The watched value for the actor that serves workloads.

use std::sync::Arc;

use muster_kernel::Slot;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{WorkloadEntry, WorkloadView};
use muster_pki::{BadBundle, Bundle};
use tokio::sync::watch;
use tracing::error;

use crate::core::Stamp;

/// Shared by all incarnations of the agent: one that starts again takes nothing away from workloads.
#[derive(Clone)]
pub(crate) struct PublishedWorkloads {
    view: Arc<watch::Sender<WorkloadView>>,
    /// How new the entries are, or newer. AGENT-14 holds for the next incarnation, too.
    stamp: Slot<Stamp>,
}

impl PublishedWorkloads {
    pub fn new(credentials: &NodeCredentials) -> Self {
        let view = WorkloadView {
            cluster: credentials.identity.cluster,
            entries: Arc::default(),
            bundle: Arc::default(),
            generation: 0,
        };
        let published = Self { view: Arc::new(watch::Sender::new(view)), stamp: Slot::new() };
        published.trust(credentials);
        published
    }

    pub fn stamp(&self) -> Stamp {
        self.stamp.get().unwrap_or_default()
    }

    pub fn subscribe(&self) -> watch::Receiver<WorkloadView> {
        self.view.subscribe()
    }

    /// The workloads that apply to this node, all of them.
    pub fn replace(&self, entries: Vec<WorkloadEntry>, stamp: Stamp) {
        self.stamp.set(stamp); // first: after a crash in between, the host sends the same list again
        self.view.send_if_modified(|view| {
            let is_news = view.generation == 0 || *view.entries != entries;
            if is_news {
                view.entries = Arc::new(entries);
                view.generation += 1;
            }
            is_news
        });
    }

    /// The roots that this node trusts now. A bundle that cannot be read takes no root away from programs.
    pub fn trust(&self, credentials: &NodeCredentials) {
        let bundle = match bundle(credentials) {
            Ok(bundle) => bundle,
            Err(error) => {
                return error!(%error, "the bundle of roots cannot be read; workloads keep the one before");
            }
        };
        self.view.send_if_modified(|view| {
            let is_news = *view.bundle != bundle;
            if is_news {
                view.bundle = Arc::new(bundle);
                // 0: nothing was received from the cluster yet.
                view.generation += u64::from(view.generation > 0);
            }
            is_news
        });
    }
}

fn bundle(credentials: &NodeCredentials) -> Result<Vec<String>, BadBundle> {
    let bundle = Bundle::from_pem(&credentials.root_pem)?;
    Ok(bundle.ids().filter_map(|id| bundle.root_pem(id)).collect())
}

#[cfg(test)]
mod tests {
    use muster_messages::{ClusterId, Incarnation, NodeId, Role, WorkloadSelector};
    use muster_pki::{CsrKey, Issuer, NODE_LIFETIME, NodeProfile, Root};

    use super::*;

    fn credentials(n: u128) -> NodeCredentials {
        let (cluster, now) = (ClusterId::from_entropy(n), muster_kernel::Clock.wall());
        let root = Root::create(cluster, now).unwrap();
        let key = muster_pki::new_key();
        let profile = NodeProfile {
            cluster,
            node: NodeId::from_entropy(n),
            role: Role::Worker,
            granted: None,
            incarnation: Incarnation(1),
            ips: vec![],
            lifetime: NODE_LIFETIME,
            now,
        };
        let csr = CsrKey::parse(&muster_pki::make_csr(&key).unwrap()).unwrap();
        let issuer = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap();
        let cert_pem = issuer.sign_node(&profile, &csr).unwrap().cert_pem;
        muster_pki::credentials(key, cert_pem, root.cert_pem).unwrap()
    }

    /// Generation, entries and roots.
    fn seen(watch: &mut watch::Receiver<WorkloadView>) -> (u64, usize, usize) {
        let view = watch.borrow_and_update();
        (view.generation, view.entries.len(), view.bundle.len())
    }

    #[test]
    fn workload_views_change_with_entries_and_roots_only() {
        let (own, other) = (credentials(1), credentials(2));
        let published = PublishedWorkloads::new(&own);
        let mut watch = published.subscribe();
        let entry = WorkloadEntry::new("a/b".parse().unwrap(), [WorkloadSelector::UnixUid(1)]);
        published.trust(&own);
        assert!(!watch.has_changed().unwrap());
        published.replace(Vec::new(), Stamp::default());
        assert_eq!(seen(&mut watch), (1, 0, 1), "an empty list is known to be empty");
        published.replace(Vec::new(), Stamp::default());
        assert!(!watch.has_changed().unwrap());
        published.replace(vec![entry], Stamp::default());
        assert_eq!(seen(&mut watch), (2, 1, 1));
        let both = NodeCredentials { root_pem: format!("{}{}", own.root_pem, other.root_pem), ..own.clone() };
        published.trust(&both);
        assert_eq!(seen(&mut watch), (3, 1, 2));
        published.trust(&NodeCredentials { root_pem: "-----BEGIN CERTIFICATE-----\n".to_owned(), ..own });
        assert!(!watch.has_changed().unwrap(), "a bundle that cannot be read takes nothing away");
    }
}
