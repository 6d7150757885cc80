//! Filter: which frames of a peer reach the cluster library.
//!
//! Owns        the state of one session: progress of its second handshake, whether it is ready, how often the peer pinged.
//! Inputs      every inbound frame, whole.
//! Outputs     pass it on, or end the session with a reason.
//! Invariants  MESH-3  a peer announces the one actor that its hello named, and no other.
//!             MESH-4  a peer calls only our RPC endpoint, with this session's tag, and within a deadline.
//!             MESH-5  a peer joins no process group, requests no list of our sessions and names no node but itself.
//!             MESH-6  what a peer can make us keep or send unasked is bounded: no answers to calls that were never made, no
//!                     flood of pings.
//! Why: the library trusts every authenticated peer fully. One that announced 100,000 actors cost 700 MB.

use std::time::Duration;

use muster_messages::{Moment, NodeId, wire};

use super::frames::{Fields, Malformed, Value};

/// Our end of the connection, which determines the peer's part of the second handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Dialed,
    Accepted,
}

impl Side {
    /// For logs and views.
    pub fn word(self) -> &'static str {
        match self {
            Self::Dialed => "dialed",
            Self::Accepted => "accepted",
        }
    }
}

/// An admitted frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admitted {
    Handshake,
    Control,
    /// A call of this many payload bytes.
    Call(usize),
    Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Violation {
    #[error("frame over the limit")]
    Oversized,
    #[error("malformed frame")]
    Malformed,
    #[error("handshake message out of order, or with another node's name")]
    Handshake,
    #[error("message before the end of the handshake")]
    Early,
    #[error("announcement of an actor other than the peer's RPC endpoint")]
    ForeignActor,
    #[error("process group message")]
    Group,
    #[error("request for this manager's other sessions")]
    Sessions,
    #[error("message that is not a call")]
    Cast,
    #[error("message to an actor other than this manager's RPC endpoint")]
    ForeignEndpoint,
    #[error("call without a deadline, or with one that is too long")]
    NoDeadline,
    #[error("call with another session's tag")]
    WrongTag,
    #[error("answer to a call that was never made")]
    UnaskedReply,
    #[error("too many control messages")]
    Flood,
    /// Not an offence: its RPC endpoint stopped. The next one opens a new session.
    #[error("the peer's RPC endpoint stopped")]
    EndpointStopped,
}

impl Violation {
    /// The key of its counter.
    pub fn counter_key(self) -> &'static str {
        match self {
            Violation::Oversized => "oversized",
            Violation::Malformed => "malformed",
            Violation::Handshake => "handshake",
            Violation::Early => "early",
            Violation::ForeignActor => "foreign_actor",
            Violation::Group => "group",
            Violation::Sessions => "sessions",
            Violation::Cast => "cast",
            Violation::ForeignEndpoint => "foreign_endpoint",
            Violation::NoDeadline => "no_deadline",
            Violation::WrongTag => "wrong_tag",
            Violation::UnaskedReply => "unasked_reply",
            Violation::Flood => "flood",
            Violation::EndpointStopped => "endpoint_stopped",
        }
    }
}

impl Violation {
    /// Whether it is the peer's fault.
    pub fn is_offence(self) -> bool {
        self != Violation::EndpointStopped
    }
}

impl From<Malformed> for Violation {
    fn from(_: Malformed) -> Self {
        Violation::Malformed
    }
}

/// Bytes of a handshake or control frame, which holds a name and numbers.
const MAX_CONTROL_FRAME_BYTES: usize = 512;
/// Bytes of the name of a call's variant.
const MAX_VARIANT_NAME_BYTES: usize = 32;
/// The longest deadline of a call: the library keeps a task for its duration.
pub const MAX_CALL_MS: u64 = 120_000;
/// Control messages accepted at once: a peer that was paused for the idle limit sends 13 pings.
const CONTROL_BURST: u32 = 64;
/// The peer pings every 1 to 5 s and answers our pings; this allows twice that.
const CONTROL_INTERVAL: Duration = Duration::from_millis(250);

