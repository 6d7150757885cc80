//! Keeper: the leader's clock over all leases.
//!
//! Owns   a deadline per live lease, the renewals that wait, the expiries under way.
//! Hears  renewals of native sessions, copies of the replicated state, ends of reads and proposals, its own beat.
//! Says   answers to renewals, linearizable reads, guarded expiries.
//! Keeps  LEASE-1  no expiry is proposed before a lease's full duration has passed: since this leader first saw it, since
//!                 the last write of its holder, since the last acknowledged renewal arrived.
//!        LEASE-2  a renewal is acknowledged, and moves a deadline, only after a quorum has confirmed this leader, in the
//!                 term it keeps the clock for, since the renewal arrived.
//!        LEASE-3  while an expiry may still be applied, no renewal of its lease is answered.
//!        LEASE-4  time during which this process stood still counts against no holder.
//!        LEASE-5  what waits is bounded; whoever comes too much is told when to come back.
//! Why a renewal need not be written: what it moves is a deadline that only this leader has. Another leader, elected after
//! the confirmation, starts every lease in full when it first sees it, which is later than the renewal arrived. So whoever
//! was told "good for its duration" has that time under any leader.
//! Why a deposed leader does no harm: its reads are not confirmed, so it acknowledges nothing, and its expiries carry the
//! guard of its term, so nobody applies them. That holds as well for one that was frozen and does not know yet.
//! Why the pause is made up for all the same (LEASE-4): a leader that was frozen for less than an election leads on. Its
//! deadlines have passed while the renewals that would have moved them lie unread in its sockets.

mod clocks;
mod expiries;
mod renewals;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use muster_messages::protocol::Renewal;
use muster_messages::{
    Command, ErrorBody, ErrorCode, FencingToken, Lease, Moment, Object, ObjectKey, ObjectKind, Replica, RequestId,
    Revision, SessionId, Term, WallTime, millis,
};

use self::clocks::Clocks;
use self::expiries::Expiries;
pub use self::expiries::{OpenExpiry, Outcome};
use self::renewals::{Ask, Held, Renewals};
use crate::config::KeeperConfig;

/// A renewal's reply port, parked by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskId(pub u64);

/// A linearizable read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId(pub u64);

#[derive(Clone, Debug)]
pub enum Input {
    Renew {
        ask: AskId,
        session: SessionId,
        held: Vec<(ObjectKey, FencingToken)>,
        /// How long whoever asks waits.
        within: Duration,
    },
    /// A newer copy: a level, of which some may be missed.
    Copy(Arc<Replica>),
    Read {
        read: ReadId,
        result: Result<Arc<Replica>, ErrorBody>,
    },
    Proposed {
        request: RequestId,
        outcome: Outcome,
    },
    /// The beat, and when [`Keeper::wake_at`] says so. Leases are found due in no other step, because a beat comes behind
    /// whatever waited in the mailbox: a renewal that came in time is heard before its lease is judged. (Those of them that
    /// were too many to be proposed at once follow in later steps, if they are still due then.)
    Tick,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// In the order asked.
    Answer {
        ask: AskId,
        answer: Result<Vec<Renewal>, ErrorBody>,
    },
    Read(ReadId),
    /// An expiry. Its request id names it.
    Propose(Box<Command>),
    /// The expiries that may still be applied, for the next incarnation of this leadership. It comes before the effects
    /// that it was made with: an expiry that was proposed must not be forgotten by a crash, and one that is over must not
    /// come back over a renewal that was answered since.
    Keep(BTreeMap<ObjectKey, OpenExpiry>),
}

/// What was done, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub renewed: u64,
    pub lost: u64,
    /// Leases whose renewal was not confirmed.
    pub unconfirmed: u64,
    /// Leases of renewals that were refused because too many waited.
    pub turned_away: u64,
    pub reads: u64,
    pub expired: u64,
    /// Proposals of expiries that ended otherwise.
    pub expiries_failed: u64,
    /// How often this process was found to have stood still.
    pub pauses: u64,
}

