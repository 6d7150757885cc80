//! Whether the manager runtime runs: a watched value for its switch.

use std::sync::Arc;

use muster_agent::ManagerWanted;
use muster_messages::Incarnation;
use muster_messages::protocol::NodeCredentials;
use tokio::sync::watch;

/// See the module.
#[derive(Clone, Debug)]
pub struct Runs {
    pub wanted: ManagerWanted,
    /// The cluster's feature level is above this build's: final for this process.
    pub incompatible: bool,
    /// The certificate's. A manager runtime does not outlive it: its Raft data belongs to another history.
    pub incarnation: Incarnation,
}

/// The certificate says manager, and this build supports the cluster's level.
pub fn runs(
    mut wanted: watch::Receiver<ManagerWanted>,
    mut incompatible: watch::Receiver<Option<String>>,
    mut credentials: watch::Receiver<Arc<NodeCredentials>>,
) -> watch::Receiver<Runs> {
    type Sources<'a> = (
        &'a watch::Receiver<ManagerWanted>,
        &'a watch::Receiver<Option<String>>,
        &'a watch::Receiver<Arc<NodeCredentials>>,
    );
    let now = |(wanted, incompatible, credentials): Sources<'_>| Runs {
        wanted: wanted.borrow().clone(),
        incompatible: incompatible.borrow().is_some(),
        incarnation: credentials.borrow().identity.incarnation,
    };
    let (publish, runs) = watch::channel(now((&wanted, &incompatible, &credentials)));
    tokio::spawn(async move {
        loop {
            publish.send_replace(now((&wanted, &incompatible, &credentials)));
            let changed = tokio::select! {
                changed = wanted.changed() => changed,
                changed = incompatible.changed() => changed,
                changed = credentials.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    });
    runs
}
