//! Tests of the agent's decisions.

use std::collections::BTreeMap;

use muster_messages::wire::{AgentAsk, MembershipReply, MembershipRequest, SignReply};
use muster_messages::{ErrorCode, FEATURE_LEVEL, Name, WaitReason};

use super::*;

mod lifecycle;
mod roots;
mod workloads;

pub(super) const MANAGER: &str = "10.0.0.1:4400";
pub(super) const OTHER: &str = "10.0.0.2:4400";

pub(super) fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

pub(super) fn certificate(role: Role, granted: u64, serial: &str) -> CertificateFacts {
    CertificateFacts {
        role,
        granted: Some(Revision(granted)),
        incarnation: Incarnation(1),
        serial: serial.to_owned(),
        issued_at: WallTime(0),
        not_after: WallTime(1_000_000_000),
    }
}

pub(super) fn view(revision: u64, role: Role, granted: u64) -> AgentView {
    AgentView {
        revision: Revision(revision),
        incarnation: Incarnation(1),
        node: node(1),
        desired_role: role,
        role,
        granted: Revision(granted),
        rotate: false,
        serial: None,
        managers: vec![MANAGER.to_owned(), OTHER.to_owned()],
        root_pem: String::new(),
    }
}

pub(super) fn refusal(reason: RefusalReason) -> Refusal {
    Refusal { reason, message: "because".to_owned(), managers: vec![], retry_after_ms: None }
}

/// An agent and its clock. Each method is one input; the effects of the last one stay in `out`.
pub(super) struct World {
    pub(super) agent: Agent,
    pub(super) now: Moment,
    pub(super) wall: WallTime,
    /// The incarnation that the next host's certificate vouches for.
    pub(super) vouched: Incarnation,
    pub(super) out: Vec<Effect>,
}

