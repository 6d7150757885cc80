//! What a recovery would do, said without doing it. The data are read from a copy: opening a log writes to it.

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use muster_agent::NodeMemory;
use muster_kernel::Clock;
use muster_messages::{ClusterId, Name, RaftId};
use muster_pki::IdentityStore;
use muster_raft_member::recovery::Survey;
use muster_store::recovery::Consequences;
use serde::Serialize;

use super::{Exit, FORCED, Survivor, answering, cannot_survey, decide, own_node, quorum_is_lost, recovered};
use crate::daemon::config::{Config, PlanFormat};

#[derive(Serialize)]
struct Plan {
    cluster: ClusterId,
    cluster_name: Name,
    raft_id_before: RaftId,
    /// False: its copy may lack what the voters had.
    voter: bool,
    /// Entries that are kept although this node never heard them to be committed.
    uncommitted: u64,
    /// The other voters that accept connections.
    answering: Vec<String>,
    #[serde(flatten)]
    done: Consequences,
}

/// Prints what `--force-new-cluster` would do here. Changes nothing.
pub fn print_plan(config: &Config, format: PlanFormat) -> Result<ExitCode, Exit> {
    nobody_runs_here(&config.data_dir)?;
    let text = match plan(config)? {
        None => "this node is the only manager already: there is nothing to do\n".to_owned(),
        Some(plan) if format == PlanFormat::Json => format!("{}\n", serde_json::to_string(&plan)?),
        Some(plan) => plan.to_string(),
    };
    // Whoever asked may have read enough.
    let _closed = std::io::stdout().write_all(text.as_bytes());
    Ok(ExitCode::SUCCESS)
}

fn plan(config: &Config) -> Result<Option<Plan>, Exit> {
    let dir = &config.data_dir;
    if !dir.join("identity").exists() {
        return Err(Exit::new(6, format!("{} holds no identity of a node: nothing to go on with", dir.display())));
    }
    let memory = NodeMemory::new(IdentityStore::open(dir)?);
    super::super::boot::not_ended(config, &memory.load()?)?;
    if memory.store().load_recovery()?.is_some() {
        return Err(Exit::new(6, "a recovery was begun here and not finished: the next start finishes it"));
    }
    let node = own_node(config, memory.store())?;
    let Survey { tables, seat, uncommitted, .. } = survey_of_a_copy(&dir.join("raft"))?;
    if tables.members.values().all(|m| m.node == node) && tables.members.contains_key(&seat) {
        return Ok(None);
    }
    let answering = answering(&tables, node, &config.advertise);
    quorum_is_lost(&tables, node, &answering)?;
    let voter = tables.seat_of(node).is_some_and(|m| m.voter);
    let who = Survivor { node, admit_as: None, advertise: config.advertise.clone() };
    let decided = decide(config, who, tables.clone(), Clock.wall())?;
    let (tables, done) = recovered(tables, &decided)?;
    let cluster = tables.cluster.ok_or_else(|| Exit::new(1, "the recovered state lacks its cluster"))?;
    Ok(Some(Plan {
        cluster: cluster.id,
        cluster_name: cluster.name.clone(),
        raft_id_before: seat,
        voter,
        uncommitted,
        answering: answering.into_iter().collect(),
        done,
    }))
}

/// As the daemon's own lock does, without leaving a trace in it.
fn nobody_runs_here(dir: &Path) -> Result<(), Exit> {
    let Ok(file) = File::open(dir.join("lock")) else { return Ok(()) };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            Err(Exit::new(1, format!("a musterd runs on {}; stop it first", dir.display())))
        }
        _ => Ok(()),
    }
}

fn survey_of_a_copy(raft: &Path) -> Result<Survey, Exit> {
    let copy = tempfile::tempdir()?;
    if raft.exists() {
        copy_folder(raft, copy.path())?;
    }
    // Said of where the data are, not of where the copy was.
    muster_raft_member::recovery::survey(copy.path()).map_err(|why| {
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

/// One line for the log of whoever did it.
pub fn sentence(done: &Consequences) -> String {
    let lost: Vec<&str> = done.lost.iter().map(|lost| lost.name.as_str()).collect();
    let lost = if lost.is_empty() { "nobody".to_owned() } else { lost.join(", ") };
    format!(
        "{} goes on alone, in incarnation {} of the cluster; no managers any more: {lost}; promote others to have a quorum again",
        done.name, done.incarnation
    )
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { done, cluster, cluster_name, .. } = self;
        writeln!(f, "{FORCED} on {} ({}) of cluster {cluster_name} ({cluster}):", done.name, done.node)?;
        let voter = if self.voter { "" } else { " (no voter: its copy may lack what the voters had)" };
        writeln!(f, "  seat         {}{voter} -> {}, the only voter", self.raft_id_before, done.raft_id)?;
        let (was, is) = (done.incarnation_before, done.incarnation);
        writeln!(
            f,
            "  incarnation  {was} -> {is}; certificates of {was} open nothing any more but the way to a new one"
        )?;
        let uncommitted = match self.uncommitted {
            0 => String::new(),
            n => format!(", with {n} entries at its end that may never have been acknowledged"),
        };
        writeln!(
            f,
            "  data         kept up to revision {}{uncommitted}; goes on at {}",
            done.revision_before, done.revision
        )?;
        for lost in &done.lost {
            let seat = lost.raft_id.map_or_else(|| "no seat".to_owned(), |seat| format!("seat {seat}"));
            writeln!(f, "  worker now   {} ({}) at {}, {seat}", lost.name, lost.node, lost.addr)?;
        }
        let answering = if self.answering.is_empty() { "nobody".to_owned() } else { self.answering.join(", ") };
        writeln!(f, "  answering    {answering}, of the other voters")?;
        writeln!(f, "  workers      {}; they fetch new certificates by themselves", done.workers)?;
        writeln!(f, "  leases       {}; nobody gets one before its duration has passed", done.leases)?;
        writeln!(f, "Nothing was changed.")
    }
}
