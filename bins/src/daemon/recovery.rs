//! Disaster recovery: one manager continues alone, from its own data or from a backup.
//!
//! Invariants  RECOVER-6  a recovery that was begun is finished by the next start, as it was first decided.
//!             RECOVER-7  a manager is not split off while the quorum may still return: one that proves its identity counts.
//!             RECOVER-8  a manager runtime never runs on data of an older incarnation than its certificate's.
//! `muster_store::recovery` changes the tables, `muster_raft_member::recovery` the disk.

mod expired;
mod plan;
mod restore;
mod set_aside;

use std::collections::BTreeSet;
use std::path::Path;

use muster_agent::NodeMemory;
use muster_gateway::{DialError, Dialer};
use muster_kernel::Clock;
use muster_messages::protocol::Service;
use muster_messages::{Change, Command, Incarnation, Name, NodeId, Principal, RaftId, Tables, WallTime};
use muster_pki::{IdentityStore, Recovering};
use muster_raft_member::disk;
use muster_raft_member::recovery::{CannotSurvey, Survey, replace, survey};
use muster_store::LogPosition;
use muster_store::recovery::{Consequences, Recovery, next_incarnation, recover};

pub use self::expired::{is_recorded_manager, self_sign};
pub use self::plan::print_plan;
pub use self::set_aside::{DAMAGED, FENCED, delete_expired_periodically, set_aside};
use super::boot::{Exit, say};
use super::config::Config;

/// Printed after a restore.
const CLOSED_NOTICE: &str = "the restored cluster is closed: it admits no node, no join and no user. Remove or revoke what was \
     removed or revoked after the backup was made (`muster node rm`, `muster token revoke`, `muster user revoke`), then \
     run `muster recovery open`";

/// The reason in the events that a forced recovery writes.
const FORCE_FLAG: &str = "--force-new-cluster";

/// Begins the requested recovery, or finishes one that was begun. Blocks.
pub fn settle(config: &Config, advertise: &str, memory: &NodeMemory) -> Result<(), Exit> {
    let store = memory.store();
    let decided = match store.load_recovery()? {
        Some(decided) => decided,
        None => {
            let decided = match &config.restore {
                Some(file) => restore::decide(config, advertise, memory, file)?,
                None if config.force_new_cluster => {
                    let survey = survey_of(&config.data_dir.join("raft"), store)?;
                    let Some(decided) = force(config, advertise, store, &survey)? else {
                        say(format_args!("{FORCE_FLAG}: this node is already the only manager; nothing was changed"));
                        return Ok(());
                    };
                    decided
                }
                None => return Ok(()),
            };
            store.begin_recovery(&decided)?;
            decided
        }
    };
    finish(config, memory, &decided)
}

/// Decides a forced recovery, unless there is nothing to do or a reason against it.
fn force(config: &Config, advertise: &str, store: &IdentityStore, survey: &Survey) -> Result<Option<Recovering>, Exit> {
    let node = own_node(config, store)?;
    let others = survey.tables.members.values().filter(|m| m.node != node).count();
    if others == 0 && survey.tables.members.contains_key(&survey.member_id) {
        return Ok(None);
    }
    quorum_is_lost(&survey.tables, node, &answering(&survey.tables, node, advertise))?;
    let who = Survivor { node, admit_as: None, advertise: advertise.to_owned() };
    decide(config, who, survey.tables.clone(), Clock.wall()).map(Some)
}

fn own_node(config: &Config, store: &IdentityStore) -> Result<NodeId, Exit> {
    let node = store.load_credentials()?.and_then(|c| c.identity.node());
    let none =
        || Exit::new(6, format!("{} holds no node identity: nothing to recover from", config.data_dir.display()));
    node.map(|(node, _)| node).ok_or_else(none)
}

fn survey_of(raft: &Path, store: &IdentityStore) -> Result<Survey, Exit> {
    survey(raft, store.keys()).map_err(|why| cannot_survey(raft, &why))
}

