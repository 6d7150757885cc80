use super::*;

fn core() -> MembershipCore {
    MembershipCore::new(Config { advertise: "a:1".to_owned(), feature_level: 3, raft_dir: "DIR/raft".to_owned() })
}

fn is_member(member_id: u64) -> Result<MembershipReply, ErrorBody> {
    Ok(MembershipReply::IsMember { raft_id: RaftId(member_id) })
}

/// Steps, and returns what is to be done.
fn step(core: &mut MembershipCore, data: &mut RaftData, input: Input) -> Vec<Effect> {
    let mut out = Vec::new();
    core.step(data, input, &mut out);
    out
}

fn requested(core: &mut MembershipCore, data: &mut RaftData) -> MembershipRequest {
    match step(core, data, Input::AskDue).as_slice() {
        [Effect::Request(request)] => request.clone(),
        other => panic!("{other:?}"),
    }
}

/// MEMBERID-1: the old id is named, so that the leader removes it first, until a newer one is assigned.
#[test]
fn lost_data_is_reported_until_a_newer_id_is_assigned() {
    let (mut core, mut data) = (core(), RaftData::Missing { held: RaftId(4) });
    assert_eq!(
        step(&mut core, &mut data, Input::Started),
        [Effect::ShowTrouble(Some(Trouble::RaftDataMissing)), Effect::AskAfter(Duration::ZERO)]
    );
    let first = requested(&mut core, &mut data);
    let loss = DataLoss { damaged: false, file: "DIR/raft".to_owned() };
    assert_eq!((first.held, first.data_lost), (Some(RaftId(4)), Some(loss)));
    step(&mut core, &mut data, Input::Answered { answer: is_member(9), member_id: None });
    let second = requested(&mut core, &mut data);
    assert_eq!((second.held, second.data_lost), (None, None), "the new id has lost nothing");
    let effects = step(&mut core, &mut data, Input::Holds(Some(RaftId(9))));
    assert_eq!(effects, [Effect::ShowTrouble(None), Effect::Restored]);
    assert_eq!(data, RaftData::Present);
}

/// MEMBERID-1: the Raft member finds after the start that its data cannot be trusted. What was asked and published before says nothing about
/// the data that is there now.
#[test]
fn answer_from_before_the_loss_replaces_no_member() {
    let damaged = || RaftData::Damaged { held: Some(RaftId(4)), file: "DIR/raft".to_owned(), why: "short".to_owned() };
    let before = |order: [Input; 2]| {
        let (mut core, mut data) = (core(), RaftData::Present);
        requested(&mut core, &mut data);
        data = damaged();
        for input in order {
            let effects = step(&mut core, &mut data, input);
            assert!(!effects.contains(&Effect::Restored), "{effects:?}");
            assert_eq!(data, damaged());
        }
        (core, data)
    };
    let (holds, answer) =
        (Input::Holds(Some(RaftId(4))), Input::Answered { answer: is_member(4), member_id: Some(RaftId(4)) });
    before([answer.clone(), holds.clone()]);
    let (mut core, mut data) = before([holds, answer.clone()]);
    // It asks again by itself, and names the loss.
    assert!(matches!(step(&mut core, &mut data, answer).as_slice(), [Effect::AskAfter(_)]));
    let request = requested(&mut core, &mut data);
    assert_eq!((request.held, request.data_lost.map(|loss| loss.damaged)), (Some(RaftId(4)), Some(true)));
    step(&mut core, &mut data, Input::Holds(None));
    step(&mut core, &mut data, Input::Answered { answer: is_member(9), member_id: None });
    assert!(step(&mut core, &mut data, Input::Holds(Some(RaftId(9)))).contains(&Effect::Restored));
    assert_eq!(data, RaftData::Present);
}