impl World {
    pub(super) fn new(certificate: CertificateFacts, known: &[&str]) -> Self {
        let hello = AgentHello {
            protocol: 1,
            instance: 7,
            name: Name::sanitized("n1"),
            advertise: "10.0.0.9:4400".to_owned(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
        };
        let known = known.iter().map(|s| (*s).to_owned()).collect();
        let (seeds, workloads) = (vec![], Stamp::default());
        let start =
            Start { certificate, hello, known, seeds, seed: 11, demotion_reported: false, workloads, ended: None };
        let agent = Agent::new(start, AgentConfig::default());
        let mut world =
            World { agent, now: Moment(1_000_000), wall: WallTime(1_000), vouched: Incarnation(2), out: vec![] };
        world.step(Input::Woke);
        world
    }
    pub(super) fn worker() -> Self {
        Self::new(certificate(Role::Worker, 5, "aa"), &[MANAGER])
    }
    pub(super) fn step(&mut self, input: Input) {
        self.out.clear();
        self.agent.step(self.now, self.wall, input, &mut self.out);
        // A wake-up time in the past would wake the agent again and again.
        assert!(self.agent.wake_at().is_none_or(|at| at > self.now), "{:?} at {:?}", self.agent.wake_at(), self.now);
    }
    pub(super) fn after(&mut self, d: Duration) {
        self.now = self.now + d;
        self.wall = self.wall.plus(d);
        self.step(Input::Woke);
    }
    /// Time passes as in the shell: from one wake-up to the next. The effects of all of them are kept.
    pub(super) fn run_for(&mut self, d: Duration) {
        let end = self.now + d;
        let mut all = vec![];
        while let Some(at) = self.agent.wake_at().filter(|at| *at <= end) {
            let pause = at.since(self.now).max(Duration::from_micros(1));
            self.after(pause);
            all.append(&mut self.out);
        }
        self.now = end;
        self.out = all;
    }
    pub(super) fn attempt(&self) -> Attempt {
        self.agent.attempts
    }
    pub(super) fn dialled(&self) -> Option<String> {
        self.out.iter().find_map(|e| match e {
            Effect::Dial { addr, .. } => Some(addr.clone()),
            _ => None,
        })
    }
    pub(super) fn open(&mut self) {
        if !matches!(self.agent.phase, Phase::Connecting { .. }) {
            let at = self.agent.wake_at().expect("an agent without session has a wake-up time");
            let pause = at.since(self.now);
            self.after(pause);
        }
        let attempt = self.attempt();
        self.step(Input::Connected { attempt, host: node(100), incarnation: self.vouched });
    }
    pub(super) fn receive(&mut self, frame: HostFrame) {
        let attempt = self.attempt();
        self.step(Input::Received { attempt, frame: Box::new(frame) });
    }
    pub(super) fn show(&mut self, view: AgentView) {
        self.receive(HostFrame::View(view));
    }
    /// Opens a session, unless there is one.
    pub(super) fn open_if_lost(&mut self) {
        if self.agent.session().is_none() {
            self.open();
        }
    }
    pub(super) fn lose(&mut self) {
        let attempt = self.attempt();
        self.step(Input::Lost { attempt, why: Loss::Broken("cut".to_owned()) });
    }
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        let attempt = self.attempt();
        self.step(Input::Lost { attempt, why: Loss::Refused(refusal) });
    }
    pub(super) fn certificate_requested(&self) -> Option<(u64, Because)> {
        self.out.iter().find_map(|e| match e {
            Effect::AskForCertificate { id, because, .. } => Some((*id, *because)),
            _ => None,
        })
    }
    pub(super) fn answer(&mut self, id: u64, result: Result<AgentAnswer, ErrorBody>) {
        self.receive(HostFrame::Answer { id, result });
    }
    pub(super) fn signed(&mut self, id: u64, new: CertificateFacts) {
        let reply = SignReply { cert_pem: String::new(), root_pem: String::new() };
        self.answer(id, Ok(AgentAnswer::Signed(reply)));
        assert!(self.out.iter().any(|e| matches!(e, Effect::Install { .. })));
        self.step(Input::Installed(new));
    }
    /// The manager runtime asks for membership.
    pub(super) fn ask(&mut self, ask: u64) {
        let question = AgentAsk::Membership(MembershipRequest {
            advertise: "10.0.0.9:4400".to_owned(),
            held: None,
            data_lost: None,
            feature_level: FEATURE_LEVEL,
        });
        self.step(Input::AskLeader { ask: AskId(ask), question });
    }
    /// The connection and the id of the request that the last step sent.
    pub(super) fn asked(&self) -> Option<(Attempt, u64)> {
        self.out.iter().find_map(|e| match e {
            Effect::Send { attempt, frame } => match **frame {
                AgentFrame::Ask { id, .. } => Some((*attempt, id)),
                _ => None,
            },
            _ => None,
        })
    }
    pub(super) fn refused(&self, ask: u64) -> bool {
        self.has_effect(|e| matches!(e, Effect::LeaderAnswered { ask: a, result: Err(_) } if *a == AskId(ask)))
    }
    pub(super) fn wanted(&self) -> bool {
        self.agent.wanted().wanted
    }
    pub(super) fn has_effect(&self, want: impl Fn(&Effect) -> bool) -> bool {
        self.out.iter().any(want)
    }
}

pub(super) fn unavailable() -> ErrorBody {
    ErrorBody::new(ErrorCode::NoQuorum, "no quorum")
}

/// Its pause ended before the host had shown a view, and an agent that may not ask yet span until it did.
#[test]
fn a_renewal_that_is_due_before_the_first_view_waits_for_it() {
    let mut world = World::new(certificate(Role::Manager, 5, "aa"), &[MANAGER]);
    world.open();
    world.show(view(10, Role::Manager, 5));
    world.step(Input::RefusedByPeer { refusal: refusal(RefusalReason::Demoted), serial: None });
    let (id, _) = world.certificate_requested().expect("a demoted node asks for its certificate");
    world.receive(HostFrame::Answer { id, result: Err(ErrorBody::new(ErrorCode::Unreachable, "no leader is known")) });
    world.lose();
    world.open();
    world.after(AgentConfig::default().sign_retry_cap);
    assert!(world.agent.wake_at() > Some(world.now));
    assert_eq!(world.certificate_requested(), None);
    world.show(view(11, Role::Manager, 5));
    assert!(world.certificate_requested().is_some());
}

