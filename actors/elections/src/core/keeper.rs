//! Keeper: the leader's clock over all leases.
//!
//! Owns        a deadline per live lease, the waiting renewals, the expiries in progress.
//! Inputs      renewals of native sessions, replicas of the state, results of reads and proposals, its own beat.
//! Outputs     answers to renewals, linearizable reads, guarded expiries.
//! Invariants  LEASE-1  no expiry is proposed before a lease's full duration has passed: since this leader first saw it, since
//!                      the last write of its holder, since the last acknowledged renewal arrived.
//!             LEASE-2  a renewal is acknowledged, and moves a deadline, only after a quorum has confirmed this leader since
//!                      the renewal arrived, in the term for which it keeps the clock.
//!             LEASE-3  while an expiry may still be applied, no renewal of its lease is answered.
//!             LEASE-4  time during which this process was suspended counts against no holder.
//!             LEASE-5  the number of waiting requests is bounded; an excess request is refused with a retry time.
//! Why a renewal need not be written: it only moves a deadline that this leader alone has. Another leader, elected after the
//! confirmation, starts every lease in full when it first sees it, which is later than the renewal arrived. So a holder whose
//! renewal was acknowledged has the full duration under any leader.
//! Why a deposed leader is harmless: its reads are not confirmed, so it acknowledges nothing, and its expiries carry the guard
//! of its term, so they are never applied. That also holds for one that was frozen and does not know yet.
//! Why a suspension is compensated anyway (LEASE-4): a leader that was frozen for less than an election stays leader. Its
//! deadlines have passed while the renewals that would have moved them lie unread in its sockets.

mod clocks;
mod expiries;
mod renewals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
pub use muster_messages::AskId;
use muster_messages::protocol::Renewal;
use muster_messages::{
    Command, ErrorBody, ErrorCode, FencingToken, Lease, LeaseCounts, Moment, Object, ObjectKey, ObjectKind, Replica,
    RequestId, Revision, SessionId, Term, WallTime, millis,
};

use self::clocks::Clocks;
use self::expiries::Expiries;
pub use self::expiries::{OpenExpiry, Outcome};
use self::renewals::{Ask, Held, Renewals};
use crate::config::KeeperConfig;

/// A linearizable read in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(pub u64);

#[derive(Clone, Debug)]
pub enum Input {
    Renew {
        ask: AskId,
        session: SessionId,
        held: Vec<(ObjectKey, FencingToken)>,
        /// How long the caller waits.
        within: Duration,
    },
    /// A newer replica: a watched value, of which some may be missed.
    Replica(Arc<Replica>),
    Read {
        read: ReadId,
        result: Result<Arc<Replica>, ErrorBody>,
    },
    Proposed {
        request: RequestId,
        outcome: Outcome,
    },
    /// The beat, and whenever [`Keeper::wake_at`] asks for it. Only here are leases found due, because a beat comes behind
    /// everything in the mailbox: a renewal that arrived in time is handled before its lease is checked. (Leases beyond the
    /// bound of proposals follow in later steps, if still due.)
    Tick,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// In request order.
    Answer {
        ask: AskId,
        answer: Result<Vec<Renewal>, ErrorBody>,
    },
    Read(ReadId),
    /// An expiry, identified by its request id.
    Propose(Box<Command>),
    /// The expiries that may still be applied, for the next incarnation of this leadership. Comes before the other effects of
    /// its step: a crash must not forget a proposed expiry, nor bring a finished one back over a renewal that was answered
    /// since.
    Keep(BTreeMap<ObjectKey, OpenExpiry>),
}

/// The promise for a lease without a duration. No clock ends it; its holder renews earlier.
const WITHOUT_DURATION: Duration = Duration::from_secs(24 * 3600);

/// See the module.
#[derive(Clone, Debug)]
pub struct Keeper {
    config: KeeperConfig,
    /// The term of this clock. Each term has its own keeper.
    term: Term,
    stepped: Moment,
    revision: Revision,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    clocks: Clocks,
    renewals: Renewals,
    expiries: Expiries,
    /// The expiries that the next incarnation would find.
    kept: BTreeMap<ObjectKey, OpenExpiry>,
    tally: LeaseCounts,
}

impl Keeper {
    /// A keeper in `term`. `open`: the expiries in progress of this leadership's last incarnation; `entropy` makes request ids
    /// unique.
    pub fn new(
        config: KeeperConfig,
        term: Term,
        now: Moment,
        entropy: u128,
        open: BTreeMap<ObjectKey, OpenExpiry>,
    ) -> Self {
        Self {
            config,
            term,
            stepped: now,
            revision: Revision(0),
            objects: OrdMap::new(),
            clocks: Clocks::default(),
            renewals: Renewals::default(),
            expiries: Expiries::resumed(entropy, open.clone(), now),
            kept: open,
            tally: LeaseCounts::default(),
        }
    }

