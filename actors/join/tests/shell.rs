//! The join service as an actor, with strangers at the other ends of in-memory pipes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_gateway::{BoxStream, Connection, Framed, Services};
use muster_join::{JoinLimits, JoinPorts, JoinService};
use muster_kernel::{Address, Spec};
use muster_messages::protocol::Service;
use muster_messages::wire::{JoinFrame, JoinReply, JoinRequest};
use muster_messages::{CrashHow, ErrorCode, Name, NodeId, RequestId, Secret};
use muster_tests::Universe;
use tokio::io::DuplexStream;
use tokio::time::Instant;

const PATH: &str = "node/join";
const CONVERSATION: Duration = Duration::from_secs(20);

async fn service(universe: &Universe) -> Services {
    let services = Services::new();
    let ports = JoinPorts {
        services: services.clone(),
        leader: Arc::new(|_| Box::pin(std::future::pending())),
        root_pem: Arc::new(|| "root".to_owned()),
        limits: JoinLimits { conversation: CONVERSATION, conversations: 1 },
    };
    universe.start_actor(Spec::actor("join", Address::new(8), move || Ok(JoinService::new(ports.clone()))));
    universe.healthy(PATH, 1).await;
    services
}

async fn stranger(services: &Services) -> Framed<DuplexStream> {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let stream: BoxStream = Box::pin(theirs);
    let remote = "192.0.2.7:50000".parse().expect("an address");
    let sink = services.sink(Service::Join).expect("the service listens");
    let taken = sink.send(Connection::detached(stream, Service::Join, None, remote)).await;
    assert!(taken.is_ok(), "the service takes it");
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

async fn ask_for_the_root(stranger: &mut Framed<DuplexStream>) -> JoinReply {
    stranger.send(&JoinFrame::GetRoot).await.expect("it listens");
    stranger.recv().await.expect("it speaks").expect("it answers")
}

#[tokio::test(start_paused = true)]
async fn a_stranger_who_only_talks_is_let_go_and_takes_no_place_from_who_asks() {
    let universe = Universe::start().await;
    let services = service(&universe).await;
    let began = Instant::now();
    let (mut silent, mut talker) = (stranger(&services).await, stranger(&services).await);
    ask_for_the_root(&mut talker).await;
    let mut asker = stranger(&services).await;
    asker.send(&request()).await.expect("it listens");
    universe.until(PATH, "one asks", |actor| actor.view["conversations"] == 1).await;

    let mut next = stranger(&services).await;
    next.send(&request()).await.expect("it listens");
    let Ok(Some(JoinReply::Refused(full))) = next.recv().await else { panic!("a refusal") };
    assert_eq!((full.code, full.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
    let answer = ask_for_the_root(&mut stranger(&services).await).await;
    assert_eq!(answer, JoinReply::Root { root_pem: "root".to_owned() }, "that needs no place");

    for held in [&mut silent, &mut talker, &mut asker] {
        assert!(!matches!(held.recv::<JoinReply>().await, Ok(Some(_))), "it is hung up on");
    }
    assert!(began.elapsed() >= CONVERSATION && began.elapsed() < CONVERSATION * 2, "{:?}", began.elapsed());
    universe.until(PATH, "the place is free", |actor| actor.view["conversations"] == 0).await;
    universe.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_hangs_up_and_the_next_life_serves() {
    let mut universe = Universe::start().await;
    let services = service(&universe).await;
    for (incarnation, how) in (2..).zip([CrashHow::Panic, CrashHow::Error, CrashHow::Kill]) {
        let (mut talker, mut asker) = (stranger(&services).await, stranger(&services).await);
        ask_for_the_root(&mut talker).await;
        asker.send(&request()).await.expect("it listens");
        universe.until(PATH, "one asks", |actor| actor.view["conversations"] == 1).await;
        universe.crash(PATH, how);
        for held in [&mut talker, &mut asker] {
            assert!(!matches!(held.recv::<JoinReply>().await, Ok(Some(_))), "it is hung up on");
        }
        universe.healthy(PATH, incarnation).await;
        universe.until(PATH, "the place is free", |actor| actor.view["conversations"] == 0).await;
        let answer = ask_for_the_root(&mut stranger(&services).await).await;
        assert_eq!(answer, JoinReply::Root { root_pem: "root".to_owned() });
    }
    universe.finish().await;
}