#[test]
fn agent_opens_one_session_and_sends_hello() {
    let mut w = World::worker();
    assert_eq!(w.dialled().as_deref(), Some(MANAGER));
    w.open();
    assert!(w.has_effect(|e| matches!(e, Effect::Send { frame, .. } if matches!(**frame, AgentFrame::Hello(_)))));
    assert_eq!(w.agent.session(), None, "a host that has not shown a view may not know this node");
    w.show(view(9, Role::Worker, 5));
    assert_eq!(w.agent.session().unwrap().addr, MANAGER);
    assert_eq!(w.certificate_requested(), None, "the certificate matches the cluster's grant");
}

/// E9: worker, manager, worker again between two views; the certificate may have been signed in between.
#[test]
fn role_flip_between_two_views_leaves_no_wrong_certificate() {
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Worker, 5));
    w.show(view(12, Role::Worker, 11)); // granted anew: it was manager in between
    let (id, because) = w.certificate_requested().unwrap();
    assert_eq!(because, Because::RoleChanged);
    w.signed(id, certificate(Role::Manager, 10, "bb")); // signed before the second flip
    assert!(w.wanted());
    w.open();
    w.show(view(12, Role::Worker, 11)); // the same view again: the certificate is compared with it anew
    let asked = w.certificate_requested().unwrap();
    w.signed(asked.0, certificate(Role::Worker, 11, "cc"));
    assert!(!w.wanted());
    w.open();
    w.show(view(12, Role::Worker, 11));
    assert_eq!(w.certificate_requested(), None);
}

/// E11: failures during a role change once delayed the next attempt by up to an hour.
#[test]
fn failed_renewal_retries_in_seconds_or_on_a_new_signal() {
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Manager, 8));
    let mut last = w.now;
    for round in 0..40 {
        let (id, _) = w.certificate_requested().unwrap_or_else(|| panic!("round {round} sent no request"));
        assert!(w.now.since(last) <= Duration::from_secs(5), "{:?}", w.now.since(last));
        last = w.now;
        w.answer(id, Err(unavailable()));
        w.receive(HostFrame::HeartbeatAck { revision: Revision(9) }); // the host stays alive
        while w.certificate_requested().is_none() {
            let at = w.agent.wake_at().unwrap();
            w.after(at.since(w.now));
            if w.certificate_requested().is_none() {
                w.receive(HostFrame::HeartbeatAck { revision: Revision(9) });
            }
        }
    }
    let (id, _) = w.certificate_requested().unwrap();
    w.answer(id, Err(unavailable()));
    assert_eq!(w.certificate_requested(), None);
    w.show(view(30, Role::Manager, 29));
    assert!(w.certificate_requested().is_some(), "a new signal ends the pause");
}

#[test]
fn a_promised_retry_never_waits_longer_than_the_cap() {
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Manager, 8));
    let (id, _) = w.certificate_requested().unwrap();
    w.answer(id, Err(unavailable().retry_after(Duration::from_secs(3600))));
    w.after(Duration::from_secs(4));
    w.receive(HostFrame::HeartbeatAck { revision: Revision(9) });
    w.after(Duration::from_secs(1));
    assert!(w.certificate_requested().is_some());
}

#[test]
fn certificate_request_without_an_answer_is_repeated() {
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Manager, 8));
    let (first, _) = w.certificate_requested().unwrap();
    w.lose();
    w.open();
    w.show(view(9, Role::Manager, 8));
    let (second, _) = w.certificate_requested().unwrap();
    assert_ne!(first, second);
    let reply = SignReply { cert_pem: String::new(), root_pem: String::new() };
    w.answer(first, Ok(AgentAnswer::Signed(reply)));
    assert!(!w.has_effect(|e| matches!(e, Effect::Install { .. })), "an answer to a lost request installs nothing");
}

/// E46, for the agent.
#[test]
fn an_empty_manager_list_is_ignored_and_a_new_one_is_kept() {
    let mut w = World::worker();
    w.open();
    w.show(AgentView { managers: vec![], ..view(9, Role::Worker, 5) });
    assert_eq!(w.agent.managers(), [MANAGER]);
    assert!(!w.has_effect(|e| matches!(e, Effect::KeepManagers(_))));
    w.show(view(10, Role::Worker, 5));
    assert_eq!(w.agent.managers(), [MANAGER, OTHER]);
    assert!(w.has_effect(|e| matches!(e, Effect::KeepManagers(_))));
}

