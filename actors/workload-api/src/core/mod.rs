//! The decisions of the Workload API, without sockets, clocks or tasks.
//!
//! Owns        the open streams: who asked for what, and what each was sent last.
//! Inputs      requests, what was found out about their processes, views of the agent, signatures.
//! Outputs     processes to look at, answers, ends of streams, workloads to be signed.
//! Invariants  SPIFFE-2  a caller gets only what its own process matches, judged while the process that connected lives: it is looked at
//!                       between each decision to send and the message.
//! Why each message is the whole truth: the SPIFFE Workload API replaces what a client holds by each message, and its first certificate
//! is the client's default. So a first message waits until all identities of its process are there: without one of them, the process
//! would take another for its default.

mod attempts;
mod certificates;
mod matching;
mod requests;
mod stream;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_messages::{ClusterId, Moment, Rng, WallTime, WorkloadEntry, WorkloadName};

pub use self::attempts::{SIGN_PAUSES, SignFailure, SignId};
pub use self::certificates::{CLOCK_CHECK, Certificates, KeyId, MAX_HELD, MAX_SIGNINGS, RENEWAL_PAUSE, State, Svid};
pub use self::matching::{Facts, Matched, Needs, Wanted, explain, matches};
pub use self::requests::{REQUEST_BURST, REQUESTS_PER_SECOND, Requests};
pub use self::stream::{Answer, Denial, Identity, IssuedToken, JwtRequest, Kind};
use self::stream::{Decision, Holdings, Stream};
pub use self::tokens::{Audience, MAX_TOKENS_OF_WORKLOAD, Token, TokenKey, TokenState, Tokens};
use crate::jwt::JwtKeys;

/// Open streams of a node. Each costs a few kilobytes, and a look at its process with each change.
pub const MAX_STREAMS: usize = 1_200;
/// Open streams of one user: a third, so that no single user takes them all.
pub const MAX_STREAMS_OF_USER: usize = 400;
/// How long a first message waits for certificates. Clients time out later than that, and connect again.
pub const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Streams that a change reaches at once. More of them are spread over [`SPREAD`].
pub const AT_ONCE: usize = 100;
/// A change reaches all streams within a second; the rest of it is for looking at their processes.
pub const SPREAD: Duration = Duration::from_millis(900);

/// An open stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// The roots that programs trust.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Their certificates, DER, one after the other.
    pub der: Vec<u8>,
    pub keys: BTreeSet<KeyId>,
    /// Their public keys, which verify JWTs.
    pub jwt_keys: JwtKeys,
}

/// What the agent knows: see `WorkloadView`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub cluster: ClusterId,
    pub entries: Arc<Vec<WorkloadEntry>>,
    pub roots: Arc<Roots>,
}

impl View {
    fn entry(&self, name: &WorkloadName) -> Option<&WorkloadEntry> {
        self.entries.iter().find(|entry| entry.name == *name)
    }
}

/// Why nothing was found out about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAttested {
    /// The process that connected has ended.
    Ended,
    Failed(String),
}

#[derive(Debug)]
pub enum Input {
    View(View),
    /// A process of this user opens a stream.
    Asked {
        stream: StreamId,
        uid: u32,
        kind: Kind,
    },
    /// What was found out about a stream's process.
    Attested {
        stream: StreamId,
        facts: Result<Facts, NotAttested>,
    },
    /// The client has gone.
    Closed(StreamId),
    Signed {
        by: SignId,
        outcome: Result<Svid, SignFailure>,
    },
    SignedJwt {
        by: SignId,
        outcome: Result<Token, SignFailure>,
    },
    Woke,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Look at the process of a stream.
    Attest(StreamId, Needs),
    /// Send, in place of anything that the client has not received yet.
    Send(StreamId, Arc<Answer>),
    /// Refuse, or end.
    End(StreamId, Denial),
    Sign(SignId, WorkloadName),
    SignJwt(SignId, TokenKey),
}

/// See the header of this file.
#[derive(Debug)]
pub struct WorkloadCore {
    view: Option<View>,
    /// Of the view's entries.
    needs: Needs,
    /// Counts the changes of the roots.
    roots_changed: u64,
    streams: BTreeMap<StreamId, Stream>,
    /// The workloads of whose certificates open streams make use. It follows from `streams`; `None`: they have changed.
    wanted: Option<BTreeSet<WorkloadName>>,
    certificates: Certificates,
    tokens: Tokens,
    /// The last request to the leader. Streams tell certificates apart by them.
    last_request: SignId,
    requests: Requests,
    rng: Rng,
    refused: u64,
    sent: u64,
}

