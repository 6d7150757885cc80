//! Tests of conversations.

use std::collections::BTreeMap;

use muster_gateway::BoxStream;
use muster_messages::protocol::PeerAnswer;
use muster_messages::{Name, NodeId, RequestId, Secret};

use super::*;

fn ports(answer: Result<Vec<u8>, ErrorBody>) -> JoinPorts {
    JoinPorts {
        services: Services::new(),
        leader: Arc::new(move |_| -> PeerAnswer {
            let answer = answer.clone();
            Box::pin(async move { answer })
        }),
        root_pem: Arc::new(|| "root".to_owned()),
        limits: JoinLimits::default(),
    }
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

/// The replies to these frames, in order, with permits for this many join requests.
async fn talk(permits: usize, frames: Vec<JoinFrame>) -> Vec<JoinReply> {
    let ports = ports(Ok(wire::encode(&joined()).unwrap()));
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(async move {
        let stream = Framed::new(Box::pin(theirs) as BoxStream);
        let (counters, permits) = (Counters::default(), Semaphore::new(permits));
        converse(stream, "127.0.0.1:9".parse().unwrap(), &ports, &counters, &permits).await;
    });
    let mut client = Framed::new(ours);
    let mut replies = Vec::new();
    for frame in frames {
        if client.send(&frame).await.is_err() {
            break;
        }
        match client.recv().await {
            Ok(Some(reply)) => replies.push(reply),
            _ => break,
        }
    }
    drop(client);
    serving.await.unwrap();
    replies
}

#[tokio::test]
async fn root_is_public_and_a_conversation_is_short() {
    let replies = talk(0, vec![JoinFrame::GetRoot; 6]).await;
    assert_eq!(replies, vec![JoinReply::Root { root_pem: "root".into() }; MAX_FRAMES]);
    assert_eq!(
        talk(1, vec![request(), JoinFrame::GetRoot]).await,
        vec![joined()],
        "a join request ends the conversation"
    );
}

#[tokio::test]
async fn full_join_service_names_a_retry_time() {
    let replies = talk(0, vec![request()]).await;
    let [JoinReply::Refused(error)] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!((error.code, error.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
}

/// The gateway charged no rate for it.
#[tokio::test]
async fn join_request_after_another_frame_is_refused() {
    let replies = talk(1, vec![JoinFrame::GetRoot, request(), request()]).await;
    let [JoinReply::Root { .. }, JoinReply::Refused(error)] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!((error.code, error.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
}
