//! Asks: the manager runtime's requests to the leader, on a session or waiting for one.
//!
//! Owns        which request was sent on which connection, and which requests wait.
//! Invariants  AGENT-11  a request waits at most [`WAIT_FOR_SESSION`] for a session, and at most `open_asks` requests exist at
//!                       once; each is answered exactly once. One that was sent is never sent again: its caller repeats it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_messages::wire::{AgentAsk, AgentFrame};
use muster_messages::{ErrorBody, ErrorCode, Moment};

use super::{AskId, Attempt, Effect};

/// A new certificate, or a host that restarts, leaves an agent without a session for some round trips. Shorter than the
/// callers' own deadlines, so that they learn the reason.
pub(super) const WAIT_FOR_SESSION: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub(super) struct Asks {
    /// By their ids on the connection.
    sent: BTreeMap<u64, (Attempt, AskId)>,
    /// The oldest first.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Debug)]
struct Waiting {
    ask: AskId,
    question: AgentAsk,
    until: Moment,
}

impl Asks {
    pub fn wait(&mut self, now: Moment, ask: AskId, question: AgentAsk, limit: usize, out: &mut Vec<Effect>) {
        if self.sent.len() + self.waiting.len() < limit {
            return self.waiting.push_back(Waiting { ask, question, until: now + WAIT_FOR_SESSION });
        }
        let text = "too many requests of the manager runtime are waiting for the leader";
        refuse(ask, ErrorBody::new(ErrorCode::TooManyRequests, text), out);
    }

    /// Sends everything that waits.
    pub fn send(&mut self, attempt: Attempt, next_id: &mut u64, out: &mut Vec<Effect>) {
        for Waiting { ask, question, .. } in std::mem::take(&mut self.waiting) {
            *next_id += 1;
            self.sent.insert(*next_id, (attempt, ask));
            let frame = Box::new(AgentFrame::Ask { id: *next_id, ask: question });
            out.push(Effect::Send { attempt, frame });
        }
    }

    /// The request that was sent under this id, if it still awaits its answer.
    pub fn answered(&mut self, id: u64) -> Option<AskId> {
        self.sent.remove(&id).map(|(_, ask)| ask)
    }

    /// The connection is gone, with every answer still to come.
    pub fn lost(&mut self, attempt: Attempt, out: &mut Vec<Effect>) {
        self.sent.retain(|_, (on, ask)| {
            if *on == attempt {
                refuse(*ask, no_session(), out);
            }
            *on != attempt
        });
    }

    pub fn expire(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let over = self.waiting.iter().take_while(|waiting| waiting.until <= now).count();
        for waiting in self.waiting.drain(..over) {
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
        self.waiting.front().map(|waiting| waiting.until)
    }
}

fn refuse(ask: AskId, error: ErrorBody, out: &mut Vec<Effect>) {
    out.push(Effect::LeaderAnswered { ask, result: Err(error) });
}

fn no_session() -> ErrorBody {
    ErrorBody::new(ErrorCode::Unreachable, "no session to a manager at the moment")
        .retry_after(Duration::from_millis(100))
}
