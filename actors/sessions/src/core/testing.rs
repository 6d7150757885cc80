//! Values for the tests of the cores.

use std::collections::BTreeMap;

use muster_messages::wire::SessionFact;
use muster_messages::{Liveness, Name, NodeId, WallTime};

pub fn node(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

pub fn fact(n: u128) -> SessionFact {
    SessionFact {
        node: node(n),
        liveness: Liveness::Ready,
        since: WallTime(1000),
        addr: format!("10.1.0.{n}:4400"),
        name: Name::sanitized(&format!("n{n}")),
        release: "0.1.0".to_owned(),
        labels: BTreeMap::new(),
        serial: "aa".to_owned(),
        instance: 1,
        remote: format!("10.1.0.{n}:55555"),
        turns: Vec::new(),
    }
}
