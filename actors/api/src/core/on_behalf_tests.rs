use std::sync::Arc;

use muster_messages::*;

use super::*;

fn node(n: u128) -> Principal {
    Principal::Node(NodeId::from_entropy(n))
}
fn key(scope: &str, member: &str, incarnation: u128) -> ParticipantKey {
    ParticipantKey { scope: scope.to_owned(), member: member.to_owned(), incarnation: SessionId(incarnation) }
}
fn participant(key: ParticipantKey, on: Option<u128>) -> Participant {
    Participant {
        key,
        node: on.map(NodeId::from_entropy),
        release: "1.0.0".parse().unwrap(),
        needs: Default::default(),
        phase: ParticipantPhase::Serving,
        token: Some(FencingToken(1)),
        since: WallTime(0),
        revision: Revision(0),
    }
}

/// A member of `db` on node 1, one that an operator announced, and a runner `r` of `schema` on node 1 under term 7.
fn world() -> Tables {
    let mut tables = Tables::default();
    let candidate = key(&candidates_scope("schema"), "r", 30);
    for (key, on) in [(key("db", "m", 10), Some(1)), (key("db", "by-hand", 20), None), (candidate, Some(1))] {
        tables.reconcilers.participants.insert(key.clone(), Arc::new(participant(key, on)));
    }
    let lease = runner_lease("schema");
    let spec = LeaseSpec { holder: Some("r".to_owned()), ..LeaseSpec::default() };
    let holding = Holding { token: FencingToken(7), ..Holding::default() };
    tables.objects.insert(
        lease.clone(),
        Arc::new(Object {
            namespace: lease.namespace.clone(),
            name: lease.name.clone(),
            meta: ObjectMeta::fresh(Uid(1)),
            body: ObjectBody::Lease(Lease { spec, holding }),
        }),
    );
    tables
}

fn at(lease: &ObjectKey) -> LeaseRef {
    LeaseRef { namespace: lease.namespace.clone(), name: lease.name.clone() }
}
fn acquire(lease: &ObjectKey, holder: &str, session: u128, duration_ms: u64) -> LeaseRequest {
    LeaseRequest::Acquire { lease: at(lease), holder: holder.to_owned(), session: SessionId(session), duration_ms }
}
fn allowed(request: &LeaseRequest) -> [bool; 4] {
    let user = Principal::User("ann".parse().unwrap());
    [Principal::Operator, node(1), node(2), user].map(|caller| lease(&world(), &caller, request).is_ok())
}

#[test]
fn leases_of_members_and_runners_belong_to_their_node() {
    let (theirs, anybodys) = ([true, true, false, false], [true, true, true, false]);
    let (member, fresh, runner) = (key("db", "m", 10).lease(), key("db", "new", 99).lease(), runner_lease("schema"));
    let (by_hand, no_caller) = ([true, false, false, false], [false; 4]);
    let release =
        |key: &ObjectKey| LeaseRequest::Release { lease: at(key), session: SessionId(10), token: FencingToken(1) };
    let renew =
        |key: &ObjectKey| LeaseRequest::Renew { session: SessionId(10), held: vec![(at(key), FencingToken(1))] };
    for (request, who) in [
        (acquire(&member, "m", 10, 15_000), theirs),
        (acquire(&member, "m", 11, 15_000), no_caller), // another session's
        (acquire(&member, "m", 10, 24 * 3_600_000), no_caller),
        (acquire(&fresh, "new", 99, 15_000), anybodys),
        (acquire(&ObjectKey::lease(MEMBERS_NAMESPACE, "what-else"), "m", 1, 15_000), no_caller),
        (release(&member), theirs),
        (renew(&member), theirs),
        (release(&key("db", "by-hand", 20).lease()), by_hand),
        (acquire(&runner, "r", 5, 15_000), theirs),
        (acquire(&runner, "other", 5, 15_000), by_hand), // no candidate
        (acquire(&runner_lease("no-candidates"), "r", 5, 15_000), by_hand),
        (renew(&runner), theirs),
        (release(&runner), theirs),
        (LeaseRequest::Delete { lease: at(&runner) }, by_hand),
        (LeaseRequest::DeleteHeld { lease: at(&runner) }, by_hand),
        (LeaseRequest::Create { lease: at(&fresh), holder: None, duration_ms: None }, by_hand),
        (LeaseRequest::Delete { lease: LeaseRef { namespace: "default".into(), name: "l".into() } }, [true; 4]),
    ] {
        assert_eq!(allowed(&request), who, "{request:?}");
    }
}