#[test]
fn data_of_an_older_id_is_emptied_once() {
    let (mut core, mut data) = (core(), RaftData::Present);
    step(&mut core, &mut data, Input::Holds(Some(RaftId(4))));
    let answer = || Input::Answered { answer: is_member(9), member_id: Some(RaftId(4)) };
    assert!(step(&mut core, &mut data, answer()).contains(&Effect::Empty));
    assert_eq!(data, RaftData::Missing { held: RaftId(4) });
    // The Raft member has not restarted yet, and the leader answers again.
    assert!(!step(&mut core, &mut data, answer()).contains(&Effect::Empty));
}

#[test]
fn refusals_are_repeated_with_growing_pauses_and_logged_once() {
    let (mut core, mut data) = (core(), RaftData::None);
    let refused =
        || Input::Answered { answer: Err(ErrorBody::new(ErrorCode::Unreachable, "no session")), member_id: None };
    let first = step(&mut core, &mut data, refused());
    assert!(matches!(first.as_slice(), [Effect::Log { warn: false, .. }, Effect::AskAfter(FIRST_PAUSE)]), "{first:?}");
    let mut last = FIRST_PAUSE;
    for _ in 0..20 {
        match step(&mut core, &mut data, refused()).as_slice() {
            [Effect::AskAfter(pause)] => {
                assert!(*pause >= last && *pause <= MAX_PAUSE, "{pause:?} after {last:?}");
                last = *pause;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last, MAX_PAUSE);
}

/// While a request is in progress or scheduled, nothing schedules a second one.
#[test]
fn one_request_at_a_time() {
    let (mut core, mut data) = (core(), RaftData::None);
    assert_eq!(step(&mut core, &mut data, Input::NoLeader), []);
    step(&mut core, &mut data, Input::Holds(Some(RaftId(1))));
    step(&mut core, &mut data, Input::Answered { answer: is_member(1), member_id: Some(RaftId(1)) });
    assert_eq!(step(&mut core, &mut data, Input::NoLeader), [Effect::AskAfter(Duration::ZERO)]);
    assert_eq!(step(&mut core, &mut data, Input::NoLeader), []);
    // Removed while this manager was cut off: a new id is requested.
    step(&mut core, &mut data, Input::Answered { answer: is_member(1), member_id: Some(RaftId(1)) });
    assert_eq!(step(&mut core, &mut data, Input::Holds(None)), [Effect::AskAfter(FIRST_PAUSE)]);
}

#[test]
fn incompatible_level_is_final_and_bad_address_is_shown() {
    let (mut core, mut data) = (core(), RaftData::None);
    let answer = Err(ErrorBody::new(ErrorCode::GateClosed, "level 4"));
    let effects = step(&mut core, &mut data, Input::Answered { answer, member_id: None });
    assert_eq!(effects, [Effect::ReportIncompatible("level 4".to_owned())]);
    let answer = Ok(MembershipReply::Wait {
        reason: WaitReason::DialBackFailed,
        message: "a:1 does not answer".to_owned(),
        retry_after_ms: 400,
    });
    let effects = step(&mut core, &mut data, Input::Answered { answer, member_id: None });
    assert_eq!(effects[0], Effect::ShowTrouble(Some(Trouble::DialBackFailed("a:1 does not answer".to_owned()))));
    assert!(matches!(&effects[1], Effect::Log { warn: true, .. }), "{effects:?}");
}

/// Before it has a member id it asks anyway; a leader ends the time without one, also once the id is gone.
#[test]
fn only_a_member_is_without_a_leader() {
    let status = |raft_id, leader| RaftStatus { raft_id, leader, ..RaftStatus::default() };
    let (member_id, leader) = (Some(RaftId(4)), Some(RaftId(9)));
    for (raft_id, leader, without, has) in [
        (member_id, None, true, false),
        (member_id, member_id, false, true),
        (member_id, leader, false, true),
        (None, None, false, false),
        (None, leader, false, true),
    ] {
        let raft = status(raft_id, leader);
        assert_eq!((is_without_leader(&raft), has_leader(&raft)), (without, has), "{raft_id:?} {leader:?}");
    }
}
