//! Which process of a node is heard: what follows from it for sessions, and what the other managers are told of it.

use muster_kernel::Cx;
use muster_messages::wire::{Claim, StartId};
use muster_messages::{NodeId, RaftId};
use tracing::warn;

use super::{MeshShell, Msg};
use crate::core::claims::Reaction;
use crate::peer::PeerMsg;
use crate::session::Ending;

impl MeshShell {
    /// MESH-22.
    pub(super) fn hear_only(&self, node: NodeId, start: StartId) {
        for session in self.sessions.all().iter().filter(|s| s.node == node && s.start != start) {
            session.end(Ending::Duplicate);
        }
    }

    fn hear_no_more(&self, start: StartId) {
        for session in self.sessions.all().iter().filter(|s| s.start == start) {
            session.end(Ending::Duplicate);
        }
    }

    pub(super) fn tell_claims(&self) {
        for peer in self.handle.peers.up().into_iter().filter_map(|node| self.handle.peers.get(node)) {
            let _down = peer.tell(PeerMsg::Claims(self.register.all()));
        }
    }

    /// MESH-23.
    pub(super) fn seated(&self, node: NodeId, start: StartId, seat: RaftId) {
        if self.register.seated(node, start, seat) {
            self.tell_claims();
        }
    }

    /// MESH-24.
    pub(super) fn claimed(&self, cx: &Cx<Msg>, by: NodeId, claims: Vec<Claim>) {
        let reactions = self.register.told(by, claims);
        let mut gave_way = false;
        for reaction in reactions {
            match reaction {
                Reaction::GiveWay { node, from, to } => {
                    warn!(%node, %by, heard = %to.addr, since = %to.since, "another manager hears another process of this node");
                    self.hear_no_more(from);
                    gave_way = true;
                }
                Reaction::Ask { own: claim, because } => {
                    let (me, register) = (cx.me().clone(), self.register.clone());
                    cx.spawn(async move {
                        let lives = register.lives(&claim).await;
                        let _gone = me.tell(Msg::Lives { claim, because, lives });
                    });
                }
            }
        }
        if gave_way {
            self.tell_claims();
        }
    }

    pub(super) fn lives(&self, claim: &Claim, because: StartId, lives: bool) {
        let (news, gone) = self.register.asked(claim, because, lives);
        if let Some(start) = gone {
            self.hear_no_more(start);
        }
        if news {
            self.tell_claims();
        }
    }
}
