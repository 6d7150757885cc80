use muster_messages::wire::{DataLoss, ManagerReport, MembershipReply, MembershipRequest};
use muster_messages::*;
use muster_role_manager::core::{Answer, AskId};

use crate::world::*;

fn request(n: u64) -> MembershipRequest {
    MembershipRequest {
        advertise: format!("127.0.0.1:44{n:02}"),
        held: None,
        data_lost: None,
        feature_level: FEATURE_LEVEL,
    }
}
fn reply(world: &World, ask: AskId) -> Result<MembershipReply, ErrorBody> {
    match world.answers.get(&ask) {
        Some(Answer::Membership(reply)) => reply.clone(),
        other => panic!("{other:?}"),
    }
}
/// Asks without the machine, as any holder of its certificate could.
fn ask(world: &mut World, n: u64, request: MembershipRequest) -> Result<MembershipReply, ErrorBody> {
    let before = world.machine(n).clone();
    world.machine(n).replies.clear();
    world.request_membership(id(n), request);
    world.run_for(secs(3));
    let reply = world.machine(n).replies.last().cloned();
    *world.machine(n) = before;
    reply.ok_or_else(|| ErrorBody::new(ErrorCode::Internal, "no reply"))
}

fn report(world: &mut World, n: u64, report: ManagerReport) -> Result<(), ErrorBody> {
    let ask = world.report_manager(id(n), report);
    world.run_moment();
    match world.answers.get(&ask) {
        Some(Answer::Reported(result)) => result.clone(),
        other => panic!("{other:?}"),
    }
}

/// Asks, and is refused at once.
fn refusal(world: &mut World, n: u64, request: MembershipRequest) -> ErrorBody {
    let ask = world.request_membership(id(n), request);
    world.keep_membership_answers = true;
    world.run_moment();
    world.keep_membership_answers = false;
    reply(world, ask).unwrap_err()
}

// E4
#[test]
fn demoted_node_with_old_certificate_cannot_join_raft() {
    let mut world = World::new(3, 0);
    world.demote(3);
    world.settle();
    let answer = ask(&mut world, 3, request(3)).unwrap();
    assert_eq!(answer, MembershipReply::NotWanted { message: "the desired role of n3 is worker".to_owned() });
    assert_eq!(world.tables.members.len(), 2);
}

// E3
#[test]
fn removed_node_cannot_join_raft_through_any_relay() {
    let mut world = World::new(3, 1);
    world.stop(4);
    world.remove(4, true);
    world.settle();
    let answer = ask(&mut world, 4, request(4)).unwrap();
    assert!(
        matches!(&answer, MembershipReply::NotWanted { message } if message.contains("blocked until")),
        "{answer:?}"
    );
    assert_eq!(world.tables.members.len(), 3);
}

// E20, E17: a double join once created two members. S47
#[test]
fn lost_reply_leads_to_the_same_member_id() {
    let mut world = World::new(3, 1);
    world.machine(4).no_membership_requests = true;
    world.promote(4);
    world.run_for(secs(1));
    world.request_membership(id(4), request(4));
    world.run_moment();
    world.machine(4).held = None;
    let again = ask(&mut world, 4, request(4)).unwrap();
    let member = world.tables.member_of(id(4)).unwrap().clone();
    assert_eq!(again, MembershipReply::IsMember { raft_id: member.raft_id });
    assert_eq!(world.tables.members.len(), 4);
}

#[test]
fn unsupported_feature_level_refuses_membership_by_name() {
    let mut world = World::new(3, 1);
    world.tables.cluster = Some(std::sync::Arc::new(ClusterRecord {
        id: ClusterId::from_entropy(1),
        name: "c".parse().unwrap(),
        incarnation: Incarnation(1),
        feature_level: 3,
        root_cert_pem: String::new(),
        root_key_pem: Secret::new(""),
        founded_at: WallTime(0),
        revision: Revision(1),
    }));
    world.machine(4).no_membership_requests = true;
    world.promote(4);
    world.run_for(secs(1));
    let old = |n| MembershipRequest { feature_level: 2, ..request(n) };
    let refused = refusal(&mut world, 4, old(4));
    assert_eq!((refused.code, refused.code.exit_status()), (ErrorCode::GateClosed, 6));
    assert_eq!(refused.detail(detail::GATE_REASON), Some(detail::GateReason::FeatureLevel.into()));
    assert_eq!(refused.details, r#"{"level":3,"reason":"feature-level","speaks":2}"#);
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForJoin));
    let sentence =
        "the cluster is at feature level 3, and n4 supports 2 at most; install a build of Muster that supports 3 there";
    assert_eq!((refused.message.as_str(), world.message(4).as_str()), (sentence, sentence));
    assert!(world.tables.member_of(id(4)).is_none());

    let voter = MembershipRequest { held: Some(RaftId(3)), ..old(3) };
    let refused = refusal(&mut world, 3, voter.clone());
    assert_eq!(refused.code, ErrorCode::GateClosed, "nor is one admitted that is already a member");
    world.run_for(secs(1));
    assert!(world.message(3).contains("n3 supports 2 at most"), "it is shown");
    assert_eq!(world.voters(), 3);

    let answer = ask(&mut world, 3, MembershipRequest { feature_level: 3, ..voter }).unwrap();
    assert_eq!(answer, MembershipReply::IsMember { raft_id: RaftId(3) });
    assert_eq!(world.reason(3), None);
    let answer = ask(&mut world, 4, MembershipRequest { feature_level: 3, ..request(4) }).unwrap();
    assert!(matches!(answer, MembershipReply::IsMember { .. }), "{answer:?}");
}

