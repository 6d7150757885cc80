//! The accepted process of each node: its effects on sessions, and the announcements to the other managers.

use muster_kernel::Cx;
use muster_messages::wire::{IdentityBinding, StartId};
use muster_messages::{NodeId, RaftId};
use tracing::warn;

use super::{MeshShell, Msg};
use crate::core::bindings::Reaction;

impl MeshShell {
    /// MESH-23.
    pub(super) fn member_id_announced(&self, node: NodeId, start: StartId, member_id: RaftId) {
        if self.register.member_id_announced(node, start, member_id) {
            self.peers.send_bindings(&self.register.all());
        }
    }

    /// MESH-24.
    pub(super) fn bindings_reported(&self, cx: &Cx<Msg>, by: NodeId, bindings: Vec<IdentityBinding>) {
        let reactions = self.register.reported(by, bindings);
        let mut gave_way = false;
        for reaction in reactions {
            match reaction {
                Reaction::GiveWay { node, from, to } => {
                    warn!(%node, %by, accepted = %to.addr, since = %to.since, "another manager accepted a different process of this node");
                    self.sessions.end_process(from);
                    gave_way = true;
                }
                Reaction::Ask { own: binding, because } => {
                    let register = self.register.clone();
                    cx.report(async move {
                        let alive = register.alive(&binding).await;
                        Msg::ProcessChecked { binding, because, alive }
                    });
                }
            }
        }
        if gave_way {
            self.peers.send_bindings(&self.register.all());
        }
    }

    pub(super) fn alive(&self, binding: &IdentityBinding, because: StartId, alive: bool) {
        let (news, gone) = self.register.asked(binding, because, alive);
        if let Some(start) = gone {
            self.sessions.end_process(start);
        }
        if news {
            self.peers.send_bindings(&self.register.all());
        }
    }
}