/// Checks one session's inbound frames.
#[derive(Clone, Debug)]
pub struct Filter {
    side: Side,
    peer: NodeId,
    peer_endpoint: u64,
    own_endpoint: u64,
    /// The prefix of every message with our tag.
    prefix: Vec<u8>,
    handshakes: usize,
    ready: bool,
    replies: u64,
    allowance: u32,
    refilled: Moment,
}

/// The messages of the handshake: name, answer to the challenge; or status, challenge, acknowledgement.
const DIALER_MESSAGES: [u32; 2] = [1, 5];
const ACCEPTOR_MESSAGES: [u32; 3] = [2, 4, 6];

impl Filter {
    /// A filter for a session with `peer`, whose hello named `peer_endpoint`; ours named `own_endpoint` and `own_tag`.
    pub fn new(side: Side, peer: NodeId, peer_endpoint: u64, own_endpoint: u64, own_tag: u128) -> Self {
        Self {
            side,
            peer,
            peer_endpoint,
            own_endpoint,
            prefix: wire::encode(&own_tag).expect("a number is far below the frame limit"),
            handshakes: 0,
            ready: false,
            replies: 0,
            allowance: CONTROL_BURST,
            refilled: Moment(0),
        }
    }

    /// Checks one frame's payload. `calls_sent`: the number of calls that this session has carried to the peer.
    pub fn admit(&mut self, now: Moment, calls_sent: u64, payload: &[u8]) -> Result<Admitted, Violation> {
        match Fields::only(payload)? {
            (1, handshake) => self.handshake(handshake),
            (2 | 3, _) if !self.authenticated() => Err(Violation::Early),
            (2, message) => self.message(calls_sent, message),
            (3, control) => self.control(now, control),
            _ => Err(Violation::Malformed),
        }
    }

