//! The handle to the mesh for its users: cheap to clone, never blocks, survives the mesh's restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

use muster_kernel::{Address, Recipient, Slot, Undeliverable};
use muster_messages::protocol::{MeshMsg, RaftMemberMsg, RaftTransport, SnapshotOutcome};
use muster_messages::wire::{PeerCall, RaftPacket, SnapshotHead};
use muster_messages::{ErrorBody, Member, NodeId, RaftId, Replica};
use tokio::sync::oneshot;

use crate::core::call_end::End;
use crate::msg::{Msg, PeerMsg};
use crate::peer_call::{no_session, too_many_waiting};
use crate::register::BindingStore;

/// The peer actor ends a call at its deadline and knows why; this bounds a call to one that does not.
const DEADLINE_MARGIN: Duration = Duration::from_millis(500);

/// The addresses of the peer actors, and which peers have a session.
#[derive(Clone, Debug, Default)]
pub struct Peers(Arc<RwLock<Table>>);

#[derive(Debug, Default)]
struct Table {
    addresses: BTreeMap<NodeId, Address<PeerMsg>>,
    up: BTreeSet<NodeId>,
}

impl Peers {
    pub(crate) fn get(&self, node: NodeId) -> Option<Address<PeerMsg>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).addresses.get(&node).cloned()
    }
    pub(crate) fn insert(&self, node: NodeId, address: Address<PeerMsg>) {
        self.write().addresses.insert(node, address);
    }
    pub(crate) fn remove(&self, node: NodeId) {
        self.write().addresses.remove(&node);
    }
    pub(crate) fn set_up(&self, node: NodeId, up: bool) {
        let mut table = self.write();
        if up {
            table.up.insert(node);
        } else {
            table.up.remove(&node);
        }
    }
    pub(crate) fn up(&self) -> BTreeSet<NodeId> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).up.clone()
    }
    pub(crate) fn clear(&self) {
        *self.write() = Table::default();
    }
    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
pub struct MeshHandle {
    pub(crate) mesh: Address<Msg>,
    pub(crate) peers: Peers,
    pub(crate) raft: Recipient<RaftMemberMsg>,
    /// The raft member's latest report. It outlives the mesh's restarts.
    pub(crate) member_set: Slot<MemberSet>,
    /// The accepted process of each peer. It outlives the mesh's restarts as well.
    pub(crate) binding_store: BindingStore,
}

/// The members and this manager's own member id, as the raft member knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberSet {
    pub members: Vec<Member>,
    pub own: Option<RaftId>,
}

impl MemberSet {
    /// The members' nodes and addresses: the Raft member's, which may be newer, over those of the replica.
    pub fn addresses(&self, replica: &Replica) -> BTreeMap<NodeId, String> {
        let members = replica.tables.members.values().chain(self.members.iter());
        members.map(|member| (member.node, member.addr.clone())).collect()
    }
}

impl std::fmt::Debug for MeshHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MeshHandle")
    }
}

impl MeshHandle {
    pub fn recipient(&self) -> Recipient<MeshMsg> {
        self.mesh.recipient()
    }

    /// The managers that currently have a session with this one.
    pub fn connected(&self) -> BTreeSet<NodeId> {
        self.peers.up()
    }

    /// Calls another manager's services. Answered with the peer's answer, `timed_out` after the deadline, or `unreachable`:
    /// with `not_sent` when there was no session, without it when the session or the peer's actor ended and the call may have
    /// been carried out. Safe to repeat, as every call is.
    pub async fn call(&self, to: NodeId, deadline: Duration, call: PeerCall) -> Result<Vec<u8>, ErrorBody> {
        let (tx, answer) = oneshot::channel();
        let asked = self
            .peers
            .get(to)
            .map(|peer| peer.tell(PeerMsg::Call { deadline, call: Box::new(call), reply: tx.into() }));
        match asked {
            Some(Ok(())) => {}
            Some(Err(Undeliverable::Full)) => return Err(too_many_waiting()),
            Some(Err(Undeliverable::Down)) | None => return Err(no_session(to)),
        }
        match tokio::time::timeout(deadline + DEADLINE_MARGIN, answer).await {
            Ok(answered) => answered.unwrap_or_else(|_| End::Failed.result_of(to)),
            Err(_) => End::TimedOut.result_of(to),
        }
    }
}

impl RaftTransport for MeshHandle {
    fn send(&self, to: NodeId, _addr: &str, packets: Vec<RaftPacket>) {
        let member_id = packets.first().map(|p| p.to);
        let taken = self.peers.get(to).map(|peer| peer.tell(PeerMsg::Send(packets)));
        if let (Some(to), false) = (member_id, matches!(taken, Some(Ok(())))) {
            let _full = self.raft.tell(RaftMemberMsg::Unreachable { to });
        }
    }

    fn send_snapshot(&self, to: NodeId, _addr: &str, head: SnapshotHead, data: Arc<Vec<u8>>, packet: RaftPacket) {
        let (member_id, index) = (packet.to, head.index);
        let msg = PeerMsg::Snapshot { head, data, packet: Box::new(packet) };
        let taken = self.peers.get(to).map(|peer| peer.tell(msg));
        if !matches!(taken, Some(Ok(()))) {
            let outcome = SnapshotOutcome::Lost("no session with the node".to_owned());
            let _full = self.raft.tell(RaftMemberMsg::SnapshotSent { to: member_id, index, outcome });
        }
    }

    fn stop_snapshot(&self, to: NodeId, index: u64) {
        if let Some(peer) = self.peers.get(to) {
            let _restarting = peer.tell(PeerMsg::StopSnapshot { index });
        }
    }

    fn members(&self, members: Vec<Member>, own_member: Option<RaftId>) {
        let member_set = MemberSet { members, own: own_member };
        if self.member_set.get().as_ref() == Some(&member_set) {
            return;
        }
        self.member_set.set(member_set);
        // Lost while the mesh restarts: the next incarnation reads the slot.
        let _down = self.mesh.tell(Msg::Members);
    }
}
