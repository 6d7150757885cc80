//! The admin socket: a Unix socket owned by the user who runs the daemon. Native frames and HTTP share it and are
//! distinguished by the first byte: a frame's length is below 16 MiB, so it starts with a zero byte.

use std::io::{self, Cursor};
use std::path::Path;

use muster_audit::{Origin, Via};
use muster_kernel::{Acceptor, Access, SocketFault, UnixSocket};
use tokio::io::{AsyncReadExt, Chain, Join};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// What sets the path.
const FLAG: &str = "--socket";

/// A listening admin socket. Dropping it removes the file.
#[derive(Debug)]
pub struct AdminSocket {
    acceptor: Acceptor,
    _file: UnixSocket,
}

impl AdminSocket {
    /// Refuses a path that is too long for a socket.
    pub fn check(path: &Path) -> Result<(), SocketFault> {
        UnixSocket::check(path, FLAG)
    }

    /// Refuses a path where [`bind`](Self::bind) would fail now, for what must not be begun in vain.
    pub fn check_vacant(path: &Path) -> Result<(), SocketFault> {
        UnixSocket::check_vacant(path, FLAG)
    }

    /// Listens at `path`, replacing only a socket that a dead process left there.
    pub fn bind(path: &Path) -> Result<Self, SocketFault> {
        let file = UnixSocket::bind(path, FLAG, Access::Owner)?;
        let acceptor = file.acceptor("admin socket");
        let acceptor = acceptor.map_err(|source| SocketFault::Io { path: path.to_owned(), source })?;
        Ok(Self { acceptor, _file: file })
    }

    pub(crate) async fn accept(&self) -> UnixStream {
        self.acceptor.accept().await
    }
}

/// The process that connected, as the kernel reports it.
pub(crate) fn origin_of(stream: &UnixStream) -> Origin {
    let via = match stream.peer_cred() {
        Ok(peer) => Via::Socket { uid: peer.uid(), pid: peer.pid().filter(|pid| *pid > 0) },
        Err(_) => Via::Internal,
    };
    Origin { via, ..Origin::default() }
}

/// The protocol of a socket's client.
pub(crate) enum ClientProtocol {
    Native(Rewound),
    Http(Rewound),
    Nothing,
}

pub(crate) async fn recognise(mut stream: UnixStream) -> io::Result<ClientProtocol> {
    let mut first = [0u8; 1];
    if stream.read(&mut first).await? == 0 {
        return Ok(ClientProtocol::Nothing);
    }
    let (rest, write) = stream.into_split();
    let rewound = tokio::io::join(Cursor::new(first).chain(rest), write);
    Ok(if first[0] == 0 { ClientProtocol::Native(rewound) } else { ClientProtocol::Http(rewound) })
}

/// A stream whose first byte was inspected and is read again.
pub(crate) type Rewound = Join<Chain<Cursor<[u8; 1]>, OwnedReadHalf>, OwnedWriteHalf>;
