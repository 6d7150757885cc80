//! When a node can serve its role, and the line that reports it.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_agent::SessionStatus;
use muster_api::ManagerPorts;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{Membership, NodeId, Role};
use tokio::net::UdpSocket;
use tokio::sync::watch;

use super::config::Config;
use super::node::Shared;

/// The address that others dial: the advertised one, with the port that the system chose if asked to, and with the host that they
/// see where it is unspecified.
pub async fn advertised(config: &Config, listens: SocketAddr, others: &[String]) -> String {
    let advertised_addr = match config.advertise.rsplit_once(':') {
        Some((host, "0")) => format!("{host}:{}", listens.port()),
        _ => config.advertise.clone(),
    };
    match advertised_addr.parse::<SocketAddr>() {
        Ok(addr) if addr.ip().is_unspecified() => {
            SocketAddr::new(own_address(others).await.unwrap_or(LOOPBACK), addr.port()).to_string()
        }
        _ => advertised_addr,
    }
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Far away and unassigned (RFC 5737): shows which address this machine would use to get there.
const PROBE_TARGET: &str = "198.51.100.1:9";

/// How long resolving another manager's name may delay the start.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// This machine's address on the way to the others: the one that they see, unless an address is translated in between. A node in
/// session with itself sees only loopback, so sessions are not used. Nothing is sent.
async fn own_address(others: &[String]) -> Option<IpAddr> {
    for other in others.iter().map(String::as_str).chain([PROBE_TARGET]) {
        for from in ["0.0.0.0:0", "[::]:0"] {
            let Ok(socket) = UdpSocket::bind(from).await else { continue };
            if let Ok(Ok(())) = tokio::time::timeout(RESOLVE_TIMEOUT, socket.connect(other)).await
                && let Ok(own) = socket.local_addr()
            {
                return Some(own.ip().to_canonical());
            }
        }
    }
    None
}

/// Whether this node can serve its role: a worker has a session, a manager is a voter whose replica is current.
#[derive(Clone)]
pub struct Readiness {
    me: NodeId,
    credentials: watch::Receiver<Arc<NodeCredentials>>,
    session: watch::Receiver<Option<SessionStatus>>,
    manager: watch::Receiver<Option<Arc<ManagerPorts>>>,
}

impl Readiness {
    pub fn new(shared: &Shared, session: watch::Receiver<Option<SessionStatus>>) -> Self {
        Self { me: shared.me, credentials: shared.credentials.clone(), session, manager: shared.manager.subscribe() }
    }

    /// The role served now, if any.
    pub fn now(&self) -> Option<Role> {
        let (_, role) = self.credentials.borrow().identity.node()?;
        let serves = match role {
            Role::Worker => self.session.borrow().is_some(),
            Role::Manager => self.manager.borrow().as_ref().is_some_and(|m| {
                let replica = m.replica.borrow();
                let raft = &replica.raft;
                let voter = replica.tables.membership_of(self.me) == Membership::Voter;
                voter && raft.leader.is_some() && replica.tables.cluster.is_some() && raft.applied >= raft.commit
            }),
        };
        serves.then_some(role)
    }

    /// Returns the role once it is served.
    async fn reached(mut self) -> Role {
        loop {
            // Before the check, after which any change counts. A clone has seen what its original has, and that is never read: without
            // this a change is always due, and a manager without a quorum uses a whole processor.
            let mut replica = self.manager.borrow().as_ref().map(|m| m.replica.clone());
            if let Some(replica) = &mut replica {
                replica.mark_unchanged();
            }
            if let Some(role) = self.now() {
                return role;
            }
            let replica_changed = async {
                if let Some(mut replica) = replica
                    && replica.changed().await.is_ok()
                {
                    return;
                }
                // There is no manager runtime, or it has ended: another one is published.
                std::future::pending().await
            };
            tokio::select! {
                _ = self.session.changed() => {}
                _ = self.manager.changed() => {}
                _ = self.credentials.changed() => {}
                () = replica_changed => {}
                // For what no watch shows.
                () = tokio::time::sleep(std::time::Duration::from_millis(500)) => {}
            }
        }
    }
}

/// Prints the contract's line, once.
pub fn announce_when_ready(readiness: Readiness, listens: SocketAddr, metrics: Option<SocketAddr>, socket: PathBuf) {
    tokio::spawn(async move {
        let me = readiness.me;
        let role = readiness.reached().await;
        let metrics = metrics.map_or_else(|| "off".to_owned(), |m| m.to_string());
        let socket = socket.display();
        let line = format!("musterd ready node={me} role={role} listen={listens} socket={socket} metrics={metrics}\n");
        // The process that started the daemon may have stopped reading.
        let mut out = std::io::stdout();
        let _closed = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    });
}
