//! Going on alone: a member's data read without its quorum, and written anew as those of a cluster of one.
//!
//! Keeps  RECOVER-4  everything that the copy holds is kept, also what it never heard to be committed: members that
//!                   are lost now may have acknowledged it.
//!        RECOVER-5  the old data or the new are there, whole, whatever the moment of a crash: one write replaces them.

use std::path::Path;
use std::sync::Arc;

use muster_messages::{FEATURE_LEVEL, RaftId, Revision, Tables, Term};
use muster_store::{Limits, Place, apply_empty, apply_seat_within, apply_within};

use crate::core::{CoreFault, Durable, HardMark, LogPoint, Recovered, SnapshotJob, content};
use crate::disk::{self, LogFault};

/// A copy, applied to the end of its log.
#[derive(Clone, Debug)]
pub struct Survey {
    pub seat: RaftId,
    pub tables: Tables,
    pub term: u64,
    /// Of the entries that were applied here, those that the member did not know to be committed.
    pub uncommitted: u64,
}

/// Why a member's data cannot be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotSurvey {
    #[error("{0}")]
    Disk(LogFault),
    #[error("no seat was ever held in it")]
    NoSeat,
    #[error("{0}")]
    Entry(#[from] CoreFault),
    #[error("the cluster is at feature level {0}, this build speaks {FEATURE_LEVEL}: use the build that wrote it")]
    Newer(u32),
}

/// Reads a member's directory while no member runs in it. Blocks. Opening it writes to it: whoever must not, opens a copy.
pub fn survey(dir: &Path) -> Result<Survey, CannotSurvey> {
    survey_of(&Limits::DEFAULT, disk::read(dir).map_err(CannotSurvey::Disk)?)
}

/// [`survey`], of what a disk gave back to a member with these limits.
pub fn survey_of(limits: &Limits, recovered: Recovered) -> Result<Survey, CannotSurvey> {
    let Recovered { seat, hard, snapshot, entries, .. } = recovered;
    let seat = seat.ok_or(CannotSurvey::NoSeat)?;
    let (mut tables, mut term) = snapshot.map_or_else(Default::default, |(head, tables)| (tables, head.term));
    let base = tables.revision.0;
    spoken_here(&tables)?;
    for entry in entries.into_iter().filter(|entry| entry.index > base) {
        let unreadable = |e| CoreFault(format!("entry {} cannot be read: {e}", entry.index));
        let (revision, place) =
            (Revision(entry.index), Place { revision: Revision(entry.index), term: Term(entry.term) });
        if entry.index != tables.revision.0 + 1 {
            let before = tables.revision;
            return Err(
                CoreFault(format!("entry {} follows {before}: entries are applied in order", entry.index)).into()
            );
        }
        // What was refused was refused on every member, and leaves nothing behind.
        let _outcome = match content(&entry).map_err(unreadable)? {
            None => {
                apply_empty(&mut tables, revision);
                Ok(())
            }
            Some(crate::core::Content::Command1(command)) => apply_within(limits, &mut tables, place, &command),
            Some(crate::core::Content::Seat1(change)) => apply_seat_within(limits, &mut tables, revision, &change),
        };
        // What follows may be written as this build cannot read.
        spoken_here(&tables)?;
        term = term.max(entry.term);
    }
    let uncommitted = tables.revision.0.saturating_sub(hard.commit.max(base));
    Ok(Survey { seat, tables, term: term.max(hard.term), uncommitted })
}

fn spoken_here(tables: &Tables) -> Result<(), CannotSurvey> {
    match tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level) {
        level if level > FEATURE_LEVEL => Err(CannotSurvey::Newer(level)),
        _ => Ok(()),
    }
}

/// RECOVER-5. Writes a member's data anew: these tables, in which `seat` is the one voter. Blocks; no member runs in it.
pub fn replace(dir: &Path, seat: RaftId, term: u64, tables: Tables) -> Result<(), LogFault> {
    disk::write(dir, written_anew(seat, term, tables))
}