    fn expected(&self) -> &'static [u32] {
        match self.side {
            Side::Accepted => &DIALER_MESSAGES,
            Side::Dialed => &ACCEPTOR_MESSAGES,
        }
    }
    fn authenticated(&self) -> bool {
        self.handshakes == self.expected().len()
    }

    fn handshake(&mut self, message: &[u8]) -> Result<Admitted, Violation> {
        let (kind, body) = Fields::only(message)?;
        if message.len() > MAX_CONTROL_FRAME_BYTES || self.expected().get(self.handshakes) != Some(&kind) {
            return Err(Violation::Handshake);
        }
        let mut named = None;
        for field in Fields::of(body) {
            if let (1, Value::Bytes(name)) = field? {
                named = Some(name);
            }
        }
        if matches!(kind, 1 | 4) && named != Some(self.peer.as_str().as_bytes()) {
            return Err(Violation::Handshake);
        }
        self.handshakes += 1;
        Ok(Admitted::Handshake)
    }

    fn message(&mut self, calls_sent: u64, message: &[u8]) -> Result<Admitted, Violation> {
        match Fields::only(message)? {
            (1, _) => Err(Violation::Cast),
            (2, call) => self.call(call),
            (3, reply) => self.reply(calls_sent, reply),
            _ => Err(Violation::Malformed),
        }
    }

    fn call(&self, call: &[u8]) -> Result<Admitted, Violation> {
        let (mut to, mut deadline, mut what) = (0, None, &[][..]);
        for field in Fields::of(call) {
            match field? {
                (1, pid) => to = pid.number()?,
                (2, bytes) => what = bytes.bytes()?,
                (3, Value::Number(_)) => {}
                (4, ms) => deadline = Some(ms.number()?),
                (5, Value::Bytes(variant)) if variant.len() <= MAX_VARIANT_NAME_BYTES => {}
                _ => return Err(Violation::Malformed),
            }
        }
        if to != self.own_endpoint {
            Err(Violation::ForeignEndpoint)
        } else if deadline.is_none_or(|ms| ms > MAX_CALL_MS) {
            Err(Violation::NoDeadline)
        } else if !what.starts_with(&self.prefix) {
            Err(Violation::WrongTag)
        } else {
            Ok(Admitted::Call(what.len()))
        }
    }

    fn reply(&mut self, calls_sent: u64, reply: &[u8]) -> Result<Admitted, Violation> {
        let mut to = 0;
        for field in Fields::of(reply) {
            match field? {
                (1, pid) => to = pid.number()?,
                (2, Value::Number(_)) | (3, Value::Bytes(_)) => {}
                _ => return Err(Violation::Malformed),
            }
        }
        self.replies += 1;
        if to != self.peer_endpoint {
            Err(Violation::ForeignActor)
        } else if self.replies > calls_sent {
            Err(Violation::UnaskedReply)
        } else {
            Ok(Admitted::Reply)
        }
    }

    fn control(&mut self, now: Moment, control: &[u8]) -> Result<Admitted, Violation> {
        let (kind, body) = Fields::only(control)?;
        self.spend(now)?;
        match kind {
            1 => self.announcement(body)?,
            2 => return Err(self.departure(body)?),
            3 | 4 if body.len() <= MAX_CONTROL_FRAME_BYTES => {}
            5 | 6 => return Err(Violation::Group),
            7 | 8 => return Err(Violation::Sessions),
            9 if body.is_empty() && !self.ready => self.ready = true,
            9 => return Err(Violation::Flood),
            _ => return Err(Violation::Malformed),
        }
        Ok(Admitted::Control)
    }

    /// The announced actors: exactly the peer's RPC endpoint, without a name. A second actor is a second field 1, which the
    /// reader refuses because it accepts each field once: 100,000 of them cost the bytes of one frame.
    fn announcement(&self, body: &[u8]) -> Result<(), Violation> {
        let mut fields = Fields::of(body);
        let actor = match fields.next() {
            Some(Ok((1, actor))) => actor.bytes()?,
            _ => return Err(Violation::Malformed),
        };
        if fields.next().is_some() {
            return Err(Violation::ForeignActor);
        }
        let mut pid = 0;
        for field in Fields::of(actor) {
            match field? {
                (1, number) => pid = number.number()?,
                _ => return Err(Violation::ForeignActor),
            }
        }
        if pid == self.peer_endpoint { Ok(()) } else { Err(Violation::ForeignActor) }
    }

    fn departure(&self, body: &[u8]) -> Result<Violation, Violation> {
        let mut left = None;
        for field in Fields::of(body) {
            left = match field? {
                // Repeated numbers are packed.
                (1, Value::Bytes(packed)) => Some(packed.len()),
                (1, Value::Number(_)) => Some(1),
                _ => return Err(Violation::Malformed),
            };
        }
        left.map(|_| Violation::EndpointStopped).ok_or(Violation::Malformed)
    }

    fn spend(&mut self, now: Moment) -> Result<(), Violation> {
        let earned = now.since(self.refilled).as_micros() / CONTROL_INTERVAL.as_micros();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.allowance = self.allowance.saturating_add(earned).min(CONTROL_BURST);
            self.refilled = now;
        }
        self.allowance = self.allowance.checked_sub(1).ok_or(Violation::Flood)?;
        Ok(())
    }
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn varint(mut n: u64) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let byte = (n & 0x7f) as u8;
            n >>= 7;
            if n == 0 {
                out.push(byte);
                return out;
            }
            out.push(byte | 0x80);
        }
    }
    pub fn number(field: u32, n: u64) -> Vec<u8> {
        let mut out = varint(u64::from(field) << 3);
        out.extend(varint(n));
        out
    }
    pub fn nested(field: u32, body: &[u8]) -> Vec<u8> {
        let mut out = varint(u64::from(field) << 3 | 2);
        out.extend(varint(body.len() as u64));
        out.extend_from_slice(body);
        out
    }
    fn join(parts: &[Vec<u8>]) -> Vec<u8> {
        parts.concat()
    }

    const OWN_ENDPOINT: u64 = 7;
    const PEER_ENDPOINT: u64 = 300;
    const TAG: u128 = 0x1234_5678_9abc_def0_1122_3344_5566_7788;

    fn peer() -> NodeId {
        NodeId::from_entropy(9)
    }
    fn auth(kind: u32, body: &[u8]) -> Vec<u8> {
        nested(1, &nested(kind, body))
    }
    fn control(kind: u32, body: &[u8]) -> Vec<u8> {
        nested(3, &nested(kind, body))
    }
    fn call(to: u64, what: &[u8], timeout: Option<u64>) -> Vec<u8> {
        let timeout = timeout.map_or_else(Vec::new, |ms| number(4, ms));
        nested(2, &nested(2, &join(&[number(1, to), nested(2, what), number(3, 1), timeout, nested(5, b"Call")])))
    }
    fn reply(to: u64) -> Vec<u8> {
        nested(2, &nested(3, &join(&[number(1, to), number(2, 1), nested(3, b"x")])))
    }
    fn announce(pids: &[u64]) -> Vec<u8> {
        let actors: Vec<_> = pids.iter().map(|p| nested(1, &number(1, *p))).collect();
        control(1, &join(&actors))
    }
    fn tagged(tag: u128) -> Vec<u8> {
        let mut what = wire::encode(&tag).unwrap();
        what.extend_from_slice(b"the rest of the message");
        what
    }
    /// A filter of an accepted session whose handshake is done.
    fn open() -> Filter {
        let mut filter = Filter::new(Side::Accepted, peer(), PEER_ENDPOINT, OWN_ENDPOINT, TAG);
        let name = nested(1, peer().as_str().as_bytes());
        check(&mut filter, &auth(1, &name), Ok(Admitted::Handshake));
        check(&mut filter, &auth(5, &number(1, 77)), Ok(Admitted::Handshake));
        filter
    }
    fn check(filter: &mut Filter, payload: &[u8], expect: Result<Admitted, Violation>) {
        assert_eq!(filter.admit(Moment(1), 0, payload), expect);
    }

    #[test]
    fn frames_of_correct_peer_pass() {
        let mut filter = open();
        check(&mut filter, &announce(&[PEER_ENDPOINT]), Ok(Admitted::Control));
        check(&mut filter, &control(9, b""), Ok(Admitted::Control));
        check(&mut filter, &control(3, &nested(1, &number(1, 5))), Ok(Admitted::Control));
        let what = tagged(TAG);
        check(&mut filter, &call(OWN_ENDPOINT, &what, Some(5000)), Ok(Admitted::Call(what.len())));
        assert_eq!(filter.admit(Moment(1), 1, &reply(PEER_ENDPOINT)), Ok(Admitted::Reply));
    }

    #[test]
    fn acceptor_handshake_messages_pass_in_order() {
        let mut filter = Filter::new(Side::Dialed, peer(), PEER_ENDPOINT, OWN_ENDPOINT, TAG);
        check(&mut filter, &auth(2, b""), Ok(Admitted::Handshake));
        check(&mut filter, &auth(4, &nested(1, peer().as_str().as_bytes())), Ok(Admitted::Handshake));
        check(&mut filter, &control(9, b""), Err(Violation::Early));
        check(&mut filter, &auth(6, &nested(1, &[0; 32])), Ok(Admitted::Handshake));
        check(&mut filter, &auth(6, &nested(1, &[0; 32])), Err(Violation::Handshake));
    }

    #[test]
    fn another_nodes_name_is_refused() {
        let mut filter = Filter::new(Side::Accepted, peer(), PEER_ENDPOINT, OWN_ENDPOINT, TAG);
        let other = NodeId::from_entropy(10);
        check(&mut filter, &auth(1, &nested(1, other.as_str().as_bytes())), Err(Violation::Handshake));
    }

    #[test]
    fn nothing_passes_before_the_handshake() {
        let mut filter = Filter::new(Side::Accepted, peer(), PEER_ENDPOINT, OWN_ENDPOINT, TAG);
        check(&mut filter, &announce(&[PEER_ENDPOINT]), Err(Violation::Early));
        check(&mut filter, &call(OWN_ENDPOINT, &tagged(TAG), Some(1)), Err(Violation::Early));
    }

    #[test]
    fn only_the_endpoint_of_the_hello_may_be_announced() {
        check(&mut open(), &announce(&[PEER_ENDPOINT + 1]), Err(Violation::ForeignActor));
        let hundred_thousand: Vec<u64> = (0..100_000).collect();
        check(&mut open(), &announce(&hundred_thousand), Err(Violation::ForeignActor));
        let named = control(1, &nested(1, &join(&[number(1, PEER_ENDPOINT), nested(2, b"x")])));
        check(&mut open(), &named, Err(Violation::ForeignActor));
    }

    #[test]
    fn groups_sessions_and_casts_end_the_session() {
        check(&mut open(), &control(5, &nested(1, b"g")), Err(Violation::Group));
        check(&mut open(), &control(6, &nested(1, b"g")), Err(Violation::Group));
        check(&mut open(), &control(7, &nested(1, b"n")), Err(Violation::Sessions));
        check(&mut open(), &control(8, b""), Err(Violation::Sessions));
        check(&mut open(), &nested(2, &nested(1, &number(1, OWN_ENDPOINT))), Err(Violation::Cast));
        check(&mut open(), &control(2, &nested(1, &varint(PEER_ENDPOINT))), Err(Violation::EndpointStopped));
    }

    #[test]
    fn call_requires_endpoint_tag_and_deadline() {
        check(&mut open(), &call(OWN_ENDPOINT + 1, &tagged(TAG), Some(1)), Err(Violation::ForeignEndpoint));
        check(&mut open(), &call(OWN_ENDPOINT, &tagged(TAG), None), Err(Violation::NoDeadline));
        check(&mut open(), &call(OWN_ENDPOINT, &tagged(TAG), Some(MAX_CALL_MS + 1)), Err(Violation::NoDeadline));
        check(&mut open(), &call(OWN_ENDPOINT, &tagged(TAG ^ 1), Some(1)), Err(Violation::WrongTag));
        check(&mut open(), &call(OWN_ENDPOINT, b"", Some(1)), Err(Violation::WrongTag));
    }

    #[test]
    fn reply_without_call_is_refused() {
        let mut filter = open();
        assert_eq!(filter.admit(Moment(1), 1, &reply(PEER_ENDPOINT)), Ok(Admitted::Reply));
        assert_eq!(filter.admit(Moment(1), 1, &reply(PEER_ENDPOINT)), Err(Violation::UnaskedReply));
    }

    #[test]
    fn regular_pings_pass_and_a_flood_does_not() {
        let ping = control(3, &nested(1, &number(1, 5)));
        let mut filter = open();
        for second in 1..1000u64 {
            assert_eq!(filter.admit(Moment(second * 1_000_000), 0, &ping), Ok(Admitted::Control));
        }
        let mut filter = open();
        let flooded = (0..200).map(|_| filter.admit(Moment(1), 0, &ping)).find(Result::is_err);
        assert_eq!(flooded, Some(Err(Violation::Flood)));
    }

    proptest! {
        #[test]
        fn random_payloads_never_panic_and_never_call(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let decision = open().admit(Moment(1), 0, &payload);
            prop_assert!(!matches!(decision, Ok(Admitted::Call(_) | Admitted::Reply)));
        }

        #[test]
        fn a_changed_byte_never_reaches_another_actor(at in 0usize..80, to in any::<u8>()) {
            let mut payload = call(OWN_ENDPOINT, &tagged(TAG), Some(5000));
            let at = at % payload.len();
            payload[at] = to;
            if let Ok(Admitted::Call(_)) = open().admit(Moment(1), 0, &payload) {
                // Still to our RPC endpoint and with our tag: the bytes of both are unchanged.
                let text = wire::encode(&TAG).unwrap();
                prop_assert!(payload.windows(text.len()).any(|w| w == text));
            }
        }
    }
}
