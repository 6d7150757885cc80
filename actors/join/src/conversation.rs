//! One client's conversation: root certificates at once, a join request through the leader. [`crate::core`] decides what follows a
//! frame.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_gateway::{BoxStream, Framed};
use muster_messages::wire::{self, JoinFrame, JoinReply, JoinRequest, PeerCall};
use muster_messages::{ErrorBody, ErrorCode};
use tokio::sync::Semaphore;

use crate::core::{Conversation, Next, all_roots};
use crate::ports::JoinPorts;

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
    let mut conversation = Conversation::default();
    while !conversation.is_over() {
        let Ok(Some(frame)) = stream.recv::<JoinFrame>().await else { return };
        let permit = if conversation.needs_permit(&frame) { permits.try_acquire().ok() } else { None };
        let reply = match conversation.next(frame, permit.is_some()) {
            Next::SendRoot => {
                counters.roots.fetch_add(1, Ordering::Relaxed);
                JoinReply::Root { root_pem: (ports.root_pem)() }
            }
            Next::SendRoots => {
                counters.roots.fetch_add(1, Ordering::Relaxed);
                all_roots((ports.roots)())
            }
            Next::AskLeader(request) => ask(ports, remote, request).await,
            Next::Refuse(error) => JoinReply::Refused(error),
        };
        drop(permit);
        match &reply {
            JoinReply::Joined { .. } => drop(counters.joined.fetch_add(1, Ordering::Relaxed)),
            JoinReply::Refused(_) => drop(counters.refused.fetch_add(1, Ordering::Relaxed)),
            JoinReply::Root { .. } | JoinReply::Roots(_) => {}
        }
        if stream.send(&reply).await.is_err() {
            return;
        }
    }
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
