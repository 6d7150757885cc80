//! From a data directory to an identity: resume, found, or join. Everything that can end the daemon before it is a
//! node is decided here, with the exit status and the sentence of the contract.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use muster_agent::{JoinArgs, NodeMemory, NodeTrouble, join, trouble_of};
use muster_kernel::Clock;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{Name, RaftId};
use muster_pki::{Founding, IdentityStore};
use muster_raft_member::disk;

use super::config::Config;
use super::feature_level::sentence;

/// An identity, and what is still to do with it.
pub struct Booted {
    pub memory: NodeMemory,
    pub credentials: NodeCredentials,
    /// The cluster's first entry is still to be written.
    pub founding: Option<Founding>,
    pub raft: RaftData,
    /// The Raft data is of a newer build: why the manager half does not start.
    pub outgrown: Option<String>,
}

/// What became of this node's Raft data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaftData {
    /// Never had any.
    None,
    Present,
    /// It held this seat and the data is gone.
    Missing {
        held: RaftId,
    },
    /// It cannot be trusted: this file, this reason.
    Damaged {
        held: Option<RaftId>,
        file: String,
        why: String,
    },
}

/// The daemon ends here.
#[derive(Debug)]
pub struct Exit {
    pub status: u8,
    pub sentence: String,
}

impl Exit {
    pub fn new(status: u8, sentence: impl Into<String>) -> Self {
        Self { status, sentence: sentence.into() }
    }
    /// Says the sentence.
    pub fn report(&self) -> ExitCode {
        eprintln!("musterd: {}", self.sentence);
        ExitCode::from(self.status)
    }
}

impl<E: std::error::Error> From<E> for Exit {
    fn from(error: E) -> Self {
        let fault = muster_kernel::Fault::from(error);
        Exit::new(1, fault.0)
    }
}

/// Finds or makes this node's identity.
pub async fn boot(config: &Config, advertise: &str) -> Result<Booted, Exit> {
    let store = IdentityStore::open(&config.data_dir)?;
    let memory = NodeMemory::new(store.clone());
    let local = memory.load()?;
    let founding = store.load_founding()?;
    let existing = store.load_credentials()?;
    if let Some(ended) = &local.ended
        && let Some(NodeTrouble { message, .. }) = trouble_of(ended)
    {
        // A node that was removed may come back as a new one: an operator says so with a fresh directory.
        let dir = config.data_dir.display();
        return Err(Exit::new(
            6,
            format!(
                "this node was told {} at {}: {message}; to join again as a new node, empty {dir} first",
                ended.reason, ended.at
            ),
        ));
    }
    let credentials = match existing {
        Some(credentials) if is_expired(&credentials) && config.token.is_some() && !config.join.is_empty() => {
            joined(config, advertise, &memory, Some(credentials)).await?
        }
        Some(credentials) => credentials,
        None if founding.is_some() || config.init => {
            let name: Name = config.cluster_name.parse()?;
            let founding = store.begin_founding(name, Clock.wall())?;
            let lifetime = config.settings.certificates.lifetime.0;
            store.founder_credentials(&founding, own_ips(advertise), lifetime, Clock.wall())?
        }
        None if !config.join.is_empty() => joined(config, advertise, &memory, None).await?,
        None => {
            let dir = config.data_dir.display();
            return Err(Exit::new(
                2,
                format!(
                    "{dir} holds no identity: found a cluster with --init, or join one with --join HOST:PORT --token TOKEN \
                     (`muster token show worker` on a manager prints a token)"
                ),
            ));
        }
    };
    let founding = store.load_founding()?;
    let (raft, outgrown) = raft_data(config, &local, founding.is_some())?;
    if let (RaftData::Missing { .. } | RaftData::Damaged { .. }, true) =
        (&raft, no_other_manager(&local.managers, config, advertise))
    {
        return Err(no_way_back(config, &raft));
    }
    if matches!(raft, RaftData::Damaged { .. }) {
        set_aside(&config.data_dir)?;
    }
    Ok(Booted { memory, credentials, founding, raft, outgrown })
}

fn is_expired(credentials: &NodeCredentials) -> bool {
    credentials.identity.not_after <= Clock.wall()
}

async fn joined(
    config: &Config,
    advertise: &str,
    memory: &NodeMemory,
    rekey: Option<NodeCredentials>,
) -> Result<NodeCredentials, Exit> {
    let Some(token) = config.token.clone() else {
        return Err(Exit::new(2, "--join needs --token: `muster token show worker` on a manager prints one"));
    };
    let args = JoinArgs {
        addrs: config.join.clone(),
        token,
        name: config.name.parse()?,
        advertise: advertise.to_owned(),
        release: config.release.clone(),
        labels: config.labels.clone(),
        rekey,
    };
    let say = |progress: &muster_agent::JoinProgress| eprintln!("musterd: {progress}");
    match join(memory, args, &config.settings.joining(), say).await {
        Ok(joined) => Ok(joined.credentials),
        Err(error) => Err(Exit::new(error.exit_status(), muster_kernel::Fault::from(error).0)),
    }
}

/// The addresses a founder puts into its own first certificate: loopback is always there.
fn own_ips(advertise: &str) -> Vec<IpAddr> {
    let ip = advertise.parse::<SocketAddr>().ok().map(|a| a.ip());
    ip.into_iter().filter(|ip| !ip.is_unspecified()).collect()
}

fn raft_data(
    config: &Config,
    local: &muster_pki::LocalNode,
    founding: bool,
) -> Result<(RaftData, Option<String>), Exit> {
    let dir = config.data_dir.join("raft");
    let found = match (disk::state(&dir), local.held_seat) {
        // Nothing is wrong with it, and it stays where it is.
        (disk::DirState::Newer(fault), _) => {
            let why = sentence(fault, config.settings.debug.feature_level);
            return Ok((RaftData::Present, Some(why)));
        }
        (disk::DirState::Absent, Some(held)) if !founding => RaftData::Missing { held },
        (disk::DirState::Absent, _) => RaftData::None,
        (disk::DirState::Present { .. }, _) => RaftData::Present,
        (disk::DirState::Damaged(fault), held) => {
            RaftData::Damaged { held, file: fault.file.display().to_string(), why: fault.why.clone() }
        }
        (disk::DirState::Unreadable(fault), _) => return Err(Exit::new(1, fault.to_string())),
    };
    Ok((found, None))
}

/// Damaged data is kept for whoever wants to know what happened, out of the way of the empty copy that follows.
fn set_aside(data: &std::path::Path) -> Result<(), Exit> {
    let (from, to) = (data.join("raft"), data.join("raft.damaged"));
    if to.exists() {
        std::fs::remove_dir_all(&to)?;
    }
    std::fs::rename(&from, &to)?;
    eprintln!("musterd: the damaged Raft data was moved to {}", to.display());
    Ok(())
}

fn no_other_manager(known: &[String], config: &Config, advertise: &str) -> bool {
    known.iter().chain(&config.join).all(|addr| addr == advertise || *addr == config.listen)
}

fn no_way_back(config: &Config, raft: &RaftData) -> Exit {
    let dir = config.data_dir.join("raft");
    let what = match raft {
        RaftData::Damaged { file, why, .. } => format!("the Raft data is damaged: {file}: {why}"),
        _ => format!("the Raft data that was in {} is missing", dir.display()),
    };
    Exit::new(
        1,
        format!(
            "{what}, and no other manager is known to this node, so nobody can give it a copy. Two ways out: put the \
             directory back from a backup of this node and start again; or, if the cluster is lost, empty {} and found a new \
             cluster with --init",
            config.data_dir.display()
        ),
    )
}
