//! A small cluster in virtual time: one replicated state, the leader's clock and its elections, and clients: candidates like
//! those of Kubernetes' client library, its electors, and Muster's own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_elections::core::board::{Board, BoardChange};
use muster_elections::core::coordination::rules::OLDEST_EMULATION_VERSION;
use muster_elections::core::coordination::{self, ContendedElection, ElectionEvent, StepId};
use muster_elections::core::keeper::{self, Keeper};
use muster_elections::{CoordinationConfig, KeeperConfig};
use muster_messages::*;
use muster_store::LogPosition;

use crate::world::{lease, ms};

/// The behaviour of a process that wants to lead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Elector {
    /// Gives signs of life, takes no lease.
    None,
    /// Kubernetes' elector in coordinated mode, durations in milliseconds: reads every `retry`, never creates, only takes a
    /// lease that it was given; when asked to yield it stops renewing, and gives up after `deadline`.
    Coordinated { retry: u64, deadline: u64, duration: u64, release: bool },
    /// Kubernetes' classic elector: takes a lease that is free or has not changed for its duration.
    Classic { retry: u64, duration: u64 },
    /// Muster's: a native session, which yields as soon as it is asked to.
    Muster { duration: u64 },
}

pub const DEFAULT_ELECTOR: Elector =
    Elector::Coordinated { retry: 2000, deadline: 10_000, duration: 15_000, release: true };

/// One process.
#[derive(Clone, Debug)]
pub struct Client {
    pub elector: Elector,
    pub alive: bool,
    /// Answers pings.
    pub answers: bool,
    /// The offset of its clock from the cluster's, in microseconds.
    pub offset: i64,
    session: SessionId,
    read_at: Option<Moment>,
    /// The ping that it answers.
    answering: Option<MicroTime>,
    last_renewed: Option<Moment>,
    /// The object as it saw it last, and since when.
    seen: Option<(Revision, Moment)>,
}

enum Job {
    ContendedElection(StepId, Box<Command>),
    Expiry(Box<Command>),
    Ack(String),
    Heartbeat(String),
    ReadLease(String),
}

pub struct Stage {
    pub now: Moment,
    pub tables: Tables,
    pub term: Term,
    pub config: CoordinationConfig,
    keeper: Keeper,
    board: Board,
    pub election: Option<ContendedElection>,
    jobs: VecDeque<(Moment, Job)>,
    pub clients: BTreeMap<String, Client>,
    pub events: Vec<ElectionEvent>,
    /// Each holder of the lease in the log, and when it became the holder.
    pub holders: Vec<(Moment, Option<String>)>,
    pub pings: usize,
    /// While set, the cluster's commands fail.
    pub fail: bool,
    /// While not set, there is no coordinator.
    pub led: bool,
    beat: Moment,
}

/// The lease of these scenarios.
pub fn key() -> ObjectKey {
    lease("lk")
}
fn candidate_key(name: &str) -> ObjectKey {
    ObjectKey { kind: ObjectKind::LeaseCandidate, namespace: "default".to_owned(), name: name.to_owned() }
}
/// The latency of the log.
const LOG_LATENCY: Duration = Duration::from_millis(1);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(300);

impl Stage {
    pub fn new() -> Self {
        let now = Moment(3_600_000_000);
        let mut stage = Self {
            now,
            tables: Tables { revision: Revision(10), ..Tables::default() },
            term: Term(5),
            config: CoordinationConfig::default(),
            keeper: Keeper::new(KeeperConfig::default(), Term(5), now, 7 << 100, BTreeMap::new()),
            board: Board::new(256),
            election: None,
            jobs: VecDeque::new(),
            clients: BTreeMap::new(),
            events: Vec::new(),
            holders: Vec::new(),
            pings: 0,
            fail: false,
            led: true,
            beat: now,
        };
        stage.observe();
        stage
    }
    pub fn wall(&self) -> WallTime {
        WallTime(1_700_000_000_000 + self.now.0 as i64 / 1000)
    }

    // ---- the leader -------------------------------------------------------------------------------------------------

