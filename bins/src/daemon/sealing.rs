//! Sealing of this node's disk, as far as its role decides it. SEAL-4: a worker's secrets are in clear, and a keyring that nothing needs is
//! deleted.

use muster_kernel::Fault;
use muster_messages::Role;
use muster_messages::protocol::NodeCredentials;
use muster_pki::IdentityStore;
use muster_raft_member::disk;
use muster_sealing::KeysStatus;

use super::config::Config;

/// Seals the identity files of a manager with the newest key. Its Raft data was opened, so that its keyring exists if it is to be sealed.
/// Failures delay it until the next start of the Raft member: a full disk does not stop a manager.
pub fn reseal_identity(store: &IdentityStore) {
    if let Err(fault) = store.reseal() {
        tracing::warn!(fault = %Fault::from(fault).0, "cannot seal the identity files with the newest key");
    }
}

/// Of a node that may have been demoted: the order is worker certificate, wiped Raft data, keyring, and a crash leaves the rest to the
/// next start. Data that was set aside needs the keyring until it is deleted. Blocks.
pub fn settle_worker(config: &Config, store: &IdentityStore, credentials: &NodeCredentials) -> Result<(), Fault> {
    let is_worker = credentials.identity.node().is_some_and(|(_, role)| role == Role::Worker);
    let status = store.keys().status();
    if !is_worker || status == KeysStatus::Absent {
        return Ok(());
    }
    if matches!(status, KeysStatus::Open { .. }) {
        store.reseal()?;
    }
    if disk::keys_in_use(&config.data_dir.join("raft"))?.is_empty() && !store.holds_sealed()? {
        store.keys().remove()?;
        tracing::info!("deleted the keyring: this node is not a manager");
    }
    Ok(())
}