// E1, S130: promoted, and its manager runtime cannot start.
#[test]
fn reported_failure_is_shown_until_membership_is_requested() {
    let mut world = World::new(3, 2);
    world.machine(4).no_membership_requests = true;
    world.promote(4);
    world.run_for(secs(1));
    let failing = |why: &str| ManagerReport { feature_level: FEATURE_LEVEL, failure: Some(why.to_owned()) };
    let running = ManagerReport { feature_level: FEATURE_LEVEL, failure: None };
    report(&mut world, 4, failing("DIR/raft: permission denied")).unwrap();
    let sentence = "the manager runtime of n4 is not running: DIR/raft: permission denied";
    assert_eq!(world.reason(4), Some(WaitReason::WaitingForJoin));
    assert_eq!(world.message(4), sentence);
    assert!(world.tables.member_of(id(4)).is_none(), "a node that cannot run it does not become a member");

    // One that votes is shown, too, and keeps its seat: its disk may have room again in a minute.
    report(&mut world, 3, failing("no space left")).unwrap();
    assert!(world.message(3).contains("no space left"));
    assert_eq!(world.voters(), 3);
    report(&mut world, 3, running).unwrap();
    assert_eq!(world.reason(3), None);

    // A worker's report is dropped, and the longest one costs a few hundred bytes.
    report(&mut world, 5, failing("I am a worker")).unwrap();
    assert_eq!(world.reason(5), None);
    report(&mut world, 4, failing(&"ä".repeat(500_000))).unwrap();
    assert!(world.message(4).len() < 2_000);
    let answer = ask(&mut world, 4, request(4)).unwrap();
    assert!(matches!(answer, MembershipReply::IsMember { .. }), "{answer:?}");
}

/// The state does not record when a member stopped taking part: its change is as old as this leader's knowledge, not as its role.
#[test]
fn age_of_an_absent_member_counts_from_its_report() {
    let mut world = World::new(3, 0);
    world.run_for(secs(3600));
    let reported_at = world.now.wall;
    report(&mut world, 3, ManagerReport { feature_level: FEATURE_LEVEL, failure: Some("disk".to_owned()) }).unwrap();
    assert_eq!(world.reason(3), Some(WaitReason::WaitingForJoin));
    let began = world.core.as_ref().unwrap().view().began[&id(3)];
    assert!(began >= reported_at, "{began}, reported at {reported_at}");
}

/// A request and a report of a former process arrive after those of the process that runs: that one has asked, and does not ask again.
#[test]
fn late_report_of_a_former_process_is_dropped() {
    let mut world = World::new(3, 0);
    let failing = || ManagerReport { feature_level: FEATURE_LEVEL, failure: Some("no space left".to_owned()) };
    report(&mut world, 3, failing()).unwrap();
    report(&mut world, 1, failing()).unwrap();
    assert_eq!(
        (world.reason(1), world.reason(3)),
        (Some(WaitReason::WaitingForJoin), Some(WaitReason::WaitingForJoin))
    );
    // A process of which it is true repeats it.
    for _ in 0..4 {
        world.run_for(secs(15));
        assert_eq!(world.reason(3), Some(WaitReason::WaitingForJoin));
        report(&mut world, 3, failing()).unwrap();
    }
    assert_eq!(world.reason(1), None, "the leader takes part");
    world.run_for(secs(25));
    assert_eq!(world.reason(3), None, "the member takes part");
    // One that has acknowledged nothing since does not.
    world.stop_unnoticed(3);
    report(&mut world, 3, failing()).unwrap();
    world.run_for(secs(60));
    assert_eq!(world.reason(3), Some(WaitReason::WaitingForJoin));
}

// S47
#[test]
fn moved_member_keeps_its_id_and_gets_its_new_address() {
    let mut world = World::new(3, 0);
    let moved = MembershipRequest {
        advertise: "127.0.0.1:5503".to_owned(),
        held: Some(RaftId(3)),
        data_lost: None,
        feature_level: FEATURE_LEVEL,
    };
    let answer = ask(&mut world, 3, moved).unwrap();
    assert_eq!(answer, MembershipReply::IsMember { raft_id: RaftId(3) });
    assert_eq!(world.tables.member_of(id(3)).unwrap().addr, "127.0.0.1:5503");
    assert_eq!(world.tables.members.len(), 3);
    world.settle();
}

