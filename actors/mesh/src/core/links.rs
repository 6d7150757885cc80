//! Links: which session of each manager stays, and when to dial.
//!
//! Owns        for each other manager: its address and hinted address, its sessions, the dial in flight, how long it has been
//!             without a session; the [`Hints`].
//! Inputs      the wanted nodes; sessions opened, ready, ended; outcomes of dials; which node answers at a hinted address.
//! Outputs     `Dial`, `Ask`, `End`, `Up`, `Down`, `LeaderGone`.
//! Invariants  MESH-12  at most one session of a node is up.
//!             MESH-13  a wanted node without a session is dialled again, at the latest 2 s after both sides could connect.
//!             MESH-14  both sides choose the same survivor of two sessions that they opened at the same time.
//! Why the newest wins: a restarted peer opens a new session while the old one is half dead. Why not always: when both
//! dial at once, each side would see the other's as the newest, and each would end the other's session.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_messages::{Moment, NodeId};

use super::hints::{Hints, Next};

/// Identifies a session of this process; increasing.
pub type SessionNumber = u64;

/// Two sessions opened within this time count as simultaneous dials: the one that the smaller id dialled stays.
const SIMULTANEOUS_WINDOW: Duration = Duration::from_secs(3);
/// How long the greater id waits for the smaller one to dial, plus up to as much again.
const GREATER_ID_DELAY: Duration = Duration::from_secs(1);
/// The same just after this process started: the others may not know that yet and wait themselves. Those that start at the same
/// time have dialled by then.
const START_DELAY: Duration = Duration::from_millis(300);
/// Pauses between dials: doubled after each failure, shortened at random by up to half.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Half of the 2 s of MESH-13: the rest is for the dial itself.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// A session that was ready for this long proves that dialling works, and resets the pause. A rolling restart ends
/// sessions that are this young.
const PROVEN_AFTER: Duration = Duration::from_millis(500);

/// How long after the end of the leader's session a refused address is reported: later, Raft has noticed by itself.
const LEADER_GONE_WINDOW: Duration = Duration::from_secs(1);
/// How soon the address of a leader whose session ended is dialled again, regardless of earlier failures: a dying process may
/// still accept and reset, and each pause prolongs the time without a leader.
const LEADER_REDIAL_PAUSE: Duration = Duration::from_millis(20);

/// How long an answered probe is valid: a node is probed just before it becomes a member.
const PROBE_VALIDITY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// All nodes to have sessions with, and their addresses.
    Wanted(BTreeMap<NodeId, String>),
    /// The hello of a session was accepted by both sides.
    Opened {
        number: SessionNumber,
        node: NodeId,
        dialed: bool,
    },
    /// The peer's RPC endpoint can be reached through it.
    Ready {
        number: SessionNumber,
    },
    Ended {
        number: SessionNumber,
    },
    /// This node answered a probe: it listens, and may not know this manager yet.
    Answered {
        node: NodeId,
    },
    /// A dial ended. If it succeeded, `Opened` came before.
    Dialed {
        node: NodeId,
        outcome: DialOutcome,
    },
    /// The query to a hinted address ended.
    Asked {
        addr: String,
        found: Option<NodeId>,
    },
    /// This manager's hello changed (a new RPC endpoint): all sessions are reopened.
    Renew,
    Woke,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialOutcome {
    Opened,
    /// The address refused the connection immediately: no process listens there.
    Refused,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    Superseded,
    NotWanted,
    Renewed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Dial {
        node: NodeId,
        addr: String,
    },
    /// Find out which manager, if any, answers at this address.
    Ask {
        addr: String,
    },
    End {
        number: SessionNumber,
        because: Because,
    },
    /// Messages to `node` use this session from now on.
    Up {
        node: NodeId,
        number: SessionNumber,
    },
    Down {
        node: NodeId,
    },
    /// The leader's session ended and its address refused a connection immediately.
    LeaderGone {
        node: NodeId,
    },
    /// No state of this node remains.
    Forget {
        node: NodeId,
    },
    WakeAt(Moment),
}

#[derive(Clone, Copy, Debug)]
struct Held {
    dialed: bool,
    opened: Moment,
    ready: Option<Moment>,
}

