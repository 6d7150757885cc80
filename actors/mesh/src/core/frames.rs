//! Frames of the cluster library's wire format: a length of eight bytes, big-endian, then one protobuf message.
//!
//! Owns        the bytes of a frame that has not arrived whole; how far outgoing bytes have left.
//! Invariants  MESH-1  a frame is passed on whole or not at all, so that no part of a forbidden one arrives.
//!             MESH-2  a length field alone reserves no memory: the buffer grows with the bytes received.
//! Why a protobuf reader of our own: the library's generated types are private, and a filter that reads only the
//! fields it checks is smaller than the types. It is strict on purpose. A correct peer writes every field once, in
//! the schema's types; anything else could mean one thing to this reader and another to the library's.

use bytes::{Bytes, BytesMut};
use muster_messages::wire::MAX_FRAME;

/// The length before each frame.
pub const HEADER: usize = 8;
/// The largest frame a session carries: a message and its envelope.
pub const MAX_INBOUND: usize = MAX_FRAME + 1024;

/// A frame whose declared length exceeds [`MAX_INBOUND`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversized(pub u64);

/// Splits a stream of bytes into frames.
#[derive(Debug, Default)]
pub struct Deframer {
    bytes: BytesMut,
}

impl Deframer {
    pub fn push(&mut self, arrived: &[u8]) {
        self.bytes.extend_from_slice(arrived);
    }
    /// The next whole frame with its header, or `None` while it is incomplete.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, Oversized> {
        let Some(header) = self.bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let claimed = u64::from_be_bytes(*header);
        let length = usize::try_from(claimed).unwrap_or(usize::MAX);
        if length > MAX_INBOUND {
            return Err(Oversized(claimed));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        let frame = self.bytes.split_to(HEADER + length).freeze();
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new(); // an idle session must not keep the memory of a large frame
        }
        Ok(Some(frame))
    }
}

/// Follows outgoing bytes to detect when a message between actors was sent: how much of what was queued for a peer is
/// still in memory.
#[derive(Debug, Default)]
pub struct Departures {
    header: [u8; HEADER],
    have: usize,
    /// Of the current frame: its length, the bytes still missing, and whether it is a message between actors.
    length: u64,
    left: u64,
    node: bool,
}

/// The key of `NetworkMessage.node`: field 2, length-delimited.
const NODE_KEY: u8 = 0x12;

impl Departures {
    /// Follows `bytes`. Returns the payload bytes of the messages between actors that ended in them.
    pub fn follow(&mut self, mut bytes: &[u8]) -> u64 {
        let mut departed = 0;
        while !bytes.is_empty() {
            if self.have < HEADER {
                let take = bytes.len().min(HEADER - self.have);
                self.header[self.have..self.have + take].copy_from_slice(&bytes[..take]);
                self.have += take;
                bytes = &bytes[take..];
                if self.have == HEADER {
                    self.length = u64::from_be_bytes(self.header);
                    self.left = self.length;
                    self.node = false;
                }
            } else {
                if self.left == self.length {
                    self.node = bytes[0] == NODE_KEY;
                }
                let take = usize::try_from(self.left).map_or(bytes.len(), |l| l.min(bytes.len()));
                self.left -= take as u64;
                bytes = &bytes[take..];
            }
            if self.have == HEADER && self.left == 0 {
                departed += if self.node { self.length } else { 0 };
                self.have = 0;
            }
        }
        departed
    }
}

/// Bytes that are not valid protobuf of this schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn number(self) -> Result<u64, Malformed> {
        match self {
            Value::Number(n) => Ok(n),
            Value::Bytes(_) => Err(Malformed),
        }
    }
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(b) => Ok(b),
            Value::Number(_) => Err(Malformed),
        }
    }
}

/// Iterates over the fields of one message. Each field at most once; the schema has no fixed-width fields or groups.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    seen: u64,
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message, seen: 0 }
    }
    /// The only field of a message with mutually exclusive fields.
    pub fn only(message: &'a [u8]) -> Result<(u32, &'a [u8]), Malformed> {
        let mut fields = Self::of(message);
        let (number, value) = fields.next().ok_or(Malformed)??;
        match fields.next() {
            None => Ok((number, value.bytes()?)),
            Some(_) => Err(Malformed),
        }
    }
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for position in 0..10 {
            let (&byte, rest) = self.rest.split_first().ok_or(Malformed)?;
            self.rest = rest;
            if position == 9 && byte > 1 {
                return Err(Malformed);
            }
            value |= u64::from(byte & 0x7f) << (7 * position);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }
    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let key = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        let number = key >> 3;
        // The schema's field numbers are all below 16.
        if number == 0 || number > 63 || self.seen & (1 << number) != 0 {
            return Err(Malformed);
        }
        self.seen |= 1 << number;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            _ => return Err(Malformed),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut out = (payload.len() as u64).to_be_bytes().to_vec();
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn declared_frame_length_over_limit_is_refused_at_once() {
        let mut deframer = Deframer::default();
        deframer.push(&(MAX_INBOUND as u64 + 1).to_be_bytes());
        assert_eq!(deframer.next_frame(), Err(Oversized(MAX_INBOUND as u64 + 1)));
    }

    #[test]
    fn a_claimed_length_reserves_no_memory() {
        let mut deframer = Deframer::default();
        deframer.push(&(MAX_INBOUND as u64).to_be_bytes());
        assert_eq!(deframer.next_frame(), Ok(None));
        assert!(deframer.bytes.capacity() < 4096);
    }

    proptest! {
        #[test]
        fn frames_come_out_alike_however_the_bytes_are_split(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
            splits in proptest::collection::vec(1usize..40, 0..200),
        ) {
            let stream: Vec<u8> = payloads.iter().flat_map(|p| framed(p)).collect();
            let (mut deframer, mut departures) = (Deframer::default(), Departures::default());
            let (mut got, mut departed) = (Vec::new(), 0);
            let mut rest = stream.as_slice();
            for split_len in splits.into_iter().chain(std::iter::repeat(usize::MAX)) {
                let (now, later) = rest.split_at(split_len.min(rest.len()));
                deframer.push(now);
                departed += departures.follow(now);
                while let Some(frame) = deframer.next_frame().unwrap() {
                    got.push(frame.to_vec());
                }
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(got, payloads.iter().map(|p| framed(p)).collect::<Vec<_>>());
            let node: u64 = payloads.iter().filter(|p| p.first() == Some(&NODE_KEY)).map(|p| p.len() as u64).sum();
            prop_assert_eq!(departed, node);
        }

        #[test]
        fn random_bytes_never_panic_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ends = Fields::of(&bytes).count();
            let _only = Fields::only(&bytes);
        }
    }
}