// S68
#[test]
fn undialable_advertised_address_is_invalid() {
    for bad in ["", "host", "host:", ":44", "host:0", "host:70000", "0.0.0.0:44", "[::]:44", "a b:44", "http://x:44"] {
        let mut world = World::new(3, 1);
        world.machine(4).no_membership_requests = true;
        world.promote(4);
        world.run_for(secs(1));
        let open_request =
            MembershipRequest { advertise: bad.to_owned(), held: None, data_lost: None, feature_level: FEATURE_LEVEL };
        let ask = world.request_membership(id(4), open_request);
        world.keep_membership_answers = true;
        world.run_moment();
        assert!(reply(&world, ask).is_err_and(|e| e.code == ErrorCode::Invalid), "{bad:?}");
    }
}

#[test]
fn voter_with_lost_data_rejoins_after_its_removal() {
    for damaged in [false, true] {
        let mut world = World::new(3, 0);
        world.stop_unnoticed(3);
        world.run_for(secs(1));
        let machine = world.machine(3);
        machine.held = None;
        machine.data_lost = Some(DataLoss { damaged, file: "raft/0001.log".to_owned() });
        world.hold_membership_changes = true;
        let data_lost = world.machines[&id(3)].data_lost.clone();
        let answer = ask(&mut world, 3, MembershipRequest { data_lost, ..request(3) });
        let expected = if damaged { WaitReason::RaftDataDamaged } else { WaitReason::RaftDataMissing };
        assert!(matches!(answer, Ok(MembershipReply::Wait { reason, .. }) if reason == expected), "{answer:?}");
        assert_eq!(world.reason(3), Some(expected));
        assert!(world.message(3).contains("raft/0001.log"));
        world.hold_membership_changes = false;
        world.machine(3).up = true;
        world.settle();
        assert!(world.is_manager(3));
        assert_eq!(world.tables.member_of(id(3)).unwrap().raft_id, RaftId(4));
    }
}

#[test]
fn lost_data_never_costs_the_quorum() {
    let mut world = World::new(3, 0);
    world.stop_unnoticed(3);
    world.stop_unnoticed(2);
    world.run_for(TICK);
    // Two of three are silent: the leader is about to step down and must not shrink the configuration.
    let lost = DataLoss { damaged: false, file: "raft".to_owned() };
    world.request_membership(id(3), MembershipRequest { data_lost: Some(lost), ..request(3) });
    world.run_moment();
    assert_eq!(world.voters(), 3);
}

#[test]
fn node_with_an_older_members_data_becomes_a_new_member() {
    let mut world = World::new(3, 0);
    world.stop_unnoticed(3);
    world.run_for(secs(1));
    world.machine(3).held = Some(RaftId(99));
    world.machine(3).up = true;
    world.machine(3).last_ack = Some(world.now.at - secs(5));
    world.settle();
    assert!(world.is_manager(3));
    assert_eq!(world.tables.member_of(id(3)).unwrap().raft_id, RaftId(4));
}

#[test]
fn newer_membership_request_replaces_an_older_one() {
    let mut world = World::new(3, 1);
    world.machine(4).no_membership_requests = true;
    world.promote(4);
    world.run_for(secs(1));
    world.hold_probes = true;
    world.keep_membership_answers = true;
    let first = world.request_membership(id(4), request(4));
    let second = world.request_membership(id(4), request(4));
    world.run_moment();
    assert!(matches!(reply(&world, first), Ok(MembershipReply::Wait { .. })));
    world.hold_probes = false;
    world.run_moment();
    assert!(matches!(reply(&world, second), Ok(MembershipReply::IsMember { .. })));
}

#[test]
fn a_member_that_does_not_lead_decides_nothing() {
    use muster_role_manager::core::*;
    let world = World::new(3, 1);
    let mut core = RoleManager::new(id(2), world.config.clone(), None);
    let mut effects = Vec::new();
    let replica = std::sync::Arc::new(Replica { tables: world.tables.clone(), raft: RaftStatus::default() });
    core.step(world.now, Input::Seen(replica), &mut effects);
    core.step(world.now, Input::MembershipRequested { ask: AskId(1), node: id(4), request: request(4) }, &mut effects);
    let role_request = RoleRequest {
        ask: AskId(2),
        node: id(4),
        change: RequestedChange::Role(Role::Manager),
        by: Principal::Operator,
        request: RequestId(5),
    };
    core.step(world.now, Input::RoleRequested(role_request), &mut effects);
    let codes: Vec<_> = effects
        .iter()
        .map(|e| match e {
            Effect::Answer(_, Answer::Membership(Err(e)) | Answer::Role(Err(e))) => e.code,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, [ErrorCode::Unreachable; 2]);
}

// Found by the random scenarios: all others are leaving, and the one that stays comes back without its data.
#[test]
fn only_remaining_manager_may_become_a_new_member() {
    let mut world = World::new(3, 0);
    world.hold_membership_changes = true;
    world.demote(1);
    world.demote(3);
    world.run_for(TICK);
    world.stop(2);
    let machine = world.machine(2);
    machine.held = None;
    machine.data_lost = Some(DataLoss { damaged: false, file: "raft".to_owned() });
    world.run_for(secs(1));
    world.hold_membership_changes = false;
    world.start(2);
    world.settle();
    assert!(world.is_manager(2) && world.is_worker(1) && world.is_worker(3));
}
