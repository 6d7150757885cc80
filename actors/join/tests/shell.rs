//! The join service as an actor, with clients at the other ends of in-memory pipes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{BoxStream, Connection, Framed, Services};
use muster_join::{JoinLimits, JoinPorts, JoinService};
use muster_kernel::{Address, Spec};
use muster_messages::protocol::{PeerAnswer, Service};
use muster_messages::wire::{self, JoinFrame, JoinReply, JoinRequest};
use muster_messages::{
    Authority, AuthorityOrigin, AuthorityState, ClusterId, ClusterRecord, CrashHow, ErrorCode, Incarnation, Name,
    NodeId, OfferedRoot, RequestId, Revision, RootId, Secret, Tables, WallTime,
};
use muster_testkit::ActorHarness;
use tokio::io::DuplexStream;
use tokio::time::Instant;

const PATH: &str = "node/join";
const CONVERSATION_TIMEOUT: Duration = Duration::from_secs(20);

/// A service whose leader never answers.
async fn service(harness: &ActorHarness) -> Services {
    service_with(harness, || Box::pin(std::future::pending())).await
}

async fn service_with(harness: &ActorHarness, leader: fn() -> PeerAnswer) -> Services {
    service_offering(harness, Some(vec![offered()]), leader).await
}

async fn service_offering(
    harness: &ActorHarness,
    roots: Option<Vec<OfferedRoot>>,
    leader: fn() -> PeerAnswer,
) -> Services {
    let services = Services::new();
    let roots = Arc::new(move || roots.clone());
    let ports = JoinPorts {
        services: services.clone(),
        leader: Arc::new(move |_| -> PeerAnswer { leader() }),
        root_pem: Arc::new(|| "root".to_owned()),
        roots,
        limits: JoinLimits { conversation: CONVERSATION_TIMEOUT, conversations: 1 },
    };
    harness.start_actor(Spec::actor("join", Address::new(8), move || Ok(JoinService::new(ports.clone()))));
    harness.healthy(PATH, 1).await;
    services
}

async fn client(services: &Services) -> Framed<DuplexStream> {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let stream: BoxStream = Box::pin(theirs);
    let remote = "192.0.2.7:50000".parse().expect("an address");
    let sink = services.sink(Service::Join).expect("the service listens");
    let taken = sink.send(Connection::detached(stream, Service::Join, None, remote)).await;
    assert!(taken.is_ok(), "the service accepts the connection");
    Framed::new(ours)
}

fn request() -> JoinFrame {
    JoinFrame::Join(JoinRequest {
        request_id: RequestId(1),
        node: NodeId::from_entropy(50),
        token_secret: Secret::new("secret"),
        csr_pem: String::new(),
        name: Name::sanitized("n50"),
        advertise: String::new(),
        release: String::new(),
        labels: BTreeMap::new(),
        rekey: None,
    })
}

fn joined() -> JoinReply {
    let (node, root_pem) = (NodeId::from_entropy(50), "root".to_owned());
    JoinReply::Joined { node, cert_pem: String::new(), root_pem, managers: vec![] }
}

fn joins() -> PeerAnswer {
    let joined = wire::encode(&joined()).expect("a reply can be encoded");
    Box::pin(std::future::ready(Ok(joined)))
}

/// The replies to these frames of one client, in order, until the service closes the connection.
async fn talk(services: &Services, frames: Vec<JoinFrame>) -> Vec<JoinReply> {
    let (mut client, mut replies) = (client(services).await, Vec::new());
    for frame in frames {
        if client.send(&frame).await.is_err() {
            break;
        }
        let Ok(Some(reply)) = client.recv().await else { break };
        replies.push(reply);
    }
    replies
}

fn offered() -> OfferedRoot {
    OfferedRoot { cert_pem: "root".to_owned(), vouchers: Vec::new(), trusted: true }
}

/// For a token of an earlier root.
#[tokio::test(start_paused = true)]
async fn joiner_with_a_token_of_an_earlier_root_gets_all_roots() {
    let harness = ActorHarness::start().await;
    let services = service_with(&harness, joins).await;
    let replies = talk(&services, vec![JoinFrame::GetRoot, JoinFrame::GetRoots]).await;
    assert_eq!(replies, [JoinReply::Root { root_pem: "root".into() }, JoinReply::Roots(vec![offered()])]);
    harness.finish().await;
}

/// An empty answer would mean that there was no rotation, and end the joining.
#[tokio::test(start_paused = true)]
async fn manager_that_knows_no_cluster_yet_asks_to_try_again() {
    assert_eq!(muster_join::offered(&Tables::default()), None);
    let harness = ActorHarness::start().await;
    let services = service_offering(&harness, None, joins).await;
    let replies = talk(&services, vec![JoinFrame::GetRoots]).await;
    let [JoinReply::Refused(error)] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!((error.code, error.retry_after_ms), (ErrorCode::NotKnownHereYet, Some(1000)));
    harness.finish().await;
}

fn root(state: AuthorityState, compromised: bool) -> Authority {
    Authority { compromised, ..Authority::new(format!("{state} {compromised}"), AuthorityOrigin::Made, state) }
}

