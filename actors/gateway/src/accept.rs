//! One connection from its first packet until a service has it.
//!
//! silent → handshake → identity → (in the table under its name) → admission → greeting → service.
//! Strangers stay in the pool of the waiting until their first byte for the service: mute ones cost no service anything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use muster_messages::protocol::Service;
use muster_messages::wire::{self, Greeting, JoinFrame, JoinReply, Refusal};
use muster_messages::{CertIdentity, ErrorBody, ErrorCode, NodeId, Principal, RefusalReason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::connection::{Connection, ConnectionPermit};
use crate::core::admission::Admission;
use crate::core::connections::Full;
use crate::core::offenders::Offender;
use crate::core::source_of;
use crate::framed::{FrameError, Framed};
use crate::metrics::word;
use crate::port::{Inner, Place};
use crate::stream::{BoxStream, Killable, Prefixed};
use crate::tls::service_of;

/// The largest first frame of a stranger: a signing request, a name, labels and an old certificate fit twice.
pub const JOIN_FRAME_LIMIT: usize = 32 * 1024;

/// A peer that does not take a greeting of a few hundred bytes in this time is not listening.
const GREETING_DEADLINE: Duration = Duration::from_secs(3);

/// What an HTTP client is told for whom there is no room.
const NO_ROOM: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// How long accepting pauses when it fails: out of file descriptors, most likely, and retrying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

type Tls = TlsStream<TcpStream>;

/// Accepts connections, for ever.
pub(crate) async fn accept_all(port: Arc<Inner>) {
    loop {
        match port.lobby.accept(&port.listener).await {
            Ok((tcp, remote)) => {
                port.count(|c| c.accepted += 1);
                let place = Place::take(&port, remote.ip());
                let newcomer = Newcomer { port: port.clone(), remote, place };
                port.lobby.waiting().spawn(newcomer.come_in(tcp));
            }
            Err(error) => {
                port.count(|c| c.accept_failed += 1);
                tracing::debug!(%error, "accepting failed");
                port.complain(Offender::Others, "accepting failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection that no service has yet.
struct Newcomer {
    port: Arc<Inner>,
    remote: SocketAddr,
    place: Place,
}

/// A newcomer after the handshake.
struct Arrival {
    tls: Tls,
    service: Service,
    alpn: Option<Vec<u8>>,
    identity: Option<CertIdentity>,
    /// A certificate that TLS accepted and that says nothing we can read.
    unreadable: Option<String>,
    /// Who we are.
    node: NodeId,
}

impl Newcomer {
    async fn come_in(self, tcp: TcpStream) {
        let (kill, port, remote) = (self.place.kill.clone(), self.port.clone(), self.remote);
        tokio::select! {
            biased;
            // Before a service has it, only eviction and a cut of its principal end it from outside.
            reason = kill.wait() => if reason == RefusalReason::TooManyRequests {
                port.complain(Offender::Address(source_of(remote.ip())), "too many unauthenticated connections");
            },
            () = self.proceed(tcp) => {}
        }
    }

    async fn proceed(self, tcp: TcpStream) {
        let deadline = Instant::now() + self.port.config.handshake_deadline;
        // Nothing of TLS is allocated for a connection that says nothing.
        match timeout_at(deadline, tcp.readable()).await {
            Ok(Ok(())) => self.place.moved_on(),
            Ok(Err(_)) => return,
            Err(_) => return self.too_slow("no handshake in time"),
        }
        // Boxed: what follows is larger than what a silent connection should cost.
        if let Some(arrival) = Box::pin(self.handshake(tcp, deadline)).await {
            Box::pin(self.decide(arrival)).await;
        }
    }

    async fn handshake(&self, tcp: TcpStream, deadline: Instant) -> Option<Arrival> {
        let credentials = self.port.credentials.borrow().clone();
        let config = match self.port.tls.config(&credentials) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(%error, "this node's own certificate cannot be used");
                return None;
            }
        };
        // Small frames must leave at once. A socket that is dead already says so in the handshake.
        let _ = tcp.set_nodelay(true);
        let tls = match timeout_at(deadline, TlsAcceptor::from(config).accept(tcp)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                tracing::trace!(remote = %self.remote, %error, "handshake failed");
                self.port.count(|c| c.handshake_failed += 1);
                self.complain(None, "handshake failed");
                return None;
            }
            Err(_) => {
                self.too_slow("no handshake in time");
                return None;
            }
        };
        let session = tls.get_ref().1;
        let alpn = session.alpn_protocol().map(<[u8]>::to_vec);
        let service = service_of(alpn.as_deref())?;
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        let identity = leaf.map(|leaf| muster_pki::identity_of(leaf)).transpose();
        let (node, _) = credentials.identity.node()?;
        let (identity, unreadable) = match identity {
            Ok(identity) => (identity, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Some(Arrival { tls, service, alpn, identity, unreadable, node })
    }

    async fn decide(self, mut arrival: Arrival) {
        let service = arrival.service;
        if let Some(why) = arrival.unreadable.take() {
            return self.refuse(arrival, RefusalReason::Unauthenticated, why).await;
        }
        if let Some(identity) = &arrival.identity
            && service != Service::Join
            && let Err(full) = self.place.identify(identity, service)
        {
            let sentence = match full {
                Full::Principal => format!("{} has too many connections here", identity.principal()),
                Full::Identified => "this node has as many connections as it can serve".to_owned(),
            };
            return self.refuse(arrival, RefusalReason::TooManyRequests, sentence).await;
        }
        match self.admission(arrival.identity.as_ref(), service).await {
            Admission::Refuse(reason, sentence) => self.refuse(arrival, reason, sentence).await,
            Admission::Accept => self.welcome(arrival).await,
            Admission::AcceptOnCertificate | Admission::CatchUp { .. } => {
                self.port.count(|c| c.on_certificate += 1);
                self.welcome(arrival).await;
            }
        }
    }

    /// Decides, waiting for the local copy where that may help. Never `CatchUp`.
    async fn admission(&self, identity: Option<&CertIdentity>, service: Service) -> Admission {
        let mut copy = self.port.copy.watch();
        let mut verdict = self.port.judge(identity, service, copy.get().as_deref());
        if matches!(verdict, Admission::CatchUp { .. }) {
            self.port.count(|c| c.caught_up += 1);
        }
        let deadline = Instant::now() + self.port.config.catch_up;
        while let Admission::CatchUp { otherwise } = verdict {
            verdict = match timeout_at(deadline, copy.changed()).await {
                Ok(()) => self.port.judge(identity, service, copy.get().as_deref()),
                Err(_) => *otherwise,
            };
        }
        if verdict == Admission::Accept && identity.is_some() {
            // Judged again after it is marked as confirmed: a copy that arrived in between has found it unmarked.
            self.place.confirmed(true);
            verdict = match self.port.judge(identity, service, self.port.copy.get().as_deref()) {
                Admission::CatchUp { otherwise } => *otherwise,
                other => other,
            };
        }
        verdict
    }

    async fn welcome(self, arrival: Arrival) {
        match (arrival.service, &arrival.identity) {
            (Service::Join, _) => self.welcome_joiner(arrival).await,
            (Service::Http, None) => self.welcome_stranger(arrival).await,
            (Service::Http, Some(_)) => match self.reserve(Service::Http) {
                Some(sink) => self.hand_over(arrival, Bytes::new(), None, sink),
                None => self.no_room(arrival).await,
            },
            _ => self.welcome_native(arrival).await,
        }
    }

    async fn welcome_native(self, mut arrival: Arrival) {
        let service = arrival.service;
        let Some(sink) = self.port.services.sink(service) else {
            let (reason, sentence) = self.absent(service);
            return self.refuse(arrival, reason, sentence).await;
        };
        let Ok(sink) = sink.try_reserve_owned() else {
            let sentence = "too many connections are waiting for this service".to_owned();
            return self.refuse(arrival, RefusalReason::TooManyRequests, sentence).await;
        };
        if send(&mut arrival.tls, &Greeting::Welcome { node: arrival.node }).await.is_ok() {
            self.hand_over(arrival, Bytes::new(), None, sink);
        }
    }

    /// A joiner is handed over with its first frame, which must be one and, if it asks to become a node, must be within
    /// its source's rate.
    async fn welcome_joiner(self, mut arrival: Arrival) {
        self.place.moved_on();
        let deadline = Instant::now() + self.port.config.first_byte_deadline;
        if send(&mut arrival.tls, &Greeting::Welcome { node: arrival.node }).await.is_err() {
            return;
        }
        let mut framed = Framed::new(&mut arrival.tls).with_limit(JOIN_FRAME_LIMIT);
        let frame = match timeout_at(deadline, framed.recv_bytes()).await {
            Ok(Ok(Some(frame))) => frame,
            Ok(Ok(None)) => return,
            Ok(Err(FrameError::TooLarge(_))) => return self.malformed(arrival, ErrorCode::TooLarge).await,
            Ok(Err(_)) => return self.malformed(arrival, ErrorCode::Invalid).await,
            Err(_) => return self.too_slow("no join request in time"),
        };
        let refused = match wire::decode::<JoinFrame>(&frame) {
            Err(_) => return self.malformed(arrival, ErrorCode::Invalid).await,
            Ok(JoinFrame::GetRoot) => None,
            Ok(JoinFrame::Join(_)) => self.port.take_join(self.remote.ip()).err(),
        };
        if let Some(wait) = refused {
            let message = "too many join requests from this address; retry";
            let body = ErrorBody::new(ErrorCode::TooManyRequests, message).retry_after(wait);
            return self.refuse_joiner(arrival, body, "too many join requests").await;
        }
        let Some(sink) = self.reserve(Service::Join) else {
            let message = "too many join requests are being served; retry";
            let body = ErrorBody::new(ErrorCode::TooManyRequests, message).retry_after(Duration::from_millis(200));
            return self.refuse_joiner(arrival, body, "too many join requests").await;
        };
        self.place.anonymous(Service::Join);
        let mut first = BytesMut::with_capacity(4 + frame.len());
        first.extend_from_slice(&u32::try_from(frame.len()).expect("a frame's limit fits 32 bits").to_be_bytes());
        first.extend_from_slice(&frame);
        self.hand_over(arrival, first.freeze(), None, sink);
    }

    /// A client without certificate is handed over with the first bytes of its first request.
    async fn welcome_stranger(self, mut arrival: Arrival) {
        self.place.moved_on();
        let mut first = BytesMut::with_capacity(1024);
        let reading = arrival.tls.read_buf(&mut first);
        match timeout(self.port.config.first_byte_deadline, reading).await {
            Ok(Ok(read)) if read > 0 => {}
            Ok(_) => return,
            Err(_) => return self.too_slow("no request in time"),
        }
        let Some(sink) = self.reserve(Service::Http) else { return self.no_room(arrival).await };
        self.place.anonymous(Service::Http);
        self.hand_over(arrival, first.freeze(), None, sink);
    }

    fn hand_over(
        self,
        mut arrival: Arrival,
        first: Bytes,
        refused: Option<Refusal>,
        sink: mpsc::OwnedPermit<Connection>,
    ) {
        if let Err(error) = self.port.lobby.move_out(arrival.tls.get_mut().0) {
            self.port.count(|c| c.accept_failed += 1);
            tracing::debug!(%error, "an accepted connection could not be kept");
            return self.port.complain(Offender::Others, "accepting failed");
        }
        let kill = self.place.kill.clone();
        let stream: BoxStream = if first.is_empty() {
            Box::pin(Killable::new(arrival.tls, &kill))
        } else {
            Box::pin(Killable::new(Prefixed::new(first, arrival.tls), &kill))
        };
        if refused.is_none() {
            self.port.count(|c| *c.admitted.entry(arrival.service).or_default() += 1);
        }
        sink.send(Connection {
            stream,
            service: arrival.service,
            identity: arrival.identity,
            remote: self.remote,
            kill,
            refused,
            alpn: arrival.alpn,
            permit: ConnectionPermit::holding(self.place),
        });
    }

    fn reserve(&self, service: Service) -> Option<mpsc::OwnedPermit<Connection>> {
        let permit = self.port.services.sink(service)?.try_reserve_owned().ok();
        if permit.is_none() {
            self.port.count(|c| *c.refused.entry(word(RefusalReason::TooManyRequests)).or_default() += 1);
        }
        permit
    }

    /// Why a service is not there.
    fn absent(&self, service: Service) -> (RefusalReason, String) {
        let here = self.port.here(None);
        if here.manager || service == Service::Api {
            (RefusalReason::NotKnownHereYet, "this service is starting; retry".to_owned())
        } else {
            (RefusalReason::NotAManager, "this node is not a manager; ask one".to_owned())
        }
    }

    /// Says no: with a frame on native services, through the HTTP service otherwise.
    async fn refuse(self, mut arrival: Arrival, reason: RefusalReason, sentence: String) {
        self.port.count(|c| *c.refused.entry(word(reason)).or_default() += 1);
        self.complain(arrival.identity.as_ref(), word(reason));
        let refusal = self.port.refusal(reason, sentence);
        if arrival.service != Service::Http {
            // Whether it arrives is the peer's business.
            let _ = send(&mut arrival.tls, &Greeting::Refused(refusal)).await;
            let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
        } else if let Some(sink) = self.reserve(Service::Http) {
            // From here on it is a stranger that waits for an answer: a cut by name must not come before that answer.
            self.place.anonymous(Service::Http);
            self.hand_over(arrival, Bytes::new(), Some(refusal), sink);
        } else {
            self.no_room(arrival).await;
        }
    }

    /// The HTTP service, which answers otherwise, takes nobody now. On HTTP/2 that cannot be said in a few bytes: its clients
    /// retry what was cut off before it was read.
    async fn no_room(self, mut arrival: Arrival) {
        if arrival.alpn.as_deref() != Some(b"h2") {
            let _ = timeout(GREETING_DEADLINE, arrival.tls.write_all(NO_ROOM)).await;
        }
        let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
    }

    async fn refuse_joiner(self, mut arrival: Arrival, body: ErrorBody, what: &'static str) {
        self.port.count(|c| *c.refused.entry(word(RefusalReason::TooManyRequests)).or_default() += 1);
        self.complain(None, what);
        let _ = send(&mut arrival.tls, &JoinReply::Refused(body)).await;
        let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
    }

    async fn malformed(self, mut arrival: Arrival, code: ErrorCode) {
        self.port.count(|c| c.malformed += 1);
        self.complain(None, "malformed join request");
        let message = match code {
            ErrorCode::TooLarge => format!("a join request is at most {JOIN_FRAME_LIMIT} bytes"),
            _ => "this is not a join request".to_owned(),
        };
        let _ = send(&mut arrival.tls, &JoinReply::Refused(ErrorBody::new(code, message))).await;
        let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
    }

    fn too_slow(&self, what: &'static str) {
        self.port.count(|c| c.timed_out += 1);
        self.complain(None, what);
    }

    fn complain(&self, identity: Option<&CertIdentity>, what: &'static str) {
        let offender = match identity.map(CertIdentity::principal) {
            None | Some(Principal::Anonymous) => Offender::Address(source_of(self.remote.ip())),
            Some(principal) => Offender::Principal(principal),
        };
        self.port.complain(offender, what);
    }
}

/// Sends one value, to a peer that has little time to take it.
async fn send<T: serde::Serialize>(tls: &mut Tls, value: &T) -> Result<(), FrameError> {
    let mut framed = Framed::new(tls);
    let sending = timeout(GREETING_DEADLINE, framed.send(value)).await;
    sending.unwrap_or_else(|_| Err(FrameError::Io(std::io::ErrorKind::TimedOut.into())))
}
