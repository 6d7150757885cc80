//! A malicious manager: it holds a real certificate and speaks the mesh protocol by hand.

use std::time::Duration;

use muster_gateway::{BoxStream, DialError, Dialer, Framed};
use muster_messages::protocol::Service;
use muster_messages::wire::{
    self, HelloDecision, MESH_PROTOCOL, MeshHello, PeerEnvelope, PeerMessage, PeerReply, Starts,
};
use muster_messages::{CertIdentity, NodeId, RaftId};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::bytes::{announce, call, call_in, challenge_in, control, nested, number, reply_in};

/// The pid of its RPC endpoint in its hello.
pub const ENDPOINT_PID: u64 = 4242;

/// Maximum wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How far a session attempt came.
#[derive(Debug)]
pub enum DialFailure {
    /// Refused by the gateway, or by TLS.
    RejectedByGateway(DialError),
    /// Closed by the other side instead of a hello.
    Closed,
    /// The hello was refused, with this reason.
    Refused(wire::Refusal),
}

/// One hand-made session.
pub struct BadManager {
    stream: BoxStream,
    /// The victim's hello.
    pub victim: MeshHello,
    /// The node of the certificate.
    pub own: NodeId,
    calls: u64,
}

/// Forged fields of a hello.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lies {
    pub node: Option<NodeId>,
    pub member_id: Option<RaftId>,
}

impl BadManager {
    /// An ordinary session, until it misbehaves.
    pub async fn join(
        dialer: &Dialer,
        own: &CertIdentity,
        starts: &Starts,
        member_id: Option<RaftId>,
        addr: &str,
    ) -> Result<Self, DialFailure> {
        let mut manager = Self::greet(dialer, own, addr, starts, Lies { node: None, member_id }).await?;
        let name = manager.own;
        manager.authenticate(name).await;
        manager.send(&announce([ENDPOINT_PID])).await;
        manager.send(&control(9, b"")).await;
        Ok(manager)
    }

    /// Connects up to the hello, with these forged fields.
    pub async fn greet(
        dialer: &Dialer,
        own: &CertIdentity,
        addr: &str,
        starts: &Starts,
        lies: Lies,
    ) -> Result<Self, DialFailure> {
        let node = own.node().expect("a node's certificate").0;
        let mut framed = dialer.dial(addr, Service::Mesh, None).await.map_err(DialFailure::RejectedByGateway)?.stream;
        let hello = MeshHello {
            protocol: MESH_PROTOCOL,
            cluster: own.cluster,
            incarnation: own.incarnation,
            node: lies.node.unwrap_or(node),
            raft_id: lies.member_id,
            endpoint_pid: ENDPOINT_PID,
            tag: 1,
            probe: false,
            starts: starts.clone(),
            advertise: String::new(),
        };
        framed.send(&hello).await.map_err(|_| DialFailure::Closed)?;
        let victim = heard(&mut framed).await?;
        // The other side decides at the same time: it may have closed already.
        let _closed = framed.send(&HelloDecision::Accepted).await;
        match heard(&mut framed).await? {
            HelloDecision::Accepted => Ok(Self { stream: framed.into_inner(), victim, own: node, calls: 0 }),
            HelloDecision::Refused(refusal) => Err(DialFailure::Refused(refusal)),
        }
    }

    /// Through ractor_cluster's own handshake, under this name.
    pub async fn authenticate(&mut self, name: NodeId) {
        let text = name.to_string();
        let fields = [nested(1, text.as_bytes()), nested(3, text.as_bytes()), number(4, 99)];
        self.send(&nested(1, &nested(1, &fields.concat()))).await;
        let Some(_status) = self.next().await else { return };
        let Some(challenge) = self.next().await else { return };
        let asked = challenge_in(&challenge);
        let digest = Sha256::digest([&asked.to_be_bytes()[..], b"muster-mesh"].concat());
        let fields = [number(1, 5), nested(2, &digest)];
        self.send(&nested(1, &nested(5, &fields.concat()))).await;
        let _acknowledged = self.next().await;
    }

    pub async fn send(&mut self, payload: &[u8]) {
        self.send_raw(&[&(payload.len() as u64).to_be_bytes()[..], payload].concat()).await;
    }

    /// Writes raw bytes. A victim that has ended the session may close during the write.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> bool {
        let written = timeout(ANSWER_TIMEOUT, self.stream.write_all(bytes)).await;
        let flushed = timeout(ANSWER_TIMEOUT, self.stream.flush()).await;
        matches!((written, flushed), (Ok(Ok(())), Ok(Ok(()))))
    }

    /// The next frame; `None` when the victim has ended the session. Identity bindings are acknowledged on the way, as any
    /// manager does: a session without these answers ends.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.read().await?;
            let Some((tag, what)) = call_in(&frame) else { return Some(frame) };
            match wire::decode(&what) {
                Ok(PeerEnvelope { message: PeerMessage::IdentityBindings(_), .. }) => {
                    self.answer(tag, &PeerReply::Taken).await
                }
                _ => return Some(frame),
            }
        }
    }

    async fn answer(&mut self, tag: u64, reply: &PeerReply) {
        let what = wire::encode(reply).expect("small");
        let fields = [number(1, ENDPOINT_PID), number(2, tag), nested(3, &what)];
        self.send(&nested(2, &nested(3, &fields.concat()))).await;
    }

    async fn read(&mut self) -> Option<Vec<u8>> {
        let reading = async {
            let length = self.stream.read_u64().await.ok()?;
            let mut payload = vec![0; usize::try_from(length).ok().filter(|l| *l <= 4 << 20)?];
            self.stream.read_exact(&mut payload).await.ok()?;
            Some(payload)
        };
        timeout(ANSWER_TIMEOUT, reading).await.ok().flatten()
    }

    /// Reads until the victim ends the session; false if it does not.
    pub async fn ended(&mut self) -> bool {
        let reading = async { while self.next().await.is_some() {} };
        timeout(ANSWER_TIMEOUT, reading).await.is_ok()
    }

    /// Calls the victim's RPC endpoint and waits for the reply.
    pub async fn ask(&mut self, what: &[u8]) -> Option<PeerReply> {
        self.calls += 1;
        let tag = self.calls;
        self.send(&call(self.victim.endpoint_pid, what, tag, 5000)).await;
        loop {
            let frame = self.next().await?;
            if let Some(reply) = reply_in(&frame) {
                return wire::decode(&reply).ok();
            }
        }
    }
}

async fn heard<T: serde::de::DeserializeOwned>(framed: &mut Framed<BoxStream>) -> Result<T, DialFailure> {
    match timeout(ANSWER_TIMEOUT, framed.recv()).await {
        Ok(Ok(Some(value))) => Ok(value),
        _ => Err(DialFailure::Closed),
    }
}
