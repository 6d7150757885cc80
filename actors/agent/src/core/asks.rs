//! Asks: requests to the leader, of the manager runtime and for workloads, on a session or waiting for one.
//!
//! Owns        which request was sent on which connection, and which requests wait.
//! Invariants  AGENT-11  a request waits at most [`WAIT_FOR_SESSION`] for a session, and at most `open_asks` requests exist at
//!                       once, `open_workload_asks` of them for workloads; each is answered exactly once. One that was sent is sent
//!                       again only if a new certificate's session replaced its own; otherwise its caller repeats it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_messages::wire::{AgentAsk, AgentFrame};
use muster_messages::{ErrorBody, ErrorCode, Moment};

use super::{AskId, Attempt, Effect};
use crate::config::AgentConfig;

/// A new certificate, or a host that restarts, leaves an agent without a session for some round trips. Shorter than the
/// callers' own deadlines, so that they learn the reason.
pub(super) const WAIT_FOR_SESSION: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub(super) struct Asks {
    /// By their ids on the connection.
    sent: BTreeMap<u64, Sent>,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Debug)]
struct Sent {
    on: Attempt,
    ask: AskId,
    question: AgentAsk,
}

#[derive(Clone, Debug)]
struct Waiting {
    ask: AskId,
    question: AgentAsk,
    until: Moment,
}

impl Asks {
    pub fn wait(
        &mut self,
        now: Moment,
        (ask, question): (AskId, AgentAsk),
        config: &AgentConfig,
        out: &mut Vec<Effect>,
    ) {
        let open = self.sent.values().map(|sent| &sent.question).chain(self.waiting.iter().map(|w| &w.question));
        let text =
            if is_workload(&question) && open.clone().filter(|q| is_workload(q)).count() >= config.open_workload_asks {
                "too many requests for certificates of workloads are waiting for the leader"
            } else if open.count() >= config.open_asks {
                "too many requests of this node are waiting for the leader"
            } else {
                return self.waiting.push_back(Waiting { ask, question, until: now + WAIT_FOR_SESSION });
            };
        refuse(ask, ErrorBody::new(ErrorCode::TooManyRequests, text), out);
    }

    /// Sends everything that waits.
    pub fn send(&mut self, attempt: Attempt, next_id: &mut u64, out: &mut Vec<Effect>) {
        for Waiting { ask, question, .. } in std::mem::take(&mut self.waiting) {
            *next_id += 1;
            self.sent.insert(*next_id, Sent { on: attempt, ask, question: question.clone() });
            let frame = Box::new(AgentFrame::Ask { id: *next_id, ask: question });
            out.push(Effect::Send { attempt, frame });
        }
    }

    /// The request that was sent under this id on this connection, if it still awaits its answer.
    pub fn answered(&mut self, attempt: Attempt, id: u64) -> Option<AskId> {
        self.sent.get(&id).filter(|sent| sent.on == attempt)?;
        self.sent.remove(&id).map(|sent| sent.ask)
    }

    /// The connection is gone, with every answer still to come.
    pub fn lost(&mut self, attempt: Attempt, out: &mut Vec<Effect>) {
        for sent in self.take_sent(attempt) {
            refuse(sent.ask, no_session(), out);
        }
    }

    /// The connection is replaced: its unanswered requests wait for the next one, before any other. The leader answers a
    /// repeated request of the manager runtime like the first. One for a workload costs a second certificate, for the same key.
    pub fn repeat(&mut self, now: Moment, attempt: Attempt) {
        for Sent { ask, question, .. } in self.take_sent(attempt).into_iter().rev() {
            self.waiting.push_front(Waiting { ask, question, until: now + WAIT_FOR_SESSION });
        }
    }

    fn take_sent(&mut self, attempt: Attempt) -> Vec<Sent> {
        let sent = std::mem::take(&mut self.sent).into_iter();
        let (taken, left): (BTreeMap<u64, Sent>, BTreeMap<u64, Sent>) = sent.partition(|(_, sent)| sent.on == attempt);
        self.sent = left;
        taken.into_values().collect()
    }

    pub fn expire(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let (over, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.until <= now);
        self.waiting = waiting;
        let over: VecDeque<Waiting> = over;
        for waiting in over {
            refuse(waiting.ask, no_session(), out);
        }
    }

    /// No session will follow.
    pub fn refuse_all(&mut self, out: &mut Vec<Effect>) {
        for waiting in std::mem::take(&mut self.waiting) {
            let text = "this node no longer keeps a session";
            refuse(waiting.ask, ErrorBody::new(ErrorCode::Unreachable, text), out);
        }
    }

    pub fn wake_at(&self) -> Option<Moment> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }
}

fn is_workload(question: &AgentAsk) -> bool {
    matches!(question, AgentAsk::SignWorkload(_))
}

fn refuse(ask: AskId, error: ErrorBody, out: &mut Vec<Effect>) {
    out.push(Effect::LeaderAnswered { ask, result: Err(error) });
}

fn no_session() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "no session to a manager at the moment")
        .retry_after(Duration::from_millis(100))
}
