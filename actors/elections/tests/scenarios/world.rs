//! A leader's clock, the tables that it observes, and a log that is applied when the scenario says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_elections::KeeperConfig;
use muster_elections::core::keeper::{AskId, Effect, Input, Keeper, OpenExpiry, Outcome, ReadId};
use muster_messages::protocol::Renewal;
use muster_messages::*;
use muster_store::LogPosition;

pub fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
pub fn lease(name: &str) -> ObjectKey {
    ObjectKey::lease("default", name)
}
pub const ONE: SessionId = SessionId(1);
pub const TWO: SessionId = SessionId(2);

pub type Answer = Result<Vec<Renewal>, ErrorBody>;

pub fn renewed(ms: u64) -> Answer {
    Ok(vec![Renewal::Renewed { expires_in_ms: ms }])
}
pub fn is_lost(answer: &Answer) -> bool {
    matches!(answer.as_deref(), Ok([Renewal::Lost { .. }]))
}

pub struct World {
    pub tables: Tables,
    pub term: Term,
    pub now: Moment,
    pub keeper: Keeper,
    /// What the next incarnation of this leadership would receive.
    pub slot: BTreeMap<ObjectKey, OpenExpiry>,
    pub config: KeeperConfig,
    pub answers: BTreeMap<AskId, Answer>,
    /// Unanswered reads.
    pub reads: Vec<ReadId>,
    /// Expiries that were proposed and not applied.
    pub proposed: Vec<Command>,
    pub reads_asked: usize,
    next: u64,
    beat: Moment,
}

impl World {
    pub fn new() -> Self {
        let (now, config) = (Moment(3_600_000_000), KeeperConfig::default());
        let keeper = Keeper::new(config.clone(), Term(5), now, 7 << 100, BTreeMap::new());
        let mut world = Self {
            tables: Tables { revision: Revision(10), ..Tables::default() },
            term: Term(5),
            now,
            keeper,
            slot: BTreeMap::new(),
            config,
            answers: BTreeMap::new(),
            reads: Vec::new(),
            proposed: Vec::new(),
            reads_asked: 0,
            next: 0,
            beat: now,
        };
        world.show();
        world
    }