    /// Another member leads: the last one's memory is gone.
    pub fn change_leader(&mut self) {
        self.term = self.term.next();
        self.keeper = Keeper::new(KeeperConfig::default(), self.term, self.now, 9 << 100, BTreeMap::new());
        (self.board, self.election, self.led) = (Board::new(256), None, true);
        self.jobs.retain(|(_, job)| !matches!(job, Job::ContendedElection(..) | Job::Expiry(..)));
        self.observe();
    }
    pub fn no_leader(&mut self) {
        self.led = false;
        self.election = None;
        self.jobs.retain(|(_, job)| !matches!(job, Job::ContendedElection(..) | Job::Expiry(..)));
    }
    /// The election's actor crashes and restarts with its stored memory.
    pub fn crash(&mut self) {
        let old = self.election.take().unwrap();
        let (scene, memory) = (Arc::new(old.scene().clone()), old.memory().clone());
        self.jobs.retain(|(_, job)| !matches!(job, Job::ContendedElection(..)));
        self.election =
            Some(ContendedElection::new(self.config.clone(), self.term, 4, Arc::clone(&scene), Some(memory)));
        self.election_step(coordination::Input::Scene(scene));
    }

    fn observe(&mut self) {
        if !self.led {
            return;
        }
        let raft = RaftStatus { term: self.term, leading: true, ..RaftStatus::default() };
        let replica = Arc::new(Replica { tables: self.tables.clone(), raft });
        self.keeper_step(keeper::Input::Replica(replica));
        for news in self.board.observe(&self.tables) {
            match news {
                BoardChange::Changed(scene) if scene.key == key() => {
                    if self.election.is_none() {
                        let (config, scene) = (self.config.clone(), Arc::clone(&scene));
                        self.election = Some(ContendedElection::new(config, self.term, 3, scene, None));
                    }
                    self.election_step(coordination::Input::Scene(scene));
                }
                BoardChange::Closed(closed) if closed == key() => self.election = None,
                _ => {}
            }
        }
    }
    fn election_step(&mut self, input: coordination::Input) {
        let mut out = Vec::new();
        let (now, wall) = (self.now, self.wall());
        let Some(election) = self.election.as_mut() else { return };
        election.step(now, wall, input, &mut out);
        for effect in out {
            match effect {
                coordination::Effect::Propose { step, command } => {
                    self.jobs.push_back((self.now + LOG_LATENCY, Job::ContendedElection(step, command)));
                }
                coordination::Effect::ElectionEvent(event) => self.events.push(event),
            }
        }
    }
    fn keeper_step(&mut self, input: keeper::Input) {
        let mut out = Vec::new();
        self.keeper.step(self.now, self.wall(), input, &mut out);
        for effect in out {
            match effect {
                keeper::Effect::Propose(command) => self.jobs.push_back((self.now + LOG_LATENCY, Job::Expiry(command))),
                keeper::Effect::Read(read) => {
                    let raft = RaftStatus { term: self.term, leading: true, ..RaftStatus::default() };
                    let result = Ok(Arc::new(Replica { tables: self.tables.clone(), raft }));
                    self.keeper_step(keeper::Input::Read { read, result });
                }
                keeper::Effect::Answer { .. } | keeper::Effect::Keep(_) => {}
            }
        }
    }

    // ---- the replicated state ---------------------------------------------------------------------------------------

    fn apply(&mut self, command: &Command) -> Result<Revision, CommandRefusal> {
        let at = LogPosition { revision: self.tables.revision.next(), term: self.term };
        let result = muster_store::apply(&mut self.tables, at, command);
        let holder = self.lease().filter(Lease::is_live).and_then(|l| l.spec.held_by().map(str::to_owned));
        if self.holders.last().map(|(_, last)| last) != Some(&holder) {
            self.holders.push((self.now, holder));
        }
        result.map(|()| at.revision)
    }
    /// Applies a change of another client, and shows it to all.
    pub fn change(&mut self, change: Change) -> Result<Revision, CommandRefusal> {
        let done = self.apply(&Command::idempotent(self.wall(), Principal::Operator, "test").change(change));
        self.seen();
        done
    }
    fn seen(&mut self) {
        self.observe();
        self.clients_see();
    }
    pub fn lease(&self) -> Option<Lease> {
        self.tables.objects.get(&key())?.lease().cloned()
    }
    pub fn spec(&self) -> LeaseSpec {
        self.lease().unwrap_or_default().spec
    }
    /// The live holder, as the cluster has it.
    pub fn holder(&self) -> Option<String> {
        self.lease().filter(Lease::is_live).and_then(|l| l.spec.held_by().map(str::to_owned))
    }
    pub fn preferred(&self) -> Option<String> {
        self.spec().preferred_holder
    }
    pub fn candidate(&self, name: &str) -> Option<CandidateSpec> {
        self.tables.objects.get(&candidate_key(name))?.candidate().cloned()
    }
    /// Every holder so far, in order, without the gaps.
    pub fn holders_in_order(&self) -> Vec<&str> {
        self.holders.iter().filter_map(|(_, holder)| holder.as_deref()).collect()
    }
    /// The candidates that were elected, in order.
    pub fn elected(&self) -> Vec<&str> {
        self.events
            .iter()
            .filter_map(|n| if let ElectionEvent::Elected { name } = n { Some(name.as_str()) } else { None })
            .collect()
    }

