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

/// The version that a build reports: `MAJOR.MINOR.PATCH[-pre][+build]` (Semantic Versioning 2.0.0). The suffix tells builds
/// apart but does not order them: hence no `Ord`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Release {
    pub triple: Triple,
    /// From `-` or `+` on; often empty.
    suffix: String,
}

/// Bytes of a release's text.
const MAX_RELEASE_BYTES: usize = 128;

impl Release {
    /// The release in a text, 0.0.0 if there is none: an unreported release counts as the oldest.
    pub fn or_oldest(text: &str) -> Self {
        text.parse().unwrap_or_default()
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
        let bad = BadId { what: "a release", rule: "MAJOR.MINOR.PATCH, three numbers, with -pre or +build at most" };
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
}
impl FromStr for Triple {
    type Err = BadId;
    fn from_str(text: &str) -> Result<Self, BadId> {
        let release: Release = text.parse()?;
        if release.suffix.is_empty() {
            return Ok(release.triple);
        }
        Err(BadId { what: "a release to compare with", rule: "MAJOR.MINOR.PATCH and nothing else" })
    }
}

macro_rules! as_text {
    ($name:ident) => {
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
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}
as_text!(Triple);
as_text!(Release);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_as_numbers_and_differ_as_text() {
        let release = |text: &str| text.parse::<Release>().unwrap();
        assert!(release("1.10.0").triple > release("1.9.9").triple);
        let (one, other) = (release("1.2.3-rc.1+g12"), release("1.2.3"));
        assert_eq!(one.triple, other.triple);
        assert_ne!(one, other);
        assert_eq!(one.to_string(), "1.2.3-rc.1+g12");
    }

    #[test]
    fn invalid_release_is_older_than_every_release() {
        for text in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x", "01.2.3", "1.2.3-", "1.2.3-a b", "1.2.+3", "-1.2.3"]
        {
            assert!(text.parse::<Release>().is_err(), "{text}");
            assert_eq!(Release::or_oldest(text), Release::default());
        }
        assert!("1.2.3-rc".parse::<Triple>().is_err());
        assert!("1.2.18446744073709551616".parse::<Triple>().is_err());
    }
}