impl WorkloadCore {
    /// `certificates`: those of an earlier incarnation.
    pub fn new(certificates: Certificates, seed: u64) -> Self {
        Self {
            view: None,
            needs: Needs::default(),
            roots_changed: 0,
            streams: BTreeMap::new(),
            wanted: None,
            tokens: Tokens::default(),
            last_request: certificates.last(),
            certificates: certificates.resume(),
            requests: Requests::default(),
            rng: Rng::seeded(seed),
            refused: 0,
            sent: 0,
        }
    }

    pub fn certificates(&self) -> &Certificates {
        &self.certificates
    }
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
    pub fn streams(&self) -> usize {
        self.streams.len()
    }
    /// Messages sent, and streams refused or ended.
    pub fn totals(&self) -> (u64, u64) {
        (self.sent, self.refused)
    }

    pub fn step(&mut self, now: Moment, wall: WallTime, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::View(view) => self.viewed(now, view),
            Input::Asked { stream, uid, kind } => self.asked(now, stream, (uid, kind), out),
            Input::Attested { stream, facts } => self.attested(now, stream, facts, out),
            Input::Closed(stream) => drop(self.forget(stream)),
            Input::Signed { by, outcome } => {
                let roots = self.view.as_ref().map(|view| Arc::clone(&view.roots)).unwrap_or_default();
                let name = self.certificates.signed(now, wall, (&mut self.rng, &roots.keys), (by, outcome));
                self.touch_users(now, name.as_slice());
            }
            Input::SignedJwt { by, outcome } => {
                let name = self.tokens.signed((now, wall), by, outcome);
                self.touch_users(now, name.as_slice());
            }
            Input::Woke => {}
        }
        let expired = self.certificates.expire(wall);
        self.touch_users(now, &expired);
        self.settle_due((now, wall), out);
        self.sign(now, wall, out);
    }

    /// When to step again.
    pub fn wake_at(&self, now: Moment, wall: WallTime) -> Option<Moment> {
        let streams = self.streams.values().filter_map(Stream::wake_at);
        let known = self.view.as_ref().zip(self.wanted.as_ref());
        let certificates = known.and_then(|(view, wanted)| self.certificates.wake_at(now, wall, view, wanted));
        let tokens = self.tokens.wake_at((now, wall), &self.wanted_tokens());
        streams.chain(certificates).chain(tokens).min()
    }

    fn viewed(&mut self, now: Moment, view: View) {
        self.certificates.view(&view.entries);
        let before = self.view.as_ref().map(|view| Arc::clone(&view.entries)).unwrap_or_default();
        self.tokens.view(&before, &view.entries);
        if self.view.as_ref().is_none_or(|known| known.roots != view.roots) {
            self.roots_changed += 1;
            self.tokens.roots_changed();
        }
        self.needs = Needs::of(&view.entries);
        self.view = Some(view);
        let all: Vec<StreamId> = self.streams.keys().copied().collect();
        self.touch(now, &all);
    }

    fn asked(&mut self, now: Moment, id: StreamId, (uid, kind): (u32, Kind), out: &mut Vec<Effect>) {
        let of_user = self.streams.values().filter(|stream| stream.uid() == uid).count();
        let denial = if self.streams.len() >= MAX_STREAMS {
            Some("too many open streams on this node")
        } else if of_user >= MAX_STREAMS_OF_USER {
            Some("too many open streams of this user")
        } else if !self.requests.admit(now, uid) {
            Some("too many requests of this user")
        } else {
            None
        };
        if let Some(why) = denial {
            self.refused += 1;
            out.push(Effect::End(id, Denial::Unavailable(why.to_owned())));
            return;
        }
        self.streams.insert(id, Stream::new(uid, kind, now + FIRST_ANSWER_TIMEOUT));
        self.attest(id, out);
    }

    fn attest(&mut self, id: StreamId, out: &mut Vec<Effect>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.begin_attesting(self.needs.clone());
            out.push(Effect::Attest(id, self.needs.clone()));
        }
    }

    fn attested(&mut self, now: Moment, id: StreamId, facts: Result<Facts, NotAttested>, out: &mut Vec<Effect>) {
        match facts {
            Ok(facts) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.attested(now, facts);
                }
            }
            Err(NotAttested::Ended) => {
                self.end(id, Denial::PermissionDenied("the process that connected has ended".to_owned()), out);
            }
            Err(NotAttested::Failed(why)) => {
                self.end(id, Denial::Unavailable(format!("cannot find out about the process: {why}")), out);
            }
        }
    }

    /// Something changed for these streams. Many of them are not looked at all at once.
    fn touch(&mut self, now: Moment, streams: &[StreamId]) {
        let spread = if streams.len() > AT_ONCE { SPREAD } else { Duration::ZERO };
        for id in streams {
            let at = now + self.rng.up_to(spread);
            if let Some(stream) = self.streams.get_mut(id) {
                stream.touch(at);
            }
        }
    }

    fn touch_users(&mut self, now: Moment, names: &[WorkloadName]) {
        if names.is_empty() {
            return;
        }
        let users = self.streams.iter().filter(|(_, stream)| names.iter().any(|name| stream.is_about(name)));
        let users: Vec<StreamId> = users.map(|(id, _)| *id).collect();
        self.touch(now, &users);
    }

    fn settle_due(&mut self, (now, wall): (Moment, WallTime), out: &mut Vec<Effect>) {
        let due = self.streams.iter().filter(|(_, stream)| stream.wake_at().is_some_and(|at| at <= now));
        let due: Vec<StreamId> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.settle((now, wall), id, out);
        }
    }

    /// The only place that decides what a stream is sent.
    fn settle(&mut self, (now, wall): (Moment, WallTime), id: StreamId, out: &mut Vec<Effect>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.knows(&self.needs) {
            self.attest(id, out); // an entry names a fact that no entry named before
            return;
        }
        let matched = match (&self.view, stream.facts()) {
            (Some(view), Some(facts)) => matches(&view.entries, facts),
            _ => Vec::new(),
        };
        if stream.set_matched(matched) {
            self.wanted = None;
        }
        let holdings = Holdings { now, wall, certificates: &self.certificates, tokens: &self.tokens };
        let decision = stream.decide(self.view.as_ref(), self.roots_changed, holdings);
        match decision {
            Decision::Keep => stream.settled(),
            Decision::Send(answer, fingerprint) if stream.is_fresh() => {
                stream.sent(fingerprint);
                self.sent += 1;
                out.push(Effect::Send(id, Arc::new(answer)));
            }
            Decision::Send(..) => self.attest(id, out),
            Decision::End(denial) => self.end(id, denial, out),
        }
    }

    fn end(&mut self, id: StreamId, denial: Denial, out: &mut Vec<Effect>) {
        if self.forget(id).is_some() {
            self.refused += 1;
            out.push(Effect::End(id, denial));
        }
    }

    fn forget(&mut self, id: StreamId) -> Option<Stream> {
        self.wanted = None;
        self.streams.remove(&id)
    }

    fn sign(&mut self, now: Moment, wall: WallTime, out: &mut Vec<Effect>) {
        let Some(view) = &self.view else { return };
        let wanted = self.wanted.get_or_insert_with(|| wanted(&self.streams));
        let room = MAX_SIGNINGS.saturating_sub(self.certificates.in_flight() + self.tokens.in_flight());
        let planned = self.certificates.plan((now, wall), (view, wanted), room, &mut self.last_request);
        let room = room.saturating_sub(planned.len());
        out.extend(planned.into_iter().map(|(by, name)| Effect::Sign(by, name)));
        // What programs hold is renewed first.
        let tokens = self.wanted_tokens();
        let planned = self.tokens.plan((now, wall), &tokens, room, &mut self.last_request);
        out.extend(planned.into_iter().map(|(by, key)| Effect::SignJwt(by, key)));
    }

    fn wanted_tokens(&self) -> BTreeSet<TokenKey> {
        let view = self.view.iter();
        view.flat_map(|view| self.streams.values().flat_map(move |stream| stream.wanted_tokens(view))).collect()
    }
}

fn wanted(streams: &BTreeMap<StreamId, Stream>) -> BTreeSet<WorkloadName> {
    let of_certificates = streams.values().filter(|stream| *stream.kind() == Kind::Svids);
    let names: BTreeSet<&WorkloadName> =
        of_certificates.flat_map(|stream| stream.matched()).map(|matched| &matched.name).collect();
    names.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests;
