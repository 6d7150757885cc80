//! Reply ports of open requests: messages as inputs of the core, and its answers.

use std::time::Duration;

use muster_kernel::Parked;
use muster_messages::protocol::{Reply, RoleManagerMsg, RoleRequestAccepted};
use muster_messages::wire::MembershipReply;
use muster_messages::{AskId, ErrorBody, ErrorCode};

use crate::core::{Answer, Input, RequestedChange, RoleRequest};

/// Open requests at once. Each is a person's request or a join request; a cluster of 10,000 nodes has a few.
const MAX_OPEN_ASKS: usize = 1024;

/// The reply port of each kind of request.
enum Port {
    Role(Reply<Result<RoleRequestAccepted, ErrorBody>>),
    Removed(Reply<Result<(), ErrorBody>>),
    Membership(Reply<Result<MembershipReply, ErrorBody>>),
    Reported(Reply<Result<(), ErrorBody>>),
}

impl Port {
    fn is_closed(&self) -> bool {
        match self {
            Self::Role(port) => port.is_closed(),
            Self::Removed(port) => port.is_closed(),
            Self::Membership(port) => port.is_closed(),
            Self::Reported(port) => port.is_closed(),
        }
    }
    /// The caller may have given up: that is not a fault.
    fn answer(self, answer: Answer) {
        match (self, answer) {
            (Self::Role(port), Answer::Role(result)) => {
                let _gone = port.send(result.map(|changed| RoleRequestAccepted { changed }));
            }
            (Self::Removed(port), Answer::Removed(result)) => drop(port.send(result)),
            (Self::Membership(port), Answer::Membership(result)) => drop(port.send(result)),
            (Self::Reported(port), Answer::Reported(result)) => drop(port.send(result)),
            (_, answer) => debug_assert!(false, "an answer of another kind: {answer:?}"),
        }
    }
    fn refuse(self, error: ErrorBody) {
        let answer = match &self {
            Self::Role(_) => Answer::Role(Err(error)),
            Self::Removed(_) => Answer::Removed(Err(error)),
            Self::Membership(_) => Answer::Membership(Err(error)),
            Self::Reported(_) => Answer::Reported(Err(error)),
        };
        self.answer(answer);
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Asks(Parked<Port>);

impl Asks {
    /// Parks the reply port and returns the core's input; `None` if too many requests are open.
    pub fn park(&mut self, msg: RoleManagerMsg) -> Option<Input> {
        let ask = self.0.next_id();
        let (port, input) = match msg {
            RoleManagerMsg::SetRole { node, role, by, request, reply } => {
                let change = RequestedChange::Role(role);
                (Port::Role(reply), Input::RoleRequested(RoleRequest { ask, node, change, by, request }))
            }
            RoleManagerMsg::Remove { node, force, by, request, reply } => {
                let change = RequestedChange::Remove { force };
                (Port::Removed(reply), Input::RoleRequested(RoleRequest { ask, node, change, by, request }))
            }
            RoleManagerMsg::RequestMembership { node, request, reply } => {
                (Port::Membership(reply), Input::MembershipRequested { ask, node, request })
            }
            RoleManagerMsg::ReportManager { node, report, reply } => {
                (Port::Reported(reply), Input::Reported { ask, node, report })
            }
        };
        if self.0.len() >= MAX_OPEN_ASKS {
            self.0.retain(|port| !port.is_closed());
        }
        if self.0.len() >= MAX_OPEN_ASKS {
            let error = ErrorBody::new(ErrorCode::TooManyRequests, "too many role requests are open; retry later");
            port.refuse(error.retry_after(Duration::from_secs(1)));
            return None;
        }
        self.0.park(port);
        Some(input)
    }

    pub fn answer(&mut self, ask: AskId, answer: Answer) {
        if let Some(port) = self.0.take(ask) {
            tracing::debug!(?answer, "answering a request");
            port.answer(answer);
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
