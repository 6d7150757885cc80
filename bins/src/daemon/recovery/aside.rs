//! Raft data that this node must not use any more: kept for a while, in case the wrong copy was recovered.
//!
//! Keeps  RECOVER-11  a worker does not keep the root key: Raft data set aside is deleted after a time.
//! Why not at once: the copy of an older incarnation may be the better one (docs/recovery.md). A manager keeps it: the root key
//! is in its own data as well.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_messages::Role;
use muster_messages::protocol::NodeCredentials;
use tokio::sync::watch;

use crate::daemon::boot::say;

/// Where data of an older incarnation go.
pub const FENCED: &str = "raft.fenced";
/// Where data go that cannot be read.
pub const DAMAGED: &str = "raft.damaged";

/// Made in the folder when it is set aside. Its time is when that was.
const MARK: &str = "set-aside";
/// Between two looks for what can go. The time for which it is kept is days.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// Moves the Raft data out of the way of the empty copy that follows. Of several losses the last one is kept.
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
        "the Raft data that was here was moved to {}; it holds the cluster's root key, and is deleted in time unless this node is a manager",
        to.display()
    ));
    Ok(())
}

fn mark(folder: &Path) -> io::Result<()> {
    muster_pki::private::open_own_file(&folder.join(MARK)).map(drop)
}

/// Deletes what was set aside longer ago than that. What an earlier build has left without a mark counts from now on.
fn forget(data_dir: &Path, kept_for: Duration, now: SystemTime) -> io::Result<()> {
    for folder in [FENCED, DAMAGED].map(|name| data_dir.join(name)) {
        if !folder.exists() {
            continue;
        }
        let since = match std::fs::metadata(folder.join(MARK)) {
            Ok(found) => found.modified()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                mark(&folder)?;
                now
            }
            Err(error) => return Err(error),
        };
        if now.duration_since(since).unwrap_or_default() >= kept_for {
            std::fs::remove_dir_all(&folder)?;
            tracing::info!(folder = %folder.display(), "deleted Raft data that was set aside: this node is not a manager");
        }
    }
    Ok(())
}

/// RECOVER-11. Looks now and then, as long as this process runs.
pub async fn forget_in_time(
    data_dir: std::path::PathBuf,
    kept_for: Duration,
    mut credentials: watch::Receiver<Arc<NodeCredentials>>,
) {
    loop {
        let role = credentials.borrow_and_update().identity.node().map(|(_, role)| role);
        if role == Some(Role::Worker) {
            let folder = data_dir.clone();
            let forgotten = tokio::task::spawn_blocking(move || forget(&folder, kept_for, SystemTime::now())).await;
            if let Ok(Err(error)) = forgotten {
                tracing::warn!(%error, "Raft data that was set aside could not be deleted; it holds the root key");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            changed = credentials.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn what_was_set_aside_is_kept_for_its_time_and_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("raft")).unwrap();
        std::fs::write(dir.path().join("raft/snapshot"), "root key").unwrap();
        set_aside(dir.path(), FENCED).unwrap();
        let fenced = dir.path().join(FENCED);
        let now = std::fs::metadata(fenced.join(MARK)).unwrap().modified().unwrap();
        forget(dir.path(), 3 * DAY, now + 2 * DAY).unwrap();
        assert!(fenced.join("snapshot").exists(), "it may be the better copy");
        forget(dir.path(), 3 * DAY, now - DAY).unwrap();
        assert!(fenced.exists(), "a clock that was set back");
        forget(dir.path(), 3 * DAY, now + 3 * DAY).unwrap();
        assert!(!fenced.exists());
    }

    #[test]
    fn what_an_earlier_build_set_aside_counts_from_the_first_look() {
        let dir = tempfile::tempdir().unwrap();
        let damaged = dir.path().join(DAMAGED);
        std::fs::create_dir(&damaged).unwrap();
        forget(dir.path(), DAY, SystemTime::now()).unwrap();
        assert!(damaged.join(MARK).exists());
        forget(dir.path(), DAY, SystemTime::now() + 2 * DAY).unwrap();
        assert!(!damaged.exists());
    }

    #[tokio::test]
    async fn a_worker_deletes_what_it_set_aside_and_a_manager_does_not() {
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
        let (tell, told) = watch::channel(Arc::new(manager));
        let looking = tokio::spawn(forget_in_time(dir.path().to_owned(), Duration::ZERO, told));
        tokio::task::yield_now().await;
        assert!(fenced.exists());
        tell.send_replace(Arc::new(worker));
        while fenced.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        looking.abort();
    }
}
