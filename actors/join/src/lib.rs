//! JoinService: serves `muster-join/1` on every manager.
//!
//! Owns   the connections of strangers, each for one short conversation.
//! Hears  `JoinFrame`s.     Says  the root certificate; `PeerCall::Join` to the leader; the leader's answer.
//! Keeps  JOIN-4  a stranger holds a connection for a bounded time, and this service a bounded number of them ([`JoinLimits`]).
//! Has no opinion about tokens: the certificate authority on the leader judges them on its own applied copy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use muster_gateway::{Connection, Framed, JOIN_FRAME_LIMIT, Registration, Services};
use muster_kernel::{Cx, Fault, Shell};
use muster_messages::protocol::{Named, Service};
use muster_messages::wire::{self, JoinFrame, JoinReply, JoinRequest, PeerCall};
use muster_messages::{ErrorBody, ErrorCode};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

/// What strangers may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinLimits {
    /// From the first frame to the answer: it waits for a quorum, not for a person.
    pub conversation: Duration,
    /// Conversations at once. Each holds one connection and, while it waits for the leader, one call.
    pub conversations: usize,
}

impl Default for JoinLimits {
    fn default() -> Self {
        Self { conversation: Duration::from_secs(20), conversations: 256 }
    }
}

/// Frames in one conversation: the root and a retry, then one request. The gateway charges a source's rate for the
/// first frame only, so a request ends the conversation.
const FRAMES: usize = 3;

/// Asks the leader, wherever it is.
pub type AskLeader = Arc<dyn Fn(PeerCall) -> BoxFuture<'static, Result<Vec<u8>, ErrorBody>> + Send + Sync>;

/// What a conversation needs.
#[derive(Clone)]
pub struct JoinPorts {
    pub services: Services,
    pub leader: AskLeader,
    /// The root certificate as this node trusts it.
    pub root_pem: Arc<dyn Fn() -> String + Send + Sync>,
    pub limits: JoinLimits,
}

/// What the service hears.
pub enum JoinMsg {
    Connection(Box<Connection>),
}
impl Named for JoinMsg {
    fn name(&self) -> &'static str {
        match self {
            JoinMsg::Connection(_) => "connection",
        }
    }
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
    room: Arc<Semaphore>,
    counters: Arc<Counters>,
}

impl JoinService {
    /// A service without conversations.
    pub fn new(ports: JoinPorts) -> Self {
        let room = Arc::new(Semaphore::new(ports.limits.conversations));
        Self { ports, registration: None, room, counters: Arc::default() }
    }
}

impl Shell for JoinService {
    type Msg = JoinMsg;
    const KIND: &'static str = "JoinService";

    async fn started(&mut self, cx: &Cx<JoinMsg>) -> Result<(), Fault> {
        let (sink, mut connections) = mpsc::channel(64);
        self.registration = Some(self.ports.services.register(Service::Join, sink));
        let me = cx.me().clone();
        cx.spawn(async move {
            while let Some(connection) = connections.recv().await {
                if me.tell(JoinMsg::Connection(Box::new(connection))).is_err() {
                    break;
                }
            }
        });
        Ok(())
    }

    async fn handle(&mut self, cx: &Cx<JoinMsg>, msg: JoinMsg) -> Result<(), Fault> {
        let JoinMsg::Connection(connection) = msg;
        let place = Arc::clone(&self.room).try_acquire_owned();
        let (ports, counters) = (self.ports.clone(), Arc::clone(&self.counters));
        cx.spawn(async move {
            let full = place.is_err();
            let Connection { stream, remote, permit, .. } = *connection;
            let conversation =
                converse(Framed::new(stream).with_limit(JOIN_FRAME_LIMIT), remote, &ports, &counters, full);
            let _late = tokio::time::timeout(ports.limits.conversation, conversation).await;
            drop((permit, place));
        });
        Ok(())
    }

    fn view(&self) -> Value {
        let load = |c: &AtomicU64| c.load(Ordering::Relaxed);
        json!({
            "conversations": self.ports.limits.conversations - self.room.available_permits(), "roots": load(&self.counters.roots),
            "joined": load(&self.counters.joined), "refused": load(&self.counters.refused),
        })
    }
}

/// One stranger's conversation. Ends silently when the other side does.
async fn converse(
    mut stream: Framed<muster_gateway::BoxStream>,
    remote: SocketAddr,
    ports: &JoinPorts,
    counters: &Counters,
    full: bool,
) {
    for _ in 0..FRAMES {
        let Ok(Some(frame)) = stream.recv::<JoinFrame>().await else { return };
        let last = matches!(frame, JoinFrame::Join(_));
        let reply = match frame {
            _ if full => {
                let busy = ErrorBody::new(
                    ErrorCode::TooManyRequests,
                    "too many nodes are joining through this manager; retry",
                );
                JoinReply::Refused(busy.retry_after(Duration::from_secs(1)))
            }
            JoinFrame::GetRoot => {
                counters.roots.fetch_add(1, Ordering::Relaxed);
                JoinReply::Root { root_pem: (ports.root_pem)() }
            }
            JoinFrame::Join(request) => ask(ports, remote, request).await,
        };
        match &reply {
            JoinReply::Joined { .. } => drop(counters.joined.fetch_add(1, Ordering::Relaxed)),
            JoinReply::Refused(_) => drop(counters.refused.fetch_add(1, Ordering::Relaxed)),
            JoinReply::Root { .. } => {}
        }
        if stream.send(&reply).await.is_err() || last {
            return;
        }
    }
}

async fn ask(ports: &JoinPorts, remote: SocketAddr, request: JoinRequest) -> JoinReply {
    let call = PeerCall::Join { observed_addr: remote.to_string(), request };
    match (ports.leader)(call).await {
        Ok(bytes) => wire::decode(&bytes).unwrap_or_else(|e| {
            JoinReply::Refused(ErrorBody::new(ErrorCode::Internal, format!("the leader's answer: {e}")))
        }),
        Err(error) => JoinReply::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use muster_gateway::BoxStream;

    use super::*;

    fn ports(answer: Result<Vec<u8>, ErrorBody>) -> JoinPorts {
        JoinPorts {
            services: Services::new(),
            leader: Arc::new(move |_| {
                let answer = answer.clone();
                Box::pin(async move { answer })
            }),
            root_pem: Arc::new(|| "root".to_owned()),
            limits: JoinLimits::default(),
        }
    }

    async fn talk(ports: JoinPorts, full: bool, frames: Vec<JoinFrame>) -> Vec<JoinReply> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(async move {
            let stream: BoxStream = Box::pin(theirs);
            converse(Framed::new(stream), "127.0.0.1:9".parse().unwrap(), &ports, &Counters::default(), full).await;
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
    async fn the_root_is_given_to_anyone_and_a_conversation_is_short() {
        let frames = vec![JoinFrame::GetRoot; 6];
        let replies = talk(ports(Ok(Vec::new())), false, frames).await;
        assert_eq!(replies, vec![JoinReply::Root { root_pem: "root".into() }; FRAMES]);
    }

    #[tokio::test]
    async fn a_full_service_says_when_to_come_back() {
        let replies = talk(ports(Ok(Vec::new())), true, vec![JoinFrame::GetRoot]).await;
        let [JoinReply::Refused(error)] = replies.as_slice() else { panic!("{replies:?}") };
        assert_eq!((error.code, error.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
    }
}