#[test]
fn an_older_view_of_another_host_is_ignored() {
    let mut w = World::worker();
    w.open();
    w.show(view(20, Role::Manager, 18));
    let (id, _) = w.certificate_requested().unwrap();
    w.signed(id, certificate(Role::Manager, 18, "bb"));
    w.open();
    let stale = AgentView { managers: vec!["old:1".to_owned()], ..view(9, Role::Worker, 5) };
    w.show(stale);
    assert!(w.wanted());
    assert_eq!(w.agent.managers(), [MANAGER, OTHER]);
    assert_eq!(w.certificate_requested(), None, "a replica that lags behind is no reason for another certificate");
    assert!(w.agent.session().is_some(), "and none to leave its host");
}

#[test]
fn a_rotation_is_fulfilled_once_even_through_a_host_that_lags() {
    let mut w = World::worker();
    w.open();
    let ask = |revision, serial: &str| AgentView {
        rotate: true,
        serial: Some(serial.to_owned()),
        ..view(revision, Role::Worker, 5)
    };
    w.show(ask(9, "aa"));
    let (id, because) = w.certificate_requested().unwrap();
    assert_eq!(because, Because::Rotate);
    w.signed(id, certificate(Role::Worker, 5, "bb"));
    w.open();
    w.show(ask(10, "aa")); // this replica has not applied the new certificate's record
    assert_eq!(w.certificate_requested(), None);
    w.show(ask(30, "bb")); // requested again, for the new one
    assert_eq!(w.certificate_requested().unwrap().1, Because::Rotate);
}

#[test]
fn certificate_is_renewed_at_50_to_80_percent_of_its_life() {
    for seed in 0..200 {
        let mut rng = Rng::seeded(seed);
        let c = certificate(Role::Worker, 5, "aa");
        let at = Renewal::new(&c, &mut rng).renew_at();
        assert!((500_000_000..=800_000_000).contains(&at.0), "{at:?}");
    }
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Worker, 5));
    w.wall = w.agent.renew_at();
    w.step(Input::Woke);
    assert_eq!(w.certificate_requested().unwrap().1, Because::Age);
}

#[test]
fn founders_first_certificate_is_renewed_on_its_first_view() {
    let mut first = certificate(Role::Manager, 0, "aa");
    first.granted = None;
    let mut w = World::new(first, &[MANAGER]);
    w.open();
    w.show(view(2, Role::Manager, 1));
    assert_eq!(w.certificate_requested().unwrap().1, Because::RoleChanged);
}

#[test]
fn promoted_worker_opens_a_session_with_its_new_certificate() {
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Worker, 5));
    assert!(!w.wanted());
    w.show(view(12, Role::Manager, 11));
    let (id, _) = w.certificate_requested().unwrap();
    w.signed(id, certificate(Role::Manager, 11, "bb"));
    assert!(w.has_effect(|e| matches!(e, Effect::PublishWanted(m) if m.wanted)));
    assert_eq!(w.dialled().as_deref(), Some(MANAGER), "no pause, same manager");
    w.open();
    w.show(view(12, Role::Manager, 11));
    let bye = |e: &Effect| matches!(e, Effect::Send { frame, .. } if **frame == AgentFrame::Bye { reason: BYE_NEW_CERTIFICATE.to_owned() });
    assert!(w.has_effect(bye), "the former session ends");
}

#[test]
fn heartbeats_keep_their_period_and_a_silent_host_is_left() {
    let mut w = World::worker();
    w.open();
    w.show(view(9, Role::Worker, 5));
    let beats = |w: &World| {
        let is_beat =
            |e: &&Effect| matches!(e, Effect::Send { frame, .. } if matches!(**frame, AgentFrame::Heartbeat { .. }));
        w.out.iter().filter(is_beat).count()
    };
    let mut total = 0;
    for _ in 0..100 {
        w.run_for(Duration::from_secs(5));
        total += beats(&w);
        w.receive(HostFrame::HeartbeatAck { revision: Revision(9) });
    }
    assert!((90..=111).contains(&total), "{total} heartbeats in 500 s");
    w.run_for(Duration::from_millis(16_400));
    assert!(w.agent.session().is_some());
    w.run_for(Duration::from_millis(200));
    assert!(w.has_effect(|e| matches!(e, Effect::HangUp { .. })));
    assert_eq!(w.agent.session(), None);
}

