//! What a member starts with: a new cluster, its own data, or nothing.

use muster_messages::{Moment, RaftId};

use super::world::{logger, node_id};
use crate::core::{RaftConfig, RaftCore, Recovered};

/// The member id that a member starts with, and the one under which its first write replaces all data.
fn started(member_id: Option<u64>, founding: bool) -> (Option<RaftId>, Option<RaftId>) {
    let recovered = Recovered { member_id: member_id.map(RaftId), ..Recovered::default() };
    let (config, now) = (RaftConfig::default(), Moment(0));
    let mut core = RaftCore::start(config, node_id(1), recovered, founding, 7, now, logger()).unwrap();
    let batch = core.turn(now).unwrap();
    let replaced = batch.make_durable.iter().find_map(|write| write.start_over);
    (core.status(now).raft_id, replaced)
}

#[test]
fn only_a_disk_without_a_member_founds_a_cluster() {
    assert_eq!(started(None, true), (Some(RaftId(1)), Some(RaftId(1))));
    assert_eq!(started(Some(4), true), (Some(RaftId(4)), None), "it resumes, although it was to found one");
    assert_eq!(started(Some(4), false), (Some(RaftId(4)), None));
    assert_eq!(started(None, false), (None, None), "it waits for a leader");
}
