//! The actor on a real disk: three members in one process, connected by a transport without sockets.

mod cluster;

use muster_kernel::Fuse;
use muster_messages::protocol::{ProposeError, RaftMemberMsg};
use muster_messages::{ActorNode, CrashHow, RaftId};
use muster_raft_member::disk;
use muster_sealing::Keys;
use muster_testkit::eventually;

use crate::cluster::*;

/// Steps at which a member is crashed: several times the steps of one write.
const CRASH_POINTS: u32 = 36;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_replicate_and_read_acknowledged_writes() {
    let c = Cluster::three().await;
    let at = c.write(label("1")).await.revision;
    for n in 1..=3 {
        assert!(c.read(n).await.tables.revision >= at);
        c.until(n, "published", |r| value(r) == Some("1")).await;
    }
    c.harness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_member_resumes_without_losing_acknowledged_writes() {
    let mut c = Cluster::three().await;
    for (i, how) in [CrashHow::Panic, CrashHow::Error, CrashHow::Kill, CrashHow::Panic].into_iter().enumerate() {
        let at = c.write(label(&i.to_string())).await.revision;
        let leader = c.leader().await;
        let path = format!("node/m{leader}");
        let before = c.harness.tree().inspect(&path).await.unwrap().incarnation;
        c.harness.crash(&path, how);
        let mut level = c.members[&leader].1.clone();
        tokio::time::timeout(WAIT_LIMIT, level.wait_for(|r| !r.raft.leading))
            .await
            .expect("it does not report itself as leader")
            .unwrap();
        c.harness.healthy(&path, before + 1).await;
        c.leader().await;
        let seen = c.read(leader).await;
        assert!(seen.tables.revision >= at && value(&seen) == Some(i.to_string().as_str()));
    }
    c.harness.finish().await;
}

/// Commands about leases may be late for the readers of the cluster's replica, but nothing else needs to follow. Without its member
/// both are withdrawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_replicas_follow_leases_and_end_with_the_leader() {
    let mut c = Cluster::three().await;
    let at = c.write(lease()).await.revision;
    for (n, cluster) in &c.clusters {
        let mut cluster = cluster.clone();
        let seen = tokio::time::timeout(WAIT_LIMIT, cluster.wait_for(|replica| replica.tables.revision >= at)).await;
        assert!(seen.expect("it follows").unwrap().tables.objects.len() == 1, "m{n}");
    }
    let leader = c.leader().await;
    c.harness.crash(&format!("node/m{leader}"), CrashHow::Kill);
    for mut replica in [c.members[&leader].1.clone(), c.clusters[&leader].clone()] {
        let withdrawn = tokio::time::timeout(WAIT_LIMIT, replica.wait_for(|replica| !replica.raft.leading)).await;
        withdrawn.expect("it does not report itself as leader").unwrap();
    }
    c.harness.finish().await;
}

/// Each member in turn, leader or not, at the first step of its work, at the second, and so on: before and after a
/// message, an effect, a write to the disk or a packet to a peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full tier"]
async fn crash_at_any_step_keeps_acknowledged_writes() {
    let mut c = Cluster::three().await;
    let fuses: Vec<Fuse> = (1..=3).map(|_| Fuse::unlit()).collect();
    for (n, fuse) in (1..).zip(&fuses) {
        c.harness.crash_at(&format!("node/m{n}"), fuse);
    }
    for (point, (n, fuse)) in (0..CRASH_POINTS).zip((1..).zip(&fuses).cycle()) {
        let path = format!("node/m{n}");
        let before = c.harness.tree().inspect(&path).await.unwrap().incarnation;
        fuse.renew(point);
        let at = c.write(label(&point.to_string())).await.revision;
        // It ticks, so it reaches every step eventually.
        eventually("it crashed", || fuse.blown()).await;
        c.harness.healthy(&path, before + 1).await;
        for n in 1..=3 {
            let seen = c.until(n, "it has the acknowledged write", |r| r.tables.revision >= at).await;
            assert_eq!(value(&seen), Some(point.to_string().as_str()), "member {n} after a crash of {path} at {point}");
        }
    }
    c.harness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_takes_snapshots_and_a_new_member_gets_one() {
    let mut c = Cluster::three().await;
    let c1 = &c;
    for round in 0..8 {
        let many: Vec<_> = (0..100)
            .map(|i| {
                let (members, command) = (c1.members.clone(), label(&format!("{round}-{i}")));
                tokio::spawn(async move { write_to(&members, command).await })
            })
            .collect();
        for one in many {
            one.await.unwrap();
        }
    }
    // Each member takes its own, once it has applied as much and its disk has written it.
    let has_taken = |member: &ActorNode| member.view["snapshots"]["taken"].as_u64() > Some(0);
    c.harness.until("node/m1", "it has taken a snapshot", has_taken).await;
    c.join(4).await;
    let at = c.members[&1].1.borrow().tables.revision;
    c.until(4, "it catches up", |r| r.tables.revision >= at).await;
    let dir = c.dir(4);
    c.harness.finish().await;
    assert!(matches!(
        disk::state(&dir, &Keys::open(dir.parent().unwrap()).unwrap()),
        disk::DirState::Present { raft_id: RaftId(4), .. }
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_cluster_restarts_with_all_data() {
    let mut c = Cluster::three().await;
    let at = c.write(label("kept")).await.revision;
    for n in 1..=3 {
        c.harness.children().stop_and_wait(&format!("m{n}")).await;
    }
    for n in 1..=3 {
        c.start(n);
    }
    c.leader().await;
    for n in 1..=3 {
        let seen = c.read(n).await;
        assert!(seen.tables.revision >= at && value(&seen) == Some("kept"));
    }
    c.harness.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let c = Cluster::three().await;
    // Repeated as an operator would: on a slow machine a leader may lose its leadership or contact with the others.
    let handed_over = async {
        loop {
            let leader = c.leader().await;
            let make = |reply| RaftMemberMsg::TransferLeadership { to: None, reply }.into();
            match c.members[&leader].0.ask(WAIT_LIMIT, make).await.unwrap() {
                Ok(transfer_target) => return (leader, transfer_target),
                Err(ProposeError::NotLeader { .. } | ProposeError::NoQuorum { .. } | ProposeError::TimedOut) => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    let (leader, transfer_target) =
        tokio::time::timeout(WAIT_LIMIT, handed_over).await.expect("another member takes over");
    assert_ne!(transfer_target, node_id(leader));
    c.write(label("after")).await;
    c.harness.finish().await;
}
