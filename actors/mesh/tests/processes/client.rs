//! A malicious manager: a handwritten client of the mesh protocol, which sends anything that a test wants.

use std::time::Duration;

use muster_gateway::{BoxStream, Framed};
use muster_messages::wire::{
    self, HelloDecision, MESH_PROTOCOL, MeshHello, PeerEnvelope, PeerMessage, PeerReply, Refusal, Starts,
};
use muster_messages::{ClusterId, Incarnation, RaftId};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub use crate::bytes::*;
use crate::node::{CLUSTER, node};

/// The pid of the RPC endpoint in the client's hello.
pub const ENDPOINT: u64 = 4242;

/// The hello of manager `own`'s first process.
pub fn hello_of(own: u8) -> MeshHello {
    MeshHello {
        protocol: MESH_PROTOCOL,
        cluster: ClusterId::from_entropy(CLUSTER),
        incarnation: Incarnation(0),
        node: node(own.into()),
        raft_id: Some(RaftId(own.into())),
        endpoint_pid: ENDPOINT,
        tag: 1,
        probe: false,
        starts: Starts::first(own.into()),
        advertise: String::new(),
    }
}

pub struct Client {
    stream: BoxStream,
    pub victim: MeshHello,
    calls: u64,
}

impl Client {
    /// Connects with a certificate of node `own` and exchanges hellos.
    pub async fn greet(addr: &str, own: u8) -> Self {
        Self::try_greet(addr, own).await.expect("the victim answers the hello")
    }
    /// `None`: the victim closed instead of answering.
    pub async fn try_greet(addr: &str, own: u8) -> Option<Self> {
        let mut tcp = TcpStream::connect(addr).await.expect("the victim listens");
        tcp.write_u8(own).await.expect("writable");
        tcp.read_u8().await.expect("readable");
        Self::over(Box::pin(tcp), own).await
    }
    /// On a stream that is already authenticated.
    pub async fn over(stream: BoxStream, own: u8) -> Option<Self> {
        Self::with_hello(hello_of(own), stream).await.map(|client| client.expect("the hello is accepted"))
    }
    /// `None`: the victim closed instead of answering.
    pub async fn with_hello(hello: MeshHello, stream: BoxStream) -> Option<Result<Self, Refusal>> {
        let mut framed = Framed::new(stream);
        framed.send(&hello).await.ok()?;
        let victim = framed.recv().await.ok()??;
        framed.send(&HelloDecision::Accepted).await.ok()?;
        match framed.recv().await.expect("a decision")? {
            HelloDecision::Accepted => Some(Ok(Self { stream: framed.into_inner(), victim, calls: 0 })),
            HelloDecision::Refused(refusal) => Some(Err(refusal)),
        }
    }
    /// Completes the second handshake, with the name of node `name`.
    pub async fn authenticate(&mut self, name: u128) {
        let text = node(name).to_string();
        let fields = [nested(1, text.as_bytes()), nested(3, text.as_bytes()), number(4, 99)];
        self.send(&nested(1, &nested(1, &fields.concat()))).await;
        let Some(_status) = self.next().await else { return };
        let challenge = self.next().await.expect("a challenge follows the status");
        let asked = challenge_in(&challenge);
        let digest = Sha256::digest([&asked.to_be_bytes()[..], b"muster-mesh"].concat());
        let fields = [number(1, 5), nested(2, &digest)];
        self.send(&nested(1, &nested(5, &fields.concat()))).await;
        self.next().await.expect("an acknowledgement");
    }
    pub async fn join(addr: &str, own: u8) -> Self {
        Self::greet(addr, own).await.open(own).await
    }
    /// Completes the session after the hello.
    pub async fn open(mut self, own: u8) -> Self {
        self.authenticate(own.into()).await;
        self.send(&announce([ENDPOINT])).await;
        self.send(&control(9, b"")).await;
        self
    }
    pub async fn send(&mut self, payload: &[u8]) {
        let frame = [&(payload.len() as u64).to_be_bytes()[..], payload].concat();
        // A victim that has ended the session may close during the write.
        let _ended = self.stream.write_all(&frame).await;
    }
    pub async fn send_raw(&mut self, bytes: &[u8]) {
        let _ended = self.stream.write_all(bytes).await;
    }
    /// The next frame; `None` when the victim has ended the session. Identity bindings are acknowledged on the way, as by any
    /// manager: they arrive when other managers connect, and a session in which they are not answered ends.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.read().await?;
            let Some((number, what)) = call_in(&frame) else { return Some(frame) };
            match wire::decode(&what).expect("the victim is honest") {
                PeerEnvelope { message: PeerMessage::IdentityBindings(_), .. } => {
                    self.answer(number, &PeerReply::Taken).await
                }
                _ => return Some(frame),
            }
        }
    }
    async fn read(&mut self) -> Option<Vec<u8>> {
        let reading = async {
            let length = self.stream.read_u64().await.ok()?;
            let mut payload = vec![0; usize::try_from(length).expect("the victim is honest")];
            self.stream.read_exact(&mut payload).await.ok()?;
            Some(payload)
        };
        tokio::time::timeout(Duration::from_secs(60), reading).await.expect("the victim answers or ends the session")
    }
    /// Reads until the victim ends the session.
    pub async fn wait_end(&mut self) {
        while self.next().await.is_some() {}
    }
    /// Calls the victim's RPC endpoint and waits for the reply.
    pub async fn ask(&mut self, what: &[u8]) -> Option<PeerReply> {
        self.calls += 1;
        let tag = self.calls;
        self.send(&call(self.victim.endpoint_pid, what, tag, 5000)).await;
        loop {
            let frame = self.next().await?;
            // node = 2 { reply = 3 { to = 1, tag = 2, what = 3 } }; everything else is control traffic.
            if let Some(reply) = reply_in(&frame) {
                return wire::decode(&reply).ok();
            }
        }
    }
    /// The victim's next call: number and content.
    pub async fn called(&mut self) -> Option<(u64, PeerMessage)> {
        loop {
            let frame = self.next().await?;
            if let Some((number, what)) = call_in(&frame) {
                let envelope: PeerEnvelope = wire::decode(&what).expect("the victim is honest");
                return Some((number, envelope.message));
            }
        }
    }
    pub async fn answer(&mut self, call: u64, reply: &PeerReply) {
        self.answer_bytes(call, &wire::encode(reply).expect("small")).await;
    }
    pub async fn answer_bytes(&mut self, call: u64, what: &[u8]) {
        let fields = [number(1, ENDPOINT), number(2, call), nested(3, what)];
        self.send(&nested(2, &nested(3, &fields.concat()))).await;
    }
}
