//! Requests in frames, as many in flight as the other side reads.

use std::collections::BTreeSet;
use std::ops::Range;

use muster_gateway::Framed;
use muster_messages::wire::{ApiAnswer, ApiCall, LeaseRef, LeaseRequest, Request};
use muster_messages::{RequestId, Revision};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::{ANSWER_TIMEOUT, Answers, Say};

/// Requests per write.
const REQUESTS_PER_WRITE: usize = 64;

fn question(say: Say, number: usize) -> Request {
    let node = "n1".to_owned();
    match say {
        Say::Reads => Request::NodeInspect { node, fresh: true },
        Say::Writes => {
            let add = [("rush".to_owned(), number.to_string())].into();
            Request::NodeUpdate { node, add, remove: vec![], generation: None }
        }
        Say::Polls => {
            let lease = LeaseRef { namespace: "default".to_owned(), name: "rush".to_owned() };
            Request::Lease(LeaseRequest::Watch { lease, seen: Revision(u64::MAX - 1), wait_ms: 1000 })
        }
    }
}

/// Sends all of these on one connection, and reads every answer.
pub async fn ask<S>(stream: Framed<S>, say: Say, numbers: Range<usize>) -> Answers
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (mut reader, mut writer) = stream.split();
    let ids: Vec<u64> = numbers.map(|number| number as u64).collect();
    let mut open: BTreeSet<u64> = ids.iter().copied().collect();
    let writing = async {
        for some in ids.chunks(REQUESTS_PER_WRITE) {
            for id in some {
                let request = question(say, *id as usize);
                let request_id = RequestId::fresh(muster_kernel::Clock.wall(), rand::random());
                let call = ApiCall { id: *id, request_id, timeout_ms: 60_000, request };
                writer.feed(&call).expect("small");
            }
            if writer.flush().await.is_err() {
                return; // the reader notices as well
            }
        }
    };
    let reading = async {
        let mut answers = Answers::default();
        while !open.is_empty() {
            let Ok(Ok(Some(answer))) = timeout(ANSWER_TIMEOUT, reader.recv::<ApiAnswer>()).await else { break };
            match open.remove(&answer.id) {
                true => answers.of(answer.result.map(drop)),
                false => answers.refused("an answer without a request".to_owned()),
            }
        }
        answers.none = open.len();
        answers
    };
    // Without answers there is nothing more to send.
    tokio::pin!(reading);
    tokio::select! {
        answers = &mut reading => answers,
        () = writing => reading.await,
    }
}