/// What a lease without a duration is good for. Nobody's clock ends it; its holder will be back before.
const WITHOUT_DURATION: Duration = Duration::from_secs(24 * 3600);

/// See the module.
#[derive(Clone, Debug)]
pub struct Keeper {
    config: KeeperConfig,
    /// The term that this clock is kept in. Another term has another keeper.
    term: Term,
    stepped: Moment,
    revision: Revision,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    clocks: Clocks,
    renewals: Renewals,
    expiries: Expiries,
    /// What the next incarnation would find.
    kept: BTreeMap<ObjectKey, OpenExpiry>,
    tally: Tally,
}

impl Keeper {
    /// A keeper in `term`. `open` is what the last incarnation of the same leadership had under way; `entropy` makes
    /// request ids unique.
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
            tally: Tally::default(),
        }
    }

    /// Takes one input. The effects are to be performed in their order.
    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        self.stood_still(now);
        let made_before = out.len();
        let beat = matches!(input, Input::Tick);
        match input {
            Input::Renew { ask, session, held, within } => self.renew(now, ask, session, held, within, out),
            Input::Copy(replica) => self.observe(now, &replica),
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

    /// When the next beat is wanted, if nothing happens before.
    pub fn wake_at(&self) -> Option<Moment> {
        let read = self.renewals.read_due(&self.config);
        [self.clocks.soonest(), self.expiries.again_at(), read].into_iter().flatten().min()
    }

    /// Expiries that may still be applied.
    pub fn open_expiries(&self) -> &BTreeMap<ObjectKey, OpenExpiry> {
        self.expiries.open()
    }

    /// How long the holders of these leases have left. Those without a clock are absent.
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
    /// Leases whose renewal waits.
    pub fn waiting(&self) -> usize {
        self.renewals.leases()
    }
    pub fn tally(&self) -> Tally {
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
            self.tally.turned_away += held.len() as u64;
            let full = ErrorBody::new(ErrorCode::TooManyRequests, "too many renewals wait for their confirmation");
            let answer = Err(full.retry_after(self.config.retry));
            out.push(Effect::Answer { ask, answer });
            return;
        }
        // Whether it is good is judged by the copy that the read brings: this one may be older than what whoever asks has
        // been told. A renewal that looks good here holds up the expiry of its lease until that is known.
        let held = held.into_iter().map(|(key, token)| {
            let holds = self.clocks.hold(&key, session, token);
            Held { key, token, holds }
        });
        self.renewals.add(Ask { id: ask, session, held: held.collect(), arrived: now, until: now + within });
    }

    /// A newer copy: at the cost of what differs.
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

    /// LEASE-2. The end of a read is the end of the renewals that waited for it, unless an expiry has come between.
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

    /// One lease of a confirmed renewal, by the newest copy.
    fn judge(&mut self, ask: &Ask, held: &Held) -> Renewal {
        let lease = self.objects.get(&held.key).and_then(|object| object.lease());
        let lost = match lease {
            None => Some(format!("{} does not exist", held.key)),
            Some(l) if l.spec.held_by().is_none() => Some(format!("{} was given up", held.key)),
            Some(l) if l.holding.token != held.token || l.holding.session != Some(ask.session) => {
                Some(format!("{} was taken by {}", held.key, l.spec.held_by().unwrap_or_default()))
            }
            Some(l) if l.holding.expired => Some(format!("the time of {} has run out", held.key)),
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
            self.clocks.let_go(&held.key);
        }
        self.renewals.gone(&ask);
        out.push(Effect::Answer { ask: ask.id, answer });
    }

    fn proposed(&mut self, now: Moment, request: RequestId, outcome: Outcome) {
        let again = now + self.config.retry;
        match self.expiries.end(request, outcome, again) {
            Some(key) if outcome == Outcome::Applied => self.clocks.remove(&key),
            // It was renewed by a write that this copy does not have yet, or the log was full: look again in a while.
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