#[derive(Clone, Debug)]
struct Link {
    addr: Option<String>,
    /// The hinted address at which it was found since.
    found: Option<String>,
    /// A manager that the local replica does not know as a member was found here: it is dialled once, so that it learns of this one.
    introduce: Option<String>,
    /// The next dial uses `found`.
    by_hint: bool,
    /// The dial in flight uses it.
    dials_hint: bool,
    sessions: BTreeMap<SessionNumber, Held>,
    up: Option<SessionNumber>,
    dialing: bool,
    next_dial: Moment,
    failures: u32,
    /// When its session ended while it was the leader: the next dials decide whether its process is gone.
    led: Option<Moment>,
}

#[derive(Clone, Debug)]
pub struct Links {
    own: NodeId,
    links: BTreeMap<NodeId, Link>,
    answered: BTreeMap<NodeId, Moment>,
    /// The members were reported before: later additions are new members.
    started: bool,
    hints: Hints,
    rng: u64,
}

impl Links {
    /// No links. `seed` drives the delays; `hints` are addresses at which managers may be found.
    pub fn new(own: NodeId, seed: u64, hints: Vec<String>) -> Self {
        let (links, answered, hints) = (BTreeMap::new(), BTreeMap::new(), Hints::new(hints));
        Self { own, links, answered, started: false, hints, rng: seed | 1 }
    }

