//! Calls to a peer's services that have not been sent.
//!
//! Owns        the calls that wait for room in the window of their class, and where each is answered.
//! Inputs      calls; the loss of the session; the time.
//! Outputs     the next call to send; answers to the others: no session, too many, too late.
//! Invariants  each call is handed out or answered, once.

use std::time::Duration;

use muster_messages::protocol::Reply;
use muster_messages::wire::PeerCall;
use muster_messages::{ErrorBody, ErrorCode, Moment, NodeId};

use crate::core::waiting::WaitingCalls;
use crate::core::windows::CallClass;
use crate::peer_call::{no_session, too_many_waiting};

/// A call to a service of the peer.
pub(crate) struct Call {
    pub call: Box<PeerCall>,
    pub reply: Reply<Result<Vec<u8>, ErrorBody>>,
}

pub(crate) struct ServiceCalls {
    node: NodeId,
    own: WaitingCalls<Call>,
    clients: WaitingCalls<Call>,
}

impl ServiceCalls {
    pub fn new(node: NodeId) -> Self {
        Self { node, own: WaitingCalls::default(), clients: WaitingCalls::default() }
    }
    fn waiting(&mut self, class: CallClass) -> &mut WaitingCalls<Call> {
        match class {
            CallClass::Own => &mut self.own,
            CallClass::Client => &mut self.clients,
        }
    }
    /// True: the call waits.
    pub fn take(
        &mut self,
        now: Moment,
        has_session: bool,
        deadline: Duration,
        (class, call): (CallClass, Call),
    ) -> bool {
        if !has_session {
            let _gone = call.reply.send(Err(no_session(self.node)));
            return false;
        }
        match self.waiting(class).push(now, deadline, call) {
            Ok(()) => true,
            Err(Call { reply, .. }) => {
                let _gone = reply.send(Err(too_many_waiting()));
                false
            }
        }
    }
    /// The oldest call of this class, and its deadline.
    pub fn pop(&mut self, class: CallClass) -> Option<(Moment, Call)> {
        self.waiting(class).pop()
    }
    /// The deadline of the newest call of this class.
    pub fn newest(&mut self, class: CallClass) -> Option<Moment> {
        self.waiting(class).newest()
    }
    pub fn drop_overdue(&mut self, now: Moment) {
        for Call { reply, .. } in self.own.overdue(now).chain(self.clients.overdue(now)) {
            let text = "the call timed out behind other calls to this manager";
            let _gone = reply.send(Err(ErrorBody::new(ErrorCode::TimedOut, text)));
        }
    }
    pub fn session_lost(&mut self) {
        for Call { reply, .. } in self.own.clear().chain(self.clients.clear()) {
            let _gone = reply.send(Err(no_session(self.node)));
        }
    }
    pub fn len(&self) -> usize {
        self.own.len() + self.clients.len()
    }
}
