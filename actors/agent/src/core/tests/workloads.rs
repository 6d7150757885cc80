//! The workloads that hosts send, and requests for their certificates (AGENT-14).

use muster_messages::wire::{SignedWorkload, WorkloadRequest, WorkloadsPage};
use muster_messages::{WorkloadEntry, WorkloadSelector};

use super::*;

fn page(revision: u64, entries: &[&str]) -> HostFrame {
    let entry = |name: &&str| WorkloadEntry::new(name.parse().unwrap(), [WorkloadSelector::UnixUid(1)]);
    HostFrame::Workloads(WorkloadsPage {
        incarnation: Incarnation(1),
        revision: Revision(revision),
        page: 0,
        last: true,
        entries: entries.iter().map(entry).collect(),
    })
}

/// The workloads that the last step has published.
fn published(world: &World) -> Option<Vec<String>> {
    world.out.iter().find_map(|e| match e {
        Effect::PublishWorkloads { entries, .. } => Some(entries.iter().map(|entry| entry.name.to_string()).collect()),
        _ => None,
    })
}

fn names(of: &[&str]) -> Option<Vec<String>> {
    Some(of.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn workloads_of_a_host_are_published_after_its_view() {
    let mut world = World::worker();
    world.open();
    world.receive(page(5, &["a/b"]));
    assert_eq!(published(&world), None, "the host does not know this node yet");
    world.show(view(9, Role::Worker, 5));
    world.receive(page(6, &["a/b"]));
    assert_eq!(published(&world), names(&["a/b"]));
    // Another host lags behind, and still has what was removed.
    world.receive(page(9, &[]));
    world.lose();
    world.open();
    world.show(view(9, Role::Worker, 5));
    world.receive(page(8, &["a/b"]));
    assert_eq!(published(&world), None);
    world.receive(page(10, &["a/c"]));
    assert_eq!(published(&world), names(&["a/c"]));
}

#[test]
fn first_answer_of_a_host_without_a_list_means_no_workload() {
    let mut world = World::worker();
    world.open();
    world.receive(HostFrame::HeartbeatAck { revision: Revision(5) });
    assert_eq!(published(&world), None, "no view yet");
    world.show(view(9, Role::Worker, 5));
    world.receive(HostFrame::HeartbeatAck { revision: Revision(5) });
    assert_eq!(published(&world), names(&[]));
    world.receive(HostFrame::HeartbeatAck { revision: Revision(6) });
    assert_eq!(published(&world), None, "it is published once");
    world.receive(page(7, &["a/b"]));
    world.receive(HostFrame::HeartbeatAck { revision: Revision(8) });
    assert_eq!(published(&world), None, "and a list stays");
}

#[test]
fn removed_node_has_no_workloads() {
    let mut world = World::worker();
    world.open();
    world.show(view(9, Role::Worker, 5));
    world.receive(page(6, &["a/b"]));
    let (reason, message) = (RefusalReason::Removed, "it was removed".to_owned());
    world.receive(HostFrame::Ended(Refusal { reason, message, managers: vec![], retry_after_ms: None }));
    assert_eq!(published(&world), names(&[]));
}

#[test]
fn workload_request_is_answered_through_the_session() {
    let mut world = World::worker();
    world.open();
    world.show(view(9, Role::Worker, 5));
    let request = WorkloadRequest::certificate("a/b".parse().unwrap(), vec![0x30, 7]);
    world.step(Input::AskLeader { ask: AskId(3), question: AgentAsk::SignWorkload(request.clone()) });
    let id = world.out.iter().find_map(|e| match e {
        Effect::Send { frame, .. } => match &**frame {
            AgentFrame::Ask { id, ask: AgentAsk::SignWorkload(asked) } => (*asked == request).then_some(*id),
            _ => None,
        },
        _ => None,
    });
    let signed = SignedWorkload { text: "PEM".to_owned(), not_after: WallTime(9) };
    world.receive(HostFrame::Answer { id: id.unwrap(), result: Ok(AgentAnswer::SignedWorkload(signed.clone())) });
    let answered = Effect::LeaderAnswered { ask: AskId(3), result: Ok(AgentAnswer::SignedWorkload(signed)) };
    assert!(world.out.contains(&answered), "{:?}", world.out);
}

/// The manager runtime's request is not held back by those for workloads, however often their actor crashes with some in flight.
#[test]
fn workload_requests_leave_room_for_membership() {
    let mut world = World::worker();
    world.open();
    world.show(view(9, Role::Worker, 5));
    let ask = |world: &mut World, ask| {
        let request = WorkloadRequest::certificate("a/b".parse().unwrap(), vec![0x30, 7]);
        world.step(Input::AskLeader { ask: AskId(ask), question: AgentAsk::SignWorkload(request) });
        world.asked()
    };
    let first = ask(&mut world, 1).unwrap();
    for n in 2..9 {
        let is_sent = ask(&mut world, n).is_some();
        assert_eq!((is_sent, world.refused(n)), (n < 3, n >= 3), "{n}");
    }
    world.ask(9);
    assert!(world.asked().is_some() && !world.refused(9));
    world.receive(HostFrame::Answer { id: first.1, result: Err(unavailable()) });
    assert!(ask(&mut world, 10).is_some(), "an answer makes room");
}
