//! A manager gone bad: it holds a real certificate and speaks the mesh protocol by hand.

use std::time::Duration;

use muster_gateway::{BoxStream, DialError, Dialer, Framed};
use muster_messages::protocol::Service;
use muster_messages::wire::{
    self, HelloVerdict, MESH_PROTOCOL, MeshHello, PeerEnvelope, PeerMessage, PeerReply, Starts,
};
use muster_messages::{CertIdentity, NodeId, RaftId};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::bytes::{announce, call, call_in, challenge_in, control, nested, number, reply_in};

/// The pid that its hello names for its door.
pub const DOOR: u64 = 4242;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How far a bad manager came.
#[derive(Debug)]
pub enum Turned {
    /// The gateway refused it, or TLS did.
    Away(DialError),
    /// The other side closed instead of answering the hello.
    Closed,
    /// The hello was refused, with this word.
    Refused(wire::Refusal),
}

/// One session of its own making.
pub struct BadManager {
    stream: BoxStream,
    /// What the victim's hello said.
    pub victim: MeshHello,
    /// Who the certificate says it is.
    pub own: NodeId,
    calls: u64,
}

/// What a hello may lie about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lies {
    pub node: Option<NodeId>,
    pub seat: Option<RaftId>,
}

impl BadManager {
    /// A session like any other, until it misbehaves.
    pub async fn join(
        dialer: &Dialer,
        own: &CertIdentity,
        starts: &Starts,
        seat: Option<RaftId>,
        addr: &str,
    ) -> Result<Self, Turned> {
        let mut manager = Self::greet(dialer, own, addr, starts, Lies { node: None, seat }).await?;
        let name = manager.own;
        manager.authenticate(name).await;
        manager.send(&announce([DOOR])).await;
        manager.send(&control(9, b"")).await;
        Ok(manager)
    }

    /// As far as the hello, with these lies in it.
    pub async fn greet(
        dialer: &Dialer,
        own: &CertIdentity,
        addr: &str,
        starts: &Starts,
        lies: Lies,
    ) -> Result<Self, Turned> {
        let node = own.node().expect("a node's certificate").0;
        let mut framed = dialer.dial(addr, Service::Mesh, None).await.map_err(Turned::Away)?.stream;
        let hello = MeshHello {
            protocol: MESH_PROTOCOL,
            cluster: own.cluster,
            incarnation: own.incarnation,
            node: lies.node.unwrap_or(node),
            raft_id: lies.seat,
            door_pid: DOOR,
            tag: 1,
            probe: false,
            starts: starts.clone(),
            advertise: String::new(),
        };
        framed.send(&hello).await.map_err(|_| Turned::Closed)?;
        let victim = heard(&mut framed).await?;
        // The other side judges at the same time: it may have closed already.
        let _closed = framed.send(&HelloVerdict::Accepted).await;
        match heard(&mut framed).await? {
            HelloVerdict::Accepted => Ok(Self { stream: framed.into_inner(), victim, own: node, calls: 0 }),
            HelloVerdict::Refused(refusal) => Err(Turned::Refused(refusal)),
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

    /// Bytes as they are. A victim that has ended the session may close while we write.
    pub async fn send_raw(&mut self, bytes: &[u8]) -> bool {
        let written = timeout(PATIENCE, self.stream.write_all(bytes)).await;
        let flushed = timeout(PATIENCE, self.stream.flush()).await;
        matches!((written, flushed), (Ok(Ok(())), Ok(Ok(()))))
    }

    /// The next frame; `None` when the victim has ended the session. Claims are taken on the way, as any manager takes
    /// them: a session in which they are not answered ends.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let frame = self.read().await?;
            let Some((tag, what)) = call_in(&frame) else { return Some(frame) };
            match wire::decode(&what) {
                Ok(PeerEnvelope { message: PeerMessage::Claims(_), .. }) => self.answer(tag, &PeerReply::Taken).await,
                _ => return Some(frame),
            }
        }
    }

    async fn answer(&mut self, tag: u64, reply: &PeerReply) {
        let what = wire::encode(reply).expect("small");
        let fields = [number(1, DOOR), number(2, tag), nested(3, &what)];
        self.send(&nested(2, &nested(3, &fields.concat()))).await;
    }

    async fn read(&mut self) -> Option<Vec<u8>> {
        let reading = async {
            let length = self.stream.read_u64().await.ok()?;
            let mut payload = vec![0; usize::try_from(length).ok().filter(|l| *l <= 4 << 20)?];
            self.stream.read_exact(&mut payload).await.ok()?;
            Some(payload)
        };
        timeout(PATIENCE, reading).await.ok().flatten()
    }

    /// Reads until the victim ends the session; false if it does not.
    pub async fn ended(&mut self) -> bool {
        let reading = async { while self.next().await.is_some() {} };
        timeout(PATIENCE, reading).await.is_ok()
    }

    /// Calls the victim's door and waits for the reply.
    pub async fn ask(&mut self, what: &[u8]) -> Option<PeerReply> {
        self.calls += 1;
        let tag = self.calls;
        self.send(&call(self.victim.door_pid, what, tag, 5000)).await;
        loop {
            let frame = self.next().await?;
            if let Some(reply) = reply_in(&frame) {
                return wire::decode(&reply).ok();
            }
        }
    }
}

async fn heard<T: serde::de::DeserializeOwned>(framed: &mut Framed<BoxStream>) -> Result<T, Turned> {
    match timeout(PATIENCE, framed.recv()).await {
        Ok(Ok(Some(value))) => Ok(value),
        _ => Err(Turned::Closed),
    }
}
