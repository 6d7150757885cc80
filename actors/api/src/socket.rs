//! The admin socket: a Unix socket owned by the user who runs the daemon. Native frames and HTTP share it and are
//! distinguished by the first byte: a frame's length is below 16 MiB, so it starts with a zero byte.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use muster_audit::{Origin, Via};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

/// The longest path of a Unix socket (`sun_path` without its terminating zero, see unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Why the admin socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketFault {
    #[error(
        "the socket path {path} has {len} bytes, a Unix socket holds at most {MAX_SOCKET_PATH_BYTES}; choose a shorter one with --socket"
    )]
    TooLong { path: PathBuf, len: usize },
    #[error("{path} exists and is not a socket; choose another path with --socket")]
    NoSocket { path: PathBuf },
    #[error("another process serves {path}; choose another path with --socket")]
    Served { path: PathBuf },
    #[error("cannot listen on {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A listening admin socket. Dropping it removes the file.
#[derive(Debug)]
pub struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Refuses a path that is too long for a socket.
    pub fn check(path: &Path) -> Result<(), SocketFault> {
        let len = path.as_os_str().len();
        if len > MAX_SOCKET_PATH_BYTES { Err(SocketFault::TooLong { path: path.to_owned(), len }) } else { Ok(()) }
    }

    /// Listens at `path`, replacing only a socket that a dead process left there.
    pub fn bind(path: &Path) -> Result<Self, SocketFault> {
        Self::check(path)?;
        let fault = |source| SocketFault::Io { path: path.to_owned(), source };
        match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(fault(e)),
            Ok(there) if !there.file_type().is_socket() => return Err(SocketFault::NoSocket { path: path.to_owned() }),
            // Another data directory's daemon may have been given the same path.
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                return Err(SocketFault::Served { path: path.to_owned() });
            }
            Ok(_) => std::fs::remove_file(path).map_err(fault)?,
        }
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(fault)?;
        }
        // The file must never be open to others, not even between bind and chmod.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        rustix::process::umask(before);
        let listener = listener.map_err(fault)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fault)?;
        Ok(Self { listener, path: path.to_owned() })
    }

    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_file(&self.path);
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
    let rewound = Rewound { first: Some(first[0]), stream };
    Ok(if first[0] == 0 { ClientProtocol::Native(rewound) } else { ClientProtocol::Http(rewound) })
}

/// A stream whose first byte was inspected and is read again.
pub(crate) struct Rewound {
    first: Option<u8>,
    stream: UnixStream,
}

impl AsyncRead for Rewound {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buf.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}
impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_dead_socket_file_is_replaced() {
        let dir = std::env::temp_dir().join(format!("muster-socket-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (file, path) = (dir.join("file"), dir.join("sock"));
        std::fs::write(&file, "precious").unwrap();
        assert!(matches!(AdminSocket::bind(&file), Err(SocketFault::NoSocket { .. })));
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let serving = AdminSocket::bind(&path).unwrap();
        assert!(matches!(AdminSocket::bind(&path), Err(SocketFault::Served { .. })));
        drop(serving);
        assert!(!path.exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
