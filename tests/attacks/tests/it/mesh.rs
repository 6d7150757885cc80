//! A malicious manager with its real certificate, against a real manager over TLS. The mesh's own tests have
//! more such attacks, without a daemon.

use std::path::Path;
use std::time::Duration;

use muster_attacks::bytes::{announce, call, envelope};
use muster_attacks::caller::dialer;
use muster_attacks::cluster::{Cluster, until};
use muster_attacks::manager::{BadManager, DialFailure, ENDPOINT_PID, Lies};
use muster_attacks::watch::rss_kib;
use muster_gateway::Dialer;
use muster_kernel::Clock;
use muster_messages::protocol::NodeCredentials;
use muster_messages::wire::{PacketKind, PeerCall, PeerMessage, PeerReply, RaftPacket, Request, Starts};
use muster_messages::{NodeId, Principal, RaftId, RefusalReason, RequestId, Revision, Role};
use muster_pki::{CsrKey, Issuer, NodeProfile};
use serde_json::Value;

use crate::certificates::survey_of_stolen;

/// The leader, and the certificate of a stopped manager. With the shipped timing: a leader that stalls loses its leadership.
struct Fixture {
    cluster: Cluster,
    leader: String,
    term: u64,
    thief: NodeCredentials,
    dialer: Dialer,
    /// Data of the stolen directory: its starts.
    starts: Starts,
    member_id: RaftId,
}

impl Fixture {
    async fn new() -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_muster-attack"));
        let mut cluster = Cluster::with_shipped_timing(program, 3, 0).await.expect("a cluster");
        let (leader, term) = cluster.leader("n1").await.expect("a leader");
        let name = cluster.names().into_iter().rev().find(|name| *name != leader).expect("three managers");
        let thief = cluster.node(&name).credentials().expect("an identity");
        let starts = cluster.node(&name).starts().expect("starts").next(7);
        cluster.node_mut(&name).kill().await;
        let status = cluster.ask(&leader, Request::RaftStatus { fresh: false }).await.expect("it answers");
        let own = thief.identity.node().expect("a node's").0.to_string();
        let members = status["members"].as_array().expect("members").clone();
        let member_id = members.iter().find(|m| m["node"] == own.as_str()).and_then(|m| m["raft_id"].as_u64());
        let (dialer, member_id) = (dialer(&thief), RaftId(member_id.expect("it had a member id")));
        Self { cluster, leader, term, thief, dialer, starts, member_id }
    }
    fn addr(&self) -> String {
        self.cluster.node(&self.leader).listen.to_string()
    }
    /// Opens a session once the pause after the last offence is over.
    async fn join(&self) -> BadManager {
        until("a session", async || {
            let joined =
                BadManager::join(&self.dialer, &self.thief.identity, &self.starts, Some(self.member_id), &self.addr())
                    .await;
            Ok(joined.ok())
        })
        .await
        .expect("the session opens")
    }
    async fn mesh(&self) -> Value {
        self.cluster.inspect(&self.leader, "node/manager/mesh").await.expect("the mesh can be inspected")
    }
    /// Waits until the mesh's own view satisfies this.
    async fn shows(&self, what: &str, right: impl Fn(&Value) -> bool) {
        let shown = until(what, async || {
            let view = self.cluster.inspect(&self.leader, "node/manager/mesh").await?;
            Ok(right(&view).then_some(()))
        });
        if let Err(no) = shown.await {
            panic!("{no}: {:#}", self.mesh().await);
        }
    }
    fn rss_mib(&self) -> u64 {
        rss_kib(self.cluster.node(&self.leader).pid().expect("it runs")).expect("it runs") / 1024
    }
    /// The leader has logged no error; returns whether it still leads, in the same term.
    async fn is_unaffected(&self) -> bool {
        let log = self.cluster.node(&self.leader).log();
        assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
        let now = self.cluster.leader(&self.leader).await.expect("a leader");
        now == (self.leader.clone(), self.term)
    }
}

/// Attacks a leader, which must stay leader. On a busy machine other programs may also cost it its leadership: then the attack is
/// repeated once, in another cluster.
async fn leader_withstands(attack: impl AsyncFn(&Fixture)) {
    for _ in 0..2 {
        let fixture = Fixture::new().await;
        attack(&fixture).await;
        if fixture.is_unaffected().await {
            return;
        }
    }
    panic!("each attack costs the leader its leadership");
}

