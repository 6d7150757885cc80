//! Finds the daemon to call: the one named by the flags; else the first of `./.muster/*/muster.sock` that answers, managers
//! first; else `/run/muster/muster.sock`.
//!
//! A daemon can lie in its answers: a token that it shows may belong to another cluster. A socket in the current folder is
//! therefore used only if no user except the caller and root could have put it there, and if one of the two serves it. Root
//! decides who owns the folder of the installed daemon. A socket named by a flag or `MUSTER_SOCKET` is used without checks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use muster_client::{Client, Connection, Failure, Identity, Outcome, Target};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, LockedView, RequestId, Role, StatusView};
use muster_pki::Bundle;
use muster_pki::private::{NotPrivate, check_folder, check_owner, check_surroundings};
use serde::Deserialize;

use super::args::Global;

/// The socket of an installed daemon.
pub const SYSTEM_SOCKET: &str = "/run/muster/muster.sock";

/// How long a dev node may take to report its status: local sockets answer in a millisecond, on a busy machine in a second, a
/// frozen daemon never.
const SOCKET_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How much longer the other sockets may take after a manager has answered, and after only others have: most requests need a
/// manager.
const EXTRA_ANSWER_TIMEOUT: Duration = Duration::from_millis(100);
const MANAGER_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How suitable a daemon is; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ManagerWithLeader,
    Manager,
    Worker,
    /// Answers, but was removed, is blocked, locked or reports another problem.
    Troubled,
}

/// The client selected by the flags.
pub async fn client(global: &Global) -> Outcome<Client> {
    let socket = match &global.socket {
        Some(path) => Ok(path.clone()),
        None => socket(Path::new(".")).await,
    };
    let Some(file) = &global.identity else {
        return Ok(Client::to_socket(socket?, global.timeout()));
    };
    let identity = Identity::read(file)?;
    let managers = known_managers(socket.ok(), &identity, global.timeout()).await;
    Ok(Client::to(Target::Managers { dialer: Box::new(identity.dialer()?), managers }, global.timeout()))
}

/// The managers' addresses from a daemon on this machine, else from the identity file.
async fn known_managers(socket: Option<PathBuf>, identity: &Identity, timeout: Duration) -> Vec<String> {
    #[derive(Deserialize)]
    struct Contact {
        managers: Vec<String>,
        root_pem: String,
    }
    let Some(socket) = socket else {
        return identity.managers.clone();
    };
    match Client::to_socket(socket, timeout).ask::<Contact>(Request::Contact).await {
        // Not from a daemon of another cluster, for example a dev cluster in this folder.
        Ok(contact) if share_a_root(&contact.root_pem, &identity.root_pem) && !contact.managers.is_empty() => {
            contact.managers
        }
        _ => identity.managers.clone(),
    }
}

/// Whether two bundles are of one cluster. An identity keeps the roots of its time: a rotation may have replaced some of them.
fn share_a_root(one: &str, other: &str) -> bool {
    let (Ok(one), Ok(other)) = (Bundle::from_pem(one), Bundle::from_pem(other)) else { return false };
    one.ids().any(|id| other.ids().any(|known| known == id))
}

/// The socket to use, searched below `folder`.
pub async fn socket(folder: &Path) -> Outcome<PathBuf> {
    let (candidates, untrusted) = trusted(folder, dev_sockets(&folder.join(".muster")));
    match best_of(&candidates, rank).await {
        Some(path) => Ok(path.clone()),
        // No fallback to another daemon: the caller may mistake it for the one of this folder.
        None if !untrusted.is_empty() => Err(not_trusted(&untrusted[0])),
        None if Path::new(SYSTEM_SOCKET).exists() => Ok(SYSTEM_SOCKET.into()),
        None => Err(none_found(&candidates)),
    }
}

/// The sockets of a dev cluster's nodes, ordered by name.
pub fn dev_sockets(dir: &Path) -> Vec<PathBuf> {
    let mut sockets: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("muster.sock")))
        .filter(|path| path.exists())
        .collect();
    sockets.sort();
    sockets
}

/// The sockets that no other user could have put there, and why the others are not trusted.
fn trusted(folder: &Path, found: Vec<PathBuf>) -> (Vec<PathBuf>, Vec<NotPrivate>) {
    if found.is_empty() {
        return (found, Vec::new());
    }
    let all = check_surroundings(folder).and_then(|()| check_folder(&folder.join(".muster")));
    if let Err(why) = all {
        return (Vec::new(), vec![why]);
    }
    let (mut sockets, mut refused) = (Vec::new(), Vec::new());
    for socket in found {
        match socket.parent().map_or(Ok(()), check_folder).and_then(|()| check_owner(&socket)) {
            Ok(()) => sockets.push(socket),
            Err(why) => refused.push(why),
        }
    }
    (sockets, refused)
}

