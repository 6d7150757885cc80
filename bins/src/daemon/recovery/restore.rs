//! `--restore FILE`: a backup becomes a cluster of one node, on a machine that is new to the cluster.

use std::path::Path;

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::{NodeId, Revision, Tables};
use muster_pki::Recovering;
use muster_raft_member::disk;
use muster_sealing::UnlockKey;
use muster_store::backup::{self, BadBackup};

use super::{Exit, Survivor, answering, quorum_is_lost};
use crate::daemon::config::Config;
use crate::daemon::locked::Means;
use crate::unlock_text::GivenKey;

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
    let (tables, _) = read_from(config, file)?;
    let node = NodeId::from_entropy(rand::random());
    quorum_is_lost(&tables, node, &answering(&tables, node, advertise))?;
    let who = Survivor { node, admit_as: Some(config.name.parse()?), advertise: advertise.to_owned() };
    super::decide(config, who, tables, Clock.wall())
}

/// The state of the backup named now. A correct operator names the same file as at first.
pub fn read(config: &Config) -> Result<(Tables, u64), Exit> {
    let again = "a restore was begun here and not finished: start again with --restore and the same file";
    let file = config.restore.as_deref().ok_or_else(|| Exit::new(6, again))?;
    read_from(config, file)
}

fn read_from(config: &Config, file: &Path) -> Result<(Tables, u64), Exit> {
    let bytes = std::fs::read(file).map_err(|e| Exit::new(1, format!("cannot read {}: {e}", file.display())))?;
    let decoded = match backup::decode(&bytes) {
        Err(BadBackup::Sealed(version)) => return open(config, file, &bytes, version),
        decoded => decoded,
    };
    let (head, tables) = decoded.map_err(|why| Exit::new(6, format!("{}: {why}", file.display())))?;
    sealed_if_expected(config, file)?;
    Ok((tables, head.term.0))
}

/// An attacker who can replace the file needs no key to write one in clear, with a root key and tokens of their own. So a key that is given says
/// what the file must be.
fn sealed_if_expected(config: &Config, file: &Path) -> Result<(), Exit> {
    let means: Vec<String> = Means::configured(config).iter().map(ToString::to_string).collect();
    if means.is_empty() {
        return Ok(());
    }
    Err(Exit::new(
        6,
        format!(
            "{} is not sealed, but an unlock key is given ({}): a backup that was made while autolock was on is sealed, so this file may \
             have been put in its place. If it was made while autolock was off, restore it without the key: leave out \
             --unlock-key-file, the credential muster-unlock and [unlock] command for this start",
            file.display(),
            means.join(", ")
        ),
    ))
}

/// A backup that was made while autolock was on: the unlock key comes as that of a locked manager does, without a person.
fn open(config: &Config, file: &Path, bytes: &[u8], version: Revision) -> Result<(Tables, u64), Exit> {
    let mut failed = Vec::new();
    for means in Means::configured(config) {
        let opened = key_of(&means).and_then(|key| match backup::decode_sealed(bytes, &key) {
            Err(BadBackup::WrongKey(_)) => Err("the key is not the one that the backup was sealed under".to_owned()),
            decoded => Ok(decoded),
        });
        match opened {
            Ok(decoded) => {
                let (head, tables) = decoded.map_err(|why| Exit::new(6, format!("{}: {why}", file.display())))?;
                return Ok((tables, head.term.0));
            }
            Err(why) => failed.push(format!("{means}: {why}")),
        }
    }
    let why = if failed.is_empty() { String::new() } else { format!(" ({})", failed.join("; ")) };
    Err(Exit::new(
        6,
        format!(
            "{} is sealed under version {version} of the cluster's unlock key{why}: give that key with --unlock-key-file FILE, the \
             credential muster-unlock, or [unlock] command",
            file.display()
        ),
    ))
}

/// In a thread of its own: a command needs a runtime, and this one is the daemon's.
fn key_of(means: &Means) -> Result<UnlockKey, String> {
    let means = means.clone();
    let read = std::thread::spawn(move || means.read_now());
    let text =
        read.join().ok().flatten().ok_or("the command could not be started: no runtime, or its thread panicked")??;
    Ok(GivenKey::parse(&text)?.key)
}
