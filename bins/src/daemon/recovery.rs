//! After a disaster: one manager goes on alone, with its own copy or with a backup.
//!
//! Keeps  RECOVER-6  a recovery that was begun is finished, with what was decided first, by whichever start comes next.
//!        RECOVER-7  whoever could still have its quorum back is not split off: a manager that answers as itself counts.
//!        RECOVER-8  a manager half never runs on data of an older incarnation than its certificate's.
//! What happens to the tables is in `muster_store::recovery`, what happens on disk in `muster_raft_member::recovery`.

mod aside;
mod expired;
mod plan;
mod restore;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use muster_agent::NodeMemory;
use muster_gateway::{DialError, DialTimeouts, Dialer};
use muster_kernel::Clock;
use muster_messages::protocol::Service;
use muster_messages::{Change, Command, Incarnation, Name, NodeId, Principal, RaftId, Tables, WallTime};
use muster_pki::{IdentityStore, Recovering};
use muster_raft_member::disk;
use muster_raft_member::recovery::{CannotSurvey, Survey, replace, survey};
use muster_store::Place;
use muster_store::recovery::{Consequences, Recovery, next_incarnation, recover};

pub use self::aside::{DAMAGED, FENCED, forget_in_time, set_aside};
pub use self::expired::{is_seated_manager, sign_again};
pub use self::plan::print_plan;
use super::boot::{Exit, say};
use super::config::Config;

/// How long another manager may take for each of connection, handshake and greeting: far above any network's round trip.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Printed after a restore.
const CLOSED: &str = "the restored cluster is closed: it admits no node, no join and no user. Remove or revoke what was \
     removed or revoked after the backup was made (`muster node rm`, `muster token revoke`, `muster user revoke`), then \
     run `muster recovery open`";

/// The events that it leaves say so.
const FORCED: &str = "--force-new-cluster";