fn cannot_survey(raft: &Path, why: &CannotSurvey) -> Exit {
    let dir = raft.display();
    let way_out = "use another manager's directory, or a backup";
    match why {
        CannotSurvey::NotMember => {
            Exit::new(6, format!("{dir} holds no manager's data, so there is nothing to recover from: {way_out}"))
        }
        CannotSurvey::Disk(fault) if matches!(fault.kind, disk::FaultKind::Io | disk::FaultKind::NoKey) => {
            Exit::new(1, fault.to_string())
        }
        why => Exit::new(6, format!("cannot recover from the manager's data in {dir}: {why}; {way_out}")),
    }
}

/// The names of the other voters that answer at their addresses with their own certificate. A connection alone proves nothing: a
/// load balancer accepts connections for managers that are gone.
fn answering(tables: &Tables, me: NodeId, advertise: &str) -> BTreeSet<String> {
    // During a rotation others have certificates of another root.
    let root_pem = tables.recorded_roots_pem();
    let others = tables.members.values().filter(|m| m.voter && m.node != me && m.addr != advertise);
    let asked: Vec<_> = others
        .map(|member| {
            let (node, addr, root_pem) = (member.node, member.addr.clone(), root_pem.clone());
            (node, std::thread::spawn(move || answers(node, &addr, &root_pem)))
        })
        .collect();
    let answers = asked.into_iter().filter_map(|(node, answer)| answer.join().unwrap_or(false).then_some(node));
    answers.map(|node| name_of(tables, node)).collect()
}

/// Whether the process at `addr` proves that it is `node`. Blocks. A certificate that is not valid now counts as valid: if a clock
/// or the certificate is wrong, the manager may still run.
fn answers(node: NodeId, addr: &str, root_pem: &str) -> bool {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return true };
    // Anonymous: our own certificate may have expired. Managers serve joiners; their answer does not matter here.
    let dialer = Dialer::anonymous(root_pem);
    match runtime.block_on(dialer.dial(addr, Service::Join, Some(node))) {
        Ok(_) => true,
        Err(error) => error.is_after_identity() || matches!(error, DialError::Clock { .. }),
    }
}

fn name_of(tables: &Tables, node: NodeId) -> String {
    tables.nodes.get(&node).map_or_else(|| node.to_string(), |record| record.name.to_string())
}

/// RECOVER-7.
fn quorum_is_lost(tables: &Tables, me: NodeId, answering: &BTreeSet<String>) -> Result<(), Exit> {
    let voters = tables.members.values().filter(|m| m.voter).count();
    let own = tables.member_of(me).is_some_and(|m| m.voter);
    let needed = voters / 2 + 1;
    if answering.len() + usize::from(own) < needed {
        return Ok(());
    }
    let names: Vec<&str> = answering.iter().map(String::as_str).collect();
    Err(Exit::new(
        6,
        format!(
            "the quorum is not lost: of {voters} managers {needed} are enough, and {} {}; continue with them. If their data is lost or not \
             to be kept, stop them first. Nothing was changed",
            names.join(", "),
            if names.len() == 1 { "answers" } else { "answer" },
        ),
    ))
}

/// The manager that continues.
struct Survivor {
    node: NodeId,
    /// Its name, if the state does not know it.
    admit_as: Option<Name>,
    advertise: String,
}

/// Decides what must stay the same however often the remaining steps are repeated.
fn decide(config: &Config, who: Survivor, mut tables: Tables, at: WallTime) -> Result<Recovering, Exit> {
    let cluster = tables.cluster.clone().ok_or_else(|| Exit::new(6, "the state is empty: nothing to recover from"))?;
    let recovery = recovery(&who, next_incarnation(&cluster, at), at);
    recover(&mut tables, &recovery).map_err(|why| Exit::new(6, format!("{why}: nothing to recover from")))?;
    let Survivor { node, admit_as, advertise } = who;
    let (Some(cluster), Some(record)) = (&tables.cluster, tables.nodes.get(&node)) else {
        return Err(Exit::new(1, "this node is missing in the recovered state"));
    };
    let lifetime = config.settings.certificates.lifetime.0;
    Ok(Recovering { admit_as, ..Recovering::decide(cluster, node, record.granted, &advertise, lifetime, at)? })
}

