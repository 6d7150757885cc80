//! Sealing of this node's disk, as far as its role decides it. SEAL-4: a worker's secrets are in clear, and a keyring that nothing needs is
//! deleted.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use muster_agent::NodeMemory;
use muster_autolock::SealedFiles;
use muster_kernel::Fault;
use muster_messages::Role;
use muster_messages::protocol::NodeCredentials;
use muster_pki::{IdentityStore, LeftKeyring};
use muster_raft_member::disk::{self, DirSeal};
use muster_sealing::KeysStatus;

use super::config::Config;
use super::node::Shared;
use super::recovery;

/// Seals the identity files of a manager with the newest key. Its Raft data was opened, so that its keyring exists if it is to be sealed.
/// Failures delay it until the next start of the Raft member: a full disk does not stop a manager.
pub fn reseal_identity(store: &IdentityStore) {
    if let Err(fault) = store.reseal() {
        tracing::warn!(fault = %Fault::from(fault).0, "cannot seal the identity files with the newest key");
    }
}

/// What the keyring of this manager seals.
pub struct Files {
    store: IdentityStore,
    raft: PathBuf,
    /// The fault that was logged last.
    logged: Mutex<Option<String>>,
}

impl Files {
    pub fn of(shared: &Shared) -> Self {
        let (store, raft) = (shared.memory.store().clone(), shared.config.data_dir.join("raft"));
        Self { store, raft, logged: Mutex::default() }
    }

    /// The Raft member follows the keyring by itself. The identity files do here: a full disk may have stopped an earlier attempt.
    fn seal(&self) -> Result<bool, Fault> {
        self.store.reseal()?;
        Ok(matches!(disk::seal_of(&self.raft, self.store.keys())?, DirSeal::Sealed { newest: true, .. }))
    }
}

impl SealedFiles for Files {
    fn seal_all(&self) -> bool {
        let (sealed, fault) = match self.seal() {
            Ok(sealed) => (sealed, None),
            Err(Fault(why)) => (false, Some(why)),
        };
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = fault.as_ref().filter(|_| *logged != fault) {
            tracing::warn!(why, "cannot seal this manager's files with the newest key, or read how they are sealed");
        }
        *logged = fault;
        sealed
    }
}

/// Of a node that may have been demoted: the order is worker certificate, wiped Raft data, keyring, and a crash leaves the rest to the
/// next start. Repeated when the manager runtime stops and with each certificate: either may come first. Data that was set aside needs the
/// keyring until it is deleted; a sealed keyring is set aside with it, so that a promoted worker gets another one. Blocks.
pub fn settle_worker(config: &Config, memory: &NodeMemory, credentials: &NodeCredentials) -> Result<(), Fault> {
    let store = memory.store();
    let is_worker = credentials.identity.node().is_some_and(|(_, role)| role == Role::Worker);
    let raft = config.data_dir.join("raft");
    match store.keys().status() {
        _ if !is_worker => return Ok(()),
        KeysStatus::Absent => return Ok(()),
        KeysStatus::Locked { .. } => {}
        KeysStatus::Open { .. } => store.reseal()?,
    }
    // The member's data goes first: this is repeated when the manager runtime has stopped. A start has set it aside, unless the disk
    // refused that.
    if disk::seal_of(&raft, store.keys())? != DirSeal::Absent {
        return Ok(());
    }
    let in_use = !disk::keys_in_use(&raft)?.is_empty();
    match store.leave_keyring(in_use)? {
        LeftKeyring::Kept => {}
        LeftKeyring::Removed => tracing::info!("deleted the keyring: this node is not a manager"),
        LeftKeyring::SetAside => {
            tracing::warn!("set the keyring aside in the identity folder: only Raft data that was set aside needs it");
        }
    }
    Ok(())
}

