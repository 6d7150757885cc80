//! How many commands per second members append to their logs, on this machine's disk: `cargo bench -p muster-raft-member`.

#![expect(clippy::unwrap_used, reason = "a benchmark ends where what it relies on fails")]

#[path = "../tests/cluster/mod.rs"]
mod cluster;

use muster_messages::protocol::RaftMemberMsg;

use crate::cluster::*;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    for members in [1, 3] {
        let mut c = Cluster::new().await;
        c.start(1);
        c.write(found()).await;
        for n in 2..=members {
            c.join(n).await;
        }
        let leader = c.leader().await;
        for clients in [1, 64, 256] {
            let total = 200 * clients + 1000;
            let started = std::time::Instant::now();
            let mut running = tokio::task::JoinSet::new();
            for client in 0..clients {
                let to = c.members[&leader].0.clone();
                running.spawn(async move {
                    for i in 0..total / clients {
                        let command = label(&format!("{client}-{i}"));
                        let make = |reply| {
                            RaftMemberMsg::Propose { command: Box::new(command), deadline_ms: 5000, reply }.into()
                        };
                        to.ask(WAIT_LIMIT, make).await.unwrap().unwrap();
                    }
                });
            }
            while running.join_next().await.is_some() {}
            let per_second = total as f64 / started.elapsed().as_secs_f64();
            println!("{members} members, {clients} clients: {per_second:.0} per second");
        }
        c.harness.finish().await;
    }
}
