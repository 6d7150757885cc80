//! Tests of one node's session.

use std::collections::BTreeMap;

use muster_messages::wire::{BYE_NEW_CERTIFICATE, SignReply};
use muster_messages::{FEATURE_LEVEL, Incarnation, Name, Revision, Role, Subject};

use super::super::node_update::Shared;
use super::super::testing::node;
use super::super::workloads::Applying;
use super::*;

struct World {
    session: AgentSession,
    now: Moment,
    wall: WallTime,
    conn: ConnId,
    out: Vec<Effect>,
}

fn known(role: Role, granted: u64, liveness: Liveness) -> NodeRecordState {
    NodeRecordState::Known {
        desired_role: role,
        role,
        granted: Revision(granted),
        rotate: false,
        serial: None,
        liveness,
        older: Vec::new(),
        trusts_roots: false,
    }
}

impl World {
    fn new() -> Self {
        let session = AgentSession::new(node(1), Arc::new(SessionsConfig::default()));
        Self { session, now: Moment(1_000_000), wall: WallTime(5_000), conn: ConnId(0), out: vec![] }
    }
    fn step(&mut self, input: Input) {
        self.out.clear();
        self.session.step(self.now, self.wall, input, &mut self.out);
    }
    fn connect(&mut self) {
        self.conn.0 += 1;
        let identity = CertIdentity {
            cluster: "0000000000000000000000000".parse().unwrap(),
            subject: Subject::Node { node: node(1), role: Role::Worker },
            serial: "aa".to_owned(),
            granted: Some(Revision(5)),
            incarnation: Incarnation(1),
            not_after: WallTime(i64::MAX),
            pin: None,
            issuer: None,
        };
        let remote = "192.0.2.7:50123".parse().unwrap();
        self.step(Input::Connected { conn: self.conn, identity: Box::new(identity), remote });
    }
    fn frame(&mut self, frame: AgentFrame) {
        self.step(Input::Frame { conn: self.conn, frame });
    }
    fn hello(&mut self, instance: u64) {
        self.frame(AgentFrame::Hello(AgentHello {
            protocol: AGENT_PROTOCOL,
            instance,
            name: Name::sanitized("n1"),
            advertise: "0.0.0.0:4400".to_owned(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
        }));
    }
    fn open(&mut self) {
        self.connect();
        self.hello(1);
    }
    fn node_update(&mut self, revision: u64, record_state: NodeRecordState) {
        let shared = Shared { managers: vec!["m:1".to_owned()], ..Shared::default() };
        let node_update =
            NodeUpdate { revision: Revision(revision), record_state, shared: Arc::new(shared), workloads: None };
        self.step(Input::NodeUpdate(Box::new(node_update)));
    }
    fn workloads(&mut self, revision: u64, workloads: Option<&Applying>) {
        let shared = Arc::new(Shared { managers: vec!["m:1".to_owned()], ..Shared::default() });
        let record_state = known(Role::Worker, 3, Liveness::Ready);
        let (revision, workloads) = (Revision(revision), workloads.cloned());
        self.step(Input::NodeUpdate(Box::new(NodeUpdate { revision, record_state, shared, workloads })));
    }
    /// From wake-up to wake-up, as in the shell; keeps the effects.
    fn run_for(&mut self, d: Duration) {
        let end = self.now + d;
        let mut all = vec![];
        while let Some(at) = self.session.wake_at().filter(|at| *at <= end) {
            let gap = at.since(self.now).max(Duration::from_micros(1));
            self.pass(gap);
            self.step(Input::Woke);
            let forgotten = self.has_effect(|e| matches!(e, Effect::Forget));
            all.append(&mut self.out);
            if forgotten {
                break;
            }
        }
        let rest = end.since(self.now);
        self.pass(rest);
        self.out = all;
    }
    fn pass(&mut self, d: Duration) {
        self.now = self.now + d;
        self.wall = self.wall.plus(d);
    }
    fn has_effect(&self, want: impl Fn(&Effect) -> bool) -> bool {
        self.out.iter().any(want)
    }
    fn views(&self) -> usize {
        let view = |e: &&Effect| matches!(e, Effect::Send { frame, .. } if matches!(**frame, HostFrame::View(_)));
        self.out.iter().filter(view).count()
    }
    fn ended(&self) -> Option<RefusalReason> {
        self.out.iter().find_map(|e| match e {
            Effect::Send { frame, .. } => match &**frame {
                HostFrame::Ended(refusal) => Some(refusal.reason),
                _ => None,
            },
            _ => None,
        })
    }
    fn liveness(&self) -> Option<Liveness> {
        self.session.fact().map(|f| f.liveness)
    }
}

#[test]
fn session_reports_hello_with_the_observed_address() {
    let mut w = World::new();
    w.open();
    let fact = w.session.fact().unwrap().clone();
    assert_eq!((fact.addr.as_str(), fact.instance), ("192.0.2.7:4400", 1));
    assert_eq!(fact.liveness, Liveness::Ready);
    assert!(w.has_effect(|e| matches!(e, Effect::Report { fact: Some(_), connected: true, .. })));
}

#[test]
fn only_an_unspecified_host_is_replaced() {
    let seen: IpAddr = "192.0.2.7".parse().unwrap();
    for (advertise, want) in [
        ("0.0.0.0:1", "192.0.2.7:1"),
        ("[::]:1", "192.0.2.7:1"),
        (":1", "192.0.2.7:1"),
        ("10.0.0.1:1", "10.0.0.1:1"),
        ("host.example:1", "host.example:1"),
    ] {
        assert_eq!(reachable(advertise, seen), want);
    }
}

#[test]
fn the_first_view_follows_the_hello_and_only_changes_follow_it() {
    let mut w = World::new();
    w.node_update(9, known(Role::Worker, 5, Liveness::Unknown));
    w.connect();
    assert_eq!(w.views(), 0, "nothing is shown before the hello");
    w.hello(1);
    assert_eq!(w.views(), 1);
    w.node_update(10, known(Role::Worker, 5, Liveness::Ready));
    assert_eq!(w.views(), 0, "its own liveness is not shown to an agent");
    w.node_update(11, known(Role::Manager, 11, Liveness::Ready));
    assert_eq!(w.views(), 1);
    w.open();
    assert_eq!(w.views(), 1, "a new connection is shown everything again");
}

/// E36: streams opened before the removal once survived it until their own timeout.
#[test]
fn removed_node_is_informed_and_disconnected_at_once() {
    let mut w = World::new();
    w.node_update(9, known(Role::Worker, 5, Liveness::Ready));
    w.open();
    w.node_update(12, NodeRecordState::Absent);
    assert_eq!(w.ended(), Some(RefusalReason::Removed));
    assert!(w.has_effect(|e| matches!(e, Effect::Close { .. })));
    assert!(w.has_effect(|e| matches!(e, Effect::Report { fact: None, connected: false, .. })));
    assert!(w.has_effect(|e| matches!(e, Effect::Forget)));
}

#[test]
fn replica_too_old_to_know_a_node_does_not_call_it_removed() {
    let mut w = World::new();
    w.node_update(4, NodeRecordState::Absent); // the certificate was granted at 5
    w.open();
    assert_eq!(w.ended(), None);
    assert_eq!(w.views(), 0);
    w.node_update(6, known(Role::Worker, 5, Liveness::Unknown));
    assert_eq!(w.views(), 1);
}

#[test]
fn node_is_down_after_three_missed_beats_not_a_broken_link() {
    let mut w = World::new();
    w.node_update(9, known(Role::Worker, 5, Liveness::Ready));
    w.open();
    w.step(Input::Closed { conn: w.conn, why: "reset".to_owned() });
    assert_eq!(w.liveness(), Some(Liveness::Ready));
    w.run_for(Duration::from_secs(10));
    w.open();
    w.run_for(Duration::from_millis(16_400));
    assert_eq!(w.liveness(), Some(Liveness::Ready));
    w.run_for(Duration::from_millis(200));
    assert_eq!(w.liveness(), Some(Liveness::Down));
    assert!(w.has_effect(|e| matches!(e, Effect::Close { .. })));
}

#[test]
fn heartbeats_are_answered_and_keep_a_node_ready() {
    let mut w = World::new();
    w.node_update(9, known(Role::Worker, 5, Liveness::Ready));
    w.open();
    for _ in 0..100 {
        w.run_for(Duration::from_millis(5_500));
        w.frame(AgentFrame::Heartbeat { seen: Revision(9) });
        assert!(w.has_effect(
            |e| matches!(e, Effect::Send { frame, .. } if matches!(**frame, HostFrame::HeartbeatAck { .. }))
        ));
        assert_eq!(w.views(), 0);
    }
    assert_eq!(w.liveness(), Some(Liveness::Ready));
}

#[test]
fn heartbeat_answers_name_the_newest_state() {
    let mut w = World::new();
    w.node_update(9, known(Role::Worker, 5, Liveness::Ready));
    w.open();
    let beat = |w: &mut World| {
        w.frame(AgentFrame::Heartbeat { seen: Revision(9) });
        w.out.iter().find_map(|e| match e {
            Effect::Send { frame, .. } => match **frame {
                HostFrame::HeartbeatAck { revision } => Some(revision),
                _ => None,
            },
            _ => None,
        })
    };
    assert_eq!(beat(&mut w), Some(Revision(9)));
    w.step(Input::Unchanged(Revision(12)));
    assert_eq!(beat(&mut w), Some(Revision(12)), "nothing of it concerns the node");
    w.node_update(13, known(Role::Worker, 5, Liveness::Ready));
    assert_eq!(beat(&mut w), Some(Revision(13)));
}

#[test]
fn suspended_host_blames_no_agent() {
    let mut w = World::new();
    w.open();
    w.pass(Duration::from_secs(40)); // a frozen host: no timer fired
    w.step(Input::Woke);
    assert_eq!(w.liveness(), Some(Liveness::Ready));
    w.run_for(Duration::from_secs(6));
    assert_eq!(w.liveness(), Some(Liveness::Down));
}

#[test]
fn stopping_node_is_down_at_once_and_renewing_one_is_not() {
    let mut w = World::new();
    w.open();
    w.frame(AgentFrame::Bye { reason: BYE_NEW_CERTIFICATE.to_owned() });
    assert_eq!(w.liveness(), Some(Liveness::Ready));
    w.open();
    w.frame(AgentFrame::Bye { reason: BYE_SHUTDOWN.to_owned() });
    assert_eq!(w.liveness(), Some(Liveness::Down));
}

#[test]
fn a_down_node_is_reported_until_the_cluster_has_recorded_it() {
    let mut w = World::new();
    w.node_update(9, known(Role::Worker, 5, Liveness::Ready));
    w.open();
    w.frame(AgentFrame::Bye { reason: BYE_SHUTDOWN.to_owned() });
    assert!(!w.has_effect(|e| matches!(e, Effect::Forget)));
    w.node_update(10, known(Role::Worker, 5, Liveness::Down));
    assert!(w.has_effect(|e| matches!(e, Effect::Report { fact: None, .. })));
    assert!(w.has_effect(|e| matches!(e, Effect::Forget)));
    let mut w = World::new();
    w.node_update(9, known(Role::Worker, 5, Liveness::Ready)); // it is ready elsewhere
    w.open();
    w.step(Input::Closed { conn: w.conn, why: "moved".to_owned() });
    w.run_for(Duration::from_secs(90));
    assert!(w.has_effect(|e| matches!(e, Effect::Forget)), "but not indefinitely");
}

/// E45 in this actor: the newest connection wins, and frames of the old one change nothing.
#[test]
fn the_newest_connection_of_a_node_is_its_session() {
    let mut w = World::new();
    w.open();
    let old = w.conn;
    w.connect();
    assert_eq!(w.ended(), Some(RefusalReason::TooManyRequests));
    w.hello(2);
    assert_eq!(w.session.fact().unwrap().instance, 2);
    w.step(Input::Frame { conn: old, frame: AgentFrame::Bye { reason: BYE_SHUTDOWN.to_owned() } });
    w.step(Input::Closed { conn: old, why: "late".to_owned() });
    assert!(w.session.is_live());
    assert_eq!(w.liveness(), Some(Liveness::Ready));
}

#[test]
fn connection_without_hello_is_closed() {
    let mut w = World::new();
    w.connect();
    w.run_for(Duration::from_millis(5_001));
    assert_eq!(w.ended(), Some(RefusalReason::Protocol));
    let mut w = World::new();
    w.connect();
    w.frame(AgentFrame::Heartbeat { seen: Revision(1) });
    assert_eq!(w.ended(), Some(RefusalReason::Protocol));
    let mut w = World::new();
    w.open();
    w.hello(1);
    assert_eq!(w.ended(), Some(RefusalReason::Protocol), "one hello per connection");
}

#[test]
fn ended_session_is_logged_once_a_minute() {
    let mut w = World::new();
    let repeated = |w: &mut World| {
        w.open();
        w.hello(1);
        w.out.iter().find_map(|e| match e {
            Effect::LogEvent(LogEvent::Ended { repeated, .. }) => Some(*repeated),
            _ => None,
        })
    };
    assert_eq!((repeated(&mut w), repeated(&mut w)), (Some(false), Some(true)));
    w.now = w.now + Duration::from_secs(60);
    assert_eq!((repeated(&mut w), repeated(&mut w)), (Some(false), Some(true)));
}

#[test]
fn relayed_requests_carry_the_connections_identity() {
    let mut w = World::new();
    w.open();
    for id in 0..6 {
        w.frame(AgentFrame::Ask { id, ask: AgentAsk::Sign { csr_pem: "csr".to_owned() } });
        let vouched = |e: &Effect| {
            matches!(e, Effect::CallLeader { call, .. }
            if matches!(&**call, PeerCall::SignNode { identity, observed_addr, .. } if identity.serial == "aa" && observed_addr == "192.0.2.7:50123"))
        };
        assert!(w.has_effect(vouched));
    }
    w.frame(AgentFrame::Ask { id: 9, ask: AgentAsk::Sign { csr_pem: "csr".to_owned() } });
    assert!(!w.has_effect(|e| matches!(e, Effect::CallLeader { .. })));
    let reply = SignReply { cert_pem: String::new(), root_pem: String::new() };
    w.step(Input::LeaderAnswered { conn: w.conn, id: 0, result: Ok(AgentAnswer::Signed(reply)) });
    assert!(
        w.has_effect(|e| matches!(e, Effect::Send { frame, .. } if matches!(**frame, HostFrame::Answer { id: 0, .. })))
    );
    let request = MembershipRequest {
        advertise: "0.0.0.0:4400".to_owned(),
        held: None,
        data_lost: None,
        feature_level: FEATURE_LEVEL,
    };
    w.frame(AgentFrame::Ask { id: 10, ask: AgentAsk::Membership(request.clone()) });
    assert!(w.has_effect(|e| matches!(e, Effect::CallLeader { call, .. }
        if matches!(&**call, PeerCall::Membership { request, .. } if request.advertise == "192.0.2.7:4400"))));
    w.step(Input::LeaderAnswered { conn: w.conn, id: 10, result: Err(ErrorBody::new(ErrorCode::Unreachable, "")) });
    let failure = Some("no space\u{7} left".to_owned());
    let ask = AgentAsk::ReportManager(ManagerReport { feature_level: FEATURE_LEVEL, failure });
    w.frame(AgentFrame::Ask { id: 11, ask });
    assert!(w.has_effect(|e| matches!(e, Effect::CallLeader { call, .. }
        if matches!(&**call, PeerCall::ReportManager { node: of, report }
            if *of == node(1) && report.failure.as_ref().is_some_and(|why| !why.contains('\u{7}'))))));
}

#[test]
fn node_request_ends_by_answer_deadline_or_session_end() {
    let mut w = World::new();
    let ask = |w: &mut World, ask| {
        w.step(Input::AskNode { ask: AskId(ask), question: ActorsAsk::Tree, deadline: Duration::from_secs(1) });
    };
    let failed = |w: &World, id, code| {
        w.has_effect(|e| matches!(e, Effect::AnswerAsk { ask, result: Err(e) } if *ask == AskId(id) && e.code == code))
    };
    ask(&mut w, 1);
    assert!(failed(&w, 1, ErrorCode::NotFound), "for another manager to answer");
    w.open();
    ask(&mut w, 2);
    w.frame(AgentFrame::Answer { id: 1, result: Ok("{}".to_owned()) });
    assert!(w.has_effect(|e| *e == Effect::AnswerAsk { ask: AskId(2), result: Ok("{}".to_owned()) }));
    ask(&mut w, 3);
    w.run_for(Duration::from_millis(1_001));
    assert!(failed(&w, 3, ErrorCode::TimedOut));
    ask(&mut w, 4);
    w.step(Input::Closed { conn: w.conn, why: "reset".to_owned() });
    assert!(failed(&w, 4, ErrorCode::Unreachable));
    // The node is not down yet, and may have a session with another manager already.
    ask(&mut w, 5);
    assert!(failed(&w, 5, ErrorCode::NotFound));
}

#[test]
fn restarted_session_keeps_node_ready_for_three_heartbeats() {
    let mut w = World::new();
    w.open();
    let fact = w.session.fact().cloned();
    w.session = AgentSession::resume(node(1), Arc::new(SessionsConfig::default()), fact, w.now);
    w.run_for(Duration::from_secs(16));
    assert_eq!(w.liveness(), Some(Liveness::Ready));
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.liveness(), Some(Liveness::Down));
}

