//! From a data directory to an identity: resume, found, or join. Every error that can end the daemon before it is a node is
//! decided here, with the contract's exit status and sentence.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use muster_agent::{JoinArgs, JoinConfig, NodeMemory, NodeTrouble, join, trouble_of};
use muster_kernel::Clock;
use muster_messages::protocol::NodeCredentials;
use muster_messages::{ErrorCode, Name};
use muster_pki::{Founding, IdentityStore, JoinToken, LocalNode};
use muster_raft_member::disk;

use super::config::{CREDENTIAL, Config, TokenSource};
use super::recovery;
use super::sealing;
use super::systemd;
use crate::cli::output::printable;
use crate::stderr;
use muster_manager::RaftData;
use muster_manager::feature_level::sentence;

/// An identity, and what remains to be done with it.
pub struct Booted {
    pub memory: NodeMemory,
    pub credentials: NodeCredentials,
    /// The cluster's first entry is not written yet.
    pub founding: Option<Founding>,
    pub raft: RaftData,
    /// The Raft data is of a newer build: why the manager runtime does not start.
    pub incompatible: Option<String>,
}

/// Ends the daemon.
#[derive(Debug)]
pub struct Exit {
    pub status: u8,
    pub sentence: String,
}

impl Exit {
    pub fn new(status: u8, sentence: impl Into<String>) -> Self {
        Self { status, sentence: sentence.into() }
    }
    /// Prints the sentence.
    pub fn report(&self) -> ExitCode {
        say(&self.sentence);
        ExitCode::from(self.status)
    }
}

/// A sentence without the log's time and level.
pub fn say(sentence: impl std::fmt::Display) {
    stderr::say(line(sentence));
}

/// The output of an action that is carried out instead of running.
pub fn print(text: &str) {
    // The reader may have closed the pipe.
    let _closed = std::io::stdout().write_all(text.as_bytes());
}

/// Much of a sentence comes from others whose certificate may not be verified yet. It is printed as one line without control
/// characters.
fn line(sentence: impl std::fmt::Display) -> String {
    printable(&format!("musterd: {sentence}"))
}

impl<E: std::error::Error> From<E> for Exit {
    fn from(error: E) -> Self {
        let fault = muster_kernel::Fault::from(error);
        Exit::new(1, fault.0)
    }
}

/// A node keeps its first name, also when the host is renamed: a restart without `--name` does not rename it.
pub fn with_kept_name(mut config: Config) -> Result<Config, Exit> {
    let kept = IdentityStore::open(&config.data_dir)?.load_node()?.name;
    if let Some(kept) = kept.filter(|_| config.name_is_the_hosts) {
        config.name = kept.to_string();
    }
    Ok(config)
}

/// Loads or creates this node's identity, from a store whose keys are open.
pub async fn boot(config: &Config, store: &IdentityStore, advertise: &str) -> Result<Booted, Exit> {
    let memory = NodeMemory::new(store.clone());
    let local = memory.load()?;
    let founding = store.load_founding()?;
    let recalled = is_recalled(config, &local);
    if !recalled {
        check_not_ended(config, &local)?;
    }
    if let Some(holds) = holds(store, founding.as_ref())? {
        check_same_cluster(config, &holds)?;
        if !config.force_new_cluster && (config.init || config.token.is_some()) {
            tracing::info!(
                holds = holds.whom,
                "the directory holds an identity: it resumes, and --init, --join and a token are not needed"
            );
        }
    }
    recovery::settle(config, advertise, &memory)?;
    let local = memory.load()?;
    let existing = store.load_credentials()?;
    let credentials = match existing {
        // A lying manager that reports `removed` to all others must not end the cluster: no manager could then check a token.
        Some(credentials) if recalled && recovery::is_recorded_manager(config, store, &credentials) => credentials,
        Some(credentials) if (recalled || !is_valid(&credentials)) && has_token(config) => {
            joined(config, advertise, &memory, Some(credentials)).await?
        }
        // A certificate that is not valid yet does not count as expired: after boot, a machine's clock may be behind for a moment.
        Some(credentials) if is_expired(&credentials) => {
            recovery::self_sign(config, advertise, &memory, &credentials)?.unwrap_or(credentials)
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
                    "{dir} holds no identity: found a cluster with --init, or join one with --join HOST:PORT and a token, in --token-file FILE \
                     or systemd's credential {CREDENTIAL} (`muster token show worker` on a manager prints one)"
                ),
            ));
        }
    };
    // What a worker needs is in clear: leftovers of its time as a manager do not stop it.
    let is_worker = credentials.identity.node().is_some_and(|(_, role)| role == muster_messages::Role::Worker);
    let left = if is_worker { sealing::leave_former_data(config, &memory) } else { Ok(()) };
    if let Err(fault) = left.and_then(|()| sealing::settle_worker(config, &memory, &credentials)) {
        tracing::warn!(%fault, "cannot clear away Raft data and keys of this node's time as a manager");
    }
    let name: Name = config.name.parse()?;
    memory.update(|node| node.name = Some(name))?;
    if recalled {
        memory.update(|node| node.ended = None)?;
        say(
            "a manager had reported that this node is no longer a member; continuing, because it was started with a token",
        );
    }
    let founding = store.load_founding()?;
    let (raft, incompatible) = raft_data(config, &memory, &credentials, founding.is_some())?;
    if let (RaftData::Missing { .. } | RaftData::Damaged { .. }, true) =
        (&raft, no_other_manager(&local.managers, config, advertise))
    {
        return Err(unrecoverable(config, &raft));
    }
    if matches!(raft, RaftData::Damaged { .. }) {
        recovery::set_aside(&config.data_dir, recovery::DAMAGED)?;
    }
    Ok(Booted { memory, credentials, founding, raft, incompatible })
}

