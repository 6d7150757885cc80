//! Requests of unauthenticated clients.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use muster_client::{Failure, Outcome};
use muster_gateway::{BoxStream, Framed};
use muster_messages::wire::{JoinFrame, JoinReply, JoinRequest};
use muster_messages::{NodeId, RefusalReason, RequestId, Secret};
use tokio::time::timeout;

use super::{ANSWER_TIMEOUT, Answers};
use crate::caller::{Caller, HandshakeError};
use crate::cluster::Cluster;

/// How often one connection requests the root.
const ROOTS: usize = 3;

/// A join request with a valid token.
#[derive(Clone)]
pub struct Request(JoinRequest);

impl Request {
    pub fn new(cluster: &Cluster, token: String) -> Outcome<Self> {
        let secret = token.rsplit('-').next().unwrap_or_default().to_owned();
        let csr_pem = muster_pki::make_csr(&muster_pki::new_key()).map_err(|e| Failure::internal(e.to_string()))?;
        let number: u32 = rand::random();
        Ok(Self(JoinRequest {
            request_id: RequestId(rand::random()),
            node: NodeId::from_entropy(rand::random()),
            token_secret: Secret::new(secret),
            csr_pem,
            name: format!("rush-{number}").parse().map_err(|_| Failure::internal("a name"))?,
            advertise: cluster.node("n1").listen.to_string(),
            release: "0.0.0".to_owned(),
            labels: BTreeMap::new(),
            rekey: None,
        }))
    }
}

/// Sends this many requests, for the root or to join, over as many connections as needed.
pub async fn ask(caller: Caller, request: Request, for_the_root: bool, numbers: Range<usize>) -> Answers {
    let (mut answers, wanted) = (Answers::default(), numbers.len());
    while answers.answered() + answers.none < wanted {
        let mut stream = match caller.greeted().await {
            Ok(stream) => stream,
            // Always rejected with a retry time.
            Err(HandshakeError::Refused(RefusalReason::TooManyRequests)) => {
                answers.later += 1;
                continue;
            }
            Err(no) => {
                answers.none += 1;
                answers.refused(format!("not greeted: {no:?}"));
                continue;
            }
        };
        if !for_the_root {
            once(&mut stream, JoinFrame::Join(request.0.clone()), &mut answers).await;
            continue;
        }
        for _ in 0..ROOTS.min(wanted - answers.answered() - answers.none) {
            once(&mut stream, JoinFrame::GetRoot, &mut answers).await;
        }
    }
    answers
}

async fn once(stream: &mut Framed<BoxStream>, frame: JoinFrame, answers: &mut Answers) {
    match exchange(stream, &frame).await {
        Some(JoinReply::Refused(error)) => answers.of(Err(error)),
        Some(_) => answers.of(Ok(())),
        None => answers.none += 1,
    }
}

async fn exchange(stream: &mut Framed<BoxStream>, frame: &JoinFrame) -> Option<JoinReply> {
    let talk = async {
        stream.send(frame).await.ok()?;
        stream.recv::<JoinReply>().await.ok()?
    };
    timeout(ANSWER_TIMEOUT, talk).await.ok()?
}

/// Joins like any node, up to the certificate; returns the duration from the first packet to the answer.
pub async fn join(caller: &Caller, request: Request) -> Result<Duration, String> {
    let begun = tokio::time::Instant::now();
    let mut stream = caller.greeted().await.map_err(|no| format!("{no:?}"))?;
    match exchange(&mut stream, &JoinFrame::Join(request.0)).await {
        Some(JoinReply::Joined { .. }) => Ok(begun.elapsed()),
        other => Err(format!("{other:?}")),
    }
}