/// The most suitable of the daemons that answer in time.
async fn best_of(candidates: &[PathBuf], rank: impl AsyncFn(&Path) -> Option<Rank>) -> Option<&PathBuf> {
    let rank = &rank;
    let mut asked: FuturesUnordered<_> =
        candidates.iter().map(|path| async move { (rank(path).await, path) }).collect();
    let mut best: Option<(Rank, &PathBuf)> = None;
    let deadline = tokio::time::sleep(SOCKET_ANSWER_TIMEOUT);
    tokio::pin!(deadline);
    let mut waiting: BTreeSet<&PathBuf> = candidates.iter().collect();
    loop {
        tokio::select! {
            answer = asked.next() => match answer {
                Some((rank, path)) => {
                    waiting.remove(path);
                    if let Some(rank) = rank {
                        let was = best.map(|(rank, _)| extra_time(rank));
                        let better = best.map_or((rank, path), |b| b.min((rank, path)));
                        let extra = extra_time(better.0);
                        if was.is_none_or(|was| extra < was) {
                            deadline.as_mut().reset(tokio::time::Instant::now() + extra);
                        }
                        best = Some(better);
                    }
                }
                None => break,
            },
            () = &mut deadline => break,
        }
        // The first by name among the best, so that successive commands use the same node.
        if let Some((Rank::ManagerWithLeader, path)) = best
            && waiting.first().is_none_or(|first| *first > path)
        {
            break;
        }
    }
    best.map(|(_, path)| path)
}

/// How long to wait for a better answer than this one.
fn extra_time(best: Rank) -> Duration {
    match best {
        Rank::ManagerWithLeader | Rank::Manager => EXTRA_ANSWER_TIMEOUT,
        Rank::Worker | Rank::Troubled => MANAGER_ANSWER_TIMEOUT,
    }
}

async fn rank(path: &Path) -> Option<Rank> {
    let mut connection = Connection::to_discovered_socket(path).await.ok()?;
    let request = Request::Status { fresh: false };
    let text = connection
        .call(request, RequestId::fresh(muster_kernel::Clock.wall(), rand::random()), SOCKET_ANSWER_TIMEOUT)
        .await
        .ok()?;
    if serde_json::from_str::<LockedView>(&text).is_ok() {
        return Some(Rank::Troubled);
    }
    let status: StatusView = serde_json::from_str(&text).ok()?;
    Some(match (status.this.role, status.raft.leader) {
        _ if status.this.trouble.is_some() => Rank::Troubled,
        (Role::Manager, Some(_)) => Rank::ManagerWithLeader,
        (Role::Manager, None) => Rank::Manager,
        (Role::Worker, _) => Rank::Worker,
    })
}

fn not_trusted(why: &NotPrivate) -> Failure {
    let message = format!("{why}: the sockets there are not used; name a socket that you trust with --socket");
    Failure::refused("not_private", message)
}

