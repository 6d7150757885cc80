//! What an idle session costs, including the client's end and the pipe between: `cargo bench -p muster-sessions`.

#![expect(clippy::unwrap_used, reason = "a benchmark ends at the failure of anything it relies on")]

#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/it/stage.rs"]
mod stage;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use muster_gateway::{BoxStream, Connection, Framed};
use muster_messages::protocol::Service;
use muster_messages::*;
use muster_testkit::eventually;

use crate::stage::{M1, Stage, node};

const SESSIONS: u128 = 5_000;

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    let cluster_id = crate::stage::cluster();
    let stage = Stage::set().await;
    let cluster = Arc::clone(&stage.cluster);
    cluster.apply(|replica| {
        let record = Arc::clone(&replica.tables.nodes[&node(1)]);
        for n in 1..=SESSIONS {
            replica.tables.nodes.insert(node(n), Arc::new(NodeRecord { id: node(n), ..NodeRecord::clone(&record) }));
        }
    });
    let host = stage.host(M1).await;
    eventually("the host listens", || cluster.hosts.lock().unwrap()[M1].serves(Service::Agent)).await;
    let services = cluster.hosts.lock().unwrap()[M1].clone();
    let before = resident();
    let mut clients = vec![];
    for n in 1..=SESSIONS {
        let identity = CertIdentity {
            cluster: cluster_id,
            subject: Subject::Node { node: node(n), role: Role::Worker },
            serial: "aa".to_owned(),
            granted: Some(Revision(1)),
            incarnation: Incarnation(1),
            not_after: WallTime(i64::MAX),
            pin: None,
            issuer: None,
        };
        let (ours, theirs) = tokio::io::duplex(4096);
        let theirs: BoxStream = Box::pin(theirs);
        let remote: SocketAddr = "192.0.2.7:50000".parse().unwrap();
        let connection = Connection::detached(theirs, Service::Agent, Some(identity), remote);
        services.sink(Service::Agent).unwrap().send(connection).await.unwrap();
        let mut client = Framed::new(ours);
        let hello = wire::AgentHello {
            protocol: wire::AGENT_PROTOCOL,
            instance: 1,
            name: Name::sanitized("w"),
            advertise: "0.0.0.0:4400".to_owned(),
            release: "0.1.0".to_owned(),
            labels: BTreeMap::new(),
        };
        client.send(&wire::AgentFrame::Hello(hello)).await.unwrap();
        assert!(matches!(client.recv::<wire::HostFrame>().await.unwrap(), Some(wire::HostFrame::View(_))));
        clients.push(client);
    }
    let each = (resident() - before) / SESSIONS as u64;
    println!("{each} bytes per session");
    drop(clients);
    stage.end([host.process]).await;
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
