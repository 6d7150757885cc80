//! A Unix socket that a daemon serves: for its user, or for every user of the machine.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Access as Permission, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::umask;

use crate::Acceptor;

/// The longest path of a Unix socket (`sun_path` without its terminating zero, see unix(7)).
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Why a socket could not be created. `flag` is what sets its path.
#[derive(Debug, thiserror::Error)]
pub enum SocketFault {
    /// A path longer than the operating system's addresses.
    #[error(
        "the socket path {path} has {len} bytes, a Unix socket holds at most {MAX_SOCKET_PATH_BYTES}; choose a shorter one with {flag}"
    )]
    TooLong {
        /// The path as given.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// What sets the path.
        flag: &'static str,
    },
    /// The path is a file's that is not a socket. It stays.
    #[error("{path} exists and is not a socket; choose another path with {flag}")]
    OtherFile {
        /// The path as given.
        path: PathBuf,
        /// What sets the path.
        flag: &'static str,
    },
    /// Another process listens there.
    #[error("another process serves {path}; choose another path with {flag}")]
    Served {
        /// The path as given.
        path: PathBuf,
        /// What sets the path.
        flag: &'static str,
    },
    /// The operating system refused it.
    #[error("cannot listen on {path}")]
    Io {
        /// The path as given.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The user of this process. Directories are created as the process' mask has it.
    Owner,
    /// Every user of the machine, also through a directory that is created.
    Everyone,
}

/// A listening socket. Dropping it removes the file.
#[derive(Debug)]
pub struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// # Errors
    /// The path is too long for a socket.
    pub fn check(path: &Path, flag: &'static str) -> Result<(), SocketFault> {
        let len = path.as_os_str().len();
        if len <= MAX_SOCKET_PATH_BYTES {
            Ok(())
        } else {
            Err(SocketFault::TooLong { path: path.to_owned(), len, flag })
        }
    }

    /// Whether a process serves the path. Never blocks on that process; what cannot be found out counts as no.
    pub fn is_served(path: &Path) -> bool {
        is_served(path).unwrap_or(false)
    }

    /// Refuses a path where [`bind`](Self::bind) would fail now. Changes nothing. Never blocks on another process.
    ///
    /// # Errors
    /// The path is too long, another process serves it, it is another file's, or this process may not create it there.
    pub fn check_vacant(path: &Path, flag: &'static str) -> Result<(), SocketFault> {
        vacancy(path, flag)?;
        let here = Path::new(".");
        let mut directories = path.ancestors().skip(1).map(|dir| if dir.as_os_str().is_empty() { here } else { dir });
        let existing = directories.find(|dir| dir.exists());
        rustix::fs::access(existing.unwrap_or(here), Permission::WRITE_OK | Permission::EXEC_OK)
            .map_err(|errno| SocketFault::Io { path: path.to_owned(), source: errno.into() })
    }

    /// Listens at `path`, replacing only a socket that a dead process left there. Blocks.
    ///
    /// # Errors
    /// Those of [`check_vacant`](Self::check_vacant), and whatever else the operating system refuses.
    pub fn bind(path: &Path, flag: &'static str, access: Access) -> Result<Self, SocketFault> {
        let fault = |source| SocketFault::Io { path: path.to_owned(), source };
        if let Vacancy::Abandoned = vacancy(path, flag)? {
            fs::remove_file(path).map_err(fault)?;
        }
        create_parent(path, access).map_err(fault)?;
        let listener = match access {
            // The file must never be open to others, not even between bind and chmod.
            Access::Owner => {
                let before = umask(Mode::from_raw_mode(0o177));
                let listener = UnixListener::bind(path);
                umask(before);
                listener
            }
            Access::Everyone => UnixListener::bind(path),
        };
        let socket = Self { listener: listener.map_err(fault)?, path: path.to_owned() };
        let mode = if access == Access::Owner { 0o600 } else { 0o666 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(fault)?;
        socket.listener.set_nonblocking(true).map_err(fault)?;
        Ok(socket)
    }

    /// Accepts its connections. `name`: for the log. Needs a runtime.
    ///
    /// # Errors
    /// The process has no free file descriptor.
    pub fn acceptor(&self, name: &'static str) -> io::Result<Acceptor> {
        Ok(Acceptor::new(tokio::net::UnixListener::from_std(self.listener.try_clone()?)?, name))
    }
}

/// What is at a path where a socket may be created.
enum Vacancy {
    Nothing,
    /// The socket of a process that has ended.
    Abandoned,
}