/// A token given to a node that a manager reported as removed or blocked overrides that report. A Raft member continues, and gets
/// the report again if it was true; any other node asks the leader.
fn is_recalled(config: &Config, local: &LocalNode) -> bool {
    // A token file that is configured for good and is gone after the join recalls no node.
    local.ended.is_some() && has_token(config) && matches!(config.token, Some(Ok(_)))
}

fn has_token(config: &Config) -> bool {
    config.token.is_some() && !config.join.is_empty()
}

/// A removed node can rejoin only as a new node: the operator starts it on an empty directory.
pub fn check_not_ended(config: &Config, local: &LocalNode) -> Result<(), Exit> {
    let Some((ended, trouble)) = local.ended.as_ref().and_then(|ended| Some((ended, trouble_of(ended)?))) else {
        return Ok(());
    };
    let (dir, NodeTrouble { message, .. }) = (config.data_dir.display(), trouble);
    Err(Exit::new(
        6,
        format!(
            "a manager reported at {} that this node is {}: {message}; if it is still a member (see `muster node ls`), start it with \
             --join and a token of its role; to join again as a new node, empty {dir} first",
            ended.at, ended.reason
        ),
    ))
}

/// The owner of a directory.
struct Holds {
    /// For messages.
    whom: String,
    /// The digests of its cluster's roots, its own first.
    digests: Vec<String>,
    /// Its certificate has expired.
    is_expired: bool,
}

fn holds(store: &IdentityStore, founding: Option<&Founding>) -> Result<Option<Holds>, Exit> {
    let digests = store.root_digests()?;
    let holds = store.load_credentials()?.map(|credentials| {
        let identity = &credentials.identity;
        let node = identity.node().map_or_else(String::new, |(node, _)| node.to_string());
        let whom = format!("node {node} of cluster {}", identity.cluster);
        Holds { whom, digests, is_expired: is_expired(&credentials) }
    });
    let begun = || {
        let Founding { node, cluster, root_cert_pem, .. } = founding?;
        let whom = format!("node {node}, which has begun to found cluster {cluster}");
        let digests = muster_pki::digest(root_cert_pem).into_iter().collect();
        Some(Holds { whom, digests, is_expired: false })
    };
    Ok(holds.or_else(begun))
}

/// An identity wins over flags, which stay in unit files long after they were needed. But the node would search for its old cluster
/// while the operator expects it in another one. A token shows which cluster was meant.
fn check_same_cluster(config: &Config, holds: &Holds) -> Result<(), Exit> {
    let Some(token) = config.token.as_ref().filter(|_| !config.join.is_empty()) else { return Ok(()) };
    let dir = config.data_dir.display();
    let token = match token {
        Ok(token) => JoinToken::parse(token.expose()),
        Err(unreadable) => {
            tracing::warn!(holds = holds.whom, unreadable, "the directory holds an identity and needs no token");
            return Ok(());
        }
    };
    let token = match token {
        Ok(token) => token,
        Err(bad) => {
            tracing::warn!(holds = holds.whom, %bad, "--token is not a join token; the directory holds an identity and needs none");
            return Ok(());
        }
    };
    // A node whose certificate expired while its cluster took another root asks for one with a token of that: the cluster decides.
    if holds.digests.contains(&token.digest) || holds.is_expired && !config.force_new_cluster {
        return Ok(());
    }
    let own = holds.digests.first().cloned().unwrap_or_default();
    Err(Exit::new(
        6,
        format!(
            "{}: {dir} holds {}, whose root has the digest {own}, and the token is for a cluster whose root has the digest \
             {}. To continue as this node, start it without --join and token. To join the other cluster as a new node, give \
             it an empty directory, and remove the old node in its cluster (`muster node rm`)",
            ErrorCode::DigestMismatch,
            holds.whom,
            token.digest
        ),
    ))
}

