//! Sessions with nodes that are not members: [`crate::core::non_members`] decides which of them end.

use muster_kernel::Cx;
use muster_messages::protocol::MeshMsg;
use muster_messages::{CertIdentity, NodeId};

use super::{MeshShell, Msg};
use crate::core::hello::StreamUse;
use crate::core::links::{Input, SessionNumber};
use crate::core::non_members::CHECK_EVERY;
use crate::greeting::Opened;
use crate::session::EndReason;

impl MeshShell {
    /// The stream of a node that is about to become a member stays as its session.
    pub(super) fn probe(&mut self, cx: &Cx<Msg>, msg: MeshMsg) {
        let MeshMsg::Probe { addr, expect, reply } = msg;
        self.greetings.probe(cx, (addr, expect), self.links.may_introduce(expect), reply);
    }

    pub(super) fn probed(&mut self, cx: &Cx<Msg>, node: NodeId, opened: Opened) {
        self.step(cx, Input::Answered { node });
        // A session that was opened meanwhile is as good.
        if self.links.may_introduce(node) && self.greetings.stream_use(&opened) == StreamUse::Session {
            self.open(cx, true, opened);
        }
    }

    pub(super) fn session_opened(
        &mut self,
        cx: &Cx<Msg>,
        (number, dialed): (SessionNumber, bool),
        node: NodeId,
        shown: CertIdentity,
    ) {
        let is_member = self.links.is_member(node);
        if self.non_members.opened((number, dialed), (node, is_member), shown) {
            cx.after(CHECK_EVERY, Msg::CheckNonMembers);
        }
    }

    pub(super) fn check_non_members(&mut self, cx: &Cx<Msg>) {
        let (links, sessions, replica) = (&self.links, &self.sessions, self.wiring.replica.borrow().clone());
        let remains = |number, node| sessions.get(number).is_some() && !links.is_member(node);
        for (number, refusal) in self.non_members.refused(&replica, remains) {
            sessions.end(number, EndReason::Cut(refusal.message));
        }
        if !self.non_members.is_empty() {
            cx.after(CHECK_EVERY, Msg::CheckNonMembers);
        }
    }
}
