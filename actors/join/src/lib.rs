//! JoinService: serves `muster-join/1` on every manager.
//!
//! Owns   the connections of strangers, each for one short conversation.
//! Hears  `JoinFrame`s.     Says  the root certificate; `PeerCall::Join` to the leader; the leader's answer.
//! Keeps  JOIN-4  a stranger holds a connection for a bounded time, and asks the leader one thing on it; so many ask at once ([`JoinLimits`]).
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
    /// Requests to become a node at once: each holds a call to the leader. (How many strangers are connected at once, the
    /// gateway decides: whoever only talks must not take a place from somebody who asks.)
    pub conversations: usize,
}

impl Default for JoinLimits {
    fn default() -> Self {
        Self { conversation: Duration::from_secs(20), conversations: 256 }
    }
}

/// Frames in one conversation: the root, and retries. The gateway charges a source's rate for the first frame only, so a
/// request is the first frame or none, and the last.
const FRAMES: usize = 3;

/// When whoever found no place may come again.
const SOON: Duration = Duration::from_secs(1);

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
        let (ports, counters, room) = (self.ports.clone(), Arc::clone(&self.counters), Arc::clone(&self.room));
        cx.spawn(async move {
            let Connection { stream, remote, permit, .. } = *connection;
            let stream = Framed::new(stream).with_limit(JOIN_FRAME_LIMIT);
            let conversation = converse(stream, remote, &ports, &counters, &room);
            let _late = tokio::time::timeout(ports.limits.conversation, conversation).await;
            drop(permit);
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
    room: &Semaphore,
) {
    for said in 0..FRAMES {
        let Ok(Some(frame)) = stream.recv::<JoinFrame>().await else { return };
        let (reply, last) = match frame {
            JoinFrame::GetRoot => {
                counters.roots.fetch_add(1, Ordering::Relaxed);
                (JoinReply::Root { root_pem: (ports.root_pem)() }, false)
            }
            JoinFrame::Join(_) if said > 0 => {
                let text = "a join request is the first thing said on its connection; connect again";
                (JoinReply::Refused(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(SOON)), true)
            }
            JoinFrame::Join(request) => match room.try_acquire() {
                Ok(_place) => (ask(ports, remote, request).await, true),
                Err(_) => {
                    let text = "too many nodes are joining through this manager; retry";
                    (JoinReply::Refused(ErrorBody::new(ErrorCode::TooManyRequests, text).retry_after(SOON)), true)
                }
            },
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
    use std::collections::BTreeMap;

    use muster_gateway::BoxStream;
    use muster_messages::{Name, NodeId, RequestId, Secret};

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

    /// What is replied to these frames, one after the other, while so many more may ask the leader.
    async fn talk(room: usize, frames: Vec<JoinFrame>) -> Vec<JoinReply> {
        let ports = ports(Ok(wire::encode(&joined()).unwrap()));
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(async move {
            let stream = Framed::new(Box::pin(theirs) as BoxStream);
            let (counters, room) = (Counters::default(), Semaphore::new(room));
            converse(stream, "127.0.0.1:9".parse().unwrap(), &ports, &counters, &room).await;
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
        let replies = talk(0, vec![JoinFrame::GetRoot; 6]).await;
        assert_eq!(replies, vec![JoinReply::Root { root_pem: "root".into() }; FRAMES]);
        assert_eq!(talk(1, vec![request(), JoinFrame::GetRoot]).await, vec![joined()], "a request ends it");
    }

    #[tokio::test]
    async fn a_full_service_says_when_to_come_back() {
        let replies = talk(0, vec![request()]).await;
        let [JoinReply::Refused(error)] = replies.as_slice() else { panic!("{replies:?}") };
        assert_eq!((error.code, error.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
    }

    /// The gateway has charged nobody for it.
    #[tokio::test]
    async fn a_request_behind_another_frame_is_not_passed_on() {
        let replies = talk(1, vec![JoinFrame::GetRoot, request(), request()]).await;
        let [JoinReply::Root { .. }, JoinReply::Refused(error)] = replies.as_slice() else { panic!("{replies:?}") };
        assert_eq!((error.code, error.retry_after_ms), (ErrorCode::TooManyRequests, Some(1000)));
    }
}