    /// Writes the lease as a client that read it before.
    pub fn put_lease(&mut self, edit: impl FnOnce(&mut LeaseSpec)) {
        let old = self.tables.objects.get(&key()).map(|o| Object::clone(o));
        let fresh = || Object {
            namespace: "default".to_owned(),
            name: "lk".to_owned(),
            meta: ObjectMeta::fresh(Uid(2)),
            body: ObjectBody::Lease(Lease::default()),
        };
        let created = old.is_none();
        let mut object = old.unwrap_or_else(fresh);
        let ObjectBody::Lease(body) = &mut object.body else { panic!("a lease") };
        edit(&mut body.spec);
        let object = Box::new(object);
        let write = ClientWrite::default();
        let change = if created { Change::CreateObject(object) } else { Change::UpdateObject { object, write } };
        self.change(change).unwrap();
    }
    /// Held for a time by a process that is not a candidate.
    pub fn held_by(&mut self, name: &str, duration_ms: u64) {
        let now = MicroTime::from(self.wall());
        self.put_lease(|spec| {
            spec.holder = Some(name.to_owned());
            spec.duration_ms = Some(duration_ms);
            spec.renewed = Some(now);
        });
    }

    // ---- candidates and electors ------------------------------------------------------------------------------------

    /// A process starts: its candidate appears, and its elector reads the lease.
    pub fn start(&mut self, name: &str, emulation: &str, binary: &str, elector: Elector) {
        self.start_with(name, elector, 0, |object| {
            let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("a candidate") };
            spec.emulation_version = emulation.to_owned();
            spec.binary_version = binary.to_owned();
        });
    }
    pub fn start_with(&mut self, name: &str, elector: Elector, offset: i64, edit: impl FnOnce(&mut Object)) {
        let spec = CandidateSpec {
            lease_name: "lk".to_owned(),
            renewed: Some(MicroTime(MicroTime::from(self.wall()).0 + offset)),
            binary_version: "1.30.0".to_owned(),
            emulation_version: "1.30.0".to_owned(),
            strategy: OLDEST_EMULATION_VERSION.to_owned(),
            ..CandidateSpec::default()
        };
        let uid = Uid(1000 + self.tables.revision.0 as u128);
        let mut object = Object {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            meta: ObjectMeta::fresh(uid),
            body: ObjectBody::LeaseCandidate(spec),
        };
        edit(&mut object);
        let session = SessionId(uid.0);
        let client = Client {
            elector,
            alive: true,
            answers: true,
            offset,
            session,
            read_at: None,
            answering: None,
            last_renewed: None,
            seen: None,
        };
        self.clients.insert(name.to_owned(), client);
        self.jobs.push_back((self.now + HEARTBEAT_INTERVAL, Job::Heartbeat(name.to_owned())));
        self.change(Change::CreateObject(Box::new(object))).unwrap();
        self.read_later(name, LOG_LATENCY);
    }
    /// Stops without releasing anything.
    pub fn kill(&mut self, name: &str) {
        self.clients.get_mut(name).unwrap().alive = false;
    }
    /// Alive, but does not answer pings.
    pub fn mute(&mut self, name: &str) {
        self.clients.get_mut(name).unwrap().answers = false;
    }
    pub fn delete_candidate(&mut self, name: &str) {
        self.change(Change::DeleteObject { key: candidate_key(name), force: false }).unwrap();
    }
    /// The holder's process ends in order: its lease is free. Its candidate stays, as in Kubernetes.
    pub fn stop(&mut self, name: &str) {
        self.kill(name);
        self.release(name);
    }
    fn release(&mut self, name: &str) {
        if self.spec().held_by() != Some(name) {
            return;
        }
        let (token, session) = (self.lease().unwrap().holding.token, self.clients[name].session);
        if let Elector::Muster { .. } = self.clients[name].elector {
            self.change(Change::ReleaseLease { key: key(), session, token }).unwrap();
            return;
        }
        let now = MicroTime::from(self.wall());
        // As client-go does: strategy and preference are lost.
        self.put_lease(|spec| {
            let transitions = spec.transitions;
            *spec = LeaseSpec {
                holder: Some(String::new()),
                duration_ms: Some(1000),
                acquired: Some(now),
                renewed: Some(now),
                transitions,
                ..LeaseSpec::default()
            };
        });
    }

    fn read_later(&mut self, name: &str, after: Duration) {
        let at = self.now + after;
        let client = self.clients.get_mut(name).unwrap();
        if client.elector != Elector::None && client.read_at.is_none_or(|before| at < before) {
            client.read_at = Some(at);
            self.jobs.push_back((at, Job::ReadLease(name.to_owned())));
        }
    }

    /// What watches show at once: pings, and, for Muster's elector, the lease.
    fn clients_see(&mut self) {
        let names: Vec<String> = self.clients.keys().cloned().collect();
        for name in names {
            let client = &self.clients[&name];
            if !client.alive {
                continue;
            }
            let object = self.tables.objects.get(&candidate_key(&name));
            let ping =
                object.and_then(|o| o.candidate()).filter(|spec| spec.pinged > spec.renewed).and_then(|s| s.pinged);
            if ping.is_some() && ping != client.answering && client.answers {
                self.jobs.push_back((self.now + LOG_LATENCY, Job::Ack(name.clone())));
                self.clients.get_mut(&name).unwrap().answering = ping;
            }
            let client = &self.clients[&name];
            if let Elector::Muster { .. } = client.elector {
                self.read_later(&name, LOG_LATENCY);
            }
        }
    }
    fn renew_candidate(&mut self, name: &str) {
        let wall = MicroTime::from(self.wall());
        let Some(object) = self.tables.objects.get(&candidate_key(name)) else { return };
        let client = &self.clients[name];
        if !client.alive {
            return;
        }
        let mut object = Object::clone(object);
        let ObjectBody::LeaseCandidate(spec) = &mut object.body else { panic!("a candidate") };
        spec.renewed = Some(MicroTime(wall.0 + client.offset));
        self.change(Change::UpdateObject { object: Box::new(object), write: ClientWrite::default() }).unwrap();
    }

    fn elector_reads(&mut self, name: &str) {
        let now = self.now;
        let client = self.clients.get_mut(name).unwrap();
        if client.read_at != Some(now) {
            return; // it has read the lease since
        }
        client.read_at = None;
        if !client.alive {
            return;
        }
        let (elector, session, offset) = (client.elector, client.session, client.offset);
        let object = self.tables.objects.get(&key()).cloned();
        let revision = object.as_ref().map(|o| o.meta.revision);
        if self.clients[name].seen.map(|(seen, _)| seen) != revision {
            self.clients.get_mut(name).unwrap().seen = revision.map(|r| (r, now));
        }
        let seen_for = self.clients[name].seen.map_or(Duration::ZERO, |(_, at)| now.since(at));
        let found = self.lease().unwrap_or_default();
        let mine = found.spec.held_by() == Some(name);
        let clock = MicroTime(MicroTime::from(self.wall()).0 + offset);
        let expired = found.spec.duration().is_none_or(|d| seen_for >= d);
        match elector {
            Elector::None => {}
            Elector::Coordinated { retry, deadline, duration, release } => {
                let last = self.clients[name].last_renewed;
                let may = mine && !expired && found.spec.preferred_holder.as_deref().unwrap_or_default().is_empty();
                if may {
                    self.put_lease(|spec| {
                        spec.renewed = Some(clock);
                        spec.duration_ms = Some(duration);
                    });
                    self.clients.get_mut(name).unwrap().last_renewed = Some(now);
                } else if last.is_some_and(|at| now.since(at) >= ms(deadline)) {
                    self.clients.get_mut(name).unwrap().last_renewed = None;
                    if release {
                        self.release(name);
                    }
                }
                self.read_later(name, ms(retry));
            }
            Elector::Classic { retry, duration } => {
                if mine || found.spec.held_by().is_none() || expired {
                    self.put_lease(|spec| {
                        spec.holder = Some(name.to_owned());
                        spec.renewed = Some(clock);
                        spec.duration_ms = Some(duration);
                    });
                }
                self.read_later(name, ms(retry));
            }
            Elector::Muster { duration } => {
                let held = found.holding.session == Some(session) && found.is_live();
                if mine && held && found.spec.preferred_holder.is_some() {
                    self.release(name);
                } else if mine && found.is_live() && !held {
                    let holder = name.to_owned();
                    let uid = Uid(5);
                    let acquire = Change::AcquireLease { key: key(), holder, session, duration_ms: duration, uid };
                    self.change(acquire).unwrap();
                } else if mine && held {
                    let (ask, held) = (keeper::AskId(now.0), vec![(key(), found.holding.token)]);
                    self.keeper_step(keeper::Input::Renew { ask, session, held, within: ms(1000) });
                }
                self.read_later(name, ms(duration / 3));
            }
        }
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let job = self.jobs.iter().map(|(at, _)| *at).min();
            let wakes = [self.keeper.wake_at(), self.election.as_ref().and_then(ContendedElection::wake_at)];
            let wakes = wakes.into_iter().flatten().filter(|_| self.led);
            let next = wakes.chain(job).chain([end, self.beat]).min().unwrap().max(self.now);
            self.now = next;
            if let Some(at) = self.jobs.iter().position(|(at, _)| *at <= self.now) {
                let (_, job) = self.jobs.remove(at).unwrap();
                self.run(job);
                continue;
            }
            if self.led && self.election.as_ref().and_then(ContendedElection::wake_at).is_some_and(|at| at <= self.now)
            {
                self.election_step(coordination::Input::Woke);
                let wake = self.election.as_ref().and_then(ContendedElection::wake_at);
                assert!(wake.is_none_or(|at| at > self.now), "it wakes without effect");
            }
            let keeper = self.keeper.wake_at().is_some_and(|at| at <= self.now);
            if self.led && (keeper || self.beat == self.now) {
                self.keeper_step(keeper::Input::Tick);
            }
            if self.beat == self.now {
                self.beat = self.now + ms(100);
            }
            if self.now >= end && !self.jobs.iter().any(|(at, _)| *at <= self.now) {
                return;
            }
        }
    }
    fn run(&mut self, job: Job) {
        match job {
            Job::ContendedElection(step, command) => {
                let ping = matches!(&command.changes[..], [Change::UpdateObject { object, .. }] if object.candidate().is_some());
                self.pings += usize::from(ping && !self.fail);
                let failed = Err(CommandRefusal::Stale { what: "test".to_owned() });
                let done = if self.fail { failed } else { self.apply(&command) };
                let outcome = done.map_or(coordination::Outcome::Failed, coordination::Outcome::Applied);
                self.election_step(coordination::Input::Ended { step, outcome });
                self.seen();
            }
            Job::Expiry(command) => {
                let done = self.apply(&command);
                let outcome = if done.is_ok() { keeper::Outcome::Applied } else { keeper::Outcome::Refused };
                self.keeper_step(keeper::Input::Proposed { request: command.request, outcome });
                self.seen();
            }
            Job::Ack(name) => self.renew_candidate(&name),
            Job::Heartbeat(name) => {
                self.jobs.push_back((self.now + HEARTBEAT_INTERVAL, Job::Heartbeat(name.clone())));
                self.renew_candidate(&name);
            }
            Job::ReadLease(name) => self.elector_reads(&name),
        }
    }
    /// Advances time until the condition holds; returns how long that took.
    pub fn until(&mut self, what: &str, most: Duration, holds: impl Fn(&Self) -> bool) -> Duration {
        let began = self.now;
        while !holds(self) {
            assert!(
                self.now.since(began) < most,
                "timed out: {what}; {:?}",
                self.election.as_ref().map(ContendedElection::election_state)
            );
            self.pass(ms(1));
        }
        self.now.since(began)
    }
}
