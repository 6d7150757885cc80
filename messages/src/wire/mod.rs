//! The only place where bytes become values. Everything that leaves the process goes through [`encode`] and
//! [`decode`]: one version byte, then bincode 2 with a limit; trailing bytes are refused; no wire type is recursive.
//!
//! Renaming or reordering a variant or field of a type used here changes the bytes: golden tests detect it.

mod agent;
mod api;
mod autopilot;
mod bytes;
mod join;
mod lease;
mod peer;
mod raft;
mod reconcilers;
mod workload;

pub use self::agent::*;
pub use self::api::*;
pub use self::autopilot::*;
pub use self::join::*;
pub use self::lease::*;
pub use self::peer::*;
pub use self::raft::*;
pub use self::reconcilers::*;
pub use self::workload::*;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::{NodeId, RefusalReason};

/// The first byte of every encoded value.
pub const WIRE_VERSION: u8 = 1;

/// The largest frame or message that any decoder accepts (1 MiB). Larger things travel in chunks. A bigger one would hold up
/// the control traffic behind it on the same stream.
pub const MAX_FRAME: usize = 1 << 20;

/// The part of a snapshot in one message (64 KiB): what follows it on the same stream waits for one piece. That is a
/// fifth of a heartbeat on a link of 25 Mbit/s.
pub const CHUNK: usize = 64 * 1024;

/// Why bytes cannot be decoded. The text contains no content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("empty message")]
    Empty,
    #[error("wire version {0}, this process supports {WIRE_VERSION}")]
    Version(u8),
    #[error("message of {0} bytes, the limit is {MAX_FRAME}")]
    TooLarge(usize),
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
    #[error("malformed message: {0}")]
    Malformed(String),
}

fn config() -> bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<MAX_FRAME>,
> {
    bincode::config::standard().with_limit::<MAX_FRAME>()
}

/// Encodes a value for the wire. Rejects what no decoder would accept.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, WireError> {
    let mut out = Vec::with_capacity(128);
    out.push(WIRE_VERSION);
    bincode::serde::encode_into_std_write(value, &mut out, config())
        .map_err(|e| WireError::Malformed(e.to_string()))?;
    if out.len() > MAX_FRAME { Err(WireError::TooLarge(out.len())) } else { Ok(out) }
}

/// Decodes a peer's bytes. Never panics, never allocates more than [`MAX_FRAME`] because of a length field.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > MAX_FRAME {
        return Err(WireError::TooLarge(bytes.len()));
    }
    let (version, body) = bytes.split_first().ok_or(WireError::Empty)?;
    if *version != WIRE_VERSION {
        return Err(WireError::Version(*version));
    }
    let (value, used) =
        bincode::serde::decode_from_slice(body, config()).map_err(|e| WireError::Malformed(e.to_string()))?;
    if used == body.len() { Ok(value) } else { Err(WireError::Trailing(body.len() - used)) }
}

/// Encodes a record for this node's own disk, where the frame limit does not apply (snapshots).
pub fn encode_stored<T: Serialize>(value: &T) -> Result<Vec<u8>, WireError> {
    let mut out = vec![WIRE_VERSION];
    bincode::serde::encode_into_std_write(value, &mut out, bincode::config::standard())
        .map_err(|e| WireError::Malformed(e.to_string()))?;
    Ok(out)
}

/// The largest stored record that is decoded (1 GiB): a snapshot of 10,000 nodes is a few MiB.
pub const MAX_STORED: usize = 1 << 30;

/// Decodes a record from this node's own disk or an assembled snapshot, whose checksum the caller has verified.
pub fn decode_stored<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let (version, body) = bytes.split_first().ok_or(WireError::Empty)?;
    if *version != WIRE_VERSION {
        return Err(WireError::Version(*version));
    }
    let config = bincode::config::standard().with_limit::<MAX_STORED>();
    let (value, used) =
        bincode::serde::decode_from_slice(body, config).map_err(|e| WireError::Malformed(e.to_string()))?;
    if used == body.len() { Ok(value) } else { Err(WireError::Trailing(body.len() - used)) }
}

/// The first frame on every native connection (`muster-mesh/1`, `muster-agent/1`, `muster-join/1`, `muster-api/1`),
/// sent by the side that accepted, right after the handshake, and never repeated. Late: the dialer gives up after its greeting
/// timeout and dials again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Greeting {
    /// The service follows. Lost: the dialer gives up, too.
    Welcome { node: NodeId },
    /// The connection ends after this frame. Lost: the dialer sees it end, dials again and is refused again.
    Refused(Refusal),
}

/// A refusal with information that helps the other side to continue.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub reason: RefusalReason,
    pub message: String,
    /// Managers that the refusing node knows, `host:port`.
    pub managers: Vec<String>,
    pub retry_after_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds of every feature level read it.
    #[test]
    fn membership_request_keeps_its_bytes() {
        let request = MembershipRequest {
            advertise: "a:1".to_owned(),
            held: Some(crate::model::RaftId(7)),
            data_lost: None,
            feature_level: 2,
        };
        let bytes = encode(&request).unwrap();
        assert_eq!(bytes, [1, 3, b'a', b':', b'1', 1, 7, 0, 2]);
        assert_eq!(decode(&bytes), Ok(request));
    }

    #[test]
    fn decoding_never_trusts_a_length() {
        let value = vec![7u64; 100];
        let bytes = encode(&value).unwrap();
        assert_eq!(decode::<Vec<u64>>(&bytes), Ok(value));
        assert_eq!(decode::<Vec<u64>>(&[]), Err(WireError::Empty));
        assert_eq!(decode::<Vec<u64>>(&[9, 0]), Err(WireError::Version(9)));
        // A claimed length of 2^46 elements in a dozen bytes.
        let bomb = [1, 253, 0, 0, 0, 0, 0, 64, 0, 0];
        assert!(matches!(decode::<Vec<u8>>(&bomb), Err(WireError::Malformed(_))));
        let mut trailing = encode(&3u8).unwrap();
        trailing.push(0);
        assert_eq!(decode::<u8>(&trailing), Err(WireError::Trailing(1)));
        assert!(encode(&vec![0u8; MAX_FRAME + 1]).is_err());
    }
}
