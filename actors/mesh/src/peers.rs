//! The peer actors below the mesh: one per node, started on first use.

use muster_kernel::{Address, Cx, Recipient, Spec};
use muster_messages::NodeId;
use muster_messages::protocol::RaftMemberMsg;
use muster_messages::wire::IdentityBinding;

use crate::handle::Peers;
use crate::msg::{Msg, PeerMsg};
use crate::peer::PeerShell;
use crate::peer_call::Link;

/// Messages waiting for a peer actor: Raft sends a few per tick and batch.
const PEER_MAILBOX: usize = 4096;

/// See the module.
pub struct PeerActors {
    addresses: Peers,
    raft: Recipient<RaftMemberMsg>,
}

impl PeerActors {
    /// Peer actors of an earlier incarnation of the mesh ended with it.
    pub fn new(addresses: Peers, raft: Recipient<RaftMemberMsg>) -> Self {
        addresses.clear();
        Self { addresses, raft }
    }

    pub fn start(&self, cx: &Cx<Msg>, node: NodeId) {
        if self.addresses.get(node).is_some() {
            return;
        }
        let address = Address::new(PEER_MAILBOX);
        let (raft, started) = (self.raft.clone(), cx.me().recipient());
        cx.children().start(Spec::actor(name(node), address.clone(), move || {
            Ok(PeerShell::new(node, raft.clone(), started.clone()))
        }));
        self.addresses.insert(node, address);
    }

    pub fn stop(&self, cx: &Cx<Msg>, node: NodeId) {
        self.addresses.remove(node);
        cx.children().stop(&name(node));
    }

    /// Sends the current link to the peer actor, then informs the raft member, whose messages arrive from then on.
    pub fn link(&self, node: NodeId, link: Link, bindings: Vec<IdentityBinding>) {
        let Some(peer) = self.addresses.get(node) else { return };
        if peer.tell(PeerMsg::Link(Some(Box::new(link)))).is_ok() {
            let _down = peer.tell(PeerMsg::IdentityBindings(bindings));
            self.addresses.set_up(node, true);
            self.inform_raft(node, true);
        }
    }

    /// The node has no session any more.
    pub fn down(&self, node: NodeId) {
        self.addresses.set_up(node, false);
        if let Some(peer) = self.addresses.get(node) {
            let _gone = peer.tell(PeerMsg::Link(None));
        }
        self.inform_raft(node, false);
    }

    fn inform_raft(&self, node: NodeId, up: bool) {
        // Lost when its mailbox is full: its own timeouts detect the same.
        let _full = self.raft.tell(RaftMemberMsg::PeerSession { node, up });
    }

    /// Announces this manager's bindings to all peers with a session.
    pub fn send_bindings(&self, bindings: &[IdentityBinding]) {
        for peer in self.addresses.up().into_iter().filter_map(|node| self.addresses.get(node)) {
            let _down = peer.tell(PeerMsg::IdentityBindings(bindings.to_vec()));
        }
    }
}

fn name(node: NodeId) -> String {
    format!("peer-{node}")
}