/// The one write of [`replace`].
pub fn written_anew(seat: RaftId, term: u64, tables: Tables) -> Durable {
    let index = tables.revision.0;
    let job = SnapshotJob::new(LogPoint { index, term }, (vec![seat.0], vec![]), tables);
    let (head, data) = job.run();
    Durable {
        number: 1,
        sync: true,
        start_over: Some(seat),
        install: Some((head, Arc::new(data))),
        hard: HardMark { term, vote: 0, commit: index },
        ..Durable::default()
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::{
        Change, ClusterId, ClusterRecord, Command, Incarnation, Moment, Name, NodeId, NodeRecord, Principal, Role,
        Secret, WallTime,
    };
    use muster_store::recovery::{Recovery, next_incarnation, recover};

    use super::*;
    use crate::core::{Entry, Input, RaftConfig, RaftCore, command_entry};
    use crate::drain::logger;

    const AT: WallTime = WallTime(1_700_000_000_000);

    fn node(n: u128) -> NodeRecord {
        NodeRecord::new(NodeId::from_entropy(n), Name::sanitized(&format!("n{n}")), Role::Manager, AT)
    }

    fn entry(index: u64, change: Change) -> Entry {
        let command = Command::idempotent(AT, Principal::Operator, "a test").change(change);
        Entry { index, term: 7, ..command_entry(&command).unwrap() }
    }

    /// A follower's data: founded, two writes in its log, of which it knows one to be committed.
    fn follower() -> Recovered {
        let cluster = ClusterRecord {
            id: ClusterId::from_entropy(7),
            name: Name::sanitized("default"),
            incarnation: Incarnation(1),
            feature_level: FEATURE_LEVEL,
            root_cert_pem: "root".to_owned(),
            root_key_pem: Secret::new("key"),
            founded_at: AT,
            revision: Revision(0),
        };
        let found = Change::Found { cluster: Box::new(cluster), founder: Box::new(node(1)), tokens: vec![] };
        let label = |n: &str| Change::UpdateLabels {
            node: node(1).id,
            add: [("write".to_owned(), n.to_owned())].into(),
            remove: vec![],
        };
        Recovered {
            seat: Some(RaftId(1)),
            hard: HardMark { term: 7, vote: 1, commit: 3 },
            snapshot: None,
            truncated: LogPoint::default(),
            entries: vec![
                entry(1, found),
                Entry { index: 2, term: 7, ..Entry::default() },
                entry(3, label("committed")),
                entry(4, label("acknowledged elsewhere")),
            ],
        }
    }

    fn written(tables: &Tables) -> &str {
        &tables.nodes[&node(1).id].labels["write"]
    }

    #[test]
    fn a_write_that_this_member_did_not_know_to_be_committed_is_kept() {
        let survey = survey_of(&Limits::DEFAULT, follower()).unwrap();
        assert_eq!((survey.seat, survey.term, survey.uncommitted), (RaftId(1), 7, 1));
        assert_eq!(written(&survey.tables), "acknowledged elsewhere");
    }

    #[test]
    fn what_was_written_anew_leads_alone_in_a_term_of_its_own_and_holds_everything() {
        let dir = tempfile::tempdir().unwrap();
        let raft = dir.path().join("raft");
        replace(&raft, RaftId(1), 6, Tables { revision: Revision(9), ..Tables::default() }).unwrap(); // older data
        let Survey { mut tables, term, .. } = survey_of(&Limits::DEFAULT, follower()).unwrap();
        let recovery = Recovery {
            node: node(1).id,
            admit_as: None,
            addr: "10.0.0.1:4400".to_owned(),
            incarnation: next_incarnation(tables.cluster.as_ref().unwrap(), AT),
            at: AT,
            reason: "a test".to_owned(),
        };
        let seat = recover(&mut tables, &recovery).unwrap().raft_id;
        for _again in 0..2 {
            replace(&raft, seat, term + 1, tables.clone()).unwrap();
            let found = survey(&raft).unwrap();
            assert_eq!((found.seat, found.term, found.uncommitted, &found.tables), (seat, 8, 0, &tables));
        }
        let (config, read) = (RaftConfig::default(), disk::read(&raft).unwrap());
        let mut core = RaftCore::open(config.clone(), recovery.node, read, 1, Moment(0), logger()).unwrap();
        let mut now = Moment(0);
        let mut leads = false;
        for _tick in 0..200 {
            now = now + config.tick;
            core.step(now, Input::Tick);
            let batch = core.turn(now).unwrap();
            if let Some(last) = batch.make_durable.last() {
                core.step(now, Input::Persisted { number: last.number });
            }
            leads |= core.status(now).leading;
        }
        assert!(leads, "it needs nobody");
        assert_eq!(written(core.tables()), "acknowledged elsewhere");
        assert!(core.tables().revision > tables.revision);
    }

    #[test]
    fn data_without_a_seat_and_data_of_a_newer_build_are_refused() {
        assert_eq!(survey_of(&Limits::DEFAULT, Recovered::default()).unwrap_err(), CannotSurvey::NoSeat);
        let Survey { mut tables, .. } = survey_of(&Limits::DEFAULT, follower()).unwrap();
        let cluster = (*tables.cluster.clone().unwrap()).clone();
        tables.cluster = Some(Arc::new(ClusterRecord { feature_level: FEATURE_LEVEL + 1, ..cluster }));
        let job = SnapshotJob::new(LogPoint { index: 4, term: 7 }, (vec![1], vec![]), tables.clone());
        let unreadable = Entry { index: 5, term: 7, data: vec![0xff; 8].into(), ..Entry::default() };
        let newer = Recovered {
            snapshot: Some((job.run().0, tables)),
            truncated: LogPoint { index: 4, term: 7 },
            entries: vec![unreadable],
            ..follower()
        };
        assert_eq!(survey_of(&Limits::DEFAULT, newer).unwrap_err(), CannotSurvey::Newer(FEATURE_LEVEL + 1));
    }
}
