//! How many files this process may open. Every connection is one, and the soft limit of most systems (1,024) is far below what a manager of
//! 10,000 nodes needs, or a benchmark with as many agents.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, which is the administrator's.
pub fn raise_open_files() -> std::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// The soft limit. `None`: no limit.
pub fn open_files_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}