fn count_offences(view: &Value, kind: &str) -> u64 {
    let rows = view["offences"].as_array().into_iter().flatten();
    rows.filter(|r| r["offence"] == kind).filter_map(|r| r["count"].as_u64()).sum()
}

/// A vote for a term far ahead, which would depose a leader that accepts it.
fn packet(from: u64, to: u64) -> RaftPacket {
    RaftPacket {
        kind: PacketKind::RequestVote,
        from: RaftId(from),
        to: RaftId(to),
        term: 1000,
        log_term: 1000,
        index: 1_000_000,
        commit: 0,
        commit_term: 0,
        entries: vec![],
        snapshot: None,
        request_snapshot: 0,
        reject: false,
        reject_hint: 0,
        context: vec![],
        priority: 0,
    }
}

#[tokio::test]
async fn malicious_manager_harms_only_its_own_sessions() {
    leader_withstands(misbehaves_in_its_sessions).await;
}

async fn misbehaves_in_its_sessions(fixture: &Fixture) {
    let victim_member_id = {
        let manager = fixture.join().await;
        manager.victim.raft_id.expect("the leader has a member id").0
    };

    // 100,000 actors announced: in one frame, and one at a time.
    let before = fixture.rss_mib();
    let mut manager = fixture.join().await;
    manager.send(&announce(0..100_000)).await;
    assert!(manager.ended().await, "the session ends");
    fixture.shows("it is counted", |v| count_offences(v, "foreign_actor") >= 1).await;
    let mut manager = fixture.join().await;
    let frame = announce([ENDPOINT_PID + 1]);
    let one = [&(frame.len() as u64).to_be_bytes()[..], &frame].concat();
    manager.send_raw(&one.repeat(100_000)).await;
    assert!(manager.ended().await, "the session ends");
    fixture.shows("it is counted", |v| count_offences(v, "foreign_actor") >= 2).await;
    let grown = fixture.rss_mib().saturating_sub(before);
    assert!(grown < 16, "100,000 announcements cost {grown} MiB");

    // Raft messages in another's name: dropped and counted, in the endpoint's view and by node.
    let other = (1..).find(|n| *n != fixture.member_id.0 && *n != victim_member_id).expect("numbers do not end");
    let mut manager = fixture.join().await;
    let forged = vec![packet(other, victim_member_id), packet(victim_member_id, victim_member_id)];
    let reply = manager.ask(&envelope(manager.victim.tag, PeerMessage::Raft(forged))).await;
    println!("forged: {reply:?}");
    fixture.shows("they are counted", |v| v["endpoint"]["dropped"]["foreign_member_id"].as_u64() >= Some(2)).await;

    // A hello in another node's name, and with another's member id.
    let identity = &fixture.thief.identity;
    let lies = Lies { node: Some(manager.victim.node), member_id: Some(fixture.member_id) };
    for lies in [lies, Lies { node: None, member_id: Some(RaftId(victim_member_id)) }] {
        let turned = until("an answer to the forged hello", async || {
            match BadManager::greet(&fixture.dialer, identity, &fixture.addr(), &fixture.starts, lies).await {
                Err(DialFailure::Refused(refusal)) => Ok(Some(refusal.reason)),
                Ok(_) => panic!("{lies:?} was accepted"),
                Err(_) => Ok(None), // a pause after an offence
            }
        });
        assert_eq!(turned.await.expect("refused"), RefusalReason::Forbidden, "{lies:?}");
    }

    // A valid hello, and another's name in ractor_cluster's own handshake.
    let greeted = until("a hello", async || {
        let lies = Lies { node: None, member_id: Some(fixture.member_id) };
        Ok(BadManager::greet(&fixture.dialer, identity, &fixture.addr(), &fixture.starts, lies).await.ok())
    });
    let mut manager = greeted.await.expect("it gets in");
    let name = manager.victim.node;
    manager.authenticate(name).await;
    assert!(manager.ended().await, "no session in another's name");
    fixture.shows("it is counted", |v| count_offences(v, "handshake") >= 1).await;
}

#[tokio::test]
async fn manager_call_flood_is_bounded_and_forwarded_caller_trusted() {
    leader_withstands(forwards_calls_and_floods).await;
}

