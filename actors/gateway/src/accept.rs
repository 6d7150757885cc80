//! One connection from its first packet until a service has it.
//!
//! silent → handshake → identity → (in the table under its principal) → admission → greeting → service.
//! Unauthenticated connections stay in the waiting pool until their first byte for the service: silent ones cost the
//! services nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use muster_messages::frames::{BoxStream, FrameError, Framed};
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
use crate::metrics::word;
use crate::port::{ConnectionSlot, Inner};
use crate::stream::{Killable, Prefixed};
use crate::tls::{identity_of, service_of};

/// The largest first frame of an unauthenticated client: a signing request, a name, labels and an old certificate fit twice.
pub const JOIN_FRAME_LIMIT: usize = 32 * 1024;

/// A peer that does not read a greeting of a few hundred bytes in this time is unresponsive.
const GREETING_DEADLINE: Duration = Duration::from_secs(3);

/// The answer to an HTTP client when the service accepts no more connections.
const SERVICE_UNAVAILABLE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The same in HTTP/2: an empty SETTINGS frame, which must come first, and a GOAWAY frame: the last stream that was processed is 0,
/// without an error. So a client may send all its requests again, on another connection. Without it, it must not repeat writes,
/// because it cannot tell whether they were carried out.
const NOTHING_PROCESSED: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The pause after a failed accept: most likely out of file descriptors, and an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

type Tls = TlsStream<TcpStream>;