/// The holder of another one's key could lead a joiner to a root of their own.
#[test]
fn compromised_roots_are_offered_only_while_active() {
    use AuthorityState as S;
    let mut tables = Tables { cluster: Some(Arc::new(cluster())), ..Tables::default() };
    let states = [S::Prepared, S::Active, S::Retiring, S::Retired, S::Revoked];
    let kinds: Vec<_> = states.into_iter().flat_map(|state| [(state, false), (state, true)]).collect();
    for (id, (state, compromised)) in (0..).zip(&kinds) {
        tables.authorities.roots.insert(RootId([id; 8]), Arc::new(root(*state, *compromised)));
    }
    let offered = muster_join::offered(&tables).expect("the cluster is known");
    let leads = |(state, compromised): &(S, bool)| *state != S::Revoked && (!compromised || *state == S::Active);
    let expected = kinds.iter().filter(|kind| leads(kind)).map(|(state, compromised)| format!("{state} {compromised}"));
    assert_eq!(offered.into_iter().map(|root| root.cert_pem).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

fn cluster() -> ClusterRecord {
    ClusterRecord {
        id: ClusterId::from_entropy(9),
        name: Name::sanitized("c"),
        incarnation: Incarnation(1),
        feature_level: 3,
        root_cert_pem: "root".to_owned(),
        root_key_pem: Secret::new("key"),
        founded_at: WallTime(0),
        revision: Revision(1),
    }
}

async fn ask_for_the_root(client: &mut Framed<DuplexStream>) -> JoinReply {
    client.send(&JoinFrame::GetRoot).await.expect("the connection is open");
    client.recv().await.expect("the connection is open").expect("it answers")
}

#[tokio::test(start_paused = true)]
async fn conversation_ends_after_three_frames_or_a_join_request() {
    let harness = ActorHarness::start().await;
    let services = service_with(&harness, joins).await;
    let root = JoinReply::Root { root_pem: "root".to_owned() };
    assert_eq!(talk(&services, vec![JoinFrame::GetRoot; 6]).await, vec![root; 3]);
    assert_eq!(talk(&services, vec![request(), JoinFrame::GetRoot]).await, [joined()]);
    harness
        .until(PATH, "all are counted", |actor| (&actor.view["roots"], &actor.view["joined"]) == (&3.into(), &1.into()))
        .await;
    harness.finish().await;
}

/// The gateway charged no rate for it.
#[tokio::test(start_paused = true)]
async fn join_request_after_another_frame_is_refused() {
    let harness = ActorHarness::start().await;
    let services = service_with(&harness, joins).await;
    let replies = talk(&services, vec![JoinFrame::GetRoot, request(), request()]).await;
    let [JoinReply::Root { .. }, JoinReply::Refused(error)] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!((error.code, error.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn idle_client_times_out_and_takes_no_join_permit() {
    let harness = ActorHarness::start().await;
    let services = service(&harness).await;
    let began = Instant::now();
    let (mut silent, mut talker) = (client(&services).await, client(&services).await);
    ask_for_the_root(&mut talker).await;
    let mut asker = client(&services).await;
    asker.send(&request()).await.expect("the connection is open");
    harness.until(PATH, "one request waits", |actor| actor.view["conversations"] == 1).await;

    let mut next = client(&services).await;
    next.send(&request()).await.expect("the connection is open");
    let Ok(Some(JoinReply::Refused(full))) = next.recv().await else { panic!("a refusal") };
    assert_eq!((full.code, full.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
    let answer = ask_for_the_root(&mut client(&services).await).await;
    assert_eq!(answer, JoinReply::Root { root_pem: "root".to_owned() }, "the root needs no permit");

    for open in [&mut silent, &mut talker, &mut asker] {
        assert!(!matches!(open.recv::<JoinReply>().await, Ok(Some(_))), "the connection is closed");
    }
    assert!(
        began.elapsed() >= CONVERSATION_TIMEOUT && began.elapsed() < CONVERSATION_TIMEOUT * 2,
        "{:?}",
        began.elapsed()
    );
    harness.until(PATH, "the permit is free", |actor| actor.view["conversations"] == 0).await;
    harness.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crash_closes_connections_and_next_incarnation_serves() {
    let mut harness = ActorHarness::start().await;
    let services = service(&harness).await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let (mut talker, mut asker) = (client(&services).await, client(&services).await);
        ask_for_the_root(&mut talker).await;
        asker.send(&request()).await.expect("the connection is open");
        harness.until(PATH, "one request waits", |actor| actor.view["conversations"] == 1).await;
        harness.crash(PATH, how);
        for open in [&mut talker, &mut asker] {
            assert!(!matches!(open.recv::<JoinReply>().await, Ok(Some(_))), "the connection is closed");
        }
        harness.healthy(PATH, incarnation).await;
        harness.until(PATH, "the permit is free", |actor| actor.view["conversations"] == 0).await;
        let answer = ask_for_the_root(&mut client(&services).await).await;
        assert_eq!(answer, JoinReply::Root { root_pem: "root".to_owned() });
    }
    harness.finish().await;
}