/// The node of the holder and an operator pass.
#[test]
fn former_runner_reads_which_candidate_holds_the_lease() {
    let (runner, session, token) = (at(&runner_lease("schema")), SessionId(10), FencingToken(6));
    let renew = LeaseRequest::Renew { session, held: vec![(runner.clone(), token)] };
    let release = LeaseRequest::Release { lease: runner, session, token };
    for request in [renew, release] {
        for caller in [node(1), Principal::Operator] {
            assert!(lease(&world(), &caller, &request).is_ok(), "{caller}: {request:?}");
        }
        let refused = lease(&world(), &node(2), &request).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
        let text = "r, on another node, holds the lease of schema's runner now: only that node may renew or release it";
        assert_eq!(refused.message, text);
    }
}

#[test]
fn node_acts_only_for_its_own_members_and_run() {
    let tables = world();
    let acts_for = |n, key: &ParticipantKey| for_participant(&tables, &node(n), key).is_ok();
    assert_eq!([1, 2].map(|n| acts_for(n, &key("db", "m", 10))), [true, false]);
    assert_eq!([1, 2].map(|n| acts_for(n, &key("db", "by-hand", 20))), [false, false], "announced by an operator");
    assert!(acts_for(2, &key("db", "gone", 77)), "a missing member cannot be changed");
    assert!(!acts_for(1, &key("db.eu", "m", 10)), "not a valid scope name");
    let runs = |n, term| for_runner(&tables, &node(n), "schema", FencingToken(term)).is_ok();
    assert_eq!(
        [(1, 7), (2, 7), (2, 6)].map(|(n, term)| runs(n, term)),
        [true, false, true],
        "term 6 is over: the store decides"
    );

    // Without its candidate record, no caller acts under its term or acquires it until it is announced again; its node
    // releases it.
    let mut tables = world();
    tables.reconcilers.participants.remove(&key(&candidates_scope("schema"), "r", 30));
    let (runner, by) = (runner_lease("schema"), |n| for_runner(&tables, &node(n), "schema", FencingToken(7)));
    assert_eq!([1, 2].map(|n| by(n).unwrap_err().code), [ErrorCode::Conflict; 2]);
    let asks = |n, request: &LeaseRequest| lease(&tables, &node(n), request).map_err(|refused| refused.code);
    assert_eq!(asks(1, &acquire(&runner, "r", 5, 15_000)), Err(ErrorCode::Conflict), "it retries");
    let back = LeaseRequest::Release { lease: at(&runner), session: SessionId(10), token: FencingToken(7) };
    assert_eq!(asks(1, &back), Ok(()));
}

#[test]
fn participant_is_announced_on_the_calling_node() {
    let announced_node = |p: Participant, caller: Principal| announced(p, &caller).map(|p| p.node);
    let one = NodeId::from_entropy(1);
    assert_eq!(announced_node(participant(key("db", "m", 5), None), node(1)).unwrap(), Some(one));
    assert!(announced_node(participant(key("db", "m", 5), Some(2)), node(1)).is_err());
    let like = |n| participant(key("candidates.schema", &NodeId::from_entropy(n).to_string(), 5), None);
    assert!(
        announced_node(like(1), node(1)).is_ok() && announced_node(like(2), node(1)).is_err(),
        "another node's id as name"
    );
    assert!(
        announced_node(participant(key("db", "m", 0), None), node(1)).is_err(),
        "without a lease it would never end"
    );
    assert_eq!(announced_node(participant(key("db", "m", 0), None), Principal::Operator).unwrap(), None);
    let needy = Participant {
        needs: (0..99).map(|n| (format!("r{n}"), Triple::default())).collect(),
        ..participant(key("db", "m", 5), None)
    };
    assert!(announced_node(needy, node(1)).is_err());
}

#[test]
fn full_command_is_shown_to_operators_and_the_runners_node() {
    let ann = Principal::User("ann".parse().unwrap());
    let shown = [Principal::Operator, node(1), node(2), ann].map(|caller| is_runner(&world(), &caller, "schema"));
    assert_eq!(shown, [true, true, false, false]);
    assert!(!is_runner(&world(), &node(1), "another"), "no runner");
}