fn recovery(who: &Survivor, incarnation: Incarnation, at: WallTime) -> Recovery {
    let reason = if who.admit_as.is_some() { restore::RESTORE_FLAG } else { FORCE_FLAG };
    let (addr, admit_as) = (who.advertise.clone(), who.admit_as.clone());
    Recovery { node: who.node, admit_as, addr, incarnation, at, reason: reason.to_owned() }
}

/// RECOVER-6. Each step checks whether an earlier run has completed it.
fn finish(config: &Config, memory: &NodeMemory, decided: &Recovering) -> Result<(), Exit> {
    let raft = config.data_dir.join("raft");
    let member_id = match recovery_state(config, (&raft, memory.store()), decided)? {
        Found::Done(member_id) => member_id,
        Found::Before(tables, term) => {
            let (tables, done) = recovered(*tables, decided)?;
            replace(&raft, memory.store().keys(), done.raft_id, term + 1, tables)?;
            say(plan::sentence(&done));
            done.raft_id
        }
    };
    let credentials =
        decided.credentials().map_err(|why| Exit::new(1, format!("the recovery's certificate: {why}")))?;
    memory.store().save_credentials(&credentials)?;
    memory.update(|node| {
        node.held_member_id = Some(member_id);
        // The known managers are lost or obsolete. Those that return connect to this one.
        node.managers.clear();
        // The backup still accepts nodes, users and tokens that were removed after it was made.
        node.admission_closed |= decided.admit_as.is_some();
    })?;
    if decided.admit_as.is_some() {
        say(format_args!("{CLOSED_NOTICE}"));
    }
    Ok(memory.store().finish_recovery()?)
}

enum Found {
    /// The data has the new incarnation and this member id.
    Done(RaftId),
    /// The data must be made from these tables, of this term.
    Before(Box<Tables>, u64),
}

fn recovery_state(
    config: &Config,
    (raft, store): (&Path, &IdentityStore),
    decided: &Recovering,
) -> Result<Found, Exit> {
    if decided.admit_as.is_some() && disk::state(raft, store.keys()) == disk::DirState::Absent {
        let (tables, term) = restore::read(config)?;
        return Ok(Found::Before(Box::new(tables), term));
    }
    let Survey { member_id, tables, term, .. } = survey_of(raft, store)?;
    let done = tables.cluster.as_ref().is_some_and(|cluster| cluster.incarnation >= decided.incarnation);
    Ok(if done { Found::Done(member_id) } else { Found::Before(Box::new(tables), term) })
}

/// The tables of the new incarnation, including the certificate made for it.
fn recovered(mut tables: Tables, decided: &Recovering) -> Result<(Tables, Consequences), Exit> {
    let Recovering { node, admit_as, advertise, incarnation, at, certificate, .. } = decided;
    if tables.cluster.as_ref().is_none_or(|cluster| cluster.root_cert_pem != decided.root_pem) {
        return Err(Exit::new(6, "this recovery was begun with the state of another cluster"));
    }
    let who = Survivor { node: *node, admit_as: admit_as.clone(), advertise: advertise.clone() };
    let done = recover(&mut tables, &recovery(&who, *incarnation, *at))?;
    let record = if tables.records_identities() {
        let certificate = Box::new(decided.issued()?);
        let replaces = tables.certificates.get(node).and_then(|row| Some(row.current.as_ref()?.serial.clone()));
        Change::IssueCertificate { node: *node, certificate, held: None, replaces }
    } else {
        Change::RecordCertificate { node: *node, certificate: certificate.clone() }
    };
    let command = Command::idempotent(*at, Principal::Operator, FORCE_FLAG).change(record);
    let place = LogPosition::from(tables.revision.next());
    muster_store::apply(&mut tables, place, &command)
        .map_err(|why| Exit::new(1, format!("the certificate of the recovery: {why}")))?;
    Ok((tables, done))
}

/// RECOVER-8.
///
/// # Errors
/// The data cannot be read now: it may be of any incarnation.
pub fn is_outlived(found: &disk::DirState, newest: Incarnation) -> Result<bool, disk::LogFault> {
    match found {
        disk::DirState::Present { incarnation, .. } => Ok(incarnation.is_some_and(|found| found < newest)),
        disk::DirState::Unreadable(fault) => Err(fault.clone()),
        disk::DirState::Absent | disk::DirState::Damaged(_) | disk::DirState::Newer(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests;