/// Sets aside the Raft data of a worker in which no member runs: the process was killed between the worker's certificate and the wipe.
/// RECOVER-11: it is deleted later. Blocks.
pub fn leave_former_data(config: &Config, memory: &NodeMemory) -> Result<(), Fault> {
    let raft = config.data_dir.join("raft");
    if disk::is_marked_for_wipe(&raft) {
        disk::wipe(&raft)?;
    }
    // A folder without data must not replace data that was set aside.
    match disk::seal_of(&raft, memory.store().keys())? {
        DirSeal::Absent => Ok(()),
        DirSeal::Clear | DirSeal::Sealed { .. } => {
            memory.update(|node| node.held_member_id = None)?;
            recovery::set_aside(&config.data_dir, recovery::FENCED)?;
            Ok(disk::wipe(&raft)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_kernel::Clock;
    use muster_messages::{RaftId, Tables};
    use muster_raft_member::recovery::replace;
    use muster_sealing::UnlockKey;

    use muster_sealing::SET_ASIDE;

    use super::*;
    use crate::daemon::config::{Args, load};

    /// SEAL-4. A demoted manager was killed after its worker certificate was written, and before its Raft data was wiped.
    #[test]
    fn demoted_manager_killed_before_the_wipe_still_starts() {
        let dir = tempfile::tempdir().unwrap();
        let (data, raft) = (dir.path(), dir.path().join("raft"));
        let args = Args::of(["musterd", "--name", "n1", "--data-dir", data.to_str().unwrap()]).unwrap();
        let config = load(args).unwrap();
        let store = IdentityStore::open(data).unwrap();
        store.keys().ensure().unwrap();
        store.keys().protect(3, Some(&UnlockKey::new())).unwrap();
        replace(&raft, store.keys(), RaftId(1), 1, Tables::default()).unwrap();
        let worker = worker_credentials();
        store.save_credentials(&worker).unwrap();
        drop(store);

        let memory = NodeMemory::new(IdentityStore::open(data).unwrap());
        memory.update(|node| node.held_member_id = Some(RaftId(1))).unwrap();
        for _again in 0..2 {
            leave_former_data(&config, &memory).unwrap();
            settle_worker(&config, &memory, &worker).unwrap();
            assert!(!raft.exists() && data.join(recovery::FENCED).join("seal.json").exists(), "set aside, not deleted");
            assert_eq!(disk::state(&raft, memory.store().keys()), disk::DirState::Absent);
            assert_eq!(memory.load().unwrap().held_member_id, None);
            assert_eq!(memory.store().keys().status(), KeysStatus::Absent);
            assert!(data.join("identity").join(SET_ASIDE).exists());
        }
        memory.store().keys().ensure().expect("it can be promoted again");
    }

    /// RECOVER-11. The same with a keyring that opens without a key, and without one, as earlier builds left it.
    #[test]
    fn data_of_a_demoted_manager_is_set_aside_at_its_start() {
        for keyring in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let (data, raft) = (dir.path(), dir.path().join("raft"));
            let args = Args::of(["musterd", "--name", "n1", "--data-dir", data.to_str().unwrap()]).unwrap();
            let config = load(args).unwrap();
            let memory = NodeMemory::new(IdentityStore::open(data).unwrap());
            replace(&raft, memory.store().keys(), RaftId(1), 1, Tables::default()).unwrap();
            if !keyring {
                std::fs::remove_file(raft.join("seal.json")).unwrap();
                memory.store().keys().remove().unwrap();
            }
            memory.update(|node| node.held_member_id = Some(RaftId(1))).unwrap();
            let worker = worker_credentials();
            memory.store().save_credentials(&worker).unwrap();
            for _again in 0..2 {
                leave_former_data(&config, &memory).unwrap();
                settle_worker(&config, &memory, &worker).unwrap();
                assert!(!raft.exists() && data.join(recovery::FENCED).join("log").exists());
                assert_eq!(memory.load().unwrap().held_member_id, None);
            }
            // With the data that it opens.
            assert_eq!(memory.store().keys().status() == KeysStatus::Absent, !keyring);
        }
    }

    fn worker_credentials() -> NodeCredentials {
        use muster_messages::{ClusterId, FIRST_INCARNATION, NodeId, Revision};
        use muster_pki::{CsrKey, Issuer, NodeProfile, Root, make_csr, new_key};
        let cluster = ClusterId::from_entropy(7);
        let root = Root::create(cluster, Clock.wall()).unwrap();
        let key = new_key();
        let profile = NodeProfile {
            cluster,
            node: NodeId::from_entropy(1),
            role: Role::Worker,
            granted: Some(Revision(1)),
            incarnation: FIRST_INCARNATION,
            ips: vec![],
            lifetime: std::time::Duration::from_secs(86_400),
            now: Clock.wall(),
        };
        let csr = CsrKey::parse(&make_csr(&key).unwrap()).unwrap();
        let issuer = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap();
        let signed = issuer.sign_node(&profile, &csr).unwrap();
        muster_pki::credentials(key, signed.cert_pem, root.cert_pem).unwrap()
    }
}
