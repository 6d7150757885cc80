//! Workloads on a session: their lists for the agent, and its requests for certificates.

use muster_messages::wire::WorkloadRequest;
use muster_messages::{WorkloadEntry, WorkloadSelector};

use super::*;

/// The workloads in frames of this batch: the revision, and how many.
fn workloads_shown(w: &World) -> Vec<(u64, usize)> {
    let page = |e: &Effect| match e {
        Effect::Send { frame, .. } => match &**frame {
            HostFrame::Workloads(page) => Some((page.revision.0, page.entries.len())),
            _ => None,
        },
        _ => None,
    };
    w.out.iter().filter_map(page).collect()
}

#[test]
fn agent_is_sent_its_workloads_when_they_change() {
    let entry = WorkloadEntry::new("shop/web".parse().unwrap(), [WorkloadSelector::UnixUid(1)]);
    let one: Applying = Arc::new(vec![Arc::new(entry)]);
    let update = |w: &mut World, revision, workloads: Option<&Applying>| {
        w.workloads(revision, workloads);
        workloads_shown(w)
    };
    let mut w = World::new();
    w.open();
    assert_eq!(update(&mut w, 5, None), [], "there was never a workload: no frame that an older agent could not read");
    assert_eq!(w.views(), 1);
    assert_eq!(update(&mut w, 6, Some(&one)), [(6, 1)]);
    assert_eq!(w.views(), 0, "the view is the same");
    assert_eq!(update(&mut w, 7, Some(&one)), []);
    assert_eq!(update(&mut w, 8, Some(&Applying::default())), [(8, 0)]);
    assert_eq!(update(&mut w, 9, Some(&one)), [(9, 1)]);
    // Another connection starts anew.
    w.out.clear();
    w.open();
    assert_eq!((w.views(), workloads_shown(&w)), (1, vec![(9, 1)]));
}

#[test]
fn request_for_a_workload_carries_the_nodes_certificate() {
    let mut w = World::new();
    w.open();
    let request = WorkloadRequest::certificate("shop/web".parse().unwrap(), vec![0x30, 7]);
    // Not passed on: the leader may be of an earlier release, and could not decode it. And not refused for good, although this manager knows
    // neither the node nor any workload: it may lag behind.
    let known = known(Role::Worker, 3, Liveness::Ready);
    for record_state in [None, Some((4, NodeRecordState::Absent)), Some((5, known))] {
        if let Some((revision, record_state)) = record_state.clone() {
            w.node_update(revision, record_state);
        }
        w.frame(AgentFrame::Ask { id: 8, ask: AgentAsk::SignWorkload(request.clone()) });
        let refused = w.out.iter().find_map(|e| match e {
            Effect::Send { frame, .. } => match &**frame {
                HostFrame::Answer { id: 8, result: Err(error) } => Some((error.code, error.retry_after_ms)),
                _ => None,
            },
            _ => None,
        });
        assert_eq!(refused, Some((ErrorCode::NotKnownHereYet, Some(200))), "{record_state:?}");
    }
    assert_eq!(w.session.open(), (0, 0));
    w.workloads(6, Some(&Applying::default()));
    w.frame(AgentFrame::Ask { id: 9, ask: AgentAsk::SignWorkload(request.clone()) });
    let call = w.out.iter().find_map(|e| match e {
        Effect::CallLeader { id: 9, call, .. } => Some(&**call),
        _ => None,
    });
    let Some(PeerCall::SignWorkload { identity, pin, request: passed }) = call else { panic!("{call:?}") };
    assert_eq!((identity.serial.as_str(), *pin, passed), ("aa", identity.pin, &request));
}