#[test]
fn a_lost_session_is_replaced_within_tens_of_milliseconds() {
    let mut w = World::new(certificate(Role::Worker, 5, "aa"), &[MANAGER, OTHER]);
    w.open();
    w.show(view(9, Role::Worker, 5));
    let lost = w.agent.session().unwrap().addr;
    w.lose();
    w.run_for(Duration::from_millis(20));
    let next = w.dialled().expect("dialled again");
    assert_ne!(next, lost, "another manager first");
}

#[test]
fn refused_connections_retry_with_growing_capped_pauses() {
    let mut w = World::worker();
    let mut dials = 0;
    let start = w.now;
    while w.now.since(start) < Duration::from_secs(60) {
        w.lose();
        let at = w.agent.wake_at().unwrap();
        assert!(at.since(w.now) <= Duration::from_secs(2));
        w.after(at.since(w.now));
        dials += 1;
    }
    assert!((30..80).contains(&dials), "{dials} dials in a minute");
}

/// E45, agent's side: two processes that take one session from each other must not do so in a tight loop.
#[test]
fn sessions_that_end_at_once_do_not_reset_the_pause() {
    let mut w = World::worker();
    for round in 0..12 {
        w.open();
        w.show(view(9 + round, Role::Worker, 5));
        w.receive(HostFrame::Ended(refusal(RefusalReason::TooManyRequests)));
    }
    let pause = w.agent.wake_at().unwrap().since(w.now);
    assert!(pause >= Duration::from_secs(1), "{pause:?}");
}

#[test]
fn retry_time_of_a_host_is_respected() {
    let mut w = World::worker();
    let again = Refusal { retry_after_ms: Some(7_000), ..refusal(RefusalReason::TooManyRequests) };
    w.refuse(again);
    w.run_for(Duration::from_millis(6_900));
    assert_eq!(w.dialled(), None);
    w.run_for(Duration::from_millis(200));
    assert_eq!(w.dialled().as_deref(), Some(MANAGER));
}

#[test]
fn a_host_without_a_leader_sends_its_agents_elsewhere() {
    let mut w = World::new(certificate(Role::Worker, 5, "aa"), &[MANAGER, OTHER]);
    w.open();
    w.show(view(9, Role::Worker, 5));
    let first = w.agent.session().unwrap().addr;
    w.receive(HostFrame::Move { reason: "no leader".to_owned() });
    w.run_for(Duration::from_millis(20));
    assert_ne!(w.dialled().unwrap(), first);
}

#[test]
fn temporary_refusals_lead_to_another_manager_only() {
    for reason in [RefusalReason::NotKnownHereYet, RefusalReason::NotAManager, RefusalReason::ShuttingDown] {
        let mut w = World::new(certificate(Role::Manager, 5, "aa"), &[MANAGER]);
        let named = Refusal { managers: vec![OTHER.to_owned()], ..refusal(reason) };
        w.refuse(named);
        assert!(w.wanted(), "{reason} must not stop a manager runtime");
        w.run_for(Duration::from_millis(20));
        assert_eq!(w.dialled().as_deref(), Some(OTHER), "{reason}");
    }
}

#[test]
fn blocked_and_removed_persist_and_stop_manager_runtime() {
    for (reason, trouble) in
        [(RefusalReason::Blocked, TroubleReason::Blocked), (RefusalReason::Removed, TroubleReason::Removed)]
    {
        let mut w = World::new(certificate(Role::Manager, 5, "aa"), &[MANAGER, OTHER]);
        w.open();
        w.show(view(9, Role::Manager, 5));
        assert!(w.wanted());
        w.receive(HostFrame::Ended(refusal(reason)));
        assert!(!w.wanted());
        assert!(w.has_effect(|e| matches!(e, Effect::KeepTrouble(t) if t.reason == trouble)));
        assert!(w.has_effect(|e| matches!(e, Effect::PublishTrouble(Some(t)) if t.reason.is_final())));
        assert_eq!(w.agent.wake_at(), None, "the agent dials no more");
        w.after(Duration::from_secs(3600));
        assert_eq!(w.dialled(), None);
    }
}