/// Accepts connections indefinitely.
pub(crate) async fn accept_all(port: Arc<Inner>) {
    loop {
        match port.handshake_pool.accept(&port.listener).await {
            Ok((tcp, remote)) => {
                port.count(|c| c.accepted += 1);
                let slot = ConnectionSlot::take(&port, remote.ip());
                let newcomer = Newcomer { port: port.clone(), remote, slot };
                port.handshake_pool.waiting().spawn(newcomer.run(tcp));
            }
            Err(error) => {
                port.count(|c| c.accept_failed += 1);
                tracing::debug!(%error, "accept failed");
                port.report_offence(Offender::Others, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection that no service has yet.
struct Newcomer {
    port: Arc<Inner>,
    remote: SocketAddr,
    slot: ConnectionSlot,
}

/// A connection after the handshake.
struct Arrival {
    tls: Tls,
    service: Service,
    alpn: Option<Vec<u8>>,
    identity: Option<CertIdentity>,
    /// Why the identity in a certificate that TLS accepted cannot be read.
    unreadable: Option<String>,
    /// This node.
    node: NodeId,
}

impl Newcomer {
    async fn run(self, tcp: TcpStream) {
        let (kill, port, remote) = (self.slot.kill.clone(), self.port.clone(), self.remote);
        tokio::select! {
            biased;
            // Before a service has it, only eviction and a disconnect of its principal end it from outside.
            reason = kill.wait() => if reason == RefusalReason::TooManyRequests {
                port.report_offence(Offender::Address(source_of(remote.ip())), "too many unauthenticated connections");
            },
            () = self.proceed(tcp) => {}
        }
    }

    async fn proceed(self, tcp: TcpStream) {
        let deadline = Instant::now() + self.port.config.handshake_deadline;
        // No TLS state is allocated for a silent connection.
        match timeout_at(deadline, tcp.readable()).await {
            Ok(Ok(())) => self.slot.moved_on(),
            Ok(Err(_)) => return,
            Err(_) => return self.deadline_missed("handshake timed out"),
        }
        // Boxed: these futures are larger than a silent connection should cost.
        if let Some(arrival) = Box::pin(self.handshake(tcp, deadline)).await {
            Box::pin(self.decide(arrival)).await;
        }
    }

    async fn handshake(&self, tcp: TcpStream, deadline: Instant) -> Option<Arrival> {
        let credentials = self.port.credentials.borrow().clone();
        let replica = self.port.local_replica.get();
        let built = self.port.tls.config(&credentials, replica.as_ref().map(|replica| &replica.tables));
        let (config, roots) = match built {
            Ok(built) => built,
            Err(error) => {
                tracing::error!(%error, "cannot build a TLS configuration from this node's certificate");
                return None;
            }
        };
        // Small frames must be sent immediately. A dead socket fails in the handshake.
        let _ = tcp.set_nodelay(true);
        let tls = match timeout_at(deadline, TlsAcceptor::from(config).accept(tcp)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                tracing::trace!(remote = %self.remote, %error, "TLS handshake failed");
                self.port.count(|c| c.handshake_failed += 1);
                self.report_offence(None, "TLS handshake failed");
                return None;
            }
            Err(_) => {
                self.deadline_missed("handshake timed out");
                return None;
            }
        };
        let session = tls.get_ref().1;
        let alpn = session.alpn_protocol().map(<[u8]>::to_vec);
        let service = service_of(alpn.as_deref())?;
        let presented = session.peer_certificates().unwrap_or_default();
        let (node, _) = credentials.identity.node()?;
        let (identity, unreadable) = match identity_of(presented, roots.as_deref()) {
            Ok(identity) => (identity, None),
            Err(why) => (None, Some(why)),
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
            && let Err(full) = self.slot.identify(identity, service)
        {
            let sentence = match full {
                Full::Principal => {
                    format!("per-client connection limit reached for {}; retry later", identity.principal())
                }
                Full::Identified => "connection limit of this node reached; retry later".to_owned(),
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

    /// Decides, and waits for the local replica where that may help. Never `CatchUp`.
    async fn admission(&self, identity: Option<&CertIdentity>, service: Service) -> Admission {
        let mut local_replica = self.port.local_replica.watch();
        let mut decision = self.port.evaluate(identity, service, local_replica.get().as_deref());
        if matches!(decision, Admission::CatchUp { .. }) {
            self.port.count(|c| c.caught_up += 1);
        }
        let deadline = Instant::now() + self.port.config.catch_up;
        while let Admission::CatchUp { otherwise } = decision {
            decision = match timeout_at(deadline, local_replica.changed()).await {
                Ok(()) => self.port.evaluate(identity, service, local_replica.get().as_deref()),
                Err(_) => *otherwise,
            };
        }
        if decision == Admission::Accept && identity.is_some() {
            // Evaluated again once marked as confirmed: a replica that arrived in between found it unmarked.
            self.slot.confirmed(true);
            decision = match self.port.evaluate(identity, service, self.port.local_replica.get().as_deref()) {
                Admission::CatchUp { otherwise } => *otherwise,
                other => other,
            };
        }
        decision
    }

    async fn welcome(self, arrival: Arrival) {
        match (arrival.service, &arrival.identity) {
            (Service::Join, _) => self.welcome_joiner(arrival).await,
            (Service::Http, None) => self.welcome_anonymous(arrival).await,
            (Service::Http, Some(_)) => match self.reserve(Service::Http) {
                Some(sink) => self.hand_over(arrival, Bytes::new(), None, sink),
                None => self.refuse_for_capacity(arrival).await,
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
            let sentence = "too many connections are waiting for this service; retry later".to_owned();
            return self.refuse(arrival, RefusalReason::TooManyRequests, sentence).await;
        };
        if send(&mut arrival.tls, &Greeting::Welcome { node: arrival.node }).await.is_ok() {
            self.hand_over(arrival, Bytes::new(), None, sink);
        }
    }

    /// Passes on a joiner with its first frame, which must be a join frame and, if it requests to become a node, within the rate of
    /// its source.
    async fn welcome_joiner(self, mut arrival: Arrival) {
        self.slot.moved_on();
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
            Err(_) => return self.deadline_missed("join request timed out"),
        };
        let refused = match wire::decode::<JoinFrame>(&frame) {
            Err(_) => return self.malformed(arrival, ErrorCode::Invalid).await,
            Ok(JoinFrame::GetRoot | JoinFrame::GetRoots) => None,
            Ok(JoinFrame::Join(_)) => self.port.take_join(self.remote.ip()).err(),
        };
        if let Some(wait) = refused {
            let message = "too many join requests from this address; retry later";
            let body = ErrorBody::new(ErrorCode::TooManyRequests, message).retry_after(wait);
            return self.refuse_joiner(arrival, body, "too many join requests").await;
        }
        let Some(sink) = self.reserve(Service::Join) else {
            let message = "too many join requests in progress; retry later";
            let body = ErrorBody::new(ErrorCode::TooManyRequests, message).retry_after(Duration::from_millis(200));
            return self.refuse_joiner(arrival, body, "too many join requests").await;
        };
        self.slot.anonymous(Service::Join);
        let mut first = BytesMut::with_capacity(4 + frame.len());
        first.extend_from_slice(&u32::try_from(frame.len()).expect("the frame limit fits 32 bits").to_be_bytes());
        first.extend_from_slice(&frame);
        self.hand_over(arrival, first.freeze(), None, sink);
    }

    /// Passes on a client without a certificate with the first bytes of its first request.
    async fn welcome_anonymous(self, mut arrival: Arrival) {
        self.slot.moved_on();
        let mut first = BytesMut::with_capacity(1024);
        let reading = arrival.tls.read_buf(&mut first);
        match timeout(self.port.config.first_byte_deadline, reading).await {
            Ok(Ok(read)) if read > 0 => {}
            Ok(_) => return,
            Err(_) => {
                self.deadline_missed("request timed out");
                // What it sends from now on is not read.
                if arrival.alpn.as_deref() == Some(b"h2") {
                    let _ = timeout(GREETING_DEADLINE, arrival.tls.write_all(NOTHING_PROCESSED)).await;
                    let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
                }
                return;
            }
        }
        let Some(sink) = self.reserve(Service::Http) else { return self.refuse_for_capacity(arrival).await };
        self.slot.anonymous(Service::Http);
        self.hand_over(arrival, first.freeze(), None, sink);
    }

    fn hand_over(
        self,
        mut arrival: Arrival,
        first: Bytes,
        refused: Option<Refusal>,
        sink: mpsc::OwnedPermit<Connection>,
    ) {
        if let Err(error) = self.port.handshake_pool.move_to_services(arrival.tls.get_mut().0) {
            self.port.count(|c| c.accept_failed += 1);
            tracing::debug!(%error, "cannot move an accepted connection to its service");
            return self.port.report_offence(Offender::Others, "accept failed");
        }
        let kill = self.slot.kill.clone();
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
            permit: ConnectionPermit::holding(self.slot),
        });
    }

    fn reserve(&self, service: Service) -> Option<mpsc::OwnedPermit<Connection>> {
        let permit = self.port.services.sink(service)?.try_reserve_owned().ok();
        if permit.is_none() {
            self.port.count(|c| *c.refused.entry(RefusalReason::TooManyRequests).or_default() += 1);
        }
        permit
    }

    /// Why a service does not run on this node.
    fn absent(&self, service: Service) -> (RefusalReason, String) {
        let here = self.port.here(None);
        if here.manager || service == Service::Api {
            (RefusalReason::NotKnownHereYet, "this service is starting; retry later".to_owned())
        } else {
            (RefusalReason::NotAManager, "this node is not a manager; ask a manager".to_owned())
        }
    }

    /// Refuses the connection: with a frame on native services, through the HTTP service otherwise.
    async fn refuse(self, mut arrival: Arrival, reason: RefusalReason, sentence: String) {
        self.port.count(|c| *c.refused.entry(reason).or_default() += 1);
        self.report_offence(arrival.identity.as_ref(), word(reason));
        let refusal = self.port.refusal(reason, sentence);
        if arrival.service != Service::Http {
            // Delivery is best effort.
            let _ = send(&mut arrival.tls, &Greeting::Refused(refusal)).await;
            let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
            let _ = timeout(GREETING_DEADLINE, discard(&mut arrival.tls)).await;
        } else if let Some(sink) = self.reserve(Service::Http) {
            // From here on it counts as unauthenticated: a disconnect of its principal must not precede the answer.
            self.slot.anonymous(Service::Http);
            self.hand_over(arrival, Bytes::new(), Some(refusal), sink);
        } else {
            self.refuse_for_capacity(arrival).await;
        }
    }

    /// For when the HTTP service, which normally answers, accepts no connection.
    async fn refuse_for_capacity(self, mut arrival: Arrival) {
        let is_http2 = arrival.alpn.as_deref() == Some(b"h2");
        let answer = if is_http2 { NOTHING_PROCESSED } else { SERVICE_UNAVAILABLE };
        let _ = timeout(GREETING_DEADLINE, arrival.tls.write_all(answer)).await;
        let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
        let _ = timeout(GREETING_DEADLINE, discard(&mut arrival.tls)).await;
    }

    async fn refuse_joiner(self, mut arrival: Arrival, body: ErrorBody, what: &'static str) {
        self.port.count(|c| *c.refused.entry(RefusalReason::TooManyRequests).or_default() += 1);
        self.report_offence(None, what);
        let _ = send(&mut arrival.tls, &JoinReply::Refused(body)).await;
        let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
    }

    async fn malformed(self, mut arrival: Arrival, code: ErrorCode) {
        self.port.count(|c| c.malformed += 1);
        self.report_offence(None, "malformed join request");
        let message = match code {
            ErrorCode::TooLarge => format!("a join request is at most {JOIN_FRAME_LIMIT} bytes"),
            _ => "this is not a join request".to_owned(),
        };
        let _ = send(&mut arrival.tls, &JoinReply::Refused(ErrorBody::new(code, message))).await;
        let _ = timeout(GREETING_DEADLINE, arrival.tls.shutdown()).await;
    }

    fn deadline_missed(&self, what: &'static str) {
        self.port.count(|c| c.timed_out += 1);
        self.report_offence(None, what);
    }

    fn report_offence(&self, identity: Option<&CertIdentity>, what: &'static str) {
        let offender = match identity.map(CertIdentity::principal) {
            None | Some(Principal::Anonymous) => Offender::Address(source_of(self.remote.ip())),
            Some(principal) => Offender::Principal(principal),
        };
        self.port.report_offence(offender, what);
    }
}

/// What a refused dialer or client may have sent before it reads its refusal: a small frame.
const MAX_EARLY_BYTES: u64 = 32 * 1024;

/// Reads what it sent before it was refused, to its end. Closed with unread data, a connection is reset, and a reset may
/// overtake the refusal.
async fn discard(tls: &mut Tls) {
    let mut read = tls.take(MAX_EARLY_BYTES);
    let _ = tokio::io::copy(&mut read, &mut tokio::io::sink()).await;
}

/// Sends one value within [`GREETING_DEADLINE`].
async fn send<T: serde::Serialize>(tls: &mut Tls, value: &T) -> Result<(), FrameError> {
    let mut framed = Framed::new(tls);
    let sending = timeout(GREETING_DEADLINE, framed.send(value)).await;
    sending.unwrap_or_else(|_| Err(FrameError::Io(std::io::ErrorKind::TimedOut.into())))
}