/// The report may have been lost.
#[test]
fn restarted_session_reports_its_down_node_again() {
    let mut w = World::new();
    w.open();
    w.step(Input::Closed { conn: w.conn, why: "reset".to_owned() });
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.liveness(), Some(Liveness::Down));
    let fact = w.session.fact().cloned();
    w.session = AgentSession::resume(node(1), Arc::new(SessionsConfig::default()), fact, w.now);
    w.run_for(Duration::from_secs(17));
    assert!(w.has_effect(|e| matches!(e, Effect::Report { .. })));
}

#[test]
fn oversized_hello_is_refused() {
    let fine = AgentHello {
        protocol: AGENT_PROTOCOL,
        instance: 1,
        name: Name::sanitized("n1"),
        advertise: "h:1".to_owned(),
        release: "0.1.0".to_owned(),
        labels: BTreeMap::new(),
    };
    let one = |k: &str, v: &str| BTreeMap::from([(k.to_owned(), v.to_owned())]);
    let escape = "\u{1b}[2J".to_owned();
    for hello in [
        AgentHello { labels: (0..65).map(|n| (n.to_string(), String::new())).collect(), ..fine.clone() },
        AgentHello { labels: one("zone", &escape), ..fine.clone() },
        AgentHello { labels: one("zo\nne", "a"), ..fine.clone() },
        AgentHello { release: escape.clone(), ..fine.clone() },
        AgentHello { advertise: "h\r:1".to_owned(), ..fine.clone() },
        AgentHello { advertise: "h".repeat(300), ..fine.clone() },
    ] {
        let mut w = World::new();
        w.connect();
        w.frame(AgentFrame::Hello(hello.clone()));
        assert_eq!(w.ended(), Some(RefusalReason::Protocol), "{hello:?}");
        assert_eq!(w.session.fact(), None);
    }
}

