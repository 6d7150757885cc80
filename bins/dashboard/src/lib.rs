//! `muster dashboard`: a web server on loopback that shows the cluster to a browser of this machine.
//!
//! It is part of the command line, not of the daemon: it asks as the operator asks, with the operator's socket or identity, and ends
//! with the command. It needs no quorum to start, to log in, or to show what is missing.
//!
//! - `access.rs` links and sessions: who may see it.
//! - `connections.rs` how many there may be, and how long.
//! - `door.rs` what every request must show, and the headers of every answer.
//! - `actions.rs` what may be done with `--actions`.
//! - `feed.rs` asks the cluster, once for all open pages.
//! - `pages/` functions from answers to a page; `document.rs` the parts of one, and which of them must be sent again.
//! - `shell.rs` what every page begins as, and its assets; `server.rs` the routes, and the stream of one open page.
//!
//! Decision 0053 says why it is not in the daemon.

mod access;
mod actions;
mod browser;
mod connections;
mod document;
mod door;
mod feed;
mod html;
mod pages;
mod server;
mod shell;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use muster_client::{Failure, Outcome, Target};
use tokio::net::TcpListener;

pub use self::access::LINK_LIFETIME;
pub use self::browser::Redirect;
pub use self::server::{Dashboard, LoginEvent};

/// How it is served.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The port on loopback; 0: a free one.
    pub port: u16,
    /// More names under which a browser may ask, `NAME:PORT`: those of tunnels.
    pub allow_hosts: Vec<String>,
    /// Whether the pages offer actions.
    pub actions: bool,
}

impl Dashboard {
    /// Binds loopback and asks these servers. Serve it with [`Dashboard::serve`].
    pub async fn bind(target: Target, settings: &Settings) -> Outcome<Self> {
        let busy = |error| Failure::io(format_args!("cannot listen on port {} of loopback", settings.port), &error);
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port)).await.map_err(busy)?;
        let port = first.local_addr().map_err(busy)?.port();
        // `localhost` may be either. Not every machine has IPv6, but where it has, no other program may answer under our name.
        let second = match TcpListener::bind(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let taken = format_args!("another process listens on [::1]:{port}; choose another port with --port");
                return Err(Failure::io(taken, &error));
            }
            second => second.ok(),
        };
        let own = [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")];
        let hosts: Arc<[String]> = own.into_iter().chain(settings.allow_hosts.iter().cloned()).collect();
        Ok(Self::new([Some(first), second].into_iter().flatten().collect(), port, hosts, target, settings.actions))
    }
}
