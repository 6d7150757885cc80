//! The socket of the Workload API: every user of the machine may connect to it, and is judged by what the kernel says of its process.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The longest path of a Unix socket (`sun_path` without its terminating zero, see unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Why the socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadSocketFault {
    #[error("the workload socket's path {path} has {len} bytes, a Unix socket holds at most {MAX_SOCKET_PATH_BYTES}")]
    TooLong { path: PathBuf, len: usize },
    #[error("the workload socket's path {path} is not absolute")]
    Relative { path: PathBuf },
    #[error("{path} exists and is not a socket")]
    NoSocket { path: PathBuf },
    #[error("another process serves {path}")]
    Served { path: PathBuf },
    #[error("cannot listen on {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A listening socket. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct WorkloadSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

/// Refuses a path that no socket can have, or that no client can be told.
///
/// # Errors
/// The path is too long, or not absolute.
pub fn check_socket_path(path: &Path) -> Result<(), WorkloadSocketFault> {
    let (path, len) = (path.to_owned(), path.as_os_str().len());
    if len > MAX_SOCKET_PATH_BYTES {
        return Err(WorkloadSocketFault::TooLong { path, len });
    }
    if path.is_relative() { Err(WorkloadSocketFault::Relative { path }) } else { Ok(()) }
}

impl WorkloadSocket {
    /// Listens at `path`, replacing only a socket that a dead process left there. May block.
    pub(crate) fn bind(path: &Path) -> Result<Self, WorkloadSocketFault> {
        check_socket_path(path)?;
        let fault = |source| WorkloadSocketFault::Io { path: path.to_owned(), source };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fault(error)),
            Ok(there) if !there.file_type().is_socket() => {
                return Err(WorkloadSocketFault::NoSocket { path: path.to_owned() });
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(WorkloadSocketFault::Served { path: path.to_owned() });
            }
            Ok(_) => fs::remove_file(path).map_err(fault)?,
        }
        if let Some(dir) = path.parent()
            && !dir.exists()
        {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(fault)?;
            // Whatever the daemon's mask is.
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(fault)?;
        }
        let listener = UnixListener::bind(path).map_err(fault)?;
        let socket = Self { listener, path: path.to_owned() };
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(fault)?;
        socket.listener.set_nonblocking(true).map_err(fault)?;
        Ok(socket)
    }
}

impl Drop for WorkloadSocket {
    fn drop(&mut self) {
        let _gone_already = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_socket_is_open_to_every_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/workloads.sock");
        let socket = WorkloadSocket::bind(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o666, 0o755));
        assert!(matches!(WorkloadSocket::bind(&path), Err(WorkloadSocketFault::Served { .. })));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn workload_socket_replaces_only_a_dead_socket() {
        let dir = tempfile::tempdir().unwrap();
        let (file, path) = (dir.path().join("file"), dir.path().join("sock"));
        fs::write(&file, "precious").unwrap();
        assert!(matches!(WorkloadSocket::bind(&file), Err(WorkloadSocketFault::NoSocket { .. })));
        drop(UnixListener::bind(&path).unwrap());
        WorkloadSocket::bind(&path).unwrap();
        assert!(matches!(WorkloadSocket::bind(Path::new("a")), Err(WorkloadSocketFault::Relative { .. })));
        let long = dir.path().join("x".repeat(108));
        assert!(matches!(WorkloadSocket::bind(&long), Err(WorkloadSocketFault::TooLong { .. })));
    }
}
