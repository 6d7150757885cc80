//! The mesh and its peers in the live tree.

use muster_messages::{MeshView, NodeId};
use serde_json::{Value, json};

use super::MeshShell;
use crate::session::Session;

impl MeshShell {
    pub(super) fn shown(&self) -> MeshView {
        let own = self.greetings.own();
        MeshView {
            node: own.map(|own| own.node),
            member_id: own.and_then(|own| own.member_id),
            endpoint_pid: self.greetings.endpoint(),
            peers: (self.links.each())
                .map(|(node, wanted, addr, dialing, failures)| self.peer_view(node, wanted, addr, dialing, failures))
                .collect(),
            hints: self.links.hints().to_vec(),
            sessions_ended: self.sessions.end_reasons().clone(),
            offences: self.context.offences.view(),
            endpoint: self.context.counts(),
            hellos_under_way: self.greetings.under_way(),
            identity: self.register.view(),
        }
    }

    fn peer_view(&self, node: NodeId, wanted: bool, addr: &str, dialing: bool, failures: u32) -> Value {
        let up = self.links.up(node).and_then(|n| self.sessions.get(n));
        let state = match (&up, dialing) {
            (Some(_), _) => "up",
            (None, true) => "dialing",
            (None, false) => "down",
        };
        json!({
            "node": node, "wanted": wanted, "addr": addr, "state": state, "failed_dials": failures,
            "last_error": self.greetings.last_error(node),
            "session": up.map(|s| session_view(&s)),
        })
    }
}

fn session_view(session: &Session) -> Value {
    json!({
        "number": session.number, "side": session.side.word(), "remote": session.remote,
        "since": session.since, "member_id": session.member_id(),
        "bytes_read": session.meter.read(), "bytes_written": session.meter.written(),
        "bytes_unhandled": session.meter.unhandled(), "bytes_queued": session.meter.queued(),
        "gated": session.meter.gated(),
    })
}