/// Begins the recovery that was asked for, or finishes one that was begun. Blocks.
pub fn settle(config: &Config, advertise: &str, memory: &NodeMemory) -> Result<(), Exit> {
    let store = memory.store();
    let decided = match store.load_recovery()? {
        Some(decided) => decided,
        None => {
            let decided = match &config.restore {
                Some(file) => restore::decide(config, advertise, memory, file)?,
                None if config.force_new_cluster => {
                    let survey = survey_of(&config.data_dir.join("raft"))?;
                    let Some(decided) = force(config, advertise, store, &survey)? else {
                        say(format_args!("{FORCED}: this node is the only manager already; nothing is changed"));
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

/// Decides a recovery by force, unless there is nothing to do, or a reason not to.
fn force(config: &Config, advertise: &str, store: &IdentityStore, survey: &Survey) -> Result<Option<Recovering>, Exit> {
    let node = own_node(config, store)?;
    let others = survey.tables.members.values().filter(|m| m.node != node).count();
    if others == 0 && survey.tables.members.contains_key(&survey.seat) {
        return Ok(None);
    }
    quorum_is_lost(&survey.tables, node, &answering(&survey.tables, node, advertise))?;
    let who = Survivor { node, admit_as: None, advertise: advertise.to_owned() };
    decide(config, who, survey.tables.clone(), Clock.wall()).map(Some)
}

fn own_node(config: &Config, store: &IdentityStore) -> Result<NodeId, Exit> {
    let node = store.load_credentials()?.and_then(|c| c.identity.node());
    let none =
        || Exit::new(6, format!("{} holds no identity of a node: nothing to go on with", config.data_dir.display()));
    node.map(|(node, _)| node).ok_or_else(none)
}

fn survey_of(raft: &Path) -> Result<Survey, Exit> {
    survey(raft).map_err(|why| cannot_survey(raft, &why))
}

fn cannot_survey(raft: &Path, why: &CannotSurvey) -> Exit {
    let dir = raft.display();
    let way_out = "use another manager's directory, or a backup";
    match why {
        CannotSurvey::NoSeat => {
            Exit::new(6, format!("{dir} holds no manager's data, there is nothing to go on with: {way_out}"))
        }
        CannotSurvey::Disk(fault) if fault.kind == disk::FaultKind::Io => Exit::new(1, fault.to_string()),
        why => Exit::new(6, format!("the manager's data in {dir} cannot be gone on with: {why}; {way_out}")),
    }
}

/// The other voters that answer at their addresses with their own certificate, by name. A connection alone proves nothing: a
/// load balancer accepts them for managers that are gone.
fn answering(tables: &Tables, me: NodeId, advertise: &str) -> BTreeSet<String> {
    let root_pem = tables.cluster.as_ref().map(|cluster| cluster.root_cert_pem.clone()).unwrap_or_default();
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

/// Whether the process at `addr` proves that it is `node`. Blocks. A certificate that is not valid now is taken for one that
/// is: if a clock or the certificate is wrong, the manager may still run.
fn answers(node: NodeId, addr: &str, root_pem: &str) -> bool {
    let timeouts = DialTimeouts { connect: ANSWERS_WITHIN, tls: ANSWERS_WITHIN, greeting: ANSWERS_WITHIN };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return true };
    // Anonymous: our own certificate may have expired. Managers serve joiners; what they say to this one does not matter.
    let dialer = Dialer::anonymous(root_pem).with_timeouts(timeouts);
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
    let own = tables.seat_of(me).is_some_and(|m| m.voter);
    let needed = voters / 2 + 1;
    if answering.len() + usize::from(own) < needed {
        return Ok(());
    }
    let names: Vec<&str> = answering.iter().map(String::as_str).collect();
    Err(Exit::new(
        6,
        format!(
            "the quorum is not lost: of {voters} managers {needed} are enough, and {} {}; go on with them; if their data are lost or are not \
             to be kept, stop them first. Nothing was changed",
            names.join(", "),
            if names.len() == 1 { "answers" } else { "answer" },
        ),
    ))
}

/// Who goes on.
struct Survivor {
    node: NodeId,
    /// What to call it, if the state knows nothing of it.
    admit_as: Option<Name>,
    advertise: String,
}

/// What must be the same however often the rest is repeated.
fn decide(config: &Config, who: Survivor, mut tables: Tables, at: WallTime) -> Result<Recovering, Exit> {
    let cluster = tables.cluster.clone().ok_or_else(|| Exit::new(6, "the copy is empty: nothing to go on with"))?;
    let recovery = recovery(&who, next_incarnation(&cluster, at), at);
    recover(&mut tables, &recovery).map_err(|why| Exit::new(6, format!("{why}: nothing to go on with")))?;
    let Survivor { node, admit_as, advertise } = who;
    let (Some(cluster), Some(record)) = (&tables.cluster, tables.nodes.get(&node)) else {
        return Err(Exit::new(1, "the recovered state lacks this node"));
    };
    let lifetime = config.settings.certificates.lifetime.0;
    Ok(Recovering { admit_as, ..Recovering::decide(cluster, node, record.granted, &advertise, lifetime, at)? })
}

fn recovery(who: &Survivor, incarnation: Incarnation, at: WallTime) -> Recovery {
    let reason = if who.admit_as.is_some() { restore::RESTORED } else { FORCED };
    let (addr, admit_as) = (who.advertise.clone(), who.admit_as.clone());
    Recovery { node: who.node, admit_as, addr, incarnation, at, reason: reason.to_owned() }
}

/// RECOVER-6. Each step finds whether an earlier run has done it.
fn finish(config: &Config, memory: &NodeMemory, decided: &Recovering) -> Result<(), Exit> {
    let raft = config.data_dir.join("raft");
    let seat = match look(config, &raft, decided)? {
        Found::Done(seat) => seat,
        Found::Before(tables, term) => {
            let (tables, done) = recovered(*tables, decided)?;
            replace(&raft, done.raft_id, term + 1, tables)?;
            say(plan::sentence(&done));
            done.raft_id
        }
    };
    let credentials =
        decided.credentials().map_err(|why| Exit::new(1, format!("the recovery's certificate: {why}")))?;
    memory.store().save_credentials(&credentials)?;
    memory.update(|node| {
        node.held_seat = Some(seat);
        // They are lost, or of the past. Whoever comes back, comes here.
        node.managers.clear();
        // Nodes, users and tokens that were removed after the backup was made are valid in it.
        node.admission_closed |= decided.admit_as.is_some();
    })?;
    if decided.admit_as.is_some() {
        say(format_args!("{CLOSED}"));
    }
    Ok(memory.store().finish_recovery()?)
}

enum Found {
    /// The data are of the new incarnation, in this seat.
    Done(RaftId),
    /// They are to be made from these tables, of this term.
    Before(Box<Tables>, u64),
}

fn look(config: &Config, raft: &Path, decided: &Recovering) -> Result<Found, Exit> {
    if decided.admit_as.is_some() && disk::state(raft) == disk::DirState::Absent {
        let (tables, term) = restore::read(config)?;
        return Ok(Found::Before(Box::new(tables), term));
    }
    let Survey { seat, tables, term, .. } = survey_of(raft)?;
    let done = tables.cluster.as_ref().is_some_and(|cluster| cluster.incarnation >= decided.incarnation);
    Ok(if done { Found::Done(seat) } else { Found::Before(Box::new(tables), term) })
}

/// The tables of the new incarnation, which also know of the certificate that was made for it.
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
    let command = Command::idempotent(*at, Principal::Operator, FORCED).change(record);
    let place = Place::from(tables.revision.next());
    muster_store::apply(&mut tables, place, &command)
        .map_err(|why| Exit::new(1, format!("the certificate of the recovery: {why}")))?;
    Ok((tables, done))
}

/// RECOVER-8.
pub fn is_outlived(found: &disk::DirState, newest: Incarnation) -> bool {
    matches!(found, disk::DirState::Present { incarnation: Some(found), .. } if *found < newest)
}

#[cfg(test)]
mod tests;
