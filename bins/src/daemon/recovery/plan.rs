//! Prints what a recovery would do, without doing it. Reads a copy of the data: opening a log writes to it.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::{ClusterId, Name, RaftId};
use muster_pki::{IDENTITY_FOLDER, IdentityStore};
use muster_raft_member::recovery::Survey;
use muster_store::recovery::Consequences;
use serde::Serialize;

use super::{Exit, FORCE_FLAG, Survivor, answering, cannot_survey, decide, own_node, quorum_is_lost, recovered};
use crate::daemon::config::{Config, OutputFormat};
use crate::daemon::{lock, locked};

#[derive(Serialize)]
struct Plan {
    cluster: ClusterId,
    cluster_name: Name,
    raft_id_before: RaftId,
    /// False: its state may miss entries that the voters had.
    voter: bool,
    /// Entries that are kept although this node never learned that they were committed.
    uncommitted: u64,
    /// The other voters that accept connections.
    answering: Vec<String>,
    #[serde(flatten)]
    done: Consequences,
}

/// Prints what `--force-new-cluster` would do here. Changes nothing.
pub fn print_plan(config: &Config, format: OutputFormat) -> Result<ExitCode, Exit> {
    check_not_running(&config.data_dir)?;
    let text = match plan(config)? {
        None => "this node is already the only manager: there is nothing to do\n".to_owned(),
        Some(plan) if format == OutputFormat::Json => format!("{}\n", serde_json::to_string(&plan)?),
        Some(plan) => plan.to_string(),
    };
    // The reader may have closed the pipe.
    let _closed = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn plan(config: &Config) -> Result<Option<Plan>, Exit> {
    let dir = &config.data_dir;
    if !dir.join(IDENTITY_FOLDER).exists() {
        return Err(Exit::new(6, format!("{} holds no node identity: nothing to recover from", dir.display())));
    }
    let memory = NodeMemory::new(IdentityStore::open(dir)?);
    locked::unlock_now(config, memory.store())?;
    super::super::boot::check_not_ended(config, &memory.load()?)?;
    if memory.store().load_recovery()?.is_some() {
        return Err(Exit::new(6, "a recovery was begun here and not finished: the next start finishes it"));
    }
    let node = own_node(config, memory.store())?;
    let Survey { tables, member_id, uncommitted, .. } = survey_copy(&dir.join("raft"), memory.store())?;
    if tables.members.values().all(|m| m.node == node) && tables.members.contains_key(&member_id) {
        return Ok(None);
    }
    let answering = answering(&tables, node, &config.advertise);
    quorum_is_lost(&tables, node, &answering)?;
    let voter = tables.member_of(node).is_some_and(|m| m.voter);
    let who = Survivor { node, admit_as: None, advertise: config.advertise.clone() };
    let decided = decide(config, who, tables.clone(), Clock.wall())?;
    let (tables, done) = recovered(tables, &decided)?;
    let cluster = tables.cluster.ok_or_else(|| Exit::new(1, "the cluster is missing in the recovered state"))?;
    Ok(Some(Plan {
        cluster: cluster.id,
        cluster_name: cluster.name.clone(),
        raft_id_before: member_id,
        voter,
        uncommitted,
        answering: answering.into_iter().collect(),
        done,
    }))
}

fn check_not_running(dir: &Path) -> Result<(), Exit> {
    match lock::is_held(dir) {
        true => Err(Exit::new(1, format!("a musterd runs on {}; stop it first", dir.display()))),
        false => Ok(()),
    }
}

fn survey_copy(raft: &Path, store: &IdentityStore) -> Result<Survey, Exit> {
    let copy = tempfile::tempdir()?;
    if raft.exists() {
        copy_folder(raft, copy.path())?;
    }
    // Errors name the original directory, not the copy's.
    muster_raft_member::recovery::survey(copy.path(), store.keys()).map_err(|why| {
        let Exit { status, sentence } = cannot_survey(raft, &why);
        let (copy, raft) = (copy.path().display().to_string(), raft.display().to_string());
        Exit::new(status, sentence.replace(&copy, &raft))
    })
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            std::fs::create_dir(&target)?;
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// One line about a completed recovery, for the log.
pub fn sentence(done: &Consequences) -> String {
    let lost: Vec<&str> = done.lost.iter().map(|lost| lost.name.as_str()).collect();
    let lost = if lost.is_empty() { "none".to_owned() } else { lost.join(", ") };
    format!(
        "{} continues alone, in incarnation {} of the cluster; no longer managers: {lost}; promote other nodes to restore a quorum",
        done.name, done.incarnation
    )
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { done, cluster, cluster_name, .. } = self;
        writeln!(f, "{FORCE_FLAG} on {} ({}) of cluster {cluster_name} ({cluster}):", done.name, done.node)?;
        let voter = if self.voter { "" } else { " (not a voter: its state may miss entries that the voters had)" };
        writeln!(f, "  member id    {}{voter} -> {}, the only voter", self.raft_id_before, done.raft_id)?;
        let (was, is) = (done.incarnation_before, done.incarnation);
        writeln!(f, "  incarnation  {was} -> {is}; certificates of {was} are valid only for obtaining new ones")?;
        let uncommitted = match self.uncommitted {
            0 => String::new(),
            n => format!(", with {n} last entries that may never have been acknowledged"),
        };
        writeln!(
            f,
            "  data         kept up to revision {}{uncommitted}; continues at {}",
            done.revision_before, done.revision
        )?;
        for lost in &done.lost {
            let member_id =
                lost.raft_id.map_or_else(|| "no member id".to_owned(), |member_id| format!("member id {member_id}"));
            writeln!(f, "  worker now   {} ({}) at {}, {member_id}", lost.name, lost.node, lost.addr)?;
        }
        let answering = if self.answering.is_empty() { "none".to_owned() } else { self.answering.join(", ") };
        writeln!(f, "  answering    {answering}, of the other voters")?;
        writeln!(f, "  workers      {}; they fetch new certificates by themselves", done.workers)?;
        writeln!(f, "  leases       {}; none is granted before its duration has passed", done.leases)?;
        writeln!(f, "Nothing was changed.")
    }
}
