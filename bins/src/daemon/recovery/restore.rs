//! `--restore FILE`: a backup becomes a cluster of one, on a machine that is new to it.

use std::path::Path;

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::{NodeId, Tables};
use muster_pki::Recovering;
use muster_raft_member::disk;
use muster_store::backup;

use super::{Exit, Survivor, answering, quorum_is_lost};
use crate::daemon::config::Config;

/// The events that it leaves say so.
pub const RESTORED: &str = "--restore";

/// Decides a restore into a directory that holds nothing.
pub fn decide(config: &Config, advertise: &str, memory: &NodeMemory, file: &Path) -> Result<Recovering, Exit> {
    let store = memory.store();
    let empty = store.load_credentials()?.is_none()
        && store.load_founding()?.is_none()
        && disk::state(&config.data_dir.join("raft")) == disk::DirState::Absent;
    if !empty {
        let dir = config.data_dir.display();
        return Err(Exit::new(
            6,
            format!("{dir} holds a node already, and {RESTORED} wants an empty directory; start it without {RESTORED}"),
        ));
    }
    let (tables, _) = read_from(file)?;
    let node = NodeId::from_entropy(rand::random());
    quorum_is_lost(&tables, node, &answering(&tables, node, advertise))?;
    let who = Survivor { node, admit_as: Some(config.name.parse()?), advertise: advertise.to_owned() };
    super::decide(config, who, tables, Clock.wall())
}

/// The state of the backup that was named now: the one that was named first, if the operator means well.
pub fn read(config: &Config) -> Result<(Tables, u64), Exit> {
    let again = "a restore was begun here and not finished: start again with --restore and the same file";
    let file = config.restore.as_deref().ok_or_else(|| Exit::new(6, again))?;
    read_from(file)
}

fn read_from(file: &Path) -> Result<(Tables, u64), Exit> {
    let bytes = std::fs::read(file).map_err(|e| Exit::new(1, format!("cannot read {}: {e}", file.display())))?;
    let (head, tables) = backup::decode(&bytes).map_err(|why| Exit::new(6, format!("{}: {why}", file.display())))?;
    Ok((tables, head.term.0))
}
