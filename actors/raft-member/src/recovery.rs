//! Recovery of one member alone: reads its data without a quorum and rewrites them as those of a cluster of one.
//!
//! Invariants  RECOVER-4  everything in the log is kept, including entries not known to be committed: members that are lost now may
//!                        have acknowledged them.
//!             RECOVER-5  after a crash at any moment either the old or the new data are there, complete: one write replaces them.

use std::path::Path;
use std::sync::Arc;

use muster_messages::{FEATURE_LEVEL, RaftId, Revision, Tables, Term};
use muster_sealing::Keys;
use muster_store::{Limits, LogPosition, apply_empty, apply_membership_within, apply_within};

use crate::core::{CoreFault, Durable, HardMark, LogPoint, Recovered, SnapshotJob, content};
use crate::disk::{self, LogFault};

/// A replica, applied to the end of its log.
#[derive(Clone, Debug)]
pub struct Survey {
    pub member_id: RaftId,
    pub tables: Tables,
    pub term: u64,
    /// The applied entries that the member did not know to be committed.
    pub uncommitted: u64,
}

/// Why a cluster cannot continue from a member's data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotSurvey {
    #[error("{0}")]
    Disk(LogFault),
    #[error("the data has never belonged to a Raft member")]
    NotMember,
    #[error("{0}")]
    Entry(#[from] CoreFault),
    #[error(
        "the cluster is at feature level {0}, this build supports {FEATURE_LEVEL}: use the build that wrote the data"
    )]
    Newer(u32),
}

/// Reads a member's directory while no member runs in it. Blocks. Opening writes to the directory: open a copy to avoid
/// that.
pub fn survey(dir: &Path, keys: &Keys) -> Result<Survey, CannotSurvey> {
    survey_of(&Limits::DEFAULT, disk::read(dir, keys).map_err(CannotSurvey::Disk)?)
}

/// [`survey`] of recovered data of a member with these limits.
pub fn survey_of(limits: &Limits, recovered: Recovered) -> Result<Survey, CannotSurvey> {
    let Recovered { member_id, hard, snapshot, entries, .. } = recovered;
    let member_id = member_id.ok_or(CannotSurvey::NotMember)?;
    let (mut tables, mut term) = snapshot.map_or_else(Default::default, |(head, tables)| (tables, head.term));
    let base = tables.revision.0;
    check_supported(&tables)?;
    for entry in entries.into_iter().filter(|entry| entry.index > base) {
        let unreadable = |e| CoreFault(format!("cannot decode entry {}: {e}", entry.index));
        let (revision, position) =
            (Revision(entry.index), LogPosition { revision: Revision(entry.index), term: Term(entry.term) });
        if entry.index != tables.revision.0 + 1 {
            let before = tables.revision;
            return Err(
                CoreFault(format!("entry {} follows {before}: entries must be applied in order", entry.index)).into()
            );
        }
        // A refused command was refused on every member and changes nothing.
        let _outcome = match content(&entry).map_err(unreadable)? {
            None => {
                apply_empty(&mut tables, revision);
                Ok(())
            }
            Some(crate::core::Content::Command1(command)) => apply_within(limits, &mut tables, position, &command),
            Some(crate::core::Content::Membership1(change)) => {
                apply_membership_within(limits, &mut tables, revision, &change)
            }
        };
        // Later entries may use an encoding that this build cannot read.
        check_supported(&tables)?;
        term = term.max(entry.term);
    }
    let uncommitted = tables.revision.0.saturating_sub(hard.commit.max(base));
    Ok(Survey { member_id, tables, term: term.max(hard.term), uncommitted })
}

fn check_supported(tables: &Tables) -> Result<(), CannotSurvey> {
    match tables.cluster.as_ref().map_or(0, |cluster| cluster.feature_level) {
        level if level > FEATURE_LEVEL => Err(CannotSurvey::Newer(level)),
        _ => Ok(()),
    }
}

/// RECOVER-5. Rewrites a member's data: these tables, with `member_id` as the only voter. Blocks; no member runs in the
/// directory.
pub fn replace(dir: &Path, keys: &Keys, member_id: RaftId, term: u64, tables: Tables) -> Result<(), LogFault> {
    disk::write(dir, replacement_write(member_id, term, tables), keys)
}

/// The single write of [`replace`].
pub fn replacement_write(member_id: RaftId, term: u64, tables: Tables) -> Durable {
    let index = tables.revision.0;
    let job = SnapshotJob::new(LogPoint { index, term }, (vec![member_id.0], vec![]), tables);
    let (head, data) = job.run();
    Durable {
        number: 1,
        sync: true,
        start_over: Some(member_id),
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

    /// A follower's data: the cluster and two writes are in its log, and it knows one of them to be committed.
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
            member_id: Some(RaftId(1)),
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
    fn write_not_known_to_be_committed_is_kept() {
        let survey = survey_of(&Limits::DEFAULT, follower()).unwrap();
        assert_eq!((survey.member_id, survey.term, survey.uncommitted), (RaftId(1), 7, 1));
        assert_eq!(written(&survey.tables), "acknowledged elsewhere");
    }

    #[test]
    fn replaced_data_leads_alone_and_holds_everything() {
        let dir = tempfile::tempdir().unwrap();
        let raft = dir.path().join("raft");
        let keys = Keys::open(dir.path()).unwrap();
        replace(&raft, &keys, RaftId(1), 6, Tables { revision: Revision(9), ..Tables::default() }).unwrap(); // older data
        let Survey { mut tables, term, .. } = survey_of(&Limits::DEFAULT, follower()).unwrap();
        let recovery = Recovery {
            node: node(1).id,
            admit_as: None,
            addr: "10.0.0.1:4400".to_owned(),
            incarnation: next_incarnation(tables.cluster.as_ref().unwrap(), AT),
            at: AT,
            reason: "a test".to_owned(),
        };
        let member_id = recover(&mut tables, &recovery).unwrap().raft_id;
        for _again in 0..2 {
            replace(&raft, &keys, member_id, term + 1, tables.clone()).unwrap();
            let found = survey(&raft, &keys).unwrap();
            assert_eq!((found.member_id, found.term, found.uncommitted, &found.tables), (member_id, 8, 0, &tables));
        }
        let (config, read) = (RaftConfig::default(), disk::read(&raft, &keys).unwrap());
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
        assert!(leads, "it leads alone");
        assert_eq!(written(core.tables()), "acknowledged elsewhere");
        assert!(core.tables().revision > tables.revision);
    }

    #[test]
    fn data_without_member_or_of_newer_build_is_refused() {
        assert_eq!(survey_of(&Limits::DEFAULT, Recovered::default()).unwrap_err(), CannotSurvey::NotMember);
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