fn none_found(dead: &[PathBuf]) -> Failure {
    let seen = match dead {
        [] => "no socket under ./.muster".to_owned(),
        [one] => format!("{} does not answer", one.display()),
        many => format!("none of the {} sockets under ./.muster answers", many.len()),
    };
    Failure::new(
        ErrorCode::Unreachable,
        format!(
            "no muster daemon found: {seen}, and {SYSTEM_SOCKET} does not exist; start a cluster with `muster dev up`, or name a daemon's socket with --socket"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use Rank::{Manager, ManagerWithLeader, Troubled, Worker};
    use tokio::time::Instant;

    /// Longer than any wait.
    const NEVER: u64 = 3_600_000;

    /// The number of the daemon that is chosen, and after how many ms, if `n1`, `n2` and so on answer after so many ms.
    async fn choice(answers: &[(u64, Rank)]) -> (Option<usize>, u128) {
        let candidates: Vec<PathBuf> = (1..=answers.len()).map(|n| format!("n{n}").into()).collect();
        let number = |path: &Path| candidates.iter().position(|candidate| candidate == path).expect("a candidate");
        let rank = async |path: &Path| {
            let (after, rank) = answers[number(path)];
            tokio::time::sleep(Duration::from_millis(after)).await;
            Some(rank)
        };
        let begun = Instant::now();
        let best = best_of(&candidates, rank).await;
        (best.map(|path| 1 + number(path)), begun.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn others_wait_a_second_for_a_manager() {
        for other in [Worker, Troubled] {
            assert_eq!(choice(&[(10, other), (1009, ManagerWithLeader)]).await, (Some(2), 1009), "in time");
            assert_eq!(choice(&[(10, other), (1011, ManagerWithLeader)]).await, (Some(1), 1010), "too late");
            // A second answer of that kind does not prolong it.
            assert_eq!(choice(&[(NEVER, Manager), (10, other), (900, Worker)]).await.1, 1010);
        }
        assert_eq!(choice(&[(10, Troubled), (900, Worker), (NEVER, Manager)]).await, (Some(2), 1010));
        // It begins with the answer, however late that is.
        assert_eq!(choice(&[(4900, Worker), (5800, ManagerWithLeader)]).await, (Some(2), 5800));
        assert_eq!(choice(&[(4900, Worker), (NEVER, Manager)]).await, (Some(1), 5900));
    }

    #[tokio::test(start_paused = true)]
    async fn manager_waits_a_tenth_of_a_second_for_a_better_one() {
        for better in [[(109, Manager), (10, Manager)], [(109, ManagerWithLeader), (10, ManagerWithLeader)]] {
            assert_eq!(choice(&better).await, (Some(1), 109), "of equal ones the first by name");
        }
        assert_eq!(choice(&[(10, Manager), (109, ManagerWithLeader)]).await, (Some(2), 109));
        assert_eq!(choice(&[(10, Manager), (111, ManagerWithLeader)]).await, (Some(1), 110));
        // Also if the wait for a manager would be longer. A worker's answer does not prolong it.
        assert_eq!(choice(&[(NEVER, Manager), (10, Worker), (500, Manager), (590, Worker)]).await, (Some(3), 600));
        // No earlier one may still answer: no wait.
        assert_eq!(choice(&[(10, ManagerWithLeader), (NEVER, ManagerWithLeader)]).await, (Some(1), 10));
    }

    #[tokio::test(start_paused = true)]
    async fn silent_daemons_are_given_up_after_five_seconds() {
        assert_eq!(choice(&[(NEVER, Manager), (5001, Worker)]).await, (None, 5000));
        assert_eq!(choice(&[]).await, (None, 0));
        let dead = ["n1".into(), "n2".into()];
        let begun = Instant::now();
        assert_eq!(best_of(&dead, async |_: &Path| None).await, None);
        assert_eq!(begun.elapsed(), Duration::ZERO, "all have failed");
    }

    #[tokio::test]
    async fn failure_without_daemon_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let failure = none_found(&dev_sockets(folder.path()));
        assert_eq!(failure.exit, 5);
        assert!(failure.message.contains("muster dev up"), "{failure}");
    }

    #[test]
    fn identity_from_before_a_rotation_is_of_the_cluster() {
        let root = |n: u128| {
            let at = muster_messages::WallTime::from_unix_secs(1_700_000_000);
            muster_pki::Root::create(muster_messages::ClusterId::from_entropy(n), at).unwrap().cert_pem
        };
        let (old, new, other) = (root(1), root(1), root(2));
        assert!(share_a_root(&format!("{new}{old}"), &old) && share_a_root(&old, old.trim_end()));
        assert!(!share_a_root(&format!("{new}{old}"), &other) && !share_a_root(&old, "nonsense"));
    }

    #[test]
    fn dev_sockets_are_ordered_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["n2", "n1", "n3"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        for name in ["n2", "n1"] {
            std::fs::write(folder.path().join(name).join("muster.sock"), "").unwrap();
        }
        let found = dev_sockets(folder.path());
        let names: Vec<_> = found.iter().map(|p| p.parent().unwrap().file_name().unwrap()).collect();
        assert_eq!(names, ["n1", "n2"]);
    }

    #[test]
    fn sockets_that_another_user_could_create_are_not_used() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = tempfile::tempdir().unwrap();
        let muster = folder.path().join(".muster");
        for name in ["n1", "n2"] {
            std::fs::create_dir_all(muster.join(name)).unwrap();
            std::fs::write(muster.join(name).join("muster.sock"), "").unwrap();
        }
        let used = || {
            let (used, why) = trusted(folder.path(), dev_sockets(&muster));
            (used.len(), why.len())
        };
        assert_eq!(used(), (2, 0));
        let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        for (path, left) in [(muster.join("n1"), (1, 1)), (muster.clone(), (0, 1)), (folder.path().to_owned(), (0, 1))]
        {
            set(&path, 0o777);
            assert_eq!(used(), left, "{}", path.display());
            set(&path, 0o700);
        }
        let given_away = |path: &Path| chown(path, Some(65534), None).is_ok(); // only root can
        if given_away(&muster.join("n2/muster.sock")) {
            assert_eq!(used(), (1, 1));
            assert!(given_away(&muster));
            assert_eq!(used(), (0, 1));
        }
    }
}