fn is_expired(credentials: &NodeCredentials) -> bool {
    credentials.identity.not_after <= Clock.wall()
}

/// Valid now: a manager whose clock was ahead may have signed a certificate that begins later.
fn is_valid(credentials: &NodeCredentials) -> bool {
    let begins = muster_pki::not_before_of_pem(&credentials.cert_pem).unwrap_or_default();
    begins <= Clock.wall() && !is_expired(credentials)
}

async fn joined(
    config: &Config,
    advertise: &str,
    memory: &NodeMemory,
    rekey: Option<NodeCredentials>,
) -> Result<NodeCredentials, Exit> {
    let token = match &config.token {
        Some(Ok(token)) => token.expose().to_owned(),
        Some(Err(unreadable)) => return Err(Exit::new(2, unreadable.clone())),
        None => return Err(Exit::new(2, missing_token(config))),
    };
    if let Some(place) = &config.token_is_exposed {
        tracing::warn!(
            "every user of this machine can read the join token {place}; give it as a credential of systemd, as MUSTER_TOKEN, or \
             in a file that only this user may read"
        );
    }
    let args = JoinArgs {
        addrs: config.join.clone(),
        token,
        name: config.name.parse()?,
        advertise: advertise.to_owned(),
        release: config.release.clone(),
        labels: config.labels.clone(),
        rekey,
    };
    systemd::ready(format_args!("joining through {}", config.join.join(", ")));
    let say = |progress: &muster_agent::JoinProgress| {
        say(progress);
        systemd::ready(progress);
    };
    match join(memory, args, &JoinConfig::default(), say).await {
        Ok(joined) => Ok(joined.credentials),
        Err(error) => Err(Exit::new(error.exit_status(), muster_kernel::Fault::from(error).0)),
    }
}

/// What to do about a join without a token.
pub(super) fn missing_token(config: &Config) -> String {
    let none = if config.token_from == TokenSource::EmptyCredential {
        format!(", and the credential {CREDENTIAL} that systemd passes is empty")
    } else {
        String::new()
    };
    format!(
        "--join needs a token: in MUSTER_TOKEN, the file of --token-file, or systemd's credential {CREDENTIAL}{none}. `muster token \
         show worker` on a manager prints one"
    )
}

/// The addresses in a founder's own first certificate. Loopback is always included.
fn own_ips(advertise: &str) -> Vec<IpAddr> {
    let ip = advertise.parse::<SocketAddr>().ok().map(|a| a.ip());
    ip.into_iter().filter(|ip| !ip.is_unspecified()).collect()
}

pub(super) fn raft_data(
    config: &Config,
    memory: &NodeMemory,
    credentials: &NodeCredentials,
    founding: bool,
) -> Result<(RaftData, Option<String>), Exit> {
    let mut found = disk::state(&config.data_dir.join("raft"), memory.store().keys());
    if recovery::is_outlived(&found, credentials.identity.incarnation) == Ok(true) {
        recovery::set_aside(&config.data_dir, recovery::FENCED)?;
        memory.update(|node| node.held_member_id = None)?;
        found = disk::DirState::Absent;
    }
    let found = match (found, memory.load()?.held_member_id) {
        // The data is intact and stays where it is.
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

fn no_other_manager(known: &[String], config: &Config, advertise: &str) -> bool {
    known.iter().chain(&config.join).all(|addr| addr == advertise || *addr == config.listen)
}

fn unrecoverable(config: &Config, raft: &RaftData) -> Exit {
    let dir = config.data_dir.join("raft");
    let what = match raft {
        RaftData::Damaged { file, why, .. } => format!("the Raft data is damaged: {file}: {why}"),
        _ => format!("the Raft data that was in {} is missing", dir.display()),
    };
    Exit::new(
        1,
        format!(
            "{what}, and no other manager is known to this node, so it cannot get the state. Either put the \
             directory back from a backup of this node and start again, or, if the cluster is lost, empty {} and found a new \
             cluster with --init",
            config.data_dir.display()
        ),
    )
}

#[cfg(test)]
mod tests;
