//! The join service: serves `muster-join/1` on every manager.
//!
//! Owns        unauthenticated connections, each for one short conversation.
//! Inputs      `JoinFrame`s.  Outputs  root certificates; `PeerCall::Join` to the leader; the leader's answer.
//! Invariants  JOIN-4  a client holds a connection for a bounded time and sends the leader one request on it; the number of
//!                     concurrent requests is bounded ([`JoinLimits`]).
//! Tokens are not checked here: the leader's certificate authority checks them against its own applied state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_gateway::{Connection, Framed, JOIN_FRAME_LIMIT, Registration, Services};
use muster_kernel::{Arrived, Cx, Fault, Shell};
use muster_messages::protocol::{LeaderCalls, Named, Service};
use muster_messages::wire::{self, JoinFrame, JoinReply, JoinRequest, PeerCall};
use muster_messages::{ErrorBody, ErrorCode, JoinView, OfferedRoot, Tables};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

/// Limits for unauthenticated clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinLimits {
    /// From the first frame to the answer, which waits for a quorum, not for a person.
    pub conversation: Duration,
    /// Concurrent join requests: each holds a call to the leader. (The gateway limits connections: a client without a join request
    /// must not take a permit from one with a request.)
    pub conversations: usize,
}

impl Default for JoinLimits {
    fn default() -> Self {
        Self { conversation: Duration::from_secs(20), conversations: 256 }
    }
}

/// Frames per conversation: the root or all roots, and retries. The gateway charges a source's rate for the first frame only, so a
/// join request must be the first frame, and is the last.
const MAX_FRAMES: usize = 3;

/// Time to retry after a rejection for lack of a permit.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Ports of a conversation.
#[derive(Clone)]
pub struct JoinPorts {
    pub services: Services,
    pub leader: Arc<dyn LeaderCalls>,
    /// The certificate of the root that signs now.
    pub root_pem: Arc<dyn Fn() -> String + Send + Sync>,
    /// See [`offered`].
    pub roots: Arc<dyn Fn() -> Option<Vec<OfferedRoot>> + Send + Sync>,
    pub limits: JoinLimits,
}

/// The roots that lead a token of an earlier one to those that count now. A root whose key others may have leads nowhere once it
/// does not sign any more: they could vouch for a root of their own, and a joiner could not tell which one is the cluster's.
/// Empty: there was no rotation. `None`: this replica does not know its cluster yet.
pub fn offered(tables: &Tables) -> Option<Vec<OfferedRoot>> {
    tables.cluster.as_ref()?;
    let roots = tables.authorities.roots.values().filter(|root| !root.is_disowned());
    Some(roots.map(|root| root.offered()).collect())
}

/// Connections that the gateway has admitted and the actor has not taken, and as many in its mailbox.
const CONNECTION_QUEUE: usize = 64;

/// Inputs of the service.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum JoinMsg {
    Connection(Box<Arrived<Connection>>),
}

#[derive(Default)]
struct Counters {
    roots: AtomicU64,
    joined: AtomicU64,
    refused: AtomicU64,
}

/// The service's shell.
pub struct JoinService {
    ports: JoinPorts,
    registration: Option<Registration>,
    permits: Arc<Semaphore>,
    counters: Arc<Counters>,
}

impl JoinService {
    /// A service without conversations.
    pub fn new(ports: JoinPorts) -> Self {
        let permits = Arc::new(Semaphore::new(ports.limits.conversations));
        Self { ports, registration: None, permits, counters: Arc::default() }
    }
}

impl Shell for JoinService {
    type Msg = JoinMsg;
    const KIND: &'static str = "JoinService";

    async fn started(&mut self, cx: &Cx<JoinMsg>) -> Result<(), Fault> {
        let (sink, connections) = mpsc::channel(CONNECTION_QUEUE);
        self.registration = Some(self.ports.services.register(Service::Join, sink));
        cx.forward(connections, CONNECTION_QUEUE, |connection| JoinMsg::Connection(Box::new(connection)));
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<JoinMsg>, msg: JoinMsg) -> Result<(), Fault> {
        let JoinMsg::Connection(connection) = msg;
        let (ports, counters, permits) = (self.ports.clone(), Arc::clone(&self.counters), Arc::clone(&self.permits));
        cx.spawn(async move {
            let Connection { stream, remote, permit, .. } = connection.item;
            let stream = Framed::new(stream).with_limit(JOIN_FRAME_LIMIT);
            let conversation = converse(stream, remote, &ports, &counters, &permits);
            let _late = tokio::time::timeout(ports.limits.conversation, conversation).await;
            drop(permit);
        });
        Ok(())
    }

    fn view(&self) -> Value {
        let load = |c: &AtomicU64| c.load(Ordering::Relaxed);
        json!(JoinView {
            conversations: self.ports.limits.conversations - self.permits.available_permits(),
            roots: load(&self.counters.roots),
            joined: load(&self.counters.joined),
            refused: load(&self.counters.refused),
        })
    }
}

/// One client's conversation. Ends silently when the other side does.
async fn converse(
    mut stream: Framed<muster_gateway::BoxStream>,
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
