//! Which daemon to ask: what the flags name; else of `./.muster/*/muster.sock` the first that answers, managers first,
//! else `/run/muster/muster.sock`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use muster_client::{Client, Connection, Failure, Identity, Outcome, Target};
use muster_messages::wire::Request;
use muster_messages::{ErrorCode, RequestId, Role, StatusView};
use serde::Deserialize;

use super::args::Global;

/// Where an installed daemon serves.
pub const SYSTEM_SOCKET: &str = "/run/muster/muster.sock";

/// How long a dev node may take to say who it is: local sockets answer in a millisecond, a frozen daemon never does.
const PATIENCE: Duration = Duration::from_millis(500);

/// How good a daemon is to talk to; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ManagerWithLeader,
    Manager,
    Worker,
    /// Answers, but was removed, blocked or is otherwise in trouble.
    Troubled,
}

/// The client that the flags ask for.
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

/// The managers as a daemon on this machine knows them, else as the identity file does.
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
        // A socket of another cluster, a dev cluster in this folder say, knows nothing about this identity.
        Ok(contact) if contact.root_pem.trim() == identity.root_pem.trim() && !contact.managers.is_empty() => {
            contact.managers
        }
        _ => identity.managers.clone(),
    }
}

/// The socket to use, looked for below `folder`.
pub async fn socket(folder: &Path) -> Outcome<PathBuf> {
    let candidates = dev_sockets(&folder.join(".muster"));
    let mut asked: FuturesUnordered<_> =
        candidates.iter().map(|path| async move { (rank(path).await, path) }).collect();
    let mut best: Option<(Rank, &PathBuf)> = None;
    let deadline = tokio::time::sleep(PATIENCE);
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            answer = asked.next() => match answer {
                Some((Some(rank), path)) => best = Some(best.map_or((rank, path), |b| b.min((rank, path)))),
                Some((None, _)) => {}
                None => break,
            },
            () = &mut deadline => break,
        }
        if matches!(best, Some((Rank::ManagerWithLeader, _))) {
            break;
        }
    }
    match best {
        Some((_, path)) => Ok(path.clone()),
        None if Path::new(SYSTEM_SOCKET).exists() => Ok(SYSTEM_SOCKET.into()),
        None => Err(none_found(&candidates)),
    }
}

/// The sockets of a dev cluster's nodes, in the order of their names.
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

async fn rank(path: &Path) -> Option<Rank> {
    let mut connection = Connection::to_socket(path).await.ok()?;
    let request = Request::Status { fresh: false };
    let text = connection.call(request, RequestId(rand::random()), PATIENCE).await.ok()?;
    let status: StatusView = serde_json::from_str(&text).ok()?;
    Some(match (status.this.role, status.raft.leader) {
        _ if status.this.trouble.is_some() => Rank::Troubled,
        (Role::Manager, Some(_)) => Rank::ManagerWithLeader,
        (Role::Manager, None) => Rank::Manager,
        (Role::Worker, _) => Rank::Worker,
    })
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

    #[tokio::test]
    async fn without_any_daemon_the_failure_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let failure = none_found(&dev_sockets(folder.path()));
        assert_eq!(failure.exit, 5);
        assert!(failure.message.contains("muster dev up"), "{failure}");
    }

    #[test]
    fn dev_sockets_come_in_the_order_of_their_names() {
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
}
