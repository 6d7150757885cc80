//! Releases: the version that a build reports, and the part of it that is compared.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::BadId;

/// `MAJOR.MINOR.PATCH`: the part by which releases are compared. 0.0.0 stands for an unknown release.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Triple {
    pub major: u64,
    pub minor: u64,
    pub patch: u64,
}

impl Triple {
    /// `major.minor.patch`.
    pub const fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self { major, minor, patch }
    }
}
impl fmt::Display for Triple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// A release: `MAJOR.MINOR.PATCH`. No entrance takes a suffix (`-pre`, `+build`): gates compare numbers only. Records of earlier
/// builds may have one, which is read and shown, and orders nothing: hence no `Ord`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Release {
    pub triple: Triple,
    /// From `-` or `+` on; empty unless an earlier build recorded it.
    suffix: String,
}

/// Bytes of a release's text.
const MAX_RELEASE_BYTES: usize = 128;

/// Why a suffix is refused.
const PLAIN_RULE: &str = "MAJOR.MINOR.PATCH, three numbers, without -pre or +build: a gate could not tell two builds of one release \
                          apart, so give each build that it must tell apart its own number";

impl Release {
    /// What a record says, of whichever build. Requests that bring a release are refused by [`Self::plain`].
    fn recorded(text: &str) -> Result<Self, BadId> {
        let bad = BadId { what: "a release", rule: PLAIN_RULE };
        let numbers = text.find(['-', '+']).unwrap_or(text.len());
        let (numbers, suffix) = text.split_at(numbers);
        let legal = |c: char| c.is_ascii_alphanumeric() || ".-+".contains(c);
        if text.len() > MAX_RELEASE_BYTES || !suffix.chars().all(legal) || suffix.len() == 1 {
            return Err(bad);
        }
        let mut parts = numbers.split('.').map(|part| {
            let plain = part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
            if plain { part.parse().ok() } else { None }
        });
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => {
                Ok(Self { triple: Triple { major, minor, patch }, suffix: suffix.to_owned() })
            }
            _ => Err(bad),
        }
    }
    /// The same, if it is one that a request may bring.
    pub fn plain(&self) -> Result<&Self, BadId> {
        if self.suffix.is_empty() { Ok(self) } else { Err(BadId { what: "a release", rule: PLAIN_RULE }) }
    }
}
impl From<Triple> for Release {
    fn from(triple: Triple) -> Self {
        Self { triple, suffix: String::new() }
    }
}
impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.triple, self.suffix)
    }
}
impl FromStr for Release {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let release = Self::recorded(text)?;
        release.plain()?;
        Ok(release)
    }
}
impl FromStr for Triple {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        text.parse::<Release>().map(|release| release.triple)
    }
}

macro_rules! as_text {
    ($name:ident, $read:path) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
                $read(&text).map_err(de::Error::custom)
            }
        }
    };
}
as_text!(Triple, Triple::from_str);
as_text!(Release, Release::recorded);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_releases_compare_as_numbers_and_differ_as_text() {
        let recorded = |text: &str| serde_json::from_value::<Release>(text.into()).unwrap();
        assert!(recorded("1.10.0").triple > recorded("1.9.9").triple);
        let (one, other) = (recorded("1.2.3-rc.1+g12"), recorded("1.2.3"));
        assert_eq!(one.triple, other.triple);
        assert_ne!(one, other);
        assert_eq!(one.to_string(), "1.2.3-rc.1+g12");
        assert!(one.plain().is_err() && other.plain().is_ok());
    }

    #[test]
    fn only_three_numbers_are_a_new_release() {
        for text in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x", "01.2.3", "1.2.3-", "1.2.3-a b", "1.2.+3", "-1.2.3"]
        {
            assert!(Release::recorded(text).is_err() && text.parse::<Release>().is_err(), "{text}");
        }
        for text in ["1.2.3-rc.1", "1.2.3+g12"] {
            let why = text.parse::<Release>().unwrap_err().to_string();
            assert!(why.contains("tell two builds of one release apart"), "{why}");
            assert_eq!(text.parse::<Triple>().unwrap_err().to_string(), why);
            assert!(serde_json::from_value::<Triple>(text.into()).is_err());
        }
        assert!("1.2.18446744073709551616".parse::<Triple>().is_err());
    }
}
