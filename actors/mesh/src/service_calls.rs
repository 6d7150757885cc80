//! Calls to a peer's services that have not been sent.
//!
//! Owns        the calls that wait for room in their window, and where each is answered.
//! Inputs      calls; the loss of the session; the time.
//! Outputs     the next call to send; answers to the others: no session, too many, too late.
//! Invariants  each call is handed out or answered, once.

use std::time::Duration;

use muster_messages::protocol::Reply;
use muster_messages::wire::PeerCall;
use muster_messages::{ErrorBody, ErrorCode, Moment, NodeId};

use crate::core::waiting::WaitingCalls;
use crate::peer_call::{no_session, too_many_waiting};

/// A call to a service of the peer.
pub(crate) struct Call {
    pub call: Box<PeerCall>,
    pub reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

pub(crate) struct ServiceCalls {
    node: NodeId,
    waiting: WaitingCalls<Call>,
}

impl ServiceCalls {
    pub fn new(node: NodeId) -> Self {
        Self { node, waiting: WaitingCalls::default() }
    }
    /// True: the call waits.
    pub fn take(&mut self, now: Moment, has_session: bool, deadline: Duration, call: Call) -> bool {
        if !has_session {
            let _gone = call.reply.send(Err(no_session(self.node)));
            return false;
        }
        match self.waiting.push(now, deadline, call) {
            Ok(()) => true,
            Err(Call { reply, .. }) => {
                let _gone = reply.send(Err(too_many_waiting()));
                false
            }
        }
    }
    /// The oldest call, and its deadline.
    pub fn pop(&mut self) -> Option<(Moment, Call)> {
        self.waiting.pop()
    }
    /// The deadline of the newest call.
    pub fn newest(&self) -> Option<Moment> {
        self.waiting.newest()
    }
    pub fn drop_overdue(&mut self, now: Moment) {
        for Call { reply, .. } in self.waiting.overdue(now) {
            let text = "the call timed out behind other calls to this manager";
            let _gone = reply.send(Err(ErrorBody::new(ErrorCode::TimedOut, text)));
        }
    }
    pub fn session_lost(&mut self) {
        for Call { reply, .. } in self.waiting.clear() {
            let _gone = reply.send(Err(no_session(self.node)));
        }
    }
    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}
