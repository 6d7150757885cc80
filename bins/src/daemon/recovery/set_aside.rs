//! Raft data that this node must no longer use: kept for a while, in case recovery chose the wrong manager's data.
//!
//! Invariants  RECOVER-11  a worker does not keep the root key: Raft data set aside is deleted after a time.
//! Not at once: the data of an older incarnation may be the better one (docs/recovery.md). A manager keeps it: its own data holds
//! the root key as well.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_kernel::Fault;
use muster_messages::Role;
use muster_messages::protocol::NodeCredentials;
use muster_raft_member::disk;
use tokio::sync::watch;

use crate::daemon::boot::say;

/// Folder for data of an older incarnation.
pub const FENCED: &str = "raft.fenced";
/// Folder for unreadable data.
pub const DAMAGED: &str = "raft.damaged";

/// File in the folder whose modification time says when the folder was set aside.
const MARK_FILE: &str = "set-aside";
/// Interval of checking for expired folders. They are kept for days.
const CHECK_INTERVAL: Duration = Duration::from_secs(3_600);

/// Moves the Raft data away from the empty state that follows. Of several losses only the last is kept.
pub fn set_aside(data_dir: &Path, name: &str) -> io::Result<()> {
    let (from, to) = (data_dir.join("raft"), data_dir.join(name));
    if !from.exists() {
        return Ok(());
    }
    if to.exists() {
        std::fs::remove_dir_all(&to)?;
    }
    std::fs::rename(&from, &to)?;
    mark(&to)?;
    say(format_args!(
        "Raft data moved to {}; it holds the cluster's root key and is deleted later unless this node is a manager",
        to.display()
    ));
    Ok(())
}

fn mark(folder: &Path) -> io::Result<()> {
    muster_pki::private::open_own_file(&folder.join(MARK_FILE)).map(drop)
}

/// Deletes what was set aside at least that long ago. A folder without a mark, from an earlier build, counts from now on.
fn delete_expired(data_dir: &Path, keep_time: Duration, now: SystemTime) -> io::Result<()> {
    for folder in [FENCED, DAMAGED].map(|name| data_dir.join(name)) {
        if !folder.exists() {
            continue;
        }
        let since = match std::fs::metadata(folder.join(MARK_FILE)) {
            Ok(found) => found.modified()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                mark(&folder)?;
                now
            }
            Err(error) => return Err(error),
        };
        if now.duration_since(since).unwrap_or_default() >= keep_time {
            std::fs::remove_dir_all(&folder)?;
            tracing::info!(folder = %folder.display(), "deleted Raft data that was set aside: this node is not a manager");
        }
    }
    let identity = data_dir.join(muster_pki::IDENTITY_FOLDER);
    // By the same rule by which it was kept.
    if identity.exists() && disk::keys_in_use(&data_dir.join("raft")).map_err(io::Error::other)?.is_empty() {
        muster_sealing::delete_set_aside(&identity)?;
    }
    Ok(())
}

/// What else a worker clears up. Blocks.
pub type Settle = Arc<dyn Fn(&NodeCredentials) -> Result<(), Fault> + Send + Sync>;

/// RECOVER-11. Checks periodically, and with each certificate, for as long as this process runs.
pub async fn delete_expired_periodically(
    data_dir: std::path::PathBuf,
    keep_time: Duration,
    mut credentials: watch::Receiver<Arc<NodeCredentials>>,
    settle: Settle,
) {
    loop {
        let current = credentials.borrow_and_update().clone();
        if current.identity.node().is_some_and(|(_, role)| role == Role::Worker) {
            let (folder, settle) = (data_dir.clone(), Arc::clone(&settle));
            let cleared = tokio::task::spawn_blocking(move || {
                if let Err(error) = delete_expired(&folder, keep_time, SystemTime::now()) {
                    tracing::warn!(%error, "Raft data that was set aside could not be deleted; it holds the root key");
                }
                if let Err(fault) = settle(&current) {
                    tracing::warn!(%fault, "cannot clear away keys of this node's time as a manager");
                }
            });
            let _panicked = cleared.await;
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            changed = credentials.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn set_aside_data_is_kept_for_its_time_only() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("raft")).unwrap();
        std::fs::write(dir.path().join("raft/snapshot"), "root key").unwrap();
        set_aside(dir.path(), FENCED).unwrap();
        let fenced = dir.path().join(FENCED);
        let now = std::fs::metadata(fenced.join(MARK_FILE)).unwrap().modified().unwrap();
        delete_expired(dir.path(), 3 * DAY, now + 2 * DAY).unwrap();
        assert!(fenced.join("snapshot").exists(), "it may be the better data");
        delete_expired(dir.path(), 3 * DAY, now - DAY).unwrap();
        assert!(fenced.exists(), "a clock that was set back");
        delete_expired(dir.path(), 3 * DAY, now + 3 * DAY).unwrap();
        assert!(!fenced.exists());
    }

    #[test]
    fn unmarked_set_aside_data_counts_from_the_first_check() {
        let dir = tempfile::tempdir().unwrap();
        let damaged = dir.path().join(DAMAGED);
        std::fs::create_dir(&damaged).unwrap();
        delete_expired(dir.path(), DAY, SystemTime::now()).unwrap();
        assert!(damaged.join(MARK_FILE).exists());
        delete_expired(dir.path(), DAY, SystemTime::now() + 2 * DAY).unwrap();
        assert!(!damaged.exists());
    }

    #[tokio::test]
    async fn worker_deletes_set_aside_data_and_manager_does_not() {
        use muster_kernel::Clock;
        use muster_pki::IdentityStore;
        let dir = tempfile::tempdir().unwrap();
        let store = IdentityStore::open(dir.path()).unwrap();
        let founding = store.begin_founding("c".parse().unwrap(), Clock.wall()).unwrap();
        let lifetime = Duration::from_secs(86_400);
        let manager = store.founder_credentials(&founding, vec![], lifetime, Clock.wall()).unwrap();
        let fenced = dir.path().join(FENCED);
        std::fs::create_dir(&fenced).unwrap();
        let mut worker = manager.clone();
        let muster_messages::Subject::Node { role, .. } = &mut worker.identity.subject else { panic!("a node's") };
        *role = Role::Worker;
        let (tell, receiver) = watch::channel(Arc::new(manager));
        let settled = Arc::new(watch::Sender::new(false));
        let (data, of_worker) = (dir.path().to_owned(), Arc::clone(&settled));
        let settle = move |_: &NodeCredentials| {
            of_worker.send_replace(true);
            Ok(())
        };
        let former_keyring = dir.path().join("identity").join(muster_sealing::SET_ASIDE);
        std::fs::write(&former_keyring, "").unwrap();
        let checker = tokio::spawn(delete_expired_periodically(data, Duration::ZERO, receiver, Arc::new(settle)));
        tokio::task::yield_now().await;
        assert!(fenced.exists() && !*settled.borrow());
        tell.send_replace(Arc::new(worker));
        settled.subscribe().wait_for(|settled| *settled).await.unwrap();
        assert!(!fenced.exists() && !former_keyring.exists());
        checker.abort();
    }
}