fn vacancy(path: &Path, flag: &'static str) -> Result<Vacancy, SocketFault> {
    UnixSocket::check(path, flag)?;
    let fault = |source| SocketFault::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vacancy::Nothing),
        Err(error) => Err(fault(error)),
        Ok(there) if !there.file_type().is_socket() => Err(SocketFault::OtherFile { path: path.to_owned(), flag }),
        // The daemon of another data directory may have been given the same path.
        Ok(_) if is_served(path).map_err(fault)? => Err(SocketFault::Served { path: path.to_owned(), flag }),
        Ok(_) => Ok(Vacancy::Abandoned),
    }
}

/// Whether a process has the socket open. Two errors mean that none has: the socket does not exist, or its process has ended. Any other one
/// comes from a socket in use: a full queue (`EAGAIN`, where a blocking `connect` would wait), another type (`EPROTOTYPE`), or another
/// user's (`EACCES`): see unix(7).
fn is_served(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(!matches!(connect(&socket, &SocketAddrUnix::new(path)?), Err(Errno::CONNREFUSED | Errno::NOENT)))
}

/// Directories that exist keep their modes. Those for everyone are created open to everyone, regardless of the mask of the process.
fn create_parent(path: &Path, access: Access) -> io::Result<()> {
    let Some(dir) = path.parent() else { return Ok(()) };
    if access == Access::Owner {
        return fs::create_dir_all(dir);
    }
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
    for dir in missing.into_iter().rev() {
        fs::create_dir(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _gone_already = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::sync::Mutex;

    use super::*;

    const FLAG: &str = "--socket";

    /// The mask is the process', whose tests run at the same time.
    static MASK: Mutex<()> = Mutex::new(());

    #[test]
    fn socket_is_open_to_its_user_or_to_everyone() {
        let _alone = MASK.lock().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for (access, expected) in [(Access::Owner, 0o600), (Access::Everyone, 0o666)] {
            let path = dir.path().join(format!("{access:?}/sockets/sock"));
            let before = umask(Mode::from_raw_mode(0o077));
            let socket = UnixSocket::bind(&path, FLAG, access).unwrap();
            umask(before);
            assert_eq!(mode(&path), expected);
            if access == Access::Everyone {
                assert_eq!(path.ancestors().skip(1).take(2).map(mode).collect::<Vec<_>>(), [0o755, 0o755]);
            }
            assert!(matches!(UnixSocket::check_vacant(&path, FLAG), Err(SocketFault::Served { .. })));
            assert!(matches!(UnixSocket::bind(&path, FLAG, access), Err(SocketFault::Served { .. })));
            drop(socket);
            UnixSocket::check_vacant(&path, FLAG).unwrap();
            assert!(!path.exists());
        }
    }

    #[test]
    fn only_a_dead_socket_file_is_replaced() {
        let _alone = MASK.lock().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (file, path) = (dir.path().join("file"), dir.path().join("sock"));
        fs::write(&file, "precious").unwrap();
        assert!(matches!(UnixSocket::bind(&file, FLAG, Access::Owner), Err(SocketFault::OtherFile { .. })));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        drop(UnixListener::bind(&path).unwrap());
        UnixSocket::check_vacant(&path, FLAG).unwrap();
        assert!(path.exists(), "a check changes nothing");
        drop(UnixSocket::bind(&path, FLAG, Access::Owner).unwrap());
        UnixSocket::check_vacant(&dir.path().join("not/yet/there/sock"), FLAG).unwrap();
        let closed = dir.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
        let may_create = UnixSocket::check_vacant(&closed.join("not/there/sock"), FLAG).is_ok();
        assert_eq!(may_create, rustix::process::geteuid().is_root(), "only root may create files there");
        let long = dir.path().join("x".repeat(MAX_SOCKET_PATH_BYTES));
        let refused = UnixSocket::check(&long, FLAG).unwrap_err().to_string();
        assert!(refused.ends_with("choose a shorter one with --socket"), "{refused}");
    }

    /// A socket of another type refuses streams (`EPROTOTYPE`), and is in use all the same.
    #[test]
    fn datagram_socket_counts_as_served() {
        let _alone = MASK.lock().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let other = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(UnixSocket::bind(&path, FLAG, Access::Owner), Err(SocketFault::Served { .. })));
        assert!(path.exists());
        drop(other);
        UnixSocket::bind(&path, FLAG, Access::Owner).unwrap();
    }

    /// A daemon that is stopped accepts no connection: a second daemon must neither wait for it nor take its path.
    #[test]
    fn full_queue_counts_as_served() {
        let _alone = MASK.lock().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let socket = UnixSocket::bind(&path, FLAG, Access::Owner).unwrap();
        rustix::net::listen(&socket.listener, 0).unwrap();
        let _waits = UnixStream::connect(&path).unwrap();
        assert!(matches!(UnixSocket::bind(&path, FLAG, Access::Owner), Err(SocketFault::Served { .. })));
    }
}
