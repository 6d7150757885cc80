//! Identifiers. Each has its own type, so that a term is never passed where a revision is meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{ID_LEN, WallTime};

/// Why a text is not a valid identifier or name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {rule}")]
pub struct BadId {
    /// The expected identifier.
    pub what: &'static str,
    /// The rule that it breaks.
    pub rule: &'static str,
}

/// 128 bits as 25 base-36 digits, most significant first.
fn base36(mut n: u128) -> [u8; ID_LEN] {
    let mut out = [b'0'; ID_LEN];
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(n % 36) as usize];
        n /= 36;
    }
    out
}

macro_rules! base36_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; ID_LEN]);

        impl $name {
            /// The id with these 128 random bits. The caller supplies the randomness.
            pub fn from_entropy(entropy: u128) -> Self {
                Self(base36(entropy))
            }
            /// The id as text.
            pub fn as_str(&self) -> &str {
                std::str::from_utf8(&self.0).expect("an id holds base-36 digits only")
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                let bad = BadId { what: $what, rule: "25 digits of 0-9a-z" };
                let bytes: [u8; ID_LEN] = text.as_bytes().try_into().map_err(|_| bad.clone())?;
                let legal = |b: &u8| b.is_ascii_digit() || b.is_ascii_lowercase();
                if bytes.iter().all(legal) { Ok(Self(bytes)) } else { Err(bad) }
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_str(self.as_str())
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}

base36_id!(
    /// A machine. Random, chosen once, never reused.
    NodeId, "a node id"
);
base36_id!(
    /// A cluster. Random, chosen by its founder.
    ClusterId, "a cluster id"
);

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);
        impl $name {
            /// The next value.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(
    /// A Raft member id. Allocated by a replicated counter and never reused. 0 stands for none.
    RaftId
);
counter!(
    /// A Raft term (Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm", section 5.1).
    Term
);
counter!(
    /// The Raft index of an applied entry: the clock of the replicated state. 0 is before the first entry.
    Revision
);
counter!(
    /// Counts changes of an object's spec, not of its status.
    Generation
);
counter!(
    /// Raised by a forced recovery or a restore; certificates of older incarnations are refused.
    Incarnation
);

/// Makes a retry of one proposal recognisable: the same id is applied at most once. 0: not remembered.
///
/// The first 48 bits are the time in milliseconds since 1970, as in a UUID of version 7. Of each caller the greatest ids are
/// remembered; an unknown id below them may be a forgotten one, so it is refused. An id of the future is refused too.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u128);

impl RequestId {
    /// A new one: 48 bits of time, 80 random bits. Outcomes are kept in the order of their ids, so ids that grow with time touch
    /// the same few leaves in turn, while random ones would copy another leaf each.
    pub fn fresh(at: WallTime, entropy: u128) -> Self {
        let millis = u128::from(at.0.unsigned_abs()) & ((1 << 48) - 1);
        Self((millis << 80 | entropy >> 48).max(1))
    }
    /// The time with which it begins.
    pub fn time(self) -> WallTime {
        WallTime((self.0 >> 80) as i64)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A person's name for a node, token, user or cluster: 1 to 63 of `[a-z0-9._-]`, first and last a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// The nearest legal name to any text (a hostname, say): lower case, other characters become `-`.
    pub fn sanitized(text: &str) -> Self {
        let mapped: String = text
            .chars()
            .take(63)
            .map(|c| match c.to_ascii_lowercase() {
                c @ ('a'..='z' | '0'..='9' | '.' | '_' | '-') => c,
                _ => '-',
            })
            .collect();
        let trimmed = mapped.trim_matches(['.', '_', '-']);
        Self(if trimmed.is_empty() { "node".to_owned() } else { trimmed.to_owned() })
    }
}
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl FromStr for Name {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let edge = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
        let inner = |b: u8| edge(b) || matches!(b, b'.' | b'_' | b'-');
        let bytes = text.as_bytes();
        let legal = (1..=63).contains(&bytes.len())
            && bytes.iter().all(|b| inner(*b))
            && edge(bytes[0])
            && edge(bytes[bytes.len() - 1]);
        if legal {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadId { what: "a name", rule: "1 to 63 of [a-z0-9._-], first and last a letter or digit" })
        }
    }
}
impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_request_ids_grow_with_time_and_are_unique() {
        let at = |millis, entropy| RequestId::fresh(WallTime(millis), entropy);
        assert!(at(1_700_000_000_000, u128::MAX) < at(1_700_000_000_001, 0));
        assert_ne!(at(5, 1 << 48), at(5, 2 << 48));
        assert_ne!(at(0, 0), RequestId(0));
        // Token ids are made from the last digits.
        let tail = |id: RequestId| NodeId::from_entropy(id.0).as_str()[17..].to_owned();
        assert_ne!(tail(at(5, 1 << 48)), tail(at(5, 2 << 48)));
    }

    #[test]
    fn ids_round_trip_and_hold_128_bits() {
        let id = NodeId::from_entropy(u128::MAX);
        assert_eq!(id.as_str().len(), ID_LEN);
        assert_eq!(id.as_str().parse::<NodeId>(), Ok(id));
        assert!("UPPERCASEUPPERCASEUPPERCA".parse::<NodeId>().is_err());
        assert!("short".parse::<NodeId>().is_err());
    }

    #[test]
    fn names_are_restricted_and_hostnames_become_names() {
        assert!("n1".parse::<Name>().is_ok());
        for bad in ["", "-a", "a.", "A", "a b", "ü", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        assert_eq!(Name::sanitized("My Host.Example-").as_str(), "my-host.example");
        assert_eq!(Name::sanitized("---").as_str(), "node");
    }
}
