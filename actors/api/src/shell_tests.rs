use std::time::Duration;

use muster_messages::wire::{self, ApiAnswer, ApiCall, KubeCall, ReconcilerRequest, Request};
use muster_messages::{
    CertIdentity, ClusterId, ErrorCode, Incarnation, NodeId, Principal, Progress, RequestId, Role, Subject, WallTime,
};
use tokio::time::timeout;

use super::*;
use crate::ApiLimits;
use crate::tests::{TERM, World, triple};

fn call(request: Request) -> ApiCall {
    ApiCall { id: u64::MAX, request_id: RequestId(u128::MAX), timeout_ms: 5_000, request }
}

/// A call whose frame has so many bytes.
fn of_size(bytes: usize) -> ApiCall {
    let with = |text: usize| call(Request::NodeInspect { node: "x".repeat(text), fresh: false });
    let text = bytes - 100;
    let around = wire::encode(&with(text)).unwrap().len() - text;
    let call = with(bytes - around);
    assert_eq!(wire::encode(&call).unwrap().len(), bytes);
    call
}

/// Whether the holder of such a certificate is answered.
async fn is_answered(world: &World, subject: &Subject, call: &ApiCall) -> bool {
    let (ours, theirs) = tokio::io::duplex(16 * 1024);
    let identity = CertIdentity {
        cluster: ClusterId::from_entropy(1),
        subject: subject.clone(),
        serial: String::new(),
        granted: None,
        incarnation: Incarnation(1),
        not_after: WallTime(0),
    };
    let address = ([127, 0, 0, 1], 1).into();
    let connection = Connection::detached(Box::pin(theirs), Port::Api, Some(identity), address);
    let mut ours = Framed::new(ours);
    let talk = async {
        ours.send(call).await.ok()?;
        ours.recv::<ApiAnswer>().await.ok()?
    };
    tokio::select! {
        () = serve(world.service.clone(), connection) => false,
        answer = timeout(Duration::from_secs(60), talk) => answer.expect("an answer, or the end").is_some(),
    }
}

#[tokio::test]
async fn only_an_operator_sends_large_frames() {
    let world = World::new();
    let node = Subject::Node { node: NodeId::from_entropy(2), role: Role::Worker };
    let (user, admin) = (Subject::User("ann".parse().unwrap()), Subject::Admin("eve".parse().unwrap()));
    for (subject, kib) in [(user, 64), (node, 96), (admin, 640)] {
        assert!(is_answered(&world, &subject, &of_size(kib * 1024)).await, "{subject:?}: {kib} KiB");
        assert!(!is_answered(&world, &subject, &of_size(kib * 1024 + 1)).await, "{subject:?}: more than {kib} KiB");
    }
}

/// A worker passes on what it took over HTTP, header and body.
#[tokio::test]
async fn the_largest_that_a_node_has_to_send_fits_its_frame() {
    let text = |bytes: usize| "x".repeat(bytes);
    let id = NodeId::from_entropy(1);
    let report = |output| Progress {
        reconciler: text(63),
        term: TERM,
        node: id,
        release: triple("2.0.0").into(),
        phase: text(64),
        reason: text(64),
        message: text(2 * 1024),
        since: WallTime(0),
        attempt: u32::MAX,
        consecutive_failures: u32::MAX,
        last_error: Some(text(2 * 1024)),
        next_retry_at: Some(WallTime(0)),
        wave: Some((u32::MAX, u32::MAX)),
        output: text(output),
    };
    let output = 64 * 1024;
    assert!(muster_gates::fault_of_progress(&report(output)).is_none());
    assert!(muster_gates::fault_of_progress(&report(output + 1)).is_some(), "so it is the largest");
    let written = KubeCall {
        method: "PUT".to_owned(),
        target: text(16 * 1024),
        content_type: None,
        accept: None,
        user_agent: None,
        body: vec![b' '; ApiLimits::default().body],
    };
    let (world, node) = (World::new(), Subject::Node { node: id, role: Role::Manager });
    for request in
        [Request::Reconciler(ReconcilerRequest::Progress { progress: report(output) }), Request::Kube(written)]
    {
        assert!(is_answered(&world, &node, &call(request)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_finds_no_place_is_told_when_to_retry_and_is_heard_again_slowly() {
    let (world, ann) = (World::new(), Principal::User("ann".parse().unwrap()));
    let mut places = Vec::new();
    while let Ok(place) = world.service.enter(&ann, false) {
        places.push(place);
    }
    let (ours, theirs) = tokio::io::duplex(16 * 1024);
    let serving = tokio::spawn(serve_native(world.service.clone(), Arc::new(move || ann.clone()), Framed::new(theirs)));
    let (mut client, began) = (Framed::new(ours), tokio::time::Instant::now());
    for _ in 0..10 {
        client.send(&call(Request::Contact)).await.unwrap();
        let answer: ApiAnswer = client.recv().await.unwrap().unwrap();
        let refused = answer.result.unwrap_err();
        assert_eq!((refused.code, refused.retry_after_ms), (ErrorCode::TooManyRequests, Some(500)));
    }
    assert!(
        began.elapsed() >= Duration::from_millis(90),
        "it is not refused as fast as it asks: {:?}",
        began.elapsed()
    );
    drop(places);
    client.send(&call(Request::Contact)).await.unwrap();
    assert!(client.recv::<ApiAnswer>().await.unwrap().unwrap().result.is_ok());
    drop(client);
    serving.await.unwrap().unwrap();
}