    /// Handles one input. `leader`: the leader, if known.
    pub fn step(&mut self, now: Moment, leader: Option<NodeId>, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Wanted(wanted) => self.wanted(now, &wanted, out),
            Input::Opened { number, node, dialed } => self.opened(now, number, node, dialed, out),
            Input::Ready { number } => self.ready(now, number, out),
            Input::Ended { number } => self.ended(now, leader, number, out),
            Input::Dialed { node, outcome } => self.dialed(now, node, outcome, out),
            Input::Renew => {
                for node in self.links.keys().copied().collect::<Vec<_>>() {
                    self.end_all(node, Because::Renewed, out);
                }
            }
            Input::Answered { node } => {
                self.answered.retain(|_, at| now.since(*at) < PROBE_VALIDITY);
                self.answered.insert(node, now);
            }
            Input::Asked { addr, found } => self.asked(now, addr, found),
            Input::Woke => {}
        }
        self.advance(now, out);
        debug_assert!(self.links.values().all(|l| l.up.is_none_or(|n| l.sessions.contains_key(&n))));
    }

    /// The session through which `node` is reached.
    pub fn up(&self, node: NodeId) -> Option<SessionNumber> {
        self.links.get(&node).and_then(|l| l.up)
    }
    /// It is a member in the local replica.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.links.get(&node).is_some_and(|link| link.addr.is_some())
    }
    /// No session with this node exists or is being opened, and it is not a member in the local replica: a stream to it that both
    /// sides accepted may become its session.
    pub fn may_introduce(&self, node: NodeId) -> bool {
        let link = self.links.get(&node);
        link.is_none_or(|link| link.addr.is_none() && link.sessions.is_empty() && !link.dialing)
    }
    /// Every node with a link: whether it is wanted, its address, whether it is being dialled, consecutive failed dials.
    pub fn each(&self) -> impl Iterator<Item = (NodeId, bool, &str, bool, u32)> {
        let row = |(node, l): (&NodeId, &Link)| (*node, l.addr.is_some(), l.dialing, l.failures);
        self.links.iter().map(move |entry| {
            let (node, wanted, dialing, failures) = row(entry);
            (node, wanted, entry.1.addr.as_deref().unwrap_or_default(), dialing, failures)
        })
    }

    /// Addresses at which managers may be found, besides their own.
    pub fn hints(&self) -> &[String] {
        self.hints.addrs()
    }

    fn wanted(&mut self, now: Moment, wanted: &BTreeMap<NodeId, String>, out: &mut Vec<Effect>) {
        let own = self.own;
        let first = !self.started;
        self.started |= !wanted.is_empty();
        for (node, addr) in wanted.iter().filter(|(node, _)| **node != own) {
            if !self.links.contains_key(node) {
                let link = self.fresh(now, *node);
                self.links.insert(*node, link);
            }
            // This process has just started: the others may not know that during their own delay.
            let dial_delay = if own < *node { Duration::ZERO } else { START_DELAY };
            if let Some(link) = self.links.get_mut(node).filter(|_| first) {
                link.next_dial = now + dial_delay;
            }
            if let Some(link) = self.links.get_mut(node)
                && link.addr.as_ref() != Some(addr)
            {
                link.addr = Some(addr.clone());
                link.failures = 0;
                (link.found, link.by_hint) = (None, false);
            }
        }
        // Every cluster has a member: a replica without one is empty and does not know which nodes left.
        if wanted.is_empty() {
            return;
        }
        let left = |(node, l): (&NodeId, &Link)| (l.addr.is_some() && !wanted.contains_key(node)).then_some(*node);
        for node in self.links.iter().filter_map(left).collect::<Vec<_>>() {
            self.end_all(node, Because::NotWanted, out);
            if let Some(link) = self.links.get_mut(&node) {
                link.addr = None;
            }
        }
    }

    /// A new member has an empty replica and knows no manager: the manager that just probed it dials immediately, greater id or not.
    fn fresh(&mut self, now: Moment, node: NodeId) -> Link {
        let dial_delay = if self.has_answered(now, node) { Duration::ZERO } else { self.dial_delay(node) };
        Link {
            addr: None,
            found: None,
            introduce: None,
            by_hint: false,
            dials_hint: false,
            sessions: BTreeMap::new(),
            up: None,
            dialing: false,
            next_dial: now + dial_delay,
            failures: 0,
            led: None,
        }
    }

    fn opened(&mut self, now: Moment, number: SessionNumber, node: NodeId, dialed: bool, out: &mut Vec<Effect>) {
        if !self.links.contains_key(&node) {
            let link = self.fresh(now, node);
            self.links.insert(node, link);
        }
        let link = self.links.get_mut(&node).expect("inserted above");
        // An older session of the same direction that never became ready is abandoned: sessions per node stay few.
        for (older, held) in &link.sessions {
            if held.dialed == dialed && held.ready.is_none() {
                out.push(Effect::End { number: *older, because: Because::Superseded });
            }
        }
        link.sessions.insert(number, Held { dialed, opened: now, ready: None });
    }

    fn ready(&mut self, now: Moment, number: SessionNumber, out: &mut Vec<Effect>) {
        let Some((node, link)) = self.links.iter_mut().find(|(_, l)| l.sessions.contains_key(&number)) else {
            return;
        };
        let Some(new) = link.sessions.get_mut(&number) else { return };
        new.ready = Some(now);
        let new = *new;
        if let Some(current) = link.up
            && let Some(old) = link.sessions.get(&current)
        {
            let together = now.since(old.opened) < SIMULTANEOUS_WINDOW && old.dialed != new.dialed;
            let smaller_dialed_old = old.dialed == (self.own < *node);
            if together && smaller_dialed_old {
                out.push(Effect::End { number, because: Because::Superseded });
                return;
            }
            out.push(Effect::End { number: current, because: Because::Superseded });
        }
        link.up = Some(number);
        out.push(Effect::Up { node: *node, number });
    }

    fn ended(&mut self, now: Moment, leader: Option<NodeId>, number: SessionNumber, out: &mut Vec<Effect>) {
        let found = self.links.iter().find(|(_, l)| l.sessions.contains_key(&number)).map(|(n, _)| *n);
        let Some(node) = found else { return };
        // It may not know this manager yet.
        let dial_delay = if self.has_answered(now, node) { Duration::ZERO } else { self.dial_delay(node) };
        let Some(link) = self.links.get_mut(&node) else { return };
        let held = link.sessions.remove(&number);
        let proven = held.is_some_and(|h| h.ready.is_some_and(|at| now.since(at) >= PROVEN_AFTER));
        if proven {
            link.failures = 0;
        }
        if !link.sessions.is_empty() && link.up != Some(number) {
            return;
        }
        let was_up = link.up == Some(number);
        if was_up {
            link.up = None;
            out.push(Effect::Down { node });
        }
        link.next_dial = now + dial_delay.max(pause(link.failures));
        if !proven {
            link.failures += 1;
        }
        if was_up && leader == Some(node) && link.addr.is_some() {
            link.led = Some(now);
            link.next_dial = now;
        }
    }

    fn dialed(&mut self, now: Moment, node: NodeId, outcome: DialOutcome, out: &mut Vec<Effect>) {
        let jitter = self.sample(50);
        let Some(link) = self.links.get_mut(&node) else { return };
        link.dialing = false;
        // A dying process may still accept for a moment and then reset: such a dial is inconclusive, and the next one decides.
        let just_led = link.led.is_some_and(|at| now.since(at) < LEADER_GONE_WINDOW);
        if just_led && outcome == DialOutcome::Refused && link.up.is_none() {
            out.push(Effect::LeaderGone { node });
        }
        if !just_led || outcome != DialOutcome::Failed {
            link.led = None;
        }
        if outcome != DialOutcome::Opened {
            let pause = if link.led.is_some() { LEADER_REDIAL_PAUSE } else { pause(link.failures) };
            link.failures += 1;
            link.by_hint = !link.dials_hint && link.found.is_some();
            link.next_dial = now + pause.mul_f64(1.0 - jitter as f64 / 100.0);
        }
    }

    /// No node is trusted about another one's address: the node that answered presented its own certificate. A manager that joined
    /// while this one was away is not a member in the local replica. It may be the leader, and it cannot dial this one after a move.
    fn asked(&mut self, now: Moment, addr: String, found: Option<NodeId>) {
        self.hints.asked(now);
        if let Some(node) = found.filter(|node| *node != self.own) {
            if !self.links.contains_key(&node) {
                let link = self.fresh(now, node);
                self.links.insert(node, link);
            }
            if let Some(link) = self.links.get_mut(&node).filter(|link| link.addr.is_none()) {
                link.introduce = Some(addr.clone());
            }
        }
        let Some(link) = found.and_then(|node| self.links.get_mut(&node)) else { return };
        if link.addr.is_some() && link.addr.as_ref() != Some(&addr) {
            (link.found, link.by_hint) = (Some(addr), true);
            link.next_dial = now;
        }
    }

    fn end_all(&mut self, node: NodeId, because: Because, out: &mut Vec<Effect>) {
        let Some(link) = self.links.get_mut(&node) else { return };
        if because == Because::Renewed {
            link.failures = 0;
        }
        for number in link.sessions.keys() {
            out.push(Effect::End { number: *number, because });
        }
    }

    /// The only place that dials.
    fn advance(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let mut wake: Option<Moment> = None;
        self.links.retain(|node, link| {
            let keep = link.addr.is_some() || link.introduce.is_some() || link.dialing || !link.sessions.is_empty();
            if !keep {
                out.push(Effect::Forget { node: *node });
            }
            keep
        });
        for (node, link) in &mut self.links {
            if link.dialing || !link.sessions.is_empty() {
                continue;
            }
            // One attempt each time that it is found.
            if let Some(addr) = link.introduce.take().filter(|_| link.addr.is_none()) {
                link.dialing = true;
                out.push(Effect::Dial { node: *node, addr });
                continue;
            }
            let Some(addr) = &link.addr else { continue };
            if link.next_dial <= now {
                link.dialing = true;
                let hinted = link.found.as_ref().filter(|_| link.by_hint);
                link.dials_hint = hinted.is_some();
                let addr = hinted.unwrap_or(addr);
                out.push(Effect::Dial { node: *node, addr: addr.clone() });
            } else {
                wake = Some(wake.map_or(link.next_dial, |w| w.min(link.next_dial)));
            }
        }
        let members = self.links.values().filter(|l| l.addr.is_some());
        let (all, up) = members.fold((1, 1), |(all, up), l| (all + 1, up + usize::from(l.up.is_some())));
        match self.hints.next(now, up, all) {
            Next::Nothing => {}
            Next::Ask(addr) => out.push(Effect::Ask { addr }),
            Next::At(at) => wake = Some(wake.map_or(at, |w| w.min(at))),
        }
        out.extend(wake.map(Effect::WakeAt));
    }

    /// A probe, a moment ago.
    fn has_answered(&self, now: Moment, node: NodeId) -> bool {
        self.answered.get(&node).is_some_and(|at| now.since(*at) < PROBE_VALIDITY)
    }

    fn dial_delay(&mut self, node: NodeId) -> Duration {
        if self.own < node {
            Duration::ZERO
        } else {
            GREATER_ID_DELAY + GREATER_ID_DELAY.mul_f64(self.sample(100) as f64 / 100.0)
        }
    }
    /// A sample from 0 to `sides` - 1 (xorshift: good enough for delays).
    fn sample(&mut self, sides: u64) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng % sides
    }
}

fn pause(failures: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    MAX_PAUSE.min(FIRST_PAUSE * 2u32.saturating_pow(failures.min(10) - 1))
}

#[cfg(test)]
mod tests;
