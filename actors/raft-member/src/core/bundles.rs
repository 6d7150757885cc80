//! Packets of one turn, bundled for each node.

use std::collections::BTreeMap;

use muster_messages::NodeId;
use muster_messages::wire::{MAX_FRAME, RaftPacket};

use super::Outbound;

/// Packets handed to the mesh at once: below the frame limit with room for the envelope. A single larger packet is sent alone.
const MAX_BUNDLE_BYTES: usize = MAX_FRAME * 3 / 4;

/// Packets to one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Bundle {
    pub node: NodeId,
    pub addr: String,
    pub packets: Vec<RaftPacket>,
}

/// Bundles in the order in which they are to be sent. The packets to a node keep their order.
pub fn bundles(outbound: Vec<Outbound>) -> Vec<Bundle> {
    let mut full = Vec::new();
    let mut open: BTreeMap<NodeId, (Bundle, usize)> = BTreeMap::new();
    for Outbound { node, addr, packet } in outbound {
        let size = packet.entries.iter().map(|e| e.data.len() + e.context.len() + 32).sum::<usize>() + 256;
        let empty = || (Bundle { node, addr: String::new(), packets: Vec::new() }, 0);
        let (bundle, bytes) = open.entry(node).or_insert_with(empty);
        if *bytes + size > MAX_BUNDLE_BYTES && !bundle.packets.is_empty() {
            full.push(Bundle { packets: std::mem::take(&mut bundle.packets), ..bundle.clone() });
            *bytes = 0;
        }
        *bytes += size;
        bundle.addr = addr;
        bundle.packets.push(packet);
    }
    full.extend(open.into_values().map(|(bundle, _)| bundle));
    full
}