async fn forwards_calls_and_floods(fixture: &Fixture) {
    // A manager vouches for callers: a request relayed as an operator's is done. An invented worker has only a worker's rights.
    let mut manager = fixture.join().await;
    let tag = manager.victim.tag;
    let relayed = |caller, request| {
        let asked = PeerCall::Api {
            caller,
            request_id: RequestId::fresh(muster_kernel::Clock.wall(), rand::random()),
            timeout_ms: 10_000,
            request,
        };
        envelope(tag, PeerMessage::Call(asked))
    };
    let show = Request::TokenShow { role: Role::Manager };
    let reply = manager.ask(&relayed(Principal::Operator, show.clone())).await;
    assert!(matches!(reply, Some(PeerReply::Answer(Ok(_)))), "{reply:?}");
    for weaker in [Principal::Node(manager.own), Principal::Anonymous] {
        let reply = manager.ask(&relayed(weaker, show.clone())).await;
        assert!(matches!(reply, Some(PeerReply::Answer(Err(_)))), "{reply:?}");
    }

    // Slow calls, from a manager that reads no answer.
    let before = fixture.rss_mib();
    let slow = relayed(Principal::Operator, Request::Events { since: Revision(u64::MAX), wait_ms: 9_000 });
    let frame = call(manager.victim.endpoint_pid, &slow, 1, 60_000);
    let one = [&(frame.len() as u64).to_be_bytes()[..], &frame].concat();
    let many = one.repeat(1000);
    for _ in 0..50 {
        if !manager.send_raw(&many).await {
            break;
        }
    }
    let grown = fixture.rss_mib().saturating_sub(before);
    assert!(grown < 64, "unread calls cost {grown} MiB");
}

/// A thief of a manager's disk or backup has the root key, and signs at will. The leader rejects
/// a node without a record as manager, whatever grant its certificate carries.
#[tokio::test]
async fn leader_rejects_forged_manager() {
    leader_withstands(presents_forged_certificates).await;
}

async fn presents_forged_certificates(fixture: &Fixture) {
    let own = fixture.thief.identity.node().expect("a node's").0;
    let names = fixture.cluster.names();
    let stolen = names.iter().map(|name| fixture.cluster.node(name)).find(|node| {
        node.credentials().is_ok_and(|credentials| credentials.identity.node().is_some_and(|(node, _)| node == own))
    });
    let read = survey_of_stolen(&stolen.expect("its files").folder);
    let cluster = read.expect("whole").tables.cluster.expect("a cluster");
    let issuer = Issuer::from_pem(&cluster.root_cert_pem, &cluster.root_key_pem).expect("the root's key");
    let follower = names.iter().map(|name| fixture.cluster.node(name)).find(|node| {
        let it = node.credentials().ok().and_then(|credentials| credentials.identity.node());
        node.name != fixture.leader && it.is_some_and(|(node, _)| node != own)
    });
    let follower = follower.expect("a follower").listen.to_string();
    let grants = [Some(1 << 62), Some(1), None];
    for (granted, addr) in grants.iter().flat_map(|granted| [(*granted, fixture.addr()), (*granted, follower.clone())])
    {
        let key_pem = muster_pki::new_key();
        let csr = CsrKey::parse(&muster_pki::make_csr(&key_pem).expect("a key")).expect("a request");
        let profile = NodeProfile {
            cluster: cluster.id,
            node: NodeId::from_entropy(rand::random()),
            role: Role::Manager,
            granted: granted.map(Revision),
            incarnation: cluster.incarnation,
            ips: Vec::new(),
            lifetime: Duration::from_secs(3600),
            now: Clock.wall(),
        };
        let cert_pem = issuer.sign_node(&profile, &csr).expect("signed").cert_pem;
        let identity = muster_pki::identity_of_pem(&cert_pem).expect("well-formed");
        let forged = NodeCredentials { cert_pem, key_pem, root_pem: cluster.root_cert_pem.clone(), identity };
        let opened = BadManager::join(&dialer(&forged), &forged.identity, &fixture.starts, None, &addr).await;
        let Err(DialFailure::RejectedByGateway(error)) = opened else {
            panic!("{granted:?}: it was admitted at {addr}")
        };
        let expected = if granted == Some(1) { RefusalReason::Removed } else { RefusalReason::NotKnownHereYet };
        assert_eq!(error.reason(), Some(expected), "{granted:?}: {error}");
    }
}
