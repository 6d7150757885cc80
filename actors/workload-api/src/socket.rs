//! The socket of the Workload API: every user of the machine may connect to it, and is judged by what the kernel knows of its process.

use std::path::{Path, PathBuf};

use muster_kernel::{Access, SocketFault, UnixSocket};

/// What sets the path.
const FLAG: &str = "--workload-socket";

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadSocketFault {
    #[error(transparent)]
    Socket(#[from] SocketFault),
    #[error("the workload socket's path {path} is not absolute, as SPIFFE_ENDPOINT_SOCKET requires")]
    Relative { path: PathBuf },
}

/// Refuses a path that is too long for a socket, or that clients cannot be given.
///
/// # Errors
/// The path is too long, or not absolute.
pub fn check_socket_path(path: &Path) -> Result<(), WorkloadSocketFault> {
    UnixSocket::check(path, FLAG)?;
    if path.is_relative() { Err(WorkloadSocketFault::Relative { path: path.to_owned() }) } else { Ok(()) }
}

pub(crate) fn bind(path: &Path) -> Result<UnixSocket, WorkloadSocketFault> {
    check_socket_path(path)?;
    Ok(UnixSocket::bind(path, FLAG, Access::Everyone)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_socket_has_an_absolute_path() {
        assert!(matches!(bind(Path::new("a")), Err(WorkloadSocketFault::Relative { .. })));
        let long = Path::new("/").join("x".repeat(108));
        assert!(bind(&long).unwrap_err().to_string().contains("--workload-socket"));
    }
}
