//! `--restore FILE`: a backup becomes a cluster of one node, on a machine that is new to the cluster.

use std::path::Path;

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::{NodeId, Tables};
use muster_pki::Recovering;
use muster_raft_member::disk;
use muster_store::backup;

use super::{Exit, Survivor, answering, quorum_is_lost};
use crate::daemon::config::Config;

/// The reason in the events that a restore writes.
pub const RESTORE_FLAG: &str = "--restore";

/// Decides a restore into an empty directory.
pub fn decide(config: &Config, advertise: &str, memory: &NodeMemory, file: &Path) -> Result<Recovering, Exit> {
    let store = memory.store();
    let empty = store.load_credentials()?.is_none()
        && store.load_founding()?.is_none()
        && disk::state(&config.data_dir.join("raft"), store.keys()) == disk::DirState::Absent;
    if !empty {
        let dir = config.data_dir.display();
        return Err(Exit::new(
            6,
            format!(
                "{dir} already holds a node, and {RESTORE_FLAG} needs an empty directory; start it without {RESTORE_FLAG}"
            ),
        ));
    }
    let (tables, _) = read_from(file)?;
    let node = NodeId::from_entropy(rand::random());
    quorum_is_lost(&tables, node, &answering(&tables, node, advertise))?;
    let who = Survivor { node, admit_as: Some(config.name.parse()?), advertise: advertise.to_owned() };
    super::decide(config, who, tables, Clock.wall())
}

/// The state of the backup named now. A correct operator names the same file as at first.
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
