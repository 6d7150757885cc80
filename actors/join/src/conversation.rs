//! One client's conversation: root certificates at once, a join request through the leader.
//!
//! Keeps JOIN-4: at most three frames, and one request to the leader, which is the last; the actor limits the time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_gateway::{BoxStream, Framed};
use muster_messages::wire::{self, JoinFrame, JoinReply, JoinRequest, PeerCall};
use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::Semaphore;

use crate::ports::JoinPorts;

/// Frames per conversation: the root or all roots, and retries. The gateway charges a source's rate for the first frame only, so a
/// join request must be the first frame, and is the last.
const MAX_FRAMES: usize = 3;

/// Time to retry after a rejection for lack of a permit.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What was answered, in all conversations.
#[derive(Default)]
pub struct Counters {
    pub roots: AtomicU64,
    pub joined: AtomicU64,
    pub refused: AtomicU64,
}

/// Holds the conversation on this stream. Ends silently when the other side does.
pub async fn converse(
    mut stream: Framed<BoxStream>,
    remote: SocketAddr,
    ports: &JoinPorts,
    counters: &Counters,
    permits: &Semaphore,
) {
    for frames_before in 0..MAX_FRAMES {
        let Ok(Some(frame)) = stream.recv::<JoinFrame>().await else { return };
        let (reply, last) = match frame {
            JoinFrame::GetRoot => {
                counters.roots.fetch_add(1, Ordering::Relaxed);
                (JoinReply::Root { root_pem: (ports.root_pem)() }, false)
            }
            JoinFrame::GetRoots => {
                counters.roots.fetch_add(1, Ordering::Relaxed);
                ((ports.roots)().map_or_else(not_known_yet, JoinReply::Roots), false)
            }
            JoinFrame::Join(_) if frames_before > 0 => {
                let text = "a join request must be the first frame of its connection; connect again";
                (JoinReply::Refused(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(RETRY_AFTER)), true)
            }
            JoinFrame::Join(request) => match permits.try_acquire() {
                Ok(_permit) => (ask(ports, remote, request).await, true),
                Err(_) => {
                    let text = "too many nodes are joining through this manager; retry";
                    (
                        JoinReply::Refused(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(RETRY_AFTER)),
                        true,
                    )
                }
            },
        };
        match &reply {
            JoinReply::Joined { .. } => drop(counters.joined.fetch_add(1, Ordering::Relaxed)),
            JoinReply::Refused(_) => drop(counters.refused.fetch_add(1, Ordering::Relaxed)),
            JoinReply::Root { .. } | JoinReply::Roots(_) => {}
        }
        if stream.send(&reply).await.is_err() || last {
            return;
        }
    }
}

fn not_known_yet() -> JoinReply {
    let text = "this manager does not know the cluster's roots yet";
    JoinReply::Refused(ErrorBody::new(ErrorCode::NotKnownHereYet, text).retry_after(RETRY_AFTER))
}

async fn ask(ports: &JoinPorts, remote: SocketAddr, request: JoinRequest) -> JoinReply {
    let call = PeerCall::Join { observed_addr: remote.to_string(), request };
    match ports.leader.call(call).await {
        Ok(bytes) => wire::decode(&bytes).unwrap_or_else(|e| {
            JoinReply::Refused(ErrorBody::new(ErrorCode::Internal, format!("the leader's answer: {e}")))
        }),
        Err(error) => JoinReply::Refused(error),
    }
}
