//! ractor_cluster's frames, encoded and decoded by hand, so that tests can send anything.

use muster_mesh::core::frames::{Fields, Value};
use muster_messages::wire::{self, PeerEnvelope, PeerMessage};

pub fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}
pub fn number(field: u32, n: u64) -> Vec<u8> {
    [varint(u64::from(field) << 3), varint(n)].concat()
}
pub fn nested(field: u32, body: &[u8]) -> Vec<u8> {
    [varint(u64::from(field) << 3 | 2), varint(body.len() as u64), body.to_vec()].concat()
}
pub fn control(kind: u32, body: &[u8]) -> Vec<u8> {
    nested(3, &nested(kind, body))
}
pub fn announce(pids: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let actors: Vec<Vec<u8>> = pids.into_iter().map(|p| nested(1, &number(1, p))).collect();
    control(1, &actors.concat())
}
pub fn call(to: u64, what: &[u8], tag: u64, timeout_ms: u64) -> Vec<u8> {
    let fields = [number(1, to), nested(2, what), number(3, tag), number(4, timeout_ms), nested(5, b"Call")];
    nested(2, &nested(2, &fields.concat()))
}
pub fn envelope(tag: u128, message: PeerMessage) -> Vec<u8> {
    wire::encode(&PeerEnvelope { tag, message }).expect("small")
}

/// The value of the victim's challenge.
pub fn challenge_in(frame: &[u8]) -> u32 {
    let (_, auth) = Fields::only(frame).expect("a frame");
    let (kind, body) = Fields::only(auth).expect("a handshake");
    assert_eq!(kind, 4);
    let found = Fields::of(body).find_map(|f| match f {
        Ok((3, Value::Number(n))) => Some(n),
        _ => None,
    });
    u32::try_from(found.unwrap_or(0)).expect("32 bits")
}

/// The reply that a frame carries, if it is one.
pub fn reply_in(frame: &[u8]) -> Option<Vec<u8>> {
    let (2, message) = Fields::only(frame).ok()? else { return None };
    let (3, reply) = Fields::only(message).ok()? else { return None };
    Fields::of(reply).find_map(|f| match f {
        Ok((3, Value::Bytes(what))) => Some(what.to_vec()),
        _ => None,
    })
}

/// The number and the content of the call that a frame carries, if it is one.
pub fn call_in(frame: &[u8]) -> Option<(u64, Vec<u8>)> {
    let (2, message) = Fields::only(frame).ok()? else { return None };
    let (2, call) = Fields::only(message).ok()? else { return None };
    let (mut number, mut what) = (None, None);
    for field in Fields::of(call) {
        match field.ok()? {
            (2, Value::Bytes(bytes)) => what = Some(bytes.to_vec()),
            (3, Value::Number(tag)) => number = Some(tag),
            _ => {}
        }
    }
    Some((number.unwrap_or(0), what?))
}
