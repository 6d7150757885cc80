//! The actors themselves, with a probe as the raft member: a mailbox without behaviour.

use std::sync::Arc;

use muster_elections::{ElectionsConfig, ElectionsPorts, Msg, elections_address, elections_spec};
use muster_kernel::{Address, AskError};
use muster_messages::protocol::{Applied, ElectionsMsg, ProposeError, RaftMemberMsg, ReadError, Renewal, Reply};
use muster_messages::*;
use muster_store::LogPosition;
use muster_testkit::{ActorHarness, Probe, WAIT_LIMIT, eventually};
use tokio::sync::watch;

use crate::world::{ONE, lease};

pub const PATH: &str = "node/elections";

pub struct Stage {
    pub tables: Tables,
    pub term: Term,
    publish: watch::Sender<Arc<Replica>>,
    pub raft: Probe<RaftMemberMsg>,
    pub elections: Address<Msg>,
    pub harness: ActorHarness,
}

type Renewed = Result<Result<Vec<Renewal>, ErrorBody>, AskError>;

impl Stage {
    pub async fn set() -> Self {
        let harness = ActorHarness::start().await;
        let (raft, elections) = (harness.probe("raft-member"), elections_address(&ElectionsConfig::default()));
        let tables = Tables { revision: Revision(10), ..Tables::default() };
        let publish = watch::Sender::new(Arc::default());
        let mut stage = Self { tables, term: Term(4), publish, raft, elections, harness };
        stage.lead().await;
        stage
    }
    /// This member leads, in the next term.
    pub async fn lead(&mut self) {
        self.term = self.term.next();
        self.show();
        let config = ElectionsConfig::default();
        self.elections = elections_address(&config);
        let ports = ElectionsPorts::new(config, self.term, self.publish.subscribe(), self.raft.recipient());
        self.harness.start_actor(elections_spec(self.elections.clone(), ports));
        self.healthy(PATH, 1).await;
    }
    async fn healthy(&self, path: &str, incarnation: u64) {
        self.harness.healthy(path, incarnation).await;
    }
    async fn until(&self, path: &str, holds: impl Fn(&ActorNode) -> bool) {
        self.harness.until(path, "as the test has it", holds).await;
    }
    pub fn replica(&self) -> Arc<Replica> {
        let raft = RaftStatus { term: self.term, leading: true, ..RaftStatus::default() };
        Arc::new(Replica { tables: self.tables.clone(), raft })
    }
    fn show(&self) {
        self.publish.send_replace(self.replica());
    }
    pub fn apply(&mut self, command: &Command) -> Result<Applied, ProposeError> {
        let at = LogPosition { revision: self.tables.revision.next(), term: self.term };
        let result = muster_store::apply(&mut self.tables, at, command);
        self.show();
        result.map(|()| Applied { revision: at.revision }).map_err(ProposeError::Refused)
    }
    pub fn change(&mut self, change: Change) {
        let command = Command::idempotent(WallTime(1), Principal::Operator, "test").change(change);
        self.apply(&command).unwrap();
    }
    pub fn acquire(&mut self, name: &str, duration_ms: u64) -> FencingToken {
        let key = lease(name);
        let holder = "x".to_owned();
        self.change(Change::AcquireLease { key, holder, session: ONE, duration_ms, uid: Uid(1) });
        self.tables.objects[&lease(name)].lease().unwrap().holding.token
    }
    fn renew(&self, name: &str, token: FencingToken) -> impl Future<Output = Renewed> + 'static {
        let (to, held) = (self.elections.clone(), vec![(lease(name), token)]);
        let make = move |reply| ElectionsMsg::Renew { session: ONE, held, deadline_ms: 5000, reply }.into();
        async move { to.ask(WAIT_LIMIT, make).await }
    }
    async fn read(&mut self) -> Reply<Result<Arc<Replica>, ReadError>> {
        let pick = |msg| match msg {
            RaftMemberMsg::Read { reply, .. } => Some(reply),
            _ => None,
        };
        self.raft.expect("a read", pick).await
    }
    async fn proposal(&mut self) -> (Box<Command>, Reply<Result<Applied, ProposeError>>) {
        let pick = |msg| match msg {
            RaftMemberMsg::Propose { command, reply, .. } => Some((command, reply)),
            _ => None,
        };
        self.raft.expect("a proposal", pick).await
    }
    /// Applies the next proposal and answers it.
    async fn apply_next(&mut self) -> Command {
        let (command, reply) = self.proposal().await;
        let result = self.apply(&command);
        let _gone = reply.send(result);
        *command
    }
    pub fn candidate(&mut self, name: &str) {
        let spec = CandidateSpec {
            lease_name: "lk".to_owned(),
            renewed: Some(MicroTime(1)),
            binary_version: "1.30.0".to_owned(),
            emulation_version: "1.30.0".to_owned(),
            strategy: "OldestEmulationVersion".to_owned(),
            ..CandidateSpec::default()
        };
        let (namespace, name) = ("default".to_owned(), name.to_owned());
        let meta = ObjectMeta::fresh(Uid(3));
        let object = Object { namespace, name, meta, body: ObjectBody::LeaseCandidate(spec) };
        self.change(Change::CreateObject(Box::new(object)));
    }
    /// The path of the only contended election.
    pub async fn election(&self) -> String {
        let mut found = None;
        let election = |path: &String| path.contains("/election-");
        eventually("an election is started", || {
            found = self.harness.tree().list().into_iter().find(election);
            found.is_some()
        })
        .await;
        found.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn renewal_is_answered_once_the_leader_is_confirmed() {
    let mut stage = Stage::set().await;
    let token = stage.acquire("a", 60_000);
    let ask = tokio::spawn(stage.renew("a", token));
    let read = stage.read().await;
    assert!(!ask.is_finished());
    let _gone = read.send(Ok(stage.replica()));
    assert_eq!(ask.await.unwrap(), Ok(Ok(vec![Renewal::Renewed { expires_in_ms: 60_000 }])));

    let refused = tokio::spawn(stage.renew("a", token));
    let read = stage.read().await;
    let _gone = read.send(Err(ReadError::NoQuorum { missing: vec![] }));
    let error = refused.await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::NoQuorum);
    assert!(error.retry_after_ms.is_some());

    let lost = tokio::spawn(stage.renew("a", token));
    drop(stage.read().await);
    let error = lost.await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::UnknownOutcome, "a raft member that stopped has confirmed nothing");
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn expired_lease_is_written_to_the_log() {
    let mut stage = Stage::set().await;
    let token = stage.acquire("a", 1000);
    stage.until(PATH, |actor| actor.view["leases"] == 1).await;
    let command = stage.apply_next().await;
    assert_eq!(command.changes, [Change::ExpireLease(lease("a"))]);
    assert!(command.guards.contains(&Guard::InTerm(Term(5))));
    let ask = tokio::spawn(stage.renew("a", token));
    let read = stage.read().await;
    let _gone = read.send(Ok(stage.replica()));
    assert!(matches!(ask.await.unwrap().unwrap().unwrap()[..], [Renewal::Lost { .. }]));
    stage.until(PATH, |actor| actor.view["leases"] == 0 && actor.view["counters"]["expired_total"] == 1).await;
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn renewals_that_are_gathered_leave_no_timers_behind() {
    let mut stage = Stage::set().await;
    let token = stage.acquire("a", 3_600_000);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut most = 0;
    for round in 0..1000 {
        // The second renewal arrives during the pause after the first one's read, and waits for its end.
        for _ in 0..2 {
            let ask = tokio::spawn(stage.renew("a", token));
            let read = stage.read().await;
            let _gone = read.send(Ok(stage.replica()));
            assert!(ask.await.unwrap().unwrap().is_ok());
        }
        if round < 10 {
            most = most.max(tasks());
        }
    }
    assert!(tasks() <= most, "{} tasks, at most {most} expected", tasks());
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn restart_repeats_no_expiry_that_missed_the_log() {
    let mut stage = Stage::set().await;
    let token = stage.acquire("a", 1000);
    let (_, reply) = stage.proposal().await;
    let _gone = reply.send(Err(ProposeError::Busy));
    stage.until(PATH, |actor| actor.view["expiring"] == 0).await;
    let renew = async |stage: &mut Stage| {
        let ask = tokio::spawn(stage.renew("a", token));
        let read = stage.read().await;
        let _gone = read.send(Ok(stage.replica()));
        assert_eq!(ask.await.unwrap(), Ok(Ok(vec![Renewal::Renewed { expires_in_ms: 1000 }])));
    };
    renew(&mut stage).await;
    stage.harness.crash(PATH, CrashHow::Panic);
    stage.healthy(PATH, 2).await;
    // Its first request is the read of this renewal, not a proposal.
    renew(&mut stage).await;
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn remaining_time_is_answered() {
    let mut stage = Stage::set().await;
    stage.acquire("a", 60_000);
    stage.until(PATH, |actor| actor.view["soonest"][0]["name"] == "a").await;
    let leases = vec![lease("a"), lease("b")];
    let left = stage.elections.ask(WAIT_LIMIT, |reply| ElectionsMsg::Remaining { leases, reply }.into()).await.unwrap();
    assert!(left[&lease("a")] > 30_000 && left.len() == 1, "{left:?}");
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_forgets_no_expiry_and_costs_no_holder_its_lease() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut stage = Stage::set().await;
        stage.acquire("a", 1000);
        let (first, _never_answered) = stage.proposal().await;
        let token = stage.acquire("b", 1000);
        let ask = tokio::spawn(stage.renew("b", token));
        let _never_read = stage.read().await;

        stage.harness.crash(PATH, how);
        assert_eq!(ask.await.unwrap(), Err(AskError::Closed), "the caller sees a closed port");
        stage.healthy(PATH, 2).await;
        let (again, reply) = stage.proposal().await;
        assert_eq!((again.request, again.changes.clone()), (first.request, first.changes.clone()));
        let result = stage.apply(&again);
        let _gone = reply.send(result);
        // The other lease starts over in full: it is not due before the clock has seen it for a second.
        let ask = tokio::spawn(stage.renew("b", token));
        let read = stage.read().await;
        let _gone = read.send(Ok(stage.replica()));
        assert_eq!(ask.await.unwrap(), Ok(Ok(vec![Renewal::Renewed { expires_in_ms: 1000 }])));
        stage.harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn contended_lease_has_an_actor_while_it_is_contended() {
    let mut stage = Stage::set().await;
    stage.candidate("c1");
    let path = stage.election().await;
    stage.until(&path, |actor| actor.kind == "Election" && actor.view["state"] == "settling").await;
    let actor = stage.harness.tree().inspect(&path).await.unwrap();
    assert_eq!((&actor.view["lease"], &actor.view["candidates"][0]["state"]), (&"lk".into(), &"fresh".into()));
    let command = stage.apply_next().await;
    assert_eq!((command.reason.as_str(), &command.by), ("election: elected c1", &Principal::Cluster));
    stage.until(&path, |actor| actor.view["holder"] == "c1" && actor.view["state"] == "settled").await;
    stage.until(PATH, |actor| actor.view["coordinated"]["leader_changes_total"] == 1).await;
    let name = "c1".to_owned();
    let key = ObjectKey { kind: ObjectKind::LeaseCandidate, namespace: "default".to_owned(), name };
    stage.change(Change::DeleteObject { key, force: false });
    stage.until(PATH, |actor| actor.view["contests"] == 0).await;
    stage.harness.gone(&path).await;
    stage.harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crashed_election_continues_and_leaves_the_clock_alone() {
    for how in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill] {
        let mut stage = Stage::set().await;
        stage.candidate("c1");
        let path = stage.election().await;
        let (first, _never_answered) = stage.proposal().await;
        stage.harness.crash(&path, how);
        stage.healthy(&path, 2).await;
        let (second, reply) = stage.proposal().await;
        assert_eq!(second.guards, first.guards, "guards make it happen once, in either order");
        let result = stage.apply(&second);
        let _gone = reply.send(result);
        assert!(matches!(stage.apply(&first), Err(ProposeError::Refused(_))));
        stage.until(&path, |actor| actor.view["holder"] == "c1").await;
        assert_eq!(stage.harness.tree().inspect(PATH).await.unwrap().incarnation, 1);
        stage.harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn crashed_elections_actor_restarts_its_children() {
    let mut stage = Stage::set().await;
    stage.candidate("c1");
    let path = stage.election().await;
    stage.apply_next().await;
    stage.until(&path, |actor| actor.view["holder"] == "c1").await;
    stage.harness.crash(PATH, CrashHow::Panic);
    stage.healthy(PATH, 2).await;
    let path = stage.election().await;
    stage.until(&path, |actor| actor.view["state"] == "settled").await;
    stage.until(PATH, |actor| actor.view["coordinated"]["leader_changes_total"] == 1).await;
    stage.harness.finish().await;
}
