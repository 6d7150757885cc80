//! The private extension: the grant of a role that a certificate is based on.
//!
//! `granted` lets a reader decide whether its own replica is new enough to overrule the certificate. The extension is
//! not critical, because other verifiers reject unknown critical ones. Content, DER:
//! `SEQUENCE { version INTEGER (1), incarnation INTEGER, granted INTEGER OPTIONAL }`, integers of 0 to 2^64-1.

use muster_messages::{Incarnation, Revision};

/// 1.3.6.1.4.1.32473.77.1: below the enterprise number that RFC 5612 reserves for documentation. It is never assigned, so
/// the extension cannot be mistaken for another vendor's.
pub(crate) const OID: &[u64] = &[1, 3, 6, 1, 4, 1, 32473, 77, 1];

const VERSION: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub incarnation: Incarnation,
    /// The revision at which the role was written; `None` in the founder's first certificate and for users.
    pub granted: Option<Revision>,
}

impl Grant {
    pub(crate) fn to_der(self) -> Vec<u8> {
        let mut body = Vec::with_capacity(32);
        let values = [Some(VERSION), Some(self.incarnation.0), self.granted.map(|r| r.0)];
        for value in values.into_iter().flatten() {
            put_integer(&mut body, value);
        }
        let len = u8::try_from(body.len()).expect("three integers of at most 11 bytes");
        [&[0x30, len], body.as_slice()].concat()
    }

    /// Strict: one encoding per value, no trailing bytes, no other version.
    pub(crate) fn from_der(der: &[u8]) -> Option<Self> {
        let [0x30, len, body @ ..] = der else {
            return None;
        };
        if usize::from(*len) != body.len() || *len > 0x7f {
            return None;
        }
        let (version, rest) = take_integer(body)?;
        let (incarnation, rest) = take_integer(rest)?;
        let granted = match rest {
            [] => None,
            rest => match take_integer(rest)? {
                (granted, []) => Some(Revision(granted)),
                _ => return None,
            },
        };
        (version == VERSION).then_some(Self { incarnation: Incarnation(incarnation), granted })
    }
}

fn put_integer(out: &mut Vec<u8>, value: u64) {
    let bytes = value.to_be_bytes();
    let first = bytes.iter().position(|b| *b != 0).unwrap_or(7);
    let digits = &bytes[first..];
    let sign = digits[0] & 0x80 != 0; // a zero byte keeps the number positive
    out.push(0x02);
    out.push(digits.len() as u8 + u8::from(sign));
    if sign {
        out.push(0);
    }
    out.extend_from_slice(digits);
}

fn take_integer(der: &[u8]) -> Option<(u64, &[u8])> {
    let [0x02, len, rest @ ..] = der else {
        return None;
    };
    let (digits, rest) = rest.split_at_checked(usize::from(*len))?;
    let value = match digits {
        [0, tail @ ..] if tail.first().is_some_and(|b| b & 0x80 != 0) && tail.len() <= 8 => tail,
        [first, ..] if first & 0x80 == 0 && digits.len() <= 8 && (digits.len() == 1 || *first != 0) => digits,
        _ => return None,
    };
    Some((value.iter().fold(0, |n, b| n << 8 | u64::from(*b)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_grant_round_trips(incarnation: u64, granted: Option<u64>) {
            let grant = Grant { incarnation: Incarnation(incarnation), granted: granted.map(Revision) };
            prop_assert_eq!(Grant::from_der(&grant.to_der()), Some(grant));
        }
        #[test]
        fn what_parses_is_what_would_be_written(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(grant) = Grant::from_der(&bytes) {
                prop_assert_eq!(grant.to_der(), bytes);
            }
        }
    }

    #[test]
    fn noncanonical_grant_encodings_are_refused() {
        assert!(Grant::from_der(&[0x30, 6, 2, 1, 1, 2, 1, 7]).is_some());
        assert!(Grant::from_der(&[0x30, 7, 2, 1, 1, 2, 2, 0, 7]).is_none());
        assert!(Grant::from_der(&[0x30, 6, 2, 1, 1, 2, 1, 7, 0]).is_none());
        assert!(Grant::from_der(&[0x30, 6, 2, 1, 2, 2, 1, 7]).is_none());
    }
}