#[test]
fn demoted_manager_stops_runtime_and_requests_certificate() {
    let mut w = World::new(certificate(Role::Manager, 5, "aa"), &[MANAGER]);
    w.open();
    w.show(view(9, Role::Manager, 5)); // this host has not applied the demotion yet
    w.step(Input::RefusedByPeer { refusal: refusal(RefusalReason::Demoted), serial: Some("aa".to_owned()) });
    assert!(!w.wanted());
    assert!(w.has_effect(|e| matches!(e, Effect::KeepDemoted(serial) if serial == "aa")), "for the next incarnation");
    let (id, because) = w.certificate_requested().unwrap();
    assert_eq!(because, Because::DemotionReported);
    w.signed(id, certificate(Role::Manager, 14, "bb")); // promoted again meanwhile: the last request holds
    assert!(w.wanted());
    w.step(Input::RefusedByPeer { refusal: refusal(RefusalReason::Demoted), serial: Some("aa".to_owned()) });
    assert!(w.wanted(), "a late refusal of an older certificate changes nothing");
}

#[test]
fn manager_of_old_incarnation_stops_runtime_and_moves_on() {
    let mut w = World::new(certificate(Role::Manager, 5, "aa"), &[MANAGER]);
    w.open();
    w.show(view(9, Role::Manager, 5));
    assert!(w.wanted());
    let fenced = Refusal { managers: vec![OTHER.to_owned()], ..refusal(RefusalReason::OldIncarnation) };
    w.step(Input::RefusedByPeer { refusal: fenced, serial: Some("aa".to_owned()) });
    assert!(!w.wanted());
    assert!(w.has_effect(|e| matches!(e, Effect::HangUp { .. })), "its host is of the old incarnation, too");
    assert_eq!(w.certificate_requested(), None, "whose certificates are invalid");
    w.run_for(Duration::from_secs(5));
    w.open();
    let new = AgentView { incarnation: Incarnation(2), ..view(3, Role::Worker, 3) };
    w.show(new.clone());
    let (id, _) = w.certificate_requested().unwrap();
    w.signed(id, CertificateFacts { incarnation: Incarnation(2), ..certificate(Role::Manager, 3, "bb") });
    assert!(w.wanted(), "promoted again before it returned: its manager runtime starts anew");
}

#[test]
fn a_host_from_before_a_recovery_that_is_known_is_left() {
    let mut w = World::worker();
    w.open();
    w.show(AgentView { incarnation: Incarnation(2), ..view(3, Role::Worker, 3) });
    assert!(w.certificate_requested().is_some());
    w.lose();
    w.open();
    w.show(view(900, Role::Worker, 5));
    assert!(w.has_effect(|e| matches!(e, Effect::HangUp { .. })));
    assert_eq!(w.agent.session(), None);
}

#[test]
fn lost_session_does_not_stop_the_manager_runtime() {
    let mut w = World::new(certificate(Role::Manager, 5, "aa"), &[MANAGER]);
    for _ in 0..50 {
        w.lose();
        let at = w.agent.wake_at().unwrap();
        w.after(at.since(w.now));
    }
    assert!(w.wanted());
}

#[test]
fn membership_request_is_relayed_and_ends_with_its_session() {
    let mut w = World::new(certificate(Role::Manager, 5, "aa"), &[MANAGER]);
    w.open();
    w.show(view(9, Role::Manager, 5));
    w.ask(2);
    let (_, id) = w.asked().expect("it is sent");
    let wait = MembershipReply::Wait { reason: WaitReason::MembershipBusy, message: String::new(), retry_after_ms: 50 };
    w.answer(id, Ok(AgentAnswer::Membership(wait.clone())));
    assert!(w.has_effect(
        |e| *e == Effect::LeaderAnswered { ask: AskId(2), result: Ok(AgentAnswer::Membership(wait.clone())) }
    ));
    for ask in 3..30 {
        w.open_if_lost();
        w.show(view(9, Role::Manager, 5));
        w.ask(ask);
        assert!(w.asked().is_some(), "the places of earlier requests are free");
        w.lose();
        assert!(w.refused(ask));
    }
}