/// The node is down 16 s after its process was killed; its broken connection is known at once.
#[test]
fn a_broken_connection_is_reported_before_the_node_is_down() {
    let mut w = World::new();
    w.open();
    let shared = Shared { feature_level: IDENTITY_LEVEL, ..Shared::default() };
    let record_state = known(Role::Worker, 5, Liveness::Ready);
    w.step(Input::NodeUpdate(Box::new(NodeUpdate {
        revision: Revision(9),
        record_state,
        shared: Arc::new(shared),
        workloads: None,
    })));
    let reported = |w: &World| {
        w.out.iter().rev().find_map(|e| match e {
            Effect::Report { fact, .. } => fact.as_ref().map(|fact| fact.liveness),
            _ => None,
        })
    };
    w.out.clear();
    w.step(Input::Closed { conn: w.conn, why: "reset".to_owned() });
    assert_eq!((reported(&w), w.liveness()), (Some(Liveness::Unknown), Some(Liveness::Ready)));
    w.run_for(Duration::from_secs(20));
    assert_eq!(reported(&w), Some(Liveness::Down));
}

#[test]
fn agents_reasons_are_stripped_of_control_characters() {
    let mut w = World::new();
    w.open();
    w.out.clear();
    w.frame(AgentFrame::Bye { reason: "gone\u{1b}[2J\n".to_owned() });
    let why = w.out.iter().find_map(|e| match e {
        Effect::LogEvent(LogEvent::Closed { why }) => Some(why.clone()),
        _ => None,
    });
    assert_eq!(why.as_deref(), Some("gone\u{fffd}[2J\u{fffd}"));
}