    pub fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.keeper.step(self.now, WallTime(self.now.0 as i64 / 1000), input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Answer { ask, answer } => {
                    let first = self.answers.insert(ask, answer);
                    assert_eq!(first, None, "each renewal is answered once");
                }
                Effect::Read(read) => {
                    self.reads_asked += 1;
                    self.reads.push(read);
                }
                Effect::Propose(command) => self.proposed.push(*command),
                Effect::Keep(open) => self.slot = open,
            }
        }
    }

    /// Another incarnation in the same leadership. Answers to the previous one's requests are lost.
    pub fn restart(&mut self, entropy: u128) {
        self.keeper = Keeper::new(self.config.clone(), self.term, self.now, entropy, self.slot.clone());
        self.reads.clear();
        self.show();
    }

    // ---- the replicated state ---------------------------------------------------------------------------------------

    /// Applies a command, in this term by default, without the keeper's knowledge.
    pub fn apply(&mut self, command: &Command) -> Result<(), CommandRefusal> {
        let at = LogPosition { revision: self.tables.revision.next(), term: self.term };
        muster_store::apply(&mut self.tables, at, command)
    }
    pub fn change(&mut self, change: Change) {
        let command = Command::idempotent(WallTime(self.now.0 as i64 / 1000), Principal::Operator, "test");
        self.apply(&command.change(change)).unwrap();
    }
    pub fn replica(&self, term: Term, leading: bool) -> Arc<Replica> {
        let raft = RaftStatus { term, leading, ..RaftStatus::default() };
        Arc::new(Replica { tables: self.tables.clone(), raft })
    }
    /// The keeper sees the newest replica.
    pub fn show(&mut self) {
        let replica = self.replica(self.term, true);
        self.step(Input::Replica(replica));
    }

    /// Acquires natively, shows it to the keeper, and returns the token.
    pub fn acquire(&mut self, name: &str, holder: &str, session: SessionId, duration_ms: u64) -> FencingToken {
        let token = self.acquire_unseen(name, holder, session, duration_ms);
        self.show();
        token
    }
    pub fn acquire_unseen(&mut self, name: &str, holder: &str, session: SessionId, duration_ms: u64) -> FencingToken {
        let holder = holder.to_owned();
        self.change(Change::AcquireLease { key: lease(name), holder, session, duration_ms, uid: Uid(1) });
        self.lease(name).holding.token
    }
    /// Writes as a client of Kubernetes does.
    pub fn put(&mut self, name: &str, edit: impl FnOnce(&mut LeaseSpec)) {
        let old = self.tables.objects.get(&lease(name)).cloned();
        let mut object = old.as_deref().cloned().unwrap_or(Object {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            meta: ObjectMeta::fresh(Uid(2)),
            body: ObjectBody::Lease(Lease::default()),
        });
        let ObjectBody::Lease(body) = &mut object.body else { panic!("a lease") };
        edit(&mut body.spec);
        let object = Box::new(object);
        self.change(match old {
            Some(_) => Change::UpdateObject { object, write: ClientWrite::default() },
            None => Change::CreateObject(object),
        });
        self.show();
    }
    pub fn lease(&self, name: &str) -> Lease {
        self.tables.objects[&lease(name)].lease().unwrap().clone()
    }
    pub fn is_live(&self, name: &str) -> bool {
        self.tables.objects.get(&lease(name)).and_then(|o| o.lease()).is_some_and(Lease::is_live)
    }

    // ---- renewals and reads -----------------------------------------------------------------------------------------

    pub fn renew(&mut self, name: &str, session: SessionId, token: FencingToken) -> AskId {
        self.renew_all(session, vec![(lease(name), token)])
    }
    pub fn renew_all(&mut self, session: SessionId, held: Vec<(ObjectKey, FencingToken)>) -> AskId {
        self.next += 1;
        let ask = AskId(self.next);
        self.step(Input::Renew { ask, session, held, within: ms(5000) });
        ask
    }
    /// A quorum confirms this leader: all reads in progress succeed.
    pub fn confirm(&mut self) {
        for read in std::mem::take(&mut self.reads) {
            let result = Ok(self.replica(self.term, true));
            self.step(Input::Read { read, result });
        }
    }
    pub fn end_reads(&mut self, result: &Result<Arc<Replica>, ErrorBody>) {
        for read in std::mem::take(&mut self.reads) {
            self.step(Input::Read { read, result: result.clone() });
        }
    }
    /// Renews and is confirmed at once; returns the answer.
    pub fn renew_now(&mut self, name: &str, session: SessionId, token: FencingToken) -> Answer {
        let ask = self.renew(name, session, token);
        self.pass(self.config.gather);
        self.confirm();
        self.answers[&ask].clone()
    }

    // ---- expiries ---------------------------------------------------------------------------------------------------

    /// The log takes the proposed expiries, and the keeper receives their outcomes.
    pub fn settle(&mut self) {
        for command in std::mem::take(&mut self.proposed) {
            let outcome = match self.apply(&command) {
                Ok(()) => Outcome::Applied,
                Err(_) => Outcome::Refused,
            };
            self.show();
            self.step(Input::Proposed { request: command.request, outcome });
        }
    }
    pub fn end(&mut self, request: RequestId, outcome: Outcome) {
        self.step(Input::Proposed { request, outcome });
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    /// Advances time; the clock beats at least every `tick`, and when it asks to.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        if self.keeper.wake_at().is_some_and(|at| at <= self.now) {
            self.step(Input::Tick);
        }
        while self.now < end {
            self.beat = self.beat.max(self.now + ms(1));
            let wake = self.keeper.wake_at().filter(|at| *at > self.now);
            self.now = [Some(end), Some(self.beat), wake].into_iter().flatten().min().unwrap();
            if self.now == self.beat {
                self.beat = self.now + self.config.tick;
                self.step(Input::Tick);
            } else if wake == Some(self.now) {
                self.step(Input::Tick);
            }
        }
    }
    /// The process is suspended.
    pub fn freeze(&mut self, time: Duration) {
        self.now = self.now + time;
    }
    pub fn left(&self, name: &str) -> Option<u64> {
        self.keeper.remaining(self.now, vec![lease(name)]).get(&lease(name)).copied()
    }
}