    /// Handles one input. The effects must be applied in order.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        self.stood_still(now);
        let made_before = out.len();
        let beat = matches!(input, Input::Tick);
        match input {
            Input::Renew { ask, session, held, within } => self.renew(now, ask, session, held, within, out),
            Input::Replica(replica) => self.observe(now, &replica),
            Input::Read { read, result } => self.answer(now, read, result, out),
            Input::Proposed { request, outcome } => self.proposed(now, request, outcome),
            Input::Tick => {
                for ask in self.renewals.overdue(now) {
                    let late = ErrorBody::new(ErrorCode::TimedOut, "the renewal was not confirmed in time");
                    self.refuse(ask, late, out);
                }
            }
        }
        self.advance(now, wall, beat, out);
        if self.kept != *self.expiries.open() {
            self.kept.clone_from(self.expiries.open());
            out.insert(made_before, Effect::Keep(self.kept.clone()));
        }
    }

    /// The only place that starts anything.
    fn advance(&mut self, now: Moment, wall: WallTime, beat: bool, out: &mut Vec<Effect>) {
        let expiries = &self.expiries;
        self.renewals.unpark(|ask| ask.held.iter().any(|h| expiries.concern(&h.key, h.token)));
        if let Some(read) = self.renewals.next_read(now, &self.config) {
            self.tally.reads += 1;
            out.push(Effect::Read(read));
        }
        if beat {
            self.expiries.judge(self.clocks.sweep(now));
        }
        let bound = self.config.expiring;
        self.expiries.propose(now, wall, self.term, bound, &mut self.clocks, out);
    }

    /// When the next beat is needed, if nothing happens earlier.
    pub fn wake_at(&self) -> Option<Moment> {
        let read = self.renewals.read_due(&self.config);
        [self.clocks.soonest(), self.expiries.again_at(), read].into_iter().flatten().min()
    }

    /// Expiries that may still be applied.
    pub fn open_expiries(&self) -> &BTreeMap<ObjectKey, OpenExpiry> {
        self.expiries.open()
    }

    /// The remaining time of the holders of these leases. Leases without a clock are absent.
    pub fn remaining(&self, now: Moment, leases: Vec<ObjectKey>) -> BTreeMap<ObjectKey, u64> {
        let left = |key: ObjectKey| {
            let left = self.clocks.get(&key)?.deadline.since(now);
            Some((key, millis(left)))
        };
        leases.into_iter().filter_map(left).collect()
    }

    /// The leases whose holders have the least time left.
    pub fn soonest(&self, now: Moment, most: usize) -> Vec<(ObjectKey, Duration)> {
        self.clocks.next_to_end(now, most)
    }
    /// Leases with a clock.
    pub fn timed(&self) -> usize {
        self.clocks.len()
    }
    /// Leases with a waiting renewal.
    pub fn waiting(&self) -> usize {
        self.renewals.leases()
    }
    pub fn tally(&self) -> LeaseCounts {
        self.tally
    }
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// LEASE-4. A beat comes every `tick`.
    fn stood_still(&mut self, now: Moment) {
        let gap = now.since(self.stepped);
        self.stepped = now;
        if gap >= self.config.stood_still {
            self.tally.pauses += 1;
            self.clocks.push_back(gap);
        }
    }

    fn renew(
        &mut self,
        now: Moment,
        ask: AskId,
        session: SessionId,
        held: Vec<(ObjectKey, FencingToken)>,
        within: Duration,
        out: &mut Vec<Effect>,
    ) {
        if self.renewals.leases() + held.len() > self.config.max_waiting {
            self.tally.rejected += held.len() as u64;
            let full = ErrorBody::new(ErrorCode::TooManyRequests, "too many renewals are waiting for confirmation");
            let answer = Err(full.retry_after(self.config.retry));
            out.push(Effect::Answer { ask, answer });
            return;
        }
        // The read's replica decides whether the renewal is valid: this one may be older than what the caller knows. Until then
        // a renewal that looks valid delays its lease's expiry.
        let held = held.into_iter().map(|(key, token)| {
            let holds = self.clocks.hold(&key, session, token);
            Held { key, token, holds }
        });
        self.renewals.add(Ask { id: ask, session, held: held.collect(), arrived: now, until: now + within });
    }

    /// Applies a newer replica, at the cost of the difference.
    fn observe(&mut self, now: Moment, replica: &Replica) {
        if replica.tables.revision < self.revision {
            return;
        }
        self.revision = replica.tables.revision;
        let objects = replica.tables.objects.clone();
        let before = std::mem::replace(&mut self.objects, objects.clone());
        for item in before.diff(&objects) {
            let (key, was, is) = match item {
                DiffItem::Add(key, is) => (key, None, Some(is)),
                DiffItem::Update { old: (key, was), new: (_, is) } => (key, Some(was), Some(is)),
                DiffItem::Remove(key, was) => (key, Some(was), None),
            };
            if key.kind == ObjectKind::Lease {
                let lives = |o: Option<&Arc<Object>>| o.and_then(|o| o.lease()).is_some_and(Lease::is_live);
                let expired = is.and_then(|o| o.lease()).is_some_and(|l| l.holding.expired);
                self.tally.expired += u64::from(lives(was) && expired);
                self.clocks.see(now, key, was.map(|o| &**o), is.map(|o| &**o));
                self.expiries.see(key, is.map(|o| &**o));
            }
        }
    }

    /// LEASE-2. The end of a read decides the renewals that waited for it, unless an expiry has come in between.
    fn answer(&mut self, now: Moment, read: ReadId, result: Result<Arc<Replica>, ErrorBody>, out: &mut Vec<Effect>) {
        let asks = self.renewals.end_read(read);
        let confirmed = result.and_then(|replica| {
            self.observe(now, &replica);
            let raft = &replica.raft;
            if raft.leading && raft.term == self.term { Ok(()) } else { Err(not_leading()) }
        });
        for ask in asks {
            match &confirmed {
                Err(why) => {
                    self.tally.unconfirmed += ask.held.len() as u64;
                    self.refuse(ask, why.clone(), out);
                }
                // LEASE-3.
                Ok(()) if ask.held.iter().any(|h| self.expiries.concern(&h.key, h.token)) => self.renewals.park(ask),
                Ok(()) => {
                    let renewals = ask.held.iter().map(|held| self.judge(&ask, held)).collect();
                    self.finish(ask, Ok(renewals), out);
                }
            }
        }
    }

    /// One lease of a confirmed renewal, by the newest replica.
    fn judge(&mut self, ask: &Ask, held: &Held) -> Renewal {
        let lease = self.objects.get(&held.key).and_then(|object| object.lease());
        let lost = match lease {
            None => Some(format!("{} does not exist", held.key)),
            Some(l) if l.spec.held_by().is_none() => Some(format!("{} was released", held.key)),
            Some(l) if l.holding.token != held.token || l.holding.session != Some(ask.session) => {
                Some(format!("{} was taken by {}", held.key, l.spec.held_by().unwrap_or_default()))
            }
            Some(l) if l.holding.expired => Some(format!("{} has expired", held.key)),
            Some(_) => None,
        };
        if let Some(message) = lost {
            self.tally.lost += 1;
            return Renewal::Lost { message };
        }
        let duration = lease.and_then(|l| l.spec.duration()).unwrap_or(WITHOUT_DURATION);
        self.clocks.renew(&held.key, ask.arrived + duration);
        self.tally.renewed += 1;
        Renewal::Renewed { expires_in_ms: millis(duration) }
    }

    fn refuse(&mut self, ask: Ask, why: ErrorBody, out: &mut Vec<Effect>) {
        self.finish(ask, Err(why), out);
    }

    fn finish(&mut self, ask: Ask, answer: Result<Vec<Renewal>, ErrorBody>, out: &mut Vec<Effect>) {
        for held in ask.held.iter().filter(|held| held.holds) {
            self.clocks.release_hold(&held.key);
        }
        self.renewals.gone(&ask);
        out.push(Effect::Answer { ask: ask.id, answer });
    }

    fn proposed(&mut self, now: Moment, request: RequestId, outcome: Outcome) {
        let again = now + self.config.retry;
        match self.expiries.end(request, outcome, again) {
            Some(key) if outcome == Outcome::Applied => self.clocks.remove(&key),
            // It was renewed by a write that this replica does not have yet, or the log was full: check again later.
            Some(key) => {
                self.tally.expiries_failed += 1;
                self.clocks.pause(&key, again);
            }
            None => {}
        }
    }
}

fn not_leading() -> ErrorBody {
    let text = "this manager stopped leading before the renewal was confirmed; retry";
    ErrorBody::new(ErrorCode::Unreachable, text).retry_after(Duration::from_millis(200))
}