/// The answer with the newest certificate was lost, and the node has restarted since.
#[test]
fn node_with_an_older_certificate_is_asked_to_renew_that() {
    let view = |rotate: bool, outdated: bool| {
        let NodeRecordState::Known { desired_role, role, granted, liveness, trusts_roots, .. } =
            known(Role::Worker, 5, Liveness::Ready)
        else {
            unreachable!()
        };
        let (serial, older) = (Some("new".to_owned()), vec![("old".to_owned(), outdated)]);
        let record_state =
            NodeRecordState::Known { desired_role, role, granted, rotate, serial, older, liveness, trusts_roots };
        let update = NodeUpdate { revision: Revision(5), record_state, shared: Arc::default(), workloads: None };
        let shown = |presented| update.view(node(1), Some(presented)).map(|view| (view.rotate, view.serial));
        (shown("old").unwrap(), shown("new").unwrap())
    };
    let of = |rotate, serial: &str| (rotate, Some(serial.to_owned()));
    assert_eq!(view(false, false), (of(false, "new"), of(false, "new")));
    assert_eq!(view(true, false), (of(true, "old"), of(true, "new")));
    assert_eq!(view(false, true), (of(true, "old"), of(false, "new")), "its root does not sign any more");
}

#[test]
fn roots_follow_the_first_view_and_each_change_of_them() {
    let mut world = World::new();
    let shown = |world: &World| -> Vec<(u64, bool)> {
        let offers = world.out.iter().filter_map(|e| match e {
            Effect::Send { frame, .. } => match &**frame {
                HostFrame::Roots(offer) => Some((offer.generation.0, offer.recorded)),
                _ => None,
            },
            _ => None,
        });
        offers.collect()
    };
    let update = |world: &mut World, revision: u64, generation: Option<u64>, trusts_roots: bool| {
        let roots = generation.map(|generation| (Revision(generation), Vec::new()));
        let shared = Shared { managers: vec!["m:1".to_owned()], roots, ..Shared::default() };
        let NodeRecordState::Known { desired_role, role, granted, rotate, serial, older, liveness, .. } =
            known(Role::Worker, 5, Liveness::Ready)
        else {
            unreachable!()
        };
        let record_state =
            NodeRecordState::Known { desired_role, role, granted, rotate, serial, older, liveness, trusts_roots };
        let node_update =
            NodeUpdate { revision: Revision(revision), record_state, shared: Arc::new(shared), workloads: None };
        world.step(Input::NodeUpdate(Box::new(node_update)));
    };
    world.open();
    update(&mut world, 5, None, false);
    assert_eq!((world.views(), shown(&world)), (1, vec![]), "without a rotation nothing is offered");
    update(&mut world, 6, Some(6), false);
    assert_eq!((world.views(), shown(&world)), (0, vec![(6, false)]), "the view is the same");
    update(&mut world, 7, Some(6), true);
    assert_eq!((world.views(), shown(&world)), (0, vec![]), "the record of it does not change the roots");
    update(&mut world, 8, Some(8), false);
    assert_eq!(shown(&world), [(8, false)]);
    world.open();
    assert_eq!((world.views(), shown(&world)), (1, vec![(8, false)]), "each session begins with them");
    let after = |frame: &HostFrame| matches!(frame, HostFrame::Roots(_));
    let frames: Vec<bool> = (world.out.iter())
        .filter_map(|e| if let Effect::Send { frame, .. } = e { Some(after(frame)) } else { None })
        .collect();
    assert_eq!(frames.last(), Some(&true), "after the view");
}

#[path = "session_workload_tests.rs"]
mod workloads;
